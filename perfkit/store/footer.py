"""What a Parquet footer counts, read without Arrow, and its checksum.

    read_footer(path)  -> Footer(num_rows, chunks)        ValueError, or OSError, if it is damaged
    footer_crc(path)   -> int                             the same

Pages carry checksums, the footer that says where they lie and what they mean does not: of 600 footers with one bit
flipped, 14 were read as other values. So a commit carries the footer's.

pyarrow's accessors of a damaged footer can end the whole process (a C++ exception that nobody catches: one in
650 mutated footers, pyarrow 26), so what decides whether a foreign file may be opened at all is read here.
The footer is Thrift's compact protocol: structs of numbered fields, lists, and integers of variable length.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

MAGIC = b"PAR1"
MAX_FOOTER_BYTES = 64 << 20
MAX_VALUES = 8_000_000
"""Fields and elements of a footer; each costs a microsecond."""
MAX_DEPTH = 16
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_INTEGERS = (4, 5, 6)
PHYSICAL_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")


class ColumnChunk(NamedTuple):
    """One column of one row group."""

    physical_type: str
    num_values: int
    num_rows: int
    """Of its row group."""


@dataclass(frozen=True, slots=True)
class Footer:
    """What a footer promises."""

    num_rows: int
    chunks: list[ColumnChunk]


def read_footer(path: str | Path) -> Footer:
    """Read the footer of a file; anything that does not hold together is a ValueError."""
    data = _footer_bytes(path)
    try:
        top = _Reader(data).fields(0)
        chunks = [_chunk(column, group) for group in top.get(4, []) for column in group.get(1, [])]
        return Footer(int(top[3]), chunks)
    except (IndexError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ValueError("its footer is damaged") from error


def footer_crc(path: str | Path) -> int:
    """Return the CRC-32 of the footer."""
    return zlib.crc32(_footer_bytes(path))


def _footer_bytes(path: str | Path) -> bytes:
    with Path(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < 12:
            raise ValueError("too short")
        file.seek(size - 8)
        length, magic = struct.unpack("<I4s", file.read(8))
        if magic != MAGIC:
            raise ValueError("it does not end with PAR1")
        if length > min(size - 12, MAX_FOOTER_BYTES):
            raise ValueError(f"a footer of {length:,} bytes in a file of {size:,}")
        file.seek(size - 8 - length)
        return file.read(length)


def _chunk(column: dict[int, Any], group: dict[int, Any]) -> ColumnChunk:
    about = column[3]
    kind = about[1]
    if not 0 <= kind < len(PHYSICAL_TYPES):
        raise ValueError(f"its footer names an unknown type {kind}")
    num_values, num_rows = int(about[5]), int(group[3])
    if num_values < 0 or num_rows < 0:
        raise ValueError("negative counts in its footer")
    return ColumnChunk(PHYSICAL_TYPES[kind], num_values, num_rows)


class _Reader:
    """Decodes a struct to {field number: value}."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._values = 0

    def fields(self, depth: int) -> dict[int, Any]:
        if depth > MAX_DEPTH:
            raise ValueError("its footer is nested too deeply")
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            found[number] = (head & 15 == _TRUE) if head & 15 in (_TRUE, _FALSE) else self._value(head & 15, depth)
        return found

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        result = shift = 0
        while True:
            byte = self._byte()
            result |= (byte & 127) << shift
            if byte < 128:
                return result
            shift += 7
            if shift > 63:
                raise ValueError("an endless integer in its footer")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, count: int) -> None:
        if count > len(self._data) - self._at:
            raise ValueError("its footer ends early")
        self._at += count

    def _value(self, kind: int, depth: int) -> Any:
        self._values += 1
        if self._values > MAX_VALUES:
            raise ValueError("its footer holds too many values")
        if kind in _INTEGERS:
            return self._zigzag()
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._byte()
        if kind == _STRUCT:
            return self.fields(depth + 1)
        if kind in (_LIST, _SET):
            head = self._byte()
            size = self._varint() if head >> 4 == 15 else head >> 4
            self._check_size(size)
            return [self._value(head & 15, depth + 1) for _ in range(size)]
        if kind == _MAP:
            return self._map(depth)
        if kind not in (_BINARY, _DOUBLE):
            raise ValueError(f"an unknown kind of field ({kind}) in its footer")
        self._skip(8 if kind == _DOUBLE else self._varint())
        return None

    def _map(self, depth: int) -> None:
        size = self._varint()
        self._check_size(size)
        kinds = self._byte() if size else 0
        for _ in range(size):
            self._value(kinds >> 4, depth + 1)
            self._value(kinds & 15, depth + 1)

    def _check_size(self, size: int) -> None:
        if size > len(self._data) - self._at:  # every element takes a byte at least
            raise ValueError("its footer ends early")
