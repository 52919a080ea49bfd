"""What could be different: each change turns one set of durations into another.

    parse_change("healthy", "5") · ("network", "2x") · ("family", "gemm=1.2x") · ("no-data-wait", "") …
    change.apply(model, lags, about) -> Lags

Changes can follow each other, so a combination is a list of them. A change that cannot be told from this trace raises
`NotTold` with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from perfkit.analysis.classify import FAMILIES
from perfkit.analysis.intervals import Ints
from perfkit.analysis.rank_lists import rank_ranges
from perfkit.analysis.replay.graph import NEVER
from perfkit.analysis.replay.healthy import like_peers
from perfkit.analysis.replay.host import RETURNS_NS
from perfkit.analysis.replay.model import Lags, Model
from perfkit.analysis.replay.record import HOPS
from perfkit.analysis.replay.tasks import COMM, COMPUTE
from perfkit.errors import UsageError

KINDS = {
    "healthy": "ranks work like the median of their peers",
    "network": "data moves faster",
    "no-host-gaps": "the host launches without delay",
    "no-data-wait": "data is there when it is asked for",
    "overlap": "compute never waits for a collective",
    "balance": "all pipeline stages have equally much to compute",
    "family": "kernels of a family are faster",
}
"""Changes and what they mean."""


class NotTold(Exception):
    """This trace cannot answer the question; says why."""


@dataclass(frozen=True)
class About:
    """What is known about the ranks."""

    role_of: Mapping[int, str | None] = field(default_factory=dict)
    stage_of: Mapping[int, int] = field(default_factory=dict)
    """Pipeline stage of every rank; empty without a pipeline."""


@dataclass(frozen=True)
class Change:
    """One change."""

    kind: str
    ranks: tuple[int, ...] | None = None
    """Of `healthy`; None is all."""
    factor: float = np.inf
    """Of `network` and `family`: so many times faster."""
    family: str | None = None

    @property
    def text(self) -> str:
        """Say it in a few words."""
        faster = "infinitely fast" if np.isinf(self.factor) else f"{self.factor:g}x faster"
        if self.kind == "healthy":
            who = "all ranks" if self.ranks is None else f"rank {', '.join(map(str, self.ranks))}"
            return f"{who} like {'their' if self.ranks is None or len(self.ranks) > 1 else 'its'} peers"
        return {
            "network": f"network {faster}", "no-host-gaps": "no host gaps", "no-data-wait": "no wait for data",
            "overlap": "perfect overlap", "balance": "balanced stages", "family": f"{self.family} kernels {faster}",
        }[self.kind]  # fmt: skip

    def apply(self, model: Model, lags: Lags, about: About) -> Lags:
        """Return the durations after the change."""
        changed: Lags = getattr(self, f"_{self.kind.replace('-', '_')}")(model, lags, about)
        return changed

    def _healthy(self, model: Model, lags: Lags, about: About) -> Lags:
        traced = {record.rank for record in model.tasks.records}
        ranks = traced if self.ranks is None else set(self.ranks)
        if missing := sorted(ranks - traced):
            raise UsageError(f"no trace of rank {missing[0]}", next_step="name a rank that was traced")
        if len(traced) < 2:
            raise NotTold("one rank is traced: there are no peers to compare it with")
        changed, without = like_peers(model, lags, sorted(ranks), about.role_of)
        if without and len(without) == len(ranks):
            raise NotTold(f"rank {without[0]} has no traced peer with the same role")
        return changed

    def _network(self, model: Model, lags: Lags, about: About) -> Lags:
        comm = (model.tasks.kind == COMM).copy()
        if not comm.any():
            raise NotTold("there is no communication in this trace")
        moving = np.maximum(lags.transfer, 0)
        comm[model.exchanges.shared] = False  # the transfer counts there
        return replace(
            lags, transfer=lags.transfer - moving + _faster(moving, self.factor),
            task=np.where(comm, _faster(lags.task, self.factor), lags.task),
        )  # fmt: skip

    def _no_host_gaps(self, model: Model, lags: Lags, about: About) -> Lags:
        hop = lags.hop.copy()
        hop[:, HOPS.index("other")] = 0
        return replace(lags, hop=hop, call=np.zeros_like(lags.call), after=np.minimum(lags.after, RETURNS_NS))

    def _no_data_wait(self, model: Model, lags: Lags, about: About) -> Lags:
        hop = lags.hop.copy()
        hop[:, HOPS.index("data")] = 0
        return replace(lags, hop=hop)

    def _overlap(self, model: Model, lags: Lags, about: About) -> Lags:
        tasks, deps = model.tasks, model.deps
        hidden = (tasks.kind == COMM) & ~model.exchanges.message
        if not hidden.any():
            raise NotTold("there are no collectives in this trace")
        free = hidden[deps.source] & (tasks.kind[deps.target] != COMM)
        inline = hidden & tasks.main  # on the stream that computes: it stands in the way by its length
        own = inline[model.exchanges.shared]
        return replace(
            lags, dep=np.where(free, NEVER, lags.dep), task=np.where(inline, 0, lags.task),
            transfer=np.where(own, 0, lags.transfer),
        )  # fmt: skip

    def _balance(self, model: Model, lags: Lags, about: About) -> Lags:
        stages = sorted(set(about.stage_of.values()))
        if len(stages) < 2:
            raise NotTold("the job has no pipeline stages, or only one of them is traced")
        tasks = model.tasks
        stage = np.array([about.stage_of.get(record.rank, -1) for record in tasks.records], np.int64)
        compute = (tasks.kind == COMPUTE) & (tasks.step >= 0)
        of_lane = np.bincount(tasks.lane[compute], lags.task[compute], len(tasks.records))
        mean = {one: float(of_lane[stage == one].mean()) for one in stages}
        even = float(np.mean(list(mean.values())))
        factor = np.array([even / mean[s] if mean.get(s) else 1.0 for s in stage.tolist()])
        scaled = np.rint(lags.task * factor[tasks.lane]).astype(np.int64)
        return replace(lags, task=np.where(compute, scaled, lags.task))

    def _family(self, model: Model, lags: Lags, about: About) -> Lags:
        assert self.family is not None
        mine = model.tasks.family == FAMILIES.index(self.family)
        if not mine.any():
            raise NotTold(f"there are no {self.family} kernels in this trace")
        return replace(lags, task=np.where(mine, _faster(lags.task, self.factor), lags.task))


def _faster(time: Ints, factor: float) -> Ints:
    result: Ints = np.zeros_like(time) if np.isinf(factor) else np.rint(time / factor).astype(np.int64)
    return result


def parse_change(kind: str, text: str = "") -> Change:
    """Read one change as the command line writes it."""
    if kind == "healthy":
        return Change(kind, _ranks(text))
    if kind == "network":
        return Change(kind, factor=_factor(text, "--network"))
    if kind == "family":
        family, _, factor = text.partition("=")
        if not factor:
            raise UsageError(f"--family {text!r} names no factor", next_step="write gemm=1.2x")
        if family not in FAMILIES:
            known = ", ".join(FAMILIES)
            raise UsageError(f"--family {text!r}: {family!r} is no family", next_step=f"use one of {known}")
        return Change(kind, family=family, factor=_factor(factor, "--family"))
    if kind not in KINDS:
        raise UsageError(f"unknown change {kind!r}", next_step=f"use one of {', '.join(KINDS)}")
    return Change(kind)


def _ranks(text: str) -> tuple[int, ...] | None:
    if text == "all":
        return None
    ranges = rank_ranges(text, option="--healthy", form="5, 0,4-7 or all")
    return tuple(sorted({rank for some in ranges for rank in some}))


def _factor(text: str, option: str) -> float:
    if text.lower() in ("inf", "infinite"):
        return np.inf
    match = re.fullmatch(r"(\d+(?:\.\d+)?)x?", text)
    if not match or float(match[1]) <= 0:
        raise UsageError(f"{option} {text!r} is no factor", next_step="write 2x, 1.2x or inf")
    return float(match[1])


def combined(changes: Sequence[Change]) -> str:
    """Name a list of changes."""
    return " + ".join(change.text for change in changes) or "as measured"
