r"""Tables of a run as CSV or Parquet, for spreadsheets, pandas, Polars and DuckDB.

    run_tables(opened)                   -> names of all of them: what was recorded, and what the analysis found
    write_run_table(opened, name, path)     one table; `events` streams
    write_table(table, path)                any Arrow table, by the suffix of the path
    without_formulas(table)              -> the same, harmless in a spreadsheet

Names are those of docs/tables.md. Where the analysis has another table of the same name (`steps`, `memory`) it is
called `steps_analysis`. A text cell that a spreadsheet would run (=, +, -, @, tab, carriage return) gets an apostrophe
before it; numbers stay numbers, in whatever column.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.stored import DERIVED
from perfkit.errors import PerfkitError, UsageError
from perfkit.export.opened import OpenRun
from perfkit.export.whole_file import whole_file
from perfkit.schema import TABLES, TableSchema

SUFFIXES = (".csv", ".parquet")
_FORMULA = r"^([ \x{00a0}]*[=+\-@＝＋－＠\t\r\n])"
_NUMBER = r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$"
Steps = tuple[int | None, int | None]


def run_tables(opened: OpenRun) -> list[str]:
    """Return the tables of a run that have rows."""
    fleet = [
        name for name, schema in TABLES.items()
        if opened.store is not None and schema.kind == "fleet" and "run" in schema.names and len(_fleet(opened, name))
    ]  # fmt: skip
    run = ["runs"] if opened.store is not None else []
    found = _analysis_tables(opened)
    return sorted({*opened.tables, *run, *fleet, *(_exported_name(name) for name in found)})


def _exported_name(name: str) -> str:
    return f"{name}_analysis" if name in TABLES and name not in DERIVED else name


def _analysis_tables(opened: OpenRun) -> dict[str, pa.Table]:
    """Return what an analysis of the run's traces finds; nothing if it has none."""
    if not opened.ranks:
        return {}
    try:
        return dict(opened.analysis().tables)
    except PerfkitError as error:
        note = f"not analysed: {error}"
        opened.notes += [] if note in opened.notes else [note]
        return {}


def _fleet(opened: OpenRun, name: str) -> pa.Table:
    assert opened.store is not None
    return opened.store.read(name, cluster=opened.key.cluster, run=opened.key.run)


def read_table(
    opened: OpenRun, name: str, *, ranks: Collection[int] | None = None, steps: Steps | None = None
) -> Iterator[pa.Table]:
    """Yield a table in pieces, the first of them even if it is empty."""
    schema = TABLES.get(name)
    if schema is not None and schema.kind == "run" and name != "runs":
        if name not in opened.tables:
            raise _no_table(opened, name)
        yield schema.empty()
        for rank in _ranks_of(opened, schema, ranks):
            yield _of_steps(opened.read(name, rank), steps)
        return
    if name == "runs" and opened.store is not None:
        table = opened.store.read(name, cluster=opened.key.cluster, run=opened.key.run, attempt=opened.key.attempt,
                                  partitions=True)  # fmt: skip
    elif schema is not None and schema.kind == "fleet" and "run" in schema.names and opened.store is not None:
        table = _fleet(opened, name)
    else:
        found = {_exported_name(known): rows for known, rows in _analysis_tables(opened).items()}
        if name not in found:
            raise _no_table(opened, name)
        table = found[name]
    if ranks is not None and "rank" in table.column_names:
        table = table.filter(pc.is_in(table["rank"], pa.array(sorted(ranks), table["rank"].type)))
    yield _of_steps(table, steps)


def _ranks_of(opened: OpenRun, schema: TableSchema, ranks: Collection[int] | None) -> list[int | None]:
    """Return what to read one by one: a rank's events are the most that memory should hold."""
    if "rank" not in schema.names or (opened.store is None and not opened.ranks):
        return [None]
    there = opened.ranks if opened.summary is None else list(opened.summary.ranks)
    return [rank for rank in there if ranks is None or rank in ranks]


def _no_table(opened: OpenRun, name: str) -> UsageError:
    there = run_tables(opened)
    near = difflib.get_close_matches(name, there)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(there)}"
    return UsageError(f"{opened.name} has no table {name!r}", next_step=hint)


def _of_steps(table: pa.Table, steps: Steps | None) -> pa.Table:
    if steps is None or "step" not in table.column_names:
        return table
    low, high = steps
    keep = pc.is_valid(table["step"])
    if low is not None:
        keep = pc.and_(keep, pc.greater_equal(table["step"], low))
    if high is not None:
        keep = pc.and_(keep, pc.less(table["step"], high))
    return table.filter(keep)


def write_run_table(
    opened: OpenRun, name: str, path: Path, *, ranks: Collection[int] | None = None, steps: Steps | None = None
) -> int:
    """Write one table of a run and return its rows."""
    return write_pieces(read_table(opened, name, ranks=ranks, steps=steps), path)


def write_table(table: pa.Table, path: Path) -> None:
    """Write CSV or Parquet by the suffix of `path`."""
    write_pieces(iter([table]), path)


def write_pieces(pieces: Iterator[pa.Table], path: Path) -> int:
    """Write pieces of one table, complete or not at all; return the rows."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path}: unknown suffix", next_step=f"use {' or '.join(SUFFIXES)}")
    first = next(pieces)
    prepare = _for_csv if path.suffix == ".csv" else _decoded
    head = prepare(first)
    number = 0
    with whole_file(path) as file, _writer(file, head.schema, path.suffix) as writer:
        for piece in _chain(first, pieces):
            writer.write_table(prepare(piece).cast(head.schema))
            number += len(piece)
    return number


def _chain(first: pa.Table, rest: Iterator[pa.Table]) -> Iterator[pa.Table]:
    yield first
    yield from rest


def _writer(file: Any, schema: pa.Schema, suffix: str) -> Any:
    if suffix == ".csv":
        from pyarrow import csv

        return csv.CSVWriter(file, schema)
    from pyarrow import parquet

    return parquet.ParquetWriter(file, schema, write_page_checksum=True)


def _decoded(table: pa.Table) -> pa.Table:
    """Return text as plain text: pieces need not agree on a dictionary, and Parquet makes its own."""
    for i, column in enumerate(table.schema):
        if pa.types.is_dictionary(column.type):
            table = table.set_column(i, column.with_type(column.type.value_type), table[i].cast(column.type.value_type))
    return table


def _for_csv(table: pa.Table) -> pa.Table:
    for i, column in enumerate(table.schema):
        if pa.types.is_nested(column.type):
            words = [None if value is None else json.dumps(value) for value in table[i].to_pylist()]
            table = table.set_column(i, column.name, pa.array(words, pa.utf8()))
    return without_formulas(table)


def without_formulas(table: pa.Table) -> pa.Table:
    """Quote text that a spreadsheet would run: names in a trace are anyone's."""
    for i, column in enumerate(table.schema):
        if pa.types.is_dictionary(column.type) or column.type in (pa.utf8(), pa.large_utf8(), pa.string_view()):
            text = table[i].cast(pa.utf8())
            harmless = pc.match_substring_regex(text, _NUMBER)
            quoted = pc.replace_substring_regex(text, _FORMULA, r"'\1")
            table = table.set_column(i, column.name, pc.if_else(harmless, text, quoted))
    return table
