"""Write one segment: stream rows into Parquet files, then make all of them visible with one commit.

    open -> write* -> commit | abort

Until `commit` everything lies in a scratch folder that no reader looks at. Commit publishes the files and
then, last, the commit object. A kill at any moment leaves either the old state or the new one, plus
files that no commit lists (`Store.gc` removes them, and writing the same segment again overwrites them).

Replacing a committed segment writes new file names (the next generation) and switches with the commit, so
that neither a crash nor a reader in between can mix old and new files.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import perfkit
from perfkit.arrays import constant
from perfkit.errors import SchemaError, StoreError, UsageError
from perfkit.schema import SCHEMA_VERSION, TABLES, TableSchema, conform
from perfkit.store import layout
from perfkit.store.commits import TOLD_BY_THE_SOURCE, Commit, CommittedFile, DamagedCommit, Pack, describe_part
from perfkit.store.files import Files, check_footer, discard, open_parquet, store_errors
from perfkit.store.footer import footer_crc, read_footer
from perfkit.store.parquet import FIRST_GROUP_ROWS, ROW_GROUP_ROWS, open_writer

if TYPE_CHECKING:
    from perfkit.sources.base import PartInfo

FINGERPRINT_KEY = b"perfkit.fingerprint"
SEGMENT_TABLES = tuple(name for name, schema in TABLES.items() if schema.kind == "run" and name != "runs")
"""What a segment can hold."""


class SegmentTaken(StoreError):
    """Another source was committed under this rank and segment."""


class SegmentWriter:
    """Writer of one segment; made by `Store.writer`. Use it as a context manager and call `commit`."""

    def __init__(
        self,
        files: Files,
        key: layout.RunKey,
        rank: int,
        segment: int,
        fingerprint: str | Callable[[], str],
        *,
        replace: bool = False,
        background: bool = False,
    ) -> None:
        self.key, self.rank, self.segment, self._fingerprint = key, rank, segment, fingerprint
        self._name = f"{key}: segment {layout.segment_key(rank, segment)}"
        self._files = files
        self._replace = replace
        self._scratch = files.scratch_path()  # made when it is written to: who is interrupted here leaves nothing
        self._parts: dict[str, _Part] = {}
        self._state = "open"
        self._thread = _WriterThread() if background else None

    @property
    def fingerprint(self) -> str:
        """Identity of the source; asked for with the first rows."""
        if not isinstance(self._fingerprint, str):
            self._fingerprint = self._fingerprint()
        return self._fingerprint

    def write(self, table: str, rows: pa.Table) -> None:
        """Append rows to a table of the segment. Columns `rank` and `segment` are added if they are missing."""
        self._check_open()
        if table not in SEGMENT_TABLES:
            raise SchemaError(f"{table}: not a table that a segment can hold")
        if not len(rows):
            return
        schema = TABLES[table]
        rows = conform(schema, self._label(schema, rows))
        if table not in self._parts:
            path = self._folder() / f"{table}.parquet"
            self._parts[table] = _Part(self._files.name, schema, path, self.fingerprint, self._thread is not None)
        part = self._parts[table]
        if part.append(rows):
            if self._thread:
                self._thread.submit(part.write_groups)
            else:
                part.write_groups()

    def commit(
        self, info: PartInfo | None = None, *, source_path: str = "", extra: Mapping[str, Any] | None = None
    ) -> Commit:
        """Make the segment visible, all at once, and return its commit.

        If the same content is there already, nothing changes and the commit that was there is returned.
        Other content under the same rank and segment is an error. A writer that was opened with `replace` writes anew
        in both cases: pages may be damaged, which only reading them all would show.
        """
        return self._finish({**describe_part(info), "source_path": source_path, "extra": dict(extra or {})})

    def commit_like(self, previous: Commit) -> Commit:
        """Commit with what `previous` says about the source (for migrations)."""
        return self._finish({name: getattr(previous, name) for name in TOLD_BY_THE_SOURCE})

    def _finish(self, described: dict[str, Any]) -> Commit:
        self._check_open()
        try:
            commit = self._commit(described)
        except BaseException:
            self.abort()
            raise
        self._state = "committed"
        discard(self._scratch)
        return commit

    def abort(self) -> None:
        """Drop everything that was written."""
        if self._state != "open":
            return
        self._state = "aborted"
        if self._thread:
            self._thread.stop()
        for part in self._parts.values():
            part.abandon()
        discard(self._scratch)

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    # ---------------------------------------------------------------- inside

    def _folder(self) -> Path:
        return self._scratch if self._scratch.is_dir() else self._files.scratch(self._scratch)

    def _check_open(self) -> None:
        if self._state != "open":
            raise UsageError(f"{self._name}: the writer is {self._state}")

    def _label(self, schema: TableSchema, rows: pa.Table) -> pa.Table:
        for name, value in (("rank", self.rank), ("segment", self.segment)):
            if name not in schema.names:
                continue
            if name not in rows.column_names:
                rows = rows.append_column(name, constant(value, pa.int32(), len(rows)))
            elif pc.min_max(rows[name]).as_py() not in ({"min": value, "max": value}, {"min": None, "max": None}):
                raise SchemaError(f"{schema.name}.{name}: rows of another {name} in segment {self._name}")
        return rows

    def _commit(self, described: dict[str, Any]) -> Commit:
        self._close_parts()
        lock = layout.lock_path(self.key, self.rank, self.segment)
        with self._files.locked(lock):  # two writers of one segment must not mix their files
            return self._publish_and_commit(described)

    def _close_parts(self) -> None:
        """Write what is left: of a small file that is nearly everything, so that both threads take a share of it."""
        # The largest first, so that both end together; None stands for the folders.
        left = [*sorted(self._parts.values(), key=lambda part: -part.pending_rows), None]
        taking = threading.Lock()

        def close_next() -> None:
            while True:
                with taking:
                    if not left:
                        return
                    # Nobody waits for a part that the other one is still writing while there is something else to do.
                    free = (at for at, part in enumerate(left) if part is None or not part.is_busy)
                    part = left.pop(next(free, 0))
                if part is None:
                    self._make_folders()
                else:
                    part.close()

        if self._thread:
            self._thread.submit(close_next)
        close_next()
        if self._thread:
            self._thread.finish()

    def _make_folders(self) -> None:
        parts = (layout.part_path(table, self.key, self.rank, self.segment, 0) for table in self._parts)
        self._files.make_folders([*parts, layout.commit_path(self.key, self.rank, self.segment)])

    def _publish_and_commit(self, described: dict[str, Any]) -> Commit:
        previous = self._previous()
        if previous and not self._replace and self._says_the_same(previous):
            return previous
        if previous and not self._replace and previous.fingerprint != self.fingerprint:
            raise SegmentTaken(
                f"{self._name} holds {previous.source_path or 'another source'} already",
                next_step="use another run name, or another segment number",
            )
        generation = previous.generation + 1 if previous else 0
        parts = self._placed(generation)
        commit = Commit(
            cluster=self.key.cluster,
            run=self.key.run,
            attempt=self.key.attempt,
            rank=self.rank,
            segment=self.segment,
            fingerprint=self.fingerprint,
            files=tuple(parts),
            schema_version=SCHEMA_VERSION,
            generation=generation,
            perfkit_version=perfkit.__version__,
            **{"written_ns": time.time_ns(), **described},
        )
        self._publish(commit, parts)
        for file in previous.files if previous else ():
            if file.pack is None:  # a pack holds others as well
                self._files.delete(file.path)
        return commit

    def _previous(self) -> Commit | None:
        """Return the commit that is there; one that cannot be read is as good as none to whoever wrote the same."""
        place = self._files, self.key, self.rank, self.segment
        try:
            return load_commit(*place)
        except DamagedCommit as error:
            if self._replace or stored_fingerprint(*place) == self.fingerprint:
                return None
            raise SegmentTaken(f"{self._name} is taken: {error.message}", next_step=error.next_step) from error

    def _says_the_same(self, previous: Commit) -> bool:
        rows = {table: part.rows for table, part in self._parts.items()}
        told = self.fingerprint, SCHEMA_VERSION, rows
        same = told == (previous.fingerprint, previous.schema_version, previous.rows)
        return same and is_intact(self._files, previous)

    def _placed(self, generation: int) -> dict[CommittedFile, Path]:
        """Return where the parts will lie, and where they are; and remove what lies there of a writer that died."""
        paths = {
            table: layout.part_path(table, self.key, self.rank, self.segment, generation) for table in SEGMENT_TABLES
        }
        if self._files.local:  # elsewhere, asking after every table costs more than `gc` does later
            stale = [path for table, path in paths.items() if table not in self._parts]
            for path, found in zip(stale, self._files.sizes(stale), strict=True):
                if found is not None:
                    self._files.delete(path)
        return {
            CommittedFile(
                table, paths[table], part.rows, part.path.stat().st_size, footer_crc=part.footer_crc
            ): part.path
            for table, part in sorted(self._parts.items())
        }

    def _publish(self, commit: Commit, parts: Mapping[CommittedFile, Path]) -> None:
        """Let the parts appear, and then the commit that lists them."""
        listed = self._folder() / "commit.json"
        where = layout.commit_path(self.key, self.rank, self.segment)
        with store_errors(f"{self._files.name}: cannot write {where}"):
            listed.write_bytes(commit.to_json())
        self._files.publish({file.path: path for file, path in parts.items()}, last={where: listed})


@dataclass(slots=True)
class _Part:
    """One table of the segment: collects chunks until they fill a row group, which any thread may write."""

    store: str
    """As the user wrote it."""
    schema: TableSchema
    path: Path
    fingerprint: str
    background: bool = False
    rows: int = 0
    """Written so far."""
    grouped_rows: int = 0
    """Written, or in a group that is to be."""
    pending_rows: int = 0
    """Too few for a group."""
    footer_crc: int | None = None
    """Known when it is closed."""
    _pending: list[pa.Table] = field(default_factory=list)
    _groups: deque[list[pa.Table]] = field(default_factory=deque)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _writer: pq.ParquetWriter | None = None

    def append(self, rows: pa.Table) -> bool:
        """Take rows, and say whether they made a group that can be written."""
        self._pending.append(rows)
        self.pending_rows += len(rows)
        # Small groups first, so that a writer in the background starts while a small file is still being read.
        wanted = min(ROW_GROUP_ROWS, max(FIRST_GROUP_ROWS, self.grouped_rows)) if self.background else ROW_GROUP_ROWS
        if self.pending_rows < wanted:
            return False
        self._make_group()
        return True

    @property
    def is_busy(self) -> bool:
        """Whether groups of it are being written, or wait for that."""
        return self._lock.locked() or bool(self._groups)

    def write_groups(self) -> None:
        """Write the groups there are, in order; if another thread is at it, that one does."""
        if self._lock.acquire(blocking=False):
            try:
                self._write_groups()
            finally:
                self._lock.release()

    def close(self) -> None:
        with self._lock:
            if self._pending:
                self._make_group()
            self._write_groups()
            if self._writer:
                with store_errors(f"{self.store}: cannot write {self.schema.name}"):
                    self._writer.close()
                    self.footer_crc = footer_crc(self.path)
                self._writer = None

    def _make_group(self) -> None:
        self._groups.append(self._pending)
        self.grouped_rows += self.pending_rows
        self._pending, self.pending_rows = [], 0

    def _write_groups(self) -> None:
        while self._groups:
            # Chunks bring dictionaries of their own, and a group has one: at a second one, Parquet goes over to text.
            rows = pa.concat_tables(self._groups.popleft()).unify_dictionaries()
            with store_errors(f"{self.store}: cannot write {self.schema.name}"):
                if self._writer is None:
                    metadata = {**self.schema.arrow.metadata, FINGERPRINT_KEY: self.fingerprint.encode()}
                    self._writer = open_writer(self.path, self.schema.arrow.with_metadata(metadata))
                at_once = len(rows) if len(rows) < 2 * ROW_GROUP_ROWS else ROW_GROUP_ROWS
                self._writer.write_table(rows, row_group_size=at_once)
            self.rows += len(rows)

    def abandon(self) -> None:
        self._pending = []
        self._groups.clear()
        if self._writer:
            with suppress(OSError, pa.ArrowException):  # the disk is full or gone; the file is deleted anyway
                self._writer.close()
            self._writer = None


class _WriterThread:
    """Encodes beside the caller, at most two row groups behind, so that parsing and writing overlap."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(maxsize=2)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="perfkit-store-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        self._raise()
        self._queue.put(job)

    def finish(self) -> None:
        self.stop()
        self._raise()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            if self._error is None:
                try:
                    job()
                except BaseException as error:
                    self._error = error  # raised in the caller by the next submit or by finish


def is_intact(files: Files, commit: Commit, checked: set[str] | None = None) -> bool:
    """Say whether the files that a commit lists are there, with their sizes and footers; pages are not read.

    Many commits share the files of a pack: paths that were `checked` before are not read again.
    """
    checked = set() if checked is None else checked
    sizes = files.sizes([file.path for file in commit.files])
    try:
        for file, size in zip(commit.files, sizes, strict=True):
            if size is None or (file.pack is None and size != file.bytes):
                return False
            if file.path not in checked:
                check_footer(files, file.path, file.footer_crc)
                checked.add(file.path)
    except (StoreError, OSError, ValueError):
        return False
    return True


def stored_fingerprint(files: Files, key: layout.RunKey, rank: int, segment: int) -> str | None:
    """Return what the newest Parquet file of a segment says that it was made of; None if none can be read."""
    prefix = f"part-{layout.segment_key(rank, segment)}"
    found = [
        info
        for table in SEGMENT_TABLES
        for info in files.walk(f"{table}/{key.folder}")
        if Path(str(info.path)).name.startswith((f"{prefix}.", f"{prefix}-"))
    ]
    for info in sorted(found, key=lambda info: info.mtime_ns or 0, reverse=True):
        path = files.relative(info)
        with suppress(StoreError, OSError, ValueError, KeyError):
            if files.local:
                read_footer(files.path(path))  # before Arrow sees it
            return str((open_parquet(files, path).schema_arrow.metadata or {})[FINGERPRINT_KEY], "utf-8")
    return None


def load_commit(files: Files, key: layout.RunKey, rank: int, segment: int) -> Commit | None:
    """Return the commit of a segment, None if there is none; raises `DamagedCommit` if it cannot be read."""
    path = layout.commit_path(key, rank, segment)
    data = files.read_bytes(path)
    return _packed_commit(files, key, rank, segment) if data is None else Commit.from_json(data, path)


def rank_commits(files: Files, key: layout.RunKey, rank: int) -> dict[int, Commit | None]:
    """Return the commits of one rank by segment: a run has thousands, and each rank looks at its own only.

    None stands for one that cannot be read: its place is taken.

    Object stores list a thousand names per request, and all ranks of a run lie together; so a rank asks for its own
    segments by name, up to a gap: what lies beyond one was deleted, or never was.
    """
    found: dict[int, Commit | None] = {commit.segment: commit for commit in _packed_commits(files, key, rank)}
    if files.local:
        prefix = layout.segment_key(rank, 0).rpartition("-")[0] + "-"
        names = [Path(str(info.path)).name for info in files.walk(layout.commits_folder(key))]
        numbers = [int(name[len(prefix) :].removesuffix(".json")) for name in names if name.startswith(prefix)]
    else:
        numbers, number = [], 0
        while number in found or number - max([*numbers, *found], default=-1) <= _GAP:
            if number not in found and files.read_bytes(layout.commit_path(key, rank, number)) is not None:
                numbers.append(number)
            number += 1
    for number in numbers:
        try:
            commit = load_commit(files, key, rank, number)
        except DamagedCommit:
            found.setdefault(number, None)
            continue
        before = found.get(number)
        if commit is not None and (before is None or commit.generation > before.generation):
            found[number] = commit
    return found


_GAP = 2


def _packed_commit(files: Files, key: layout.RunKey, rank: int, segment: int) -> Commit | None:
    """Look for a segment in the packs of its run."""
    found = [commit for commit in _packed_commits(files, key, rank, segment) if commit.segment == segment]
    return max(found, key=lambda commit: commit.generation, default=None)


def _packed_commits(files: Files, key: layout.RunKey, rank: int, segment: int | None = None) -> Iterator[Commit]:
    """Yield the commits of a rank in the packs of its run; the names of packs say which can hold them."""
    for info in files.walk(layout.packs_folder(key)):
        path = files.relative(info)
        with suppress(DamagedCommit, ValueError):
            name = layout.PackName.parse(path)
            wanted = name.may_hold(rank, name.first_segment if segment is None else segment)
            if wanted and (data := files.read_bytes(path)):
                yield from (commit for commit in Pack.from_json(data, path).commits if commit.rank == rank)
