"""Find the calls of different ranks that are one collective (definition 8).

    match_calls(calls, ranks, world_size) -> Matched      group and instance of every call

A channel is what numbers its calls: a process group, or sender and receiver of messages. Where sequence numbers
are recorded they decide. Else the k-th call of a step on one rank is the k-th on the others, if all of them made
the same calls in that step; calls before the first step count backwards from it. Steps in which they did not
(lost events, a trace that began in the middle) are matched by their ends in time, which a synchronising
collective shares. Nothing is matched twice; what finds no partner is counted.

Everything is a few sorts over all calls, so the cost is linear in ranks but for the logarithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from perfkit.analysis.call_args import NONE
from perfkit.analysis.call_columns import MESSAGES
from perfkit.analysis.classify import encode_text
from perfkit.analysis.groups import find_groups
from perfkit.analysis.intervals import Ints
from perfkit.analysis.matching_time import Ends, match_in_time
from perfkit.analysis.timeline import Mask, ints

SAME_SIZE = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
"""Collectives in which all members move messages of one size."""
_FAR = 2**40
"""Labels of runs that were matched by time; no step is numbered so high."""


@dataclass
class Matched:
    """Group and instance of every call."""

    gid: Ints
    channel: Ints
    instance: Ints
    """Same number on all members, in order of first appearance in time; -1 without a partner."""
    groups: pa.Table
    unmatched: int = 0
    """Calls without a partner although another member of their group has a trace."""
    alone: int = 0
    """Calls of groups of which only one member has a trace."""
    notes: list[str] = field(default_factory=list)


def match_calls(calls: pa.Table, ranks: Sequence[int], world_size: int | None) -> Matched:
    """Match the calls of all ranks."""
    groups, gid, notes = find_groups(calls, ranks, world_size)
    if not len(calls):
        return Matched(gid, gid, gid, groups, notes=notes)
    rank = ints(calls["rank"])
    ops, op_names = encode_text(calls["op"])
    ops = ops.astype(np.int64)
    channel, receiver = _channels(gid, rank, ints(calls["peer"]), ops, op_names)
    block = _blocks(rank, ints(calls["segment"]), ints(calls["step"]))
    sign = _signatures(calls, ops, op_names)
    end = ints(calls["end_ns"])
    length = end - ints(calls["start_ns"])
    member = np.where(receiver >= 0, receiver, rank)
    channel = np.where(np.append(groups["traced"].to_numpy(), 0)[gid] > 0, channel, NONE)
    place = _by_number(channel, np.where(receiver >= 0, NONE, ops), ints(calls["seq"]), member)
    rest = np.flatnonzero(place[0] < 0)
    if len(rest):
        place[:, rest] = _by_order(*(column[rest] for column in (channel, member, block, sign, end, length)))
    instance, again = _number(place, channel, member, end)
    if again:
        notes.append(f"{again} calls are recorded twice under one rank: the later ones are left out of matching")
    traced = groups["traced"].to_numpy()
    lonely = instance < 0
    alone = lonely & (np.append(traced, 0)[gid] < 2) & ~np.isin(ops, _codes(op_names, MESSAGES))
    unmatched = int(np.count_nonzero(lonely & ~alone))
    return Matched(gid, channel, instance, groups, unmatched, int(np.count_nonzero(alone)), notes)


def _codes(names: list[str], wanted: Sequence[str]) -> list[int]:
    return [i for i, name in enumerate(names) if name in wanted]


def _channels(gid: Ints, rank: Ints, peer: Ints, ops: Ints, names: list[str]) -> tuple[Ints, Ints]:
    """Return the channel of each call, -1 for none, and for messages which end it is (0 sends, 1 receives)."""
    sends, receives = (np.isin(ops, _codes(names, [op])) for op in MESSAGES)
    message = sends | receives
    source, target = np.where(sends, rank, peer), np.where(sends, peer, rank)
    channel = _code(gid, np.where(message, source, NONE), np.where(message, target, NONE))
    channel = np.where(message & (peer < 0), NONE, channel)
    return channel, np.where(sends, 0, np.where(receives, 1, NONE))


def _blocks(rank: Ints, segment: Ints, step: Ints) -> Ints:
    """Return the step of each call; one without follows the call before it, and -1 comes before all steps."""
    filled = np.where(step >= 0, np.arange(len(step)), NONE)
    new = np.append(True, (rank[1:] != rank[:-1]) | (segment[1:] != segment[:-1]))
    begin = np.maximum.accumulate(np.where(new, np.arange(len(step)), 0))
    filled = np.maximum.accumulate(filled)
    result: Ints = np.where(filled >= begin, step[np.maximum(filled, 0)], NONE)
    return result


def _signatures(calls: pa.Table, ops: Ints, names: list[str]) -> Ints:
    """Return a number that members of one instance share: operation, type and, where it is the same, size."""
    dtype, _ = encode_text(calls["dtype"])
    size = np.maximum(ints(calls["in_bytes"]), ints(calls["out_bytes"]))
    size = np.where(np.isin(ops, _codes(names, SAME_SIZE)), size, NONE)
    both = np.where(np.isin(ops, _codes(names, MESSAGES)), NONE, ops)
    return _code(both, dtype.astype(np.int64), size)


# ------------------------------------------------------------------ who meets whom


def _by_number(channel: Ints, kind: Ints, seq: Ints, member: Ints) -> Ints:
    """Place the calls of channels whose members share sequence numbers: (channel, number, kind and occurrence)."""
    place = np.full((3, len(channel)), NONE, np.int64)
    size = int(channel.max(initial=-1)) + 1
    numbered = np.append(np.ones(size, bool), False)
    numbered[channel[seq < 0]] = False
    numbered[-1] = False
    rows = np.flatnonzero(numbered[channel])
    if not len(rows):
        return place
    order = rows[np.lexsort((member[rows], seq[rows], channel[rows]))]
    meet = ~_changes(channel[order], seq[order])[1:] & (member[order][1:] != member[order][:-1])
    shared = np.append(False, meet) | np.append(meet, False)
    met = np.bincount(channel[order], shared, size)
    rows = rows[(met >= _second_largest(channel[rows], member[rows], size))[channel[rows]]]
    kinds = int(kind.max(initial=0)) + 2
    place[0, rows], place[1, rows] = channel[rows], seq[rows]
    nth, _ = _positions(channel[rows], seq[rows], kind[rows], member[rows])
    place[2, rows] = nth * kinds + kind[rows] + 1
    return place


def _by_order(channel: Ints, member: Ints, block: Ints, sign: Ints, end: Ints, length: Ints) -> Ints:
    """Place calls by their position in the step; steps in which the members differ, by time."""
    place = np.full((3, len(channel)), NONE, np.int64)
    rows = np.flatnonzero(channel >= 0)
    nth, count = _positions(channel[rows], block[rows], member[rows])
    early = block[rows] < 0
    place[0, rows], place[1, rows] = channel[rows], block[rows]
    place[2, rows] = np.where(early, nth - count, nth)  # before the first step: the last of them is -1
    bad = _differing(channel[rows], block[rows], place[2, rows], member[rows], sign[rows], count)
    if bad.any():
        _place_by_time(place, rows, bad, channel, member, block, sign, end, length)
    return place


def _differing(channel: Ints, block: Ints, nth: Ints, member: Ints, sign: Ints, count: Ints) -> Mask:
    """Say which calls are of a (channel, step) in which the members made different calls."""
    order = np.lexsort((nth, block, channel))
    change = _changes(channel[order], block[order])
    which = np.cumsum(change) - 1
    low, high = (f.reduceat(count[order], np.flatnonzero(change)) for f in (np.minimum, np.maximum))
    bad = (low != high) & (block[order][change] >= 0)
    spot = _changes(channel[order], block[order], nth[order])
    low, high = (f.reduceat(sign[order], np.flatnonzero(spot)) for f in (np.minimum, np.maximum))
    bad |= np.bincount(which[spot], low != high, len(bad)) > 0
    result = np.zeros(len(channel), bool)
    result[order] = bad[which]
    return result


def _place_by_time(
    place: Ints, rows: Ints, bad: Mask, channel: Ints, member: Ints, block: Ints, sign: Ints, end: Ints, length: Ints
) -> None:
    """Match runs of differing steps by the ends of their calls; changes `place`."""
    wrong, fine = rows[bad], rows[~bad]
    steps = {int(c): np.unique(block[rows[channel[rows] == c]]) for c in np.unique(channel[wrong])}
    for which in steps:
        mine = wrong[channel[wrong] == which]
        at = np.searchsorted(steps[which], block[mine])
        seen = np.unique(at)
        run_of = np.cumsum(np.append(True, np.diff(seen) > 1)) - 1
        run = run_of[np.searchsorted(seen, at)]
        good = fine[channel[fine] == which]
        for number in range(int(run.max()) + 1):
            _match_run(place, mine[run == number], good, member, sign, end, length, _FAR + number)


def _match_run(
    place: Ints, rows: Ints, good: Ints, member: Ints, sign: Ints, end: Ints, length: Ints, label: int
) -> None:
    def ends_of(part: Ints) -> Ends:
        return Ends(sign[part], end[part], length[part])

    people, count = np.unique(member[rows], return_counts=True)
    chief = people[np.argmax(count)]
    lead = rows[member[rows] == chief]
    place[1, rows] = label
    place[2, rows] = len(lead) + np.arange(len(rows))  # a place of its own, until it finds a partner
    place[2, lead] = np.arange(len(lead))
    for other in people[people != chief].tolist():
        mine = rows[member[rows] == other]
        offset = _offset(place, good, member, end, int(chief), other)
        found = match_in_time(ends_of(mine), ends_of(lead), offset)
        place[2, mine[found >= 0]] = found[found >= 0]


def _offset(place: Ints, good: Ints, member: Ints, end: Ints, chief: int, other: int) -> int | None:
    """Return how much later the other's clock shows the ends that they share; None if they share none."""
    here, there = good[member[good] == other], good[member[good] == chief]
    base = int(place[2, good].min(initial=0))
    span = int(place[2, good].max(initial=0)) - base + 1
    mine, theirs = (place[1, part] * span + place[2, part] - base for part in (here, there))
    _, a, b = np.intersect1d(mine, theirs, return_indices=True)
    return int(np.median(end[here[a]] - end[there[b]])) if len(a) else None


def _number(place: Ints, channel: Ints, member: Ints, end: Ints) -> tuple[Ints, int]:
    """Give places of at least two members a number, in order of their ends; a rank's second call there has none."""
    instance = np.full(len(channel), NONE, np.int64)
    rows = np.flatnonzero(place[0] >= 0)
    if not len(rows):
        return instance, 0
    rows = rows[np.lexsort((rows, member[rows], place[2, rows], place[1, rows], place[0, rows]))]
    spot = _changes(*place[:, rows])
    twice = ~spot & ~_changes(member[rows])
    rows, spot = rows[~twice], spot[~twice]
    edges = np.flatnonzero(spot)
    members = np.diff(np.append(edges, len(rows)))
    first = np.where(members > 1, np.minimum.reduceat(end[rows], edges), np.iinfo(np.int64).max)
    rank_of = np.empty(len(edges), np.int64)
    rank_of[np.argsort(first, kind="stable")] = np.arange(len(edges))
    instance[rows] = np.repeat(np.where(members > 1, rank_of, NONE), members)
    return instance, int(np.count_nonzero(twice))


# ------------------------------------------------------------------ runs of equal keys


def _changes(*keys: Ints) -> Mask:
    """Say where any of the keys differs from the row before; the first row does."""
    result = np.ones(len(keys[0]), bool)
    result[1:] = False
    for key in keys:
        result[1:] |= key[1:] != key[:-1]
    return result


def _code(*keys: Ints) -> Ints:
    """Return a number for every distinct combination of keys (-1 and above)."""
    code = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        _, small = np.unique(key, return_inverse=True)
        code = code * (int(small.max(initial=0)) + 1) + small
        _, code = np.unique(code, return_inverse=True)
    return code


def _positions(*keys: Ints) -> tuple[Ints, Ints]:
    """Return the position of each row among those with the same keys, in row order, and how many they are."""
    order = np.lexsort(keys[::-1])
    change = np.flatnonzero(_changes(*(key[order] for key in keys))) if len(order) else order
    length = np.diff(np.append(change, len(order)))
    nth, count = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    nth[order] = np.arange(len(order)) - np.repeat(change, length)
    count[order] = np.repeat(length, length)
    return nth, count


def _second_largest(channel: Ints, member: Ints, size: int) -> Ints:
    """Return, for each channel, how many calls the member with the second most of them made."""
    width = int(member.max(initial=0)) + 1
    pairs, count = np.unique(channel * width + member, return_counts=True)
    order = np.lexsort((count, pairs // width))
    owner, count = (pairs // width)[order], count[order]
    last = np.append(owner[1:] != owner[:-1], True)
    second = np.flatnonzero(last) - 1
    result = np.zeros(size, np.int64)
    real = (second >= 0) & (owner[np.maximum(second, 0)] == owner[last])
    result[owner[last][real]] = count[second[real]]
    return result
