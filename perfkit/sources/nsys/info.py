"""What an nsys export says about devices, processes and threads.

    device_info(tables, process) -> pa.Table | None
    tracks(tables, plan, process) -> pa.Table | None

TARGET_INFO_GPU numbers the GPUs of the machine, events number those of the process.
TARGET_INFO_CUDA_DEVICE maps one to the other. Without it (before schema 3.2x) the number is taken
over but the UUID is not, unless there is only one GPU: CUDA_VISIBLE_DEVICES may have renumbered them.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from perfkit.schema import DEVICE_INFO, TRACKS
from perfkit.sources.nsys.plan import ID_MASK, PID_SHIFT, Plan
from perfkit.sources.nsys.rows import shape
from perfkit.sources.nsys.tables import Tables, rows_of

_GPU_TEXTS = ("name", "busLocation", "uuid", "chipName")
_NEVER = ("ctxswDevPath", "ctrlDevPath")
_INT32 = (1 << 31) - 1


def _first(row: dict[str, Any], *names: str) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _small(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value <= _INT32 else None


def device_info(tables: Tables, process: int | None) -> pa.Table | None:
    """Return the devices that a process may use, numbered as in its events."""
    gpus: dict[int, dict[str, Any]] = {}
    for table in ("TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU"):
        numbers = sorted(tables.columns(table) - {*_GPU_TEXTS, *_NEVER})
        for row in rows_of(tables, table, ints=numbers, texts=_GPU_TEXTS):
            number = _small(_first(row, "id", "gpuId", "cuDevice"))
            if number is not None:
                gpus.setdefault(number, row)
    pid = None if process is None else process & ID_MASK
    mapped = {
        row["cudaId"]: row
        for row in rows_of(
            tables, "TARGET_INFO_CUDA_DEVICE", ints=["gpuId", "cudaId", "pid", "numMultiprocessors"], texts=["uuid"]
        )
        if row.get("pid") == pid and _small(row.get("cudaId")) is not None
    }
    if mapped:
        found = {cuda: {**gpus.get(row.get("gpuId") or 0, {}), **_known(row)} for cuda, row in sorted(mapped.items())}
    else:
        keyed = ((_small(row.get("cuDevice")), number, row) for number, row in sorted(gpus.items()))
        found = {number if cuda is None else cuda: dict(row) for cuda, number, row in keyed}
        if len(gpus) > 1:
            for row in found.values():
                row["uuid"] = None
    if not found:
        return None
    clock = {device: _first(row, "clockRate", "coreClockRate") for device, row in found.items()}
    return shape(
        DEVICE_INFO,
        {
            "device": pa.array(found, pa.int32()),
            "name": pa.array([row.get("name") or None for row in found.values()], pa.utf8()),
            "memory_bytes": pa.array([row.get("totalMemory") for row in found.values()], pa.int64()),
            "num_sms": pa.array(
                [_small(_first(row, "smCount", "numMultiprocessors")) for row in found.values()], pa.int32()
            ),
            "compute_major": pa.array([_small(row.get("computeMajor")) for row in found.values()], pa.int32()),
            "compute_minor": pa.array([_small(row.get("computeMinor")) for row in found.values()], pa.int32()),
            "clock_mhz": pa.array([None if hertz is None else hertz / 1e6 for hertz in clock.values()], pa.float64()),
            "uuid": pa.array([row.get("uuid") or None for row in found.values()], pa.utf8()),
            "properties": pa.array([json.dumps(_known(row), sort_keys=True) for row in found.values()], pa.utf8()),
        },
    )


def _known(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if value is not None}


def tracks(tables: Tables, plan: Plan, process: int | None) -> pa.Table | None:
    """Return the names of a process and its threads."""
    if process is None:
        return None
    rows: list[tuple[int | None, str, str]] = [
        (None, "process_name", row["name"])
        for row in rows_of(tables, "PROCESSES", ints=["globalPid"], texts=["name"])
        if row.get("name") and row.get("globalPid") is not None and row["globalPid"] >> PID_SHIFT == process
    ]
    named: list[tuple[int, str]] = []
    for batch in tables.scan("ThreadNames", ints=["nameId", "globalTid"]):
        if batch.num_rows:
            ids, known = batch.ints("nameId")
            threads, valid = batch.ints("globalTid")
            mine = valid & known & (threads >> PID_SHIFT == process)
            unique = np.unique(ids[mine])
            names = dict(zip(unique.tolist(), tables.strings(unique).to_pylist(), strict=True))
            pairs = zip(threads[mine].tolist(), ids[mine].tolist(), strict=True)
            named += [(thread & ID_MASK, names[i]) for thread, i in pairs if names[i] is not None]
    named += [(tid, name) for owner, tid, name in plan.threads if owner == process]
    rows += [(tid, "thread_name", name) for tid, name in dict(named).items()]  # a later name replaces an earlier one
    if not rows:
        return None
    tids, keys, values = zip(*rows, strict=True)
    return shape(
        TRACKS,
        {
            "pid": pa.array([process & ID_MASK] * len(rows), pa.int64()),
            "tid": pa.array(tids, pa.int64()),
            "key": pa.array(keys, pa.utf8()),
            "value": pa.array(values, pa.utf8()),
        },
    )
