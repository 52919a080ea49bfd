"""The health of a cluster's nodes and GPUs, or of those of one run.

    nodes(source, view)       -> rows by node, the worst first
    counters(source, view)    -> Counters: of the GPUs of one node over time, by sample of the run or by day
    events(source, view)      -> Strip: XIDs, throttling and other events by node and time, beside step time
    of_run(source, view)      -> events on the run's nodes, each with the steps it slowed (perfkit.goodput.health_run)
    lemons(source, view)      -> nodes that are slow or break runs beyond chance, each with its evidence

Ranges end with the newest data, as everywhere. Counters of single samples are those that capture kept of a run; a fleet
has them by day.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.errors import PerfkitError
from perfkit.goodput.health_run import check_run
from perfkit.store import Store
from perfkit.store.layout import slug

from . import data_cluster
from .data import Rows, Source, remembered
from .data_run import lead_rank
from .view import DAY_NS, View

MAX_DAYS = 90
MAX_NODES = 60
MAX_EVENTS = 2_000
MAX_SAMPLES = 500
"""Points of a line; a panel has one per GPU."""
MAX_RANKS = 512
"""Runs of more ranks are joined to their steps by `perfkit health`, not while a page waits."""
DAILY = (
    ("temp_max_celsius", "highest temperature", "°C"), ("clock_mean_mhz", "mean SM clock", "MHz"),
    ("power_mean_watts", "mean power", "W"), ("busy", "busy", "%"), ("thermal", "lost to heat and hardware", "%"),
    ("power", "lost to the power limit", "%"),
)  # fmt: skip
SAMPLED = {
    "gpu_temperature_celsius": ("temperature", "°C", 1.0), "gpu_temp_celsius": ("temperature", "°C", 1.0),
    "gpu_sm_clock_hertz": ("SM clock", "MHz", 1e-6), "gpu_clock_mhz": ("SM clock", "MHz", 1.0),
    "gpu_power_watts": ("power", "W", 1.0), "gpu_utilization_ratio": ("busy", "%", 100.0),
    "gpu_tensor_active_ratio": ("tensor cores active", "%", 100.0),
    "gpu_memory_used_bytes": ("memory in use", "GB", 1e-9),
}  # fmt: skip
"""Samples that are shown: label, unit, factor."""


def window(source: Source, view: View) -> tuple[int, int]:
    """Return the shown range, at most MAX_DAYS long."""
    start, end = source.window(view)
    end = min(end, (source.as_of().time_ns or end) + 1)
    return max(start, end - MAX_DAYS * DAY_NS), end


def held_nodes(source: Source, view: View) -> list[str] | None:
    """Return the nodes of the view's run; None if it names none, or nothing is known of its nodes."""
    if not view.run:
        return None
    key = source.run_key(view)
    hosts = {c.host for c in source.engine.commits(key)[0] if c.host} if key else set()
    span = source.window(view.change(range="all", since=None, until=None))
    source.load("job_nodes", span)
    rows = source.ask("SELECT DISTINCT node FROM job_nodes WHERE cluster = ? AND run = ?", [view.cluster, view.run])
    return sorted({*hosts, *(row["node"] for row in rows)}) or None


@remembered
def nodes(source: Source, view: View) -> Rows:
    """Return the nodes of the cluster, or of the run, with what is wrong with them."""
    span = window(source, view)
    for table in ("gpu_rollup", "health_events", "job_nodes"):
        source.load(table, span)
    days = source.ask(
        "SELECT node, count(DISTINCT device) AS gpus, max(temp_max_celsius) AS temperature, "
        "sum(throttle_thermal_ns) / nullif(sum(allocated_ns), 0) AS thermal, "
        "sum(throttle_power_ns) / nullif(sum(allocated_ns), 0) AS power, sum(ecc_uncorrected)::BIGINT AS ecc, "
        "arg_max(state, start_ns) AS state FROM gpu_rollup "
        "WHERE start_ns >= ? - 86400000000000 AND start_ns < ? AND cluster = ? GROUP BY node",
        [*span, view.cluster],
    )
    events = source.ask(
        "SELECT node, count(*) AS events, count(*) FILTER (kind = 'xid') AS xids, "
        "count(*) FILTER (severity = 'fault') AS faults, max(time_ns) AS last_ns FROM health_events "
        "WHERE time_ns >= ? AND time_ns < ? AND cluster = ? AND coalesce(severity, '') <> 'info' GROUP BY node",
        [*span, view.cluster],
    )
    slow = source.ask(
        "SELECT node, count(*) AS jobs, median(slowdown) AS slowdown, count(*) FILTER (interrupted) AS blamed "
        "FROM job_nodes WHERE start_ns >= ? AND start_ns < ? AND cluster = ? GROUP BY node",
        [*span, view.cluster],
    )
    found: dict[str, dict[str, Any]] = {}
    blank = dict.fromkeys(
        (
            "gpus",
            "temperature",
            "thermal",
            "power",
            "ecc",
            "state",
            "events",
            "xids",
            "faults",
            "last_ns",
            "jobs",
            "slowdown",
            "blamed",
        )
    )
    for row in (*days, *events, *slow):
        found.setdefault(row["node"], {"node": row["node"], **blank}).update(row)
    mine = held_nodes(source, view)
    if mine is not None:
        found = {node: found.get(node, {"node": node, **blank}) for node in mine}
    lemon = {row["node"] for row in data_cluster.lemons(source, view)}
    rows = [{**row, "lemon": row["node"] in lemon} for row in found.values()]
    return sorted(
        rows,
        key=lambda row: (
            not row["lemon"],
            -(row["faults"] or 0),
            -(row["thermal"] or 0),
            -(row["events"] or 0),
            -(row["temperature"] or 0),
            row["node"],
        ),
    )


def chosen_node(source: Source, view: View) -> str | None:
    """Return the node that the view names, else that of the dearest event of the run, else the worst."""
    if view.node:
        return view.node
    dear = (of_run(source, _about(view)) or {}).get("events") if view.run else None
    if dear:
        node: str = dear[0]["node"]
        return node
    rows = nodes(source, view)
    return rows[0]["node"] if rows else None


def _about(view: View) -> View:
    """Return the view without what only chooses a node, so that answers are kept once."""
    return view.change(node="", device=None)


# ------------------------------------------------------------------ counters


@dataclass(frozen=True)
class Counters:
    """Panels of one node: label, unit, and a line per GPU."""

    node: str
    by: str
    """`sample` or `day`."""
    panels: list[tuple[str, str, dict[int, tuple[Any, Any]]]] = field(default_factory=list)
    """(label, unit, GPU -> (time_ns, value))."""


@remembered
def counters(source: Source, view: View) -> Counters | None:
    """Return the counters of the chosen node: samples of the run where it kept them, else days."""
    node = chosen_node(source, view)
    if node is None:
        return None
    found = _sampled(source, view, node) if view.run else None
    return found or _daily(source, view, node)


def _sampled(source: Source, view: View, node: str) -> Counters | None:
    key = source.run_key(view)
    if key is None:
        return None
    ranks = sorted({c.rank for c in source.engine.commits(key)[0] if c.host == node and c.rows.get("counters")})
    if not ranks:
        return None
    wanted = (pc.field("host") == node) & pc.field("device").is_valid()
    rows, _ = source.engine.run_table("counters", key, columns=["device", "time_ns", "name", "value", "host"],
                                      ranks=ranks[:16], filter=wanted)  # fmt: skip
    if view.device is not None:
        rows = rows.filter(pc.equal(rows["device"], view.device))
    panels: dict[str, tuple[str, str, dict[int, tuple[Any, Any]]]] = {}
    names = rows["name"].cast(pa.utf8())
    for name, (label, unit, factor) in SAMPLED.items():
        mine = rows.filter(pc.equal(names, name))
        if not len(mine):
            continue
        lines = panels.setdefault(label, (label, unit, {}))[2]
        for device in pc.unique(mine["device"]).to_pylist():
            line = mine.filter(pc.equal(mine["device"], device)).sort_by("time_ns")
            lines[device] = _thinned(
                line["time_ns"].to_numpy(), factor * pc.fill_null(line["value"], np.nan).to_numpy()
            )
    return Counters(node, "sample", list(panels.values())) if panels else None


def _thinned(time_ns: Any, value: Any) -> tuple[Any, Any]:
    """Return at most MAX_SAMPLES points; each is the highest of its stretch, so that a peak is not lost."""
    width = -(-len(time_ns) // MAX_SAMPLES)
    if width <= 1:
        return time_ns, value
    pad = -len(time_ns) % width
    blocks = np.append(value, np.full(pad, np.nan)).reshape(-1, width)
    best = np.where(np.isfinite(blocks).any(axis=1), np.nan_to_num(blocks, nan=-np.inf).max(axis=1), np.nan)
    return time_ns[::width], best


def _daily(source: Source, view: View, node: str) -> Counters | None:
    span = window(source, view)
    source.load("gpu_rollup", span)
    rows = source.ask(
        "SELECT device, start_ns, max(temp_max_celsius) AS temp_max_celsius, avg(clock_mean_mhz) AS clock_mean_mhz, "
        "avg(power_mean_watts) AS power_mean_watts, 100 * avg(busy_ratio) AS busy, "
        "100 * sum(throttle_thermal_ns) / nullif(sum(allocated_ns), 0) AS thermal, "
        "100 * sum(throttle_power_ns) / nullif(sum(allocated_ns), 0) AS power FROM gpu_rollup "
        "WHERE start_ns >= ? - 86400000000000 AND start_ns < ? AND cluster = ? AND node = ? "
        "GROUP BY device, start_ns ORDER BY device, start_ns",
        [*span, view.cluster, node],
    )
    if view.device is not None:
        rows = [row for row in rows if row["device"] == view.device]
    panels = []
    for column, label, unit in DAILY:
        lines: dict[int, tuple[Any, Any]] = {}
        for device in sorted({row["device"] for row in rows}):
            mine = [row for row in rows if row["device"] == device and row[column] is not None]
            if mine:
                lines[device] = (
                    np.array([row["start_ns"] for row in mine]),
                    np.array([row[column] for row in mine], float),
                )
        if lines:
            panels.append((label, unit, lines))
    return Counters(node, "day", panels) if panels else None


# ------------------------------------------------------------------ events beside step time


@dataclass(frozen=True)
class Strip:
    """Events by node and time, and what steps did meanwhile."""

    rows: Rows
    """{node, device, time_ns, end_ns, kind, code, severity, detail}, in time order."""
    nodes: list[str]
    """With events, the most of them first."""
    total: int
    time_ns: Any
    value: Any
    label: str
    """What `value` is."""
    unit: str


@remembered
def events(source: Source, view: View) -> Strip:
    """Return the events of the range, on the run's nodes if the view names one."""
    span = _run_span(source, view) or window(source, view)
    source.load("health_events", (span[0] - MAX_DAYS * DAY_NS, span[1]))  # a condition may have begun long before
    mine = held_nodes(source, view)
    where, parameters = "", []
    if mine is not None:
        where, parameters = " AND list_contains(?, node::VARCHAR)", [mine]
    rows = source.ask(
        "SELECT node, device, time_ns, end_ns, kind, code, severity, detail FROM health_events WHERE "
        "coalesce(end_ns, time_ns) >= ? AND time_ns < ? AND cluster = ? AND coalesce(severity, '') <> 'info'"
        f"{where} ORDER BY time_ns",
        [*span, view.cluster, *parameters],
    )
    joined = (of_run(source, _about(view)) or {}).get("events") if view.run else None
    if joined:  # with what the run's own counters say of its clocks
        rows = sorted(({**event, "severity": None} for event in joined), key=lambda row: row["time_ns"])
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["node"]] = counts.get(row["node"], 0) + 1
    names = sorted(counts, key=lambda node: (-counts[node], node))
    time_ns, value, label, unit = _steps(source, view, span)
    shown = [row for row in rows if row["node"] in set(names[:MAX_NODES])]
    return Strip(shown[-MAX_EVENTS:], names[:MAX_NODES], len(rows), time_ns, value, label, unit)


def _run_span(source: Source, view: View) -> tuple[int, int] | None:
    key = source.run_key(view)
    commits = source.engine.commits(key)[0] if key else []
    starts, ends = [c.start_ns for c in commits if c.start_ns], [c.end_ns for c in commits if c.end_ns]
    return (min(starts), max(ends) + 1) if starts and ends and min(starts) > 10**17 else None


def _steps(source: Source, view: View, span: tuple[int, int]) -> tuple[Any, Any, str, str]:
    """Return step time of the run's lead rank, or the share of step time that slow steps cost the cluster's runs."""
    key = source.run_key(view)
    lead = lead_rank(source, key) if key else None
    if key is not None and lead is not None:
        rows, _ = source.engine.run_table("steps", key, columns=["end_ns"], ranks=[lead])
        end = np.sort(rows["end_ns"].to_numpy())
        if len(end) > 1:
            time_ns, value = _thinned(end[1:], np.diff(end) / 1e6)
            return time_ns, value, f"step time of rank {lead}", "ms"
    source.load("run_rollup", span)
    width = max(3600 * 10**9, -(-(span[1] - span[0]) // 400))
    where, parameters = ("AND run = ?", [view.run]) if view.run else ("", [])
    found = source.ask(
        "SELECT start_ns // ? * ? AS t, 100 * sum(slow_step_ns) / nullif(sum(step_ns), 0) AS v FROM run_rollup "
        f"WHERE start_ns >= ? AND start_ns < ? AND cluster = ? {where} GROUP BY 1 ORDER BY 1",
        [width, width, *span, view.cluster, *parameters],
    )
    known = [row for row in found if row["v"] is not None]
    return (np.array([row["t"] for row in known], np.int64), np.array([row["v"] for row in known], float),
            "excess of slow steps", "% of step time")  # fmt: skip


@remembered
def of_run(source: Source, view: View) -> dict[str, Any] | None:
    """Return the events of a run and the steps they slowed, as `perfkit health --run` finds them; None if it cannot."""
    key = source.run_key(view)
    commits = source.engine.commits(key)[0] if key else []
    if key is None or not commits:
        return None
    if len({commit.rank for commit in commits}) > MAX_RANKS:
        return {"events": [], "notes": [f"more than {MAX_RANKS} ranks: ask `perfkit health` for what its events cost"]}
    try:
        found = check_run(Store(source.uri), slug(key.run), cluster=slug(key.cluster))
    except PerfkitError:
        return None
    return {"events": [asdict(event) for event in found.events], "notes": found.notes, "steps": found.steps,
            "severity": found.severity}  # fmt: skip


# ------------------------------------------------------------------ lemons


@remembered
def lemons(source: Source, view: View) -> Rows:
    """Return the convicted nodes with what speaks against them: runs, events, interruptions."""
    span = source.window(view)
    rows = data_cluster.lemons(source, view)
    mine = held_nodes(source, view)
    if mine is not None:
        rows = [row for row in rows if row["node"] in set(mine)]
    for table in ("health_events", "interruptions", "job_nodes"):
        source.load(table, span)
    found = []
    for row in rows[:20]:
        where = [*span, view.cluster, row["node"]]
        seen = source.ask(
            "SELECT CASE WHEN kind = 'xid' THEN 'XID ' || code ELSE kind END AS what, count(*) AS count, "
            "max(time_ns) AS last_ns, any_value(detail) AS detail FROM health_events WHERE time_ns >= ? "
            "AND time_ns < ? AND cluster = ? AND node = ? AND coalesce(severity, '') <> 'info' GROUP BY 1 "
            "ORDER BY 2 DESC LIMIT 6",
            where,
        )
        broke = source.ask(
            "SELECT cause, count(*) AS count, sum(coalesce(lost_ns, 0) + coalesce(recovery_ns, 0)) / 3.6e12 AS "
            "gpu_hours FROM interruptions WHERE time_ns >= ? AND time_ns < ? AND cluster = ? AND node = ? GROUP BY 1 "
            "ORDER BY 2 DESC LIMIT 6",
            where,
        )
        runs = source.ask(
            "SELECT run, max(slowdown) AS slowdown, bool_or(interrupted) AS interrupted, max(start_ns) AS start_ns "
            "FROM job_nodes WHERE start_ns >= ? AND start_ns < ? AND cluster = ? AND node = ? GROUP BY run "
            "ORDER BY start_ns DESC LIMIT 400", where,
        )  # fmt: skip
        named = set(row["runs"] or ())
        found.append(
            {**row, "events": seen, "interruptions": broke, "evidence": [r for r in runs if r["run"] in named]}
        )
    return found
