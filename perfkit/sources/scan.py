"""An array of JSON objects to Arrow columns, by a plan.

    scan_chunk(data, start, end, plan, base_ns=…) -> ScanResult
    scan_slices(read_into, length, buffer, plan, base_ns=…) -> ScanResult | None     the same, read bit by bit

`data[start:end]` holds elements of a JSON array. Every object becomes a row of group 0, and a row of
another group if it carries one of that group's fields. Two implementations give the same rows:
`_scan.c` (several hundred MB/s, releases the GIL) and `scan_python.py` (anywhere). `auto` takes C
if it was built.

Numbers are parsed from their digits: times are microseconds with any number of decimals and become
int64 nanoseconds (halves round to even); integers keep all 64 bits. A value that does not fit its
column is null and counted, never bent.
"""

from __future__ import annotations

import enum
import mmap
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import pyarrow as pa

from perfkit.arrays import nulls

try:
    from perfkit.sources import _scan  # type: ignore[attr-defined]  # compiled, optional
except ImportError:  # no compiler at install time
    _scan = None

Buffer = bytes | bytearray | mmap.mmap
PADDING = 64
"""Readable bytes that `data` must hold after `end` (the C scanner loads 16 at a time)."""


class Kind(enum.IntEnum):
    """How a JSON value becomes a column value. The numbers are those of _scan.c."""

    TIME_ABS = 0
    """Microseconds -> ns, plus base_ns."""
    TIME = 1
    """Microseconds -> ns."""
    I64 = 2
    """Integer; an integral float or a string of digits will do."""
    U64 = 3
    F64 = 4
    BOOL = 5
    TEXT = 6
    """A string's content; another scalar or a structure as canonical JSON."""
    JSON = 7
    """Any value as canonical JSON: no space, fewest escapes, numbers as written."""
    INT_OR_TEXT = 8
    """An integer goes to this column, anything else as TEXT to the next one."""


class Status(enum.IntEnum):
    """How a scan ended. The numbers are those of _scan.c."""

    OK = 0
    """All bytes were consumed."""
    MORE = 1
    """The last element is unfinished; `consumed` is where it starts."""
    BAD = 2
    """Not JSON; `consumed` is where the broken element starts."""
    DEEP = 3
    """An element is nested deeper than scan_python.MAX_DEPTH."""
    END = 5
    """The array ended; `consumed` is after its bracket."""
    NOT_UTF8 = 6
    """Some bytes are not UTF-8; nothing was read."""


ARROW_TYPES = {
    Kind.TIME_ABS: pa.int64(),
    Kind.TIME: pa.int64(),
    Kind.I64: pa.int64(),
    Kind.U64: pa.uint64(),
    Kind.F64: pa.float64(),
    Kind.BOOL: pa.bool_(),
    Kind.TEXT: pa.dictionary(pa.int32(), pa.utf8()),
    Kind.JSON: pa.dictionary(pa.int32(), pa.utf8()),
    Kind.INT_OR_TEXT: pa.int64(),
}


@dataclass(frozen=True)
class Plan:
    """Which key goes to which column.

    `groups`: for each group, (column name, kind) in order. `fields`: (scope, key, group, column) with
    scope 0 for a key of the event and 1 for a key of its args; several keys may share a column.
    The args of phases C and M are kept whole in group 0's `raw_args`; args without a field go to
    `unknown_args` if group 0 has such a column.
    """

    groups: tuple[tuple[tuple[str, Kind], ...], ...]
    fields: tuple[tuple[int, str, int, int], ...]

    def column(self, name: str) -> int:
        """Index of a column of group 0, -1 if it has none of that name."""
        names = [column for column, _ in self.groups[0]]
        return names.index(name) if name in names else -1

    @cached_property
    def by_key(self) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]]:
        """For each scope, key -> (group, column)."""
        scopes: tuple[dict[str, tuple[int, int]], ...] = ({}, {})
        for scope, key, group, column in self.fields:
            scopes[scope][key] = (group, column)
        return scopes[0], scopes[1]

    @cached_property
    def compiled(self) -> Any:
        """The plan for the C scanner."""
        return _scan.compile_plan(
            [[int(kind) for _, kind in group] for group in self.groups],
            [(scope, key.encode(), group, column) for scope, key, group, column in self.fields],
            self.column("ph"),
            self.column("raw_args"),
            self.column("unknown_args"),
        )


@dataclass(slots=True)
class ScanResult:
    """Rows of one chunk. `groups[0]` has a row per event, the others a column `event` that points there."""

    status: Status
    consumed: int
    num_events: int
    not_events: int
    groups: list[pa.RecordBatch]
    mismatches: dict[str, int] = field(default_factory=dict)
    """Column -> values of another type, now null."""
    out_of_range: dict[str, int] = field(default_factory=dict)
    """Column -> values that do not fit 64 bits, now null."""


def have_c_scanner() -> bool:
    """Whether the C scanner was built."""
    return _scan is not None


def scan_chunk(
    data: Buffer, start: int, end: int, plan: Plan, *, base_ns: int = 0, scanner: str = "auto"
) -> ScanResult:
    """Scan `data[start:end]`, which must be followed by PADDING more bytes."""
    if scanner == "python" or (scanner == "auto" and _scan is None):
        from perfkit.sources import scan_python

        return scan_python.scan_chunk(data, start, end, plan, base_ns=base_ns)
    if _scan is None:
        raise ValueError("the C scanner was not built; install a C compiler and reinstall perfkit, or use 'python'")
    scan = _scan.begin(plan.compiled, base_ns, end - start)
    status, consumed = scan.feed(data, start, end, True)
    return _finish(scan, plan, Status(status), consumed)


def scan_slices(
    read_into: Callable[[memoryview, int], int], length: int, buffer: bytearray | mmap.mmap, plan: Plan, *, base_ns: int
) -> ScanResult | None:
    """Scan `length` bytes that `read_into(view, start)` copies into `buffer`, slice by slice; needs the C scanner.

    Gives what `scan_chunk` gives of all bytes at once, or None where only that can tell: they are broken somewhere, an
    element does not fit into the buffer, or there are fewer bytes.
    """
    assert _scan is not None
    scan, view = _scan.begin(plan.compiled, base_ns, length), memoryview(buffer)
    start = held = 0
    while True:
        wanted = min(len(buffer) - PADDING, length - start) - held
        if read_into(view[held : held + wanted], start + held) < wanted:
            return None
        held += wanted
        last = start + held == length
        status, consumed = scan.feed(buffer, 0, held, last)
        if last or status not in (Status.OK, Status.MORE):
            break
        if consumed == 0:
            return None
        held -= consumed
        view[:held] = view[consumed : consumed + held]
        start += consumed
    if status in (Status.BAD, Status.DEEP, Status.NOT_UTF8):
        return None
    if not last:  # the array has ended: is what follows UTF-8 too?
        rest = bytearray(length - start - consumed)
        read_into(memoryview(rest), start + consumed)
        try:
            rest.decode()
        except UnicodeDecodeError:
            return None
    return _finish(scan, plan, Status(status), start + consumed)


def _finish(scan: Any, plan: Plan, status: Status, consumed: int) -> ScanResult:
    num_events, not_events, owned, groups = scan.finish()
    memory = pa.py_buffer(owned)
    result = ScanResult(status, consumed, num_events, not_events, [])
    for index, ((rows, event_at, columns), names) in enumerate(zip(groups, plan.groups, strict=True)):
        arrays, labels = [], []
        if index:
            arrays.append(pa.Array.from_buffers(pa.int64(), rows, [None, memory.slice(event_at, 8 * rows)]))
            labels.append("event")
        for column, (name, kind) in zip(columns, names, strict=True):
            labels.append(name)
            if column is None:
                arrays.append(_nulls(kind, rows))
                continue
            *where, mismatches, out_of_range = column
            arrays.append(_nulls(kind, rows) if where[0] < 0 else _to_arrow(ARROW_TYPES[kind], rows, memory, *where))
            if mismatches:
                result.mismatches[name] = mismatches
            if out_of_range:
                result.out_of_range[name] = out_of_range
        result.groups.append(pa.RecordBatch.from_arrays(arrays, names=labels))
    return result


@lru_cache(maxsize=64)
def _nulls(kind: Kind, rows: int) -> pa.Array:
    """Return a column without values; all those of a chunk share their memory."""
    return nulls(ARROW_TYPES[kind], rows)


def _to_arrow(
    type_: pa.DataType,
    rows: int,
    memory: pa.Buffer,
    null_count: int,
    data_at: int,
    data_len: int,
    valid_at: int,
    dictionary: tuple[int, int, int, int] | None,
) -> pa.Array:
    bitmap = memory.slice(valid_at, (rows + 7) // 8) if null_count else None
    buffers = [bitmap, memory.slice(data_at, data_len)]
    if dictionary is None:
        return pa.Array.from_buffers(type_, rows, buffers, null_count)
    count, offsets_at, text_at, text_len = dictionary
    codes = pa.Array.from_buffers(pa.int32(), rows, buffers, null_count)
    ends = memory.slice(offsets_at, 4 * (count + 1))
    words = pa.Array.from_buffers(pa.utf8(), count, [None, ends, memory.slice(text_at, text_len)], 0)
    return pa.DictionaryArray.from_arrays(codes, words, safe=False)
