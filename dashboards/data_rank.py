"""One rank: its phases against the others, its kernels, its counters.

phases(source, view)   -> rows {name, kind, ms, median_ms}, per step
kernels(source, view)  -> rows, largest waste first
counters(source, view) -> name -> (time_ns, value)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .data import Rows, Source, remembered
from .data_run import analysed
from .view import View

PARTS = (("compute", "compute_ns", "useful"), ("exposed communication", "exposed_comm_ns", "comm"),
         ("exposed copies", "exposed_memcpy_ns", "copy"), ("idle", "idle_ns", "idle"))  # fmt: skip
MAX_COUNTERS = 6
MAX_SAMPLES = 600
MAX_SPANS = 8
SHOWN_FIRST = ("temp", "clock", "power", "util", "throttle", "memory")


@remembered
def phases(source: Source, view: View) -> Rows:
    """Return the parts of the rank's step from the analysis, and its spans, each beside the median of all ranks."""
    key = source.run_key(view)
    if key is None or view.rank is None:
        return []
    found: Rows = []
    rows = analysed(source, key, "attribution", columns=["rank", "step", *(column for _, column, _ in PARTS)])
    if rows is not None:
        means = rows.group_by("rank").aggregate(
            [*((column, "sum") for _, column, _ in PARTS), ("step", "count_distinct")]
        )
        ranks, steps = means["rank"].to_numpy(), np.maximum(means["step_count_distinct"].to_numpy(), 1)
        mine = np.flatnonzero(ranks == view.rank)
        for name, column, kind in PARTS:
            each = means[f"{column}_sum"].to_numpy() / steps / 1e6
            if len(mine):
                found.append(
                    {"name": name, "kind": kind, "ms": float(each[mine[0]]), "median_ms": float(np.median(each))}
                )
    return [*found, *_spans(source, view)]


def _spans(source: Source, view: View) -> Rows:
    """Return the rank's longest spans; the median is over the ranks that recorded spans, up to 64 of them."""
    key = source.run_key(view)
    assert key is not None
    commits, _ = source.engine.commits(key)
    there = sorted({c.rank for c in commits if c.rows.get("spans")})
    if view.rank not in there:
        return []
    some = sorted({view.rank, *there[:: max(1, len(there) // 64)]})
    rows, _ = source.engine.run_table("spans", key, columns=["rank", "name", "dur_ns", "step"], ranks=some)
    if not len(rows):
        return []
    rows = rows.set_column(1, "name", rows["name"].cast(pa.utf8()))
    sums = rows.group_by(["rank", "name"]).aggregate([("dur_ns", "sum"), ("step", "count_distinct")]).to_pydict()
    each: dict[str, dict[int, float]] = {}
    for rank, name, total, steps in zip(
        sums["rank"], sums["name"], sums["dur_ns_sum"], sums["step_count_distinct"], strict=True
    ):
        each.setdefault(name, {})[rank] = (total or 0) / max(1, steps) / 1e6
    mine = [(name, by) for name, by in each.items() if view.rank in by]
    mine.sort(key=lambda item: -item[1][view.rank or 0])
    return [
        {
            "name": f"span {name}",
            "kind": "compute",
            "ms": by[view.rank or 0],
            "median_ms": float(np.median(list(by.values()))),
        }
        for name, by in mine[:MAX_SPANS]
    ]


@remembered
def kernels(source: Source, view: View, count: int = 15) -> Rows:
    """Return the kernels of the rank by name, all shapes together: by waste where it is known, else by time."""
    key = source.run_key(view)
    if key is None or view.rank is None:
        return []
    rows = analysed(source, key, "kernels", ranks=[view.rank])
    if rows is None:
        return []
    total = pc.sum(rows["total_ns"]).as_py() or 0
    found: dict[str, dict[str, Any]] = {}
    for row in rows.select(["name", "family", "count", "total_ns", "waste_ns", "bound"]).to_pylist():
        one = found.setdefault(row["name"], {**row, "count": 0, "total_ns": 0, "waste_ns": None, "shapes": 0})
        one["count"] += row["count"]
        one["total_ns"] += row["total_ns"]
        one["shapes"] += 1
        if row["waste_ns"] is not None:
            one["waste_ns"] = (one["waste_ns"] or 0) + row["waste_ns"]
    ordered = sorted(found.values(), key=lambda row: (-(row["waste_ns"] or 0), -row["total_ns"]))
    return [{**row, "share": row["total_ns"] / total if total else None} for row in ordered[:count]]


@remembered
def counters(source: Source, view: View) -> dict[str, tuple[Any, Any]]:
    """Return the rank's counters, thinned to MAX_SAMPLES each."""
    key = source.run_key(view)
    if key is None or view.rank is None:
        return {}
    rows, _ = source.engine.run_table("counters", key, columns=["time_ns", "name", "value"], ranks=[view.rank])
    if not len(rows):
        return {}
    names = rows["name"].cast(pa.utf8())
    wanted = sorted(
        pc.unique(names).to_pylist(), key=lambda n: next((i for i, w in enumerate(SHOWN_FIRST) if w in n), 99)
    )
    found = {}
    for name in wanted[:MAX_COUNTERS]:
        mine = rows.filter(pc.equal(names, name)).sort_by("time_ns")
        time_ns, value = mine["time_ns"].to_numpy(), pc.fill_null(mine["value"], np.nan).to_numpy()
        stride = max(1, -(-len(time_ns) // MAX_SAMPLES))
        found[name] = (time_ns[::stride], value[::stride])
    return found
