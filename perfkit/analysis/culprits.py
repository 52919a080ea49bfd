"""Whom a late host is blamed on (definition 6).

    blame(timeline, gaps, ops=None)           -> Blame       every idle stretch, cut by who held the host up
    idle_table(timeline, device, gaps, blame) -> idle rows

A blocking sync (on any thread) that began before the device ran dry and returned within 20 µs after owns
the gap: it returned because the device ran dry, and the Python after it is innocent. Otherwise each
nanosecond belongs to the deepest event of the launching thread. Its kind is that of the nearest event up
its stack that has one (`aten::stack` inside the data loader is the data loader's; `cudaMalloc` inside the
optimizer is the allocator's); failing that, `python` for frames and ranges, `framework` for ops, `runtime`
for driver calls. Where no event of that thread is open, nobody is blamed: `unattributed`.

The place is file:line of the innermost frame of the user's own code when the trace has stacks, else the
name of the event that gave the kind.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from perfkit.analysis.classify import HOST_KINDS
from perfkit.analysis.idle import CAUSES, LATENCY_NS, Gaps
from perfkit.analysis.intervals import Ints, covered, difference, innermost, overlaps, union
from perfkit.analysis.stacks import Kinds, Stacks
from perfkit.analysis.timeline import Host, Mask, Timeline
from perfkit.schema import IDLE, conform


class Blame(NamedTuple):
    """Stretches that cover every gap exactly, each with one culprit."""

    gap: Ints
    start: Ints
    end: Ints
    label: Ints
    """Index into labels; -1 where the host was not late."""
    labels: list[tuple[str, str | None]]
    """(culprit, where)."""


def blame(timeline: Timeline, gaps: Gaps, ops: pa.Table | None = None, thread: int | None = None) -> Blame:
    """Cut the gaps by culprit. `thread` is watched instead of the launching one (ranks without a device)."""
    late = gaps.cause == CAUSES.index("host_late")
    threads = np.full(len(late), -1 if thread is None else thread, np.int64)
    if thread is None and len(timeline.host.thread):
        threads = np.where(gaps.launch >= 0, timeline.host.thread[gaps.launch], -1)
    kinds = Kinds(timeline)
    sync = _sync_owner(timeline.host, kinds, gaps, late) if thread is None else np.full(len(late), -1, np.int64)
    open_ = np.flatnonzero(late & (sync < 0))

    watched = np.isin(timeline.host.thread, np.unique(np.append(threads[open_], timeline.host.thread[sync[sync >= 0]])))
    reach = union(
        np.append(gaps.start[open_], timeline.host.start[sync[sync >= 0]]),
        np.append(gaps.end[open_], gaps.dry[sync >= 0]),
    )
    watched &= covered(reach, timeline.host.start, timeline.host.end) > 0
    rows = np.flatnonzero(watched)
    host = timeline.host.take(rows)
    pieces, parents = innermost(host.start, host.end, host.thread)
    stacks = Stacks(timeline, host, parents, kinds, ops)

    parts: list[tuple[Ints, Ints, Ints, Ints]] = []  # gap, start, end, owner: entry of `host`, -1 nobody, -2 no blame
    settled = np.flatnonzero(~late)
    parts.append((settled, gaps.start[settled], gaps.end[settled], np.full(len(settled), -2, np.int64)))
    owned = np.flatnonzero(sync >= 0)
    parts.append((owned, gaps.start[owned], gaps.end[owned], np.searchsorted(rows, sync[owned])))
    piece_thread = host.thread[pieces.owner]
    for t in np.unique(threads[open_]):
        mine, here = open_[threads[open_] == t], piece_thread == t
        start, end, owner = pieces.start[here], pieces.end[here], pieces.owner[here]
        row, piece, low, high = overlaps(gaps.start[mine], gaps.end[mine], start, end)
        parts.append((mine[row], low, high, owner[piece]))
        free = difference(union(gaps.start[mine], gaps.end[mine]), union(start, end))
        row, _, low, high = overlaps(gaps.start[mine], gaps.end[mine], free.start, free.end)
        parts.append((mine[row], low, high, np.full(len(row), -1, np.int64)))
    gap, start, end, owner = (np.concatenate(column) for column in zip(*parts, strict=True))

    label, labels = stacks.label(owner)
    return Blame(gap, start, end, label, labels)


def idle_table(timeline: Timeline, device: int | None, gaps: Gaps, found: Blame) -> pa.Table:
    """Sum the stretches by step, cause, culprit and place: rows of `idle`."""
    step = gaps.step[found.gap]
    rows = pa.table(
        {
            "step": pa.array(step, mask=step < 0),
            "cause": gaps.cause[found.gap],
            "label": found.label,
            "idle_ns": found.end - found.start,
            "gap": found.gap,
        }
    )
    table = rows.group_by(["step", "cause", "label"], use_threads=False).aggregate(
        [("idle_ns", "sum"), ("gap", "count_distinct")]
    )
    labels: list[tuple[str | None, str | None]] = [*found.labels, (None, None)]
    chosen = [labels[i] for i in table["label"].to_pylist()]
    return conform(
        IDLE,
        pa.table(
            {
                "rank": np.full(len(table), timeline.rank),
                "device": pa.array([device if device is not None and device >= 0 else None] * len(table), pa.int32()),
                "step": table["step"],
                "cause": pa.array([CAUSES[i] for i in table["cause"].to_pylist()], pa.utf8()),
                "culprit": pa.array([culprit for culprit, _ in chosen], pa.utf8()),
                "where": pa.array([where for _, where in chosen], pa.utf8()),
                "idle_ns": table["idle_ns_sum"],
                "gaps": table["gap_count_distinct"],
            }
        ),
    )


def _sync_owner(host: Host, kinds: Kinds, gaps: Gaps, late: Mask) -> Ints:
    """Return the sync that owns each gap, -1 for none; of several the one that blocked longest."""
    owner = np.full(len(late), -1, np.int64)
    syncs = np.flatnonzero(kinds.of_rows(host) == HOST_KINDS.index("sync"))
    syncs = syncs[np.argsort(host.end[syncs], kind="stable")]
    ends = host.end[syncs]
    rows = np.flatnonzero(late)
    first = np.searchsorted(ends, gaps.dry[rows], side="left")
    count = np.searchsorted(ends, gaps.dry[rows] + LATENCY_NS, side="right") - first
    row = np.repeat(rows, count)
    candidate = syncs[np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)]
    began = host.start[candidate] < gaps.dry[row]
    row, candidate = row[began], candidate[began]
    order = np.argsort(-host.start[candidate], kind="stable")  # the first to begin is written last, and stays
    owner[row[order]] = candidate[order]
    return owner
