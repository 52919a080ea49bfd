"""Keep when a device stood still, not only for how long: the rows that a timeline draws.

    gap_rows(timeline, device, windows, gaps, found) -> rows of `gaps`

A step can have a gap before each of its kernels, and a job has thousands of ranks. So the MAX_ROWS longest stretches
of a window keep a row of their own; shorter ones are joined with their neighbours of the same cause and culprit, at
most one row for each of CELLS equal parts of the window. Nothing is lost: idle_ns of a window sums to its idle time,
by cause, to the ns.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa

from perfkit.analysis.classify import decode_text
from perfkit.analysis.culprits import Blame
from perfkit.analysis.idle import CAUSES, Gaps
from perfkit.analysis.intervals import Ints
from perfkit.analysis.timeline import Mask, Timeline, device_column
from perfkit.analysis.windows import Windows
from perfkit.arrays import constant, from_numpy
from perfkit.schema import GAPS, conform

MAX_ROWS = 1_000
CELLS = 256


def gap_rows(timeline: Timeline, device: int | None, windows: Windows, gaps: Gaps, found: Blame) -> pa.Table:
    """Return the idle stretches of a device, by window; `gaps` and `found` are those that `idle` sums."""
    order = np.argsort(found.start, kind="stable")
    start, end, gap, label = (column[order] for column in (found.start, found.end, found.gap, found.label))
    if not len(start):
        return GAPS.empty()
    window = np.searchsorted(windows.edges, start, side="right") - 1  # gaps are cut where windows meet
    labels: list[tuple[str | None, str | None]] = [*found.labels, (None, None)]
    culprits, culprit = _distinct([who for who, _ in labels], label)
    places, place = _distinct([where for _, where in labels], label)
    cause = gaps.cause[gap]
    rows, edges = _share_rows(start, end, window, windows, cause * (len(culprits) + 1) + culprit)
    first = rows[edges]
    place = place[rows]
    same = np.minimum.reduceat(place, edges) == np.maximum.reduceat(place, edges)
    step = windows.step[window[first]]
    return conform(
        GAPS,
        pa.table(
            {
                "rank": constant(timeline.rank, pa.int32(), len(first)),
                "device": device_column(device, len(first)),
                "step": from_numpy(step, step >= 0),
                "start_ns": from_numpy(start[first]),
                "dur_ns": from_numpy(np.maximum.reduceat(end[rows], edges) - start[first]),
                "idle_ns": from_numpy(np.add.reduceat((end - start)[rows], edges)),
                "stretches": from_numpy(np.diff(np.append(edges, len(rows)))),
                "cause": decode_text(cause[first], CAUSES),
                "culprit": decode_text(culprit[first], culprits),
                "where": decode_text(np.where(same, place[edges], -1), places),
            }
        ),
    )


def _share_rows(start: Ints, end: Ints, window: Ints, windows: Windows, why: Ints) -> tuple[Ints, Ints]:
    """Return the stretches row by row, and where each row begins; rows come by their start, as the stretches do."""
    alone = _longest(end - start, window)
    rest = np.flatnonzero(~alone)
    if not len(rest):
        return np.arange(len(start)), np.arange(len(start))
    width = np.maximum((windows.end - windows.start)[window[rest]] // CELLS + 1, 1)
    cell = (start[rest] - windows.start[window[rest]]) // width
    order = np.lexsort((cell, why[rest], window[rest]))  # stable: by start in each row
    keys = [column[order] for column in (window[rest], why[rest], cell)]
    heads = np.append(True, np.logical_or.reduce([key[1:] != key[:-1] for key in keys]))
    leader = np.arange(len(start))  # the first stretch of the row that each one is in
    leader[rest[order]] = rest[order][np.flatnonzero(heads)][np.cumsum(heads) - 1]
    rows = np.argsort(leader, kind="stable")
    leader = leader[rows]
    return rows, np.flatnonzero(np.append(True, leader[1:] != leader[:-1]))


def _longest(length: Ints, window: Ints) -> Mask:
    """Say which stretches are among the MAX_ROWS longest of their window; `window` does not fall."""
    edges = np.append(np.flatnonzero(np.append(True, window[1:] != window[:-1])), len(window))
    result = np.ones(len(length), bool)
    for first, last in pairwise(edges.tolist()):
        if last - first > MAX_ROWS:
            mine = length[first:last]
            least = np.partition(mine, -MAX_ROWS)[-MAX_ROWS]
            result[first:last] = mine > least
            as_long = first + np.flatnonzero(mine == least)  # of these the first
            result[as_long[: MAX_ROWS - np.count_nonzero(mine > least)]] = True
    return result


def _distinct(values: list[str | None], index: Ints) -> tuple[list[str], Ints]:
    """Return the distinct texts, and which one each stretch has; -1 for none."""
    known = list(dict.fromkeys(value for value in values if value is not None))
    code = {value: i for i, value in enumerate(known)}
    return known, np.array([-1 if value is None else code[value] for value in values], np.int64)[index]
