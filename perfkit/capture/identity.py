"""Who am I: rank, world, host, job, attempt, cluster; from arguments, torch, or the launcher's environment.

    find_identity(environ, rank=…, world_size=…, …) -> Identity

First that answers: explicit arguments, an initialised torch.distributed, torchrun, Ray Train, Slurm, Kubeflow
(PET_*), MPI (Open MPI, PMI), else rank 0 of 1. Nothing is communicated: what all ranks must agree on (run,
attempt, cluster) comes only from variables that a launcher gives to all of them alike. TORCHELASTIC_RUN_ID is
`none` under static rendezvous and random under --standalone, so it names a run only beside other facts.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

Environ = Mapping[str, str]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Who a process is in its job."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    host: str = ""
    source: str = "default"
    """Who said the rank: `arguments`, `torch.distributed`, `torchrun`, `ray`, `slurm`, `kubeflow`, `mpi`, `default`."""
    cluster: str = "default"
    run: str = "run"
    attempt: int = 0
    job: str | None = None
    """The scheduler's job id."""


def find_identity(
    environ: Environ | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    run: str | None = None,
    cluster: str | None = None,
    attempt: int | None = None,
    job: str | None = None,
) -> Identity:
    """Return who this process is; what an argument says is never overridden."""
    env = os.environ if environ is None else environ
    placed = next((found for find in _FINDERS if (found := _safely(find, env)) is not None), Identity())
    placed = replace(
        placed,
        rank=placed.rank if rank is None else int(rank),
        world_size=placed.world_size if world_size is None else int(world_size),
        local_rank=placed.local_rank if local_rank is None else int(local_rank),
    )
    if rank is not None:
        placed = replace(placed, source="arguments", world_size=max(placed.world_size, rank + 1))
    job = job or _job(env)
    return replace(
        placed,
        host=env.get("SLURMD_NODENAME") or env.get("NODE_NAME") or socket.gethostname(),
        cluster=cluster or env.get("PERFKIT_CLUSTER") or env.get("SLURM_CLUSTER_NAME") or "default",
        run=run or env.get("PERFKIT_RUN") or _run_name(env, job),
        attempt=_attempt(env) if attempt is None else int(attempt),
        job=job,
    )


def _safely(find: Callable[[Environ], T | None], env: Environ) -> T | None:
    try:
        return find(env)
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError):
        return None


def _from_torch(env: Environ) -> Identity | None:
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    place = _from_torchrun(env) or _from_slurm(env) or Identity()
    return replace(place, rank=dist.get_rank(), world_size=dist.get_world_size(), source="torch.distributed")


def _from_torchrun(env: Environ) -> Identity | None:
    if "RANK" not in env or "WORLD_SIZE" not in env:
        return None
    return Identity(
        rank=int(env["RANK"]),
        world_size=int(env["WORLD_SIZE"]),
        local_rank=int(env.get("LOCAL_RANK", 0)),
        source="torchrun" if "TORCHELASTIC_RUN_ID" in env else "environment",
    )


def _from_ray(env: Environ) -> Identity | None:
    train: Any = sys.modules.get("ray.train")
    if train is None:
        return None
    context = train.get_context()  # raises outside a training worker, or in older versions knows no rank
    if context.get_world_rank() is None:
        return None
    return Identity(
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        local_rank=context.get_local_rank(),
        source="ray",
    )


def _ray_experiment(env: Environ) -> str | None:
    train: Any = sys.modules.get("ray.train")
    return None if train is None else train.get_context().get_experiment_name()


def _from_slurm(env: Environ) -> Identity | None:
    if "SLURM_PROCID" not in env or "SLURM_STEP_ID" not in env:  # a batch script itself is no task
        return None
    return Identity(
        rank=int(env["SLURM_PROCID"]),
        world_size=int(env.get("SLURM_STEP_NUM_TASKS") or env["SLURM_NTASKS"]),
        local_rank=int(env.get("SLURM_LOCALID", 0)),
        source="slurm",
    )


def _from_kubeflow(env: Environ) -> Identity | None:
    """One process per node: the launcher that PET_* configure sets RANK for its own children."""
    if "PET_NNODES" not in env:
        return None
    nodes = int(env["PET_NNODES"].rpartition(":")[2])
    node = env.get("PET_NODE_RANK") or env.get("JOB_COMPLETION_INDEX") or "0"
    return Identity(rank=int(node), world_size=nodes, source="kubeflow")


def _from_mpi(env: Environ) -> Identity | None:
    for rank, world, local in (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("PMIX_RANK", "PMIX_SIZE", "PMIX_LOCAL_RANK"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ):
        if rank in env and world in env:
            return Identity(
                rank=int(env[rank]), world_size=int(env[world]), local_rank=int(env.get(local, 0)), source="mpi"
            )
    return None


_FINDERS = (_from_torch, _from_torchrun, _from_ray, _from_slurm, _from_kubeflow, _from_mpi)


def _integer(env: Environ, name: str) -> int | None:
    try:
        return int(env[name])
    except (KeyError, ValueError):
        return None


def _attempt(env: Environ) -> int:
    """Restarts so far. A requeued Slurm job starts torchrun anew, so the two counts are combined."""
    elastic, slurm = _integer(env, "TORCHELASTIC_RESTART_COUNT") or 0, _integer(env, "SLURM_RESTART_COUNT") or 0
    given = _integer(env, "PERFKIT_ATTEMPT")
    if given is not None:
        return given
    return slurm * 1000 + elastic if slurm and elastic else slurm or elastic


def _job(env: Environ) -> str | None:
    if "SLURM_JOB_ID" in env:
        array = env.get("SLURM_ARRAY_JOB_ID")
        return (
            f"{array}_{env['SLURM_ARRAY_TASK_ID']}" if array and "SLURM_ARRAY_TASK_ID" in env else env["SLURM_JOB_ID"]
        )
    for name in ("RAY_JOB_ID", "JOBSET_NAME", "LSB_JOBID", "PBS_JOBID"):
        if env.get(name):
            return env[name]
    return None


def _run_name(env: Environ, job: str | None) -> str:
    """Name a run so that all ranks choose the same name: the script and the scheduler's job.

    In Ray Train it is the experiment: its script is Ray's own, and the first job of every cluster has the same id.
    """
    experiment = _safely(_ray_experiment, env)
    if experiment:
        return experiment
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c", "-m") else ""
    script = env.get("SLURM_JOB_NAME") or re.sub(r"^__main__$", "", script) or "run"
    return f"{script}-{job}" if job else script
