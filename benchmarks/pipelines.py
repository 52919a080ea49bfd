"""Simulated jobs by the thousand ranks, and how well mesh, bubble and stragglers are found in simulated pipelines.

    python benchmarks/pipelines.py [--seeds 40] [--ranks 1000] [--sampled 20]

First the CPU time that the simulator takes per rank, as tables and as Kineto files, with the time for all ranks that
follows from it. Then, over seeds and meshes with a slow rank: how often mesh, schedule and straggler are right, and how
far the straggler's part of the bubble lies from its truth, which is the same job played without the fault.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perfkit.analysis.bubble import bubbles
from perfkit.analysis.job import view_job
from perfkit.analysis.rank import Options, analyze_rank
from perfkit.analysis.stragglers import stragglers
from perfkit.simulate import Job, Mesh, Simulation, parse_fault, simulate
from perfkit.simulate.emit_kineto import write_gzip

MESHES = (Mesh(pp=2, dp=2), Mesh(pp=4, dp=2), Mesh(pp=2, vpp=2, dp=2), Mesh(pp=4, dp=3), Mesh(pp=2, dp=2, tp=2))


def time_simulator(ranks: int, sampled: int) -> None:
    """Print what a large job costs."""
    begin = time.process_time()
    sim = simulate(Job(mesh=Mesh(dp=ranks), steps=4, layers=30))
    played = time.process_time() - begin
    events = len(sim.tables(0)["events"])  # the first one makes what all ranks share
    sim.kineto(0)
    begin = time.process_time()
    for rank in range(sampled):
        sim.tables(rank)
    tables = (time.process_time() - begin) / sampled
    begin = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(sampled):
            write_gzip(Path(folder) / f"{rank}.json.gz", sim.kineto(rank))
    files = (time.process_time() - begin) / sampled
    print(f"{ranks} ranks x {events} events: played in {played:.1f} s of CPU")
    print(f"  as tables {tables * 1e3:.0f} ms a rank, {tables * ranks:.0f} s in all")
    print(f"  as gzipped Kineto files {files * 1e3:.0f} ms a rank, {files * ranks:.0f} s in all")


def analyse(sim: Simulation) -> tuple[object, object, pa.Table]:
    """Return layout, bubbles and straggler table of a job, from its rows alone."""
    parts = [part for rank in sim.ranks for part in analyze_rank(sim.tables(rank), Options())]
    hosts = {rank: sim.identity.host(rank) for rank in sim.ranks}
    view = view_job(parts, hosts=hosts, world_size=sim.job.mesh.world_size)
    table = {
        name: pa.concat_tables([getattr(p, name) for p in parts]).unify_dictionaries()
        for name in ("attribution", "idle", "window_idle", "compute")
    }
    steps = table["attribution"].filter(pc.invert(table["attribution"]["carry_in"]))
    found = bubbles(view, steps, table["window_idle"], table["compute"])
    return view.layout, found, stragglers(view, steps, table["idle"], view.blame.ranks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--sampled", type=int, default=20)
    args = parser.parse_args()
    time_simulator(args.ranks, args.sampled)
    right = {"mesh": 0, "schedule": 0, "straggler alone": 0, "nobody in the healthy job": 0}
    errors = []
    for seed in range(args.seeds):
        mesh = MESHES[seed % len(MESHES)]
        job = Job(
            mesh=mesh, seed=seed, steps=3, layers=mesh.pp * mesh.vpp, micro_batches=2 * mesh.pp,
            faults=(parse_fault(f"slow-rank:{mesh.stage_size + 1}:1.5x"),),
        )  # fmt: skip
        well = Job(**{**{f: getattr(job, f) for f in job.__dataclass_fields__}, "faults": ()})
        healthy = simulate(well, flows=False)
        layout, found, table = analyse(simulate(job, flows=False))
        _, before, quiet = analyse(healthy)
        wanted = {axis: n for axis, n in (("pp", mesh.pp), ("dp", mesh.dp), ("tp", mesh.tp)) if n > 1}
        right["mesh"] += layout.degrees == wanted and not layout.notes
        shape = (mesh.pp, job.micro_batches, mesh.vpp)
        right["schedule"] += tuple(found.shape or ()) == shape and found.schedule is not None
        flagged = [row["rank"] for row in table.to_pylist() if row["flagged"]]
        right["straggler alone"] += flagged == [mesh.stage_size + 1]
        right["nobody in the healthy job"] += not any(quiet["flagged"].to_pylist())
        truth = pc.sum(found.ranks["bubble_ns"]).as_py() - pc.sum(before.ranks["bubble_ns"]).as_py()
        told = pc.sum(found.ranks["straggler_ns"]).as_py() - pc.sum(before.ranks["straggler_ns"]).as_py()
        errors.append((told - truth) / pc.sum(before.ranks["bubble_ns"]).as_py())
    print(f"{args.seeds} simulated pipelines with a rank 1.5 times slower:")
    for name, count in right.items():
        print(f"  {name} right in {count} of {args.seeds}")
    low, middle, high = np.percentile(errors, [5, 50, 95])
    print("  straggler's bubble less truth, over the healthy bubble:", end=" ")
    print(f"median {middle:+.3f}, 5-95 % {low:+.3f} to {high:+.3f}")


if __name__ == "__main__":
    main()
