"""The fleet's weak nodes, from the store: lemons, GPUs that run hot or throttle, XIDs that come back.

    check_fleet(job_nodes, gpu_rollup, health_events) -> list of FleetFinding, the worst first
    slowed_steps(health_events, steps, ranks_of_host) -> steps that an event slowed

Every finding names its evidence, and none takes a node out: that is for people to decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.slow import slow_limit
from perfkit.goodput.health_node import HARMLESS_XIDS
from perfkit.goodput.lemons import find_lemons
from perfkit.report.format import plural

MIN_XIDS = 2
XIDS_WITHIN_NS = 30 * 24 * 3600 * 10**9
"""So close together XIDs of one GPU are repeated; over a year every healthy node has a few."""
MIN_THERMAL_SHARE = 0.01
HOT_BY_CELSIUS = 8.0
HOT_BY_SPREADS = 4.0


@dataclass(frozen=True, kw_only=True)
class FleetFinding:
    """Something about one node that stands out."""

    cluster: str
    node: str
    kind: str
    severity: str
    detail: str
    device: int | None = None
    evidence: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return the finding as a JSON object."""
        return asdict(self)


def check_fleet(job_nodes: pa.Table, gpu_rollup: pa.Table, health_events: pa.Table) -> list[FleetFinding]:
    """Return what stands out, faults before warnings."""
    found = [
        *_lemons(job_nodes),
        *_repeated_xids(health_events),
        *_throttled(gpu_rollup),
        *_hot(gpu_rollup),
    ]
    return sorted(found, key=lambda f: (f.severity != "fault", f.cluster, f.node, f.kind))


def _lemons(job_nodes: pa.Table) -> Iterator[FleetFinding]:
    for row in find_lemons(job_nodes).to_pylist():
        if row["kind"] == "slow":
            detail = (
                f"slow in {row['bad']} of its last {row['of']} runs (chance alone: {row['expected']:.2g}),"
                f" {row['slowdown'] - 1:.0%} slower than its peers"
            )
        else:
            detail = f"blamed for interruptions on {plural(row['bad'], 'day')} (chance alone: {row['expected']:.2g})"
        yield FleetFinding(
            cluster=row["cluster"],
            node=row["node"],
            kind=f"lemon, {row['kind']}",
            severity="fault",
            detail=detail,
            evidence={"p_value": row["p_value"], "runs": row["runs"]},
        )


def _repeated_xids(events: pa.Table) -> Iterator[FleetFinding]:
    xids = events.filter(pc.equal(events["kind"], "xid"))
    boards: dict[tuple[str, str, int | None], list[tuple[int, int | None, int]]] = {}
    for row in xids.sort_by("time_ns").select(["cluster", "node", "device", "code", "time_ns"]).to_pylist():
        if row["code"] is not None and row["code"] not in HARMLESS_XIDS:
            board = row["cluster"], row["node"], row["device"]
            boards.setdefault(board, []).append((row["code"], row["device"], row["time_ns"]))
    counted: dict[tuple[str, str], list[tuple[int, int | None, int]]] = {}
    for (cluster, node, _), seen in boards.items():
        near = [seen[i + MIN_XIDS - 1][2] - seen[i][2] for i in range(len(seen) - MIN_XIDS + 1)]
        if near and min(near) <= XIDS_WITHIN_NS:
            counted.setdefault((cluster, node), []).extend(seen)
    for (cluster, node), seen in counted.items():
        codes = Counter(code for code, _, _ in seen)
        devices = sorted({device for _, device, _ in seen if device is not None})
        where = f" on GPU {', '.join(map(str, devices))}" if devices else ""
        yield FleetFinding(
            cluster=cluster,
            node=node,
            kind="repeated XIDs",
            severity="fault",
            detail=", ".join(f"{times} × XID {code}" for code, times in codes.most_common()) + where,
            evidence={"codes": dict(codes), "devices": devices, "last_ns": max(time_ns for _, _, time_ns in seen)},
        )


def _per_gpu(gpu_rollup: pa.Table, *columns: str) -> pa.Table:
    """Sum columns per GPU over all days."""
    one = gpu_rollup.unify_dictionaries()  # each file has its own, and Arrow groups only by a common one
    return one.group_by(["cluster", "node", "device"]).aggregate([(column, "sum") for column in columns])


def _throttled(gpu_rollup: pa.Table) -> Iterator[FleetFinding]:
    for row in _per_gpu(gpu_rollup, "throttle_thermal_ns", "allocated_ns").to_pylist():
        lost, held = row["throttle_thermal_ns_sum"], row["allocated_ns_sum"]
        if lost and held and lost / held > MIN_THERMAL_SHARE:
            yield FleetFinding(
                cluster=row["cluster"],
                node=row["node"],
                kind="thermal throttling",
                severity="warning",
                detail=f"{lost / held:.1%} of its time lost to heat or hardware slowdown",
                device=row["device"],
                evidence={"lost_ns": lost, "allocated_ns": held},
            )


def _hot(gpu_rollup: pa.Table) -> Iterator[FleetFinding]:
    """Yield GPUs whose median daily temperature stands out among those of the same cluster and kind."""
    known = gpu_rollup.filter(pc.is_valid(gpu_rollup["temp_mean_celsius"]))
    if not known.num_rows:
        return
    days = (
        known.unify_dictionaries()
        .group_by(["cluster", "name", "node", "device"])
        .aggregate([("temp_mean_celsius", "mean")])
    )
    groups: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for row in days.to_pylist():
        groups.setdefault((row["cluster"], row["name"]), []).append(row)
    for (cluster, _), rows in groups.items():
        heat = np.array([row["temp_mean_celsius_mean"] for row in rows])
        usual = float(np.median(heat))
        spread = 1.4826 * float(np.median(np.abs(heat - usual)))
        limit = usual + max(HOT_BY_CELSIUS, HOT_BY_SPREADS * spread)
        for row, celsius in zip(rows, heat.tolist(), strict=True):
            if celsius > limit and len(rows) >= 8:
                yield FleetFinding(
                    cluster=cluster,
                    node=row["node"],
                    kind="hot GPU",
                    severity="warning",
                    detail=f"{celsius:.0f} °C on average, its peers {usual:.0f} °C",
                    device=row["device"],
                    evidence={"celsius": celsius, "peers_celsius": usual, "peers": len(rows)},
                )


def slowed_steps(health_events: pa.Table, steps: pa.Table, ranks_of_host: Mapping[str, set[int]]) -> pa.Table:
    """Return the steps of a run that were slow while something happened on one of their hosts.

    An event lasts from time_ns to end_ns (an instant if null) and touches the steps of that host's ranks that overlap
    it. Only slow steps of the rank are listed (definition 19), with what they cost beyond its median; `event` is the
    row of the event.
    """
    rank, start, end = (np.asarray(steps[name].to_numpy(), np.int64) for name in ("rank", "start_ns", "end_ns"))
    number = np.asarray(steps["step"].to_numpy(), np.int64)
    took = end - start
    median, limit = _usual(rank, took)
    slow = np.flatnonzero(took > limit)
    parts: list[tuple[int, Any]] = []
    for place, event in enumerate(health_events.select(["node", "time_ns", "end_ns"]).to_pylist()):
        if ranks := ranks_of_host.get(event["node"]):
            until = event["end_ns"] if event["end_ns"] is not None else event["time_ns"]
            touched = slow[(start[slow] <= until) & (end[slow] >= event["time_ns"])]
            parts.append((place, touched[np.isin(rank[touched], list(ranks))]))
    which = np.concatenate([at for _, at in parts]) if parts else np.zeros(0, np.int64)
    event_row = np.repeat([place for place, _ in parts], [len(at) for _, at in parts]).astype(np.int64)
    told = health_events.select(["node", "kind", "code", "time_ns"]).take(pa.array(event_row))
    plain = {name: told[name].cast(pa.utf8()) for name in ("node", "kind")}
    return pa.table(
        {
            "event": event_row, **plain, "code": told["code"], "time_ns": told["time_ns"],
            "rank": pa.array(rank[which], pa.int32()), "step": number[which],
            "excess_ns": np.round(took[which] - median[which]).astype(np.int64),
        }
    )  # fmt: skip


def _usual(rank: Any, took: Any) -> tuple[Any, Any]:
    """Return, for each step, the median of its rank and the time above which a step is slow."""
    median, limit = np.zeros(len(took)), np.zeros(len(took))
    order = np.argsort(rank, kind="stable")
    edges = np.flatnonzero(np.diff(rank[order], prepend=-1, append=-1))
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        mine = order[low:high]
        median[mine], limit[mine] = float(np.median(took[mine])), slow_limit(took[mine])
    return median, limit
