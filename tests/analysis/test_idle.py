from __future__ import annotations

import pytest
from trace_rows import Row, call, events, kernel, op, step

from perfkit.analysis.analyze import analyze_tables

US = 1000


def causes(*rows: Row, window: str = "trace") -> dict[str, int]:
    idle = analyze_tables({"events": events(*rows)}, window=window).summary["idle"]
    return {c: idle[f"{c}_ns"] for c in ("host_late", "launch", "dependency", "unattributed") if idle[f"{c}_ns"]}


def test_until_the_launch_the_host_is_late_and_then_the_work_is_on_its_way() -> None:
    #  device  |##|         |##|
    #  host             |l|
    rows = [kernel(0, 10 * US), call(30 * US, 31 * US, 1), kernel(40 * US, 50 * US, 1)]
    assert causes(*rows) == {"host_late": 20 * US, "launch": 10 * US}


def test_work_that_was_asked_for_in_time_and_waits_long_depends_on_something() -> None:
    assert causes(kernel(0, 10), call(5, 6, 1), kernel(20_010, 20_020, 1)) == {"launch": 20_000}
    assert causes(kernel(0, 10), call(5, 6, 1), kernel(20_011, 20_020, 1)) == {"dependency": 20_001}


def test_the_rest_after_a_late_launch_can_be_a_dependency_too() -> None:
    rows = [kernel(0, 10 * US), call(30 * US, 31 * US, 1), kernel(60 * US, 70 * US, 1)]
    assert causes(*rows) == {"host_late": 20 * US, "dependency": 30 * US}


def test_a_launch_after_its_work_makes_the_whole_gap_late() -> None:
    assert causes(kernel(0, 10), call(99, 100, 1), kernel(50, 60, 1)) == {"host_late": 40}


def test_without_a_launch_in_the_trace_a_gap_is_unattributed() -> None:
    assert causes(kernel(0, 10), kernel(50, 60, 1), call(0, 1, 2)) == {"unattributed": 40}
    assert causes(kernel(0, 10), kernel(50, 60), call(0, 1)) == {"unattributed": 40}


def test_gaps_are_of_the_device_and_not_of_a_stream() -> None:
    assert causes(kernel(0, 10), kernel(5, 40), call(20, 21, 1), kernel(40, 50, 1)) == {}


def test_of_work_that_starts_together_the_first_launched_ends_the_gap() -> None:
    rows = [kernel(0, 10), call(30, 31, 1), kernel(50, 60, 1), call(20, 21, 2), kernel(50, 70, 2)]
    assert causes(*rows) == {"host_late": 10, "launch": 30}


def test_the_first_of_two_calls_with_one_correlation_is_the_launch() -> None:
    rows = [kernel(0, 10), call(30, 35, 1, "cudaLaunchKernel"), call(31, 34, 1, "cuLaunchKernel"), kernel(50, 60, 1)]
    assert causes(*rows) == {"host_late": 20, "launch": 20}


def test_kernels_of_a_graph_share_its_launch() -> None:
    rows = [kernel(0, 10), call(20, 25, 1, "cudaGraphLaunch"), kernel(40, 50, 1), kernel(55, 60, 1)]
    found = analyze_tables({"events": events(*rows)}, window="trace").summary
    assert found["idle"]["host_late_ns"] == 10
    assert found["idle"]["launch_ns"] == 20 + 5
    assert found["quality"]["graph_coverage"] == 15 / 25


def test_a_late_host_is_the_step_s_that_launched_next() -> None:
    rows = [
        step(1, 0, 100), step(2, 100, 200), call(10, 11, 1), kernel(20, 50, 1), call(150, 151, 2), kernel(160, 190, 2)
    ]  # fmt: skip
    table = analyze_tables({"events": events(*rows)}).tables["idle"].to_pylist()
    late = [(r["step"], r["idle_ns"]) for r in table if r["cause"] == "host_late"]
    assert sum(ns for _, ns in late) == 100
    assert {n for n, _ in late} == {2}
    assert [(r["step"], r["idle_ns"]) for r in table if r["cause"] == "unattributed"] == [(2, 10)]


def test_idle_time_after_the_last_work_has_no_cause() -> None:
    assert causes(step(1, 0, 100), call(10, 11, 1), kernel(20, 50, 1), window="step") == {"unattributed": 50}


def test_launches_with_large_correlations_are_found() -> None:
    big = 2**62
    assert causes(kernel(0, 10), call(20, 21, big), call(0, 1, 5), kernel(50, 60, big)) == {
        "host_late": 10,
        "launch": 30,
    }


@pytest.mark.parametrize("window", ["step", "trace"])
def test_one_event_is_enough(window: str) -> None:
    found = analyze_tables({"events": events(kernel(7, 9))}, window=window).summary
    assert found["totals"]["window_ns"] == found["totals"]["compute_ns"] == 2
    assert analyze_tables({"events": events(op(7, 9))}, window=window).summary["totals"]["compute_ns"] == 2
