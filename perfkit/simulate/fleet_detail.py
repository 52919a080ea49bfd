"""A few simulated runs in full: run tables and derived tables, for the pages that look at one run.

    choose_detailed(runs, options) -> the largest run and a few others
    write_detail(store, fleet, run) -> rows by table

Steps, lifecycle and counters are what capture would have written on some ranks of the last attempts; attribution,
waterfall, kernels and findings are what analysis would have written of the last traced steps. All of it is drawn
from the same history as the roll-ups, so the pages agree.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from perfkit.analysis.stragglers import compare_ranks
from perfkit.analysis.waterfall import ladder_rows
from perfkit.schema import (
    ATTRIBUTION,
    COUNTERS,
    FINDINGS,
    IDLE,
    KERNELS,
    STEPS,
    WATERFALL,
    conform,
    table_from_rows,
)
from perfkit.simulate.fleet_runs import Attempt
from perfkit.simulate.fleet_schedule import Progress
from perfkit.simulate.fleet_tables import gpu_uuid, lifecycle_table, loss_curve
from perfkit.simulate.fleet_world import GPUS_PER_NODE, SECOND, FleetOptions, Spec
from perfkit.sources.base import PartInfo
from perfkit.store import Store

if TYPE_CHECKING:
    from perfkit.simulate.fleet import Fleet

TRACED_STEPS = 60
ATTEMPTS_KEPT = 3
"""Of a run with many attempts the last ones are written in full."""
RANKS_KEPT = 4
STEPS_KEPT = 20_000
ANALYSIS = "simulated"
FAMILIES = (
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize256x128x64", "gemm", "aten::mm", 0.46),
    ("flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64>>", "attention", "flash_attn::_flash_attn_forward", 0.08),
    ("flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", "attention", "flash_attn::_flash_attn_backward", 0.13),
    ("rms_norm_kernel<c10::BFloat16>", "norm", "aten::rms_norm", 0.05),
    ("vectorized_elementwise_kernel<4, silu_mul>", "elementwise", "aten::mul", 0.12),
    ("multi_tensor_apply_kernel<AdamFunctor>", "optimizer", "aten::_fused_adamw_", 0.08),
    ("cast_kernel<float, c10::BFloat16>", "copy/cast", "aten::copy_", 0.05),
    ("cross_entropy_loss_forward", "reduction", "aten::nll_loss_forward", 0.03),
)


def choose_detailed(runs: list[Progress], options: FleetOptions) -> list[Progress]:
    """Return the largest run, and the newest of other sizes that did at least a hundred steps."""
    able = [r for r in runs if sum(int(a.block_steps.sum()) for a in r.attempts[-1:]) >= 100]
    chosen = [r for r in able if r.spec.reserved]
    for size in (64, 8, 1):
        rest = [r for r in able if r not in chosen and r.spec.nodes == size]
        rest.sort(key=lambda r: (-len(r.attempts) if size == 8 else 0, -r.attempts[-1].end_ns, r.spec.run))
        chosen += rest[:2]
    return chosen


def write_detail(store: Store, fleet: Fleet, run: Progress) -> dict[str, int]:
    """Write everything of one run."""
    written: dict[str, int] = {}
    lifecycle = lifecycle_table(run)
    for one in run.attempts[-ATTEMPTS_KEPT:]:
        ranks = range(min(RANKS_KEPT, run.spec.gpus))
        for rank in ranks:
            for table, rows in _write_rank(store, fleet, run, one, rank, lifecycle).items():
                written[table] = written.get(table, 0) + rows
        store.finalise(run.spec.cluster.name, run.spec.run, one.attempt, _metadata(run.spec, one))
    for table, rows in _derived(fleet, run).items():
        store.write_derived(
            table, rows, run.spec.cluster.name, run.spec.run, run.attempts[-1].attempt, analysis_id=ANALYSIS
        )
        written[table] = written.get(table, 0) + len(rows)
    return written


def mesh_of(spec: Spec) -> dict[str, int]:
    """Parallel degrees that fit the run."""
    tp = 8 if spec.params > 3e10 else 1
    pp = 8 if spec.params > 3e11 and spec.gpus >= 512 else 1
    return {"dp": spec.gpus // (tp * pp), "tp": tp, "pp": pp}


def _metadata(spec: Spec, one: Attempt) -> dict[str, Any]:
    return {
        "name": spec.name,
        "user": spec.user,
        "world_size": spec.gpus,
        "device": spec.cluster.device,
        "model": spec.model,
        "mesh": mesh_of(spec),
        "versions": {"torch": "2.13.0", "nccl": "2.30.4", "perfkit": "simulated"},
        "peak_flops": spec.cluster.peak_flops,
        "devices_per_replica": spec.gpus // mesh_of(spec)["dp"],
        "git_commit": f"{abs(hash_of(spec.run)):012x}"[:12],
        "synthetic": True,
        "source": "simulator",
        "start_ns": one.start_ns,
        "end_ns": one.end_ns,
    }


def hash_of(text: str) -> int:
    """Return a number that stands for a text, the same on every machine."""
    from perfkit.simulate.noise import hash_key

    return hash_key(text)


def expand_steps(one: Attempt) -> tuple[Any, Any, Any]:
    """Return number, start and end of every step of an attempt."""
    count = one.block_steps
    row = np.repeat(np.arange(len(count)), count)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    length = (one.block_end - one.block_start) // np.maximum(count, 1)
    start = one.block_start[row] + nth * length[row]
    end = np.where(nth == count[row] - 1, one.block_end[row], start + length[row])
    return one.first_step + np.arange(len(row)), start, end


def _write_rank(
    store: Store, fleet: Fleet, run: Progress, one: Attempt, rank: int, lifecycle: pa.Table
) -> dict[str, int]:
    spec = run.spec
    step, start, end = (values[-STEPS_KEPT:] for values in expand_steps(one))
    tables: dict[str, pa.Table] = {}
    if len(step):
        wait = np.round(
            0.004 * spec.step_ns * (1 + fleet.world.dice.uniform(spec.run, one.attempt, rank, size=len(step)))
        )
        lead = fleet.world.dice.uniform(spec.run, one.attempt, rank, "lead", size=len(step)) * 2e6
        replica = spec.tokens_per_step // mesh_of(spec)["dp"]
        profiled = np.arange(len(step)) >= len(step) - TRACED_STEPS
        tables["steps"] = pa.table(
            {
                "step": step, "start_ns": start + wait.astype(np.int64), "end_ns": end - lead.astype(np.int64),
                "data_wait_ns": wait.astype(np.int64), "tokens": np.full(len(step), replica),
                "model_flops": np.full(len(step), spec.flops_per_step / mesh_of(spec)["dp"]),
                "loss": loss_curve(step.astype(float), spec),
                "profiled": profiled,
            }
        )  # fmt: skip
    mine = lifecycle.filter(pa.array(np.asarray(lifecycle["attempt"].to_numpy()) == one.attempt))
    kinds = np.array(mine["kind"].to_pylist(), object)
    tables["lifecycle"] = mine.filter(pa.array(kinds != "step")).drop_columns(["attempt", "rank"])
    tables["counters"] = _counters(fleet, run, one, rank)
    with store.writer(
        spec.cluster.name, spec.run, one.attempt, rank=rank, segment=0, fingerprint=f"simulated-{fleet.options.seed}"
    ) as writer:
        for name, rows in tables.items():
            writer.write(
                name,
                rows
                if name != "steps"
                else conform(STEPS, rows.append_column("rank", pa.array(np.full(len(rows), rank, np.int32)))),
            )
        host = spec.cluster.node_name(int(one.nodes[rank // GPUS_PER_NODE]))
        writer.commit(
            PartInfo(
                rank=rank,
                source="simulator",
                world_size=spec.gpus,
                host=host,
                start_ns=one.start_ns,
                end_ns=one.end_ns,
                synthetic=True,
            )
        )
    return {name: len(rows) for name, rows in tables.items()}


def _counters(fleet: Fleet, run: Progress, one: Attempt, rank: int) -> pa.Table:
    """Power, temperature, clock and memory of the rank's GPU, about 500 samples over the attempt."""
    spec, dice = run.spec, fleet.world.dice
    node, device = int(one.nodes[rank // GPUS_PER_NODE]), rank % GPUS_PER_NODE
    size = 500
    time = np.linspace(one.start_ns, max(one.end_ns - 1, one.start_ns), size).astype(np.int64)
    noise = dice.normal(spec.run, one.attempt, rank, "counters", size=size)
    busy = np.searchsorted(one.block_start, time, side="right") > np.searchsorted(one.block_end, time, side="right")
    factor, since, hot = spec.cluster.slow.get(node, (1.0, 0, -1))
    throttled = (time >= since) & (hot == device)
    values = {
        "gpu_power_watts": np.where(busy, 612 + 12 * noise, 118 + 2 * noise),
        "gpu_temperature_celsius": np.where(busy, 63 + 1.5 * noise, 41.0) + np.where(throttled, 19, 0),
        "gpu_sm_clock_hertz": np.where(busy, 1.755e9 / np.where(throttled, factor, 1.0), 3.45e8),
        "gpu_clock_event_reasons": np.where(busy, np.where(throttled, 0x40, 0x4), 0x1),
        "gpu_utilization_ratio": np.where(busy, 0.99, 0.0),
        "gpu_memory_used_bytes": np.where(busy, 61e9, 3e9),
    }
    names = [name for name in values for _ in range(size)]
    table = pa.table(
        {
            "host": [spec.cluster.node_name(node)] * len(names), "device": np.full(len(names), device),
            "uuid": [gpu_uuid(spec.cluster, node, device)] * len(names), "time_ns": np.tile(time, len(values)),
            "name": names, "value": np.round(np.concatenate(list(values.values())), 2),
            "rank": np.full(len(names), rank), "segment": np.zeros(len(names), np.int64),
        }
    )  # fmt: skip
    return conform(COUNTERS, table)


# ------------------------------------------------------------------ what analysis would have found


def _derived(fleet: Fleet, run: Progress) -> dict[str, pa.Table]:
    spec, one = run.spec, run.attempts[-1]
    attribution = _attribution(fleet, run, one)
    total = {n: int(np.asarray(attribution[f"{n}_ns"].to_numpy()).astype(object).sum()) for n in _PARTS}
    kernels = _kernels(fleet, spec, attribution)
    terms = _terms(spec, attribution, total)
    waterfall = table_from_rows(WATERFALL, ladder_rows(terms, "mfu"))
    idle = _idle(attribution)
    compared = compare_ranks(attribution, idle, dict.fromkeys(range(spec.gpus), "all"))
    return {
        "attribution": attribution, "idle": idle, "kernels": kernels, "stragglers": compared, "waterfall": waterfall,
        "findings": _findings(spec, waterfall, _stragglers(spec, one, compared)),
    }  # fmt: skip


_PARTS = ("window", "compute", "exposed_comm", "exposed_memcpy", "idle")


def own_pace(fleet: Fleet, run: Progress, one: Attempt) -> Any:
    """How slow each rank's own work is, 1 being normal."""
    spec = run.spec
    pace = 1 + 0.004 * fleet.world.dice.normal(spec.run, "pace", size=spec.gpus)
    for position, node in enumerate(one.nodes.tolist()):
        factor, since, device = spec.cluster.slow.get(node, (1.0, 0, 0))
        if one.end_ns > since and factor > 1:
            pace[position * GPUS_PER_NODE + device] *= factor
    return pace


def _attribution(fleet: Fleet, run: Progress, one: Attempt) -> pa.Table:
    """Partition of the last steps on all ranks: slow ranks compute, the others wait for them."""
    spec, dice = run.spec, fleet.world.dice
    step, start, end = (values[-TRACED_STEPS:] for values in expand_steps(one))
    ranks, steps = spec.gpus, len(step)
    pace = own_pace(fleet, run, one)
    wobble = dice.uniform(spec.run, "wobble", size=ranks * steps).reshape(ranks, steps)
    window = np.broadcast_to((end - start)[None, :], (ranks, steps)).astype(np.int64)
    share = 0.74 / float(pace.max())
    compute = (window * np.clip(share * pace[:, None] * (1 + 0.006 * (wobble - 0.5)), 0, 0.95)).astype(np.int64)
    memcpy = (window * 0.003 * wobble).astype(np.int64)
    idle = (window * (0.02 + 0.02 * wobble)).astype(np.int64)
    comm = window - compute - memcpy - idle
    hidden = (compute * 0.22).astype(np.int64)
    size = ranks * steps
    table = pa.table(
        {
            "rank": np.repeat(np.arange(ranks), steps),
            "device": np.repeat(np.arange(ranks) % GPUS_PER_NODE, steps),
            "step": np.tile(step, ranks),
            "start_ns": np.tile(start, ranks),
            "window_ns": window.ravel(),
            "compute_ns": compute.ravel(),
            "exposed_comm_ns": comm.ravel(),
            "exposed_memcpy_ns": memcpy.ravel(),
            "idle_ns": idle.ravel(),
            "comm_ns": (comm + hidden).ravel(),
            "overlap_ns": hidden.ravel(),
            "unknown_ns": np.zeros(size, np.int64),
            "spill_ns": np.zeros(size, np.int64),
            "carry_in": np.zeros(size, bool),
        }
    )
    return conform(ATTRIBUTION, table)


def _idle(attribution: pa.Table) -> pa.Table:
    idle = np.asarray(attribution["idle_ns"].to_numpy())
    size = len(idle)
    late, launch = idle * 6 // 10, idle * 3 // 10
    parts = ((late, "host_late", "python", "train.py:212"), (launch, "launch", None, None),
             (idle - late - launch, "dependency", None, None))  # fmt: skip
    return conform(
        IDLE,
        pa.concat_tables(
            [
                pa.table(
                    {
                        "rank": attribution["rank"], "device": attribution["device"], "step": attribution["step"],
                        "cause": [cause] * size, "culprit": pa.array([culprit] * size, pa.utf8()),
                        "where": pa.array([where] * size, pa.utf8()), "idle_ns": values, "gaps": np.full(size, 40),
                    }
                )
                for values, cause, culprit, where in parts
            ]
        ),
    )  # fmt: skip


def _kernels(fleet: Fleet, spec: Spec, attribution: pa.Table) -> pa.Table:
    """Kernels of some ranks: the shares of compute that a transformer spends on each family."""
    rank = np.asarray(attribution["rank"].to_numpy())
    compute = np.asarray(attribution["compute_ns"].to_numpy())
    rows = []
    for one in range(min(spec.gpus, 64)):
        total = int(compute[rank == one].sum())
        for i, (name, family, op, share) in enumerate(FAMILIES):
            ns = int(total * share)
            matrix = family in ("gemm", "attention")
            rows.append(
                {
                    "rank": one, "name": name, "family": family, "op": op, "phase": "forward" if i % 2 else "backward",
                    "dtype": "bf16", "count": 60 * TRACED_STEPS * (i + 1), "total_ns": ns, "owned_ns": ns,
                    "flops": ns * 1e-9 * spec.cluster.peak_flops * 0.72 if matrix else None,
                    "waste_ns": int(ns * (0.28 if matrix else 0.4)), "bound": "compute" if matrix else "memory",
                }
            )  # fmt: skip
    return table_from_rows(KERNELS, rows)


def _terms(spec: Spec, attribution: pa.Table, total: dict[str, int]) -> list[dict[str, Any]]:
    steps = len(attribution) // spec.gpus
    mfu = int(spec.flops_per_step * steps / spec.cluster.peak_flops * 1e9)
    matmul = int(total["compute"] * 0.67)
    idle = total["idle"]
    return [
        {"term": "mfu", "part": None, "ns": mfu},
        {"term": "matmul_below_peak", "part": "gemm", "ns": matmul - mfu},
        {"term": "non_matmul", "part": "elementwise", "ns": total["compute"] - matmul},
        {"term": "unsplit_comm", "part": None, "ns": total["exposed_comm"]},
        {"term": "exposed_memcpy", "part": None, "ns": total["exposed_memcpy"]},
        {"term": "idle_host", "part": "python", "ns": idle * 6 // 10},
        {"term": "idle_launch", "part": None, "ns": idle * 3 // 10},
        {"term": "idle_dependency", "part": None, "ns": idle - idle * 6 // 10 - idle * 3 // 10},
    ]


def _stragglers(spec: Spec, one: Attempt, compared: pa.Table) -> list[dict[str, Any]]:
    """Ranks that the comparison flags, the slowest first."""
    rows = [row for row in compared.to_pylist() if row["flagged"]]
    names = {row["rank"]: spec.cluster.node_name(int(one.nodes[row["rank"] // GPUS_PER_NODE])) for row in rows}
    return [{"rank": row["rank"], "node": names[row["rank"]], "score": round(row["score"], 4)} for row in rows]


def _findings(spec: Spec, waterfall: pa.Table, stragglers: list[dict[str, Any]]) -> pa.Table:
    points = {row["term"]: row["points"] for row in waterfall.to_pylist() if row["parent"] is None}
    rows = [
        (
            "exposed-communication",
            "Communication that nothing hides",
            points.get("unsplit_comm", 0.0) * 0.6,
            {"exposed_comm_points": points.get("unsplit_comm")},
            "overlap it with compute: more, smaller buckets; prefetch",
        ),
        (
            "non-matmul-compute",
            "Kernels that are no matrix products",
            points.get("non_matmul", 0.0) * 0.3,
            {"non_matmul_points": points.get("non_matmul")},
            "fuse element-wise kernels: torch.compile, fused optimizer",
        ),
        (
            "host-late",
            "The host launches too late",
            points.get("idle_host", 0.0),
            {"where": "train.py:212"},
            "CUDA graphs, or less Python between launches",
        ),
    ]
    if stragglers:
        worst = stragglers[0]
        title = f"Rank {worst['rank']} on {worst['node']} is {1 / worst['score'] - 1:.0%} slower than its peers"
        if len(stragglers) > 1:
            more = len(stragglers) - 1
            title += f", and {more} more {'rank is' if more == 1 else 'ranks are'} slow"
        evidence = worst | {"host": worst["node"], "others": stragglers[1:]}
        rows.insert(
            0,
            ("straggler", title, points.get("unsplit_comm", 0.0) * 0.7, evidence,
             "drain the node and check its cooling: the GPU throttles"),
        )  # fmt: skip
    return table_from_rows(
        FINDINGS,
        [
            {"position": i, "id": id_, "title": title, "points": gain, "evidence": json.dumps(why), "next": what}
            for i, (id_, title, gain, why, what) in enumerate(rows)
        ],
    )


assert SECOND == 10**9
