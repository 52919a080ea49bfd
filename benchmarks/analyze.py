"""How fast the analysis of one rank is, and how it compares with HTA's load alone.

    python benchmarks/analyze.py --parts tables,traces,large [--hta PYTHON]

`tables`  attribution of 1.25 to 10 million events (half device work, half launches, 1,000 steps) on one core: from the
          Arrow table to the partition of every step, and to everything, in CPU time. The exponent of the growth is the
          slope of a line through the logarithms: 1 is linear. The kernel's part is the memory that it hands out, most
          of it to large arrays, and is shown apart.
`traces`  `.json.gz` to the printed document on the largest real traces, against HTA's load alone. `loaded` is after the
          imports, on both sides, in wall and in CPU time; `process` is the wall time of a whole process, on both sides.
`large`   time and peak memory of a process that analyzes a real trace repeated to 2 GB of JSON.

Traces are in $PERFKIT_TRACES, else ../shared/traces; made files, compiled modules and HTA's venv are in the cache.
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

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("PERFKIT_BENCH_CACHE", Path(tempfile.gettempdir()) / "perfkit-bench"))
TRACES = Path(os.environ.get("PERFKIT_TRACES", ROOT.parent / "shared" / "traces"))
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


def best_of(times: int, function: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    spent = []
    for _ in range(times):
        begin = clock()
        function()
        spent.append(clock() - begin)
    return min(spent)


def user_and_kernel_time(function: Callable[[], object]) -> tuple[float, float]:
    before = resource.getrusage(resource.RUSAGE_SELF)
    function()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime


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

    counts = [number // 4, number // 2, number, 2 * number]
    spent = []
    for count in counts:
        events = make_events(count)
        alone = best_of(3, lambda events=events: attribution_alone(events), time.process_time)
        runs = [user_and_kernel_time(lambda events=events: analyze_tables({"events": events})) for _ in range(2)]
        user, kernel = min(runs, key=sum)
        spent.append((alone, user + kernel, user))
        print(
            f"{len(events):>12,} events   attribution {alone:6.2f} s   everything {user + kernel:6.2f} s"
            f" ({kernel:.2f} s of it in the kernel)"
            f"   {1e9 * alone / count:5.0f} and {1e9 * user / count:5.0f} ns an event",
            flush=True,
        )
    growth = np.polyfit(np.log(counts), np.log(spent), 1)[0]
    print(f"growth: attribution n^{growth[0]:.2f}, everything n^{growth[1]:.2f}, without the kernel n^{growth[2]:.2f}")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


ANALYZE_LOADED = """
import sys, time
from perfkit.cli.lean import leave_out_what_takes_long
leave_out_what_takes_long()
from perfkit.analysis.analyze import analyze
wall, cpu = [], []
for _ in range(9):
    begin, busy = time.perf_counter(), time.process_time()
    analyze(sys.argv[1]).to_json()
    wall.append(time.perf_counter() - begin)
    cpu.append(time.process_time() - busy)
print(min(wall), min(cpu))
"""
HTA_LOADED = """
import logging, sys, time
from hta.trace_analysis import TraceAnalysis
logging.disable(logging.CRITICAL)
wall, cpu = [], []
for _ in range(int(sys.argv[2])):
    begin, busy = time.perf_counter(), time.process_time()
    TraceAnalysis(trace_files={0: sys.argv[1]})
    wall.append(time.perf_counter() - begin)
    cpu.append(time.process_time() - busy)
print(min(wall), min(cpu))
"""


def run(command: list[str]) -> str:
    """Run a process of perfkit or HTA with compiled modules, and return what it prints."""
    environment = {**os.environ, "HTA_DISABLE_NS_ROUNDING": "1", "PYTHONPYCACHEPREFIX": str(CACHE / "pyc")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True
    ).stdout


def measure_traces(hta_python: str, number: int = 6) -> None:
    files = [p for p in TRACES.rglob("*.json.gz") if "ByteDance" not in str(p) and p.stat().st_size > 500_000]
    columns = f"   {'perfkit':>8} {'HTA':>8} {'ratio':>6}"
    print(f"{'':44} {'MB gz':>6}{3 * columns}")
    print(f"{'':44} {'':>6}" + "".join(f"   {what:>8} {what:>8} {'':>6}" for what in ("loaded", "its CPU", "process")))
    for path in sorted(files, key=lambda p: -p.stat().st_size)[:number]:
        hta = [hta_python, "-W", "ignore", "-c", HTA_LOADED, str(path)]
        ours, our_cpu = map(float, run([sys.executable, "-c", ANALYZE_LOADED, str(path)]).split())
        theirs, their_cpu = map(float, run([*hta, "3"]).split()[-2:])
        command = [sys.executable, "-m", "perfkit", "analyze", str(path), "--format", "json"]
        whole, their_whole = best_of(5, lambda c=command: run(c)), best_of(2, lambda c=hta: run([*c, "1"]))
        print(
            f"{path.name[:44]:44} {path.stat().st_size / 1e6:6.2f}   {ours:6.2f} s {theirs:6.2f} s {theirs / ours:6.1f}"
            f"   {our_cpu:6.2f} s {their_cpu:6.2f} s {their_cpu / our_cpu:6.1f}"
            f"   {whole:6.2f} s {their_whole:6.2f} s {their_whole / whole:6.1f}",
            flush=True,
        )


ANALYZE = """
import re, sys, time
from perfkit.analysis.analyze import analyze
begin = time.perf_counter()
events = analyze(sys.argv[1]).summary["quality"]["events"]
status = open("/proc/self/status").read()  # not getrusage, which counts the process that started this one, too
peak = int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) / 2**20
print(f"{events:,} events   {time.perf_counter() - begin:.1f} s   peak memory {peak:.2f} GiB")
"""


def measure_large(size: int = 2_000_000_000) -> None:
    from ingest import repeat_trace

    source = TRACES / "facebookresearch__HolisticTraceAnalysis/tests/data/trace_diff/control/control.json.gz"
    path = repeat_trace(source, CACHE / f"repeated-{size >> 20}MB.json", size)
    found = run([sys.executable, "-c", ANALYZE, str(path)]).strip()
    print(f"{path.stat().st_size / 1e9:.2f} GB of {source.name}   {found}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="tables,traces,large")
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--hta", metavar="PYTHON", help="has `traceinsight`; without it a venv is made in the cache")
    args = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    parts = args.parts.split(",")
    if "tables" in parts:
        measure_tables(args.events)
    if "traces" in parts:
        from ingest import venv

        measure_traces(args.hta or str(venv("hta")))
    if "large" in parts:
        measure_large()


if __name__ == "__main__":
    main()
