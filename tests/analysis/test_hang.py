from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.analysis.hang import _components, _ends, explain_hang
from perfkit.sources.flight_recorder import Call, Dump, Group, Progress, read_dumps

REAL = "NVIDIA__nvidia-resiliency-ext/tests/attribution/unit/fr_traces"


def dump(rank, progress, calls=(), groups=None):
    """A dump of a rank; progress is {group name: (enqueued, completed)}."""
    return Dump(rank, Path(f"_dump_{rank}"), groups or {}, {name: Progress(*p) for name, p in progress.items()}, calls)


def call(group, seq, op="all_reduce", *, peer=None, shape="[]", created_ns=0):
    return Call(group, seq, op, True, peer is not None, peer, created_ns, shape, ())


def job(progress_by_rank, calls_by_rank=None, **groups):
    members = {name: Group(name, name.upper(), tuple(ranks)) for name, ranks in groups.items()}
    return [
        dump(
            rank,
            progress,
            tuple((calls_by_rank or {}).get(rank, ())),
            {name: group for name, group in members.items() if rank in group.ranks},
        )
        for rank, progress in progress_by_rank.items()
    ]


def test_the_rank_that_never_came_is_named():
    hang = explain_hang(job({0: {"dp": (5, 4)}, 1: {"dp": (5, 4)}, 2: {"dp": (4, 4)}}, dp=[0, 1, 2]))
    assert [(s.rank, s.why, s.seq, s.waiting_ranks) for s in hang.suspects] == [(2, "absent", 5, 2)]
    assert hang.divergences[0].absent == (2,)


def test_the_rank_whose_device_stopped_is_named_although_its_host_went_on():
    hang = explain_hang(job({0: {"dp": (9, 7)}, 1: {"dp": (9, 3)}}, dp=[0, 1]))
    assert [(s.rank, s.why, s.seq) for s in hang.suspects] == [(1, "stuck", 4)]


def test_a_rank_that_is_late_because_it_waits_itself_is_innocent():
    #  dp: 0 waits for 1;  tp: 1 waits for 2, which waits for nobody
    hang = explain_hang(
        job({0: {"dp": (5, 4)}, 1: {"dp": (4, 4), "tp": (8, 7)}, 2: {"tp": (7, 7)}}, dp=[0, 1], tp=[1, 2])
    )
    assert [(s.rank, s.waiting_ranks) for s in hang.suspects] == [(2, 2)]


def test_two_faulty_ranks_are_both_named():
    progress = {rank: {"dp": (5, 4)} for rank in range(8)} | {3: {"dp": (4, 4)}, 6: {"dp": (4, 4)}}
    assert explain_hang(job(progress, dp=range(8))).suspect_ranks == [3, 6]


def test_a_rank_without_a_dump_is_suspected_when_others_wait_for_it():
    hang = explain_hang(job({0: {"dp": (5, 4)}, 1: {"dp": (5, 4)}}, dp=[0, 1, 2]))
    assert [(s.rank, s.why) for s in hang.suspects] == [(2, "no dump")]
    assert hang.ranks_missing == (2,)


def test_a_receive_without_a_send_points_at_the_sender():
    calls = {0: [call("pp", 1, "recv", peer=1)], 1: [call("pp", 1, "send", peer=0), call("pp", 1, "recv", peer=2)]}
    hang = explain_hang(job({0: {}, 1: {}, 2: {}}, calls, pp=[0, 1, 2]))
    assert [(s.rank, s.why) for s in hang.suspects] == [(2, "unanswered")]


def test_ranks_that_wait_for_each_other_are_named_together():
    #  0 entered a and not b, 1 entered b and not a: an order that differs between ranks
    hang = explain_hang(
        job({0: {"a": (2, 1), "b": (1, 1)}, 1: {"a": (1, 1), "b": (2, 1)}, 2: {"a": (2, 1)}}, a=[0, 1, 2], b=[0, 1])
    )
    assert sorted(hang.suspect_ranks) == [0, 1]


def test_a_rank_that_called_something_else_is_named():
    calls = {0: [call("dp", 5)], 1: [call("dp", 5)], 2: [call("dp", 5, "broadcast")]}
    hang = explain_hang(job({rank: {"dp": (5, 4)} for rank in range(3)}, calls, dp=[0, 1, 2]))
    assert [(s.rank, s.why) for s in hang.suspects] == [(2, "mismatch")]


def test_when_all_arrived_and_none_left_it_says_undecided():
    calls = {rank: [call("dp", 5, created_ns=rank)] for rank in range(2)}
    hang = explain_hang(job({rank: {"dp": (5, 4)} for rank in range(2)}, calls, dp=[0, 1]))
    assert not hang.decided
    assert [(s.rank, s.why) for s in hang.suspects] == [(0, "undecided"), (1, "undecided")]


def test_a_job_that_does_not_hang_has_no_suspects():
    assert explain_hang(job({rank: {"dp": (5, 5)} for rank in range(3)}, dp=[0, 1, 2])).suspects == ()


edges = st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30)


@given(edges)
def test_components_partition_the_ranks_and_group_exactly_those_that_reach_each_other(edges):
    after = {rank: {b for a, b in edges if a == rank} for rank in range(10)}
    reach = {rank: {rank} for rank in after}
    for _ in after:
        reach = {rank: found.union(*(after[other] for other in found)) for rank, found in reach.items()}
    components = _components(after)
    assert sorted(rank for component in components for rank in component) == list(range(10))
    for component in components:
        for rank in component:
            assert component == {other for other in reach[rank] if rank in reach[other]}


@given(edges)
def test_whoever_waits_has_somebody_to_blame(edges):
    edges = {(a, b) for a, b in edges if a != b}
    assert bool(_ends(edges)) == bool(edges)


@pytest.mark.parametrize(("name", "faulty"), [("gpu_error_1st", [12, 14]), ("lock_gil_1st", [9, 14])])
def test_the_injected_ranks_of_real_jobs_are_named(traces, name, faulty):
    assert explain_hang(read_dumps(traces / REAL / name).dumps).suspect_ranks == faulty


@pytest.mark.parametrize(("name", "faulty"), [("gpu_error_1st", [12, 14]), ("lock_gil_1st", [9, 14])])
@pytest.mark.parametrize("lost", [0, 5, 8])
def test_a_lost_dump_of_an_innocent_rank_does_not_hide_the_faulty_ones(traces, name, faulty, lost):
    dumps = [d for d in read_dumps(traces / REAL / name).dumps if d.rank != lost]
    assert set(faulty) <= set(explain_hang(dumps).suspect_ranks)


HANG_SCRIPT = """
import os, pickle, sys, time
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=3)
for _ in range(3):
    dist.all_reduce(torch.ones(4))
work = None if rank == 1 else dist.all_reduce(torch.ones(4), async_op=True)
for _ in range(600):  # what is complete is noted by another thread
    if pickle.loads(_dump_fr_trace())["pg_status"]["0"]["last_completed_collective"] >= 3:
        break
    time.sleep(0.1)
with open(sys.argv[2] + f"_{rank}", "wb") as file:
    file.write(_dump_fr_trace())
os.rename(file.name, sys.argv[3] + f"/_dump_{rank}")
for _ in range(1800):  # who leaves first breaks the connection, and the others fail instead of hanging
    if len(os.listdir(sys.argv[3])) == 3:
        break
    time.sleep(0.1)
os._exit(0)
"""


@pytest.mark.slow
def test_a_real_gloo_job_in_which_rank_1_stays_away(tmp_path):
    pytest.importorskip("torch")
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", HANG_SCRIPT, str(rank), str(tmp_path / "meet"), str(dumps)],
            env={"TORCH_FR_BUFFER_SIZE": "100", "PATH": "/usr/bin:/bin"},
        )
        for rank in range(3)
    ]
    assert [job.wait(timeout=240) for job in jobs] == [0, 0, 0]
    assert explain_hang(read_dumps(dumps).dumps).suspect_ranks == [1]
