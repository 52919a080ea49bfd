"""Arithmetic on sets of half-open intervals [start, end) of int64.

    union(start, end) -> Spans          any intervals in; sorted, disjoint, non-touching spans out
    intersect, difference, join, clip   Spans in, Spans out
    overlaps(start, end, ...)           every pair that overlaps, with the overlap
    covered(spans, lo, hi)              length of the set inside each of many windows
    gaps(spans, lo, hi)                 what one window leaves uncovered
    sweep(start, end)                   how many intervals are open, as a step function
    innermost(start, end, group)        which interval owns each stretch when intervals nest
    first_owner(start, end)             which interval owns each stretch when the first to start keeps it

Everything is a sort and a few scans; no function loops over intervals, but `nest` does over those that are
too tangled to be call stacks. Empty and reversed intervals are dropped: they have no length. Lengths are
exact as long as their sum stays below 2^63.
"""

from __future__ import annotations

from itertools import count
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
_LATEST = np.iinfo(np.int64).max
MAX_PASSES = 16
"""Passes over all intervals in which `nest` cuts overhanging ends before it goes one by one."""


class Spans(NamedTuple):
    """A set of instants: sorted, disjoint, non-touching intervals. Only the functions here make one."""

    start: Ints
    end: Ints

    @property
    def total(self) -> int:
        """Length of the set."""
        return int((self.end - self.start).sum())


class Pieces(NamedTuple):
    """Disjoint stretches in time order (within a group), each with the row that owns it."""

    start: Ints
    end: Ints
    owner: Ints


def union(start: npt.ArrayLike, end: npt.ArrayLike) -> Spans:
    """Return the set that the intervals cover together."""
    start, end = np.asarray(start, np.int64), np.asarray(end, np.int64)
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if not len(start):
        return Spans(np.empty(0, np.int64), np.empty(0, np.int64))
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate(([True], start[1:] > reach[:-1])))
    last = np.append(first[1:], len(start)) - 1
    return Spans(start[first], reach[last])


def join(*sets: Spans) -> Spans:
    """Return the set of instants that are in any of the sets."""
    return union(np.concatenate([s.start for s in sets]), np.concatenate([s.end for s in sets]))


def overlaps(
    start: npt.ArrayLike, end: npt.ArrayLike, other_start: Ints, other_end: Ints
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return (row, other, start, end) of every overlap of an interval with one of sorted, disjoint others.

    The others may touch; the intervals may be anything. Rows come in order, and their overlaps in time.
    """
    start, end = np.asarray(start, np.int64), np.asarray(end, np.int64)
    first = np.searchsorted(other_end, start, side="right")
    last = np.searchsorted(other_start, end, side="left")
    count = np.where(end > start, np.maximum(last - first, 0), 0)
    row = np.repeat(np.arange(len(count)), count)
    other = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    low, high = np.maximum(start[row], other_start[other]), np.minimum(end[row], other_end[other])
    real = high > low  # one of the others may be empty
    return row[real], other[real], low[real], high[real]


def intersect(a: Spans, b: Spans) -> Spans:
    """Return the set of instants that are in both."""
    _, _, start, end = overlaps(a.start, a.end, b.start, b.end)
    return Spans(start, end)


def difference(a: Spans, b: Spans) -> Spans:
    """Return the set of instants that are in `a` and not in `b`."""
    if not len(a.start) or not len(b.start):
        return a
    low, high = min(a.start[0], b.start[0]) - 1, max(a.end[-1], b.end[-1]) + 1
    outside = Spans(np.append(low, b.end), np.append(b.start, high))
    return intersect(a, outside)


def clip(spans: Spans, lo: int, hi: int) -> Spans:
    """Return the part of the set that lies in [lo, hi)."""
    first, last = np.searchsorted(spans.end, lo, side="right"), np.searchsorted(spans.start, hi, side="left")
    if hi <= lo or last <= first:
        return Spans(spans.start[:0], spans.end[:0])
    return Spans(np.maximum(spans.start[first:last], lo), np.minimum(spans.end[first:last], hi))


def covered(spans: Spans, lo: npt.ArrayLike, hi: npt.ArrayLike) -> Ints:
    """Return the length of the set inside each window [lo, hi); windows may overlap and be unsorted."""
    lo, hi = np.asarray(lo, np.int64), np.asarray(hi, np.int64)
    before = np.concatenate(([0], np.cumsum(spans.end - spans.start)))

    def until(t: Ints) -> Ints:
        n = np.searchsorted(spans.start, t, side="left")
        unfinished = np.maximum(spans.end[n - 1] - t, 0) if len(spans.end) else np.zeros_like(t)
        result: Ints = before[n] - np.where(n > 0, unfinished, 0)
        return result

    result: Ints = np.where(hi > lo, until(hi) - until(lo), 0)
    return result


def gaps(spans: Spans, lo: int, hi: int) -> Spans:
    """Return the instants of [lo, hi) that the set leaves uncovered."""
    return difference(union([lo], [hi]), spans)


def sweep(start: npt.ArrayLike, end: npt.ArrayLike) -> tuple[Ints, Ints]:
    """Return (times, open): from times[i] to times[i + 1] exactly open[i] intervals are open."""
    start, end = np.asarray(start, np.int64), np.asarray(end, np.int64)
    keep = end > start
    times = np.concatenate((start[keep], end[keep]))
    change = np.repeat(np.array([1, -1], np.int64), np.count_nonzero(keep))
    order = np.argsort(times, kind="stable")
    times, level = times[order], np.cumsum(change[order])
    last = np.append(times[1:] != times[:-1], True) if len(times) else np.empty(0, bool)
    return times[last], level[last]


def nest(start: Ints, end: Ints, group: Ints) -> tuple[Ints, Ints, Ints]:
    """Return (order, end, parent) of intervals that should nest inside each group.

    `order` sorts the rows by group, start and falling end; `end` and `parent` follow that order, and a
    parent is a position in it (-1 for none). An interval that outlives the one it started in is cut at
    its parent's end: clocks and rounding make real call stacks overhang a little.
    """
    order, base, _, end, parent = _nest(start, end, group)
    return order, end - base, parent


def _nest(start: Ints, end: Ints, group: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Return (order, base, start, end, parent); `base` is added to start and end, so that groups do not meet."""
    order = np.lexsort((-end, start, group))
    start, end, group = start[order], end[order], group[order]
    n = len(order)
    base = np.zeros(n, np.int64)
    if n:
        edges = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
        low, reach = np.minimum.reduceat(start, edges), np.maximum.reduceat(np.maximum(end, start), edges)
        base = np.repeat(np.cumsum(reach - low + 1) - (reach - low + 1) - low, np.diff(np.append(edges, n)))
    start, end = start + base, end + base
    uncut = end
    for attempt in count():
        parent = _parents(start, end)
        overhang = (parent >= 0) & (end[parent] > start) & (end > end[parent])
        if not overhang.any():
            return order, base, start, end, parent
        if attempt < MAX_PASSES:
            end = np.where(overhang, end[parent], end)
        else:
            cluster = np.cumsum(np.append(True, start[1:] >= np.maximum.accumulate(uncut)[:-1]))
            tangled = np.isin(cluster, cluster[overhang])
            end[tangled] = _cut_one_by_one(start[tangled].tolist(), uncut[tangled].tolist())
    raise AssertionError("unreachable")


def _parents(start: Ints, end: Ints) -> Ints:
    """Return the nearest earlier interval that is one level up, for intervals in order; right if they nest."""
    n = len(start)
    depth = np.arange(n, dtype=np.int64) - np.searchsorted(np.sort(end), start, side="right")
    shallow = bool(n) and int(depth.max()) < 2**15  # 16-bit integers sort in linear time
    ranked = np.argsort(depth.astype(np.int16) if shallow else depth, kind="stable")
    key = depth[ranked] * (n + 1) + ranked
    above = np.searchsorted(key, key - (n + 1)) - 1  # in rising order, which is several times faster
    result = np.empty(n, np.int64)
    result[ranked] = np.where(depth[ranked] > 0, ranked[np.maximum(above, 0)], -1)
    return result


def _cut_one_by_one(start: list[int], end: list[int]) -> list[int]:
    """Cut overhanging ends with a stack. Chains of overlaps (no call stack gives them) would need a pass per link."""
    stack: list[int] = []
    for i, begin in enumerate(start):
        while stack and stack[-1] <= begin:
            stack.pop()
        if stack:
            end[i] = min(end[i], stack[-1])
        stack.append(end[i])
    return end


def innermost(start: Ints, end: Ints, group: Ints) -> tuple[Pieces, Ints]:
    """Return the stretches that each interval owns itself, not through one nested in it, and all parents.

    Owners are rows of the input; `parents[row]` is the row that encloses it, -1 for none. Pieces come
    sorted by group, then by time.
    """
    keep = np.flatnonzero(end > start)
    order, base, start_at, end_at, parent = _nest(start[keep], end[keep], group[keep])
    rows = keep[order]
    parents = np.full(len(start), -1, np.int64)
    if not len(rows):
        return Pieces(start[:0], start[:0], rows), parents
    parents[rows] = np.where(parent >= 0, rows[parent], -1)
    # the owner changes at a start to that interval, and at an end to its parent, if that goes on
    after = np.flatnonzero((parent >= 0) & (end_at[parent] > end_at))
    begin = np.append(start_at, end_at[after])
    owner = np.append(np.arange(len(rows)), parent[after])
    # it stays until the next edge; the owner's own end is one of them
    ends, starts = np.sort(end_at), np.append(start_at, _LATEST)
    until = ends[np.searchsorted(ends, begin, side="right")]
    until = np.minimum(until, np.append(starts[1:], starts[np.searchsorted(start_at, end_at[after])]))
    real = np.flatnonzero(until > begin)
    real = real[np.argsort(begin[real], kind="stable")]
    begin, until, owner = begin[real], until[real], owner[real]
    return Pieces(begin - base[owner], until - base[owner], rows[owner]), parents


def first_owner(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return the stretch of each interval that no earlier one covers; together they are the union."""
    order = np.lexsort((-end, start))
    reach = np.maximum.accumulate(end[order]) if len(order) else end
    own_start = start.copy()
    own_start[order[1:]] = np.maximum(start[order[1:]], reach[:-1])
    return own_start, np.maximum(end, own_start)
