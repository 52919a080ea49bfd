from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from trace_rows import Row, call, copy, event, events, kernel, nccl, op, span, step

from perfkit.analysis.timeline import read_timelines
from perfkit.analysis.windows import Windows, find_steps, find_windows
from perfkit.errors import UsageError
from perfkit.schema import STEPS, table_from_rows


def windows(*rows: Row, mode: str = "step", device: int | None = 0, records: pa.Table | None = None) -> Windows:
    (timeline,) = read_timelines(events(*rows))
    return find_windows(timeline, device, mode=mode, steps=find_steps(timeline, records))


def as_list(found: Windows) -> list[tuple[int, int, int]]:
    return list(zip(found.step.tolist(), found.start.tolist(), found.end.tolist(), strict=True))


def test_a_window_starts_with_the_first_compute_launched_in_its_step() -> None:
    #  host    |step 1      |step 2      |
    #  device      |##|   |##|     |##|
    found = windows(
        step(1, 0, 100), step(2, 100, 200),
        call(5, 6, 1), kernel(40, 60, 1), call(50, 51, 2), kernel(90, 120, 2), call(110, 111, 3), kernel(150, 190, 3),
    )  # fmt: skip
    assert as_list(found) == [(1, 40, 150), (2, 150, 200)]
    assert found.source == "ProfilerStep"


def test_a_launch_on_any_thread_counts_and_copies_and_communication_do_not_start_a_window() -> None:
    found = windows(
        step(1, 0, 100), call(5, 6, 1, tid=9), copy(10, 20, 1), call(7, 8, 2, tid=9), nccl(20, 30, 2),
        call(9, 10, 3, tid=9), kernel(35, 60, 3),
    )  # fmt: skip
    assert as_list(found) == [(1, 35, 100)]


def test_a_step_of_copies_only_still_has_a_window() -> None:
    assert as_list(windows(step(1, 0, 100), call(5, 6, 1), copy(10, 20, 1))) == [(1, 10, 100)]


def test_the_last_window_ends_with_its_last_work_if_that_is_later_than_the_step() -> None:
    assert as_list(windows(step(1, 0, 50), call(5, 6, 1), kernel(10, 80, 1))) == [(1, 10, 80)]


def test_starts_never_go_back() -> None:
    #  the first kernel of step 2 runs on another stream before that of step 1
    found = windows(
        step(1, 0, 10), step(2, 10, 20), call(5, 6, 1), kernel(60, 70, 1), call(15, 16, 2), kernel(40, 50, 2)
    )
    assert as_list(found) == [(1, 60, 60), (2, 60, 60)]


def test_a_step_in_which_nothing_was_launched_is_counted_and_has_no_window() -> None:
    found = windows(step(1, 0, 50), step(2, 50, 60), call(5, 6, 1), kernel(10, 30, 1))
    assert as_list(found) == [(1, 10, 50)]
    assert found.without_work == 1


def test_steps_without_any_launch_in_the_trace_fall_back_to_the_whole_trace() -> None:
    found = windows(step(1, 0, 50), kernel(10, 30, 1))
    assert as_list(found) == [(-1, 10, 30)]
    assert found.source == "trace"


def test_without_any_host_event_recorded_steps_hold_the_work_that_starts_in_them() -> None:
    records = table_from_rows(STEPS, [{"rank": 0, "step": n, "start_ns": s, "end_ns": e} for n, s, e in RECORDED])
    found = windows(kernel(10, 30), kernel(60, 80), kernel(90, 95), records=records)
    assert as_list(found) == [(7, 10, 60), (8, 60, 100)]
    assert found.source == "step_records"


RECORDED = ((7, 0, 50), (8, 50, 100))


def test_the_trace_window_goes_from_the_first_to_the_last_device_event_of_the_rank() -> None:
    rows = [step(1, 0, 500), op(0, 900), kernel(10, 30), copy(300, 310), kernel(100, 120, device=1)]
    assert as_list(windows(*rows, mode="trace")) == [(-1, 10, 310)]
    assert as_list(windows(*rows, mode="trace", device=1)) == [(-1, 10, 310)]


@pytest.mark.parametrize(
    "name", ["step {}", "train_step_{}", "Iteration {}", "iter#{}", "## step {} ##", "global_step:{}"]
)
def test_a_user_range_marks_steps_where_the_profiler_does_not(name: str) -> None:
    rows = [span(0, 10, name.format(41)), span(10, 20, name.format(42)), call(1, 2, 1), call(11, 12, 2)]
    found = windows(*rows, kernel(3, 8, 1), kernel(13, 18, 2))
    assert as_list(found) == [(41, 3, 13), (42, 13, 20)]
    assert found.source == "user_range"


def test_a_user_range_without_a_number_counts_from_zero() -> None:
    rows = [span(0, 10, "train_step"), span(10, 20, "train_step"), call(1, 2, 1), call(11, 12, 2)]
    assert as_list(windows(*rows, kernel(3, 8, 1), kernel(13, 18, 2))) == [(0, 3, 13), (1, 13, 20)]


@pytest.mark.parametrize("name", ["Optimizer.step#SGD.step", "step_down_converter", "footstep", "ProfilerStep"])
def test_ranges_that_only_sound_like_steps_are_none(name: str) -> None:
    rows = [span(0, 10, name), span(10, 20, name), call(1, 2, 1), call(11, 12, 2), kernel(3, 8, 1), kernel(13, 18, 2)]
    assert windows(*rows).source == "trace"


def test_step_records_mark_steps_where_no_range_does() -> None:
    records = table_from_rows(
        STEPS,
        [{"rank": r, "step": n, "start_ns": 10 * n, "end_ns": 10 * n + 10} for r in (0, 1) for n in range(200)],
    )
    found = windows(call(11, 12, 1), kernel(13, 18, 1), call(21, 22, 2), kernel(23, 28, 2), records=records)
    assert as_list(found) == [(1, 13, 23), (2, 23, 30)]
    assert found.source == "step_records"


def training(steps: int, *, optimizer: bool) -> list[Row]:
    names = [f"kernel_{i % 9}" for i in range(20)] + (
        ["multi_tensor_apply_kernel<x>"] if optimizer else ["once_a_step"]
    )
    return [
        kernel(1000 * s + 10 * i, 1000 * s + 10 * i + 8, name=name)
        for s in range(steps)
        for i, name in enumerate(names)
    ]


def test_a_kernel_sequence_that_repeats_with_an_optimizer_in_it_makes_steps() -> None:
    found = windows(*training(5, optimizer=True))
    assert found.source == "periodicity"
    assert as_list(found) == [(n, 1000 * n, 1000 * (n + 1) if n < 4 else 4208) for n in range(5)]


def test_a_sequence_that_repeats_without_an_optimizer_may_be_layers() -> None:
    assert windows(*training(5, optimizer=False)).source == "trace"


def test_of_two_ranges_with_one_number_the_longer_counts() -> None:
    found = windows(step(1, 0, 100), step(1, 0, 5, tid=2), call(50, 51, 1), kernel(60, 90, 1))
    assert as_list(found) == [(1, 60, 100)]


def test_ranges_of_one_number_that_do_not_overlap_are_different_steps() -> None:
    #  two profiles in one file, both counted from 1
    rows = [step(1, 0, 40), step(1, 100, 150), call(5, 6, 1), kernel(10, 30, 1), call(110, 111, 2), kernel(120, 140, 2)]
    assert as_list(windows(*rows)) == [(1, 10, 120), (1, 120, 150)]


def test_where_ranges_overlap_or_nest_a_launch_belongs_to_the_one_that_started_last() -> None:
    (timeline,) = read_timelines(events(step(1, 0, 100), step(2, 20, 40), step(3, 80, 120), kernel(0, 1)))
    steps = find_steps(timeline)
    assert steps is not None
    times = np.array([-1, 0, 19, 20, 39, 40, 79, 80, 119, 120])
    found = [None if at < 0 else int(steps.number[at]) for at in steps.at(times)]
    assert found == [None, 1, 1, 2, 2, 1, 1, 3, 3, None]


def test_of_several_kinds_of_user_ranges_the_one_that_fills_most_time_counts() -> None:
    rows: list[Row] = []
    for n in (7, 8):
        rows += [span(100 * n, 100 * n + 90, f"iteration {n}"), call(100 * n + 2, 100 * n + 3, n)]
        rows += [kernel(100 * n + 5, 100 * n + 50, n), span(100 * n + 80, 100 * n + 85, "optimizer_step")]
        rows += [span(100 * n + 20 * i, 100 * n + 20 * i + 10, f"step {i}") for i in range(4)]
    assert as_list(windows(*rows)) == [(7, 705, 805), (8, 805, 890)]


def test_a_rank_without_a_device_has_its_windows_on_the_host() -> None:
    rows = [step(1, 0, 10), step(2, 10, 20), op(2, 6), op(12, 25, tid=2)]
    assert as_list(windows(*rows, device=None)) == [(1, 0, 10), (2, 10, 25)]
    assert as_list(windows(*rows, device=None, mode="trace")) == [(-1, 0, 25)]


def test_a_last_step_without_length_on_a_rank_without_a_device_is_a_window_without_length() -> None:
    assert as_list(windows(step(1, 0, 10), step(2, 12, 12), op(2, 6), device=None)) == [(1, 0, 12), (2, 12, 12)]


def test_selected_steps_keep_their_windows() -> None:
    rows = [row for n in range(4) for row in (step(n, 10 * n, 10 * n + 10), call(10 * n + 1, 10 * n + 2, n + 1))]
    found = windows(*rows, *(kernel(10 * n + 3, 10 * n + 8, n + 1) for n in range(4)))
    assert as_list(found.select(1, 3)) == [(1, 13, 23), (2, 23, 33)]
    assert as_list(found.select(9, None)) == []
    assert found.select(None, None) is found


def test_a_window_without_a_number_is_none_of_the_selected_steps() -> None:
    assert as_list(windows(kernel(0, 10)).select(0, None)) == []


def test_steps_that_do_not_count_up_cannot_be_selected_across_others() -> None:
    rows = [
        row for i, n in enumerate((5, 0, 6)) for row in (step(n, 10 * i, 10 * i + 10), call(10 * i, 10 * i + 1, n + 1))
    ]
    found = windows(*rows, *(kernel(10 * i + 3, 10 * i + 8, n + 1) for i, n in enumerate((5, 0, 6))))
    assert as_list(found.select(0, 1)) == [(0, 13, 23)]
    with pytest.raises(UsageError, match="in the order 5, 0, 6"):
        found.select(5, 7)


def test_steps_on_the_device_track_are_not_step_ranges() -> None:
    rows = [event("gpu_user_annotation", "ProfilerStep#1", 0, 50, device=0), call(5, 6, 1), kernel(10, 30, 1)]
    assert windows(*rows).source == "trace"
