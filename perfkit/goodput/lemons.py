"""Nodes that are slow, or break runs, in more of their runs than chance explains.

    find_lemons(job_nodes) -> lemons        (columns: LEMON_COLUMNS; one row per cluster, node and kind)

Unit of evidence is a run on a node, not an attempt: attempts of one run share its placement and its code.
  slow      the median of the node's slowdowns in a run is over a threshold that the fleet's own noise sets;
            k slow runs of n, against the rate of the other nodes (binomial tail)
  failing   days on which a run was interrupted and the node blamed, against the other nodes' rate per node-hour
            (Poisson tail); a day counts once, since one broken part often breaks a run several times

A node that went bad lately must not hide behind a good year: the last 8, 16, 32 runs (7, 30, 90 days) are
tested as well as all of them. P-values carry the number of windows and, by Holm's method, the number of nodes and
kinds, so that the chance of a single false lemon in a healthy cluster is below `alpha`. The rates come from nodes
that are not flagged, found by repetition. Few data give no lemon, and no acquittal either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

ALPHA = 0.01
MIN_SLOWDOWN = 1.03
NOISE_FACTOR = 4.0
MIN_SHARE = 0.3
"""Slow in fewer of its runs than this is no lemon, however sure the statistics are."""
RUN_WINDOWS = (None, 32, 16, 8)
DAY_WINDOWS = (None, 90, 30, 7)
HOUR_NS = 3600 * 10**9
DAY_NS = 24 * HOUR_NS
MAX_ROUNDS = 5

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LEMON_COLUMNS = {
    "cluster": pa.utf8(),
    "node": pa.utf8(),
    "kind": pa.utf8(),
    "bad": pa.int64(),
    "of": pa.int64(),
    "expected": pa.float64(),
    "p_value": pa.float64(),
    "slowdown": pa.float64(),
    "since_ns": pa.int64(),
    "runs": pa.list_(pa.utf8()),
}
"""bad of `of`: slow runs of runs, or bad days of days; expected: how many chance would give; slowdown: median of the
slow runs, null for kind `failing`; since_ns: start of the window that convicted it; runs: the latest evidence."""
MAX_EVIDENCE = 8


@dataclass(frozen=True)
class Suspect:
    """A node in the window in which it looks worst."""

    node: int
    kind: str
    bad: int
    of: int
    expected: float
    p_value: float
    since_ns: int


@dataclass(frozen=True)
class Visits:
    """Runs on nodes of one cluster, sorted by node and time."""

    node: Ints
    run: list[str]
    start_ns: Ints
    hours: Floats
    slowdown: Floats
    """NaN if not measured."""
    blamed: npt.NDArray[np.bool_]


def find_lemons(job_nodes: pa.Table, *, alpha: float = ALPHA) -> pa.Table:
    """Return the lemons of each cluster, the surest first."""
    rows: list[dict[str, object]] = []
    clusters = job_nodes.column("cluster").cast(pa.utf8()).to_pylist()
    for cluster in sorted(set(clusters)):
        part = job_nodes.filter(pa.array([name == cluster for name in clusters], pa.bool_()))
        rows += _lemons_of(cluster, part, alpha)
    rows.sort(key=lambda row: float(str(row["p_value"])))
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in LEMON_COLUMNS.items()})


def _lemons_of(cluster: str, part: pa.Table, alpha: float) -> list[dict[str, object]]:
    names, visits = _visits(part)
    threshold = slow_threshold(visits.slowdown)
    flagged: dict[tuple[int, str], Suspect] = {}
    for _ in range(MAX_ROUNDS):  # the rates of the healthy, without those who are not
        before = set(flagged)
        suspects = [
            *_slow_suspects(visits, threshold, {node for node, kind in flagged if kind == "slow"}),
            *_failing_suspects(visits, {node for node, kind in flagged if kind == "failing"}),
        ]
        flagged = {(s.node, s.kind): s for s in _holm(suspects, 2 * len(names), alpha)}
        if set(flagged) == before:
            break
    return [_row(cluster, names, visits, threshold, suspect) for suspect in flagged.values()]


def slow_threshold(slowdown: Floats) -> float:
    """Return the slowdown that counts as slow: four times the fleet's own spread, at least 3 %."""
    known = slowdown[~np.isnan(slowdown)]
    if not len(known):
        return MIN_SLOWDOWN
    spread = 1.4826 * float(np.median(np.abs(known - np.median(known))))
    return max(MIN_SLOWDOWN, float(np.median(known)) + NOISE_FACTOR * spread)


def _visits(part: pa.Table) -> tuple[list[str], Visits]:
    """Bring attempts together into runs on nodes."""
    names = sorted(set(part.column("node").cast(pa.utf8()).to_pylist()))
    number = {name: place for place, name in enumerate(names)}
    node = np.array([number[name] for name in part.column("node").cast(pa.utf8()).to_pylist()], np.int64)
    run_names = part.column("run").cast(pa.utf8()).to_pylist()
    distinct = list(dict.fromkeys(run_names))
    run_number = {name: place for place, name in enumerate(distinct)}
    run = np.array([run_number[name] for name in run_names], np.int64)
    start = part.column("start_ns").to_numpy()
    end = part.column("end_ns").fill_null(0).to_numpy()
    end = np.where(end == 0, max(start.max(initial=0), end.max(initial=0)), end)
    slowdown = np.array([math.nan if v is None else v for v in part.column("slowdown").to_pylist()], np.float64)
    blamed = part.column("interrupted").fill_null(False).to_numpy(zero_copy_only=False)
    order = np.lexsort((slowdown, run, node))
    node, run, start, end = node[order], run[order], start[order], end[order]
    slowdown, blamed = slowdown[order], blamed[order]
    first = (
        np.flatnonzero(np.r_[True, (node[1:] != node[:-1]) | (run[1:] != run[:-1])]) if len(node) else np.array([], int)
    )
    if not len(first):
        empty = np.array([], np.int64)
        return names, Visits(empty, [], empty, empty.astype(float), empty.astype(float), empty.astype(bool))
    measured = np.add.reduceat((~np.isnan(slowdown)).astype(np.int64), first)  # NaN sorts last in each run
    middle = np.where(measured > 0, slowdown[first + np.maximum(measured - 1, 0) // 2], math.nan)
    visits = Visits(
        node=node[first],
        run=[distinct[place] for place in run[first].tolist()],
        start_ns=np.minimum.reduceat(start, first),
        hours=np.add.reduceat((end - start) / HOUR_NS, first),
        slowdown=middle,
        blamed=np.logical_or.reduceat(blamed, first),
    )
    by_time = np.lexsort((visits.start_ns, visits.node))
    return names, Visits(
        visits.node[by_time],
        [visits.run[place] for place in by_time.tolist()],
        visits.start_ns[by_time],
        visits.hours[by_time],
        visits.slowdown[by_time],
        visits.blamed[by_time],
    )


def _slow_suspects(visits: Visits, threshold: float, known: set[int]) -> Iterator[Suspect]:
    measured = ~np.isnan(visits.slowdown)
    slow = measured & (np.nan_to_num(visits.slowdown) >= threshold)
    healthy = measured & ~np.isin(visits.node, list(known))
    rate = (slow[healthy].sum() + 1) / (healthy.sum() + 2)
    for node, rows in _by_node(visits, measured):
        for window in RUN_WINDOWS:
            if window is not None and window >= len(rows):
                continue
            last = rows if window is None else rows[-window:]
            bad, of = int(slow[last].sum()), len(last)
            if bad >= 2 and bad >= MIN_SHARE * of:
                p = min(1.0, len(RUN_WINDOWS) * binomial_tail(bad, of, float(rate)))
                yield Suspect(node, "slow", bad, of, float(rate) * of, p, int(visits.start_ns[last[0]]))


def _failing_suspects(visits: Visits, known: set[int]) -> Iterator[Suspect]:
    healthy = ~np.isin(visits.node, list(known))
    days = visits.start_ns // DAY_NS
    bad_days = len(
        set(zip(visits.node[healthy & visits.blamed].tolist(), days[healthy & visits.blamed].tolist(), strict=True))
    )
    rate = (bad_days + 1) / (float(visits.hours[healthy].sum()) + 1)
    now = int(visits.start_ns.max(initial=0))
    for node, rows in _by_node(visits, np.ones(len(visits.node), bool)):
        for window in DAY_WINDOWS:
            last = rows if window is None else rows[visits.start_ns[rows] >= now - window * DAY_NS]
            bad = len(set(days[last[visits.blamed[last]]].tolist()))
            if bad >= 2:
                expected = rate * float(visits.hours[last].sum())
                p = min(1.0, len(DAY_WINDOWS) * poisson_tail(bad, expected))
                yield Suspect(
                    node, "failing", bad, len(set(days[last].tolist())), expected, p, int(visits.start_ns[last[0]])
                )


def _by_node(visits: Visits, wanted: npt.NDArray[np.bool_]) -> Iterator[tuple[int, Ints]]:
    rows = np.flatnonzero(wanted)
    if not len(rows):
        return
    nodes = visits.node[rows]
    starts = np.flatnonzero(np.r_[True, nodes[1:] != nodes[:-1]])
    for part in np.split(rows, starts[1:]):
        yield int(visits.node[part[0]]), part


def _holm(suspects: list[Suspect], tests: int, alpha: float) -> Iterator[Suspect]:
    """Yield the suspects that stay when all tests are paid for; of each node and kind only its worst window."""
    worst: dict[tuple[int, str], Suspect] = {}
    for suspect in suspects:
        key = (suspect.node, suspect.kind)
        if key not in worst or suspect.p_value < worst[key].p_value:
            worst[key] = suspect
    for place, suspect in enumerate(sorted(worst.values(), key=lambda s: s.p_value)):
        if suspect.p_value > alpha / max(1, tests - place):
            return
        yield suspect


def binomial_tail(bad: int, of: int, rate: float) -> float:
    """Return the chance of `bad` or more in `of` trials."""
    logs = [
        math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1)
        + k * math.log(rate) + (of - k) * math.log1p(-rate)
        for k in range(bad, of + 1)
    ]  # fmt: skip
    return min(1.0, sum(math.exp(value) for value in logs))


def poisson_tail(bad: int, expected: float) -> float:
    """Return the chance of `bad` or more where `expected` are usual."""
    if expected <= 0:
        return 0.0 if bad else 1.0
    below = sum(math.exp(k * math.log(expected) - expected - math.lgamma(k + 1)) for k in range(bad))
    if below < 0.999:
        return max(0.0, 1.0 - below)
    first = math.exp(
        bad * math.log(expected) - expected - math.lgamma(bad + 1)
    )  # the tail itself, where 1 - x is blind
    total, term = 0.0, first
    for k in range(bad + 1, bad + 200):
        total += term
        term *= expected / k
    return total


def _row(cluster: str, names: list[str], visits: Visits, threshold: float, suspect: Suspect) -> dict[str, object]:
    own = (visits.node == suspect.node) & (visits.start_ns >= suspect.since_ns)
    slow = own & (np.nan_to_num(visits.slowdown) >= threshold)
    evidence = np.flatnonzero(slow if suspect.kind == "slow" else own & visits.blamed)
    return {
        "cluster": cluster,
        "node": names[suspect.node],
        "kind": suspect.kind,
        "bad": suspect.bad,
        "of": suspect.of,
        "expected": suspect.expected,
        "p_value": suspect.p_value,
        "slowdown": float(np.median(visits.slowdown[slow])) if suspect.kind == "slow" else None,
        "since_ns": suspect.since_ns,
        "runs": [visits.run[place] for place in evidence[-MAX_EVIDENCE:].tolist()],
    }
