"""Which lanes of the `timeline` table a report draws, and on which clock.

    choose_lanes(table, aligned) -> Lanes | None

One step: the one that most ranks have binned. Of many ranks those with the most and with the least exposed
communication: a straggler is the one that the others wait for, so it waits least itself. Where clocks of hosts
disagree by more than the step is long, lanes would not meet: then each starts at its own zero, and the note says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

MAX_LANES = 16


@dataclass(frozen=True)
class Lanes:
    """What to draw."""

    step: int | None
    lanes: list[tuple[int, list[dict[str, Any]]]]
    """Rank and its bins; `at_ns` of a bin is its start since the left edge."""
    span_ns: int
    note: str


def choose_lanes(table: pa.Table | None, *, aligned: bool) -> Lanes | None:
    """Return the lanes; None if there is nothing to draw."""
    if table is None or not len(table):
        return None
    counted = pc.value_counts(table["step"]).to_pylist()
    step = max(counted, key=lambda one: one["counts"])["values"]
    table = table.filter(pc.is_null(table["step"]) if step is None else pc.equal(table["step"], step))
    ranks, note = _extremes(table)
    lanes = [(rank, table.filter(pc.equal(table["rank"], rank)).to_pylist()) for rank in ranks]
    starts = [rows[0]["start_ns"] for _, rows in lanes]
    lengths = [rows[-1]["start_ns"] + rows[-1]["window_ns"] - rows[0]["start_ns"] for _, rows in lanes]
    origin = min(starts)
    span = max(start + length for start, length in zip(starts, lengths, strict=True)) - origin
    apart = span > 1.5 * max(lengths)
    if apart and not aligned:
        span = max(lengths)
        note += " Clocks are not aligned, so every lane starts at its own zero."
    elif len(lanes) > 1 and not aligned:
        note += " Each rank's own clock."
    for (_, rows), start in zip(lanes, starts, strict=True):
        zero = start if apart and not aligned else origin
        for row in rows:
            row["at_ns"] = row["start_ns"] - zero
    return Lanes(step, lanes, span, note) if span > 0 else None


def _extremes(table: pa.Table) -> tuple[list[int], str]:
    sums = table.group_by("rank", use_threads=False).aggregate([("exposed_comm_ns", "sum")])
    by_comm = sums.sort_by([("exposed_comm_ns_sum", "descending"), ("rank", "ascending")])["rank"].to_pylist()
    if len(by_comm) <= MAX_LANES:
        return sorted(by_comm), ""
    half = MAX_LANES // 2
    note = f" Of {len(by_comm):,} ranks the {half} with the most and the {half} with the least exposed communication."
    return sorted([*by_comm[:half], *by_comm[-half:]]), note
