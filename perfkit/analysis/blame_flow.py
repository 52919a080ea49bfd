"""Pass a charge on when the late rank had itself been held up elsewhere.

    carried_waits(split, holds)              -> Carriers     when each rank was held up, and in which instance
    pass_on(split, nodes, charge, carriers)  -> charges that stay with each node, culprit of each instance

A node is a member of an instance. It passes on the part of its lateness that it had spent waiting since its last
call in the same channel, beyond what the first to arrive had spent so, to the last member of the instance that held
it up longest. Time decreases along the way, so the flow ends; amounts are integers and none is lost.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from perfkit.analysis.call_columns import MESSAGES
from perfkit.analysis.collectives import Pieces, Split
from perfkit.analysis.intervals import Ints
from perfkit.analysis.timeline import Mask


class Carriers(NamedTuple):
    """Stretches in which ranks waited, on aligned clocks; disjoint for each rank, by rank and time."""

    rank: Ints
    start: Ints
    end: Ints
    instance: Ints


class NodesLike(Protocol):
    """What is used of perfkit.analysis.blame.Nodes."""

    row: Ints
    instance: Ints
    edges: Ints
    size: Ints


def carried_waits(split: Split, holds: Pieces) -> Carriers:
    """Return when the ranks were held up, in instances of which the late members can be named."""
    one = split.instance[holds.call]
    keep = (one >= 0) & np.append(split.telling, False)[one]
    call, start, end, one = holds.call[keep], holds.start[keep], holds.end[keep], one[keep]
    shift = split.aligned_start[call] - split.start[call]
    order = np.lexsort((start + shift, split.rank[call]))
    return Carriers(split.rank[call][order], (start + shift)[order], (end + shift)[order], one[order])


def pass_on(split: Split, nodes: NodesLike, charge: Ints, carriers: Carriers) -> tuple[Ints, Ints]:
    """Move the charges along; return what stays, and the rank that each instance's waiting is due to (-1 unknown)."""
    last = nodes.edges + nodes.size - 1
    last_node = np.full(len(split.first), -1, np.int64)
    last_node[nodes.instance[last]] = last
    held, late, through = _held_up(split, nodes, carriers)
    target = np.where(through >= 0, np.append(last_node, -1)[through], -1)
    arrive = split.arrive[nodes.row]
    target = np.where((target >= 0) & (arrive[target] < arrive), target, -1)  # back in time only, so that it ends
    message = _messages(split, nodes)  # if a sender was mostly held up itself, all of its lateness passes on
    held = np.where(target < 0, 0, np.where(message & (2 * held > late), late, held))
    kept, inflow = np.zeros_like(charge), charge
    while (active := np.flatnonzero(inflow)).size:
        amount = inflow[active]
        passed = _scaled(amount, held[active], late[active])
        kept[active] += amount - passed
        inflow = np.zeros_like(charge)
        np.add.at(inflow, target[active][passed > 0], passed[passed > 0])
    culprit = np.full(len(split.first), -1, np.int64)
    known = np.flatnonzero(split.telling & (last_node >= 0))
    end = _follow(np.where(2 * held > late, target, -1))
    culprit[known] = split.rank[nodes.row[end[last_node[known]]]]
    return kept, culprit


def _messages(split: Split, nodes: NodesLike) -> Mask:
    result: Mask = np.array([*(name in MESSAGES for name in split.op_names), False])[split.op[nodes.row]]
    return result


def _scaled(amount: Ints, held: Ints, late: Ints) -> Ints:
    """Return amount · held / late, rounded down; in floats only where integers would overflow."""
    late = np.maximum(late, 1)
    exact = amount // late * held + amount % late * held // late
    result: Ints = np.minimum(np.where(held >= late, amount, exact), amount)
    return result


def _follow(target: Ints) -> Ints:
    """Return where the pointers end; -1 ends one."""
    here = np.where(target >= 0, target, np.arange(len(target)))
    while True:
        further = here[here]
        if np.array_equal(further, here):
            return here
        here = further


def _held_up(split: Split, nodes: NodesLike, carriers: Carriers) -> tuple[Ints, Ints, Ints]:
    """Return how long each node was held up beyond the first arrival, how late it was, and in which instance."""
    since = _last_met(split)
    first_row = np.full(len(split.first), -1, np.int64)
    matched = np.flatnonzero(split.instance >= 0)
    order = matched[np.lexsort((-split.arrive[matched], split.instance[matched]))]
    first_row[split.instance[order]] = order  # the earliest is written last
    row, lead = nodes.row, first_row[nodes.instance]
    late = split.arrive[row] - split.arrive[lead]
    wait = _Waited(carriers)
    mine = wait.between(split.rank[row], since[row], split.arrive[row])
    theirs = wait.between(split.rank[lead], since[lead], split.arrive[lead])
    theirs = np.where(_messages(split, nodes), 0, theirs)  # a receiver with nothing to do is no measure
    held = np.clip(mine - theirs, 0, late)
    through = np.full(len(row), -1, np.int64)
    some = np.flatnonzero(held > 0)
    through[some] = wait.longest(split.rank[row[some]], since[row[some]], split.arrive[row[some]])
    return held, late, through


def _last_met(split: Split) -> Ints:
    """Return when each call's rank last left its channel, on aligned clocks; the beginning of time if never."""
    end = split.aligned_start + (split.end - split.start)
    order = np.lexsort((split.arrive, split.channel, split.rank))
    rank, channel = split.rank[order], split.channel[order]
    same = np.append(False, (rank[1:] == rank[:-1]) & (channel[1:] == channel[:-1])) if len(order) else order > 0
    since = np.full(len(order), np.iinfo(np.int64).min)
    since[order] = np.where(same, np.append(0, end[order][:-1]), since)
    return since


class _Waited:
    """How long ranks waited between two moments."""

    def __init__(self, carriers: Carriers) -> None:
        self.carriers = carriers
        self.low = int(carriers.start.min(initial=np.iinfo(np.int64).max))
        self.span = int(carriers.end.max(initial=self.low)) - self.low + 2 if len(carriers.start) else 1
        self.start, self.end = (self._key(carriers.rank, t) for t in (carriers.start, carriers.end))
        self.sums = np.append(0, np.cumsum(carriers.end - carriers.start))

    def _key(self, rank: Ints, time: Ints) -> Ints:
        result: Ints = rank * self.span + np.clip(np.maximum(time, self.low) - self.low, 0, self.span - 1)
        return result

    def between(self, rank: Ints, low: Ints, high: Ints) -> Ints:
        """Return the time waited in [low, high)."""
        return self._until(rank, high) - self._until(rank, low)

    def _until(self, rank: Ints, time: Ints) -> Ints:
        if not len(self.start):
            return np.zeros(len(rank), np.int64)
        key = self._key(rank, time)
        at = np.searchsorted(self.start, key, side="left")
        before = np.maximum(at - 1, 0)
        running = (at > 0) & (self.carriers.rank[before] == rank)
        over = np.where(running, np.maximum(self.end[before] - key, 0), 0)
        result: Ints = self.sums[at] - over
        return result

    def longest(self, rank: Ints, low: Ints, high: Ints) -> Ints:
        """Return the instance of the longest stretch that ends in [low, high), -1 for none."""
        if not len(self.start):
            return np.full(len(rank), -1, np.int64)
        first = np.searchsorted(self.end, self._key(rank, low), side="right")
        stop = np.searchsorted(self.end, self._key(rank, high), side="right")
        length = self.carriers.end - self.carriers.start
        best, table, width = np.full(len(rank), -1, np.int64), np.arange(len(length)), 1
        number = np.maximum(stop - first, 0)
        levels = [table]
        while 2 * width <= len(length):
            a, b = table[:-width], table[width:]
            table = np.where(length[a] >= length[b], a, b)
            levels.append(table)
            width *= 2
        for level, chosen in enumerate(levels):
            here = np.flatnonzero((number >> level) == 1)
            a, b = chosen[first[here]], chosen[stop[here] - (1 << level)]
            best[here] = np.where(length[a] >= length[b], a, b)
        result: Ints = np.append(self.carriers.instance, -1)[best]
        return result
