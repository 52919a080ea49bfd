"""Identity: the first launcher that answers, the same run on every rank."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

from perfkit.capture.identity import find_identity

TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "2",
}  # fmt: skip
SLURM = {
    "SLURM_PROCID": "7", "SLURM_NTASKS": "32", "SLURM_LOCALID": "3", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "991",
    "SLURM_CLUSTER_NAME": "prod-a", "SLURMD_NODENAME": "node9", "SLURM_JOB_NAME": "llama",
}  # fmt: skip
PET = {"PET_NNODES": "4", "PET_NODE_RANK": "2"}
OMPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "3"}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, (0, 1, 0, "default")),
        (TORCHRUN, (5, 16, 1, "torchrun")),
        (SLURM, (7, 32, 3, "slurm")),
        (PET, (2, 4, 0, "kubeflow")),
        (OMPI, (3, 8, 3, "mpi")),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2, 0, "mpi")),
        ({**OMPI, **PET, **SLURM, **TORCHRUN}, (5, 16, 1, "torchrun")),
        ({**OMPI, **PET, **SLURM}, (7, 32, 3, "slurm")),
        ({**OMPI, **PET}, (2, 4, 0, "kubeflow")),
        ({"RANK": "rubbish", "WORLD_SIZE": "2", **OMPI}, (3, 8, 3, "mpi")),
    ],
)
def test_the_first_launcher_that_answers_wins(env, expected):
    found = find_identity(env)
    assert (found.rank, found.world_size, found.local_rank, found.source) == expected


def test_arguments_win_over_every_launcher():
    found = find_identity(TORCHRUN, rank=9, world_size=20, run="mine", cluster="c", attempt=4, job="j")
    assert (found.rank, found.world_size, found.source) == (9, 20, "arguments")
    assert (found.run, found.cluster, found.attempt, found.job) == ("mine", "c", 4, "j")


def test_an_initialised_process_group_wins_over_the_environment(monkeypatch):
    dist = types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 3, get_world_size=lambda: 4
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", dist)
    found = find_identity(TORCHRUN)
    assert (found.rank, found.world_size, found.local_rank, found.source) == (3, 4, 1, "torch.distributed")


def test_ray_is_asked_before_slurm(monkeypatch):
    context = types.SimpleNamespace(get_world_rank=lambda: 6, get_world_size=lambda: 8, get_local_rank=lambda: 2)
    monkeypatch.setitem(sys.modules, "ray.train", types.SimpleNamespace(get_context=lambda: context))
    found = find_identity(SLURM)
    assert (found.rank, found.world_size, found.source) == (6, 8, "ray")


def test_a_ray_context_that_knows_no_rank_is_no_answer(monkeypatch):
    """Older versions of Ray return one outside of training workers."""
    context = types.SimpleNamespace(get_world_rank=lambda: None, get_experiment_name=lambda: None)
    monkeypatch.setitem(sys.modules, "ray.train", types.SimpleNamespace(get_context=lambda: context))
    assert find_identity(SLURM).source == "slurm"
    assert find_identity({}).rank == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_workers_of_a_real_ray_train_job_know_their_ranks(tmp_path):
    """The order is kept inside a worker; a plain task, the driver and an actor are no workers."""
    pytest.importorskip("ray.train")
    script = Path(__file__).with_name("scripts") / "ray_identity.py"
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stderr[-4000:]
    answer = json.loads((tmp_path / "answer.json").read_text())
    for rank in ("0", "1"):
        worker = answer["workers"][rank]
        assert worker["alone"] == [int(rank), 2, int(rank), "ray", "my-experiment"]
        assert worker["slurm"][:4] == [int(rank), 2, int(rank), "ray"]
        assert worker["torchrun"][:4] == [5, 16, 1, "torchrun"]
        assert worker["process group"][:4] == [0, 1, 1, "torch.distributed"]
        assert worker["process group"][4] == "my-experiment"
        assert worker["arguments"][:4] == [9, 20, int(rank), "arguments"]
    for place in ("driver", "task", "actor"):
        assert answer[place]["alone"][:4] == [0, 1, 0, "default"]
        assert answer[place]["slurm"][:4] == [7, 32, 3, "slurm"]


def test_a_slurm_batch_script_that_is_no_task_is_rank_0_of_1():
    env = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"}
    assert find_identity(env).world_size == 1


@pytest.mark.parametrize(
    ("env", "attempt"),
    [
        ({}, 0),
        (TORCHRUN, 2),
        ({"SLURM_RESTART_COUNT": "3"}, 3),
        ({**TORCHRUN, "SLURM_RESTART_COUNT": "3"}, 3002),
        ({**TORCHRUN, "PERFKIT_ATTEMPT": "8"}, 8),
    ],
)
def test_the_attempt_comes_from_restart_counts(env, attempt):
    assert find_identity(env).attempt == attempt


def test_all_ranks_choose_the_same_run_and_none_from_the_elastic_id_alone():
    ranks = [{**TORCHRUN, "RANK": str(rank), "TORCHELASTIC_RUN_ID": "none"} for rank in range(4)]
    assert len({find_identity(env).run for env in ranks}) == 1
    one, other = ({**TORCHRUN, "TORCHELASTIC_RUN_ID": name} for name in ("none", "0f3c"))
    assert find_identity(one).run == find_identity(other).run


def test_slurm_names_the_run_the_cluster_and_the_host():
    found = find_identity(SLURM)
    assert (found.run, found.cluster, found.host, found.job) == ("llama-991", "prod-a", "node9", "991")
    array = find_identity({**SLURM, "SLURM_ARRAY_JOB_ID": "990", "SLURM_ARRAY_TASK_ID": "4"})
    assert array.job == "990_4"
