"""A short burst of work, compared with what this node did before.

    sniff(history, seconds=…) -> list of Check; appends to the history

Rates come from perfkit's calibration: matrix products per format, memory copies, and all-reduce when started under
torchrun. A node is compared with its own past, because a published peak says nothing about what is normal here:
below 90 % of the median of at least MIN_HISTORY earlier results is a warning, below 75 % a fault. Fewer results are
`unknown`, and said so.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from perfkit.goodput.checks import Check

MIN_HISTORY = 5
KEEP = 200
SLOW, BROKEN = 0.90, 0.75

Rates = dict[str, float]


def default_history() -> Path:
    """Return where a node keeps its results."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "perfkit" / "sniff.jsonl"


def sniff(history: Path, *, seconds: float = 0.5) -> list[Check]:
    """Measure this node, judge it by its history, and remember the result."""
    from perfkit.hardware.calibration import calibrate

    rates = rates_of(calibrate(seconds=seconds))
    earlier = read_history(history)
    checks = judge_rates(rates, earlier)
    problem = _remember(history, [*earlier, rates])
    if problem:
        checks.append(Check(name="sniff history", severity="unknown", detail=f"{history}: {problem}"))
    return checks


def rates_of(entries: Iterable[dict[str, Any]]) -> Rates:
    """Return name -> rate of a calibration, in TFLOP/s and GB/s."""
    rates: Rates = {}
    for place, entry in enumerate(entries):
        who = "cpu" if entry["kind"] == "cpu" else f"gpu {place}"
        rates |= {f"{who} matmul {dtype} TFLOP/s": rate for dtype, rate in (entry.get("matmul_tflops") or {}).items()}
        if entry.get("copy_gbps"):
            rates[f"{who} copy GB/s"] = entry["copy_gbps"]
        if entry.get("allreduce"):
            rates["all-reduce GB/s"] = max(size["busbw_gbps"] for size in entry["allreduce"]["sweep"])
    return rates


def judge_rates(rates: Rates, earlier: list[Rates]) -> list[Check]:
    """Compare rates with the median of earlier ones."""
    checks = []
    for name, rate in rates.items():
        past = [entry[name] for entry in earlier if name in entry]
        if len(past) < MIN_HISTORY:
            detail = f"{rate:.3g}; {len(past)} of {MIN_HISTORY} earlier results that a verdict needs"
            checks.append(Check(name=name, severity="unknown", detail=detail, value=rate))
            continue
        usual = statistics.median(past)
        share = rate / usual if usual else 1.0
        severity = "fault" if share < BROKEN else "warning" if share < SLOW else "ok"
        advice = "repeat it on the idle node; if it stays, drain the node" if severity != "ok" else ""
        detail = f"{rate:.3g}, {share:.0%} of its usual {usual:.3g}"
        checks.append(Check(name=name, severity=severity, detail=detail, value=rate, next=advice))
    return checks


def read_history(path: Path) -> list[Rates]:
    """Return earlier results; lines that are damaged are left out."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines[-KEEP:]:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            found.append({str(k): float(v) for k, v in entry.items() if isinstance(v, (int, float))})
    return found


def _remember(path: Path, entries: list[Rates]) -> str | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}.tmp")
        fresh.write_text("".join(json.dumps(entry) + "\n" for entry in entries[-KEEP:]))
        fresh.replace(path)
    except OSError as error:
        return error.strerror or str(error)
    return None
