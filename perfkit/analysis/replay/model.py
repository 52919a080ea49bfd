"""Points and edges of a recorded job, and their lags for any set of durations.

    model = Model.build(tasks, exchanges)
    model.play(questions)       -> Played        when every run began and ended, by question (a set of lags)

A run is a stretch of one stream that nothing else touches: only its first task waits for another stream, only its
last is waited for, and one segment of the host launched all of it. Its end is the later of two sums, from the start of
its first task and from the beginning of the host's segment, so a run is two points and two edges however many kernels
it has. Every edge's lag is split into what was measured beyond the usual (the edge that decided a start keeps all of
it) and so the measured durations give back the measured times to the ns.

A collective's members start; when those that a member waits for have come (definition 9) the transfer begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from perfkit.analysis.classify import CLASSES
from perfkit.analysis.intervals import Ints
from perfkit.analysis.replay.deps import Deps, find_deps
from perfkit.analysis.replay.exchange import Exchanges
from perfkit.analysis.replay.graph import NEVER, Graph
from perfkit.analysis.replay.host import HostSide, host_side
from perfkit.analysis.replay.tasks import Tasks
from perfkit.analysis.timeline import Mask

Number = TypeVar("Number", int, Ints)
UNEXPLAINED_NS = 20_000
"""A task that starts so much later than all that it is known to wait for has a reason that the trace does not show."""


EDGES = ("stream", "launch", "run", "launched_run", "dep", "arrive", "transfer", "host", "drain", "side")
"""Kinds of edges: after the task before; launched by the host; through a run; from the host through the end of a run;
after a task of another stream; a member comes; all have come; the host comes to a blocking call; what it waits for
has happened; a side thread begins."""


BEHIND_NS = 100_000
"""How far a device's time stamps may be behind its host's."""


@dataclass
class Lags:
    """Everything that takes time, one entry per task, call, dependency or member."""

    task: Ints
    """Duration of every task; of communication that is shared with other ranks the transfer counts instead."""
    gap: Ints
    """From the end of the task before on the stream."""
    latency: Ints
    """From the start of the launching call."""
    hop: Ints
    """int64[calls, 3], by record.HOPS."""
    call: Ints
    """Length of every host call that does not block."""
    after: Ints
    """What every blocking call takes once it may go on."""
    dep: Ints
    """From the end of what a task waits for; NEVER takes the dependency out."""
    transfer: Ints
    """Of every task with an exchange: from the arrival of those it waits for to its end."""


@dataclass
class Played:
    """Times of one question after the other (columns)."""

    points: Ints
    lags: list[Ints]
    """Lag of every edge, by question."""


@dataclass
class Model:
    """A job that can be played."""

    tasks: Tasks
    host: HostSide
    deps: Deps
    exchanges: Exchanges
    run: Ints
    """Of every task."""
    first: Ints
    last: Ints
    """Tasks of every run."""
    segment: Ints
    """Host segment of every run; -1 if its launches are not in the trace."""
    graph: Graph
    usual: Lags
    """Usual lags instead of measured ones, to see what the graph explains by itself."""
    own: Lags
    unexplained: Ints
    """Of every task: lag beyond all that is known."""

    @classmethod
    def build(cls, tasks: Tasks, exchanges: Exchanges) -> Model:
        """Find out what depends on what.

        Exchanges that wait for each other in a circle were matched wrongly: they are taken out, and keep their length.
        """
        host, deps = host_side(tasks), find_deps(tasks)
        model = cls._linked(tasks, exchanges, host, deps)
        while len(model.graph.circular) and exchanges.num:
            wrong = model.graph.circular - model._arrival(0)
            wrong = wrong[wrong >= 0]
            exchanges = exchanges.without(tasks, wrong if len(wrong) else np.arange(exchanges.num))
            model = cls._linked(tasks, exchanges, host, deps)
        if len(model.graph.circular):
            model = cls._linked(tasks, exchanges, host, Deps(deps.source[:0], deps.target[:0]))
        assert not len(model.graph.circular), "a stream or the host waits for itself"
        return model

    @classmethod
    def _linked(cls, tasks: Tasks, exchanges: Exchanges, host: HostSide, deps: Deps) -> Model:
        own, usual, unexplained = _lags(tasks, host, deps, exchanges)
        head = np.where(tasks.call >= 0, np.append(host.segment, -1)[tasks.call], -1)
        cut = _cuts(tasks, host, deps, exchanges, head)
        first = np.flatnonzero(cut)
        last = np.append(first[1:], len(cut)) - 1 if len(first) else first
        run = np.cumsum(cut) - 1
        model = cls(tasks, host, deps, exchanges, run, first, last, head[first], _NO_GRAPH, usual, own, unexplained)
        source, target = model._edges()
        graph = Graph.build(2 * len(first) + len(host.first) + exchanges.num, source, target)
        return replace(model, graph=graph)

    # points: start and end of every run, then the host's segments, then the arrivals of exchanges

    def begin_of(self, task: Ints | int) -> Ints:
        """Return the point at which the run of a task starts."""
        return 2 * self.run[task]

    def end_of(self, task: Ints | int) -> Ints:
        """Return the point at which the run of a task ends."""
        return 2 * self.run[task] + 1

    def segment_point(self, segment: Number) -> Number:
        """Return the point at which a segment of the host begins."""
        return 2 * len(self.first) + segment

    def _arrival(self, instance: Number) -> Number:
        return 2 * len(self.first) + len(self.host.first) + instance

    def _edges(self) -> tuple[Ints, Ints]:
        """Return the edges, kind by kind in the order of EDGES, which is that of `edge_lags`."""
        runs = np.arange(len(self.first))
        after = self._after
        led, folded, chained, side = self._led, self._folded, self._chained, self._side
        host, ex = self.host, self.exchanges
        begin, ended = np.stack([self.begin_of(host.drain_task), self.end_of(host.drain_task)])
        drained = np.searchsorted(host.first, host.drain_call + 1)
        real = self._followed
        parts = (
            (2 * (runs[after] - 1) + 1, 2 * runs[after]),
            (self.segment_point(self.segment[led]), 2 * runs[led]),
            (2 * runs, 2 * runs + 1),
            (self.segment_point(self.segment[folded]), 2 * runs[folded] + 1),
            (self.end_of(self.deps.source), self.begin_of(self.deps.target)),
            (self.begin_of(ex.coming_task), self._arrival(ex.coming)),
            (self._arrival(ex.waiting), self.end_of(ex.waiting_task)),
            (self.segment_point(chained - 1), self.segment_point(chained)),
            (np.where(host.drain_starts, begin, ended)[real], self.segment_point(drained[real])),
            (self.segment_point(host.segment[host.follows[side]]), self.segment_point(side)),
        )
        assert len(parts) == len(EDGES)
        source, target = (np.concatenate(ends) for ends in zip(*parts, strict=True))
        return source, target

    @property
    def edge_kind(self) -> Ints:
        """Kind of every edge, as an index into EDGES."""
        real, ex = self._followed, self.exchanges
        numbers = (
            np.count_nonzero(self._after), np.count_nonzero(self._led), len(self.first),
            np.count_nonzero(self._folded), len(self.deps.source), len(ex.coming), len(ex.waiting), len(self._chained),
            np.count_nonzero(real), len(self._side),
        )  # fmt: skip
        return np.repeat(np.arange(len(EDGES)), np.array(numbers))

    @property
    def _after(self) -> Mask:
        """Runs that follow another on their stream."""
        stream = self.tasks.stream[self.first]
        return np.append(False, stream[1:] == stream[:-1]) if len(stream) else stream > 0

    @property
    def _led(self) -> Mask:
        return self.segment >= 0

    @property
    def _folded(self) -> Mask:
        return (self.segment >= 0) & (self.last > self.first)

    @property
    def _chained(self) -> Ints:
        """Segments that follow a blocking call."""
        return np.flatnonzero(self.host.ended_by >= 0)

    @property
    def _followed(self) -> Mask:
        """Blocking calls that have a segment behind them; the last of a chain has none."""
        behind = self.host.drain_call + 1
        chain = np.append(self.tasks.call_chain, -1)
        result: Mask = chain[behind] == chain[self.host.drain_call]
        return result

    @property
    def _side(self) -> Ints:
        return np.flatnonzero(self.host.follows >= 0)

    def edge_lags(self, lags: Lags) -> Ints:
        """Return the lag of every edge."""
        tasks, host, first, last = self.tasks, self.host, self.first, self.last
        offset = host.offsets(lags.hop.sum(axis=1), lags.call)
        asked = np.append(offset, 0)[tasks.call] + lags.latency
        step = lags.task + lags.gap
        done = np.cumsum(step)  # end of a task if its run never stands still, up to a constant
        inner = asked - done + lags.task
        inner[first] = NEVER
        best = np.maximum.reduceat(inner, first) + done[last] if len(first) else first
        whole = done[last] - done[first] + lags.task[first]
        ex = self.exchanges
        shared = self.run[ex.shared]
        whole[shared] = np.maximum(np.minimum(tasks.end[ex.shared] - tasks.start[ex.shared], lags.transfer), 0)
        chained, side = self._chained, self._side
        real = self._followed
        blocked = host.ended_by[chained]
        main = host.follows[side]
        place = np.full(len(tasks.start), -1, np.int64)
        place[ex.shared] = np.arange(len(ex.shared))
        return np.concatenate(
            [
                lags.gap[first[self._after]], asked[first[self._led]], whole, best[self._folded], lags.dep,
                np.zeros(len(ex.coming), np.int64), lags.transfer[place[ex.waiting_task]],
                offset[blocked] + lags.after[blocked], lags.after[host.drain_call[real]],
                offset[main] + tasks.call_start[host.first[side]] - tasks.call_start[main],
            ]
        )  # fmt: skip

    def base(self) -> Ints:
        """Return the earliest time of every point by itself: measured where nothing leads to it."""
        tasks, host = self.tasks, self.host
        times = np.full(self.graph.num_points, NEVER)
        anchors = np.flatnonzero((host.ended_by < 0) & (host.follows < 0))
        times[self.segment_point(anchors)] = tasks.call_start[host.first[anchors]]
        led = np.zeros(self.graph.num_points, bool)
        led[self.graph.target] = True
        loose = np.flatnonzero(~led[2 * np.arange(len(self.first))])
        times[2 * loose] = tasks.start[self.first[loose]]
        return times

    def play(self, questions: Sequence[Lags]) -> Played:
        """Play the job with each set of durations."""
        lags = [self.edge_lags(one) for one in questions]
        base = np.repeat(self.base()[:, None], len(lags), axis=1)
        return Played(self.graph.solve(np.stack(lags, axis=1), base), lags)

    def window_times(self, played: Played, question: int, lags: Lags) -> list[Ints]:
        """Return the bounds of the windows of every lane."""
        found = []
        for lane, record in enumerate(self.tasks.records):
            base = int(self.tasks.first_task[lane])
            starts = played.points[self.begin_of(base + record.window_task), question]
            end = int(played.points[self.end_of(base + record.end_tasks), question].max())
            if record.end_call >= 0:
                call = np.array([self.tasks.first_call[lane] + record.end_call])
                end = max(end, int(self.call_times(played, question, lags, call)[0]))
            found.append(np.append(starts, end))
        return found

    def call_times(self, played: Played, question: int, lags: Lags, calls: Ints) -> Ints:
        """Return when host calls start."""
        offset = self.host.offsets(lags.hop.sum(axis=1), lags.call)
        result: Ints = played.points[self.segment_point(self.host.segment[calls]), question] + offset[calls]
        return result


_NO_GRAPH = Graph.build(0, np.empty(0, np.int64), np.empty(0, np.int64))


def _cuts(tasks: Tasks, host: HostSide, deps: Deps, exchanges: Exchanges, head: Ints) -> Mask:
    """Say which tasks begin a run."""
    number = len(tasks.start)
    before, behind = np.zeros(number + 1, bool), np.zeros(number + 1, bool)
    before[0] = True
    before[1:number] |= (tasks.stream[1:] != tasks.stream[:-1]) | (head[1:] != head[:-1])
    before[deps.target] = behind[deps.source] = True
    before[exchanges.shared] = behind[exchanges.shared] = True
    before[host.drain_task[host.drain_starts]] = behind[host.drain_task[~host.drain_starts]] = True
    base = tasks.first_task
    for lane, record in enumerate(tasks.records):
        before[base[lane] + record.window_task] = True
        behind[base[lane] + record.end_tasks] = True
    before[1:] |= behind[:-1]
    return before[:number]


def _lags(tasks: Tasks, host: HostSide, deps: Deps, exchanges: Exchanges) -> tuple[Lags, Lags, Ints]:
    """Return the measured lags, the usual ones, and what is not explained.

    The constraint that decided a start keeps the whole measured lag; the others get the usual one, or less where the
    task started sooner.
    """
    number = len(tasks.start)
    previous = tasks.previous
    free = np.where(previous >= 0, tasks.end[previous], NEVER)
    asked = tasks.asked
    waited = np.full(number, NEVER)
    np.maximum.at(waited, deps.target, tasks.end[deps.source])
    on_host = (asked > np.maximum(free, waited)) & (asked > NEVER)
    on_stream = (free >= np.maximum(asked, waited)) & (free > NEVER)
    on_dep = (waited > NEVER) & ~on_host & ~on_stream
    latency_ns = _latencies(tasks, on_host)
    gap_ns = _mean((tasks.start - free)[on_stream], 1_000)
    dep_ns = _mean((tasks.start - waited)[on_dep], 2_000)
    spare = {"gap": tasks.start - free, "latency": tasks.start - asked}
    ready = np.maximum(np.maximum(free + gap_ns, asked + latency_ns), waited + dep_ns)
    binds = {
        "gap": (free > NEVER) & (free + gap_ns >= ready), "latency": (asked > NEVER) & (asked + latency_ns >= ready),
    }  # fmt: skip
    no_source = (free <= NEVER) & (asked <= NEVER) & (waited <= NEVER)
    late = np.where(no_source, 0, tasks.start - ready)
    gap = np.where(binds["gap"], spare["gap"], np.minimum(gap_ns, spare["gap"]))
    latency = np.where(binds["latency"], spare["latency"], np.minimum(latency_ns, spare["latency"]))
    slack = tasks.start[deps.target] - tasks.end[deps.source]
    decides = tasks.end[deps.source] + dep_ns >= ready[deps.target]
    dep = np.where(decides, slack, np.minimum(dep_ns, slack))
    length = tasks.end - tasks.start
    gap, latency = np.where(free > NEVER, gap, 0), np.where(asked > NEVER, latency, 0)
    call = tasks.call_end - tasks.call_start
    own = Lags(length, gap, latency, tasks.hop, call, host.after, dep, exchanges.transfer)
    unexplained = np.where(late > UNEXPLAINED_NS, late, 0)
    usual = Lags(
        length, np.where(free > NEVER, np.minimum(gap_ns, np.maximum(gap, 0)), 0),
        np.where(asked > NEVER, latency_ns, 0), tasks.hop, call, host.after,
        np.full(len(slack), dep_ns), exchanges.transfer,
    )  # fmt: skip
    return own, usual, unexplained


def _latencies(tasks: Tasks, on_host: Mask) -> Ints:
    """Return the usual time from a call to its work, by rank and class.

    Copies take longer to start than kernels, and a device's clock may be behind its host's: then it is negative.
    """
    spare = tasks.start - tasks.asked
    key = tasks.lane * len(CLASSES) + tasks.kind
    good = on_host & (spare <= UNEXPLAINED_NS) & (spare >= -BEHIND_NS)
    number = np.bincount(key[good], minlength=int(key.max(initial=0)) + 1)
    total = np.bincount(key[good], spare[good], len(number))
    mean = np.where(number > 0, total / np.maximum(number, 1), _mean(spare[good], 5_000))
    result: Ints = np.rint(mean[key]).astype(np.int64)
    return result


def _mean(values: Ints, otherwise: int) -> int:
    values = values[(values >= 0) & (values <= UNEXPLAINED_NS)]
    return int(np.mean(values)) if len(values) else otherwise
