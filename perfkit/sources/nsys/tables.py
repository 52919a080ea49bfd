"""The tables of an Nsight Systems export, whatever they are stored in.

    open_tables(path, file) -> Tables    SQLite file, or folder with one parquet file per table
    tables.scan(table, ...)              -> Batches of typed columns, in stored order, bounded in size
    tables.strings(ids)                  -> the texts of StringIds

nsys creates tables lazily and renames columns between versions, so a column that is absent reads as
null. A value of another type than expected reads as null too, and is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

Oddities = list[tuple[str, int, str]]
"""(kind, count, detail) as in `PartInfo.note`."""

EXPORT_AGAIN = "export the report again with `nsys export --type sqlite --force-overwrite true REPORT.nsys-rep`"


@dataclass(slots=True)
class Batch:
    """Some rows of one table: Arrow columns of equal length, and what was odd about them."""

    num_rows: int
    columns: dict[str, pa.Array]
    oddities: Oddities = field(default_factory=list)

    def array(self, name: str) -> pa.Array:
        """Return an integer column; all null if the table has none."""
        found = self.columns.get(name)
        return pa.nulls(self.num_rows, pa.int64()) if found is None else found

    def ints(self, name: str) -> tuple[Ints, Bools]:
        """Return an integer column as values (0 where null) and validity."""
        column = self.array(name)
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        return column.fill_null(0).to_numpy(), valid

    def take(self, rows: npt.NDArray[np.intp]) -> Batch:
        """Return the given rows; oddities stay with the whole batch."""
        index = pa.array(rows)
        return Batch(len(rows), {name: column.take(index) for name, column in self.columns.items()})


class Tables(Protocol):
    """Read access to the tables of one export."""

    problems: Oddities
    """What is wrong with the export as a whole."""

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns of a table; empty if it is absent."""

    def names(self) -> list[str]:
        """Return the tables."""

    def count(self, table: str) -> int:
        """Return the number of rows; 0 if the table is absent."""

    def distinct(self, table: str, *expressions: tuple[str, int]) -> set[tuple[int | None, ...]]:
        """Return the distinct tuples of (column >> shift)."""

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
        """Iterate over rows. `extras` come as JSON text; `present` skips rows where that column is null."""

    def strings(self, ids: Ints) -> pa.Array:
        """Return the text of each id (unique, sorted); null where StringIds has none."""

    def close(self) -> None:
        """Let go of the file."""


def rows_of(tables: Tables, table: str, *, ints: Sequence[str] = (), texts: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return a small table (metadata, never events) as dicts with all the given keys; at most 100,000 rows."""
    rows: list[dict[str, Any]] = []
    for batch in tables.scan(table, ints=ints, texts=texts):
        if batch.num_rows:
            columns = {name: batch.array(name) for name in (*ints, *texts)}
            rows += pa.table(columns).to_pylist()
        if len(rows) > 100_000:
            break
    return rows


def open_tables(path: str, file: Path) -> Tables:
    """Open an export: a folder or file of parquet, else SQLite."""
    from perfkit.sources.nsys.parquet import ParquetTables
    from perfkit.sources.nsys.sqlite import SqliteTables

    if file.is_dir():
        return ParquetTables(path, file)
    with suppress(OSError), file.open("rb") as stream:
        if stream.read(4) == b"PAR1":
            return ParquetTables(path, file)
    return SqliteTables(path, file)


def to_utf8(column: pa.Array, where: str, oddities: Oddities) -> pa.Array:
    """Return text; bytes that are not UTF-8 are replaced and counted."""
    try:
        return column.cast(pa.utf8())
    except pa.ArrowInvalid:
        raw = column.to_pylist()
        fixed = [None if value is None else value.decode(errors="replace") for value in raw]
        bad = sum(new is not None and new.encode() != old for new, old in zip(fixed, raw, strict=True))
        oddities.append(("invalid_utf8", bad, where))
        return pa.array(fixed, pa.utf8())


def all_strings(tables: Tables) -> tuple[Ints, pa.Array]:
    """Return the ids of StringIds, sorted and unique, and their texts."""
    ids: list[Ints] = []
    texts: list[pa.Array] = []
    for batch in tables.scan("StringIds", ints=["id"], texts=["value"]):
        if batch.num_rows:
            values, valid = batch.ints("id")
            rows = np.flatnonzero(valid)
            ids.append(values[rows])
            texts.append(batch.columns["value"].take(pa.array(rows)))
    if not ids:
        return np.empty(0, np.int64), pa.array([], pa.utf8())
    unique, first = np.unique(np.concatenate(ids), return_index=True)
    return unique, pa.concat_arrays(texts).take(pa.array(first))


def pick(have: Ints, texts: pa.Array, ids: Ints) -> pa.Array:
    """Return texts[i] where have[i] == ids[k]; `have` is sorted and unique."""
    if not len(have):
        return pa.nulls(len(ids), pa.utf8())
    at = np.minimum(np.searchsorted(have, ids), len(have) - 1)
    return texts.take(pa.array(at, mask=have[at] != ids))
