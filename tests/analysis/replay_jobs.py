"""Simulated jobs to play again, and their own reruns with a change made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from perfkit.analysis.analyze import Examined, examine_tables
from perfkit.analysis.replay.changes import Change, parse_change
from perfkit.analysis.whatif import about_ranks, build_model, step_time
from perfkit.simulate.faults import parse_fault
from perfkit.simulate.job import Job, Mesh
from perfkit.simulate.simulation import Simulation, simulate

CASES: dict[str, tuple[tuple[str, ...], tuple[tuple[str, str], ...], dict[str, Any]]] = {
    "slow rank healthy": (("slow-rank:1:1.3x",), (("healthy", "1"),), {"faults": ()}),
    "throttled rank healthy": (("throttle:0:1.5x",), (("healthy", "0"),), {"faults": ()}),
    "late rank healthy": (("late-rank:1:5ms",), (("healthy", "1"),), {"faults": ()}),
    "network 2x": ((), (("network", "2x"),), {"faults": ("slow-link:all:0.5x",)}),
    "network 10x": ((), (("network", "10x"),), {"faults": ("slow-link:all:0.1x",)}),
    "network 2x beside a slow rank": (
        ("slow-rank:1:1.3x",), (("network", "2x"),), {"faults": ("slow-rank:1:1.3x", "slow-link:all:0.5x")},
    ),
    "no data wait": (("data-stall:1:6ms",), (("no-data-wait", ""),), {"faults": (), "data_ns": 0}),
    "matrix kernels 2x": (
        (), (("family", "gemm=2x"), ("family", "attention=2x")), {"faults": ("throttle:all:0.5x",)},
    ),
    "matrix kernels 1.2x": (
        (), (("family", "gemm=1.2x"), ("family", "attention=1.2x")), {"faults": ("throttle:all:0.833x",)},
    ),
    "no host gaps": ((), (("no-host-gaps", ""),), {"host_permille": 0}),
    "everything at once": (
        ("slow-rank:1:1.3x", "data-stall:1:6ms"), (("healthy", "1"), ("network", "2x"), ("no-data-wait", "")),
        {"faults": ("slow-link:all:0.5x",), "data_ns": 0},
    ),
}  # fmt: skip
"""Name -> (faults of the recorded job, changes asked of the replay, changes made to the simulated job)."""
MESHES = ("dp=4", "fsdp=4", "tp=2,dp=2", "pp=2,dp=2", "pp=2,vpp=2,dp=2", "fsdp=2,ep=2,dp=2")


def make_job(mesh: str, *, seed: int = 3, steps: int = 3, **keys: Any) -> Job:
    degrees = dict(part.split("=") for part in mesh.split(","))
    ranks = int(np.prod([int(n) for name, n in degrees.items() if name not in ("vpp", "ep")]))
    pipeline = {"micro_batches": 4, "layers": 8 if "vpp" in degrees else 4} if "pp" in degrees else {}
    return Job(mesh=Mesh.parse(mesh, ranks), seed=seed, steps=steps, **{**pipeline, **keys})


def record(sim: Simulation) -> Examined:
    """Analyse a simulated job as if it had been recorded."""
    tables: dict[str, list[pa.Table]] = {}
    for rank in sim.ranks:
        for name, table in sim.tables(rank).items():
            tables.setdefault(name, []).append(table)
    joined = {name: pa.concat_tables(parts).unify_dictionaries() for name, parts in tables.items()}
    return examine_tables(joined, replay=True, synthetic=True)


def true_step_ns(sim: Simulation) -> float:
    """Return the mean window of all ranks and steps, as the simulator knows it."""
    windows = [step["window_ns"] for rank in sim.truth()["ranks"] for step in rank["steps"]]
    return sum(windows) / len(windows)


def predicted_and_rerun(job: Job, case: str) -> tuple[float, float]:
    """Return the step time that the replay predicts, and that of the simulator with the change made."""
    faults, asked, made = CASES[case]
    recorded = replace(job, faults=tuple(parse_fault(text) for text in faults))
    examined = record(simulate(recorded))
    model, about = build_model(examined), about_ranks(examined)
    lags = model.own
    changes: list[Change] = [parse_change(*one) for one in asked]
    for change in changes:
        lags = change.apply(model, lags, about)
    predicted = step_time(model, model.play([lags]), 0, lags)
    keys = {**made, "faults": tuple(parse_fault(text) for text in made["faults"])} if "faults" in made else made
    return predicted, true_step_ns(simulate(replace(recorded, **keys)))
