"""The collectives of a run: how fast, who waited, for whom.

    kinds(source, view)       -> rows by role of the group and operation, the most exposed first
    points(source, view)      -> Points: bus bandwidth against message size, one per instance
    skew(source, view)        -> rows by step: median and largest skew, and twice the clock's error
    culprits(source, view)    -> rows by the rank that was waited for
    instances(source, view)   -> the dearest instances of what is chosen; members(source, view) of the chosen one

Everything is read from the analysis's table `collectives`: one row per call, which says what its instance was. Rates
are ratios of sums: bytes moved over the time they took. Waiting that cannot be told from transfer stays apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .data import Rows, Source, ratio, remembered
from .data_run import analysed
from .view import View

MAX_POINTS = 3_000
MAX_INSTANCES = 40
COLUMNS = [
    "rank",
    "step",
    "instance",
    "group",
    "op",
    "dtype",
    "bytes",
    "start_ns",
    "dur_ns",
    "wait_ns",
    "transfer_ns",
    "exposed_wait_ns",
    "exposed_transfer_ns",
    "bubble_ns",
    "busbw_gbps",
    "caused_by",
    "matched",
    "size",
    "skew_ns",
    "last_rank",
    "uncertainty_ns",
    "class",
    "link",
    "peak_gbps",
]


def _whole(view: View) -> View:
    """Return the view without what only chooses from its rows, so that the rows are kept once."""
    return View(page=view.page, cluster=view.cluster, run=view.run, attempt=view.attempt)


def calls(source: Source, view: View) -> pa.Table | None:
    """Return all calls, texts plain; None without an analysis."""
    return source.remember(("collectives", "calls"), _whole(view), lambda: _calls(source, view))


def _calls(source: Source, view: View) -> pa.Table | None:
    key = source.run_key(view)
    rows = analysed(source, key, "collectives", columns=COLUMNS) if key else None
    if rows is None:
        return None
    for name in ("group", "op", "dtype", "class", "link"):
        rows = rows.set_column(rows.column_names.index(name), name, rows[name].cast(pa.utf8()))
    return rows.combine_chunks()


def chosen(source: Source, view: View) -> pa.Table | None:
    """Return the calls of the view's group and operation."""
    return _of_view(calls(source, view), view)


def _of_view(rows: pa.Table | None, view: View) -> pa.Table | None:
    if rows is None:
        return None
    for name, value in (("group", view.group), ("op", view.op)):
        if value:
            rows = rows.filter(pc.fill_null(pc.equal(rows[name], value), False))
    return rows


@remembered
def kinds(source: Source, view: View) -> Rows:
    """Return one row per role and operation; times are summed over ranks and steps."""
    rows = calls(source, view)
    if rows is None:
        return []
    split = pc.is_valid(rows["wait_ns"])
    unsplit = pc.if_else(split, 0, rows["dur_ns"])
    table = rows.append_column("unsplit_ns", unsplit).append_column(
        "alone", pc.cast(pc.is_null(rows["instance"]), pa.int64())
    )
    sums = (
        table.group_by(["group", "op"])
        .aggregate(
            [
                ("dur_ns", "sum"),
                ("wait_ns", "sum"),
                ("transfer_ns", "sum"),
                ("unsplit_ns", "sum"),
                ("exposed_wait_ns", "sum"),
                ("exposed_transfer_ns", "sum"),
                ("bubble_ns", "sum"),
                ("alone", "sum"),
                ("rank", "count_distinct"),
                ("step", "count_distinct"),
                ([], "count_all"),
            ]
        )
        .to_pylist()
    )
    rates = _rates(source, view)
    found = []
    for row in sums:
        one = rates.get((row["group"], row["op"]), {})
        found.append(
            {
                "group": row["group"],
                "op": row["op"],
                "calls": row["count_all"],
                "instances": one.get("instances", 0),
                "alone": row["alone_sum"],
                "size": one.get("size"),
                "bytes": one.get("bytes"),
                "median_bytes": one.get("median_bytes"),
                "busbw_gbps": one.get("busbw_gbps"),
                "efficiency": one.get("efficiency"),
                "link": one.get("link"),
                "peak_gbps": one.get("peak_gbps"),
                "ranks": row["rank_count_distinct"],
                "steps": max(row["step_count_distinct"], 1),
                "dur_ns": row["dur_ns_sum"],
                "wait_ns": row["wait_ns_sum"],
                "transfer_ns": row["transfer_ns_sum"],
                "unsplit_ns": row["unsplit_ns_sum"],
                "exposed_wait_ns": row["exposed_wait_ns_sum"],
                "exposed_transfer_ns": row["exposed_transfer_ns_sum"],
                "bubble_ns": row["bubble_ns_sum"],
            }
        )
    return sorted(found, key=lambda row: (-exposed_ns(row), -row["dur_ns"]))


def exposed_ns(row: dict[str, Any]) -> int:
    """Return what compute does not hide of a row: waiting, moving data, and pipeline bubble."""
    return sum(row[name] or 0 for name in ("exposed_wait_ns", "exposed_transfer_ns", "bubble_ns"))


def _rates(source: Source, view: View) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return what instances of a kind moved and how fast: bytes over time, and against the peak of their link."""
    rows = every_instance(source, view)
    if rows is None:
        return {}
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for key, some in _grouped(rows, ("group", "op")).items():
        moved, speed, peak = (_floats(some, name) for name in ("bytes", "busbw_gbps", "peak_gbps"))
        known = np.isfinite(moved) & np.isfinite(speed) & (speed > 0)
        # bytes / busbw is the time up to a factor that is the same for all of one kind and size
        spent = np.where(known, moved / np.where(known, speed, 1), 0.0)
        judged = known & np.isfinite(peak) & (peak > 0)
        links = {name for name in some["link"].to_pylist() if name}
        peaks = np.unique(peak[np.isfinite(peak)])
        found[key] = {
            "instances": len(some), "size": _one(some["size"].to_pylist()),
            "bytes": float(moved[np.isfinite(moved)].sum()) if np.isfinite(moved).any() else None,
            "median_bytes": float(np.median(moved[np.isfinite(moved)])) if np.isfinite(moved).any() else None,
            "busbw_gbps": ratio(float(np.where(known, moved, 0).sum()), float(spent.sum())),
            "efficiency": ratio(float(moved[judged].sum()), float((spent * np.where(judged, peak, 0))[judged].sum())),
            "link": _one(links), "peak_gbps": float(peaks[0]) if len(peaks) == 1 else None,
        }  # fmt: skip
    return found


def _one(values: Any) -> Any:
    distinct = {value for value in values if value is not None}
    return distinct.pop() if len(distinct) == 1 else None


def _grouped(rows: pa.Table, names: tuple[str, ...]) -> dict[tuple[Any, ...], pa.Table]:
    keys = rows.group_by(list(names)).aggregate([]).to_pylist()
    found = {}
    for key in keys:
        mask = None
        for name in names:
            same = pc.is_null(rows[name]) if key[name] is None else pc.fill_null(pc.equal(rows[name], key[name]), False)
            mask = same if mask is None else pc.and_(mask, same)
        found[tuple(key[name] for name in names)] = rows.filter(mask)
    return found


def _floats(rows: pa.Table, name: str) -> Any:
    return pc.fill_null(rows[name].cast(pa.float64()), np.nan).to_numpy()


def every_instance(source: Source, view: View) -> pa.Table | None:
    """Return one row per matched instance of the run: what its calls share, and their sums."""
    return source.remember(("collectives", "instances"), _whole(view), lambda: _instances(calls(source, view)))


SHARED = (
    "step",
    "group",
    "op",
    "bytes",
    "size",
    "busbw_gbps",
    "skew_ns",
    "last_rank",
    "uncertainty_ns",
    "class",
    "link",
    "peak_gbps",
)


def _instances(rows: pa.Table | None) -> pa.Table | None:
    if rows is None:
        return None
    rows = rows.filter(pc.is_valid(rows["instance"]))
    end = pc.add(rows["start_ns"], rows["dur_ns"])
    sums = rows.append_column("end_ns", end).group_by("instance", use_threads=False).aggregate([
        *((name, "max" if name in ("bytes", "step") else "first") for name in SHARED),
        ("wait_ns", "sum"), ("transfer_ns", "sum"), ("exposed_wait_ns", "sum"), ("exposed_transfer_ns", "sum"),
        ("start_ns", "min"), ("end_ns", "max"), ("caused_by", "max"), ("rank", "count"),
    ])  # fmt: skip
    new = {f"{name}_max" if name in ("bytes", "step") else f"{name}_first": name for name in SHARED}
    new |= {f"{n}_sum": n for n in ("wait_ns", "transfer_ns", "exposed_wait_ns", "exposed_transfer_ns")}
    new |= {"start_ns_min": "start_ns", "end_ns_max": "end_ns", "caused_by_max": "caused_by", "rank_count": "present"}
    return sums.rename_columns([new.get(name, name) for name in sums.column_names]).sort_by("start_ns")


def chosen_instances(source: Source, view: View) -> pa.Table | None:
    """Return the instances of the view's group and operation."""
    return _of_view(every_instance(source, view), view)


@dataclass(frozen=True)
class Points:
    """Instances with a known size and bandwidth: arrays of equal length."""

    bytes: Any
    busbw_gbps: Any
    instance: Any
    step: Any
    wait_ns: Any
    kind: list[str]
    total: int
    """How many there are; more than MAX_POINTS are thinned evenly by bandwidth, per size."""
    unknown: int
    """Instances whose size or bandwidth is not known."""
    peaks: list[tuple[str, float]]
    """(link, GB/s)."""


@remembered
def points(source: Source, view: View) -> Points | None:
    """Return bandwidth against size of what is chosen."""
    rows = chosen_instances(source, view)
    if rows is None:
        return None
    size, speed = _floats(rows, "bytes"), _floats(rows, "busbw_gbps")
    known = np.flatnonzero((size > 0) & (speed > 0))
    total = len(known)
    if total > MAX_POINTS:
        order = known[np.lexsort((speed[known], size[known]))]
        edges = np.append(True, np.diff(size[order]) != 0) | np.append(np.diff(size[order]) != 0, True)
        every = np.zeros(total, bool)
        every[:: -(-total // (MAX_POINTS // 2))] = True
        known = order[(edges | every)][:MAX_POINTS]
    some = rows.take(pa.array(known))
    kind = [
        f"{group or 'unknown'} {op}"
        for group, op in zip(some["group"].to_pylist(), some["op"].to_pylist(), strict=True)
    ]
    peaks = {
        (link or "link", peak)
        for link, peak in zip(rows["link"].to_pylist(), rows["peak_gbps"].to_pylist(), strict=True)
        if peak is not None
    }
    return Points(
        size[known], speed[known], some["instance"].to_numpy(), _floats(some, "step"), _floats(some, "wait_ns"), kind,
        total, len(rows) - total, sorted(peaks),
    )  # fmt: skip


@remembered
def skew(source: Source, view: View) -> Rows:
    """Return by role and step how far apart the members arrived, and what the clocks can tell."""
    rows = chosen_instances(source, view)
    if rows is None:
        return []
    rows = rows.filter(pc.and_(pc.is_valid(rows["step"]), pc.is_valid(rows["skew_ns"])))
    found = rows.group_by(["group", "step"]).aggregate([
        ("skew_ns", "approximate_median"), ("skew_ns", "max"), ("uncertainty_ns", "max"), ([], "count_all"),
    ]).to_pylist()  # fmt: skip
    return sorted(
        (
            {"group": row["group"], "step": row["step"], "median_ns": row["skew_ns_approximate_median"],
             "max_ns": row["skew_ns_max"], "instances": row["count_all"],
             "noise_ns": None if row["uncertainty_ns_max"] is None else 2 * row["uncertainty_ns_max"]}
            for row in found
        ),
        key=lambda row: (str(row["group"]), row["step"]),
    )  # fmt: skip


@remembered
def culprits(source: Source, view: View) -> Rows:
    """Return the ranks that others waited for, the dearest first."""
    rows = chosen(source, view)
    if rows is None:
        return []
    waited = rows.filter(pc.and_(pc.is_valid(rows["caused_by"]), pc.greater(pc.fill_null(rows["wait_ns"], 0), 0)))
    sums = waited.group_by("caused_by").aggregate([
        ("wait_ns", "sum"), ("exposed_wait_ns", "sum"), ("instance", "count_distinct"), ("rank", "count_distinct"),
        ("step", "count_distinct"),
    ]).to_pylist()  # fmt: skip
    whole = pc.sum(rows["wait_ns"]).as_py() or 0
    last = {row["last_rank"]: row["count_all"] for row in
            (chosen_instances(source, view) or pa.table({"last_rank": []})).group_by("last_rank")
            .aggregate([([], "count_all")]).to_pylist()}  # fmt: skip
    found = [
        {"rank": row["caused_by"], "wait_ns": row["wait_ns_sum"], "exposed_wait_ns": row["exposed_wait_ns_sum"],
         "share": ratio(row["wait_ns_sum"], whole), "instances": row["instance_count_distinct"],
         "last": last.get(row["caused_by"], 0), "steps": row["step_count_distinct"]}
        for row in sums
    ]  # fmt: skip
    return sorted(found, key=lambda row: (-row["exposed_wait_ns"], -row["wait_ns"], row["rank"]))


@remembered
def instances(source: Source, view: View) -> Rows:
    """Return the instances of what is chosen that cost most exposed time."""
    rows = chosen_instances(source, view)
    if rows is None:
        return []
    cost = pc.add(pc.fill_null(rows["exposed_wait_ns"], 0), pc.fill_null(rows["exposed_transfer_ns"], 0)).to_numpy()
    order = np.lexsort((-(rows["end_ns"].to_numpy() - rows["start_ns"].to_numpy()), -cost))[:MAX_INSTANCES]
    return rows.take(pa.array(order)).to_pylist()


@remembered
def members(source: Source, view: View) -> Rows:
    """Return the calls of the chosen instance, by rank."""
    rows = calls(source, view)
    if rows is None or view.instance is None:
        return []
    return rows.filter(pc.fill_null(pc.equal(rows["instance"], view.instance), False)).sort_by("rank").to_pylist()
