"""Join events until they fit a screen; arithmetic on sorted arrays, without a word about Dash or stores.

    inside(edges, start, reach, lo, hi)           -> (first, last) row of every slot that touches a window
    join_small(row, start, end, …, lo, hi, most)  -> Joined: at most `most` bars

Rows come sorted by row of the picture and start. An event at least as long as a cell is a bar of its own; the shorter
ones that start in one cell of one row become one bar, from the first start to the last end. The cell is the smallest
of span/2^k that keeps to `most`. So every row that has an event in the window has a bar, and count and busy time
of the bars of a row sum to those of its events, whatever the zoom.
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
    length = end - start
    cell = _cell(row, start, length, lo, hi, most)
    long = length >= cell
    # a long event ends the run of short ones before it only by its cell, so short ones on both sides may share a bar
    place = (start - lo) // cell
    alone, rest = np.flatnonzero(long), np.flatnonzero(~long)
    new = np.append(True, (np.diff(row[rest]) != 0) | (np.diff(place[rest]) != 0)) if len(rest) else rest.astype(bool)
    edges = np.flatnonzero(new)
    if not len(rest):
        return Joined(row, start, end, busy, count, alone, count == 1, cell)
    number = np.cumsum(new) - 1
    best = _argmax(busy[rest], number, edges)
    joined = {
        "row": row[rest][edges], "start": start[rest][edges], "end": np.maximum.reduceat(end[rest], edges),
        "busy": np.add.reduceat(busy[rest], edges), "count": np.add.reduceat(count[rest].astype(np.int64), edges),
        "longest": rest[best],
    }  # fmt: skip
    single = {"row": row, "start": start, "end": end, "busy": busy, "count": count.astype(np.int64)}
    both = {name: np.append(joined[name], single[name][alone]) for name in single}
    longest = np.append(joined["longest"], alone)
    order = np.lexsort((both["start"], both["row"]))
    found = {name: column[order] for name, column in both.items()}
    return Joined(**found, longest=longest[order], single=found["count"] == 1, cell_ns=cell)


def _cell(row: Ints, start: Ints, length: Ints, lo: int, hi: int, most: int) -> int:
    """Return the smallest cell of span/2^k that keeps to `most` bars; the coarsest is the whole window."""
    span = max(hi - lo, 1)
    coarse, fine = 0, FINEST
    while coarse < fine:
        middle = (coarse + fine + 1) // 2
        if _bars(row, start, length, lo, max(span >> middle, 1)) <= most:
            coarse = middle
        else:
            fine = middle - 1
    return max(span >> coarse, 1) if coarse else span + 1


def _bars(row: Ints, start: Ints, length: Ints, lo: int, cell: int) -> int:
    short = np.flatnonzero(length < cell)
    if not len(short):
        return len(row)
    place = (start[short] - lo) // cell
    groups = 1 + int(np.count_nonzero((np.diff(row[short]) != 0) | (np.diff(place) != 0)))
    return len(row) - len(short) + groups


def _argmax(value: Ints, number: Ints, edges: Ints) -> Ints:
    """Return the position of the largest value of every run; the first of several."""
    top = np.maximum.reduceat(value, edges)
    hits = np.flatnonzero(value == top[number])
    first = np.unique(number[hits], return_index=True)[1]
    result: Ints = hits[first]
    return result
