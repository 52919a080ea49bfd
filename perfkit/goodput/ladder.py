"""Ladder B: from allocated GPU-time down to effective MFU (definition 15).

    ladder_b(buckets, effective_mfu, ladder_a=…) -> rows of `waterfall`, ladder B

Terms without a parent are the goodput buckets; they sum to 100 points exactly. `productive` ends at effective MFU: what
is below peak in it is one term, or, where the traced steps have a ladder A, that ladder's shares projected onto it.
Projected terms say so in their name and are not `measured`: they were seen in some steps only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.waterfall import share_out
from perfkit.schema import GOODPUT_BUCKETS, GOODPUT_LOSSES

PROJECTED = " (projected)"
_UNIT = 2**24


def ladder_b(
    buckets: Mapping[str, int], effective_mfu: float | None, ladder_a: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Return the rows of ladder B; none if nothing was allocated. `ladder_a`: the top terms of the job's ladder A."""
    total = sum(buckets.values())
    if total <= 0:
        return []
    order = (*GOODPUT_LOSSES, "productive")
    units = dict(zip(order, share_out([buckets[n] for n in order], 100 * _UNIT, total, 100 * _UNIT), strict=True))
    rows: list[dict[str, Any]] = []

    def add(term: str, unit: float, ns: int, parent: str | None, *, measured: bool = True) -> None:
        rows.append(
            {
                "ladder": "B",
                "position": len(rows),
                "term": term,
                "parent": parent,
                "points": unit / _UNIT,
                "gpu_ns": ns,
                "measured": measured,
            }
        )

    for name in order:
        add(name, units[name], buckets[name], None)
    if effective_mfu is not None:
        reached = round(effective_mfu * 100 * _UNIT)
        below = units["productive"] - reached
        add("effective_mfu", reached, round(effective_mfu * total), "productive")
        losses = [
            (row["term"], row["points"]) for row in ladder_a if row["term"] not in ("mfu", "hfu") and row["points"]
        ]
        whole = sum(points for _, points in losses)
        if whole > 0:
            for term, points in losses:
                add(
                    f"{term}{PROJECTED}",
                    below * points / whole,
                    round(below / _UNIT / 100 * points / whole * total),
                    "productive",
                    measured=False,
                )
        else:
            add("below_peak", below, round(below / _UNIT / 100 * total), "productive")
    return rows


def top_terms(waterfall: pa.Table | None) -> list[dict[str, Any]]:
    """Top terms of the job's ladder A, if there is one that starts at MFU."""
    if waterfall is None or not len(waterfall):
        return []
    whole = pc.and_(pc.is_null(waterfall["rank"]), pc.is_null(waterfall["step"]))
    mine = waterfall.filter(
        pc.and_(whole, pc.and_(pc.is_null(waterfall["parent"]), pc.equal(waterfall["ladder"], "A")))
    )
    rows: list[dict[str, Any]] = mine.to_pylist()
    return rows if any(row["term"] == "mfu" for row in rows) else []


assert set(GOODPUT_BUCKETS) == {"productive", *GOODPUT_LOSSES}
