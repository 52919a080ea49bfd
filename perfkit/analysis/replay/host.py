"""The host side of a replay: where a host stands still for the device, and how far apart its calls are.

    host_side(tasks) -> HostSide

A chain of calls is cut into segments at calls that block: a synchronisation, a copy that returns when it is done, a
launch into a full queue. Inside a segment the host's calls keep their distance. A blocking call returns when the host
has come to it and what it waits for has happened, plus what it took from there as measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfkit.analysis.intervals import Ints
from perfkit.analysis.replay.graph import NEVER
from perfkit.analysis.replay.record import LAUNCH, SYNC, SYNC_ALL
from perfkit.analysis.replay.tasks import Tasks
from perfkit.analysis.timeline import Mask

LONG_CALL_NS = 50_000
"""A launch that takes longer than this may stand before a full queue."""
QUEUED = 64
"""Launches that are on their way when a queue is taken for full."""
RETURNS_NS = 20_000
"""A blocking call returns within this after what it waited for."""


@dataclass
class HostSide:
    """Segments of the host's calls."""

    segment: Ints
    """Of every call."""
    blocks: Mask
    """Calls that end their segment: the next call begins another."""
    after: Ints
    """What a blocking call takes once it may go on."""
    drain_call: Ints
    drain_task: Ints
    """Blocking call -> task that it waits for; several rows a call."""
    drain_starts: Mask
    """The call waits for the start of the task (a place in the queue), not for its end."""
    first: Ints
    """First call of every segment."""
    ended_by: Ints
    """Blocking call before every segment; -1 at the beginning of a chain."""
    follows: Ints
    """For a segment that begins a side chain: last call of the main chain before it; -1 for none."""

    def offsets(self, hop: Ints, length: Ints) -> Ints:
        """Return when every call starts, counted from the beginning of its segment.

        `hop` is the host time before every call, `length` what the call itself takes if it does not block.
        """
        if not len(hop):
            return hop
        step = hop + np.append(0, np.where(self.blocks, 0, length)[:-1])
        total = np.cumsum(step)
        head = self.first[self.segment]
        result: Ints = total - total[head] + np.where(self.ended_by[self.segment] >= 0, step[head], 0)
        return result


def host_side(tasks: Tasks) -> HostSide:
    """Find the calls that block, and what they wait for."""
    number = len(tasks.call_start)
    call, task, starts = _drains(tasks)
    blocks = np.zeros(number, bool)
    blocks[call] = True
    wait = np.full(number, NEVER)
    np.maximum.at(wait, call, np.where(starts, tasks.start[task], tasks.end[task]))
    after = np.where(blocks, tasks.call_end - np.maximum(tasks.call_start, wait), 0)
    chain = tasks.call_chain
    begins = np.append(True, chain[1:] != chain[:-1]) if number else blocks
    first = np.flatnonzero(begins | np.append(False, blocks[:-1])) if number else np.empty(0, np.int64)
    segment = np.searchsorted(first, np.arange(number), side="right") - 1
    ended_by = np.where(begins[first], -1, first - 1) if number else first
    return HostSide(segment, blocks, after, call, task, starts, first, ended_by, _follows(tasks, first, ended_by))


def _follows(tasks: Tasks, first: Ints, ended_by: Ints) -> Ints:
    """Hang chains that begin later onto the main chain of their lane."""
    result = np.full(len(first), -1, np.int64)
    for at in np.flatnonzero(ended_by < 0).tolist():
        call = int(first[at])
        lane = int(tasks.call_lane[call])
        low = int(tasks.first_call[lane])
        if call == low:
            continue
        main = tasks.call_chain[low : tasks.first_call[lane + 1]] == tasks.call_chain[low]
        stop = low + int(np.count_nonzero(main))
        before = low + int(np.searchsorted(tasks.call_end[low:stop], tasks.call_start[call], side="right")) - 1
        result[at] = before if before >= low else -1
    return result


def _drains(tasks: Tasks) -> tuple[Ints, Ints, Mask]:
    """Return (blocking call, task, whether its start counts)."""
    found = [_own_work(tasks), _syncs(tasks), _full_queue(tasks)]
    call, task, starts = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return call, task, starts.astype(bool)


def _own_work(tasks: Tasks) -> tuple[Ints, Ints, Mask]:
    """Return the launches that come back only when their work is done."""
    rows = np.flatnonzero(tasks.call >= 0)
    rows = rows[tasks.call_end[tasks.call[rows]] >= tasks.end[rows]]
    rows = rows[tasks.call_kind[tasks.call[rows]] == LAUNCH]
    return tasks.call[rows], rows, np.zeros(len(rows), bool)


def _syncs(tasks: Tasks) -> tuple[Ints, Ints, Mask]:
    """Return what synchronisations wait for: all streams, else what ended as the call returned, or the last launch."""
    calls = np.flatnonzero(np.isin(tasks.call_kind, (SYNC, SYNC_ALL)))
    streams = np.unique(tasks.stream[tasks.call >= 0])
    pairs: list[tuple[Ints, Ints]] = []
    candidate = np.full((len(calls), int(tasks.ordinal.max(initial=0)) + 1), -1, np.int64)
    for stream in streams.tolist():
        rows = np.flatnonzero((tasks.stream == stream) & (tasks.call >= 0))
        lane, ordinal = int(tasks.lane[rows[0]]), int(tasks.ordinal[rows[0]])
        rows = rows[np.argsort(tasks.asked[rows], kind="stable")]
        mine = np.flatnonzero(tasks.call_lane[calls] == lane)
        at = np.searchsorted(tasks.asked[rows], tasks.call_start[calls[mine]]) - 1
        candidate[mine, ordinal] = np.where(at >= 0, rows[np.maximum(at, 0)], -1)
    if not len(calls):
        return calls, calls, calls > 0
    done = np.where(candidate >= 0, tasks.end[candidate], NEVER)
    returned, arrived = tasks.call_end[calls], tasks.call_start[calls]
    in_time = (candidate >= 0) & (done <= returned[:, None] + 1_000)
    everything = (tasks.call_kind[calls] == SYNC_ALL) & (in_time | (candidate < 0)).all(axis=1)
    row, column = np.nonzero(in_time & everything[:, None])
    pairs.append((calls[row], candidate[row, column]))
    waited = in_time & (done > arrived[:, None])
    latest = np.argmax(np.where(waited, done, NEVER), axis=1)
    asked = np.where(candidate >= 0, tasks.asked[candidate], NEVER)
    recent = np.argmax(asked, axis=1)
    chosen = np.where(waited.any(axis=1), latest, recent)
    every = np.arange(len(calls))
    good = in_time[every, chosen] & ~everything & (tasks.call_kind[calls] == SYNC)
    pairs.append((calls[good], candidate[every, chosen][good]))
    call, task = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    return call, task, np.zeros(len(call), bool)


def _full_queue(tasks: Tasks) -> tuple[Ints, Ints, Mask]:
    """Return the launches that took long while many others were on their way, and came back as a task started."""
    length = tasks.call_end - tasks.call_start
    calls = np.flatnonzero((tasks.call_kind == LAUNCH) & (length > LONG_CALL_NS))
    found_call, found_task = [], []
    for lane in np.unique(tasks.call_lane[calls]).tolist():
        rows = np.arange(tasks.first_task[lane], tasks.first_task[lane + 1])
        rows = rows[tasks.call[rows] >= 0]
        mine = calls[tasks.call_lane[calls] == lane]
        by_start = rows[np.argsort(tasks.start[rows], kind="stable")]
        asked = np.sort(tasks.asked[rows])
        at = np.searchsorted(tasks.start[by_start], tasks.call_end[mine], side="right") - 1
        queued = np.searchsorted(asked, tasks.call_start[mine]) - (at + 1)
        task = by_start[np.maximum(at, 0)]
        good = (at >= 0) & (queued >= QUEUED) & (tasks.call_end[mine] - tasks.start[task] <= RETURNS_NS)
        good &= tasks.start[task] > tasks.call_start[mine]
        found_call.append(mine[good])
        found_task.append(task[good])
    call, task = (np.concatenate([np.empty(0, np.int64), *parts]) for parts in (found_call, found_task))
    return call, task, np.ones(len(call), bool)
