"""Read Nsight Systems exports: `nsys export` SQLite (schema 2.9 to 3.25) and parquetdir.

    peek(input) -> list[PartInfo]        one part per process with device work, and its rank if the report tells
    read(input, options) -> Reading      chunks of events, kernels_meta, nvtx_gpu, collective_args, syncs, …

The pieces: `tables` (with `sqlite` and `parquet`) gives typed batches of any table, `plan` finds processes, ranks
and the clock, `export` turns tables into chunks with `rows`, `payload`, `info` and `project`, and `recipe` reads what
NVIDIA's recipes made of a report.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa

from perfkit.analysis.classify import classify_events
from perfkit.sources.base import Chunk, Input, PartInfo, Reading, ReadOptions
from perfkit.sources.inputs import local_file
from perfkit.sources.nsys.export import ExportReader
from perfkit.sources.nsys.plan import make_plan
from perfkit.sources.nsys.recipe import RecipeReader, is_recipe, make_parts, plan_ranks
from perfkit.sources.nsys.tables import open_tables


def nsys_rep_hint(path: str) -> str:
    """Return the exact command that turns a .nsys-rep into something perfkit reads."""
    target = path.removesuffix(".nsys-rep").removesuffix(".qdrep") + ".sqlite"
    command = f"nsys export --type sqlite --output {shlex.quote(target)} {shlex.quote(path)}"
    return f"run `{command}` and give perfkit the .sqlite file"


def peek(input: Input) -> list[PartInfo]:
    """Return the parts of an export; reads metadata and the process column of each table."""
    with closing(open_tables(input.path, local_file(input))) as tables:
        return make_parts(plan_ranks(tables)) if is_recipe(tables) else make_plan(tables, input.path).parts


def read(input: Input, options: ReadOptions) -> Reading:
    """Return an iterable of chunks; `parts` is known with the first chunk and final after the last."""
    return NsysReading(input, options)


class NsysReading:
    """One pass over an export; the file is open only while it is iterated."""

    def __init__(self, input: Input, options: ReadOptions) -> None:
        self.parts: list[PartInfo] = []
        self.bytes_read = 0
        self._input, self._options = input, options

    def __iter__(self) -> Iterator[Chunk]:
        with closing(open_tables(self._input.path, local_file(self._input))) as tables:
            reader = (RecipeReader if is_recipe(tables) else ExportReader)(self._input, self._options, tables)
            self.parts = reader.parts
            for chunk in reader:
                self.bytes_read = int(self._input.size_bytes * reader.done)
                yield chunk._replace(rows=_with_class(chunk.rows)) if chunk.table == "events" else chunk
        self.bytes_read = self._input.size_bytes


def _with_class(events: pa.Table) -> pa.Table:
    """Fill in the class: rows have Kineto's categories and names, so the same rules apply."""
    index = events.column_names.index("class")
    found = classify_events(events["category"], events["name"], phase=events["phase"])
    return events.set_column(index, events.schema.field(index), found.cast(events.schema.field(index).type))
