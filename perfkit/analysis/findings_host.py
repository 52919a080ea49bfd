"""Rules about the host: data, culprits, syncs, allocator, checkpoints, copies, slow steps, the profiler itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.exchanges import is_pageable
from perfkit.analysis.facts import Facts
from perfkit.analysis.findings_device import issuing, share_of_small, small_messages
from perfkit.analysis.findings_types import MAX_EVIDENCE, Finding, ms
from perfkit.analysis.throughput import slow_steps_of_job
from perfkit.analysis.timeline import ints

DATA_POINTS = SYNC_POINTS = ALLOCATOR_POINTS = CHECKPOINT_POINTS = COPY_POINTS = SLOW_POINTS = 2.0
"""Below this a finding is not worth a reader's time."""
HOST_POINTS = EXPOSED_COPY_POINTS = 5.0
"""Some Python between steps and some copies are normal; this much is not."""
OVERHEAD_SHARE, SEVERE_SHARE, LOST_SHARE, MIN_LAUNCHES = 0.02, 0.2, 0.01, 3
FRAMES_PER_LAUNCH = 20
"""Recorded Python frames per launch above which recording them slows a host-bound step down."""
ONE_STEP_SHARE = 0.8
MIN_STEPS_TO_TELL = 3
"""What is lost nearly always in one step of several is that step's affair, a first one's for example."""
_KINDS = {"gc": "garbage collection (gc)", "compile": "compilation"}
"""What a reader calls a culprit, if not by its name."""
_SPECIAL = ("data_loader", "sync", "allocator", "checkpoint")
_SEE_HOST = {
    False: "profile a few steps with ProfilerActivity.CPU and with_stack=True, to see what the host does",
    True: "trace NVTX too (nsys profile --trace=cuda,nvtx) and put ranges around what the host does; in PyTorch "
    "torch.autograd.profiler.emit_nvtx() names every op",
}
_SEE_CALLERS = "record call stacks too (with_stack=True), to see what the host does between its ops"
_SEE_DEVICE = {
    False: "profile with ProfilerActivity.CUDA too",
    True: "trace CUDA too (nsys profile --trace=cuda,nvtx)",
}
_FINISH = {
    False: "let the device finish (torch.cuda.synchronize() or your device's own) before the profile starts and ends",
    True: "let the device finish before the recording starts and ends (--capture-range=cudaProfilerApi between two "
    "synchronisations)",
}
"""How to record what is missing, by whether it was Nsight Systems that recorded."""


def data_bound(facts: Facts) -> Finding | None:
    """Report that the device waits for the data loader."""
    return _culprit(
        facts, "data_bound", "data_loader", DATA_POINTS, "The device waits for data",
        "raise num_workers and prefetch_factor, set pin_memory=True and persistent_workers=True; if the workers are "
        "busy all the time, move decoding or tokenising out of the training job",
    )  # fmt: skip


def sync_points(facts: Facts) -> Finding | None:
    """Report that the host waits for the device and then the device for the host."""
    if not facts.has_device:  # a host that waits for work which the trace does not hold drains nothing
        return None
    return _culprit(
        facts, "sync_points", "sync", SYNC_POINTS, "Blocking synchronisations drain the device",
        "remove .item(), .cpu(), print(tensor) and boolean indexing from the step, or do them every N steps; "
        "torch.cuda.set_sync_debug_mode('warn') names each one",
    )  # fmt: skip


def allocator_churn(facts: Facts) -> Finding | None:
    """Report cudaMalloc and cudaFree inside steps."""
    stepped = facts.steps["step"].null_count < len(facts.steps)
    rocm = any("hip" in (row["where"] or "") for row in facts.late_host.get("allocator", []))
    return _culprit(
        facts, "allocator_churn", "allocator", ALLOCATOR_POINTS,
        f"The driver's allocator {'runs inside steps' if stepped else 'holds the device up'}",
        ("" if stepped else "the trace marks no steps: profile after a warm-up, for the first calls allocate; then ")
        + ("" if rocm else "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, ")
        + f"keep shapes constant, and leave memory free: {'hipFree' if rocm else 'cudaFree'} inside a step means that "
        "the caching allocator ran out and retried, that a convolution's search for the fastest algorithm emptied it "
        "(run all shapes once before training), or, many times a step, that caching is off "
        "(PYTORCH_NO_CUDA_MEMORY_CACHING)",
    )  # fmt: skip


def checkpoint_stall(facts: Facts) -> Finding | None:
    """Report that the device stands still while a checkpoint is written."""
    return _culprit(
        facts, "checkpoint_stall", "checkpoint", CHECKPOINT_POINTS, "Training stands still for checkpoints",
        "write them asynchronously (torch.distributed.checkpoint.async_save), or less often",
    )  # fmt: skip


def host_bound(facts: Facts) -> Finding | None:
    """Report that the host launches too late for any other reason, and name the largest."""
    rows = [row for culprit, rows in facts.late_host.items() if culprit not in _SPECIAL for row in rows]
    if small_messages(facts):  # their calls are their cost
        calls, left = [row["where"] for row in issuing(facts)], 1 - share_of_small(facts)
        rows = [{**row, "gpu_ns": row["gpu_ns"] * left} if row["where"] in calls else row for row in rows]
    points = facts.points(sum(row["gpu_ns"] for row in rows))
    if points < HOST_POINTS:
        return None
    kinds: dict[str, float] = {}
    for row in rows:
        kinds[row["culprit"] or "unattributed"] = kinds.get(row["culprit"] or "unattributed", 0.0) + row["gpu_ns"]
    worst = max(kinds, key=lambda kind: kinds[kind])
    most = f"most of it {_KINDS.get(worst, worst)}"
    if worst == "unattributed":
        most = "and most of the time the trace does not say why"
    rows = sorted((row for row in rows if row["culprit"] not in (None, "unattributed")), key=lambda r: -r["gpu_ns"])
    look = "look at the places listed here"
    advice = {
        "gc": "call gc.freeze() after warm-up and collect by hand every N steps",
        "compile": "warm up all shapes before training, and mark dynamic dimensions",
        "logging": "log every N steps, from another thread",
        "optimizer": "use a fused optimizer (fused=True) or foreach",
        "unattributed": _SEE_HOST[facts.by_nsys] if facts.has_device else _SEE_CALLERS,
    }.get(worst, (f"use {_faster_launches(facts)}larger batches, and " if facts.has_device else "") + look)
    return Finding(
        "host_bound",
        f"The host {'launches work too late' if facts.has_device else 'neither computes nor communicates'}, {most}",
        points,
        advice,
        {
            "culprits_ms": {kind: ms(ns) for kind, ns in sorted(kinds.items(), key=lambda item: -item[1])},
            "places": [_place(row) for row in rows[:MAX_EVIDENCE]],
        },
    )


def pageable_copies(facts: Facts) -> Finding | None:
    """Report exposed copies from and to host memory that is not pinned."""
    copies = facts.copies.filter(_are_pageable(facts.copies))
    points = facts.points(float(facts.paced(copies, "exposed_ns").sum()))
    if points < COPY_POINTS:
        return None
    total, moved = (pc.sum(copies[c]).as_py() or 0 for c in ("copy_ns", "bytes"))
    return Finding(
        "pageable_copies",
        f"Copies {_direction(copies)} memory that is not pinned, and nothing hides them",
        points,
        "set pin_memory=True in the DataLoader and copy with non_blocking=True, one batch ahead on a side stream; "
        "results go to a buffer that was pinned once",
        {"copies": pc.sum(copies["count"]).as_py(), "bytes": moved, "gbps": moved / total if total else None},
    )


def exposed_copies(facts: Facts) -> Finding | None:
    """Report all other copies that nothing hides, by the name that the profiler gave them."""
    rows = facts.paced_sum(facts.copies.filter(pc.invert(_are_pageable(facts.copies))), "exposed_ns", ["name"])
    points = facts.points(sum(row["gpu_ns"] for row in rows))
    if points < EXPOSED_COPY_POINTS:
        return None
    return Finding(
        "exposed_copies",
        f"Copies are not hidden behind compute, most of it {rows[0]['name']}",
        points,
        "copy on a side stream with non_blocking=True while the device computes, in fewer and larger pieces, and keep "
        "on the device what returns to it; between devices, check that they can reach each other (nvidia-smi topo -m)",
        {"copies": [{"name": r["name"], "exposed_ms": ms(r["ns"])} for r in rows[:MAX_EVIDENCE]]},
    )


def slow_steps(facts: Facts) -> Finding | None:
    """Report steps that took much longer than the rest on the rank that set their pace."""
    points = facts.points(float(facts.paced(facts.steps, "excess_ns").sum()))
    if points < SLOW_POINTS:
        return None
    rows = slow_steps_of_job(facts.steps)
    return Finding(
        "slow_steps",
        f"{len(rows)} of {facts.num_steps} steps {'is' if len(rows) == 1 else 'are'} slow",
        points,
        "compare the idle culprits of these steps with the others: checkpoints, evaluation, garbage collection, "
        "recompilation and the file system come in such bursts",
        {
            "steps": [
                {"step": row["step"], "excess_ms": ms(row["excess_ns"]), "ranks": row["ranks"]}
                for row in rows[:MAX_EVIDENCE]
            ]
        },
        cause=False,
    )


def _faster_launches(facts: Facts) -> str:
    """Say how launches become cheaper; who has CUDA graphs already is not told to use them."""
    return "" if (facts.quality.get("graph_coverage") or 0.0) > 0.5 else "torch.compile or CUDA graphs, "


def no_device_work(facts: Facts) -> Finding | None:
    """Report a job on a device whose trace holds only the host: what the device does meanwhile is not known."""
    if not facts.peaks.unseen:
        return None
    cut = any("truncated: " in note for note in facts.quality["notes"])
    advice = "copy the trace again, of which the end, and with it perhaps the device, is lost" if cut else None
    seen = f"names {facts.peaks.device}" if facts.peaks.device else "calls a device"
    return Finding(
        "no_device_work",
        f"The trace {seen} but holds none of its work",
        None,
        f"{advice or _SEE_DEVICE[facts.by_nsys]}: what follows is the host's time only, and a host that waits for the "
        "device looks idle",
        {"device": facts.peaks.device},
        first=True,
    )


_SHOWN_IDLE = ("host_late", "unattributed")
"""Idle time beside a distorted profile, as the waterfall has it: nothing is recovered, so that no rank sets a pace."""


def profiler_distortion(facts: Facts) -> Finding | None:
    """Report that the profiler changed or lost what it recorded; no points, for nothing can be recovered."""
    reasons: list[str] = []
    advice: list[str] = []
    overhead = sum(one.overhead_ns for one in facts.distortion)
    launches = sum(one.launches for one in facts.distortion)
    frames = sum(one.python_events for one in facts.distortion)
    host_late = facts.points(facts.paced_idle("host_late"))
    missing = sum(one.lost for one in facts.distortion)
    late, carried = (facts.points(pc.sum(facts.idle_of(cause)["idle_ns"]).as_py() or 0) for cause in _SHOWN_IDLE)
    if facts.window_ns and overhead > OVERHEAD_SHARE * facts.window_ns:
        reasons.append(
            f"the device stood idle for {100 * overhead / facts.window_ns:.1f} % of the time while it flushed buffers"
        )
        advice.append("profile fewer steps, after a warm-up, so that buffers need not be flushed between them")
    if launches >= MIN_LAUNCHES and missing > LOST_SHARE * launches:
        reasons.append(f"the launch calls of {missing:,} of {launches:,} pieces of device work are missing")
        advice.append(
            f"{_FINISH[facts.by_nsys]}, and profile fewer steps: launches from before the start and those that buffers "
            "lose are not recorded"
        )
    if launches and frames > FRAMES_PER_LAUNCH * launches and host_late >= HOST_POINTS:
        reasons.append(f"it recorded {frames / launches:.0f} Python frames per launch in a host-bound job")
        advice.append("profile again without with_stack and record_shapes, which slow the host down")
    if not reasons:
        return None
    measured = {
        "overhead_ms": ms(overhead), "python_frames": frames, "launches": launches, "launches_missing": missing,
        "host_late_points": late, "unattributed_idle_points": carried,
    }  # fmt: skip
    return Finding(
        "profiler_distortion",
        "The profiler distorted what it measured: " + "; ".join(reasons),
        None,
        "; ".join([*advice, "compare step times with those of unprofiled steps"]),
        {name: value for name, value in measured.items() if value},
        first=overhead > SEVERE_SHARE * facts.window_ns,
    )  # fmt: skip


def _are_pageable(copies: pa.Table) -> pa.Array:
    return pa.array([is_pageable(name) for name in copies["name"].to_pylist()], pa.bool_())


def _direction(copies: pa.Table) -> str:
    to_device = ["htod" in name.lower() for name in copies["name"].to_pylist()]
    return "to the device come from" if all(to_device) else "go from and to" if any(to_device) else "go to"


def _culprit(facts: Facts, id: str, culprit: str, limit: float, title: str, next: str) -> Finding | None:
    rows = facts.late_host.get(culprit, [])
    points = facts.points(sum(row["gpu_ns"] for row in rows))
    if points < limit:
        return None
    evidence: dict[str, object] = {"places": [_place(row) for row in rows[:MAX_EVIDENCE]]}
    if (one := _one_step(facts, culprit)) is not None:
        title, evidence["step"] = f"{title}, {100 * one[1]:.0f} % of it in step {one[0]}", one[0]
    return Finding(id, title, points, next, evidence)


def _one_step(facts: Facts, culprit: str) -> tuple[int, float] | None:
    """Return the step in which nearly all of a culprit's time was lost, and its share, if others lost next to none."""
    late = facts.idle_of("host_late")
    late = late.filter(pc.equal(late["culprit"].cast(pa.utf8()), culprit))
    lost, step = facts.paced(late, "idle_ns"), ints(late["step"])
    known, index = np.unique(step[lost > 0], return_inverse=True)
    total = np.bincount(index, lost[lost > 0])
    if facts.num_steps < MIN_STEPS_TO_TELL or not len(known) or known[0] < 0:
        return None
    worst = int(np.argmax(total))
    share = float(total[worst] / total.sum())
    return (int(known[worst]), share) if share >= ONE_STEP_SHARE else None


def _place(row: dict[str, object]) -> dict[str, object]:
    lost, measured = row["gpu_ns"], row["ns"]
    assert isinstance(lost, float)
    assert isinstance(measured, int)
    return {"where": row["where"], "kind": row["culprit"], "lost_gpu_ms": ms(lost), "idle_ms": ms(measured)}


HOST_RULES: tuple[Callable[[Facts], Finding | None], ...] = (
    data_bound, sync_points, allocator_churn, checkpoint_stall, host_bound, pageable_copies, exposed_copies, slow_steps,
    no_device_work, profiler_distortion,
)  # fmt: skip
