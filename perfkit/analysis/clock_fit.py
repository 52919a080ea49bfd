"""Fit one clock against another from moments that both of them saw.

    fit_clock(time, difference) -> ClockFit       pieces of straight line, and how far the points lie from them

Everything is medians, so that a collective that ended late on one side costs nothing: the slope is Theil-Sen's over
medians of bins, kept only if it moves the line clearly more than the points scatter; the uncertainty is 1.4826·MAD of
the residuals. A step of the clock (NTP, a suspended machine) starts a new piece.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from perfkit.analysis.intervals import Ints

MAX_BINS = 24
MAX_JUMPS = 4
JUMP_NS, JUMP_RATE = 50_000, 1e-3
"""A step is at least so large, and faster than any oscillator drifts."""
SIDE = 4
"""Points on each side of a step that must agree on it."""
MAX_DRIFT = 1e-3
SIGNIFICANT = 3
"""A drift counts if it moves the line by so many times the scatter around it."""
Floats = npt.NDArray[np.float64]


class Piece(NamedTuple):
    """difference(t) = offset_ns + drift · (t - at_ns) from `from_ns` on."""

    from_ns: int
    at_ns: int
    offset_ns: int
    drift: float


class ClockFit(NamedTuple):
    """Pieces in order of time; the first holds for everything before the second."""

    pieces: list[Piece]
    u_ns: int
    """1.4826·MAD of the residuals."""
    points: int

    def at(self, time: Ints) -> Ints:
        """Return the difference at each moment."""
        starts = np.array([piece.from_ns for piece in self.pieces[1:]], np.int64)
        which = np.searchsorted(starts, time, side="right")
        at, offset = (np.array([getattr(p, n) for p in self.pieces], np.int64) for n in ("at_ns", "offset_ns"))
        drift = np.array([piece.drift for piece in self.pieces])
        result: Ints = offset[which] + np.rint(drift[which] * (time - at[which])).astype(np.int64)
        return result


def fit_clock(time: Ints, difference: Ints) -> ClockFit:
    """Fit the difference of two clocks over the time of one of them."""
    order = np.argsort(time, kind="stable")
    time, difference = time[order], difference[order]
    edges = [0, *find_jumps(time, difference), len(time)]
    pieces, residuals = [], []
    for low, high in pairwise(edges):
        piece, left = _fit_piece(time[low:high], difference[low:high])
        pieces.append(piece)
        residuals.append(left)
    return ClockFit(pieces, scatter(np.concatenate(residuals)), len(time))


def scatter(residuals: Ints) -> int:
    """Return 1.4826·MAD, rounded up."""
    if not len(residuals):
        return 0
    return int(np.ceil(1.4826 * np.median(np.abs(residuals - np.median(residuals)))))


def find_jumps(time: Ints, difference: Ints) -> list[int]:
    """Return the points at which the difference steps, in order; few, and only clear ones."""
    found: list[int] = []
    for _ in range(MAX_JUMPS):
        edges = [0, *sorted(found), len(time)]
        best = max((_jump(time, difference, a, b) for a, b in pairwise(edges)), default=(0, -1))
        if best[1] < 0:
            break
        found.append(best[1])
    return sorted(found)


def _jump(time: Ints, difference: Ints, low: int, high: int) -> tuple[int, int]:
    """Return the size and place of the clearest step between two points, (0, -1) if there is none."""
    number = high - low - 2 * SIDE + 1
    if number < 1:
        return 0, -1
    values = difference[low:high] - difference[low]
    windows = np.lib.stride_tricks.sliding_window_view(values, SIDE)
    middle, top, bottom = np.median(windows, axis=1), windows.max(axis=1), windows.min(axis=1)
    step = np.abs(middle[SIDE:] - middle[:-SIDE])
    apart = np.maximum(bottom[SIDE:] - top[:-SIDE], bottom[:-SIDE] - top[SIDE:])  # no point lies between the sides
    noise = scatter(np.diff(values)) / 1.41
    gap = time[low + 2 * SIDE - 1 : high] - time[low : high - 2 * SIDE + 1]
    clear = (step > max(JUMP_NS, 20 * noise)) & (step > JUMP_RATE * gap) & (apart > step / 2)
    if not clear.any():
        return 0, -1
    best = int(np.argmax(np.where(clear, step, -1)))
    return int(step[best]), low + best + SIDE


def _fit_piece(time: Ints, difference: Ints) -> tuple[Piece, Ints]:
    at = int(time[0] + (time[-1] - time[0]) // 2)
    base = int(np.median(difference - difference[0])) + int(difference[0])
    x, y = (time - at).astype(np.float64), (difference - base).astype(np.float64)
    slope = _theil_sen(*_binned(x, y))
    span, noise = float(x[-1] - x[0]), scatter(np.rint(y - slope * x).astype(np.int64))
    if abs(slope) > MAX_DRIFT or abs(slope) * span <= SIGNIFICANT * noise:
        slope = 0.0
    offset = base + int(np.median(np.rint(y - slope * x)))
    piece = Piece(int(time[0]), at, offset, slope)
    left: Ints = difference - offset - np.rint(slope * x).astype(np.int64)
    return piece, left


def _binned(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return medians of runs of points."""
    number = min(MAX_BINS, max(1, len(x) // 3))
    edges = np.linspace(0, len(x), number + 1).astype(np.int64)
    parts = list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    return (
        np.array([np.median(x[a:b]) for a, b in parts]),
        np.array([np.median(y[a:b]) for a, b in parts]),
    )


def _theil_sen(x: Floats, y: Floats) -> float:
    """Return the median slope over all pairs, 0 for fewer than three points."""
    if len(x) < 3:
        return 0.0
    i, j = np.triu_indices(len(x), 1)
    run = x[j] - x[i]
    real = run > 0
    return float(np.median((y[j] - y[i])[real] / run[real])) if real.any() else 0.0
