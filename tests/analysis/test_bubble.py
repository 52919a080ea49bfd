"""Bubbles: schedules against their formulas, the split against jobs with and without a fault, and real pipelines."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_traces import MICRO_BATCHES, read_pipeline
from sim_tables import SimulatedView, simulated

from perfkit.analysis.axes import mesh_text
from perfkit.analysis.bubble import PARTS, Bubbles, bubbles, split_bubble, waits_for_receive
from perfkit.analysis.job import view_job
from perfkit.analysis.pipeline_work import Messages, Work
from perfkit.analysis.schedules import Shape, messages, passes, recognise, replay
from perfkit.analysis.timeline import ints
from perfkit.analysis.waterfall import WINDOW_IDLE
from perfkit.simulate import Mesh, parse_fault
from perfkit.simulate.schedule import order

LARGE = {"hidden": 2048, "ffn": 8192, "head_dim": 128, "seq_len": 2048, "steps": 3}
"""Passes of milliseconds, so that the host is not what decides."""
PIPELINES = (Mesh(pp=2), Mesh(pp=2, vpp=2), Mesh(pp=3), Mesh(pp=4, dp=2), Mesh(pp=4, vpp=2), Mesh(pp=2, tp=2))


def find(view: SimulatedView) -> Bubbles:
    return bubbles(view, view.detail("attribution"), view.detail("window_idle"), view.detail("compute"))


shapes = st.builds(Shape, st.integers(2, 6), st.integers(1, 4), st.integers(1, 3)).map(
    lambda s: s._replace(micro_batches=s.micro_batches * s.stages)
)


# ------------------------------------------------------------------ schedules


@settings(deadline=None, max_examples=40)
@given(shapes, st.integers(1, 10_000), st.integers(1, 10_000))
def test_equal_stages_wait_exactly_what_the_formula_says(shape, forward, backward):
    name = "interleaved" if shape.chunks > 1 else "1f1b"
    times = (np.full((shape.stages, 1), t) for t in (forward, backward))
    waits = replay(name, shape, *times)
    total = waits.first + waits.inner + waits.tail
    assert (total == (shape.stages - 1) * (forward + backward)).all()
    work = shape.micro_batches * shape.chunks * (forward + backward)
    assert total[0, 0] / (total[0, 0] + work) == pytest.approx(shape.ideal_ratio)


@settings(deadline=None, max_examples=40)
@given(shapes, st.data())
def test_a_stage_is_working_waiting_or_done_at_every_moment(shape, data):
    name = "interleaved" if shape.chunks > 1 else data.draw(st.sampled_from(("1f1b", "gpipe")))
    times = st.lists(st.integers(0, 1000), min_size=shape.stages, max_size=shape.stages)
    forward, backward = (np.array(data.draw(times))[:, None] for _ in "FB")
    waits = replay(name, shape, forward, backward)
    worked = shape.micro_batches * shape.chunks * (forward + backward)
    assert len(set((waits.first + waits.inner + waits.tail + worked)[:, 0].tolist())) == 1
    assert min(waits.first.min(), waits.inner.min(), waits.tail.min()) >= 0


@settings(deadline=None, max_examples=40)
@given(shapes)
def test_passes_are_those_that_the_simulator_issues(shape):
    name = "interleaved" if shape.chunks > 1 else "1f1b"
    for stage in range(shape.stages):
        wanted = order(stage, shape.stages, shape.micro_batches, shape.chunks)
        assert [tuple(one) for one in passes(name, stage, shape)] == [tuple(one) for one in wanted]


@settings(deadline=None, max_examples=40)
@given(shapes.filter(lambda s: s.stages > 2), st.sampled_from(("1f1b", "gpipe")))
def test_three_stages_and_more_give_their_schedule_away_by_their_messages(shape, plain):
    name = "interleaved" if shape.chunks > 1 else plain
    texts = [messages(name, stage, shape) for stage in range(shape.stages)]
    found, size = recognise(texts, shape.stages)
    assert size == shape
    assert [messages(found, stage, size) for stage in range(shape.stages)] == texts


def test_two_stages_with_two_chunks_look_like_more_micro_batches_until_the_passes_are_timed():
    chunked, plain = Shape(2, 2, 2), Shape(2, 6, 1)
    texts = [messages("interleaved", stage, chunked) for stage in range(2)]
    assert texts == [messages("1f1b", stage, plain) for stage in range(2)]
    found = find(SimulatedView(simulated(Mesh(pp=2, vpp=2), micro_batches=2, **LARGE)))
    assert (found.schedule, found.shape) == ("interleaved", chunked)
    found = find(SimulatedView(simulated(Mesh(pp=2), micro_batches=6, **LARGE)))
    assert (found.schedule, found.shape) == ("1f1b", plain)


def test_messages_that_fit_no_schedule_have_no_shape():
    assert recognise(["SRS", "RRS"], 2) == (None, None)


def test_counts_give_the_shape_of_an_unknown_order():
    # all sends first: nobody's order, but four micro-batches
    assert recognise(["SSSSRRRR", "RRRRRRRRSSSSSSSS", "RRRRSSSS"], 3) == (None, Shape(3, 4, 1))


# ------------------------------------------------------------------ simulated jobs


@pytest.mark.parametrize("mesh", PIPELINES, ids=str)
def test_the_schedule_is_recognised_and_the_parts_sum_to_the_measured_bubble(mesh):
    view = SimulatedView(simulated(mesh))
    found = find(view)
    assert found.schedule == ("interleaved" if mesh.vpp > 1 else "1f1b")
    assert found.shape == Shape(mesh.pp, view.sim.job.micro_batches, mesh.vpp)
    assert found.notes == ()
    parts = sum(ints(found.ranks[name]) for name in PARTS)
    assert (parts == ints(found.ranks["bubble_ns"])).all()
    assert min(ints(found.ranks[name]).min() for name in PARTS) >= 0
    truth = sum(step["bubble_ns"] for steps in view.truth.values() for step in steps)
    assert ints(found.ranks["device_ns"]).sum() == truth
    assert ints(found.stages["bubble_ns"]).sum() == ints(found.ranks["bubble_ns"]).sum()


def test_a_balanced_pipeline_has_mostly_the_bubble_of_its_schedule():
    found = find(SimulatedView(simulated(Mesh(pp=4), vocab=512, layers=8, **LARGE)))
    sums = {name: pc.sum(found.ranks[name]).as_py() for name in ("bubble_ns", *PARTS)}
    assert sums["ideal_ns"] > 0.85 * sums["bubble_ns"]
    assert sums["straggler_ns"] < 0.03 * sums["bubble_ns"]


def test_a_heavy_last_stage_is_stage_imbalance():
    found = find(SimulatedView(simulated(Mesh(pp=4), vocab=64_000, **LARGE)))
    stages = found.stages.to_pylist()
    assert stages[3]["pass_ns"] > 1.5 * stages[0]["pass_ns"]
    for stage in stages[:3]:
        assert stage["imbalance_ns"] > stage["ideal_ns"] > stage["other_ns"]
    assert stages[3]["imbalance_ns"] == 0


@pytest.mark.parametrize("mesh", [Mesh(pp=4, dp=2), Mesh(pp=2, vpp=2, dp=2)], ids=str)
def test_a_slow_rank_costs_its_pipeline_what_a_healthy_job_does_not_have(mesh):
    healthy = simulated(mesh, **LARGE)
    slow = mesh.stage_size + 1  # second stage, second replica
    faulty = simulated(mesh, faults=(parse_fault(f"slow-rank:{slow}:1.5x"),), **LARGE)
    before, after = find(SimulatedView(healthy)), find(SimulatedView(faulty))
    lane = [r for r in healthy.ranks if r % mesh.stage_size == 1 and r != slow]
    others = [r for r in healthy.ranks if r % mesh.stage_size == 0]

    def total(found: Bubbles, ranks: list[int], column: str) -> int:
        chosen = found.ranks.filter(pc.is_in(found.ranks["rank"], pa.array(ranks, pa.int32())))
        return pc.sum(chosen[column]).as_py()

    extra = total(after, lane, "bubble_ns") - total(before, lane, "bubble_ns")
    assert total(after, lane, "straggler_ns") == pytest.approx(extra, rel=0.2)
    assert total(after, others, "straggler_ns") < 0.1 * extra
    assert total(after, lane, "ideal_ns") == pytest.approx(total(before, lane, "ideal_ns"), rel=0.02)


@pytest.mark.parametrize("mesh", [Mesh(pp=2, vpp=2), Mesh(pp=2, dp=2)], ids=str)
def test_through_the_jobs_own_view_the_bubble_is_the_truth_too(mesh):
    truth = SimulatedView(simulated(mesh))
    view = view_job(truth.parts, hosts=truth.hosts, devices=truth.devices, world_size=truth.world_size)
    found = bubbles(view, truth.detail("attribution"), truth.detail("window_idle"), truth.detail("compute"))
    wanted = [step["bubble_ns"] for steps in truth.truth.values() for step in steps]
    assert found.ranks["device_ns"].to_pylist() == wanted
    assert found.shape == Shape(mesh.pp, truth.sim.job.micro_batches, mesh.vpp)
    assert view.layout.text == mesh_text({"pp": mesh.pp, "dp": mesh.dp})


def test_a_job_without_a_pipeline_has_no_bubbles():
    found = find(SimulatedView(simulated(Mesh(dp=2))))
    assert len(found.ranks) == 0
    assert found.ratio is None
    assert found.sentence is None


def test_the_user_may_say_how_many_chunks_there_are():
    view = SimulatedView(simulated(Mesh(pp=2), micro_batches=6), mesh="pp=2,vpp=2")
    found = find(view)
    assert found.shape == Shape(2, 2, 2)


def test_a_stage_without_a_trace_leaves_the_causes_unsplit_and_says_so():
    view = SimulatedView(simulated(Mesh(pp=2, dp=2)))
    layout = view.layout
    at = {rank: dict(c) for rank, c in layout.coordinates.items() if c["pp"] == 0}
    view.__dict__["layout"] = replace(layout, coordinates=at)
    found = find(view)
    assert any("no messages of stage 1" in note for note in found.notes)
    assert found.ranks["ideal_ns"].null_count == len(found.ranks) > 0
    assert found.ideal_ratio is None


def test_the_sentence_and_evidence_hold_the_numbers():
    found = find(SimulatedView(simulated(Mesh(pp=2))))
    assert "1f1b with 2 stages, 4 micro-batches costs 20.0 %" in str(found.sentence)
    assert found.evidence["shape"] == {"stages": 2, "micro_batches": 4, "chunks": 1}
    assert found.evidence["bubble_ns"] == sum(found.evidence[name] for name in PARTS)


# ------------------------------------------------------------------ receives that block the host


def idle_rows(*rows: tuple[str, str, int, int]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {"rank": 0, "device": 0, "step": 10, "cause": c, "culprit": "python", "where": w, "idle_ns": ns, "gaps": n}
            for c, w, ns, n in rows
        ],
        schema=WINDOW_IDLE,
    )


def test_idle_time_in_a_blocking_receive_is_a_bubble_and_other_idle_time_is_not():
    rows = idle_rows(
        ("host_late", "c10d::recv_", 5_000_000, 2),
        ("host_late", "torch/distributed/distributed_c10d.py(2389): recv", 900_000, 1),
        ("host_late", "megatron/core/pipeline_parallel/p2p_communication.py(420): recv_forward", 900_000, 1),
        ("host_late", "c10d::recv_", 50_000, 10),  # posts only
        ("dependency", "c10d::recv_", 5_000_000, 1),
        ("host_late", "train.py(12): precv_buffer", 5_000_000, 1),
        ("host_late", "aten::mm", 5_000_000, 1),
    )
    assert waits_for_receive(rows).tolist() == [True, True, True, False, False, False, False]


def test_such_idle_time_is_handed_back_and_counted_once():
    view = SimulatedView(simulated(Mesh(pp=2)))
    idle = view.detail("window_idle")
    before = find(view)
    extra = idle_rows(("host_late", "gloo:recv", 700_000, 1))
    after = bubbles(view, view.detail("attribution"), pa.concat_tables([idle, extra]), view.detail("compute"))
    assert after.idle.equals(extra)
    assert pc.sum(after.ranks["idle_ns"]).as_py() == 700_000
    assert pc.sum(after.ranks["bubble_ns"]).as_py() == pc.sum(before.ranks["bubble_ns"]).as_py() + 700_000


# ------------------------------------------------------------------ real pipelines


@pytest.mark.parametrize("name", MICRO_BATCHES)
def test_the_replay_predicts_the_bubbles_of_real_jobs(traces: Path, name: str):
    """What the order of passes costs is what the stages waited."""
    table, _ = read_pipeline(traces, name)
    stage = ints(table["stage"])
    lanes = [
        np.stack([ints(table[f"{kind}_pass_ns"])[stage == one] for one in range(4)]) for kind in ("forward", "backward")
    ]
    measured = np.stack([ints(table["bubble_ns"])[stage == one] for one in range(4)])
    waits = replay("1f1b", Shape(4, MICRO_BATCHES[name]), *lanes)
    assert waits.inner.sum() == pytest.approx(measured.sum(), rel=0.03)
    assert waits.inner[:3].sum(axis=1) == pytest.approx(measured[:3].sum(axis=1), rel=0.05)


@pytest.mark.parametrize(
    ("name", "cause", "other"), [("ST", "imbalance_ns", "straggler_ns"), ("AR", "straggler_ns", "imbalance_ns")]
)
def test_real_jobs_have_the_cause_that_was_published(traces: Path, name: str, cause: str, other: str):
    table, layout = read_pipeline(traces, name)
    work = Work(ints(table["forward_ns"]), ints(table["backward_ns"]))
    found = split_bubble(layout, table, work, Messages([], [], [], [], []), "1f1b", Shape(4, MICRO_BATCHES[name]))
    sums = {part: int(ns.sum()) for part, ns in zip(PARTS, found, strict=True)}
    assert sum(sums.values()) == ints(table["bubble_ns"]).sum()
    assert sums[cause] > 4 * sums[other]
    assert sums[cause] > 0.3 * sum(sums.values())
    assert sums["other_ns"] < 0.02 * sum(sums.values())


def test_the_replay_predicts_a_measured_pipeline_of_eight_stages(traces: Path):
    """Starts and ends of the passes of 16 micro-batches on 8 devices, the last of 20 iterations."""
    folder = traces / "AMD-AGI__Primus" / "tools" / "visualization" / "pp_vis" / "pp_data_example"
    files = sorted((folder / "gpu8_layer64_gbs16" / "pp8").glob("pp_rank_*.json"))
    if len(files) != 8:
        pytest.skip("not among the real traces here")
    shape, measured, times = Shape(8, 16), [], []
    for stage, path in enumerate(files):
        step = json.loads(path.read_text())["20"]
        forward, backward = (
            list(zip(step[f"{kind}_start"], step[f"{kind}_end"], strict=True)) for kind in ("fwd", "bwd")
        )
        played = sorted([*((*one, "F") for one in forward), *((*one, "B") for one in backward)])
        assert [kind for *_, kind in played] == [one.kind for one in passes("1f1b", stage, shape)]
        measured.append(sum(max(0.0, after[0] - before[1]) for before, after in pairwise(played)))
        times.append([np.median([end - start for start, end in one]) for one in (forward, backward)])
    lanes = np.rint(np.array(times).T[:, :, None] * 1e6).astype(np.int64)
    waits = replay("1f1b", shape, *lanes)
    assert waits.inner[:7, 0] / 1e6 == pytest.approx(measured[:7], rel=0.08)
