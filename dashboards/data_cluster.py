"""One cluster: its hours, GPUs, interruptions, nodes. Rows in, rows out; ratios are ratios of sums.

over_time(source, view)      -> (rows per bin, width of a bin in ns)
gpus(source, view)           -> one row per GPU
interruptions(source, view)  -> one row per cause
reliability(source, view)    -> MTTF, MTTR, restarts
nodes(source, view)          -> nodes that were slow or blamed, worst first
"""

from __future__ import annotations

from typing import Any

from perfkit.goodput.lemons import find_lemons

from .data import Rows, Source, ratio, remembered
from .data_fleet import HOUR_NS, LOSS_SUMS, SUMS, SUMS_OF_RUNS, bounds, with_ratios
from .view import DAY_NS, View

GPU_DAYS = 30
"""The map of GPUs looks back at most this far: a year of it is a million rows, and says nothing about now."""
BINS = (HOUR_NS, 6 * HOUR_NS, DAY_NS, 7 * DAY_NS, 30 * DAY_NS)


@remembered
def over_time(source: Source, view: View) -> tuple[Rows, int]:
    """Return the cluster's hours in at most 100 bins."""
    window = source.window(view)
    source.load("run_rollup", window)
    source.load("cluster_rollup", window)
    first, last = bounds(source, "cluster_rollup", window, "cluster = ?", [view.cluster])
    also = bounds(source, "run_rollup", window, "cluster = ?", [view.cluster])
    first, last = min(first, also[0]), max(last, also[1])
    width = next((b for b in BINS if (last - first) / b <= 100), BINS[-1])
    runs = source.ask(
        f"WITH per_run AS (SELECT start_ns // ? * ? AS bin_ns, run, {SUMS}, {LOSS_SUMS} FROM run_rollup "
        "WHERE start_ns >= ? AND start_ns < ? AND cluster = ? GROUP BY 1, 2) "
        f"SELECT bin_ns AS start_ns, {SUMS_OF_RUNS}, {LOSS_SUMS} FROM per_run GROUP BY 1 ORDER BY 1",
        [width, width, *window, view.cluster],
    )
    states = source.ask(
        "SELECT start_ns // ? * ? AS start_ns, sum(idle_ns) AS idle_ns, sum(up_ns) AS up_ns, "
        "sum(coalesce(down_ns,0) + coalesce(drained_ns,0) + coalesce(unhealthy_ns,0)) AS down_ns "
        "FROM cluster_rollup WHERE start_ns >= ? AND start_ns < ? AND cluster = ? GROUP BY 1 ORDER BY 1",
        [width, width, *window, view.cluster],
    )
    found: dict[int, dict[str, Any]] = {}
    for row in runs:
        found[row["start_ns"]] = with_ratios(row)
    for row in states:
        known = found.setdefault(row["start_ns"], {"mfu": None, "effective_mfu": None, "goodput": None})
        known.update(row)
    return [found[start] for start in sorted(found)], width


@remembered
def gpus(source: Source, view: View) -> Rows:
    """Return each GPU over the last days of the range (GPU_DAYS at most)."""
    start, end = source.window(view)
    source_end = source.as_of().time_ns or end
    end = min(end, source_end + 1)
    start = max(start, end - GPU_DAYS * DAY_NS)
    source.load("gpu_rollup", (start, end))
    return source.ask(
        "SELECT node, device, "
        "sum(mfu_ratio * allocated_ns) / nullif(sum(allocated_ns) FILTER (mfu_ratio IS NOT NULL), 0) AS mfu, "
        "sum(throttle_thermal_ns) / nullif(sum(allocated_ns), 0) AS throttle, max(temp_max_celsius) AS temperature, "
        "arg_max(state, start_ns) AS health, sum(xid_count)::BIGINT AS xids, sum(ecc_uncorrected)::BIGINT AS ecc, "
        "sum(throttle_power_ns) / nullif(sum(allocated_ns), 0) AS power_limited "
        "FROM gpu_rollup WHERE start_ns >= ? - 86400000000000 AND start_ns < ? AND cluster = ? "
        "GROUP BY node, device ORDER BY node, device",
        [start, end, view.cluster],
    )


@remembered
def interruptions(source: Source, view: View) -> Rows:
    """Return the interruptions by cause, most frequent first."""
    window = source.window(view)
    source.load("interruptions", window)
    return source.ask(
        "SELECT cause, coalesce(bool_and(planned), false) AS planned, count(*) AS count, "
        "coalesce(sum(lost_ns), 0) / 3.6e12 + coalesce(sum(recovery_ns), 0) / 3.6e12 AS lost_hours "
        "FROM interruptions WHERE time_ns >= ? AND time_ns < ? AND cluster = ? "
        "GROUP BY cause ORDER BY count DESC, cause",
        [*window, view.cluster],
    )


@remembered
def reliability(source: Source, view: View) -> dict[str, Any]:
    """Return MTTF and MTTR in hours, and what they are made of."""
    window = source.window(view)
    source.load("interruptions", window)
    source.load("run_rollup", window)
    wall = source.ask(
        "SELECT sum(allocated_ns / gpus) AS wall_ns FROM run_rollup "
        "WHERE start_ns >= ? AND start_ns < ? AND cluster = ? AND gpus > 0",
        [*window, view.cluster],
    )[0]["wall_ns"]
    row = source.ask(
        "SELECT count(*) AS all, count(*) FILTER (planned IS NOT true) AS failures, avg(down_ns) AS down_ns, "
        "count(*) FILTER (resumed_ns IS NULL) AS never "
        "FROM interruptions WHERE time_ns >= ? AND time_ns < ? AND cluster = ?",
        [*window, view.cluster],
    )[0]
    mttf = ratio(wall, row["failures"])
    return {
        "wall_hours": None if wall is None else wall / HOUR_NS,
        "interruptions": row["all"],
        "failures": row["failures"],
        "mttf_hours": None if mttf is None else mttf / HOUR_NS,
        "mttr_hours": None if row["down_ns"] is None else row["down_ns"] / HOUR_NS,
        "never_resumed": row["never"],
    }


@remembered
def lemons(source: Source, view: View) -> Rows:
    """Return the nodes that perfkit.goodput.lemons convicts on the runs of the range, surest first."""
    window = source.window(view)
    source.load("job_nodes", window)
    rows = source.engine.ask(
        "SELECT * EXCLUDE (date) FROM job_nodes WHERE start_ns >= ? AND start_ns < ? AND cluster = ?",
        [*window, view.cluster],
    )
    found = find_lemons(rows).to_pylist() if len(rows) else []
    return sorted(found, key=lambda row: (row["p_value"], row["node"]))


@remembered
def faulty(source: Source, view: View) -> Rows:
    """Return nodes with health events of the range, most faults first."""
    window = source.window(view)
    source.load("health_events", window)
    return source.ask(
        "SELECT node, count(*) AS events, count(*) FILTER (severity = 'fault') AS faults, max(time_ns) AS last_ns, "
        "string_agg(DISTINCT CASE WHEN kind = 'xid' THEN 'XID ' || code ELSE kind END, ', ') AS kinds "
        "FROM health_events WHERE time_ns >= ? AND time_ns < ? AND cluster = ? AND coalesce(severity, '') <> 'info' "
        "GROUP BY node ORDER BY faults DESC, events DESC, node LIMIT 100",
        [*window, view.cluster],
    )
