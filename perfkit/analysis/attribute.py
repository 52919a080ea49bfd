r"""Charge every nanosecond of a window to exactly one category (definition 2).

    attribute(timeline, device, windows) -> attribution rows

Overlap is resolved by priority: compute, then communication that no compute hides, then copies that
neither hides; the rest is idle. So `exposed_comm` is only the time that training waited on the network.
The parts sum to the window to the nanosecond, by construction: each is a difference of growing unions.

A rank without a device (definition 3) computes in its ops: K is the union of ops, less those that only
hand over to communication or block (on their own thread); C is the work of the CPU collectives (`gloo:*`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.classify import CLASSES, cpu_kind
from perfkit.analysis.intervals import Ints, Spans, clip, covered, difference, join, union
from perfkit.analysis.timeline import Mask, Timeline
from perfkit.analysis.windows import NEVER, Steps, Windows, launch_times
from perfkit.schema import ATTRIBUTION, conform

BLOCK_SPANS = 1 << 17
"""Spans of each set that are added up at once: what stays in the caches costs the same per event, however many."""


@dataclass(frozen=True)
class Busy:
    """The sets of definition 2 on one device."""

    compute: Spans
    communication: Spans
    memcpy: Spans
    unknown: Spans

    @cached_property
    def any(self) -> Spans:
        """K ∪ C ∪ M."""
        return join(self.compute, self.communication, self.memcpy)


def busy_sets(timeline: Timeline, device: int | None) -> Busy:
    """Return what kept a device (None: the host of a rank without one) busy."""
    if device is None:
        return _host_sets(timeline)
    work, here = timeline.work, timeline.work.device == device

    def of(*classes: str) -> Spans:
        rows = here & np.isin(work.kind, [CLASSES.index(c) for c in classes])
        return union(work.start[rows], work.end[rows])

    unknown = here & timeline.unknown
    return Busy(
        of("compute"), of("communication"), of("memcpy", "memset"), union(work.start[unknown], work.end[unknown])
    )


def attribute(timeline: Timeline, device: int | None, windows: Windows, busy: Busy, steps: Steps | None) -> pa.Table:
    """Return one row of `attribution` per window, after one for what runs before the first (carry_in)."""
    start, end, step = windows.start, windows.end, windows.step
    sets = busy.compute, busy.communication, busy.memcpy
    first = min((int(s.start[0]) for s in sets if len(s.start)), default=NEVER)
    early = bool(len(start) and NEVER < first < start[0])
    if early:
        start, end, step = np.append(first, start), np.append(start[0], end), np.append(-1, step)
    carry_in = np.zeros(len(start), bool)
    carry_in[:1] = early
    compute, comm, worked, active = _add_up(busy, start, end)
    number = len(start)
    return conform(
        ATTRIBUTION,
        pa.table(
            {
                "rank": np.full(number, timeline.rank),
                "device": pa.array([device if device is not None and device >= 0 else None] * number, pa.int32()),
                "step": pa.array(step, mask=step < 0),
                "start_ns": start,
                "window_ns": end - start,
                "compute_ns": compute,
                "exposed_comm_ns": worked - compute,
                "exposed_memcpy_ns": active - worked,
                "idle_ns": end - start - active,
                "comm_ns": comm,
                "overlap_ns": comm - (worked - compute),
                "unknown_ns": covered(busy.unknown, start, end),
                "spill_ns": spill(timeline, device, windows, steps, lead=early),
                "carry_in": carry_in,
            }
        ),
    )


def _add_up(busy: Busy, start: Ints, end: Ints) -> Ints:
    """Return how long K, C, K ∪ C and K ∪ C ∪ M last in each window, in blocks of time."""
    sets = busy.compute, busy.communication, busy.memcpy
    cuts = np.unique(np.concatenate([s.start[BLOCK_SPANS::BLOCK_SPANS] for s in sets]))
    total = np.zeros((4, len(start)), np.int64)
    limits = np.iinfo(np.int64)
    for low, high in pairwise([limits.min, *cuts.tolist(), limits.max]):
        compute, comm, memcpy = (clip(s, low, high) for s in sets)
        worked = join(compute, comm)
        begin, stop = np.maximum(start, low), np.minimum(end, high)
        total += [covered(s, begin, stop) for s in (compute, comm, worked, join(worked, memcpy))]
    return total


def rows_of(attribution: pa.Table, windows: Windows) -> pa.Table:
    """Return the carry-in and the rows of `windows`, which are some of those that were attributed."""
    start, step = attribution["start_ns"], pc.fill_null(attribution["step"], -1)
    chosen = pc.and_(pc.is_in(start, pa.array(windows.start)), pc.is_in(step, pa.array(windows.step, step.type)))
    return attribution.filter(pc.or_(attribution["carry_in"], chosen))


def spill(timeline: Timeline, device: int | None, windows: Windows, steps: Steps | None, *, lead: bool) -> pa.Array:
    """Device time of each step's work in later windows; null where steps are not known."""
    rows: list[int | None] = [None] * lead
    if device is None or steps is None or windows.position is None:
        return pa.array(rows + [None] * len(windows.step), pa.int64())
    work = timeline.work_of(device)
    at = steps.at(launch_times(timeline, work, NEVER))
    order = np.argsort(at, kind="stable")
    edges = np.searchsorted(at[order], np.arange(len(steps.number) + 1))
    last = windows.edges[-1]
    for position, end in zip(windows.position.tolist(), windows.end.tolist(), strict=True):
        mine = order[edges[position] : edges[position + 1]]
        later = mine[(work.end[mine] > end) & (work.start[mine] < last)]
        rows.append(union(np.maximum(work.start[later], end), np.minimum(work.end[later], last)).total)
    return pa.array(rows, pa.int64())


def _host_sets(timeline: Timeline) -> Busy:
    host = timeline.host
    used = np.unique(host.name)
    lut = np.full(len(timeline.names), "", object)
    lut[used] = cpu_kind(pa.array([timeline.names[i] for i in used], pa.utf8())).to_pylist()
    what = lut[host.name]
    is_op, is_range = (host.kind == CLASSES.index(c) for c in ("op", "range"))

    def of(rows: Mask) -> Spans:
        return union(host.start[rows], host.end[rows])

    steps = np.array([name.startswith("ProfilerStep") for name in timeline.names], bool)[host.name]
    work, waits = is_op & (what == "work") & ~steps, is_op & (what == "wait")  # old traces record steps as ops
    blocked = np.unique(host.thread[waits])
    compute = [of(work & ~np.isin(host.thread, blocked))]
    for thread in blocked:  # a wait holds up its own thread only
        mine = host.thread == thread
        compute.append(difference(of(work & mine), of(waits & mine)))
    nothing = union([], [])
    return Busy(join(*compute), of((is_op | is_range) & (what == "communication")), nothing, nothing)
