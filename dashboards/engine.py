"""Parquet of a store, read once per file version, and asked by many threads.

    engine = Engine("runs/")
    engine.load("run_rollup", window)               have a window's days in DuckDB; -> files that cannot be read
    engine.ask("SELECT … FROM run_rollup", […])     -> pa.Table
    engine.run_table("steps", key, columns=…)       -> rows of one attempt of one run, and what could not be read
    engine.version(folders)                         -> text that changes when a file does

Fleet tables, and the one-row files of `runs`, are kept as DuckDB tables in memory. A folder whose files changed is
deleted and inserted again; a day outside every window that was asked for is never read. Files go through the store's
own reader, so page checksums, schema versions and migrations hold here too; a file that cannot be read is reported,
and the others are shown. All state belongs to the object: each worker process has its own, and nothing is written.
"""

from __future__ import annotations

import datetime
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.errors import PerfkitError
from perfkit.schema import GOODPUT_BUCKETS, TABLES, TableSchema
from perfkit.store.catalog import Catalog, Which, pieces_of
from perfkit.store.commits import Commit
from perfkit.store.files import Files
from perfkit.store.layout import RunKey, hive_values
from perfkit.store.reading import Piece, Selection

from .view import DAY_NS

LISTING_S = 2.0
"""How long a listing of a folder is believed: a page asks for many tables at once."""
LISTING_PATIENCE = 5
"""How many times that age a listing may have while a new one is made: who can do without waits for no walk."""
ATTEMPTS = 3
CACHED_TABLES = 128
CACHED_BYTES = 256 << 20
"""What one worker keeps of single runs."""

COLUMNS = {
    "run_rollup": (
        "cluster", "run", "start_ns", "end_ns", "user", "model", "gpus", "state", "last_seen_ns", "steps", "tokens",
        "model_flops", "retained_flops", "peak_flops", "step_ns", "allocated_ns",
        *(f"{name}_ns" for name in GOODPUT_BUCKETS), "interruptions", "synthetic",
    ),
    "gpu_rollup": (
        "cluster", "node", "device", "start_ns", "state", "allocated_ns", "mfu_ratio", "temp_max_celsius",
        "throttle_thermal_ns", "throttle_power_ns", "ecc_uncorrected", "xid_count", "clock_mean_mhz",
        "power_mean_watts", "busy_ratio",
    ),
}  # fmt: skip
"""What is held of wide tables: reading a year costs as much as its columns."""
WHOLE = "run_rollup_whole"
"""run_rollup with all its columns, for the days of one run."""

Version = tuple[int, int]
"""Modification time and size of a file."""
_UNREADABLE = (PerfkitError, pa.ArrowException, OSError, UnicodeDecodeError)


@dataclass(frozen=True)
class Problem:
    """Something that could not be read, and why."""

    path: str
    reason: str


@dataclass
class _Held:
    """What DuckDB holds of one table: its folders, each with the versions of its files."""

    name: str
    schema: TableSchema
    columns: tuple[str, ...]
    folders: dict[str, tuple[tuple[str, Version], ...]] = field(default_factory=dict)
    problems: dict[str, list[Problem]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Engine:
    """Reads one store."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._files = Files(uri)
        self._catalog = Catalog(self._files)
        self._database = duckdb.connect(":memory:", config={"threads": 2})
        held = {n: s for n, s in TABLES.items() if s.kind == "fleet" or n == "runs"}
        self._held = {
            name: _Held(name, schema, COLUMNS.get(name) or _all_columns(schema)) for name, schema in held.items()
        }
        self._held[WHOLE] = _Held(WHOLE, TABLES["run_rollup"], _all_columns(TABLES["run_rollup"]))
        for one in self._held.values():
            self._create(one)
        self._listings: dict[str, tuple[float, dict[str, Version]]] = {}
        self._walking: dict[str, threading.Lock] = {}
        self._loaded: dict[tuple[str, str, str], tuple[dict[str, Version], list[Problem]]] = {}
        self._digests: dict[str, tuple[dict[str, Version], str]] = {}
        self._cache: OrderedDict[tuple[Any, ...], tuple[pa.Table, list[Problem]]] = OrderedDict()
        self._commits: OrderedDict[tuple[Any, ...], tuple[list[Commit], list[Problem]]] = OrderedDict()
        self._lock = threading.Lock()

    # ---------------------------------------------------------------- files

    def listing(self, folder: str) -> dict[str, Version]:
        """Return the files below a folder and their versions; the same object as long as none has changed.

        A listing is believed for LISTING_S. After that one thread makes a new one, aside while the old one is younger
        than LISTING_PATIENCE times that; all others go on with the old one.
        """
        known = self._listings.get(folder)
        age = time.monotonic() - known[0] if known else 0.0
        if known and age < LISTING_S:
            return known[1]
        lock = self._walking.setdefault(folder, threading.Lock())
        if known and age < LISTING_PATIENCE * LISTING_S:
            if lock.acquire(blocking=False):
                threading.Thread(target=self._walk_aside, args=(folder, lock), daemon=True).start()
            return known[1]
        with lock:
            newer = self._listings.get(folder)
            if newer is None or newer is known:
                self._walk(folder)
            return self._listings[folder][1]

    def _walk_aside(self, folder: str, lock: threading.Lock) -> None:
        try:
            with suppress(*_UNREADABLE):  # who needs it next looks again, and is told
                self._walk(folder)
        finally:
            lock.release()

    def _walk(self, folder: str) -> None:
        began = time.monotonic()
        found = {
            self._files.relative(info): (int(info.mtime_ns or 0), int(info.size or 0))
            for info in self._files.walk(folder)
        }
        known = self._listings.get(folder)
        self._listings[folder] = (began, known[1] if known and known[1] == found else found)
        if len(self._listings) > 4096:
            for memory in (self._listings, self._digests, self._walking):
                for name in list(memory)[:2048]:
                    memory.pop(name, None)  # type: ignore[attr-defined]

    @property
    def files(self) -> Files:
        """The objects of the store; only notes are ever written."""
        return self._files

    def read(self, path: str) -> bytes | None:
        """Return a small object as it is."""
        return self._files.read_bytes(path)

    def forget(self, folder: str) -> None:
        """Look at a folder again when it is next asked for, whatever its listing's age."""
        self._listings.pop(folder, None)

    def version(self, folders: Iterable[str]) -> str:
        """Return text that changes when any file below the folders changes."""
        return "".join(self._digest(folder) for folder in folders)

    def _digest(self, folder: str) -> str:
        listing = self.listing(folder)
        known = self._digests.get(folder)
        if known is None or known[0] is not listing:
            text = "\n".join(f"{path}\0{version}" for path, version in listing.items())
            known = (listing, hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest())
            self._digests[folder] = known
        return known[1]

    # ---------------------------------------------------------------- fleet tables

    def load(self, table: str, window: tuple[int, int] | None = None) -> list[Problem]:
        """Have the window's days of a table in DuckDB as they are now; return what cannot be read of them."""
        held = self._held[table]
        listing = self.listing(held.schema.name)
        days = (table, _day(window[0]) if window else "", _day(window[1]) if window else "")
        done = self._loaded.get(days)
        if done is not None and done[0] is listing:
            return done[1]
        with held.lock:
            listing = self.listing(held.schema.name)  # never older than what the one before loaded
            there: dict[str, tuple[tuple[str, Version], ...]] = {}
            for path, version in listing.items():
                if path.endswith(".parquet"):
                    folder = path.rpartition("/")[0]
                    there[folder] = (*there.get(folder, ()), (path, version))
            wanted = {folder: files for folder, files in there.items() if _in_days(folder, *days[1:])}
            changed = {folder: files for folder, files in wanted.items() if held.folders.get(folder) != files}
            forget = [f for f in held.folders if f not in there or f in changed]
            if changed or forget:
                self._replace(held, forget, changed)
            problems = [p for folder in sorted(wanted) for p in held.problems.get(folder, ())]
            if len(self._loaded) > 1024:
                self._loaded.clear()
            self._loaded[days] = (listing, problems)
        return problems

    def ask(self, sql: str, parameters: Sequence[Any] = (), *, schema: str | None = None) -> pa.Table:
        """Run a query over the loaded tables, in a cursor of its own; sums beyond 64 bits come as floats.

        With `schema` the names of tables are those of its views (see `view`).
        """
        cursor = self._database.cursor()
        if schema is not None:
            cursor.execute(f"SET schema = '{schema}'")
        found = cursor.sql(sql, params=list(parameters)).to_arrow_table()
        for i, name in enumerate(found.column_names):
            if pa.types.is_decimal(found.column(i).type):
                found = found.set_column(i, name, found.column(i).cast(pa.float64()))
        return found

    def view(self, schema: str, condition: Callable[[Sequence[str]], str]) -> None:
        """Make a schema that has every table, with the rows for which its condition holds."""
        cursor = self._database.cursor()
        cursor.begin()
        cursor.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
        for held in self._held.values():
            where = condition((*held.columns, *_partitions(held.schema)))
            cursor.execute(
                f'CREATE OR REPLACE VIEW "{schema}"."{held.name}" AS SELECT * FROM main."{held.name}" WHERE {where}'
            )
        cursor.commit()

    def _replace(
        self,
        held: _Held,
        forget: list[str],
        changed: dict[str, tuple[tuple[str, Version], ...]],
    ) -> None:
        """Swap the rows of the changed folders in one transaction: a reader sees the old ones or the new ones."""
        schema, names = held.schema, _partitions(held.schema)
        pieces = [Piece(path, _hive(path, names)) for files in changed.values() for path, _ in files]
        rows, problems = self._read(schema, pieces, names, columns=held.columns, partitions=True)
        cursor = self._database.cursor()
        cursor.register("incoming", rows.unify_dictionaries().combine_chunks())
        cursor.begin()
        for folder in forget:
            hive = _hive(f"{folder}/x", names)
            where = " AND ".join(f'"{name}" = ?' for name in names)
            cursor.execute(f'DELETE FROM "{held.name}" WHERE {where}', list(hive.values()))
        cursor.execute(f'INSERT INTO "{held.name}" SELECT * FROM incoming')
        cursor.commit()
        cursor.unregister("incoming")
        for folder in forget:
            held.folders.pop(folder, None)
            held.problems.pop(folder, None)
        for problem in problems:
            held.problems.setdefault(problem.path.rpartition("/")[0], []).append(problem)
        held.folders.update(changed)

    def _create(self, held: _Held) -> None:
        names = _partitions(held.schema)
        empty = Selection(self._files, held.schema, [], names, held.columns, partitions=True).read()
        cursor = self._database.cursor()
        cursor.register("incoming", empty)
        cursor.execute(f'CREATE TABLE "{held.name}" AS SELECT * FROM incoming')
        cursor.unregister("incoming")

    # ---------------------------------------------------------------- one run

    def commits(self, key: RunKey) -> tuple[list[Commit], list[Problem]]:
        """Return the commits of an attempt that can be read, and the others as problems."""
        folder = f"manifests/{key.folder}"
        version = (key, self.version([folder]))
        with self._lock:
            if version in self._commits:
                self._commits.move_to_end(version)
                return self._commits[version]
        try:
            loaded = self._catalog.load(Which(*key))
            found = loaded.commits, [Problem(error.commit_path, str(error)) for error in loaded.damaged]
        except _UNREADABLE as error:
            found = [], [Problem(folder, str(error))]
        with self._lock:
            self._commits[version] = found
            while len(self._commits) > 32:
                self._commits.popitem(last=False)
        return found

    def metadata(self, key: RunKey) -> dict[str, Any]:
        """Return what run.json says; nothing if there is none or it is damaged."""
        try:
            return self._catalog.metadata(key)
        except _UNREADABLE:
            return {}

    def run_table(
        self,
        table: str,
        key: RunKey,
        *,
        columns: Sequence[str] | None = None,
        ranks: Sequence[int] | None = None,
        filter: pc.Expression | None = None,
        analysis: str | None = None,
        keep: bool = True,
    ) -> tuple[pa.Table, list[Problem]]:
        """Return the rows of a run or derived table, the newest analysis of the latter; cached by file version.

        `analysis` names another one, as `newest_analysis` does. `keep=False` is for rows that the caller keeps in
        another form.
        """
        schema = TABLES[table]
        folder = f"{table}/{key.folder}"
        folders = [folder] if schema.kind == "derived" else [folder, f"manifests/{key.folder}"]
        name = (table, key, tuple(columns or ()), tuple(ranks or ()), str(filter), analysis, self.version(folders))
        with self._lock:
            if name in self._cache:
                self._cache.move_to_end(name)
                return self._cache[name]
        problems: list[Problem] = []
        if schema.kind == "derived":
            file = analysis or self.newest_analysis(table, key)
            path = f"{folder}/{file}"
            pieces = [Piece(path, key._asdict())] if file and path in self.listing(folder) else []
            if ranks is not None and "rank" in schema.names:
                chosen = pc.field("rank").isin(list(ranks))
                filter = chosen if filter is None else filter & chosen
        else:
            commits, problems = self.commits(key)
            pieces = [
                piece
                for commit in commits
                if ranks is None or commit.rank in ranks
                for piece in pieces_of(commit, table)
            ]
        rows, unread = self._read(schema, pieces, ("cluster", "run", "attempt"), columns=columns, filter=filter)
        found = rows, [*problems, *unread]
        return self._keep(name, found) if keep else found

    def newest_analysis(self, table: str, key: RunKey) -> str | None:
        """Return the name of the newest file of a derived table; the tables of one analysis share it."""
        files = self.listing(f"{table}/{key.folder}")
        found = [path for path in files if path.endswith(".parquet")]
        return max(found, key=lambda path: (files[path], path)).rpartition("/")[2] if found else None

    def nothing(self, table: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return what a run or derived table of a run is that has none."""
        return self._read(TABLES[table], [], ("cluster", "run", "attempt"), columns=columns)[0]

    def _keep(self, name: tuple[Any, ...], found: tuple[pa.Table, list[Problem]]) -> tuple[pa.Table, list[Problem]]:
        with self._lock:
            self._cache[name] = found
            size = sum(rows.nbytes for rows, _ in self._cache.values())
            while len(self._cache) > 1 and (size > CACHED_BYTES or len(self._cache) > CACHED_TABLES):
                size -= self._cache.popitem(last=False)[1][0].nbytes
        return found

    # ---------------------------------------------------------------- reading

    def _read(
        self,
        schema: TableSchema,
        pieces: Sequence[Piece],
        names: tuple[str, ...],
        *,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        partitions: bool = False,
    ) -> tuple[pa.Table, list[Problem]]:
        """Read pieces as one dataset; if that fails, one by one, to show what can be shown."""

        def read(some: Sequence[Piece]) -> pa.Table:
            return Selection(self._files, schema, some, names, columns, filter, partitions).read()

        with suppress(*_UNREADABLE):
            return read(pieces), []
        good, problems = [read([])], []
        for piece in pieces:
            for attempt in range(ATTEMPTS):  # a file that is replaced while it is read is whole the next time
                try:
                    good.append(read([piece]))
                    break
                except _UNREADABLE as error:
                    if attempt == ATTEMPTS - 1:
                        problems.append(Problem(piece.path, _first_line(error)))
        return pa.concat_tables(good), problems


def _partitions(schema: TableSchema) -> tuple[str, ...]:
    return ("date",) if schema.kind == "fleet" else ("cluster", "run", "attempt")


def _all_columns(schema: TableSchema) -> tuple[str, ...]:
    """All columns but lists, which no page aggregates."""
    return tuple(column.name for column in schema.columns if not pa.types.is_list(column.type))


def _hive(path: str, names: tuple[str, ...]) -> dict[str, str | int]:
    values = hive_values(path)
    attempt = values.get("attempt", "0")
    return {
        name: (int(attempt) if attempt.isdigit() else 0) if name == "attempt" else values.get(name, "")
        for name in names
    }


def _in_days(folder: str, first: str, last: str) -> bool:
    """Whether the day of a folder is one of first to last; a folder without a day, and every one if last is empty."""
    date = hive_values(f"{folder}/x").get("date")
    return not date or not last or first <= date <= last


def _day(time_ns: int) -> str:
    days = min(max(time_ns // DAY_NS, 0), 2_900_000)
    return (datetime.date(1970, 1, 1) + datetime.timedelta(days=days)).isoformat()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
