from __future__ import annotations

import numpy as np
import pyarrow as pa
from trace_rows import event, events, op

from perfkit.analysis.analyze import analyze_tables
from perfkit.analysis.memory import MAX_POINTS
from perfkit.schema import MEMORY, table_from_rows


def tables(points: list[tuple[int, int, int | None]], device: int = 0) -> dict[str, pa.Table]:
    """Points are (time, bytes, total allocated)."""
    rows = [{**event("cpu_instant_event", "[memory]", t, None), "bytes": size} for t, size, _ in points]
    memory = [
        {"rank": 0, "segment": 0, "event_id": i, "device_type": 1, "device": device, "allocated_bytes": total,
         "reserved_bytes": None if total is None else 2 * total}
        for i, (_, _, total) in enumerate(points)
    ]  # fmt: skip
    return {"events": events(*rows, op(0, 10)), "memory": table_from_rows(MEMORY, memory)}


def test_the_peak_is_what_the_allocator_reported() -> None:
    found = analyze_tables(tables([(1, 5, 105), (2, 10, 115), (3, -10, 105)]))
    (peak,) = found.summary["memory"]
    assert (peak["peak_allocated_bytes"], peak["peak_reserved_bytes"], peak["absolute"]) == (115, 230, True)
    assert found.tables["memory"]["allocated_bytes"].to_pylist() == [105, 115, 105]


def test_without_totals_the_sizes_are_summed_and_flagged() -> None:
    (peak,) = analyze_tables(tables([(3, -10, None), (1, 5, None), (2, 10, None)])).summary["memory"]
    assert (peak["peak_allocated_bytes"], peak["peak_reserved_bytes"], peak["absolute"]) == (15, None, False)


def test_a_long_series_is_thinned_and_keeps_its_peak() -> None:
    total = np.random.default_rng(0).integers(0, 10**9, 20_000)
    found = analyze_tables(tables([(10 * i, 0, int(t)) for i, t in enumerate(total)]))
    assert len(found.tables["memory"]) <= MAX_POINTS
    assert found.summary["memory"][0]["peak_allocated_bytes"] == total.max()


def test_a_trace_without_memory_events_has_no_memory() -> None:
    found = analyze_tables({"events": events(op(0, 10))})
    assert found.summary["memory"] == []
    assert "memory" not in found.tables
