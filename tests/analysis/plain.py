"""A plain recomputation of a trace's partition, steps and idle causes, on `json`, `decimal` and sorted lists.

It shares no code and no idea with perfkit.analysis: timestamps go through Decimal, and time is swept edge by
edge with a counter per class. Slow, short, and meant to be read. Steps and causes are for tidy traces: one
device, ProfilerStep ranges that do not overlap.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path

KERNELS, COPIES = {"kernel"}, {"gpu_memcpy", "gpu_memset", "memcpy", "memset"}
CALLS = {"cuda_runtime", "cuda_driver", "runtime"}
LATENCY_NS = 20_000


def load(path: Path) -> list[dict]:
    data = path.read_bytes()
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    trace = json.loads(data, parse_float=Decimal)
    return trace if isinstance(trace, list) else trace["traceEvents"]


def in_ns(value: object) -> int:
    exact = Decimal(value) * 1000
    assert exact == int(exact), f"{value} µs is no whole number of ns"
    return int(exact)


def is_communication(event: dict) -> bool:
    name = event["name"].lower()
    return "nccl" in name or "multimem_all_reduce" in name or "Collective name" in event.get("args", {})


def device_intervals(path: Path) -> list[tuple[int, int, str]]:
    result = []
    for event in load(path):
        category = str(event.get("cat")).lower()
        if event.get("ph") != "X" or category not in KERNELS | COPIES:
            continue
        start = in_ns(event["ts"])
        kind = "memcpy" if category in COPIES else "comm" if is_communication(event) else "compute"
        result.append((start, start + in_ns(event["dur"]), kind))
    return result


def partition(intervals: list[tuple[int, int, str]]) -> dict[str, int]:
    """Split the time from the first start to the last end."""
    edges = sorted([(s, 1, k) for s, _, k in intervals] + [(e, -1, k) for _, e, k in intervals])
    total = {"compute": 0, "comm": 0, "memcpy": 0, "idle": 0}
    open_now = {"compute": 0, "comm": 0, "memcpy": 0}
    previous = edges[0][0]
    for time, change, kind in edges:
        owner = next((k for k in ("compute", "comm", "memcpy") if open_now[k]), "idle")
        total[owner] += time - previous
        previous = time
        open_now[kind] += change
    assert not any(open_now.values())
    return {
        "window_ns": edges[-1][0] - edges[0][0],
        "compute_ns": total["compute"],
        "exposed_comm_ns": total["comm"],
        "exposed_memcpy_ns": total["memcpy"],
        "idle_ns": total["idle"],
    }


def steps_and_causes(path: Path) -> tuple[list[dict[str, int]], dict[str, int]]:
    """Return the partition of every step (definitions 1 and 2) and the idle time by cause (definition 5)."""
    work, launched_at, steps = _work_calls_and_steps(path)
    of_step: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for start, end, kind, correlation in work:
        asked = launched_at.get(correlation)
        for number, (low, high) in steps.items():
            if asked is not None and low <= asked < high:
                of_step[number].append((start, end, kind))
    numbers = sorted(of_step, key=lambda n: steps[n])
    edges: list[int] = []
    for number in numbers:
        compute = [start for start, _, kind in of_step[number] if kind == "compute"]
        first = min(compute or [start for start, _, _ in of_step[number]])
        edges.append(max([first, *edges]))
    edges.append(max(edges[-1], steps[numbers[-1]][1], *(end for _, end, _ in of_step[numbers[-1]])))

    rows = []
    for number, low, high in zip(numbers, edges[:-1], edges[1:], strict=True):
        inside = [(max(s, low), min(e, high), k) for s, e, k, _ in work if min(e, high) > max(s, low)]
        # empty intervals pull the sweep to the window's edges
        rows.append({"step": number, **partition([*inside, (low, low, "compute"), (high, high, "compute")])})
    return rows, _causes(work, launched_at, edges[0], edges[-1])


def _work_calls_and_steps(path: Path) -> tuple[list[tuple[int, int, str, object]], dict[object, int], dict]:
    work, launched_at, steps = [], {}, {}
    for event in load(path):
        if event.get("ph") != "X":
            continue
        category, args = str(event.get("cat")).lower(), event.get("args", {})
        start, dur = in_ns(event["ts"]), in_ns(event["dur"])
        if category in KERNELS | COPIES:
            kind = "memcpy" if category in COPIES else "comm" if is_communication(event) else "compute"
            work.append((start, start + dur, kind, args.get("correlation")))
        elif category in CALLS and args.get("correlation"):
            launched_at[args["correlation"]] = min(start, launched_at.get(args["correlation"], start))
        elif (found := re.match(r"ProfilerStep\s*#(\d+)", event["name"])) and category != "gpu_user_annotation":
            steps[int(found[1])] = (start, start + dur)
    return sorted(work, key=lambda w: w[:2]), launched_at, steps


def _causes(work: list, launched_at: dict, low: int, high: int) -> dict[str, int]:
    starting = defaultdict(list)
    for start, end, _, correlation in work:
        if end > start:
            starting[start].append((end, launched_at.get(correlation)))
    causes: Counter[str] = Counter()

    def charge(cause: str, start: int, end: int) -> None:
        causes[cause] += max(0, min(end, high) - max(start, low))

    dry = None
    for start in sorted(starting):
        if dry is not None and start > dry:
            asked = [at for _, at in starting[start] if at is not None]
            until = min(max(min(asked), dry), start) if asked else dry
            charge("host_late", dry, until)
            late = "launch" if start - until <= LATENCY_NS else "dependency"
            charge(late if asked else "unattributed", until, start)
        dry = max([dry or 0, *(end for end, _ in starting[start])])
    charge("unattributed", dry, high)
    return {cause: ns for cause, ns in causes.items() if ns}
