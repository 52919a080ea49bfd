"""Events of one rank as lines of a Chrome trace, as torch.profiler writes them.

    Places(rank, slot, many)                        processes and threads of a rank in the file
    event_lines(rows, sides, …) -> Iterator[bytes]  one event per line, each followed by a comma
    flow_lines(rows, …)         -> Iterator[bytes]  arrows from launch calls to their work

Several ranks share one file, and they all count their processes, devices, launches and ops from the same small
numbers. So each rank gets numbers of its own (`offset`); a file of one rank keeps those of the recording.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.classify import DEVICE_WORK
from perfkit.analysis.intervals import Ints
from perfkit.analysis.timeline import Mask, ints, of_classes
from perfkit.export.chosen import Mended, align_rows, matches
from perfkit.export.json_text import inside_braces, join, member, micros, texts
from perfkit.sources.kineto_fields import ARGS_OF_SIDE_TABLES, SIDE_TABLES
from perfkit.sources.kineto_tables import ON_DEVICE
from perfkit.sources.scan import Kind

BATCH = 200_000
PIDS_PER_RANK = 1_000
OWN_PID = 0
"""Process of a rank that holds perfkit's own tracks."""
_OFFSET = ("correlation", "external_id", "python_id", "python_parent_id")
_SIDE_OFFSET = ("sequence_number", "wait_on_event_correlation", "python_caller_id")
_COMM_KEYS = ("Collective name", "dtype", "In msg nelems", "Out msg nelems", "Group size")
"""What the validator expects of every record_param_comms; unknown is null."""


@dataclass
class Places:
    """Numbers of one rank in the file."""

    rank: int
    slot: int
    many: bool
    """The file holds several ranks."""
    several: bool = False
    """It holds several recordings: ranks, or files of one."""
    offset: int = 0
    """Added to ids of the recording."""
    names: dict[int, str] = field(default_factory=dict)
    """Process number -> name."""
    threads: dict[tuple[int, int], str] = field(default_factory=dict)
    _known: dict[tuple[str, object], int] = field(default_factory=dict)

    def process(self, kind: str, what: object, name: str) -> int:
        """Return the number of a process, the same for the same thing."""
        if (kind, what) not in self._known:
            self._known[kind, what] = min(len(self._known) + 1, PIDS_PER_RANK - 1)
            self.names[self.pid(self._known[kind, what])] = name
        return self.pid(self._known[kind, what])

    def pid(self, number: int) -> int:
        """Return a process number that no other rank has."""
        return self.slot * PIDS_PER_RANK + number

    def device(self, device: Ints) -> Ints:
        """Return device numbers that no other rank has; -1 stays."""
        return np.where(device >= 0, device + self.slot * 64, device) if self.many else device

    def metadata(self) -> Iterator[bytes]:
        """Yield names and order of processes and threads."""
        for pid, name in self.names.items():
            own = pid == self.pid(OWN_PID)
            order = self.slot * 10 + (0 if own else 1 if "GPU" in name else 2)
            yield _meta(pid, None, "process_name", "name", f"rank {self.rank} · {name}")
            yield _meta(pid, None, "process_sort_index", "sort_index", order)
        for (pid, tid), name in self.threads.items():
            yield _meta(pid, tid, "thread_name", "name", name)
            yield _meta(pid, tid, "thread_sort_index", "sort_index", tid)


def _meta(pid: int, tid: int | None, name: str, key: str, value: object) -> bytes:
    where = {"pid": pid, "tid": 0 if tid is None else tid}
    return json.dumps({"ph": "M", "name": name, **where, "ts": 0, "args": {key: value}}).encode() + b",\n"


def locate(rows: pa.Table, tracks: pa.Table | None, places: Places) -> tuple[Ints, Ints]:
    """Return process and thread of every row, and learn their names."""
    pid, tid = ints(rows["pid"]), ints(rows["tid"])
    device, stream = ints(rows["device"]), ints(rows["stream"])
    on_device = of_classes(rows, ON_DEVICE) & (device >= 0)
    process, thread = np.zeros(len(rows), np.int64), np.where(on_device, np.maximum(stream, 0), tid)
    for one in np.unique(device[on_device]).tolist():
        process[on_device & (device == one)] = number = places.process("device", one, f"GPU {one}")
        for s in np.unique(stream[on_device & (device == one)]).tolist():
            places.threads[number, max(s, 0)] = f"stream {s}" if s >= 0 else "no stream"
    called = _track_names(tracks)
    numbered = ~on_device & np.array(pc.is_valid(rows["pid"]))
    for one in np.unique(pid[numbered]).tolist():
        name = f"host, {called.get((one, None), 'process')} {one}"
        process[numbered & (pid == one)] = number = places.process("pid", one, name)
        for t in np.unique(tid[numbered & (pid == one)]).tolist():
            if (one, t) in called:
                places.threads[number, t] = called[one, t]
    for text in pc.unique(rows["track"].filter(pa.array(~on_device & ~numbered))).to_pylist():
        mine = ~on_device & ~numbered & (matches(rows["track"].cast(pa.utf8()), text) if text else True)
        process[mine & (process == 0)] = places.process("track", text, text or "unnamed")
    return process, np.maximum(thread, 0)


def _track_names(tracks: pa.Table | None) -> dict[tuple[int, int | None], str]:
    found: dict[tuple[int, int | None], str] = {}
    for row in tracks.to_pylist() if tracks is not None else ():
        if row["key"] == "process_name" and row["pid"] is not None:
            found[row["pid"], None] = row["value"]
        elif row["key"] == "thread_name" and row["pid"] is not None and row["tid"] is not None:
            found[row["pid"], row["tid"]] = row["value"]
    return found


def event_lines(
    rows: pa.Table, sides: Mapping[str, pa.Table], start: Ints, process: Ints, thread: Ints, places: Places,
    mended: Mended,
) -> Iterator[bytes]:  # fmt: skip
    """Yield the events in pieces; `start` counts from the base time of the file."""
    for low in range(0, len(rows), BATCH):
        part = slice(low, low + BATCH)
        some = rows.slice(low, BATCH)
        args = _args(some, sides, places, mended, part)
        length = ints(some["dur_ns"])
        instant = matches(some["phase"].cast(pa.utf8()), "i")
        lines = join(
            pc.if_else(pa.array(instant), '{"ph": "i", "s": "t"', '{"ph": "X"'),
            member("cat", some["category"]), ', "name": ', pc.fill_null(texts(some["name"]), '""'),
            ', "pid": ', pa.array(process[part]).cast(pa.utf8()), ', "tid": ', pa.array(thread[part]).cast(pa.utf8()),
            ', "ts": ', micros(start[part]),
            pc.if_else(pa.array(instant), "", join(', "dur": ', micros(np.maximum(length, 0)))),
            ', "args": {', pc.utf8_slice_codeunits(args, 2), "}},\n",
        )  # fmt: skip
        yield text_bytes(lines)


def text_bytes(lines: pa.Array) -> bytes:
    """Return all texts of an array, one after the other."""
    offsets = np.frombuffer(lines.buffers()[1], np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return b"" if not len(lines) else lines.buffers()[2].to_pybytes()[int(offsets[0]) : int(offsets[-1])]


def _args(
    rows: pa.Table, sides: Mapping[str, pa.Table], places: Places, mended: Mended, part: slice
) -> pa.Array:  # fmt: skip
    """Return the members of `args` of every row, each preceded by a comma."""
    external = ints(rows["external_id"])
    device = places.device(ints(rows["device"]))
    found = [
        member("External id", _ids(external, places.offset, (external <= 0) | mended.external_id[part])),
        member("correlation", _ids(ints(rows["correlation"]), places.offset)),
        member("device", pa.array(device, mask=device < 0)),
        member("stream", rows["stream"]),
        member("Python id", _ids(ints(rows["python_id"]), places.offset)),
        member("Python parent id", _ids(ints(rows["python_parent_id"]), places.offset)),
        pc.if_else(
            pa.array(of_classes(rows, ("memory",))), member("Bytes", rows["bytes"]), member("bytes", rows["bytes"])
        ),
    ]  # fmt: skip
    event_id = ints(rows["event_id"])
    comms = matches(rows["name"].cast(pa.utf8()), "record_param_comms")
    told: dict[str, pa.Array] = {}
    for table in SIDE_TABLES:
        at = align_rows(sides.get(table), event_id)
        if at is not None and at.null_count < len(at):
            told |= _side_args(table, sides[table].take(at), places, mended, part)
    for key in _COMM_KEYS if comms.any() else ():
        empty = pa.array(np.full(len(rows), ""))
        known = told.get(key, empty)
        missing = pc.and_(pa.array(comms), pc.equal(known, ""))
        told[key] = pc.if_else(missing, f", {json.dumps(key)}: null", known)
    found += told.values()
    if "args" in rows.column_names and rows["args"].null_count < len(rows):
        found.append(inside_braces(rows["args"]))
    return reduce(join, found)


def _ids(values: Ints, offset: int, none: Mask | None = None) -> pa.Array:
    missing = values < 0 if none is None else none
    return pa.array(np.where(values > 0, values + offset, values), mask=missing)


def _side_args(table: str, rows: pa.Table, places: Places, mended: Mended, part: slice) -> dict[str, pa.Array]:
    """Return key -> member of every row of a side table that stands beside the events."""
    found: dict[str, pa.Array] = {}
    columns: dict[str, tuple[str, Kind]] = {}
    for key, (column, kind) in ARGS_OF_SIDE_TABLES[table].items():
        if column not in (taken for taken, _ in columns.values()):
            columns[key] = column, kind
    for key, (column, kind) in columns.items():
        if column in ("grid", "block"):
            axes = [texts(rows[f"{column}_{axis}"]) for axis in "xyz"]
            whole = reduce(pc.and_, [pc.is_valid(axis) for axis in axes])
            found[key] = pc.if_else(whole, join(f', "{key}": [', axes[0], ", ", axes[1], ", ", axes[2], "]"), "")
            continue
        values = rows[column]
        if values.null_count == len(values):
            continue
        if column in _SIDE_OFFSET:
            values = _ids(ints(values), places.offset)
        if column == "sequence_number":
            values = pc.if_else(pa.array(mended.sequence_number[part]), pa.scalar(None, values.type), values)
        if (table, column) == ("syncs", "kind"):
            values = pc.if_else(pa.array(mended.sync_kind[part]), pa.scalar(None, pa.utf8()), values.cast(pa.utf8()))
        found[key] = member(key, values, raw=kind == Kind.JSON)
    return found


def flow_lines(rows: pa.Table, start: Ints, process: Ints, thread: Ints, places: Places) -> Iterator[bytes]:
    """Yield an arrow from every launch call to its work."""
    correlation = ints(rows["correlation"])
    calls = np.flatnonzero(of_classes(rows, ("runtime",)) & (correlation > 0))
    calls = calls[np.argsort(correlation[calls], kind="stable")]
    work = np.flatnonzero(of_classes(rows, DEVICE_WORK) & (correlation > 0))
    if not len(calls) or not len(work):
        return
    at = np.minimum(np.searchsorted(correlation[calls], correlation[work]), len(calls) - 1)
    found = correlation[calls[at]] == correlation[work]
    work, call = work[found], calls[at[found]]
    for phase, at_rows, end in (("s", call, ""), ("f", work, ', "bp": "e"')):
        lines = join(
            f'{{"ph": "{phase}"{end}, "cat": "ac2g", "name": "ac2g", "id": ',
            pa.array(correlation[work] + places.offset).cast(pa.utf8()), ', "pid": ',
            pa.array(process[at_rows]).cast(pa.utf8()), ', "tid": ', pa.array(thread[at_rows]).cast(pa.utf8()),
            ', "ts": ', micros(start[at_rows]), "},\n",
        )  # fmt: skip
        yield text_bytes(lines)


def largest_id(rows: pa.Table, sides: Mapping[str, pa.Table]) -> int:
    """Return the largest id of a recording."""
    columns = [rows[name] for name in _OFFSET]
    columns += [sides["ops"]["sequence_number"]] if "ops" in sides else []
    return max((pc.max(column).as_py() or 0 for column in columns), default=0)
