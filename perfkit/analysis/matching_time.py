"""Match two ranks' calls by when they ended, where counting cannot.

    match_in_time(calls, other, offset) -> position in `other` for each call, -1 for none

The members of a collective end together, so the differences of their ends are one number, the offset of the two
clocks. Where that is not known it is the value that most pairs of like calls agree on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfkit.analysis.intervals import Ints

CLUSTER_NS = 200_000
"""Ends of one collective on two ranks differ by less than this, clocks apart."""
NEARLY = 0.8
"""Of the most votes: clusters that may be the right one."""
SAME_SPREAD_NS = 5_000
"""Clusters whose spreads differ by less are equally narrow."""
MAX_PAIRS_EACH = 64
"""Neighbours on each side that a call is compared with to find the offset of the clocks."""


class Ends(NamedTuple):
    """Calls of one rank in their order."""

    sign: Ints
    """What members of one collective share."""
    end: Ints
    length: Ints


def match_in_time(calls: Ends, other: Ends, offset: int | None) -> Ints:
    """Match calls to those of another rank that have the same sign and end at the same time; each at most once."""
    sign, other_sign = calls.sign, other.sign
    result = np.full(len(sign), -1, np.int64)
    if not len(sign) or not len(other_sign):
        return result
    if offset is None:
        offset = find_offset(sign, calls.end, other_sign, other.end)
        if offset is None:
            return result
    for kind in np.intersect1d(sign, other_sign).tolist():
        mine, theirs = np.flatnonzero(sign == kind), np.flatnonzero(other_sign == kind)
        mine = mine[np.argsort(calls.end[mine], kind="stable")]
        theirs = theirs[np.argsort(other.end[theirs], kind="stable")]
        here, there = calls.end[mine] - offset, other.end[theirs]
        best, back = _nearest(here, there), _nearest(there, here)
        # members of a collective are in it at the same time, so its length limits how far apart they can end
        limit = np.maximum(CLUSTER_NS, np.minimum(calls.length[mine], other.length[theirs[best]]) // 2)
        good = (back[best] == np.arange(len(mine))) & (np.abs(here - there[best]) <= limit)
        result[mine[good]] = theirs[best[good]]
    return result


def find_offset(sign: Ints, end: Ints, other_sign: Ints, other_end: Ints) -> int | None:
    """Return end - other_end on which most pairs of like calls agree; None if no two calls are alike."""
    near = np.arange(-MAX_PAIRS_EACH, MAX_PAIRS_EACH + 1)
    here = np.arange(len(sign))[:, None]
    there = here + near[None, :]
    inside = (there >= 0) & (there < len(other_sign))
    there = np.clip(there, 0, len(other_sign) - 1)
    alike = inside & (sign[:, None] == other_sign[there])
    differences = np.sort((end[:, None] - other_end[there])[alike])
    if not len(differences):
        return None
    inside_from = np.searchsorted(differences, differences - CLUSTER_NS, side="left")
    votes = np.arange(len(differences)) - inside_from + 1
    last = _narrow(differences, inside_from, votes)
    last = last[votes[last] == votes[last].max()]
    best = last[np.argmin(np.abs(differences[last]))]  # clocks that agree best, of those that fit as well
    return int(np.median(differences[inside_from[best] : best + 1]))


def _narrow(differences: Ints, first: Ints, votes: Ints) -> Ints:
    """Return where the clusters end that have nearly the most votes and are as narrow as any of them.

    A whole step too far the calls pair up as well, and with lost calls even better, but their differences are then as
    uneven as the steps; those of one collective are even.
    """
    last = np.flatnonzero(votes >= NEARLY * votes.max())
    quarter = votes[last] // 4
    spread = differences[last - quarter] - differences[first[last] + quarter]
    result: Ints = last[spread <= 4 * spread.min() + SAME_SPREAD_NS]
    return result


def _nearest(values: Ints, among: Ints) -> Ints:
    """Return the position of the nearest of sorted `among` for each value."""
    right = np.clip(np.searchsorted(among, values), 0, len(among) - 1)
    left = np.maximum(right - 1, 0)
    result: Ints = np.where(np.abs(among[left] - values) <= np.abs(among[right] - values), left, right)
    return result
