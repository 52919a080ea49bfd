"""Keep when a device stood still, not only for how long: the rows that a timeline draws.

    gap_rows(timeline, device, windows, gaps, blame) -> rows of `gaps`

A step can have a gap before each of its kernels, and a job has thousands of ranks. So the MAX_ROWS longest stretches
of a window keep a row of their own; shorter ones are joined with their neighbours of the same cause and culprit, at
most one row for each of CELLS equal parts of the window. Nothing is lost: idle_ns of a window sums to its idle time,
by cause, to the ns.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from perfkit.analysis.culprits import Blame
from perfkit.analysis.idle import CAUSES, Gaps
from perfkit.analysis.intervals import Ints
from perfkit.analysis.timeline import Mask, Timeline
from perfkit.analysis.windows import Windows
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
    who = sorted({culprit or "" for culprit, _ in labels})
    culprit = np.array([who.index(name or "") for name, _ in labels], np.int64)[label]
    cause = gaps.cause[gap]
    alone = _longest(end - start, window)
    width = np.maximum((windows.end - windows.start)[window] // CELLS + 1, 1)
    cell = np.where(alone, np.arange(len(start)), -1 - (start - windows.start[window]) // width)
    rows = np.lexsort((start, cell, culprit, cause, window))
    keys = [column[rows] for column in (window, cause, culprit, cell)]
    edges = np.flatnonzero(np.append(True, np.logical_or.reduce([key[1:] != key[:-1] for key in keys])))
    first = rows[edges]
    latest = np.maximum.reduceat(end[rows], edges)
    places, place = _places(labels, label)
    same = np.minimum.reduceat(place[rows], edges) == np.maximum.reduceat(place[rows], edges)
    step = windows.step[window[first]]
    back = np.argsort(start[first], kind="stable")
    shown = device if device is not None and device >= 0 else None
    return conform(
        GAPS,
        pa.table(
            {
                "rank": np.full(len(first), timeline.rank),
                "device": pa.array([shown] * len(first), pa.int32()),
                "step": pa.array(step, mask=step < 0),
                "start_ns": start[first],
                "dur_ns": latest - start[first],
                "idle_ns": np.add.reduceat((end - start)[rows], edges),
                "stretches": np.diff(np.append(edges, len(rows))),
                "cause": pa.array([CAUSES[i] for i in cause[first].tolist()], pa.utf8()),
                "culprit": pa.array([who[i] or None for i in culprit[first].tolist()], pa.utf8()),
                "where": pa.array(
                    [places[i] if one else None for i, one in zip(place[first].tolist(), same.tolist(), strict=True)],
                    pa.utf8(),
                ),
            }
        ).take(back),
    )


def _longest(length: Ints, window: Ints) -> Mask:
    """Say which stretches are among the MAX_ROWS longest of their window; `window` does not fall."""
    order = np.lexsort((-length, window))
    first = np.searchsorted(window, window[order], side="left")
    result = np.zeros(len(length), bool)
    result[order] = np.arange(len(length)) - first < MAX_ROWS
    return result


def _places(labels: list[tuple[str | None, str | None]], label: Ints) -> tuple[list[str | None], Ints]:
    """Return the distinct places, and which one each stretch has."""
    places = list(dict.fromkeys(where for _, where in labels))
    return places, np.array([places.index(where) for _, where in labels], np.int64)[label]
