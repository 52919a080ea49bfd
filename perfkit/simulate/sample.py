"""Small random jobs, for checking analyses against many truths.

    sample_job(seed) -> Job          the same job for the same seed, everywhere

Every kind of parallelism and every fault turns up; shapes are small, so that some jobs are bound by the
host, some by communication and some by compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from perfkit.simulate.faults import KINDS, Fault
from perfkit.simulate.hardware import A100, H100
from perfkit.simulate.job import Job, Mesh
from perfkit.simulate.noise import draw, hash_key

MESHES = (
    Mesh(), Mesh(dp=2), Mesh(dp=4), Mesh(fsdp=2), Mesh(fsdp=4), Mesh(dp=2, fsdp=2), Mesh(tp=2), Mesh(dp=2, tp=2),
    Mesh(fsdp=2, tp=2), Mesh(pp=2), Mesh(pp=4), Mesh(pp=2, vpp=2), Mesh(pp=2, dp=2), Mesh(pp=2, fsdp=2),
    Mesh(dp=4, ep=2), Mesh(fsdp=4, ep=4), Mesh(pp=2, dp=2, tp=2), Mesh(pp=2, vpp=2, dp=2, ep=2),
)  # fmt: skip

FAULTS = tuple(kind for kind in KINDS if kind != "hot-expert")
"""A kind that came later, or that only some meshes have, would change what a seed means."""

T = TypeVar("T")


class _Dice:
    """Named draws: a new question does not change the answers to the old ones."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def number(self, question: str, below: int) -> int:
        return int(draw(self.seed, [hash_key(question)], np.zeros(1, np.int64))[0, 0] % np.uint64(below))

    def choice(self, question: str, options: Sequence[T]) -> T:
        return options[self.number(question, len(options))]


def sample_job(seed: int) -> Job:
    """Return a small job."""
    dice = _Dice(seed)
    mesh = dice.choice("mesh", MESHES)
    hidden = dice.choice("hidden", (256, 512, 1024, 2048))
    chunks = mesh.pp * mesh.vpp
    job = Job(
        mesh=mesh,
        hardware=replace(dice.choice("hardware", (H100, A100)), gpus_per_host=dice.choice("per host", (1, 2, 8))),
        steps=dice.choice("steps", (1, 2, 3)),
        seed=seed,
        layers=chunks if chunks > 1 else dice.choice("layers", (1, 2)),
        hidden=hidden,
        ffn=4 * hidden,
        vocab=dice.choice("vocab", (4_096, 32_000)),
        seq_len=dice.choice("sequence", (256, 1024, 4096)),
        micro_batches=mesh.pp * dice.choice("micro-batches", (1, 2)),
        bucket_bytes=dice.choice("bucket", (2**20, 25 * 2**20)),
        log_every=dice.choice("log", (0, 1, 2)),
        checkpoint_every=dice.choice("checkpoint", (0, 0, 2)),
        checkpoint_ns=dice.choice("checkpoint time", (300_000, 5_000_000)),
        host_permille=dice.choice("host speed", (300, 1000, 3000)),
        queue_depth=dice.choice("queue", (8, 1024)),
        loss_allreduce=dice.choice("loss", (True, True, False)),
    )
    faults = tuple(_fault(dice, i, job) for i in range(dice.number("faults", 4)))
    return replace(job, faults=faults)


def _fault(dice: _Dice, number: int, job: Job) -> Fault:
    kind = dice.choice(f"fault {number}", FAULTS)
    target_of, amount_of, _ = KINDS[kind]
    count = {"rank": job.mesh.world_size, "host": job.num_hosts, "": 1}[target_of]
    steps = dice.choice(f"fault {number} steps", (None, None, (0, 0), (1, 2)))
    return Fault(
        kind=kind,
        target=dice.number(f"fault {number} target", count + 1) - 1 if target_of else None,
        permille=dice.choice(f"fault {number} factor", (1_100, 1_500, 4_000)) if amount_of == "factor" else None,
        time_ns=dice.choice(f"fault {number} time", (25_000, 200_000, 3_000_000)) if amount_of == "time" else None,
        steps=steps,
    )
