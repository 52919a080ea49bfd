from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from trace_rows import call, events, kernel, step

from perfkit.analysis.analyze import analyze_tables
from perfkit.analysis.summary import steps_table
from perfkit.analysis.throughput import slow_steps_of_job, throughput
from perfkit.schema import ATTRIBUTION, table_from_rows

MS = 1_000_000


def steps(*windows: tuple[int, int | None, int]) -> pa.Table:
    """Rows of (rank, step, window in ms), all of it compute."""
    rows: list[dict[str, Any]] = [
        {"rank": rank, "step": number, "start_ns": i, "window_ns": ms * MS, "compute_ns": ms * MS,
         "exposed_comm_ns": 0, "exposed_memcpy_ns": 0, "idle_ns": 0, "carry_in": False}
        for i, (rank, number, ms) in enumerate(windows)
    ]  # fmt: skip
    return steps_table(table_from_rows(ATTRIBUTION, rows))


def test_percentiles_are_over_the_windows_of_all_ranks() -> None:
    found = throughput(steps(*((rank, n, 10 * (n + 1)) for rank in (0, 1) for n in range(5))))
    assert (found["step_time_p50_ns"], found["step_time_mean_ns"]) == (30 * MS, 30 * MS)
    assert 45 * MS < found["step_time_p95_ns"] <= found["step_time_p99_ns"] <= 50 * MS


def test_tokens_per_second_are_a_ratio_of_sums() -> None:
    # two steps of 10 and 30 ms with 1000 tokens each: 2000 tokens in 40 ms, not the mean of two rates
    found = throughput(steps((0, 0, 10), (0, 1, 30), (1, 0, 10), (1, 1, 30)), tokens_per_step=1000, num_devices=4)
    assert found["tokens_per_second"] == pytest.approx(50_000)
    assert found["tokens_per_second_per_device"] == pytest.approx(12_500)


def test_what_is_not_known_is_null() -> None:
    assert throughput(steps((0, 0, 10)))["tokens_per_second"] is None
    found = throughput(steps((0, 0, 10)), tokens_per_step=1000)
    assert (found["tokens_per_second"], found["tokens_per_second_per_device"]) == (pytest.approx(100_000), None)


def test_a_whole_trace_window_is_no_step() -> None:
    found = throughput(steps((0, None, 10)), tokens_per_step=1000, num_devices=1)
    assert (found["step_time_p50_ns"], found["tokens_per_second"], found["slow_steps"]) == (None, None, 0)


def test_slow_steps_are_listed_with_what_they_cost() -> None:
    table = steps(*((rank, n, 40 if n == 3 else 10) for rank in (0, 1) for n in range(6)))
    found = throughput(table)
    assert (found["slow_steps"], found["slow_step_excess_ns"]) == (2, 60 * MS)
    assert found["slowest"] == [{"step": 3, "excess_ns": 60 * MS, "window_ns": 40 * MS, "ranks": 2}]
    assert slow_steps_of_job(steps((0, 0, 10), (0, 1, 10), (0, 2, 10))) == []


def test_analyze_reports_tokens_per_second_without_a_model() -> None:
    rows = []
    for n in range(3):
        at = 10 * MS * n
        rows += [step(n, at, at + 10 * MS), call(at + 1, at + 2, n + 1), kernel(at + 10, at + 9 * MS, n + 1)]
    found = analyze_tables({"events": events(*rows)}, tokens_per_step=4096).summary["throughput"]
    assert found["tokens_per_second"] == pytest.approx(4096 / 0.01, rel=0.01)
    assert found["tokens_per_second_per_device"] == found["tokens_per_second"]
