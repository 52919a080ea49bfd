"""How far the profiler itself may have changed what it recorded.

    measure_distortion(timeline, events, windows, idle) -> Distortion      of one source file of a rank

The profiler writes its own work as `overhead` events (buffer flushes, instrumentation). Only what the device
waited for meanwhile counts; the rest ran beside training. What it costs inside the host's calls grows with what
it records, and cannot be measured from its own trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.classify import CLASSES
from perfkit.analysis.intervals import Spans, intersect, union
from perfkit.analysis.timeline import Timeline, ints


@dataclass(frozen=True)
class Distortion:
    """What the profiler recorded, and what it admits."""

    rank: int
    overhead_ns: int
    """Idle time of the devices during its own events."""
    python_events: int
    """Frames recorded (`with_stack`)."""
    launches: int
    """Pieces of device work inside the windows."""
    lost: int
    """Of them, those whose launch call is missing; 0 if it recorded no calls at all, for then it lost none."""


def measure_distortion(timeline: Timeline, events: pa.Table, windows: Spans, idle: Sequence[Spans]) -> Distortion:
    """Count what one source file recorded; `idle` is the idle time of each device inside the windows."""
    mine = pc.and_(pc.equal(events["rank"], timeline.rank), pc.equal(events["segment"], timeline.segment))
    own = events.filter(pc.and_(mine, pc.equal(events["class"].cast(pa.utf8()), "overhead")))
    own = own.filter(pc.and_(pc.is_valid(own["start_ns"]), pc.is_valid(own["dur_ns"])))
    start = ints(own["start_ns"])
    overhead = union(start, start + ints(own["dur_ns"]))
    work = timeline.work
    low, high = (int(windows.start[0]), int(windows.end[-1])) if len(windows.start) else (0, 0)
    inside = (work.start >= low) & (work.start < high)  # what was queued before the recording has no launch either
    lost = inside & (work.launch < 0) & bool((work.launch >= 0).any())
    return Distortion(
        timeline.rank, sum(intersect(overhead, one).total for one in idle),
        int(np.count_nonzero(timeline.host.kind == CLASSES.index("python"))), int(np.count_nonzero(inside)),
        int(np.count_nonzero(lost)),
    )  # fmt: skip
