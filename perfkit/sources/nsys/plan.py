"""Plan the reading of an Nsight Systems export: which processes, which rank, which clock.

    make_plan(tables, path) -> Plan

One part per process that has work on a device, because correlation ids are unique only per process.
A process that only has NVTX ranges or API calls (data loader workers, the launcher) is a part only if
no process has device work: otherwise it would count as a rank that never computes. What is left out
is noted. Times in a report count from the start of the recording; TARGET_INFO_SESSION_START_TIME
makes them absolute unless the export did (`nsys export --ts-normalize true`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.errors import UnsafeInput, UnsupportedInput
from perfkit.sources.base import PartInfo
from perfkit.sources.nsys.payload import NcclPayloads
from perfkit.sources.nsys.tables import EXPORT_AGAIN, Tables, rows_of

PID_SHIFT = 24
"""A globalTid is host bits | pid (24 bits) | tid (24 bits); shifted right by this it names the process."""
ID_MASK = 0xFFFFFF
MAX_PARTS = 4096

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
SYNC = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"
GPU_MEMORY = "CUDA_GPU_MEMORY_USAGE_EVENTS"
DEVICE_TABLES = (KERNEL, MEMCPY, MEMSET, GRAPH)

_NOT_EVENTS = re.compile(
    r"ENUM_.*|TARGET_INFO_.*|META_DATA_.*|EXPORT_META_DATA|ANALYSIS_.*|NVTX_PAYLOAD_.*|NVTX_SCOPES|StringIds"
    r"|ThreadNames|PROCESSES|ProcessStreams|DIAGNOSTIC_EVENT|UnwindMethodType|.*CALLCHAINS|sqlite_.*"
    r"|CUPTI_ACTIVITY_KIND_CUDA_EVENT"
)
_LOST = re.compile(r"\blost\b|\bdropp|\bdiscard|overflow|not all .*collected", re.IGNORECASE)
_LOST_COUNT = re.compile(r"(\d+)\D{0,40}(?:lost|dropp|discard)", re.IGNORECASE)
_MPI_RANK = re.compile(r"MPI Rank (\d+)")

EVENT_TYPES = {33: "Category", 34: "Mark", 39: "Thread", 59: "PushPopRange", 60: "StartEndRange", 75: "DomainCreate"}
"""NVTX event types of exports that have no ENUM_NSYS_EVENT_TYPE."""

_ENVIRONMENT_RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", ""),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
_NODE_COUNTS = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "PET_NNODES", "GROUP_WORLD_SIZE")
_WANTED = frozenset(name for pair in _ENVIRONMENT_RANKS for name in pair if name) | frozenset(_NODE_COUNTS)


@dataclass
class Plan:
    """What to read and how to label it."""

    parts: list[PartInfo]
    processes: list[int | None]
    """Per part, its globalPid without the low 24 bits; None for rows that name no process."""
    left_out: set[int | None]
    """Processes whose rows are not read, because others have device work and they do not."""
    base_ns: int
    """Added to every time."""
    host_tables: list[str]
    """Tables of plain host intervals besides the ones that are known by name."""
    event_types: dict[int, str]
    domains: dict[tuple[int | None, int], str]
    """NVTX domain names by (process, domainId)."""
    threads: list[tuple[int, int, str]]
    """(process, tid, name) of the threads that NVTX names."""
    payloads: NcclPayloads
    num_rows: int


def note(part: PartInfo, kind: str, count: int, detail: str) -> None:
    """Note an oddity; unlike `part.note`, causes that differ are all named."""
    known = part.oddities.get(kind)
    part.note(kind, count, f"{count:,} × {detail}" if known is None else "")
    if known is not None and count > 0 and detail not in known.detail and len(known.detail) < 1000:
        known.detail += f"; {count:,} × {detail}"


def note_unread(part: PartInfo, count: int, what: str) -> None:
    """Note rows that perfkit does not take over."""
    note(part, "not_read", count, what)


def make_plan(tables: Tables, path: str) -> Plan:
    """Find the processes, their ranks and the clock of an export."""
    names = tables.names()
    metadata = {
        str(row["name"]): str(row["value"])
        for table in ("EXPORT_META_DATA", "META_DATA_EXPORT")
        for row in rows_of(tables, table, texts=["name", "value"])
        if row.get("name") is not None and row.get("value") is not None
    }
    if not metadata and not any(name.startswith(("CUPTI_ACTIVITY_KIND_", NVTX)) for name in names):
        raise UnsupportedInput("not an Nsight Systems export (none of its tables)", path=path, next_step=EXPORT_AGAIN)
    host_tables = [name for name in names if _is_host_table(tables, name)]
    processes, left_out = _find_processes(tables, host_tables)
    if not processes:
        next_step = "profile with `nsys profile --trace cuda,nvtx …` and export again"
        raise UnsupportedInput("holds no CUDA, NVTX or API rows", path=path, next_step=next_step)
    if len(processes) > MAX_PARTS:
        step = "profile fewer processes into one report"
        raise UnsafeInput(f"{len(processes):,} processes with device work", path=path, next_step=step)
    versions = {
        key: metadata[name]
        for key, name in (("nsys", "EXPORT_PRODUCT_VERSION"), ("nsys_schema", "EXPORT_SCHEMA_VERSION"))
        if name in metadata
    }
    system = {
        str(row["name"]): str(row["value"])
        for row in rows_of(tables, "TARGET_INFO_SYSTEM_ENV", texts=["name", "value"])
        if row.get("value")
    }
    if driver := system.get("CudaDriverVersion"):
        versions["cuda_driver"] = driver
    parts = [PartInfo(source="nsys", host=system.get("Hostname"), versions=dict(versions)) for _ in processes]
    for problem in tables.problems:
        note(parts[0], *problem)
    base_ns = _clock(tables, metadata, parts)
    event_types = _event_types(tables)
    payloads = NcclPayloads(tables)
    plan = Plan(parts, processes, left_out, base_ns, host_tables, event_types, {}, [], payloads, 0)
    _named_in_nvtx(tables, plan)
    _set_ranks(tables, plan, _environment(tables, system))
    _note_losses(tables, plan)
    read = (*DEVICE_TABLES, SYNC, RUNTIME, NVTX, GPU_MEMORY, *host_tables)
    plan.num_rows = sum(tables.count(table) for table in read)
    for table in names:
        if table not in read and not _NOT_EVENTS.fullmatch(table):
            note_unread(parts[0], tables.count(table), f"rows of {table}")
    if not tables.columns(RUNTIME):
        note(parts[0], "missing_table", 1, f"{RUNTIME}: launches are unknown, so nothing is projected onto the device")
    return plan


def _is_host_table(tables: Tables, table: str) -> bool:
    """Any table of named intervals on a thread is read, also one that this version does not know."""
    known = (RUNTIME, NVTX, SYNC, GPU_MEMORY, *DEVICE_TABLES)
    columns = tables.columns(table)
    return (
        table not in known
        and not _NOT_EVENTS.fullmatch(table)
        and {"start", "end", "globalTid"} <= columns
        and bool(columns & {"nameId", "textId"})
    )


def _find_processes(tables: Tables, host_tables: list[str]) -> tuple[list[int | None], set[int | None]]:
    """Return the processes that become parts, ordered by device, and those that do not."""
    devices: dict[int | None, int] = {}
    for table in DEVICE_TABLES:
        columns = (("globalPid", PID_SHIFT),) if "globalPid" in tables.columns(table) else ()
        for *process, device in tables.distinct(table, *columns, ("deviceId", 0)):
            key = process[0] if process else None
            devices[key] = min(devices.get(key, 1 << 62), 1 << 62 if device is None else device)
    by_nvtx = {process for (process,) in tables.distinct(NVTX, ("globalTid", PID_SHIFT))}
    by_calls = {
        process for table in (RUNTIME, *host_tables) for (process,) in tables.distinct(table, ("globalTid", PID_SHIFT))
    }
    if None in devices and len(callers := by_calls - {None}) == 1 and not devices.keys() - {None} - callers:
        # device rows of old exports name no process; if only one process calls CUDA they are its own
        devices[callers.pop()] = min(devices.values())
        del devices[None]
    chosen = set(devices) or by_nvtx or by_calls
    order = sorted(chosen, key=lambda process: (devices.get(process, 0), process is None, process or 0))
    return order, (by_nvtx | by_calls) - chosen


def _clock(tables: Tables, metadata: dict[str, str], parts: list[PartInfo]) -> int:
    """Return what makes times absolute; without it they stay relative, and every part says so."""
    if metadata.get("EXPORT_PARAM_TIME_NORMALIZE", "").lower() == "true":
        return 0
    for row in rows_of(tables, "TARGET_INFO_SESSION_START_TIME", ints=["utcEpochNs"]):
        epoch = row["utcEpochNs"]
        if epoch is not None and 0 < epoch < 1 << 61:
            return int(epoch)
    for part in parts:
        part.note("no_base_time", 1, "no TARGET_INFO_SESSION_START_TIME: times count from the start of the recording")
    return 0


def _event_types(tables: Tables) -> dict[int, str]:
    found = {
        row["id"]: re.sub("^Nvtxt?", "", row["name"])
        for row in rows_of(tables, "ENUM_NSYS_EVENT_TYPE", ints=["id"], texts=["name"])
        if row.get("id") is not None and str(row.get("name")).startswith("Nvtx")
    }
    return found or EVENT_TYPES


def _named_in_nvtx(tables: Tables, plan: Plan) -> None:
    """Collect the names of domains and threads into the plan."""
    codes = [code for code, name in plan.event_types.items() if name in ("DomainCreate", "Thread")]
    scan = tables.scan(
        NVTX, ints=["eventType", "domainId", "globalTid", "textId"], texts=["text"], where=("eventType", codes)
    )
    for batch in scan:
        if not batch.num_rows:
            continue
        ids, valid = batch.ints("textId")
        registered = tables.strings(np.unique(ids[valid])).to_pylist()
        by_id = dict(zip(np.unique(ids[valid]).tolist(), registered, strict=True))
        columns = (batch.array(name).to_pylist() for name in ("eventType", "domainId", "globalTid", "textId"))
        for kind, domain, thread, text_id, text in zip(*columns, batch.array("text").to_pylist(), strict=True):
            name = text if text is not None else by_id.get(text_id)
            process = None if thread is None else thread >> PID_SHIFT
            if name is None:
                continue
            if plan.event_types[kind] == "DomainCreate":
                plan.domains[process, domain or 0] = name
            elif process is not None:
                plan.threads.append((process, thread & ID_MASK, name))


def _environment(tables: Tables, system: dict[str, str]) -> dict[str, str]:
    """Return the few variables of the profiled command that tell a rank; nothing else is looked at."""
    found: dict[str, str] = {}
    separator = "\0" if "\0" in system.get("DeviceEnvironment", "") else ";"
    for pair in system.get("DeviceEnvironment", "").split(separator):
        key, _, value = pair.partition("=")
        if key in _WANTED:
            found[key] = value
    for row in rows_of(tables, "META_DATA_CAPTURE", texts=["name", "value"]):
        if str(row.get("name")).endswith(":ENVIRONMENT_VARIABLE"):
            key, _, value = str(row.get("value")).partition("=")
            if key in _WANTED:
                found[key] = value.strip('"')
    return found


def _set_ranks(tables: Tables, plan: Plan, environment: dict[str, str]) -> None:
    """Take ranks from the environment, MPI's thread names or NCCL's payloads, if they say so beyond doubt."""
    parts = plan.parts
    number = {key: int(value) for key, value in environment.items() if value.isdecimal() and len(value) < 9}
    if len(parts) == 1:  # the environment is the launcher's: it names a rank only if the launcher started one
        for rank_name, size_name in _ENVIRONMENT_RANKS:
            rank, size = number.get(rank_name), number.get(size_name)
            if rank is None or (rank_name == "SLURM_PROCID" and (size or 0) < 2):  # an interactive shell is task 0 of 1
                continue
            if size is None or rank < size:
                parts[0].rank, parts[0].rank_source, parts[0].world_size = rank, f"environment ({rank_name})", size
                return
    for process, _, name in plan.threads:
        if (match := _MPI_RANK.fullmatch(name)) and process in plan.processes:
            part = parts[plan.processes.index(process)]
            part.rank, part.rank_source = int(match[1]) if len(match[1]) < 9 else None, "MPI thread name"
    ranks, world = _nccl_ranks(tables, plan)
    sizes = [number[size_name] for _, size_name in _ENVIRONMENT_RANKS if size_name in number]
    one_node = all(number.get(name, 1) == 1 for name in _NODE_COUNTS)
    complete = sorted(ranks.values()) == list(range(len(parts)))
    # a communicator numbers its own members: its ranks are global only if it is the world
    if world is not None and (world in sizes or (complete and world == len(parts) and one_node)):
        for index, rank in ranks.items():
            if parts[index].rank is None:
                parts[index].rank, parts[index].rank_source = rank, "NCCL communicator of all ranks"
            parts[index].world_size = world


def _nccl_ranks(tables: Tables, plan: Plan) -> tuple[dict[int, int], int | None]:
    """Return each part's rank in the largest communicator whose creation is in the report, and its size."""
    members: dict[int, set[tuple[int, int]]] = {index: set() for index in range(len(plan.parts))}
    if any(
        {field.column for field in layout} >= {"group_rank", "group_size"} for layout in plan.payloads.layouts.values()
    ):
        for batch in tables.scan(NVTX, ints=["globalTid"], blobs=["binaryData"], present="binaryData"):
            if not batch.num_rows:
                continue
            columns, _ = plan.payloads.decode(batch.columns["binaryData"])
            both = pc.and_(columns["group_rank"].is_valid(), columns["group_size"].is_valid())
            process = pc.shift_right(batch.array("globalTid"), PID_SHIFT)
            found = pa.table({"p": process, "size": columns["group_size"], "rank": columns["group_rank"]}).filter(both)
            for row in found.group_by(found.column_names).aggregate([]).to_pylist():
                if row["p"] in plan.processes:
                    members[plan.processes.index(row["p"])].add((row["size"], row["rank"]))
    largest = {max((size for size, _ in pairs), default=0) for pairs in members.values()}
    world = largest.pop()
    ranks = {index: {rank for size, rank in pairs if size == world} for index, pairs in members.items()}
    if largest or not world or any(len(numbers) != 1 for numbers in ranks.values()):
        return {}, None
    return {index: numbers.pop() for index, numbers in ranks.items()}, world


def _note_losses(tables: Tables, plan: Plan) -> None:
    for row in rows_of(tables, "DIAGNOSTIC_EVENT", ints=["globalPid"], texts=["text"]):
        text = str(row.get("text"))
        if _LOST.search(text):
            process = row.get("globalPid")
            key = None if process is None else process >> PID_SHIFT
            part = plan.parts[plan.processes.index(key) if key in plan.processes else 0]
            counted = _LOST_COUNT.search(text)
            part.note("lost_events", int(counted[1]) if counted and len(counted[1]) < 16 else 1, text[:200])
