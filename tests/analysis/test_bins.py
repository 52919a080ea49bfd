from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfkit.analysis.attribute import Busy
from perfkit.analysis.bins import bin_middle_step, bin_window
from perfkit.analysis.intervals import Spans, covered, join, union
from perfkit.analysis.windows import Windows

PARTS = ("compute_ns", "exposed_comm_ns", "exposed_memcpy_ns", "idle_ns")
INTERVALS = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=8)


def spans(*intervals: tuple[int, int]) -> Spans:
    return union([a for a, _ in intervals], [b for _, b in intervals])


def test_a_bin_holds_what_ran_in_it() -> None:
    #  compute |####      |
    #  comm    |  ####    |     two bins of 5
    #  copies  |       #  |
    got = bin_window(spans((0, 4)), spans((2, 6)), spans((7, 8)), 0, 10, rank=3, step=7, bins=2).to_pylist()
    assert [[row[p] for p in PARTS] for row in got] == [[4, 1, 0, 0], [0, 1, 1, 3]]
    assert [(row["rank"], row["step"], row["start_ns"], row["window_ns"]) for row in got] == [
        (3, 7, 0, 5),
        (3, 7, 5, 5),
    ]


@given(INTERVALS, INTERVALS, INTERVALS, st.integers(0, 500), st.integers(1, 900), st.integers(1, 50))
def test_the_bins_sum_to_the_step(k: list, c: list, m: list, start: int, length: int, bins: int) -> None:
    compute, comm, memcpy = spans(*k), spans(*c), spans(*m)
    table = bin_window(compute, comm, memcpy, start, start + length, rank=0, step=None, bins=bins)
    assert len(table) == min(bins, length)
    for row in table.to_pylist():
        assert sum(row[p] for p in PARTS) == row["window_ns"] > 0
    total = {p: sum(table[p].to_pylist()) for p in PARTS}
    assert sum(total.values()) == length
    assert total["compute_ns"] == covered(compute, [start], [start + length])[0]
    assert length - total["idle_ns"] == covered(join(compute, comm, memcpy), [start], [start + length])[0]


def test_the_middle_step_is_taken_and_a_rank_without_windows_gives_none() -> None:
    busy = Busy(spans((0, 30)), spans(), spans(), spans())
    windows = Windows(np.array([4, 5, 6]), np.array([0, 10, 20, 40]), "ProfilerStep")
    table = bin_middle_step(windows, busy, 2, bins=2)
    assert table is not None
    assert [(row["step"], row["start_ns"], row["compute_ns"]) for row in table.to_pylist()] == [(5, 10, 5), (5, 15, 5)]
    assert bin_middle_step(Windows(np.array([], np.int64), np.array([0]), ""), busy, 2) is None
    whole = bin_middle_step(Windows(np.array([-1]), np.array([0, 40]), "trace"), busy, 2, bins=1)
    assert whole is not None
    assert (whole["step"].to_pylist(), whole["idle_ns"].to_pylist()) == ([None], [10])
