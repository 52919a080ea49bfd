"""A pipeline job from its per-op trace, as a graph: passes, messages, reductions of every worker in every step.

    pipeline = Pipeline.build(table)                     (perfkit.sources.bytedance.OPS)
    pipeline.step_times([pipeline.measured, …])          mean step time for each set of durations

What waits for what follows the published description of these traces: passes of a worker run one after the other;
messages of one direction too; a pass waits for its message, a message for the pass that made it, and a receive is
asked for after the pass before; gradients are reduced behind the last pass, then clipped by all workers together, then
the optimizer runs. A member of an exchange goes on when the last has come and the data has moved.

Steps are played apart from each other: the trace samples them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pyarrow as pa

from perfkit.analysis.intervals import Ints
from perfkit.analysis.replay.graph import NEVER, Graph
from perfkit.analysis.timeline import Mask, ints
from perfkit.sources.bytedance import KINDS

CLOSE_NS = 50_000
"""A message asked for this much after the last pass of its direction began still belongs to it."""
WRONG_NS = 10_000_000
"""Clocks of workers may be off by this much; beyond it a negative time is a mistake and counts as 0."""
PASSES = ("forward-compute", "backward-compute")
BEHIND = (
    "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "grads-reduce-scatter", "separate-grads-all-reduce",
    "optimizer-clip-main-grad", "optimizer",
)  # fmt: skip
"""What follows the last pass, in order."""
_PEER = {("forward", "send"): 1, ("forward", "recv"): -1, ("backward", "send"): -1, ("backward", "recv"): 1}


@dataclass(frozen=True)
class Times:
    """Everything that takes time, one entry per op."""

    op: Ints
    transfer: Ints
    """Of an op that meets others: from the last arrival to its end."""
    delay: Ints
    """From when it could have started to its start: what the trace does not explain."""


@dataclass
class Ops:
    """Columns of the trace; rows by step, worker and start."""

    rank: Ints
    dp: Ints
    stage: Ints
    step: Ints
    kind: Ints
    seq: Ints
    chunk: Ints
    depth: Ints
    start: Ints
    end: Ints
    unit: Ints
    """Number of (step, worker)."""

    @classmethod
    def read(cls, table: pa.Table) -> Ops:
        """Sort the rows."""
        names = table["op"].to_pylist()
        number = {name: i for i, name in enumerate(KINDS)}
        kind = np.array([number[name] for name in names], np.int64)
        columns = [ints(table[name]) for name in ("rank", "dp", "stage", "step")]
        start = ints(table["start_ns"])
        rest = [ints(table[name]) for name in ("seq", "chunk", "depth")]
        order = np.lexsort((kind, rest[0], start, columns[0], columns[3]))
        rank, dp, stage, step = (column[order] for column in columns)
        edge = np.append(True, (rank[1:] != rank[:-1]) | (step[1:] != step[:-1]))
        end = (start + ints(table["dur_ns"]))[order]
        seq, chunk, depth = (column[order] for column in rest)
        return cls(rank, dp, stage, step, kind[order], seq, chunk, depth, start[order], end, np.cumsum(edge) - 1)

    def of(self, *names: str) -> Ints:
        """Return the rows of some kinds, in order."""
        return np.flatnonzero(np.isin(self.kind, [KINDS.index(name) for name in names]))


class _Edges:
    """Pairs of ops: the second waits for the end of the first."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Ints, Ints]] = []

    def add(self, source: Ints, target: Ints) -> None:
        good = (source >= 0) & (target >= 0)
        self.pairs.append((source[good], target[good]))

    def chain(self, group: Ints, rows: Ints) -> None:
        """Let rows that follow each other in one group wait for each other."""
        same = group[rows][1:] == group[rows][:-1]
        self.pairs.append((rows[:-1][same], rows[1:][same]))

    def all(self) -> tuple[Ints, Ints]:
        source, target = (np.concatenate(parts) for parts in zip(*self.pairs, strict=True))
        return source, target


@dataclass
class Pipeline:
    """A job that can be played."""

    ops: Ops
    meeting: Ints
    """Exchange of every op; -1 for none."""
    source: Ints
    target: Ints
    graph: Graph
    measured: Times

    @classmethod
    def build(cls, table: pa.Table) -> Pipeline:
        """Find out what depends on what."""
        ops = Ops.read(table)
        edges, meeting = _Edges(), np.full(len(ops.start), -1, np.int64)
        passes = ops.of(*PASSES)
        edges.chain(ops.unit, passes)
        pairs = _messages(ops, edges)
        _first_backward(ops, passes, edges)
        _reductions(ops, passes, edges)
        meeting = _meetings(ops, pairs)
        source, target = edges.all()
        num, count = len(ops.start), int(meeting.max(initial=-1)) + 1
        meets = np.flatnonzero(meeting >= 0)
        alone = np.flatnonzero(meeting < 0)
        arrival = 2 * num + meeting[meets]
        graph = Graph.build(
            2 * num + count,
            np.concatenate([2 * source + 1, 2 * alone, 2 * meets, arrival]),
            np.concatenate([2 * target, 2 * alone + 1, arrival, 2 * meets + 1]),
        )
        assert not len(graph.circular), "the schedule waits for itself"
        return cls(ops, meeting, source, target, graph, _measured(ops, meeting, source, target))

    @property
    def meets(self) -> Mask:
        """Ops that take part in an exchange."""
        return self.meeting >= 0

    def lags(self, times: Times) -> Ints:
        """Return the lag of every edge."""
        meets, alone = np.flatnonzero(self.meets), np.flatnonzero(~self.meets)
        nothing = np.zeros(len(meets), np.int64)
        return np.concatenate([times.delay[self.target], times.op[alone], nothing, times.transfer[meets]])

    def play(self, questions: Sequence[Times]) -> Ints:
        """Return start (even rows) and end (odd rows) of every op, one column per question."""
        lags = np.stack([self.lags(times) for times in questions], axis=1)
        base = np.full((self.graph.num_points, len(questions)), NEVER)
        led = np.zeros(len(self.ops.start), bool)
        led[self.target] = True
        first = np.flatnonzero(~led)
        base[2 * first] = np.stack([times.delay[first] for times in questions], axis=1)
        return self.graph.solve(lags, base)[: 2 * len(self.ops.start)]

    def step_times(self, questions: Sequence[Times]) -> Ints:
        """Return the time of every step (row) for every question."""
        points = self.play(questions)
        steps, code = np.unique(self.ops.step, return_inverse=True)
        low, high = np.full((len(steps), len(questions)), -NEVER), np.full((len(steps), len(questions)), NEVER)
        np.minimum.at(low, code, points[0::2])
        np.maximum.at(high, code, points[1::2])
        return high - low

    def without_delays(self) -> Times:
        """Return the measured durations without the delays that nothing explains."""
        return replace(self.measured, delay=np.zeros_like(self.measured.delay))

    def ideal(self) -> Times:
        """Let every pass take the mean of its kind over all workers and steps, every exchange the median."""
        kind, own = self.ops.kind, self.without_delays()
        op, transfer = own.op.copy(), own.transfer.copy()
        for one in np.unique(kind).tolist():
            mine = kind == one
            usual = np.mean if KINDS[one] in (*PASSES, "optimizer", "gc") else np.median
            op[mine], transfer[mine] = round(float(usual(own.op[mine]))), round(float(usual(own.transfer[mine])))
        return Times(op, transfer, own.delay)

    def mixed(self, base: Times, other: Times, rows: Mask) -> Times:
        """Return `base` with the durations of some ops taken from `other`."""
        return replace(
            base, op=np.where(rows, other.op, base.op), transfer=np.where(rows, other.transfer, base.transfer)
        )


def _measured(ops: Ops, meeting: Ints, source: Ints, target: Ints) -> Times:
    meets = np.flatnonzero(meeting >= 0)
    arrival = np.full(int(meeting.max(initial=-1)) + 1, NEVER)
    np.maximum.at(arrival, meeting[meets], ops.start[meets])
    transfer = ops.end - ops.start
    transfer[meets] = ops.end[meets] - arrival[meeting[meets]]
    transfer = np.where(transfer <= -WRONG_NS, 0, transfer)
    ready = np.full(len(ops.start), NEVER)
    np.maximum.at(ready, target, ops.end[source])
    first = np.full(int(ops.step.max()) + 1, -NEVER)
    np.minimum.at(first, ops.step, ops.start)
    delay = ops.start - np.where(ready > NEVER, ready, first[ops.step])
    return Times(ops.end - ops.start, transfer, np.where(delay <= -WRONG_NS, 0, delay))


def _nth(group: Ints, rows: Ints) -> Ints:
    """Return the position of each row in its group; rows of a group stand together."""
    edge = np.append(True, group[rows][1:] != group[rows][:-1]) if len(rows) else rows > 0
    first = np.flatnonzero(edge)
    result: Ints = np.arange(len(rows)) - first[np.cumsum(edge) - 1] if len(rows) else rows
    return result


def _lookup(ops: Ops, rows: Ints) -> tuple[Ints, Ints]:
    """Return first position and number of the rows of each unit; rows are in the order of units."""
    number = np.bincount(ops.unit[rows], minlength=int(ops.unit.max()) + 1)
    return np.cumsum(number) - number, number


def _messages(ops: Ops, edges: _Edges) -> list[tuple[Ints, Ints]]:
    """Join messages with passes; return (key of the exchange, op) of real messages."""
    stages, chunks = int(ops.stage.max()) + 1, int(ops.chunk.max()) + 1
    found = []
    for direction, way in product(("forward", "backward"), ("recv", "send")):
        rows, passes = ops.of(f"{direction}-{way}"), ops.of(f"{direction}-compute")
        edges.chain(ops.unit, rows)
        first, number = _lookup(ops, passes)
        last_start, first_end = np.full(len(number), NEVER), np.full(len(number), -NEVER)
        np.maximum.at(last_start, ops.unit[passes], ops.start[passes])
        np.minimum.at(first_end, ops.unit[passes], ops.end[passes])
        unit = ops.unit[rows]
        if way == "recv":  # messages that the profiler recorded although nobody sent them
            rows = rows[ops.start[rows] <= last_start[unit] + CLOSE_NS]
        else:
            rows = rows[ops.end[rows] >= first_end[unit] - CLOSE_NS]
        unit, nth = ops.unit[rows], _nth(ops.unit, rows)
        if way == "recv":  # the first stage may lack the receive that it has no use for
            nth = nth + (np.bincount(unit, minlength=len(number)) + 1 == number)[unit]
        inside = nth < number[unit]
        rows, unit, nth = rows[inside], unit[inside], nth[inside]
        match = passes[first[unit] + nth]
        peer = ops.depth[match] + _PEER[direction, way]
        if way == "send":
            edges.add(match, rows)
        else:
            edges.add(rows, match)
            edges.add(np.where(nth > 0, passes[np.maximum(first[unit] + nth - 1, 0)], -1), rows)
        real = rows[(peer >= 0) & (peer < stages * chunks)]
        sender = ops.stage[real] if way == "send" else (ops.stage[real] + _PEER[direction, way]) % stages
        key = np.stack(
            [ops.step[real], ops.dp[real], np.full(len(real), direction == "forward"), sender, _nth(ops.unit, real)]
        )
        found.append((key, real))
    return found


def _first_backward(ops: Ops, passes: Ints, edges: _Edges) -> None:
    """Let the first message of the backward direction be asked for two passes before its pass."""
    first, number = _lookup(ops, passes)
    backward = ops.kind[passes] == KINDS.index("backward-compute")
    nth = np.where(backward, _nth(ops.unit, passes), -NEVER)
    at = np.full(len(number), -NEVER)
    np.minimum.at(at, ops.unit[passes], nth)
    for name in ("backward-recv", "backward-send"):
        rows = ops.of(name)
        rows = rows[_nth(ops.unit, rows) == 0]
        unit = ops.unit[rows]
        good = (at[unit] >= 2) & (at[unit] < number[unit])
        edges.add(np.where(good, passes[np.where(good, first[unit] + at[unit] - 2, 0)], -1), rows)


def _reductions(ops: Ops, passes: Ints, edges: _Edges) -> None:
    """Join gathers and reductions with the passes, and what follows the last pass in order."""
    gather, scatter = ops.of("params-all-gather"), ops.of("grads-reduce-scatter")
    edges.chain(ops.unit, np.sort(np.append(gather, scatter)))
    cell = ops.unit * (int(ops.chunk.max()) + 2) + ops.chunk + 1
    forward, backward = ops.of("forward-compute"), ops.of("backward-compute")
    edges.add(*_join(cell, gather, forward, last=True))
    overlapped = bool(len(ops.of("separate-grads-all-reduce")))
    if overlapped:
        latest = backward[np.lexsort((ops.end[backward], cell[backward]))]
        target, source = _join(cell, scatter, latest, last=False, last_of_others=True)
        edges.add(source, target)
    last = passes[np.lexsort((ops.end[passes], ops.unit[passes]))]
    last = last[np.append(ops.unit[last][1:] != ops.unit[last][:-1], True)]
    last_pass = np.full(int(ops.unit.max()) + 1, -1, np.int64)
    last_pass[ops.unit[last]] = last
    collect = ops.of("gc")
    edges.add(last_pass[ops.unit[collect]], collect)
    before = last_pass.copy()
    before[ops.unit[collect]] = collect
    kinds = [name for name in BEHIND if not (overlapped and name == "grads-reduce-scatter")]
    behind = ops.of(*kinds)
    place = np.array([kinds.index(name) if name in kinds else -1 for name in KINDS])[ops.kind[behind]]
    behind = behind[np.lexsort((ops.seq[behind], place, ops.unit[behind]))]
    edges.chain(ops.unit, behind)
    head = behind[np.append(True, ops.unit[behind][1:] != ops.unit[behind][:-1])] if len(behind) else behind
    edges.add(before[ops.unit[head]], head)
    if overlapped:
        final = np.full(len(last_pass), -1, np.int64)
        final[ops.unit[scatter]] = scatter
        edges.add(final[ops.unit[head]], head)


def _join(cell: Ints, rows: Ints, others: Ints, *, last: bool, last_of_others: bool = False) -> tuple[Ints, Ints]:
    """Pair, in every cell, the first or last of some rows with the first or last of others."""
    mine, theirs = (np.full(int(cell.max(initial=0)) + 1, -1, np.int64) for _ in range(2))
    rows = rows if last else rows[::-1]
    others = others if last_of_others else others[::-1]
    mine[cell[rows]], theirs[cell[others]] = rows, others
    both = np.flatnonzero((mine >= 0) & (theirs >= 0))
    return mine[both], theirs[both]


def _meetings(ops: Ops, messages: list[tuple[Ints, Ints]]) -> Ints:
    """Give exchanges numbers: messages, reductions over the replicas, clipping over all workers."""
    meeting, count = np.full(len(ops.start), -1, np.int64), 0
    keys = [(np.concatenate([key for key, _ in messages], axis=1), np.concatenate([rows for _, rows in messages]))]
    for names, columns in (
        (("params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"), ("step", "stage", "kind", "seq")),
        (("embedding-grads-all-reduce",), ("step", "dp")),
        (("optimizer-clip-main-grad",), ("step",)),
    ):
        rows = ops.of(*names)
        keys.append((np.stack([getattr(ops, column)[rows] for column in columns]), rows))
    for key, rows in keys:
        if len(rows):
            _, number = np.unique(key, axis=1, return_inverse=True)
            meeting[rows] = number.ravel() + count
            count += int(number.max()) + 1
    return meeting
