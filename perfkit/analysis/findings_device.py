"""Rules about the device: communication, kernels, matrix shapes, attention, recompute, slow ranks, streams."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.call_about import is_issuer
from perfkit.analysis.facts import Facts
from perfkit.analysis.findings_job import culprit, slow_link
from perfkit.analysis.findings_types import MAX_EVIDENCE, Finding, ms
from perfkit.analysis.timeline import ints
from perfkit.analysis.utilisation import dtype_of_name

COMM_POINTS, STREAM_POINTS, TINY_POINTS, RECOMPUTE_POINTS, RANK_POINTS = 5.0, 2.0, 4.0, 4.0, 2.0
SHAPE_POINTS, PRECISION_POINTS, ATTENTION_POINTS, ELEMENTWISE_POINTS, SMALL_POINTS = 1.0, 3.0, 2.0, 15.0, 0.5
"""Below this a finding is not worth a reader's time; some communication and recompute is paid for on purpose."""
SMALL_BYTES = 2**22
"""Below this a message's time is latency more than bandwidth, on NVLink and on InfiniBand alike."""
NUMBER_BYTES = 64
"""Up to this a message is a number or a few, not a piece of a tensor."""
SMALL_COUNT, SMALL_SHARE = 16, 0.3
"""Small messages per step and rank that a bucket could join, and their share of communication time."""
MIN_WORK = 3
"""Pieces of device work below which a trace says nothing about overlap."""
TINY_NS = 10_000
"""A launch costs the host about this much."""
FUSION_GAIN = 0.5
"""Share of element-wise time that fusion gives back: each of two neighbours reads and writes once less."""
SCORE = 0.9
"""Definition 16: a rank below this is a straggler."""
ALIGNMENT = {"fp8": 16, "bf16": 8, "fp16": 8, "int8": 16}
"""Elements that make 16 bytes: the unit in which tensor cores load."""
_GEMM_OPERANDS = {
    "aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2), "aten::baddbmm": (1, 2), "aten::_scaled_mm": (0, 1),
}  # fmt: skip
_SOFTMAX = ("aten::_softmax", "aten::_softmax_backward_data", "aten::_safe_softmax", "aten::softmax")
_BATCHED = ("aten::bmm", "aten::baddbmm", "aten::matmul")


_IN_GRAPHS = (
    "part of the work ran in CUDA graphs, of which a profiler may have recorded only some nodes: see first whether the "
    "gaps lie inside graphs (nsys profile --cuda-graph-trace=node records all); otherwise "
)
_EAGER = {
    False: "CUDA_MODULE_LOADING=EAGER (and see that CUDA_LAUNCH_BLOCKING is not set)",
    True: "HIP_ENABLE_DEFERRED_LOADING=0 (and see that AMD_SERIALIZE_KERNEL is not set)",
}
"""How code is loaded at the start, by whether the runtime is AMD's."""
_WARM = {
    False: "torch.profiler.schedule(wait=…, warmup=…)",
    True: "nsys profile --capture-range=cudaProfilerApi, and torch.cuda.profiler.start() after it",
}
"""How the first steps are left out, by whether it was Nsight Systems that recorded."""
_MIXED = {
    "bf16": "train under torch.autocast('cuda', torch.bfloat16)",
    "fp16": "train under torch.autocast('cuda', torch.float16) with torch.amp.GradScaler: this device has no bf16",
}
_TF32 = "where fp32 must stay, torch.set_float32_matmul_precision('high') allows TF32"
_LINK = "; look at the link too: compare with `{}_perf` of nccl-tests between the same ranks"
_FOR_LATE = "overlapping it would not help: see which ranks the others wait for, and make them arrive together"
_HOST_LINK = "measure the link between these hosts (iperf3); if it is as fast as it should be, "
_TESTS = {"all_to_all": "alltoall", "send": "sendrecv", "recv": "sendrecv", "send_recv": "sendrecv"}
"""What nccl-tests calls an operation, if not by its name."""


def exposed_communication(facts: Facts) -> Finding | None:
    """Report communication that the pace-setting rank waits for, by collective."""
    table = facts.exchanges
    if facts.job is not None and len(facts.job.bubbles.ranks):  # messages of a pipeline are bubbles
        table = table.filter(pc.invert(pc.is_in(table["op"], pa.array(["send", "recv"]))))
    large = table.filter(pc.invert(_is_small(table))) if small_messages(facts) else table
    rows = facts.paced_sum(large, "exposed_ns", ["op", "group"])  # small messages are a finding of their own
    if table is not facts.exchanges:  # stages that end at different times wait for each other: the schedule's cost
        rows = [{**row, "gpu_ns": row["gpu_ns"] * (1 - _waiting(facts, row["op"]))} for row in rows]
        rows.sort(key=lambda row: -row["gpu_ns"])
    points = facts.points(sum(row["gpu_ns"] for row in rows))
    if points < COMM_POINTS or (facts.quality.get("device_events") or MIN_WORK) < MIN_WORK:
        return None
    first = rows[0]
    advice = {
        "all_gather": "prefetch one layer further ahead, or shard over fewer ranks (HSDP)",
        "reduce_scatter": "overlap it with the backward pass, or shard over fewer ranks (HSDP)",
        "all_reduce": "overlap buckets with the backward pass; for tensor parallelism use sequence parallelism and "
        "asynchronous collectives, or fewer ranks inside a node",
        "all_to_all": "of sharded embeddings: fetch the next batch's while this one computes (torchrec's "
        "TrainPipelineSparseDist), and balance the shards; of experts: overlap dispatch with shared experts, or keep "
        "experts inside a node",
        "send_recv": "in a pipeline, more micro-batches or an interleaved schedule; in an all-to-all, which NCCL names "
        "the same, balance the shards and overlap it",
        "recv": "in a pipeline, more micro-batches or an interleaved schedule",
    }.get(first["op"], "overlap it with compute")
    knows = first["op"] in (*_TESTS, "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
    how, waits = _how(facts, first["op"])
    if waits:
        advice = _FOR_LATE
    elif knows:  # the registry knows no peak of a host's link, so that it comes first there
        advice = (
            advice + _LINK.format(_TESTS.get(first["op"], first["op"])) if facts.has_device else _HOST_LINK + advice
        )
    return Finding(
        "exposed_communication",
        f"Communication is not hidden behind compute, most of it {first['op']}{how}",
        points,
        advice,
        {
            "collectives": [
                {
                    "op": r["op"],
                    "group": _called(facts, r["group"]),
                    "lost_gpu_ms": ms(r["gpu_ns"]),
                    "exposed_ms": ms(r["ns"]),
                }
                for r in rows[:MAX_EVIDENCE]
            ],
            "split": _split(facts),
        },
        because="slow_link" if (link := slow_link(facts)) and (link.points or 0) >= points / 2 else None,
    )


def _called(facts: Facts, description: str | None) -> str | None:
    """Return what the table of collectives calls the groups of a description; as recorded if they have several."""
    if facts.job is None:
        return description
    from perfkit.analysis.collectives_summary import group_names

    view = facts.job.view
    described = view.calls["group_desc"].cast(pa.utf8())
    mine = pc.is_null(described) if description is None else pc.equal(described, description)
    names = [*group_names(view), None]
    called = {names[gid] for gid in np.unique(ints(view.members["gid"].filter(mine))).tolist()}
    return called.pop() if len(called) == 1 else description


def _waiting(facts: Facts, op: str) -> float:
    """Return which share of an operation's exposed time is waiting for ranks that come late."""
    _, waited, _, total = _exposed(facts, op)
    return waited / total if total else 0.0


def _exposed(facts: Facts, op: str) -> tuple[int, int, int, int]:
    """Return the exposed time of an operation: transfer, waiting, neither, and all of it."""
    rows = [r for r in facts.job.collectives if r["op"] == op] if facts.job is not None else []
    moved, waited, unclear = (
        sum(r[f"exposed_{name}_ns"] or 0 for r in rows) for name in ("transfer", "wait", "unsplit")
    )
    return moved, waited, unclear, moved + waited + unclear


def _how(facts: Facts, op: str) -> tuple[str, bool]:
    """Say whether the exposed time of an operation is transfer, and how fast, or waiting; and whether it waits."""
    if facts.job is None:
        return "", False
    from perfkit.analysis.collectives import MOSTLY

    rows = [r for r in facts.job.collectives if r["op"] == op]
    moved, waited, _, total = _exposed(facts, op)
    if not total or max(moved, waited) <= MOSTLY * total:
        return "", False
    if waited > moved:
        return f": {100 * waited / total:.0f} % of it is waiting for ranks that come late", True
    most = max(rows, key=lambda r: r["exposed_transfer_ns"] or 0)
    rate = "" if most["busbw_gbps"] is None else f", at {most['busbw_gbps']:.3g} GB/s"
    rate += "" if most["efficiency"] is None else f" or {100 * most['efficiency']:.0f} % of the link's peak"
    return f": {100 * moved / total:.0f} % of it is transfer{rate}, not waiting for a late rank", False


def _split(facts: Facts) -> str | dict[str, float]:
    """Return how much of the exposed communication is waiting, of all ranks together."""
    job = facts.job
    if job is None or not job.view.several or not len(job.view.instances):
        return "waiting and transfer are not told apart without aligned clocks"
    known = job.summary()
    names = ("exposed_transfer_ns", "exposed_wait_ns", "bubble_ns", "unsplit_ns")
    return {name.replace("_ns", "_gpu_ms"): ms(known[name]) for name in names if known[name]}


def small_messages(facts: Facts) -> Finding | None:
    """Report many small messages of one kind, where a few large ones would do; on a host their calls count too."""
    small = facts.exchanges.filter(_is_small(facts.exchanges))
    count = (pc.sum(small["count"]).as_py() or 0) / facts.num_steps / facts.num_devices
    small_ns, all_ns = (pc.sum(t["comm_ns"]).as_py() or 0 for t in (small, facts.exchanges))
    if count < SMALL_COUNT or not all_ns or small_ns < SMALL_SHARE * all_ns:
        return None
    busy, issued = facts.points(small_ns), sum(row["gpu_ns"] for row in issuing(facts)) * share_of_small(facts)
    exposed = facts.points(float(facts.paced(small, "exposed_ns").sum()) + issued)
    if busy < SMALL_POINTS:
        return None
    sizes = small.group_by(["op", "group", "bytes"], use_threads=False).aggregate(
        [("count", "sum"), ("comm_ns", "sum")]
    )
    rows = sizes.sort_by([("comm_ns_sum", "descending")]).slice(0, MAX_EVIDENCE).to_pylist()
    numbers = rows[0]["bytes"] <= NUMBER_BYTES
    most = f", most of them of {rows[0]['bytes']} bytes" if numbers else ""
    return Finding(
        "small_messages",
        f"{count:.0f} messages below {SMALL_BYTES >> 20} MiB per step and rank{most}: their time is latency",
        exposed,
        "these are single numbers (losses, norms, statistics, flags), and each costs a round trip between all ranks: "
        "put them in one tensor and reduce that once, or every N steps, and read it (.item()) afterwards"
        if numbers
        else "raise bucket_cap_mb (DDP) or wrap larger units (FSDP), so that one collective carries what these do",
        {
            "per_step": count, "busy_points": busy, **({"issuing_points": facts.points(issued)} if issued else {}),
            "messages": [
                {"op": r["op"], "group": _called(facts, r["group"]), "bytes": r["bytes"], "count": r["count_sum"],
                 "comm_ms": ms(r["comm_ns_sum"])}
                for r in rows
            ],
        },
    )  # fmt: skip


def issuing(facts: Facts) -> list[dict[str, Any]]:
    """Return the places where a host without a device stands in calls of the communication library, not yet sending.

    With a device the same time makes launches late, and is the host's.
    """
    places = [] if facts.has_device else [row for rows in facts.late_host.values() for row in rows]
    return [row for row in places if row["where"] and is_issuer(row["where"])]


def share_of_small(facts: Facts) -> float:
    """Return how many of the messages are small: each costs its call, whatever it carries."""
    small, total = (
        pc.sum(table["count"]).as_py() or 0
        for table in (facts.exchanges.filter(_is_small(facts.exchanges)), facts.exchanges)
    )
    return small / total if total else 0.0


def _is_small(exchanges: pa.Table) -> pa.ChunkedArray:
    joinable = pc.is_in(exchanges["op"], pa.array(["all_reduce", "all_gather", "reduce_scatter"]))
    return pc.and_(joinable, pc.less(pc.fill_null(exchanges["bytes"], SMALL_BYTES), SMALL_BYTES))


def tiny_kernels(facts: Facts) -> Finding | None:
    """Report a device that starves between many short kernels."""
    count, total = (pc.sum(facts.kernels[c]).as_py() or 0 for c in ("count", "total_ns"))
    lost = facts.paced_idle("launch") + sum(
        row["gpu_ns"] for kind in ("framework", "runtime") for row in facts.late_host.get(kind, [])
    )
    points = facts.points(lost)
    if not facts.has_device or not count or total / count >= TINY_NS or points < TINY_POINTS:
        return None
    mean = np.array(facts.kernels["total_ns"]) / np.maximum(1, np.array(facts.kernels["count"]))
    tiny = facts.kernel_rows(pa.chunked_array([pa.array(mean < TINY_NS)]))
    return Finding(
        "tiny_kernels",
        f"{count:,} kernels of {total / count / 1000:.1f} µs on average: launching them takes longer than running them",
        points,
        "fuse them with torch.compile, replay them with CUDA graphs (mode='reduce-overhead'), use foreach or fused "
        "optimizers, or raise the batch size",
        {"kernels": count, "mean_us": total / count / 1000, "most": _kernels(tiny)},
    )


def gemm_alignment(facts: Facts) -> Finding | None:
    """Report matrix products whose inner dimensions do not fill the tensor cores' loads."""
    rows = _tensor_gemms(facts)
    bad = [r for r in rows if _misaligned(r)]
    good = [r for r in rows if not _misaligned(r)]
    lost = sum(r["owned_ns"] for r in bad)
    if facts.peaks.unseen or facts.points(lost) < SHAPE_POINTS:
        return None
    reference = _rate(good)
    gain = None if reference is None else sum(max(0.0, r["total_ns"] - r["flops"] / reference * 1e9) for r in bad)
    points = None if gain is None else facts.points(gain)
    if points is not None and points < SHAPE_POINTS:
        return None
    return Finding(
        "gemm_alignment",
        "Matrix shapes are not multiples of 16 bytes, which tensor cores need",
        points,
        "pad vocabulary, hidden sizes and head dimensions to multiples of 8 (bf16) or 16 (fp8); 64 or 128 is better",
        {"time_points": facts.points(lost), "shapes": _shapes(bad)},
    )


def gemm_precision(facts: Facts) -> Finding | None:
    """Report fp32 and TF32 products on a device with a faster 16-bit format.

    On a CPU, torch's 16-bit products depend on more than the peak: nothing is promised there.
    """
    half = next((d for d in ("bf16", "fp16") if d in facts.peaks.flops), None)  # a V100 has no bf16
    if half is None or not facts.has_device:
        return None
    best = facts.peaks.flops[half]
    products = facts.kernel_rows(facts.family("gemm", "conv", "attention"))
    recorded = zip(
        products["dtype"].cast(pa.utf8()).to_pylist(), products["name"].cast(pa.utf8()).to_pylist(), strict=True
    )
    formats = pa.array([dtype or dtype_of_name(name) for dtype, name in recorded], pa.utf8())
    products = products.set_column(products.column_names.index("dtype"), "dtype", formats)
    rows = products.filter(pc.is_in(formats, pa.array(["fp32", "tf32"])))
    dtypes = rows["dtype"].to_pylist()
    spent = zip(rows["owned_ns"].to_pylist(), dtypes, strict=True)
    gain = sum(ns * max(0.0, 1 - facts.peaks.flops.get(dtype, best) / best) for ns, dtype in spent)
    points = facts.points(gain)
    if points < PRECISION_POINTS:
        return None
    return Finding(
        "gemm_precision",
        f"Matrix products run in {' and '.join(sorted(set(dtypes)))} where {half} would do",
        points,
        _MIXED[half] + ("; " + _TF32 if "fp32" in dtypes and "tf32" in facts.peaks.flops else ""),
        {
            "shapes": _shapes(rows.to_pylist()),
            "assumes": "the same share of the peak as now",
        },
    )


def unfused_attention(facts: Facts) -> Finding | None:
    """Report attention that writes its scores to memory: a softmax over [.., tokens, tokens] between products."""
    ops = facts.kernels["op"].cast(pa.utf8())
    softmax = facts.kernel_rows(pc.fill_null(pc.is_in(ops, pa.array(_SOFTMAX)), False)).to_pylist()
    scores = [r for r in softmax if _is_scores(r["input_dims"])]
    products = facts.kernel_rows(pc.fill_null(pc.is_in(ops, pa.array(_BATCHED)), False)).to_pylist()
    widths = {dims[0][-1] for r in scores if (dims := _dims(r["input_dims"]))}
    touching = [r for r in products if any(d in widths for shape in _dims(r["input_dims"]) for d in shape[-2:])]
    if not scores or not touching:
        return None
    own = _same_shape(facts, scores)
    points = facts.points(sum(r["owned_ns"] for r in own))
    if points < ATTENTION_POINTS:
        return None
    return Finding(
        "unfused_attention",
        "Attention writes its scores to memory instead of using a fused kernel",
        points,
        "call torch.nn.functional.scaled_dot_product_attention (attn_implementation='sdpa' or 'flash_attention_2' in "
        "transformers), and check that dtype, head size and mask allow the flash kernel",
        {
            "product_points": facts.points(sum(r["owned_ns"] for r in touching)),
            "kernels": _shapes(own),
        },
    )


def memory_bound_elementwise(facts: Facts) -> Finding | None:
    """Report a large share of element-wise kernels, casts and copies."""
    rows = facts.kernel_rows(facts.family("elementwise", "copy"))
    share = facts.points(pc.sum(rows["owned_ns"]).as_py() or 0)
    if facts.peaks.unseen or share < ELEMENTWISE_POINTS:
        return None
    return Finding(
        "memory_bound_elementwise",
        f"{share:.0f} % of the time goes to element-wise kernels, casts and copies, which memory bounds",
        share * FUSION_GAIN,
        "fuse them: torch.compile, fused norms and activations, fused cross entropy; keep one dtype to avoid casts",
        {"share_points": share, "assumed_gain": FUSION_GAIN, "most": _kernels(rows)},
    )


def recompute(facts: Facts) -> Finding | None:
    """Report what activation checkpointing costs."""
    again = facts.kernel_rows(pc.fill_null(pc.equal(facts.kernels["phase"].cast(pa.utf8()), "recompute"), False))
    points = facts.points(pc.sum(again["owned_ns"]).as_py() or 0)
    if points < RECOMPUTE_POINTS:
        return None
    return Finding(
        "recompute",
        "The forward pass is run again in the backward pass",
        points,
        "checkpoint fewer layers, or select ops (keep attention and matrix products, recompute the rest); offload or "
        "shard further if memory forbids it",
        {"most": _kernels(again)},
    )


def stream_waits(facts: Facts) -> Finding | None:
    """Report idle time in which work was launched and waited for something on the device."""
    rows = facts.idle_of("dependency", blamed=False)
    points = facts.points(float(facts.paced(rows, "idle_ns").sum()))
    if points < STREAM_POINTS:
        return None
    graphs = facts.quality.get("graph_coverage")
    return Finding(
        "stream_waits",
        "Launched work waits on the device although nothing runs",
        points,
        (_IN_GRAPHS if graphs else "")
        + "look for stream waits, event waits and CUDA_LAUNCH_BLOCKING before the kernels that start late; "
        "side streams that join too early are the usual cause",
        {
            "idle_ms": ms(int(pc.sum(rows["idle_ns"]).as_py() or 0)),
            **({"graph_coverage": graphs} if graphs else {}),
        },
    )


def slow_launches(facts: Facts) -> Finding | None:
    """Report launch calls that take long themselves, which is how code is loaded at a kernel's first use."""
    rows = facts.idle_of("dependency", blamed=True)
    rows = pa.table({c: rows[c].cast(pa.utf8()) if c == "where" else rows[c]
                     for c in ("rank", "device", "step", "where", "idle_ns")})  # fmt: skip
    calls = facts.paced_sum(rows, "idle_ns", ["where"])
    points = facts.points(sum(row["gpu_ns"] for row in calls))
    if points < STREAM_POINTS:
        return None
    return Finding(
        "slow_launches",
        "Launch calls take long themselves, as when a kernel's code is loaded at its first use",
        points,
        f"profile after a warm-up ({_WARM[facts.by_nsys]}), or load all code at the start with "
        f"{_EAGER['hip' in (calls[0]['where'] or '')]}; if it happens in every step, look for new shapes",
        {"calls": [{"where": r["where"], "idle_ms": ms(r["ns"])} for r in calls[:MAX_EVIDENCE]]},
    )


def slow_rank(facts: Facts) -> Finding | None:
    """Report a rank whose kernels take longer than the same kernels, of the same shapes, elsewhere."""
    keys = ["name", "op", "phase", "input_dims"]
    table = facts.kernels.select(["rank", "family", *keys, "count", "total_ns"])
    table = pa.table({c: table[c].cast(pa.utf8()) if c in (*keys, "family") else table[c] for c in table.column_names})
    table = table.group_by([*keys, "family", "rank"], use_threads=False).aggregate(
        [("count", "sum"), ("total_ns", "sum")]
    )
    if not facts.has_device or len(set(table["rank"].to_pylist())) < 2:
        return None
    group = _codes(table, keys)
    rank, count, total = (ints(table[c]) for c in ("rank", "count_sum", "total_ns_sum"))
    usual = _usual(group, total / np.maximum(count, 1))
    excess = np.where(np.isnan(usual), 0.0, total - count * np.nan_to_num(usual))
    ranks, index = np.unique(rank, return_inverse=True)
    slower, spent = np.bincount(index, excess), np.bincount(index, total)
    score = 1 - slower / np.maximum(spent, 1)
    worst = int(np.argmin(score))
    if score[worst] >= SCORE:
        return None
    second = max(0.0, float(np.partition(slower, -2)[-2])) if len(ranks) > 2 else 0.0
    points = facts.points((float(slower[worst]) - second) * facts.num_devices)
    late = culprit(facts.job, facts.points, facts.num_devices) if facts.job is not None else None
    if late is not None and late["rank"] == ranks[worst]:  # what the others do meanwhile takes its time too
        points = min(points, facts.points(late["recoverable_ns"] * facts.num_devices))
    if points < RANK_POINTS:
        return None
    mine = index == worst
    family = np.array(table["family"].to_pylist(), object)
    of_products = np.isin(family, ["gemm", "attention", "conv"]) & mine
    other = mine & ~of_products
    ratio = {
        name: float(1 + excess[m].sum() / max(1.0, (total[m] - excess[m]).sum()))
        for name, m in (("matrix_kernels", of_products), ("other_kernels", other))
        if m.any()
    }
    matrix = ratio.get("matrix_kernels", 1.0)
    throttled = matrix > 1.05 and ratio.get("other_kernels", 1.0) < 1 + (matrix - 1) / 2
    return Finding(
        "slow_rank",
        f"Rank {int(ranks[worst])} is slow: its kernels take {100 / score[worst] - 100:.0f} % longer than elsewhere",
        points,
        "only matrix kernels are slower: check clocks, power cap and temperature of that GPU (nvidia-smi -q -d "
        "PERFORMANCE,CLOCK)" if throttled else "run the device's diagnostics (dcgmi diag -r 3), and drain the node if "
        "it stays slow",
        {
            "rank": int(ranks[worst]), "score": float(score[worst]), **ratio,
            "scores": {int(ranks[i]): float(score[i]) for i in np.argsort(score)[:MAX_EVIDENCE]},
        },
    )  # fmt: skip


# ------------------------------------------------------------------ helpers


def _usual(group: Any, mean: Any) -> Any:
    """Median of each group's means, over the ranks that have it; of two ranks the faster; NaN for one."""
    order = np.lexsort((mean, group))
    sorted_group, sorted_mean = group[order], mean[order]
    first = np.flatnonzero(np.append(True, sorted_group[1:] != sorted_group[:-1])) if len(order) else order
    size = np.diff(np.append(first, len(order)))
    median = sorted_mean[first + (size - 1) // 2]
    value = np.where(size > 1, median, np.nan)
    result = np.empty(len(mean))
    result[order] = np.repeat(value, size)
    return result


def _codes(table: pa.Table, keys: list[str]) -> Any:
    code = np.zeros(len(table), np.int64)
    for key in keys:
        values = pc.dictionary_encode(table[key].combine_chunks(), null_encoding="encode")
        _, code = np.unique(code * (len(values.dictionary) + 1) + values.indices.to_numpy(), return_inverse=True)
    return code


def _dims(text: str | None) -> list[list[int]]:
    """Return the shapes of an op's tensors; what is not a plain shape is left out."""
    found = json.loads(text) if text else []
    return [s for s in found if isinstance(s, list) and s and all(isinstance(n, int) for n in s)]


def _is_scores(text: str | None) -> bool:
    dims = _dims(text)
    return bool(dims) and len(dims[0]) >= 3 and dims[0][-1] >= 64 and dims[0][-2] >= 64


def _same_shape(facts: Facts, scores: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the kernels other than products that read a tensor of the scores' shape: mask, scale, softmax, dropout."""
    shapes = {tuple(_dims(r["input_dims"])[0]) for r in scores}
    rows = facts.kernel_rows(pc.invert(facts.family("gemm", "attention", "conv"))).to_pylist()
    return [r for r in rows if any(tuple(s) in shapes for s in _dims(r["input_dims"]))]


def _tensor_gemms(facts: Facts) -> list[dict[str, Any]]:
    table = facts.kernels
    conditions = (
        pc.greater(table["flops"], 0), pc.is_valid(table["input_dims"]),
        pc.is_in(table["dtype"].cast(pa.utf8()), pa.array(list(ALIGNMENT))),
        pc.is_in(table["op"].cast(pa.utf8()), pa.array(list(_GEMM_OPERANDS))),
    )  # fmt: skip
    wanted = reduce(pc.and_, conditions, facts.family("gemm"))
    rows: list[dict[str, Any]] = facts.kernel_rows(pc.fill_null(wanted, False)).to_pylist()
    return rows


def _misaligned(row: dict[str, Any]) -> bool:
    """Say whether rows of an operand or of the result do not start at multiples of 16 bytes."""
    dims = json.loads(row["input_dims"])
    left, right = (dims[i] if i < len(dims) else [] for i in _GEMM_OPERANDS[row["op"]])
    return any(n % ALIGNMENT[row["dtype"]] for n in (*left[-1:], *right[-1:]))


def _rate(rows: list[dict[str, Any]]) -> float | None:
    """FLOP/s that the rows reach together."""
    spent = sum(r["total_ns"] for r in rows)
    return sum(r["flops"] for r in rows) / spent * 1e9 if spent else None


def _shapes(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the kernels that took longest on all ranks together."""
    ns: Counter[tuple[Any, ...]] = Counter()
    count: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        key = tuple(row[name] for name in ("op", "input_dims", "dtype", "name"))
        ns[key] += row["owned_ns"]
        count[key] += row["count"]
    return [
        {"op": op, "input_dims": dims, "dtype": dtype, "kernel": name, "ms": ms(ns[key]), "count": count[key]}
        for key in sorted(ns, key=lambda key: -ns[key])[:MAX_EVIDENCE]
        for op, dims, dtype, name in [key]
    ]


def _kernels(table: pa.Table) -> list[dict[str, Any]]:
    names = table.group_by("name", use_threads=False).aggregate([("owned_ns", "sum"), ("count", "sum")])
    rows = names.sort_by([("owned_ns_sum", "descending")]).slice(0, MAX_EVIDENCE).to_pylist()
    return [{"kernel": r["name"], "ms": ms(r["owned_ns_sum"]), "count": r["count_sum"]} for r in rows]


DEVICE_RULES: tuple[Callable[[Facts], Finding | None], ...] = (
    exposed_communication, small_messages, tiny_kernels, gemm_alignment, gemm_precision, unfused_attention,
    memory_bound_elementwise, recompute, stream_waits, slow_launches, slow_rank,
)  # fmt: skip
