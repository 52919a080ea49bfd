"""Does `perfkit compare` cry wolf, and what does it find? False alarms and power of the comparison of step times.

    python benchmarks/compare.py                        simulated and recorded series, 1,000 pairs each
    python benchmarks/compare.py --parts reference      a real slowdown of the reference loop (2 processes), named:
                                                        data come 3.7 ms late, of a step of about 24 ms
    python benchmarks/compare.py --file MINE.csv        other recordings than step_times.csv (by record_steps.py)

A pair is two disjoint series of the same job. `false alarms` is the share of pairs in which a change is reported
although there is none (stated level: 5 %), `+3 % found` the share in which a slowdown of 3 % of one side is reported as
slower (scaling a side scales its interval), `no verdict` the share without an interval: one run a side that shows an
unsteady machine. All shares are of all pairs.

Simulated: noise of 3 % of a step, one step in fifty half as long again. `ar ρ` hangs together with correlation ρ;
`bursts` are clusters of steps that take 10 % longer; `drift` is 1 % more noise that changes over an eighth of the run;
`scattered` are steps of different work: 15 %, independent; `runs apart` are steps with ar 0.5 of runs that lie apart by
2 % (standard deviation), which one run a side cannot see: 0.5 % is assumed, in the next row 2 % is told.

Recorded: `8 H100` are neighbouring windows of the log of one run of 2,245 steps (modded-nanogpt; it gets 2 % slower
from its first to its last step, so windows far apart do differ). `reference` are runs of step_times.csv, on a machine
of two cores that others used as well; runs lie apart there, which is real. The runs of a pair are drawn at random, so
that both sides met the same machine.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

import perfkit
from perfkit.analysis.compare import compare
from perfkit.analysis.evidence import Floats, ratio
from perfkit.report.comparison import to_text
from perfkit.store import Store

HERE = Path(__file__).resolve().parent
TRACES = Path(os.environ.get("PERFKIT_TRACES") or HERE.parents[1] / "shared" / "traces")
H100_LOG = "KellerJordan__modded-nanogpt/records/track_1_short/2025-10-31_AdamSyncGradientHook/*.txt"
Pair = tuple[Sequence[Floats], Sequence[Floats]]
SLOWER = 1.03
TOLD = "simulated, runs apart, told"
WARM_UP = 20


def correlated(random: np.random.Generator, shape: tuple[int, ...], rho: float) -> Floats:
    """Return noise of variance 1 that hangs together along the last axis."""
    noise = random.normal(size=shape)
    for i in range(1, shape[-1]):
        noise[..., i] = rho * noise[..., i - 1] + noise[..., i] * np.sqrt(1 - rho**2)
    return noise


def with_outliers(random: np.random.Generator, times: Floats) -> Floats:
    """Make one step in fifty half as long again."""
    return np.where(random.random(times.shape) < 0.02, 1.5, 1.0) * times


def ar(rho: float) -> Callable[[np.random.Generator, tuple[int, ...]], Floats]:
    """Return a maker of series with correlation ρ."""
    return lambda random, shape: with_outliers(random, 1 + 0.03 * correlated(random, shape, rho))


def bursts(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Return step times of which clusters are 10 % slower."""
    chance = random.random(shape)
    slow = chance < 0.03 / 0.23  # the share of slow steps in the long run
    for i in range(1, shape[-1]):
        slow[..., i] = chance[..., i] < np.where(slow[..., i - 1], 0.8, 0.03)
    return 1 + 0.01 * random.normal(size=shape) + 0.1 * slow


def drift(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Return step times that drift over an eighth of the run."""
    slow = correlated(random, shape, float(np.exp(-8 / shape[-1])))
    return with_outliers(random, 1 + 0.03 * random.normal(size=shape) + 0.01 * slow)


def scattered(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Return step times of work that differs from step to step."""
    return np.exp(0.15 * random.normal(size=shape))


def runs_apart(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Return step times of runs that lie apart."""
    return ar(0.5)(random, shape) * (1 + 0.02 * random.normal(size=(*shape[:-1], 1)))


def simulated(pairs: int) -> Iterator[tuple[str, int, int, list[Pair]]]:
    """Yield name, runs a side, steps a run and pairs."""
    kinds = {"ar 0": ar(0.0), "ar 0.5": ar(0.5), "ar 0.9": ar(0.9), "bursts": bursts, "drift": drift,
             "scattered": scattered}  # fmt: skip
    for steps in (12, 30, 100, 300, 1000):
        for name, make in kinds.items():
            made = make(np.random.default_rng(steps), (pairs, 2, 1, steps))
            yield f"simulated, {name}", 1, steps, [(list(a), list(b)) for a, b in made]
    for runs in (1, 2, 3, 5, 10):
        made = runs_apart(np.random.default_rng(runs), (pairs, 2, runs, 100))
        yield "simulated, runs apart", runs, 100, [(list(a), list(b)) for a, b in made]
        if runs == 1:
            yield TOLD, runs, 100, [(list(a), list(b)) for a, b in made]


def h100_windows(pairs: int) -> Iterator[tuple[str, int, int, list[Pair]]]:
    """Yield neighbouring windows of the step times of a public log."""
    found = sorted(TRACES.glob(H100_LOG))
    if not found:
        print(f"no {H100_LOG} in {TRACES}: set PERFKIT_TRACES", file=sys.stderr)
        return
    log = found[0].read_text(errors="replace")
    clock_ms = np.array([int(ms) for ms in re.findall(r"^step:\d+/\d+ train_time:(\d+)ms", log, re.M)], np.float64)
    times = np.diff(clock_ms)[WARM_UP:]
    for n in (30, 50, 100, 200, 300):
        starts = np.random.default_rng(n).integers(0, len(times) - 2 * n + 1, pairs)
        yield "recorded, 8 H100", 1, n, [([times[i : i + n]], [times[i + n : i + 2 * n]]) for i in starts]


def recorded_runs(file: Path, pairs: int) -> Iterator[tuple[str, int, int, list[Pair]]]:
    """Yield random pairs of sides of recorded runs."""
    lines = [line.split(",") for line in file.read_text().splitlines()]
    for kind in ("quiet", "shared"):
        series = [np.array(times.split(), np.float64) for name, _, times in lines if name == kind]
        for runs in (1, 3, 5, 10):
            if 2 * runs > len(series):
                continue
            random = np.random.default_rng(runs)
            chosen = [random.permutation(len(series))[: 2 * runs] for _ in range(pairs)]
            sides = [([series[i] for i in one[:runs]], [series[i] for i in one[runs:]]) for one in chosen]
            yield f"recorded, reference {kind}", runs, int(np.median([len(one) for one in series])), sides


def table(rows: Iterable[tuple[str, int, int, list[Pair]]]) -> None:
    """Print false alarms and slowdowns found."""
    print(
        "| series                      | runs a side | steps a run | pairs | false alarms | +3 % found | no verdict |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, runs, steps, pairs in rows:
        found = [ratio(base, new, run_spread=0.02 if name == TOLD else None) for base, new in pairs]
        silent = sum(one.low is None for one in found) / len(found)
        alarms = sum(one.sign != 0 for one in found) / len(found)
        hits = sum(one.low is not None and (1 + one.low) * SLOWER > 1 for one in found) / len(found)
        print(
            f"| {name:<27} | {runs:>11} | {steps:>11} | {len(found):>5} | {alarms:>12.1%} | {hits:>10.1%} "
            f"| {silent:>10.1%} |",
            flush=True,
        )
    print()


def train(folder: Path, fault: str | None, steps: int) -> Path:
    """Train the reference loop and return its store."""
    options = {"train.steps": steps, "model.dim": 128, "model.layers": 2, "model.seq_len": 64, "data.tokens": 200_000,
               "capture.profile_first": WARM_UP, "capture.profile_active": 20}  # fmt: skip
    words = [sys.executable, str(HERE / "quiet.py"), "perfkit.reference.train", sys.executable]
    words += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "perfkit.reference.train"]
    words += ["--train.folder", str(folder), *(["--fault", fault] if fault else [])]
    words += [word for key, value in options.items() for word in (f"--{key}", str(value))]
    subprocess.run(words, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True)
    return folder / "store"


def reference(base: str | None, fault: str, runs: int, steps: int) -> None:
    """Train as the base and with a fault, in turn, and print the comparison."""
    with tempfile.TemporaryDirectory() as folder:
        stores: tuple[list[Path], list[Path]] = ([], [])
        for number in range(runs):
            for side, what in zip(stores, (base, fault), strict=True):
                side.append(train(Path(folder) / f"{number}-{len(stores[0])}-{len(stores[1])}", what, steps))
        reports = [[perfkit.analyze(store) for store in side] for side in stores]
        recorded = [[Store(store).read("steps") for store in side] for side in stores]
        found = compare(*reports, steps=(recorded[0], recorded[1]))
        print(f"reference loop, {base or 'healthy'} and {fault}, {runs} runs a side in turn\n\n{to_text(found)}")


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("simulated", "recorded", "reference")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts[:2])
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--file", type=Path, default=HERE / "step_times.csv", help="recorded runs")
    parser.add_argument("--base", help="fault of the base (default: healthy)")
    parser.add_argument("--fault", default="slow-data:3.7ms", help="of the new side (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="of the reference loop, a side")
    parser.add_argument("--steps", type=int, default=150, help="of a run of the reference loop")
    args = parser.parse_args()
    if "simulated" in args.parts:
        table(simulated(args.pairs))
    if "recorded" in args.parts:
        table(chain(h100_windows(args.pairs), recorded_runs(args.file, args.pairs)))
    if "reference" in args.parts:
        reference(args.base, args.fault, args.runs, args.steps)


if __name__ == "__main__":
    main()
