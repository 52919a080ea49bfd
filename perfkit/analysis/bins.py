"""One step of one device in equal bins: what a report draws as a timeline.

    bin_window(compute, comm, memcpy, start, end, ...) -> pa.Table
    bin_middle_step(windows, busy, rank)               -> pa.Table     of the step in the middle of the trace

Each bin is partitioned like a step (DESIGN: compute, then communication, then copies, then idle), so the parts of all
bins sum to the parts of the step, to the nanosecond. Bins keep a report small however many events a step has.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from perfkit.analysis.attribute import Busy
from perfkit.analysis.intervals import Spans, covered, join
from perfkit.analysis.windows import Windows

BINS = 600


def bin_middle_step(windows: Windows, busy: Busy, rank: int, *, bins: int = BINS) -> pa.Table | None:
    """Return the bins of the middle window, which neither warm-up nor the profiler's end disturbs; None without one.

    Ranks that hold the same steps choose the same one, so that their lanes can be compared.
    """
    if not len(windows.step):
        return None
    at = len(windows.step) // 2
    step = int(windows.step[at])
    return bin_window(
        busy.compute, busy.communication, busy.memcpy, int(windows.start[at]), int(windows.end[at]),
        rank=rank, step=step if step >= 0 else None, bins=bins,
    )  # fmt: skip


def bin_window(
    compute: Spans, comm: Spans, memcpy: Spans, start: int, end: int, *, rank: int, step: int | None, bins: int = BINS
) -> pa.Table:
    """Return one row per bin of [start, end); bins differ by at most 1 ns in length."""
    number = max(min(bins, end - start), 1)
    edges = start + np.arange(number + 1, dtype=np.int64) * (end - start) // number
    low, high = edges[:-1], edges[1:]
    busy = covered(compute, low, high)
    with_comm = covered(join(compute, comm), low, high)
    with_copies = covered(join(compute, comm, memcpy), low, high)
    return pa.table(
        {
            "rank": pa.array(np.full(number, rank), pa.int32()),
            "step": pa.array([step] * number, pa.int64()),
            "start_ns": low,
            "window_ns": high - low,
            "compute_ns": busy,
            "exposed_comm_ns": with_comm - busy,
            "exposed_memcpy_ns": with_copies - with_comm,
            "idle_ns": high - low - with_copies,
        }
    )
