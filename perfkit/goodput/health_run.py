"""What happened on the nodes of one run, and which of its steps it slowed.

    check_run(store, "llama-8b") -> RunHealth: one row per event, the dearest first

Events are the rows of `health_events` (XIDs, ECC, links, lost GPUs) and the times at which the run's own counters
say that heat or hardware held a clock down (perfkit.goodput.throttle.clock_events). An event is joined to the steps of
its node's ranks that it overlaps; slow is definition 19. That a step was slow meanwhile is no proof of the cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.errors import UsageError
from perfkit.goodput.health_fleet import slowed_steps
from perfkit.goodput.health_node import HARMLESS_XIDS
from perfkit.goodput.throttle import clock_events
from perfkit.schema import HEALTH_EVENTS
from perfkit.store import RunSummary, Store

AROUND_NS = 60 * 10**9
"""Events this long before the first step and after the last one still belong to the run: an XID may end it."""


@dataclass(frozen=True, kw_only=True)
class RunEvent:
    """One event on a node of the run."""

    node: str
    device: int | None
    kind: str
    code: int | None
    detail: str | None
    time_ns: int
    end_ns: int | None
    attempts: list[int]
    """Attempts that it touched."""
    steps_slowed: int
    """Steps that were slow on a rank of that node."""
    ranks: list[int]
    excess_ns: int
    """What the slow steps took beyond the median, each counted once, by its slowest rank."""
    first_step: int | None
    last_step: int | None


@dataclass
class RunHealth:
    """Events of a run, and what was read to find them."""

    cluster: str
    run: str
    events: list[RunEvent] = field(default_factory=list)
    steps: int = 0
    samples: int = 0
    synthetic: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def severity(self) -> str:
        """`fault` for an XID that is not harmless or a lost GPU, else `warning` if a step was slowed."""
        bad = (e.kind == "lost" or (e.kind == "xid" and e.code not in HARMLESS_XIDS) for e in self.events)
        return "fault" if any(bad) else "warning" if any(e.steps_slowed for e in self.events) else "ok"

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {"severity": self.severity, **asdict(self)}


def check_run(store: Store, run: str, *, cluster: str | None = None) -> RunHealth:
    """Join the events on a run's nodes to its steps; `run` is an id, or cluster/id."""
    head, _, name = run.rpartition("/")
    attempts = store.runs(cluster=cluster or head or None, run=name)
    if not attempts:
        there = sorted({f"{one.cluster}/{one.run}" for one in store.runs()})
        raise UsageError(
            f"{store.uri} has no steps, counters or phases of a run {run!r}",
            next_step=f"it has those of {', '.join(there[:8]) or 'none'}",
        )
    if len({one.cluster for one in attempts}) > 1:
        named = ", ".join(sorted({one.cluster for one in attempts}))
        raise UsageError(f"{run!r} is a run of several clusters: {named}", next_step="say which with --cluster")
    health = RunHealth(attempts[0].cluster, name, synthetic=any(one.synthetic for one in attempts))
    recorded = store.read("health_events")
    recorded = recorded.filter(pc.equal(recorded["cluster"], health.cluster))
    found: dict[tuple[Any, ...], list[tuple[int, dict[str, Any], list[dict[str, Any]]]]] = {}
    for one in attempts:
        for event, slowed in _check_attempt(store, one, recorded, health):
            key = tuple(event[name] for name in ("node", "device", "kind", "code", "time_ns"))
            found.setdefault(key, []).append((one.attempt, event, slowed))
    health.events = [_event(parts) for parts in found.values()]
    health.events.sort(key=lambda event: (-event.excess_ns, event.time_ns))
    known, world = max(len(one.ranks) for one in attempts), max(one.world_size or 0 for one in attempts)
    if known < world:
        health.notes.append(f"records of {known} of {world} ranks: events on the nodes of the others are not seen")
    if not health.samples:
        health.notes.append("no GPU counters: nothing is known of its clocks")
    if not health.steps:
        health.notes.append("no steps on record: events cannot be joined to them")
    return health


def _check_attempt(
    store: Store, one: RunSummary, recorded: pa.Table, health: RunHealth
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield each event of one attempt with the steps that were slow meanwhile."""
    read = partial(store.read, cluster=one.cluster, run=one.run, attempt=one.attempt)
    ranks: dict[str, set[int]] = {}
    for commit in store.committed(one.cluster, one.run, one.attempt):
        if commit.host:
            ranks.setdefault(commit.host, set()).add(commit.rank)
    steps = read("steps", columns=["rank", "step", "start_ns", "end_ns"]) if one.rows.get("steps") else None
    clocks = HEALTH_EVENTS.empty()
    if one.rows.get("counters"):
        counters = read("counters", filter=pc.field("device").is_valid())
        health.samples += len(counters)
        clocks = clock_events(counters, cluster=one.cluster)
    names = HEALTH_EVENTS.names
    events = pa.concat_tables([recorded.select(names), clocks.select(names)]).unify_dictionaries()
    events = _within(events, list(ranks), _bounds(one, steps))
    slowed: list[dict[str, Any]] = []
    if steps is not None:
        health.steps += len(pc.unique(steps["step"]))
        slowed = slowed_steps(events, steps, ranks).to_pylist()
    mine: dict[int, list[dict[str, Any]]] = {}
    for row in slowed:
        mine.setdefault(row["event"], []).append(row)
    for place, event in enumerate(events.to_pylist()):
        yield event, mine.get(place, [])


def _event(parts: list[tuple[int, dict[str, Any], list[dict[str, Any]]]]) -> RunEvent:
    """Join what one event did to each attempt."""
    event = parts[0][1]
    dearest: dict[tuple[int, int], int] = {}
    for attempt, _, slowed in parts:
        for row in slowed:
            key = attempt, row["step"]
            dearest[key] = max(dearest.get(key, 0), row["excess_ns"])
    steps = [step for _, step in dearest]
    return RunEvent(
        **{name: event[name] for name in ("node", "device", "kind", "code", "detail", "time_ns", "end_ns")},
        attempts=[attempt for attempt, _, _ in parts], steps_slowed=len(dearest),
        ranks=sorted({row["rank"] for _, _, slowed in parts for row in slowed}), excess_ns=sum(dearest.values()),
        first_step=min(steps, default=None), last_step=max(steps, default=None),
    )  # fmt: skip


def _bounds(one: RunSummary, steps: pa.Table | None) -> tuple[int, int] | None:
    """Return from when to when the attempt ran, as far as anybody knows."""
    first, last = [one.start_ns], [one.end_ns]
    if steps is not None and len(steps):
        first.append(pc.min(steps["start_ns"]).as_py())
        last.append(pc.max(steps["end_ns"]).as_py())
    starts, ends = [t for t in first if t is not None], [t for t in last if t is not None]
    return (min(starts) - AROUND_NS, max(ends) + AROUND_NS) if starts and ends else None


def _within(events: pa.Table, nodes: list[str], bounds: tuple[int, int] | None) -> pa.Table:
    """Return the events on these nodes in this time."""
    if bounds is None or not nodes:
        return events.slice(0, 0)
    start = np.asarray(events["time_ns"].to_numpy())
    end = np.asarray(pc.coalesce(events["end_ns"], events["time_ns"]).to_numpy())
    here = np.asarray(pc.is_in(events["node"].cast(pa.utf8()), pa.array(nodes, pa.utf8())))
    return events.filter(pa.array(here & (start <= bounds[1]) & (end >= bounds[0])))
