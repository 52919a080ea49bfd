"""Two runs of a store side by side, from what their analyses left there: the same answer as `perfkit compare`.

    other(view)                -> the view's base run as a view
    comparison(source, view)   -> Comparison of the base with the view's run; None where either has no analysis
    choices(source, view)      -> [(value, label)] of runs that it can be compared with

The stored tables of a run become a Report again; nothing is analysed here.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.compare import Comparison, compare
from perfkit.report.report import Report

from .data import Source, remembered
from .data_manifest import findings
from .data_run import analysed
from .view import View

TABLES = ("waterfall", "kernels", "collectives")
MAX_CHOICES = 500
STEP_COLUMNS = ("rank", "step", "end_ns", "data_wait_ns", "profiled")


def other(view: View) -> View:
    """Return the base run: in the same cluster unless the view names another."""
    return View(page=view.page, cluster=view.base_cluster or view.cluster, run=view.base or None)


def choices(source: Source, view: View) -> list[tuple[str, str]]:
    """Return the other runs of the base's cluster, newest first."""
    source.engine.load("runs")
    rows = source.ask(
        "SELECT run, max(start_ns) AS began FROM runs WHERE cluster = ? GROUP BY run "
        f"ORDER BY began DESC NULLS LAST, run LIMIT {MAX_CHOICES}",
        [other(view).cluster],
    )
    same = other(view).cluster == view.cluster
    return [(row["run"], row["run"]) for row in rows if not (same and row["run"] == view.run)]


@remembered
def comparison(source: Source, view: View) -> Comparison | None:
    """Compare the base with the view's run."""
    base = other(view)
    return source.remember(("comparison", view, source.version(base)), view, lambda: _comparison(source, base, view))


def _comparison(source: Source, base: View, new: View) -> Comparison | None:
    reports = [stored_report(source, one) for one in (base, new)]
    if reports[0] is None or reports[1] is None:
        return None
    steps = [_recorded(source, one) for one in (base, new)]
    both = None if steps[0] is None or steps[1] is None else ([steps[0]], [steps[1]])
    return compare(reports[0], reports[1], steps=both)


def stored_report(source: Source, view: View) -> Report | None:
    """Return what the newest analysis of a run left in the store; None without one."""
    key = source.run_key(view)
    windows = analysed(source, key, "attribution") if key else None
    if key is None or windows is None:
        return None
    windows = windows.filter(pc.invert(pc.fill_null(windows["carry_in"], False)))
    tables: dict[str, pa.Table] = {"attribution": windows, "steps": windows}
    for name in TABLES:
        rows = analysed(source, key, name)
        if rows is not None:
            tables[name] = rows
    about = source.engine.metadata(key)
    summary: dict[str, Any] = {
        "synthetic": bool(about.get("synthetic")),
        "scope": {"world_size": about.get("world_size")},
        "hardware": {"device": about.get("device")},
        "totals": {"window_ns": pc.sum(windows["window_ns"]).as_py()},
        "mfu": _utilisation(tables.get("waterfall")),
        "findings": [{**row, "evidence": None} for row in findings(source, view)],
    }
    return Report(summary, tables)


def _utilisation(ladder: pa.Table | None) -> dict[str, float | None]:
    """Return MFU and HFU of the traced steps."""
    if ladder is None:
        return {}
    whole = ladder.filter(pc.and_(pc.is_null(ladder["rank"]), pc.is_null(ladder["step"])))
    whole = whole.filter(pc.equal(whole["ladder"], "A"))
    points = dict(zip(whole["term"].to_pylist(), whole["points"].to_pylist(), strict=True))
    return {{"mfu": "value"}.get(n, n): points[n] / 100 for n in ("mfu", "hfu") if points.get(n) is not None}


def _recorded(source: Source, view: View) -> pa.Table | None:
    key = source.run_key(view)
    if key is None:
        return None
    rows, _ = source.engine.run_table("steps", key, columns=list(STEP_COLUMNS))
    return rows if len(rows) else None
