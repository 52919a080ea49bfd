"""A finding, and the smallest one worth a reader's time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MAX_EVIDENCE = 5
"""Rows of evidence that a finding lists."""


@dataclass(frozen=True)
class Finding:
    """One thing to fix."""

    id: str
    title: str
    points: float | None
    """Points of ladder A that it could recover; null if that cannot be told."""
    next: str
    evidence: dict[str, Any] = field(default_factory=dict)
    first: bool = False
    """It puts all others in doubt."""
    cause: bool = True
    """It says why. One that only says who or where comes after a cause that is worth at least half as much."""
    explained_by: frozenset[str] | None = None
    """Ids of the findings that could be its cause; None: any. What a rank does late is not made of communication."""
    because: str | None = None
    """Id of the finding that says why, if one does: a sync also costs what its rank launches late afterwards."""


def ms(ns: float) -> float:
    """Return milliseconds for evidence, rounded to the ns."""
    return round(ns / 1e6, 6)
