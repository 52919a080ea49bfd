"""Which key of a Kineto event goes to which column of which table: the one place that knows.

    PLAN, PLAN_WITH_ARGS      plans for perfkit.sources.scan
    SIDE_TABLES               group number -> table name

Group 0 becomes `events`; the others are side tables that have a row only where an event carries one of
their keys, so that a million CPU ops cost nothing in the columns of kernels. Old and new spellings of
a key share a column.
"""

from __future__ import annotations

from perfkit.sources.scan import Kind, Plan

EVENT_KEYS: dict[str, tuple[str, Kind]] = {
    "ph": ("ph", Kind.TEXT),
    "cat": ("cat", Kind.TEXT),
    "name": ("name", Kind.TEXT),
    "ts": ("ts", Kind.TIME_ABS),
    "dur": ("dur", Kind.TIME),
    "pid": ("pid", Kind.INT_OR_TEXT),
    "tid": ("tid", Kind.INT_OR_TEXT),
    "id": ("id", Kind.INT_OR_TEXT),
}
"""Keys of the event itself -> column of group 0."""

ARGS_OF_EVENTS: dict[str, tuple[str, Kind]] = {
    "External id": ("external_id", Kind.I64),
    "external id": ("external_id", Kind.I64),
    "correlation": ("correlation", Kind.I64),
    "device": ("device", Kind.INT_OR_TEXT),
    "stream": ("stream", Kind.INT_OR_TEXT),
    "Python id": ("python_id", Kind.I64),
    "Python parent id": ("python_parent_id", Kind.I64),
    "bytes": ("bytes", Kind.I64),
    "Bytes": ("bytes", Kind.I64),
}
"""Keys of args -> column of group 0."""

ARGS_OF_SIDE_TABLES: dict[str, dict[str, tuple[str, Kind]]] = {
    "kernels_meta": {
        "context": ("context", Kind.I64),
        "grid": ("grid", Kind.JSON),
        "block": ("block", Kind.JSON),
        "registers per thread": ("registers_per_thread", Kind.I64),
        "shared memory": ("shared_memory_bytes", Kind.I64),
        "blocks per SM": ("blocks_per_sm", Kind.F64),
        "warps per SM": ("warps_per_sm", Kind.F64),
        "est. achieved occupancy %": ("occupancy_pct", Kind.F64),
        "queued": ("queued", Kind.I64),
        "graph id": ("graph_id", Kind.I64),
        "graph node id": ("graph_node_id", Kind.I64),
        "memory bandwidth (GB/s)": ("bandwidth_gbps", Kind.F64),
        "kind": ("kind", Kind.TEXT),
        "fromDevice": ("from_device", Kind.I64),
        "toDevice": ("to_device", Kind.I64),
    },
    "ops": {
        "Input Dims": ("input_dims", Kind.JSON),
        "Input dims": ("input_dims", Kind.JSON),
        "Input type": ("input_types", Kind.JSON),
        "Input Strides": ("input_strides", Kind.JSON),
        "Concrete Inputs": ("concrete_inputs", Kind.JSON),
        "Output dims": ("output_dims", Kind.JSON),
        "Output Dims": ("output_dims", Kind.JSON),
        "Sequence number": ("sequence_number", Kind.I64),
        "Fwd thread id": ("fwd_thread_id", Kind.I64),
        "Record function id": ("record_function_id", Kind.I64),
        "Call stack": ("call_stack", Kind.TEXT),
        "Module Hierarchy": ("module_hierarchy", Kind.TEXT),
        "python_caller_id": ("python_caller_id", Kind.I64),
        "Python module id": ("python_module_id", Kind.I64),
        "kernel_backend": ("kernel_backend", Kind.TEXT),
        "kernel_name": ("kernel_name", Kind.TEXT),
        "kernel_file": ("kernel_file", Kind.TEXT),
        "kernel_hash": ("kernel_hash", Kind.TEXT),
        "kernel_kwargs": ("kernel_kwargs", Kind.TEXT),
        "num_warps": ("num_warps", Kind.I64),
        "num_stages": ("num_stages", Kind.I64),
    },
    "collective_args": {
        "Collective name": ("collective", Kind.TEXT),
        "dtype": ("dtype", Kind.TEXT),
        "In msg nelems": ("in_nelems", Kind.I64),
        "Out msg nelems": ("out_nelems", Kind.I64),
        "In split size": ("in_split", Kind.TEXT),
        "Out split size": ("out_split", Kind.TEXT),
        "Process Group Name": ("group_name", Kind.TEXT),
        "Process Group Description": ("group_desc", Kind.TEXT),
        "Process Group Ranks": ("group_ranks", Kind.TEXT),
        "Process Group ID": ("group_id", Kind.I64),
        "Group size": ("group_size", Kind.I64),
        "Rank": ("group_rank", Kind.I64),
        "Comms Id": ("comm_id", Kind.U64),
        "Seq": ("seq", Kind.I64),
        "Src Rank": ("src_rank", Kind.I64),
        "Dst Rank": ("dst_rank", Kind.I64),
        "Root Rank": ("root_rank", Kind.I64),
        "Global rank start": ("global_rank_start", Kind.I64),
        "Global rank stride": ("global_rank_stride", Kind.I64),
        "Is Async": ("is_async", Kind.BOOL),
        "Is asynchronized op": ("is_async", Kind.BOOL),
    },
    "syncs": {
        "cuda_sync_kind": ("kind", Kind.TEXT),
        "wait_on_stream": ("wait_on_stream", Kind.I64),
        "wait_on_cuda_event_record_corr_id": ("wait_on_event_correlation", Kind.I64),
        "wait_on_cuda_event_id": ("wait_on_event_id", Kind.I64),
    },
    "memory": {
        "Addr": ("address", Kind.U64),
        "Device Type": ("device_type", Kind.I64),
        "Device Id": ("device", Kind.I64),
        "Total Allocated": ("allocated_bytes", Kind.I64),
        "Total Reserved": ("reserved_bytes", Kind.I64),
    },
}
"""Side table -> keys of args -> its column."""

SIDE_TABLES = tuple(ARGS_OF_SIDE_TABLES)
"""Table of each group from 1 on."""


def build_plan(*, keep_args: bool) -> Plan:
    """Lay out the groups and fields; INT_OR_TEXT columns are followed by their `_text` twin."""
    groups: list[list[tuple[str, Kind]]] = [[] for _ in range(1 + len(SIDE_TABLES))]
    fields: list[tuple[int, str, int, int]] = []

    def add(scope: int, group: int, keys: dict[str, tuple[str, Kind]]) -> None:
        for key, (name, kind) in keys.items():
            names = [column for column, _ in groups[group]]
            if name not in names:
                names.append(name)
                groups[group].append((name, kind))
                if kind == Kind.INT_OR_TEXT:
                    groups[group].append((f"{name}_text", Kind.TEXT))
            fields.append((scope, key, group, names.index(name)))

    add(0, 0, EVENT_KEYS)
    add(1, 0, ARGS_OF_EVENTS)
    groups[0].append(("raw_args", Kind.JSON))
    if keep_args:
        groups[0].append(("unknown_args", Kind.JSON))
    for number, table in enumerate(SIDE_TABLES, start=1):
        add(1, number, ARGS_OF_SIDE_TABLES[table])
    return Plan(tuple(map(tuple, groups)), tuple(fields))


PLAN = build_plan(keep_args=False)
PLAN_WITH_ARGS = build_plan(keep_args=True)
