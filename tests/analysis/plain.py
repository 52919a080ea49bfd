"""A plain recomputation of a trace's partition, on `json`, `decimal` and sorted lists.

It shares no code and no idea with perfkit.analysis: timestamps go through Decimal, and time is swept edge by
edge with a counter per class. Slow, short, and meant to be read.
"""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path

KERNELS, COPIES = {"kernel"}, {"gpu_memcpy", "gpu_memset", "memcpy", "memset"}


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
