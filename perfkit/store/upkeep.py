"""Look after a store: find what no commit lists, and rewrite what an older perfkit wrote."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from perfkit.schema import SCHEMA_VERSION, TABLES, VERSION_KEY, TableSchema, conform
from perfkit.store import layout
from perfkit.store.catalog import Catalog, Which
from perfkit.store.commits import Commit, Pack
from perfkit.store.files import Files, discard, open_parquet, store_errors
from perfkit.store.migrations import check_version, migrate_table
from perfkit.store.parquet import open_writer
from perfkit.store.retention import trimmed
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
    listed = [info for folder in (layout.SCRATCH, *SEGMENT_TABLES) for info in files.own(folder)]
    found = Catalog(files).load(Which())
    wanted = {file.path for commit in found.commits for file in commit.files}
    protected = {_segment_of(error.commit_path) for error in found.damaged}
    orphans = []
    for old, packed_ns in found.superseded:  # somebody may still read what a pack has replaced
        age_hours = (now - packed_ns / 1e9) / 3600
        if age_hours >= older_than_hours:
            orphans.append(Orphan(layout.commit_path(old.key, old.rank, old.segment), 0, age_hours))
        else:
            wanted.update(file.path for file in old.files)
    orphans += [Orphan(path, 0, 0.0) for path in found.dead_packs]
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


def remove_run(files: Files, key: layout.RunKey) -> None:
    """Remove everything of an attempt; first what makes it visible."""
    folders = [f"{top}/{key.folder}" for top in (layout.MANIFESTS, *TABLES)]
    for folder in folders:
        for info in files.own(folder):
            files.delete(files.relative(info))
        files.prune(folder.rpartition("/")[0])


def trim(files: Files, segments: Sequence[Commit]) -> None:
    """Commit segments anew without their events; those of one pack stay one object."""
    packs: dict[tuple[layout.RunKey, str], list[Commit]] = {}
    for commit in segments:
        new = trimmed(commit)
        pack = next((file.pack for file in commit.files if file.pack), None)
        if pack is not None:
            packs.setdefault((commit.key, pack), []).append(new)
            continue
        files.publish_bytes(new.to_json(), layout.commit_path(new.key, new.rank, new.segment))
        for file in commit.files:
            if file not in new.files:
                files.delete(file.path)
    for (key, pack), commits in packs.items():
        ranks, numbers = [c.rank for c in commits], [c.segment for c in commits]
        name = layout.PackName(f"{pack}t", min(ranks), max(ranks), min(numbers), max(numbers))
        files.publish_bytes(Pack(name.id, time.time_ns(), tuple(commits)).to_json(), name.path(key))


def publish_table(
    files: Files, schema: TableSchema, rows: pa.Table, path: str, *, beside: Mapping[str, bytes] | None = None
) -> None:
    """Write a table as one file, in place of what was there, and small objects `beside` it in the same flush."""
    rows = conform(schema, rows).unify_dictionaries()
    folder = files.scratch()
    try:
        with store_errors(f"{files.name}: cannot write {path}"):
            finished = {name: folder / str(number) for number, name in enumerate(beside or {})}
            for name, target in finished.items():
                target.write_bytes((beside or {})[name])
            with open_writer(folder / "t", schema.arrow) as writer:
                writer.write_table(rows)
        files.publish({**finished, path: folder / "t"})
    finally:
        discard(folder)


def migrate_segment(files: Files, commit: Commit) -> None:
    """Rewrite a segment of an older schema; its commit switches from the old files to the new ones."""
    check_version(commit.schema_version, files.name)
    with SegmentWriter(files, commit.key, commit.rank, commit.segment, commit.fingerprint, replace=True) as writer:
        for file in commit.files:
            source = open_parquet(files, file.path, file.footer_crc)
            first, count = file.row_groups or (0, source.num_row_groups)
            for group in range(first, first + count):
                rows = migrate_table(file.table, source.read_row_group(group), commit.schema_version)
                writer.write(file.table, rows)
        writer.commit_like(commit)


def migrate_single_files(files: Files) -> int:
    """Rewrite derived and fleet files of an older schema, and return how many there were."""
    changed = 0
    for schema in TABLES.values():
        for info in files.walk(schema.name) if schema.kind != "run" else ():
            path = files.relative(info)
            source = open_parquet(files, path)
            version = int((source.schema_arrow.metadata or {}).get(VERSION_KEY, b"0"))
            check_version(version, f"{files.name}/{path}")
            if version < SCHEMA_VERSION:
                publish_table(files, schema, migrate_table(schema.name, source.read(), version), path)
                changed += 1
    return changed
