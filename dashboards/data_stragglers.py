"""Who is slow, why, and what it costs (definition 16), from the stored analysis.

    stragglers(source, view) -> rows, slowest first: score, share of steps below the limit, cause, wait caused

A rank is compared with those of its role, step by step: score = Σ median of the peers / Σ own. The wait that others
spent on it is what the analysis charged to it in matched collectives; null where clocks did not allow blame.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc

from perfkit.analysis.axes import BATCH_AXES
from perfkit.store.layout import RunKey

from .data import Rows, Source, remembered
from .data_ranks import Cube, host_late, own_work, place
from .data_run import analysed
from .view import View

FLAG_BELOW, PERSISTENT = 0.90, 0.5


@remembered
def stragglers(source: Source, view: View, count: int = 12) -> Rows:
    """Return the slowest ranks against their peers: score, share of steps, cause and cost."""
    key = source.run_key(view)
    whole = view.change(first=None, last=None)
    found = own_work(source, key, whole) if key else None
    if key is None or found is None or len(found.ranks) < 2:
        return []
    at, labels = place(source, key, found.ranks)
    role = _roles(at, len(found.ranks))
    own = found.values
    score, persistent, excess = np.full(len(own), np.nan), np.full(len(own), np.nan), np.full(len(own), np.nan)
    for one in np.unique(role):
        mine = np.flatnonzero(role == one)
        if len(mine) < 2:
            continue
        median = np.nanmedian(own[mine], axis=0)
        with np.errstate(all="ignore"):
            each = median[None, :] / own[mine]
            score[mine] = np.nansum(np.broadcast_to(median, own[mine].shape), axis=1) / np.nansum(own[mine], axis=1)
        persistent[mine] = np.nanmean(each < FLAG_BELOW, axis=1)
        excess[mine] = np.nanmean(own[mine] - median[None, :], axis=1)
    caused = _wait_caused(source, key)
    hosts = {commit.rank: commit.host for commit in source.engine.commits(key)[0]}
    late = host_late(source, key, whole)
    worst = [int(i) for i in np.argsort(np.where(np.isfinite(score), score, np.inf), kind="stable")[:count]]
    rows = []
    for i in worst:
        if not np.isfinite(score[i]):
            continue
        rank = int(found.ranks[i])
        rows.append(
            {
                "rank": rank,
                "label": labels[i],
                "host": hosts.get(rank),
                "score": float(score[i]),
                "persistence": float(persistent[i]),
                "flagged": bool(score[i] < FLAG_BELOW and persistent[i] > PERSISTENT),
                "own_ms": float(np.nanmean(own[i])) / 1e6,
                "excess_ms": float(excess[i]) / 1e6,
                "wait_caused_ns": caused.get(rank),
                "cause": _cause(i, role, late, found, excess[i]),
            }
        )
    return rows


def _roles(at: dict[str, Any], size: int) -> Any:
    outer = [values for name, values in at.items() if name not in BATCH_AXES]
    role = np.zeros(size, np.int64)
    for values in outer:
        role = role * (int(values.max()) + 1) + values
    return role


def _cause(i: int, role: Any, late: Cube | None, own: Cube, excess: float) -> str:
    """Say which part of own work holds most of the excess over the peers."""
    if not excess > 0:
        return "none"
    if late is not None and own.ranks[i] in late.ranks:
        mine = np.flatnonzero(role == role[i])
        rows = np.searchsorted(late.ranks, own.ranks[mine])
        means = np.nanmean(late.values[np.minimum(rows, len(late.ranks) - 1)], axis=1)
        more = np.nanmean(late.values[np.searchsorted(late.ranks, own.ranks[i])]) - np.nanmedian(means)
        if more > excess / 2:
            return "its host is late"
    return "its compute takes longer"


def _wait_caused(source: Source, key: RunKey) -> dict[int, int]:
    """Return the exposed wait that is charged to each rank; empty where collectives were not matched."""
    rows = analysed(source, key, "collectives", columns=["caused_by", "exposed_wait_ns"])
    if rows is None or rows["caused_by"].null_count == len(rows):
        return {}
    sums = (
        rows.filter(pc.is_valid(rows["caused_by"]))
        .group_by("caused_by")
        .aggregate([("exposed_wait_ns", "sum")])
        .to_pydict()
    )
    return dict(zip(sums["caused_by"], sums["exposed_wait_ns_sum"], strict=True))
