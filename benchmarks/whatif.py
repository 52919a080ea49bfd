"""How far a replay can be trusted: real traces with nothing changed, simulated jobs with a change made, published jobs.

    python benchmarks/whatif.py                    all three tables
    python benchmarks/whatif.py --parts real
    python benchmarks/whatif.py --parts simulated --seeds 5
    python benchmarks/whatif.py --parts published scale

Real traces: `replay` is the error with the measured lags (zero by construction: it checks the bookkeeping), `structure`
the error with usual latencies instead, `unexplained` the share of the critical path without a known cause. A trace that
cannot be played says why.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from perfkit.analysis.analyze import examine  # noqa: E402
from perfkit.analysis.whatif import build_model, play, whatif  # noqa: E402
from perfkit.errors import PerfkitError  # noqa: E402
from tests.analysis.replay_jobs import CASES, MESHES, make_job, predicted_and_rerun, record  # noqa: E402

TRACES = Path(os.environ.get("PERFKIT_TRACES") or ROOT.parent / "shared" / "traces")
PUBLISHED = "ByteDance-Seed__StragglerAnalysis/data"
NOT_TRACES = ("ByteDance", "Primus", "Megatron", "linear_et", "JAX-Toolbox")


def jobs_in(folder: Path) -> list[Path]:
    """Return the traces of one job each: archives, folders of several ranks, single files."""
    files = [p for p in sorted(folder.rglob("*")) if p.name.endswith((".json", ".json.gz", ".tar.gz", ".sqlite"))]
    files = [p for p in files if not any(word in str(p) for word in NOT_TRACES)]
    together = {p.parent for p in files if "torchrec" in str(p)}
    return sorted({p.parent if p.parent in together else p for p in files})


def real() -> None:
    """Play every GPU trace with nothing changed."""
    head = f"{'trace':72} ranks steps  {'events':>7} {'points':>7} {'replay':>8} {'structure':>9} {'unexplained':>11}"
    print(f"{head}  CPU s")
    steps_within = steps_all = 0
    for path in jobs_in(TRACES):
        name = str(path.relative_to(TRACES))[-72:]
        try:
            examined = examine(path, replay=True)
            begun = time.process_time()
            found = play(examined)
        except PerfkitError as error:
            print(f"{name:72} {str(error).splitlines()[0][:110]}")
            continue
        model = build_model(examined)
        print(
            f"{name:72} {len(found.ranks):5} {found.steps:5}  {len(model.tasks.start):7} {model.graph.num_points:7} "
            f"{100 * found.replay_error:+7.3f}% {100 * found.structure_error:+8.2f}% {100 * found.unexplained:10.1f}%  "
            f"{time.process_time() - begun:.2f}"
            + ("" if found.steps_source != "trace" else "  (no steps: whole trace)")
        )
        if found.steps_source != "trace":
            steps_all += 1
            steps_within += abs(found.structure_error) <= 0.02
    print(f"with steps: {steps_within} of {steps_all} within 2 % by structure alone")


def simulated(seeds: int) -> None:
    """Compare predictions with the simulator's own rerun."""
    print(f"{'mesh':18} {'change':32} {'worst error':>11} {'mean':>7}   over {seeds} seeds")
    worst = 0.0
    for mesh in MESHES:
        for case in CASES:
            errors = []
            for seed in range(seeds):
                predicted, rerun = predicted_and_rerun(make_job(mesh, seed=seed, steps=4), case)
                errors.append(predicted / rerun - 1)
            largest = max(errors, key=abs)
            worst = max(worst, abs(largest))
            print(f"{mesh:18} {case:32} {100 * largest:+10.2f}% {100 * float(np.mean(errors)):+6.2f}%", flush=True)
    print(f"largest error {100 * worst:.2f} %")


def published() -> None:
    """Print the published measures of every per-op trace, and those that stand beside it."""
    import json

    for path in sorted((TRACES / PUBLISHED).glob("trace-*.parquet")):
        begun = time.process_time()
        one = whatif(path).straggling
        assert one is not None
        job = path.stem.removeprefix("trace-")
        print(
            f"{job}: T {one.step_time_ns / 1e9:.3f} s, ideal {one.ideal_ns / 1e9:.3f} s, Mw {one.mw:.3f}, "
            f"Ms {one.ms:.3f}, caused by {one.cause}, {time.process_time() - begun:.2f} s of CPU"
        )
        told = {n: path.with_name(f"{n}-{job}.json") for n in ("mw", "ms")}
        if all(file.exists() for file in told.values()):
            mw, ms = (json.loads(file.read_text()) for file in told.values())
            print(
                f"    published: T {mw['tori']:.3f} s, ideal {mw['tideal']:.3f} s, Mw {mw['Mw']:.3f}, Ms {ms['Ms']:.3f}"
            )


def scale() -> None:
    """Print the CPU time to play jobs of more ranks."""
    from perfkit.simulate.simulation import simulate

    for ranks in (8, 32, 64):
        examined = record(simulate(make_job(f"tp=4,dp={ranks // 4}", steps=3), flows=False))
        begun = time.process_time()
        model = build_model(examined)
        built = time.process_time()
        model.play([model.own] * 12)
        done = time.process_time()
        print(
            f"{ranks} ranks, {len(model.tasks.start)} device events, {model.graph.num_points} points: "
            f"build {built - begun:.2f} s, play 12 questions {done - built:.2f} s of CPU"
        )


def main() -> None:
    """Print the tables that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {"real": real, "simulated": lambda: simulated(args.seeds), "published": published, "scale": scale}
    parser.add_argument("--parts", nargs="+", choices=list(parts), default=list(parts))
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    for name in args.parts:
        parts[name]()
        print()


if __name__ == "__main__":
    main()
