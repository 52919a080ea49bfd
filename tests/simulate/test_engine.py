from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from perfkit.simulate import Job, Mesh, Simulation, sample_job, simulate

SEEDS = range(0, 60, 5)


@pytest.fixture(scope="module", params=SEEDS)
def sim(request: pytest.FixtureRequest) -> Simulation:
    return simulate(sample_job(request.param))


def of_class(events: pa.Table, *classes: str) -> pa.Table:
    return events.filter(pc.is_in(events["class"].cast(pa.utf8()), pa.array(classes)))


WORK = ("compute", "communication", "memcpy", "memset")


def test_work_on_a_stream_never_overlaps(sim: Simulation) -> None:
    for rank in sim.ranks:
        work = of_class(sim.tables(rank)["events"], *WORK).sort_by([("stream", "ascending"), ("start_ns", "ascending")])
        stream, start, duration = (work[name].to_numpy() for name in ("stream", "start_ns", "dur_ns"))
        same = stream[1:] == stream[:-1]
        assert (start[1:] >= start[:-1] + duration[:-1])[same].all()
        assert (duration > 0).all()


def test_work_of_different_streams_never_starts_together(sim: Simulation) -> None:
    for rank in sim.ranks:
        start = of_class(sim.tables(rank)["events"], *WORK)["start_ns"].to_numpy()
        assert len(np.unique(start)) == len(start)


def test_a_launch_precedes_its_work(sim: Simulation) -> None:
    for rank in sim.ranks:
        events = sim.tables(rank)["events"]
        work, calls = of_class(events, *WORK), of_class(events, "runtime")
        called = dict(zip(calls["correlation"].to_pylist(), calls["start_ns"].to_pylist(), strict=True))
        launched = [
            (called[c], s)
            for c, s in zip(work["correlation"].to_pylist(), work["start_ns"].to_pylist(), strict=True)
            if c in called
        ]
        assert len(launched) > 0.8 * len(work)
        assert all(call < start for call, start in launched)


def test_events_of_a_host_thread_nest(sim: Simulation) -> None:
    events = of_class(sim.tables(0)["events"], "op", "runtime", "range", "python")
    for tid in set(events["tid"].to_pylist()):
        mine = events.filter(pc.equal(events["tid"], tid)).sort_by(
            [("start_ns", "ascending"), ("dur_ns", "descending")]
        )
        open_until: list[int] = []
        for start, duration in zip(mine["start_ns"].to_pylist(), mine["dur_ns"].to_pylist(), strict=True):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert duration > 0
            assert not open_until or start + duration <= open_until[-1]
            open_until.append(start + duration)


def test_a_blocking_call_returns_after_its_copy_has_ended(sim: Simulation) -> None:
    events = sim.tables(0)["events"]
    syncs = events.filter(pc.equal(events["name"].cast(pa.utf8()), "cudaStreamSynchronize"))
    copies = events.filter(pc.equal(events["name"].cast(pa.utf8()), "Memcpy DtoH (Device -> Pageable)"))
    assert len(syncs) == len(copies)
    ends = [np.array(t["start_ns"]) + np.array(t["dur_ns"]) for t in (syncs, copies)]
    assert ((ends[0] - ends[1]) >= 2_000).all()


def test_members_of_a_collective_agree_about_it(sim: Simulation) -> None:
    seen: dict[tuple[object, ...], list[tuple[int, dict[str, object]]]] = {}
    for rank in sim.ranks:
        for row in sim.tables(rank)["collective_args"].to_pylist():
            key = (row["group_name"], row["seq"], row["src_rank"], row["dst_rank"])
            seen.setdefault(key, []).append((rank, row))
    for (_, _, sender, receiver), members in seen.items():
        row = members[0][1]
        ranks = sorted(json.loads(str(row["group_ranks"]))) if sender is None else sorted([sender, receiver])
        # twice per rank: the op on the host and the kernel
        assert sorted(rank for rank, _ in members) == sorted(ranks * 2)
        for name in ("dtype", "in_nelems", "out_nelems", "group_size", "group_desc", "group_ranks"):
            assert len({one[name] for _, one in members}) == 1
        names = {one["collective"] for _, one in members}
        assert names == ({"send", "recv"} if sender is not None else {row["collective"]})


def test_the_same_seed_gives_the_same_job_and_another_seed_another() -> None:
    texts = [simulate(sample_job(9)).kineto(0) for _ in range(2)]
    assert texts[0] == texts[1]
    other = simulate(Job(mesh=Mesh(dp=2), seed=1)).kineto(1)
    assert other != simulate(Job(mesh=Mesh(dp=2), seed=2)).kineto(1)


def test_a_full_queue_holds_the_host_back() -> None:
    ends = {}
    for depth in (4, 1024):
        sim = simulate(Job(steps=1, log_every=0, queue_depth=depth, seed=5))
        events = sim.tables(0)["events"]
        calls, work = of_class(events, "runtime"), of_class(events, *WORK)
        ends[depth] = int(np.max(np.array(calls["start_ns"]) + np.array(calls["dur_ns"])))
        last = np.sort(np.array(work["start_ns"]))[-4]
        if depth == 4:
            assert ends[depth] >= last - 100_000
    assert ends[4] > ends[1024] + 1_000_000


def test_a_thousand_ranks_are_played_at_once() -> None:
    sim = simulate(Job(mesh=Mesh(dp=125, tp=8), layers=2, steps=1))
    assert [times.shape[1] for times in sim.times] == [1000]
    assert len(sim.tables(999)["events"]) > 400
