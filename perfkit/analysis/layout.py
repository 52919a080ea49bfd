"""Where each rank stands in the job: the value that the rest of the job's analysis asks.

    Layout                      degrees, role of each group, coordinates and role of each rank
    layout.table()              -> LAYOUT, one row per rank
    arrange(layout, ranks)      -> ARRANGEMENT, a fixed place in a grid for every rank (heat maps)

Two ranks are peers if they do the same work: they have the same number on the pp axis. The grid keeps the axes
whole: its rows run over the slow axes and its columns over the fast ones, cut where the grid is closest to a square
that is not taller than wide. Without coordinates ranks fill rows of a host (or of 8).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from perfkit.analysis.axes import ALL_AXES, AXES, mesh_text

LAYOUT = pa.schema(
    [("rank", pa.int32()), ("role", pa.utf8()), ("position", pa.utf8()), *((axis, pa.int32()) for axis in ALL_AXES)]
)
"""`role` is what makes two ranks peers, `position` reads `pp1 dp0 tp3`; an axis is null if it is not known."""
ARRANGEMENT = pa.schema(
    [
        ("rank", pa.int32()), ("row", pa.int32()), ("column", pa.int32()), ("row_label", pa.utf8()),
        ("column_label", pa.utf8()),
    ]
)  # fmt: skip
RANKS_PER_ROW = 8


@dataclass(frozen=True)
class Layout:
    """Parallel degrees, and where groups and ranks stand in them."""

    degrees: dict[str, int] = field(default_factory=dict)
    """Axis -> degree, of the axes that are known; empty if nothing is."""
    roles: list[str | None] = field(default_factory=list)
    """By group: tp, dp, fsdp, pp, cp, ep, world, axes joined by `+`, or the group's own name."""
    coordinates: dict[int, dict[str, int]] = field(default_factory=dict)
    role_of: dict[int, str | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What contradicts what, and what was only guessed."""
    source: str = "inferred"
    """`inferred`, or `given` by the user."""
    evidence: dict[str, str] = field(default_factory=dict)
    """Axis -> where its degree comes from: names, ops, pairs, size (of composite groups), division, given."""
    pipeline_gids: frozenset[int] = frozenset()
    """Groups whose receives are those of a pipeline; the role of one may be `world`."""

    @property
    def text(self) -> str | None:
        """The mesh in one line; None if it is not known."""
        return mesh_text(self.degrees) if self.degrees else None

    def position(self, rank: int) -> str | None:
        """Return `pp1 dp0 tp3`, axes of one rank left out."""
        at = self.coordinates.get(rank)
        if at is None:
            return None
        return " ".join(f"{a}{at[a]}" for a in ALL_AXES if a in at and self.degrees.get(a, 1) > 1) or None

    def table(self) -> pa.Table:
        """Return one row per rank."""
        ranks = sorted(self.role_of)
        columns: dict[str, list[object]] = {
            "rank": list(ranks),
            "role": [self.role_of[r] for r in ranks],
            "position": [self.position(r) for r in ranks],
        }
        for axis in ALL_AXES:
            columns[axis] = [self.coordinates.get(r, {}).get(axis) for r in ranks]
        return pa.table(columns, schema=LAYOUT)


class View(Protocol):
    """The job as the analyses of roles see it; perfkit.analysis.job.JobView is one. Tables are of analysis.calls."""

    @property
    def ranks(self) -> Sequence[int]:
        """Ranks with a trace."""

    @property
    def world_size(self) -> int | None:
        """Ranks of the job, if known."""

    @property
    def hosts(self) -> Mapping[int, str | None]:
        """Host by rank."""

    @property
    def devices(self) -> Mapping[int, str | None]:
        """Device name by rank."""

    @property
    def calls(self) -> pa.Table:
        """CALLS."""

    @property
    def members(self) -> pa.Table:
        """MEMBERS, row by row with the calls."""

    @property
    def groups(self) -> pa.Table:
        """GROUPS."""

    @property
    def steps(self) -> pa.Table:
        """Exposed communication of each rank, device and step by label, with bubble_ns."""

    @property
    def layout(self) -> Layout | None:
        """Where the ranks stand."""


def arrange(layout: Layout, ranks: Sequence[int], hosts: Mapping[int, str | None] | None = None) -> pa.Table:
    """Give every rank a place in a grid; the same ranks get the same places on every run."""
    axes = [a for a in AXES if layout.degrees.get(a, 1) > 1]
    complete = all(all(a in layout.coordinates.get(r, {}) for a in axes) for r in ranks)
    if axes and complete:
        cut = min(range(1, len(axes) + 1), key=lambda i: _squareness(layout, axes, i)) if len(axes) > 1 else 0
        keys = {r: (_part(layout, r, axes[:cut]), _part(layout, r, axes[cut:])) for r in ranks}
    else:
        keys = _by_host(ranks, hosts or {})
    rows = {key: i for i, key in enumerate(sorted({row for row, _ in keys.values()}))}
    columns = {key: i for i, key in enumerate(sorted({column for _, column in keys.values()}))}
    ordered = sorted(ranks)
    return pa.table(
        {
            "rank": ordered,
            "row": [rows[keys[r][0]] for r in ordered],
            "column": [columns[keys[r][1]] for r in ordered],
            "row_label": [_label(keys[r][0]) for r in ordered],
            "column_label": [_label(keys[r][1]) for r in ordered],
        },
        schema=ARRANGEMENT,
    )


_Key = tuple[tuple[str, int], ...]


def _squareness(layout: Layout, axes: Sequence[str], cut: int) -> tuple[bool, float]:
    rows = math.prod(layout.degrees[a] for a in axes[:cut])
    columns = math.prod(layout.degrees[a] for a in axes[cut:])
    return rows > columns, abs(math.log(columns / rows))


def _part(layout: Layout, rank: int, axes: Sequence[str]) -> _Key:
    return tuple((axis, layout.coordinates[rank][axis]) for axis in axes)


def _by_host(ranks: Sequence[int], hosts: Mapping[int, str | None]) -> dict[int, tuple[_Key, _Key]]:
    """Place ranks by host where all hosts are known, else in rows of eight; the label of a row is its first rank."""
    ordered = sorted(ranks)
    rows: dict[object, list[int]] = {}
    for rank in ordered:
        host = hosts.get(rank)
        rows.setdefault(host if host is not None else rank // RANKS_PER_ROW, []).append(rank)
    return {
        rank: ((("rank", members[0]),), (("", column),))
        for members in rows.values()
        for column, rank in enumerate(members)
    }


def _label(key: _Key) -> str:
    return " ".join(f"{axis} {number}".strip() if axis == "rank" else f"{axis}{number}" for axis, number in key)
