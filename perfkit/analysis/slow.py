"""Steps that took longer than their rank's usual (definition 19).

    slow_steps(attribution) -> (mask, excess_ns) of its rows
    slow_limit(times)       -> the time above which a step of these is slow; slow_above(median, MAD) the same

A step is slow above median + 3 · 1.4826 · MAD of its rank's steps, and at least 1 % above the median, so
that a rank with no spread at all does not call every step slow. It costs what it took beyond the median.
Where steps run into each other (the next batch is fetched while this one computes), each window hands its tail to the
next one (`spill_ns`). The last has nobody to hand it to: it is longer than the others for that alone, and not judged.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from perfkit.analysis.intervals import Ints
from perfkit.analysis.timeline import Mask, ints

MAD_TO_SIGMA = 1.4826
FLOOR = 0.01


def slow_steps(attribution: pa.Table) -> tuple[Mask, Ints]:
    """Mark slow steps; whole-trace windows and carry_in are never slow. Fewer than 3 steps tell nothing."""
    rank, window, start = (ints(attribution[name]) for name in ("rank", "window_ns", "start_ns"))
    spilled = ints(attribution["spill_ns"], 0)
    step = np.array(attribution["step"].is_valid()) & ~np.array(attribution["carry_in"].fill_null(False), bool)
    slow, excess = np.zeros(len(rank), bool), np.zeros(len(rank), np.int64)
    for one in np.unique(rank[step]):
        mine = np.flatnonzero(step & (rank == one))
        if len(mine) < 3:
            continue
        median = float(np.median(window[mine]))
        slow[mine] = window[mine] > slow_limit(window[mine])
        last = mine[np.argmax(start[mine])]
        slow[last] &= float(np.median(spilled[mine[mine != last]])) <= FLOOR * median
        excess[mine] = np.where(slow[mine], window[mine] - round(median), 0)
    return slow, excess


def slow_limit(times: npt.NDArray[Any]) -> float:
    """Return the limit of definition 19."""
    median = float(np.median(times))
    spread = float(np.median(np.abs(times - median)))
    return slow_above(median, spread)


def slow_above(median: float, mad: float) -> float:
    """Return the limit where median and MAD are known, each step counted as often as it stands for others."""
    return median + max(3 * MAD_TO_SIGMA * mad, FLOOR * median)
