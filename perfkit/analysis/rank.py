"""Everything that one rank's trace says by itself.

    analyze_rank(tables, options) -> list[RankPart]     one per source file of the rank

The parts of all ranks are small and picklable: an engine may make them anywhere, and
`perfkit.analysis.summary` joins them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa

from perfkit.analysis.attribute import Busy, attribute, busy_sets, rows_of
from perfkit.analysis.bins import bin_middle_step
from perfkit.analysis.calls import CALLS, collective_calls, exposed_rows
from perfkit.analysis.classify import CLASSES
from perfkit.analysis.culprits import blame, idle_table, shares_of
from perfkit.analysis.distortion import Distortion, measure_distortion
from perfkit.analysis.exchanges import copy_rows, exchange_rows
from perfkit.analysis.gap_rows import gap_rows
from perfkit.analysis.idle import host_gaps, idle_gaps
from perfkit.analysis.intervals import Spans, covered, difference, join, union
from perfkit.analysis.io import io_rows
from perfkit.analysis.kernels import kernel_tables
from perfkit.analysis.memory import memory_timeline
from perfkit.analysis.ops import CallTree
from perfkit.analysis.stacks import Kinds
from perfkit.analysis.timeline import TIMELINE_CLASSES, Timeline, give_back, ints, of_classes, read_timelines
from perfkit.analysis.waterfall import window_idle
from perfkit.analysis.windows import FOREVER, Steps, Windows, find_steps, find_windows
from perfkit.errors import PerfkitError, UsageError


@dataclass(frozen=True, slots=True)
class Options:
    """What to analyse."""

    window: str = "step"
    """`step`, or `trace`: one window per rank from its first to its last device event."""
    first_step: int | None = None
    last_step: int | None = None
    """Keep first_step <= step < last_step."""

    def __post_init__(self) -> None:
        if self.window not in ("step", "trace"):
            raise UsageError(f"window {self.window!r} is neither step nor trace")
        if self.window == "trace" and (self.first_step, self.last_step) != (None, None):
            raise UsageError(
                "a window of the whole trace has no steps to choose from", next_step="leave one of them out"
            )


@dataclass
class RankPart:
    """What one source file of a rank gives."""

    rank: int
    segment: int
    attribution: pa.Table
    idle: pa.Table
    io: pa.Table
    memory: pa.Table | None
    kernels: pa.Table
    compute: pa.Table
    """K by window, family and phase: perfkit.analysis.kernels.COMPUTE_SCHEMA."""
    window_idle: pa.Table
    """Idle time by the window in which it passed: perfkit.analysis.waterfall.WINDOW_IDLE."""
    gaps: pa.Table
    """The stretches behind it, on the clock of the rank."""
    exchanges: pa.Table
    copies: pa.Table
    calls: pa.Table
    """Collective calls: perfkit.analysis.calls.CALLS."""
    exposed: pa.Table
    """Exposed communication in pieces: perfkit.analysis.calls.EXPOSED."""
    distortion: Distortion
    quality: RankQuality
    timeline: pa.Table | None = None
    """The middle step of its first device in bins: perfkit.analysis.bins."""


@dataclass
class RankQuality:
    """What one source file of a rank lacks."""

    events: int
    undated: int
    steps_source: str
    steps_without_work: int = 0
    device_events: int = 0
    launches_missing: int = 0
    work_ns: int = 0
    """Summed durations of device work."""
    graph_ns: int = 0
    """Of it, launched by replaying a graph."""
    after_ns: int = 0
    """Busy time after the last window."""
    steps_found: list[int] = field(default_factory=list)
    """Numbers of all steps with a window, before any selection."""
    notes: list[str] = field(default_factory=list)
    device_unseen: bool = False
    """The host calls a device, of whose work nothing was recorded."""
    sources: tuple[str, ...] = ()
    """What recorded it: kineto, nsys, …"""


_RECORD = {
    False: "profile with ProfilerActivity.CPU and CUDA, and whole steps",
    True: "record CUDA and NVTX (nsys profile --trace=cuda,nvtx) and whole steps, and give all tables of the report "
    "(nsys export --type sqlite)",
}
"""What a trace must hold, by whether it was Nsight Systems that recorded."""


def analyze_rank(tables: MutableMapping[str, pa.Table], options: Options, *, by_nsys: bool = False) -> list[RankPart]:
    """Analyse the timelines in `tables` (as of perfkit.schema); raises if one has nothing to attribute.

    `events` is taken out of `tables`, so that its memory is free once the timelines are read.
    """
    others = ~of_classes(tables["events"], TIMELINE_CLASSES)
    rest = {**tables, "events": tables["events"].filter(pa.array(others))}
    shares = {name: split_timelines(rest[name]) for name in _SPLIT if name in rest}
    parts = []
    for timeline in read_timelines(tables.pop("events")):
        if not timeline.devices and not (timeline.host.kind == CLASSES.index("op")).any():
            raise PerfkitError(f"rank {timeline.rank}: no device work and no framework ops", next_step=_RECORD[by_nsys])
        key = timeline.rank, timeline.segment
        mine = {name: share.get(key, rest[name].slice(0, 0)) for name, share in shares.items()}
        parts.append(_analyze(timeline, {**rest, **mine}, options))
    return parts


_SPLIT = ("events", "ops", "collective_args", "process_groups", "memory")
"""Tables by event: looking for a rank's rows in those of all ranks would cost their product."""


def split_timelines(table: pa.Table) -> dict[tuple[int, int], pa.Table]:
    """Cut a table into the rows of each (rank, segment)."""
    if not len(table):
        return {}
    rank, segment = ints(table["rank"]), ints(table["segment"])
    key = rank * (int(segment.max()) + 1) + segment
    if (key[1:] < key[:-1]).any():
        order = np.argsort(key, kind="stable")
        table, key, rank, segment = table.take(order), key[order], rank[order], segment[order]
    edges = np.append(np.flatnonzero(np.append(True, key[1:] != key[:-1])), len(key)).tolist()
    return {(int(rank[lo]), int(segment[lo])): table.slice(lo, hi - lo) for lo, hi in pairwise(edges)}


def _analyze(timeline: Timeline, tables: Mapping[str, pa.Table], options: Options) -> RankPart:
    devices: list[int | None] = list(timeline.devices)
    notes = []
    called = None
    if not devices:
        devices = [None]
        called = _device_called(timeline)
        if called is not None:
            notes.append(f"rank {timeline.rank} calls {called} but its trace has no device work: CPU time only")
    steps = find_steps(timeline, tables.get("steps")) if options.window == "step" else None
    attribution: list[pa.Table] = []
    idle: list[pa.Table] = []
    io: list[pa.Table] = []
    tree: CallTree | None = None
    kinds = Kinds(timeline)
    detail: dict[str, list[pa.Table]] = {
        name: [] for name in ("kernels", "compute", "window_idle", "gaps", "exchanges", "copies", "calls", "exposed")
    }
    lanes: list[pa.Table | None] = []
    standing: list[Spans] = []
    extents: list[Spans] = []
    quality = _quality(timeline, notes)
    quality.device_unseen = called is not None
    for device in devices:
        windows = find_windows(timeline, device, mode=options.window, steps=steps)
        if windows.source not in quality.steps_source:
            quality.steps_source = " + ".join(filter(None, (quality.steps_source, windows.source)))
        quality.steps_found = sorted({*quality.steps_found, *windows.step[windows.step >= 0].tolist()})
        quality.steps_without_work = max(quality.steps_without_work, windows.without_work)
        busy = busy_sets(timeline, device)
        if len(windows.edges):
            quality.after_ns += int(covered(busy.any, windows.edges[-1:], [FOREVER])[0])
        table = attribute(timeline, device, windows, busy, steps)
        windows = windows.select(options.first_step, options.last_step)
        if device is not None and len(windows.edges):
            work = timeline.work_of(device)
            inside = (work.start >= windows.edges[0]) & (work.start < windows.edges[-1])  # the rest is carry-in
            quality.device_events += int(np.count_nonzero(inside))
            quality.launches_missing += int(np.count_nonzero(inside & (work.launch < 0)))
        extents.append(union(windows.edges[:1], windows.edges[-1:]))
        standing.append(difference(extents[-1], busy.any))
        attribution.append(rows_of(table, windows))
        of_steps, of_windows, stretches = _idle(timeline, tables, device, windows, busy, steps, kinds)
        idle.append(of_steps)
        detail["window_idle"].append(of_windows)
        detail["gaps"].append(stretches)
        io.append(io_rows(timeline, device, windows, busy, idle[-1], kinds))
        if tree is None:  # large, so only when the idle time is explained
            give_back(timeline.num_events)
            tree = CallTree(timeline, tables.get("ops"))
            give_back(timeline.num_events)
        found = kernel_tables(timeline, device, windows, busy, tree)
        detail["kernels"].append(found.kernels)
        detail["compute"].append(found.compute)
        calls = _calls(timeline, device, tables, tree, steps, busy)
        detail["calls"].append(calls)
        detail["exchanges"].append(exchange_rows(timeline, device, windows, busy, calls))
        detail["copies"].append(copy_rows(timeline, device, windows, busy))
        detail["exposed"].append(exposed_rows(timeline, device, windows, busy))
        lanes.append(bin_middle_step(windows, busy, timeline.rank))
    return RankPart(
        timeline.rank, timeline.segment, pa.concat_tables(attribution), pa.concat_tables(idle), pa.concat_tables(io),
        memory_timeline(tables["events"], tables.get("memory"), timeline.rank, timeline.segment),
        distortion=measure_distortion(timeline, tables["events"], join(*extents), standing), quality=quality,
        timeline=lanes[0],
        **{name: pa.concat_tables(rows) for name, rows in detail.items()},
    )  # fmt: skip


def _calls(
    timeline: Timeline, device: int | None, tables: Mapping[str, pa.Table], tree: CallTree, steps: Steps | None,
    busy: Busy,
) -> pa.Table:  # fmt: skip
    """Return the collective calls; a device that does not communicate has none to look for."""
    if not len(busy.communication.start):
        return CALLS.empty_table()
    return collective_calls(timeline, device, tables, tree, steps)


def _idle(
    timeline: Timeline, tables: Mapping[str, pa.Table], device: int | None, windows: Windows, busy: Busy,
    steps: Steps | None, kinds: Kinds,
) -> tuple[pa.Table, pa.Table, pa.Table]:  # fmt: skip
    """Return idle time by the step that launched the next work, by the window in which it passed, and its stretches."""
    if device is None:
        gaps = host_gaps(windows, busy)
        found = blame(timeline, gaps, tables.get("ops"), thread=main_thread(timeline), kinds=kinds)
    else:
        gaps = idle_gaps(timeline, device, windows, busy, steps)
        found = blame(timeline, gaps, tables.get("ops"), kinds=kinds)
    shares = shares_of(found)
    return (
        idle_table(timeline, device, gaps, shares),
        window_idle(timeline, device, windows, gaps, shares),
        gap_rows(timeline, device, windows, gaps, found),
    )


def _quality(timeline: Timeline, notes: list[str]) -> RankQuality:
    work = timeline.work
    length = work.end - work.start
    return RankQuality(
        events=timeline.num_events, undated=timeline.undated, steps_source="", work_ns=int(length.sum()),
        graph_ns=int(length[timeline.launched_by_graph].sum()), notes=notes,
    )  # fmt: skip


_DEVICE_ONLY = re.compile(
    r"[nr]ccl:|aten::_?(?:cudnn|miopen)_(?:convolution|batch_norm|rnn|attention)|"
    r"aten::_(?:scaled_dot_product_)?(?:flash|efficient|cudnn)_attention(?!_for_cpu)"
)
"""Ranges and ops that torch has for devices alone."""


def _device_called(timeline: Timeline) -> str | None:
    """Return by what a host without recorded device work gives itself away as one that drives a device."""
    if (timeline.host.kind == CLASSES.index("runtime")).any():
        return "a device runtime"
    return next((name for name in timeline.names if _DEVICE_ONLY.match(name)), None)


def main_thread(timeline: Timeline) -> int:
    """Return the thread that spends most time in ops and ranges."""
    host = timeline.host
    rows = np.isin(host.kind, [CLASSES.index("op"), CLASSES.index("range")])
    threads, index = np.unique(host.thread[rows], return_inverse=True)
    spent = np.bincount(index, weights=(host.end - host.start)[rows])
    return int(threads[np.argmax(spent)])
