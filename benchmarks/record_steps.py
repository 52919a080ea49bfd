"""Record step times of many short runs of one job, for benchmarks/compare.py.

    python benchmarks/record_steps.py FILE.csv [--rounds 4] [--seconds 6] [--shared]

A round starts the reference loop twice, one process on each of two cores, lets both warm up, gives them the cores for
`--seconds` (as benchmarks/quiet.py does: Linux, root) and kills them; runs are each other's only neighbours. --shared
takes the machine as it is. The steps of those seconds are added to FILE, so that it can be made in short stretches: one
line a run, with `shared` or `quiet`, its start in seconds since 1970, and the times from step end to step end in µs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from quiet import schedule

from perfkit.reference.joblog import read_log

JOB = "perfkit.reference.train"
SHAPE: Mapping[str, object] = {
    "model.dim": 128, "model.ffn": 384, "model.layers": 2, "model.vocab": 512, "model.seq_len": 32,
    "train.global_batch": 4, "data.tokens": 200_000, "train.steps": 1_000_000, "capture.enabled": "false",
}  # fmt: skip
WARM_UP = 20
SETTLE_S = 0.3
LIMIT_S = 300


def start(folder: Path, core: int) -> subprocess.Popen[bytes]:
    """Start a run on its core."""
    words = [sys.executable, "-m", JOB, "--train.folder", str(folder)]
    words += [word for key, value in SHAPE.items() for word in (f"--{key}", str(value))]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "LOCAL_RANK": str(core)}
    return subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def step_ends_ns(folder: Path) -> np.ndarray:
    """Return when the steps of a run ended, by its own log."""
    return np.array([row["end_ns"] for row in read_log(folder) if row["kind"] == "step"], np.int64)


def one_round(seconds: float, *, shared: bool) -> list[tuple[float, np.ndarray]]:
    """Return start and step times in µs of two runs."""
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / str(core) for core in range(2)]
        jobs = [start(place, core) for core, place in enumerate(places)]
        try:
            begun = time.monotonic()
            while min(len(step_ends_ns(place)) for place in places) < WARM_UP:
                if time.monotonic() - begun > LIMIT_S or any(job.poll() is not None for job in jobs):
                    sys.exit(f"{JOB} did not get to step {WARM_UP}; try it by hand")
                time.sleep(0.5)
            for job in jobs if not shared else ():
                schedule(job.pid, JOB)
            time.sleep(SETTLE_S)
            first_ns = time.time_ns()
            time.sleep(seconds)
            last_ns = time.time_ns()
        finally:
            for job in jobs:
                job.kill()
                job.wait()
        found = []
        for place in places:
            ends = step_ends_ns(place)
            found.append((first_ns / 1e9, np.diff(ends[(ends >= first_ns) & (ends <= last_ns)]) / 1e3))
        return found


def main() -> None:
    """Record and add to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--shared", action="store_true")
    args = parser.parse_args()
    kind = "shared" if args.shared else "quiet"
    for _ in range(args.rounds):
        for start_s, times_us in one_round(args.seconds, shared=args.shared):
            with args.file.open("a") as file:
                file.write(f"{kind},{start_s:.0f},{' '.join(f'{us:.0f}' for us in times_us)}\n")
            print(f"{kind}: {len(times_us)} steps, median {np.median(times_us) / 1e3:.2f} ms", flush=True)


if __name__ == "__main__":
    main()
