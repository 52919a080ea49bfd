"""Builders that keep a case visible: times are small integers of ns, one function per kind of event."""

from __future__ import annotations

import pyarrow as pa

from perfkit.analysis.classify import classify_events
from perfkit.schema import EVENTS, conform

Row = dict[str, object]


def event(category: str, name: str, start: int | None, end: int | None, **more: object) -> Row:
    dur = None if start is None or end is None else end - start
    return {"category": category, "name": name, "start_ns": start, "dur_ns": dur, "phase": "X", **more}


def kernel(start: int, end: int, corr: int | None = None, name: str = "gemm", device: int | None = 0) -> Row:
    return event("kernel", name, start, end, correlation=corr, device=device, stream=7)


def nccl(start: int, end: int, corr: int | None = None, device: int | None = 0) -> Row:
    return kernel(start, end, corr, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", device)


def copy(
    start: int, end: int, corr: int | None = None, name: str = "Memcpy HtoD (Pinned -> Device)",
    size: int | None = None, device: int | None = 0,
) -> Row:  # fmt: skip
    return event("gpu_memcpy", name, start, end, correlation=corr, device=device, stream=7, bytes=size)


def call(start: int, end: int, corr: int | None = None, name: str = "cudaLaunchKernel", tid: int = 1) -> Row:
    return event("cuda_runtime", name, start, end, correlation=corr, pid=1, tid=tid)


def op(start: int, end: int, name: str = "aten::add", tid: int = 1) -> Row:
    return event("cpu_op", name, start, end, pid=1, tid=tid)


def span(start: int, end: int, name: str, tid: int = 1) -> Row:
    return event("user_annotation", name, start, end, pid=1, tid=tid)


def frame(start: int, end: int, name: str, tid: int = 1) -> Row:
    return event("python_function", name, start, end, pid=1, tid=tid)


def step(number: int, start: int, end: int, tid: int = 1) -> Row:
    return span(start, end, f"ProfilerStep#{number}", tid)


def events(*rows: Row, rank: int = 0, segment: int = 0) -> pa.Table:
    names = {c.name: c for c in EVENTS.columns}
    columns = {
        name: pa.array([row.get(name) for row in rows], pa.utf8() if pa.types.is_dictionary(c.type) else c.type)
        for name, c in names.items()
        if name not in ("rank", "segment", "event_id", "class")
    }
    columns["class"] = classify_events(columns["category"], columns["name"])
    for name, value in (("rank", rank), ("segment", segment)):
        columns[name] = pa.array([value] * len(rows), pa.int32())
    columns["event_id"] = pa.array(range(len(rows)), pa.int64())
    return conform(EVENTS, pa.table(columns))
