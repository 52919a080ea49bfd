"""Ask a run that is going on for a trace: leave a file that its ranks look for between steps.

    request_trace(spool, run, steps=3) -> Request

No signal, no port: the ranks' writer threads look at one file twice a second. The request names a step that lies
a few seconds ahead, so that all ranks record the same steps without talking to each other. It reaches the ranks
that share this spool; on other nodes with a spool of their own, ask there too.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfkit.capture.metrics import FRESH_SECONDS, read_snapshots
from perfkit.capture.names import REQUEST_FILE
from perfkit.capture.schedule import ProfileSchedule
from perfkit.capture.segments import LIVE, attempt_folder, write_atomically
from perfkit.errors import StoreError, UsageError

LEAD_SECONDS = 3.0
"""How far ahead the first recorded step lies; every rank looks within half a second."""


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked of whom."""

    cluster: str
    run: str
    attempt: int
    ranks: tuple[int, ...]
    """Ranks of this spool that will record."""
    world_size: int | None
    start_step: int
    steps: int


def request_trace(
    spool: Path,
    run: str,
    *,
    steps: int = 3,
    ranks: str = "all",
    cluster: str | None = None,
    now: float | None = None,
    step_ns: float | None = None,
) -> Request:
    """Ask the ranks of a live run for a trace of `steps` steps; `step_ns` if the median is not what steps take now."""
    try:
        wanted = ProfileSchedule(every=0, active=steps, ranks=ranks)
    except ValueError as error:
        raise UsageError(str(error)) from None
    live = [s for s in read_snapshots(spool, now=now) if not s.get("ended")]
    mine = [s for s in live if s["run"] == run and cluster in (None, s["cluster"])]
    if not mine:
        there = ", ".join(sorted({f"{s['cluster']}/{s['run']}" for s in live})) or "none"
        raise StoreError(
            f"no run {run!r} is being recorded in {spool}; live are: {there}",
            next_step="name its spool with --spool, or its store with --store",
        )
    if len({s["cluster"] for s in mine}) > 1:
        raise UsageError(f"run {run!r} is live in several clusters", next_step="choose one with --cluster")
    attempt = max(int(s["attempt"]) for s in mine)
    mine = [s for s in mine if s["attempt"] == attempt]
    chosen = tuple(sorted(int(s["rank"]) for s in mine if wanted.applies_to(int(s["rank"]), _local_rank(s, mine))))
    if not chosen:
        raise UsageError(f"none of the live ranks is among {ranks!r}", next_step="try --ranks all")
    step_ns = step_ns or max((s["step_p50_ns"] or s["step_ns"] or 0 for s in mine), default=0)
    ahead = max(2, math.ceil(LEAD_SECONDS * 1e9 / step_ns)) if step_ns else 2
    start = max(int(s["step"] or 0) for s in mine) + ahead
    found = Request(mine[0]["cluster"], run, attempt, chosen, mine[0].get("world_size"), start, steps)
    document: dict[str, Any] = {"steps": steps, "ranks": ranks, "start_step": start, "time_ns": time.time_ns()}
    write_atomically(attempt_folder(spool, found.cluster, run, attempt) / REQUEST_FILE, document)
    return found


def live_ranks(spool: Path, cluster: str, run: str, attempt: int) -> dict[int, dict[str, Any]]:
    """Return what the ranks of an attempt that share this spool have left lately, by rank."""
    found = {}
    now_ns = time.time_ns()
    for path in attempt_folder(spool, cluster, run, attempt).glob(f"rank-*/{LIVE}/metrics.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            snapshot = json.loads(path.read_text())
            if not snapshot["ended"] and now_ns - snapshot["time_ns"] < FRESH_SECONDS * 1e9:
                found[int(snapshot["rank"])] = snapshot
    return found


def _local_rank(snapshot: dict[str, Any], all_of_them: list[dict[str, Any]]) -> int:
    lowest = min(int(s["rank"]) for s in all_of_them if s["host"] == snapshot["host"])
    return int(snapshot["rank"]) - lowest
