"""Everything that one rank's trace says by itself.

    analyze_rank(tables, options) -> list[RankPart]     one per source file of the rank

The parts of all ranks are small and picklable: an engine may make them anywhere, and
`perfkit.analysis.summary` joins them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.attribute import Busy, attribute, busy_sets
from perfkit.analysis.classify import CLASSES
from perfkit.analysis.culprits import blame, idle_table
from perfkit.analysis.idle import host_gaps, idle_gaps
from perfkit.analysis.intervals import covered
from perfkit.analysis.io import io_rows
from perfkit.analysis.memory import memory_timeline
from perfkit.analysis.timeline import Timeline, read_timelines
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


@dataclass
class RankPart:
    """What one source file of a rank gives."""

    rank: int
    segment: int
    attribution: pa.Table
    idle: pa.Table
    io: pa.Table
    memory: pa.Table | None
    quality: RankQuality


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


def analyze_rank(tables: Mapping[str, pa.Table], options: Options) -> list[RankPart]:
    """Analyse the timelines in `tables` (as of perfkit.schema); raises if one has nothing to attribute."""
    return [_analyze(timeline, tables, options) for timeline in read_timelines(tables["events"])]


def _analyze(timeline: Timeline, tables: Mapping[str, pa.Table], options: Options) -> RankPart:
    devices: list[int | None] = list(timeline.devices)
    notes = []
    if not devices:
        if not (timeline.host.kind == CLASSES.index("op")).any():
            raise PerfkitError(
                f"rank {timeline.rank}: no device work and no framework ops",
                next_step="profile with ProfilerActivity.CPU or CUDA, and check that the trace is complete",
            )
        devices = [None]
        if (timeline.host.kind == CLASSES.index("runtime")).any():
            notes.append(f"rank {timeline.rank} calls a device runtime but its trace has no device work: CPU time only")
    steps = find_steps(timeline, tables.get("steps")) if options.window == "step" else None
    attribution: list[pa.Table] = []
    idle: list[pa.Table] = []
    io: list[pa.Table] = []
    quality = _quality(timeline, notes)
    for device in devices:
        windows = find_windows(timeline, device, mode=options.window, steps=steps)
        quality.steps_source = windows.source
        quality.steps_found = sorted({*quality.steps_found, *windows.step[windows.step >= 0].tolist()})
        quality.steps_without_work = max(quality.steps_without_work, windows.without_work)
        busy = busy_sets(timeline, device)
        if len(windows.edges):
            quality.after_ns += int(covered(busy.any, windows.edges[-1:], [FOREVER])[0])
        table = attribute(timeline, device, windows, busy, steps)
        windows = windows.select(options.first_step, options.last_step)
        attribution.append(
            table.filter(pc.or_(table["carry_in"], pc.is_in(table["start_ns"], pa.array(windows.start))))
        )
        idle.append(_idle(timeline, tables, device, windows, busy, steps))
        io.append(io_rows(timeline, device, windows, busy, idle[-1]))
    return RankPart(
        timeline.rank, timeline.segment, pa.concat_tables(attribution), pa.concat_tables(idle), pa.concat_tables(io),
        memory_timeline(tables["events"], tables.get("memory"), timeline.rank, timeline.segment), quality,
    )  # fmt: skip


def _idle(
    timeline: Timeline, tables: Mapping[str, pa.Table], device: int | None, windows: Windows, busy: Busy,
    steps: Steps | None,
) -> pa.Table:  # fmt: skip
    if device is None:
        gaps = host_gaps(windows, busy)
        found = blame(timeline, gaps, tables.get("ops"), thread=_main_thread(timeline))
    else:
        gaps = idle_gaps(timeline, device, windows, busy, steps)
        found = blame(timeline, gaps, tables.get("ops"))
    return idle_table(timeline, device, gaps, found)


def _quality(timeline: Timeline, notes: list[str]) -> RankQuality:
    work = timeline.work
    length = work.end - work.start
    return RankQuality(
        events=timeline.num_events, undated=timeline.undated, steps_source="", device_events=len(length),
        launches_missing=int(np.count_nonzero(work.launch < 0)), work_ns=int(length.sum()),
        graph_ns=int(length[timeline.launched_by_graph].sum()), notes=notes,
    )  # fmt: skip


def _main_thread(timeline: Timeline) -> int:
    """Return the thread that spends most time in ops and ranges."""
    host = timeline.host
    rows = np.isin(host.kind, [CLASSES.index("op"), CLASSES.index("range")])
    threads, index = np.unique(host.thread[rows], return_inverse=True)
    spent = np.bincount(index, weights=(host.end - host.start)[rows])
    return int(threads[np.argmax(spent)])
