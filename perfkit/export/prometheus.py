"""The figures of a run as Prometheus text, in the names that a live run serves (perfkit.capture.metrics).

    metrics_text(opened, openmetrics=False) -> str

One sample per rank from its recorded steps, spans and lifecycle; samples without a rank are of the whole job: MFU,
where the time went, goodput. So a dashboard that was built on live runs shows finished ones and traces too. What a run
does not know has no sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.slow import slow_limit
from perfkit.analysis.timeline import ints
from perfkit.capture.metrics import METRICS, Metric, Snapshot, Values, render
from perfkit.errors import PerfkitError
from perfkit.export.opened import OpenRun
from perfkit.report.report import Report
from perfkit.schema import GOODPUT_BUCKETS

RECENT = 100
"""Steps behind medians and speeds, as in the live metrics."""
NOT_RECORDED = ("dropped_records_total", "overhead_seconds_total", "parts_off", "ended")
"""Of the process that captured; a store does not know them."""


def _each(name: str, label: str, scale: float = 1.0) -> Any:
    def values(snapshot: Snapshot) -> Values:
        for key, value in snapshot.get(name, {}).items():
            yield {label: key}, None if value is None else value * scale

    return values


def _one(name: str) -> Any:
    def values(snapshot: Snapshot) -> Values:
        yield {}, snapshot.get(name)

    return values


EXPORTED: tuple[Metric, ...] = (
    *(metric for metric in METRICS if metric.name not in NOT_RECORDED),
    Metric("hfu_ratio", "gauge", "Hardware FLOPs utilisation of the traced steps.", _one("hfu")),
    Metric("time_ratio", "gauge", "Share of the traced steps by where it went (definition 2).",
           _each("parts", "part"), "part"),
    Metric("waterfall_ratio", "gauge", "Share of peak, or of time without one, by term of ladder A (definition 15).",
           _each("waterfall", "term"), "term"),
    Metric("goodput_seconds", "gauge", "GPU time by goodput bucket (definition 18).",
           _each("goodput_ns", "bucket", 1e-9), "bucket"),
)  # fmt: skip
"""The names of the live metrics that a store knows, and what only an analysis knows."""


def metrics_text(opened: OpenRun, *, openmetrics: bool = False) -> str:
    """Return the text of one run."""
    who = {"cluster": opened.key.cluster, "run": opened.key.run, "attempt": opened.key.attempt}
    return render([{**who, **one} for one in _snapshots(opened)], openmetrics=openmetrics, metrics=EXPORTED)


def _snapshots(opened: OpenRun) -> Iterator[Snapshot]:
    steps = opened.recorded_steps()
    yield _job(opened, _analysis(opened))
    if steps is None or opened.store is None:
        return
    hosts = {commit.rank: commit.host for commit in opened.store.committed(*opened.key)}
    spans, lifecycle = (opened.read(name) for name in ("spans", "lifecycle"))
    for rank in np.unique(ints(steps["rank"])).tolist():
        mine = steps.filter(pc.equal(steps["rank"], rank)).sort_by("end_ns")
        yield {
            "rank": rank, "host": hosts.get(rank) or "", "world_size": opened.world_size, **_speeds(mine),
            "phases_ns": _sums(spans, rank, "name", outermost=True),
            "events_ns": _sums(lifecycle, rank, "kind"),
        }  # fmt: skip


def _analysis(opened: OpenRun) -> Report | None:
    """Return the analysis of the run's traces, None if it has none."""
    try:
        return opened.analysis() if opened.ranks else None
    except PerfkitError as error:
        opened.notes.append(f"not analysed: {error}")
        return None


def _job(opened: OpenRun, report: Report | None) -> Snapshot:
    """Return what holds for the whole job; its samples carry no rank."""
    found: Snapshot = {
        "rank": "", "host": "", "world_size": opened.world_size, "goodput_ns": _goodput(opened),
        "counts": dict.fromkeys(("steps", "slow_steps", "profiled_steps", "tokens", "samples", "data_wait_ns")),
    }  # fmt: skip
    if report is None:
        return found
    document = report.document
    totals, mfu = document["totals"], document["mfu"] or {}
    window = totals["window_ns"]
    parts = {name: totals[f"{name}_ns"] / window for name in ("compute", "exposed_comm", "exposed_memcpy", "idle")}
    return {
        **found, "step_p50_ns": document["throughput"]["step_time_p50_ns"], "mfu": mfu.get("value"),
        "hfu": mfu.get("hfu"), "world_size": document["scope"]["world_size"] or found["world_size"], "parts": parts,
        "waterfall": {
            row["term"]: row["points"] / 100
            for row in report.waterfall or ()
            if row["parent"] is None and row["points"] is not None
        },
    }  # fmt: skip


def _speeds(steps: pa.Table) -> dict[str, Any]:
    """Return what the meter of a live rank would say at the end, from its steps in order."""
    end = ints(steps["end_ns"])
    took, follows = np.diff(end), np.diff(ints(steps["step"])) == 1
    profiled = np.array(pc.fill_null(steps["profiled"], False), bool)
    free = np.flatnonzero(follows & ~profiled[1:] & ~profiled[:-1])
    recent = free[-RECENT:]
    times = took[free].astype(np.float64)
    seconds = float(took[recent].sum()) / 1e9
    tokens = steps["tokens"].take(pa.array(recent + 1))
    waits = steps["data_wait_ns"].take(pa.array(recent + 1))
    known = len(recent) > 0 and not tokens.null_count
    return {
        "time_ns": int(end[-1]), "step": int(steps["step"][-1].as_py()),
        "step_ns": int(took[-1]) if len(took) and follows[-1] else None,
        "step_p50_ns": float(np.median(took[recent])) if len(recent) else None,
        "loss": steps["loss"][-1].as_py(),
        "tokens_per_second": pc.sum(tokens).as_py() / seconds if known and seconds else None,
        "data_wait_ratio": pc.sum(waits).as_py() / 1e9 / seconds if seconds and waits.null_count < len(waits) else None,
        "counts": {
            "steps": len(steps), "slow_steps": int((times > slow_limit(times)).sum()) if len(times) else None,
            "profiled_steps": int(profiled.sum()),
            **{name: pc.sum(steps[name]).as_py() for name in ("tokens", "samples", "data_wait_ns")},
        },
    }  # fmt: skip


def _sums(rows: pa.Table, rank: int, name: str, *, outermost: bool = False) -> dict[str, int]:
    """Return seconds by name, of spans or lifecycle events of one rank that ended."""
    rows = rows.filter(pc.equal(rows["rank"], rank))
    if outermost:
        rows = rows.filter(pc.equal(pc.fill_null(rows["depth"], 0), 0))
    length = rows["dur_ns"] if outermost else pc.subtract(rows["end_ns"], rows["start_ns"])
    table = pa.table({"name": rows[name].cast(pa.utf8()), "ns": length}).drop_null()
    found = table.group_by("name", use_threads=False).aggregate([("ns", "sum")])
    return dict(zip(found["name"].to_pylist(), found["ns_sum"].to_pylist(), strict=True))


def _goodput(opened: OpenRun) -> Mapping[str, int | None]:
    """Return GPU-ns by bucket from the run's roll-up, nothing if it has none."""
    if opened.store is None:
        return {}
    rows = opened.store.read("run_rollup", cluster=opened.key.cluster, run=opened.key.run)
    rows = rows.filter(pc.equal(rows["attempt"], opened.key.attempt))
    return {bucket: pc.sum(rows[f"{bucket}_ns"]).as_py() for bucket in GOODPUT_BUCKETS} if len(rows) else {}
