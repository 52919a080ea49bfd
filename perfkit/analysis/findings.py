"""What to do next, ranked by what it would buy.

    find(facts) -> rows of `findings`, the most points first

A rule is a function from Facts to a Finding or None; `RULES` lists them all, and a rule that has nothing to say
costs nothing. Points are those of ladder A: the share of GPU time that the finding could give back, by the rank
that sets the pace (perfkit.analysis.facts). A finding whose gain cannot be told has null points and comes last,
unless it puts all others in doubt.
A finding that says who or where (a straggler) comes after one that says why, if that explains half of it or more, or
is what the straggler's own lateness is made of: then the cause weighs what the straggler costs, as a slow link does
what its communication costs. Only what a rank does
itself can make it late: communication that the pace-setting rank waits for is what is left when nobody is late, and
what all ranks do alike holds nobody up.
Points of different findings may overlap: a slow step and the data that it waited for are the same time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from perfkit.analysis.facts import Facts
from perfkit.analysis.findings_device import DEVICE_RULES
from perfkit.analysis.findings_host import HOST_RULES
from perfkit.analysis.findings_job import JOB_RULES
from perfkit.analysis.findings_types import Finding
from perfkit.schema import FINDINGS, table_from_rows

Rule = Callable[[Facts], Finding | None]
RULES: tuple[Rule, ...] = (*HOST_RULES, *DEVICE_RULES, *JOB_RULES)


def find(facts: Facts) -> pa.Table:
    """Apply all rules and rank what they find."""
    found = [finding for rule in RULES if (finding := rule(facts)) is not None]
    causes = {f.id: f.points for f in found if f.cause and f.points is not None}
    ids = {f.id for f in found}
    whole: dict[str | None, float] = {f.because: f.points or 0.0 for f in found if f.because in ids}
    found.sort(
        key=lambda f: (
            not f.first, f.points is None, -_weight(f, causes, whole), f.because in ids, not f.cause, f.id,
        )
    )  # fmt: skip
    rows: list[dict[str, object]] = [
        {
            "position": i, "id": f.id, "title": f.title, "points": f.points,
            "evidence": json.dumps(_with_gain(f, facts), ensure_ascii=False), "next": f.next,
        }
        for i, f in enumerate(found)
    ]  # fmt: skip
    return table_from_rows(FINDINGS, rows)


def _weight(finding: Finding, causes: dict[str, float], whole: dict[str | None, float]) -> float:
    """Return what a finding is ranked by: its points, those of the cause that explains it, or of what it explains."""
    points = max(finding.points or 0.0, whole.get(finding.id, 0.0))
    if finding.cause or finding.because in whole:
        return points
    may = finding.explained_by
    known = [value for id, value in causes.items() if (may is None or id in may) and points / 2 <= value < points]
    return max(known, default=points)


def _with_gain(finding: Finding, facts: Facts) -> dict[str, Any]:
    """Add the MFU that would be reached if the time were gone."""
    other_peak = finding.id == "gemm_precision"  # in another number format MFU is against another peak
    if finding.points is None or facts.mfu is None or not finding.points < 100 or other_peak:
        return finding.evidence
    return {**finding.evidence, "mfu_without_it": min(1.0, facts.mfu / (1 - finding.points / 100))}


def findings_json(table: pa.Table) -> list[dict[str, Any]]:
    """Return the findings in the shape of `--format json`: evidence as values."""
    rows: list[dict[str, Any]] = table.drop_columns(["position"]).to_pylist()
    return [{**row, "evidence": json.loads(row["evidence"] or "{}")} for row in rows]


__all__ = ["RULES", "Facts", "Finding", "Rule", "find", "findings_json"]
