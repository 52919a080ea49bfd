"""Roll-ups -> the numbers that people ask for: goodput, ETTR, MTTF, MTTR, effective MFU, money; by any key.

    summarize_rollup(rollup, interruptions, by="user", price=2.5) -> dict

Sums are exact integers (int64 overflows at two months of 4,096 GPUs, so they are added in two halves). Ratios are
ratios of sums. A value that the inputs cannot support is null: a device without a peak has no effective MFU. What a
scheduler knows is added up by perfkit.goodput.job_summary.
"""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.intervals import Ints
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
    document = measure(rollup, everything, 1, price)[0]
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
    measured = measure(rollup, codes, len(names), price)
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


def ints_of(table: pa.Table, name: str) -> Ints:
    """Return a column as integers; null is 0."""
    return np.asarray(pc.fill_null(table[name].cast(pa.int64()), 0).to_numpy(), np.int64)


def _floats(table: pa.Table, name: str) -> Any:
    return np.asarray(pc.fill_null(table[name].cast(pa.float64()), np.nan).to_numpy(), np.float64)


def measure(rollup: pa.Table, codes: Ints, size: int, price: float | None) -> list[dict[str, Any]]:
    """Return the numbers of every group."""
    sums = {
        name: sum_by(codes, ints_of(rollup, f"{name}_ns"), size) for name in (*GOODPUT_BUCKETS, "allocated", "queue")
    }
    gpus = np.maximum(ints_of(rollup, "gpus"), 1)
    allocated = ints_of(rollup, "allocated_ns")
    wall = sum_by(codes, allocated // gpus, size)
    known = np.asarray(pc.is_valid(rollup["eligible_ns"]))
    asked = sum_by(codes, np.where(known, allocated + ints_of(rollup, "queue_ns"), 0), size)
    useful = sum_by(codes, np.where(known, ints_of(rollup, "productive_ns"), 0), size)
    flops, kept, peak = (_floats(rollup, n) for n in ("model_flops", "retained_flops", "peak_flops"))
    step_ns = ints_of(rollup, "step_ns")
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
    tokens, steps, restarts = (sum_by(codes, ints_of(rollup, n), size) for n in ("tokens", "steps", "restarts"))
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
    allocated = sum_by(codes, ints_of(rollup, "allocated_ns"), len(names))
    productive = sum_by(codes, ints_of(rollup, "productive_ns"), len(names))
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
    sums = {name: sum_by(codes, ints_of(rollup, name), len(keys)) for name in names}
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
