"""Decide what of a store may go: runs that are too old, and before them the traces of a run.

    plan_retention(commits, now_ns=…, keep_ns=…, keep_traces_ns=…) -> Retention(runs, segments)

A run is as old as its newest segment; its age counts from when that was ingested, so that an old trace ingested today
is not gone tomorrow. Trimming a segment removes the tables that hold single events and keeps its commit, so that
`store ls`, the dashboard and the analyses that were made of it still know the run; ingesting the trace again brings
the events back. Fleet tables (jobs, nodes, roll-ups) are small and never touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from perfkit.errors import UsageError
from perfkit.store.commits import Commit
from perfkit.store.layout import RunKey

EVENT_TABLES = frozenset(("events", "kernels_meta", "ops", "collective_args", "syncs", "memory", "nvtx_gpu", "tracks"))
"""Tables with a row per event of a trace."""
REMOVED = "removed_tables"
"""In the `extra` of a commit: what retention took out of its segment."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(h|d|w|y)")
_HOURS = {"h": 1, "d": 24, "w": 7 * 24, "y": 365 * 24}


def parse_duration_ns(text: str) -> int:
    """Parse `90d`, `12h`, `2w`, `1y`."""
    found = _DURATION.fullmatch(text.strip().lower())
    if not found:
        raise UsageError(f"{text!r} is no duration", next_step="write it like 90d, 12h, 2w or 1y")
    return round(float(found[1]) * _HOURS[found[2]] * 3600 * 1e9)


@dataclass(slots=True)
class Retention:
    """What may go."""

    runs: dict[RunKey, list[Commit]] = field(default_factory=dict)
    """Whole attempts, with their commits."""
    segments: list[Commit] = field(default_factory=list)
    """Segments of other runs that lose their events."""

    @property
    def trace_bytes(self) -> int:
        """What the events of those segments take."""
        return sum(file.bytes for c in self.segments for file in c.files if file.table in EVENT_TABLES)


def plan_retention(
    commits: Iterable[Commit],
    written_ns: Mapping[RunKey, int],
    *,
    now_ns: int,
    keep_ns: int | None,
    keep_traces_ns: int | None,
) -> Retention:
    """Choose; `written_ns` says when a run was written to whose commits do not say so themselves."""
    by_run: dict[RunKey, list[Commit]] = {key: [] for key in written_ns}
    for commit in commits:
        by_run.setdefault(commit.key, []).append(commit)
    plan = Retention()
    for key, own in by_run.items():
        newest = max((c.written_ns for c in own if c.written_ns is not None), default=None)
        newest = newest if newest is not None else written_ns.get(key, now_ns)
        if keep_ns is not None and now_ns - newest > keep_ns:
            plan.runs[key] = own
            continue
        for commit in own if keep_traces_ns is not None else ():
            written = commit.written_ns if commit.written_ns is not None else newest
            if now_ns - written > (keep_traces_ns or 0) and EVENT_TABLES & {file.table for file in commit.files}:
                plan.segments.append(commit)
    return plan


def trimmed(commit: Commit) -> Commit:
    """Return the commit without its events; what remains is not rewritten."""
    gone = sorted({file.table for file in commit.files} & EVENT_TABLES)
    return replace(
        commit,
        files=tuple(file for file in commit.files if file.table not in EVENT_TABLES),
        generation=commit.generation + 1,
        extra={**commit.extra, REMOVED: gone},
    )
