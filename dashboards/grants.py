"""Which clusters and runs somebody may see, as one condition that every question to the data passes.

    scope = Scope.of(["prod-a", "prod-b/nlp-*"])     a cluster, or the runs of a project in one
    scope.sees("prod-b", "nlp-7")                    -> True
    scope.condition(("cluster", "run"))              -> SQL over a table that has these columns

`*` stands for any text. A grant of some runs shows these runs and nothing of the cluster itself: a table without a run
column is for who may see the whole cluster. Names are compared as they stand in the paths of the store.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from perfkit.errors import UsageError
from perfkit.store.layout import slug

WHOLE_CLUSTER = "*"
_PATTERN = re.compile(r"[A-Za-z0-9*][A-Za-z0-9*._+-]*")


@dataclass(frozen=True)
class Grant:
    """Runs of clusters, by patterns."""

    cluster: str
    runs: str = WHOLE_CLUSTER

    @classmethod
    def read(cls, text: str) -> Grant:
        """Read `cluster` or `cluster/run`."""
        cluster, slash, runs = text.partition("/")
        if not cluster or (slash and not runs):
            raise UsageError(f"{text!r} grants nothing", next_step='write "cluster", "cluster/run-*" or "*"')
        return cls(_name(cluster, text), _name(runs, text) if slash else WHOLE_CLUSTER)


def _name(name: str, text: str) -> str:
    if "*" in name and not _PATTERN.fullmatch(name):
        raise UsageError(f"{text!r}: beside * a name has letters, digits and ._+-", next_step="name it in full")
    return name


@dataclass(frozen=True)
class Scope:
    """What one or several grants show; None is everything."""

    grants: tuple[Grant, ...] | None = None

    @classmethod
    def of(cls, texts: Iterable[str]) -> Scope:
        """Read grants; `*` alone is everything, none is nothing."""
        grants = tuple(sorted({Grant.read(text) for text in texts}, key=lambda grant: (grant.cluster, grant.runs)))
        return cls(None if Grant("*") in grants else grants)

    @cached_property
    def name(self) -> str:
        """Short text that differs between scopes: schemas and caches are named by it."""
        return "all" if self.grants is None else hashlib.blake2b(repr(self.grants).encode(), digest_size=6).hexdigest()

    def sees(self, cluster: str | None, run: str | None = None) -> bool:
        """Whether a run may be seen, or without one the cluster as a whole."""
        if self.grants is None:
            return True
        if not cluster or (run is not None and not run):
            return False
        if run is None:
            return any(grant.runs == WHOLE_CLUSTER and _matches(grant.cluster, cluster) for grant in self.grants)
        return any(_matches(grant.cluster, cluster) and _matches(grant.runs, run) for grant in self.grants)

    def condition(self, columns: Collection[str]) -> str:
        """Return SQL that is true for rows that may be seen."""
        if self.grants is None:
            return "true"
        if "cluster" not in columns:
            return "false"
        parts = []
        for grant in self.grants:
            one = _sql("cluster", grant.cluster)
            if grant.runs != WHOLE_CLUSTER:
                if "run" not in columns:
                    continue
                one = f"({one} AND {_sql('run', grant.runs)})"
            parts.append(one)
        return " OR ".join(parts) or "false"


def _matches(pattern: str, name: str) -> bool:
    held = slug(name)
    return bool(_regex(pattern).fullmatch(held)) if "*" in pattern else held == slug(pattern)


def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in pattern.split("*")), re.DOTALL)


def _sql(column: str, pattern: str) -> str:
    """Compare a column: fleet tables hold names, run tables what paths hold."""
    if "*" not in pattern:
        return f'"{column}" IN ({_text(pattern)}, {_text(slug(pattern))})'
    return f"\"{column}\" LIKE '{pattern.replace('_', '!_').replace('*', '%')}' ESCAPE '!'"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
