from __future__ import annotations

import pyarrow as pa

from perfkit.report.lanes import MAX_LANES, choose_lanes


def bins(*rows: tuple[int, int | None, int, int, int]) -> pa.Table:
    """Bins from (rank, step, start, window, exposed communication)."""
    names = ("rank", "step", "start_ns", "window_ns", "exposed_comm_ns")
    parts = {"compute_ns": 0, "exposed_memcpy_ns": 0, "idle_ns": 0}
    return pa.Table.from_pylist([{**dict(zip(names, row, strict=True)), **parts} for row in rows])


def test_nothing_gives_nothing() -> None:
    assert choose_lanes(None, aligned=True) is None
    assert choose_lanes(bins((0, 1, 5, 0, 0)), aligned=True) is None


def test_the_step_that_most_ranks_hold_is_drawn() -> None:
    found = choose_lanes(bins((0, 3, 0, 10, 0), (1, 4, 0, 10, 0), (2, 4, 2, 10, 0)), aligned=True)
    assert found is not None
    assert (found.step, [rank for rank, _ in found.lanes], found.span_ns) == (4, [1, 2], 12)
    assert [rows[0]["at_ns"] for _, rows in found.lanes] == [0, 2]


def test_a_window_without_a_step_is_drawn_too() -> None:
    found = choose_lanes(bins((0, None, 7, 10, 0)), aligned=False)
    assert found is not None
    assert (found.step, found.span_ns, found.note) == (None, 10, "")


def test_clocks_that_are_far_apart_start_each_lane_at_zero_and_say_so() -> None:
    far = bins((0, 1, 0, 10, 0), (0, 1, 10, 10, 0), (1, 1, 10**9, 20, 0))
    found = choose_lanes(far, aligned=False)
    assert found is not None
    assert [[row["at_ns"] for row in rows] for _, rows in found.lanes] == [[0, 10], [0]]
    assert found.span_ns == 20
    assert "own zero" in found.note
    trusted = choose_lanes(far, aligned=True)
    assert trusted is not None
    assert trusted.span_ns == 10**9 + 20


def test_of_many_ranks_the_extremes_are_drawn() -> None:
    found = choose_lanes(bins(*((rank, 1, 0, 100, rank % 50) for rank in range(100))), aligned=True)
    assert found is not None
    ranks = [rank for rank, _ in found.lanes]
    assert len(ranks) == MAX_LANES
    assert ranks == sorted(ranks)
    assert {0, 50, 49, 99} <= set(ranks)
    assert "Of 100 ranks" in found.note
