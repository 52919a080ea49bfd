"""Take back what was matched on the belief that unnamed calls are of the whole job.

    without_impossible(calls, matched, clocks) -> Matched, or None if nothing speaks against it

A trace may record no process group at all; its calls are then taken for those of all ranks (perfkit.analysis.groups).
In a job with groups of its own (tensor beside data parallelism, a pipeline) that joins calls which never met, and
whatever follows from them is false: who waited, for whom, how fast the link is. Such pairs betray themselves, for no
member of a collective can end before the last one has begun. If that happens in more than a few instances, or if
devices of one host would have to be off by more than their clocks ever are, the group is not what it was taken for, and
its calls have no partners.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.calls import GROUPS
from perfkit.analysis.classify import encode_text
from perfkit.analysis.clocks import SYNCHRONISING, Clocks
from perfkit.analysis.intervals import Ints
from perfkit.analysis.matching import Matched
from perfkit.analysis.timeline import Mask, ints

TOLERANCE_NS = 20_000
"""Clocks that real collectives align err by less."""
SHIFT_NS, SHIFTED_RANKS = 100_000, 0.25
"""Time stamps of devices on one host differ by less, but for a few that are broken."""
MAX_SHARE = 0.05
MIN_INSTANCES = 8


def without_impossible(calls: pa.Table, matched: Matched, clocks: Clocks) -> Matched | None:
    """Return the matching without groups that cannot be what they were taken for."""
    assumed = _unnamed(calls) & (matched.instance >= 0)
    if not assumed.any() or calls["device"].null_count == len(calls):
        return None
    bad = _impossible(calls, matched, clocks, assumed)
    if not bad:
        return None
    gone = np.isin(matched.gid, bad)
    instance = np.where(gone, -1, matched.instance)
    known = instance >= 0
    instance[known] = np.unique(instance[known], return_inverse=True)[1]
    number = int(np.count_nonzero(gone & (matched.instance >= 0)))
    note = (
        f"the traces do not name the process groups of {np.count_nonzero(gone):,} collective calls, and these are not "
        "all of the whole job (some would end before their partners begin): they are not matched"
    )
    return replace(
        matched, instance=instance, groups=_forget(matched.groups, bad), unmatched=matched.unmatched + number,
        notes=[*matched.notes, note],
    )  # fmt: skip


def _unnamed(calls: pa.Table) -> Mask:
    """Say which calls tell nothing about their group."""
    told = [pc.is_valid(calls[name]) for name in ("group", "group_ranks", "group_size")]
    result: Mask = ~np.array(pc.or_(pc.or_(told[0], told[1]), told[2]), bool)
    return result


def _impossible(calls: pa.Table, matched: Matched, clocks: Clocks, assumed: Mask) -> list[int]:
    """Return the groups of which too many instances end somewhere before they begin elsewhere."""
    rank, start, end = (ints(calls[name]) for name in ("rank", "start_ns", "end_ns"))
    op, names = encode_text(calls["op"])
    meets = np.array([*(name in SYNCHRONISING for name in names), False])[op]
    clock = clocks.of_rank(rank)
    aligned = np.array([*(host.u_ns is not None for host in clocks.hosts), False])[clock]
    rows = np.flatnonzero(assumed & meets & aligned)
    rows = rows[np.argsort(matched.instance[rows], kind="stable")]
    if not len(rows):
        return []
    one = matched.instance[rows]
    edges: Ints = np.flatnonzero(np.append(True, one[1:] != one[:-1]))
    begins = clocks.align(rank[rows], start[rows])
    ends = begins + (end - start)[rows]
    late = np.maximum.reduceat(begins, edges) - np.minimum.reduceat(ends, edges) > TOLERANCE_NS
    gid = matched.gid[rows[edges]]
    total, wrong = np.bincount(gid), np.bincount(gid, late)
    shifted = sum(abs(value) > SHIFT_NS for value in clocks.corrections.values())
    if shifted > max(1, SHIFTED_RANKS * len(np.unique(rank))):
        wrong = total
    found: list[int] = np.flatnonzero((total >= MIN_INSTANCES) & (wrong > MAX_SHARE * total)).tolist()
    return found


def _forget(groups: pa.Table, bad: list[int]) -> pa.Table:
    """Return the groups with nothing known about the members of some."""
    rows = groups.to_pylist()
    for i in bad:
        rows[i] |= {"ranks": None, "size": None, "traced": 0}
    return pa.Table.from_pylist(rows, schema=GROUPS)
