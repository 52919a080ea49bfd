from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from perfkit.errors import UsageError
from perfkit.simulate import Fault, Job, Mesh, Simulation, parse_fault, simulate
from perfkit.simulate.faults import ALL, KINDS

MESH = Mesh(dp=4)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("slow-rank:5:1.3x", Fault(kind="slow-rank", target=5, permille=1300)),
        ("data-stall:3:80ms@1-2", Fault(kind="data-stall", target=3, time_ns=80_000_000, steps=(1, 2))),
        ("late-rank:0:1.5us@4", Fault(kind="late-rank", target=0, time_ns=1500, steps=(4, 4))),
        ("sync-point:all", Fault(kind="sync-point", target=ALL)),
        ("recompute", Fault(kind="recompute")),
        ("small-bucket:16x", Fault(kind="small-bucket", permille=16_000)),
    ],
)
def test_a_fault_is_read_and_written_back(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault
    assert parse_fault(str(fault)) == fault


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("slow", "unknown fault"),
        ("slow-rank:5", "wants rank and factor"),
        ("slow-rank:five:2x", "not a rank"),
        ("slow-rank:5:2", "not a factor"),
        ("data-stall:5:2x", "not a time"),
        ("recompute:1", "wants nothing"),
        ("recompute@x", "range of steps"),
    ],
)
def test_a_bad_fault_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse_fault(text)


def test_a_fault_on_a_rank_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="only 4"):
        Job(mesh=MESH, faults=(parse_fault("slow-rank:4:2x"),))


# ------------------------------------------------------------------ what faults change


def play(*faults: str, mesh: Mesh = MESH) -> Simulation:
    """A job with perfect clocks, so that durations compare to the ns."""
    job = Job(mesh=mesh, layers=2, hidden=512, ffn=2048, seq_len=512, steps=2, seed=3, clock_offset_ns=0,
              clock_drift_ppb=0, hardware=replace(Job().hardware, gpus_per_host=2), bucket_bytes=2**20,
              faults=tuple(parse_fault(text) for text in faults))  # fmt: skip
    return simulate(job, flows=False)


def rows(sim: Simulation, rank: int) -> pa.Table:
    events = sim.tables(rank)["events"]
    return events.set_column(events.column_names.index("name"), "name", events["name"].cast(pa.utf8()))


def durations(sim: Simulation, rank: int, kind: str) -> list[int]:
    """Durations of a rank's rows of a class, in order of launch; waiting is not in them."""
    events = rows(sim, rank)
    return events.filter(pc.equal(events["class"].cast(pa.utf8()), kind))["dur_ns"].to_pylist()


def transfers(sim: Simulation, group: str) -> list[int]:
    table = sim.collectives()
    return table.filter(pc.equal(table["group"], group)).sort_by("rank")["transfer_ns"].to_pylist()


HEALTHY = play()


def test_a_slow_rank_computes_slower_and_the_others_wait() -> None:
    sick = play("slow-rank:2:1.5x")
    for rank in range(4):
        before, after = (np.array(durations(sim, rank, "compute")[3:]) for sim in (HEALTHY, sick))
        assert (after == before * 1500 // 1000).all() if rank == 2 else (after == before).all()
        assert durations(sick, rank, "memcpy") == durations(HEALTHY, rank, "memcpy")
    assert transfers(sick, "dp") == transfers(HEALTHY, "dp")
    waits = {r["rank"]: sum(s["exposed_wait_ns"] for s in r["steps"]) for r in sick.truth()["ranks"]}
    assert min(waits, key=waits.__getitem__) == 2
    assert sick.truth()["culprits"] == [2]


def test_throttling_slows_only_kernels_that_follow_the_clock() -> None:
    sick = play("throttle:1:2x@1")
    events = rows(sick, 1)
    changed = np.array(durations(sick, 1, "compute")) != np.array(durations(HEALTHY, 1, "compute"))
    names = np.array(events.filter(pc.equal(events["class"].cast(pa.utf8()), "compute"))["name"].to_pylist())
    assert {name[:5] for name in names[changed]} == {"nvjet", "void "}
    assert all("flash" in name or "nvjet" in name for name in names[changed])
    assert not changed[: len(changed) // 2].any()
    assert durations(sick, 0, "compute") == durations(HEALTHY, 0, "compute")


def test_a_slow_host_slows_the_host_code_of_its_ranks() -> None:
    sick = play("slow-host:1:2x")
    for rank in range(4):
        before, after = (sum(durations(sim, rank, "runtime")[:20]) for sim in (HEALTHY, sick))
        assert (after > 1.9 * before) == (rank in (2, 3))
        assert durations(sick, rank, "compute") == durations(HEALTHY, rank, "compute")
    assert sick.truth()["culprit_hosts"] == [1]


def host_time(sim: Simulation, rank: int, name: str) -> list[int]:
    events = rows(sim, rank)
    return events.filter(pc.starts_with(events["name"], name))["dur_ns"].to_pylist()


def test_a_data_stall_is_time_in_the_loader_of_one_rank_and_step() -> None:
    sick = play("data-stall:3:5ms@1")
    for rank in range(4):
        before, after = (host_time(sim, rank, "enumerate(DataLoader)") for sim in (HEALTHY, sick))
        assert after[0] == before[0]
        assert (after[1] - before[1] > 4_500_000) if rank == 3 else after[1] == before[1]


def test_a_late_rank_runs_python_before_its_step() -> None:
    sick = play("late-rank:1:3ms")
    assert [len(host_time(sick, rank, "train.py(88)")) for rank in range(4)] == [0, 2, 0, 0]
    assert min(host_time(sick, 1, "train.py(88)")) > 2_800_000
    waits = {r["rank"]: sum(s["exposed_wait_ns"] for s in r["steps"]) for r in sick.truth()["ranks"]}
    assert min(waits, key=waits.__getitem__) == 1


def test_a_slow_link_slows_the_transfers_of_its_groups() -> None:
    mesh = Mesh(dp=2, tp=2)
    healthy, sick = play(mesh=mesh), play("slow-link:3:4x", mesh=mesh)
    for group, ranks in (("tp", {2, 3}), ("dp", {1, 3})):
        for name in (healthy, sick):
            assert transfers(name, group)
        before, after = (np.array(transfers(sim, group)).reshape(4, -1) for sim in (healthy, sick))
        for rank in range(4):
            assert (after[rank] > 2 * before[rank]).all() if rank in ranks else (after[rank] == before[rank]).all()
    assert durations(sick, 3, "compute") == durations(healthy, 3, "compute")


def test_a_sync_point_blocks_one_rank_after_each_layer() -> None:
    sick = play("sync-point:0")
    syncs = [len(host_time(sick, rank, "cudaStreamSynchronize")) for rank in range(4)]
    assert syncs == [2 * 2 + 2, 2, 2, 2]
    blamed = {row["culprit"]: row["idle_ns"] for row in sick.truth()["ranks"][0]["idle"] if row["culprit"] == "sync"}
    assert blamed["sync"] > 0


def test_recompute_runs_the_forward_kernels_of_each_layer_twice() -> None:
    mesh = Mesh(dp=4)
    sick = play("recompute@1", mesh=mesh)
    flash = [len(host_time(sim, 0, "void pytorch_flash::flash_fwd")) for sim in (HEALTHY, sick)]
    assert flash == [2 * 2, 2 * 2 + 2]


def test_small_buckets_make_more_and_smaller_reductions() -> None:
    sick = play("small-bucket:4x")
    before, after = (sim.collectives() for sim in (HEALTHY, sick))
    sums = [
        pc.sum(pc.multiply(t["bytes"], pc.equal(t["group"], "dp").cast(pa.int64()))).as_py() for t in (before, after)
    ]
    assert sums[0] == sums[1]
    assert len(after) > 3 * len(before)
    assert durations(sick, 0, "compute") == durations(HEALTHY, 0, "compute")


def test_allocator_churn_is_blamed_on_the_allocator_of_its_rank() -> None:
    sick = play("allocator-churn:2:1ms")
    for rank in range(4):
        assert len(host_time(sick, rank, "cudaMalloc")) == (4 if rank == 2 else 0)
        ns = sum(r["idle_ns"] for r in sick.truth()["ranks"][rank]["idle"] if r["culprit"] == "allocator")
        assert (ns > 2_000_000) == (rank == 2)


def test_a_stalled_stream_is_a_dependency_and_not_a_late_host() -> None:
    sick = play("stream-stall:1:400us")
    idle = [sum(r["idle_ns"] for r in one["idle"] if r["cause"] == "dependency") for one in sick.truth()["ranks"]]
    assert idle[1] > 2 * 2 * 300_000
    assert idle[0] == idle[2] == idle[3] == 0


def test_lost_launches_leave_kernels_whose_call_is_missing() -> None:
    sick = play("lost-launches:3")
    missing = [rank["launches_missing"] for rank in sick.truth()["ranks"]]
    assert missing[:3] == [3, 3, 3]
    assert missing[3] > 3
    events = rows(sick, 3)
    work = events.filter(
        pc.is_in(events["class"].cast(pa.utf8()), pa.array(["compute", "communication", "memcpy", "memset"]))
    )
    calls = events.filter(pc.equal(events["class"].cast(pa.utf8()), "runtime"))
    assert len(set(work["correlation"].to_pylist()) - set(calls["correlation"].to_pylist())) == missing[3]


def test_a_hot_expert_receives_more_tokens_and_computes_longer_and_the_others_less() -> None:
    mesh = Mesh(dp=4, ep=4)
    well, sick = play(mesh=mesh), play("hot-expert:2:2.5x", mesh=mesh)
    assert sick.job.expert_load(0, np.arange(4)).tolist() == [500, 500, 2500, 500]
    for rank, load in enumerate((0.5, 0.5, 2.5, 0.5)):
        before, after = (
            sum(
                rows(s, rank)
                .filter(pc.match_substring(rows(s, rank)["name"].cast(pa.utf8()), "nvjet"))["dur_ns"]
                .to_pylist()
            )
            for s in (well, sick)
        )
        assert (after > before) == (load > 1)
        args = sick.tables(rank)["collective_args"].to_pylist()
        routed = [a for a in args if a["collective"] == "all_to_allv"]
        share = sick.job.tokens * sick.job.hidden // 4
        forward = routed[0]
        assert forward["out_nelems"] == 4 * share * load
        assert json.loads(forward["in_split"]) == [share / 2, share / 2, share * 2.5, share / 2]
        assert sum(json.loads(forward["out_split"])) == forward["out_nelems"]
        assert '"Out split size": "' + forward["out_split"] + '"' in sick.kineto(rank)


def test_a_hot_expert_needs_experts() -> None:
    with pytest.raises(UsageError, match="needs ep"):
        play("hot-expert:1:2x")


def test_every_kind_of_fault_is_tested_here() -> None:
    tested = {
        "slow-rank", "throttle", "slow-host", "data-stall", "late-rank", "slow-link", "sync-point", "recompute",
        "small-bucket", "allocator-churn", "stream-stall", "lost-launches", "hot-expert",
    }  # fmt: skip
    assert tested == set(KINDS)
