"""Project host ranges onto the device: which work was launched inside a range, and when did it run.

    work = DeviceWork()
    work.add(...)            all device work of one process
    work.see_calls(...)      all API calls of that process; only those that launched work are kept
    work.project(...)        ranges -> one row per range and device

A call belongs to a range if it starts inside it on the same thread ([start, end): a call that starts
as the range ends is outside). Device work is kept in the order of its launches per thread, so that
the work of a range is one slice found by two binary searches, however ranges nest. The union of a
slice is not decomposable, so slices are unfolded, in pieces of bounded size and against a budget:
ranges that all cover everything would otherwise cost ranges × launches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

NO_DEVICE = -1
MAX_PAIRS = 1 << 22
"""(range, work) pairs unfolded at a time."""
PAIRS_PER_LAUNCH = 256
"""Budget: the average depth of nesting that is still projected."""
MIN_BUDGET = 1 << 26


class Projected(NamedTuple):
    """One row per range and device that has work in it."""

    range_index: Ints
    device: Ints
    start: Ints
    end: Ints
    num_events: Ints
    busy: Ints

    @classmethod
    def empty(cls) -> Projected:
        """Return no rows."""
        return cls(*(np.empty(0, np.int64) for _ in cls._fields))


class DeviceWork:
    """Device work of one process and the calls that launched it."""

    def __init__(self) -> None:
        self._added: list[tuple[Ints, Ints, Ints, Ints]] = []
        self._ids: Ints | None = None
        self._indexed = False
        self.num_unlaunched = 0
        self.over_budget = 0
        """Ranges that were not projected because the budget was used up."""

    def add(self, correlation: Ints, start: Ints, end: Ints, device: Ints) -> None:
        """Add work; all rows need a correlation and valid times."""
        assert self._ids is None
        self._added.append((correlation, start, end, device))

    def _seal(self) -> Ints:
        if self._ids is None:
            empty = np.empty(0, np.int64)
            joined = [np.concatenate(column) for column in zip(*self._added, strict=True)] or [empty] * 4
            self._correlation, self._start, self._end, self._device = joined
            self._added = []
            self._ids = np.unique(self._correlation)
            self._call_thread = np.zeros(len(self._ids), np.int64)
            self._call_start = np.full(len(self._ids), np.iinfo(np.int64).max)
        return self._ids

    def see_calls(self, correlation: Ints, thread: Ints, start: Ints) -> None:
        """Note the calls that launched work; of several with one correlation the earliest counts."""
        ids = self._seal()
        if not len(ids) or not len(correlation):
            return
        at = np.minimum(np.searchsorted(ids, correlation), len(ids) - 1)
        hit = np.flatnonzero(ids[at] == correlation)
        hit = hit[np.argsort(-start[hit], kind="stable")]  # the earliest is written last
        slot = at[hit]
        earlier = start[hit] < self._call_start[slot]
        self._call_start[slot[earlier]] = start[hit][earlier]
        self._call_thread[slot[earlier]] = thread[hit][earlier]

    def _index(self) -> None:
        if self._indexed:
            return
        self._indexed = True
        ids = self._seal()
        call = np.searchsorted(ids, self._correlation)
        launched = self._call_start[call] < np.iinfo(np.int64).max
        self.num_unlaunched = int(len(launched) - launched.sum())
        call = call[launched]
        order = np.lexsort((self._call_start[call], self._call_thread[call]))
        call = call[order]
        self._start, self._end, self._device = (
            column[launched][order] for column in (self._start, self._end, self._device)
        )
        # (thread, start) as one integer: a thread's number and the rank of the start among all starts, which
        # cannot overflow whatever the times are
        self._threads = np.unique(self._call_thread[call])
        self._starts = np.unique(self._call_start[call])
        self._keys = self._key(np.searchsorted(self._threads, self._call_thread[call]), self._call_start[call])
        self._budget = max(MIN_BUDGET, PAIRS_PER_LAUNCH * len(call))

    def _key(self, thread_number: Ints, time: Ints) -> Ints:
        return thread_number * (len(self._starts) + 1) + np.searchsorted(self._starts, time)

    def project(self, thread: Ints, start: Ints, end: Ints) -> Projected:
        """Return the device work launched inside each range, per range and device."""
        self._index()
        if not len(self._keys) or not len(thread):
            return Projected.empty()
        number = np.minimum(np.searchsorted(self._threads, thread), len(self._threads) - 1)
        first = np.searchsorted(self._keys, self._key(number, start))
        last = np.searchsorted(self._keys, self._key(number, end))
        count = np.where(self._threads[number] == thread, np.maximum(last - first, 0), 0)
        chosen = np.flatnonzero(count)
        spent = np.cumsum(count[chosen])
        affordable = int(np.searchsorted(spent, self._budget, side="right"))
        self.over_budget += len(chosen) - affordable
        chosen = chosen[:affordable]
        self._budget -= int(spent[affordable - 1]) if affordable else 0
        pieces = [self._unfold(part, first[part], count[part]) for part in _pieces(chosen, count[chosen])]
        return Projected(*map(np.concatenate, zip(*pieces, strict=True))) if pieces else Projected.empty()

    def _unfold(self, ranges: npt.NDArray[np.intp], first: Ints, count: Ints) -> Projected:
        owner = np.repeat(np.arange(len(ranges)), count)
        work = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
        order = np.lexsort((self._start[work], self._device[work], owner))
        owner, work = owner[order], work[order]
        start, end, device = self._start[work], self._end[work], self._device[work]
        new = np.empty(len(owner), np.bool_)
        new[0] = True
        new[1:] = (owner[1:] != owner[:-1]) | (device[1:] != device[:-1])
        heads = np.flatnonzero(new)
        tails = np.append(heads[1:], len(owner)) - 1
        reach = _running_max(end, np.cumsum(new) - 1)
        covered_to = np.empty_like(start)  # how far the group's earlier work reaches
        covered_to[1:] = reach[:-1]
        covered_to[heads] = start[heads]
        busy = np.add.reduceat(np.maximum(end - np.maximum(start, covered_to), 0), heads)
        return Projected(
            ranges[owner[heads]].astype(np.int64), device[heads], start[heads], reach[tails], tails - heads + 1, busy
        )


def _running_max(values: Ints, group: Ints) -> Ints:
    """Return the running maximum inside each group (groups ascend)."""
    ordered = np.unique(values)
    lifted = group * len(ordered) + np.searchsorted(ordered, values)  # ranks, so that lifting cannot overflow
    return ordered[np.maximum.accumulate(lifted) - group * len(ordered)]


def _pieces(ranges: npt.NDArray[np.intp], count: Ints) -> Iterator[npt.NDArray[np.intp]]:
    """Cut ranges into runs whose pairs fit MAX_PAIRS (a single larger range is a run of its own)."""
    cut = np.cumsum(count) // MAX_PAIRS
    for piece in np.split(ranges, np.flatnonzero(np.diff(cut)) + 1):
        if len(piece):
            yield piece
