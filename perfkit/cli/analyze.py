"""Say where the time of each rank and step went, from trace files alone.

Every nanosecond of a step is charged to compute, exposed communication, exposed copies or idle, and idle
time to its cause and to whoever held the host up.

examples:
  perfkit analyze traces/                                  all ranks of a run, as text
  perfkit analyze rank0.json.gz --format json | jq .totals
  perfkit analyze traces/ --steps 10:20 --ranks 0,4-7
  perfkit analyze traces/ --table idle -o idle.csv         every row behind the report

PATH is a trace file, a folder, or an archive (.zip, .tar.gz). `--window trace` ignores steps and takes each
rank from its first to its last device event. Tables: attribution, steps, ranks, idle, io, memory.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from perfkit.errors import PerfkitError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="trace files, folders or archives")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="what to print (default: text)")
    parser.add_argument(
        "--window", choices=("step", "trace"), default="step", help="cut at steps, or not (default: step)"
    )
    parser.add_argument("--steps", metavar="A:B", help="only steps A <= step < B; either may be left out")
    parser.add_argument("--ranks", metavar="LIST", help="only these ranks, for example 0,4-7")
    parser.add_argument("--table", metavar="NAME", help="write this table instead of the report; needs -o")
    parser.add_argument("-o", "--output", type=Path, metavar="F", help="write to F (a table: .csv or .parquet)")


def run(args: argparse.Namespace) -> int:
    """Analyse and print."""
    first, last = parse_steps(args.steps)
    ranks = parse_ranks(args.ranks)
    if args.table and not (args.output and args.output.suffix in (".csv", ".parquet")):
        raise UsageError("--table needs a file to write to", next_step="add `-o FILE.csv` or `-o FILE.parquet`")

    from perfkit.analysis.analyze import analyze

    found = analyze(args.paths, window=args.window, first_step=first, last_step=last, ranks=ranks)
    if args.table:
        if args.table not in found.tables:
            raise UsageError(f"no table {args.table!r} here; there are {', '.join(found.tables)}")
        write_table(found.tables[args.table], args.output)
        return 0
    if args.format == "json":
        text = json.dumps(found.summary, indent=1, allow_nan=False) + "\n"
    else:
        from perfkit.analysis.text import render

        text = render(found.summary)
    if args.output:
        _write(args.output, text.encode())
    else:
        sys.stdout.write(text)
    return 0


def parse_steps(text: str | None) -> tuple[int | None, int | None]:
    """Parse `A:B`; either side may be empty."""
    if text is None:
        return None, None
    first, colon, last = text.partition(":")
    try:
        numbers = tuple(int(part) if part else None for part in (first, last))
    except ValueError:
        numbers = ()
    if not colon or len(numbers) != 2:
        raise UsageError(f"--steps {text!r} is no range", next_step="write it like 10:20, 10: or :20")
    return numbers


def parse_ranks(text: str | None) -> set[int] | None:
    """Parse `0,4-7`."""
    if text is None:
        return None
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            ranks |= set(range(int(first), int(last if dash else first) + 1))
        except ValueError:
            raise UsageError(f"--ranks {text!r} is no list of ranks", next_step="write it like 0,4-7") from None
    return ranks


def write_table(table: pa.Table, path: Path) -> None:
    """Write CSV or parquet by the suffix of `path`."""
    import io

    buffer = io.BytesIO()
    if path.suffix == ".csv":
        from pyarrow import csv

        csv.write_csv(_without_formulas(table), buffer)
    else:
        from pyarrow import parquet

        parquet.write_table(table, buffer, write_page_checksum=True)
    _write(path, buffer.getvalue())


def _without_formulas(table: pa.Table) -> pa.Table:
    """Quote text that a spreadsheet would run: names in a trace are anyone's."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for i, column in enumerate(table.schema):
        is_text = pa.types.is_dictionary(column.type) or pa.types.is_string(column.type)
        if is_text:
            text = table[column.name].cast(pa.utf8())
            table = table.set_column(i, column.name, pc.replace_substring_regex(text, r"^([=+\-@\t\r])", r"'\1"))
    return table


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise PerfkitError(f"cannot write {path}: {error.strerror}") from None
