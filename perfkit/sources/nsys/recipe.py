"""Read the parquet that NVIDIA's nsys recipes write: ranges already projected onto the GPU.

    is_recipe(tables) -> bool
    RecipeReader(input, options, tables)     iterate for chunks

`nvtx_gpu_proj_trace` has one row per NVTX range with the time of its device work, and no kernels. It
becomes `nvtx_gpu`, and the host ranges become `events`. Times count from the start of the recording.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from perfkit.schema import EVENTS, NVTX_GPU
from perfkit.sources.base import Chunk, Input, PartInfo, ReadOptions
from perfkit.sources.nsys.plan import note
from perfkit.sources.nsys.rows import constant, interval, shape
from perfkit.sources.nsys.tables import Batch, Tables

_COLUMNS = {
    "Projected Start": "start", "Projected Duration": "dur", "Orig Start": "host_start", "Orig Duration": "host_dur",
    "PID": "pid", "TID": "tid", "NumGPUOps": "num", "Rank": "rank",
}  # fmt: skip


_LACKS = (
    "nvtx_gpu_proj_trace alone: ranges and their device work, but no kernels; "
    "give the report's `nsys export --type sqlite` for those"
)


def _find(tables: Tables) -> dict[str, dict[str, str]]:
    """Map each projection table to (column as stored -> our name); columns may carry a unit."""
    found = {}
    for table in tables.names():
        stored = {column.removesuffix(" (ns)"): column for column in tables.columns(table)}
        if {"Name", "Projected Start", "Projected Duration"} <= stored.keys():
            found[table] = {stored[name]: ours for name, ours in _COLUMNS.items() if name in stored}
    return found


def is_recipe(tables: Tables) -> bool:
    """Tell whether the tables are a recipe's output alone: beside an export, the export says more."""
    exported = any(name == "StringIds" or name.startswith("CUPTI_ACTIVITY_KIND_") for name in tables.names())
    return bool(_find(tables)) and not exported


def plan_ranks(tables: Tables) -> list[int | None]:
    """Return the ranks that the recipe numbered; it numbers report files, one per rank."""
    ranks: set[int | None] = set()
    for table, columns in _find(tables).items():
        by_name = {ours: stored for stored, ours in columns.items()}
        ranks |= {rank for (rank,) in tables.distinct(table, (by_name["rank"], 0))} if "rank" in by_name else {None}
    return sorted(ranks, key=lambda rank: (rank is None, rank or 0))


def make_parts(ranks: list[int | None]) -> list[PartInfo]:
    """Return one part per rank."""
    parts = []
    for rank in ranks:
        known = rank is not None and 0 <= rank < 1 << 31
        part = PartInfo(rank=rank if known else None, rank_source="nsys recipe" if known else None, source="nsys")
        part.note("missing_table", 1, _LACKS)
        part.note("no_base_time", 1, "times count from the start of the recording")
        parts.append(part)
    return parts


class RecipeReader:
    """Iterate for chunks of `events` and `nvtx_gpu`."""

    def __init__(self, input: Input, options: ReadOptions, tables: Tables) -> None:
        self._options, self._tables = options, tables
        self._ranks = plan_ranks(tables)
        self.parts = make_parts(self._ranks)
        self.done = 0.0

    def __iter__(self) -> Iterator[Chunk]:
        ranks = self._ranks
        next_id = [0] * len(ranks)
        total = sum(self._tables.count(table) for table in _find(self._tables)) or 1
        done = 0
        for table, columns in _find(self._tables).items():
            for raw in self._tables.scan(table, ints=list(columns), texts=["Name"], rows=self._options.rows_per_chunk):
                for oddity in raw.oddities:
                    note(self.parts[0], *oddity)
                done += raw.num_rows
                self.done = min(1.0, done / total)
                batch = Batch(raw.num_rows, {columns.get(name, name): column for name, column in raw.columns.items()})
                rank, known = batch.ints("rank")
                for index, wanted in enumerate(ranks):
                    rows = np.flatnonzero(~known if wanted is None else known & (rank == wanted))
                    if len(rows):
                        yield from self._part(index, batch.take(rows), next_id[index])
                        next_id[index] += len(rows)

    def _part(self, index: int, batch: Batch, first_id: int) -> Iterator[Chunk]:
        part = self.parts[index]
        part.num_events += batch.num_rows
        event_id = pa.array(np.arange(first_id, first_id + batch.num_rows))
        host = interval(_as_interval(batch, "host_start", "host_dur"), part, 0)
        device = interval(_as_interval(batch, "start", "dur"), part, 0)
        events = {
            "event_id": event_id,
            "phase": constant("X", batch.num_rows),
            "category": constant("user_annotation", batch.num_rows),
            "name": batch.columns["Name"],
            "start_ns": host.start_ns,
            "dur_ns": host.dur_ns,
            "pid": batch.array("pid"),
            "tid": batch.array("tid"),
        }
        yield Chunk(index, "events", shape(EVENTS, events))
        projected = {
            "event_id": event_id,
            "name": batch.columns["Name"],
            "start_ns": device.start_ns,
            "dur_ns": device.dur_ns,
            "num_events": batch.array("num"),
        }
        timed = pa.array(np.flatnonzero(device.timed))
        if len(timed):
            yield Chunk(index, "nvtx_gpu", shape(NVTX_GPU, {name: c.take(timed) for name, c in projected.items()}))


def _as_interval(batch: Batch, start: str, duration: str) -> Batch:
    """Return start and end, as `interval` wants them; a sum that does not fit is out of range there."""
    begins, has_start = batch.ints(start)
    lasts, has_duration = batch.ints(duration)
    ends = np.clip(begins, -(1 << 62), 1 << 62) + np.clip(lasts, -(1 << 61), 1 << 61)
    columns = {"start": batch.array(start), "end": pa.array(ends, mask=~(has_start & has_duration))}
    return Batch(batch.num_rows, columns)
