"""How much memory the allocator held, where the trace recorded it.

    memory_timeline(events, memory, rank, segment) -> table of MEMORY_SCHEMA, None without memory events

One series per device, thinned to its highest value in each of at most MAX_POINTS stretches of time, so that
the peak survives. Sources that record only sizes of allocations give the sum since the trace began, which
starts at 0 and not at what was allocated before: `absolute` is false for those.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.timeline import ints

MAX_POINTS = 2_000
MEMORY_SCHEMA = pa.schema(
    [
        ("rank", pa.int32()), ("device_type", pa.int64()), ("device", pa.int64()), ("time_ns", pa.int64()),
        ("allocated_bytes", pa.int64()), ("reserved_bytes", pa.int64()), ("absolute", pa.bool_()),
    ]
)  # fmt: skip


def memory_timeline(events: pa.Table, memory: pa.Table | None, rank: int, segment: int) -> pa.Table | None:
    """Return what was allocated and reserved over time, per device."""
    if memory is None or not len(memory):
        return None
    mine = pc.and_(pc.equal(memory["rank"], rank), pc.equal(memory["segment"], segment))
    memory = memory.filter(mine)
    here = pc.and_(pc.equal(events["rank"], rank), pc.equal(events["segment"], segment))
    instants = events.filter(pc.and_(here, pc.is_in(events["event_id"], value_set=memory["event_id"])))
    instants = instants.filter(pc.is_valid(instants["start_ns"]))
    columns = ["event_id", "start_ns", "bytes"]
    joined = memory.join(instants.select(columns), "event_id", join_type="inner").sort_by("start_ns")
    if not len(joined):
        return None
    device_type, device = ints(joined["device_type"], 0), ints(joined["device"])
    parts = []
    for kind, index in sorted(set(zip(device_type.tolist(), device.tolist(), strict=True))):
        rows = joined.filter(pa.array((device_type == kind) & (device == index)))
        parts.append(_series(rows, rank, kind, index))
    return pa.concat_tables(parts)


def _series(rows: pa.Table, rank: int, kind: int, index: int) -> pa.Table:
    absolute = rows["allocated_bytes"].null_count == 0
    allocated = ints(rows["allocated_bytes"]) if absolute else np.cumsum(ints(rows["bytes"], 0))
    time = ints(rows["start_ns"])
    bucket = (time - time[0]) * MAX_POINTS // max(int(time[-1] - time[0]) + 1, 1)
    highest = np.lexsort((-allocated, bucket))
    keep = np.sort(highest[np.append(True, np.diff(bucket[highest]) > 0)])
    number = len(keep)
    return pa.table(
        {
            "rank": np.full(number, rank, np.int32),
            "device_type": np.full(number, kind),
            "device": np.full(number, index),
            "time_ns": time[keep],
            "allocated_bytes": allocated[keep],
            "reserved_bytes": rows["reserved_bytes"].take(pa.array(keep)),
            "absolute": np.full(number, absolute),
        }
    ).cast(MEMORY_SCHEMA)
