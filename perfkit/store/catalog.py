"""What a store holds: its commits, its runs, and which files make up a table.

Everything is found by listing folders and reading small JSON objects; there is no index that writers
would have to share. `Which` narrows a look to a cluster, a run or an attempt, and the listing with it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow.fs as pafs

from perfkit.errors import StoreError
from perfkit.store import layout
from perfkit.store.commits import Commit, DamagedCommit, RunSummary, summarise
from perfkit.store.files import Files
from perfkit.store.layout import RunKey
from perfkit.store.reading import Piece

_READERS = 16
"""Threads that read small objects: latency, not work."""


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


@dataclass(frozen=True, slots=True)
class Catalog:
    """Looks things up in a store."""

    files: Files

    def commits(self, which: Which) -> list[Commit]:
        """All commits, by run, rank and segment; a damaged one is an error."""
        commits, damaged = self.load_commits(which)
        if damaged:
            raise damaged[0]
        return commits

    def load_commits(self, which: Which) -> tuple[list[Commit], list[DamagedCommit]]:
        """Return the commits that can be read, and the others as errors."""
        paths = [path for path in self._manifests(which) if "/commits/" in path]
        with ThreadPoolExecutor(max_workers=_READERS) as pool:
            loaded = list(pool.map(self._load_commit, paths))
        commits = [entry for entry in loaded if isinstance(entry, Commit)]
        commits.sort(key=lambda commit: (commit.key, commit.rank, commit.segment))
        return commits, [entry for entry in loaded if isinstance(entry, DamagedCommit)]

    def runs(self, which: Which) -> list[RunSummary]:
        """Every attempt that has a commit or a run.json, by name."""
        documents = self._documents(which)
        groups = itertools.groupby(self.commits(which), key=lambda commit: commit.key)
        commits = {key: list(group) for key, group in groups}
        keys = sorted(commits.keys() | documents.keys())
        return [summarise(key, commits.get(key, ()), documents.get(key, {})) for key in keys]

    def metadata(self, key: RunKey) -> dict[str, Any]:
        """Return what run.json says about a run; nothing if there is none."""
        return self._documents(Which(*key)).get(key, {})

    # ---------------------------------------------------------------- pieces of a table

    def run_pieces(self, table: str, which: Which, ranks: Iterable[int] | None) -> list[Piece]:
        """Return the committed files of a run table."""
        commits = self.commits(which)
        if not commits and which != Which():
            raise self._nothing_of(which)
        chosen = None if ranks is None else set(ranks)
        return [
            Piece(file.path, commit.key._asdict(), file.rows, commit.fingerprint)
            for commit in commits
            if chosen is None or commit.rank in chosen
            for file in commit.files
            if file.table == table
        ]

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
        return [path for path in paths if which.matches(path)]

    def _load_commit(self, path: str) -> Commit | DamagedCommit | None:
        data = self.files.read_bytes(path)  # None: deleted since it was listed
        try:
            return None if data is None else Commit.from_json(data, f"{self.files.name}/{path}")
        except DamagedCommit as error:
            error.commit_path = path
            return error

    def _documents(self, which: Which) -> dict[RunKey, dict[str, Any]]:
        paths = [path for path in self._manifests(which) if path.endswith("/run.json")]
        with ThreadPoolExecutor(max_workers=_READERS) as pool:
            loaded = pool.map(self._load_document, paths)
        return {key: metadata for entry in loaded if entry for key, metadata in [entry]}

    def _load_document(self, path: str) -> tuple[RunKey, dict[str, Any]] | None:
        data = self.files.read_bytes(path)
        if data is None:
            return None
        try:
            document = json.loads(data)
            key = RunKey(document["cluster"], document["run"], document["attempt"])
            return key, dict(document["metadata"])
        except (ValueError, TypeError, KeyError):
            raise StoreError(
                f"{self.files.name}/{path} is damaged", next_step="delete that file; the commits say the rest"
            ) from None

    def _nothing_of(self, which: Which) -> StoreError:
        there = sorted({f"{c.cluster}/{c.run}" for c in self.commits(Which())})
        shown = ", ".join(there[:8]) + (f", … ({len(there)} in all)" if len(there) > 8 else "")
        return StoreError(f"{self.files.name}: nothing of {which}; it has {shown or 'no runs'}")


def _run_of(path: str, names: Mapping[str, RunKey]) -> RunKey:
    """Return the names that users gave, where run.json remembers them, else the slugs in the path."""
    values = layout.hive_values(path)
    slugs = RunKey(values["cluster"], values["run"], int(values["attempt"]))
    return names.get(slugs.folder, slugs)
