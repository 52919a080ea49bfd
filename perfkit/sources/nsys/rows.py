"""Turn rows of nsys tables into rows of perfkit's tables: names, categories, times, launch configuration.

    interval(batch, part, base_ns)   -> start_ns, dur_ns, and what the projection needs
    copy_names(batch) …              -> columns for `events`
    meta_columns(batch)              -> columns for `kernels_meta`

Categories and names follow Kineto, so that the analysis sees one vocabulary: `Memcpy HtoD (Pinned ->
Device)`, `cuda_runtime`, `cuda_sync`, `user_annotation`. The version that nsys appends to a runtime
call (`cudaLaunchKernel_v7000`) is cut off for the same reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.schema import TableSchema, conform
from perfkit.sources.base import PartInfo
from perfkit.sources.nsys.plan import ID_MASK, PID_SHIFT, note
from perfkit.sources.nsys.tables import Batch, Bools, Ints, Tables

TIME_LIMIT = 1 << 62
NO_STREAM = 0xFFFFFFFF
"""CUPTI's `no value` for the stream or event of a synchronisation."""

COPY_KINDS = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP",
    11: "Unified HtoD", 12: "Unified DtoH", 13: "Unified DtoD",
}  # fmt: skip
MEMORY_KINDS = {
    0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device Static", 6: "Managed Static",
}  # fmt: skip
SYNC_KINDS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_SYNC_CALLS = (
    (1, re.compile(r"(cuda|cu)Event(Synchronize|Query)")),
    (2, re.compile(r"(cuda|cu)StreamWaitEvent")),
    (3, re.compile(r"(cuda|cu)Stream(Synchronize|Query)")),
    (4, re.compile(r"(cuda|cu)(Device|Ctx|Thread)Synchronize")),
)
CALL_CATEGORIES = {0: "cuda_runtime", 1: "cuda_driver", 67: "cuda_backtrace"}
"""By eventClass. A `cuda_backtrace` row repeats a runtime call together with its call chain."""
HOST_CATEGORIES = {
    "OSRT_API": "osrt", "CUBLAS_EVENTS": "cublas", "CUDNN_EVENTS": "cudnn", "PROFILER_OVERHEAD": "overhead",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "overhead", "CUDA_GRAPH_EVENTS": "cuda_graph",
    "CUDA_GRAPH_NODE_EVENTS": "cuda_graph", "SYSCALL": "syscall",
}  # fmt: skip

KERNEL_META = {
    "contextId": "context", "gridX": "grid_x", "gridY": "grid_y", "gridZ": "grid_z", "blockX": "block_x",
    "blockY": "block_y", "blockZ": "block_z", "registersPerThread": "registers_per_thread",
    "graphNodeId": "graph_node_id", "srcDeviceId": "from_device", "dstDeviceId": "to_device",
}  # fmt: skip


@dataclass(slots=True)
class Interval:
    """Times of a batch: as columns, and raw for the projection."""

    start_ns: pa.Array
    dur_ns: pa.Array
    start: Ints
    end: Ints
    timed: Bools
    """Both times are good."""


def interval(batch: Batch, part: PartInfo, base_ns: int, *, open_ended: Bools | None = None) -> Interval:
    """Return absolute times; what is missing or impossible becomes null and is noted. `open_ended` may lack an end."""
    start, has_start = batch.ints("start")
    end, has_end = batch.ints("end")
    good_start = has_start & (np.abs(start) < TIME_LIMIT) & (start != np.iinfo(np.int64).min)
    good_end = has_end & (np.abs(end) < TIME_LIMIT) & (end != np.iinfo(np.int64).min)
    negative = good_start & good_end & (end < start)
    endless = ~has_end if open_ended is None else ~has_end & ~open_ended
    part.note("missing_ts", int((~has_start).sum()))
    part.note("missing_dur", int(endless.sum()))
    part.note("time_out_of_range", int((has_start & ~good_start).sum() + (has_end & ~good_end).sum()))
    part.note("negative_dur", int(negative.sum()))
    timed = good_start & good_end & ~negative
    start = np.where(good_start, start, 0) + base_ns
    end = np.where(timed, end, 0) + base_ns
    if good_start.any():
        last = max(int(start[good_start].max()), int(end[timed].max()) if timed.any() else int(start[good_start].min()))
        part.see_times(int(start[good_start].min()), last)
    return Interval(
        pa.array(start, mask=~good_start), pa.array(np.where(timed, end - start, 0), mask=~timed), start, end, timed
    )


def constant(value: str, rows: int) -> pa.Array:
    """Return a text column of one value."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([value], pa.utf8()))


def coded(codes: pa.Array, words: dict[int, str], otherwise: str) -> pa.Array:
    """Return the word of each code; `otherwise` is a pattern for codes without one, null stays null."""
    encoded = codes.dictionary_encode()
    texts = [words.get(code, otherwise.format(code)) for code in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.utf8()).take(encoded.indices)


def resolve(tables: Tables, ids: pa.Array, part: PartInfo, where: str) -> pa.Array:
    """Return the texts of string ids; an id that leads nowhere is null and noted."""
    if not pa.types.is_integer(ids.type):
        return ids
    encoded = ids.dictionary_encode()
    unique = encoded.dictionary.to_numpy(zero_copy_only=False).astype(np.int64)
    order = np.argsort(unique)
    texts = tables.strings(unique[order]).take(pa.array(np.argsort(order)))
    names = texts.take(encoded.indices)
    note(part, "unresolved", names.null_count - ids.null_count, f"{where} that is not in StringIds")
    return names


def first_known(*columns: pa.Array) -> pa.Array:
    """Return the first non-null value of each row."""
    return columns[0] if len(columns) == 1 else pc.coalesce(*columns)


def call_names(names: pa.Array) -> pa.Array:
    """Cut the API version off the names of runtime calls."""
    return pc.replace_substring_regex(names, r"^(cuda\w+?)_v\d{4,5}$", r"\1")


def call_categories(classes: pa.Array, names: pa.Array) -> pa.Array:
    """Tell runtime, driver and backtrace rows apart, by name where the export has no class."""
    by_name = pc.if_else(pc.starts_with(names, "cuda"), "cuda_runtime", "cuda_driver")
    return pc.coalesce(coded(classes, CALL_CATEGORIES, "nsys_event_class_{}"), by_name, pa.scalar("cuda_runtime"))


def sync_codes_of_calls(names: pa.Array) -> npt.NDArray[np.int8]:
    """Return the kind of synchronisation that each API call performs, 0 for the others."""
    encoded = names.dictionary_encode()
    words = encoded.dictionary.to_pylist()
    codes = [next((code for code, pattern in _SYNC_CALLS if pattern.match(word)), 0) for word in words]
    found: npt.NDArray[np.int8] = np.array([*codes, 0], np.int8)[encoded.indices.fill_null(len(codes)).to_numpy()]
    return found


class SyncCalls:
    """Which call a synchronisation came from, by correlation.

    The call says what was waited for. `syncType` does not: several versions of nsys write a stream
    synchronisation as 2, which their own ENUM_CUPTI_SYNC_TYPE calls a stream wait.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[Ints, npt.NDArray[np.int8]]] = []
        self._sorted: tuple[Ints, npt.NDArray[np.int8]] | None = None

    def see(self, correlation: Ints, codes: npt.NDArray[np.int8]) -> None:
        """Remember the calls that synchronise."""
        self._seen.append((correlation[codes > 0], codes[codes > 0]))

    def kinds(self, batch: Batch) -> pa.Array:
        """Return the kind of each synchronisation; null if neither the call nor the type can be trusted."""
        if self._sorted is None:
            seen = [(np.empty(0, np.int64), np.empty(0, np.int8)), *self._seen]
            ids, first = np.unique(np.concatenate([ids for ids, _ in seen]), return_index=True)
            self._sorted = ids, np.concatenate([codes for _, codes in seen])[first]
        ids, codes = self._sorted
        correlation, valid = batch.ints("correlationId")
        written, has_type = batch.ints("syncType")
        event, _ = batch.ints("eventId")
        on_event = event != NO_STREAM
        kind = np.where(has_type & np.where(on_event, np.isin(written, (1, 2)), np.isin(written, (3, 4))), written, 0)
        if len(ids):
            at = np.minimum(np.searchsorted(ids, correlation), len(ids) - 1)
            kind = np.where(valid & (ids[at] == correlation), codes[at], kind)
        return coded(pa.array(kind, mask=kind == 0), SYNC_KINDS, "{}")


def copy_names(batch: Batch) -> tuple[pa.Array, pa.Array]:
    """Return Kineto's name of each copy, and its direction."""
    kind = coded(batch.array("copyKind"), COPY_KINDS, "<unknown>")
    source, target = (
        coded(batch.array(c), MEMORY_KINDS, "Unknown").fill_null("Unknown") for c in ("srcKind", "dstKind")
    )
    label = kind.fill_null("<unknown>")
    return pc.binary_join_element_wise("Memcpy ", label, " (", source, " -> ", target, ")", ""), kind


def set_names(batch: Batch) -> pa.Array:
    """Return Kineto's name of each memset."""
    where = coded(batch.array("memKind"), MEMORY_KINDS, "Unknown").fill_null("Unknown")
    return pc.binary_join_element_wise("Memset (", where, ")", "")


def graph_names(batch: Batch) -> pa.Array:
    """Name the launch of a whole graph, whose kernels the report does not list."""
    number = batch.array("graphId").cast(pa.utf8()).fill_null("?")
    return pc.binary_join_element_wise("CUDA graph ", number, "")


def meta_columns(batch: Batch) -> dict[str, pa.Array]:
    """Return the launch configuration that the batch carries."""
    columns = {ours: batch.columns[theirs] for theirs, ours in KERNEL_META.items() if theirs in batch.columns}
    if {"staticSharedMemory", "dynamicSharedMemory"} <= batch.columns.keys():
        total = pc.add(batch.array("staticSharedMemory"), batch.array("dynamicSharedMemory"))
        columns["shared_memory_bytes"] = total
    if "graphId" in batch.columns:
        columns["graph_id"] = without(batch.array("graphId"), 0)
    return columns


def without(column: pa.Array, sentinel: int) -> pa.Array:
    """Return the column with a value that means `none` replaced by null."""
    return pc.if_else(pc.equal(column, sentinel), None, column)


def in_int32(column: pa.Array, part: PartInfo, where: str) -> pa.Array:
    """Return device numbers; what cannot be one is null and noted."""
    fits = pc.and_(pc.greater_equal(column, -(1 << 31)), pc.less(column, 1 << 31))
    kept = pc.if_else(fits, column, None)
    note(part, "integer_out_of_range", kept.null_count - column.null_count, where)
    return kept.cast(pa.int32())


def pid_of(global_id: pa.Array) -> pa.Array:
    """Return the process id inside a globalPid or globalTid."""
    return pc.bit_wise_and(pc.shift_right(global_id, PID_SHIFT), ID_MASK)


def tid_of(global_id: pa.Array) -> pa.Array:
    """Return the thread id inside a globalTid."""
    return pc.bit_wise_and(global_id, ID_MASK)


def json_args(batch: Batch, extras: list[str]) -> pa.Array | None:
    """Join the columns that perfkit does not know into one JSON object per row; null if there is none."""
    # (null_handling="skip" would drop the rows in which all are null)
    pairs = [
        pc.binary_join_element_wise(f',"{name}":', batch.columns[name], "").fill_null("")
        for name in extras
        if name in batch.columns
    ]
    if not pairs:
        return None
    joined = pc.utf8_slice_codeunits(pc.binary_join_element_wise(*pairs, ""), 1)
    whole = pc.binary_join_element_wise("{", joined, "}", "")
    return pc.if_else(pc.equal(joined, ""), None, whole)


def shape(schema: TableSchema, columns: dict[str, pa.Array]) -> pa.Table:
    """Return a table of the schema without rank and segment, which a source does not know."""
    rows = len(next(iter(columns.values())))
    labels = {"rank": pa.array(np.zeros(rows, np.int32)), "segment": pa.array(np.zeros(rows, np.int32))}
    return conform(schema, pa.table({**columns, **labels})).drop_columns(["rank", "segment"])
