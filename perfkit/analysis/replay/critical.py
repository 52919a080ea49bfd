"""The critical path: the chain of work and waiting that the end of the last step hung on.

    critical_path(model, played, question, lags) -> CRITICAL_PATH

Followed back from the window that ends last, along the edges that decided when things happened, until the first window
began. Rows do not overlap and touch each other, so their durations sum to the time between: shortening anything else
does not make the steps faster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from perfkit.analysis.classify import CLASSES, FAMILIES
from perfkit.analysis.intervals import Ints
from perfkit.analysis.replay.model import EDGES, Lags, Model, Played
from perfkit.schema import CRITICAL_PATH, conform

MAX_POINTS = 5_000_000


@dataclass
class _Rows:
    """Pieces of the path, last first: [start, end) of a task, of a lane's host, or of a lag."""

    kind: list[str]
    lane: list[int]
    task: list[int]
    start: list[int]
    end: list[int]

    def add(self, kind: str, lane: int, task: int, start: int, end: int) -> None:
        """Append a piece unless it is empty; where a call came back before the work had ended, the later one counts."""
        end = min(end, self.start[-1]) if self.start else end
        if end > start:
            self.kind.append(kind)
            self.lane.append(lane)
            self.task.append(task)
            self.start.append(start)
            self.end.append(end)


class _Walk:
    """Follows a path back and writes down its pieces."""

    def __init__(self, model: Model, played: Played, question: int, lags: Lags) -> None:
        self.model, self.lags = model, lags
        self.times = played.points[:, question]
        self.binding = model.graph.binding(played.lags[question], self.times)
        self.kind = model.edge_kind
        self.offset = model.host.offsets(lags.hop.sum(axis=1), lags.call)
        self.hops = np.concatenate([np.zeros((1, 3), np.int64), np.cumsum(lags.hop, axis=0)])
        self.rows = _Rows([], [], [], [], [])
        self.num_runs = len(model.first)

    def back(self, point: int, stop: int) -> None:
        """Follow the path from a point until `stop`."""
        for _ in range(MAX_POINTS):
            edge = int(self.binding[point])
            if edge < 0 or self.times[point] <= stop:
                return
            source = int(self.model.graph.source[edge])
            getattr(self, f"_{EDGES[self.kind[edge]]}")(source, point)
            point = source

    def _stream(self, source: int, point: int) -> None:
        self._gap(source, point)

    def _dep(self, source: int, point: int) -> None:
        self._gap(source, point)

    def _gap(self, source: int, point: int) -> None:
        task = int(self.model.first[point // 2])
        late = int(self.model.unexplained[task])
        low, high = int(self.times[source]), int(self.times[point])
        cut = max(low, high - late)
        lane = int(self.model.tasks.lane[task])
        self.rows.add("unexplained", lane, task, cut, high)
        self.rows.add("gap", lane, task, low, cut)

    def _launch(self, source: int, point: int) -> None:
        self._host_until(source, int(self.model.first[point // 2]), int(self.times[point]))

    def _host_until(self, segment_point: int, task: int, high: int) -> None:
        """Write down the host from the beginning of a segment to a launch, and the launch."""
        tasks = self.model.tasks
        call, lane = int(tasks.call[task]), int(tasks.lane[task])
        begin = int(self.times[segment_point])
        asked = begin + int(self.offset[call])
        cut = max(asked, high - int(self.model.unexplained[task]))
        self.rows.add("unexplained", lane, task, cut, high)
        self.rows.add("launch", lane, task, asked, cut)
        self._host_between(lane, int(self.model.host.first[segment_point - 2 * self.num_runs]), call, begin, asked)

    def _host_between(self, lane: int, first: int, call: int, low: int, high: int) -> None:
        """Write down host time by what it was, as one piece each: waiting for data first, then the rest."""
        data, checkpoint, _ = np.maximum(self.hops[call + 1] - self.hops[first], 0).tolist()
        at = high
        for kind, amount in (("host", high - low - data - checkpoint), ("checkpoint", checkpoint), ("data", data)):
            begin = max(low, at - max(amount, 0))
            self.rows.add(kind, lane, -1, begin, at)
            at = begin
        self.rows.add("host", lane, -1, low, at)

    def _run(self, source: int, point: int) -> None:
        run = point // 2
        self._tasks(int(self.model.first[run]), int(self.model.last[run]), int(self.times[point]))

    def _tasks(self, first: int, last: int, end: int) -> int:
        """Write down the tasks of a run, which stood back to back; return when the first of them began."""
        tasks, lags = self.model.tasks, self.lags
        lane, at = int(tasks.lane[first]), end
        if first == last and tasks.kind[first] == CLASSES.index("communication"):
            begin = int(self.times[2 * self.model.run[first]])
            self.rows.add("communication", lane, first, begin, end)
            return begin
        for task in range(last, first - 1, -1):
            begin = at - int(lags.task[task])
            self.rows.add(CLASSES[tasks.kind[task]], lane, task, begin, at)
            at = begin
            if task > first:
                begin = at - int(lags.gap[task])
                cut = max(begin, at - int(self.model.unexplained[task]))
                self.rows.add("unexplained", lane, task, cut, at)
                self.rows.add("gap", lane, task, begin, cut)
                at = begin
        return at

    def _launched_run(self, source: int, point: int) -> None:
        run, tasks, lags = point // 2, self.model.tasks, self.lags
        first, last = int(self.model.first[run]), int(self.model.last[run])
        mine = np.arange(first, last + 1)
        asked = self.offset[tasks.call[mine]] + lags.latency[mine]
        ends = np.cumsum((lags.task + lags.gap)[mine])
        chosen = first + 1 + int(np.argmax((asked - ends + lags.task[mine])[1:]))
        self._host_until(source, chosen, self._tasks(chosen, last, int(self.times[point])))

    def _arrive(self, source: int, point: int) -> None:
        """Coming takes no time."""

    def _transfer(self, source: int, point: int) -> None:
        task = int(self.model.first[point // 2])
        lane = int(self.model.tasks.lane[task])
        self.rows.add("communication", lane, task, int(self.times[source]), int(self.times[point]))

    def _host(self, source: int, point: int) -> None:
        host = self.model.host
        call = int(host.ended_by[point - 2 * self.num_runs])
        lane, begin, high = int(self.model.tasks.call_lane[call]), int(self.times[source]), int(self.times[point])
        arrived = min(begin + int(self.offset[call]), high)
        self.rows.add("sync", lane, -1, arrived, high)
        self._host_between(lane, int(host.first[source - 2 * self.num_runs]), call, begin, arrived)

    def _drain(self, source: int, point: int) -> None:
        call = int(self.model.host.ended_by[point - 2 * self.num_runs])
        self.rows.add(
            "sync", int(self.model.tasks.call_lane[call]), -1, int(self.times[source]), int(self.times[point])
        )

    def _side(self, source: int, point: int) -> None:
        call = int(self.model.host.first[point - 2 * self.num_runs])
        self.rows.add(
            "host", int(self.model.tasks.call_lane[call]), -1, int(self.times[source]), int(self.times[point])
        )


def critical_path(model: Model, played: Played, question: int, lags: Lags) -> pa.Table:
    """Return the pieces of the path in the order of time."""
    windows = model.window_times(played, question, lags)
    lane = int(np.argmax([bounds[-1] for bounds in windows]))
    stop = int(min(bounds[0] for bounds in windows))
    record, base = model.tasks.records[lane], int(model.tasks.first_task[lane])
    walk = _Walk(model, played, question, lags)
    ends = model.end_of(base + record.end_tasks)
    last = int(ends[np.argmax(walk.times[ends])])
    end = int(windows[lane][-1])
    if int(walk.times[last]) < end:  # the host came last
        call = int(model.tasks.first_call[lane]) + record.end_call
        segment = int(model.host.segment[call])
        point = model.segment_point(segment)
        walk._host_between(lane, int(model.host.first[segment]), call, int(walk.times[point]), end)
        last = point
    walk.back(last, stop)
    return _table(model, walk.rows, stop)


def _table(model: Model, rows: _Rows, stop: int) -> pa.Table:
    tasks = model.tasks
    order = np.arange(len(rows.start))[::-1]
    lane, task = np.array(rows.lane, np.int64)[order], np.array(rows.task, np.int64)[order]
    start, end = np.maximum(np.array(rows.start, np.int64)[order], stop), np.array(rows.end, np.int64)[order]
    kind = np.array(rows.kind, object)[order]
    keep = end > start
    lane, task, start, end, kind = lane[keep], task[keep], start[keep], end[keep], kind[keep]
    records = tasks.records
    family = np.append(tasks.family, -1)[task]
    step = np.append(tasks.step, -1)[task]
    work = np.isin(kind, ("compute", "communication", "memcpy", "memset"))
    named = (task >= 0) & work
    names, families = np.array([*tasks.names, None], object), np.array([*FAMILIES, None], object)
    return conform(
        CRITICAL_PATH,
        pa.table(
            {
                "rank": pa.array([records[i].rank for i in lane.tolist()], pa.int32()),
                "segment": pa.array([records[i].segment for i in lane.tolist()], pa.int32()),
                "position": np.arange(len(lane)),
                "kind": pa.array(kind.tolist(), pa.utf8()),
                "family": pa.array(families[np.where(named, family, -1)].tolist(), pa.utf8()),
                "name": pa.array([*names[np.where(named, np.append(tasks.name, -1)[task], -1)]], pa.utf8()),
                "step": pa.array(step, mask=step < 0),
                "event_id": pa.array(np.append(tasks.event_id, -1)[task], mask=~named),
                "start_ns": start + tasks.origin_ns,
                "dur_ns": end - start,
            }
        ),
    )


def by_kind(path: pa.Table) -> list[tuple[str, str | None, int]]:
    """Return (kind, family, ns) of a path, largest first."""
    sums: dict[tuple[str, str | None], int] = {}
    for kind, family, length in zip(
        path["kind"].to_pylist(), path["family"].to_pylist(), path["dur_ns"].to_pylist(), strict=True
    ):
        sums[kind, family] = sums.get((kind, family), 0) + length
    return sorted(((kind, family, ns) for (kind, family), ns in sums.items()), key=lambda row: -row[2])


def by_rank(path: pa.Table) -> list[tuple[int, int]]:
    """Return (rank, ns) of a path, largest first."""
    rank, length = path["rank"].to_numpy(), path["dur_ns"].to_numpy()
    ranks, code = np.unique(rank, return_inverse=True)
    sums: Ints = np.bincount(code, length, len(ranks)).astype(np.int64)
    return sorted(zip(ranks.tolist(), sums.tolist(), strict=True), key=lambda row: -row[1])
