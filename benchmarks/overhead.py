"""What capture costs: one span, one step, one import, and its share of a 100 ms step with everything on.

    python benchmarks/overhead.py [--seconds 30] [--json]

Costs are CPU times (`thread_time`, `getrusage`), the smallest of many repeats for single calls, so that a busy
machine does not change them. The share adds up what runs where: hooks on the training thread, the writer thread,
and the side process with its compactions, the latter at the rate at which segments are handed over. Hooks run
between computations that have emptied the caches, so their share is counted at that price ("cold"), several times
the one in a tight loop. Beside it stands the wall-clock ratio of 100 ms steps with and without perfkit, interleaved,
with a bootstrap interval: it has the hooks in it, but neither writer nor side process, which disturb both kinds
of steps alike.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEP_SECONDS = 0.1
SPANS_PER_STEP = 10
MATRIX = 384
"""Three matrices of this size are 1.7 MB: more than a core's own caches hold."""
ROOT = Path(__file__).resolve().parents[1]


def call_us(function: Callable[[], object], number: int = 2000, repeat: int = 100) -> float:
    """Return the CPU microseconds of one call."""
    return min(timeit.repeat(function, number=number, repeat=repeat, timer=time.thread_time)) / number * 1e6


def measure_calls(folder: Path) -> dict[str, float]:
    import torch  # noqa: F401  # spans ask torch whether a profiler runs

    import perfkit

    found: dict[str, float] = {}

    def empty() -> None:
        with Empty():
            pass

    found["empty `with` block"] = call_us(empty)
    os.environ["PERFKIT"] = "0"
    off = perfkit.init(store=folder / "off")

    def span_off() -> None:
        with off.span("forward"):
            pass

    def module_span() -> None:
        with perfkit.span("forward"):
            pass

    found["span, PERFKIT=0"] = call_us(span_off)
    found["perfkit.span, PERFKIT=0"] = call_us(module_span)
    os.environ["PERFKIT"] = "1"
    pk: Any = perfkit.init(run="calls", store=folder / "on", side_process=False, buffer_records=1 << 22)

    def span_on() -> None:
        with pk.span("forward"):
            pass

    def step_on() -> None:
        with pk.step(tokens=8192):
            pass

    found["span"] = call_us(span_on)
    found["perfkit.span"] = call_us(module_span)
    found["step"] = call_us(step_on)
    found["log"] = call_us(lambda: pk.log("loss", 1.5))
    loader = iter(pk.data(iter(int, 1)))
    found["data"] = call_us(lambda: next(loader))
    pk.finish(timeout=60)
    return found


def measure_cold(folder: Path, calls: int = 1500) -> dict[str, float]:
    """Return the microseconds of a hook after a matmul: lower quartiles, which a busy machine hardly moves."""
    import torch

    import perfkit

    torch.set_num_threads(1)
    os.environ["PERFKIT"] = "0"
    off: Any = perfkit.init(store=folder / "off")
    os.environ["PERFKIT"] = "1"
    on: Any = perfkit.init(run="cold", store=folder / "cold", side_process=False)
    hooks: dict[str, Callable[[], Any]] = {
        "empty `with` block": Empty,
        "span, PERFKIT=0": lambda: off.span("forward"),
        "span": lambda: on.span("forward"),
        "step": lambda: on.step(tokens=8192),
    }
    a = torch.randn(MATRIX, MATRIX)
    took: dict[str, list[int]] = {name: [] for name in hooks}
    for _ in range(calls):
        for name, hook in hooks.items():
            a @ a
            started = time.perf_counter_ns()
            with hook():
                pass
            took[name].append(time.perf_counter_ns() - started)
    on.finish(timeout=60)
    return {name: sorted(times)[calls // 4] / 1e3 for name, times in took.items()}


class Empty:
    """What Python itself takes for a context manager."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def measure_import(repeats: int = 5) -> float:
    """Return the CPU seconds that importing and resolving perfkit's hooks adds to torch's own import."""
    code = (
        "import time, torch; t = time.process_time(); import perfkit; perfkit.init, perfkit.step;"
        "import perfkit.capture.writer, perfkit.capture.profiling, perfkit.capture.ranges as ranges;"
        "ranges.Ranges(); print(time.process_time() - t)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    runs = [
        float(subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True).stdout)
        for _ in range(repeats)
    ]
    return min(runs)


def measure_job(folder: Path, seconds: float) -> dict[str, float]:
    """Train with 100 ms steps, everything on, and read what each part of perfkit used."""
    import perfkit

    pk: Any = perfkit.init(
        run="job", store=folder / "job", flops_per_token=1e9, peak_flops=1e15, metrics_port=0,
        log_every=100, host_seconds=5.0, profile=perfkit.ProfileSchedule(first=10**9),
    )  # fmt: skip
    steps = max(10, int(seconds / STEP_SECONDS))
    warm = steps // 4
    marks = []
    for number in range(steps):
        if number in (warm, steps - 1):
            marks.append((number, pk.writer._own_ns, side_cpu(pk)))
        for _ in pk.data([None]):
            with pk.step(tokens=8192):
                for span in range(SPANS_PER_STEP):
                    with pk.span(f"span{span}"):
                        time.sleep(STEP_SECONDS / SPANS_PER_STEP)
                pk.log("loss", 1.0)
    compactor = compaction_cpu(pk)
    rotate = pk.settings.rotate_seconds
    pk.finish(timeout=120)
    (first, writer_0, side_0), (last, writer_1, side_1) = marks
    made = last - first
    return {
        "writer thread": (writer_1 - writer_0) / 1e9 / made,
        "side process": (side_1 - side_0) / made,
        "compaction, at its first and highest rate": compactor / (rotate / STEP_SECONDS),
    }


def side_cpu(pk: Any) -> float:
    """CPU seconds of the side process so far, from the kernel."""
    process = pk.writer.sidecar._process
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def compaction_cpu(pk: Any) -> float:
    """CPU seconds of one compaction, with the start of its process."""
    from perfkit.capture.sidecar import environment

    pk.writer._spool.rotate()
    before = os.times()
    command = [sys.executable, "-m", "perfkit.capture.compact", str(pk.writer.folder), str(pk.settings.store)]
    subprocess.run(command, env=environment(), stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def measure_ratio(folder: Path, blocks: int = 300) -> tuple[float, float, float]:
    """Interleave 100 ms steps with and without perfkit; returns the median ratio of pairs and its 95 % interval."""
    import torch

    import perfkit

    torch.set_num_threads(1)
    os.environ["PERFKIT"] = "0"
    off: Any = perfkit.init(store=folder / "off")
    os.environ["PERFKIT"] = "1"
    on: Any = perfkit.init(run="ratio", store=folder / "ratio", flops_per_token=1e9, peak_flops=1e15)
    a = torch.randn(MATRIX, MATRIX)
    matmuls = round(STEP_SECONDS / SPANS_PER_STEP / (call_us(lambda: a @ a, number=10, repeat=20) / 1e6))
    dice = random.Random(0)
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(blocks):
        for enabled in dice.sample([True, False], 2):
            pk = on if enabled else off
            started = time.perf_counter()
            with pk.step(tokens=8192):
                for _ in range(SPANS_PER_STEP):
                    with pk.span("matmul"):
                        for _ in range(matmuls):
                            a @ a
            times[enabled].append(time.perf_counter() - started)
    on.finish(timeout=60)
    ratios = [one / other for one, other in zip(times[True], times[False], strict=True)]
    drawn = sorted(statistics.median(dice.choices(ratios, k=blocks)) for _ in range(2000))
    return statistics.median(ratios), drawn[50], drawn[-51]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the 100 ms job (default 30)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="perfkit-overhead-") as name:
        folder = Path(name)
        calls = measure_calls(folder)
        cold = measure_cold(folder)
        added = measure_import()
        job = measure_job(folder, args.seconds)
        ratio, low, high = measure_ratio(folder)
    slower = cold["span"] / calls["span"]
    hooks = (cold["step"] + (calls["data"] + calls["log"]) * slower + SPANS_PER_STEP * cold["span"]) / 1e6
    parts = {f"hooks, cold (step, data, log, {SPANS_PER_STEP} spans)": hooks, **job}
    total = sum(parts.values())
    if args.json:
        document = {"calls_us": calls, "cold_us": cold, "import_seconds": added, "cpu_seconds_per_step": parts,
                    "share_of_100ms_step": total / STEP_SECONDS, "wall_ratio": [ratio, low, high]}  # fmt: skip
        print(json.dumps(document, indent=1))
        return 0
    for what, us in calls.items():
        print(f"{what:<44}{us:>9.2f} µs")
    for what, us in cold.items():
        print(f"{what + ', after a matmul':<44}{us:>9.2f} µs")
    print(f"{'import, beyond torch':<44}{added * 1e3:>9.1f} ms CPU")
    print(f"\nCPU of a {STEP_SECONDS * 1e3:.0f} ms step")
    for what, seconds in parts.items():
        print(f"  {what:<42}{seconds * 1e6:>9.1f} µs  {seconds / STEP_SECONDS:>8.3%}")
    print(f"  {'total':<42}{total * 1e6:>9.1f} µs  {total / STEP_SECONDS:>8.3%}")
    print(f"\nwall clock, interleaved steps on / off: {ratio:.4f} (95 % interval {low:.4f} to {high:.4f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
