"""Who launched what, in traces as odd as they come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_rows import call, event, events, kernel, op

from perfkit.analysis.analyze import analyze_tables
from perfkit.analysis.timeline import Timeline, device_column, read_timelines


def timeline(*rows) -> Timeline:
    (found,) = read_timelines(events(*rows))
    return found


def launch_starts(*rows) -> list[int | None]:
    """Start of the launch call of each kernel."""
    found = timeline(*rows)
    return [None if i < 0 else int(found.host.start[i]) for i in found.work.launch.tolist()]


def test_a_launch_call_that_never_returns_still_launched_its_kernel() -> None:
    rows = [call(0, 5, 1), kernel(10, 20, 1), event("cuda_runtime", "cudaLaunchKernel", 60, None, correlation=2, pid=1)]
    found = analyze_tables({"events": events(*rows, kernel(70, 90, 2))})
    assert found.summary["quality"]["undated_events"] == 1
    assert found.summary["quality"]["launches_missing"] == 0
    assert found.summary["idle"]["host_late_ns"] == 40


def test_correlation_zero_means_none() -> None:
    assert launch_starts(call(0, 5, 0), kernel(10, 20, 0), kernel(30, 40, None)) == [None, None]


def test_an_id_that_is_used_again_belongs_to_the_last_call_before_the_kernel() -> None:
    rows = [call(0, 5, 7), kernel(10, 20, 7), call(100, 105, 7), kernel(110, 120, 7), kernel(130, 140, 7)]
    assert launch_starts(*rows) == [0, 100, 100]


def test_a_kernel_before_every_call_of_its_id_belongs_to_the_first() -> None:
    assert launch_starts(kernel(90, 95, 7), call(100, 105, 7), call(200, 205, 7)) == [100]


def test_of_calls_inside_each_other_the_outer_one_launched() -> None:
    rows = [call(0, 50, 7), call(10, 20, 7, name="cuLaunchKernel"), kernel(60, 70, 7)]
    assert launch_starts(*rows) == [0]


def test_many_kernels_of_a_graph_share_its_launch() -> None:
    rows = [call(0, 5, 7, name="cudaGraphLaunch"), *(kernel(10 * i, 10 * i + 5, 7) for i in range(1, 5))]
    found = timeline(*rows)
    assert found.launched_by_graph.all()
    assert launch_starts(*rows) == [0, 0, 0, 0]


def test_one_event_is_a_result() -> None:
    for row in (kernel(5, 9), op(5, 9)):
        found = analyze_tables({"events": events(row)})
        assert found.summary["totals"]["window_ns"] == 4


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 40)), max_size=12),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 40)), min_size=1, max_size=12),
)
def test_launches_equal_a_plain_search(calls: list[tuple[int, int]], works: list[tuple[int, int]]) -> None:
    calls = sorted(set(calls), key=lambda c: c[1])
    rows = [*(call(2 * t, 2 * t + 1, i) for i, t in calls), *(kernel(2 * t + 1, 2 * t + 2, i) for i, t in works)]
    expected: list[int | None] = []
    for i, t in works:
        same = [2 * c for j, c in calls if j == i and i > 0]
        before = [c for c in same if c <= 2 * t + 1]
        expected.append(before[-1] if before else same[0] if same else None)
    assert launch_starts(*rows) == expected


def test_unknown_devices_are_the_only_one_that_is_known() -> None:
    found = timeline(kernel(0, 5, device=3), kernel(6, 9, device=None))
    assert np.unique(found.work.device).tolist() == [3]
    with pytest.raises(ValueError, match="not enough values"):
        timeline()


def test_a_rank_without_a_device_and_a_device_that_is_not_recorded_are_null() -> None:
    assert device_column(3, 2).to_pylist() == [3, 3]
    assert device_column(0, 1).to_pylist() == [0]
    assert device_column(None, 2).to_pylist() == device_column(-1, 2).to_pylist() == [None, None]
