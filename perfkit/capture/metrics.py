"""The names of perfkit's metrics, and the text that Prometheus scrapes.

    METRICS                       every metric: name, type, help, labels; docs/capture.md lists them from here
    render(snapshots)             -> exposition text; snapshots are what ranks leave in `live/metrics.json`
    read_snapshots(spool)         -> the newest attempt of every run that was updated lately

Names follow OpenMetrics: snake case, base units, `_total` for counters, `_ratio` for 0–1. A value that is
unknown has no sample: a scraper must not take null for 0.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfkit.capture.segments import LIVE

PREFIX = "perfkit_"
LABELS = ("cluster", "run", "attempt", "rank", "host")
FRESH_SECONDS = 600.0
"""A rank that has said nothing for this long is left out, as Prometheus expects of what is gone."""
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Snapshot = dict[str, Any]
Values = Iterator[tuple[dict[str, str], Any]]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family."""

    name: str
    kind: str
    """`gauge` or `counter`."""
    help: str
    values: Callable[[Snapshot], Values]
    label: str | None = None
    """A label beside `LABELS`."""


def _one(get: Callable[[Snapshot], Any]) -> Callable[[Snapshot], Values]:
    def values(snapshot: Snapshot) -> Values:
        yield {}, get(snapshot)

    return values


def _count(name: str, scale: float = 1.0) -> Callable[[Snapshot], Values]:
    def value(snapshot: Snapshot) -> Any:
        number = snapshot["counts"].get(name, 0)
        return None if number is None else number * scale

    return _one(value)


def _scaled(name: str, scale: float = 1.0) -> Callable[[Snapshot], Values]:
    return _one(lambda snapshot: None if snapshot.get(name) is None else snapshot[name] * scale)


def _each(name: str, label: str) -> Callable[[Snapshot], Values]:
    def values(snapshot: Snapshot) -> Values:
        for key, ns in sorted(snapshot.get(name, {}).items()):
            yield {label: key}, ns / 1e9

    return values


METRICS: tuple[Metric, ...] = (
    Metric("run_info", "gauge", "1 for every rank that reports; labels say who it is.", _one(lambda s: 1)),
    Metric("last_update_timestamp_seconds", "gauge", "When the rank reported last.", _scaled("time_ns", 1e-9)),
    Metric("ended", "gauge", "1 after finish().", _one(lambda s: int(bool(s.get("ended"))))),
    Metric("world_size", "gauge", "Ranks of the job.", _scaled("world_size")),
    Metric("step_number", "gauge", "Last step that ended.", _scaled("step")),
    Metric("steps_total", "counter", "Steps that ended in this attempt.", _count("steps")),
    Metric("step_duration_seconds", "gauge", "Last step, from step end to step end.", _scaled("step_ns", 1e-9)),
    Metric(
        "step_duration_median_seconds",
        "gauge",
        "Median of the last 100 unprofiled steps; of the traced ones where nothing else was recorded.",
        _scaled("step_p50_ns", 1e-9),
    ),
    Metric(
        "slow_steps_total", "counter", "Steps above median + 3 · 1.4826 · MAD (definition 19).", _count("slow_steps")
    ),
    Metric("profiled_steps_total", "counter", "Steps under a profiler; left out of speeds.", _count("profiled_steps")),
    Metric("tokens_total", "counter", "Tokens of this rank's data-parallel replica.", _count("tokens")),
    Metric("samples_total", "counter", "Samples of this rank's data-parallel replica.", _count("samples")),
    Metric(
        "tokens_per_second", "gauge", "Tokens per second of the replica, last 100 steps.", _scaled("tokens_per_second")
    ),
    Metric("mfu_ratio", "gauge", "Model FLOPs utilisation, last 100 steps; absent if unknown.", _scaled("mfu")),
    Metric("loss", "gauge", "Loss of the last step, if logged.", _scaled("loss")),
    Metric("data_wait_seconds_total", "counter", "Time waiting for data before steps.", _count("data_wait_ns", 1e-9)),
    Metric("data_wait_ratio", "gauge", "Share of time waiting for data, last 100 steps.", _scaled("data_wait_ratio")),
    Metric("phase_seconds_total", "counter", "Time in the outermost spans.", _each("phases_ns", "phase"), "phase"),
    Metric(
        "lifecycle_seconds_total", "counter", "Time in lifecycle events by kind.", _each("events_ns", "kind"), "kind"
    ),
    Metric(
        "peak_memory_bytes", "gauge", "Peak of the device allocator, or of the process.", _scaled("peak_memory_bytes")
    ),
    Metric("dropped_records_total", "counter", "Records dropped because the buffer was full.", _scaled("dropped")),
    Metric("overhead_seconds_total", "counter", "CPU time of perfkit in this process.", _scaled("overhead_seconds")),
    Metric("parts_off", "gauge", "Parts of perfkit that gave up.", _one(lambda s: len(s.get("given_up") or ()))),
)


def read_snapshots(spool: Path, *, now: float | None = None) -> list[Snapshot]:
    """Return what the ranks of each run's newest attempt have left, if it is recent."""
    now = time.time() if now is None else now
    newest: dict[tuple[str, str, int, str], Snapshot] = {}
    for path in spool.glob(f"*/*/attempt-*/rank-*/{LIVE}/metrics.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(path.read_text())
            key = (str(found["cluster"]), str(found["run"]), int(found["rank"]), str(found["host"]))
            if now - found["time_ns"] / 1e9 > FRESH_SECONDS or not isinstance(found["counts"], dict):
                continue
            if key not in newest or newest[key]["attempt"] <= found["attempt"]:
                newest[key] = found
    return [newest[key] for key in sorted(newest)]


def render(snapshots: Iterable[Snapshot], *, openmetrics: bool = False, metrics: Iterable[Metric] = METRICS) -> str:
    """Return the text for a scrape."""
    snapshots = list(snapshots)
    lines = []
    for metric in metrics:
        samples = list(_samples(metric, snapshots))
        if not samples:
            continue
        full = PREFIX + metric.name
        family = full.removesuffix("_total") if openmetrics else full
        lines += [f"# HELP {family} {metric.help}", f"# TYPE {family} {metric.kind}"]
        lines += [f"{full}{{{labels}}} {value}" for labels, value in samples]
    return "\n".join([*lines, *(["# EOF"] if openmetrics else [])]) + "\n"


def _samples(metric: Metric, snapshots: Iterable[Snapshot]) -> Iterator[tuple[str, str]]:
    for snapshot in snapshots:
        who = {label: str(snapshot.get(label, "")) for label in LABELS}
        for labels, value in metric.values(snapshot):
            if value is not None:
                yield ",".join(f'{name}="{_escape(text)}"' for name, text in {**who, **labels}.items()), _number(value)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value) or math.isinf(value):
        return {True: "NaN"}.get(math.isnan(value), "+Inf" if value > 0 else "-Inf")
    return repr(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))


def render_table() -> str:
    """Return the table of docs/capture.md."""
    lines = ["| metric | type | labels | what |", "|---|---|---|---|"]
    common = ", ".join(LABELS)
    for metric in METRICS:
        labels = common if metric.label is None else f"{common}, {metric.label}"
        lines.append(f"| `{PREFIX}{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(lines)
