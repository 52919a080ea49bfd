"""Join events until they fit a screen; arithmetic on sorted arrays, without a word about Dash or stores.

    inside(edges, start, reach, lo, hi)           -> (first, last) row of every slot that touches a window
    join_small(row, start, end, …, lo, hi, most)  -> Joined: at most `most` bars

Rows come sorted by row of the picture and start. An event at least as long as a cell is a bar of its own; the shorter
ones that start in one cell of one row become one bar, from the first start to the last end. The window has 2^k cells,
as many as keep to `most`; cells of one k are halves of those before, so a start is divided once. So every row that has
an event in the window has a bar, and count and busy time of the bars of a row sum to those of its events, whatever the
zoom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

FINEST = 14
"""Cells of span/2^14 are narrower than any screen's pixels."""
Ints = Any


@dataclass(frozen=True)
class Joined:
    """Bars: arrays of equal length, sorted by row and start."""

    row: Ints
    start: Ints
    end: Ints
    busy: Ints
    count: Ints
    longest: Ints
    """Input row of the event that takes most time in the bar."""
    single: Ints
    """The bar is one event."""
    cell_ns: int


def inside(edges: Ints, start: Ints, reach: Ints, lo: int, hi: int) -> tuple[Ints, Ints]:
    """Return where each slot's rows that may touch [lo, hi) begin and end; `reach` is the running maximum of ends."""
    first, last = edges[:-1].copy(), edges[1:].copy()
    for i, (low, high) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        first[i] = low + np.searchsorted(reach[low:high], lo, side="right")
        last[i] = low + np.searchsorted(start[low:high], hi, side="left")
    return first, np.maximum(first, last)


def join_small(row: Ints, start: Ints, end: Ints, busy: Ints, count: Ints, *, lo: int, hi: int, most: int) -> Joined:
    """Return at most `most` bars of events clipped to [lo, hi); fewer rows than `most` is the caller's care."""
    if len(row) <= most:
        index = np.arange(len(row))
        return Joined(row, start, end, busy, count, index, count == 1, 0)
    length, span = end - start, max(hi - lo, 1)
    place = (row.astype(np.int64) << FINEST) | (((start - lo) << FINEST) // span)
    depth = _depth(place, length, span, most)
    cell = _cell(span, depth)
    # a long event ends the run of short ones before it only by its cell, so short ones on both sides may share a bar
    alone, rest = np.flatnonzero(length >= cell), np.flatnonzero(length < cell)
    new = _starts(place[rest] >> (FINEST - depth))
    edges = np.flatnonzero(new)
    if not len(rest):
        return Joined(row, start, end, busy, count, alone, count == 1, cell)
    first = rest[edges]
    joined = {
        "row": row[first], "start": start[first], "end": np.maximum.reduceat(end[rest], edges),
        "busy": np.add.reduceat(busy[rest], edges), "count": np.add.reduceat(count[rest], edges, dtype=np.int64),
        "longest": rest[_argmax(busy[rest], edges)],
    }  # fmt: skip
    single = {"row": row, "start": start, "end": end, "busy": busy, "count": count}
    both = {name: np.append(joined[name], single[name][alone]) for name in single}
    longest = np.append(joined["longest"], alone)
    order = np.lexsort((both["start"], both["row"]))
    found = {name: column[order] for name, column in both.items()}
    return Joined(**found, longest=longest[order], single=found["count"] == 1, cell_ns=cell)


def _cell(span: int, depth: int) -> int:
    """Return the width of one of 2^depth cells; of the only one, more than the window, so that all is shorter."""
    return max(span >> depth, 1) if depth else span + 1


def _depth(place: Ints, length: Ints, span: int, most: int) -> int:
    """Return how often the window can be halved with at most `most` bars; 0 if not even once."""
    coarse, fine = 0, FINEST
    while coarse < fine:
        middle = (coarse + fine + 1) // 2
        short = np.flatnonzero(length < _cell(span, middle))
        joined = np.count_nonzero(_starts(place[short] >> (FINEST - middle)))
        if len(place) - len(short) + joined <= most:
            coarse = middle
        else:
            fine = middle - 1
    return coarse


def _starts(place: Ints) -> Ints:
    """Whether each place differs from the one before."""
    new = np.ones(len(place), bool)
    np.not_equal(place[1:], place[:-1], out=new[1:])
    return new


def _argmax(value: Ints, edges: Ints) -> Ints:
    """Return the position of the largest value of every run; the first of several."""
    top = np.maximum.reduceat(value, edges)
    sizes = np.diff(np.append(edges, len(value)))
    hits = np.flatnonzero(value == np.repeat(top, sizes))
    result: Ints = hits[np.searchsorted(hits, edges)]
    return result
