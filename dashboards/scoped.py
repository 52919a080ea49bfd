"""The engine as somebody sees it who may not see everything; what is not granted is as if it were not there.

    ScopedEngine(engine, Scope.of(["prod-a"]))       the same questions as perfkit_dashboards.engine.Engine

Queries run in a schema of views that hold the granted rows, so that a question that forgets its condition still shows
nothing else. Files of a run are checked by its name. Tables are loaded once, for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from perfkit.store.commits import Commit
from perfkit.store.files import Files
from perfkit.store.layout import RunKey, hive_values

from .engine import Engine, Problem, Version
from .grants import Scope


class ScopedEngine:
    """A part of an engine."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine = engine
        self._scope = scope
        self._schema = f"scope_{scope.name}"
        engine.view(self._schema, scope.condition)

    @property
    def uri(self) -> str:
        """Where the store is."""
        return self._engine.uri

    def ask(self, sql: str, parameters: Sequence[Any] = ()) -> pa.Table:
        """Run a query over the granted rows."""
        return self._engine.ask(sql, parameters, schema=self._schema)

    def load(self, table: str, window: tuple[int, int] | None = None) -> list[Problem]:
        """Load the days of a window; of what cannot be read, name what does not name others."""
        return [problem for problem in self._engine.load(table, window) if self._sees(problem.path)]

    def listing(self, folder: str) -> dict[str, Version]:
        """Return the files below a folder that hold nothing of others, or no single run."""
        return {path: version for path, version in self._engine.listing(folder).items() if self._sees(path)}

    @property
    def files(self) -> Files:
        """The objects of the store: for writing, once it is known that the name is granted."""
        return self._engine.files

    def read(self, path: str) -> bytes | None:
        """Return a small object, if its path names nothing of others."""
        return self._engine.read(path) if self._sees(path) else None

    def forget(self, folder: str) -> None:
        """Look at a folder again."""
        self._engine.forget(folder)

    def version(self, folders: Iterable[str]) -> str:
        """Return text that changes when a file does."""
        return self._engine.version(folders)

    def commits(self, key: RunKey) -> tuple[list[Commit], list[Problem]]:
        """Return the commits of an attempt."""
        return self._engine.commits(key) if self._granted(key) else ([], [])

    def metadata(self, key: RunKey) -> dict[str, Any]:
        """Return what run.json says."""
        return self._engine.metadata(key) if self._granted(key) else {}

    def run_table(self, table: str, key: RunKey, **more: Any) -> tuple[pa.Table, list[Problem]]:
        """Return rows of a run or derived table."""
        if self._granted(key):
            return self._engine.run_table(table, key, **more)
        return self._engine.nothing(table, more.get("columns")), []

    def newest_analysis(self, table: str, key: RunKey) -> str | None:
        """Return the name of the newest file of a derived table."""
        return self._engine.newest_analysis(table, key) if self._granted(key) else None

    def _granted(self, key: RunKey) -> bool:
        return self._scope.sees(key.cluster, key.run)

    def _sees(self, path: str) -> bool:
        where = hive_values(path)
        return "cluster" not in where or self._scope.sees(where["cluster"], where.get("run"))
