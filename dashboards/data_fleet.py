"""The fleet: clusters, where their GPU-hours went, runs. Every ratio is a ratio of sums.

clusters(source, view)  -> rows, worst first, each with the window's numbers and those of the window before
hours(source, view)     -> rows: cluster, bucket, GPU-hours (buckets, idle, down)
runs(source, view, …)   -> (one page of rows, how many there are)
"""

from __future__ import annotations

from typing import Any

from perfkit.schema import GOODPUT_BUCKETS, GOODPUT_LOSSES
from perfkit.store.layout import slug

from .data import EPOCH_FROM_NS, Rows, Source, ratio, remembered
from .view import DAY_NS, View

HOUR_NS = 3600 * 10**9
SUMS = """
    sum(allocated_ns) AS allocated_ns, sum(productive_ns) AS productive_ns, sum(unknown_ns) AS unknown_ns,
    sum(tokens) AS tokens, sum(step_ns) FILTER (tokens IS NOT NULL) AS token_ns,
    sum(model_flops) AS model_flops, sum(peak_flops * step_ns * 1e-9) AS step_peak_flops,
    sum(retained_flops) AS retained_flops, sum(peak_flops * allocated_ns * 1e-9) AS allocated_peak_flops
"""
"""What the ratios of one run are made of. A run that never tells its FLOPs, or whose device has no peak, has none."""
TOLD = "FILTER (model_flops IS NOT NULL AND allocated_peak_flops IS NOT NULL)"
SUMS_OF_RUNS = f"""
    sum(allocated_ns) AS allocated_ns, sum(productive_ns) AS productive_ns, sum(unknown_ns) AS unknown_ns,
    sum(tokens) AS tokens, sum(token_ns) AS token_ns,
    sum(model_flops) {TOLD} AS model_flops, sum(step_peak_flops) {TOLD} AS step_peak_flops,
    sum(coalesce(retained_flops, 0)) {TOLD} AS retained_flops, sum(allocated_peak_flops) {TOLD} AS allocated_peak_flops
"""
"""The same of many runs, over their SUMS: runs without FLOPs or peak count on neither side, as in `perfkit goodput`."""
LOSSES = tuple(name for name in GOODPUT_LOSSES if name != "unknown")
LOSS_SUMS = ", ".join(f"sum({name}_ns) AS {name}_ns" for name in LOSSES)
RUN_ORDER = {
    "run": "run", "cluster": "cluster", "user": "user", "model": "model", "state": "state", "gpus": "gpus",
    "start_ns": "start_ns", "hours": "hours", "mfu": "mfu", "effective_mfu": "effective_mfu", "goodput": "goodput",
    "tokens_per_gpu_s": "tokens_per_gpu_s", "lost_hours": "lost_hours", "interruptions": "interruptions",
}  # fmt: skip
"""Columns that the runs can be sorted by; nothing else from a request reaches the SQL text."""


def with_ratios(row: dict[str, Any]) -> dict[str, Any]:
    """Add the ratios of a row of SUMS."""
    return {
        **row,
        "mfu": valid_mfu(ratio(row["model_flops"], row["step_peak_flops"])),
        "effective_mfu": valid_mfu(ratio(row["retained_flops"], row["allocated_peak_flops"])),
        "goodput": goodput(row),
        "tokens_per_gpu_s": ratio(row["tokens"], (row["token_ns"] or 0) / 1e9),
    }


def goodput(row: dict[str, Any]) -> float | None:
    """Return productive / allocated; unknown where all of the time is unexplained."""
    if (row["unknown_ns"] or 0) >= (row["allocated_ns"] or 0):
        return None
    return ratio(row["productive_ns"], row["allocated_ns"])


def valid_mfu(value: float | None) -> float | None:
    """MFU above 1 is invalid and never shown."""
    return value if value is None or 0 <= value <= 1 else None


def chosen(view: View) -> tuple[str, list[Any]]:
    """Return the SQL condition of the view's clusters, and its parameters."""
    names = [view.cluster] if view.cluster is not None else list(view.clusters)
    return ("list_contains(?, cluster)", [names]) if names else ("true", [])


@remembered
def clusters(source: Source, view: View) -> Rows:
    """Return a row per cluster, worst first."""
    window = source.window(view)
    source.load("run_rollup", window, before=True)
    source.load("cluster_rollup", window, before=True)
    now, earlier = _totals(source, view, window), _totals(source, view, _before(window))
    newest = _newest_hour(source, view)
    trend = _by_day(source, view, window)
    rows = []
    for name, row in now.items():
        found = {**row, **newest.get(name, {}), "cluster": name, "trend": trend.get(name, [])}
        found["before"] = earlier.get(name, {})
        found["delivered"] = _product(row["uptime"], row["goodput"])
        found["losses"] = sorted(
            ((loss, row[f"{loss}_ns"]) for loss in GOODPUT_LOSSES if row.get(f"{loss}_ns")), key=lambda item: -item[1]
        )
        rows.append(found)
    return sorted(rows, key=lambda row: (row["delivered"] is None, row["delivered"], row["cluster"]))


def _totals(source: Source, view: View, window: tuple[int, int]) -> dict[str, dict[str, Any]]:
    where, parameters = chosen(view)
    runs = source.ask(
        f"WITH per_run AS (SELECT cluster, run, {SUMS}, {LOSS_SUMS}, sum(interruptions)::BIGINT AS interruptions "
        f"FROM run_rollup WHERE start_ns >= ? AND start_ns < ? AND {where} GROUP BY cluster, run) "
        f"SELECT cluster, {SUMS_OF_RUNS}, {LOSS_SUMS}, count(*) AS runs, sum(interruptions)::BIGINT AS interruptions "
        "FROM per_run GROUP BY cluster",
        [*window, *parameters],
    )
    states = source.ask(
        "SELECT cluster, sum(installed_ns) AS installed_ns, sum(up_ns) AS up_ns, sum(unknown_ns) AS state_unknown_ns, "
        "sum(coalesce(down_ns,0) + coalesce(drained_ns,0) + coalesce(unhealthy_ns,0)) AS down_ns, "
        "sum(idle_ns) AS idle_ns "
        f"FROM cluster_rollup WHERE start_ns >= ? AND start_ns < ? AND {where} GROUP BY cluster",
        [*window, *parameters],
    )
    empty_runs = dict.fromkeys(
        ["allocated_ns", "productive_ns", "tokens", "token_ns", "model_flops", "step_peak_flops", "retained_flops",
         "allocated_peak_flops", "runs", "interruptions", *(f"{loss}_ns" for loss in GOODPUT_LOSSES)]
    )  # fmt: skip
    empty_states = dict.fromkeys(["installed_ns", "up_ns", "state_unknown_ns", "down_ns", "idle_ns"])
    found: dict[str, dict[str, Any]] = {}
    for row in [*runs, *states]:
        found.setdefault(row["cluster"], {**empty_runs, **empty_states}).update(row)
    for row in found.values():
        row.update(with_ratios(row))
        installed = row["installed_ns"]
        row["uptime"] = None if installed is None else ratio(row["up_ns"], installed - (row["state_unknown_ns"] or 0))
    return found


def _newest_hour(source: Source, view: View) -> dict[str, dict[str, Any]]:
    where, parameters = chosen(view)
    rows = source.ask(
        "SELECT cluster, gpus, nodes, gpus_down AS unhealthy, device, "
        "allocated_ns / (end_ns - start_ns) AS active, idle_ns / (end_ns - start_ns) AS idle "
        f"FROM cluster_rollup WHERE {where} "
        "QUALIFY row_number() OVER (PARTITION BY cluster ORDER BY start_ns DESC) = 1",
        parameters,
    )
    return {row.pop("cluster"): row for row in rows}


def _by_day(source: Source, view: View, window: tuple[int, int]) -> dict[str, list[float | None]]:
    """Goodput over the window in at most 60 bins, for the sparkline."""
    where, parameters = chosen(view)
    first, last = bounds(source, "run_rollup", window)
    width = max(HOUR_NS, -(-(last - first) // 60))
    rows = source.ask(
        "SELECT cluster, (start_ns - ?) // ? AS bin, sum(productive_ns) / sum(allocated_ns) AS goodput FROM run_rollup "
        f"WHERE start_ns >= ? AND start_ns < ? AND productive_ns IS NOT NULL AND {where} GROUP BY ALL ORDER BY ALL",
        [first, width, *window, *parameters],
    )
    bins = max(1, -(-(last - first) // width))
    found: dict[str, list[float | None]] = {}
    for row in rows:
        found.setdefault(row["cluster"], [None] * bins)[min(int(row["bin"]), bins - 1)] = row["goodput"]
    return found


def bounds(source: Source, table: str, window: tuple[int, int], where: str = "true", more: Any = ()) -> tuple[int, int]:
    """Return the part of a window that has rows."""
    row = source.ask(
        f"SELECT min(start_ns) AS a, max(end_ns) AS b FROM {table} WHERE start_ns >= ? AND start_ns < ? AND {where}",
        [*window, *more],
    )[0]
    return (window[0], window[0] + DAY_NS) if row["a"] is None else (row["a"], row["b"])


def hours(source: Source, view: View) -> Rows:
    """Return the GPU-hours of each cluster by bucket, idle and down; they sum to what is installed and known."""
    rows = []
    for row in clusters(source, view):
        for bucket in GOODPUT_BUCKETS:
            rows.append({"cluster": row["cluster"], "bucket": bucket, "gpu_hours": _hours(row[f"{bucket}_ns"])})
        for state in ("idle", "down"):
            rows.append({"cluster": row["cluster"], "bucket": state, "gpu_hours": _hours(row[f"{state}_ns"])})
    return rows


def _hours(ns: int | None) -> float | None:
    return None if ns is None else float(ns) / HOUR_NS


def _before(window: tuple[int, int]) -> tuple[int, int]:
    return (2 * window[0] - window[1], window[0]) if window[0] > 0 else (0, 0)


def _product(a: float | None, b: float | None) -> float | None:
    """Multiply what is known; a cluster without an inventory is judged by its goodput alone."""
    if a is None:
        return b
    return a if b is None else a * b


# ------------------------------------------------------------------ runs


def _runs_sql(view: View, window: tuple[int, int]) -> tuple[str, list[Any]]:
    where, parameters = chosen(view)
    search = "AND contains(lower(concat_ws(' ', run, user, model)), ?)" if view.search else ""
    needle = [view.search.lower()] if view.search else []
    sql = f"""
        WITH sums AS (
            SELECT cluster, run, any_value(user) AS user, any_value(model) AS model, max(gpus) AS gpus,
                arg_max(state, end_ns) AS state, min(start_ns) AS start_ns, max(end_ns) AS end_ns,
                sum(interruptions)::BIGINT AS interruptions, {SUMS}
            FROM run_rollup WHERE start_ns >= ? AND start_ns < ? AND {where} {search} GROUP BY cluster, run)
        SELECT cluster, run, user, model, state, gpus, start_ns, end_ns, interruptions,
            (end_ns - start_ns) / 3.6e12 AS hours,
            model_flops / nullif(step_peak_flops, 0) AS mfu,
            retained_flops / nullif(allocated_peak_flops, 0) AS effective_mfu,
            CASE WHEN coalesce(unknown_ns, 0) < allocated_ns THEN productive_ns / allocated_ns END AS goodput,
            tokens / nullif(token_ns / 1e9, 0) AS tokens_per_gpu_s,
            (allocated_ns - productive_ns) / 3.6e12 AS lost_hours
        FROM sums"""
    return sql, [*window, *parameters, *needle]


@remembered
def runs(
    source: Source, view: View, *, order: str = "lost_hours", descending: bool = True, first: int = 0, count: int = 100
) -> tuple[Rows, int]:
    """Return one page of the runs of the window, and how many there are; runs that only have traces come last."""
    window = source.window(view)
    source.load("run_rollup", window)
    sql, parameters = _runs_sql(view, window)
    by = RUN_ORDER.get(order, "lost_hours")
    direction = "DESC" if descending else "ASC"
    rows = source.ask(
        f"SELECT *, count(*) OVER () AS total FROM ({sql}) ORDER BY {by} {direction} NULLS LAST, cluster, run "
        "LIMIT ? OFFSET ?",
        [*parameters, count, first],
    )
    total = rows[0]["total"] if rows else source.ask(f"SELECT count(*) AS n FROM ({sql})", parameters)[0]["n"]
    traced = traced_runs(source, view)
    missing = max(0, first + count - total)
    start = max(0, first - total)
    return [*rows, *traced[start : start + min(count, missing)]], total + len(traced)


def _inside(row: dict[str, Any], window: tuple[int, int]) -> bool:
    """Whether a run was there in the window; one without dates always was."""
    start, end = row["start_ns"], row["end_ns"]
    if start is None or end is None or end < EPOCH_FROM_NS:
        return True
    return bool(start < window[1] and end >= window[0])


@remembered
def traced_runs(source: Source, view: View) -> Rows:
    """Return runs that have traces or captures and no roll-up in any loaded day."""
    source.engine.load("runs")
    window = source.window(view)
    known = {(slug(r["cluster"]), slug(r["run"])) for r in source.ask("SELECT DISTINCT cluster, run FROM run_rollup")
             if r["cluster"] and r["run"]}  # fmt: skip
    where, parameters = chosen(view.change(clusters=tuple(slug(c) for c in view.clusters if c)))
    rows = source.ask(
        "SELECT cluster, run, any_value(user) AS user, any_value(model) AS model, max(world_size) AS gpus, "
        f"min(start_ns) AS start_ns, max(end_ns) AS end_ns, any_value(name) AS name FROM runs WHERE {where} "
        "GROUP BY cluster, run ORDER BY start_ns DESC NULLS LAST",
        parameters,
    )
    needle = view.search.lower()
    return [
        {
            **row,
            "state": "traced",
            "hours": None if row["end_ns"] is None else (row["end_ns"] - row["start_ns"]) / HOUR_NS,
        }
        for row in rows
        if (row["cluster"], row["run"]) not in known
        and _inside(row, window)
        and any(needle in str(row[name] or "").lower() for name in ("run", "user", "model", "name"))
    ]
