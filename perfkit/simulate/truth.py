"""The true answer: where each rank's time went, by the definitions and from the causes.

    Truth(job, program, times).of(rank) -> RankTruth

The simulator knows which launch a task belongs to, which exchange it waited in and until when, and what the
host did at every moment (the tiles: what is on top of each thread's stack). Nothing is looked up in the
emitted rows: no correlation ids, no names, no stacks. Times are those that the rank's clock showed, so sums
agree with the trace to the nanosecond; an exchange's arrival is mapped onto the clock of each member.

Where a definition leaves a choice, this is the one: each ns of host_late goes to what the launching thread
was doing in it (nothing recorded: `unattributed`); spill is the union of a step's work in later windows; the
gap after the last work is `unattributed`; a bubble is time without compute while a receive is on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfkit.simulate.job import Job
from perfkit.simulate.noise import Ints
from perfkit.simulate.program import (
    ARRIVED,
    CALL_START,
    COMM,
    COMPUTE,
    COPY,
    SYNC_END,
    SYNC_START,
    TASK_END,
    TASK_START,
    Program,
)
from perfkit.simulate.tiles import Bools, Label, Tiles

LAUNCH_LIMIT_NS = 20_000
"""Definitions 5 and 6: launch latency up to here; a sync ends this soon after the device ran dry."""
CAUSES = ("host_late", "launch", "dependency", "unattributed")

NO_CULPRIT: Label = (None, None)
SYNC: Label = ("sync", "cudaStreamSynchronize")


@dataclass(slots=True)
class RankTruth:
    """One rank's answer; steps are numbered as the profiler does."""

    steps: list[dict[str, int | None]]
    """Partition of each window; the first row is the carry-in, with step null."""
    idle: list[dict[str, object]]
    """Idle ns by window, launching step, cause and culprit."""
    launches_missing: int


class Truth:
    """Answers for the ranks of one stage."""

    def __init__(self, job: Job, program: Program, times: Ints) -> None:
        self.job, self.program, self.times = job, program, times
        self.tasks = [(i, one, one.task) for i, one in enumerate(program.instructions) if one.task is not None]
        self.done = np.ones((len(program.instructions), len(program.ranks)), bool)
        """Which instruction which rank carries out."""
        self.lost = np.zeros_like(self.done)
        for i, one in enumerate(program.instructions):
            if one.ranks is not None:
                self.done[i] = one.ranks
            if one.lost is not None:
                self.lost[i] = one.lost
            if one.kind == "ghost":
                self.lost[i] = True

    @cached_property
    def _tiles(self) -> Tiles:
        return Tiles.build(self.program)

    @cached_property
    def _task_columns(self) -> Ints:
        """Instruction, point, class, step, thread and whether it is a receive, of every task."""
        rows = [
            (i, one.point, task.kind, one.step, one.thread, task.comm is not None and task.comm.op == "recv")
            for i, one, task in self.tasks
        ]
        return np.array(rows, np.int64).T

    def of(self, rank: int) -> RankTruth:
        """Work out the answer of a rank."""
        column = rank - int(self.program.ranks[0])
        work = self._work(column, rank)
        windows = self._windows(work, column, rank)
        steps = _partition(work, windows, self.job.first_step)
        return RankTruth(steps, self._idle(work, windows, column, rank), int((~work.launched).sum()))

    # -------------------------------------------------------------- what the rank's device did

    def _work(self, column: int, rank: int) -> _Work:
        index, point, kind, step, thread, receive = self._task_columns
        here = self.done[index, column]
        index, point, kind, step, thread, receive = (
            values[here] for values in (index, point, kind, step, thread, receive)
        )
        mine = np.ascontiguousarray(self.times[:, column])
        start, end, call = (self.job.to_local(mine[point + s], rank) for s in (TASK_START, TASK_END, CALL_START))
        met = self.job.to_local(mine[np.where(kind == COMM, point + ARRIVED, point + TASK_END)], rank)
        order = np.argsort(start, kind="stable")
        launched = ~self.lost[index, column]
        return _Work(
            start[order], end[order], met[order], call[order], kind[order], step[order], thread[order], receive[order],
            launched[order],
        )  # fmt: skip

    def _windows(self, work: _Work, column: int, rank: int) -> Ints:
        """Return the starts of the windows and the end of the last (definition 1)."""
        mine = work.launched & (work.kind == COMPUTE)
        starts = [int(work.start[mine & (work.step == step)].min()) for step in range(self.job.steps)]
        last_span = [span for span in self.program.spans if span.depth == 0][-1]
        step_end = int(self.job.to_local(self.times[last_span.end, [column]], rank)[0])
        last_work = int(work.end[work.launched & (work.step == self.job.steps - 1)].max())
        return np.array([*np.maximum.accumulate(starts), max(last_work, step_end)], np.int64)

    # -------------------------------------------------------------- why it stood still

    def _idle(self, work: _Work, windows: Ints, column: int, rank: int) -> list[dict[str, object]]:
        """Charge every gap of the device (definitions 5 and 6)."""
        busy_until = np.maximum.accumulate(work.end)
        after = np.flatnonzero(work.start[1:] > busy_until[:-1]) + 1
        start, stop = busy_until[after - 1], work.start[after]
        window = np.searchsorted(windows[:-1], start, side="right") - 1
        launched = work.launched[after]
        late_until = np.where(launched, np.clip(work.call[after], start, stop), start)
        rest = stop - late_until
        cause = np.where(launched, np.where(rest <= LAUNCH_LIMIT_NS, 1, 2), 3)
        step = np.where(launched, work.step[after], window)
        labels = [*self._tiles.labels, NO_CULPRIT, SYNC]
        nobody, sync = len(labels) - 2, len(labels) - 1
        parts = [np.stack([window, step, cause, np.full_like(step, nobody), rest])]

        late = np.flatnonzero(late_until > start)
        owned = self._sync_owner(start[late], column, rank)
        mine, zero = late[owned], np.zeros_like(late[owned])
        parts.append(np.stack([window[mine], step[mine], zero, zero + sync, (late_until - start)[mine]]))
        late = late[~owned]
        gap, label, ns = self._tiles.spread(
            self.job,
            self.times[:, column],
            self.done[:, column],
            self.lost[:, column],
            rank,
            start[late],
            late_until[late],
            work.thread[after[late]],
        )
        parts.append(np.stack([window[late[gap]], step[late[gap]], np.zeros_like(gap), label, ns]))
        tail = int(windows[-1] - busy_until[-1])  # nothing follows
        last = self.job.steps - 1
        parts.append(np.array([[last], [last], [3], [nobody], [max(tail, 0)]], np.int64))

        rows = np.concatenate(parts, axis=1)
        keys, group = np.unique(rows[:4, rows[4] > 0], axis=1, return_inverse=True)
        ns = rows[4, rows[4] > 0]
        sums, gaps = np.bincount(group.ravel(), ns, keys.shape[1]), np.bincount(group.ravel(), minlength=keys.shape[1])
        first = self.job.first_step
        return [
            {
                "window_step": first + w if w >= 0 else None,
                "step": first + s if s >= 0 else None,
                "cause": CAUSES[c],
                "culprit": labels[which][0],
                "where": labels[which][1],
                "idle_ns": int(sums[i]),
                "pieces": int(gaps[i]),
            }
            for i, (w, s, c, which) in enumerate(keys.T.tolist())
        ]

    def _sync_owner(self, gap_start: Ints, column: int, rank: int) -> Bools:
        """Say which gaps begin while a blocking call waits for the device that has just run dry."""
        points = np.array(
            [one.point for i, one, _ in self.tasks if one.kind == "item" and self.done[i, column]], np.int64
        )
        if not len(points):
            return np.zeros(len(gap_start), bool)
        mine = self.times[:, column]
        began, ended = (self.job.to_local(mine[points + slot], rank) for slot in (SYNC_START, SYNC_END))
        which = np.minimum(np.searchsorted(ended, gap_start), len(points) - 1)
        soon = (ended[which] >= gap_start) & (ended[which] <= gap_start + LAUNCH_LIMIT_NS)
        return soon & (began[which] < gap_start)


@dataclass(slots=True)
class _Work:
    """Device work of a rank in order of its start, on the rank's clock."""

    start: Ints
    end: Ints
    arrived: Ints
    """When the last member came, for an exchange."""
    call: Ints
    kind: Ints
    step: Ints
    thread: Ints
    receive: Ints
    launched: Bools
    """Its launch call is in the trace."""


def _partition(work: _Work, windows: Ints, first_step: int) -> list[dict[str, int | None]]:
    """Cut time at every start, arrival and end, and give each piece to one class (definitions 2, 9, 12)."""
    exchange = work.kind == COMM
    steps = len(windows) - 1
    counters = {
        "compute": (work.start, work.end, work.kind == COMPUTE),
        "comm": (work.start, work.end, exchange),
        "copy": (work.start, work.end, work.kind == COPY),
        "wait": (work.start, work.arrived, exchange),
        "transfer": (work.arrived, work.end, exchange),
        "receive": (work.start, work.end, work.receive == 1),
        "receive_wait": (work.start, work.arrived, work.receive == 1),
    }
    cuts = np.unique(np.concatenate([work.start, work.arrived, work.end, windows]))
    live = {}
    for name, (begin, stop, chosen) in counters.items():
        change = np.zeros(len(cuts) + 1, np.int64)
        np.add.at(change, np.searchsorted(cuts, begin[chosen]), 1)
        np.add.at(change, np.searchsorted(cuts, stop[chosen]), -1)
        live[name] = np.cumsum(change)[: len(cuts) - 1] > 0
    length = np.diff(cuts)
    window = np.searchsorted(windows[:-1], cuts[:-1], side="right")  # 0 is the carry-in
    inside = cuts[:-1] < windows[-1]

    def total(piece: Bools) -> list[int]:
        chosen = piece & inside
        return [int(v) for v in np.bincount(window[chosen], length[chosen].astype(np.float64), steps + 1)]

    compute, comm, copy = live["compute"], live["comm"], live["copy"]
    exposed = comm & ~compute
    columns = {
        "window_ns": total(np.ones(len(length), bool)),
        "compute_ns": total(compute),
        "exposed_comm_ns": total(exposed),
        "exposed_memcpy_ns": total(copy & ~compute & ~comm),
        "idle_ns": total(~compute & ~comm & ~copy),
        "comm_ns": total(comm),
        "overlap_ns": total(comm & compute),
        "exposed_transfer_ns": total(exposed & live["transfer"]),
        "exposed_wait_ns": total(exposed & ~live["transfer"]),
        "bubble_ns": total(live["receive"] & ~compute),
        "bubble_wait_ns": total(live["receive_wait"] & exposed & ~live["transfer"]),
    }
    spill = [None, *(_spill(work, windows, step) for step in range(steps))]
    starts = [int(cuts[0]), *(int(v) for v in windows[:-1])]
    return [
        {
            "step": first_step + row - 1 if row else None,
            "start_ns": starts[row],
            **{name: values[row] for name, values in columns.items()},
            "spill_ns": spill[row],
        }
        for row in range(steps + 1)
    ]


def _spill(work: _Work, windows: Ints, step: int) -> int:
    """Return how long the step's work runs in later windows, two at a time counted once."""
    mine = work.launched & (work.step == step) & (work.end > windows[step + 1])
    begin, stop = np.maximum(work.start[mine], windows[step + 1]), np.minimum(work.end[mine], windows[-1])
    total, reached = 0, int(windows[step + 1])
    for one, other in zip(begin, stop, strict=True):  # a handful
        total += max(0, int(other) - max(int(one), reached))
        reached = max(reached, int(other))
    return total
