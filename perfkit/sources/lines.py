"""Lines of a text log, in bounded memory, and a `Reading` over a function from lines to rows.

A line that is longer than any log writes is None, and the rest of it is skipped.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from perfkit.schema import TABLES, table_from_rows
from perfkit.sources.base import Chunk, Input, PartInfo
from perfkit.sources.inputs import UTF8_BOM, Stream, open_input

MAX_LINE_BYTES = 1 << 20
MAX_TIME_NS = 2**62

Row = tuple[str, dict[str, Any]]
"""(table, values by column)"""


def read_lines(stream: Stream) -> Iterator[bytes | None]:
    """Yield lines without their ends; None stands for one that is longer than any log writes."""
    reader = io.BufferedReader(stream, 1 << 18)
    first = True
    while line := reader.readline(MAX_LINE_BYTES):
        if first:
            line, first = line.removeprefix(UTF8_BOM), False
        if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            while (rest := reader.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield None
        else:
            yield line.rstrip(b"\r\n")


def clean(text: str) -> str:
    """Return text that UTF-8 can hold: JSON may name half a surrogate pair."""
    return text.encode("utf-8", "replace").decode("utf-8")


class LogReading:
    """A log being read; `rows_of` turns lines into rows and notes what is odd in the part."""

    def __init__(
        self,
        input: Input,
        info: PartInfo,
        rows_of: Callable[[Iterable[bytes | None], PartInfo], Iterator[Row]],
        rows_per_chunk: int,
    ) -> None:
        self.parts = [info]
        self._input, self._rows_of, self._rows_per_chunk = input, rows_of, rows_per_chunk
        self._stream: Stream | None = None

    @property
    def bytes_read(self) -> int:
        """Uncompressed bytes so far."""
        return 0 if self._stream is None else self._stream.bytes_out

    def __iter__(self) -> Iterator[Chunk]:
        info, waiting = self.parts[0], dict[str, list[dict[str, Any]]]()
        with open_input(self._input) as stream:
            self._stream = stream
            for table, row in self._rows_of(read_lines(stream), info):
                info.num_events += 1
                rows = waiting.setdefault(table, [])
                rows.append(row)
                if len(rows) >= self._rows_per_chunk:
                    yield _chunk(table, waiting.pop(table))
            info.note("truncated", int(stream.truncated), stream.problem or "the stored bytes end early")
        for table, rows in waiting.items():
            yield _chunk(table, rows)


def _chunk(table: str, rows: list[dict[str, Any]]) -> Chunk:
    built = table_from_rows(TABLES[table], [{"rank": 0, **row} for row in rows])
    return Chunk(0, table, built.drop_columns([name for name in ("rank", "segment") if name in built.column_names]))
