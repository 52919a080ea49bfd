"""What all pages ask of a store: how new it is, which clusters and runs it has, what of it cannot be read.

    source = Source("runs/")
    source.as_of()                    -> AsOf: time of the newest data, and whether it is synthetic
    source.window(view)               -> [start, end) of a view in ns
    source.load("run_rollup", window) loads the days of the window (and with `before` of the one before it)

The other data_*.py hold the queries of one page each. They return small tables or rows; nothing here knows Dash.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from perfkit.store.layout import RunKey, slug

from .engine import Engine, Problem
from .grants import Scope
from .scoped import ScopedEngine
from .view import View

EPOCH_FROM_NS = 10**17
"""Below this a time counts from a machine's boot, and is no date."""
STALE_AFTER_S = 2 * 3600
EVERYTHING = (0, 2**62)
ROLLUPS = ("run_rollup", "cluster_rollup")

REMEMBERED = 512
"""Answers that a worker keeps."""

Rows = list[dict[str, Any]]
T = TypeVar("T")


@dataclass(frozen=True)
class AsOf:
    """How new the data is."""

    time_ns: int | None
    synthetic: bool
    empty: bool
    """There is nothing at all."""

    @property
    def age_s(self) -> float | None:
        """Seconds since the newest data."""
        return None if self.time_ns is None else max(0.0, time.time() - self.time_ns / 1e9)

    @property
    def stale(self) -> bool:
        """Whether nothing has come for a while."""
        return self.age_s is not None and self.age_s > STALE_AFTER_S


class Source:
    """A store as the pages see it."""

    def __init__(self, store: str | Engine | ScopedEngine, scope: Scope = Scope()) -> None:  # noqa: B008
        self.engine = Engine(store) if isinstance(store, str) else store
        self.scope = scope
        self._known: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        self._making: dict[tuple[Any, ...], threading.RLock] = {}
        self._lock = threading.Lock()
        self._seen: set[tuple[str, str | None]] = set()

    def within(self, scope: Scope) -> Source:
        """Return the same store as somebody sees it who may not see everything; memory is not shared."""
        assert isinstance(self.engine, Engine), "a scope is cut from the whole"
        return self if scope.grants is None else Source(ScopedEngine(self.engine, scope), scope)

    @property
    def uri(self) -> str:
        """Where the store is."""
        return self.engine.uri

    # ---------------------------------------------------------------- how new

    def version(self, view: View | None = None) -> str:
        """Return text that changes when what a page shows may have changed: roll-ups, and the files of its run."""
        folders = ["run_rollup", "cluster_rollup", "runs", "interruptions", "notes"]
        if view is not None and view.page in ("cluster", "node-health"):
            folders += ["gpu_rollup", "job_nodes", "health_events"]
        if view is not None and view.cluster and view.run:
            place = f"cluster={slug(view.cluster)}/run={slug(view.run)}"
            folders += [f"{table}/{place}" for table in ("manifests", "findings", "waterfall", "attribution")]
        return self.engine.version(folders)

    def remember(self, name: tuple[Any, ...], view: View | None, make: Callable[[], T]) -> T:
        """Return what `make` makes, from memory while no file has changed."""
        key = (*name, view, self.version(view))
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]  # type: ignore[no-any-return]
            mine = self._making.setdefault(key, threading.RLock())
        with mine:  # who comes second waits for the first, and asks nothing
            with self._lock:
                if key in self._known:
                    return self._known[key]  # type: ignore[no-any-return]
            try:
                found = make()
            finally:
                with self._lock:
                    self._making.pop(key, None)
            with self._lock:
                self._known[key] = found
                while len(self._known) > REMEMBERED:
                    self._known.popitem(last=False)
            return found

    def as_of(self) -> AsOf:
        """Return the time of the newest data: only the newest day's files are read for it."""
        return self.remember(("as_of",), None, self._as_of)

    def _as_of(self) -> AsOf:
        newest: list[int] = []
        synthetic = False
        empty = True
        for table in ROLLUPS:
            dates = sorted({_date(path) for path in self.engine.listing(table)})
            if not dates:
                continue
            empty = False
            day = _day_window(dates[-1])
            self.engine.load(table, day)
            seen = "greatest(end_ns, last_seen_ns)" if table == "run_rollup" else "end_ns"
            row = self.ask(
                f"SELECT max({seen}) AS t, bool_or(synthetic) AS s FROM {table} WHERE date = ?", [dates[-1]]
            )[0]
            newest += [row["t"]] if row["t"] is not None else []
            synthetic = synthetic or bool(row["s"])
        if self.engine.listing("runs"):
            empty = False
            self.engine.load("runs")
            row = self.ask("SELECT max(end_ns) AS t, bool_or(synthetic) AS s FROM runs")[0]
            newest += [row["t"]] if row["t"] is not None and row["t"] > EPOCH_FROM_NS else []
            synthetic = synthetic or bool(row["s"])
        return AsOf(max(newest, default=None), synthetic, empty and not self.engine.listing("manifests"))

    def window(self, view: View) -> tuple[int, int]:
        """Return [start, end) of what a view shows."""
        return view.window_ns(self.as_of().time_ns) or EVERYTHING

    # ---------------------------------------------------------------- asking

    def ask(self, sql: str, parameters: list[Any] | tuple[Any, ...] = ()) -> Rows:
        """Return the rows of a query."""
        return self.engine.ask(sql, parameters).to_pylist()

    def load(self, table: str, window: tuple[int, int], *, before: bool = False) -> list[Problem]:
        """Load the days of a window, and with `before` of the window of the same length before it."""
        start, end = window
        if before and start > 0:
            start -= end - start
        return self.engine.load(table, (start, end))

    def problems(self, view: View) -> list[Problem]:
        """Return what cannot be read of the tables that every page shows."""
        window = self.window(view)
        found = [problem for table in ROLLUPS for problem in self.load(table, window)]
        return [*found, *self.engine.load("runs")]

    # ---------------------------------------------------------------- names

    def knows(self, view: View) -> bool:
        """Whether there is what a link names: its cluster, and the run in it. What may not be seen is not there."""
        return self.missing(view) is None

    def missing(self, view: View) -> tuple[str, str | None] | None:
        """Return the first cluster, or cluster and run, that a link names and that is not there."""
        for name in view.names():
            if name not in self._seen:
                if not self._finds(*name):
                    return name
                if len(self._seen) > 10_000:
                    self._seen.clear()
                self._seen.add(name)
        return None

    def _finds(self, cluster: str, run: str | None) -> bool:
        """Look where it is likely first: a name that nothing knows costs a look at everything."""
        where = "cluster = ?" if run is None else "cluster = ? AND run = ?"
        names = [cluster] if run is None else [cluster, run]
        files = [] if "" in names else [slug(name) for name in names]
        path = "/".join(f"{kind}={name}" for kind, name in zip(("cluster", "run"), files, strict=False))
        if path and self.engine.listing(f"manifests/{path}"):
            return True
        for window in (self.window(View()), EVERYTHING):
            for table in ("run_rollup",) if run is not None else ROLLUPS:
                self.engine.load(table, window)
                if self.ask(f"SELECT 1 FROM {table} WHERE {where} LIMIT 1", names):
                    return True
        for table in ("job_nodes", "interruptions") if run is not None else ("gpu_rollup", "health_events", "nodes"):
            newest = max((_date(one) for one in self.engine.listing(table)), default="")
            self.engine.load(table, _day_window(newest) if newest else EVERYTHING)
            if self.ask(f"SELECT 1 FROM {table} WHERE {where} LIMIT 1", names):
                return True
        return False

    def clusters(self) -> list[str]:
        """Return all clusters that the newest data knows, by name."""
        return self.remember(("clusters",), None, self._clusters)

    def _clusters(self) -> list[str]:
        as_of = self.as_of().time_ns
        window = EVERYTHING if as_of is None else (as_of - 365 * 86_400 * 10**9, as_of)
        for table in ROLLUPS:
            recent = [max({_date(path) for path in self.engine.listing(table)}, default="")]
            self.engine.load(table, _day_window(recent[0]) if recent[0] else window)
        self.engine.load("runs")
        rows = self.ask(
            "SELECT DISTINCT cluster FROM cluster_rollup UNION SELECT DISTINCT cluster FROM run_rollup "
            "UNION SELECT DISTINCT cluster FROM runs ORDER BY 1"
        )
        return [row["cluster"] for row in rows]

    def run_key(self, view: View) -> RunKey | None:
        """Return the attempt that a view shows: the one it names, else the newest that has files."""
        if not view.run or not view.cluster:
            return None
        if view.attempt is not None:
            return RunKey(view.cluster, view.run, view.attempt)
        return RunKey(view.cluster, view.run, max(self.attempts(view), default=0))

    def attempts(self, view: View) -> list[int]:
        """Return the attempts of a run that have files."""
        if not view.run or not view.cluster:
            return []
        return self.remember(("attempts",), view, lambda: self._attempts(view.cluster or "", view.run or ""))

    def _attempts(self, cluster: str, run: str) -> list[int]:
        self.engine.load("runs")
        rows = self.ask(
            "SELECT DISTINCT attempt FROM runs WHERE cluster = ? AND run = ? ORDER BY 1",
            [slug(cluster), slug(run)],
        )
        return [row["attempt"] for row in rows]


def remembered(ask: Callable[..., T]) -> Callable[..., T]:
    """Keep the answers of a question of (source, view, …) while no file has changed; nobody may modify them."""

    @functools.wraps(ask)
    def answer(source: Source, view: View, **more: Any) -> T:
        name = (ask.__module__, ask.__qualname__, *sorted(more.items()))
        return source.remember(name, view.change(live=True), lambda: ask(source, view, **more))

    return answer


def ratio(part: float | None, whole: float | None) -> float | None:
    """Divide; unknown where either is unknown or the whole is nothing."""
    return part / whole if part is not None and whole else None


def column(table: pa.Table, name: str) -> Any:
    """Return a column as numpy, nulls as NaN where the type is a number."""
    return table[name].to_numpy(zero_copy_only=False)


def _date(path: str) -> str:
    return path.split("date=", 1)[-1].split("/", 1)[0] if "date=" in path else ""


def _day_window(date: str) -> tuple[int, int]:
    view = View(since=date, until=date)
    start, end = view.window_ns(None) or EVERYTHING
    return start, end - 1
