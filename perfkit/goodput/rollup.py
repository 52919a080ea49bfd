"""A run's hours: its time line and pieces cut at every full hour, as rows of `run_rollup`.

    rollup_run(timeline, pieces, facts, interval_ns=HOUR) -> run_rollup
    find_interruptions(timeline, pieces, facts)           -> interruptions

Steps, tokens and FLOPs of a step that crosses an edge are shared out by its work on either side, with cumulative
rounding: over all rows they add up to what was recorded. Buckets of a row sum to its allocated time exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.intervals import Ints
from perfkit.goodput.account import BUCKET, Pieces
from perfkit.goodput.causes import is_planned
from perfkit.goodput.timeline import Timeline
from perfkit.schema import GOODPUT_BUCKETS, INTERRUPTIONS, RUN_ROLLUP, conform, table_from_rows

HOUR_NS = 3600 * 10**9
DAY_NS = 24 * HOUR_NS
STEPPING = ("productive", "slow_step", "lost", "data_stall")
"""Buckets in which the run was stepping: what MFU is measured over."""
FACTS = ("cluster", "run", "name", "user", "model", "device", "world_size", "num_nodes", "peak_flops",
         "memory_peak_bytes", "synthetic")  # fmt: skip


def rollup_run(timeline: Timeline, pieces: Pieces, facts: Mapping[str, Any], *, interval_ns: int = HOUR_NS) -> pa.Table:
    """Return the rows of one run; `facts` holds what FACTS names."""
    where = timeline.allocations
    if not len(where.start):
        return RUN_ROLLUP.empty()
    queue = _queue(timeline)
    start, end, bucket, source = _cut(pieces, queue, interval_ns)
    is_queue = bucket < 0
    allocation = np.where(is_queue, 0, np.r_[pieces.allocation, 0][source])
    allocation[is_queue] = queue[2][source[is_queue]]
    key, row = np.unique(np.stack([allocation, start // interval_ns], 1), axis=0, return_inverse=True)
    row = row.reshape(-1)
    size, gpus = len(key), where.gpus[key[:, 0]]
    dur = end - start
    columns: dict[str, Any] = {
        "attempt": where.attempt[key[:, 0]],
        "gpus": gpus,
        "start_ns": _extreme(np.minimum, row, start, size),
        "end_ns": _extreme(np.maximum, row, end, size),
        "queue_ns": _sum(row, np.where(is_queue, dur, 0), size) * gpus,
        "allocated_ns": _sum(row, np.where(is_queue, 0, dur), size) * gpus,
    }
    for name, code in BUCKET.items():
        columns[f"{name}_ns"] = _sum(row, np.where(bucket == code, dur, 0), size) * gpus
    columns["step_ns"] = sum(columns[f"{name}_ns"] for name in STEPPING)
    columns |= _progress(timeline, pieces, start, end, bucket, source, row, size)
    columns |= _interrupted(timeline, columns)
    peak = facts.get("peak_flops")
    if peak and "model_flops" in columns:
        spent = peak * columns["step_ns"] * 1e-9
        columns["mfu_ratio"] = _ratio(columns["model_flops"], spent)
    for name in FACTS:
        if facts.get(name) is not None:
            columns[name] = [facts[name]] * size
    columns |= {
        "state": [timeline.state] * size,
        "eligible_ns": [timeline.eligible_ns] * size,
        "run_start_ns": [int(where.start[0])] * size,
        "last_seen_ns": [timeline.last_seen_ns] * size,
    }
    return conform(RUN_ROLLUP, pa.table({name: _array(name, values) for name, values in columns.items()}))


def _array(name: str, values: Any) -> pa.Array:
    kind = RUN_ROLLUP.arrow.field(name).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        return pa.array(values, pa.float64(), mask=np.isnan(values)).cast(kind)
    return pa.array(values, kind) if isinstance(values, list) else pa.array(values).cast(kind)


def _queue(timeline: Timeline) -> tuple[Ints, Ints, Ints]:
    """Return when the run waited for GPUs, and the allocation that ended each wait."""
    where = timeline.allocations
    first = where.start[0] if timeline.eligible_ns is None else min(timeline.eligible_ns, int(where.start[0]))
    start = np.r_[first, where.end[:-1]]
    some = where.start > start
    return start[some], where.start[some], np.flatnonzero(some)


def _cut(pieces: Pieces, queue: tuple[Ints, Ints, Ints], interval_ns: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Cut pieces and waits at the edges; bucket -1 is a wait. `source` is the row that a part comes from."""
    start, end = np.r_[pieces.start, queue[0]], np.r_[pieces.end, queue[1]]
    bucket = np.r_[pieces.bucket, np.full(len(queue[0]), -1, np.int64)]
    source = np.r_[np.arange(len(pieces.start)), np.arange(len(queue[0]))]
    parts = (end - 1) // interval_ns - start // interval_ns + 1
    row = np.repeat(np.arange(len(start)), parts)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
    edge = (start[row] // interval_ns + nth) * interval_ns
    return np.maximum(start[row], edge), np.minimum(end[row], edge + interval_ns), bucket[row], source[row]


def _progress(
    timeline: Timeline, pieces: Pieces, start: Ints, end: Ints, bucket: Ints, source: Ints, row: Ints, size: int
) -> dict[str, Any]:
    """Return steps, tokens, FLOPs and step times of each row."""
    steps = timeline.steps
    mine = np.flatnonzero((bucket >= 0) & (np.r_[pieces.step, -1][source] >= 0))
    if not len(mine):
        return {"steps": np.zeros(size, np.int64), "lost_steps": np.zeros(size, np.int64)}
    piece = source[mine]
    which, work = pieces.step[piece], pieces.work[piece]
    low = (pieces.done[piece] + start[mine] - pieces.start[piece]) / work
    high = (pieces.done[piece] + end[mine] - pieces.start[piece]) / work
    at, lost = row[mine], bucket[mine] == BUCKET["lost"]
    done = _counted(steps.count[which], low, high)
    result: dict[str, Any] = {"steps": _sum(at, done, size), "lost_steps": _sum(at, np.where(lost, done, 0), size)}
    tokens, flops = steps.tokens[which], steps.flops[which] * (high - low)
    if (tokens >= 0).any():
        result["tokens"] = _sum(at, np.where(tokens >= 0, _counted(tokens, low, high), 0), size)
    if not np.isnan(flops).all():
        result["model_flops"] = np.bincount(at, np.nan_to_num(flops), minlength=size)
        result["retained_flops"] = np.bincount(at, np.where(lost, 0.0, np.nan_to_num(flops)), minlength=size)
    ended = high == 1.0
    result["loss"] = _last(at[ended], steps.loss[which[ended]], size)
    wait = steps.wait_ns[which]
    each = (work + wait) / steps.count[which]
    for name, share in (("step_time_p50_ns", 0.5), ("step_time_p95_ns", 0.95)):
        found = _percentile(at, each, np.maximum(steps.count[which] * (high - low), 0), share, size)
        result[name] = pa.array(np.nan_to_num(found).round().astype(np.int64), mask=np.isnan(found))
    return result


def _counted(amount: Ints, low: Any, high: Any) -> Ints:
    """Return how much of `amount` falls between two shares; the parts add up to it."""
    result: Ints = (np.floor(amount * high + 1e-9) - np.floor(amount * low + 1e-9)).astype(np.int64)
    return result


def _last(row: Ints, values: Any, size: int) -> Any:
    result = np.full(size, np.nan)
    known = ~np.isnan(values)
    result[row[known]] = values[known]
    return result


def _percentile(row: Ints, values: Any, weights: Any, share: float, size: int) -> Any:
    """Weighted percentile of each row's values; NaN where it has none."""
    order = np.lexsort((values, row))
    row, values, weights = row[order], values[order], weights[order]
    upto = np.cumsum(weights)
    first = np.searchsorted(row, np.arange(size), side="left")
    last = np.searchsorted(row, np.arange(size), side="right") - 1
    base = np.r_[0.0, upto][first]
    found = np.full(size, np.nan)
    some = last >= first
    target = base[some] + share * (upto[last[some]] - base[some])
    at = np.clip(np.searchsorted(upto, target, side="left"), first[some], last[some])
    found[some] = values[at]
    return found


def _interrupted(timeline: Timeline, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Count interruptions and restarts in the row where each happened."""
    size = len(columns["start_ns"])
    stopped, restarted = np.zeros(size, np.int64), np.zeros(size, np.int64)
    cause: list[str | None] = [None] * size
    for time, why, _, resumed in interruption_times(timeline):
        at = _row_of(columns, time)
        stopped[at] += 1
        cause[at] = why
        if resumed is not None:
            restarted[_row_of(columns, resumed)] += 1
    return {"interruptions": stopped, "restarts": restarted, "cause": cause}


def _row_of(columns: Mapping[str, Any], time: int) -> int:
    start = columns["start_ns"]
    order = np.argsort(start, kind="stable")
    return int(order[max(int(np.searchsorted(start[order], time, side="right")) - 1, 0)])


def interruption_times(timeline: Timeline) -> list[tuple[int, str, str | None, int | None]]:
    """Return (time, cause, node, first step after it) of every interruption, in order.

    An interruption is a fault on record, an attempt that another one follows, or an end that is a failure.
    """
    where, steps = timeline.allocations, timeline.steps
    found: list[tuple[int, str, str | None]] = [
        (int(time), why or "unknown", node)
        for time, why, node in zip(timeline.fault_time, timeline.fault_cause, timeline.fault_node, strict=True)
    ]
    for i, (start, stop) in enumerate(zip(where.start.tolist(), where.end.tolist(), strict=True)):
        final = i == len(where.start) - 1
        said = any(start <= time <= stop for time, _, _ in found)
        if not said and not final:
            found.append((stop, "unknown", None))
        elif not said and timeline.state in ("failed", "lost"):
            silent = timeline.state == "lost"
            found.append((stop, "no_heartbeat" if silent else timeline.end_cause or "unknown", None))
    result = []
    found.sort(key=lambda f: f[0])
    for time, why, node in found:
        after = int(np.searchsorted(steps.start, time, side="left"))
        resumed = int(steps.start[after]) if after < len(steps) else None
        if resumed is None and not len(steps):  # a scheduler knows no steps: going on is being allocated again
            later = where.start[where.start >= time]
            resumed = int(later[0]) if len(later) else None
        result.append((time, why, node, resumed))
    return result


def find_interruptions(timeline: Timeline, pieces: Pieces, facts: Mapping[str, Any]) -> pa.Table:
    """Return one row per interruption with what it cost."""
    where = timeline.allocations
    gpu_ns = pieces.dur * where.gpus[pieces.allocation]
    lost, recovering = pieces.bucket == BUCKET["lost"], pieces.bucket == BUCKET["recovery"]
    recovering |= pieces.bucket == BUCKET["restore"]
    times = interruption_times(timeline)
    rows = []
    for i, (time, why, node, resumed) in enumerate(times):
        before = times[i - 1][0] if i else -(2**62)
        until = times[i + 1][0] if i + 1 < len(times) else 2**62
        at = max(int(np.searchsorted(where.start, time, side="right")) - 1, 0)
        rows.append(
            {
                **{name: facts.get(name) for name in ("cluster", "run", "user", "synthetic")},
                "attempt": int(where.attempt[at]),
                "time_ns": time,
                "resumed_ns": resumed if resumed is not None and resumed <= until else None,
                "cause": why,
                "planned": is_planned(why),
                "gpus": int(where.gpus[at]),
                "node": node,
                "lost_ns": int(gpu_ns[lost & (pieces.start >= before) & (pieces.start < time)].sum()),
                "recovery_ns": int(gpu_ns[recovering & (pieces.start >= time) & (pieces.start < until)].sum()),
                "down_ns": None if resumed is None or resumed > until else resumed - time,
            }
        )
    return table_from_rows(INTERRUPTIONS, rows)


def exact_sum(column: pa.ChunkedArray) -> int:
    """Sum int64 GPU-ns without overflow: two months of 4,096 GPUs are more than 2^63 ns."""
    values = np.asarray(pc.fill_null(column, 0).to_numpy(), np.int64)
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


def _sum(row: Ints, values: Ints, size: int) -> Ints:
    """Sum by row; exact, because a row's wall time is far below 2^53."""
    return np.bincount(row, values, minlength=size).astype(np.int64)


def _extreme(better: Any, row: Ints, values: Ints, size: int) -> Ints:
    worst = np.iinfo(np.int64).max if better is np.minimum else np.iinfo(np.int64).min
    result = np.full(size, worst, np.int64)
    better.at(result, row, values)
    return result


def _ratio(top: Any, bottom: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(bottom > 0, top / bottom, np.nan)


assert set(BUCKET) == set(GOODPUT_BUCKETS)
