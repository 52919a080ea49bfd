"""The kernels of a run, all ranks together: what they took, what they wasted, who launched them, on which rank.

    kernels(source, view)    -> rows by kernel, op and shape, largest waste first
    families(source, view)   -> rows by family
    paths(source, view)      -> rows by op, kernel and module
    by_rank(source, view)    -> Spread: time of one kernel, or of all that match, on each rank
    roofs(source, view)      -> the roofline's peaks: [(dtype, FLOP/s)], GB/s

Sums are over ranks. FLOPs, bytes and waste of a row are known only if they are for all its parts: a sum over the known
parts, divided by the time of all, would be a speed that nothing ran at. Unknown waste goes by time, after the known.
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

TEXTS = ("name", "family", "op", "module", "phase", "input_dims", "dtype", "bound")
BY = ("name", "family", "op", "phase", "input_dims", "dtype", "bound")
MAX_LEAVES = 240


def rows_of(source: Source, view: View) -> pa.Table | None:
    """Return the run's kernels, texts plain; None without an analysis."""
    whole = View(page=view.page, cluster=view.cluster, run=view.run, attempt=view.attempt)
    return source.remember(("kernels", "rows"), whole, lambda: _rows_of(source, view))


def _rows_of(source: Source, view: View) -> pa.Table | None:
    key = source.run_key(view)
    rows = analysed(source, key, "kernels") if key else None
    if rows is None:
        return None
    for name in TEXTS:
        rows = rows.set_column(rows.column_names.index(name), name, rows[name].cast(pa.utf8()))
    return rows.combine_chunks()


def matching(source: Source, view: View, *, kernel: bool = False) -> pa.Table | None:
    """Return the rows of the view's family, op and search, and with `kernel` only of the chosen kernel."""
    rows = rows_of(source, view)
    if rows is None:
        return None
    exact = [("family", view.family), ("op", view.op), *([("name", view.kernel)] if kernel else [])]
    for name, value in exact:
        if value:
            rows = rows.filter(pc.fill_null(pc.equal(rows[name], value), False))
    for word in view.search.split()[:8]:
        hit = None
        for name in ("name", "op", "module", "input_dims", "family"):
            here = pc.fill_null(pc.match_substring(rows[name], word, ignore_case=True), False)
            hit = here if hit is None else pc.or_(hit, here)
        rows = rows.filter(hit)
    return rows


@remembered
def kernels(source: Source, view: View) -> Rows:
    """Return what matches, by kernel, op and shape; largest waste first."""
    rows = matching(source, view)
    if rows is None:
        return []
    total = pc.sum((rows_of(source, view) or rows)["total_ns"]).as_py() or 0
    exact = pc.ScalarAggregateOptions(skip_nulls=False)
    sums = rows.group_by(list(BY), use_threads=False).aggregate([
        ("count", "sum"), ("total_ns", "sum"), ("owned_ns", "sum"), ("rank", "count_distinct"), ("peak_flops", "max"),
        ("peak_gbps", "max"), ("module", "min"), ("module", "count_distinct"),
        *((name, "sum", exact) for name in ("flops", "bytes", "waste_ns")),
    ]).to_pylist()  # fmt: skip
    found = []
    for row in sums:
        ns, flops, moved = row["total_ns_sum"], row["flops_sum"], row["bytes_sum"]
        one = {name: row[name] for name in BY}
        found.append({
            **one, "module": row["module_min"], "modules": row["module_count_distinct"], "count": row["count_sum"],
            "total_ns": ns, "owned_ns": row["owned_ns_sum"], "share": ratio(ns, total), "flops": flops, "bytes": moved,
            "waste_ns": row["waste_ns_sum"], "ranks": row["rank_count_distinct"],
            "flops_per_s": ratio(flops, ns / 1e9) if flops is not None and ns else None,
            "intensity": ratio(flops, moved) if flops and moved else None,
            "peak_flops": row["peak_flops_max"], "peak_gbps": row["peak_gbps_max"],
        })  # fmt: skip
    return sorted(found, key=lambda r: (r["waste_ns"] is None, -(r["waste_ns"] or 0), -r["total_ns"], r["name"]))


@remembered
def roofs(source: Source, view: View) -> tuple[list[tuple[str, float]], float | None]:
    """Return the peaks that the analysis measured against: by number format, and of memory."""
    rows = rows_of(source, view)
    if rows is None:
        return [], None
    peaks = {
        dtype: peak
        for dtype, peak in zip(rows["dtype"].to_pylist(), rows["peak_flops"].to_pylist(), strict=True)
        if dtype and peak
    }
    return sorted(peaks.items(), key=lambda item: -item[1]), pc.max(rows["peak_gbps"]).as_py()


@remembered
def families(source: Source, view: View) -> Rows:
    """Return time and known waste by family, of what the search finds in all families."""
    rows = matching(source, view.change(family=""))
    if rows is None:
        return []
    known = pc.if_else(pc.is_valid(rows["waste_ns"]), rows["total_ns"], 0)
    sums = rows.append_column("judged_ns", known).group_by("family").aggregate([
        ("total_ns", "sum"), ("judged_ns", "sum"), ("waste_ns", "sum"), ("count", "sum"), ("name", "count_distinct"),
    ]).to_pylist()  # fmt: skip
    whole = sum(row["total_ns_sum"] for row in sums)
    found = [
        {"family": row["family"], "total_ns": row["total_ns_sum"], "judged_ns": row["judged_ns_sum"],
         "waste_ns": row["waste_ns_sum"], "count": row["count_sum"], "kernels": row["name_count_distinct"],
         "share": ratio(row["total_ns_sum"], whole)}
        for row in sums
    ]  # fmt: skip
    return sorted(found, key=lambda row: -row["total_ns"])


@remembered
def paths(source: Source, view: View) -> Rows:
    """Return owned time by op, kernel and module, of what matches; the smallest share one row per op."""
    rows = matching(source, view)
    if rows is None:
        return []
    owned = pc.fill_null(rows["owned_ns"], rows["total_ns"])
    rows = rows.set_column(rows.column_names.index("owned_ns"), "owned_ns", owned)
    sums = rows.group_by(["op", "name", "module"]).aggregate([("owned_ns", "sum"), ("count", "sum")]).to_pylist()
    found = [{"op": row["op"], "kernel": row["name"], "module": row["module"], "owned_ns": row["owned_ns_sum"],
              "count": row["count_sum"]} for row in sums]  # fmt: skip
    found.sort(key=lambda row: (-row["owned_ns"], str(row["op"]), row["kernel"]))
    rest: dict[Any, dict[str, Any]] = {}
    for row in found[MAX_LEAVES:]:
        one = rest.setdefault(row["op"], {"op": row["op"], "kernel": None, "module": None, "owned_ns": 0, "count": 0})
        one["owned_ns"] += row["owned_ns"]
        one["count"] += row["count"]
    top = sorted(rest.values(), key=lambda row: -row["owned_ns"])
    return [*found[:MAX_LEAVES], *top[:60]]


@dataclass(frozen=True)
class Spread:
    """Time of a kernel on each rank."""

    title: str
    ranks: Any
    total_ns: Any
    mean_ns: Any
    """Per launch; NaN if there was none."""


@remembered
def by_rank(source: Source, view: View) -> Spread | None:
    """Return the spread over ranks of the chosen kernel; without one, of everything that matches."""
    rows = matching(source, view, kernel=True)
    if rows is None or not len(rows):
        return None
    sums = rows.group_by("rank").aggregate([("total_ns", "sum"), ("count", "sum")]).sort_by("rank")
    total, count = sums["total_ns_sum"].to_numpy(), sums["count_sum"].to_numpy()
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    chosen = view.kernel or " ".join(filter(None, (view.family, view.op, view.search))) or "all kernels"
    return Spread(chosen, sums["rank"].to_numpy(), total, mean)
