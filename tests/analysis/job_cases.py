"""Small jobs for tests: calls written down one by one, and simulated ranks without the rest of the analysis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from perfkit.analysis.attribute import attribute, busy_sets, rows_of
from perfkit.analysis.call_args import ranks_text
from perfkit.analysis.calls import CALLS, EXPOSED, collective_calls, exposed_rows
from perfkit.analysis.clocks import Clocks
from perfkit.analysis.collectives import Pieces, Split, label_exposed, label_holds, split_calls
from perfkit.analysis.job import JobView, view_job
from perfkit.analysis.matching import Matched, match_calls
from perfkit.analysis.ops import CallTree
from perfkit.analysis.timeline import read_timelines
from perfkit.analysis.windows import find_steps, find_windows
from perfkit.simulate.job import Job
from perfkit.simulate.simulation import Simulation, simulate

EPOCH = 10**18


def call(rank: int, start: int, end: int, *, op: str = "all_reduce", **more: Any) -> dict[str, Any]:
    """Return one call; times are ns after EPOCH."""
    return {
        "rank": rank, "device": rank % 8, "segment": 0, "op": op, "start_ns": EPOCH + start, "end_ns": EPOCH + end,
        "source": "kernel_args", "step": 0, "group": "0", "in_bytes": 1000, "out_bytes": 1000,
        "dtype": "float32", **more,
    }  # fmt: skip


def calls_table(rows: Iterable[Mapping[str, Any]], group: Iterable[int] | None = None) -> pa.Table:
    """Return CALLS; `group` is the rank set of calls that name none."""
    rows = sorted(rows, key=lambda r: (r["rank"], r["segment"], r["start_ns"]))
    count: dict[tuple[int, int], int] = {}
    full = []
    for number, row in enumerate(rows):
        key = row["rank"], row["segment"]
        count[key] = count.get(key, -1) + 1
        ranks = list(group) if group is not None else None
        one = {"call": count[key], "event_id": number, "host_start_ns": row["start_ns"] - 10, **row}
        if ranks is not None and "group_ranks" not in row:
            one |= {"group_ranks": ranks_text(ranks), "group_size": len(ranks)}
        full.append(one)
    columns = {
        f.name: pa.array(
            [row.get(f.name) for row in full], f.type.value_type if pa.types.is_dictionary(f.type) else f.type
        )
        for f in CALLS
    }
    return pa.table(columns).cast(CALLS)


def all_exposed(calls: pa.Table) -> pa.Table:
    """Return EXPOSED of a job that only communicates, in one window per rank; calls of a rank must not overlap."""
    names = ("rank", "device", "segment", "step", "start_ns", "end_ns")
    columns = {name: calls[name] for name in names} | {"window_start_ns": pa.array(np.full(len(calls), EPOCH))}
    return pa.table(columns).select(EXPOSED.names).cast(EXPOSED)


@dataclass
class Case:
    """A job up to the labels of its exposed time."""

    calls: pa.Table
    exposed: pa.Table
    matched: Matched
    clocks: Clocks
    split: Split
    pieces: Pieces
    holds: Pieces

    def sums(self) -> dict[tuple[int, str], int]:
        """Return ns of (rank, wait | transfer | unsplit)."""
        found: dict[tuple[int, str], int] = {}
        for name in ("wait", "transfer", "unsplit"):
            for rank, ns in zip(self.split.rank.tolist(), getattr(self.split, name).tolist(), strict=True):
                found[rank, name] = found.get((rank, name), 0) + ns
        return found


def exact_clocks(ranks: Iterable[int], u_ns: int = 0) -> Clocks:
    """Return clocks that agree, with a given error."""
    from perfkit.analysis.clocks import HostClock

    return Clocks([HostClock("host", tuple(ranks), -1, None, 0)], spread_ns=u_ns)


def make_case(
    calls: pa.Table, *, world: int, u_ns: int = 0, pipeline: Any = None, exposed: pa.Table | None = None
) -> Case:
    """Match and split calls whose clocks agree."""
    ranks = sorted(set(calls["rank"].to_pylist()))
    matched = match_calls(calls, ranks, world)
    clocks = exact_clocks(ranks, u_ns)
    exposed = all_exposed(calls) if exposed is None else exposed
    split = split_calls(calls, matched, clocks, np.zeros(len(calls), bool) if pipeline is None else pipeline)
    return Case(
        calls, exposed, matched, clocks, split, label_exposed(calls, split, exposed), label_holds(calls, split, exposed)
    )


# ------------------------------------------------------------------ simulated jobs


@dataclass
class SmallPart:
    """What perfkit.analysis.job uses of a rank's part."""

    rank: int
    segment: int
    attribution: pa.Table
    calls: pa.Table
    exposed: pa.Table


def rank_parts(tables: Mapping[str, pa.Table]) -> list[SmallPart]:
    """Return the parts of a rank's tables, by the project's own functions but without kernels, idle time and so on."""
    parts = []
    for timeline in read_timelines(tables["events"]):
        steps, tree = find_steps(timeline), CallTree(timeline, tables.get("ops"))
        rows = []
        for device in timeline.devices or [None]:
            windows, busy = find_windows(timeline, device, steps=steps), busy_sets(timeline, device)
            rows.append(
                (
                    rows_of(attribute(timeline, device, windows, busy, steps), windows),
                    collective_calls(timeline, device, tables, tree, steps),
                    exposed_rows(timeline, device, windows, busy),
                )
            )
        parts.append(
            SmallPart(timeline.rank, timeline.segment, *(pa.concat_tables(t) for t in zip(*rows, strict=True)))
        )
    return parts


def simulated_parts(sim: Simulation) -> list[SmallPart]:
    """Return the parts of all ranks."""
    return [part for rank in sim.ranks for part in rank_parts(sim.tables(rank))]


def simulated_view(job: Job, *, hosts: bool = True, **more: Any) -> tuple[Simulation, JobView]:
    """Play a job and look at it as a whole."""
    sim = simulate(job, flows=False)
    known = {rank: sim.identity.host(rank) if hosts else None for rank in sim.ranks}
    view = view_job(simulated_parts(sim), hosts=known, world_size=job.mesh.world_size, **more)
    return sim, view


@cache
def cached_view(job: Job) -> tuple[Simulation, JobView]:
    """Return the same value to all tests that ask for a job."""
    return simulated_view(job)


def by_step(sim: Simulation) -> list[dict[str, Any]]:
    """Return the true partition of every rank and step."""
    return [{"rank": rank["rank"], **step} for rank in sim.truth()["ranks"] for step in rank["steps"]]
