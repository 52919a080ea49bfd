"""Own work against peers of the same role, on simulated jobs with one thing wrong."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pipeline_traces import read_pipeline
from sim_tables import SimulatedView, simulated

from perfkit.analysis.stragglers import FLAG_BELOW, compare_ranks, median_of_others, own_work, stragglers
from perfkit.analysis.timeline import ints
from perfkit.analysis.waterfall import WINDOW_IDLE
from perfkit.simulate import Mesh, parse_fault

LARGE = {"hidden": 1024, "ffn": 4096, "head_dim": 128, "seq_len": 2048, "steps": 4}


def score(mesh: Mesh, *faults: str, **changes: object) -> dict[int, dict[str, object]]:
    view = SimulatedView(simulated(mesh, faults=tuple(map(parse_fault, faults)), **{**LARGE, **changes}))
    table = stragglers(view, view.detail("attribution"), view.detail("idle"))
    return {row["rank"]: row for row in table.to_pylist()}


@given(
    hnp.arrays(
        np.float64,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=7),
        elements=st.one_of(st.integers(0, 50).map(float), st.just(float("nan"))),
    )
)
def test_the_median_of_the_others_is_that_of_a_loop(values):
    found = median_of_others(values)
    for i, j in np.ndindex(values.shape):
        others = np.delete(values[:, j], i)
        others = others[~np.isnan(others)]
        if np.isnan(values[i, j]) or not len(others):
            assert np.isnan(found[i, j])
        else:
            assert found[i, j] == np.median(others)


def test_nobody_is_flagged_in_a_healthy_job():
    for row in score(Mesh(dp=4)).values():
        assert not row["flagged"]
        assert row["score"] > 0.97


@pytest.mark.parametrize(
    ("mesh", "fault", "cause"),
    [
        (Mesh(dp=4), "slow-rank:2:1.3x", "compute"), (Mesh(fsdp=4), "slow-rank:2:1.3x", "compute"),
        (Mesh(tp=4), "slow-rank:2:1.3x", "compute"), (Mesh(pp=2, dp=2), "slow-rank:2:1.3x", "compute"),
        (Mesh(dp=4), "data-stall:2:20ms", "host: data_loader"), (Mesh(dp=4), "late-rank:2:5ms", "host: python"),
    ],
)  # fmt: skip
def test_the_rank_with_the_fault_is_flagged_first_and_alone_with_its_cause(mesh, fault, cause):
    rows = score(mesh, fault)
    assert [rank for rank, row in rows.items() if row["flagged"]] == [2]
    assert next(iter(rows)) == 2
    assert rows[2]["cause"] == cause
    assert rows[2]["score"] < FLAG_BELOW
    assert "rank 2 needs" in str(rows[2]["sentence"])


def test_the_score_is_how_much_of_the_time_the_peers_need():
    row = score(Mesh(dp=4), "slow-rank:2:1.5x")[2]
    assert row["score"] == pytest.approx(1 / 1.5, abs=0.05)
    assert row["excess_ns"] == row["own_ns"] - row["peers_ns"]


def test_a_fault_of_one_step_does_not_persist():
    row = score(Mesh(dp=4), "slow-rank:2:3x@1-1")[2]
    assert 0.25 <= row["persistence"] <= 0.5  # its work may spill into the next window
    assert row["score"] < FLAG_BELOW
    assert not row["flagged"]


def test_a_heavy_pipeline_stage_is_no_straggler():
    rows = score(Mesh(pp=2, dp=2), vocab=64_000)
    assert {row["role"] for row in rows.values()} == {"pp0", "pp1"}
    assert min(row["score"] for row in rows.values()) > 0.97
    assert ints(pa.table({"o": [rows[2]["own_ns"]]})["o"])[0] > 1.3 * rows[0]["own_ns"]


def test_a_rank_without_peers_has_no_score():
    rows = score(Mesh(pp=2))
    assert [row["score"] for row in rows.values()] == [None, None]
    assert not any(row["flagged"] for row in rows.values())


def test_waiting_is_not_own_work():
    """A slow rank makes its peers wait in every all-reduce; their own work does not change."""
    healthy, faulty = score(Mesh(tp=4)), score(Mesh(tp=4), "slow-rank:2:2x")
    assert faulty[0]["own_ns"] == pytest.approx(healthy[0]["own_ns"], rel=0.1)


def test_ranks_with_different_steps_are_compared_in_those_that_they_share():
    view = SimulatedView(simulated(Mesh(dp=4), **LARGE))
    steps = view.detail("attribution")
    rows = ints(steps["rank"])
    keep = (rows != 3) | (ints(steps["step"]) >= 12)
    table = stragglers(view, steps.filter(pa.array(keep)), view.detail("idle"))
    found = {row["rank"]: row for row in table.to_pylist()}
    assert found[3]["steps"] == 2
    assert found[0]["steps"] == 4


def test_without_a_device_own_work_is_the_window_less_exposed_communication():
    steps = pa.table(
        {
            "rank": pa.array([0, 1], pa.int32()), "device": pa.array([None, None], pa.int32()), "step": [1, 1],
            "window_ns": [100, 100], "compute_ns": [30, 30], "exposed_comm_ns": [20, 60],
        }
    )  # fmt: skip
    idle = pa.table(
        {
            "rank": pa.array([0], pa.int32()), "device": pa.array([None], pa.int32()), "step": [1],
            "cause": ["host_late"], "culprit": ["python"], "where": ["x"], "idle_ns": [50], "gaps": [1],
        }
    )  # fmt: skip
    assert {name: part.tolist() for name, part in own_work(steps, idle).items()} == {"compute": [80, 40]}


def steps_of(*compute: list[int], device: int | None = 0) -> pa.Table:
    """One row per rank and step: its compute in a window of 1,000."""
    rows = [(rank, step, ns) for rank, work in enumerate(compute) for step, ns in enumerate(work)]
    rank, step, ns = zip(*rows, strict=True)
    return pa.table(
        {
            "rank": pa.array(rank, pa.int32()), "device": pa.array([device] * len(rows), pa.int32()),
            "step": pa.array(step, pa.int64()), "window_ns": [1000] * len(rows), "compute_ns": list(ns),
            "exposed_comm_ns": [0] * len(rows),
        }
    )  # fmt: skip


def test_of_two_ranks_the_one_that_needs_a_fifth_more_is_flagged():
    rows = compare_ranks(steps_of([100] * 4, [120] * 4), WINDOW_IDLE.empty_table(), {0: "all", 1: "all"}).to_pylist()
    assert [(row["rank"], row["flagged"]) for row in rows] == [(1, True), (0, False)]
    assert rows[0]["score"] == pytest.approx(100 / 120), "against the other, not against the middle of both"


def test_some_steps_are_compared_by_themselves_and_load_keeps_its_name():
    steps = steps_of([100, 100, 100], [100, 150, 150], [100, 100, 100])
    late = steps.filter(pa.array(ints(steps["step"]) > 0))
    roles = dict.fromkeys(range(3), "all")
    found = compare_ranks(late, WINDOW_IDLE.empty_table(), roles, {1: (70, None)}, {1: "compute: tokens"}).to_pylist()
    assert (found[0]["rank"], found[0]["steps"], found[0]["score"]) == (1, 2, pytest.approx(200 / 300))
    assert (found[0]["cause"], found[0]["wait_caused_ns"]) == ("compute: tokens", 70)


def test_what_the_others_paid_stands_beside_the_score():
    view = SimulatedView(simulated(Mesh(dp=2), **LARGE))
    blame = pa.table({"rank": [1], "wait_caused_ns": [700], "recoverable_ns": [300]})
    table = stragglers(view, view.detail("attribution"), view.detail("idle"), blame)
    found = {row["rank"]: (row["wait_caused_ns"], row["recoverable_ns"]) for row in table.to_pylist()}
    assert found == {0: (None, None), 1: (700, 300)}


@pytest.mark.parametrize(("name", "slow"), [("AR", [0]), ("ST", [])])
def test_real_jobs_have_the_slow_worker_that_was_published_or_none(traces: Path, name: str, slow: list[int]):
    table, layout = read_pipeline(traces, name)
    view = SimpleNamespace(layout=layout, ranks=sorted(layout.role_of))
    found = stragglers(view, table, WINDOW_IDLE.empty_table()).to_pylist()
    assert [row["rank"] for row in found if row["flagged"]] == slow
