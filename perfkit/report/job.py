"""The job in words: its mesh, whom the ranks wait for, and which groups cost time.

    job_lines(document) -> list[Line]     a head and its text; empty for one rank
    heat_cells(report) -> Heat | None     rank × step: waiting that a rank caused

Both renderers say the same. Lists are cut to what decides; the tables hold all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from perfkit.report import format as fmt

if TYPE_CHECKING:
    from perfkit.report.report import Report

MAX_NAMED = 3
MAX_HEAT_RANKS, MAX_HEAT_STEPS = 64, 120
WORTH = 0.005
"""Shares of the time below this are not named."""


LARGE_BYTES = 2**20
"""Messages below this measure latency: their bandwidth says nothing about a link."""


class Line(NamedTuple):
    """One line about the job."""

    head: str
    text: str


def job_lines(document: Mapping[str, Any]) -> list[Line]:
    """Return what is worth saying about the ranks together."""
    job = document["job"]
    if not job or not job["instances"] or (document["scope"]["ranks_traced"] or 0) < 2:
        return []
    window = document["totals"]["window_ns"]
    matched = job["calls"] - (job["calls_unmatched"] or 0) - (job["calls_alone"] or 0)
    mesh = f"{fmt.clean(job['mesh'])} ({job['mesh_source']})" if job["mesh"] else "unknown"
    lines = [Line("mesh", f"{mesh} · {matched:,} of {job['calls']:,} collective calls matched")]
    if waiting := _waiting(document, window):
        lines.append(Line("waits for", waiting))
    if groups := _groups(document, window):
        lines.append(Line("exposed in", groups))
    return lines


def _waiting(document: Mapping[str, Any], window: int) -> str:
    """Name the ranks that others wait for, if waiting costs anything."""
    job = document["job"]
    total = (job["wait_caused_ns"] or 0) + (job["wait_unattributed_ns"] or 0)
    if not window or total < WORTH * window:
        return ""
    blamed = [row for row in document["ranks"] if row["wait_caused_ns"]]
    blamed.sort(key=lambda row: -row["wait_caused_ns"])
    parts: list[str] = []
    for row in blamed[:MAX_NAMED]:
        share = row["wait_caused_ns"] / total
        if share < 0.05 and parts:
            break
        role = f" ({fmt.clean(row['role'])})" if row["role"] and row["role"] != "all" else ""
        parts.append(f"rank {row['rank']}{role} {fmt.duration(row['wait_caused_ns'])}, {fmt.percent(share, 0)}")
    rest = len(blamed) - len(parts)
    if rest > 0:
        parts.append(f"{fmt.plural(rest, 'other')}")
    if job["wait_unattributed_ns"]:
        parts.append(f"nobody can be named for {fmt.duration(job['wait_unattributed_ns'])}")
    return " · ".join(parts)


def exposed_ns(row: Mapping[str, Any]) -> int:
    """Return the exposed time of a row of `collectives`."""
    names = ("exposed_wait_ns", "exposed_transfer_ns", "exposed_unsplit_ns", "bubble_ns")
    return sum(row.get(name) or 0 for name in names)


def _groups(document: Mapping[str, Any], window: int) -> str:
    rows = [row for row in document["collectives"] or () if window and exposed_ns(row) >= WORTH * window]
    rows.sort(key=lambda row: -exposed_ns(row))
    parts = []
    for row in rows[:MAX_NAMED]:
        kinds = [
            (name, row.get(key))
            for name, key in (("transfer", "exposed_transfer_ns"), ("wait", "exposed_wait_ns"), ("bubble", "bubble_ns"))
        ]
        named = [f"{name} {fmt.duration(ns)}" for name, ns in kinds if ns]
        large = (row["bytes"] or 0) >= LARGE_BYTES * (row["count"] or 1)
        if row["busbw_gbps"] is not None and row.get("exposed_transfer_ns") and large:
            named.append(f"{fmt.value('gbps', row['busbw_gbps'])} bus")
            if row["efficiency"] is not None:
                named.append(f"{fmt.percent(row['efficiency'], 0)} of the link")
        what = f"{fmt.clean(row['group'] or 'its group')} {fmt.clean(row['op'])}"
        parts.append(f"{what} {', '.join(named)}" if named else f"{what} {fmt.duration(exposed_ns(row))}")
    return " · ".join(parts)


@dataclass(frozen=True)
class Heat:
    """A rank × step map."""

    ranks: list[int]
    labels: list[str]
    """Of the columns: a step, or the first and last of several."""
    values: list[list[int]]
    """ns by rank and column."""
    note: str


def heat_cells(report: Report) -> Heat | None:
    """Return what the others waited for each rank in each step; None for one rank, or if nobody waited."""
    table = report.tables.get("blame_steps")
    if table is None or not len(table):
        return None
    rows = [row for row in table.to_pylist() if row["step"] is not None]
    steps = sorted({row["step"] for row in rows})
    total: dict[int, int] = {}
    for row in rows:
        total[row["rank"]] = total.get(row["rank"], 0) + row["wait_caused_ns"]
    if not any(total.values()) or not steps:
        return None
    worst = sorted(total, key=lambda rank: (-total[rank], rank))[:MAX_HEAT_RANKS]
    ranks = sorted(worst)
    size = -(-len(steps) // MAX_HEAT_STEPS)
    groups = [steps[i : i + size] for i in range(0, len(steps), size)]
    column = {step: i for i, group in enumerate(groups) for step in group}
    place = {rank: i for i, rank in enumerate(ranks)}
    values = [[0] * len(groups) for _ in ranks]
    for row in rows:
        if row["rank"] in place:
            values[place[row["rank"]]][column[row["step"]]] += row["wait_caused_ns"]
    note = f" The {len(ranks)} of {len(total):,} ranks that caused most." if len(ranks) < len(total) else ""
    note += f" A column is {size} steps." if size > 1 else ""
    return Heat(ranks, [str(g[0]) if len(g) == 1 else f"{g[0]}-{g[-1]}" for g in groups], values, note)
