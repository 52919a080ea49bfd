"""The rows of a rank as Arrow tables, without going through JSON.

    ArrowTemplate(job, identity, template).tables(column, times) -> {"events": …, "kernels_meta": …, …}

Columns that all ranks of a stage share are built once; a rank adds its times, ids and groups. The result is
what reading the JSON of the same rank gives.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit import schema
from perfkit.analysis.classify import classify_events
from perfkit.simulate.job import Job
from perfkit.simulate.noise import Ints
from perfkit.simulate.program import STREAMS
from perfkit.simulate.rows import AUTOGRAD_FORWARD_THREAD, CONTEXT, DEVICE, Identity, Row, RowTemplate, kernel_config

DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


class ArrowTemplate:
    """Shared columns of the ranks of a stage."""

    def __init__(self, job: Job, identity: Identity, template: RowTemplate) -> None:
        self.job, self.identity, self.template = job, identity, template
        self.rows = template.rows
        self._place = np.array([row.place for row in self.rows], np.int64)
        self._stream = np.array([-1 if row.stream is None else row.stream for row in self.rows], np.int64)
        self._has_duration = np.array([row.end is not None for row in self.rows])
        self._on_device = np.array([has_device(row) or row.category == "gpu_user_annotation" for row in self.rows])

    def tables(self, column: int, times: Ints) -> dict[str, pa.Table]:
        """Return all trace tables of one rank."""
        rank = int(self.template.program.ranks[column])
        rows = self.template.rows_of(column)
        start, duration = self.template.times_of(self.job, times, column, rows)
        position = np.full(len(self.rows), -1, np.int64)
        position[rows] = np.arange(len(rows))
        tables = {
            "events": self._events(rank, rows, start, duration),
            "kernels_meta": self._kernels_meta(rank, position, duration),
            "ops": self._side(schema.OPS, self._ops, rank, position),
            "collective_args": self._collective_args(rank, position),
            "syncs": self._side(schema.SYNCS, self._syncs, rank, position),
            "tracks": self._tracks(rank),
            "device_info": self._device_info(rank),
            "process_groups": self._process_groups(rank),
        }
        return {table.name: tables.get(table.name, table.empty()) for table in schema.TRACE_TABLES}

    # -------------------------------------------------------------- events

    @cached_property
    def _shared(self) -> pa.Table:
        """Columns of events that do not depend on the rank."""
        rows = self.rows
        category, name = (_texts([getattr(row, key) for row in rows]) for key in ("category", "name"))
        phase = _texts([row.phase for row in rows])
        is_flow = [row.category == "ac2g" for row in rows]
        return pa.table(
            {
                "phase": phase,
                "category": category,
                "class": classify_events(category, name, [row.comm is not None for row in rows], phase),
                "name": name,
                "stream": pa.array(self._stream, mask=~self._on_device),
                "correlation": _ints([None if f else row.correlation for row, f in zip(rows, is_flow, strict=True)]),
                "external_id": _ints([row.external_id for row in rows]),
                "python_id": _ints([row.python_id for row in rows]),
                "flow_id": _ints([row.correlation if f else None for row, f in zip(rows, is_flow, strict=True)]),
                "bytes": _ints([row.num_bytes for row in rows]),
            }
        )

    def _events(self, rank: int, rows: Ints, start: Ints, duration: Ints) -> pa.Table:
        identity, device = self.identity, self.identity.device(rank)
        place = self._place[rows]
        on_device = place == DEVICE
        threads = np.array([identity.tid(rank, thread) for thread in (0, 1)] + [0])
        shared = self._shared if len(rows) == len(self.rows) else self._shared.take(rows)
        columns = {name: shared[name] for name in shared.column_names}
        columns |= {
            "rank": pa.repeat(pa.scalar(rank, pa.int32()), len(rows)),
            "segment": pa.repeat(pa.scalar(0, pa.int32()), len(rows)),
            "event_id": pa.array(np.arange(len(rows))),
            "start_ns": pa.array(start),
            "dur_ns": pa.array(duration, mask=~self._has_duration[rows]),
            "device": pa.array(np.full(len(rows), device, np.int32), mask=~self._on_device[rows]),
            "pid": pa.array(np.where(on_device, device, identity.pid(rank))),
            "tid": pa.array(np.where(on_device, self._stream[rows], threads[place])),
        }
        return schema.conform(schema.EVENTS, pa.table(columns))

    # -------------------------------------------------------------- side tables

    def _select(self, wanted: Callable[[Row], bool]) -> Ints:
        return np.array([i for i, row in enumerate(self.rows) if wanted(row)], np.int64)

    def _side(self, table: schema.TableSchema, source: tuple[Ints, pa.Table], rank: int, position: Ints) -> pa.Table:
        """Label the rows of a side table that this rank has."""
        chosen, rows = source
        event_id = position[chosen]
        if (event_id < 0).any():
            rows, event_id = rows.filter(pa.array(event_id >= 0)), event_id[event_id >= 0]
        return schema.conform(table, _label(rows, rank, event_id))

    @cached_property
    def _ops(self) -> tuple[Ints, pa.Table]:
        chosen = self._select(lambda row: row.dims is not None or row.sequence_number is not None)
        rows = [self.rows[i] for i in chosen]
        backward = [None if row.sequence_number is None else AUTOGRAD_FORWARD_THREAD for row in rows]
        return chosen, pa.table(
            {
                "input_dims": _texts([_json(row, row.dims) for row in rows]),
                "input_types": _texts([_json(row, row.types) for row in rows]),
                "concrete_inputs": _texts([None if row.concrete is None else _json(row, row.concrete) for row in rows]),
                "sequence_number": _ints([row.sequence_number for row in rows]),
                "fwd_thread_id": _ints(backward),
            }
        )

    @cached_property
    def _syncs(self) -> tuple[Ints, pa.Table]:
        chosen = self._select(lambda row: row.sync_kind is not None)
        return chosen, pa.table({"kind": _texts([self.rows[i].sync_kind for i in chosen])})

    @cached_property
    def _meta(self) -> tuple[Ints, pa.Table, Ints]:
        chosen = self._select(has_device)
        rows = [self.rows[i] for i in chosen]
        configs = [kernel_config(self.job, row) if row.category == "kernel" else None for row in rows]

        def column(key: str, kind: pa.DataType, item: int | None = None) -> pa.Array:
            values: list[Any] = [None if c is None else c[key] for c in configs]
            if item is not None:
                values = [None if v is None else v[item] for v in values]
            return pa.array(values, kind)

        table = pa.table(
            {
                "context": pa.repeat(pa.scalar(CONTEXT, pa.int64()), len(rows)),
                **{f"grid_{axis}": column("grid", pa.int64(), i) for i, axis in enumerate("xyz")},
                **{f"block_{axis}": column("block", pa.int64(), i) for i, axis in enumerate("xyz")},
                "registers_per_thread": column("registers per thread", pa.int64()),
                "shared_memory_bytes": column("shared memory", pa.int64()),
                "blocks_per_sm": column("blocks per SM", pa.float64()),
                "warps_per_sm": column("warps per SM", pa.float64()),
                "occupancy_pct": column("est. achieved occupancy %", pa.float64()),
                "queued": column("queued", pa.int64()),
            }
        )
        return chosen, table, np.array([row.num_bytes or 0 for row in rows], np.int64)

    def _kernels_meta(self, rank: int, position: Ints, duration: Ints) -> pa.Table:
        chosen, table, num_bytes = self._meta
        event_id = position[chosen]
        rate = num_bytes / np.maximum(duration[np.maximum(event_id, 0)], 1)
        table = table.append_column("bandwidth_gbps", pa.array(rate, mask=num_bytes == 0))
        return self._side(schema.KERNELS_META, (chosen, table), rank, position)

    @cached_property
    def _comms(self) -> tuple[Ints, pa.Table]:
        chosen = self._select(lambda row: row.comm is not None)
        comms = [comm for i in chosen if (comm := self.rows[i].comm) is not None]
        return chosen, pa.table(
            {
                "collective": _texts([comm.op for comm in comms]),
                "dtype": _texts([comm.dtype for comm in comms]),
                "seq": _ints([comm.seq for comm in comms]),
            }
        )

    def _collective_args(self, rank: int, position: Ints) -> pa.Table:
        chosen, table = self._comms
        comms = [comm for i in chosen if (comm := self.rows[i].comm) is not None]
        groups = self.identity.groups(rank)
        mine = [groups[comm.role] for comm in comms]
        ranks_of = {role: group.ranks_text for role, group in groups.items()}  # long in a large job
        pairs = [self.identity.message_ranks(rank, comm) if comm.role == "pp" else (None, None) for comm in comms]
        sizes = [self.identity.message_sizes(rank, comm) for comm in comms]
        columns = {
            "in_nelems": _ints([size[0] for size in sizes]),
            "out_nelems": _ints([size[1] for size in sizes]),
            "in_split": _texts([str(size[2]) for size in sizes]),
            "out_split": _texts([str(size[3]) for size in sizes]),
            "group_name": _texts([group.name for group in mine]),
            "group_desc": _texts([group.desc for group in mine]),
            "group_ranks": _texts([ranks_of[comm.role] for comm in comms]),
            "group_size": _ints([len(group.ranks) for group in mine]),
            "src_rank": _ints([pair[0] for pair in pairs]),
            "dst_rank": _ints([pair[1] for pair in pairs]),
        }
        for name, values in columns.items():
            table = table.append_column(name, values)
        return self._side(schema.COLLECTIVE_ARGS, (chosen, table), rank, position)

    # -------------------------------------------------------------- about the process

    def _tracks(self, rank: int) -> pa.Table:
        rows: list[dict[str, object]] = [
            {"rank": rank, "segment": 0, "pid": pid, "tid": tid if key.startswith("thread") else None, "key": key,
             "value": str(value)}
            for pid, tid, key, value in metadata_events(self.identity, rank)
        ]  # fmt: skip
        return schema.table_from_rows(schema.TRACKS, rows)

    def _device_info(self, rank: int) -> pa.Table:
        rows = [
            {
                "rank": rank, "segment": 0, "device": device["id"], "name": device["name"],
                "memory_bytes": device["totalGlobalMem"], "num_sms": device["numSms"],
                "compute_major": device["computeMajor"], "compute_minor": device["computeMinor"],
                "properties": json.dumps(device),
            }
            for device in self.identity.devices()
        ]  # fmt: skip
        return schema.table_from_rows(schema.DEVICE_INFO, rows)

    def _process_groups(self, rank: int) -> pa.Table:
        rows = [
            {
                "rank": rank, "segment": 0, "name": group.name, "desc": group.desc, "backend": "cuda:nccl",
                "size": len(group.ranks), "ranks": list(group.ranks),
            }
            for group in self.identity.groups(rank).values()
        ]  # fmt: skip
        return schema.table_from_rows(schema.PROCESS_GROUPS, rows)


def has_device(row: Row) -> bool:
    """Say whether a row names device, context and stream."""
    return row.category in DEVICE_WORK or row.category == "cuda_sync"


def metadata_events(identity: Identity, rank: int) -> list[tuple[int, int, str, str | int]]:
    """Return (pid, tid, key, value) of the names of processes and threads."""
    pid, device = identity.pid(rank), identity.device(rank)
    found: list[tuple[int, int, str, str | int]] = [
        (pid, 0, "process_name", "python"),
        (pid, 0, "process_labels", "CPU"),
        (pid, 0, "process_sort_index", pid),
        (device, 0, "process_name", "python"),
        (device, 0, "process_labels", f"GPU {device}"),
        (device, 0, "process_sort_index", 5_000_000 + device),
    ]
    for stream in STREAMS.values():
        found += [(device, stream, "thread_name", f"stream {stream} "), (device, stream, "thread_sort_index", stream)]
    for thread in (0, 1):
        tid = identity.tid(rank, thread)
        found.append((pid, tid, "thread_name", f"thread {tid} (python)"))
    return found


def _label(rows: pa.Table, rank: int, event_id: Ints) -> pa.Table:
    number = len(rows)
    columns = {name: rows[name] for name in rows.column_names}
    columns["rank"] = pa.repeat(pa.scalar(rank, pa.int32()), number)
    columns["segment"] = pa.repeat(pa.scalar(0, pa.int32()), number)
    columns["event_id"] = pa.array(event_id)
    return pa.table(columns)


def _json(row: Row, value: object) -> str | None:
    return None if row.dims is None else json.dumps(value, separators=(",", ":"))


def _texts(values: Sequence[str | None]) -> pa.Array:
    return pc.dictionary_encode(pa.array(values, pa.utf8()))


def _ints(values: Sequence[int | None]) -> pa.Array:
    return pa.array(values, pa.int64())
