"""What a store holds: its commits, its runs, and which files make up a table.

Everything is found by listing folders and reading small JSON objects; there is no index that writers
would have to share. `Which` narrows a look to a cluster, a run or an attempt, and the listing with it.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow.fs as pafs

from perfkit.errors import StoreError
from perfkit.store import layout
from perfkit.store.commits import Commit, DamagedCommit, Pack, RunSummary, summarise, unsealed
from perfkit.store.files import Files
from perfkit.store.layout import RunKey
from perfkit.store.reading import Piece
from perfkit.store.segment import stored_fingerprint

_READERS = 16
"""Threads that read small objects: latency, not work."""
_OF_AN_ATTEMPT = re.compile(rf"{layout.MANIFESTS}/cluster=[^/]+/run=[^/]+/attempt=\d+/")


@dataclass(frozen=True, slots=True)
class Which:
    """Which runs: each of the three may be left open."""

    cluster: str | None = None
    run: str | None = None
    attempt: int | None = None

    @property
    def hive(self) -> dict[str, str]:
        """The parts of a path that are fixed."""
        parts = {
            "cluster": None if self.cluster is None else layout.slug(self.cluster),
            "run": None if self.run is None else layout.slug(self.run),
            "attempt": None if self.attempt is None else str(self.attempt),
        }
        return {name: value for name, value in parts.items() if value is not None}

    def folder(self, top: str) -> str:
        """Return the deepest folder below `top` that holds all of it."""
        fixed = itertools.takewhile(lambda name: name in self.hive, ("cluster", "run", "attempt"))
        return "/".join([top, *(f"{name}={self.hive[name]}" for name in fixed)])

    def matches(self, path: str) -> bool:
        """Whether a path belongs to it."""
        return self.hive.items() <= layout.hive_values(path).items()

    def __str__(self) -> str:
        named = (("cluster", self.cluster), ("run", self.run), ("attempt", self.attempt))
        return ", ".join(f"{name} {value!r}" for name, value in named if value is not None)


def pieces_of(commit: Commit, table: str) -> list[Piece]:
    """Return the files of a table that a commit lists, with what it promises of them."""
    where = commit.key._asdict()
    return [
        Piece(file.path, where, file.rows, file.pack or commit.fingerprint, file.row_groups, file.footer_crc)
        for file in commit.files
        if file.table == table
    ]


class Superseded(NamedTuple):
    """A commit object of its own whose segment a pack now holds."""

    commit: Commit
    packed_ns: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the manifests say."""

    commits: list[Commit]
    damaged: list[DamagedCommit]
    superseded: list[Superseded] = field(default_factory=list)
    dead_packs: list[str] = field(default_factory=list)
    """Manifests of packs of which no commit counts any more."""

    def sound(self) -> list[Commit]:
        """Return the commits; a damaged one is an error."""
        if self.damaged:
            raise self.damaged[0]
        return self.commits

    def of_whole_runs(self) -> list[Commit]:
        """Return the commits of runs without a damaged one."""
        broken = {layout.run_folder(error.commit_path) for error in self.damaged}
        return [commit for commit in self.commits if commit.key.folder not in broken]


class Place(NamedTuple):
    """A segment whose commit cannot be read."""

    rank: int
    segment: int
    fingerprint: str | None
    """Of what is there, where its Parquet files still tell."""


@dataclass(frozen=True, slots=True)
class Held:
    """What an attempt holds, for whoever writes into it."""

    commits: list[Commit]
    unreadable: list[Place]
    """Places that are taken all the same."""


def _flat(loaded: Iterable[Commit | Pack | DamagedCommit | None]) -> Iterator[tuple[Commit, int | None]]:
    """Yield every commit, with the time of its pack."""
    for entry in loaded:
        if isinstance(entry, Commit):
            yield entry, None
        elif isinstance(entry, Pack):
            yield from ((commit, entry.created_ns) for commit in entry.commits)


def _is_newest(commit: Commit, newest: Mapping[tuple[RunKey, int, int], tuple[Commit, int | None]]) -> bool:
    return newest[commit.key, commit.rank, commit.segment][0] is commit


def _supersedes(commit: Commit, packed_ns: int | None, other: Commit, other_packed_ns: int | None) -> bool:
    """Say which of two commits of a segment counts: the newer content, and then the newer pack."""
    return (commit.generation, packed_ns or 0) > (other.generation, other_packed_ns or 0)


@dataclass(frozen=True, slots=True)
class Catalog:
    """Looks things up in a store."""

    files: Files

    def commits(self, which: Which) -> list[Commit]:
        """All commits, by run, rank and segment; a damaged one is an error."""
        return self.load(which).sound()

    def damaged(self, which: Which) -> list[DamagedCommit]:
        """Return the manifests that cannot be read, as errors."""
        manifests = self._manifests(which)
        documents = self._load_documents(manifests)
        damaged = self.load(which, manifests=manifests).damaged
        return [*damaged, *(entry for entry in documents if isinstance(entry, DamagedCommit))]

    def held(self, key: RunKey) -> Held:
        """Return the commits of an attempt, and the places of those that cannot be read."""
        loaded = self.load(Which(*key))
        places = [place for error in loaded.damaged for place in self._places(key, error.commit_path)]
        return Held(loaded.commits, places)

    def _places(self, key: RunKey, path: str) -> Iterator[Place]:
        with suppress(ValueError):  # a stray file, which is not where any segment has its commit
            if "/packs/" in path:
                pack = layout.PackName.parse(path)
                yield from (Place(rank, pack.last_segment, None) for rank in range(pack.first_rank, pack.last_rank + 1))
            else:
                rank, segment = layout.place_of_commit(path)
                yield Place(rank, segment, stored_fingerprint(self.files, key, rank, segment))

    def load(self, which: Which, *, manifests: Sequence[str] | None = None) -> Loaded:
        """Return all commits that can be read, those in packs too, and the others as errors."""
        listed = self._manifests(which) if manifests is None else manifests
        paths = [path for path in listed if "/commits/" in path or "/packs/" in path]
        with ThreadPoolExecutor(max_workers=_READERS) as pool:
            loaded = list(pool.map(self._load_manifest, paths))
        found = Loaded([], [entry for entry in loaded if isinstance(entry, DamagedCommit)])
        newest: dict[tuple[RunKey, int, int], tuple[Commit, int | None]] = {}
        for commit, packed_ns in _flat(loaded):
            place = commit.key, commit.rank, commit.segment
            if place not in newest or _supersedes(commit, packed_ns, *newest[place]):
                newest[place] = commit, packed_ns
        found.commits.extend(newest[place][0] for place in sorted(newest))
        for path, entry in zip(paths, loaded, strict=True):
            if isinstance(entry, Commit):
                packed_ns = newest[entry.key, entry.rank, entry.segment][1]
                if packed_ns is not None:
                    found.superseded.append(Superseded(entry, packed_ns))
            elif isinstance(entry, Pack) and not any(_is_newest(commit, newest) for commit in entry.commits):
                found.dead_packs.append(path)
        return found

    def runs(self, which: Which) -> list[RunSummary]:
        """Every attempt that has a commit or a run.json, by name; one that is damaged costs no other, and says so."""
        manifests = self._manifests(which)
        entries = self._load_documents(manifests)
        documents = dict(entry for entry in entries if not isinstance(entry, DamagedCommit))
        loaded = self.load(which, manifests=manifests)
        groups = itertools.groupby(loaded.commits, key=lambda commit: commit.key)
        commits = {key: list(group) for key, group in groups}
        known = {key.folder: key for key in (*commits, *documents)}
        broken = (*loaded.damaged, *(entry for entry in entries if isinstance(entry, DamagedCommit)))
        damaged = Counter(_run_of(error.commit_path, known) for error in broken)
        keys = sorted(commits.keys() | documents.keys() | damaged.keys())
        return [summarise(key, commits.get(key, ()), documents.get(key, {}), damaged[key]) for key in keys]

    def metadata(self, key: RunKey) -> dict[str, Any]:
        """Return what run.json says about a run; nothing if there is none, or if it is damaged."""
        entry = self._load_document(layout.run_json_path(key))
        return {} if entry is None or isinstance(entry, DamagedCommit) else entry[1]

    # ---------------------------------------------------------------- pieces of a table

    def run_pieces(
        self, table: str, which: Which, ranks: Iterable[int] | None, commits: Sequence[Commit] | None = None
    ) -> list[Piece]:
        """Return the committed files of a run table; `commits` spares the look at what there is."""
        if commits is None:
            commits = self.commits(which)
        if not commits and which != Which():
            raise self._nothing_of(which)
        chosen = None if ranks is None else set(ranks)
        picked = (commit for commit in commits if chosen is None or commit.rank in chosen)
        return [piece for commit in picked for piece in pieces_of(commit, table)]

    def derived_pieces(self, table: str, which: Which, analysis_id: str | None) -> list[Piece]:
        """Return the newest file per run, or the one of an analysis."""
        wanted = None if analysis_id is None else f"analysis-{layout.slug(analysis_id)}.parquet"
        newest: dict[str, pafs.FileInfo] = {}
        for info in self.files.walk(which.folder(table)):
            path = self.files.relative(info)
            folder, _, name = path.rpartition("/")
            if not which.matches(path) or wanted not in (None, name):
                continue
            if folder not in newest or (info.mtime, info.path) >= (newest[folder].mtime, newest[folder].path):
                newest[folder] = info
        paths = sorted(self.files.relative(info) for info in newest.values())
        names = {key.folder: key for key in self._documents(which)} if paths else {}
        return [Piece(path, _run_of(path, names)._asdict()) for path in paths]

    def fleet_pieces(self, table: str, dates: tuple[str, str] | None) -> list[Piece]:
        """Return the files of a fleet table between two days."""
        first, last = dates or ("", "~")
        listed = [self.files.relative(info) for info in self.files.walk(table)]
        dated = [(path, layout.hive_values(path).get("date", "")) for path in listed]
        return [Piece(path, {"date": date}) for path, date in dated if first <= date <= last]

    # ---------------------------------------------------------------- inside

    def _manifests(self, which: Which) -> list[str]:
        paths = (self.files.relative(info) for info in self.files.walk(which.folder(layout.MANIFESTS)))
        return [path for path in paths if which.matches(path) and _OF_AN_ATTEMPT.match(path)]

    def _load_manifest(self, path: str) -> Commit | Pack | DamagedCommit | None:
        data = self.files.read_bytes(path)  # None: deleted since it was listed
        kind = Pack if "/packs/" in path else Commit
        try:
            return None if data is None else kind.from_json(data, f"{self.files.name}/{path}")
        except DamagedCommit as error:
            error.commit_path = path
            return error

    def key_of(self, run_json: str) -> RunKey | None:
        """Return the run that a run.json is about; None if it has gone or is damaged."""
        loaded = self._load_document(run_json)
        return None if loaded is None or isinstance(loaded, DamagedCommit) else loaded[0]

    def shards(self, key: RunKey) -> list[dict[str, Any]]:
        """Return what the shards of an ingest said at their end."""
        paths = [path for path in self._manifests(Which(*key)) if "/shards/" in path]
        with ThreadPoolExecutor(max_workers=_READERS) as pool:
            loaded = [data for data in pool.map(self.files.read_bytes, paths) if data]
        found = []
        for data in loaded:
            with suppress(ValueError):  # a damaged note is as good as none: that shard is said to be missing
                found.append(dict(json.loads(data)))
        return found

    def _documents(self, which: Which) -> dict[RunKey, dict[str, Any]]:
        documents = {}
        for entry in self._load_documents(self._manifests(which)):
            if isinstance(entry, DamagedCommit):
                raise entry
            documents[entry[0]] = entry[1]
        return documents

    def _load_documents(self, manifests: Sequence[str]) -> list[tuple[RunKey, dict[str, Any]] | DamagedCommit]:
        paths = [path for path in manifests if path.endswith("/run.json")]
        with ThreadPoolExecutor(max_workers=_READERS) as pool:
            return [entry for entry in pool.map(self._load_document, paths) if entry]

    def _load_document(self, path: str) -> tuple[RunKey, dict[str, Any]] | DamagedCommit | None:
        data = self.files.read_bytes(path)
        if data is None:
            return None
        try:
            document = unsealed(data)
            key = RunKey(document["cluster"], document["run"], document["attempt"])
            if path != layout.run_json_path(key):
                raise ValueError(f"it is of {key}")
            return key, dict(document["metadata"])
        except (ValueError, TypeError, KeyError):
            error = DamagedCommit(
                f"{self.files.name}/{path} is damaged", next_step="delete that file; the commits say the rest"
            )
            error.commit_path = path
            return error

    def _nothing_of(self, which: Which) -> StoreError:
        there = sorted({f"{c.cluster}/{c.run}" for c in self.load(Which()).commits})
        shown = ", ".join(there[:8]) + (f", … ({len(there)} in all)" if len(there) > 8 else "")
        return StoreError(f"{self.files.name}: nothing of {which}; it has {shown or 'no runs'}")


def _run_of(path: str, names: Mapping[str, RunKey]) -> RunKey:
    """Return the names that users gave, where run.json remembers them, else the slugs in the path."""
    values = layout.hive_values(path)
    slugs = RunKey(values["cluster"], values["run"], int(values["attempt"]))
    return names.get(slugs.folder, slugs)
