"""Waiting for data, checkpoints, and copies.

    io_rows(timeline, device, windows, busy, idle) -> table of IO_SCHEMA

| kind | host_ns or device_ns | exposed_ns |
|---|---|---|
| data | host time inside the data loader | device idle that is charged to it: the data wait |
| checkpoint | host time inside checkpoint code | device idle that is charged to it |
| h2d, d2h, d2d, p2p, memset, other | device time of these copies | the part that no compute or communication hides |

Data and checkpoint are null where the trace does not say what the host did (no ops, frames or ranges).
Exposed copies sum to `exposed_memcpy_ns` exactly: where copies of two directions run at once, the
nanosecond belongs to the first in the order above. GB/s is bytes over the summed durations of the copies
whose size is recorded, so copies that overlap do not look faster than the link.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.attribute import Busy
from perfkit.analysis.classify import CLASSES, HOST_KINDS
from perfkit.analysis.intervals import Ints, Spans, clip, difference, join, union
from perfkit.analysis.stacks import Kinds
from perfkit.analysis.timeline import Timeline
from perfkit.analysis.windows import Windows

DIRECTIONS = ("h2d", "d2h", "d2d", "p2p", "memset", "other")
_PATTERNS = {"h2d": ("htod", "host_to_device"), "d2h": ("dtoh", "device_to_host"), "d2d": ("dtod",), "p2p": ("ptop",)}
IO_SCHEMA = pa.schema(
    [
        ("rank", pa.int32()), ("device", pa.int32()), ("kind", pa.utf8()), ("count", pa.int64()),
        ("host_ns", pa.int64()), ("device_ns", pa.int64()), ("exposed_ns", pa.int64()),
        ("bytes", pa.int64()), ("bytes_ns", pa.int64()),
    ]
)  # fmt: skip


def io_rows(
    timeline: Timeline, device: int | None, windows: Windows, busy: Busy, idle: pa.Table, kinds: Kinds | None = None
) -> pa.Table:
    """Return one row per kind of input and output inside the windows of one device."""
    low, high = (int(windows.edges[0]), int(windows.edges[-1])) if len(windows.edges) else (0, 0)
    of_host = (kinds or Kinds(timeline)).of_all
    rows = [_on_host(timeline, of_host, kind, culprit, low, high, idle) for kind, culprit in _HOST]
    if device is not None:
        rows += _copies(timeline, device, low, high, busy)
    shown = device if device is not None and device >= 0 else None
    return pa.Table.from_pylist([{"rank": timeline.rank, "device": shown, **row} for row in rows], IO_SCHEMA)


_HOST = (("data", "data_loader"), ("checkpoint", "checkpoint"))
_TELLING = [CLASSES.index(name) for name in ("op", "python", "range")]
"""Host events by which a data loader or a checkpoint can be known; runtime calls alone do not tell."""


def _on_host(
    timeline: Timeline, kinds: Ints, kind: str, culprit: str, low: int, high: int, idle: pa.Table
) -> dict[str, object]:
    host = timeline.host
    if not np.isin(host.kind, _TELLING).any():
        return {"kind": kind}
    mine = np.flatnonzero(kinds == HOST_KINDS.index(culprit))
    spans = clip(union(host.start[mine], host.end[mine]), low, high)
    exposed = pc.sum(idle.filter(pc.equal(idle["culprit"].cast(pa.utf8()), culprit))["idle_ns"]).as_py() or 0
    return {"kind": kind, "count": len(spans.start), "host_ns": spans.total, "exposed_ns": exposed}


def _copies(timeline: Timeline, device: int, low: int, high: int, busy: Busy) -> list[dict[str, object]]:
    work = timeline.work
    copies = np.isin(work.kind, [CLASSES.index("memcpy"), CLASSES.index("memset")])
    here = copies & (work.device == device) & (work.end > low) & (work.start < high)
    lut = np.zeros(len(timeline.names), np.int64)
    for name in np.unique(work.name[here]).tolist():
        lut[name] = _direction(timeline.names[name])
    direction = np.where(work.kind == CLASSES.index("memset"), DIRECTIONS.index("memset"), lut[work.name])
    hidden: Spans = join(busy.compute, busy.communication)
    rows: list[dict[str, object]] = []
    for code, kind in enumerate(DIRECTIONS):
        mine = np.flatnonzero(here & (direction == code))
        if not len(mine):
            continue
        spans = clip(union(work.start[mine], work.end[mine]), low, high)
        sized = mine[work.bytes[mine] >= 0]
        rows.append(
            {
                "kind": kind, "count": len(mine), "device_ns": spans.total,
                "exposed_ns": difference(spans, hidden).total,
                "bytes": int(work.bytes[sized].sum()) if len(sized) else None,
                "bytes_ns": int((work.end[sized] - work.start[sized]).sum()) if len(sized) else None,
            }
        )  # fmt: skip
        hidden = join(hidden, spans)
    return rows


def _direction(name: str) -> int:
    lowered = name.lower()
    for code, kind in enumerate(DIRECTIONS):
        if any(pattern in lowered for pattern in _PATTERNS.get(kind, ())):
            return code
    return DIRECTIONS.index("other")
