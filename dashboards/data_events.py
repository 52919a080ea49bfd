"""Events of a run: restarts, checkpoints, faults, hangs, XIDs on its nodes, and what people noted.

    events(source, view) -> rows {kind, time_ns, step, text}, at most MAX_EVENTS, in time order

They come from the run's lifecycle records where it has any, else from the recorded interruptions. Where the curves
are over steps, an event without a step gets the one that was running.
"""

from __future__ import annotations

import numpy as np

from .data import Rows, Source, remembered
from .data_notes import notes_on
from .data_run import lead_rank, totals
from .view import View

MAX_EVENTS = 300


@remembered
def events(source: Source, view: View) -> Rows:
    """Return restarts, checkpoints, faults and XIDs of what the curves show: {kind, time_ns, step, text}."""
    found: Rows = []
    key = source.run_key(view)
    lead = lead_rank(source, key) if key else None
    if key is not None:
        rows, _ = source.engine.run_table("lifecycle", key, ranks=None if lead is None else [lead])
        for row in rows.to_pylist():
            kind = {"checkpoint_save": "checkpoint", "checkpoint_restore": "restore"}.get(row["kind"], row["kind"])
            if kind in ("checkpoint", "restore", "restart", "fault", "hang", "eval"):
                text = " ".join(str(part) for part in (kind, row["cause"], row["detail"]) if part)
                found.append({"kind": kind, "time_ns": row["start_ns"], "step": row["step"], "text": text})
    if not found or lead is None:
        found += _recorded_interruptions(source, view)
    found += _xids(source, view)
    found += _notes(source, view)
    found.sort(key=lambda row: row["time_ns"])
    if key is not None and lead is not None:
        rows, _ = source.engine.run_table("steps", key, columns=["step", "end_ns"], ranks=[lead])
        _place(found, rows["step"].to_numpy(), rows["end_ns"].to_numpy())
    if len(found) > MAX_EVENTS:  # keep what is rare
        rare = [row for row in found if row["kind"] != "checkpoint"]
        found = rare[-MAX_EVENTS:] if len(rare) >= MAX_EVENTS else rare
    return found


def _place(found: Rows, step: np.ndarray, end_ns: np.ndarray) -> None:
    """Give events without a step the one that was running; outside the steps they stay without."""
    order = np.argsort(end_ns)
    for row in found:
        at = int(np.searchsorted(end_ns[order], row["time_ns"]))
        if row["step"] is None and at < len(order):
            row["step"] = int(step[order][at])


def _span(source: Source, view: View) -> tuple[int, int] | None:
    key = source.run_key(view)
    commits = source.engine.commits(key)[0] if key else []
    starts, ends = [c.start_ns for c in commits if c.start_ns], [c.end_ns for c in commits if c.end_ns]
    if starts and ends:
        return min(starts), max(ends)
    row = totals(source, view)
    return (row["start_ns"], row["end_ns"]) if row and row["start_ns"] is not None else None


def _notes(source: Source, view: View) -> Rows:
    """Return what people wrote about the run, and about its cluster while it ran."""
    span = _span(source, view)
    return [
        {"kind": "note", "time_ns": row["time_ns"], "step": None,
         "text": f"{row['text']} ({row['by']})" if row["by"] else row["text"]}
        for row in notes_on(source, view)
        if row["run"] is not None or (span is not None and span[0] <= row["time_ns"] <= span[1])
    ]  # fmt: skip


def _recorded_interruptions(source: Source, view: View) -> Rows:
    span = _span(source, view)
    if span is None:
        return []
    source.load("interruptions", span)
    rows = source.ask(
        "SELECT time_ns, cause, node FROM interruptions WHERE cluster = ? AND run = ? AND time_ns BETWEEN ? AND ? "
        "ORDER BY time_ns LIMIT 2000",
        [view.cluster, view.run, *span],
    )
    return [{"kind": "restart", "time_ns": r["time_ns"], "step": None,
             "text": " ".join(str(p) for p in ("interrupted:", r["cause"], r["node"]) if p)} for r in rows]  # fmt: skip


def _xids(source: Source, view: View) -> Rows:
    """Return XIDs on the run's nodes while it held them."""
    span = _span(source, view)
    if span is None or span[1] - span[0] > 400 * 86_400 * 10**9:
        return []
    source.load("job_nodes", span)
    source.load("health_events", span)
    rows = source.ask(
        "SELECT DISTINCT h.time_ns, h.node, h.device, h.code FROM health_events h "
        "JOIN job_nodes j USING (cluster, node) "
        "WHERE h.cluster = ? AND j.run = ? AND h.kind = 'xid' AND h.time_ns BETWEEN ? AND ? "
        "AND h.time_ns BETWEEN j.start_ns AND coalesce(j.end_ns, ?) ORDER BY 1 LIMIT 500",
        [view.cluster, view.run, *span, span[1]],
    )
    return [
        {
            "kind": "xid",
            "time_ns": r["time_ns"],
            "step": None,
            "text": f"XID {r['code']} on {r['node']}, GPU {r['device']}",
        }
        for r in rows
    ]
