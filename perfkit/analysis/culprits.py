"""Whom a late host is blamed on (definition 6).

    blame(timeline, gaps, ops=None)           -> Blame       every idle stretch, cut by who held the host up
    shares_of(found)                          -> Shares      the stretches of each gap, summed by label
    idle_table(timeline, device, gaps, shares) -> idle rows

A blocking sync (on any thread) that began before the device ran dry and returned within 20 µs after owns
the gap: it returned because the device ran dry, and the Python after it is innocent. Otherwise each
nanosecond belongs to the deepest event of the launching thread. Its kind is that of the nearest event up
its stack that has one (`aten::stack` inside the data loader is the data loader's; `cudaMalloc` inside the
optimizer is the allocator's); failing that, `python` for frames and ranges, `framework` for ops, `runtime`
for driver calls. Where no event of that thread is open, nobody is blamed: `unattributed`.

Work that waits although it was asked for (`dependency`) has no culprit, except for the time inside a launch call of
more than 200 µs: there the driver was busy, with loading the kernel's code for example, and no stream waited.

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
from perfkit.analysis.timeline import Host, Mask, Timeline, device_column
from perfkit.schema import IDLE, conform

SLOW_CALL_NS = 10 * LATENCY_NS
"""Longer than any launch call takes on a slow host that has nothing to load."""


class Blame(NamedTuple):
    """Stretches that cover every gap exactly, each with one culprit."""

    gap: Ints
    start: Ints
    end: Ints
    label: Ints
    """Index into labels; -1 where the host was neither late nor inside a slow launch call."""
    labels: list[tuple[str, str | None]]
    """(culprit, where)."""


def blame(
    timeline: Timeline, gaps: Gaps, ops: pa.Table | None = None, thread: int | None = None, kinds: Kinds | None = None
) -> Blame:
    """Cut the gaps by culprit. `thread` is watched instead of the launching one (ranks without a device)."""
    late = gaps.cause == CAUSES.index("host_late")
    threads = np.full(len(late), -1 if thread is None else thread, np.int64)
    if thread is None and len(timeline.host.thread):
        threads = np.where(gaps.launch >= 0, timeline.host.thread[gaps.launch], -1)
    kinds = kinds or Kinds(timeline)
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
    return _in_slow_calls(timeline, gaps, Blame(gap, start, end, label, labels))


def _in_slow_calls(timeline: Timeline, gaps: Gaps, found: Blame) -> Blame:
    """Label what work that was asked for waited inside its own launch call: the driver was busy, not a stream.

    A copy's call may block until the copy is done, so that its length says nothing.
    """
    host, launch = timeline.host, gaps.launch[found.gap]
    if not len(host.start):
        return found
    slow = (gaps.cause[found.gap] == CAUSES.index("dependency")) & (launch >= 0)
    slow &= (host.end[launch] - host.start[launch]) > SLOW_CALL_NS
    slow &= np.array(["launch" in name.lower() for name in timeline.names], bool)[host.name[launch]]
    rows = np.flatnonzero(slow & (host.end[launch] > found.start))
    if not len(rows):
        return found
    until = np.minimum(host.end[launch[rows]], found.end[rows])
    names, code = np.unique(host.name[launch[rows]], return_inverse=True)
    labels = [*found.labels, *(("runtime", f"inside {timeline.names[i]}") for i in names.tolist())]
    start, rest = found.start.copy(), until < found.end[rows]
    start[rows] = until
    keep = np.ones(len(start), bool)
    keep[rows[~rest]] = False
    return Blame(
        np.append(found.gap[keep], found.gap[rows]), np.append(start[keep], found.start[rows]),
        np.append(found.end[keep], until), np.append(found.label[keep], code + len(found.labels)), labels,
    )  # fmt: skip


def idle_table(timeline: Timeline, device: int | None, gaps: Gaps, shares: Shares) -> pa.Table:
    """Sum the stretches by step, cause, culprit and place: rows of `idle`."""
    total = sum_shares(gaps.step, gaps, shares)
    return conform(
        IDLE,
        pa.table(
            {
                "rank": np.full(len(total.step), timeline.rank),
                "device": device_column(device, len(total.step)),
                "step": pa.array(total.step, mask=total.step < 0),
                "cause": total.cause,
                "culprit": total.culprit,
                "where": total.where,
                "idle_ns": total.idle_ns,
                "gaps": total.gaps,
            }
        ),
    )


class Shares(NamedTuple):
    """Idle time of each gap by label; columns of equal length, in the order of the gaps."""

    gap: Ints
    label: Ints
    """Index into labels; their number where there is none."""
    ns: Ints
    labels: list[tuple[str, str | None]]


class IdleSums(NamedTuple):
    """Stretches summed by step, cause and label; columns of equal length."""

    step: Ints
    cause: pa.Array
    culprit: pa.Array
    where: pa.Array
    idle_ns: Ints
    gaps: Ints
    """Distinct gaps."""


def shares_of(found: Blame) -> Shares:
    """Sum the stretches of each gap by label."""
    size = len(found.labels) + 1
    key = found.gap * size + found.label % size  # -1, nobody, is the last label
    if not len(key):
        return Shares(key, key, key, found.labels)
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    length = np.add.reduceat((found.end - found.start)[order], first)
    return Shares(key[first] // size, key[first] % size, length, found.labels)


def sum_shares(step: Ints, gaps: Gaps, shares: Shares) -> IdleSums:
    """Sum the shares by `step`, the step of each gap, and by cause and label."""
    gap, label = shares.gap, shares.label
    rows = pa.table({"step": step[gap], "cause": gaps.cause[gap], "label": label, "ns": shares.ns})
    table = rows.group_by(["step", "cause", "label"], use_threads=False).aggregate([("ns", "sum"), ("ns", "count")])
    index = table["label"]
    culprit, where = zip(*shares.labels, (None, None), strict=True)
    return IdleSums(
        table["step"].to_numpy(), pa.array(CAUSES).take(table["cause"]), pa.array(culprit, pa.utf8()).take(index),
        pa.array(where, pa.utf8()).take(index), table["ns_sum"].to_numpy(), table["ns_count"].to_numpy(),
    )  # fmt: skip


def _sync_owner(host: Host, kinds: Kinds, gaps: Gaps, late: Mask) -> Ints:
    """Return the sync that owns each gap, -1 for none; of several the one that blocked longest."""
    owner = np.full(len(late), -1, np.int64)
    syncs = np.flatnonzero(kinds.of_all == HOST_KINDS.index("sync"))
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
