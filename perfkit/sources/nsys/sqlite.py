"""The tables of an nsys export in SQLite, read through the standard library.

    SqliteTables(path, file)     see perfkit.sources.nsys.tables

The file is untrusted: it is opened immutable and read-only, with an authorizer that permits nothing but
plain reads of ordinary tables (no views, no virtual tables, no generated columns). Indexes are not
used, because one that disagrees with its table would hide rows. There is no `PRAGMA quick_check`: it
costs as much as reading the file, and damage shows up while reading anyway; what came before is kept.
"""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from perfkit.errors import CorruptInput, UnsafeInput, UnsupportedInput
from perfkit.sources.nsys.tables import EXPORT_AGAIN, Batch, Ints, Oddities, all_strings, pick, to_utf8

MAX_TEXT = 1 << 20
"""Longest text or blob that is read; longer ones become null and are counted."""
MAX_BATCH_BYTES = 32 << 20
"""Size of a batch, about: long texts make batches of fewer rows."""

_SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError, MemoryError)
"""What damage looks like; SQLite quotes the damaged bytes in messages that Python then cannot decode."""
_ALLOWED_FUNCTIONS = frozenset({"count", "typeof", "length", "json_quote"})
_ALLOWED_PRAGMAS = frozenset({"table_info"})


def _authorize(action: int, first: str | None, second: str | None, database: str | None, source: str | None) -> int:
    """Permit reads of tables and a handful of pure functions; `source` names a view or trigger, never permitted."""
    if source is None:
        if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ):
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION and second in _ALLOWED_FUNCTIONS:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_PRAGMA and first in _ALLOWED_PRAGMAS:
            return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from walking the rows of a batch again and again; none of them is garbage yet."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _noting(problems: Oddities, table: str) -> Iterator[None]:
    """Turn damage that SQLite meets into an oddity."""
    try:
        yield
    except _SQLITE_ERRORS as error:
        problems.append(("truncated", 1, f"{table} breaks off: {error}"))


class SqliteTables:
    """Tables of an SQLite file, read through the standard library."""

    def __init__(self, path: str, file: Path) -> None:
        self.path = path
        self._all_strings: tuple[Ints, pa.Array] | None = None
        self._whole_pages: tempfile.TemporaryDirectory[str] | None = None
        try:
            with file.open("rb") as stream:
                head = stream.read(18)
            if head[:16] != b"SQLite format 3\0":
                raise UnsupportedInput("not an SQLite file", path=path, next_step=EXPORT_AGAIN)
            page_bytes = int.from_bytes(head[16:], "big")
            page_bytes = 65_536 if page_bytes == 1 else page_bytes
            if page_bytes and file.stat().st_size % page_bytes:
                file = self._without_half_a_page(file, page_bytes)
            uri = file.resolve().as_uri() + "?mode=ro&immutable=1"
            self._db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        except (OSError, *_SQLITE_ERRORS) as error:
            raise CorruptInput(f"cannot be opened: {error}", path=path, next_step=EXPORT_AGAIN) from None
        self._db.text_factory = bytes
        self.problems: Oddities = []
        try:
            try:
                self._read_schema()
            except _SQLITE_ERRORS as error:
                # SQLite refuses a file that is shorter than its header says unless its schema counts as under repair
                self._db.set_authorizer(lambda *_: sqlite3.SQLITE_OK)  # (None works only from Python 3.11 on)
                self._db.execute("PRAGMA writable_schema=ON")
                self._read_schema()
                self.problems.append(("truncated", 1, f"damaged SQLite file ({error})"))
        except _SQLITE_ERRORS as error:
            self.close()
            raise CorruptInput(f"broken SQLite file: {error}", path=path, next_step=EXPORT_AGAIN) from None

    def _without_half_a_page(self, file: Path, page_bytes: int) -> Path:
        """Return a copy without the page that is cut in two: SQLite would read its missing half as zeros."""
        self._whole_pages = tempfile.TemporaryDirectory(prefix="perfkit-")
        copy = Path(self._whole_pages.name) / "whole_pages.sqlite"
        shutil.copyfile(file, copy)
        os.truncate(copy, copy.stat().st_size // page_bytes * page_bytes)
        return copy

    def _read_schema(self) -> None:
        for pragma in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON", "temp_store=MEMORY"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.set_authorizer(_authorize)
        listed = self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0").fetchall()
        self._columns = {name: self._table_info(name) for name in (_text(row[0]) for row in listed) if name}

    def _table_info(self, table: str) -> dict[str, bool]:
        """Map each stored column to whether it is the integer primary key; generated columns are not listed."""
        rows = self._db.execute(f"PRAGMA table_info({_quote(table)})").fetchall()
        return {_text(row[1]): bool(row[5]) and _text(row[2]).upper() == "INTEGER" for row in rows}

    def names(self) -> list[str]:
        """Return the tables."""
        return sorted(self._columns)

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns of a table; empty if it is absent."""
        return frozenset(self._columns.get(table, ()))

    def count(self, table: str) -> int:
        """Return the number of rows; 0 if the table is absent or too broken to count."""
        if table not in self._columns:
            return 0
        with suppress(*_SQLITE_ERRORS):
            return int(self._db.execute(f"SELECT count(*) FROM {_quote(table)} NOT INDEXED").fetchone()[0])
        return 0

    def distinct(self, table: str, *expressions: tuple[str, int]) -> set[tuple[int | None, ...]]:
        """Return the distinct tuples of (column >> shift), as far as the table can be read."""
        have = self.columns(table)
        if not have.issuperset(column for column, _ in expressions):
            return set()
        select = ", ".join(f"{_integer(column)} >> {shift}" for column, shift in expressions)
        found: set[tuple[int | None, ...]] = set()
        with suppress(*_SQLITE_ERRORS):
            for row in self._db.execute(f"SELECT DISTINCT {select} FROM {_quote(table)} NOT INDEXED"):
                found.add(tuple(value if type(value) is int else None for value in row))
                if len(found) > 100_000:
                    raise UnsafeInput(
                        f"{table} names more than 100,000 processes", path=self.path, next_step=EXPORT_AGAIN
                    )
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
        kinds = {**dict.fromkeys(ints, "int"), **dict.fromkeys(texts, "text")}
        kinds |= {**dict.fromkeys(blobs, "blob"), **dict.fromkeys(extras, "json")}
        kinds = {name: kind for name, kind in kinds.items() if name in have}
        if not kinds or (where and where[0] not in have) or (present and present not in have):
            return
        guard = {"int": _integer, "text": _limited, "blob": _limited, "json": _as_json}
        query = (
            f"SELECT {', '.join(guard[kind](name) for name, kind in kinds.items())} FROM {_quote(table)} NOT INDEXED"
        )
        if where:
            query += f" WHERE {_quote(where[0])} IN ({', '.join(str(int(value)) for value in where[1])})"
        elif present:
            query += f" WHERE {_quote(present)} IS NOT NULL"
        fetch = min(rows, 4096)
        broken: Oddities = []
        cursor: Iterator[tuple[Any, ...]] = iter(())
        with _noting(broken, table):
            cursor = self._db.execute(query)
        while True:
            fetched: list[tuple[Any, ...]] = []
            with _collector_paused(), _noting(broken, table):
                fetched.extend(islice(cursor, fetch))  # unlike fetchmany, keeps the rows before an error
            if not fetched:
                break
            batch = Batch(len(fetched), {})
            with _collector_paused():
                for (name, kind), values in zip(kinds.items(), zip(*fetched, strict=True), strict=True):
                    batch.columns[name] = _to_arrow(values, kind, f"{table}.{name}", batch.oddities)
            yield batch
            if broken:
                break
            size = sum(column.nbytes for column in batch.columns.values())
            fetch = max(1, min(rows, MAX_BATCH_BYTES * len(fetched) // max(1, size)))
        if broken:
            yield Batch(0, {}, broken)

    def strings(self, ids: Ints) -> pa.Array:
        """Return the text of each id (unique, sorted); null where StringIds has none."""
        if not {"id", "value"} <= self.columns("StringIds"):
            return pa.nulls(len(ids), pa.utf8())
        if not self._columns["StringIds"]["id"]:  # not nsys's own layout: without the key a lookup is a full scan
            if self._all_strings is None:
                self._all_strings = all_strings(self)
            return pick(*self._all_strings, ids)
        found_ids: list[int] = []
        found: list[object] = []
        with suppress(*_SQLITE_ERRORS):
            for i in range(0, len(ids), 8192):
                wanted = ", ".join(map(str, ids[i : i + 8192].tolist()))
                query = f"SELECT id, {_limited('value')} FROM StringIds WHERE id IN ({wanted}) ORDER BY id"
                if fetched := self._db.execute(query).fetchall():
                    columns = list(zip(*fetched, strict=True))
                    found_ids += columns[0]
                    found += columns[1]
        return pick(np.array(found_ids, np.int64), _to_arrow(found, "text", "StringIds.value", []), ids)

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()
        if self._whole_pages is not None:
            self._whole_pages.cleanup()


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else ""


def _integer(column: str) -> str:
    c = _quote(
        column
    )  # anything else becomes a short text, so that a huge blob is never loaded and _to_arrow counts it
    return f"CASE typeof({c}) WHEN 'integer' THEN {c} WHEN 'null' THEN NULL ELSE '?' END"


def _limited(column: str) -> str:
    c = _quote(column)
    return (
        f"CASE WHEN typeof({c}) IN ('text', 'blob') AND length({c}) <= {MAX_TEXT} THEN {c} WHEN {c} NOTNULL THEN 0 END"
    )


def _as_json(column: str) -> str:
    c = _quote(column)
    return f"CASE WHEN typeof({c}) IN ('null', 'blob') OR length({c}) > {MAX_TEXT} THEN NULL ELSE json_quote({c}) END"


def _to_arrow(values: Sequence[Any], kind: str, where: str, oddities: Oddities) -> pa.Array:
    """Convert a column of one batch; what does not fit becomes null and is counted."""
    python_type, arrow_type = (int, pa.int64()) if kind == "int" else (bytes, pa.binary())
    try:
        column = pa.array(values, arrow_type)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        column = pa.array([value if type(value) is python_type else None for value in values], arrow_type)
        bad = column.null_count - sum(value is None for value in values)
        oddities.append(("type_mismatch", bad, f"{where} holds values that are not {kind}, or too long"))
    return to_utf8(column, where, oddities) if kind in ("text", "json") else column
