"""How well the predicted gain of fixing a straggler fits: simulated jobs with a fault, against the same job without.

    python benchmarks/straggler_gain.py [--seeds 40]

For each job: the rank that was made slow or late, whether it is blamed first, the gain per step that the analysis
predicts from the traces of the faulty job, and the true one (step time with the fault less step time without it).
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace

import numpy as np

from perfkit.analysis.attribute import attribute, busy_sets, rows_of
from perfkit.analysis.calls import collective_calls, exposed_rows
from perfkit.analysis.job import JobView, view_job
from perfkit.analysis.ops import CallTree
from perfkit.analysis.timeline import read_timelines
from perfkit.analysis.windows import find_steps, find_windows
from perfkit.simulate.faults import parse_fault
from perfkit.simulate.job import Job, Mesh
from perfkit.simulate.simulation import Simulation, simulate

MESHES = (
    Mesh(dp=8), Mesh(fsdp=8), Mesh(dp=4, tp=2), Mesh(fsdp=4, tp=2), Mesh(dp=2, tp=2, pp=2), Mesh(dp=4, fsdp=2),
)  # fmt: skip


class _Part:
    """What perfkit.analysis.job needs of a rank."""

    def __init__(self, sim: Simulation, rank: int) -> None:
        tables = sim.tables(rank)
        (timeline,) = read_timelines(tables["events"])
        (device,) = timeline.devices
        steps = find_steps(timeline)
        windows, busy = find_windows(timeline, device, steps=steps), busy_sets(timeline, device)
        self.rank, self.segment = rank, 0
        self.attribution = rows_of(attribute(timeline, device, windows, busy, steps), windows)
        self.calls = collective_calls(timeline, device, tables, CallTree(timeline, tables["ops"]), steps)
        self.exposed = exposed_rows(timeline, device, windows, busy)


def view_of(sim: Simulation) -> JobView:
    """Look at a simulated job."""
    hosts = {rank: sim.identity.host(rank) for rank in sim.ranks}
    return view_job([_Part(sim, rank) for rank in sim.ranks], hosts=hosts, world_size=sim.job.mesh.world_size)


def step_ns(view: JobView) -> float:
    """Return the mean length of the windows."""
    return float(np.mean(view.steps["window_ns"].to_numpy()))


def main() -> None:
    """Print one line per job and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40)
    seeds = parser.parse_args().seeds
    print("mesh                      fault                  first  predicted    true  ms per step")
    errors, right = [], []
    for seed in range(seeds):
        dice = random.Random(f"gain {seed}")
        mesh, rank = dice.choice(MESHES), dice.randrange(8)
        fault = dice.choice(
            [f"slow-rank:{rank}:{dice.randint(130, 180) / 100}x", f"data-stall:{rank}:{dice.randint(3, 20)}ms",
             f"late-rank:{rank}:{dice.randint(3, 20)}ms", f"throttle:{rank}:{dice.randint(130, 180) / 100}x"]
        )  # fmt: skip
        job = Job(mesh=mesh, steps=4, layers=4, micro_batches=4 if mesh.pp > 1 else 1, seed=seed,
                  faults=(parse_fault(fault),))  # fmt: skip
        view, healthy = (view_of(simulate(one, flows=False)) for one in (job, replace(job, faults=())))
        rows = {row["rank"]: row for row in view.blame.ranks.to_pylist()}
        first = max(rows.values(), key=lambda row: row["wait_caused_ns"])["rank"] == rank
        predicted = rows[rank]["recoverable_ns"] / 4 / 1e6
        true = (step_ns(view) - step_ns(healthy)) / 1e6
        right.append(first)
        errors.append(predicted / true - 1 if true > 0.05 else np.nan)
        name = ",".join(f"{k}={v}" for k, v in vars_of(mesh).items())
        print(f"{name:24}  {fault:22} {'yes' if first else 'no':>4}   {predicted:8.2f}  {true:7.2f}")
    quartiles = np.nanquantile(errors, [0.1, 0.5, 0.9])
    print(f"\nblamed first: {np.mean(right):.1%}; predicted / true - 1: median {quartiles[1]:+.1%}, "
          f"10th and 90th percentile {quartiles[0]:+.1%}, {quartiles[2]:+.1%}")  # fmt: skip


def vars_of(mesh: Mesh) -> dict[str, int]:
    """Return the degrees above one."""
    return {name: value for name in ("dp", "fsdp", "tp", "pp") if (value := getattr(mesh, name)) > 1}


if __name__ == "__main__":
    main()
