"""An array of JSON objects to Arrow columns, by a plan.

    scan_chunk(data, start, end, plan, base_ns=…) -> ScanResult
    scan_file(file, at, length, buffer, plan, base_ns=…) -> ScanResult | None        the same, read bit by bit
    integer_of(text) -> int | None                                          by the rules of an integer column

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
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from perfkit.arrays import nulls

try:
    from perfkit.sources import _scan  # type: ignore[attr-defined]  # compiled, optional
except ImportError:  # no compiler at install time
    _scan = None

Memory = bytearray | mmap.mmap
Buffer = bytes | Memory
PADDING = 64
"""Readable bytes that `data` must hold after `end` (the C scanner loads 16 at a time)."""

NUMBER_TEXT = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([-+]?[0-9]+))?\Z")
"""What counts as a number in quotes."""


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


class Tally(NamedTuple):
    """How many values of a column did not fit, and which event had the first."""

    number: int
    first: int


class Columns(NamedTuple):
    """Rows as Arrow. `groups[0]` has a row per event, the others a column `event` that points there."""

    groups: list[pa.RecordBatch]
    mismatches: dict[str, Tally]
    """Column -> values of another type, now null; in the order of the plan."""
    out_of_range: dict[str, Tally]
    """Column -> values that do not fit 64 bits, now null; in the order of the plan."""


@dataclass
class ScanResult:
    """Rows of one chunk. Whoever first asks for its columns makes Arrow of them: Python, which keeps the GIL."""

    status: Status
    consumed: int
    num_events: int
    not_events: int
    to_columns: Callable[[], Columns]

    @cached_property
    def columns(self) -> Columns:
        """The rows."""
        return self.to_columns()


def scaled_integer(number: re.Match[str], scale: int, *, exact: bool) -> tuple[int | None, bool]:
    """Value × 10^scale as (integer, False), (None, False) beyond 20 digits, (None, True) for a refused fraction.

    Works on the digits, because an exponent of a million is legal JSON and must cost nothing.
    """
    sign, whole, fraction, exponent = number[1], number[2], number[3] or "", number[4] or "0"
    power = int(exponent) if len(exponent) < 9 else int(exponent[0] + "9999999" if exponent[0] in "+-" else "9999999")
    digits, keep = whole + fraction, len(whole) + power + scale
    significant = digits.lstrip("0")
    if not significant:
        return 0, False
    if len(significant) + keep - len(digits) > 20:
        return None, False
    kept, lost = (
        (digits[:keep].ljust(keep, "0"), digits[keep:]) if keep > 0 else ("0", "0" + digits if keep < 0 else digits)
    )
    if exact and lost.strip("0"):
        return None, True
    value = int(kept)
    if lost and (lost[0] > "5" or (lost[0] == "5" and (lost[1:].strip("0") != "" or value % 2 == 1))):
        value += 1
    return (-value if sign else value), False


def integer_of(text: str) -> int | None:
    """Return the integer of 64 bits that a number or the text of one means, from its digits; None if it is another."""
    digits = NUMBER_TEXT.match(text)
    number = scaled_integer(digits, 0, exact=True)[0] if digits else None
    return number if number is not None and -(2**63) <= number < 2**63 else None


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


def scan_file(file: int, at: int, length: int, buffer: Memory, plan: Plan, *, base_ns: int) -> ScanResult | None:
    """Scan `length` bytes at position `at` of an open file, slice by slice through `buffer`; needs the C scanner.

    Gives what `scan_chunk` gives of all bytes at once, or None where only that can tell: they are broken somewhere, an
    element does not fit into the buffer, or there are fewer bytes.
    """
    assert _scan is not None
    scan = _scan.begin(plan.compiled, base_ns, length)
    if (found := scan.feed_file(file, at, length, buffer)) is None:
        return None
    status, consumed = found
    if status == Status.END:  # is what follows the array UTF-8 too?
        try:
            os.pread(file, length - consumed, at + consumed).decode()
        except UnicodeDecodeError:
            return None
    return _finish(scan, plan, Status(status), consumed)


def _finish(scan: Any, plan: Plan, status: Status, consumed: int) -> ScanResult:
    num_events, not_events, owned, groups = scan.finish()
    return ScanResult(status, consumed, num_events, not_events, lambda: _to_columns(owned, groups, plan))


def _to_columns(owned: Any, groups: list[Any], plan: Plan) -> Columns:
    memory = pa.py_buffer(owned)
    found = Columns([], {}, {})
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
            if mismatches[0]:
                found.mismatches[name] = Tally(*mismatches)
            if out_of_range[0]:
                found.out_of_range[name] = Tally(*out_of_range)
        found.groups.append(pa.RecordBatch.from_arrays(arrays, names=labels))
    return found


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
