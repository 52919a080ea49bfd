"""Put many small segments into few large files, while others read and write.

    pack_run(files, commits) -> Packed(packs, segments, files_before, files_after)

A pack is one file per table for some hundred segments of a run, and one manifest with their commits. Every segment
keeps row groups of its own, so that reading one rank fetches that rank, and the rows and their order are
exactly what they were. Nothing is locked: the manifest is written last, and whoever lists the store before it reads
the old files, which stay until `Store.gc` finds the pack old enough. The id of a pack is a hash of what goes into it,
so that two that pack at once write the same bytes; a segment that is replaced meanwhile has a newer commit, which
counts.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfkit.schema import SCHEMA_VERSION, TABLES
from perfkit.store import layout
from perfkit.store.commits import Commit, CommittedFile, Pack
from perfkit.store.files import Files, discard, open_parquet, store_errors
from perfkit.store.footer import footer_crc
from perfkit.store.parquet import ROW_GROUP_ROWS, open_writer
from perfkit.store.segment import FINGERPRINT_KEY

MAX_CHUNKS = 1 << 14
"""Segments times columns of the widest table of a pack: whoever reads one rank reads the footer, of some 2 MB then."""
TARGET_BYTES = 256 << 20
"""Of all tables of a pack together."""


@dataclass(slots=True)
class Packed:
    """What packing did."""

    packs: int = 0
    segments: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


def pack_run(files: Files, commits: Iterable[Commit]) -> Packed:
    """Pack the segments of one run that are not in a pack yet; those of an older schema wait for `migrate`."""
    done = Packed()
    loose = [c for c in commits if c.schema_version == SCHEMA_VERSION and all(file.pack is None for file in c.files)]
    loose = [c for c in loose if c.files]
    for group in _groups(sorted(loose, key=lambda commit: (commit.rank, commit.segment))):
        if len(group) > 1:
            _pack(files, group, done)
    return done


def _groups(commits: Sequence[Commit]) -> Iterator[list[Commit]]:
    group: list[Commit] = []
    held = widest = 0
    for commit in commits:
        size = sum(file.bytes for file in commit.files)
        width = max(widest, *(len(TABLES[file.table].names) for file in commit.files))
        if group and ((len(group) + 1) * width > MAX_CHUNKS or held + size > TARGET_BYTES):
            yield group
            group, held, width = [], 0, max(len(TABLES[file.table].names) for file in commit.files)
        group.append(commit)
        held, widest = held + size, width
    if group:
        yield group


def _pack(files: Files, group: Sequence[Commit], done: Packed) -> None:
    key = group[0].key
    identity = "\n".join(f"{c.rank} {c.segment} {c.generation} {c.fingerprint}" for c in group)
    id = hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    scratch = files.scratch()
    try:
        packed: dict[tuple[int, int], list[CommittedFile]] = {(c.rank, c.segment): [] for c in group}
        published = {}
        for table in sorted({file.table for commit in group for file in commit.files}):
            path, target = scratch / f"{table}.parquet", layout.pack_path(table, key, id)
            copied = list(_copy(files, group, table, id, path))
            crc = footer_crc(path)
            for commit, file in copied:
                packed[commit.rank, commit.segment].append(replace(file, path=target, footer_crc=crc))
            published[target] = path
            done.bytes_after += path.stat().st_size
        files.publish(published)
    finally:
        discard(scratch)
    commits = tuple(replace(commit, files=tuple(packed[commit.rank, commit.segment])) for commit in group)
    segments = [commit.segment for commit in group]
    name = layout.PackName(id, group[0].rank, group[-1].rank, min(segments), max(segments))
    files.publish_bytes(Pack(id, time.time_ns(), commits).to_json(), name.path(key))
    done.packs += 1
    done.segments += len(group)
    done.files_before += sum(len(commit.files) + 1 for commit in group)
    done.files_after += len(published) + 1
    done.bytes_before += sum(file.bytes for commit in group for file in commit.files)


def _copy(
    files: Files, group: Sequence[Commit], table: str, id: str, target: Path
) -> Iterator[tuple[Commit, CommittedFile]]:
    """Write the rows of one table, segment after segment, and say which row groups each became."""
    schema = TABLES[table].arrow
    metadata = {**schema.metadata, FINGERPRINT_KEY: id.encode()}
    first = 0
    with store_errors(f"{files.name}: cannot pack {table}"), open_writer(target, schema.with_metadata(metadata)) as out:
        for commit in group:
            for file in commit.files:
                if file.table != table:
                    continue
                rows = open_parquet(files, file.path, file.footer_crc).read()
                out.write_table(rows.cast(schema).unify_dictionaries().combine_chunks(), row_group_size=ROW_GROUP_ROWS)
                count = -(-len(rows) // ROW_GROUP_ROWS)
                yield commit, replace(file, pack=id, row_groups=(first, count))
                first += count
