"""Every table of perfkit as code: columns, types, units, docs.

    TABLES["events"]                 a TableSchema
    conform(EVENTS, table) -> table  select, cast and order the columns, or say what is wrong

Producers end with `return conform(SCHEMA, table)`, so that consumers trust their input. The page
docs/tables.md is generated from here (`python -m perfkit.schema`) and a test keeps it current.

Three rules hold in all tables: times are int64 nanoseconds (`_ns`), sizes are bytes (`_bytes`), and
unknown is null, never 0. `cluster`, `run` and `attempt` are not columns of run tables: they are the
hive partitions of the path, and readers (DuckDB, pandas, Polars) add them back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from perfkit.arrays import from_list, nulls
from perfkit.errors import SchemaError

SCHEMA_VERSION = 1
"""Bumped when a table changes in a way that an old reader would misread; see `perfkit.store.migrate`."""

VERSION_KEY = b"perfkit.schema_version"
TABLE_KEY = b"perfkit.table"

TEXT = pa.dictionary(pa.int32(), pa.utf8())
"""Text that repeats: names, categories, JSON fragments. Parquet stores each value once per page group."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `required` columns hold no nulls; a missing optional column is filled with nulls."""

    name: str
    type: pa.DataType
    doc: str
    required: bool = False

    @property
    def unit(self) -> str:
        """The unit that the name promises, or an empty string."""
        for suffix, unit in _UNITS.items():
            if f"_{self.name}".endswith(suffix):
                return unit
        return ""


_UNITS = {
    "_ns": "ns", "_bytes": "B", "_gbps": "GB/s (SI)", "_mhz": "MHz", "_watts": "W", "_celsius": "°C",
    "_hours": "h", "_seconds": "s", "_points": "MFU points 0–100", "_ratio": "0–1", "_pct": "%",
    "_peak_flops": "FLOP/s", "_flops": "FLOP", "_ppm": "ppm", "_score": "ratio", "_persistence": "0–1",
}  # fmt: skip


@dataclass(frozen=True)
class TableSchema:
    """A table: its name, what a row is, its columns, and where it lives in the store."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    kind: str = "run"
    """`run`: parts under cluster=/run=/attempt=; `derived`: one file per analysis; `fleet`: by date."""
    sort_by: tuple[str, ...] = field(default=())

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema, with the schema version in its metadata."""
        return pa.schema(
            [pa.field(c.name, c.type, nullable=True, metadata={"doc": c.doc}) for c in self.columns],
            metadata={VERSION_KEY: str(SCHEMA_VERSION).encode(), TABLE_KEY: self.name.encode()},
        )

    @cached_property
    def required(self) -> tuple[str, ...]:
        """Names of the columns that hold no nulls."""
        return tuple(c.name for c in self.columns if c.required)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(c.name for c in self.columns)

    def empty(self) -> pa.Table:
        """Return a table of this schema without rows."""
        return self.arrow.empty_table()


def conform(schema: TableSchema, table: pa.Table) -> pa.Table:
    """Return `table` with exactly the schema's columns, types and order.

    Optional columns that are missing become null. A missing required column, a null in one, or a value
    that does not fit its type raises `SchemaError`. Columns that the schema does not know are an error
    too: dropping them in silence is how data gets lost.
    """
    have = table.column_names
    missing = [name for name in schema.required if name not in have]
    if missing:
        raise SchemaError(f"{schema.name}: missing columns {missing}; has {have}")
    extra = [name for name in have if name not in schema.names]
    if extra:
        raise SchemaError(f"{schema.name}: unknown columns {extra}; the schema has {list(schema.names)}")
    arrays = []
    for column in schema.columns:
        if column.name not in have:
            arrays.append(nulls(column.type, len(table)))
            continue
        values = table[column.name]
        if column.required and values.null_count:
            raise SchemaError(f"{schema.name}.{column.name}: {values.null_count} nulls in a required column")
        try:
            arrays.append(_cast(values, column.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise SchemaError(
                f"{schema.name}.{column.name}: {values.type} does not fit {column.type}: {error}"
            ) from None
    return pa.Table.from_arrays(arrays, schema=schema.arrow)


def _cast(values: pa.ChunkedArray, to: pa.DataType) -> pa.ChunkedArray:
    if values.type == to:
        return values
    if pa.types.is_dictionary(to) and not pa.types.is_dictionary(values.type):
        return pc.dictionary_encode(values.cast(to.value_type)).cast(to)
    return values.cast(to)


def table_from_rows(schema: TableSchema, rows: Iterable[dict[str, object]]) -> pa.Table:
    """Build a small table from dicts (metadata tables; never one dict per event)."""
    rows = list(rows)
    columns = {}
    for column in schema.columns:
        value_type = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        columns[column.name] = from_list([row.get(column.name) for row in rows], value_type)
    return conform(schema, pa.table(columns))


# ------------------------------------------------------------------ what ingest writes

_RANK = Column("rank", pa.int32(), "Global rank that recorded the row.", required=True)
_SEGMENT = Column("segment", pa.int32(), "Which of the rank's source files, counted from 0.", required=True)
_EVENT_ID = Column(
    "event_id", pa.int64(), "Position of the event in its source file; unique in (rank, segment).", required=True
)

EVENTS = TableSchema(
    name="events",
    doc="One row per event that a profiler recorded on one rank. `X` events and matched `B`/`E` pairs have a "
    "duration; instants, counters, flows and unmatched `B`/`E` have dur_ns null.",
    columns=(
        _RANK,
        _SEGMENT,
        _EVENT_ID,
        Column("phase", TEXT, "Chrome phase: X (interval, also for a matched B/E pair), i, C, s, t, f, b, e, n, B, E."),
        Column("category", TEXT, "Category as the profiler wrote it: kernel, cpu_op, cuda_runtime, …"),
        Column("class", TEXT, "What perfkit takes it for; see perfkit.analysis.classify. Null if it is none of these."),
        Column("name", TEXT, "Name as recorded: kernel, op, python function, range."),
        Column(
            "start_ns", pa.int64(), "Start on this rank's clock, Unix epoch where the source gives one. Null if absent."
        ),
        Column("dur_ns", pa.int64(), "Duration. Null if the event has none, or if the recorded one is negative."),
        Column(
            "device",
            pa.int32(),
            "Device that executed it, or that a runtime call says it is for; null on the host otherwise.",
        ),
        Column(
            "stream",
            pa.int64(),
            "Stream (queue) that executed it. Null on the host unless the source says one: Triton's cpu_ops carry 0.",
        ),
        Column("pid", pa.int64(), "Process, or whatever integer the source put there."),
        Column("tid", pa.int64(), "Thread, or whatever integer the source put there."),
        Column(
            "track", TEXT, "Process/thread where the source names them instead of numbering: `pid` or `pid/tid` text."
        ),
        Column("correlation", pa.int64(), "Joins a launch on the host with its work on the device (per process)."),
        Column("external_id", pa.int64(), "Joins a launch or kernel with the op that issued it."),
        Column("python_id", pa.int64(), "Identity of a python_function event."),
        Column("python_parent_id", pa.int64(), "python_id of its caller."),
        Column("flow_id", pa.int64(), "`id` of a flow or async event."),
        Column("bytes", pa.int64(), "Bytes copied, set, allocated (>0) or freed (<0)."),
        Column("args", TEXT, "JSON of the args without a column of their own; only with --keep-args."),
    ),
)

KERNELS_META = TableSchema(
    name="kernels_meta",
    doc="Launch configuration, one row per event that carries any of it.",
    columns=(
        _RANK,
        _SEGMENT,
        _EVENT_ID,
        Column("context", pa.int64(), "CUDA context."),
        Column("grid_x", pa.int64(), "Grid size."),
        Column("grid_y", pa.int64(), "Grid size."),
        Column("grid_z", pa.int64(), "Grid size."),
        Column("block_x", pa.int64(), "Block size."),
        Column("block_y", pa.int64(), "Block size."),
        Column("block_z", pa.int64(), "Block size."),
        Column("registers_per_thread", pa.int64(), "Registers per thread."),
        Column("shared_memory_bytes", pa.int64(), "Static and dynamic shared memory per block."),
        Column("blocks_per_sm", pa.float64(), "Blocks per SM, as recorded."),
        Column("warps_per_sm", pa.float64(), "Warps per SM, as recorded."),
        Column("occupancy_pct", pa.float64(), "Estimated achieved occupancy, as recorded."),
        Column("queued", pa.int64(), "Kineto's `queued`."),
        Column("graph_id", pa.int64(), "CUDA graph that the work belongs to."),
        Column("graph_node_id", pa.int64(), "Node of that graph."),
        Column("bandwidth_gbps", pa.float64(), "Copy bandwidth as recorded by the profiler."),
        Column("kind", TEXT, "Kind of work where the source says: copy direction, dispatch."),
        Column("from_device", pa.int64(), "Source of a peer copy."),
        Column("to_device", pa.int64(), "Destination of a peer copy."),
    ),
)

OPS = TableSchema(
    name="ops",
    doc="Shapes, dtypes and provenance of framework ops, one row per event that carries any of it.",
    columns=(
        _RANK,
        _SEGMENT,
        _EVENT_ID,
        Column("input_dims", TEXT, "JSON: shape of each input; a tensor list nests one level deeper."),
        Column("input_types", TEXT, "JSON: dtype of each input."),
        Column("input_strides", TEXT, "JSON: strides of each input."),
        Column("concrete_inputs", TEXT, "JSON: values of scalar inputs as text."),
        Column("output_dims", TEXT, "JSON: shape of each output."),
        Column("sequence_number", pa.int64(), "Joins a forward op with its backward."),
        Column("fwd_thread_id", pa.int64(), "Thread of the forward op; non-zero marks backward."),
        Column("record_function_id", pa.int64(), "Joins with a PyTorch execution trace (rf_id)."),
        Column("call_stack", TEXT, "Python stack, innermost first, `;`-separated."),
        Column("module_hierarchy", TEXT, "Module path, if recorded."),
        Column("python_caller_id", pa.int64(), "python_id of the calling Python frame."),
        Column("python_module_id", pa.int64(), "Which instance of a module class a python_function belongs to."),
        Column("kernel_backend", TEXT, "Backend of a compiled op, for example triton."),
        Column("kernel_name", TEXT, "Kernel that a compiled op launches."),
        Column("kernel_file", TEXT, "Generated source file of a compiled op."),
        Column("kernel_hash", TEXT, "Hash of the generated source."),
        Column("kernel_kwargs", TEXT, "Launch parameters of a compiled op."),
        Column("num_warps", pa.int64(), "Triton num_warps."),
        Column("num_stages", pa.int64(), "Triton num_stages."),
    ),
)

COLLECTIVE_ARGS = TableSchema(
    name="collective_args",
    doc="What the communication library said about a collective, one row per event that carries any of it.",
    columns=(
        _RANK,
        _SEGMENT,
        _EVENT_ID,
        Column("collective", TEXT, "Operation as recorded: allreduce, _allgather_base, …"),
        Column("dtype", TEXT, "Element type as recorded."),
        Column("in_nelems", pa.int64(), "Input elements of this rank."),
        Column("out_nelems", pa.int64(), "Output elements of this rank."),
        Column("in_split", TEXT, "JSON: input split sizes of an all-to-all-v."),
        Column("out_split", TEXT, "JSON: output split sizes of an all-to-all-v."),
        Column("message_bytes", pa.int64(), "Message size where the source gives it in bytes (NCCL's NVTX payload)."),
        Column("group_name", TEXT, "Process group name."),
        Column("group_desc", TEXT, "Process group description."),
        Column("group_ranks", TEXT, "JSON: global ranks of the group."),
        Column("group_id", pa.int64(), "Process group id."),
        Column("group_size", pa.int64(), "Members of the group."),
        Column("group_rank", pa.int64(), "This rank's number inside the group, as recorded."),
        Column("comm_id", pa.uint64(), "Communicator id; uses all 64 bits."),
        Column("seq", pa.int64(), "Sequence number of the collective inside its group."),
        Column("src_rank", pa.int64(), "Sender."),
        Column("dst_rank", pa.int64(), "Receiver."),
        Column("root_rank", pa.int64(), "Root of a rooted collective."),
        Column("peer_rank", pa.int64(), "Peer of a send or receive inside the communicator."),
        Column("global_rank_start", pa.int64(), "First global rank of a regular group."),
        Column("global_rank_stride", pa.int64(), "Stride of a regular group."),
        Column("is_async", pa.bool_(), "Launched with async_op."),
    ),
)

SYNCS = TableSchema(
    name="syncs",
    doc="What a device synchronisation waited for, one row per event that says so.",
    columns=(
        _RANK,
        _SEGMENT,
        _EVENT_ID,
        Column("kind", TEXT, "Event Sync, Stream Wait Event, Stream Sync, Context Sync."),
        Column("wait_on_stream", pa.int64(), "Stream whose event is awaited; -1 as recorded."),
        Column("wait_on_event_correlation", pa.int64(), "Correlation of the cudaEventRecord."),
        Column("wait_on_event_id", pa.int64(), "CUDA event id."),
    ),
)

MEMORY = TableSchema(
    name="memory",
    doc="Allocator events, one row per allocation or release; bytes and time are in `events`.",
    columns=(
        _RANK,
        _SEGMENT,
        _EVENT_ID,
        Column("address", pa.uint64(), "Address; uses all 64 bits."),
        Column("device_type", pa.int64(), "PyTorch device type: 0 CPU, 1 CUDA, …"),
        Column("device", pa.int64(), "Device index; -1 on the host."),
        Column("allocated_bytes", pa.int64(), "Total allocated after the event."),
        Column("reserved_bytes", pa.int64(), "Total reserved after the event."),
    ),
)

NVTX_GPU = TableSchema(
    name="nvtx_gpu",
    doc="A host range (NVTX, record_function) projected onto the device: from the start of the first to the end of "
    "the last piece of device work that was launched inside it. Written by sources that have no gpu_user_annotation.",
    columns=(
        _RANK,
        _SEGMENT,
        _EVENT_ID,
        Column("device", pa.int32(), "Device of the work."),
        Column("name", TEXT, "Name of the range."),
        Column("start_ns", pa.int64(), "Start of the first work.", required=True),
        Column("dur_ns", pa.int64(), "From the first start to the last end.", required=True),
        Column("num_events", pa.int64(), "Pieces of device work launched inside the range."),
        Column("busy_ns", pa.int64(), "Union of that work."),
    ),
)

TRACKS = TableSchema(
    name="tracks",
    doc="Names of processes and threads (Chrome metadata events).",
    columns=(
        _RANK,
        _SEGMENT,
        Column("pid", pa.int64(), "Process."),
        Column("tid", pa.int64(), "Thread; null for a process row."),
        Column("track", TEXT, "As in events, where the source uses text."),
        Column(
            "key",
            TEXT,
            "process_name, process_labels, process_sort_index, thread_name, thread_sort_index.",
            required=True,
        ),
        Column("value", TEXT, "The value as text."),
    ),
)

DEVICE_INFO = TableSchema(
    name="device_info",
    doc="Devices that the source describes, one row per rank and device.",
    columns=(
        _RANK,
        _SEGMENT,
        Column("device", pa.int32(), "Device index.", required=True),
        Column("name", TEXT, "Name as the driver reports it. Empty names become null."),
        Column("memory_bytes", pa.int64(), "Total memory."),
        Column("num_sms", pa.int32(), "Multiprocessors or compute units."),
        Column("compute_major", pa.int32(), "Compute capability."),
        Column("compute_minor", pa.int32(), "Compute capability."),
        Column("clock_mhz", pa.float64(), "Maximum SM clock, if recorded."),
        Column("uuid", TEXT, "Device UUID, if recorded."),
        Column("properties", TEXT, "JSON: everything the source says about the device."),
    ),
)

PROCESS_GROUPS = TableSchema(
    name="process_groups",
    doc="Process groups that the source describes, one row per rank and group.",
    columns=(
        _RANK,
        _SEGMENT,
        Column("name", TEXT, "Group name.", required=True),
        Column("desc", TEXT, "Group description."),
        Column("backend", TEXT, "Backend configuration."),
        Column("size", pa.int32(), "Members."),
        Column("ranks", pa.list_(pa.int32()), "Global ranks; null if the source does not list them."),
    ),
)

QUALITY = TableSchema(
    name="quality",
    doc="What was odd in a source file: one row per kind of oddity. Nothing is dropped in silence.",
    columns=(
        _RANK,
        _SEGMENT,
        Column("path", TEXT, "Source file (and member of the archive).", required=True),
        Column("kind", TEXT, "Kind of oddity; perfkit.sources.quality lists them.", required=True),
        Column("count", pa.int64(), "How often."),
        Column("detail", pa.utf8(), "The first case, or what it means."),
    ),
)

COUNTERS = TableSchema(
    name="counters",
    doc="Sampled values: NVML, host, Chrome `C` events, scraped exporters.",
    columns=(
        Column("rank", pa.int32(), "Rank that sampled it or uses the GPU; null for a node-level sampler."),
        Column("segment", pa.int32(), "Source file of the rank, for values that come from a trace."),
        Column("host", TEXT, "Host name."),
        Column("device", pa.int32(), "Device index; null for the host."),
        Column("uuid", TEXT, "Device UUID."),
        Column("time_ns", pa.int64(), "When it was sampled.", required=True),
        Column("name", TEXT, "Metric name.", required=True),
        Column("series", TEXT, "Series inside the metric, for example a link or a counter's argument."),
        Column(
            "value",
            pa.float64(),
            "Value. Sentinels that mean `no value` are null. An integer above 2^53 is rounded to the nearest double.",
        ),
    ),
)

# ------------------------------------------------------------------ what capture writes

STEPS = TableSchema(
    name="steps",
    doc="One row per training step and rank, as the training loop saw it.",
    columns=(
        _RANK,
        Column("step", pa.int64(), "Step number of the training loop.", required=True),
        Column("start_ns", pa.int64(), "Start of the step.", required=True),
        Column("end_ns", pa.int64(), "End of the step.", required=True),
        Column("data_wait_ns", pa.int64(), "Time waiting for data before the step."),
        Column("tokens", pa.int64(), "Tokens of this rank's data-parallel replica."),
        Column("samples", pa.int64(), "Samples of this rank's data-parallel replica."),
        Column("model_flops", pa.float64(), "Model FLOPs of the step by the run's convention."),
        Column("loss", pa.float64(), "Loss, if logged."),
        Column("profiled", pa.bool_(), "A profiler was recording."),
    ),
)

SPANS = TableSchema(
    name="spans",
    doc="One row per span of the training script.",
    columns=(
        _RANK,
        Column("name", TEXT, "Name of the span.", required=True),
        Column("step", pa.int64(), "Step that it belongs to."),
        Column("start_ns", pa.int64(), "Start on the host.", required=True),
        Column("dur_ns", pa.int64(), "Duration on the host."),
        Column("gpu_ns", pa.int64(), "Duration between CUDA events at its ends."),
        Column("depth", pa.int32(), "Nesting depth."),
        Column("tid", pa.int64(), "Thread."),
        Column("error", TEXT, "Exception that ended it."),
    ),
)

LIFECYCLE_KINDS = (
    "eligible", "allocated", "init", "compile", "step", "eval", "data_stall", "checkpoint_save",
    "checkpoint_restore", "restart", "fault", "hang", "drain", "end",
)  # fmt: skip

LIFECYCLE = TableSchema(
    name="lifecycle",
    doc="Phases of a job; kinds: " + ", ".join(LIFECYCLE_KINDS) + ".",
    columns=(
        Column("rank", pa.int32(), "Rank; null for the whole job."),
        Column("kind", TEXT, "Lifecycle kind.", required=True),
        Column("start_ns", pa.int64(), "Start.", required=True),
        Column("end_ns", pa.int64(), "End; null while it lasts or if it is an instant."),
        Column("step", pa.int64(), "Training step."),
        Column("gpus", pa.int32(), "GPUs concerned."),
        Column("cause", TEXT, "Cause, if known."),
        Column("blocking", pa.bool_(), "Training stood still meanwhile."),
        Column("detail", pa.utf8(), "Free text."),
    ),
)

RUNS = TableSchema(
    name="runs",
    doc="One row per attempt of a run: identity, hardware, model, parallelism.",
    columns=(
        Column("name", TEXT, "Human name of the run."),
        Column("user", TEXT, "Owner."),
        Column("start_ns", pa.int64(), "First moment that the store knows."),
        Column("end_ns", pa.int64(), "Last moment that the store knows."),
        Column("world_size", pa.int32(), "Ranks of the job."),
        Column("ranks_present", pa.int32(), "Ranks with data in the store."),
        Column("device", TEXT, "Device name."),
        Column("model", TEXT, "Model preset or JSON spec."),
        Column("mesh", TEXT, "JSON: parallel degrees."),
        Column("versions", TEXT, "JSON: torch, CUDA, NCCL, driver, perfkit."),
        Column("git_commit", TEXT, "Commit of the training code."),
        Column("synthetic", pa.bool_(), "Made by the simulator.", required=True),
        Column("source", TEXT, "capture, kineto, nsys, …"),
    ),
)

# ------------------------------------------------------------------ what analysis writes

ATTRIBUTION = TableSchema(
    name="attribution",
    kind="derived",
    doc="Exact partition of a step's window on one device; the parts sum to window_ns.",
    columns=(
        _RANK,
        Column("device", pa.int32(), "Device; null for a CPU-only rank."),
        Column("step", pa.int64(), "Step; null for a whole-trace window."),
        Column("start_ns", pa.int64(), "Start of the window.", required=True),
        Column("window_ns", pa.int64(), "Length of the window.", required=True),
        Column("compute_ns", pa.int64(), "|K|.", required=True),
        Column("exposed_comm_ns", pa.int64(), r"|C \ K|.", required=True),
        Column("exposed_memcpy_ns", pa.int64(), r"|M \ (K ∪ C)|.", required=True),
        Column("idle_ns", pa.int64(), "The rest.", required=True),
        Column("comm_ns", pa.int64(), "|C|."),
        Column("overlap_ns", pa.int64(), "|C ∩ K|."),
        Column("unknown_ns", pa.int64(), "Time of kernels that no pattern knows; part of compute."),
        Column("spill_ns", pa.int64(), "Work of this step that ran in a later window."),
        Column("carry_in", pa.bool_(), "Before the first window; outside the means."),
    ),
)

IDLE = TableSchema(
    name="idle",
    kind="derived",
    doc="Idle time of a device by cause and host culprit; sums to idle_ns.",
    columns=(
        _RANK,
        Column("device", pa.int32(), "Device."),
        Column("step", pa.int64(), "Step that launched the next kernel."),
        Column("cause", TEXT, "host_late, launch, dependency, unattributed.", required=True),
        Column("culprit", TEXT, "data_loader, checkpoint, sync, allocator, optimizer, gc, compile, logging, python, …"),
        Column("where", TEXT, "file:line or the name of the deepest host event."),
        Column("idle_ns", pa.int64(), "Idle time.", required=True),
        Column("gaps", pa.int64(), "Number of gaps."),
    ),
)

COLLECTIVES = TableSchema(
    name="collectives",
    kind="derived",
    doc="One row per collective instance and member rank, after matching and clock alignment.",
    columns=(
        _RANK,
        Column("step", pa.int64(), "Step."),
        Column("instance", pa.int64(), "Same number on all members of a matched instance."),
        Column("group", TEXT, "Role of the group: dp, tp, pp, ep, cp, world, or its name."),
        Column("op", TEXT, "all_reduce, all_gather, …", required=True),
        Column("dtype", TEXT, "Element type."),
        Column("bytes", pa.int64(), "Message size as nccl-tests counts it."),
        Column("start_ns", pa.int64(), "Aligned start.", required=True),
        Column("dur_ns", pa.int64(), "Duration.", required=True),
        Column("wait_ns", pa.int64(), "Waiting for the others; null if it cannot be told."),
        Column("transfer_ns", pa.int64(), "Moving data; null if it cannot be told."),
        Column("exposed_wait_ns", pa.int64(), "Wait that no compute hides."),
        Column("exposed_transfer_ns", pa.int64(), "Transfer that no compute hides."),
        Column("bubble_ns", pa.int64(), "Pipeline bubble: exposed time of a receive, in neither of the above."),
        Column("busbw_gbps", pa.float64(), "Bus bandwidth as nccl-tests defines it."),
        Column("caused_by", pa.int32(), "Rank that the wait is charged to."),
        Column("matched", pa.bool_(), "Found on all traced members."),
        Column("segment", pa.int32(), "With event_id: the event that it was read from."),
        Column("event_id", pa.int64(), "Messages that were coalesced into one kernel share it."),
        Column("device", pa.int32(), "Device; null on the host."),
        Column("size", pa.int64(), "Members of the instance: of its group, 2 for a message."),
        Column("skew_ns", pa.int64(), "From the first to the last arrival of the instance."),
        Column("last_rank", pa.int32(), "Who came last to the instance."),
        Column("uncertainty_ns", pa.int64(), "Clock error between its members; null: not aligned."),
        Column("class", TEXT, "What the instance mostly is: transfer, skew, mixed, inconclusive."),
        Column("link", TEXT, "Link that the group spans: nvlink, infinity fabric, pcie, network; null if unknown."),
        Column("peak_gbps", pa.float64(), "Peak bus bandwidth of that link for this operation; null if unknown."),
    ),
)

KERNELS = TableSchema(
    name="kernels",
    kind="derived",
    doc="Kernels of a rank by name and shape.",
    columns=(
        _RANK,
        Column("name", TEXT, "Kernel.", required=True),
        Column("family", TEXT, "gemm, attention, conv, norm, elementwise, reduction, …"),
        Column("op", TEXT, "Op that launched it."),
        Column("module", TEXT, "Module that launched it."),
        Column("phase", TEXT, "forward, backward, optimizer, recompute."),
        Column("input_dims", TEXT, "JSON: shapes of the op's inputs."),
        Column("dtype", TEXT, "Number format of the arithmetic, as the peak registry spells it."),
        Column("count", pa.int64(), "Launches.", required=True),
        Column("total_ns", pa.int64(), "Summed duration.", required=True),
        Column("owned_ns", pa.int64(), "Part of |K| that belongs to it: each ns has one owner."),
        Column("flops", pa.float64(), "FLOPs from shapes; null if unknown."),
        Column("bytes", pa.float64(), "Bytes from shapes; null if unknown."),
        Column("waste_ns", pa.int64(), "Time beyond the roofline; null if unknown."),
        Column("bound", TEXT, "compute, memory, unknown."),
        Column("peak_flops", pa.float64(), "FLOP/s of the roofline for its dtype; null if unknown."),
        Column("peak_gbps", pa.float64(), "Memory bandwidth of the roofline; null if unknown."),
    ),
)

GAPS = TableSchema(
    name="gaps",
    kind="derived",
    doc="When a device stood still and why: the stretches behind `idle`, on the rank's own clock. The longest of a "
    "window have a row each; shorter ones share a row with their neighbours of the same cause and culprit. In each "
    "window idle_ns sums to the idle_ns of `attribution`.",
    columns=(
        _RANK,
        Column("device", pa.int32(), "Device; null for a CPU-only rank."),
        Column("step", pa.int64(), "Step of the window in which the time passed; null for a whole-trace window."),
        Column("start_ns", pa.int64(), "Start of the first stretch.", required=True),
        Column("dur_ns", pa.int64(), "From there to the end of the last stretch.", required=True),
        Column("idle_ns", pa.int64(), "Of that, idle for this cause and culprit.", required=True),
        Column("stretches", pa.int64(), "Stretches in the row.", required=True),
        Column("cause", TEXT, "host_late, launch, dependency, unattributed.", required=True),
        Column("culprit", TEXT, "As in `idle`."),
        Column("where", TEXT, "As in `idle`; null if the row holds several places."),
    ),
)

ALIGNMENT = TableSchema(
    name="alignment",
    kind="derived",
    doc="How a rank's clock maps to that of the job, one row per rank and piece of its clock: from from_ns on, "
    "aligned = t − offset_ns − drift_ppm·10⁻⁶·(t − from_ns).",
    columns=(
        _RANK,
        Column("clock", TEXT, "Host whose clock it is, or the rank's own.", required=True),
        Column(
            "from_ns",
            pa.int64(),
            "Start of the piece on the rank's clock; the first holds before it too.",
            required=True,
        ),
        Column("offset_ns", pa.int64(), "Difference at from_ns.", required=True),
        Column("drift_ppm", pa.float64(), "Drift.", required=True),
        Column("uncertainty_ns", pa.int64(), "Clock error against any other aligned rank; null: not aligned."),
    ),
)

WATERFALL = TableSchema(
    name="waterfall",
    kind="derived",
    doc="Where 100 points of peak went; in each scope the rows with parent null sum to 100.",
    columns=(
        Column("ladder", TEXT, "A: traced steps; B: the allocation.", required=True),
        Column("rank", pa.int32(), "Scope: one rank; null for all of them."),
        Column("step", pa.int64(), "Scope: one step; null for all of them."),
        Column("position", pa.int32(), "Order in the ladder.", required=True),
        Column("term", TEXT, "Name of the term.", required=True),
        Column("parent", TEXT, "Term that it is part of."),
        Column("points", pa.float64(), "Points of peak."),
        Column("gpu_ns", pa.int64(), "The same in GPU-ns."),
        Column(
            "measured", pa.bool_(), "False: the inputs cannot support it; it stays inside its parent.", required=True
        ),
    ),
)

CRITICAL_PATH = TableSchema(
    name="critical_path",
    kind="derived",
    doc="What the end of the last step hung on, piece by piece (`perfkit whatif`). The pieces touch each other: their "
    "durations sum to the time from the first window to the end of the last.",
    columns=(
        _RANK,
        _SEGMENT,
        Column("position", pa.int64(), "Order in time, from 0.", required=True),
        Column(
            "kind",
            TEXT,
            "compute, communication, memcpy, memset: device work. host, data, checkpoint: what the host did before it "
            "launched. launch: from the call to the work. sync: a blocking call that returns. gap: between tasks. "
            "unexplained: a late start for which the trace shows no reason.",
            required=True,
        ),
        Column("family", TEXT, "Family of a compute kernel."),
        Column("name", TEXT, "Name of the device work."),
        Column("step", pa.int64(), "Step of the device work."),
        Column("event_id", pa.int64(), "The event of the device work in `events`; null for the host and for gaps."),
        Column("start_ns", pa.int64(), "Start on the clock of the reference.", required=True),
        Column("dur_ns", pa.int64(), "Duration.", required=True),
    ),
)

STRAGGLERS = TableSchema(
    name="stragglers",
    kind="derived",
    doc="Own work of every rank against the others of its role (definition 16), the slowest first.",
    columns=(
        _RANK,
        Column("role", pa.utf8(), "What its peers do too; null if the job's layout is not known."),
        Column("peers", pa.int64(), "Other ranks of that role.", required=True),
        Column("steps", pa.int64(), "Steps that could be compared.", required=True),
        Column("own_ns", pa.int64(), "Own work, summed over these steps.", required=True),
        Column("peers_ns", pa.int64(), "Median of the peers' own work in each step, summed; null without peers."),
        Column("score", pa.float64(), "peers_ns / own_ns; null without peers."),
        Column("persistence", pa.float64(), "Share of the steps below the limit of 0.90."),
        Column("flagged", pa.bool_(), "Score below 0.90, and more than half of the steps too.", required=True),
        Column("cause", pa.utf8(), "Part of own work with the largest excess: compute, compute: LOAD, host: CULPRIT."),
        Column("excess_ns", pa.int64(), "own_ns − peers_ns."),
        Column("wait_caused_ns", pa.int64(), "Exposed wait of the others that is charged to it (definition 10)."),
        Column("recoverable_ns", pa.int64(), "Wall time that it would give back at the pace of the second-latest."),
        Column("sentence", pa.utf8(), "The same in words, of a flagged rank."),
    ),
)

BLAME_STEPS = TableSchema(
    name="blame_steps",
    kind="derived",
    doc="Exposed wait by rank and step (definition 10): what it caused and what it suffered. No row where both are 0.",
    columns=(
        _RANK,
        Column("step", pa.int64(), "Step; null outside of any."),
        Column("wait_caused_ns", pa.int64(), "Exposed wait of the others that is charged to it.", required=True),
        Column("exposed_wait_ns", pa.int64(), "Its own exposed wait.", required=True),
    ),
)

FINDINGS = TableSchema(
    name="findings",
    kind="derived",
    doc="What to do next, ranked by what it would buy.",
    columns=(
        Column("position", pa.int32(), "Rank of the finding.", required=True),
        Column("id", TEXT, "Stable identifier of the rule.", required=True),
        Column("title", pa.utf8(), "One sentence.", required=True),
        Column("points", pa.float64(), "Points that it could recover."),
        Column("evidence", pa.utf8(), "JSON: the rows that support it."),
        Column("next", pa.utf8(), "What to do."),
    ),
)

# ------------------------------------------------------------------ fleet tables, by date

NODES = TableSchema(
    name="nodes",
    kind="fleet",
    doc="Inventory and state of nodes over time, one row per node and interval.",
    columns=(
        Column("cluster", TEXT, "Cluster.", required=True),
        Column("node", TEXT, "Node.", required=True),
        Column("start_ns", pa.int64(), "Start of the interval.", required=True),
        Column("end_ns", pa.int64(), "End; null while it lasts."),
        Column("gpus", pa.int32(), "GPUs installed."),
        Column("device", TEXT, "Device name."),
        Column("state", TEXT, "up, down, drained, unhealthy, unknown."),
        Column("reason", pa.utf8(), "Why."),
        Column("synthetic", pa.bool_(), "Made by the simulator."),
    ),
)

JOBS = TableSchema(
    name="jobs",
    kind="fleet",
    doc="Jobs imported from a scheduler, one row per job attempt.",
    columns=(
        Column("cluster", TEXT, "Cluster.", required=True),
        Column("job", TEXT, "Job id.", required=True),
        Column("attempt", pa.int32(), "Restart count."),
        Column("user", TEXT, "Owner."),
        Column("name", TEXT, "Job name."),
        Column("submit_ns", pa.int64(), "Submitted."),
        Column("eligible_ns", pa.int64(), "Eligible."),
        Column("start_ns", pa.int64(), "Started."),
        Column("end_ns", pa.int64(), "Ended; null while it runs."),
        Column("gpus", pa.int32(), "GPUs allocated."),
        Column("nodes", pa.list_(pa.utf8()), "Nodes."),
        Column("num_nodes", pa.int32(), "How many nodes, also where the source does not name them."),
        Column("state", TEXT, "State as the scheduler reports it."),
        Column("exit_code", pa.int32(), "Exit code."),
        Column("signal", pa.int32(), "Signal that ended it; 0 for none."),
        Column("cause", TEXT, "Why it ended, in the words of perfkit.goodput.causes; null while it runs."),
        Column("account", TEXT, "Account, project or queue that pays."),
        Column("partition", TEXT, "Partition, namespace or virtual cluster."),
        Column("array", TEXT, "Job array that it is a task of."),
        Column("source", TEXT, "sacct, scontrol, philly, kubernetes, …"),
        Column("synthetic", pa.bool_(), "Made by the simulator."),
    ),
)

HEALTH_EVENTS = TableSchema(
    name="health_events",
    kind="fleet",
    doc="XID, ECC, throttle, thermal and link events of nodes.",
    columns=(
        Column("cluster", TEXT, "Cluster.", required=True),
        Column("node", TEXT, "Node.", required=True),
        Column("device", pa.int32(), "Device index."),
        Column("uuid", TEXT, "Device UUID."),
        Column("time_ns", pa.int64(), "When.", required=True),
        Column("end_ns", pa.int64(), "End of a condition that lasts."),
        Column("kind", TEXT, "xid, ecc, throttle, thermal, nvlink, lost, nvml_unresponsive, …", required=True),
        Column("code", pa.int64(), "XID number or reason bits."),
        Column("severity", TEXT, "info, warning, fault."),
        Column("detail", pa.utf8(), "Free text."),
        Column("synthetic", pa.bool_(), "Made by the simulator."),
    ),
)

GOODPUT_LOSSES = (
    "init", "compile", "slow_step", "data_stall", "checkpoint", "restore", "eval", "lost", "recovery", "hang",
    "unknown",
)  # fmt: skip
"""What eats allocated GPU-time (goodput); with `productive` they are the goodput buckets."""

GOODPUT_BUCKETS = ("productive", *GOODPUT_LOSSES)
"""Exclusive: the columns `<bucket>_ns` of a row of run_rollup sum to its allocated_ns."""

_BUCKET_DOCS = {
    "productive": "GPU-ns of steps whose work was kept, at the run's normal pace.",
    "init": "GPU-ns from the allocation to the first step, first attempt.",
    "compile": "GPU-ns of compilation and of what the first steps took beyond the median.",
    "slow_step": "GPU-ns that slow steps took beyond the median.",
    "data_stall": "GPU-ns waiting for data.",
    "checkpoint": "GPU-ns of checkpoint saves that stopped training.",
    "restore": "GPU-ns of loading checkpoints.",
    "eval": "GPU-ns of evaluation.",
    "lost": "GPU-ns of steps that a later attempt ran again.",
    "recovery": "GPU-ns from an interruption to the first step after it, without restore.",
    "hang": "GPU-ns in which nothing moved.",
    "unknown": "GPU-ns that no record explains.",
}
_CLUSTER = Column("cluster", TEXT, "Cluster.", required=True)
_SYNTHETIC = Column("synthetic", pa.bool_(), "Made by the simulator.")

RUN_ROLLUP = TableSchema(
    name="run_rollup",
    kind="fleet",
    doc="What a dashboard needs of a run, one row per run, attempt and hour (UTC). "
    "Columns that are GPU-ns, counts or FLOPs add up over rows; a ratio is a ratio of sums. No row crosses "
    "midnight, so that `date=` is the day of the row.",
    columns=(
        _CLUSTER,
        Column("run", TEXT, "Run.", required=True),
        Column("attempt", pa.int32(), "Attempt; the first is 0."),
        Column("start_ns", pa.int64(), "Start of the interval: the hour, or the attempt's start in it.", required=True),
        Column("end_ns", pa.int64(), "End of the hour, of the attempt, or of the data.", required=True),
        Column("name", TEXT, "Human name of the run."),
        Column("user", TEXT, "Owner."),
        Column("model", TEXT, "Model."),
        Column("device", TEXT, "Device name."),
        Column("world_size", pa.int32(), "Ranks of the job."),
        Column("gpus", pa.int32(), "GPUs allocated."),
        Column("num_nodes", pa.int32(), "Nodes of the attempt."),
        Column(
            "state", TEXT, "Of the run, as last known: queued, running, ended, failed, lost (silent without an end)."
        ),
        Column("eligible_ns", pa.int64(), "When the run could first have started; null if unknown."),
        Column("run_start_ns", pa.int64(), "First allocation of the run."),
        Column("last_seen_ns", pa.int64(), "Last record of any kind: the run's end, or its heartbeat."),
        Column("steps", pa.int64(), "Steps ended, those run again included."),
        Column("lost_steps", pa.int64(), "Of these, steps that a later attempt ran again."),
        Column("tokens", pa.int64(), "Tokens of the job, those run again included."),
        Column("model_flops", pa.float64(), "Model FLOPs of the job, by the run's convention."),
        Column("retained_flops", pa.float64(), "Model FLOPs of the steps that were kept: effective MFU counts these."),
        Column("peak_flops", pa.float64(), "Peak FLOP/s of one device; null if the device is not in the registry."),
        Column("step_ns", pa.int64(), "GPU-ns inside steps and their data waits: the denominator of mfu_ratio."),
        Column("mfu_ratio", pa.float64(), "MFU of the steps: model_flops / (peak_flops · step_ns · 1e-9)."),
        Column("loss", pa.float64(), "Training loss at the end of the interval, if logged."),
        Column("step_time_p50_ns", pa.int64(), "Median step time."),
        Column("step_time_p95_ns", pa.int64(), "95th percentile."),
        Column("memory_peak_bytes", pa.int64(), "Largest device memory in use on any rank."),
        Column("allocated_ns", pa.int64(), "Allocated GPU-ns; the twelve buckets below sum to it exactly."),
        *(Column(f"{bucket}_ns", pa.int64(), _BUCKET_DOCS[bucket]) for bucket in GOODPUT_BUCKETS),
        Column("queue_ns", pa.int64(), "GPU-ns between eligible and end without GPUs; not part of allocated (ETTR)."),
        Column("interruptions", pa.int32(), "Interruptions that ended work in the interval."),
        Column("restarts", pa.int32(), "Starts after an interruption in the interval."),
        Column("cause", TEXT, "Cause of the interval's last interruption; all of them are in table interruptions."),
        _SYNTHETIC,
    ),
)

INTERRUPTIONS = TableSchema(
    name="interruptions",
    kind="fleet",
    doc="One row per interruption of a run: what ended it, what it cost, when it went on. Stored by the day it "
    "happened.",
    columns=(
        _CLUSTER,
        Column("run", TEXT, "Run.", required=True),
        Column("attempt", pa.int32(), "Attempt that was interrupted."),
        Column("time_ns", pa.int64(), "When work stopped.", required=True),
        Column("resumed_ns", pa.int64(), "First step (or allocation) after it; null if the run never went on."),
        Column("cause", TEXT, "In the words of perfkit.goodput.causes; `unknown` if nothing says.", required=True),
        Column("planned", pa.bool_(), "Maintenance, preemption or a user's stop, not a failure. Null if unknown."),
        Column("user", TEXT, "Owner."),
        Column("gpus", pa.int32(), "GPUs of the run."),
        Column("node", TEXT, "Node to blame, if known."),
        Column("lost_ns", pa.int64(), "GPU-ns of steps that had to be run again."),
        Column("recovery_ns", pa.int64(), "Allocated GPU-ns from the interruption to the first step after it."),
        Column(
            "down_ns", pa.int64(), "Wall time from the interruption to the first step after it; MTTR is their mean."
        ),
        _SYNTHETIC,
    ),
)

CLUSTER_ROLLUP = TableSchema(
    name="cluster_rollup",
    kind="fleet",
    doc="GPU-time of a cluster by state of its nodes, one row per cluster and hour (UTC). "
    "up + down + drained + unhealthy + unknown = installed, exactly; "
    "uptime = up / (installed − unknown).",
    columns=(
        _CLUSTER,
        Column("start_ns", pa.int64(), "Start of the interval.", required=True),
        Column("end_ns", pa.int64(), "End of the interval.", required=True),
        Column("device", TEXT, "Device name; null if mixed."),
        Column("nodes", pa.int32(), "Nodes in the inventory."),
        Column("gpus", pa.int32(), "GPUs in the inventory."),
        Column("gpus_down", pa.int32(), "GPUs down, drained or unhealthy at the end of the interval."),
        Column("installed_ns", pa.int64(), "GPU-ns installed.", required=True),
        Column("up_ns", pa.int64(), "GPU-ns of nodes that could work."),
        Column("down_ns", pa.int64(), "GPU-ns of nodes that were down."),
        Column("drained_ns", pa.int64(), "GPU-ns of nodes that were drained."),
        Column("unhealthy_ns", pa.int64(), "GPU-ns of nodes that answered but were not fit for work."),
        Column("unknown_ns", pa.int64(), "GPU-ns of which the inventory says nothing; outside uptime on both sides."),
        Column("allocated_ns", pa.int64(), "GPU-ns held by runs; null if the runs are not known."),
        Column("idle_ns", pa.int64(), "Up and held by no run: up − allocated, not below 0; null if either is null."),
        _SYNTHETIC,
    ),
)

GPU_ROLLUP = TableSchema(
    name="gpu_rollup",
    kind="fleet",
    doc="Counters of one GPU, one row per cluster, node, device and day (UTC), from samples of capture or of scraped "
    "exporters; two rows where two runs, or a run and an exporter, sampled it on one day.",
    columns=(
        _CLUSTER,
        Column("node", TEXT, "Node.", required=True),
        Column("device", pa.int32(), "Device index on the node.", required=True),
        Column("uuid", TEXT, "Device UUID."),
        Column("name", TEXT, "Device name."),
        Column("start_ns", pa.int64(), "Start of the interval.", required=True),
        Column("end_ns", pa.int64(), "End of the interval.", required=True),
        Column("state", TEXT, "Worst state of the node in the interval: up, down, drained, unhealthy, unknown."),
        Column("allocated_ns", pa.int64(), "Time that a run held it."),
        Column("samples", pa.int64(), "Samples behind the values below."),
        Column("busy_ratio", pa.float32(), "Mean share of time with work on it, as the driver or GPM reports it."),
        Column("tensor_ratio", pa.float32(), "Mean activity of the tensor cores, where GPM or DCGM gives it."),
        Column("mfu_ratio", pa.float32(), "MFU of the runs that held it, weighted by time."),
        Column("clock_mean_mhz", pa.float32(), "Mean SM clock while allocated."),
        Column("temp_mean_celsius", pa.float32(), "Mean temperature."),
        Column("temp_max_celsius", pa.float32(), "Highest temperature."),
        Column("power_mean_watts", pa.float32(), "Mean power."),
        Column("power_max_watts", pa.float32(), "Highest power."),
        Column("memory_peak_bytes", pa.int64(), "Largest memory in use."),
        Column(
            "throttle_thermal_ns", pa.int64(), "Time lost to thermal or hardware throttling (throttle loss): a fault."
        ),
        Column("throttle_power_ns", pa.int64(), "Time lost to the power limit (throttle loss): not a fault."),
        Column("ecc_corrected", pa.int64(), "Corrected memory errors in the interval."),
        Column("ecc_uncorrected", pa.int64(), "Uncorrected memory errors in the interval."),
        Column("nvlink_errors", pa.int64(), "NVLink errors in the interval."),
        Column("xid_count", pa.int32(), "XIDs in the interval; which ones is in health_events."),
        _SYNTHETIC,
    ),
)

JOB_NODES = TableSchema(
    name="job_nodes",
    kind="fleet",
    doc="Which nodes an attempt ran on and how fast each was against its peers: what lemon detection reads. Stored by "
    "the day the attempt began.",
    columns=(
        _CLUSTER,
        Column("run", TEXT, "Run.", required=True),
        Column("attempt", pa.int32(), "Attempt."),
        Column("node", TEXT, "Node.", required=True),
        Column("start_ns", pa.int64(), "Start of the attempt on the node.", required=True),
        Column("end_ns", pa.int64(), "End; null while it runs."),
        Column("num_nodes", pa.int32(), "Nodes of the attempt."),
        Column("ranks", pa.int32(), "Ranks on the node."),
        Column("gpus", pa.int32(), "GPUs on the node."),
        Column("steps", pa.int64(), "Steps behind the values below."),
        Column("own_ns", pa.int64(), "Mean own work per step of the node's slowest rank; null if not measured."),
        Column(
            "slowdown", pa.float64(), "Own work of that rank over its peers' (1 / score): 1 is normal, 1.2 is slow."
        ),
        Column("slowdown_basis", TEXT, "What own work is: own_work (as for stragglers); null if not measured."),
        Column("wait_caused_ns", pa.int64(), "GPU-ns that other ranks waited for this node; null if not measured."),
        Column("interrupted", pa.bool_(), "The attempt was interrupted and this node is blamed."),
        _SYNTHETIC,
    ),
)

TRACE_TABLES = (
    EVENTS, KERNELS_META, OPS, COLLECTIVE_ARGS, SYNCS, MEMORY, NVTX_GPU, TRACKS, DEVICE_INFO, PROCESS_GROUPS, QUALITY,
    COUNTERS,
)  # fmt: skip
"""What a source may produce."""

TABLES: dict[str, TableSchema] = {
    schema.name: schema
    for schema in (
        RUNS, *TRACE_TABLES, STEPS, SPANS, LIFECYCLE, ATTRIBUTION, IDLE, GAPS, ALIGNMENT, COLLECTIVES, KERNELS,
        STRAGGLERS, BLAME_STEPS, WATERFALL, CRITICAL_PATH, FINDINGS,
        NODES, JOBS, HEALTH_EVENTS, RUN_ROLLUP, INTERRUPTIONS, CLUSTER_ROLLUP, GPU_ROLLUP, JOB_NODES,
    )
}  # fmt: skip


def render_reference() -> str:
    """Return the text of docs/tables.md."""
    kinds = {
        "run": "`<table>/cluster=<c>/run=<id>/attempt=<k>/part-<rank>-<segment>.parquet`",
        "derived": "`<table>/cluster=<c>/run=<id>/attempt=<k>/analysis-<id>.parquet`",
        "fleet": "`<table>/date=<yyyy-mm-dd>/…parquet`",
    }
    lines = [
        "# Tables",
        "",
        f"Generated from `perfkit/schema.py` (schema version {SCHEMA_VERSION}); do not edit. Times are int64"
        " nanoseconds, unknown is null. `cluster`, `run` and `attempt` come from the path.",
        "",
    ]
    for schema in TABLES.values():
        lines += [f"## {schema.name}", "", schema.doc, "", f"Stored as {kinds[schema.kind]}.", ""]
        lines += ["| column | type | unit | null? | what |", "|---|---|---|---|---|"]
        for c in schema.columns:
            kind = "text" if c.type == TEXT else str(c.type)
            null = "no" if c.required else "yes"
            lines.append(f"| `{c.name}` | {kind} | {c.unit} | {null} | {c.doc.replace('|', chr(92) + '|')} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    from pathlib import Path

    Path("docs/tables.md").write_text(render_reference())
