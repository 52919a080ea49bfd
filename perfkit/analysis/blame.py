"""Charge exposed waiting to those who came late (definition 10).

    assign_blame(split, pieces, holds, exposed, …) -> Blame

While some members of a collective have arrived, the waiters' ns are charged equally to those still missing. If a late
rank had itself been waiting in other groups since it last met this one (longer than the first to arrive had), that
part of its charge passes on to whoever came last there, and so on. Every ns stays one ns: the sum of exposed waiting is
the sum of the charges plus what nobody can be named for, as integers.

What fixing a rank would bring is not the sum of the waits: without its delay the others would still wait for the
second-latest. `recoverable_ns` is per step what the typical other rank would no longer wait.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from perfkit.analysis.blame_flow import carried_waits, pass_on
from perfkit.analysis.collectives import BUBBLE, WAIT, WAIT_FOR_ROOT, Pieces, Split
from perfkit.analysis.intervals import Ints, first_owner
from perfkit.analysis.timeline import ints

TYPICAL = 0.75
"""Of the other ranks: a step is done when the slow part of the job is, not half of it."""
RANKS = pa.schema(
    [
        ("rank", pa.int32()), ("wait_caused_ns", pa.int64()), ("exposed_wait_ns", pa.int64()),
        ("recoverable_ns", pa.int64()), ("steps_first", pa.int64()), ("steps", pa.int64()),
        ("persistence", pa.float64()),
    ]
)  # fmt: skip
"""`steps_first`: steps in which nobody caused more waiting; `recoverable_ns` is wall time over all steps."""
CELLS = pa.schema(
    [("rank", pa.int32()), ("step", pa.int64()), ("wait_caused_ns", pa.int64()), ("exposed_wait_ns", pa.int64())]
)
"""Rank × step: a heat map."""


@dataclass
class Blame:
    """Who the others waited for."""

    ranks: pa.Table
    cells: pa.Table
    culprit: Ints
    """Of every instance, the rank that its waiting is in the end due to; -1 if nobody can be named."""
    exposed_wait_ns: int
    unattributed_ns: int

    @property
    def caused_ns(self) -> int:
        """Return the sum of all charges."""
        return int(np.sum(self.ranks["wait_caused_ns"].to_numpy(), dtype=np.int64))


@dataclass
class Nodes:
    """Members of instances that can be late, by instance and arrival."""

    row: Ints
    """Row of the call."""
    instance: Ints
    edges: Ints
    """First node of each instance that has nodes."""
    size: Ints
    """How many nodes that instance has."""

    @property
    def owner(self) -> Ints:
        """Return, for each node, the number of its run."""
        return np.repeat(np.arange(len(self.edges)), self.size)


def assign_blame(
    split: Split, pieces: Pieces, holds: Pieces, exposed: pa.Table, call_step: Ints, ranks: list[int]
) -> Blame:
    """Charge the exposed waiting of all windows; `call_step` is the step of every call, -1 for none."""
    window_step = ints(exposed["step"])
    inside = np.array(exposed["window_start_ns"].is_valid(), bool)
    waiting = np.flatnonzero((pieces.label == WAIT) & inside[pieces.exposed])
    length = pieces.end - pieces.start
    total = int(length[waiting].sum())
    nodes = _nodes(split)
    named = waiting[np.append(split.telling, False)[split.instance[pieces.call[waiting]]]]
    charge, second = _charges(split, pieces, named, nodes)
    kept, culprit = pass_on(split, nodes, charge, carried_waits(split, holds))
    caused = _sums(split, nodes, kept, call_step)
    gain = _gain(split, pieces, culprit, second, window_step, call_step, len(ranks))
    cells = _cells(caused, _waited(split, pieces, waiting, window_step))
    return Blame(_rank_table(ranks, cells, caused, gain), cells, culprit, total, total - int(kept.sum()))


def _nodes(split: Split) -> Nodes:
    """Return who can be late in each instance: all members, or only the root where the others wait for it alone."""
    rows = np.flatnonzero(split.instance >= 0)
    for_root = np.array([*(name in WAIT_FOR_ROOT for name in split.op_names), False])[split.op[rows]]
    rows = rows[~for_root | (split.root[rows] == split.rank[rows])]
    rows = rows[np.lexsort((rows, split.arrive[rows], split.instance[rows]))]
    instance = split.instance[rows]
    edges = np.flatnonzero(np.append(True, instance[1:] != instance[:-1])) if len(rows) else rows
    return Nodes(rows, instance, edges, np.diff(np.append(edges, len(rows))))


def _charges(split: Split, pieces: Pieces, named: Ints, nodes: Nodes) -> tuple[Ints, Ints]:
    """Return the charge of every node, and when the second-latest member of every instance arrived."""
    call = pieces.call[named]
    one = split.instance[call]
    shift = split.aligned_start[call] - split.start[call]
    origin = split.first
    low, high = (times[named] + shift - origin[one] for times in (pieces.start, pieces.end))
    at = split.arrive[nodes.row] - origin[nodes.instance]
    covered = covered_until(one, low, high, nodes.instance, at)
    owner = nodes.owner
    position = np.arange(len(at)) - nodes.edges[owner]
    before = np.where(position > 0, np.append(0, covered[:-1]), 0)
    missing = nodes.size[owner] - position
    share, rest = np.divmod(covered - before, missing)
    charge = _running(share, nodes)
    last = nodes.edges + nodes.size - 1
    charge[last] += np.add.reduceat(rest, nodes.edges) if len(rest) else 0
    # waits that reach beyond the last arrival (gloo's work may start late) stay with the last
    total = np.bincount(one, high - low, len(split.first)).astype(np.int64)
    charge[last] += total[nodes.instance[last]] - covered[last]
    second = np.full(len(split.first), np.iinfo(np.int64).max)
    before = split.arrive[nodes.row[np.maximum(last - 1, 0)]]
    second[nodes.instance[last]] = np.where(nodes.size > 1, before, split.first[nodes.instance[last]])
    return charge, second


def _running(values: Ints, nodes: Nodes) -> Ints:
    """Return running sums inside each instance."""
    if not len(values):
        return values
    total = np.cumsum(values)
    begin = np.append(0, total)[nodes.edges]
    result: Ints = total - np.repeat(begin, nodes.size)
    return result


def covered_until(key: Ints, low: Ints, high: Ints, at_key: Ints, at: Ints) -> Ints:
    """Return how much of the intervals of a key lies before a moment; intervals of one key may overlap."""
    return _reach(key, low, at_key, at) - _reach(key, high, at_key, at)


def _reach(key: Ints, value: Ints, at_key: Ints, at: Ints) -> Ints:
    """Return the sum of max(0, at - value) over the values of the same key."""
    order = np.lexsort((value, key))
    key, value = key[order], value[order]
    sums = np.append(0, np.cumsum(value))
    first = np.searchsorted(key, at_key, side="left")
    both = np.lexsort((np.append(np.zeros(len(value), np.int64), np.ones(len(at), np.int64)),
                       np.append(value, at), np.append(key, at_key)))  # fmt: skip
    query = both >= len(value)
    seen = np.cumsum(~query)
    until = np.empty(len(at), np.int64)
    until[both[query] - len(value)] = seen[query]
    number = until - first
    result: Ints = number * at - (sums[until] - sums[first])
    return np.where(number > 0, result, 0)


# ------------------------------------------------------------------ tables


def _sums(split: Split, nodes: Nodes, kept: Ints, call_step: Ints) -> dict[tuple[int, int], int]:
    """Return the charges by rank and step of the late call."""
    return _by_pair(split.rank[nodes.row], call_step[nodes.row], kept)


def _waited(split: Split, pieces: Pieces, waiting: Ints, window_step: Ints) -> dict[tuple[int, int], int]:
    """Return the exposed waiting by rank and step of the window."""
    length = (pieces.end - pieces.start)[waiting]
    return _by_pair(split.rank[pieces.call[waiting]], window_step[pieces.exposed[waiting]], length)


def _by_pair(a: Ints, b: Ints, value: Ints) -> dict[tuple[int, int], int]:
    span = int(b.max(initial=0)) + 2
    keys, index = np.unique(a * span + b + 1, return_inverse=True)
    sums = np.zeros(len(keys), np.int64)
    np.add.at(sums, index, value)
    return {(int(k // span), int(k % span) - 1): int(v) for k, v in zip(keys, sums, strict=True) if v}


def _cells(caused: dict[tuple[int, int], int], waited: dict[tuple[int, int], int]) -> pa.Table:
    keys = sorted(caused.keys() | waited.keys())
    return pa.table(
        {
            "rank": [rank for rank, _ in keys],
            "step": pa.array([None if step < 0 else step for _, step in keys], pa.int64()),
            "wait_caused_ns": [caused.get(key, 0) for key in keys],
            "exposed_wait_ns": [waited.get(key, 0) for key in keys],
        }
    ).cast(CELLS)


def _gain(
    split: Split, pieces: Pieces, culprit: Ints, second: Ints, exposed_step: Ints, call_step: Ints, num_ranks: int
) -> dict[tuple[int, int], int]:
    """Return per culprit and step how much sooner the others would be done if it came with the second-latest.

    A rank gains what it waited beyond that arrival, hidden or not: the transfers that follow start sooner. It cannot
    gain more exposed communication than it has beyond the late rank's own, which waits for nobody.
    """
    rows = np.flatnonzero((split.instance >= 0) & ~split.pipeline)
    one = split.instance[rows]
    rows = rows[(culprit[one] >= 0) & (culprit[one] != split.rank[rows])]
    one = split.instance[rows]
    from_ns = np.maximum(second[one], split.aligned_start[rows])
    until = np.minimum(split.arrival[one], split.aligned_start[rows] + split.wait[rows])
    until = np.maximum(until, from_ns)
    origin, last = (int(from_ns.min()), int(until.max())) if len(rows) else (0, 0)
    base = split.rank[rows] * (last - origin + 1) - origin
    low, high = first_owner(from_ns + base, until + base)  # two waits at a time are one delay
    gained = _by_triple(culprit[one], split.rank[rows], call_step[rows], high - low)
    owned = np.flatnonzero((pieces.call >= 0) & (pieces.label != BUBBLE))
    length = (pieces.end - pieces.start)[owned]
    limit = _by_pair(split.rank[pieces.call[owned]], exposed_step[pieces.exposed[owned]], length)
    found: dict[tuple[int, int], list[int]] = {}
    for (who, by, step), ns in gained.items():
        more = limit.get((by, step), 0) - limit.get((who, step), 0)
        found.setdefault((who, step), []).append(min(ns, max(more, 0)))
    rest = max(num_ranks - 1, 1)
    return {key: int(np.quantile(some + [0] * (rest - len(some)), TYPICAL)) for key, some in found.items()}


def _by_triple(a: Ints, b: Ints, c: Ints, value: Ints) -> dict[tuple[int, int, int], int]:
    span = int(b.max(initial=0)) + 1
    pairs = _by_pair(a * span + b, c, value)
    return {(*divmod(pair, span), third): ns for (pair, third), ns in pairs.items()}


def _rank_table(
    ranks: list[int], cells: pa.Table, caused: dict[tuple[int, int], int], gain: dict[tuple[int, int], int]
) -> pa.Table:
    """Sum the cells of each rank, and count the steps in which it caused most."""
    total: dict[int, int] = dict.fromkeys(ranks, 0)
    best: dict[int, tuple[int, int]] = {}
    for (rank, step), ns in caused.items():
        total[rank] = total.get(rank, 0) + ns
        if step >= 0 and ns > best.get(step, (0, -1))[0]:
            best[step] = ns, rank
    steps = len({step for step in cells["step"].to_pylist() if step is not None})
    first = [sum(1 for _, who in best.values() if who == rank) for rank in total]
    waited: dict[int, int] = {}
    for rank, ns in zip(cells["rank"].to_pylist(), cells["exposed_wait_ns"].to_pylist(), strict=True):
        waited[rank] = waited.get(rank, 0) + ns
    saved: dict[int, int] = {}
    for (rank, _), ns in gain.items():
        saved[rank] = saved.get(rank, 0) + ns
    return pa.table(
        {
            "rank": list(total),
            "wait_caused_ns": list(total.values()),
            "exposed_wait_ns": [waited.get(rank, 0) for rank in total],
            "recoverable_ns": [saved.get(rank, 0) for rank in total],
            "steps_first": first,
            "steps": [steps] * len(total),
            "persistence": pa.array([n / steps if steps else None for n in first], pa.float64()),
        }
    ).cast(RANKS)
