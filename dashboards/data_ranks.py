"""The ranks of a run: a grid of rank × step.

    grid(source, view)            -> Grid, or None where the quantity was not recorded
    own_work(source, key, view)   -> Cube: what each rank did itself (definition 16)

Ranks are placed in the mesh in the usual order, tensor parallelism fastest and pipeline stages slowest; the page says
so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.axes import ALL_AXES, AXES, BATCH_AXES, mesh_coordinates
from perfkit.analysis.stragglers import own_compute, own_idle
from perfkit.store.layout import RunKey

from .data import Source, remembered
from .data_run import analysed, mesh_of
from .view import View

MAX_CELLS = 80_000
MAX_STEPS = 200
MAX_ROWS = 420
"""Rows that a screen can tell apart."""
OWN_WORK = ["rank", "device", "step", "window_ns", "compute_ns", "exposed_comm_ns", "carry_in"]
"""Columns of `attribution` that own work is made of."""
ATTRIBUTED = {"compute": "compute_ns", "exposed_comm": "exposed_comm_ns", "idle": "idle_ns", "step_time": "window_ns"}


@dataclass(frozen=True)
class Grid:
    """Rank × step, ready to draw."""

    z: Any
    """In `unit`; NaN where not recorded."""
    steps: Any
    labels: list[str]
    ranks: list[int]
    """The rank of each row; of several that share one, the worst."""
    quantity: str
    num_ranks: int
    folded: int
    """Ranks that share a row, which shows the worst of them."""
    low: float
    high: float
    unit: str
    source: str


@dataclass(frozen=True)
class Cube:
    """A quantity by rank and step."""

    ranks: Any
    steps: Any
    values: Any
    source: str


def coordinates(ranks: Any, mesh: dict[str, int], world: int | None) -> dict[str, Any]:
    """Return the coordinate of each rank in each dimension of the mesh; nothing if the mesh does not fit the job.

    The mesh is read as perfkit.analysis.axes reads it, where ep cuts the data ranks; a mesh that fits only with its
    ep or a dimension of an unknown name counted in has those as dimensions of their own.
    """
    least = max(1, int(np.max(ranks)) + 1 if len(ranks) else 1)

    def fits(size: int) -> bool:
        return size >= least and (not world or size == world)

    if mesh and set(mesh) <= set(ALL_AXES) and fits(math.prod(mesh.get(axis, 1) for axis in AXES)):
        at = mesh_coordinates(mesh, ranks)
        return {axis: at[axis] for axis in ALL_AXES if axis in mesh}
    size = math.prod(mesh.values())
    if not mesh or not fits(size):
        return {}
    usual = ("tp", "cp", "ep", "fsdp", "dp", "pp")
    order = [name for name in usual if name in mesh]
    order += [name for name in reversed(list(mesh)) if name not in order]
    found, stride = {}, 1
    for name in order:
        found[name] = (ranks // stride) % mesh[name]
        stride *= mesh[name]
    return {name: found[name] for name in reversed(order)}


def place(source: Source, key: RunKey, ranks: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the mesh coordinates of ranks, and a label for each."""
    metadata = source.engine.metadata(key)
    at = coordinates(ranks, mesh_of(metadata), metadata.get("world_size"))
    shown = {name: values for name, values in at.items() if len(np.unique(values)) > 1}
    labels = [
        f"rank {rank}" + ("  " + " ".join(f"{name}{values[i]}" for name, values in shown.items()) if shown else "")
        for i, rank in enumerate(ranks.tolist())
    ]
    return at, labels


# ------------------------------------------------------------------ the grid


def cube(source: Source, key: RunKey, quantity: str, view: View) -> Cube | None:
    """Return a quantity of all ranks that recorded it: from the analysis, or from the training loop's step records."""
    if quantity == "own_work":
        return own_work(source, key, view)
    recorded = _recorded(source, key, quantity, view) if quantity in ("step_time", "data_wait") else None
    column = ATTRIBUTED.get(quantity)
    traced = _traced(source, key, column, view) if column else None
    both = [one for one in (recorded, traced) if one is not None]
    return max(both, key=lambda one: len(one.ranks), default=None)


def _traced(source: Source, key: RunKey, column: str, view: View) -> Cube | None:
    rows = analysed(source, key, "attribution", columns=["rank", "step", column, "carry_in"])
    if rows is None:
        return None
    rows = rows.filter(pc.and_(pc.is_valid(rows["step"]), pc.invert(pc.fill_null(rows["carry_in"], False))))
    return _spread(rows, column, view, "analysis")


def _recorded(source: Source, key: RunKey, quantity: str, view: View) -> Cube | None:
    column = "data_wait_ns" if quantity == "data_wait" else "end_ns"
    rows, _ = source.engine.run_table("steps", key, columns=["rank", "step", column])
    if not len(rows):
        return None
    found = _spread(rows, column, view, "step records")
    if found is None or quantity == "data_wait":
        return found
    took = np.full_like(found.values, np.nan)
    took[:, 1:] = np.diff(found.values, axis=1) / np.maximum(np.diff(found.steps), 1)[None, :]
    took[took <= 0] = np.nan
    return Cube(found.ranks, found.steps, took, found.source) if took.shape[1] > 1 else None


def distinct(values: Any) -> tuple[Any, Any]:
    """Return what numpy.unique returns with the inverse, without sorting where the values lie close together."""
    low = int(values.min())
    if int(values.max()) - low > 10_000_000:
        found, inverse = np.unique(values, return_inverse=True)
        return found, inverse
    there = np.bincount(values - low) > 0
    return np.flatnonzero(there) + low, (np.cumsum(there) - 1)[values - low]


def _spread(rows: pa.Table, column: str, view: View, source: str) -> Cube | None:
    """Return rows as a matrix, rank × step; devices of one rank add up."""
    low = view.first if view.first is not None else -(2**62)
    high = view.last if view.last is not None else 2**62
    step = rows["step"].to_numpy()
    keep = (step >= low) & (step <= high)
    if not keep.any():
        return None
    rank, step = rows["rank"].to_numpy()[keep], step[keep]
    column_values = rows[column]
    if column == "end_ns":
        column_values = pc.subtract(column_values, pc.min(column_values))  # small enough for a float
    value = np.asarray(pc.fill_null(column_values.cast(pa.float64(), safe=False), np.nan))[keep]
    ranks, row = distinct(rank)
    steps, at = distinct(step)
    if len(steps) > 4 * MAX_STEPS and view.first is None:  # the newest, unless the link says which
        first = len(steps) - 4 * MAX_STEPS
        inside = at >= first
        row, at, value, steps = row[inside], at[inside] - first, value[inside], steps[first:]
    cell, size = row * len(steps) + at, len(ranks) * len(steps)
    sums = np.bincount(cell, value, minlength=size)
    z = np.where(np.bincount(cell, minlength=size) > 0, sums, np.nan).reshape(len(ranks), len(steps))
    return Cube(ranks, steps, z, source)


def own_work(source: Source, key: RunKey, view: View) -> Cube | None:
    """Return what each rank did itself: compute and late host on a device, else the window without communication."""
    rows = analysed(source, key, "attribution", columns=OWN_WORK)
    if rows is None:
        return None
    rows = rows.filter(pc.and_(pc.is_valid(rows["step"]), pc.invert(pc.fill_null(rows["carry_in"], False))))
    rows = rows.append_column("own_ns", pa.array(own_compute(rows)))
    own = _spread(rows, "own_ns", view, "analysis") if len(rows) else None
    idle, _ = source.engine.run_table("idle", key, filter=pc.field("cause") == "host_late")
    idle = own_idle(idle.filter(pc.is_valid(idle["step"])))
    late = _spread(idle, "idle_ns", view, "analysis") if len(idle) else None
    if own is None or late is None:
        return own
    _, rank, late_rank = np.intersect1d(own.ranks, late.ranks, return_indices=True)
    _, step, late_step = np.intersect1d(own.steps, late.steps, return_indices=True)
    own.values[np.ix_(rank, step)] += np.nan_to_num(late.values[np.ix_(late_rank, late_step)])
    return own


@remembered
def grid(source: Source, view: View) -> Grid | None:
    """Return the heat map of a view: rows in the chosen order, folded until it fits the screen.

    Own work needs an analysis. A link that names no quantity shows the step time where there is none.
    """
    key = source.run_key(view)
    if key is None:
        return None
    quantity = view.quantity
    found = cube(source, key, quantity, view)
    if found is None and quantity == View.quantity_default():
        quantity = "step_time"
        found = cube(source, key, quantity, view)
    if found is None:
        return None
    z, steps = _fold_steps(found.values / 1e6, found.steps)
    unit = "ms"
    if np.isfinite(z).any() and np.nanmedian(z) >= 2000:
        z, unit = z / 1000, "s"
    at, labels = place(source, key, found.ranks)
    order = _order(view.order, at, z)
    z, ranks, labels = z[order], found.ranks[order].tolist(), [labels[i] for i in order]
    limit = max(1, min(MAX_ROWS, MAX_CELLS // max(1, z.shape[1])))
    folded = -(-len(ranks) // limit)
    shown = ranks
    if folded > 1:
        pad = -len(ranks) % folded
        blocks = np.vstack([z, np.full((pad, z.shape[1]), np.nan)]).reshape(-1, folded, z.shape[1])
        z = _worst(blocks, 1)
        peaks = np.nan_to_num(blocks, nan=-np.inf).max(axis=2)  # a click on a row leads to the worst of it
        shown = [ranks[i * folded + int(best)] for i, best in enumerate(peaks.argmax(axis=1))]
        labels = [f"{labels[i]} … {ranks[min(i + folded, len(ranks)) - 1]}" for i in range(0, len(ranks), folded)]
    known = z[np.isfinite(z)]
    low, high = (float(np.percentile(known, 1)), float(np.percentile(known, 99.5))) if len(known) else (0.0, 1.0)
    if high <= low:
        low, high = low - 0.5, low + 0.5
    return Grid(z, steps, labels, shown, quantity, len(ranks), folded, low, high, unit, found.source)


def _fold_steps(z: Any, steps: Any) -> tuple[Any, Any]:
    width = -(-len(steps) // MAX_STEPS)
    if width <= 1:
        return z, steps
    pad = -len(steps) % width
    return _worst(np.hstack([z, np.full((len(z), pad), np.nan)]).reshape(len(z), -1, width), 2), steps[::width]


def _worst(blocks: Any, axis: int) -> Any:
    """Return the largest of each block; unknown if all of it is."""
    return np.where(
        np.isfinite(blocks).any(axis=axis), np.nanmax(np.nan_to_num(blocks, nan=-np.inf), axis=axis), np.nan
    )


def _order(order: str, at: dict[str, Any], z: Any) -> Any:
    """Return the order of the rows: replicas of one role side by side, by number, or the slowest first."""
    if order == "slowest":
        known = np.isfinite(z)
        means = np.where(known, z, 0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
        return np.argsort(-means, kind="stable")
    if order == "mesh" and at:
        inner = [name for name in at if name in BATCH_AXES]
        outer = [name for name in at if name not in BATCH_AXES]
        return np.lexsort([at[name] for name in reversed([*outer, *inner])])
    return np.arange(len(z))
