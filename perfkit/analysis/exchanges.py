r"""Exposed communication by collective, and exposed copies by kind, from one rank alone.

    exchange_rows(timeline, device, windows, busy, args, tree) -> EXCHANGES    sums to exposed_comm_ns of each window
    copy_rows(timeline, device, windows, busy)                 -> COPIES       sums to exposed_memcpy_ns

Which collective a kernel is comes from the metadata of the communication library (on the kernel or on the op
that issued it), else from the kernel's name. Where collectives overlap, the ns of C \ K belongs to the one
that started first. Waiting and moving data are not told apart here: that takes the other ranks' clocks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.attribute import Busy
from perfkit.analysis.classify import CLASSES, cpu_kind
from perfkit.analysis.intervals import Ints, Spans, difference, first_owner, join, overlaps
from perfkit.analysis.ops import CallTree
from perfkit.analysis.timeline import Timeline, ints
from perfkit.analysis.windows import Windows

COLLECTIVE_COLUMNS = ("collective", "dtype", "in_nelems", "out_nelems", "message_bytes", "group_desc", "group_size")
"""What this module reads of the `collective_args` table."""
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
_ITEM_BYTES = {
    "float": 4, "float32": 4, "double": 8, "half": 2, "float16": 2, "bfloat16": 2, "int": 4, "long": 8, "byte": 1,
    "char": 1, "bool": 1, "int64": 8, "int32": 4, "uint8": 1, "int8": 1,
}  # fmt: skip


def collective_name(text: str) -> str:
    """Return the collective that a kernel, op or recorded name is; `unknown` if it does not say."""
    lowered = text.lower()
    return next((name for name, pattern in _NAMES if re.search(pattern, lowered)), "unknown")


def exchange_rows(
    timeline: Timeline, device: int | None, windows: Windows, busy: Busy, args: pa.Table | None, tree: CallTree
) -> pa.Table:
    """Return communication of each window by collective, group and message size."""
    said = _Metadata(timeline, args)
    if device is None:
        start, end, name, events = _host_exchanges(timeline)
        meta = said.of(events)
    else:
        work = timeline.work
        work = work.take((work.kind == CLASSES.index("communication")) & (work.device == device))
        start, end, name = work.start, work.end, work.name
        issued = said.of(timeline.host.event_id[tree.rows])
        issuer = np.append(tree.nearest(issued >= 0), -1)[tree.op_of(work)]
        meta = said.of(work.event_id)
        meta = np.where(meta >= 0, meta, np.append(issued, -1)[issuer])
    exposed = difference(busy.communication, busy.compute)
    used = np.unique(name)
    kinds = [collective_name(timeline.names[i]) for i in used.tolist()]
    vocabulary = sorted(set(kinds))
    by_name = np.full(len(timeline.names), -1, np.int64)
    by_name[used] = [vocabulary.index(k) for k in kinds]
    keys = {"name": by_name[name], "meta": meta}
    table = _by_window(start, end, exposed, windows, keys)
    rows = [said.described[i] if i >= 0 else {} for i in table["meta"].to_pylist()]
    ops = [r.get("op") or vocabulary[n] for r, n in zip(rows, table["name"].to_pylist(), strict=True)]
    columns = {
        **_identity(timeline, device, windows, table), "op": pa.array(ops, pa.utf8()),
        "group": pa.array([r.get("group") for r in rows], pa.utf8()),
        "group_size": pa.array([r.get("group_size") for r in rows], pa.int64()),
        "bytes": pa.array([r.get("bytes") for r in rows], pa.int64()),
        "count": table["count"], "comm_ns": table["ns"], "exposed_ns": table["exposed_ns"],
    }  # fmt: skip
    return _merged(pa.table(columns, schema=EXCHANGES), ["count", "comm_ns", "exposed_ns"])


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
    shown = device if device is not None and device >= 0 else None
    return {
        "rank": pa.array(np.full(len(table), timeline.rank, np.int32)),
        "device": pa.array([shown] * len(table), pa.int32()),
        "step": pa.array(step, mask=step < 0),
    }


def _merged(table: pa.Table, sums: list[str]) -> pa.Table:
    """Join rows that differ only in which event described them."""
    keys = [name for name in table.column_names if name not in sums]
    merged = table.group_by(keys, use_threads=False).aggregate([(name, "sum") for name in sums])
    return merged.rename_columns([*keys, *sums]).select(table.column_names)


class _Metadata:
    """What the communication library said about the events of one timeline, by distinct description."""

    def __init__(self, timeline: Timeline, args: pa.Table | None) -> None:
        self.described: list[dict[str, object]] = []
        self._event = self._code = np.empty(0, np.int64)
        if args is None or not len(args) or "collective" not in args.column_names:
            return
        mine = pc.and_(pc.equal(args["rank"], timeline.rank), pc.equal(args["segment"], timeline.segment))
        rows = args.filter(pc.and_(mine, pc.is_valid(args["collective"])))
        rows = rows.take(pc.sort_indices(rows["event_id"]))
        columns = [name for name in COLLECTIVE_COLUMNS if name in rows.column_names]
        code = np.zeros(len(rows), np.int64)
        for name in columns:
            column = rows[name].cast(pa.utf8()) if pa.types.is_dictionary(rows[name].type) else rows[name]
            values = pc.dictionary_encode(column.combine_chunks(), null_encoding="encode")
            _, code = np.unique(code * (len(values.dictionary) + 1) + values.indices.to_numpy(), return_inverse=True)
        _, first, self._code = np.unique(code, return_index=True, return_inverse=True)
        self._event = ints(rows["event_id"])
        nothing = dict.fromkeys(COLLECTIVE_COLUMNS)
        self.described = [_describe({**nothing, **row}) for row in rows.select(columns).take(first).to_pylist()]

    def of(self, event_id: Ints) -> Ints:
        """Return the description of each event, -1 for none."""
        if not len(self._event):
            return np.full(len(event_id), -1, np.int64)
        at = np.minimum(np.searchsorted(self._event, event_id), len(self._event) - 1)
        result: Ints = np.where(self._event[at] == event_id, self._code[at], -1)
        return result


def _describe(row: Mapping[str, object]) -> dict[str, object]:
    size = row["message_bytes"]
    item = _ITEM_BYTES.get(str(row["dtype"] or "").lower())
    elements = max((n for n in (row["in_nelems"], row["out_nelems"]) if isinstance(n, int)), default=None)
    if size is None and item is not None and elements is not None:
        size = item * elements
    name = str(row["collective"] or "")
    return {
        "op": collective_name(name) if name else None, "group": row["group_desc"], "group_size": row["group_size"],
        "bytes": size,
    }  # fmt: skip


def _host_exchanges(timeline: Timeline) -> tuple[Ints, Ints, Ints, Ints]:
    """Return start, end, name and event of the work of a CPU rank's collectives (gloo)."""
    host = timeline.host
    used = np.unique(host.name)
    lut = np.zeros(len(timeline.names), bool)
    lut[used] = [
        k == "communication" for k in cpu_kind(pa.array([timeline.names[i] for i in used], pa.utf8())).to_pylist()
    ]
    rows = np.flatnonzero(lut[host.name] & np.isin(host.kind, [CLASSES.index("op"), CLASSES.index("range")]))
    host = host.take(rows)
    return host.start, host.end, host.name, host.event_id


def is_pageable(name: str) -> bool:
    """Say whether a copy's name tells that its host memory is not pinned."""
    return "pageable" in name.lower()
