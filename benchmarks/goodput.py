"""How long it takes to import and add up the jobs of a cluster, on one core, and to simulate a fleet.

    python benchmarks/goodput.py [--parts jobs,philly,fleet]

`jobs`    a million made-up jobs as `sacct --parsable2` writes them: to the table, and to totals by user, day and node.
`philly`  the public Philly list (82,247 jobs) in $PERFKIT_TRACES, the same.
`fleet`   `perfkit simulate fleet` of a year with 2,000 runs: CPU time and size, and goodput against its truth.

CPU time of this process, with Arrow on one thread; the imports are not counted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from perfkit.goodput.importers import import_dumps
from perfkit.goodput.job_summary import summarize_jobs
from perfkit.goodput.question import ask
from perfkit.schema import GOODPUT_BUCKETS
from perfkit.simulate.fleet import Fleet, FleetOptions, write_fleet

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("PERFKIT_BENCH_CACHE", Path(tempfile.gettempdir()) / "perfkit-bench"))
TRACES = Path(os.environ.get("PERFKIT_TRACES", ROOT.parent / "shared" / "traces"))
STATES = [*["COMPLETED"] * 7, "FAILED", "CANCELLED by 1000", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"]
COLUMNS = (
    "JobID|JobName|User|Account|Partition|Cluster|State|ExitCode|Submit|Eligible|Start|End|AllocTRES|NNodes|NodeList"
)
pa.set_cpu_count(1)
pa.set_io_thread_count(1)


def make_jobs(path: Path, number: int) -> None:
    """Write jobs of 1 to 64 GPUs of 300 users on 2,000 nodes over a year; some are requeued."""
    rng = np.random.default_rng(0)
    submit = 1_600_000_000 + np.sort(rng.integers(0, 31_000_000, number))
    start = submit + rng.integers(0, 3600, number)
    end = start + rng.exponential(7200, number).astype(np.int64)
    times = [np.datetime_as_string(column.astype("datetime64[s]")) for column in (submit, start, end)]
    gpus, user, node = 2 ** rng.integers(0, 7, number), rng.integers(0, 300, number), rng.integers(0, 2000, number)
    state = rng.integers(0, len(STATES), number)
    with path.open("w") as file:
        file.write(COLUMNS + "\n")
        for i in range(number):
            count = max(1, gpus[i] // 8)
            nodes = f"node{node[i]:04d}" if count == 1 else f"node[{node[i]:04d}-{node[i] + count - 1:04d}]"
            file.write(
                f"{i - (i % 50 == 1)}|train|user{user[i]:03d}|lab|learn|c1|{STATES[state[i]]}|0:0|{times[0][i]}|"
                f"{times[0][i]}|{times[1][i]}|{times[2][i]}|billing=1,cpu=8,gres/gpu={gpus[i]},node={count}|{count}|{nodes}\n"
            )


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return CPU seconds and the result."""
    before = time.process_time()
    result = function()
    return time.process_time() - before, result


def bench_dump(path: Path, keys: Iterable[str | None]) -> None:
    """Import and add up."""
    seconds, dumps = timed(lambda: import_dumps([path]))
    jobs = dumps.tables["jobs"]
    print(f"{path.name}: {len(jobs):,} jobs, {path.stat().st_size / 1e6:.0f} MB")
    print(f"  import            {seconds:6.2f} s CPU")
    total = seconds
    for key in keys:
        seconds, _ = timed(lambda key=key: summarize_jobs(jobs, by=key))
        total += seconds
        print(f"  totals by {key or 'nothing':<8}{seconds:6.2f} s CPU")
    print(f"  all of it         {total:6.2f} s CPU")


def bench_fleet(folder: Path) -> None:
    """Simulate a year, and compare with its truth."""
    shutil.rmtree(folder, ignore_errors=True)
    fleet = Fleet(FleetOptions(clusters=3, days=365, runs=2000, seed=1))
    seconds, rows = timed(lambda: write_fleet(fleet, folder))
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"simulate fleet: {seconds:.0f} s CPU, {size / 1e6:.0f} MB, {sum(rows.values()):,} rows")
    seconds, answer = timed(lambda: ask([str(folder)], by="cluster"))
    truth = fleet.truth()["clusters"]
    wrong = sum(
        group["buckets"][name]["ns"] != truth[group["key"]]["goodput_ns"][name]
        for group in answer["groups"]
        for name in GOODPUT_BUCKETS
    )
    print(f"perfkit goodput STORE --by cluster: {seconds:.2f} s CPU; {wrong} buckets differ from the truth")
    shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", default="jobs,philly,fleet")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    args = parser.parse_args()
    parts = args.parts.split(",")
    CACHE.mkdir(parents=True, exist_ok=True)
    if "jobs" in parts:
        path = CACHE / f"sacct-{args.jobs}.txt"
        if not path.exists():
            make_jobs(path, args.jobs)
        bench_dump(path, (None, "user", "day", "node"))
    philly = TRACES / "petuum__adaptdl/simulator/traces/philly.csv"
    if "philly" in parts and philly.exists():
        bench_dump(philly, (None, "partition", "day"))
    if "fleet" in parts:
        bench_fleet(CACHE / "fleet")


if __name__ == "__main__":
    main()
