"""The fleet tables of a simulated history, made by the code that makes them for real ones.

run_tables(run, world)      -> lifecycle -> Timeline -> account -> run_rollup, interruptions
node_table, job_node_table  -> nodes, job_nodes
job_table                   -> jobs, as a scheduler would list them
gpu_days                    -> gpu_rollup, one table per day
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from perfkit.goodput.account import account
from perfkit.goodput.rollup import find_interruptions, rollup_run
from perfkit.goodput.timeline import Timeline
from perfkit.schema import HEALTH_EVENTS, JOB_NODES, JOBS, LIFECYCLE, NODES, conform, table_from_rows
from perfkit.simulate.fleet_runs import Attempt
from perfkit.simulate.fleet_schedule import Progress, Schedule
from perfkit.simulate.fleet_world import DAY, GPUS_PER_NODE, HOUR, Cluster, Spec, World

XIDS = {"gpu": (79, 48, 119, 31), "gpu_memory": (48, 63, 64, 94), "network": (74,), "software": (13, 31)}


def run_facts(spec: Spec) -> dict[str, Any]:
    """Return what `rollup_run` wants to know of a run."""
    return {
        "cluster": spec.cluster.name, "run": spec.run, "name": spec.name, "user": spec.user, "model": spec.model,
        "device": spec.cluster.device, "world_size": spec.gpus, "num_nodes": spec.nodes,
        "peak_flops": spec.cluster.peak_flops, "memory_peak_bytes": int(61e9), "synthetic": True,
    }  # fmt: skip


def lifecycle_table(run: Progress) -> pa.Table:
    """Return the records of a run, as capture would have left them, with a column `attempt`."""
    spec, attempts = run.spec, run.attempts
    waiting = run.state in ("queued", "waiting")
    columns: dict[str, list[Any]] = {
        name: [] for name in ("kind", "start_ns", "end_ns", "step", "gpus", "cause", "attempt")
    }

    def add(one: Attempt, kind: str, start: Any, end: Any, step: Any = -1, cause: str | None = None) -> None:
        size = len(start)
        columns["kind"].append(np.full(size, kind, object))
        columns["start_ns"].append(start)
        columns["end_ns"].append(end)
        columns["step"].append(np.broadcast_to(np.asarray(step, np.int64), size))
        columns["gpus"].append(np.full(size, spec.gpus, np.int64))
        columns["cause"].append(np.full(size, cause, object))
        columns["attempt"].append(np.full(size, one.attempt, np.int64))

    none = np.array([-1], np.int64)
    for i, one in enumerate(attempts):
        silent = one.cause in (None, "no_heartbeat") and i == len(attempts) - 1
        if i == 0:
            add(one, "eligible", np.array([spec.submit_ns]), none)
        add(one, "allocated", np.array([one.start_ns]), none if silent else np.array([one.end_ns]))
        add(one, "step", one.block_start, one.block_end, one.last_step)
        for kind, start, end in one.phases:
            add(one, kind, start, end)
        if one.stop_ns is not None:
            hang = [int(end[-1]) for kind, _, end in one.phases if kind == "hang"]
            add(one, "fault", np.array([hang[-1] if hang else one.stop_ns]), none, cause=one.cause)
        if i == len(attempts) - 1 and waiting:
            add(Attempt(one.attempt + 1, one.end_ns), "eligible", np.array([run.eligible_ns]), none)
        elif i == len(attempts) - 1 and not silent:
            add(one, "end", np.array([one.end_ns]), none, cause=one.cause)
    flat = {name: np.concatenate(parts) for name, parts in columns.items()}
    table = pa.table(
        {
            "kind": pa.array(flat["kind"].tolist(), pa.utf8()),
            "start_ns": flat["start_ns"],
            "end_ns": pa.array(flat["end_ns"], mask=flat["end_ns"] < 0),
            "step": pa.array(flat["step"], mask=flat["step"] < 0),
            "gpus": flat["gpus"],
            "cause": pa.array(flat["cause"].tolist(), pa.utf8()),
        }
    )
    return conform(LIFECYCLE, table).append_column("attempt", pa.array(flat["attempt"], pa.int32()))


def run_tables(run: Progress, world: World) -> tuple[pa.Table, pa.Table]:
    """Return run_rollup and interruptions of one run."""
    spec = run.spec
    lifecycle = lifecycle_table(run)
    line = Timeline.from_tables(lifecycle, as_of_ns=world.options.end_ns)
    line.steps.tokens = line.steps.count * spec.tokens_per_step
    line.steps.flops = line.steps.count.astype(np.float64) * spec.flops_per_step
    line.steps.loss = loss_curve(line.steps.last.astype(np.float64), spec)
    line.fault_node = [
        None if one.blame is None else spec.cluster.node_name(one.blame)
        for one in run.attempts
        if one.stop_ns is not None
    ]
    pieces, facts = account(line), run_facts(spec)
    return rollup_run(line, pieces, facts), find_interruptions(line, pieces, facts)


def loss_curve(step: Any, spec: Spec) -> Any:
    """Return a loss that falls as losses do."""
    tokens = (step + 1) * spec.tokens_per_step
    return np.round(1.7 + 9.0 * np.power(tokens / 1e6, -0.21), 4)


# ------------------------------------------------------------------ nodes and jobs


def node_table(schedule: Schedule) -> pa.Table:
    """Return the inventory: up, with the outages cut out, and one hour that nobody watched."""
    cluster, options = schedule.cluster, schedule.world.options
    blind = options.start_ns + (options.days // 2) * DAY + cluster.index * HOUR
    rows: list[tuple[int, int, int, str, str | None]] = []
    for node in range(cluster.nodes):
        mine = sorted((o.start_ns, o.end_ns, o.state, o.reason) for o in schedule.outages if o.node == node)
        at = options.start_ns
        for start, end, state, reason in [*mine, (options.end_ns, options.end_ns, "", "")]:
            for low, high in _without(at, start, blind, blind + HOUR):
                rows.append((node, low, high, "up", None))
            if end > start:
                rows.append((node, start, end, state, reason))
            at = max(at, end)
    names = [cluster.node_name(r[0]) for r in rows]
    size = len(rows)
    return conform(
        NODES,
        pa.table(
            {
                "cluster": [cluster.name] * size, "node": names, "start_ns": [r[1] for r in rows],
                "end_ns": pa.array([None if r[2] >= options.end_ns else r[2] for r in rows], pa.int64()),
                "gpus": pa.array(np.full(size, GPUS_PER_NODE, np.int32)), "device": [cluster.device] * size,
                "state": [r[3] for r in rows], "reason": pa.array([r[4] for r in rows], pa.utf8()),
                "synthetic": pa.array(np.ones(size, bool)),
            }
        ),
    )  # fmt: skip


def _without(low: int, high: int, cut_low: int, cut_high: int) -> Iterator[tuple[int, int]]:
    for a, b in ((low, min(high, cut_low)), (max(low, cut_high), high)):
        if b > a:
            yield a, b


def job_node_table(schedule: Schedule) -> pa.Table:
    """Return what lemon detection reads: each node's pace against its peers, with the noise of a measurement."""
    cluster, dice = schedule.cluster, schedule.world.dice
    parts = []
    for run in schedule.runs:
        for one in run.attempts:
            size = len(one.nodes)
            steps = int(one.block_steps.sum())
            slow = cluster.slowdown(one.nodes, one.start_ns)
            slow = slow * (1 + 0.012 * dice.normal(run.spec.run, one.attempt, "own", size=size))
            fluke = dice.uniform(run.spec.run, one.attempt, "fluke", size=size)
            slow = np.where(fluke < 0.004, slow * (1.05 + 30 * fluke), slow)
            own = np.round(run.spec.step_ns * 0.8 * slow)
            relative = own / np.median(own) if size > 1 and steps >= 3 else np.full(size, np.nan)
            parts.append((run.spec, one, own, relative, steps))
    if not parts:
        return JOB_NODES.empty()
    count = np.array([len(p[1].nodes) for p in parts])
    row = np.repeat(np.arange(len(parts)), count)

    def each(values: list[Any]) -> list[Any]:
        return [values[i] for i in row.tolist()]

    relative = np.concatenate([p[3] for p in parts])
    nodes = np.concatenate([p[1].nodes for p in parts])
    unmeasured = np.isnan(relative)
    own = np.concatenate([p[2] for p in parts]).astype(np.int64)
    names = [cluster.node_name(i) for i in range(cluster.nodes)]
    blamed = np.array([-1 if p[1].blame is None else p[1].blame for p in parts])[row] == nodes
    return conform(
        JOB_NODES,
        pa.table(
            {
                "cluster": [cluster.name] * len(row), "run": each([p[0].run for p in parts]),
                "attempt": np.array([p[1].attempt for p in parts])[row], "node": [names[n] for n in nodes.tolist()],
                "start_ns": np.array([p[1].start_ns for p in parts])[row],
                "end_ns": np.array([p[1].end_ns for p in parts])[row], "num_nodes": count[row],
                "ranks": np.full(len(row), GPUS_PER_NODE), "gpus": np.full(len(row), GPUS_PER_NODE),
                "steps": np.array([p[4] for p in parts])[row], "own_ns": pa.array(own, mask=unmeasured),
                "slowdown": pa.array(relative, mask=unmeasured),
                "slowdown_basis": pa.array([None if u else "own_work" for u in unmeasured.tolist()], pa.utf8()),
                "interrupted": blamed, "synthetic": np.ones(len(row), bool),
            }
        ),
    )  # fmt: skip


_STATES = {"completed": "COMPLETED", "user": "CANCELLED by 1000", "out_of_memory": "OUT_OF_MEMORY", "node": "NODE_FAIL",
           "preemption": "PREEMPTED", None: "RUNNING", "no_heartbeat": "RUNNING"}  # fmt: skip


def job_table(schedule: Schedule) -> pa.Table:
    """Return the attempts as a scheduler lists them."""
    rows = []
    for run in schedule.runs:
        eligible = run.spec.submit_ns
        for one in run.attempts:
            state = _STATES.get(one.cause, "FAILED")
            rows.append(
                {
                    "cluster": run.spec.cluster.name,
                    "job": run.spec.run,
                    "attempt": one.attempt,
                    "user": run.spec.user,
                    "name": run.spec.name,
                    "submit_ns": run.spec.submit_ns,
                    "eligible_ns": eligible,
                    "start_ns": one.start_ns,
                    "end_ns": None if state == "RUNNING" else one.end_ns,
                    "gpus": run.spec.gpus,
                    "num_nodes": run.spec.nodes,
                    "nodes": [run.spec.cluster.node_name(n) for n in one.nodes.tolist()]
                    if run.spec.nodes <= 64
                    else None,
                    "state": state,
                    "exit_code": 0 if one.cause == "completed" else None,
                    "cause": one.cause,
                    "source": "simulator",
                    "synthetic": True,
                }
            )
            eligible = one.end_ns
    return table_from_rows(JOBS, rows)


def health_table(schedule: Schedule) -> pa.Table:
    """Return the events that monitoring would have seen."""
    cluster, dice = schedule.cluster, schedule.world.dice
    rows = []
    for run in schedule.runs:
        for one in run.attempts:
            if one.stop_ns is None or one.blame is None:
                continue
            device = one.blame % GPUS_PER_NODE  # the bad GPU of a flaky node is always the same
            if one.blame not in cluster.flaky:
                device = int(dice.choose(range(GPUS_PER_NODE), run.spec.run, one.attempt, "device"))
            codes = XIDS.get(one.cause or "", ())
            rows.append(
                {
                    "cluster": cluster.name,
                    "node": cluster.node_name(one.blame),
                    "device": device,
                    "uuid": gpu_uuid(cluster, one.blame, device),
                    "time_ns": one.stop_ns,
                    "kind": "xid" if codes else "lost",
                    "code": int(dice.choose(codes, run.spec.run, one.attempt, "xid")) if codes else None,
                    "severity": "fault",
                    "detail": f"{run.spec.run} attempt {one.attempt} stopped",
                    "synthetic": True,
                }
            )
    for node, (factor, since, device) in sorted(cluster.slow.items()):
        rows.append(
            {
                "cluster": cluster.name, "node": cluster.node_name(node), "device": device,
                "uuid": gpu_uuid(cluster, node, device), "time_ns": since, "end_ns": schedule.world.options.end_ns,
                "kind": "throttle", "code": 0x40, "severity": "warning",
                "detail": f"HW thermal slowdown, clocks down to {1 / factor:.0%}", "synthetic": True,
            }
        )  # fmt: skip
    rows.sort(key=lambda r: (r["time_ns"], r["node"]))
    return table_from_rows(HEALTH_EVENTS, rows)


def gpu_uuid(cluster: Cluster, node: int, device: int) -> str:
    """Return a UUID that stays the same."""
    return f"GPU-{cluster.index:08x}-{node:04x}-{device:04x}-0000-{node * 8 + device:012x}"
