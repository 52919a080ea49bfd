"""Turn the tables of an nsys export into chunks.

    ExportReader(input, options, tables)     iterate for chunks

Tables are read one after the other, each once and in bounded batches: device work first, then API
calls, then NVTX ranges, because that order needs the least memory to project ranges onto the device
(32 bytes per piece of device work; calls and ranges are never held). `event_id` counts the rows of a
part in that order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.errors import CorruptInput
from perfkit.schema import COLLECTIVE_ARGS, EVENTS, KERNELS_META, MEMORY, NVTX_GPU, SYNCS, TableSchema
from perfkit.sources.base import Chunk, Input, ReadOptions
from perfkit.sources.nsys.info import device_info, tracks
from perfkit.sources.nsys.plan import (
    DEVICE_TABLES,
    GPU_MEMORY,
    GRAPH,
    ID_MASK,
    KERNEL,
    MEMCPY,
    MEMSET,
    NVTX,
    PID_SHIFT,
    RUNTIME,
    SYNC,
    make_plan,
    note,
    note_unread,
)
from perfkit.sources.nsys.project import NO_DEVICE, DeviceWork
from perfkit.sources.nsys.rows import (
    HOST_CATEGORIES,
    KERNEL_META,
    NO_STREAM,
    Interval,
    SyncCalls,
    call_categories,
    call_names,
    coded,
    constant,
    copy_names,
    first_known,
    graph_names,
    in_int32,
    interval,
    json_args,
    meta_columns,
    pid_of,
    resolve,
    set_names,
    shape,
    sync_codes_of_calls,
    tid_of,
    without,
)
from perfkit.sources.nsys.tables import EXPORT_AGAIN, Batch, Tables, rows_of

_DEVICE_COLUMNS = ("start", "end", "globalPid", "deviceId", "contextId", "streamId", "correlationId")
_KERNEL_NAMES = ("demangledName", "shortName", "mangledName")
_OF_DEVICE_TABLE: dict[str, tuple[str, ...]] = {
    KERNEL: (*_DEVICE_COLUMNS, *_KERNEL_NAMES, *KERNEL_META, "staticSharedMemory", "dynamicSharedMemory", "graphId"),
    MEMCPY: (*_DEVICE_COLUMNS, *KERNEL_META, "bytes", "copyKind", "srcKind", "dstKind"),
    MEMSET: (*_DEVICE_COLUMNS, *KERNEL_META, "bytes", "memKind"),
    GRAPH: (*_DEVICE_COLUMNS, "graphId"),
}
_CATEGORY = {KERNEL: "kernel", GRAPH: "kernel", MEMCPY: "gpu_memcpy", MEMSET: "gpu_memset"}
_PHASES = pa.array(["X", "i", "B", "E"])
_X, _MARK, _BEGIN, _END, _SKIP = range(5)
_PHASE_OF_TYPE = {
    "PushPopRange": _X, "StartEndRange": _X, "PushRange": _X, "StartRange": _X,
    "PopRange": _END, "EndRange": _END, "Mark": _MARK,
}  # fmt: skip
"""By NVTX event type without its prefix; the other types name things (domains, categories, threads)."""


class ExportReader:
    """One pass over the tables of an export; iterate for chunks."""

    def __init__(self, input: Input, options: ReadOptions, tables: Tables) -> None:
        self._input, self._options, self._tables = input, options, tables
        self._plan = make_plan(tables, input.path)
        self.parts = self._plan.parts
        self.done = 0.0
        """How much of the rows is read, 0 to 1."""
        self._rows_done = 0
        self._left_out_rows = 0
        self._payload_seen = False
        self._next_id = [0] * len(self.parts)
        self._work = [DeviceWork() for _ in self.parts]
        self._sync_calls = [SyncCalls() for _ in self.parts]
        self._pending: dict[tuple[int, str], list[pa.Table]] = {}

    def __iter__(self) -> Iterator[Chunk]:
        self._note_sidecars()
        for index, process in enumerate(self._plan.processes):
            for name, rows in (
                ("device_info", device_info(self._tables, process)),
                ("tracks", tracks(self._tables, self._plan, process)),
            ):
                if rows is not None:
                    yield Chunk(index, name, rows)
        for table in DEVICE_TABLES:
            yield from self._scan(table, _OF_DEVICE_TABLE[table], "globalPid")
        for table, columns, owner in (
            (RUNTIME, ("start", "end", "globalTid", "correlationId", "nameId", "eventClass"), "globalTid"),
            (SYNC, (*_DEVICE_COLUMNS, "syncType", "eventId"), "globalPid"),
            *(
                (table, ("start", "end", "globalTid", "correlationId", "nameId", "textId"), "globalTid")
                for table in self._plan.host_tables
            ),
            (GPU_MEMORY, (*_DEVICE_COLUMNS, "address", "bytes", "memKind", "memoryOperationType"), "globalPid"),
            (NVTX, ("start", "end", "eventType", "globalTid", "endGlobalTid", "textId", "domainId"), "globalTid"),
        ):
            yield from self._scan(table, columns, owner)
        yield from self._flush(0)
        self._conclude()

    def _note_sidecars(self) -> None:
        """Say that a write-ahead log or journal is ignored: replaying it would write to the user's folder."""
        for suffix in ("-wal", "-journal"):
            sidecar = Path(f"{self._input.file}{suffix}")
            if sidecar.is_file() and sidecar.stat().st_size:
                note(self.parts[0], "truncated", 1, f"{sidecar.name} holds changes that are not in the file; ignored")

    def _conclude(self) -> None:
        for part, work in zip(self.parts, self._work, strict=True):
            work.project(*(np.empty(0, np.int64) for _ in range(3)))
            note(part, "unresolved", work.num_unlaunched, "device work whose launch is not in the report")
            note(part, "unresolved", work.over_budget, "ranges too deeply nested to project onto the device")
        first = self.parts[0]
        payloads = self._plan.payloads
        note(first, "unresolved", payloads.num_ambiguous, "NVTX payload schemas that two processes define differently")
        pids = ", ".join(str((key or 0) & ID_MASK) for key in sorted(self._plan.left_out, key=str)[:8])
        note_unread(first, self._left_out_rows, f"rows of processes without device work: {pids}")
        if payloads.layouts and not self._payload_seen:
            detail = "NCCL's payloads (message sizes): export again with `nsys export --include-blobs=true …`"
            note(first, "missing_table", 1, detail)
        if not any(part.num_events for part in self.parts):
            oddity = next(iter(first.oddities.values()), None)
            detail = f": {oddity.detail}" if oddity else ""
            raise CorruptInput(f"no event could be read{detail}", path=self._input.path, next_step=EXPORT_AGAIN)

    # ------------------------------------------------------------------ rows to parts

    def _scan(self, table: str, columns: Sequence[str], owner: str) -> Iterator[Chunk]:
        """Read a table, hand each part its rows, and pass on full chunks."""
        have = self._tables.columns(table)
        texts, blobs = (["text"], ["binaryData"]) if table == NVTX else ([], [])
        known = {*columns, *texts, *blobs}
        extras = sorted(have - known) if self._options.keep_args else []
        if table == NVTX and extras:
            extras = sorted({*extras, "domain"})
        batches = self._tables.scan(
            table, ints=columns, texts=texts, blobs=blobs, extras=extras, rows=min(16_384, self._options.rows_per_chunk)
        )
        make = {SYNC: self._sync, RUNTIME: self._call, GPU_MEMORY: self._memory, NVTX: self._nvtx}
        for whole in batches:
            for oddity in whole.oddities:
                note(self.parts[0], *oddity)
            self._rows_done += whole.num_rows
            self.done = min(1.0, self._rows_done / max(1, self._plan.num_rows))
            for index, batch in self._split(whole, owner):
                if table in DEVICE_TABLES:
                    self._device(index, table, batch, extras)
                elif table in make:
                    make[table](index, batch, extras)
                else:
                    self._host(index, table, batch, extras)
            yield from self._flush(self._options.rows_per_chunk)

    def _split(self, batch: Batch, owner: str) -> Iterator[tuple[int, Batch]]:
        """Yield each part's rows; a row that names no process belongs to the only one, if there is only one."""
        processes = self._plan.processes
        ids, valid = batch.ints(owner)
        default = processes.index(None) if None in processes else 0 if len(processes) == 1 else -1
        index = np.where(valid, -2, default)
        for number, process in enumerate(processes):
            if process is not None:
                index[valid & (ids >> PID_SHIFT == process)] = number
        self._left_out_rows += int((index == -2).sum())
        note(self.parts[0], "unresolved", int((index == -1).sum()), "rows that name no process")
        for number in np.unique(index[index >= 0]).tolist():
            rows = np.flatnonzero(index == number)
            yield number, batch if len(rows) == batch.num_rows else batch.take(rows)

    def _emit(self, index: int, schema: TableSchema, columns: dict[str, pa.Array]) -> None:
        self._pending.setdefault((index, schema.name), []).append(shape(schema, columns))

    def _flush(self, at_least: int) -> Iterator[Chunk]:
        """Pass on what is large enough, and everything if many parts together hold too much."""
        sizes = {key: sum(map(len, tables)) for key, tables in self._pending.items()}
        too_much = sum(sizes.values()) > 2 * at_least
        for (index, name), size in sizes.items():
            if size >= at_least or too_much:
                tables = self._pending.pop((index, name))
                yield Chunk(index, name, pa.concat_tables(tables).unify_dictionaries().combine_chunks())

    def _events(self, index: int, batch: Batch, extras: list[str], **columns: pa.Array) -> pa.Array:
        """Emit rows of `events` and return their ids."""
        first = self._next_id[index]
        self._next_id[index] += batch.num_rows
        self.parts[index].num_events += batch.num_rows
        event_id = pa.array(np.arange(first, first + batch.num_rows))
        if (args := json_args(batch, extras)) is not None:
            columns["args"] = args
        self._emit(index, EVENTS, {"event_id": event_id, **columns})
        return event_id

    # ------------------------------------------------------------------ one kind of row each

    def _device(self, index: int, table: str, batch: Batch, extras: list[str]) -> None:
        """Kernels, copies, memsets and whole graphs."""
        part = self.parts[index]
        times = interval(batch, part, self._plan.base_ns)
        kind = None
        if table == KERNEL:
            present = [name for name in _KERNEL_NAMES if name in batch.columns]
            names = first_known(
                *(resolve(self._tables, batch.columns[name], part, f"{table}.{name}") for name in present)
            ) if present else pa.nulls(batch.num_rows, pa.utf8())  # fmt: skip
        elif table == MEMCPY:
            names, kind = copy_names(batch)
        else:
            names = set_names(batch) if table == MEMSET else graph_names(batch)
        device = in_int32(batch.array("deviceId"), part, f"{table}.deviceId")
        event_id = self._events(
            index,
            batch,
            extras,
            phase=constant("X", batch.num_rows),
            category=constant(_CATEGORY[table], batch.num_rows),
            name=names,
            start_ns=times.start_ns,
            dur_ns=times.dur_ns,
            device=device,
            stream=batch.array("streamId"),
            pid=pid_of(batch.array("globalPid")),
            correlation=batch.array("correlationId"),
            bytes=batch.array("bytes"),
        )
        meta = meta_columns(batch) | ({} if kind is None else {"kind": kind})
        self._emit(index, KERNELS_META, {"event_id": event_id, **meta})
        correlation, valid = batch.ints("correlationId")
        usable = np.flatnonzero(valid & times.timed)
        number = device.fill_null(NO_DEVICE).to_numpy().astype(np.int64)
        self._work[index].add(correlation[usable], times.start[usable], times.end[usable], number[usable])

    def _sync(self, index: int, batch: Batch, extras: list[str]) -> None:
        part = self.parts[index]
        times = interval(batch, part, self._plan.base_ns)
        kind = self._sync_calls[index].kinds(batch)
        event_id = self._events(
            index,
            batch,
            extras,
            phase=constant("X", batch.num_rows),
            category=constant("cuda_sync", batch.num_rows),
            name=kind.fill_null("Unknown Sync"),
            start_ns=times.start_ns,
            dur_ns=times.dur_ns,
            device=in_int32(batch.array("deviceId"), part, f"{SYNC}.deviceId"),
            stream=without(batch.array("streamId"), NO_STREAM),
            pid=pid_of(batch.array("globalPid")),
            correlation=batch.array("correlationId"),
        )
        columns = {"event_id": event_id, "kind": kind, "wait_on_event_id": without(batch.array("eventId"), NO_STREAM)}
        self._emit(index, SYNCS, columns)

    def _thread_columns(self, batch: Batch, times: Interval) -> dict[str, pa.Array]:
        thread = batch.array("globalTid")
        return {"start_ns": times.start_ns, "dur_ns": times.dur_ns, "pid": pid_of(thread), "tid": tid_of(thread)}

    def _call(self, index: int, batch: Batch, extras: list[str]) -> None:
        part = self.parts[index]
        times = interval(batch, part, self._plan.base_ns)
        names = resolve(self._tables, batch.array("nameId"), part, f"{RUNTIME}.nameId").cast(pa.utf8())
        self._events(
            index,
            batch,
            extras,
            phase=constant("X", batch.num_rows),
            category=call_categories(batch.array("eventClass"), names),
            name=call_names(names),
            correlation=batch.array("correlationId"),
            **self._thread_columns(batch, times),
        )
        correlation, has_correlation = batch.ints("correlationId")
        self._sync_calls[index].see(
            correlation, np.where(has_correlation, sync_codes_of_calls(names), 0).astype(np.int8)
        )
        thread, has_thread = batch.ints("globalTid")
        event_class, _ = batch.ints("eventClass")
        calls = np.flatnonzero(
            has_correlation & has_thread & times.start_ns.is_valid().to_numpy(False) & (event_class != 67)
        )
        self._work[index].see_calls(correlation[calls], thread[calls], times.start[calls])

    def _host(self, index: int, table: str, batch: Batch, extras: list[str]) -> None:
        """Any other table of named host intervals: OS runtime, MPI, cuBLAS, profiler overhead, …"""
        part = self.parts[index]
        times = interval(batch, part, self._plan.base_ns)
        name_column = "nameId" if "nameId" in batch.columns else "textId"
        category = HOST_CATEGORIES.get(table) or ("mpi" if table.startswith("MPI_") else table.lower())
        self._events(
            index,
            batch,
            extras,
            phase=constant("X", batch.num_rows),
            category=constant(category, batch.num_rows),
            name=resolve(self._tables, batch.array(name_column), part, f"{table}.{name_column}").cast(pa.utf8()),
            correlation=batch.array("correlationId"),
            **self._thread_columns(batch, times),
        )

    def _memory(self, index: int, batch: Batch, extras: list[str]) -> None:
        """Allocations and releases of device memory."""
        part = self.parts[index]
        times = interval(batch, part, self._plan.base_ns, open_ended=np.ones(batch.num_rows, np.bool_))
        labels = {
            row["id"]: str(row["label"])
            for row in rows_of(self._tables, "ENUM_CUDA_DEV_MEM_EVENT_OPER", ints=["id"], texts=["label"])
        }
        name = coded(batch.array("memoryOperationType"), labels, "memory operation {}")
        released = pc.match_substring_regex(name, "(?i)dealloc|release|free")
        allocated = pc.and_not(pc.match_substring_regex(name, "(?i)alloc"), released)
        size = batch.array("bytes")
        signed = pc.if_else(allocated, size, pc.if_else(released, pc.negate(size), None))
        note(
            part, "unresolved", signed.null_count - size.null_count, f"{GPU_MEMORY}: allocation or release is not said"
        )
        device = in_int32(batch.array("deviceId"), part, f"{GPU_MEMORY}.deviceId")
        event_id = self._events(
            index,
            batch,
            extras,
            phase=constant("i", batch.num_rows),
            category=constant("gpu_memory", batch.num_rows),
            name=name,
            start_ns=times.start_ns,
            device=device,
            pid=pid_of(batch.array("globalPid")),
            correlation=batch.array("correlationId"),
            bytes=signed,
        )
        address = batch.array("address")
        bits = pa.Array.from_buffers(pa.uint64(), len(address), address.buffers(), offset=address.offset)
        self._emit(index, MEMORY, {"event_id": event_id, "address": bits, "device": device})

    def _nvtx(self, index: int, whole: Batch, extras: list[str]) -> None:
        """Ranges and marks, NCCL's payloads, and the projection of ranges onto the device."""
        part = self.parts[index]
        types, has_type = whole.ints("eventType")
        _, ended = whole.ints("end")
        phase = np.where(ended, _X, _MARK)  # of a type that is not known
        for code, name in self._plan.event_types.items():
            phase[has_type & (types == code)] = _PHASE_OF_TYPE.get(name, _SKIP)
        phase[(phase == _X) & ~ended] = _BEGIN
        batch = whole.take(np.flatnonzero(phase != _SKIP))
        phase = phase[phase != _SKIP]
        if not batch.num_rows:
            return
        part.note("unmatched_begin", int((phase == _BEGIN).sum()), "NVTX ranges that never end")
        part.note("unmatched_end", int((phase == _END).sum()), "NVTX pops without a push")
        times = interval(batch, part, self._plan.base_ns, open_ended=phase != _X)
        times.timed &= phase == _X
        names = first_known(
            batch.array("text").cast(pa.utf8()), resolve(self._tables, batch.array("textId"), part, NVTX)
        )
        if "domain" in extras:
            process = self._plan.processes[index]
            domains = {
                number: json.dumps(name) for (owner, number), name in self._plan.domains.items() if owner == process
            }
            batch.columns["domain"] = coded(batch.array("domainId"), domains, "{}")
        event_id = self._events(
            index,
            batch,
            extras,
            phase=pa.DictionaryArray.from_arrays(pa.array(phase.astype(np.int32)), _PHASES),
            category=constant("user_annotation", batch.num_rows),
            name=names,
            **self._thread_columns(batch, times),
        )
        if "binaryData" in batch.columns and self._plan.payloads.layouts:
            self._payloads(index, batch, event_id, names)
        thread, has_thread = batch.ints("globalTid")
        end_thread, has_end_thread = batch.ints("endGlobalTid")
        # like nsys itself: a range that ends on another thread is no scope of either
        ranges = np.flatnonzero(times.timed & has_thread & (~has_end_thread | (end_thread == thread)))
        found = self._work[index].project(thread[ranges], times.start[ranges], times.end[ranges])
        if len(found.range_index):
            rows = pa.array(ranges[found.range_index])
            columns = {
                "event_id": event_id.take(rows),
                "device": pa.array(found.device.astype(np.int32), mask=found.device == NO_DEVICE),
                "name": names.take(rows),
                "start_ns": pa.array(found.start),
                "dur_ns": pa.array(found.end - found.start),
                "num_events": pa.array(found.num_events),
                "busy_ns": pa.array(found.busy),
            }
            self._emit(index, NVTX_GPU, columns)

    def _payloads(self, index: int, batch: Batch, event_id: pa.Array, names: pa.Array) -> None:
        columns, decoded = self._plan.payloads.decode(batch.columns["binaryData"])
        rows = pa.array(np.flatnonzero(decoded))
        self._payload_seen |= batch.columns["binaryData"].null_count < batch.num_rows
        if len(rows):
            said = {"event_id": event_id, "collective": names, **columns}
            self._emit(index, COLLECTIVE_ARGS, {name: column.take(rows) for name, column in said.items()})
