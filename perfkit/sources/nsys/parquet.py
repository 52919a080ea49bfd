"""The tables of an nsys export in parquet: TABLE.parquet, or a folder TABLE of parquet files.

    ParquetTables(path, folder)     see perfkit.sources.nsys.tables

A footer of a few bytes can promise billions of rows, so the promised size is checked before anything
is read. Symbolic links are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from perfkit.errors import CorruptInput, UnsafeInput, first_line
from perfkit.sources.nsys.tables import EXPORT_AGAIN, Batch, Ints, Oddities, all_strings, pick, to_utf8
from perfkit.store.footer import read_footer

MAX_EXPANSION = 500
ALWAYS_ALLOWED_BYTES = 1 << 30
"""A table may unfold to MAX_EXPANSION times its file size, and to this in any case."""


_PARQUET_ERRORS = (pa.ArrowException, OSError, ValueError, MemoryError)
"""What damage looks like; a broken column name fails to decode."""


class ParquetTables:
    """Tables of a `parquetdir` export: TABLE.parquet, or a folder TABLE of parquet files."""

    def __init__(self, path: str, folder: Path) -> None:
        self.path = path
        self.problems: Oddities = []
        self._files: dict[str, list[Path]] = {}
        for entry in sorted(folder.iterdir()) if folder.is_dir() else [folder]:
            if entry.is_symlink():
                raise UnsafeInput(f"{entry.name} is a symbolic link", path=path, next_step="copy the files themselves")
            if entry.is_dir() and (parts := sorted(entry.glob("*.parquet"))):
                self._files[entry.name] = parts
            elif entry.suffix == ".parquet" or entry == folder:
                self._files[entry.stem] = [entry]
        self._schemas: dict[str, pa.Schema] = {}
        self._rows: dict[str, int] = {}
        self._broken: dict[str, str] = {}
        for table, files in self._files.items():
            try:
                self._rows[table] = sum(read_footer(file).num_rows for file in files)  # Arrow may not survive damage
                schema = pq.read_schema(files[0])
                self._refuse_bombs(table, files, len(schema))
                self._schemas[table] = schema
            except _PARQUET_ERRORS as error:
                self._broken[table] = first_line(error)
                self.problems.append(("truncated", 1, f"{table} cannot be read: {self._broken[table]}"))
        self._all_strings: tuple[Ints, pa.Array] | None = None
        if not self._schemas:
            detail = "; ".join(f"{table}: {why}" for table, why in self._broken.items()) or "no parquet files"
            raise CorruptInput(f"no readable table ({detail})", path=path, next_step=EXPORT_AGAIN)

    def _refuse_bombs(self, table: str, files: list[Path], num_columns: int) -> None:
        unfolded = self._rows[table] * 8 * num_columns
        stored = sum(file.stat().st_size for file in files)
        if unfolded > max(ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * stored):
            message = f"{table} unfolds {stored:,} bytes to about {unfolded:,}"
            raise UnsafeInput(message, path=self.path, next_step="remove the file if it is not yours")

    def names(self) -> list[str]:
        """Return the tables."""
        return sorted(self._schemas)

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns of a table; empty if it is absent."""
        return frozenset(self._schemas[table].names) if table in self._schemas else frozenset()

    def count(self, table: str) -> int:
        """Return the number of rows; 0 if the table is absent."""
        return self._rows.get(table, 0)

    def distinct(self, table: str, *expressions: tuple[str, int]) -> set[tuple[int | None, ...]]:
        """Return the distinct tuples of (column >> shift)."""
        found: set[tuple[int | None, ...]] = set()
        if self.columns(table).issuperset(column for column, _ in expressions):
            for batch in self.scan(table, ints=[column for column, _ in expressions]):
                if batch.num_rows:
                    shifted = {
                        f"{i}": pc.shift_right(batch.array(column), shift)
                        for i, (column, shift) in enumerate(expressions)
                    }
                    unique = pa.table(shifted).group_by(list(shifted)).aggregate([])
                    found |= set(zip(*(unique[name].to_pylist() for name in shifted), strict=True))
        return found

    def scan(
        self,
        table: str,
        *,
        ints: Sequence[str] = (),
        texts: Sequence[str] = (),
        blobs: Sequence[str] = (),
        extras: Sequence[str] = (),
        where: tuple[str, Sequence[int]] | None = None,
        present: str | None = None,
        rows: int = 65_536,
    ) -> Iterator[Batch]:
        """Iterate over rows in stored order; a table that breaks off yields what came before and says so."""
        have = self.columns(table)
        wanted = [name for name in dict.fromkeys((*ints, *texts, *blobs, *extras)) if name in have]
        if not wanted or (where and where[0] not in have) or (present and present not in have):
            return
        needed = [*wanted, *(name for name in ((where[0] if where else None), present) if name and name not in wanted)]
        convert: dict[str, Callable[[pa.Array, str, Oddities], pa.Array]]
        convert = {**dict.fromkeys(ints, _int64), **dict.fromkeys(texts, _utf8)}
        convert |= {**dict.fromkeys(blobs, _binary), **dict.fromkeys(extras, _json)}
        try:
            for file in self._files[table]:
                parquet = pq.ParquetFile(file, page_checksum_verification=True)
                for record in parquet.iter_batches(rows, columns=needed):
                    keep = None
                    if where:
                        keep = pc.is_in(record.column(where[0]), pa.array(where[1], record.column(where[0]).type))
                    elif present:
                        keep = record.column(present).is_valid()
                    part = record if keep is None else record.filter(keep)
                    batch = Batch(part.num_rows, {})
                    for name in wanted:
                        batch.columns[name] = convert[name](part.column(name), f"{table}.{name}", batch.oddities)
                    yield batch
        except _PARQUET_ERRORS as error:
            yield Batch(0, {}, [("truncated", 1, f"{table} breaks off: {first_line(error)}")])

    def strings(self, ids: Ints) -> pa.Array:
        """Return the text of each id (unique, sorted); null where StringIds has none."""
        if self._all_strings is None:
            self._all_strings = all_strings(self)
        return pick(*self._all_strings, ids)

    def close(self) -> None:
        """Files are opened per scan; there is nothing to let go of."""


def _int64(column: pa.Array, where: str, oddities: Oddities) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_uint64(column.type):  # ids that use the top bit wrap, as they do in SQLite
        return pa.Array.from_buffers(pa.int64(), len(column), column.buffers(), offset=column.offset)
    if pa.types.is_floating(column.type):  # pandas turns integers with gaps into floats
        whole = pc.and_(pc.equal(pc.floor(column), column), pc.less(pc.abs(column), 2.0**53))
        kept = pc.if_else(pc.fill_null(whole, False), column, None)
        oddities.append(("type_mismatch", kept.null_count - column.null_count, f"{where} is not a whole number"))
        return kept.cast(pa.int64())
    if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        return column.cast(pa.int64())
    if pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type):
        return column.cast(pa.int64())
    oddities.append(("type_mismatch", len(column) - column.null_count, f"{where} is {column.type}, not an integer"))
    return pa.nulls(len(column), pa.int64())


def _utf8(column: pa.Array, where: str, oddities: Oddities) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.binary())
    if pa.types.is_binary(column.type):
        return to_utf8(column, where, oddities)
    oddities.append(("type_mismatch", len(column) - column.null_count, f"{where} is {column.type}, not text"))
    return pa.nulls(len(column), pa.utf8())


def _binary(column: pa.Array, where: str, oddities: Oddities) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        return column.cast(pa.binary())
    except pa.ArrowException:
        oddities.append(("type_mismatch", len(column) - column.null_count, f"{where} is {column.type}, not binary"))
        return pa.nulls(len(column), pa.binary())


def _json(column: pa.Array, where: str, oddities: Oddities) -> pa.Array:
    if pa.types.is_integer(column.type):
        return column.cast(pa.utf8())
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    words = pa.array([json.dumps(value, default=str) for value in encoded.dictionary.to_pylist()], pa.utf8())
    return words.take(encoded.indices)
