r"""Split every collective into waiting for the others and moving data (definition 9).

    split_calls(calls, matched, clocks, pipeline)  -> Split       wait, transfer and unsplit of every call
    label_exposed(calls, split, exposed)           -> Pieces      every ns of C \ K with one label and one owner

Arrivals are compared on aligned clocks, lengths are those of the rank's own clock, so nothing is lost to drift. What
cannot be told is `unsplit`: calls without a partner, clocks that are not aligned, a skew below twice the clock error
that matters beside the duration, and what follows the last traced arrival where members have no trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from perfkit.analysis.call_columns import MESSAGES
from perfkit.analysis.classify import encode_text
from perfkit.analysis.clocks import Clocks
from perfkit.analysis.intervals import Ints, Spans, difference, first_owner, overlaps, union
from perfkit.analysis.matching import Matched
from perfkit.analysis.timeline import Mask, ints

CLASSES = ("transfer", "skew", "mixed", "inconclusive")
"""What an instance mostly is."""
LABELS = ("bubble", "transfer", "wait", "unsplit")
"""Labels of exposed ns; where several calls are live, the first of these that applies."""
BUBBLE, TRANSFER, WAIT, UNSPLIT = range(4)
MOSTLY = 2 / 3
"""A share of waiting above this is skew, below 1 minus this transfer."""
TOLERATED = 0.25
"""An error of 2u up to this share of the duration leaves a transfer a transfer."""
WAIT_FOR_ROOT = ("broadcast", "scatter")
ROOT_WAITS = ("reduce", "gather")


@dataclass
class Split:
    """Calls as arrays (row by row), and one entry per instance."""

    rank: Ints
    start: Ints
    """On the rank's clock."""
    end: Ints
    arrive: Ints
    """Aligned."""
    aligned_start: Ints
    wait: Ints
    transfer: Ints
    unsplit: Ints
    instance: Ints
    op: Ints
    op_names: list[str]
    root: Ints
    channel: Ints
    """What numbers the calls: a group, or sender and receiver."""
    pipeline: Mask
    """Receives of a pipeline: their exposed time is bubble."""
    # one per instance
    size: Ints
    """Members that the instance should have; -1 unknown."""
    present: Ints
    first: Ints
    arrival: Ints
    """A of definition 9."""
    last_end: Ints
    last_row: Ints
    """Row of the call that came last."""
    u: Ints
    """Clock error between the members; -1: not aligned."""
    kind: Ints
    """Index into CLASSES."""

    @property
    def skew(self) -> Ints:
        """Return the time from the first to the last arrival."""
        return self.arrive[self.last_row] - self.first

    @property
    def complete(self) -> Mask:
        """Say which instances have all their members."""
        result: Mask = self.present == self.size
        return result

    @property
    def telling(self) -> Mask:
        """Say of which instances the late members can be named: complete, aligned, with a skew of at least 2u."""
        seen = (self.u >= 0) & (self.skew >= 2 * self.u) & (self.kind != CLASSES.index("inconclusive"))
        result: Mask = self.complete & seen
        return result


class Pieces(NamedTuple):
    """Exposed communication, each stretch with the call that owns it, on the clock of its rank."""

    start: Ints
    end: Ints
    label: Ints
    """Index into LABELS."""
    call: Ints
    """Row of the owning call; -1 if no call covers it."""
    exposed: Ints
    """Row of EXPOSED that it is a part of."""


def split_calls(calls: pa.Table, matched: Matched, clocks: Clocks, pipeline: Mask) -> Split:
    """Work out who waited for whom, and for how long."""
    rank, start, end = (ints(calls[name]) for name in ("rank", "start_ns", "end_ns"))
    host = ints(calls["host_start_ns"])
    on_host = np.array(calls["device"].is_null()) & (host >= 0)
    aligned = clocks.align(rank, start)
    arrive = np.where(on_host, aligned - (start - host), aligned)  # a CPU rank arrives with its call (definition 3)
    op, names = encode_text(calls["op"])
    instance = matched.instance
    rows = np.flatnonzero(instance >= 0)
    rows = rows[np.lexsort((arrive[rows], instance[rows]))]
    nothing = np.zeros(len(rank), np.int64)
    split = Split(
        rank, start, end, arrive, aligned, nothing, nothing.copy(), end - start, instance, op.astype(np.int64), names,
        ints(calls["root"]), matched.channel, pipeline, *(np.empty(0, np.int64) for _ in range(8)),
    )  # fmt: skip
    if len(rows):
        _fill_instances(split, rows, matched, clocks)
        _fill_calls(split, rows)
    return split


def _fill_instances(split: Split, rows: Ints, matched: Matched, clocks: Clocks) -> None:
    """Describe the instances; `rows` are their calls by instance and arrival."""
    one = split.instance[rows]
    edges = np.flatnonzero(np.append(True, one[1:] != one[:-1]))
    number = np.diff(np.append(edges, len(rows)))
    sizes = np.array([-1 if s is None else s for s in matched.groups["size"].to_pylist()] + [-1], np.int64)
    message = _is(split, MESSAGES)[rows[edges]]
    split.size, split.present = np.where(message, 2, sizes[matched.gid[rows[edges]]]), number
    split.first, split.last_row = split.arrive[rows[edges]], rows[edges + number - 1]
    split.arrival = split.arrive[split.last_row]
    split.last_end = np.maximum.reduceat(split.aligned_start[rows] + (split.end - split.start)[rows], edges)
    clock = clocks.of_rank(split.rank[rows])
    error = np.array([-1 if h.u_ns is None else h.u_ns for h in clocks.hosts] + [-1], np.int64)[clock]
    low, high = (f.reduceat(clock, edges) for f in (np.minimum, np.maximum))
    known = np.minimum.reduceat(error, edges) >= 0
    apart = np.where(known, np.maximum.reduceat(error, edges) + clocks.spread_ns, -1)
    split.u = np.where(low == high, clocks.spread_ns, apart)
    root_there = np.maximum.reduceat((split.root[rows] == split.rank[rows]).astype(np.int64), edges) > 0
    for_root = _is(split, WAIT_FOR_ROOT)[rows[edges]]
    at_root = np.where(split.root[rows] == split.rank[rows], split.arrive[rows], np.iinfo(np.int64).min)
    split.arrival = np.where(for_root & root_there, np.maximum.reduceat(at_root, edges), split.arrival)
    rooted = for_root | _is(split, ROOT_WAITS)[rows[edges]]
    split.kind = np.where(rooted & ~root_there, CLASSES.index("inconclusive"), 0)


def _fill_calls(split: Split, rows: Ints) -> None:
    """Split the matched calls and classify their instances."""
    one = split.instance[rows]
    edges = np.flatnonzero(np.append(True, one[1:] != one[:-1]))
    length = (split.end - split.start)[rows]
    is_root = split.root[rows] == split.rank[rows]
    waits = ~(_is(split, WAIT_FOR_ROOT)[rows] & is_root) & ~(_is(split, ROOT_WAITS)[rows] & ~is_root)
    wait = np.where(waits, np.clip(split.arrival[one] - split.aligned_start[rows], 0, length), 0)
    longest = np.maximum.reduceat(length, edges)
    share = np.add.reduceat(wait, edges) / np.maximum(np.add.reduceat(length, edges), 1)
    kind = np.where(share > MOSTLY, 1, np.where(share < 1 - MOSTLY, 0, 2))
    unclear = (split.kind == CLASSES.index("inconclusive")) | (split.u < 0)
    unclear |= (split.skew < 2 * split.u) & (2 * split.u > TOLERATED * longest)
    unclear |= ~split.complete & (share <= MOSTLY)
    split.kind = np.where(unclear, CLASSES.index("inconclusive"), kind)
    # where members have no trace, what the traced ones show is waiting for sure and the rest is not known
    sure = (split.u >= 0) & (split.complete | (split.skew >= 2 * split.u))
    split.wait[rows] = np.where((unclear & split.complete)[one] | ~sure[one], 0, wait)
    split.transfer[rows] = np.where((unclear | ~split.complete)[one], 0, length - wait)
    split.unsplit[rows] = length - split.wait[rows] - split.transfer[rows]


def _is(split: Split, ops: tuple[str, ...]) -> Mask:
    result: Mask = np.array([*(name in ops for name in split.op_names), False])[split.op]
    return result


def label_exposed(calls: pa.Table, split: Split, exposed: pa.Table) -> Pieces:
    """Give every exposed ns one label and one owner."""
    start, end = split.start, split.end
    waited, moved = start + split.wait, start + split.wait + split.transfer
    receiving = np.where(split.pipeline, start, end), end
    return _cut(calls, split, exposed, (receiving, (waited, moved), (start, waited), (moved, end)))


def label_holds(calls: pa.Table, split: Split, exposed: pa.Table) -> Pieces:
    """Return in which call a rank was held up: labels 1 a collective, 2 a receive (they may be posted early)."""
    start, end = split.start, split.end
    waited, moved = start + split.wait, start + split.wait + split.transfer
    mine = ~split.pipeline
    moving, held = (np.where(mine, waited, moved), moved), (np.where(mine, start, waited), waited)
    pieces = _cut(calls, split, exposed, (moving, held, (np.where(mine, waited, start), waited), (end, end)))
    kept = np.isin(pieces.label, (1, 2))
    return Pieces(*(column[kept] for column in pieces))


def _cut(calls: pa.Table, split: Split, exposed: pa.Table, stretches: Sequence[tuple[Ints, Ints]]) -> Pieces:
    """Give exposed time to the first kind of stretch that covers it, and of that kind to the call that began first."""
    place, edge = _places(calls, exposed)
    base = _bases(place, edge, split, exposed)
    low, high = (ints(exposed[name]) + base[edge] for name in ("start_ns", "end_ns"))
    order = np.argsort(low, kind="stable")
    spots = left = Spans(low[order], high[order])
    found: list[tuple[Ints, Ints, Ints, Ints]] = []
    for label, (begin, stop) in enumerate(stretches):
        begin, stop = begin + base[place], stop + base[place]
        own_begin, own_stop = first_owner(begin, stop)
        row, _, piece_low, piece_high = overlaps(own_begin, own_stop, left.start, left.end)
        found.append((piece_low, piece_high, np.full(len(row), label, np.int64), row))
        left = difference(left, union(begin, stop))
    found.append((left.start, left.end, np.full(len(left.start), UNSPLIT, np.int64), np.full(len(left.start), -1)))
    begin, stop, label_of, row = (np.concatenate(part) for part in zip(*found, strict=True))
    at = np.searchsorted(spots.start, begin, side="right") - 1
    shift = base[edge][order[at]]
    return Pieces(begin - shift, stop - shift, label_of, row, order[at])


def _places(calls: pa.Table, exposed: pa.Table) -> tuple[Ints, Ints]:
    """Give each (rank, segment, device) of calls and of exposed pieces a number."""
    keys = [np.append(ints(calls[n]), ints(exposed[n])) for n in ("rank", "segment", "device")]
    code = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        code = code * (int(key.max(initial=0)) + 2) + key + 1
    _, code = np.unique(code, return_inverse=True)
    return code[: len(calls)], code[len(calls) :]


def _bases(place: Ints, edge: Ints, split: Split, exposed: pa.Table) -> Ints:
    """Return what to add to the times of each place so that places do not meet on one axis."""
    number = int(max(place.max(initial=-1), edge.max(initial=-1))) + 1
    low, high = np.full(number, np.iinfo(np.int64).max), np.full(number, np.iinfo(np.int64).min)
    for where, begin, stop in (
        (place, split.start, split.end),
        (edge, *(ints(exposed[n]) for n in ("start_ns", "end_ns"))),
    ):
        np.minimum.at(low, where, begin)
        np.maximum.at(high, where, stop)
    width = high - low + 2
    result: Ints = np.cumsum(width) - width - low
    return result
