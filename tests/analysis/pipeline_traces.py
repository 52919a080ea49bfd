"""Real pipelines: passes and receives of two production jobs, published with StragglerAnalysis."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from perfkit.analysis.intervals import clip, difference, union
from perfkit.analysis.layout import Layout

MICRO_BATCHES = {"ST": 4, "AR": 32}
"""ST straggles because of a stage, AR because of a worker; both have 4 stages and 1F1B."""


@cache
def read_pipeline(traces: Path, name: str) -> tuple[pa.Table, Layout]:
    """Return one row per rank and step (ns), and where the ranks stand; bubbles are those after the first pass."""
    path = traces / "ByteDance-Seed__StragglerAnalysis" / "data" / f"trace-{name}.parquet"
    if not path.exists():
        pytest.skip("not among the real traces here")
    frame = pq.read_table(path).to_pandas()
    start = (frame.start_ts.astype(float) * 1e9).astype("int64")
    frame = frame.assign(start=start, end=start + (frame.duration.astype(float) * 1e9).astype("int64"))
    rows, places = [], {}
    for (rank, stage, replica, step), one in frame.groupby(["rank", "stage", "dp_rank", "step"]):
        forward, backward = (one[one.optype == f"{kind}-compute"] for kind in ("forward", "backward"))
        assert len(forward) == len(backward) == MICRO_BATCHES[name]
        work = one[one.optype.isin(("forward-compute", "backward-compute"))]
        receives = one[one.optype.isin(("forward-recv", "backward-recv"))]
        waited = difference(union(receives.start, receives.end), union(work.start, work.end))
        lengths = [part.end - part.start for part in (forward, backward)]
        places[int(rank)] = {"pp": int(stage), "dp": int(replica)}
        rows.append(
            {
                "rank": int(rank), "device": 0, "step": int(step), "stage": int(stage),
                "bubble_ns": clip(waited, int(work.start.min()), 2**62).total,
                "forward_ns": int(lengths[0].sum()), "backward_ns": int(lengths[1].sum()),
                "forward_pass_ns": int(lengths[0].median()), "backward_pass_ns": int(lengths[1].median()),
                "window_ns": int(work.end.max() - work.start.min()), "exposed_comm_ns": 0,
                "compute_ns": int(lengths[0].sum() + lengths[1].sum()),
            }
        )  # fmt: skip
    degrees = {"pp": 4, "dp": len({place["dp"] for place in places.values()})}
    return pa.Table.from_pylist(rows), Layout(
        degrees=degrees, coordinates=places, role_of={rank: f"pp{place['pp']}" for rank, place in places.items()}
    )
