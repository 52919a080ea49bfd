"""Play a cluster's history: runs wait, start, fail, are requeued or go on, and nodes go down for repair.

    Schedule(world, cluster).play() -> attempts by run, outages of nodes

One clock per cluster and a queue in order of submission with backfill. The run with a reservation takes its nodes
from others (preemption) and keeps a few spare ones. Nothing here knows about goodput.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

import numpy as np

from perfkit.simulate.fleet_runs import Attempt, play_attempt
from perfkit.simulate.fleet_world import (
    DAY,
    FAILURES_PER_NODE_DAY,
    FLAKY_FACTOR,
    HOUR,
    SECOND,
    Cluster,
    Spec,
    World,
)

CAUSES = {"gpu": 148, "gpu_memory": 72, "software": 54, "network": 35, "node": 30, "storage": 12, "hang": 7,
          "silent_data_corruption": 6}  # fmt: skip
"""How often each cause interrupts: the proportions that Llama 3's report gives for its unexpected interruptions."""
BLAMED = ("gpu", "gpu_memory", "node")
"""Causes that take a node out of service."""
HANG_NS = 600 * SECOND
PATIENCE_NS = 24 * HOUR
"""A run that has waited this long is not overtaken any more."""
SPARES = 4


@dataclass
class Outage:
    """A node that could not work."""

    node: int
    start_ns: int
    end_ns: int
    state: str
    reason: str


@dataclass
class Progress:
    """A run on its way."""

    spec: Spec
    eligible_ns: int
    attempts: list[Attempt] = field(default_factory=list)
    block: int = 0
    state: str = "queued"
    nodes: list[int] = field(default_factory=list)
    serial: int = 0
    """Counts the attempts; an event of an older one is void."""

    @property
    def until_block(self) -> int:
        """Where it ends, one way or the other."""
        if self.spec.fate == "completed":
            return self.spec.blocks
        return max(1, min(self.spec.blocks, int(self.spec.fate_at * self.spec.blocks)))


class Schedule:
    """The history of one cluster."""

    def __init__(self, world: World, cluster: Cluster) -> None:
        self.world, self.cluster, self.dice = world, cluster, world.dice
        self.free = set(range(cluster.nodes))
        self.outages: list[Outage] = []
        self.queue: list[Progress] = []
        self.runs = [Progress(s, s.submit_ns) for s in world.specs if s.cluster is cluster]
        self._events: list[tuple[int, int, str, object]] = []
        self._count = 0

    def play(self) -> Schedule:
        """Play until the end of the history."""
        end = self.world.options.end_ns
        for run in self.runs:
            self._at(run.spec.submit_ns, "submit", run)
        for week in range(self.world.options.days // 7):
            self._at(self.world.options.start_ns + week * 7 * DAY + 9 * HOUR, "service", week)
        while self._events and self._events[0][0] < end:
            now, _, kind, what = heapq.heappop(self._events)
            getattr(self, f"_on_{kind}")(now, what)
            self._start_waiting(now)
        for run in self.runs:
            if run.state == "on":
                self._cut(run, end)
        return self

    def _at(self, time: int, kind: str, what: object) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self._count, kind, what))

    # -------------------------------------------------------------- events

    def _on_submit(self, now: int, run: Progress) -> None:
        self.queue.append(run)

    def _on_repaired(self, now: int, node: int) -> None:
        self.free.add(node)

    def _on_service(self, now: int, week: int) -> None:
        """Drain a few idle nodes for firmware and the like."""
        idle = sorted(self.free)
        for k in self.dice.order(len(idle), self.cluster.name, "service", week)[: math.ceil(len(idle) * 0.03)].tolist():
            self._take_out(idle[k], now, 4 * HOUR, "drained", "maintenance")

    def _on_over(self, now: int, what: tuple[Progress, int]) -> None:
        run, serial = what
        if run.serial != serial or run.state != "on":
            return
        one = run.attempts[-1]
        if one.finished:
            run.state = "done"
            self.free.update(run.nodes)
            run.nodes = []
        else:
            self._interrupt(run, now)

    # -------------------------------------------------------------- starting and stopping

    def _start_waiting(self, now: int) -> None:
        self.queue.sort(key=lambda r: (not r.spec.reserved, r.spec.submit_ns))
        kept = []
        blocked = False
        held = (
            SPARES
            if any(r.spec.reserved and r.state in ("on", "queued") and now >= r.spec.submit_ns for r in self.runs)
            else 0
        )
        for run in self.queue:
            need = run.spec.nodes
            if run.spec.reserved and len(self.free) < need:
                self._make_room(run, now)
            room = len(self.free) - (0 if run.spec.reserved else held)
            if run.eligible_ns > now or blocked or room < need:
                kept.append(run)
                blocked |= run.eligible_ns <= now and now - run.eligible_ns > PATIENCE_NS
                continue
            idle = sorted(self.free)
            order = self.dice.order(len(idle), run.spec.run, "place", run.serial)[:need]
            self._start(run, [idle[k] for k in order.tolist()], now)
        self.queue = kept + [r for r in self.queue if r.state == "queued" and r not in kept]

    def _make_room(self, run: Progress, now: int) -> None:
        """Preempt others, the youngest first, until the reservation is met."""
        others = [r for r in self.runs if r.state == "on" and not r.spec.reserved and r.attempts[-1].start_ns < now]
        for other in sorted(others, key=lambda r: -r.attempts[-1].start_ns):
            if len(self.free) >= run.spec.nodes:
                return
            self._cut(other, now)
            other.attempts[-1].cause = "preemption"
            other.attempts[-1].stop_ns = now
            self._requeue(other, now)

    def _start(self, run: Progress, nodes: list[int], now: int) -> None:
        self.free.difference_update(nodes)
        run.nodes, run.state = sorted(nodes), "on"
        run.serial += 1
        array = np.array(run.nodes, np.int64)
        rates = np.where(np.isin(array, list(self.cluster.flaky)), FLAKY_FACTOR, 1.0) * FAILURES_PER_NODE_DAY
        fails = now + max(
            SECOND, int(self.dice.exponential(DAY / float(rates.sum()), run.spec.run, "fail", run.serial))
        )
        slowdown = float(self.cluster.slowdown(array, now).max())
        one = play_attempt(
            run.spec, self.dice, attempt=len(run.attempts), start_ns=now, from_block=run.block,
            until_block=run.until_block, slowdown=slowdown, stop_ns=min(fails, self.world.options.end_ns),
        )  # fmt: skip
        one.nodes = array
        run.attempts.append(one)
        if one.finished:
            self._finish(run, one)
        self._at(one.end_ns if one.finished else fails, "over", (run, run.serial))

    def _finish(self, run: Progress, one: Attempt) -> None:
        """Give the run the end that it was born with."""
        fate = run.spec.fate
        one.cause = fate
        if fate == "completed":
            return
        if fate == "no_heartbeat":
            one.end_ns = int(one.block_end[-1])
            one.phases = [(k, s[s < one.end_ns], np.minimum(e[s < one.end_ns], one.end_ns)) for k, s, e in one.phases]
            return
        last = max([int(one.block_end[-1]), *(int(e[-1]) for _, _, e in one.phases if len(e))])
        one.stop_ns, one.end_ns, one.partial_ns = last, last + 30 * SECOND, 0

    def _cut(self, run: Progress, now: int) -> None:
        """End an attempt at `now`, by playing it again with an earlier stop."""
        old = run.attempts[-1]
        if old.end_ns <= now and old.finished:
            return
        one = play_attempt(
            run.spec,
            self.dice,
            attempt=old.attempt,
            start_ns=old.start_ns,
            from_block=old.first_step // run.spec.block_steps,
            until_block=run.until_block,
            slowdown=old.slowdown,
            stop_ns=now,
        )
        one.nodes, one.finished = old.nodes, False
        run.attempts[-1] = one

    def _interrupt(self, run: Progress, now: int) -> None:
        one = run.attempts[-1]
        key = (run.spec.run, "why", run.serial)
        one.stop_ns = now
        one.cause = self.dice.choose(list(CAUSES), *key, weights=list(CAUSES.values()))
        flaky = [n for n in run.nodes if n in self.cluster.flaky]
        if flaky and self.dice.chance(
            len(flaky) * FLAKY_FACTOR / (len(flaky) * FLAKY_FACTOR + len(run.nodes)), *key, "lemon"
        ):
            one.cause, one.blame = "gpu", int(self.dice.choose(flaky, *key, "who"))
        elif one.cause in BLAMED:
            one.blame = int(self.dice.choose(run.nodes, *key, "who"))
        if one.cause in ("network", "hang"):
            one.phases.append(("hang", np.array([now]), np.array([now + HANG_NS])))
            now += HANG_NS
        if one.blame is not None:
            self._break(one.blame, one.cause, now, run.serial)
        keep = self.dice.chance(0.65, *key, "keep")
        free = sorted(self.free)
        if keep and (one.blame is None or free):
            one.end_ns = now + int(self.dice.between(60, 420, *key, "detect") * SECOND)
            self._go_on(run, one, free)
        else:
            one.end_ns = now + 30 * SECOND
            self._requeue(run, one.end_ns)

    def _go_on(self, run: Progress, one: Attempt, free: list[int]) -> None:
        """Restart inside the allocation, with a spare for the broken node."""
        nodes = list(run.nodes)
        if one.blame is not None:
            nodes.remove(one.blame)
            nodes.append(int(self.dice.choose(free, run.spec.run, "spare", run.serial)))
        run.block = one.saved_block
        if one.end_ns < self.world.options.end_ns:
            self._start(run, nodes, one.end_ns)
        else:
            one.end_ns = self.world.options.end_ns
            run.state = "waiting"

    def _requeue(self, run: Progress, now: int) -> None:
        one = run.attempts[-1]
        self.free.update(n for n in run.nodes if n != one.blame)
        run.nodes, run.block, run.state = [], one.saved_block, "queued"
        run.eligible_ns = now + 120 * SECOND
        run.serial += 1
        self.queue.append(run)
        self._at(run.eligible_ns, "ready", run)

    def _on_ready(self, now: int, run: Progress) -> None:
        pass

    def _break(self, node: int, cause: str, now: int, serial: int) -> None:
        lemon = node in self.cluster.flaky
        hours = 5.0 if lemon else 30.0 * math.exp(0.9 * float(self.dice.normal("repair", node, now)[0]))
        state = self.dice.choose(("down", "drained", "unhealthy"), "state", node, now, weights=(4, 4, 2))
        self._take_out(node, now, int(min(hours, 500) * HOUR), state, cause)

    def _take_out(self, node: int, now: int, length: int, state: str, reason: str) -> None:
        self.free.discard(node)
        end = min(now + length, self.world.options.end_ns)
        self.outages.append(Outage(node, now, end, state, reason))
        self._at(now + length, "repaired", node)
