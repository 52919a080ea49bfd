"""How fast the analysis of one rank is, and how it compares with HTA's load alone.

    python benchmarks/analyze.py [--events 5000000] [--traces FOLDER] [--hta PYTHON] [--large TRACE.json.gz]

1. Attribution of N events (half device work, half launches on the host, 1,000 steps) on one core: from the
   Arrow table to the partition of every step, and to everything (idle causes, culprits, copies).
2. Twice as many events: the cost per event must not grow.
3. With --traces: `.json.gz` to the summary, for the largest traces in the folder. With --hta: HTA's load
   alone on the same files, in that Python (one with `pip install traceinsight`), after its imports.
4. With --large: time and peak memory of a process that analyzes the trace repeated to 2 GB.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

pa.set_cpu_count(1)
pa.set_io_thread_count(1)


def make_events(number: int, steps: int = 1_000, seed: int = 1) -> pa.Table:
    """Kernels on three streams, each with a launch, and step ranges; random and reproducible."""
    rng = np.random.default_rng(seed)
    kernels = number // 2
    launch = np.cumsum(rng.integers(2_000, 8_000, kernels))
    start = launch + rng.integers(3_000, 60_000, kernels)
    dur = rng.integers(1_000, 9_000, kernels)
    kind = rng.choice(4, kernels, p=[0.8, 0.1, 0.06, 0.04])
    edges = np.linspace(0, int(launch[-1]) + 10_000, steps + 1).astype(np.int64)

    classes = ["compute", "communication", "memcpy", "memset", "runtime", "range"]
    categories = ["kernel", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "user_annotation"]
    names = [f"gemm_{i}" for i in range(200)] + ["ncclDevKernel_AllReduce", "Memcpy HtoD (Pinned -> Device)", "Memset"]
    names += ["cudaLaunchKernel", *(f"ProfilerStep#{i}" for i in range(steps))]
    code = np.where(kind == 0, rng.integers(0, 200, kernels), 199 + kind)
    count = 2 * kernels + steps
    group = np.concatenate((kind, np.full(kernels, 4), np.full(steps, 5)))
    on_device = np.arange(count) < kernels

    def text(codes: np.ndarray, values: list[str]) -> pa.Array:
        return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(values))

    correlation = np.concatenate((np.arange(1, kernels + 1), np.arange(1, kernels + 1), np.zeros(steps, np.int64)))
    from perfkit.schema import EVENTS, conform

    return conform(
        EVENTS,
        pa.table(
            {
                "rank": np.zeros(count, np.int32), "segment": np.zeros(count, np.int32), "event_id": np.arange(count),
                "class": text(group, classes), "category": text(group, categories),
                "name": text(np.concatenate((code, np.full(kernels, 203), 204 + np.arange(steps))), names),
                "start_ns": np.concatenate((start, launch, edges[:-1])),
                "dur_ns": np.concatenate((dur, np.full(kernels, 1_500), np.diff(edges))),
                "device": pa.array(np.zeros(count, np.int32), mask=~on_device),
                "pid": np.ones(count, np.int64), "tid": np.ones(count, np.int64), "correlation": correlation,
            }
        ),
    )  # fmt: skip


def best_of(times: int, function: Callable[[], object]) -> float:
    spent = []
    for _ in range(times):
        begin = time.perf_counter()
        function()
        spent.append(time.perf_counter() - begin)
    return min(spent)


def attribution_alone(events: pa.Table) -> pa.Table:
    from perfkit.analysis.attribute import attribute, busy_sets
    from perfkit.analysis.timeline import read_timelines
    from perfkit.analysis.windows import find_steps, find_windows

    (timeline,) = read_timelines(events)
    steps = find_steps(timeline)
    windows = find_windows(timeline, 0, steps=steps)
    return attribute(timeline, 0, windows, busy_sets(timeline, 0), steps)


def measure_tables(number: int) -> None:
    from perfkit.analysis.analyze import analyze_tables

    for count in (number, 2 * number):
        events = make_events(count)
        alone = best_of(3, lambda events=events: attribution_alone(events))
        everything = best_of(2, lambda events=events: analyze_tables({"events": events}))
        print(
            f"{len(events):>12,} events   attribution {alone:6.2f} s   everything {everything:6.2f} s"
            f"   {1e9 * alone / count:5.0f} and {1e9 * everything / count:5.0f} ns an event"
        )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


def measure_traces(folder: Path, hta_python: str | None, number: int = 5) -> None:
    from perfkit.analysis.analyze import analyze

    files = [p for p in folder.rglob("*.json.gz") if "ByteDance" not in str(p) and p.stat().st_size > 500_000]
    for path in sorted(files, key=lambda p: -p.stat().st_size)[:number]:
        ours = best_of(3, lambda path=path: analyze(path))
        line = f"{path.name[:44]:44} {path.stat().st_size / 1e6:6.2f} MB gz   perfkit {ours:6.2f} s"
        if hta_python:
            theirs = hta_load(hta_python, path)
            line += f"   HTA's load {theirs:6.2f} s   {theirs / ours:5.1f} times"
        print(line, flush=True)


HTA_LOAD = """
import logging, sys, time
from hta.trace_analysis import TraceAnalysis
logging.disable(logging.CRITICAL)
spent = []
for _ in range(3):
    begin = time.perf_counter()
    TraceAnalysis(trace_files={0: sys.argv[1]})
    spent.append(time.perf_counter() - begin)
print(min(spent))
"""


def hta_load(python: str, path: Path) -> float:
    """Seconds that HTA takes to read a trace, the best of three."""
    environment = {**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"}
    command = [python, "-W", "ignore", "-c", HTA_LOAD, str(path)]
    return float(
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()[-1]
    )


ANALYZE = """
import resource, sys, time
from perfkit.analysis.analyze import analyze
begin = time.perf_counter()
events = analyze(sys.argv[1]).summary["quality"]["events"]
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(f"{events:,} events   {time.perf_counter() - begin:.1f} s   peak memory {peak:.2f} GiB")
"""


def measure_large(source: Path, size: int = 2_000_000_000) -> None:
    from ingest import repeat_trace

    with tempfile.TemporaryDirectory() as folder:
        path = repeat_trace(source, Path(folder) / "large.json", size)
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
        done = subprocess.run(
            [sys.executable, "-c", ANALYZE, str(path)], env=environment, capture_output=True, text=True, check=True
        )
        print(f"{path.stat().st_size / 1e9:.2f} GB of {source.name}   {done.stdout.strip()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--hta", metavar="PYTHON")
    parser.add_argument("--large", type=Path, metavar="TRACE")
    args = parser.parse_args()
    if args.events:
        measure_tables(args.events)
    if args.traces:
        measure_traces(args.traces, args.hta)
    if args.large:
        measure_large(args.large)


if __name__ == "__main__":
    main()
