"""Slow and obvious readings of a simulated trace, from its Kineto JSON alone."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np

WORK = {"kernel": 0, "gpu_memcpy": 2, "gpu_memset": 2}


def to_ns(text: Decimal) -> int:
    return int(text * 1000)


def load(text: str) -> dict[str, Any]:
    return json.loads(text, parse_float=Decimal)


def intervals(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """X events with exact `start` and `end`, relative to the base time."""
    events = []
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            start = to_ns(Decimal(event["ts"]))
            events.append({**event, "start": start, "end": start + to_ns(Decimal(event["dur"]))})
    return events


def is_communication(event: dict[str, Any]) -> bool:
    return "Collective name" in event["args"]


class Painted:
    """A rank's trace painted ns by ns: what the device did, and the deepest event of each host thread."""

    def __init__(self, text: str) -> None:
        self.trace = load(text)
        self.base = self.trace["baseTimeNanoseconds"]
        everything = intervals(self.trace)
        self.work = [e for e in everything if e["cat"] in WORK]
        host_cats = ("cpu_op", "cuda_runtime", "user_annotation", "python_function")
        self.host = [e for e in everything if e["cat"] in host_cats]
        self.steps = sorted((e for e in self.host if e["name"].startswith("ProfilerStep")), key=lambda e: e["start"])
        self.low = min(e["start"] for e in self.work + self.host)
        self.high = max(e["end"] for e in self.work + self.host)
        self.calls = {e["args"]["correlation"]: e for e in self.host if e["cat"] == "cuda_runtime"}
        size = self.high - self.low
        self.device = np.zeros((3, size), bool)
        for event in self.work:
            row = 1 if is_communication(event) else WORK[event["cat"]]
            self.device[row, event["start"] - self.low : event["end"] - self.low] = True
        self.deepest = {tid: np.full(size, -1, np.int32) for tid in {e["tid"] for e in self.host}}
        self.parent: dict[int, int] = {}
        order = sorted(range(len(self.host)), key=lambda i: (self.host[i]["start"], -self.host[i]["end"]))
        for i in order:  # what starts later lies deeper, and is painted over what is around it
            event = self.host[i]
            paint = self.deepest[event["tid"]]
            at = slice(event["start"] - self.low, event["end"] - self.low)
            self.parent[i] = int(paint[at.start])
            paint[at] = i

    def step_of(self, event: dict[str, Any]) -> int | None:
        call = self.calls.get(event["args"]["correlation"])
        for step in self.steps:
            if call is not None and step["start"] <= call["start"] < step["end"]:
                return int(step["name"].partition("#")[2])
        return None

    def windows(self) -> list[tuple[int, int, int]]:
        """(step, start, end) by definition 1."""
        starts, reached = [], 0
        for step in self.steps:
            number = int(step["name"].partition("#")[2])
            mine = [e for e in self.work if e["cat"] == "kernel" and not is_communication(e)]
            reached = max(reached, min(e["start"] for e in mine if self.step_of(e) == number))
            starts.append((number, reached))
        last = starts[-1][0]
        end = max(self.steps[-1]["end"], max(e["end"] for e in self.work if self.step_of(e) == last))
        edges = [start for _, start in starts] + [end]
        return [(number, start, edges[i + 1]) for i, (number, start) in enumerate(starts)]

    def partition(self, start: int, end: int) -> dict[str, int]:
        compute, comm, copy = self.device[:, start - self.low : end - self.low]
        return {
            "window_ns": end - start,
            "compute_ns": int(compute.sum()),
            "exposed_comm_ns": int((comm & ~compute).sum()),
            "exposed_memcpy_ns": int((copy & ~comm & ~compute).sum()),
            "idle_ns": int((~(copy | comm | compute)).sum()) + max(0, end - self.high),
            "comm_ns": int(comm.sum()),
            "overlap_ns": int((comm & compute).sum()),
        }

    def spill(self, step: int, end: int) -> int:
        later = np.zeros(self.high - self.low, bool)
        for event in self.work:
            if self.step_of(event) == step:
                later[event["start"] - self.low : event["end"] - self.low] = True
        return int(later[end - self.low :].sum())

    def idle(self, start: int, end: int, window: int) -> Counter[tuple[int, str, str | None]]:
        """Ns by (step, cause, culprit) of the gaps in a window, by definitions 5 and 6."""
        found: Counter[tuple[int, str, str | None]] = Counter()
        empty = ~self.device.any(axis=0)[start - self.low : end - self.low]
        edges = np.flatnonzero(np.diff(np.concatenate([[False], empty, [False]]).astype(int)))
        for dry, resumed in zip(edges[::2] + start, edges[1::2] + start, strict=True):
            after = [e for e in self.work if e["start"] == resumed]
            call = self.calls.get(after[0]["args"]["correlation"]) if after else None
            if call is None:
                found[window, "unattributed", None] += resumed - dry
                continue
            step = self.step_of(after[0])
            late = max(0, min(resumed, call["start"]) - dry)
            rest = resumed - dry - late
            if rest:
                found[step, "launch" if rest <= 20_000 else "dependency", None] += rest
            if late:
                self._blame(found, step, dry, dry + late, call["tid"])
        return found

    def _blame(self, found: Counter[tuple[int, str, str | None]], step: int, dry: int, until: int, tid: int) -> None:
        for event in self.host:
            if event["name"] == "cudaStreamSynchronize" and event["start"] < dry <= event["end"] <= dry + 20_000:
                found[step, "host_late", "sync"] += until - dry
                return
        deepest, times = np.unique(self.deepest[tid][dry - self.low : until - self.low], return_counts=True)
        for i, ns in zip(deepest.tolist(), times.tolist(), strict=True):
            found[step, "host_late", self._kind(i)] += ns

    def _kind(self, i: int) -> str:
        if i < 0:
            return "unattributed"
        at = i
        while at >= 0:
            name = self.host[at]["name"]
            for start, kind in (
                ("cudaMalloc", "allocator"), ("cudaFree", "allocator"), ("cudaStreamSynchronize", "sync"),
                ("enumerate(DataLoader)", "data_loader"), ("checkpoint", "checkpoint"), ("Optimizer.", "optimizer"),
            ):  # fmt: skip
                if name.startswith(start):
                    return kind
            at = self.parent[at]
        return {"cpu_op": "framework", "cuda_runtime": "runtime"}.get(self.host[i]["cat"], "python")
