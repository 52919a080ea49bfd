from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from naive import Painted

from perfkit.simulate import Job, Mesh, Simulation, parse_fault, sample_job, simulate
from perfkit.simulate.job import EPOCH_NS

PARTS = ("compute_ns", "exposed_comm_ns", "exposed_memcpy_ns", "idle_ns")


def tiny(mesh: Mesh, *faults: str, **more: object) -> Simulation:
    """A job of about a millisecond per step, so that every ns can be painted."""
    values = {
        "layers": mesh.pp * mesh.vpp, "hidden": 256, "ffn": 512, "vocab": 1024, "seq_len": 256, "steps": 2,
        "micro_batches": mesh.pp, "data_ns": 30_000, "seed": 7, **more,
    }  # fmt: skip
    return simulate(Job(mesh=mesh, faults=tuple(parse_fault(text) for text in faults), **values))


CASES = {
    "one rank": tiny(Mesh()),
    "ddp": tiny(Mesh(dp=2), "data-stall:1:200us", bucket_bytes=2**18),
    "fsdp": tiny(Mesh(fsdp=2), "late-rank:0:150us"),
    "tp": tiny(Mesh(tp=2), "sync-point:1"),
    "hybrid": tiny(Mesh(dp=2, fsdp=2), "allocator-churn:2:100us@1"),
    "experts": tiny(Mesh(dp=2, ep=2), "stream-stall:0:70us", host_permille=100),
    "pipeline": tiny(Mesh(pp=2), "lost-launches:all", log_every=0),
    "interleaved": tiny(Mesh(pp=2, vpp=2), "recompute@1"),
    "host bound": tiny(Mesh(dp=2), "slow-host:0:3x", checkpoint_every=1, checkpoint_ns=100_000),
    "device bound": tiny(Mesh(dp=2), host_permille=50, log_every=0, queue_depth=4),
}


@pytest.mark.parametrize("name", CASES)
def test_the_truth_is_what_painting_every_nanosecond_gives(name: str) -> None:
    sim = CASES[name]
    for answer in sim.truth()["ranks"]:
        painted = Painted(sim.kineto(answer["rank"]))
        windows = painted.windows()
        assert [(s["step"], s["start_ns"] - EPOCH_NS) for s in answer["steps"]] == [w[:2] for w in windows]
        for step, (number, start, end) in zip(answer["steps"], windows, strict=True):
            wanted = painted.partition(start, end)
            assert {key: step[key] for key in wanted} == wanted
            assert step["spill_ns"] == (painted.spill(number, end) if number != windows[-1][0] else 0)
            idle: Counter[tuple[int, str, str | None]] = Counter()
            for row in answer["idle"]:
                if row["window_step"] == number:
                    idle[row["step"], row["cause"], row["culprit"]] += row["idle_ns"]
            assert idle == painted.idle(start, end, number)


def test_the_cases_together_meet_every_cause_and_culprit() -> None:
    met = {(row["cause"], row["culprit"]) for sim in CASES.values() for r in sim.truth()["ranks"] for row in r["idle"]}
    assert {cause for cause, _ in met} == {"host_late", "launch", "dependency", "unattributed"}
    assert {"data_loader", "checkpoint", "sync", "allocator", "python", "framework", "unattributed"} <= {
        culprit for cause, culprit in met if cause == "host_late"
    }


@pytest.mark.parametrize("seed", range(12))
def test_parts_add_up_to_the_window_and_causes_to_the_idle_time(seed: int) -> None:
    for rank in simulate(sample_job(seed)).truth()["ranks"]:
        for step in [rank["carry_in"], *rank["steps"]]:
            assert step["window_ns"] == sum(step[part] for part in PARTS)
            assert step["exposed_comm_ns"] == step["exposed_wait_ns"] + step["exposed_transfer_ns"]
            assert step["comm_ns"] == step["exposed_comm_ns"] + step["overlap_ns"]
            idle = sum(row["idle_ns"] for row in rank["idle"] if row["window_step"] == step["step"])
            assert idle == step["idle_ns"]
        edges = [step["start_ns"] for step in rank["steps"]]
        lengths = [step["window_ns"] for step in rank["steps"]]
        assert edges[1:] == [e + n for e, n in zip(edges, lengths, strict=True)][:-1]


@pytest.mark.parametrize("name", ["ddp", "fsdp", "hybrid", "experts", "pipeline", "interleaved"])
def test_waits_are_those_of_whoever_came_last(name: str) -> None:
    sim = CASES[name]
    # without clock errors, start times of different ranks compare directly
    sim = simulate(replace(sim.job, clock_offset_ns=0, clock_drift_ppb=0))
    rows = sim.collectives().to_pylist()
    meetings: dict[tuple[object, ...], list[dict[str, int]]] = {}
    for row in rows:
        op = "message" if row["op"] in ("send", "recv") else row["op"]
        key = (row["group_name"], op, row["src_rank"], row["dst_rank"], row["seq"], row["bytes"])
        meetings.setdefault(key, []).append(row)
    for members in meetings.values():
        assert len(members) > 1
        latest = max(row["start_ns"] for row in members)
        for row in members:
            assert row["wait_ns"] == latest - row["start_ns"]
            assert row["wait_ns"] + row["transfer_ns"] == row["dur_ns"]
            last = next(other for other in members if other["rank"] == row["last_rank"])
            assert last["wait_ns"] == 0
        assert np.ptp([row["start_ns"] + row["dur_ns"] for row in members]) < 1_500


def test_a_bubble_is_time_without_compute_while_a_receive_runs() -> None:
    sim = CASES["pipeline"]
    for rank in sim.truth()["ranks"]:
        painted = Painted(sim.kineto(rank["rank"]))
        receiving = np.zeros(painted.high - painted.low, bool)
        for event in painted.work:
            if event["args"].get("Collective name") == "recv":
                receiving[event["start"] - painted.low : event["end"] - painted.low] = True
        for step, (_, start, end) in zip(rank["steps"], painted.windows(), strict=True):
            at = slice(start - painted.low, end - painted.low)
            assert step["bubble_ns"] == int((receiving & ~painted.device[0])[at].sum()) > 0


def test_model_flops_are_those_of_the_shapes_in_the_trace() -> None:
    job = sample_job(3)
    sim = simulate(replace(job, faults=(), steps=1))
    truth = sim.truth()
    products = 0
    for rank in sim.ranks:
        for dims in sim.tables(rank)["ops"]["input_dims"].to_pylist():
            shapes = [] if dims is None else json.loads(dims)
            if len(shapes) == 2 and all(len(shape) == 2 for shape in shapes):
                (m, k), (_, n) = shapes
                products += 2 * m * k * n
    heads = job.hidden // job.head_dim // job.mesh.tp
    per_layer = 4 * heads * job.seq_len**2 * job.head_dim * job.micro_batch // 2
    per_layer += 4 * heads * job.seq_len**2 * job.head_dim * job.micro_batch * 5 // 2 // 2
    attention = per_layer * job.layers * job.micro_batches * job.mesh.stage_size
    assert truth["mfu"]["model_flops_per_step"] == products + attention
    assert truth["mfu"]["value"] == truth["mfu"]["hfu"] < 1


def test_recompute_counts_for_hfu_and_not_for_mfu() -> None:
    plain, again = (tiny(Mesh(dp=2), *faults).truth()["mfu"] for faults in ((), ("recompute",)))
    assert plain["model_flops_per_step"] == again["model_flops_per_step"]
    assert again["hfu"] > again["value"]
    assert plain["hfu"] == plain["value"]


def test_the_bubble_is_told_by_stage_and_beside_that_of_a_healthy_job() -> None:
    quick = {"host_permille": 50, "log_every": 0}
    healthy, faulty = (
        tiny(Mesh(pp=2, dp=2), *faults, **quick).truth()["bubble"] for faults in ((), ("slow-rank:3:2x",))
    )
    for bubble in (healthy, faulty):
        assert bubble["bubble_ns"] == sum(stage["bubble_ns"] for stage in bubble["stages"])
        assert bubble["without_faults_ns"] == healthy["bubble_ns"]
    assert faulty["stages"][0]["bubble_ns"] > faulty["stages"][0]["without_faults_ns"]
