"""What a replay needs of one rank's trace: tasks on streams, the host calls behind them, and where steps begin.

    read_record(tables, options) -> [Record]        one per source file of the rank; small and picklable

Tasks are device work in stream order. Host calls are those that launch work or block; what the host does between two of
them is a hop, split into waiting for data, checkpointing and the rest. Threads that take turns, as the Python thread
and the one that runs backward passes do, are one chain: a hop from one to the other is a hand-over. A thread that works
beside the others is a chain of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from perfkit.analysis.classify import CLASSES, FAMILIES, HOST_KINDS, kernel_family
from perfkit.analysis.intervals import Ints, covered, join, union
from perfkit.analysis.rank import Options
from perfkit.analysis.stacks import Kinds
from perfkit.analysis.timeline import Mask, Timeline, Work, ints, read_timelines
from perfkit.analysis.windows import NEVER, Steps, Windows, find_steps, find_windows, launch_times

TAKES_TURNS = 0.02
"""Share of a thread's calls that may run beside those of the others in its chain."""
LAUNCH, SYNC, SYNC_ALL, MARK = range(4)
"""Kinds of host calls: launches work; waits for some work; waits for the device; a moment of the host."""
HOPS = ("data", "checkpoint", "other")
_SYNC_ALL = ("devicesynchronize", "ctxsynchronize", "cudafree", "hipfree", "cudahostalloc", "cudafreehost")


@dataclass
class Record:
    """One source file of a rank; times are on the clock of the rank."""

    rank: int
    segment: int
    names: list[str]
    # tasks, by stream and start
    start: Ints
    end: Ints
    kind: Ints
    """Index into CLASSES."""
    name: Ints
    family: Ints
    """Index into FAMILIES; -1 for work that is no compute."""
    stream: Ints
    """Number of the stream in this rank, from 0."""
    stream_id: Ints
    """As recorded; -1 unknown."""
    call: Ints
    """Host call that launched the task; -1 if it is not in the trace."""
    step: Ints
    event_id: Ints
    # host calls, by chain and start
    call_start: Ints
    call_end: Ints
    call_kind: Ints
    chain: Ints
    hop: Ints
    """int64[calls, 3]: host time from the end of the call before to the start of this one, by HOPS."""
    # windows
    window_step: Ints
    window_task: Ints
    """Task with which each window starts."""
    end_tasks: Ints
    """Last task of each stream in the last window: its end may be that of the window."""
    end_call: int
    """Mark at the end of the last step's range; -1 for none."""
    edges: Ints
    """Measured bounds of the windows."""
    source: str


def read_record(tables: Mapping[str, pa.Table], options: Options) -> list[Record]:
    """Read the timelines in `tables`; one without device work has nothing to replay and is left out."""
    events = tables["events"]
    streams = _streams(events)
    found = []
    for timeline in read_timelines(events):
        if len(timeline.work.start):
            found.append(_record(timeline, streams[timeline.rank, timeline.segment], tables, options))
    return found


def _streams(events: pa.Table) -> dict[tuple[int, int], tuple[Ints, Ints]]:
    """Return event ids, in order, and streams of each (rank, segment)."""
    rank, segment, event = (ints(events[name]) for name in ("rank", "segment", "event_id"))
    stream = ints(events["stream"]) if "stream" in events.column_names else np.full(len(rank), -1, np.int64)
    found = {}
    for key in {(int(r), int(s)) for r, s in np.unique(np.stack([rank, segment], axis=1), axis=0)}:
        mine = np.flatnonzero((rank == key[0]) & (segment == key[1]))
        mine = mine[np.argsort(event[mine], kind="stable")]
        found[key] = event[mine], stream[mine]
    return found


def _record(timeline: Timeline, streams: tuple[Ints, Ints], tables: Mapping[str, pa.Table], options: Options) -> Record:
    work, host = timeline.work, timeline.host
    stream_id = streams[1][np.minimum(np.searchsorted(streams[0], work.event_id), len(streams[0]) - 1)]
    _, stream = np.unique(np.stack([work.device, stream_id], axis=1), axis=0, return_inverse=True)
    stream = stream.ravel()
    order = np.lexsort((work.end, work.start, stream))
    work, stream, stream_id = work.take(order), stream[order], stream_id[order]
    steps = find_steps(timeline, tables.get("steps")) if options.window == "step" else None
    device = timeline.devices[0]
    windows = find_windows(timeline, device, mode=options.window, steps=steps)
    windows = windows.select(options.first_step, options.last_step)
    step = _steps_of(timeline, work, windows, steps)
    kinds = Kinds(timeline)
    marks = _marks(timeline, windows, steps)
    rows, kind, chain, at_mark = _calls(timeline, work, kinds, marks)
    start, end = np.append(host.start, marks)[rows], np.append(host.end, marks)[rows]
    entry = np.full(len(host.start) + len(marks), -1, np.int64)
    entry[rows] = np.arange(len(rows))
    call = np.where(work.launch >= 0, entry[work.launch], -1) if len(entry) else work.launch
    hops = _hops(timeline, kinds, rows, start, end, chain)
    window_task, end_tasks = _window_tasks(work, stream, device, windows, step)
    return Record(
        timeline.rank, timeline.segment, timeline.names, work.start, work.end, work.kind.astype(np.int64), work.name,
        _families(timeline, work), stream, stream_id, call, step, work.event_id, start, end, kind,
        chain, hops, windows.step, window_task, end_tasks, at_mark, windows.edges, windows.source,
    )  # fmt: skip


def _families(timeline: Timeline, work: Work) -> Ints:
    compute = work.kind == CLASSES.index("compute")
    used = np.unique(work.name[compute])
    table = np.full(len(timeline.names), -1, np.int64)
    table[used] = [
        FAMILIES.index(family)
        for family in kernel_family(pa.array([timeline.names[i] for i in used], pa.utf8())).to_pylist()
    ]
    result: Ints = np.where(compute, table[work.name], -1)
    return result


def _steps_of(timeline: Timeline, work: Work, windows: Windows, steps: Steps | None) -> Ints:
    """Return the step of each task: the one whose range launched it, else the window in which it starts."""
    at = np.searchsorted(windows.edges, work.start, side="right") - 1
    inside = (at >= 0) & (at < len(windows.step))
    result = np.where(inside, np.append(windows.step, -1)[np.where(inside, at, len(windows.step))], -1)
    if steps is not None:
        asked = steps.at(launch_times(timeline, work, NEVER))
        result = np.where(asked >= 0, np.append(steps.number, -1)[asked], result)
    return result


def _window_tasks(work: Work, stream: Ints, device: int, windows: Windows, step: Ints) -> tuple[Ints, Ints]:
    """Return the task that starts each window, and the last of each stream in the last window."""
    mine = np.flatnonzero(work.device == device)
    mine = mine[np.argsort(work.start[mine], kind="stable")]
    starts = windows.edges[:-1]
    if not len(starts):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    at = np.minimum(np.searchsorted(work.start[mine], starts), len(mine) - 1)
    last = mine[(step[mine] == windows.step[-1]) & (work.end[mine] <= windows.edges[-1])]
    last = last if len(last) else mine[work.start[mine] < windows.edges[-1]]
    last = np.sort(last)
    ends = np.append(stream[last][1:] != stream[last][:-1], True)
    return mine[at], last[ends]


def _marks(timeline: Timeline, windows: Windows, steps: Steps | None) -> Ints:
    """Return the moments of the host that count although it calls nothing then.

    The first is where the recorded steps begin: what the host does before its first launch is a hop, too. The second,
    where steps are marked, is the end of the last step's range.
    """
    if not len(timeline.host.start):
        return np.empty(0, np.int64)
    if steps is None or not len(windows.step) or windows.position is None:
        return np.array([timeline.host.start.min()])
    return np.array([steps.start[0], steps.end[windows.position[-1]]])


def _calls(timeline: Timeline, work: Work, kinds: Kinds, marks: Ints) -> tuple[Ints, Ints, Ints, int]:
    """Return the host calls as rows of timeline.host, their kinds and chains, and the entry of the last mark.

    The marks are not in the timeline: their rows are behind the last. Without a second mark its entry is -1.
    """
    host = timeline.host
    launches = np.zeros(len(host.start), bool)
    launches[work.launch[work.launch >= 0]] = True
    runtime = host.kind == CLASSES.index("runtime")
    wholly = np.array([any(word in name.lower() for word in _SYNC_ALL) for name in timeline.names], bool)[host.name]
    syncs = runtime & ((kinds.of_all == HOST_KINDS.index("sync")) | wholly)
    rows = np.flatnonzero(launches | (syncs & ~_nested(host.thread, host.start, host.end, syncs | launches)))
    chain_of = _chains(host.thread[rows], host.start[rows], host.end[rows], launches[rows])
    kind = np.where(launches[rows], LAUNCH, np.where(wholly[rows], SYNC_ALL, SYNC))
    start = host.start[rows]
    if len(rows):
        none = np.zeros(len(marks), np.int64)
        rows, chain_of = np.append(rows, len(host.start) + np.arange(len(marks))), np.append(chain_of, none)
        kind, start = np.append(kind, none + MARK), np.append(start, marks)
    order = np.lexsort((kind != MARK, start, chain_of))
    at = np.flatnonzero(kind[order] == MARK)
    return rows[order], kind[order], chain_of[order], int(at[-1]) if len(at) > 1 else -1


def _nested(thread: Ints, start: Ints, end: Ints, calls: Mask) -> Mask:
    """Say which calls lie inside another call of their thread, as a driver's call inside the runtime's does."""
    rows = np.flatnonzero(calls)
    rows = rows[np.lexsort((-end[rows], start[rows], thread[rows]))]
    _, code = np.unique(thread[rows], return_inverse=True)
    inside = np.zeros(len(thread), bool)
    if len(rows):
        low = int(start[rows].min())
        key = code * (int(end[rows].max()) - low + 1) + end[rows] - low  # threads do not meet on one axis
        inside[rows[1:]] = (code[1:] == code[:-1]) & (key[1:] <= np.maximum.accumulate(key)[:-1])
    return inside


def _chains(thread: Ints, start: Ints, end: Ints, launches: Mask) -> Ints:
    """Put threads that take turns into one chain; 0 is the chain that launches most."""
    threads, index = np.unique(thread, return_inverse=True)
    chain = np.zeros(len(thread), np.int64)
    number = np.bincount(index, launches, len(threads))
    together, count = union(np.empty(0, np.int64), np.empty(0, np.int64)), 0
    for one in np.argsort(-number, kind="stable").tolist():
        mine = index == one
        own = union(start[mine], end[mine])
        beside = int(covered(together, own.start, own.end).sum()) if len(together.start) else 0
        if beside <= TAKES_TURNS * max(own.total, 1):
            together = join(together, own)
        else:
            count += 1
            chain[mine] = count
    return chain


def _hops(timeline: Timeline, kinds: Kinds, rows: Ints, start: Ints, end: Ints, chain: Ints) -> Ints:
    """Split the host time between the end of the call before and each call."""
    first = np.append(True, chain[1:] != chain[:-1]) if len(chain) else chain > 0
    since = np.where(first, start, np.append(0, end[:-1]))
    host = timeline.host
    threads = np.unique(host.thread[rows[rows < len(host.thread)]])
    on_chain = np.isin(host.thread, threads)
    parts = []
    for name in ("data_loader", "checkpoint"):
        mine = on_chain & (kinds.of_all == HOST_KINDS.index(name))
        spans = union(host.start[mine], host.end[mine])
        parts.append(covered(spans, since, np.maximum(start, since)) if len(spans.start) else np.zeros_like(start))
    other = (start - since) - parts[0] - parts[1]
    return np.stack([*parts, other], axis=1)
