"""One run: what it reached, where its time went, its curves.

    totals(source, view)     -> sums of its roll-up, or None
    ladders(source, view)    -> {"A": Ladder, "B": Ladder}, those that there are
    series(source, view)     -> Series: MFU, tokens/s, step time, loss over steps, or over hours if there are none

The time line is that of the lead rank, as in perfkit.goodput: training is synchronous, and one rank of thousands is
enough. The Run page shows the whole run whatever the time range of the link is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.axes import BATCH_AXES, axis_of_dimension
from perfkit.analysis.slow import slow_limit
from perfkit.errors import PerfkitError
from perfkit.goodput.ladder import ladder_b
from perfkit.hardware.lookup import resolve_peak
from perfkit.report.verdict import Ladder, Rung, ladder
from perfkit.schema import GOODPUT_BUCKETS, GOODPUT_LOSSES
from perfkit.store.layout import RunKey

from .data import EVERYTHING, Rows, Source, ratio, remembered
from .data_fleet import LOSS_SUMS, SUMS, with_ratios
from .engine import WHOLE
from .metrics import BUCKETS
from .theme import GROUPS
from .view import View

MAX_POINTS = 1_500
"""Points of a curve: more than a screen has pixels for."""


def load_rollup(source: Source, view: View) -> bool:
    """Load the days of a run, and say whether it has roll-ups: any of its rows says when it began and was last seen."""
    where, parameters = "cluster = ? AND run = ?", [view.cluster, view.run]
    for window in (source.window(view), EVERYTHING):
        source.load("run_rollup", window)
        found = source.ask(
            f"SELECT min(start_ns) AS first_ns, max(last_seen_ns) AS last_ns FROM run_rollup WHERE {where}", parameters
        )[0]
        if found["first_ns"] is None:
            continue
        source.load(WHOLE, (found["first_ns"], found["first_ns"]))
        began = source.ask(f"SELECT min(run_start_ns) AS ns FROM {WHOLE} WHERE {where}", parameters)[0]["ns"]
        known = began is not None and found["last_ns"] is not None
        source.load(WHOLE, (min(began, found["first_ns"]), found["last_ns"] + 1) if known else EVERYTHING)
        return True
    return False


@remembered
def totals(source: Source, view: View) -> dict[str, Any] | None:
    """Return the sums and ratios of the whole run."""
    if not load_rollup(source, view):
        return None
    rows = source.ask(
        f"SELECT {SUMS}, {LOSS_SUMS}, sum(steps) AS steps, sum(lost_steps) AS lost_steps, sum(queue_ns) AS queue_ns, "
        "sum(interruptions)::BIGINT AS interruptions, sum(restarts)::BIGINT AS restarts, max(attempt) AS attempt, "
        "arg_max(state, end_ns) AS state, min(start_ns) AS start_ns, max(end_ns) AS end_ns, max(gpus) AS gpus, "
        "any_value(model) AS model, any_value(device) AS device, any_value(user) AS user, any_value(name) AS name, "
        "max(world_size) AS world_size, max(peak_flops) AS peak_flops, min(eligible_ns) AS eligible_ns, "
        "median(step_time_p50_ns) AS step_time_p50_ns, median(step_time_p95_ns) AS step_time_p95_ns, "
        f"bool_or(synthetic) AS synthetic FROM {WHOLE} WHERE cluster = ? AND run = ?",
        [view.cluster, view.run],
    )
    row = with_ratios(rows[0])
    waiting = (row["allocated_ns"] or 0) + (row["queue_ns"] or 0)
    row["ettr"] = ratio(row["productive_ns"], waiting) if row["eligible_ns"] is not None else None
    return row


# ------------------------------------------------------------------ ladders


@remembered
def ladders(source: Source, view: View) -> dict[str, Ladder]:
    """Return ladder A of the newest analysis, and ladder B of the roll-up."""
    found: dict[str, Ladder] = {}
    key = source.run_key(view)
    if key is not None:
        rows = analysed(source, key, "waterfall")
        if rows is not None and len(rows):
            whole = rows.filter(pc.and_(pc.is_null(rows["rank"]), pc.is_null(rows["step"]))).sort_by("position")
            for name in ("A", "B"):
                mine = whole.filter(pc.equal(whole["ladder"].cast(pa.utf8()), name)).to_pylist()
                if mine:
                    found[name] = as_ladder(mine)
    if "B" not in found:
        row = totals(source, view)
        if row and row["allocated_ns"]:
            found["B"] = allocation_ladder(row)
    return found


def as_ladder(rows: Rows) -> Ladder:
    """Return rows of `waterfall` as the report draws them."""
    terms = [
        {**row, "ns": row["gpu_ns"], "gpu_hours": None if row["gpu_ns"] is None else row["gpu_ns"] / 3.6e12}
        for row in rows
    ]
    return ladder({"waterfall": terms, "mfu": {"ladder_start": None}})


def allocation_ladder(row: dict[str, Any]) -> Ladder:
    """Return ladder B: allocated GPU-time by goodput bucket, down to effective MFU."""
    buckets = {name: round(row[f"{name}_ns"] or 0) for name in GOODPUT_BUCKETS}
    rows = {found["term"]: found for found in ladder_b(buckets, row["effective_mfu"])}
    known = "effective_mfu" in rows
    order = ("effective_mfu", "below_peak", *GOODPUT_LOSSES) if known else ("productive", *GOODPUT_LOSSES)
    groups = {name: group for group, (_, members) in GROUPS.items() for name in members}
    labels = {**BUCKETS, "effective_mfu": "effective MFU", "below_peak": "productive, below peak"}
    kinds = {**groups, "effective_mfu": "useful", "productive": "useful", "below_peak": "compute"}
    rungs, offset = [], 0.0
    for term in order:
        points, ns = rows[term]["points"], rows[term]["gpu_ns"]
        rungs.append(Rung(term, labels[term], kinds[term], points, offset, ns, ns / 3.6e12, None, True))
        offset += points
    return Ladder("where the allocated GPU-time went", "points" if known else "% of time", rungs)


def analysed(source: Source, key: RunKey, table: str, **more: Any) -> pa.Table | None:
    """Return a derived table of a run; None if there is none."""
    rows, _ = source.engine.run_table(table, key, **more)
    return rows if len(rows) else None


@remembered
def traced_step_ns(source: Source, view: View) -> dict[str, Any] | None:
    """Return median and 95th percentile of the traced windows, and the ranks: what an analysis alone knows of speed."""
    key = source.run_key(view)
    rows = analysed(source, key, "attribution", columns=["rank", "step", "window_ns", "carry_in"]) if key else None
    if rows is None:
        return None
    rows = rows.filter(pc.and_(pc.is_valid(rows["step"]), pc.invert(pc.fill_null(rows["carry_in"], False))))
    if not len(rows):
        return None
    middle, high = np.percentile(rows["window_ns"].to_numpy(), [50, 95])
    world = source.engine.metadata(key).get("world_size") if key else None
    return {"step_time_p50_ns": float(middle), "step_time_p95_ns": float(high), "gpus": world}


# ------------------------------------------------------------------ curves


@dataclass(frozen=True)
class Series:
    """Curves over steps or time: arrays of equal length, NaN where unknown."""

    x: Any
    over: str
    """`step` or `time`."""
    curves: dict[str, Any] = field(default_factory=dict)
    """mfu (%), tokens_per_s, step_time (ms), loss."""
    slow: Any = None
    """x of slow steps."""
    slow_ms: Any = None
    total: int = 0
    """Steps behind the curves."""
    note: str = ""


def lead_rank(source: Source, key: RunKey) -> int | None:
    """Return the lowest rank that left steps."""
    commits, _ = source.engine.commits(key)
    return min((c.rank for c in commits if c.rows.get("steps")), default=None)


@remembered
def series(source: Source, view: View) -> Series:
    """Return the curves of the chosen attempt, or of the whole run by hour where no steps are on record."""
    key = source.run_key(view)
    lead = lead_rank(source, key) if key else None
    if key is None or lead is None:
        return _hourly(source, view)
    columns = ["step", "start_ns", "end_ns", "data_wait_ns", "tokens", "model_flops", "loss"]
    rows, _ = source.engine.run_table("steps", key, columns=columns, ranks=[lead])
    return _by_step(rows.sort_by("step"), view, source.engine.metadata(key), totals(source, view), lead)


def _by_step(rows: pa.Table, view: View, metadata: dict[str, Any], rollup: dict[str, Any] | None, lead: int) -> Series:
    step = rows["step"].to_numpy()
    end = rows["end_ns"].to_numpy()
    began = rows["start_ns"][0].as_py() - (rows["data_wait_ns"][0].as_py() or 0)
    took = np.diff(end, prepend=np.int64(began)).astype(float)  # integers first: a float does not hold 10^18 ns
    took[took <= 0] = np.nan
    seconds = took / 1e9
    tokens = _filled(rows["tokens"]) * replicas_of(metadata)
    world = metadata.get("world_size") or (rollup or {}).get("world_size")
    peak = (rollup or {}).get("peak_flops") or known_peak(metadata.get("device"))
    flops = _filled(rows["model_flops"]) * replicas_of(metadata)
    mfu = 100 * flops / (peak * world * seconds) if peak and world else np.full(len(step), np.nan)
    mfu[~((mfu >= 0) & (mfu <= 100))] = np.nan
    slow, limit = _slow(took)
    low = view.first if view.first is not None else -1
    high = view.last if view.last is not None else 2**62
    shown = (step >= low) & (step <= high)
    curves = {"mfu": mfu, "tokens_per_s": tokens / seconds, "step_time": took / 1e6, "loss": _filled(rows["loss"])}
    index = np.flatnonzero(shown)
    x, binned = _binned(step[index].astype(float), {name: values[index] for name, values in curves.items()})
    worst = index[slow[index]]
    worst = worst[np.argsort(-took[worst])][:80]
    return Series(
        x,
        "step",
        binned,
        step[worst],
        took[worst] / 1e6,
        int(shown.sum()),
        f"rank {lead}; a step counts as slow above {limit / 1e6:,.1f} ms" if limit else f"rank {lead}",
    )


def _hourly(source: Source, view: View) -> Series:
    if not load_rollup(source, view):
        return Series(np.array([]), "time")
    rows = source.engine.ask(
        "SELECT start_ns, mfu_ratio * 100 AS mfu, tokens / nullif((end_ns - start_ns) / 1e9, 0) AS tokens_per_s, "
        "step_time_p50_ns / 1e6 AS step_time, loss, steps FROM "
        f"{WHOLE} "
        "WHERE cluster = ? AND run = ? ORDER BY start_ns",
        [view.cluster, view.run],
    )
    names = ("mfu", "tokens_per_s", "step_time", "loss")
    curves = {name: _filled(rows[name]) for name in names}
    curves["mfu"][~((curves["mfu"] >= 0) & (curves["mfu"] <= 100))] = np.nan
    x, binned = _binned(_filled(rows["start_ns"]), curves)
    return Series(x, "time", binned, np.array([]), np.array([]), int(np.nansum(_filled(rows["steps"], 0))), "by hour")


def _filled(column: Any, missing: float = np.nan) -> Any:
    return np.asarray(pc.fill_null(column.cast(pa.float64(), safe=False), missing)).copy()


def _slow(took: Any) -> tuple[Any, float]:
    """Mark slow steps by definition 19, and return the limit."""
    known = took[np.isfinite(took)]
    if len(known) < 3:
        return np.zeros(len(took), bool), 0.0
    limit = slow_limit(known)
    return np.nan_to_num(took, nan=0.0) > limit, limit


def _binned(x: Any, curves: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return medians over equal runs of points, at most MAX_POINTS of them."""
    if len(x) <= MAX_POINTS:
        return x, curves
    width = -(-len(x) // MAX_POINTS)
    pad = -len(x) % width

    def middle(values: Any) -> Any:
        with np.errstate(all="ignore"):
            import warnings

            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # a bin of unknown values stays unknown
                return np.nanmedian(np.append(values, np.full(pad, np.nan)).reshape(-1, width), axis=1)

    return x[::width], {name: middle(values) for name, values in curves.items()}


def replicas_of(metadata: dict[str, Any]) -> float:
    """Return the number of data-parallel replicas; NaN if the mesh is unknown, so that tokens/s and MFU are too."""
    world = metadata.get("world_size")
    if metadata.get("devices_per_replica") and world:
        return float(world) / float(metadata["devices_per_replica"])
    mesh = mesh_of(metadata)
    if mesh:
        return float(np.prod([mesh.get(axis, 1) for axis in BATCH_AXES]))
    return 1.0 if world == 1 else float("nan")


def mesh_of(metadata: dict[str, Any]) -> dict[str, int]:
    """Return the parallel degrees of a manifest by axis, as perfkit.analysis.axes has them; two of one multiply."""
    mesh = metadata.get("mesh")
    if isinstance(mesh, str):
        try:
            mesh = json.loads(mesh)
        except ValueError:
            return {}
    if not isinstance(mesh, dict):
        return {}
    degrees: dict[str, int] = {}
    for name, size in mesh.items():
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            axis = axis_of_dimension(str(name))
            degrees[axis] = degrees.get(axis, 1) * size
    return degrees


@lru_cache(maxsize=64)
def known_peak(device: str | None) -> float | None:
    """Return the dense bf16 peak of a device by its exact name; None if the registry does not know it."""
    if not device:
        return None
    try:
        return resolve_peak(device, "bf16").flops
    except PerfkitError:
        return None
