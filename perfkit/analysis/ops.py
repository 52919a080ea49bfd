"""The host's call tree, and what each framework op costs.

    tree = CallTree(timeline, ops)        `ops` is the table of shapes and provenance
    tree.op_of(work)                      position of the op that issued each piece of device work, -1 for none
    tree.nearest(wanted)                  the nearest wanted event up the stack of every position

Positions are entries of the tree in nesting order: a parent comes before its children. Work finds its op
through its launch call (correlation id) and the op around that call, else through the external id.

Climbing is pointer doubling: the whole forest at once, in as many passes as the depth has bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.classify import CLASSES, encode_text
from perfkit.analysis.intervals import Ints, nest
from perfkit.analysis.timeline import Mask, Timeline, Work, ints
from perfkit.flops.op_attention import ATTENTION
from perfkit.flops.op_costs import op_costs
from perfkit.flops.op_dense import CONVOLUTIONS, GEMMS

OP_COLUMNS = ("input_dims", "input_types", "concrete_inputs", "sequence_number", "fwd_thread_id", "module_hierarchy")
"""What this module reads of the `ops` table."""
MATMUL = ("gemm", "attention", "conv")
"""Families and kinds of cost whose FLOPs count for HFU."""
_TREE = ("op", "range", "python")
_PRODUCTS = {*GEMMS, *CONVOLUTIONS, *ATTENTION}
Floats = npt.NDArray[np.float64]


class Costs(NamedTuple):
    """Distinct costs; `of` gives every position its entry, -1 for one without shapes or that nobody asks for."""

    of: Ints
    flops: Floats
    """NaN if unknown."""
    bytes: Floats
    kind: list[str]
    dtype: list[str | None]
    dims: list[str | None]


class CallTree:
    """Ops, ranges, Python frames and launch calls of a timeline as a forest."""

    def __init__(self, timeline: Timeline, ops: pa.Table | None) -> None:
        host = timeline.host
        self.timeline = timeline
        launches = np.zeros(len(host.start), bool)
        launches[timeline.work.launch[timeline.work.launch >= 0]] = True
        keep = np.flatnonzero(np.isin(host.kind, [CLASSES.index(c) for c in _TREE]) | launches)
        order, _, self.parent = nest(
            host.start[keep], np.maximum(host.end[keep], host.start[keep] + 1), host.thread[keep]
        )
        self.rows = keep[order]
        """Entry of timeline.host at each position."""
        self.position = np.full(len(host.start), -1, np.int64)
        self.position[self.rows] = np.arange(len(self.rows))
        self.kind, self.name = host.kind[self.rows], host.name[self.rows]
        self.is_op = self.kind == CLASSES.index("op")
        self._ops = _rows_of(timeline, ops)
        self._at = _match(self._ops, host.event_id[self.rows])

    def __len__(self) -> int:
        return len(self.rows)

    def nearest(self, wanted: Mask) -> Ints:
        """Return, for each position, itself if it is wanted, else the nearest wanted one above; -1 for none."""
        size = len(self.rows)
        up = np.append(np.where(wanted, np.arange(size), np.where(self.parent >= 0, self.parent, size)), size)
        while True:
            further = up[up]
            if np.array_equal(further, up):
                break
            up = further
        result: Ints = np.where(up[:-1] == size, -1, up[:-1])
        return result

    @cached_property
    def nearest_op(self) -> Ints:
        """The op at or around each position."""
        return self.nearest(self.is_op)

    def above(self, near: Ints) -> Ints:
        """Shift an answer of `nearest` to strictly above."""
        result: Ints = np.where(self.parent >= 0, _get(near, self.parent, -1), -1)
        return result

    def named(self, matches: Sequence[bool] | Mask, kind: str | None = None) -> Mask:
        """Return the positions whose name (an index into timeline.names) is marked."""
        result: Mask = np.asarray(matches, bool)[self.name]
        return result if kind is None else result & (self.kind == CLASSES.index(kind))

    def op_of(self, work: Work) -> Ints:
        """Return the position of the op that issued each piece of work, -1 for none."""
        near = self.nearest_op
        launch = _get(self.position, work.launch, -1)
        found = _get(near, launch, -1)
        missing = np.flatnonzero((found < 0) & (work.external_id >= 0))
        mine = np.flatnonzero(self.is_op)
        ids = self.timeline.host.external_id[self.rows[mine]]
        mine, ids = mine[ids >= 0], ids[ids >= 0]
        if len(missing) and len(mine):
            order = np.argsort(ids, kind="stable")
            at = np.minimum(np.searchsorted(ids[order], work.external_id[missing]), len(ids) - 1)
            same = ids[order][at] == work.external_id[missing]
            found[missing[same]] = mine[order[at[same]]]
        return found

    # -------------------------------------------------------------- columns of the ops table

    @cached_property
    def sequence(self) -> Ints:
        """Autograd sequence number; -1 for none."""
        return self._number("sequence_number")

    @cached_property
    def forward_thread(self) -> Ints:
        """Thread of the forward op, of a backward one; 0 of a forward one; -1 for none."""
        return self._number("fwd_thread_id")

    def text(self, column: str) -> tuple[Ints, list[str]]:
        """Return a text column of the ops table as codes by position (-1 for none) and values."""
        if self._ops is None or column not in self._ops.column_names:
            return np.full(len(self.rows), -1, np.int64), []
        codes, values = encode_text(self._ops[column])
        return _get(codes.astype(np.int64), self._at, -1), values

    def _number(self, column: str) -> Ints:
        if self._ops is None or column not in self._ops.column_names:
            return np.full(len(self.rows), -1, np.int64)
        return _get(ints(self._ops[column]), self._at, -1)

    @cached_property
    def costs(self) -> Costs:
        """Costs by distinct name, shapes, types and values."""
        names = self.timeline.names
        texts = [self.text(c) for c in ("input_dims", "input_types", "concrete_inputs")]
        rows = np.flatnonzero(self.is_op & (texts[0][0] >= 0) & self._costed)
        key = self.name[rows].astype(np.int64)
        for codes, values in texts:
            _, key = np.unique(key * (len(values) + 1) + codes[rows] + 1, return_inverse=True)
        _, first, index = np.unique(key, return_index=True, return_inverse=True)
        of = np.full(len(self.rows), -1, np.int64)
        of[rows] = index
        chosen = rows[first]
        dims = [values[c] if c >= 0 else None for codes, values in texts[:1] for c in codes[chosen].tolist()]
        table = pa.table(
            {
                "name": pa.array([names[i] for i in self.name[chosen].tolist()], pa.utf8()),
                **{
                    column: pa.array([values[c] if c >= 0 else None for c in codes[chosen].tolist()], pa.utf8())
                    for column, (codes, values) in zip(
                        ("input_dims", "input_types", "concrete_inputs"), texts, strict=True
                    )
                },
            }
        )
        found = op_costs(table) if len(table) else None
        if found is None:
            empty = np.empty(0, np.float64)
            return Costs(of, empty, empty, [], [], [])
        flops, moved = (np.array(found[c].to_pylist(), np.float64) for c in ("flops", "bytes"))
        return Costs(of, flops, moved, found["kind"].to_pylist(), found["dtype"].to_pylist(), dims)

    @property
    def _costed(self) -> Mask:
        """Ops whose cost anybody asks for: products, and those that issue work; without a device, all."""
        if not len(self.timeline.work.start):
            every: Mask = self.is_op
            return every
        names = self.timeline.names
        result: Mask = self.named([name in _PRODUCTS or name.rpartition(".")[0] in _PRODUCTS for name in names])
        issues = self.op_of(self.timeline.work)
        result[issues[issues >= 0]] = True
        return result

    @cached_property
    def products(self) -> Mask:
        """Ops whose matrix FLOPs count: known, and not known again of an op inside (`aten::linear` > `aten::addmm`)."""
        costs = self.costs
        counts = np.array([k in MATMUL for k in costs.kind], bool) & ~np.isnan(costs.flops)
        known: Mask = np.append(counts, False)[costs.of]
        inner = np.flatnonzero(known)
        outer = self.above(self.nearest(known))[inner]
        result = known.copy()
        result[outer[outer >= 0]] = False
        return result


def _rows_of(timeline: Timeline, ops: pa.Table | None) -> pa.Table | None:
    if ops is None or not len(ops):
        return None
    mine = ops.filter(pc.and_(pc.equal(ops["rank"], timeline.rank), pc.equal(ops["segment"], timeline.segment)))
    return mine.take(pc.sort_indices(mine["event_id"])) if len(mine) else None


def _match(ops: pa.Table | None, event_id: Ints) -> Ints:
    """Return the row of `ops` (sorted by event) of each event, -1 for none."""
    if ops is None:
        return np.full(len(event_id), -1, np.int64)
    known = ints(ops["event_id"])
    at = np.minimum(np.searchsorted(known, event_id), len(known) - 1)
    result: Ints = np.where(known[at] == event_id, at, -1)
    return result


def _get(values: Ints, index: Ints, missing: int) -> Ints:
    """Look up values; a negative index gives `missing`."""
    result: Ints = np.append(values, missing)[np.where(index >= 0, index, len(values))]
    return result
