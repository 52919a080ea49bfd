"""What a commit says, and what the commits of a run add up to.

A `Commit` is one JSON object per segment. It is the only thing that makes rows visible, and it holds all
that a listing needs, so that `perfkit store ls` opens no Parquet file. A `Pack` is many of them in one object.

Each begins with a checksum of itself (`sealed`), and lies where it says that it belongs: a flipped bit moves no rows to
another run, and no path leads out of the store. What an older perfkit wrote has no checksum.
"""

from __future__ import annotations

import dataclasses
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perfkit.errors import StoreError, UsageError
from perfkit.store.layout import RunKey, commit_path
from perfkit.store.migrations import check_version

if TYPE_CHECKING:
    from perfkit.sources.base import PartInfo


class DamagedCommit(StoreError):
    """A commit that cannot be parsed, or is not what was written."""

    commit_path = ""


_SEAL = re.compile(rb'\{"crc": (\d+),\n')


def sealed(fields: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """Serialise with a checksum in front; whatever reads JSON reads it."""
    body = json.dumps(fields, ensure_ascii=False, indent=indent).encode("utf-8", "backslashreplace")
    body = body.removeprefix(b"{").lstrip()
    return b'{"crc": %d,\n' % zlib.crc32(body) + body


def unsealed(data: bytes) -> Any:
    """Parse; ValueError if the checksum is wrong."""
    seal = _SEAL.match(data)
    if seal and int(seal[1]) != zlib.crc32(data[seal.end() :]):
        raise ValueError("its checksum is wrong")
    return json.loads(data)


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """One Parquet file of a segment."""

    table: str
    path: str
    """Relative to the store."""
    rows: int
    bytes: int
    """Of a segment in a pack: its share."""
    pack: str | None = None
    """The pack that it is part of; other segments are in the same file."""
    row_groups: tuple[int, int] | None = None
    """First row group and how many of them, in a pack."""
    footer_crc: int | None = None
    """Checksum of the file's footer; commits of an older perfkit have none."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed segment: everything that one source file says about one rank."""

    cluster: str
    run: str
    attempt: int
    rank: int
    segment: int
    fingerprint: str
    """Identity of the content: of the source's bytes and of whatever options change the rows."""
    files: tuple[CommittedFile, ...]
    schema_version: int
    generation: int = 0
    source_path: str = ""
    source: str = ""
    rank_source: str | None = None
    world_size: int | None = None
    host: str | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    num_events: int = 0
    synthetic: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    oddities: tuple[Mapping[str, Any], ...] = ()
    """`kind`, `count` and `detail` of each oddity of the source."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else the writer wants to find again."""
    perfkit_version: str = ""
    written_ns: int | None = None
    """When the source was ingested; packing and trimming keep it."""

    @property
    def key(self) -> RunKey:
        """The run that the segment belongs to."""
        return RunKey(self.cluster, self.run, self.attempt)

    @property
    def rows(self) -> dict[str, int]:
        """Rows by table."""
        return {file.table: file.rows for file in self.files}

    def to_json(self) -> bytes:
        """Serialise."""
        return sealed(self.to_dict(), indent=1)

    def to_dict(self) -> dict[str, Any]:
        """Return what is serialised."""
        fields = dataclasses.asdict(self)
        fields["files"] = [{k: v for k, v in file.items() if v is not None} for file in fields["files"]]
        return fields

    @classmethod
    def from_json(cls, data: bytes, path: str) -> Commit:
        """Parse. Keys that a newer perfkit of the same schema version added are ignored."""
        with _naming_damage(path):
            commit = cls.from_dict(unsealed(data), path)
            if not path.endswith(commit_path(commit.key, commit.rank, commit.segment)):
                raise ValueError(f"it is of {commit.key}, rank {commit.rank}, segment {commit.segment}")
            return commit

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], path: str) -> Commit:
        """Make it from what was serialised; its files lie in the folders of its run, and nowhere else."""
        check_version(fields["schema_version"], path)
        known = {f.name: fields[f.name] for f in dataclasses.fields(cls) if f.name in fields}
        known["files"] = tuple(_committed_file(file) for file in fields["files"])
        known["oddities"] = tuple(fields.get("oddities", ()))
        commit = cls(**known)
        folder = commit.key.folder
        astray = [file.path for file in commit.files if file.path.rpartition("/")[0] != f"{file.table}/{folder}"]
        if astray or f"/{folder}/" not in path:
            raise ValueError(f"{astray[0]} does not belong to it" if astray else f"it is of {commit.key}")
        return commit


def _committed_file(fields: Mapping[str, Any]) -> CommittedFile:
    known = {f.name: fields[f.name] for f in dataclasses.fields(CommittedFile) if f.name in fields}
    groups = fields.get("row_groups")
    return CommittedFile(**{**known, "row_groups": None if groups is None else (int(groups[0]), int(groups[1]))})


@contextmanager
def _naming_damage(path: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, KeyError, IndexError, UsageError) as error:
        is_pack = "/packs/" in path
        raise DamagedCommit(
            f"{path}: damaged {'pack' if is_pack else 'commit'} ({type(error).__name__}: {error})",
            next_step="delete it and ingest its sources again"
            if is_pack
            else "ingest that source again, or delete the commit to give the segment up",
        ) from None


@dataclass(frozen=True, slots=True)
class Pack:
    """Segments whose rows lie together, one file per table; their commits are one object."""

    id: str
    created_ns: int
    commits: tuple[Commit, ...]

    def to_json(self) -> bytes:
        """Serialise."""
        fields = {"id": self.id, "created_ns": self.created_ns, "commits": [c.to_dict() for c in self.commits]}
        return sealed(fields)

    @classmethod
    def from_json(cls, data: bytes, path: str) -> Pack:
        """Parse."""
        with _naming_damage(path):
            fields = unsealed(data)
            commits = tuple(Commit.from_dict(commit, path) for commit in fields["commits"])
            return cls(str(fields["id"]), int(fields["created_ns"]), commits)


TOLD_BY_THE_SOURCE = (
    "source_path", "source", "rank_source", "world_size", "host", "start_ns", "end_ns", "num_events", "synthetic",
    "versions", "oddities", "extra", "written_ns",
)  # fmt: skip


def describe_part(info: PartInfo | None) -> dict[str, Any]:
    """Fields of a commit that a source knows."""
    if info is None:
        return {}
    return {
        "source": info.source,
        "rank_source": info.rank_source,
        "world_size": info.world_size,
        "host": info.host,
        "start_ns": info.start_ns,
        "end_ns": info.end_ns,
        "num_events": info.num_events,
        "synthetic": info.synthetic,
        "versions": dict(info.versions),
        "oddities": tuple(dataclasses.asdict(oddity) for oddity in info.oddities.values()),
    }


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One attempt of a run, added up from its commits and its run.json."""

    cluster: str
    run: str
    attempt: int
    ranks: tuple[int, ...]
    world_size: int | None
    """As the sources say; the largest, where they disagree. Null if none says."""
    segments: int
    rows: dict[str, int]
    """Rows by table."""
    bytes: int
    start_ns: int | None
    end_ns: int | None
    synthetic: bool
    """Some of it was made by the simulator."""
    sources: tuple[str, ...]
    hosts: tuple[str, ...]
    schema_versions: tuple[int, ...]
    versions: dict[str, str]
    metadata: dict[str, Any]
    """What run.json adds: name, user, model, mesh, …"""
    damaged: int = 0
    """Manifests that cannot be read: what they list is missing here, and reading the run is an error."""

    @property
    def key(self) -> RunKey:
        """The run."""
        return RunKey(self.cluster, self.run, self.attempt)


def summarise(key: RunKey, commits: Iterable[Commit], metadata: Mapping[str, Any], damaged: int = 0) -> RunSummary:
    """Add up the commits of one attempt."""
    commits = list(commits)
    known = metadata.get
    rows: Counter[str] = Counter()
    for commit in commits:
        rows.update(commit.rows)
    versions: dict[str, str] = {}
    for commit in commits:
        versions.update(commit.versions)
    world_sizes = [size for c in commits if (size := c.world_size) is not None]
    if known("world_size") is not None:
        world_sizes = [int(metadata["world_size"])]
    return RunSummary(
        cluster=key.cluster,
        run=key.run,
        attempt=key.attempt,
        ranks=tuple(sorted({c.rank for c in commits})),
        world_size=max(world_sizes, default=None),
        segments=len(commits),
        rows=dict(sorted(rows.items())),
        bytes=sum(file.bytes for c in commits for file in c.files),
        start_ns=min((c.start_ns for c in commits if c.start_ns is not None), default=known("start_ns")),
        end_ns=max((c.end_ns for c in commits if c.end_ns is not None), default=known("end_ns")),
        synthetic=any(c.synthetic for c in commits) or bool(known("synthetic")),
        sources=tuple(sorted({c.source for c in commits if c.source})),
        hosts=tuple(sorted({c.host for c in commits if c.host})),
        schema_versions=tuple(sorted({c.schema_version for c in commits})),
        versions=versions,
        metadata=dict(metadata),
        damaged=damaged,
    )
