"""Roll-ups of captured runs: from steps, lifecycle and counters in a store to its fleet tables.

    run_tables(store, attempts)       -> run_rollup, interruptions, job_nodes, gpu_rollup of one run
    write_rollups(store, …)           -> writes them, by date, in place of what was there of the run

Called when a run was ingested or compacted, and by `perfkit store rollup`. Only the lead rank's steps are read
(training is synchronous); job_nodes and gpu_rollup need the other ranks' comparison and counters and are as complete
as these. Simulated runs have their roll-ups already and are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.errors import StoreError
from perfkit.goodput.account import account
from perfkit.goodput.gpu_days import gpu_days
from perfkit.goodput.health_node import HARMLESS_XIDS
from perfkit.goodput.rollup import DAY_NS, find_interruptions, rollup_run
from perfkit.goodput.summary import date_of
from perfkit.goodput.timeline import Timeline
from perfkit.schema import JOB_NODES, LIFECYCLE, TABLES, table_from_rows
from perfkit.store import RunSummary, Store

BLAME_BEFORE_NS = 300 * 10**9
BLAME_AFTER_NS = 60 * 10**9
"""A node is blamed for an interruption if its board broke this long before it, or after: the last word may be late."""
TIMES = {"run_rollup": "start_ns", "interruptions": "time_ns", "job_nodes": "start_ns", "gpu_rollup": "start_ns"}


def captured_runs(
    store: Store, cluster: str | None = None, run: str | None = None
) -> dict[tuple[str, str], list[RunSummary]]:
    """Return the attempts of every run that left steps or lifecycle records."""
    found: dict[tuple[str, str], list[RunSummary]] = {}
    for one in store.runs(cluster=cluster, run=run):
        if one.rows.get("steps") or one.rows.get("lifecycle"):
            found.setdefault((one.cluster, one.run), []).append(one)
    return found


def run_timeline(store: Store, attempts: list[RunSummary], *, as_of_ns: int | None = None) -> Timeline:
    """Read the records of one run."""
    lifecycle, steps = (_read_lead(store, name, attempts) for name in ("lifecycle", "steps"))
    if lifecycle is None:
        lifecycle = LIFECYCLE.empty().append_column("attempt", pa.array([], pa.int32()))
    world = max((a.world_size or len(a.ranks) for a in attempts), default=None)
    per_replica = next(
        (a.metadata["devices_per_replica"] for a in attempts if a.metadata.get("devices_per_replica")), None
    )
    replicas = world // int(per_replica) if world and per_replica else 1
    return Timeline.from_tables(lifecycle, steps, gpus=world, replicas=replicas, as_of_ns=as_of_ns)


def _read_lead(store: Store, table: str, attempts: list[RunSummary]) -> pa.Table | None:
    """Rows of the lowest rank of each attempt that has any."""
    parts = []
    for one in attempts:
        if not one.rows.get(table):
            continue
        for rank in one.ranks:
            rows = store.read(table, cluster=one.cluster, run=one.run, attempt=one.attempt, ranks=[rank])
            if len(rows):
                parts.append(rows.append_column("attempt", pa.array(np.full(len(rows), one.attempt, np.int32))))
                break
    return pa.concat_tables(parts).unify_dictionaries() if parts else None


def run_facts(attempts: list[RunSummary]) -> dict[str, Any]:
    """Return what the manifests say of a run."""
    known: dict[str, Any] = {}
    for one in attempts:
        known |= {name: value for name, value in one.metadata.items() if value is not None}
    last = attempts[-1]
    peak = known.get("peak_flops")
    model = known.get("model")
    return {
        "cluster": last.cluster, "run": last.run, "name": known.get("name") or last.run, "user": known.get("user"),
        "model": model if isinstance(model, str) or model is None else json.dumps(model), "device": known.get("device"),
        "world_size": last.world_size, "num_nodes": len(last.hosts) or None,
        "peak_flops": float(peak) if peak else None, "synthetic": last.synthetic or None,
    }  # fmt: skip


def run_tables(
    store: Store, attempts: list[RunSummary], *, as_of_ns: int | None = None, notes: list[str] | None = None
) -> dict[str, pa.Table]:
    """Return the fleet tables of one run; what was odd in its records is added to `notes`."""
    line = run_timeline(store, attempts, as_of_ns=as_of_ns)
    if notes is not None:
        notes += [f"{attempts[0].cluster}/{attempts[0].run}: {note}" for note in line.notes]
    pieces, facts = account(line), run_facts(attempts)
    counters = _read_counters(store, attempts)
    if counters is not None and len(counters):
        facts["memory_peak_bytes"] = _memory_peak(counters)
    tables = {
        "run_rollup": rollup_run(line, pieces, facts),
        "interruptions": find_interruptions(line, pieces, facts),
        "job_nodes": job_nodes(store, attempts, line),
    }
    if counters is not None:
        days = gpu_days(
            counters, cluster=attempts[0].cluster, device=facts["device"], synthetic=facts["synthetic"]
        )  # fmt: skip
        tables["gpu_rollup"] = _with_allocated(days, _hosts(store, attempts), line)
    return {name: table for name, table in tables.items() if len(table)}


def _read_counters(store: Store, attempts: list[RunSummary]) -> pa.Table | None:
    parts = [
        store.read("counters", cluster=a.cluster, run=a.run, attempt=a.attempt, filter=pc.field("device").is_valid())
        for a in attempts
        if a.rows.get("counters")
    ]
    return pa.concat_tables(parts).unify_dictionaries() if parts else None


def _hosts(store: Store, attempts: list[RunSummary]) -> dict[int, set[str]]:
    """Return the nodes of each attempt."""
    return {
        a.attempt: {c.host for c in store.committed(a.cluster, a.run, a.attempt) if c.host} for a in attempts
    }  # fmt: skip


def _with_allocated(days: pa.Table, hosts: dict[int, set[str]], line: Timeline) -> pa.Table:
    """Say for how much of each day the run held the GPU."""
    start = np.asarray(days["start_ns"].to_numpy(), np.int64)
    node = np.array(days["node"].cast(pa.utf8()).to_pylist(), object)
    held = np.zeros(len(days), np.int64)
    where = line.allocations
    for attempt, low, high in zip(where.attempt.tolist(), where.start.tolist(), where.end.tolist(), strict=True):
        mine = np.isin(node, list(hosts.get(attempt, set()))) if len(node) else np.zeros(0, bool)
        held += np.where(mine, np.clip(np.minimum(high, start + DAY_NS) - np.maximum(low, start), 0, None), 0)
    return days.set_column(days.schema.get_field_index("allocated_ns"), "allocated_ns", pa.array(held))


def _memory_peak(counters: pa.Table) -> int | None:
    mine = counters.filter(pc.equal(counters["name"], "gpu_memory_used_bytes"))
    value = pc.max(mine["value"]).as_py() if len(mine) else None
    return None if value is None else int(value)


def job_nodes(store: Store, attempts: list[RunSummary], line: Timeline) -> pa.Table:
    """Return one row per attempt and node; the pace is known where the run was analysed."""
    rows = []
    where = line.allocations
    blamed = _blamed(store, attempts[0].cluster, line)
    for one in attempts:
        commits = store.committed(one.cluster, one.run, one.attempt)
        ranks: dict[str, list[int]] = {}
        for commit in commits:
            if commit.host and commit.rank not in ranks.setdefault(commit.host, []):
                ranks[commit.host].append(commit.rank)
        pace = _pace(store, one)
        at = np.flatnonzero(where.attempt == one.attempt)
        start = int(where.start[at[0]]) if len(at) else one.start_ns
        if start is None:
            continue
        for host, mine in ranks.items():
            slowdown, own_ns, steps = max((pace[r] for r in mine if r in pace), default=(None, None, None))
            rows.append(
                {
                    "cluster": one.cluster,
                    "run": one.run,
                    "attempt": one.attempt,
                    "node": host,
                    "start_ns": start,
                    "end_ns": int(where.end[at[0]]) if len(at) else one.end_ns,
                    "num_nodes": len(ranks),
                    "ranks": len(mine),
                    "gpus": len(mine),
                    "steps": steps,
                    "own_ns": own_ns,
                    "slowdown": slowdown,
                    "slowdown_basis": "own_work" if slowdown else None,
                    "interrupted": (one.attempt, host) in blamed or None,
                    "synthetic": one.synthetic or None,
                }
            )
    return table_from_rows(JOB_NODES, rows)


def _blamed(store: Store, cluster: str, line: Timeline) -> set[tuple[int, str]]:
    """Return (attempt, node) where a board's XID or a lost GPU came just before an interruption."""
    if not len(line.fault_time) or not len(line.allocations.start):
        return set()
    events = store.read("health_events", columns=["cluster", "node", "time_ns", "kind", "code"])
    events = events.filter(pc.equal(events["cluster"], cluster))
    bad = [
        (row["time_ns"], row["node"])
        for row in events.to_pylist()
        if row["kind"] == "lost" or (row["kind"] == "xid" and row["code"] not in HARMLESS_XIDS)
    ]
    found = set()
    for time in line.fault_time.tolist():
        at = int(np.searchsorted(line.allocations.start, time, side="right")) - 1
        if at >= 0:
            near = {node for when, node in bad if time - BLAME_BEFORE_NS <= when <= time + BLAME_AFTER_NS}
            found |= {(int(line.allocations.attempt[at]), node) for node in near}
    return found


def _pace(store: Store, one: RunSummary) -> dict[int, tuple[float, int, int]]:
    """Return slowdown, own work a step and steps of each rank with peers (definition 16), by the newest analysis."""
    try:
        table = store.read("stragglers", cluster=one.cluster, run=one.run, attempt=one.attempt)
    except StoreError:
        return {}
    rows = (row for row in table.to_pylist() if row["score"])
    return {row["rank"]: (1 / row["score"], round(row["own_ns"] / row["steps"]), row["steps"]) for row in rows}


def write_rollups(
    store: Store,
    *,
    cluster: str | None = None,
    run: str | None = None,
    as_of_ns: int | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> dict[str, int]:
    """Write the fleet tables of captured runs; return rows by table."""
    written: dict[str, int] = {}
    before = _days_written(store)
    for key, attempts in captured_runs(store, cluster, run).items():
        if all(one.sources == ("simulator",) for one in attempts):
            continue
        progress("/".join(key))
        part = f"run {key[0]}/{key[1]}"  # the slash makes the store add a hash: no two runs share a name
        for name, table in run_tables(store, attempts, as_of_ns=as_of_ns).items():
            day = np.asarray(table[TIMES[name]].to_numpy(), np.int64) // DAY_NS
            days = {date_of(number): pa.array(day == number) for number in np.unique(day).tolist()}
            for date, mask in days.items():
                store.write_fleet(name, table.filter(mask), date=date, part=part)
            for date in before.get((name, *key), set()) - set(days):  # what was said of a day that is no more
                store.write_fleet(name, TABLES[name].empty(), date=date, part=part)
            written[name] = written.get(name, 0) + len(table)
    return written


def _days_written(store: Store) -> dict[tuple[str, str, str], set[str]]:
    """Return the days on which each run has rows, by table, cluster and run."""
    found: dict[tuple[str, str, str], set[str]] = {}
    for name in ("run_rollup", "interruptions", "job_nodes"):
        rows = store.read(name, columns=["cluster", "run"], partitions=True)
        one = rows.unify_dictionaries()  # each file has its own, and Arrow groups only by a common one
        pairs = one.group_by(["cluster", "run", "date"]).aggregate([]).to_pylist() if len(rows) else []
        for row in pairs:
            found.setdefault((name, row["cluster"], row["run"]), set()).add(str(row["date"]))
    return found
