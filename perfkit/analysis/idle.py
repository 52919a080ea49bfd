"""Why a device stood still (definition 5).

    idle_gaps(timeline, device, windows, busy, steps) -> Gaps        every gap, cut into causes

A gap [e, s) ends with the piece of work that starts at s; its launch call starts at l. Until l the host
had not asked for anything (`host_late`). From then on the work was on its way: up to 20 µs is launch
latency, more means that it waited for something on the device (`dependency`). Without a launch call in
the trace, or without any work to follow, the gap is `unattributed`. Gaps are of the whole device: a
stream that waits while another computes costs nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfkit.analysis.attribute import Busy
from perfkit.analysis.intervals import Ints, difference, overlaps, union
from perfkit.analysis.timeline import Timeline
from perfkit.analysis.windows import FOREVER, NEVER, Steps, Windows

LATENCY_NS = 20_000
"""Longest time from a launch call to its work that counts as launch latency, and from a device running
dry to the return of the sync that waited for it."""
CAUSES = ("host_late", "launch", "dependency", "unattributed")


class Gaps(NamedTuple):
    """Idle stretches of one device, each with one cause; a gap of the device may give two."""

    start: Ints
    end: Ints
    cause: Ints
    """Index into CAUSES."""
    step: Ints
    """Step that launched the work after the gap, else the step of the window; -1 for none."""
    dry: Ints
    """When the device ran dry (e)."""
    launch: Ints
    """Entry of the launch call in timeline.host, -1 for none."""


def idle_gaps(timeline: Timeline, device: int, windows: Windows, busy: Busy, steps: Steps | None) -> Gaps:
    """Return the idle stretches inside the windows, by cause."""
    everything = busy.any
    if not len(windows.step):
        return Gaps(*(np.empty(0, np.int64) for _ in Gaps._fields))
    whole = union(windows.edges[:1], windows.edges[-1:])
    idle = difference(whole, everything)
    # the true gap, which may reach beyond the windows
    position = np.searchsorted(everything.start, idle.start, side="right")
    dry = np.where(position > 0, np.append(everything.end, NEVER)[position - 1], idle.start)
    resume = np.append(everything.start, FOREVER)[position]
    launch = _launch_after(timeline, device, resume)
    asked = np.append(timeline.host.start, FOREVER)[launch]  # -1, no launch, is the last entry
    late_until = np.clip(asked, dry, resume)
    rest = np.where(resume - late_until <= LATENCY_NS, CAUSES.index("launch"), CAUSES.index("dependency"))
    known = launch >= 0

    # a gap becomes up to two stretches; windows cut them where a gap crosses an edge
    start = np.concatenate((idle.start, np.where(known, np.maximum(idle.start, late_until), idle.end)))
    end = np.concatenate((np.where(known, np.minimum(idle.end, late_until), idle.end), idle.end))
    first = np.where(known, CAUSES.index("host_late"), CAUSES.index("unattributed"))
    cause = np.concatenate((first, rest))
    source = np.tile(np.arange(len(idle.start)), 2)
    rows, window, start, end = overlaps(start, end, windows.start, windows.end)
    source, cause = source[rows], cause[rows]
    step = windows.step[window]
    if steps is not None:
        at = steps.at(np.where(known, asked, NEVER))[source]
        step = np.where(at >= 0, steps.number[at], step)
    order = np.argsort(start, kind="stable")
    return Gaps(*(c[order] for c in (start, end, cause, step, dry[source], launch[source])))


def host_gaps(windows: Windows, busy: Busy) -> Gaps:
    """Return the idle stretches of a rank without a device: all of them are the host's own."""
    if not len(windows.step):
        return Gaps(*(np.empty(0, np.int64) for _ in Gaps._fields))
    idle = difference(union(windows.edges[:1], windows.edges[-1:]), busy.any)
    _, window, start, end = overlaps(idle.start, idle.end, windows.start, windows.end)
    nothing = np.full(len(start), -1, np.int64)
    return Gaps(start, end, np.full(len(start), CAUSES.index("host_late")), windows.step[window], start, nothing)


def _launch_after(timeline: Timeline, device: int, resume: Ints) -> Ints:
    """Launch call of the work that starts at each instant; of several the one launched first."""
    work = timeline.work
    if not len(resume):
        return np.empty(0, np.int64)
    at = np.minimum(np.searchsorted(resume, work.start), len(resume) - 1)
    rows = np.flatnonzero((resume[at] == work.start) & (work.end > work.start) & (work.device == device))
    rows = rows[work.launch[rows] >= 0]
    asked = timeline.host.start[work.launch[rows]]
    result = np.full(len(resume), -1, np.int64)
    order = np.argsort(-asked, kind="stable")  # the first to be launched is written last, and stays
    result[at[rows[order]]] = work.launch[rows[order]]
    return result
