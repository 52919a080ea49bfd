"""Look after a store: find what no commit lists, and rewrite what an older perfkit wrote."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from perfkit.schema import SCHEMA_VERSION, TABLES, VERSION_KEY, TableSchema, conform
from perfkit.store import layout
from perfkit.store.catalog import Catalog, Which
from perfkit.store.commits import Commit
from perfkit.store.files import Files, discard, store_errors
from perfkit.store.migrations import check_version, migrate_table
from perfkit.store.parquet import open_writer
from perfkit.store.segment import SEGMENT_TABLES, SegmentWriter


@dataclass(frozen=True, slots=True)
class Orphan:
    """A file that no commit lists: what a killed writer, or a replaced segment, left behind."""

    path: str
    bytes: int
    age_hours: float


def find_orphans(files: Files, *, older_than_hours: float) -> list[Orphan]:
    """Return files that no commit lists and nobody has touched for a while.

    Files are listed before commits, so that what is committed meanwhile is safe; so is everything that
    belongs to a commit that cannot be read.
    """
    now = time.time()
    listed = [info for folder in (layout.SCRATCH, *SEGMENT_TABLES) for info in files.walk(folder)]
    commits, damaged = Catalog(files).load_commits(Which())
    wanted = {file.path for commit in commits for file in commit.files}
    protected = {_segment_of(error.commit_path) for error in damaged}
    orphans = []
    for info in listed:
        path = files.relative(info)
        age_hours = (now - info.mtime.timestamp()) / 3600 if info.mtime else 0.0
        if path not in wanted and age_hours >= older_than_hours and _segment_of(path) not in protected:
            orphans.append(Orphan(path, info.size, age_hours))
    return orphans


def _segment_of(path: str) -> tuple[str, ...]:
    """Name the run and segment that a part or a commit belongs to."""
    name = Path(path).stem.removeprefix("part-")
    return (*layout.hive_values(path).values(), *name.split("-")[:2])


def publish_table(files: Files, schema: TableSchema, rows: pa.Table, path: str) -> None:
    """Write a table as one file, in place of what was there."""
    rows = conform(schema, rows).unify_dictionaries()
    folder = files.scratch()
    try:
        with store_errors(f"{files.name}: cannot write {path}"), open_writer(folder / "t", schema.arrow) as writer:
            writer.write_table(rows)
        files.publish({path: folder / "t"})
    finally:
        discard(folder)


def migrate_segment(files: Files, commit: Commit) -> None:
    """Rewrite a segment of an older schema; its commit switches from the old files to the new ones."""
    check_version(commit.schema_version, files.name)
    with SegmentWriter(files, commit.key, commit.rank, commit.segment, commit.fingerprint, replace=True) as writer:
        for file in commit.files:
            source = _open(files, file.path)
            for group in range(source.num_row_groups):
                rows = migrate_table(file.table, source.read_row_group(group), commit.schema_version)
                writer.write(file.table, rows)
        writer.commit_like(commit)


def migrate_single_files(files: Files) -> int:
    """Rewrite derived and fleet files of an older schema, and return how many there were."""
    changed = 0
    for schema in TABLES.values():
        for info in files.walk(schema.name) if schema.kind != "run" else ():
            path = files.relative(info)
            source = _open(files, path)
            version = int((source.schema_arrow.metadata or {}).get(VERSION_KEY, b"0"))
            check_version(version, f"{files.name}/{path}")
            if version < SCHEMA_VERSION:
                publish_table(files, schema, migrate_table(schema.name, source.read(), version), path)
                changed += 1
    return changed


def _open(files: Files, path: str) -> pq.ParquetFile:
    with store_errors(f"{files.name}: cannot read {path}"):
        return pq.ParquetFile(files.path(path), filesystem=files.filesystem, page_checksum_verification=True)
