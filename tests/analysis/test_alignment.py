"""Clocks in the store: one line per piece says what the tree of clocks says."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from perfkit.analysis.alignment import StoredClocks, align, alignment_table
from perfkit.analysis.clock_fit import ClockFit, Piece
from perfkit.analysis.clocks import Clocks, HostClock

START, LENGTH = 1_700_000_000 * 10**9, 5 * 10**9


class View:
    """What alignment_table looks at of a job."""

    def __init__(self, clock: Clocks, ranks: int, several: bool = True) -> None:
        self.clock, self.several = clock, several
        self.instances = pa.table({"instance": [0]})
        self.steps = pa.table({"rank": range(ranks), "window_start_ns": [START] * ranks, "window_ns": [LENGTH] * ranks})


def piece(after_ns: int, offset_ns: int, ppm: float) -> Piece:
    return Piece(START + after_ns, START + after_ns + LENGTH // 2, offset_ns, ppm * 1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_a_chain_of_drifting_and_jumping_clocks_is_folded_into_pieces(seed):
    dice = np.random.default_rng(seed)
    one, two = (int(v) for v in dice.integers(-(10**9), 10**9, 2))
    ppm, ppm_two = (float(v) for v in dice.uniform(-80, 80, 2))
    jump, when = int(dice.integers(-(10**7), 10**7)), int(dice.integers(LENGTH // 5, LENGTH // 3))
    near = ClockFit([piece(0, one, ppm), piece(when, one + jump, ppm)], 100, 50)
    far = ClockFit([piece(0, two, ppm_two), piece(2 * when, two + 3 * jump, ppm_two)], 200, 50)
    hosts = [HostClock("a", (0,), -1, None, 0), HostClock("b", (1,), 0, near, 100), HostClock("c", (2,), 1, far, 300)]
    clocks = Clocks(hosts, spread_ns=7, corrections={2: 40_000})
    stored = StoredClocks(alignment_table(View(clocks, 3)))
    times = START + np.linspace(0, LENGTH - 1, 401).astype(np.int64)
    for rank in range(3):
        ranks = np.full(len(times), rank)
        apart = np.abs(clocks.align(ranks, times) - stored.align(ranks, times))
        assert np.count_nonzero(apart > 3) <= 8, "only where a clock just stepped may a time lie on its other side"
    assert stored.aligned
    assert stored.u_ns == 307


def test_a_clock_that_is_not_aligned_says_so():
    clocks = Clocks([HostClock("a", (0,), -1, None, 0), HostClock("b", (1,), -1, None, None)])
    rows = alignment_table(View(clocks, 2)).to_pylist()
    assert [row["uncertainty_ns"] for row in rows] == [0, None]
    assert [row["offset_ns"] for row in rows] == [0, 0]
    assert not StoredClocks(alignment_table(View(clocks, 2))).aligned
    alone = alignment_table(View(Clocks([HostClock("a", (0,), -1, None, 0)]), 1, several=False)).to_pylist()
    assert alone[0]["uncertainty_ns"] is None


def test_times_without_a_clock_stay():
    times = np.array([5, 6])
    assert align([], times).tolist() == [5, 6]
    assert not StoredClocks(alignment_table(View(Clocks(), 0))).aligned


@pytest.mark.parametrize("before_ns", [0, 10**9])
def test_the_first_piece_holds_before_it_too(before_ns):
    rows = [{"from_ns": START, "offset_ns": 1000, "drift_ppm": 10.0}]
    moment = np.array([START - before_ns])
    assert align(rows, moment)[0] == START - before_ns - 1000 + before_ns // 100_000
