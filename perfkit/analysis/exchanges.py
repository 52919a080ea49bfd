r"""Exposed communication by collective, and exposed copies by kind, from one rank alone.

    exchange_rows(timeline, device, windows, busy, calls) -> EXCHANGES    sums to exposed_comm_ns of each window
    copy_rows(timeline, device, windows, busy)            -> COPIES       sums to exposed_memcpy_ns

Which collective a kernel is, perfkit.analysis.calls has found out. Where collectives overlap, the ns of C \ K belongs
to the one that started first. Waiting and moving data are not told apart here: that takes the other ranks' clocks.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.attribute import Busy
from perfkit.analysis.bandwidth import bytes_of_calls
from perfkit.analysis.classify import CLASSES
from perfkit.analysis.intervals import Ints, Spans, difference, first_owner, join, overlaps
from perfkit.analysis.timeline import Timeline, device_column, ints
from perfkit.analysis.windows import Windows

EXCHANGES = pa.schema(
    [
        ("rank", pa.int32()), ("device", pa.int32()), ("step", pa.int64()), ("op", pa.utf8()), ("group", pa.utf8()),
        ("group_size", pa.int64()), ("bytes", pa.int64()), ("count", pa.int64()), ("comm_ns", pa.int64()),
        ("exposed_ns", pa.int64()),
    ]
)  # fmt: skip
"""`bytes` is the size of one message; null if it is not recorded."""
COPIES = pa.schema(
    [
        ("rank", pa.int32()), ("device", pa.int32()), ("step", pa.int64()), ("name", pa.utf8()),
        ("count", pa.int64()), ("copy_ns", pa.int64()), ("exposed_ns", pa.int64()), ("bytes", pa.int64()),
    ]
)  # fmt: skip
_NAMES = (
    ("all_reduce", r"all_?reduce"), ("all_gather", r"all_?gather"), ("reduce_scatter", r"reduce_?scatter"),
    ("all_to_all", r"all_?to_?all|all2all"), ("broadcast", r"broadcast"), ("send_recv", r"send_?recv|send|recv"),
    ("gather", r"gather"), ("scatter", r"scatter"), ("barrier", r"barrier"), ("reduce", r"reduce"),
)  # fmt: skip


def collective_name(text: str) -> str:
    """Return the collective that a kernel, op or recorded name is; `unknown` if it does not say."""
    lowered = text.lower()
    return next((name for name, pattern in _NAMES if re.search(pattern, lowered)), "unknown")


def exchange_rows(timeline: Timeline, device: int | None, windows: Windows, busy: Busy, calls: pa.Table) -> pa.Table:
    """Return communication of each window by collective, group and message size; `calls` are those of the device."""
    if not len(calls):
        return EXCHANGES.empty_table()
    _, first = np.unique(ints(calls["event_id"]), return_index=True)  # messages grouped into one kernel are one
    calls = calls.take(np.sort(first))
    size = bytes_of_calls(calls)
    described = pa.table(
        {
            "op": calls["op"].cast(pa.utf8()), "group": calls["group_desc"].cast(pa.utf8()),
            "group_size": calls["group_size"],
            "bytes": pa.array(size, mask=size < 0),
        }
    )  # fmt: skip
    code = np.zeros(len(calls), np.int64)
    for name in described.column_names:
        values = pc.dictionary_encode(described[name].combine_chunks(), null_encoding="encode")
        _, code = np.unique(code * (len(values.dictionary) + 1) + values.indices.to_numpy(), return_inverse=True)
    _, sample = np.unique(code, return_index=True)
    exposed = difference(busy.communication, busy.compute)
    table = _by_window(ints(calls["start_ns"]), ints(calls["end_ns"]), exposed, windows, {"kind": code})
    rows = described.take(sample[table["kind"].to_numpy()])
    columns = {
        **_identity(timeline, device, windows, table),
        **{name: rows[name] for name in described.column_names},
        "count": table["count"], "comm_ns": table["ns"], "exposed_ns": table["exposed_ns"],
    }  # fmt: skip
    return pa.table(columns, schema=EXCHANGES)


def copy_rows(timeline: Timeline, device: int | None, windows: Windows, busy: Busy) -> pa.Table:
    """Return copies of each window by the name that the profiler gave them."""
    if device is None:
        return COPIES.empty_table()
    work = timeline.work
    is_copy = np.isin(work.kind, [CLASSES.index("memcpy"), CLASSES.index("memset")])
    work = work.take(is_copy & (work.device == device))
    exposed = difference(busy.memcpy, join(busy.compute, busy.communication))
    table = _by_window(work.start, work.end, exposed, windows, {"name": work.name}, np.maximum(work.bytes, 0))
    columns = {
        **_identity(timeline, device, windows, table),
        "name": pa.array([timeline.names[i] for i in table["name"].to_pylist()], pa.utf8()),
        "count": table["count"], "copy_ns": table["ns"], "exposed_ns": table["exposed_ns"], "bytes": table["amount"],
    }  # fmt: skip
    return pa.table(columns, schema=COPIES)


def _by_window(
    start: Ints, end: Ints, exposed: Spans, windows: Windows, keys: dict[str, Ints], amount: Ints | None = None
) -> pa.Table:
    """Sum durations, and the exposed ns that each interval owns, by window and keys."""
    row, window, low, high = overlaps(start, end, windows.start, windows.end)
    own_start, own_end = first_owner(start, end)
    owner, _, own_low, own_high = overlaps(own_start, own_end, exposed.start, exposed.end)
    piece, own_window, own_low, own_high = overlaps(own_low, own_high, windows.start, windows.end)
    owner = owner[piece]
    began = (start[row] == low).astype(np.int64)
    nothing = np.zeros(len(owner), np.int64)
    rows, at = np.append(row, owner), np.append(window, own_window)
    table = pa.table(
        {
            "window": at,
            **{name: codes[rows] for name, codes in keys.items()},
            "count": np.append(began, nothing),
            "ns": np.append(high - low, nothing),
            "exposed_ns": np.append(np.zeros(len(row), np.int64), own_high - own_low),
            "amount": np.append(amount[row] * began if amount is not None else np.zeros(len(row), np.int64), nothing),
        }
    )
    sums = ["count", "ns", "exposed_ns", "amount"]
    table = table.group_by(["window", *keys], use_threads=False).aggregate([(name, "sum") for name in sums])
    return table.rename_columns(["window", *keys, *sums])


def _identity(timeline: Timeline, device: int | None, windows: Windows, table: pa.Table) -> dict[str, pa.Array]:
    step = windows.step[table["window"].to_numpy()]
    return {
        "rank": pa.array(np.full(len(table), timeline.rank, np.int32)),
        "device": device_column(device, len(table)),
        "step": pa.array(step, mask=step < 0),
    }


def is_pageable(name: str) -> bool:
    """Say whether a copy's name tells that its host memory is not pinned."""
    return "pageable" in name.lower()
