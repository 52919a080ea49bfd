"""Fit process groups to a mesh: coordinates of the ranks, or the axes that a group of a given mesh runs over.

    place_ranks(found, pipelines, world_size, ranks) -> {rank: {"pp": 1, "dp": 0, …}}
    axes_of_members(degrees, at, members)            -> ("dp", "cp")

A mesh is tried in every order of its axes, the usual one first; the first order in which every group runs through
its own axis and stands still on the others is the mesh. Two ranks of a group are enough to tell, so a few traced
ranks of many do. If no order fits, a rank's coordinates are its positions in its own groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np

from perfkit.analysis.axes import AXES
from perfkit.analysis.intervals import Ints

Names = tuple[str, ...]
Members = tuple[int, ...]


@dataclass
class Found:
    """What is known of the groups so far; lists are by group."""

    members: list[Members | None]
    sizes: list[int | None]
    labels: list[str]
    """What to call a group in a message."""
    axes: list[Names | None]
    degrees: dict[str, int] = field(default_factory=dict)
    evidence: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def on(self, axis: str) -> list[int]:
        """Return the groups that lie along one axis alone and have more than one member."""
        return [g for g, axes in enumerate(self.axes) if axes == (axis,) and (self.sizes[g] or 0) > 1]

    def rank_sets(self, axis: str) -> list[Members]:
        """Return the distinct rank sets of an axis."""
        return sorted({m for g in self.on(axis) if (m := self.members[g]) is not None})


def place_ranks(
    found: Found, pipelines: Sequence[Members], world_size: int | None, ranks: Sequence[int]
) -> dict[int, dict[str, int]]:
    """Return the coordinates of the ranks; an axis that is not known of a rank is left out."""
    if not found.degrees:
        return {}
    sets = {axis: found.rank_sets(axis) or (list(pipelines) if axis == "pp" else []) for axis in AXES}
    placed: dict[int, dict[str, int]] | None = None
    if world_size == math.prod(found.degrees.get(axis, 1) for axis in AXES):
        placed = _regular(found, sets, world_size, ranks)
        if placed is None:
            found.notes.append("groups do not lie on a regular mesh: coordinates are positions in each rank's groups")
    if placed is None:
        placed = {rank: {} for rank in ranks}
        for axis in AXES:
            _number(placed, axis, sets[axis])
            if found.degrees.get(axis, 1) == 1:
                for rank in placed:
                    placed[rank][axis] = 0
    _number(placed, "ep", found.rank_sets("ep"))
    return placed


def _number(placed: dict[int, dict[str, int]], axis: str, sets: Sequence[Members]) -> None:
    for members in sets:
        for number, rank in enumerate(members):
            if rank in placed:
                placed[rank][axis] = number


def _regular(
    found: Found, sets: Mapping[str, list[Members]], world_size: int, ranks: Sequence[int]
) -> dict[int, dict[str, int]] | None:
    """Return the coordinates on the first mesh that all groups fit."""
    lines = {
        axis: np.array([m for m in sets[axis] if len(m) == found.degrees.get(axis)], np.int64).reshape(
            -1, found.degrees.get(axis, 1)
        )
        for axis in AXES
    }
    for order in permutations(AXES):
        at = _ordered(found.degrees, order, world_size)
        if all(_runs_along(at, axis, line) for axis, line in lines.items() if len(line)):
            used = [axis for axis in order if found.degrees.get(axis, 1) > 1]
            if used != [axis for axis in AXES if axis in used]:
                found.notes.append(
                    f"ranks are not numbered in the usual order; fastest first: {' '.join(reversed(used))}"
                )
            return {r: {axis: int(at[axis][r]) for axis in AXES} for r in ranks if r < world_size}
    return None


def _ordered(degrees: Mapping[str, int], order: Names, world_size: int) -> dict[str, Ints]:
    rest, at = np.arange(world_size), {}
    for axis in reversed(order):
        at[axis], rest = rest % degrees.get(axis, 1), rest // degrees.get(axis, 1)
    return at


def _runs_along(at: Mapping[str, Ints], axis: str, line: Ints) -> bool:
    """Say whether every group (a row) runs through its axis in order, and stands still on the others."""
    if line.max() >= len(at[axis]):
        return False
    still = all((at[other][line] == at[other][line[:, :1]]).all() for other in AXES if other != axis)
    return bool(still and (at[axis][line] == np.arange(line.shape[1])).all())


def axes_of_members(degrees: Mapping[str, int], at: Mapping[str, Ints], members: Members) -> Names | None:
    """Return the axes over which a group runs in full, None if it does not run over whole axes."""
    rows = np.array(members)
    if rows.max() >= len(at["pp"]):
        return None
    varying = tuple(axis for axis in AXES if len(np.unique(at[axis][rows])) > 1)
    if math.prod(degrees.get(axis, 1) for axis in varying) == len(rows):
        return varying
    if degrees.get("ep", 1) == len(rows) and len(np.unique(at["ep"][rows])) == len(rows):
        return ("ep",)
    return None
