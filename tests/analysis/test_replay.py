"""A replay against the simulator: the same times with nothing changed, and the simulator's own rerun with a change."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc
import pytest

from perfkit.analysis.replay.changes import NotTold, parse_change
from perfkit.analysis.replay.tasks import COMPUTE
from perfkit.analysis.whatif import about_ranks, build_model, measured_step_time, play, step_time
from perfkit.errors import UsageError
from perfkit.simulate.faults import parse_fault
from perfkit.simulate.simulation import simulate
from tests.analysis.replay_jobs import CASES, MESHES, make_job, predicted_and_rerun, record

FAST = (
    ("dp=4", "slow rank healthy"), ("dp=4", "no data wait"), ("fsdp=4", "network 2x"), ("fsdp=4", "matrix kernels 2x"),
    ("tp=2,dp=2", "network 10x"), ("tp=2,dp=2", "everything at once"), ("pp=2,dp=2", "late rank healthy"),
    ("pp=2,vpp=2,dp=2", "matrix kernels 1.2x"), ("fsdp=2,ep=2,dp=2", "throttled rank healthy"),
    ("dp=4", "no host gaps"),
)  # fmt: skip


@pytest.mark.parametrize("mesh", MESHES)
def test_a_replay_with_nothing_changed_gives_every_measured_time_to_the_ns(mesh):
    model = build_model(record(simulate(make_job(mesh, faults=(parse_fault("slow-rank:1:1.3x"),)))))
    played = model.play([model.own])
    assert (played.points[2 * np.arange(len(model.first)), 0] == model.tasks.start[model.first]).all()
    assert (played.points[2 * np.arange(len(model.first)) + 1, 0] == model.tasks.end[model.last]).all()
    for bounds, one in zip(model.window_times(played, 0, model.own), model.tasks.records, strict=True):
        assert (np.diff(bounds) - np.diff(one.edges)).tolist() == pytest.approx([0] * len(one.window_step), abs=2_000)


@pytest.mark.parametrize("mesh", MESHES)
def test_the_graph_without_measured_lags_still_gives_the_step_time(mesh):
    model = build_model(record(simulate(make_job(mesh))))
    assert step_time(model, model.play([model.usual]), 0, model.usual) == pytest.approx(
        measured_step_time(model), rel=0.01
    )


@pytest.mark.parametrize(("mesh", "case"), FAST)
def test_a_prediction_is_what_the_simulator_gives_with_the_change_made(mesh, case):
    predicted, rerun = predicted_and_rerun(make_job(mesh), case)
    assert predicted == pytest.approx(rerun, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4, 11])
@pytest.mark.parametrize("mesh", MESHES)
def test_all_predictions_are_what_the_simulator_gives(mesh, seed):
    errors = {}
    for case in CASES:
        predicted, rerun = predicted_and_rerun(make_job(mesh, seed=seed, steps=4), case)
        errors[case] = abs(predicted / rerun - 1)
    assert {case: error for case, error in errors.items() if error > 0.03} == {}


def test_runs_fold_most_of_the_events_away():
    model = build_model(record(simulate(make_job("dp=4"))))
    assert len(model.first) < len(model.tasks.start) / 3


def test_the_critical_path_touches_itself_from_the_first_window_to_the_last():
    examined = record(simulate(make_job("tp=2,dp=2", faults=(parse_fault("slow-rank:1:1.5x"),))))
    found = play(examined)
    start, length = found.path["start_ns"].to_numpy(), found.path["dur_ns"].to_numpy()
    assert (start[1:] == (start + length)[:-1]).all()
    model = build_model(examined)
    bounds = model.window_times(model.play([model.own]), 0, model.own)
    assert length.sum() == max(b[-1] for b in bounds) - min(b[0] for b in bounds)
    work = found.path.filter(pc.equal(found.path["kind"], "compute"))
    ranks, counts = np.unique(work["rank"].to_numpy(), return_counts=True)
    assert ranks[np.argmax(counts)] == 1


def test_the_table_ranks_the_injected_fault_first():
    found = play(record(simulate(make_job("dp=4", faults=(parse_fault("slow-rank:2:1.5x"),)))))
    known = {one.name: one.gain for one in found.predictions if one.gain is not None}
    assert known["rank 2 like its peers"] == pytest.approx(known["all ranks like their peers"], abs=0.02)
    assert known["rank 2 like its peers"] > known["network 2x faster"]
    assert found.replay_error == pytest.approx(0, abs=1e-4)
    assert abs(found.structure_error) < 0.01


def test_perfect_overlap_is_never_slower_and_never_faster_than_the_compute():
    examined = record(simulate(make_job("fsdp=4")))
    model, about = build_model(examined), about_ranks(examined)
    lags = parse_change("overlap").apply(model, model.own, about)
    alone = parse_change("network", "inf").apply(model, lags, about)
    times = [step_time(model, model.play([one]), 0, one) for one in (model.own, lags, alone)]
    assert times[0] >= times[1] >= times[2]


def test_balanced_stages_share_the_same_compute_equally():
    slow = tuple(parse_fault(f"slow-rank:{rank}:1.4x") for rank in (2, 3))  # the second stage of two
    examined = record(simulate(make_job("pp=2,dp=2", faults=slow)))
    model, about = build_model(examined), about_ranks(examined)
    lags = parse_change("balance").apply(model, model.own, about)
    inside = (model.tasks.kind == COMPUTE) & (model.tasks.step >= 0)
    before, after = (np.bincount(model.tasks.lane[inside], one.task[inside]) for one in (model.own, lags))
    stages = after.reshape(2, 2).sum(axis=1)
    assert before[2:].sum() > 1.3 * before[:2].sum()
    assert stages[0] == pytest.approx(stages[1], rel=0.001)
    assert after.sum() == pytest.approx(before.sum(), rel=0.001)
    assert step_time(model, model.play([lags]), 0, lags) < 0.95 * measured_step_time(model)


def test_what_a_trace_cannot_tell_is_said():
    examined = record(simulate(make_job("pp=4")))
    model, about = build_model(examined), about_ranks(examined)
    with pytest.raises(NotTold, match="no traced peer"):
        parse_change("healthy", "1").apply(model, model.own, about)
    with pytest.raises(NotTold, match="no conv kernels"):
        parse_change("family", "conv=2x").apply(model, model.own, about)
    with pytest.raises(UsageError, match="no trace of rank 9"):
        parse_change("healthy", "9").apply(model, model.own, about)
    names = {one.name: one.note for one in play(examined).predictions if one.step_time_ns is None}
    assert "no traced peer" in (names["all ranks like their peers"] or "")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("network", "fast"),
        ("network", "0x"),
        ("family", "gemm"),
        ("family", "nope=2x"),
        ("healthy", "x"),
        ("magic", ""),
    ],
)
def test_a_change_that_cannot_be_read_says_how_to_write_it(kind, text):
    with pytest.raises(UsageError):
        parse_change(kind, text)


def test_changes_name_themselves():
    assert parse_change("healthy", "0,4-6").text == "rank 0, 4, 5, 6 like their peers"
    assert parse_change("network", "inf").text == "network infinitely fast"
    assert parse_change("family", "gemm=1.2x").text == "gemm kernels 1.2x faster"
