"""A fleet history with a known answer: `perfkit simulate fleet`.

    fleet = Fleet(FleetOptions(clusters=3, days=365, runs=2000, seed=1))
    write_fleet(fleet, "store/")      fleet tables by date, a few runs in full, truth.json beside them

Everything is synthetic and says so: in the column `synthetic` of every table and in truth.json. The same options
give the same rows. Roll-ups are made by perfkit.goodput from the simulated records; the truth is added up by the
simulator itself, so that comparing the two is a test.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from perfkit.errors import UsageError
from perfkit.goodput.uptime import cluster_hours
from perfkit.simulate import fleet_tables
from perfkit.simulate.fleet_detail import choose_detailed, write_detail
from perfkit.simulate.fleet_gpus import gpu_days
from perfkit.simulate.fleet_runs import run_truth
from perfkit.simulate.fleet_schedule import Progress, Schedule
from perfkit.simulate.fleet_world import DAY, FleetOptions, World
from perfkit.store import Store

__all__ = ["Fleet", "FleetOptions", "write_fleet"]


class Fleet:
    """A simulated history; everything is made when it is asked for."""

    def __init__(self, options: FleetOptions) -> None:
        self.options = options

    @cached_property
    def world(self) -> World:
        """What is given before time starts."""
        return World.build(self.options)

    @cached_property
    def schedules(self) -> list[Schedule]:
        """What happened, by cluster."""
        return [Schedule(self.world, cluster).play() for cluster in self.world.clusters]

    @property
    def runs(self) -> list[Progress]:
        """All runs that ever started."""
        return [run for schedule in self.schedules for run in schedule.runs if run.attempts]

    @cached_property
    def rollups(self) -> tuple[pa.Table, pa.Table]:
        """run_rollup and interruptions of all runs."""
        pairs = [fleet_tables.run_tables(run, self.world) for run in self.runs]
        rollup, stops = (pa.concat_tables([p[i] for p in pairs]).unify_dictionaries() for i in (0, 1))
        return rollup, stops

    @cached_property
    def nodes(self) -> pa.Table:
        """The inventory."""
        return self._of_all(fleet_tables.node_table)

    @cached_property
    def cluster_rollup(self) -> pa.Table:
        """GPU-time of the clusters by state."""
        return cluster_hours(self.nodes, self.rollups[0], end_ns=self.options.end_ns, synthetic=True)

    @cached_property
    def job_nodes(self) -> pa.Table:
        """Each node's pace in each attempt: what lemon detection reads."""
        return self._of_all(fleet_tables.job_node_table)

    @cached_property
    def jobs(self) -> pa.Table:
        """Attempts as a scheduler lists them."""
        return self._of_all(fleet_tables.job_table)

    @cached_property
    def health_events(self) -> pa.Table:
        """XIDs, lost GPUs and throttling."""
        return self._of_all(fleet_tables.health_table)

    def _of_all(self, make: Callable[[Schedule], pa.Table]) -> pa.Table:
        return pa.concat_tables([make(schedule) for schedule in self.schedules]).unify_dictionaries()

    def truth(self) -> dict[str, Any]:
        """Return what is so: lemons, and GPU-ns by bucket of every run and cluster."""
        clusters = {}
        for schedule in self.schedules:
            cluster = schedule.cluster
            runs = {run.spec.run: run_truth(run.spec, run.attempts) for run in schedule.runs if run.attempts}
            clusters[cluster.name] = {
                "nodes": cluster.nodes,
                "device": cluster.device,
                "slow_nodes": {
                    cluster.node_name(n): {"slowdown": f, "since_ns": since, "device": device}
                    for n, (f, since, device) in sorted(cluster.slow.items())
                },
                "flaky_nodes": [cluster.node_name(n) for n in sorted(cluster.flaky)],
                "goodput_ns": {k: sum(r[k] for r in runs.values()) for k in next(iter(runs.values()), {})},
                "interruptions": sum(one.stop_ns is not None for run in schedule.runs for one in run.attempts),
                "runs": runs,
            }
        return {"synthetic": True, "schema_version": 1, "options": asdict(self.options), "clusters": clusters}


def write_fleet(
    fleet: Fleet, folder: str | os.PathLike[str], progress: Callable[[str], None] = lambda what: None
) -> dict[str, int]:
    """Write a store and the truth; return rows by table."""
    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{path} is not an empty folder", next_step="name another with -o, or empty it")
    store = Store(path)
    store.create()
    written: dict[str, int] = {}
    progress("playing the history")
    rollup, stops = fleet.rollups
    detailed = choose_detailed(fleet.runs, fleet.options)
    progress("writing a few runs in full")
    for run in detailed:
        for table, rows in write_detail(store, fleet, run).items():
            written[table] = written.get(table, 0) + rows
    tables = {
        "run_rollup": (rollup, "start_ns"), "interruptions": (stops, "time_ns"), "nodes": (fleet.nodes, "start_ns"),
        "cluster_rollup": (fleet.cluster_rollup, "start_ns"), "job_nodes": (fleet.job_nodes, "start_ns"),
        "jobs": (fleet.jobs, "start_ns"), "health_events": (fleet.health_events, "time_ns"),
    }  # fmt: skip
    for name, (table, time) in tables.items():
        progress(f"writing {name}")
        written[name] = len(table)
        for date, part in by_date(table, time):
            store.write_fleet(name, part, date=date, part="simulated")
    progress("writing gpu_rollup")
    written["gpu_rollup"] = _write_gpu_days(store, fleet)
    truth = fleet.truth() | {"detailed_runs": [run.spec.run for run in detailed]}
    (path / "truth.json").write_text(json.dumps(truth, indent=1))
    return written


def _write_gpu_days(store: Store, fleet: Fleet) -> int:
    rows = 0
    for days in zip(*(gpu_days(schedule) for schedule in fleet.schedules), strict=True):
        table = pa.concat_tables([part for _, part in days])
        store.write_fleet("gpu_rollup", table, date=_date(fleet.options.start_ns + days[0][0] * DAY), part="simulated")
        rows += len(table)
    return rows


def by_date(table: pa.Table, time: str) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each day (UTC)."""
    day = np.asarray(table[time].to_numpy(), np.int64) // DAY
    order = np.argsort(day, kind="stable")
    table, day = table.take(pa.array(order)), day[order]
    edges = np.flatnonzero(np.r_[True, day[1:] != day[:-1], True]) if len(day) else np.zeros(1, np.int64)
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        yield _date(int(day[low]) * DAY), table.slice(low, high - low)


def _date(time_ns: int) -> str:
    return datetime.datetime.fromtimestamp(time_ns // 10**9, datetime.timezone.utc).date().isoformat()
