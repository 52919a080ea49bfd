"""Checkpoint intervals and expected ETTR."""

from __future__ import annotations

import math

import pytest

from perfkit.errors import UsageError
from perfkit.goodput.planning import (
    Risk,
    best_interval_s,
    daly_interval_s,
    expected_ettr,
    mttf_of_run,
    plan,
    young_interval_s,
)
from perfkit.simulate.fleet_random import Dice

HOUR = 3600.0


def test_llama_3_was_interrupted_every_three_hours():
    # 466 interruptions in 54 days on 16,384 GPUs, 419 of them unexpected
    hours = 54 * 24 / 419
    assert hours == pytest.approx(3.09, abs=0.005)
    per_1000_node_days = 419 / (16_384 / 8 * 54) * 1000
    assert per_1000_node_days == pytest.approx(3.79, abs=0.005)
    assert mttf_of_run(16_384 / 8, per_1000_node_days) / HOUR == pytest.approx(hours)


def test_llama_3_could_train_for_more_than_nine_tenths_of_the_time():
    # the report says that effective training time was above 90 %; half a minute to save and ten to restart allow it
    answer = plan(Risk(mttf_s=3.09 * HOUR, save_s=30, restart_s=600))
    best = answer["intervals"]["best"]
    assert 0.85 < best["expected_ettr"] < 0.95
    assert 10 * 60 < best["interval_seconds"] < 15 * 60
    quick = plan(Risk(mttf_s=3.09 * HOUR, save_s=5, restart_s=240))
    assert quick["intervals"]["best"]["expected_ettr"] > 0.93


def test_young_and_daly_agree_when_failures_are_rare():
    assert young_interval_s(1e6, 10) == pytest.approx(math.sqrt(2e7))
    assert daly_interval_s(1e9, 10) == pytest.approx(young_interval_s(1e9, 10), rel=1e-3)
    assert daly_interval_s(100, 300) == 100


def test_no_other_interval_is_better_than_the_best():
    risk = Risk(mttf_s=5 * HOUR, save_s=40, restart_s=500, queue_s=60, train_s=30 * 24 * HOUR)
    best = best_interval_s(risk)
    top = expected_ettr(risk, best)
    assert all(expected_ettr(risk, best * f) < top for f in (0.5, 0.9, 1.1, 2.0))
    assert top >= expected_ettr(risk, young_interval_s(risk.mttf_s, risk.save_s))


def test_a_long_run_without_queues_has_exactly_the_published_expected_ettr():
    # (1 − N·r·(u + t/2)) / (1 + w/t), arXiv:2410.21680v2
    for rate in (2.34, 6.5):
        for u, w, t in ((300, 10, 600), (1200, 300, 3600), (60, 0.5, 45)):
            risk = Risk(mttf_s=mttf_of_run(1000, rate), save_s=w, restart_s=u)
            published = (1 - 1000 * rate / 1000 / 86400 * (u + t / 2)) / (1 + w / t)
            assert expected_ettr(risk, t) == pytest.approx(published, rel=1e-12)


@pytest.mark.parametrize(
    ("gpus", "per_1000_node_days", "restart_min", "interval_min", "published"),
    [(16_000, 6.5, 5, 60, 0.7), (16_000, 6.5, 5, 5, 0.93), (100_000, 2.34, 2, 2, 0.9)],
)
def test_published_cases_come_out(gpus, per_1000_node_days, restart_min, interval_min, published):
    # saves do not block there; the last case is said to reach 0.9
    risk = Risk(mttf_s=mttf_of_run(gpus / 8, per_1000_node_days), save_s=0, restart_s=restart_min * 60)
    assert expected_ettr(risk, interval_min * 60) == pytest.approx(published, abs=0.04)


def test_with_queues_it_is_the_first_order_estimate_of_the_first_version():
    # (1 − λ(u + t/2)) / (1 + (u + q)/R + λq), arXiv:2410.21680v1
    for q, run in ((0.0, math.inf), (0.0, 20 * 24 * HOUR), (30.0, 20 * 24 * HOUR)):
        risk = Risk(mttf_s=12 * HOUR, save_s=0, restart_s=300, queue_s=q, train_s=run)
        rate, t = 1 / risk.mttf_s, 1800.0
        published = (1 - rate * (300 + t / 2)) / (1 + (300 + q) / run + rate * q)
        assert expected_ettr(risk, t) == pytest.approx(published, rel=1e-4)


def test_a_run_that_fails_faster_than_it_restarts_never_ends():
    assert expected_ettr(Risk(mttf_s=100, save_s=1, restart_s=200), 60) == 0.0


def test_the_estimate_agrees_with_playing_failures():
    """Play a run many times with exponential failures, and compare; the estimate drops terms of second order."""
    risk = Risk(mttf_s=6 * HOUR, save_s=30, restart_s=400, train_s=10 * 24 * HOUR)
    t = best_interval_s(risk)
    played = [_play(risk, t, Dice(seed)) for seed in range(40)]
    assert sum(played) / len(played) == pytest.approx(expected_ettr(risk, t), abs=0.01)


def _play(risk: Risk, t: float, dice: Dice) -> float:
    clock, saved, failures = risk.restart_s, 0.0, 0
    while saved < risk.train_s:
        left = dice.exponential(risk.mttf_s, "failure", failures)
        failures += 1
        whole = min(int(left // (t + risk.save_s)), math.ceil((risk.train_s - saved) / t))
        saved += whole * t
        if saved >= risk.train_s:
            clock += whole * (t + risk.save_s)
        else:
            clock += left + risk.restart_s
    return risk.train_s / clock


@pytest.mark.parametrize("bad", [{"mttf_s": 0}, {"save_s": -1}, {"restart_s": math.nan}, {"train_s": -5}])
def test_nonsense_is_refused(bad):
    with pytest.raises(UsageError):
        Risk(**{"mttf_s": 1.0, "save_s": 1.0, "restart_s": 1.0, **bad})
