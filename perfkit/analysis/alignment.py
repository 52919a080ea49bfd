"""How to put a time of one rank on the clock of the job: what a reader of the store needs to draw ranks together.

    alignment_table(view) -> rows of `alignment`        one per rank and piece of its clock
    align(rows, time_ns)  -> aligned times              `rows` of one rank, as dicts
    StoredClocks(rows)    -> the job's clocks again, for whoever takes perfkit.analysis.clocks.Clocks

The chain of clocks between a rank and the reference (perfkit.analysis.clocks) is folded into one line per piece, so
that a reader needs neither the tree nor the corrections. It agrees with `Clocks.align` to a few ns (rounding).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from perfkit.analysis.clock_fit import ClockFit
from perfkit.analysis.clocks import Clocks
from perfkit.analysis.intervals import Ints
from perfkit.analysis.job import JobView
from perfkit.analysis.timeline import ints
from perfkit.schema import ALIGNMENT, table_from_rows


def alignment_table(view: JobView) -> pa.Table:
    """Describe the clock of every rank that has a window."""
    rank, start = ints(view.steps["rank"]), ints(view.steps["window_start_ns"])
    end = start + ints(view.steps["window_ns"])
    known = view.several and bool(len(view.instances))
    rows: list[dict[str, Any]] = []
    for one in np.unique(rank).tolist():
        mine = rank == one
        low, high = int(start[mine].min()), int(end[mine].max())
        number = int(view.clock.of_rank(np.array([one]))[0])
        host = view.clock.hosts[number] if number >= 0 else None
        u = host.u_ns if host is not None and known else None
        edges = [low, *(t for t in _steps_of(view.clock, one, number) if low < t < high), high]
        for begin, stop in pairwise(edges):
            begin_off, stop_off = _offsets(view.clock, one, [begin, max(stop - 1, begin)])
            rows.append(
                {
                    "rank": one, "clock": host.name if host is not None else f"rank {one}", "from_ns": begin,
                    "offset_ns": begin_off, "drift_ppm": 1e6 * (stop_off - begin_off) / max(stop - 1 - begin, 1),
                    "uncertainty_ns": None if u is None else u + view.clock.spread_ns,
                }
            )  # fmt: skip
    return table_from_rows(ALIGNMENT, rows)


def align(rows: Sequence[Mapping[str, Any]], time_ns: Ints) -> Ints:
    """Return times of one rank on the clock of the job; without rows they stay."""
    if not rows:
        return time_ns
    ordered = sorted(rows, key=lambda row: row["from_ns"])
    begin, offset = (np.array([row[name] for row in ordered], np.int64) for name in ("from_ns", "offset_ns"))
    drift = np.array([row["drift_ppm"] for row in ordered], np.float64) * 1e-6
    at = np.maximum(np.searchsorted(begin, time_ns, side="right") - 1, 0)
    result: Ints = time_ns - offset[at] - np.rint(drift[at] * (time_ns - begin[at])).astype(np.int64)
    return result


class StoredClocks(Clocks):
    """Clocks as the store keeps them: they align, and know their error."""

    def __init__(self, rows: pa.Table) -> None:
        super().__init__()
        self._of: dict[int, list[dict[str, Any]]] = {}
        for row in rows.to_pylist():
            self._of.setdefault(row["rank"], []).append(row)

    @property
    def aligned(self) -> bool:
        """Say whether all ranks are on one time line."""
        return bool(self._of) and all(row["uncertainty_ns"] is not None for rows in self._of.values() for row in rows)

    @property
    def u_ns(self) -> int | None:
        """Error between any two ranks that are aligned; None if none are."""
        known = [row["uncertainty_ns"] for rows in self._of.values() for row in rows]
        return max((u for u in known if u is not None), default=None)

    def align(self, rank: Ints, time: Ints) -> Ints:
        """Return times on the clock of the job."""
        result = time.copy()
        for one in np.unique(rank).tolist():
            mine = rank == one
            result[mine] = align(self._of.get(one, []), time[mine])
        return result


def _offsets(clock: Clocks, rank: int, times: list[int]) -> list[int]:
    moments = np.array(times, np.int64)
    found: list[int] = (moments - clock.align(np.full(len(times), rank), moments)).tolist()
    return found


def _steps_of(clock: Clocks, rank: int, number: int) -> list[int]:
    """Return when the clock of a rank, or one that it was compared with, steps: on the clock of the rank."""
    found: list[int] = []
    passed: list[ClockFit] = []
    while number >= 0 and (fit := clock.hosts[number].fit) is not None:
        for piece in fit.pieces[1:]:
            moment = np.array([piece.from_ns], np.int64)
            for below in reversed(passed):
                guess = moment
                for _ in range(4):  # the offset changes slowly: each guess is thousands of times better
                    guess = moment + below.at(guess)
                moment = guess
            found.append(int(moment[0]) + clock.corrections.get(rank, 0))
        passed.append(fit)
        number = clock.hosts[number].parent
    return sorted(found)
