"""Who the others waited for: equal shares, charges that pass on, exact sums, and culprits that were put in."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from perfkit.analysis.blame import Blame, assign_blame
from perfkit.analysis.job import JobView
from perfkit.simulate.faults import parse_fault
from perfkit.simulate.job import Job, Mesh
from tests.analysis.job_cases import call, calls_table, make_case, simulated_view
from tests.analysis.test_collectives import exposed_of, jobs


def blame_of(calls: Any, world: int, **more: Any) -> Blame:
    case = make_case(calls, world=world, **more)
    step = np.array([-1 if s is None else s for s in calls["step"].to_pylist()], np.int64)
    ranks = sorted(set(calls["rank"].to_pylist()))
    return assign_blame(case.split, case.pieces, case.holds, case.exposed, call_step=step, ranks=ranks)


def caused(blame: Blame) -> dict[int, int]:
    return {r["rank"]: r["wait_caused_ns"] for r in blame.ranks.to_pylist() if r["wait_caused_ns"]}


def group(ranks: list[int], name: str) -> dict[str, Any]:
    return {"group": name, "group_ranks": str(ranks).replace(" ", ""), "group_size": len(ranks)}


def test_waiters_charge_the_one_that_is_missing():
    rows = [call(0, 0, 100), call(1, 0, 100), call(2, 60, 100)]
    blame = blame_of(calls_table(rows, [0, 1, 2]), 3)
    assert caused(blame) == {2: 120}
    assert (blame.exposed_wait_ns, blame.unattributed_ns) == (120, 0)


def test_while_two_are_missing_each_is_charged_half():
    #  0 waits 60 for both, then 0 and 1 wait 30 for 2
    rows = [call(0, 0, 120), call(1, 60, 120), call(2, 90, 120)]
    assert caused(blame_of(calls_table(rows, [0, 1, 2]), 3)) == {1: 30, 2: 30 + 60}


def test_odd_nanoseconds_are_not_lost():
    rows = [call(0, 0, 100), call(1, 7, 100), call(2, 7, 100), call(3, 7, 100)]
    blame = blame_of(calls_table(rows, range(4)), 4)
    assert sum(caused(blame).values()) == 7
    assert blame.unattributed_ns == 0


def test_a_skew_below_twice_the_clock_error_is_charged_to_nobody():
    blame = blame_of(calls_table([call(0, 0, 10_000), call(1, 30, 10_000)], [0, 1]), 2, u_ns=20)
    assert caused(blame) == {}
    assert blame.unattributed_ns == blame.exposed_wait_ns == 30


def test_members_of_a_broadcast_charge_its_root_only():
    rows = [call(r, start, 100, op="broadcast", root=2) for r, start in ((0, 0), (1, 80), (2, 50))]
    assert caused(blame_of(calls_table(rows, [0, 1, 2]), 3)) == {2: 50}


def test_the_charge_passes_on_to_the_one_that_held_the_late_rank_up():
    #  group ab: rank 1 waits 0-100 for rank 0;  group bc: rank 2 waits for rank 1, which comes at 110
    rows = [
        call(0, 100, 105, **group([0, 1], "ab")), call(1, 0, 105, **group([0, 1], "ab")),
        call(1, 110, 120, **group([1, 2], "bc")), call(2, 10, 120, **group([1, 2], "bc")),
    ]  # fmt: skip
    blame = blame_of(calls_table(rows), 3)
    assert blame.exposed_wait_ns == 100 + 100
    assert caused(blame) == {0: 200}
    assert blame.culprit.tolist() == [0, 0]


def test_what_a_late_rank_did_itself_stays_with_it():
    #  rank 1 was held up 40, and then worked 60 longer than rank 2
    rows = [
        call(0, 40, 45, **group([0, 1], "ab")), call(1, 0, 45, **group([0, 1], "ab")),
        call(1, 105, 120, **group([1, 2], "bc")), call(2, 5, 120, **group([1, 2], "bc")),
    ]  # fmt: skip
    assert caused(blame_of(calls_table(rows), 3)) == {0: 40 + 40, 1: 60}


@settings(deadline=None, max_examples=80)
@given(jobs())
def test_charges_and_the_unattributed_sum_to_the_exposed_wait(calls):
    spans = [(r, 0, 5_000) for r in sorted(set(calls["rank"].to_pylist()))]
    blame = blame_of(calls, 4, exposed=exposed_of(*spans))
    assert blame.exposed_wait_ns == blame.caused_ns + blame.unattributed_ns
    cells = blame.cells
    assert sum(cells["wait_caused_ns"].to_pylist()) == blame.caused_ns
    assert sum(cells["exposed_wait_ns"].to_pylist()) == blame.exposed_wait_ns


# ------------------------------------------------------------------ simulated culprits

MESHES = (Mesh(dp=8), Mesh(fsdp=8), Mesh(dp=4, tp=2), Mesh(fsdp=4, tp=2), Mesh(dp=2, tp=2, pp=2), Mesh(dp=4, fsdp=2))


def scenario(seed: int, *, healthy: bool) -> tuple[Job, int]:
    """Return a job of 8 ranks and the rank that is slow or late; draws mesh, model, fault and its size."""
    dice = random.Random(f"blame {seed}")
    mesh, rank = dice.choice(MESHES), dice.randrange(8)
    fault = dice.choice(
        [f"slow-rank:{rank}:{dice.randint(115, 160) / 100}x", f"data-stall:{rank}:{dice.randint(2, 20)}ms",
         f"late-rank:{rank}:{dice.randint(2, 20)}ms", f"throttle:{rank}:{dice.randint(120, 160) / 100}x"]
    )  # fmt: skip
    job = Job(
        mesh=mesh, steps=4, layers=4, micro_batches=4 if mesh.pp > 1 else 1, seed=seed,
        hidden=dice.choice([1024, 2048]), ffn=4096, faults=() if healthy else (parse_fault(fault),),
    )  # fmt: skip
    return job, rank


def first_blamed(view: JobView) -> int:
    return max(view.blame.ranks.to_pylist(), key=lambda r: r["wait_caused_ns"])["rank"]


def named_culprit(view: JobView) -> int | None:
    """Return the rank that a report would call a straggler."""
    from types import SimpleNamespace

    from perfkit.analysis.findings_job import culprit

    window = int(np.sum(view.steps["window_ns"].to_numpy()))
    found = culprit(SimpleNamespace(view=view), lambda ns: 100 * ns / window, len(view.ranks))  # type: ignore[arg-type]
    return None if found is None else found["rank"]


def played(seeds: range, *, healthy: bool) -> list[tuple[JobView, int]]:
    found = []
    for seed in seeds:
        job, rank = scenario(seed, healthy=healthy)
        _, view = simulated_view(job, hosts=seed % 2 == 0)
        assert view.blame.exposed_wait_ns == view.blame.caused_ns + view.blame.unattributed_ns
        assert view.blame.exposed_wait_ns == int(np.sum(view.steps["exposed_wait_ns"].to_numpy()))
        found.append((view, rank))
    return found


def test_the_rank_that_was_made_slow_is_blamed_first():
    right = [first_blamed(view) == rank for view, rank in played(range(8), healthy=False)]
    assert np.mean(right) >= 0.95


def test_a_healthy_job_has_no_culprit():
    assert [named_culprit(view) for view, _ in played(range(6), healthy=True)] == [None] * 6


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_rank_that_was_made_slow_is_blamed_first_200_times():
    found = played(range(200), healthy=False)
    assert np.mean([first_blamed(view) == rank for view, rank in found]) >= 0.95


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_healthy_jobs_have_no_culprit_200_times():
    assert np.mean([named_culprit(view) is None for view, _ in played(range(200), healthy=True)]) >= 0.99


def test_the_gain_is_what_the_job_gets_back_without_the_fault():
    job, rank = Job(mesh=Mesh(fsdp=8), steps=4, layers=4, seed=2, faults=(parse_fault("late-rank:3:10ms"),)), 3
    sim, view = simulated_view(job)
    healthy, _ = simulated_view(Job(mesh=job.mesh, steps=4, layers=4, seed=2))

    def length(one: Any) -> float:
        return float(np.mean([step["window_ns"] for r in one.truth()["ranks"] for step in r["steps"]]))

    row = next(r for r in view.blame.ranks.to_pylist() if r["rank"] == rank)
    assert row["recoverable_ns"] / 4 == pytest.approx(length(sim) - length(healthy), rel=0.25)
    assert row["recoverable_ns"] < row["wait_caused_ns"]  # it is wall time, not the sum of seven waits
    assert row["persistence"] == 1.0
