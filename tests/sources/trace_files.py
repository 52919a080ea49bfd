"""Builders of small Kineto traces that keep the case visible."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def op(name: str = "aten::mm", ts: float = 1.0, dur: float | None = 2.0, **more: Any) -> dict[str, Any]:
    """One CPU op."""
    event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 10, "tid": 11, "ts": ts, "dur": dur, "args": {}}
    event.update(more)
    return {key: value for key, value in event.items() if value is not None}


def kernel(
    name: str = "gemm", ts: float = 1.0, dur: float = 2.0, *, device: int = 0, stream: int = 7, **args: Any
) -> dict[str, Any]:
    """One kernel."""
    fields = {"device": device, "stream": stream, "correlation": 1, **args}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": device,
        "tid": stream,
        "ts": ts,
        "dur": dur,
        "args": fields,
    }


def document(*events: Any, rank: int | None = None, world_size: int = 8, **keys: Any) -> dict[str, Any]:
    """A whole trace."""
    head: dict[str, Any] = {"schemaVersion": 1}
    if rank is not None:
        head["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world_size}
    return {**head, **keys, "traceEvents": list(events)}


def write(path: Path, trace: Any) -> Path:
    """Write a document, text or bytes, gzipped if the name says so."""
    data = trace if isinstance(trace, bytes) else (trace if isinstance(trace, str) else json.dumps(trace)).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
