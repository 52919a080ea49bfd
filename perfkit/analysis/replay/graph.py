"""When everything happens if each point in time waits for others: longest paths, for many questions at once.

    graph = Graph.build(num_points, source, target)
    times = graph.solve(lag, base)          time of every point: max over edges into it of time[source] + lag

A column of `lag` (edges × questions) and of `base` (points × questions, the earliest time of a point by itself) is one
question, and a sweep answers all of them. Points are swept level by level, a level being those whose sources are all
done, so the loop in Python is as long as the longest chain of points and does not grow with the number of ranks. A
recording gives few points per event: runs of work on one stream have been folded into two edges before
(perfkit.analysis.replay.model).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfkit.analysis.intervals import Ints

NEVER = np.int64(-(2**60))
"""Earlier than any time; a lag of it takes an edge out."""


@dataclass(frozen=True)
class Graph:
    """Points and edges in the order of a sweep."""

    num_points: int
    source: Ints
    """Of the edges as they were given."""
    target: Ints
    order: Ints
    """Edges by level of their target, and by target."""
    edges: Ints
    """Bounds of the levels in `order`."""
    heads: Ints
    """Position in `order` of the first edge into each point that has any."""
    levels: Ints
    """Bounds of the levels in `heads`."""
    circular: Ints
    """Points that wait for themselves, and those behind them; they keep their own time."""

    @classmethod
    def build(cls, num_points: int, source: Ints, target: Ints) -> Graph:
        """Order the points; those on a circle, and behind it, are left out and named in `circular`."""
        level = _levels(num_points, source, target)
        circular = np.flatnonzero(level < 0)
        order = np.lexsort((target, level[target]))
        order = order[level[target[order]] > 0]
        ends, depth = target[order], level[target[order]]
        heads = np.flatnonzero(np.append(True, ends[1:] != ends[:-1])) if len(order) else order
        bounds = np.arange(1, int(level.max(initial=0)) + 2)
        return cls(
            num_points, source, target, order, np.searchsorted(depth, bounds), heads,
            np.searchsorted(depth[heads] if len(heads) else heads, bounds), circular,
        )  # fmt: skip

    def solve(self, lag: Ints, base: Ints) -> Ints:
        """Return the time of every point; lag and base have one row per edge or point, one column per question."""
        times = base.copy()
        source, lag, points = self.source[self.order], lag[self.order], self.target[self.order][self.heads]
        for low, high, first, last in zip(
            self.edges[:-1].tolist(), self.edges[1:].tolist(), self.levels[:-1].tolist(), self.levels[1:].tolist(),
            strict=True,
        ):  # fmt: skip
            reached = times[source[low:high]]
            reached += lag[low:high]
            if last - first < high - low:
                reached = np.maximum.reduceat(reached, self.heads[first:last] - low, axis=0)
            at = points[first:last]
            times[at] = np.maximum(times[at], reached)
        return times

    def binding(self, lag: Ints, times: Ints) -> Ints:
        """Return for every point the edge that decided its time (one question), -1 for none."""
        found = np.full(self.num_points, -1, np.int64)
        exact = np.flatnonzero((times[self.source] + lag == times[self.target]) & (times[self.source] > NEVER // 2))
        exact = exact[np.argsort(times[self.source[exact]], kind="stable")]  # of several the source that came last
        found[self.target[exact]] = exact
        return found


def _levels(num_points: int, source: Ints, target: Ints) -> Ints:
    """Return how many edges lead to each point at most; -1 on and behind circles."""
    order = np.argsort(source, kind="stable")
    to = target[order]
    first = np.searchsorted(source[order], np.arange(num_points + 1))
    count = np.diff(first)
    waiting = np.bincount(target, minlength=num_points)
    level = np.full(num_points, -1, np.int64)
    front, depth = np.flatnonzero(waiting == 0), 0
    while len(front):
        level[front] = depth
        depth += 1
        number = count[front]
        total = int(number.sum())
        if not total:
            break
        reached = to[np.repeat(first[front] - (np.cumsum(number) - number), number) + np.arange(total)]
        np.subtract.at(waiting, reached, 1)
        front = np.unique(reached[waiting[reached] == 0])
    return level
