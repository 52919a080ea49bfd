"""A run to export, wherever it is: in a store, or in trace files that nobody has ingested.

    with open_run("llama-8b", store="runs/") as run: run.read("events", rank), run.analysis()

Both read the same way, one table of one rank at a time. Trace files are read rank by rank too, so that memory is that
of one rank. A run in a local store is analysed without leaving a trace there.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from perfkit.analysis.analyze import analyze
from perfkit.analysis.inputs import WHOLE, plan_inputs, read_input
from perfkit.analysis.stored import find_run, is_store, recorded_steps
from perfkit.errors import PerfkitError, UsageError
from perfkit.report.report import Report
from perfkit.schema import TABLES, conform
from perfkit.sources.ranks import PlannedInput
from perfkit.store.commits import RunSummary
from perfkit.store.lake import Store
from perfkit.store.layout import RunKey

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass
class OpenRun:
    """A run that can be read."""

    key: RunKey
    source: list[str]
    """What `perfkit.analyze` takes."""
    ranks: list[int]
    """Those with events."""
    world_size: int | None = None
    notes: list[str] = field(default_factory=list)
    store: Store | None = None
    summary: RunSummary | None = None
    report: Report | None = None
    planned: list[PlannedInput] = field(default_factory=list)
    _last: tuple[int, dict[str, pa.Table]] | None = None

    @property
    def name(self) -> str:
        """Its name as a user writes it."""
        return f"{self.key.cluster}/{self.key.run}/{self.key.attempt}"

    @property
    def synthetic(self) -> bool:
        """Say whether it was simulated."""
        if self.summary is not None:
            return self.summary.synthetic
        return bool(self.analysis().summary["synthetic"])

    @property
    def tables(self) -> list[str]:
        """Run tables that have rows."""
        if self.summary is not None:
            return [name for name, rows in self.summary.rows.items() if rows and name in TABLES]
        return [name for name, rows in self._file_tables(self.ranks[0]).items() if len(rows)] if self.ranks else []

    def read(self, table: str, rank: int | None = None) -> pa.Table:
        """Return the rows of a run table, of one rank or of all."""
        if self.store is not None:
            ranks = None if rank is None else [rank]
            return self.store.read(
                table, cluster=self.key.cluster, run=self.key.run, attempt=self.key.attempt, ranks=ranks
            )
        wanted = self.ranks if rank is None else [rank]
        found = [self._file_tables(one).get(table, TABLES[table].empty()) for one in wanted]
        return pa.concat_tables(found).unify_dictionaries() if found else TABLES[table].empty()

    def recorded_steps(self) -> pa.Table | None:
        """Return the steps that capture recorded."""
        return None if self.store is None else recorded_steps(self.store, self.key)

    def analysis(self) -> Report:
        """Return the analysis of the whole run; made once."""
        if self.report is None:
            if self.store is None or is_store(self.store.uri):
                self.report = analyze(self.source)
            else:
                self.report = analyze(self.name, store=self.store.uri)
        return self.report

    def _file_tables(self, rank: int) -> dict[str, pa.Table]:
        """Return everything that the trace files say of one rank."""
        if self._last is None or self._last[0] != rank:
            found: dict[str, list[pa.Table]] = {}
            for planned in self.planned:
                if rank in {part.rank for part in planned.parts}:
                    for part in read_input(planned, WHOLE):
                        for name, rows in part.tables.items() if part.rank == rank else ():
                            found.setdefault(name, []).append(conform(TABLES[name], rows))
            tables = {name: pa.concat_tables(rows).unify_dictionaries() for name, rows in found.items()}
            self._last = rank, tables
        return self._last[1]


@contextmanager
def open_run(
    run: Paths, *, store: str | os.PathLike[str] | None = None, report: Report | None = None
) -> Iterator[OpenRun]:
    """Open a run of a store (by name, or a store's only run), or trace files, folders and archives."""
    listed = [os.fspath(run)] if isinstance(run, (str, os.PathLike)) else [os.fspath(path) for path in run]
    if store is not None or (listed and is_store(listed[0])):
        names = listed if store is not None else listed[1:]
        lake = Store(listed[0] if store is None else store)
        if len(names) > 1:
            raise UsageError("one run at a time", next_step="name one run of the store")
        found = find_run(lake, names[0] if names else None)
        ranks = sorted({commit.rank for commit in lake.committed(*found.key) if commit.rows.get("events")})
        name = f"{found.key.cluster}/{found.key.run}/{found.key.attempt}"
        yield OpenRun(found.key, [lake.uri, name], ranks, found.world_size, [], lake, found, report)
        return
    missing = next((path for path in listed if not Path(path).exists()), None)
    if missing is not None:
        raise UsageError(f"{missing} does not exist", next_step="name trace files, or a run with --store DIR")
    with tempfile.TemporaryDirectory(prefix="perfkit-export-") as spool:
        yield _open_files(listed, Path(spool), report)


def _open_files(paths: list[str], spool: Path, report: Report | None) -> OpenRun:
    from perfkit.sources.ingest import default_run

    rejected: list[dict[str, str]] = []
    planned = plan_inputs(paths, spool, rejected)
    notes = [f"{row['path']}: {row['reason']}" for row in rejected]
    if not planned:
        raise PerfkitError(
            f"nothing to export: {'; '.join(notes[:5]) or 'no trace found'}",
            next_step="name trace files or their folder, or a run with --store DIR",
        )
    ranks = sorted({part.rank for one in planned for part in one.parts})
    return OpenRun(RunKey("default", default_run(paths), 0), paths, ranks, None, notes, report=report, planned=planned)
