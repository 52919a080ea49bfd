"""Which task waits for which on another stream.

    find_deps(tasks) -> Deps        (task that must have ended, task that starts then)

Profilers record streams and launches, rarely the events by which streams wait for each other. These are found by what
the recording allows and what it contradicts:

1. a task of another stream waits for what the main stream had been given before it (libraries do so to read results);
2. a task that stood ready and starts just after another stream's task ended was waiting for it. The same place of the
   program in other steps and on other ranks waits as well, also where it did not have to stand still;
3. communication of one kind is awaited after the same number of further calls of its kind;
4. communication whose consumer is still unknown is awaited by the optimizer, else by the next step.

An assumption of a kind that the recording contradicts, because a task started before the other had ended, is dropped
for all of its kind. What is left over keeps its measured start as a lag.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfkit.analysis.classify import FAMILIES
from perfkit.analysis.intervals import Ints
from perfkit.analysis.replay.graph import NEVER
from perfkit.analysis.replay.tasks import COMM, COMPUTE, Tasks
from perfkit.analysis.timeline import Mask

CLOSE_NS = 10_000
"""A task that starts within this after another one's end may have waited for it."""
EARLY_NS = 1_000
"""A start this much before the end of what it waits for still agrees with waiting."""
CONTRADICTED = 0.02
"""Share of contradictions above which a kind of dependency is dropped."""


class Deps(NamedTuple):
    """Edges between tasks."""

    source: Ints
    target: Ints


def find_deps(tasks: Tasks) -> Deps:
    """Find the dependencies between streams."""
    order = LaunchOrder(tasks)
    found = [_inputs(tasks, order)]
    found.append(_repeated(tasks, order, _seen(tasks)))
    found.append(_by_distance(tasks, order, found[-1]))
    known = np.concatenate([one.source for one in found[1:]])
    found.append(_at_the_end(tasks, order, known))
    source, target = (np.concatenate(parts) for parts in zip(*found, strict=True))
    pairs = np.unique(source * len(tasks.start) + target)
    return Deps(pairs // max(len(tasks.start), 1), pairs % max(len(tasks.start), 1))


class LaunchOrder:
    """Tasks in the order of their launches, by lane and by stream."""

    def __init__(self, tasks: Tasks) -> None:
        asked = np.where(tasks.asked > NEVER, tasks.asked, tasks.start)
        low = int(asked.min(initial=0)) if len(asked) else 0
        self.span = int(asked.max(initial=low)) - low + 2
        self.when = asked - low
        self.launched = tasks.asked > NEVER
        self.main = self._sorted(tasks, tasks.main & self.launched)
        self.lane = tasks.lane

    def _sorted(self, tasks: Tasks, mask: Mask) -> tuple[Ints, Ints]:
        rows = np.flatnonzero(mask)
        key = tasks.lane[rows] * self.span + self.when[rows]
        order = np.lexsort((tasks.start[rows], key))
        return rows[order], key[order]

    def last_main(self, rows: Ints) -> Ints:
        """Return the last task of the main stream launched before each row; -1 for none."""
        return self._find(rows, self.when[rows], -1)

    def next_main(self, rows: Ints, when: Ints) -> Ints:
        """Return the first task of the main stream launched after a moment in the lane of each row; -1 for none."""
        return self._find(rows, when, 0)

    def _find(self, rows: Ints, when: Ints, step: int) -> Ints:
        main, key = self.main
        at = np.searchsorted(key, self.lane[rows] * self.span + when, side="left" if step else "right") + step
        inside = (at >= 0) & (at < len(main))
        found = np.where(inside, np.append(main, -1)[np.where(inside, at, len(main))], -1)
        result: Ints = np.where((found >= 0) & (self.lane[found] == self.lane[rows]), found, -1)
        return result


def _kept(tasks: Tasks, source: Ints, target: Ints, kind: Ints) -> Deps:
    """Keep the edges of kinds that the recording does not contradict."""
    real = (source >= 0) & (target >= 0) & (source != target)
    source, target, kind = source[real], target[real], kind[real]
    wrong = tasks.end[source] > tasks.start[target] + EARLY_NS
    _, code = np.unique(kind, return_inverse=True)
    share = np.bincount(code, wrong) / np.maximum(np.bincount(code), 1) if len(code) else np.zeros(0)
    good = ~wrong & (share[code] <= CONTRADICTED)
    return Deps(source[good], target[good])


def _inputs(tasks: Tasks, order: LaunchOrder) -> Deps:
    rows = np.flatnonzero(~tasks.main & order.launched)
    before = order.last_main(rows)
    same = tasks.kind[rows] * 4096 + tasks.ordinal[rows]
    return _kept(tasks, before, rows, same)


def _seen(tasks: Tasks) -> Deps:
    """Return the pairs of which the second stood ready and started just after the first had ended."""
    previous = tasks.previous
    free = np.where(previous >= 0, tasks.end[previous], NEVER)
    low = int(tasks.start.min(initial=0))
    span = int(tasks.end.max(initial=low)) - low + 2
    by_end = np.argsort(tasks.lane * span + tasks.end - low, kind="stable")
    ends = (tasks.lane * span + tasks.end - low)[by_end]
    at = np.searchsorted(ends, tasks.lane * span + tasks.start - low, side="right") - 1
    last = np.where(at >= 0, by_end[np.maximum(at, 0)], -1)
    target = np.arange(len(last))
    ready = np.maximum(free, tasks.asked)
    good = (last >= 0) & (tasks.lane[last] == tasks.lane) & (tasks.stream[last] != tasks.stream)
    good &= (tasks.end[last] > ready + EARLY_NS) & (tasks.start - tasks.end[last] <= CLOSE_NS)
    good &= tasks.asked[last] <= tasks.asked
    return Deps(last[good], target[good])


def _repeated(tasks: Tasks, order: LaunchOrder, seen: Deps) -> Deps:
    """Carry the pairs over to the same places of other steps and ranks that run the same program."""
    place = Places(tasks, order)
    sign, back = np.append(place.sign, 0)[place.cell[seen.target]], place.cell[seen.target] - place.cell[seen.source]
    usable = (place.cell[seen.target] >= 0) & (place.cell[seen.source] >= 0) & (back >= 0) & (back <= 1)
    keys = np.stack([sign, place.position[seen.target], back, place.position[seen.source]], axis=1)[usable]
    keys = np.unique(keys, axis=0) if len(keys) else keys.reshape(0, 4)
    found = [Deps(seen.source[~usable], seen.target[~usable])]
    for one in np.unique(keys[:, 0]).tolist():
        mine, cells = keys[keys[:, 0] == one], np.flatnonzero(place.sign == one)
        target = place.task(cells[:, None], mine[:, 1])
        source = place.task(cells[:, None] - mine[:, 2], mine[:, 3])
        kind = np.broadcast_to(np.arange(len(mine)), target.shape)
        same = (source >= 0) & (target >= 0)
        same &= tasks.lane[source] == tasks.lane[target]
        found.append(_kept(tasks, np.where(same, source, -1).ravel(), target.ravel(), kind.ravel()))
    return Deps(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


class Places:
    """Where a task stands in its step's program. A cell is one step of one lane, in order."""

    def __init__(self, tasks: Tasks, order: LaunchOrder) -> None:
        rows = np.flatnonzero((tasks.step >= 0) & order.launched)
        rows = rows[np.lexsort((tasks.start[rows], order.when[rows], tasks.step[rows], tasks.lane[rows]))]
        lane, step = tasks.lane[rows], tasks.step[rows]
        edge = np.append(True, (lane[1:] != lane[:-1]) | (step[1:] != step[:-1])) if len(rows) else rows > 0
        self.first = np.append(np.flatnonzero(edge), len(rows))
        self.rows = rows
        self.cell, self.position = np.full(len(tasks.start), -1, np.int64), np.full(len(tasks.start), -1, np.int64)
        if len(rows):
            cell = np.cumsum(edge) - 1
            self.cell[rows] = cell
            self.position[rows] = np.arange(len(rows)) - self.first[cell]
            number = (tasks.name[rows].astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
            odd = self.position[rows].astype(np.uint64) * np.uint64(2) + np.uint64(1)
            mixed = (number ^ (number >> np.uint64(29))) * odd
            self.sign = np.add.reduceat(mixed, self.first[:-1]).astype(np.int64)
        else:
            self.sign = np.empty(0, np.int64)

    def task(self, cell: Ints, position: Ints) -> Ints:
        """Return the task at a place; -1 if the cell does not reach so far."""
        inside = (cell >= 0) & (cell < len(self.sign))
        cell = np.where(inside, cell, 0)
        at = self.first[cell] + position
        inside = inside & (at < self.first[cell + 1])
        result: Ints = np.where(inside, np.append(self.rows, -1)[np.where(inside, at, len(self.rows))], -1)
        return result


def _by_distance(tasks: Tasks, order: LaunchOrder, known: Deps) -> Deps:
    """Let communication be awaited after as many further calls of its stream as others of its kind are."""
    comm = np.flatnonzero((tasks.kind == COMM) & ~tasks.main & order.launched)
    if not len(comm) or not len(known.source):
        return Deps(comm[:0], comm[:0])
    comm = comm[np.lexsort((order.when[comm], tasks.stream[comm]))]
    place = np.full(len(tasks.start), -1, np.int64)
    place[comm] = np.arange(len(comm))
    mine = (place[known.source] >= 0) & tasks.main[known.target]
    source, target = known.source[mine], known.target[mine]
    span = order.span
    key = tasks.stream[comm] * span + order.when[comm]
    last = np.searchsorted(key, tasks.stream[source] * span + order.when[target], side="left") - 1
    distance = last - place[source]
    kind = tasks.name * 4096 + tasks.ordinal
    usual = {
        one: int(np.bincount(distance[kind[source] == one]).argmax())
        for one in np.unique(kind[source[distance >= 0]]).tolist()
    }
    open_ = comm[~np.isin(comm, known.source)]
    open_ = open_[np.isin(kind[open_], list(usual))]
    if not len(open_):
        return Deps(comm[:0], comm[:0])
    marker = place[open_] + np.array([usual[one] for one in kind[open_].tolist()], np.int64)
    inside = marker < len(comm)
    marker = comm[np.where(inside, marker, 0)]
    inside &= tasks.stream[marker] == tasks.stream[open_]
    after = order.next_main(open_, np.where(inside, order.when[marker], 0))
    return _kept(tasks, open_, np.where(inside, after, -1), kind[open_])


def _at_the_end(tasks: Tasks, order: LaunchOrder, known: Ints) -> Deps:
    """Let what nobody waits for be awaited by the optimizer of its step, else by the next step."""
    comm = np.flatnonzero((tasks.kind == COMM) & ~tasks.main & order.launched & (tasks.step >= 0))
    comm = comm[~np.isin(comm, known)]
    if not len(comm):
        return Deps(comm, comm)
    kind = tasks.name * 4096 + tasks.ordinal
    found = []
    update = tasks.main & (tasks.family == FAMILIES.index("optimizer"))
    begins = tasks.main & (tasks.kind == COMPUTE)
    for candidates, delta in ((update, 0), (begins, 1)):
        rows = np.flatnonzero(candidates & order.launched & (tasks.step >= 0))
        rows = rows[np.lexsort((order.when[rows], tasks.step[rows], tasks.lane[rows]))]
        key = tasks.lane[rows] * 2**40 + tasks.step[rows]
        heads = rows[np.append(True, key[1:] != key[:-1])] if len(rows) else rows
        key = tasks.lane[heads] * 2**40 + tasks.step[heads]
        wanted = tasks.lane[comm] * 2**40 + tasks.step[comm] + delta
        at = np.minimum(np.searchsorted(key, wanted), max(len(key) - 1, 0))
        there = (key[at] == wanted) if len(key) else np.zeros(len(comm), bool)
        target = np.where(there, np.append(heads, -1)[np.where(there, at, len(heads))], -1)
        target = np.where((target >= 0) & (order.when[target] > order.when[comm]), target, -1)
        found.append(_kept(tasks, comm, target, kind[comm]))
        comm = comm[~np.isin(comm, found[-1].source)]
    return Deps(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
