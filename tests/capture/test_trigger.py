"""Change points in step times, who did it, and the trace that is asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfkit.capture import writer
from perfkit.capture.change_point import ChangePoint
from perfkit.capture.segments import write_atomically
from perfkit.capture.trigger import Trigger, TriggerRule, choose, rule_from
from tests.conftest import ROOT

MS = 1_000_000
SCRIPT = Path(__file__).with_name("scripts") / "slow_from_the_middle.py"


def watch(times_ms, **options):
    """Return the changes that a detector finds."""
    detector = ChangePoint(**options)
    return [found for step, ms in enumerate(times_ms) if (found := detector.add(step, round(ms * MS)))]


def noisy(count, seed, noise=0.03, level=100.0):
    return level * (1 + noise * np.random.default_rng(seed).standard_normal(count))


@settings(deadline=None, derandomize=True, max_examples=50)
@given(seed=st.integers(0, 2**32 - 1))
def test_noise_of_three_percent_triggers_nothing(seed):
    assert watch(noisy(300, seed)) == []


@settings(deadline=None, derandomize=True, max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), at=st.integers(60, 200))
def test_a_step_of_fifteen_percent_is_found_once_and_where_it_began(seed, at):
    times = noisy(at + 100, seed)
    times[at:] *= 1.15
    (found,) = watch(times)
    assert at <= found.found_at <= at + 40
    assert at - 20 <= found.first_step <= found.found_at
    assert found.after_ns / found.before_ns == pytest.approx(1.15, abs=0.06)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), every=st.integers(4, 20), factor=st.floats(1.5, 20))
def test_single_slow_steps_trigger_nothing(seed, every, factor):
    times = noisy(300, seed)
    times[::every] *= factor
    assert watch(times) == []


def test_a_slow_drift_triggers_nothing():
    assert watch(noisy(2000, 1, noise=0.01) * np.linspace(1.0, 1.5, 2000)) == []


def test_a_slow_start_triggers_nothing_and_neither_does_becoming_faster():
    times = noisy(300, 2)
    times[:10] *= 5
    times[150:] *= 0.8
    assert watch(times) == []


def test_scatter_that_is_larger_than_the_change_is_not_taken_for_one():
    found = [watch(noisy(300, seed, noise=0.25)) for seed in range(20)]
    assert found == [[]] * 20


def test_a_second_change_is_found_after_the_first():
    times = np.concatenate([noisy(100, 3), noisy(100, 4) * 1.3, noisy(100, 5) * 1.7])
    assert [found.found_at // 100 for found in watch(times)] == [1, 2]


# ------------------------------------------------------------------ who


def change(before_ms, after_ms, step_before=100, step_after=140):
    return {
        "step": 50, "first_step": 45, "before_ns": step_before * MS, "after_ns": step_after * MS,
        "own_before_ns": before_ms * MS, "own_after_ns": None if after_ms is None else after_ms * MS,
    }  # fmt: skip


def test_the_rank_whose_own_work_grew_is_slow_and_its_peer_is_the_calmest():
    slow, peer, share = choose(0, {0: change(80, 84), 1: change(80, 118), 2: change(60, 61), 3: None})
    assert (slow, peer, share) == (1, 2, pytest.approx(38 / 40))


def test_a_rank_that_always_worked_more_is_not_the_culprit():
    slow, _, _ = choose(0, {0: change(90, 91), 1: change(20, 58)})
    assert slow == 1


def test_on_a_busy_machine_a_small_part_of_the_change_is_enough_if_no_other_rank_comes_near():
    found = {0: change(80, 80.5, step_after=400), 1: change(80, 82, step_after=400), 2: change(80, 140, step_after=400)}
    slow, peer, share = choose(0, found)
    assert (slow, peer, share) == (2, 0, pytest.approx(0.2))


def test_if_nobodys_own_work_explains_it_the_first_two_are_traced():
    assert choose(0, {0: change(80, 82), 1: change(80, 83), 2: change(80, 80)}) == (0, 1, None)
    assert choose(0, {0: change(80, None)}) == (0, None, None)


@pytest.mark.parametrize(
    ("given_rule", "rule"),
    [(None, None), (False, None), (0, None), (True, TriggerRule()), (2, TriggerRule(per_hour=2))],
)
def test_a_trigger_is_on_off_or_a_number(given_rule, rule):
    assert rule_from(given_rule) == rule


@pytest.mark.parametrize("wrong", ["often", 1.5, -3])
def test_a_wrong_trigger_raises_at_once(init, wrong):
    with pytest.raises(ValueError, match=r"trigger=|per_hour"):
        init(trigger=wrong)


# ------------------------------------------------------------------ asking


def steps(trigger, first, count, ms):
    """Let steps end, without training."""
    for number in range(first, first + count):
        steps.now += ms * MS
        trigger.step_ended(number, steps.now, None, False)


def request_of(pk) -> dict | None:
    path = pk.writer.folder.parent / "trace-request.json"
    return json.loads(path.read_text()) if path.exists() else None


@pytest.fixture
def idle(init, monkeypatch):
    """A recorder whose writer does not look at the trigger, which the test drives."""
    monkeypatch.setattr(writer, "LIVE_SECONDS", 0.05)
    pk = init(flush_seconds=0.01, world_size=2, rank=0)
    with pk.step():
        pass
    deadline = time.monotonic() + 120
    while not (pk.writer.folder / "live/metrics.json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    steps.now = 10**12
    return pk


def other_rank(pk, found):
    folder = pk.writer.folder.parent / "rank-00001"
    folder.mkdir()
    own = json.loads((pk.writer.folder / "live/metrics.json").read_text())
    write_atomically(folder / "live/metrics.json", own | {"rank": 1, "change": found})


def test_a_request_names_the_slow_rank_and_its_peer(idle, said, compacted):
    trigger = Trigger(idle, TriggerRule())
    steps(trigger, 0, 60, 100)
    assert not trigger.turn()
    steps(trigger, 60, 11, 140)
    other_rank(idle, change(80, 118) | {"step": 68})
    assert trigger.turn()
    asked = request_of(idle)
    assert (asked["ranks"], asked["steps"]) == ("1,0", 2)
    assert "steps are 40% slower since step 60" in " ".join(said())
    rows = compacted().read("counters", run="r").to_pylist()
    assert [row["value"] for row in rows if row["name"] == "perfkit_step_change_ratio"] == [pytest.approx(1.4)]


def test_the_budget_of_an_hour_is_kept(idle, said):
    trigger = Trigger(idle, TriggerRule(per_hour=1))
    other_rank(idle, change(80, 118) | {"step": 68})
    at, ms = 0, 100
    asked = []
    for _ in range(3):
        steps(trigger, at, 60, ms)
        trigger.turn()
        ms *= 1.4
        at += 60
        asked.append(request_of(idle))
    assert asked[0] is None
    assert asked[1] == asked[2]
    trigger._pending and trigger._decide(0.0)
    assert "are used up" in said()[-1]


def test_a_rank_that_is_not_the_lowest_leaves_the_decision(idle):
    idle.identity = replace(idle.identity, rank=5)
    trigger = Trigger(idle, TriggerRule())
    steps(trigger, 0, 60, 100)
    steps(trigger, 60, 11, 140)
    assert trigger.turn()
    assert trigger.change["first_step"] == 60
    assert request_of(idle) is None


def test_steps_under_a_profiler_are_not_looked_at(idle):
    trigger = Trigger(idle, TriggerRule())
    steps(trigger, 0, 60, 100)
    for number in range(60, 120):
        steps.now += 500 * MS
        trigger.step_ended(number, steps.now, None, True)
    steps(trigger, 120, 30, 100)
    assert not trigger.turn()


def test_with_cuda_own_work_is_the_gpu_time_of_the_forward_span_and_is_waited_for(idle):
    trigger = Trigger(idle, TriggerRule())
    other_rank(idle, change(80, 81) | {"step": 67})
    idle.gpu = object()  # CUDA events are measured; the training thread's CPU time says nothing then
    for number in range(0, 60, 10):
        trigger.span_measured("forward", number, 30 * MS)
        trigger.span_measured("backward", number, 60 * MS)
    steps(trigger, 0, 60, 100)
    steps(trigger, 60, 11, 140)
    assert trigger.turn()
    assert trigger.change["own_before_ns"] == 30 * MS
    assert (trigger.change["own_after_ns"], request_of(idle)) == (None, None)
    trigger.span_measured("forward", 70, 65 * MS)
    trigger.turn()
    idle.gpu = None
    assert request_of(idle)["ranks"] == "0,1"
    assert trigger.change["own"] == "gpu_forward"


# ------------------------------------------------------------------ a job


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_rank_that_becomes_slow_in_the_middle_is_traced_with_one_peer_and_nobody_else(tmp_path):
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PERFKIT": "1"}
    done = subprocess.run(
        [*command, str(SCRIPT), str(tmp_path / "store")],
        cwd=ROOT, env=environ, capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    fault = int(done.stdout.split("FAULT AT ")[1].split()[0])
    found = sorted(path.name for path in (tmp_path / "store/traces").rglob("*.json.gz"))
    ranks = [int(name.split(".")[0].removeprefix("rank-")) for name in found]
    assert len(found) == 2, (found, done.stderr[-3000:])
    assert 2 in ranks
    assert len(set(ranks)) == 2
    from perfkit.store import Store

    for rank in ranks:
        names = Store(tmp_path / "store").read("events", run="slow", ranks=[rank])["name"].to_pylist()
        traced = sorted({int(name.split("#")[1]) for name in names if name.startswith("ProfilerStep#")})
        assert len(traced) == 2
        assert traced[0] > fault
    (spare,) = {0, 1, 2} - set(ranks)
    assert not Store(tmp_path / "store").read("events", run="slow", ranks=[spare]).num_rows
