"""Let ranks work like their peers: kernels as long, and the host as fast, as on the median rank of the same role.

    like_peers(model, lags, ranks, role_of) -> (Lags, ranks without a peer)

Where a rank and its peers run the same program in a step, every kernel takes the median of the kernels at its place,
and so does the host time before every launch. Where the programs differ, as with another sequence length, a family's
time in the step is scaled to the median of the peers, and the host's time too if it is longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from perfkit.analysis.classify import FAMILIES
from perfkit.analysis.intervals import Ints
from perfkit.analysis.replay.deps import LaunchOrder, Places
from perfkit.analysis.replay.model import Lags, Model
from perfkit.analysis.replay.tasks import COMM, Tasks


def like_peers(
    model: Model, lags: Lags, ranks: Sequence[int], role_of: Mapping[int, str | None]
) -> tuple[Lags, list[int]]:
    """Return the durations with the ranks made like their peers."""
    tasks = model.tasks
    place = Places(tasks, LaunchOrder(tasks))
    lane_of_cell = tasks.lane[place.rows[place.first[:-1]]]
    step_of_cell = tasks.step[place.rows[place.first[:-1]]]
    rank_of = np.array([record.rank for record in tasks.records])
    role = [role_of.get(int(rank)) for rank in rank_of]
    chosen = set(ranks)
    changed = replace(lags, task=lags.task.copy(), hop=lags.hop.copy(), call=lags.call.copy())
    without: list[int] = []
    for rank in ranks:
        cells = np.flatnonzero(rank_of[lane_of_cell] == rank)
        alike = np.array([role[lane] == role[int(np.flatnonzero(rank_of == rank)[0])] for lane in range(len(role))])
        others = np.flatnonzero(alike[lane_of_cell] & (rank_of[lane_of_cell] != rank))
        healthy = others[~np.isin(rank_of[lane_of_cell[others]], list(chosen))] if len(chosen) < alike.sum() else others
        others = healthy if len(healthy) else others
        if not len(others):
            without.append(rank)
        for cell in cells.tolist():
            peers = others[step_of_cell[others] == step_of_cell[cell]]
            same = peers[place.sign[peers] == place.sign[cell]]
            if len(same):
                _by_place(tasks, lags, changed, place, cell, same)
            elif len(peers):
                _by_family(tasks, lags, changed, place, cell, peers)
    return changed, without


def _tasks_of(place: Places, cell: int) -> Ints:
    result: Ints = place.rows[place.first[cell] : place.first[cell + 1]]
    return result


def _by_place(tasks: Tasks, lags: Lags, changed: Lags, place: Places, cell: int, peers: Ints) -> None:
    """Take the median of the peers at every place."""
    mine = _tasks_of(place, cell)
    theirs = np.stack([_tasks_of(place, peer) for peer in peers.tolist()])
    own = tasks.kind[mine] != COMM
    changed.task[mine[own]] = np.median(lags.task[theirs], axis=0).astype(np.int64)[own]
    calls, first = np.unique(tasks.call[mine], return_index=True)
    first = first[calls >= 0]
    calls, peer_calls = tasks.call[mine[first]], tasks.call[theirs[:, first]]
    changed.hop[calls] = np.median(lags.hop[peer_calls], axis=0).astype(np.int64)
    changed.call[calls] = np.median(lags.call[peer_calls], axis=0).astype(np.int64)


def _by_family(tasks: Tasks, lags: Lags, changed: Lags, place: Places, cell: int, peers: Ints) -> None:
    """Scale the time of every family, and of the host, to the median of the peers."""
    mine = _tasks_of(place, cell)
    sums = np.array([_family_sums(tasks, lags, _tasks_of(place, peer)) for peer in peers.tolist()])
    own, usual = _family_sums(tasks, lags, mine), np.median(sums, axis=0)
    factor = np.where((own > 0) & (usual > 0), usual / np.maximum(own, 1), 1.0)
    family = tasks.family[mine]
    compute = family >= 0
    changed.task[mine[compute]] = np.rint(lags.task[mine[compute]] * factor[family[compute]]).astype(np.int64)
    calls = np.unique(tasks.call[mine])
    calls = calls[calls >= 0]
    spent = [lags.hop[np.unique(tasks.call[_tasks_of(place, peer)])].sum(axis=0) for peer in peers.tolist()]
    total, typical = lags.hop[calls].sum(axis=0), np.median(spent, axis=0)
    share = np.where(total > typical, typical / np.maximum(total, 1), 1.0)
    changed.hop[calls] = np.rint(lags.hop[calls] * share).astype(np.int64)


def _family_sums(tasks: Tasks, lags: Lags, rows: Ints) -> Ints:
    compute = rows[tasks.family[rows] >= 0]
    sums = np.bincount(tasks.family[compute], lags.task[compute], len(FAMILIES))
    result: Ints = sums.astype(np.int64)
    return result
