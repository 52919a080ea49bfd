"""Roll-ups -> the numbers that people ask for: goodput, ETTR, MTTF, MTTR, effective MFU, money; by any key.

    summarize_rollup(run_rollup, interruptions, by="user", price=2.5) -> dict      records of capture
    summarize_jobs(jobs, by="user", price=2.5)                        -> dict      what a scheduler knows

Sums are exact integers (int64 overflows at two months of 4,096 GPUs, so they are added in two halves). Ratios are
ratios of sums. A value that the inputs cannot support is null: a scheduler knows nothing of steps, so its goodput is
null and all of its time is `unknown`, and a device without a peak has no effective MFU.
"""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.intervals import Ints
from perfkit.goodput.causes import is_planned
from perfkit.goodput.rollup import DAY_NS
from perfkit.schema import GOODPUT_BUCKETS

HOUR = 3_600_000_000_000
GROUPS = ("cluster", "user", "node", "day", "run", "partition", "model")
ROLLING_DAYS = 7


def sum_by(codes: Ints, values: Ints, size: int) -> list[int]:
    """Exact sums of int64 by group, as Python integers."""
    high = np.bincount(codes, values >> 32, minlength=size)
    low = np.bincount(codes, values & 0xFFFFFFFF, minlength=size)
    return [(int(h) << 32) + int(w) for h, w in zip(high, low, strict=True)]


def encode(column: Any) -> tuple[Ints, list[Any]]:
    """Return a code per row and what the codes stand for; null has one as well."""
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    coded = pc.dictionary_encode(values, null_encoding="encode")
    return np.asarray(coded.indices.to_numpy(zero_copy_only=False), np.int64), coded.dictionary.to_pylist()


def day_column(start: Any) -> pa.Array:
    """Return the day (UTC) of each time."""
    days = np.asarray(start.to_numpy(), np.int64) // DAY_NS
    unique, codes = np.unique(days, return_inverse=True)
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array([date_of(int(d)) for d in unique]))


def date_of(day: int) -> str:
    """ISO date of a day number."""
    return (datetime.date(1970, 1, 1) + datetime.timedelta(days=day)).isoformat()


# ------------------------------------------------------------------ records of capture


def summarize_rollup(
    rollup: pa.Table,
    interruptions: pa.Table,
    *,
    by: str | None = None,
    price: float | None = None,
    job_nodes: pa.Table | None = None,
) -> dict[str, Any]:
    """Add up run_rollup and interruptions."""
    everything = np.zeros(len(rollup), np.int64)
    document = _measure(rollup, everything, 1, price)[0]
    document |= _reliability(interruptions, document["_wall_ns"])
    _round_up(document)
    result = {"source": "records", "totals": document, "over_time": over_time(rollup)}
    if by == "node":
        result["groups"] = by_node(rollup, job_nodes, price)
    elif by is not None:
        result["groups"] = _groups(rollup, interruptions, by, price)
    return result


def _groups(rollup: pa.Table, stops: pa.Table, by: str, price: float | None) -> list[dict[str, Any]]:
    column = day_column(rollup["start_ns"]) if by == "day" else rollup[by]
    codes, names = encode(column)
    measured = _measure(rollup, codes, len(names), price)
    stop_keys: list[Any] = []
    if by == "day":
        stop_keys = day_column(stops["time_ns"]).to_pylist() if len(stops) else []
    elif by in stops.column_names:
        stop_keys = stops[by].to_pylist()
    else:
        which = dict(zip(rollup["run"].to_pylist(), column.to_pylist(), strict=True))
        stop_keys = [which.get(run) for run in stops["run"].to_pylist()]
    keys = np.array([names.index(k) if k in names else -1 for k in stop_keys], np.int64)
    for i, document in enumerate(measured):
        mine = stops.filter(pa.array(keys == i)) if len(stops) else stops
        document |= {"key": names[i], **_reliability(mine, document["_wall_ns"])}
        _round_up(document)
    return sorted(measured, key=lambda d: (str(d["key"]) if by == "day" else "", -d["allocated_ns"], str(d["key"])))


def _ints(table: pa.Table, name: str) -> Ints:
    return np.asarray(pc.fill_null(table[name].cast(pa.int64()), 0).to_numpy(), np.int64)


def _floats(table: pa.Table, name: str) -> Any:
    return np.asarray(pc.fill_null(table[name].cast(pa.float64()), np.nan).to_numpy(), np.float64)


def _measure(rollup: pa.Table, codes: Ints, size: int, price: float | None) -> list[dict[str, Any]]:
    """Return the numbers of every group."""
    sums = {name: sum_by(codes, _ints(rollup, f"{name}_ns"), size) for name in (*GOODPUT_BUCKETS, "allocated", "queue")}
    gpus = np.maximum(_ints(rollup, "gpus"), 1)
    allocated = _ints(rollup, "allocated_ns")
    wall = sum_by(codes, allocated // gpus, size)
    known = np.asarray(pc.is_valid(rollup["eligible_ns"]))
    asked = sum_by(codes, np.where(known, allocated + _ints(rollup, "queue_ns"), 0), size)
    useful = sum_by(codes, np.where(known, _ints(rollup, "productive_ns"), 0), size)
    flops, kept, peak = (_floats(rollup, n) for n in ("model_flops", "retained_flops", "peak_flops"))
    step_ns = _ints(rollup, "step_ns")
    run_codes, _ = encode(rollup["run"])
    can = _runs_with_flops(run_codes, flops, peak)
    mfu_top, mfu_low, kept_top, kept_low = (
        np.bincount(codes, np.where(can, v, 0.0), minlength=size)
        for v in (
            np.nan_to_num(flops),
            np.nan_to_num(peak) * step_ns,
            np.nan_to_num(kept),
            np.nan_to_num(peak) * allocated,
        )
    )
    covered = sum_by(codes, np.where(can, allocated, 0), size)
    tokens, steps, restarts = (sum_by(codes, _ints(rollup, n), size) for n in ("tokens", "steps", "restarts"))
    pairs = np.unique(codes * (int(run_codes.max(initial=0)) + 1) + run_codes)
    runs = np.bincount(pairs // (int(run_codes.max(initial=0)) + 1), minlength=size)
    result = []
    for i in range(size):
        total = sums["allocated"][i]
        buckets = {name: sums[name][i] for name in GOODPUT_BUCKETS}
        result.append(
            {
                "allocated_ns": total,
                "allocated_gpu_hours": total / HOUR,
                "cost": None if price is None else total / HOUR * price,
                "goodput": buckets["productive"] / total if total and buckets["unknown"] < total else None,
                "buckets": {name: _bucket(ns, total, price) for name, ns in buckets.items()},
                "ettr": useful[i] / asked[i] if asked[i] else None,
                "queue_gpu_hours": sums["queue"][i] / HOUR,
                "mfu": float(mfu_top[i] / (mfu_low[i] * 1e-9)) if mfu_low[i] else None,
                "effective_mfu": float(kept_top[i] / (kept_low[i] * 1e-9)) if kept_low[i] else None,
                "effective_mfu_covers": covered[i] / total if total else None,
                "tokens": tokens[i] or None,
                "steps": steps[i] or None,
                "restarts": restarts[i],
                "runs": int(runs[i]),
                "_wall_ns": wall[i],
            }
        )
    return result


def _runs_with_flops(run: Ints, flops: Any, peak: Any) -> Any:
    """Whether each row's run tells FLOPs and peak anywhere: hours without a step still count against effective MFU."""
    size = int(run.max()) + 1 if len(run) else 0
    tells = np.bincount(run, ~np.isnan(flops), minlength=size) > 0
    has_peak = np.bincount(run, ~np.isnan(peak), minlength=size) > 0
    return (tells & has_peak)[run] if size else np.zeros(0, bool)


def _bucket(ns: int, total: int, price: float | None) -> dict[str, Any]:
    return {
        "ns": ns, "gpu_hours": ns / HOUR, "share": ns / total if total else None,
        "cost": None if price is None else ns / HOUR * price,
    }  # fmt: skip


def _reliability(stops: pa.Table, wall_ns: int) -> dict[str, Any]:
    """Interruptions by cause, MTTF over the time that runs were up, MTTR over those that went on."""
    causes: dict[str, int] = {}
    for cause in stops["cause"].to_pylist():
        causes[cause] = causes.get(cause, 0) + 1
    failures = int(np.asarray(pc.fill_null(pc.invert(stops["planned"]), True)).sum()) if len(stops) else 0
    down = stops["down_ns"].drop_null()
    return {
        "interruptions": len(stops),
        "failures": failures,
        "interruptions_by_cause": dict(sorted(causes.items(), key=lambda item: (-item[1], item[0]))),
        "mttf_hours": wall_ns / HOUR / failures if failures else None,
        "mttr_hours": pc.mean(down).as_py() / HOUR if len(down) else None,
    }


def _round_up(document: dict[str, Any]) -> None:
    document.pop("_wall_ns", None)


def over_time(rollup: pa.Table) -> list[dict[str, Any]]:
    """Goodput by day: of the day, since the beginning, and of the last seven days."""
    if not len(rollup):
        return []
    codes, names = encode(day_column(rollup["start_ns"]))
    order = np.argsort(names)
    allocated = sum_by(codes, _ints(rollup, "allocated_ns"), len(names))
    productive = sum_by(codes, _ints(rollup, "productive_ns"), len(names))
    rows = []
    days = [(names[i], allocated[i], productive[i]) for i in order]
    for i, (date, total, good) in enumerate(days):
        since = (datetime.date.fromisoformat(date) - datetime.timedelta(days=ROLLING_DAYS - 1)).isoformat()
        recent = [day for day in days[max(0, i - ROLLING_DAYS + 1) : i + 1] if day[0] >= since]
        rows.append(
            {
                "date": date, "allocated_gpu_hours": total / HOUR, "goodput": _ratio(good, total),
                "cumulative_goodput": _ratio(sum(d[2] for d in days[: i + 1]), sum(d[1] for d in days[: i + 1])),
                "rolling_goodput": _ratio(sum(d[2] for d in recent), sum(d[1] for d in recent)),
            }
        )  # fmt: skip
    return rows


def _ratio(top: int, bottom: int) -> float | None:
    return top / bottom if bottom else None


def by_node(rollup: pa.Table, job_nodes: pa.Table | None, price: float | None) -> list[dict[str, Any]]:
    """Share each attempt's time out to its nodes by their GPUs; attempts whose nodes are unknown are one group."""
    names = [f"{name}_ns" for name in (*GOODPUT_BUCKETS, "allocated")]
    codes, keys = encode(_attempt_key(rollup))
    sums = {name: sum_by(codes, _ints(rollup, name), len(keys)) for name in names}
    placed: dict[str, list[tuple[str | None, int]]] = {}
    if job_nodes is not None and len(job_nodes):
        columns = (_attempt_key(job_nodes), job_nodes["node"], job_nodes["gpus"])
        for key, node, gpus in zip(*(column.to_pylist() for column in columns), strict=True):
            placed.setdefault(key, []).append((node, gpus or 1))
    nodes: dict[tuple[str, str | None], dict[str, int]] = {}
    for i, key in enumerate(keys):
        where = placed.get(key) or [(None, 1)]
        weight = sum(gpus for _, gpus in where)
        mine = [nodes.setdefault((key.partition("\x1f")[0], node), dict.fromkeys(names, 0)) for node, _ in where]
        for name in names:
            whole = left = sums[name][i]
            for row, (_, gpus) in zip(mine[:-1], where[:-1], strict=True):
                row[name] += whole * gpus // weight
                left -= whole * gpus // weight
            mine[-1][name] += left
    result = [{"key": node, "cluster": cluster, **_node_row(row, price)} for (cluster, node), row in nodes.items()]
    return sorted(result, key=lambda d: (2.0 if d["goodput"] is None else d["goodput"], str(d["key"])))


def _attempt_key(table: pa.Table) -> Any:
    parts = [_text(table[name]).cast(pa.utf8()) for name in ("cluster", "run", "attempt")]
    return pc.binary_join_element_wise(*(pc.fill_null(part, "") for part in parts), "\x1f")


def _node_row(sums: dict[str, int], price: float | None) -> dict[str, Any]:
    whole = sums["allocated_ns"]
    buckets = {name: sums[f"{name}_ns"] for name in GOODPUT_BUCKETS}
    return {
        "allocated_ns": whole,
        "allocated_gpu_hours": whole / HOUR,
        "cost": None if price is None else whole / HOUR * price,
        "goodput": buckets["productive"] / whole if whole and buckets["unknown"] < whole else None,
        "buckets": {name: _bucket(ns, whole, price) for name, ns in buckets.items()},
    }


def _text(column: Any) -> Any:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


# ------------------------------------------------------------------ what a scheduler knows


def summarize_jobs(
    jobs: pa.Table, *, by: str | None = None, price: float | None = None, as_of_ns: int | None = None
) -> dict[str, Any]:
    """Add up jobs; one that still runs counts until `as_of_ns`, else until the latest time in the list."""
    started = jobs.filter(pc.is_valid(jobs["start_ns"]))
    latest = max((pc.max(jobs[n]).as_py() or 0 for n in ("start_ns", "end_ns")), default=0)
    now = latest if as_of_ns is None else as_of_ns
    start = _ints(started, "start_ns")
    end = np.asarray(pc.fill_null(started["end_ns"], now).to_numpy(), np.int64)
    wall = np.maximum(end - start, 0)
    gpus_known = np.asarray(pc.is_valid(started["gpus"]))
    gpu_ns = wall * _ints(started, "gpus")
    view = _JobView(started, start, wall, gpu_ns, gpus_known, price)
    totals = view.measure(np.zeros(len(started), np.int64), 1)[0]
    totals |= {"jobs_listed": len(jobs), "jobs_never_started": len(jobs) - len(started), **view.queue()}
    result: dict[str, Any] = {"source": "jobs", "totals": totals}
    if by is not None:
        result["groups"] = view.groups(by)
    return result


class _JobView:
    """Jobs as arrays."""

    def __init__(self, jobs: pa.Table, start: Ints, wall: Ints, gpu_ns: Ints, known: Any, price: float | None) -> None:
        self.jobs, self.start, self.wall, self.gpu_ns, self.known, self.price = jobs, start, wall, gpu_ns, known, price
        self.cause, self.causes = encode(jobs["cause"])
        self.failed = np.array([c is not None and is_planned(c) is False for c in self.causes], bool)[self.cause]
        self.stopped = np.array([c not in (None, "completed") for c in self.causes], bool)[self.cause]

    def measure(self, codes: Ints, size: int) -> list[dict[str, Any]]:
        held, wall = sum_by(codes, self.gpu_ns, size), sum_by(codes, self.wall, size)
        count = np.bincount(codes, minlength=size)
        attempts = np.bincount(codes, _ints(self.jobs, "attempt") > 0, minlength=size)
        failures = np.bincount(codes, self.failed, minlength=size)
        unknown = np.bincount(codes, ~self.known, minlength=size)
        pairs = codes * len(self.causes) + self.cause
        by_cause = sum_by(pairs, self.gpu_ns, size * len(self.causes))
        counts = np.bincount(pairs, minlength=size * len(self.causes))
        result = []
        for i in range(size):
            mine = range(i * len(self.causes), (i + 1) * len(self.causes))
            outcome = {
                str(self.causes[k % len(self.causes)] or "no state"): {
                    "jobs": int(counts[k]), "gpu_hours": by_cause[k] / HOUR,
                    "cost": None if self.price is None else by_cause[k] / HOUR * self.price,
                }
                for k in mine if counts[k]
            }  # fmt: skip
            result.append(
                {
                    "jobs": int(count[i]),
                    "allocated_ns": held[i],
                    "allocated_gpu_hours": held[i] / HOUR,
                    "cost": None if self.price is None else held[i] / HOUR * self.price,
                    "goodput": None,
                    "ettr": None,
                    "effective_mfu": None,
                    "jobs_without_gpu_count": int(unknown[i]),
                    "restarts": int(attempts[i]),
                    "failures": int(failures[i]),
                    "mttf_hours": wall[i] / HOUR / int(failures[i]) if failures[i] else None,
                    "outcomes": dict(sorted(outcome.items(), key=lambda item: -(item[1]["gpu_hours"] or 0.0))),
                }
            )
        return result

    def queue(self) -> dict[str, Any]:
        begin = pc.coalesce(self.jobs["eligible_ns"], self.jobs["submit_ns"])
        known = np.asarray(pc.is_valid(begin))
        wait = (self.start - np.asarray(pc.fill_null(begin, 0).to_numpy(), np.int64))[known]
        if not len(wait):
            return {"queue_p50_seconds": None, "queue_p95_seconds": None}
        p50, p95 = np.percentile(np.maximum(wait, 0), [50, 95])
        return {"queue_p50_seconds": float(p50) / 1e9, "queue_p95_seconds": float(p95) / 1e9}

    def groups(self, by: str) -> list[dict[str, Any]]:
        if by == "day":
            return self._days()
        if by == "node":
            return self._nodes()
        column = "job" if by == "run" else by
        codes, names = encode(self.jobs[column])
        rows = [{"key": name, **row} for name, row in zip(names, self.measure(codes, len(names)), strict=True)]
        return sorted(rows, key=lambda d: (-int(d["allocated_ns"]), str(d["key"])))

    def _days(self) -> list[dict[str, Any]]:
        """Cut jobs at midnight (UTC) and add up what falls on each day."""
        first, last = self.start // DAY_NS, np.maximum(self.start + self.wall - 1, self.start) // DAY_NS
        parts = last - first + 1
        row = np.repeat(np.arange(len(parts)), parts)
        day = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts) + first[row]
        low = np.maximum(self.start[row], day * DAY_NS)
        high = np.minimum((self.start + self.wall)[row], (day + 1) * DAY_NS)
        gpu_ns = (high - low) * _ints(self.jobs, "gpus")[row]
        days, codes = np.unique(day, return_inverse=True)
        held = sum_by(codes, gpu_ns, len(days))
        started = np.bincount(np.searchsorted(days, first), minlength=len(days))
        return [
            {"key": date_of(int(d)), "allocated_ns": ns, "allocated_gpu_hours": ns / HOUR, "jobs_started": int(n),
             "cost": None if self.price is None else ns / HOUR * self.price, "goodput": None}
            for d, ns, n in zip(days, held, started, strict=True)
        ]  # fmt: skip

    def _nodes(self) -> list[dict[str, Any]]:
        """Share each job's time out to its nodes; jobs whose nodes are not named are one group."""
        lists = self.jobs["nodes"].combine_chunks()
        size = np.asarray(pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False), np.int64)
        row = np.repeat(np.arange(len(size)), size)
        codes, names = encode(lists.flatten())
        share = self.gpu_ns[row] // np.maximum(size[row], 1)
        held = sum_by(codes, share, len(names)) if len(row) else []
        failures: Any = np.bincount(codes, self.failed[row], minlength=len(names)) if len(row) else []
        jobs: Any = np.bincount(codes, minlength=len(names)) if len(row) else []
        rows = [
            {"key": n, "allocated_ns": h, "allocated_gpu_hours": h / HOUR, "jobs": int(j), "failures": int(f),
             "cost": None if self.price is None else h / HOUR * self.price, "goodput": None}
            for n, h, j, f in zip(names, held, jobs, failures, strict=True)
        ]  # fmt: skip
        nowhere = sum_by(np.zeros(int((size == 0).sum()), np.int64), self.gpu_ns[size == 0], 1)[0]
        if (size == 0).any():
            rows.append(
                {
                    "key": None,
                    "allocated_ns": nowhere,
                    "allocated_gpu_hours": nowhere / HOUR,
                    "jobs": int((size == 0).sum()),
                    "failures": None,
                    "cost": None,
                    "goodput": None,
                }
            )
        return sorted(rows, key=lambda d: (-(d["failures"] or 0), -d["allocated_ns"], str(d["key"])))
