"""Does `perfkit compare` cry wolf, and what does it find? False alarms and power of the comparison of step times.

    python benchmarks/compare.py                              simulated series, 1,000 pairs each
    python benchmarks/compare.py --store runs/ [--steps 300]  and windows of recorded steps of the runs in a store
    python benchmarks/compare.py --reference                  and a real slowdown of the reference loop (2 processes)

A pair is two disjoint series of the same job. `false alarms` is the share of pairs in which a change is reported
although there is none (stated level: 5 %), `+3 % found` the share in which a slowdown of 3 % of one side is reported as
slower. Noise is 3 % of a step, with one step in fifty half as long again: `ar ρ` hangs together with correlation ρ,
`burst` comes in clusters of slow steps. Recorded windows of one run can differ for real (a shared machine drifts):
record on a quiet one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import perfkit
from perfkit.analysis.compare import compare, recorded_step_times
from perfkit.analysis.evidence import Floats, ratio
from perfkit.report.comparison import to_text
from perfkit.store import Store

Pair = tuple[Floats, Floats]
SLOWER = 1.03
NEEDED = 0.95


def correlated(random: np.random.Generator, n: int, rho: float) -> Floats:
    """Return step times that hang together, with an outlier now and then."""
    noise = random.normal(size=n + 100)
    for i in range(1, len(noise)):
        noise[i] = rho * noise[i - 1] + noise[i] * np.sqrt(1 - rho**2)
    times: Floats = 100 * (1 + 0.03 * noise[100:])
    times[random.random(n) < 0.02] *= 1.5
    return times


def bursts(random: np.random.Generator, n: int) -> Floats:
    """Return step times of which clusters are 10 % slower."""
    slow = np.zeros(n + 100, bool)
    for i in range(1, len(slow)):
        slow[i] = random.random() < (0.8 if slow[i - 1] else 0.03)
    times: Floats = 100 * (1 + 0.01 * random.normal(size=n) + 0.1 * slow[100:])
    return times


def simulated(make: Callable[[np.random.Generator], Floats], pairs: int, seed: int) -> Iterator[Pair]:
    """Yield pairs of series of one kind."""
    for number in range(pairs):
        random = np.random.default_rng([seed, number])
        yield make(random), make(random)


def windows(runs: list[Floats], n: int, pairs: int) -> Iterator[Pair]:
    """Yield disjoint windows of recorded steps, of the same run or of two."""
    random = np.random.default_rng(1)
    runs = [times for times in runs if len(times) >= 2 * n]
    for _ in range(pairs if runs else 0):
        one, other = random.integers(0, len(runs), 2)
        a = int(random.integers(0, len(runs[one]) - n + 1))
        b = int(random.integers(0, len(runs[other]) - n + 1))
        if one == other and abs(a - b) < n:
            continue
        yield runs[one][a : a + n], runs[other][b : b + n]


def rates(pairs: Iterator[Pair]) -> tuple[int, float, float]:
    """Return the number of pairs, false alarms and slowdowns found."""
    found = [ratio(base, new) for base, new in pairs]
    alarms = sum(one.sign != 0 for one in found)
    hits = sum(
        one.low is not None and (1 + one.low) * SLOWER > 1 for one in found
    )  # scaling one side scales the interval
    return len(found), alarms / max(len(found), 1), hits / max(len(found), 1)


def report(name: str, n: int, pairs: Iterator[Pair]) -> None:
    """Print one row."""
    number, alarms, hits = rates(pairs)
    enough = "yes" if hits >= NEEDED else "no"
    print(f"| {name:<22} | {n:>5} | {number:>5} | {alarms:>12.1%} | {hits:>10.1%} | {enough:>6} |", flush=True)


def reference(folder: Path, fault: str) -> None:
    """Train twice, once with a fault, and print the comparison."""
    options = {"train.steps": 200, "model.dim": 128, "model.layers": 2, "model.seq_len": 64, "data.tokens": 200_000}
    for name, extra in (("base", []), ("slow", ["--fault", fault])):
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
        words += ["perfkit.reference.train", "--train.folder", str(folder / name), *extra]
        words += [word for key, value in options.items() for word in (f"--{key}", str(value))]
        subprocess.run(words, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True)
    stores = [folder / name / "store" for name in ("base", "slow")]
    reports = [perfkit.analyze(store) for store in stores]
    steps = tuple(Store(store).read("steps") for store in stores)
    print(f"\nreference loop, {fault}\n\n{to_text(compare(*reports, steps=(steps[0], steps[1])))}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--steps", type=int, nargs="+", default=[30, 100, 300])
    parser.add_argument("--store", action="append", default=[], help="with recorded runs; may be repeated")
    parser.add_argument("--reference", action="store_true", help="train, slow down for real, and compare")
    parser.add_argument("--fault", default="slow-rank:1:1.15x")
    args = parser.parse_args()
    print("| series                 | steps | pairs | false alarms | +3 % found | ≥ 95 % |")
    print("|---|---:|---:|---:|---:|---:|")
    for n in args.steps:
        for rho in (0.0, 0.3, 0.6, 0.8):
            report(f"simulated, ar {rho}", n, simulated(lambda r, n=n, rho=rho: correlated(r, n, rho), args.pairs, n))
        report("simulated, burst", n, simulated(lambda r, n=n: bursts(r, n), args.pairs, n))
    stores = [Store(place) for place in args.store]
    runs = [
        recorded_step_times(store.read("steps", cluster=run.cluster, run=run.run, attempt=run.attempt))
        for store in stores
        for run in store.runs()
    ]
    for n in args.steps if runs else ():
        report("recorded windows", n, windows(runs, n, args.pairs))
    if args.reference:
        with tempfile.TemporaryDirectory() as folder:
            reference(Path(folder), args.fault)


if __name__ == "__main__":
    main()
