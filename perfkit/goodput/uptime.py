"""Uptime of a cluster from its inventory (definition 18).

    cluster_hours(nodes, run_rollup, end_ns=…) -> cluster_rollup

`nodes` says for each node since when it is in which state. Time of which it says nothing (a gap between two rows,
a state that perfkit does not know) is `unknown` from the node's first row to the last row of its cluster, and counts
neither as up nor as down. Where two rows of one node overlap, the later one wins from its start on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.intervals import Ints
from perfkit.goodput.rollup import HOUR_NS, exact_sum
from perfkit.schema import CLUSTER_ROLLUP, conform

STATES = ("up", "down", "drained", "unhealthy", "unknown")


def cluster_hours(
    nodes: pa.Table,
    run_rollup: pa.Table | None = None,
    *,
    end_ns: int | None = None,
    interval_ns: int = HOUR_NS,
    synthetic: bool | None = None,
) -> pa.Table:
    """Return GPU-time by state for each cluster and interval; `end_ns` closes rows that are still open."""
    parts = []
    for cluster in pc.unique(nodes["cluster"]).to_pylist():
        mine = nodes.filter(pc.equal(nodes["cluster"], cluster))
        rows = _one_cluster(mine, end_ns, interval_ns)
        if not rows:  # a snapshot: no time has passed
            continue
        rows |= _allocated(rows, run_rollup, cluster, interval_ns)
        size = len(rows["start_ns"])
        devices = [d for d in pc.unique(mine["device"]).to_pylist() if d]
        rows |= {
            "cluster": [cluster] * size,
            "device": pa.array([devices[0] if len(devices) == 1 else None] * size, pa.utf8()),
            "synthetic": pa.array([synthetic] * size, pa.bool_()),
        }
        parts.append(conform(CLUSTER_ROLLUP, pa.table(rows)))
    return pa.concat_tables(parts).unify_dictionaries() if parts else CLUSTER_ROLLUP.empty()


def uptime(rollup: pa.Table) -> float | None:
    """Up over installed time, both without the unknown; null if nothing is known."""
    installed, up, unknown = (exact_sum(rollup[f"{n}_ns"]) for n in ("installed", "up", "unknown"))
    return up / (installed - unknown) if installed > unknown else None


def _one_cluster(nodes: pa.Table, end_ns: int | None, interval_ns: int) -> dict[str, Any]:
    names = np.unique(np.array(nodes["node"].to_pylist(), str), return_inverse=True)[1]
    order = np.lexsort((np.asarray(nodes["start_ns"].to_numpy()), names))
    table, node = nodes.take(pa.array(order)), names[order]
    start = np.asarray(table["start_ns"].to_numpy(), np.int64)
    last = int(max(pc.max(table["start_ns"]).as_py(), pc.max(table["end_ns"]).as_py() or 0, end_ns or 0))
    end = np.asarray(pc.fill_null(table["end_ns"], last).to_numpy(), np.int64)
    gpus = np.asarray(pc.fill_null(table["gpus"], 0).to_numpy(), np.int64)
    state = np.array([STATES.index(s) if s in STATES else 4 for s in table["state"].to_pylist()], np.int64)
    following = np.r_[start[1:], last]
    same = np.r_[node[1:] == node[:-1], False]
    end = np.where(same, np.minimum(end, following), end)
    gap_from, gap_to = end, np.where(same, following, last)
    gap = gap_to > gap_from
    start, end = np.r_[start, gap_from[gap]], np.r_[end, gap_to[gap]]
    gpus, state = np.r_[gpus, gpus[gap]], np.r_[state, np.full(int(gap.sum()), 4)]
    keep = end > start
    if not keep.any():
        return {}
    start, end, gpus, state = start[keep], end[keep], gpus[keep], state[keep]
    rows = _hours(start, end, gpus, state, interval_ns)
    return rows | {"nodes": _level(start, end, np.ones_like(start), rows["end_ns"] - 1)}


def _hours(start: Ints, end: Ints, gpus: Ints, state: Ints, interval_ns: int) -> dict[str, Any]:
    """Integrate GPUs by state over each interval: a sweep over all edges, exact."""
    edges = _grid(start, end, interval_ns)
    cuts = np.unique(np.r_[edges, start, end])
    length = np.diff(cuts)
    row = np.searchsorted(edges, cuts[:-1], side="right") - 1
    columns: dict[str, Any] = {"start_ns": edges[:-1], "end_ns": edges[1:]}
    columns["start_ns"] = np.maximum(columns["start_ns"], start.min())
    columns["end_ns"] = np.minimum(columns["end_ns"], end.max())
    total = np.zeros(len(edges) - 1, np.int64)
    for code, name in enumerate(STATES):
        mine = state == code
        held = _level(start[mine], end[mine], gpus[mine], cuts[:-1])
        amount = np.zeros(len(edges) - 1, np.int64)
        np.add.at(amount, row, held * length)
        columns[f"{name}_ns"] = amount
        total += amount
    columns["installed_ns"] = total
    at = columns["end_ns"] - 1
    columns["gpus"] = _level(start, end, gpus, at)
    bad = (state > 0) & (state < 4)
    columns["gpus_down"] = _level(start[bad], end[bad], gpus[bad], at)
    return columns


def _grid(start: Ints, end: Ints, interval_ns: int) -> Ints:
    return (
        np.arange(int(start.min()) // interval_ns, -(-int(end.max()) // interval_ns) + 1, dtype=np.int64) * interval_ns
    )


def _level(start: Ints, end: Ints, weight: Ints, at: Ints) -> Ints:
    """Sum of the weights of the intervals that cover each instant."""
    opened, closed = np.argsort(start, kind="stable"), np.argsort(end, kind="stable")
    up = np.r_[0, np.cumsum(weight[opened])][np.searchsorted(start[opened], at, side="right")]
    down = np.r_[0, np.cumsum(weight[closed])][np.searchsorted(end[closed], at, side="right")]
    return np.asarray(up - down, np.int64)


def _allocated(rows: dict[str, Any], rollup: pa.Table | None, cluster: str, interval_ns: int) -> dict[str, Any]:
    if rollup is None:
        return {}
    mine = rollup.filter(pc.equal(rollup["cluster"], cluster))
    hour = np.asarray(mine["start_ns"].to_numpy(), np.int64) // interval_ns
    amount = np.asarray(pc.fill_null(mine["allocated_ns"], 0).to_numpy(), np.int64)
    mine_hour = np.asarray(rows["start_ns"], np.int64) // interval_ns
    total = np.zeros(len(mine_hour), np.int64)
    at = hour - mine_hour[0]
    inside = (at >= 0) & (at < len(total))
    np.add.at(total, at[inside], amount[inside])
    return {"allocated_ns": total, "idle_ns": np.maximum(rows["up_ns"] - total, 0)}
