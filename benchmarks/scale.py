"""How cost grows with the ranks of a job: ingest and analysis of simulated dumps of 8 to 1,000 ranks and more.

    python benchmarks/scale.py                     # 8, 64, 512, 1,000 ranks; the exponent of growth
    python benchmarks/scale.py --ranks 4096        # does it fit in 2 GB?
    python benchmarks/scale.py --part engine       # efficiency of the local engine on 2 cores (wants a quiet machine)
    python benchmarks/quiet.py python python benchmarks/scale.py --part engine --engine-ranks 64
        --repeats 2 --disk /dev/shm                # the same beside other work: a minute, and nothing waits for a disk

Every measurement is a process of its own: CPU seconds of it and its children, peak memory of the driver and of the
largest worker, files in the store. Times are CPU time, which a busy machine disturbs least; the exponent is the slope
of log(CPU) over log(ranks).

Engine efficiency is the speed-up over two: wall time of the whole ingest with one worker on one core, over twice that
with two workers on two, the same files, one after the other, the median over the repeats. Two separate processes, each
with half of the files and a core of its own, follow each time: no engine beats that, and what they lose is the
machine's (memory, cache and disk that two cores share).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

RANKS = (8, 64, 512, 1000)
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""An installed perfkit has its bytecode; compiling it anew in every process is no part of what is measured."""


def make_dump(folder: Path, ranks: int, steps: int, layers: int) -> Path:
    """Simulate a data-parallel job, once per size."""
    target = folder / f"dump-{ranks}-{steps}-{layers}"
    if not target.exists():
        from perfkit.simulate import Job, Mesh, simulate, write_traces

        partial = folder / f"{target.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        write_traces(simulate(Job(mesh=Mesh.parse("", ranks), steps=steps, layers=layers)), partial)
        for path in partial.glob("truth*"):
            path.unlink()
        partial.rename(target)
    return target


def measure(what: str, *arguments: str) -> dict[str, float]:
    """Run one part of this script in a process of its own."""
    command = [sys.executable, __file__, "--child", what, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    if done.returncode:
        raise SystemExit(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def child(what: str, arguments: list[str]) -> None:
    import perfkit
    from perfkit.engine.shards import parse_shard

    before = _cpu()
    started = time.perf_counter()
    if what == "ingest":
        dump, store, workers, *more = arguments  # and which core, and which share of the files
        if more:
            os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[int(more[0])]})
        share = parse_shard(more[1], {}) if more[1:] else None
        report = perfkit.ingest(dump, store=store, run="job", workers=int(workers), shard=share)
        assert not report.rejected, report.rejected[:3]
        found = {"ranks": len(report.ranks), "events": report.num_events}
    else:
        store, workers = arguments
        from perfkit.engine.local import LocalEngine

        answer = perfkit.analyze("job", store=store, engine=LocalEngine(int(workers)))
        found = {"ranks": answer.summary["scope"]["ranks_traced"], "events": answer.summary["quality"]["events"]}
    wall = time.perf_counter() - started
    # ru_maxrss counts the memory of the process that started this one; a worker's is at most what is said
    own = int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024
    workers_peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(json.dumps({"wall": wall, "cpu": _cpu() - before, "driver_mb": own, "worker_mb": workers_peak, **found}))


def _cpu() -> float:
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)


def count_files(store: Path) -> tuple[int, float]:
    files = [path for path in store.rglob("*") if path.is_file()]
    return len(files), sum(path.stat().st_size for path in files) / 1e6


def growth(args: argparse.Namespace, folder: Path) -> None:
    print("                  | ingest                                      | store        | analyze")
    print(
        " ranks     events |  CPU s ms/rank  wall s driver MB worker MB | files packed |  CPU s ms/rank  wall s  driver"
    )
    rows = []
    for ranks in args.ranks:
        dump, store = make_dump(args.cache, ranks, args.steps, args.layers), folder / f"store-{ranks}"
        ingest = measure("ingest", str(dump), str(store), str(args.workers))
        analyze = measure("analyze", str(store), str(args.workers))
        assert ingest["ranks"] == analyze["ranks"] == ranks
        files, _ = count_files(store)
        packed = _packed(store)
        rows.append((ranks, ingest["cpu"], analyze["cpu"], analyze["driver_mb"]))
        cells = [f"{ranks:>6} {ingest['events']:>10,}", f"{_cost(ingest, ranks)} {ingest['worker_mb']:>9.0f}"]
        print(" | ".join([*cells, f"{files:>5} {packed:>6}", _cost(analyze, ranks)]), flush=True)
        shutil.rmtree(store)
    if len(rows) > 2:
        ranks, ingest_cpu, analyze_cpu, driver = np.array(rows).T
        print(f"exponent of growth, over all sizes: ingest {_slope(ranks, ingest_cpu):.3f}, analyze "
              f"{_slope(ranks, analyze_cpu):.3f}; over the last two: ingest {_slope(ranks[-2:], ingest_cpu[-2:]):.3f}, "
              f"analyze {_slope(ranks[-2:], analyze_cpu[-2:]):.3f}")  # fmt: skip
        per_rank, base = np.polyfit(ranks, driver, 1)
        print(f"driver of the analysis: {base:.0f} MB + {1e3 * per_rank:.0f} kB per rank; "
              f"{base + 4096 * per_rank:,.0f} MB at 4,096 ranks")  # fmt: skip


def _cost(found: dict[str, float], ranks: int) -> str:
    per_rank_ms = 1e3 * found["cpu"] / ranks
    return f"{found['cpu']:>6.1f} {per_rank_ms:>7.1f} {found['wall']:>7.1f} {found['driver_mb']:>9.0f}"


def _packed(store: Path) -> int:
    from perfkit.store import Store

    lake = Store(store)
    lake.compact(quiet_hours=0)
    lake.gc(older_than_hours=0, dry_run=False)
    return count_files(store)[0]


def _slope(ranks: np.ndarray, seconds: np.ndarray) -> float:
    return float(np.polyfit(np.log(ranks), np.log(seconds), 1)[0])


def engine(args: argparse.Namespace, folder: Path) -> None:
    dump = make_dump(args.cache, args.engine_ranks, 64, 8)
    walls: dict[str, list[float]] = {"one": [], "two": [], "alone": []}
    for repeat in range(args.repeats):
        for how, seen in walls.items():
            store = folder / f"engine-{repeat}"
            if how == "alone":
                wall = _two_alone(dump, store)
            else:
                workers, pinned = ("1", ["0"]) if how == "one" else ("2", [])
                wall = measure("ingest", str(dump), str(store), workers, *pinned)["wall"]
            shutil.rmtree(store)
            seen.append(wall)
        print(f"one worker {walls['one'][-1]:.2f} s, two workers {walls['two'][-1]:.2f} s, two processes that know "
              f"nothing of each other {walls['alone'][-1]:.2f} s", flush=True)  # fmt: skip
    one, two, alone = (np.array(seen) for seen in walls.values())
    gain, ceiling, own = one / two / 2, one / alone / 2, alone / two
    print(f"local engine on two cores: efficiency {_percent(gain)}; the machine allows {_percent(ceiling)}, "
          f"of which the engine gets {_percent(own)}")  # fmt: skip


def _percent(ratios: np.ndarray) -> str:
    low, middle, high = 100 * np.quantile(ratios, [0, 0.5, 1])
    return f"{middle:.0f} % ({low:.0f} to {high:.0f})"


def _two_alone(dump: Path, store: Path) -> float:
    """Return how long two separate processes need, on a core each: what this machine's two cores can do together."""
    command = [sys.executable, __file__, "--child", "ingest", str(dump)]
    both = [
        subprocess.Popen(
            [*command, str(store / str(k)), "1", str(k), f"{k}/2"], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
        )
        for k in range(2)
    ]
    return max(float(json.loads(process.communicate()[0].splitlines()[-1])["wall"]) for process in both)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("growth", "engine"), default="growth")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--engine-ranks", type=int, default=512, help="files of the efficiency's dump")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--disk", type=Path, help="where stores are written (default: the temporary folder)")
    parser.add_argument(
        "--cache", type=Path, default=os.environ.get("PERFKIT_BENCH_CACHE"), help="where dumps are kept"
    )
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child[0], args.child[1:])
        return
    with tempfile.TemporaryDirectory(prefix="perfkit-scale-", dir=args.disk) as folder:
        args.cache = Path(args.cache or folder)
        args.cache.mkdir(parents=True, exist_ok=True)
        {"growth": growth, "engine": engine}[args.part](args, Path(folder))


if __name__ == "__main__":
    main()
