from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.analysis.evidence import block_length, correlation, difference, ratio, student


def steps(seed, n=120, *, rho=0.3, spread=0.03, slower=1.0):
    """Step times that hang together, with an outlier now and then."""
    random = np.random.default_rng(seed)
    noise = random.normal(size=n + 20)
    for i in range(1, len(noise)):
        noise[i] = rho * noise[i - 1] + noise[i] * np.sqrt(1 - rho**2)
    times = 100 * (1 + spread * noise[20:])
    times[random.random(n) < 0.02] *= 1.5
    return times * slower


@pytest.mark.parametrize(("n", "rho"), [(10, 0.0), (10, 0.6), (30, 0.3), (30, 0.7), (120, 0.3), (120, 0.6)])
def test_two_runs_of_the_same_job_are_not_told_apart_more_often_than_the_level_allows(n, rho):
    """The short form of benchmarks/compare.py."""
    alarms = sum(ratio(steps(2 * seed, n, rho=rho), steps(2 * seed + 1, n, rho=rho)).sign != 0 for seed in range(200))
    assert alarms <= 18  # 5 % of 200 is 10; more than 18 has a chance below 1 %, and the seeds are fixed


def test_three_percent_is_found_in_a_hundred_steps():
    found = sum(ratio(steps(2 * seed), steps(2 * seed + 1, slower=1.03)).sign == 1 for seed in range(100))
    assert found >= 95


def test_the_interval_holds_the_truth():
    inside = 0
    for seed in range(100):
        estimate = ratio(steps(2 * seed), steps(2 * seed + 1, slower=1.1))
        inside += estimate.low <= 0.1 <= estimate.high
    assert inside >= 90


def test_the_same_series_twice_is_no_change():
    values = steps(1)
    estimate = difference(values, values)
    assert estimate.change == 0
    assert estimate.sign == 0


def test_three_values_give_a_change_and_no_interval():
    estimate = ratio(np.array([1.0, 1, 1]), np.array([2.0, 2, 2]))
    assert estimate.change == pytest.approx(1.0)
    assert (estimate.low, estimate.high, estimate.sign) == (None, None, 0)


@pytest.mark.parametrize("base", [[], [0.0, 0.0], [np.nan]])
def test_nothing_to_compare_is_unknown(base):
    assert ratio(np.array(base), np.ones(10)).change is None


@given(st.lists(st.floats(1, 1e9), min_size=4, max_size=60), st.lists(st.floats(1, 1e9), min_size=4, max_size=60))
def test_swapping_the_sides_swaps_the_sign(a, b):
    there, back = difference(np.array(a), np.array(b)), difference(np.array(b), np.array(a))
    assert there.change == pytest.approx(-back.change)
    assert there.low <= there.change <= there.high


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_blocks_fit_into_the_series(values):
    assert 1 <= block_length(np.array(values)) <= max(1, len(values) // 5)


def test_correlation_is_found_in_spite_of_outliers_and_assumed_where_it_cannot_be_seen():
    assert correlation(steps(1, 2000, rho=0.6), steps(2, 2000, rho=0.6)) == pytest.approx(0.6, abs=0.08)
    assert correlation(steps(1, 5), steps(2, 5)) == pytest.approx(0.5)
    assert correlation(np.ones(50), np.ones(50)) == 0


def test_blocks_grow_with_correlation():
    assert block_length(steps(3, 400, rho=0.0)) < block_length(steps(3, 400, rho=0.9))


@pytest.mark.parametrize(("freedom", "value"), [(1, 12.706), (2, 4.303), (3, 3.182), (10, 2.228), (30, 2.042)])
def test_students_quantiles_agree_with_the_table(freedom, value):
    assert student(0.975, freedom) == pytest.approx(value, rel=0.01)
