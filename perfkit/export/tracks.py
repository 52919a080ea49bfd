r"""perfkit's own tracks of a rank: its steps, where their time went, who waited for whom.

    partition(timeline, …)          -> Slices     compute, exposed communication by kind, copies, idle by culprit
    step_slices(steps)              -> Slices     the windows of definition 1
    wait_slices(calls)              -> [Slices]   every collective as its wait and its transfer

Times are on the rank's own clock for the partition and the steps, on the reference clock for collectives (as in table
`collectives`); the caller aligns. The partition covers the windows to the nanosecond and overlaps nowhere.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.attribute import busy_sets
from perfkit.analysis.culprits import blame
from perfkit.analysis.idle import CAUSES, host_gaps, idle_gaps
from perfkit.analysis.intervals import Ints, Spans, difference, intersect, join, union
from perfkit.analysis.rank import main_thread
from perfkit.analysis.timeline import Timeline, ints
from perfkit.analysis.windows import find_steps, find_windows


class Slices(NamedTuple):
    """Slices of one track, in order of start."""

    start: Ints
    end: Ints
    name: list[str]
    args: list[str]
    """JSON of each."""


def make_slices(parts: list[tuple[Ints, Ints, list[str], list[str]]]) -> Slices:
    """Join slices and sort them."""
    if not parts:
        return Slices(np.empty(0, np.int64), np.empty(0, np.int64), [], [])
    start, end = (np.concatenate([part[i] for part in parts]).astype(np.int64) for i in (0, 1))
    names, args = ([text for part in parts for text in part[i]] for i in (2, 3))
    order = np.argsort(start, kind="stable")
    return Slices(start[order], end[order], [names[i] for i in order], [args[i] for i in order])


def partition(
    timeline: Timeline, device: int | None, tables: Mapping[str, pa.Table], split: Callable[[Spans], dict[str, Spans]]
) -> Slices:
    """Return what every nanosecond of the windows of a device went to; `split` labels exposed communication."""
    steps = find_steps(timeline, tables.get("steps"))
    windows = find_windows(timeline, device, mode="step", steps=steps)
    busy = busy_sets(timeline, device)
    whole = union(windows.edges[:1], windows.edges[-1:])
    exposed = difference(busy.communication, busy.compute)
    copies = difference(busy.memcpy, join(busy.compute, busy.communication))
    kinds = {"compute": busy.compute, **split(intersect(exposed, whole)), "exposed copy": copies}
    parts = []
    for name, spans in kinds.items():
        inside = intersect(spans, whole)
        number = len(inside.start)
        parts.append((inside.start, inside.end, [name] * number, ["{}"] * number))
    if device is None:
        gaps = host_gaps(windows, busy)
        found = blame(timeline, gaps, tables.get("ops"), thread=main_thread(timeline))
    else:
        gaps = idle_gaps(timeline, device, windows, busy, steps)
        found = blame(timeline, gaps, tables.get("ops"))
    labels = [*found.labels, (None, None)]
    idle = [(CAUSES[c], *labels[i]) for c, i in zip(gaps.cause[found.gap].tolist(), found.label.tolist(), strict=True)]
    names = [f"idle: {culprit or cause}" for cause, culprit, _ in idle]
    args = [json.dumps({"cause": cause, "culprit": culprit, "where": where}) for cause, culprit, where in idle]
    parts.append((found.start, found.end, names, args))
    return make_slices(parts)


def split_exposed(calls: pa.Table) -> Callable[[Spans], dict[str, Spans]]:
    """Return a function that labels exposed communication of a rank by definition 9; `calls` are on its clock."""
    start, length, wait = (ints(calls[name]) for name in ("start_ns", "dur_ns", "wait_ns"))
    known = wait >= 0
    receives = np.array(pc.and_(pc.equal(calls["group"], "pp"), pc.equal(calls["op"], "recv")).fill_null(False), bool)
    bubble = union(start[receives], (start + length)[receives])
    moves = known & ~receives
    transfer = union((start + wait)[moves], (start + length)[moves])
    waits = union(start[moves], (start + wait)[moves])

    def split(exposed: Spans) -> dict[str, Spans]:
        moving = intersect(exposed, transfer)
        rest = difference(exposed, transfer)
        waiting = intersect(rest, waits)
        rest = difference(rest, waits)
        return {
            "exposed transfer": moving, "exposed wait": waiting, "pipeline bubble": intersect(rest, bubble),
            "exposed communication": difference(rest, bubble),
        }  # fmt: skip

    return split


def step_slices(steps: pa.Table) -> Slices:
    """Return the windows of one device of a rank, from rows of `attribution`."""
    parts = [name for name in steps.column_names if name.endswith("_ns") and name not in ("start_ns", "window_ns")]
    rows = steps.select(["step", "start_ns", "window_ns", "carry_in", *parts]).to_pylist()
    names = [
        "carry-in" if row["carry_in"] else "whole trace" if row["step"] is None else f"step {row['step']}"
        for row in rows
    ]
    start = np.array([row["start_ns"] for row in rows], np.int64)
    end = start + np.array([row["window_ns"] for row in rows], np.int64)
    args = [json.dumps({name: row[name] for name in parts if row[name] is not None}) for row in rows]
    return make_slices([(start, end, names, args)])


def wait_slices(calls: pa.Table) -> list[Slices]:
    """Return the wait and the transfer of a rank's collectives; those that overlap go to lanes of their own."""
    rows = calls.sort_by("start_ns").to_pylist()
    lanes: list[list[tuple[int, int, str, str]]] = []
    free: list[tuple[int, int]] = []  # (end of the last slice, lane)
    for row in rows:  # calls of collectives, not events
        begin, length, wait = row["start_ns"], row["dur_ns"], row["wait_ns"]
        if free and free[0][0] <= begin:
            lane = heapq.heappop(free)[1]
        else:
            lane = len(lanes)
            lanes.append([])
        heapq.heappush(free, (begin + length, lane))
        what = f"{row['op']} ({row['group'] or '?'})"
        told = ("instance", "bytes", "dtype", "busbw_gbps", "exposed_wait_ns", "exposed_transfer_ns", "matched")
        args = json.dumps({key: row[key] for key in told if row[key] is not None})
        if wait is None:
            lanes[lane].append((begin, begin + length, f"not split: {what}", args))
            continue
        whom = "" if row["caused_by"] is None else f" for rank {row['caused_by']}"
        if wait > 0:
            lanes[lane].append((begin, begin + wait, f"wait{whom}: {what}", args))
        if wait < length:
            lanes[lane].append((begin + wait, begin + length, f"transfer: {what}", args))
    columns = ([list(column) for column in zip(*lane, strict=True)] for lane in lanes)
    return [make_slices([(np.array(start), np.array(end), names, args)]) for start, end, names, args in columns]


def busy_devices(timeline: Timeline) -> list[int | None]:
    """Return the devices of a timeline; None stands for the host of a rank without any."""
    return list(timeline.devices) or [None]
