"""How fast the job went: step times, tokens per second, slow steps.

    throughput(steps, tokens_per_step=..., num_devices=...) -> the JSON of `perfkit analyze`

A step of the job takes as long as on its average rank: tokens per second are tokens over the mean window, a
ratio of sums. Percentiles are over windows of all ranks. A whole-trace window is no step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.timeline import ints

MAX_SLOW = 20
"""Slow steps that are listed."""


def throughput(
    steps: pa.Table, *, tokens_per_step: float | None = None, num_devices: int | None = None
) -> dict[str, Any]:
    """Return step-time percentiles, tokens per second and slow steps; `steps` is summary.steps_table."""
    numbered = steps.filter(pc.is_valid(steps["step"]))
    window = ints(numbered["window_ns"])
    tokens = None
    if tokens_per_step is not None and len(window) and window.sum():
        tokens = tokens_per_step * len(window) / (int(window.sum()) / 1e9)
    return {
        "step_time_p50_ns": _percentile(window, 50),
        "step_time_p95_ns": _percentile(window, 95),
        "step_time_p99_ns": _percentile(window, 99),
        "step_time_mean_ns": round(float(window.mean())) if len(window) else None,
        "tokens_per_second": tokens,
        "tokens_per_second_per_device": tokens / num_devices if tokens is not None and num_devices else None,
        "slow_steps": int(pc.sum(steps["slow"]).as_py() or 0),
        "slow_step_excess_ns": int(pc.sum(steps["excess_ns"]).as_py() or 0),
        "slowest": slow_steps_of_job(numbered)[:MAX_SLOW],
    }


def slow_steps_of_job(steps: pa.Table) -> list[dict[str, Any]]:
    """Return the steps that were slow on any rank, the costliest first."""
    slow = steps.filter(steps["slow"])
    table = slow.group_by("step", use_threads=False).aggregate(
        [("excess_ns", "sum"), ("window_ns", "max"), ("rank", "count_distinct")]
    )
    rows = table.rename_columns(["step", "excess_ns", "window_ns", "ranks"]).to_pylist()
    return sorted(rows, key=lambda row: (-row["excess_ns"], row["step"]))


def _percentile(values: Any, q: float) -> int | None:
    return round(float(np.percentile(values, q))) if len(values) else None
