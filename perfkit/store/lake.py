"""Store: open a lake, write segments into it, read what is committed, look after it.

See `perfkit.store` for how to use it and `perfkit.store.layout` for where things lie. Every method that
reads takes `cluster`, `run`, `attempt` and `ranks` as optional filters; a name that matches nothing is
an error that lists what there is.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from perfkit.arrays import from_list
from perfkit.errors import StoreError, UsageError
from perfkit.schema import RUNS, SCHEMA_VERSION, TABLES, TableSchema, table_from_rows
from perfkit.store import layout, upkeep
from perfkit.store.catalog import Catalog, Held, Which
from perfkit.store.commits import Commit, DamagedCommit, RunSummary, sealed, summarise
from perfkit.store.files import Files
from perfkit.store.filesystems import is_remote
from perfkit.store.layout import RunKey
from perfkit.store.packing import Packed, pack_run
from perfkit.store.reading import Selection
from perfkit.store.retention import Retention, plan_retention
from perfkit.store.segment import SegmentWriter, is_intact
from perfkit.store.upkeep import Orphan

if TYPE_CHECKING:
    import pyarrow.dataset as ds


class StoredFile(NamedTuple):
    """One file of a table; its size and time tell one version from the next."""

    name: str
    """Path inside the store."""
    path: str
    """Path in the store's file system."""
    bytes: int
    mtime_ns: int | None
    """None where the file system does not say."""


class Store:
    """A lake of Parquet tables at a local path or a pyarrow.fs URI."""

    def __init__(self, uri: str | os.PathLike[str], *, filesystem: pafs.FileSystem | None = None) -> None:
        self._files = Files(uri, filesystem=filesystem)
        self._catalog = Catalog(self._files)
        self._exists = self._check_marker()

    @property
    def uri(self) -> str:
        """Where it is, as the user wrote it."""
        return self._files.name

    @property
    def exists(self) -> bool:
        """Whether there is a store here; writing creates one."""
        self._exists = self._exists or self._check_marker()
        return self._exists

    # ---------------------------------------------------------------- writing

    def writer(
        self,
        cluster: str,
        run: str,
        attempt: int = 0,
        *,
        rank: int,
        segment: int,
        fingerprint: str | Callable[[], str],
        replace: bool = False,
        background: bool = False,
    ) -> SegmentWriter:
        """Open a segment for writing; `background` encodes in a thread of its own, beside the caller.

        A `fingerprint` that is not known yet may be a function, which is called with the first rows.
        """
        self.create()
        key = RunKey(cluster, run, attempt)
        return SegmentWriter(self._files, key, rank, segment, fingerprint, replace=replace, background=background)

    def finalise(
        self, cluster: str, run: str, attempt: int = 0, metadata: Mapping[str, Any] | None = None
    ) -> RunSummary:
        """Write run.json and the row of table `runs` from the commits, adding `metadata` to what run.json said.

        Call it whenever the commits or the metadata of a run changed; the last call wins, and losing it
        costs nothing that `runs()` cannot derive. Keys that are columns of `runs` become its values.
        What cannot be read is left out; a run.json that cannot is written anew.
        """
        self.create()
        key = RunKey(cluster, run, attempt)
        known = {**self._catalog.metadata(key), **(metadata or {})}
        summary = summarise(key, self._catalog.load(Which(*key)).commits, known)
        document = {"cluster": cluster, "run": run, "attempt": attempt, "metadata": known}
        row = table_from_rows(RUNS, [_run_row(summary)])
        beside = {layout.run_json_path(key): sealed(document)}
        upkeep.publish_table(self._files, RUNS, row, layout.run_row_path(key), beside=beside)
        return summary

    def write_derived(
        self, table: str, rows: pa.Table, cluster: str, run: str, attempt: int = 0, *, analysis_id: str
    ) -> None:
        """Write the rows that one analysis found for one run, in place of what it found before."""
        schema = _schema(table, "derived")
        self.create()
        upkeep.publish_table(
            self._files, schema, rows, layout.derived_path(table, RunKey(cluster, run, attempt), analysis_id)
        )

    def write_fleet(self, table: str, rows: pa.Table, *, date: str, part: str) -> None:
        """Write one part of one day of a fleet table, in place of the part of that name."""
        schema = _schema(table, "fleet")
        self.create()
        upkeep.publish_table(self._files, schema, rows, layout.fleet_path(table, date, part))

    def note_shard(self, cluster: str, run: str, attempt: int, *, index: int, count: int, ranks: Sequence[int]) -> None:
        """Write down that a shard of an ingest has come to its end, so that one that never came can be missed."""
        self.create()
        document = {"index": index, "count": count, "ranks": sorted(ranks)}
        path = layout.shard_path(RunKey(cluster, run, attempt), index, count)
        self._files.publish_bytes(json.dumps(document).encode(), path)

    # ---------------------------------------------------------------- reading

    def missing_shards(self, cluster: str, run: str, attempt: int = 0) -> tuple[list[int], int] | None:
        """Return the shards that never came to their end and how many there should be; None without shards."""
        came = self._catalog.shards(RunKey(cluster, run, attempt))
        if not came:
            return None
        divisions: dict[int, set[int]] = {}  # the same dump may have been divided in another way before
        for shard in came:
            divisions.setdefault(int(shard["count"]), set()).add(int(shard["index"]))
        missing = [(sorted(set(range(count)) - there), count) for count, there in divisions.items()]
        return min(missing, key=lambda division: len(division[0]))

    def committed(self, cluster: str, run: str, attempt: int = 0) -> list[Commit]:
        """All commits of one attempt, by rank and segment; none if the run or the store does not exist yet."""
        return self._catalog.commits(Which(cluster, run, attempt))

    def held(self, cluster: str, run: str, attempt: int = 0) -> Held:
        """Return the commits of one attempt that can be read, and the places of the others, which are not free."""
        return self._catalog.held(RunKey(cluster, run, attempt))

    def intact(self, commits: Iterable[Commit]) -> list[Commit]:
        """Return those whose files are there, with their sizes and footers; pages are not read.

        An object store is trusted: it checks what it keeps, and asking after every object takes longer than an ingest.
        """
        checked: set[str] = set()
        return [c for c in commits if not self._files.local or is_intact(self._files, c, checked)]

    def runs(
        self, *, cluster: str | None = None, run: str | None = None, attempt: int | None = None
    ) -> list[RunSummary]:
        """Every attempt of every run, added up from its commits; run.json adds names, never counts."""
        self._require()
        return self._catalog.runs(Which(cluster, run, attempt))

    def read(
        self,
        table: str,
        *,
        cluster: str | None = None,
        run: str | None = None,
        attempt: int | None = None,
        ranks: Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        partitions: bool = False,
        analysis_id: str | None = None,
        dates: tuple[str, str] | None = None,
        commits: Sequence[Commit] | None = None,
    ) -> pa.Table:
        """Return the committed rows of a table, in order of run, rank and segment.

        `columns` and `filter` may name `cluster`, `run` and `attempt` too; `partitions` adds them to the
        columns. A derived table gives the newest analysis of each run unless `analysis_id` names one. A
        fleet table takes `cluster` and `dates`, first and last day inclusive. Of a run table, `commits` names the
        segments to read: whoever has them spares looking through the manifests again.
        """
        if table == "runs":
            return self._read_runs(cluster, run, attempt, columns, filter, partitions)
        return self._select(
            table, cluster, run, attempt, ranks, analysis_id, dates, columns, filter, partitions, commits
        ).read()  # fmt: skip

    def scan(
        self,
        table: str,
        *,
        cluster: str | None = None,
        run: str | None = None,
        attempt: int | None = None,
        ranks: Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        partitions: bool = False,
        analysis_id: str | None = None,
        dates: tuple[str, str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Like `read`, in batches, for what does not fit in memory."""
        return self._select(
            table, cluster, run, attempt, ranks, analysis_id, dates, columns, filter, partitions
        ).scan()  # fmt: skip

    def dataset(
        self,
        table: str,
        *,
        cluster: str | None = None,
        run: str | None = None,
        attempt: int | None = None,
        ranks: Iterable[int] | None = None,
    ) -> ds.Dataset:
        """Return a pyarrow dataset of the committed rows, with cluster, run and attempt; DuckDB and Polars take it."""
        return self._select(table, cluster, run, attempt, ranks).dataset()

    def files(
        self,
        table: str,
        *,
        cluster: str | None = None,
        run: str | None = None,
        attempt: int | None = None,
        ranks: Iterable[int] | None = None,
    ) -> list[str]:
        """Paths of the committed files of a table, for tools that take a list of files."""
        selection = self._select(table, cluster, run, attempt, ranks)
        return [self._files.path(piece.path) for piece in selection.pieces]

    def listing(
        self, table: str, *, cluster: str | None = None, run: str | None = None, attempt: int | None = None
    ) -> list[StoredFile]:
        """Files of a table as they lie there, from one listing and without opening any: for caches.

        Files of derived and fleet tables are whole. One of a run table may not be committed yet: `files` says
        which count, and this says cheaply whether anything changed. Empty if there is no store.
        """
        kind = _schema(table).kind
        which = Which() if kind == "fleet" else Which(cluster, run, attempt)
        found = []
        for info in self._files.walk(which.folder(table)):
            path = self._files.relative(info)
            if which.matches(path):
                found.append(StoredFile(path, self._files.path(path), info.size, info.mtime_ns))
        return found

    @property
    def filesystem(self) -> pafs.FileSystem:
        """The file system that `files` and `listing` name paths of."""
        return self._files.filesystem

    # ---------------------------------------------------------------- looking after it

    def gc(self, *, older_than_hours: float = 24.0, dry_run: bool = True) -> list[Orphan]:
        """Find what no commit lists and nobody has touched for a while, and delete it unless `dry_run`."""
        self._require()
        orphans = upkeep.find_orphans(self._files, older_than_hours=older_than_hours)
        if not dry_run:
            for orphan in orphans:
                self._files.delete(orphan.path)
            self._files.prune(layout.SCRATCH)
            self._files.prune(layout.MANIFESTS)
        return orphans

    def compact(
        self,
        *,
        cluster: str | None = None,
        run: str | None = None,
        quiet_hours: float = 1.0,
        on_damage: Callable[[StoreError], None] | None = None,
    ) -> dict[RunKey, Packed]:
        """Put the small files of runs that nobody has written to for `quiet_hours` into large ones.

        Readers and writers go on meanwhile. What was packed stays beside the packs until `gc` removes it. This,
        `expire` and `migrate` leave runs alone of which a manifest cannot be read, and hand the error to `on_damage`.
        """
        self._require()
        if self._layout_version() < layout.LAYOUT_VERSION:
            self._write_marker()  # whoever does not know packs must not overlook them
        commits = self._of_whole_runs(Which(cluster, run), on_damage)
        before_ns = time.time_ns() - round(quiet_hours * 3600e9)
        done = {}
        for key, group in itertools.groupby(commits, key=lambda commit: commit.key):
            own = list(group)
            if max((c.written_ns or 0) for c in own) <= before_ns:
                packed = pack_run(self._files, own)
                if packed.packs:
                    done[key] = packed
        return done

    def _of_whole_runs(self, which: Which, on_damage: Callable[[StoreError], None] | None) -> list[Commit]:
        loaded = self._catalog.load(which)
        if on_damage:
            for error in loaded.damaged:
                on_damage(error)
        return loaded.of_whole_runs()

    def expire(
        self,
        *,
        keep_ns: int | None = None,
        keep_traces_ns: int | None = None,
        dry_run: bool = True,
        on_damage: Callable[[StoreError], None] | None = None,
    ) -> Retention:
        """Find runs and traces that are older than they may be, and remove them unless `dry_run`.

        The files of a trimmed segment go with the next `gc`, when nobody reads them any more.
        """
        self._require()
        written_ns = {}
        for info in self._files.walk(layout.MANIFESTS):
            path = self._files.relative(info)
            if path.endswith("/run.json") and info.mtime_ns is not None and (key := self._catalog.key_of(path)):
                written_ns[key] = info.mtime_ns
        plan = plan_retention(
            self._of_whole_runs(Which(), on_damage), written_ns,
            now_ns=time.time_ns(), keep_ns=keep_ns, keep_traces_ns=keep_traces_ns,
        )  # fmt: skip
        if not dry_run:
            for key in plan.runs:
                upkeep.remove_run(self._files, key)
            upkeep.trim(self._files, plan.segments)
        return plan

    def damaged(
        self, cluster: str | None = None, run: str | None = None, attempt: int | None = None
    ) -> list[DamagedCommit]:
        """Return the manifests that cannot be read, each as the error that reading would raise."""
        return self._catalog.damaged(Which(cluster, run, attempt))

    def migrate(self, *, on_damage: Callable[[StoreError], None] | None = None) -> int:
        """Rewrite everything of an older schema version, and return how many segments and files changed."""
        self._require()
        old = [c for c in self._of_whole_runs(Which(), on_damage) if c.schema_version < SCHEMA_VERSION]
        for commit in old:
            upkeep.migrate_segment(self._files, commit)
        for key in {commit.key for commit in old}:
            self.finalise(*key)
        return len(old) + upkeep.migrate_single_files(self._files)

    # ---------------------------------------------------------------- the store as a whole

    def _check_marker(self) -> bool:
        version = self._layout_version()
        if version > layout.LAYOUT_VERSION:
            raise StoreError(f"{self.uri}: written by a newer perfkit (layout {version})", next_step="upgrade perfkit")
        return version > 0

    def _layout_version(self) -> int:
        """Return what the marker says; 0 if there is none."""
        data = self._files.read_bytes(layout.MARKER)
        try:
            return 0 if data is None else int(json.loads(data)["layout_version"])
        except (ValueError, TypeError, KeyError):
            raise StoreError(
                f"{self.uri}: {layout.MARKER} is damaged", next_step="delete that file; the next ingest writes it again"
            ) from None

    def _write_marker(self) -> None:
        document = {"about": "a perfkit store; see docs/store.md", "layout_version": layout.LAYOUT_VERSION}
        self._files.publish_bytes(json.dumps(document).encode(), layout.MARKER)

    def create(self) -> None:
        """Make the store if there is none; whoever has much to write learns early that it cannot."""
        if not self.exists:
            self._write_marker()
            self._exists = True

    def keep_apart_from(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        """Refuse to keep answers in the folder of their own traces, which would pass for a run without events."""
        if is_remote(self.uri) or self.exists:
            return
        place = Path(self.uri).resolve()
        if any(not is_remote(path) and Path(path).resolve() == place for path in paths):
            raise UsageError(f"{self.uri} is what is read, so it cannot be the store", next_step="name another --store")

    def _require(self) -> None:
        if not self.exists:
            self._files.check_reachable()
            raise StoreError(
                f"no store at {self.uri}", next_step=f"create one with `perfkit ingest TRACE --store {self.uri}`"
            )

    # ---------------------------------------------------------------- selecting

    def _select(
        self,
        table: str,
        cluster: str | None,
        run: str | None,
        attempt: int | None,
        ranks: Iterable[int] | None = None,
        analysis_id: str | None = None,
        dates: tuple[str, str] | None = None,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        partitions: bool = False,
        commits: Sequence[Commit] | None = None,
    ) -> Selection:
        schema = _schema(table)
        self._require()
        names: tuple[str, ...] = ("cluster", "run", "attempt")
        if schema.kind == "fleet":
            names = ("date",)
            pieces = self._catalog.fleet_pieces(table, dates)
            for name, value in (("cluster", cluster), ("run", run)):
                if value is not None and name in schema.names:
                    filter = pc.field(name) == value if filter is None else filter & (pc.field(name) == value)
        elif schema.kind == "derived":
            pieces = self._catalog.derived_pieces(table, Which(cluster, run, attempt), analysis_id)
        else:
            pieces = self._catalog.run_pieces(table, Which(cluster, run, attempt), ranks, commits)
        if schema.kind != "run" and ranks is not None and "rank" in schema.names:
            chosen = pc.field("rank").isin(list(ranks))
            filter = chosen if filter is None else filter & chosen
        return Selection(self._files, schema, pieces, names, columns, filter, partitions)

    def _read_runs(
        self,
        cluster: str | None,
        run: str | None,
        attempt: int | None,
        columns: Sequence[str] | None,
        filter: pc.Expression | None,
        partitions: bool,
    ) -> pa.Table:
        summaries = self.runs(cluster=cluster, run=run, attempt=attempt)
        rows = table_from_rows(RUNS, [_run_row(summary) for summary in summaries])
        for name in ("cluster", "run"):
            rows = rows.append_column(name, from_list([getattr(s, name) for s in summaries], pa.utf8()))
        rows = rows.append_column("attempt", from_list([s.attempt for s in summaries], pa.int32()))
        names = list(RUNS.names if columns is None else columns)
        names += [name for name in ("cluster", "run", "attempt") if partitions and name not in names]
        import pyarrow.dataset as ds  # brings pandas: not for writers

        return ds.dataset(rows).to_table(columns=names, filter=filter)


def _schema(table: str, kind: str | None = None) -> TableSchema:
    schema = TABLES.get(table)
    if schema is None or (kind is not None and schema.kind != kind):
        there = [name for name, schema in TABLES.items() if kind in (None, schema.kind)]
        raise UsageError(f"{table!r} is not a {kind + ' ' if kind else ''}table; there are {there}")
    return schema


def _run_row(summary: RunSummary) -> dict[str, object]:
    row: dict[str, object] = {name: summary.metadata.get(name) for name in RUNS.names}
    row["name"] = row["name"] or summary.run
    row["versions"] = row["versions"] or (json.dumps(summary.versions) if summary.versions else None)
    row["source"] = row["source"] or (",".join(summary.sources) or None)
    row |= {
        "start_ns": summary.start_ns,
        "end_ns": summary.end_ns,
        "world_size": summary.world_size,
        "ranks_present": len(summary.ranks),
        "synthetic": summary.synthetic,
    }
    return {name: json.dumps(value) if isinstance(value, (dict, list)) else value for name, value in row.items()}
