"""Everything that is said about the ranks together, in one value.

    job_results(parts, …) -> JobResults     the view, stragglers, bubbles, loads, and the rows of the report

Imported only when there is communication or more than one rank: a single rank pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from perfkit.analysis.alignment import alignment_table
from perfkit.analysis.bubble import Bubbles, bubbles
from perfkit.analysis.clocks import HostClock
from perfkit.analysis.collectives_summary import collectives_table, size_histogram, summarize_collectives
from perfkit.analysis.imbalance import Imbalance, expert_imbalance, token_imbalance
from perfkit.analysis.intervals import Ints
from perfkit.analysis.job import JobView, Part, view_job
from perfkit.analysis.layout import arrange
from perfkit.analysis.stragglers import stragglers
from perfkit.analysis.timeline import ints
from perfkit.analysis.waterfall import COMM_TERMS


@dataclass
class JobResults:
    """The job's view and what follows from it."""

    view: JobView
    collectives: list[dict[str, Any]]
    stragglers: pa.Table
    bubbles: Bubbles
    loads: list[Imbalance] = field(default_factory=list)

    def tables(self) -> dict[str, pa.Table]:
        """Return the tables of the report."""
        view = self.view
        found = {
            "collectives": collectives_table(view), "collective_sizes": size_histogram(view), "groups": view.groups,
            "links": view.links, "clocks": clock_table(view), "alignment": alignment_table(view),
            "job_steps": view.steps,
        }  # fmt: skip
        if view.several:
            found |= {"stragglers": self.stragglers, "blame": view.blame.ranks, "blame_steps": view.blame.cells}
            if view.layout is not None:
                found |= {"layout": view.layout.table(), "arrangement": arrange(view.layout, view.ranks, view.hosts)}
        if len(self.bubbles.ranks):
            found |= {"bubbles": self.bubbles.ranks, "stages": self.bubbles.stages}
        return found

    def terms(self) -> pa.Table:
        """Return exposed communication by rank, device and step: columns of perfkit.analysis.job.STEPS."""
        return self.view.steps

    def clock(self) -> dict[str, Any]:
        """Return `quality.clock`."""
        clock, several = self.view.clock, self.view.several and bool(len(self.view.instances))
        return {
            "aligned": several and clock.aligned,
            "uncertainty_ns": clock.u_ns if several else None,
            "hosts": [
                {
                    "name": host.name, "ranks": len(host.ranks), "uncertainty_ns": host.u_ns,
                    "offset_ns": _offset(host),
                    "drift_ppm": host.fit.pieces[0].drift * 1e6 if host.fit is not None else None,
                    "jumps": len(host.fit.pieces) - 1 if host.fit is not None else 0,
                }
                for host in clock.hosts[:MAX_HOSTS]
            ] if several else [],
            "device_corrections_ns": {str(rank): ns for rank, ns in sorted(clock.corrections.items())[:MAX_HOSTS]},
        }  # fmt: skip

    def summary(self) -> dict[str, Any]:
        """Return what the document's `job` says."""
        view, blame = self.view, self.view.blame
        layout = view.layout
        sums: dict[str, int | None] = {name: int(ints(view.steps[name]).sum()) for name in _SUMS}
        for name in _SUMS[:2]:  # none of it was found, and it may be in what could not be split
            sums[name] = sums[name] or (None if sums["unsplit_ns"] else 0)
        return {
            "mesh": layout.text if layout is not None else None,
            "mesh_source": layout.source if layout is not None and layout.text else None,
            "degrees": dict(layout.degrees) if layout is not None else {},
            "calls": len(view.calls), "instances": len(view.instances),
            "calls_unmatched": view.unmatched, "calls_alone": view.alone, **sums,
            "wait_caused_ns": blame.caused_ns, "wait_unattributed_ns": blame.unattributed_ns,
            "bubble": self.bubbles.evidence if len(self.bubbles.ranks) else None,
            "loads": [{"what": one.what, "sentence": one.sentence, **one.evidence} for one in self.loads],
        }  # fmt: skip

    def by_rank(self) -> dict[int, dict[str, Any]]:
        """Return role, straggler score and blame of every rank."""
        if not self.view.several:
            return {}
        layout, found = self.view.layout, {}
        scores = {row["rank"]: row["score"] for row in self.stragglers.to_pylist()}
        conclusive = bool(len(self.view.instances))
        for row in self.view.blame.ranks.to_pylist():
            rank = row["rank"]
            found[rank] = {
                "role": (layout.position(rank) or layout.role_of.get(rank)) if layout is not None else None,
                "straggler_score": scores.get(rank),
                "wait_caused_ns": row["wait_caused_ns"] if conclusive else None,
                "recoverable_ns": row["recoverable_ns"] if conclusive else None,
                "persistence": row["persistence"],
            }
        return found


MAX_HOSTS = 64
"""Clocks that the document lists; the table `clocks` has all."""
_SUMS = ("exposed_transfer_ns", "exposed_wait_ns", "unsplit_ns", "bubble_ns")


def job_results(
    parts: Sequence[Part],
    *,
    steps: pa.Table,
    idle: pa.Table,
    window_idle: pa.Table,
    compute: pa.Table,
    records: pa.Table | None = None,
    hosts: Mapping[int, str | None] | None = None,
    devices: Mapping[int, str | None] | None = None,
    world_size: int | None = None,
    mesh: str | None = None,
) -> JobResults:
    """Work out everything about the ranks together; tables are those of perfkit.analysis.analyze."""
    view = view_job(parts, hosts=hosts, devices=devices, world_size=world_size, mesh=mesh)
    found = bubbles(view, steps, window_idle, compute)
    view.notes += [note for note in found.notes if note not in view.notes]
    loads = [token_imbalance(view, steps, records), expert_imbalance(view, steps)] if view.several else []
    loads = [one for one in loads if one.verdict != "not recorded"]
    slow = stragglers(view, steps, idle, view.blame.ranks if len(view.instances) else None, loads)
    return JobResults(view, summarize_collectives(view), slow, found, loads)


def _offset(host: HostClock) -> int | None:
    if host.fit is not None:
        return host.fit.pieces[0].offset_ns
    return None if host.u_ns is None else 0


def clock_table(view: JobView) -> pa.Table:
    """Return one row per clock and piece: how it differs from the reference."""
    rows: list[dict[str, Any]] = []
    for host in view.clock.hosts:
        pieces = host.fit.pieces if host.fit is not None else [None]
        for piece in pieces:
            rows.append(
                {
                    "clock": host.name, "ranks": list(host.ranks),
                    "against": view.clock.hosts[host.parent].name if host.parent >= 0 else None,
                    "from_ns": None if piece is None else piece.from_ns,
                    "offset_ns": None if piece is None else piece.offset_ns,
                    "drift_ppm": None if piece is None else piece.drift * 1e6, "uncertainty_ns": host.u_ns,
                }
            )  # fmt: skip
    return pa.Table.from_pylist(rows, schema=CLOCKS)


CLOCKS = pa.schema(
    [
        ("clock", pa.utf8()), ("ranks", pa.list_(pa.int64())), ("against", pa.utf8()), ("from_ns", pa.int64()),
        ("offset_ns", pa.int64()), ("drift_ppm", pa.float64()), ("uncertainty_ns", pa.int64()),
    ]
)  # fmt: skip


def split_terms(job: JobResults, steps: pa.Table) -> dict[str, Ints]:
    """Return exposed communication of each row of `steps` by term of the ladder; they sum to exposed_comm_ns.

    Rows of the view's steps are those of `attribution` without carry-in, in the same order.
    """
    known = job.view.steps
    assert len(known) == len(steps)
    columns = ("bubble_ns", "exposed_transfer_ns", "exposed_wait_ns", "unsplit_ns")
    return {term: ints(known[column]) for term, column in zip(COMM_TERMS, columns, strict=True)}
