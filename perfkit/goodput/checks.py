"""What a health check says, and how bad a list of them is.

Severity: ok, unknown (could not be checked, and why), warning (look at it), fault (take the node out). The worst of a
list is its verdict; `unknown` never counts as healthy evidence, and never fails a node by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

SEVERITIES = ("ok", "unknown", "warning", "fault")
EXIT_CODES = {"ok": 0, "unknown": 0, "warning": 1, "fault": 3}
"""2 is left to bad usage, as everywhere in perfkit."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    severity: str
    detail: str
    value: float | None = None
    device: int | None = None
    next: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the check as a JSON object."""
        return asdict(self)


def worst(checks: Iterable[Check]) -> str:
    """Return the severity of the worst check."""
    return max((check.severity for check in checks), key=SEVERITIES.index, default="unknown")
