"""Trace two steps when training becomes slower: of the rank that did it, and of one peer. Off unless asked for.

    perfkit.init(…, trigger=True)        or TriggerRule(slower=0.10, per_hour=4), or a number per hour

Every rank watches its step times (perfkit.capture.change_point). In a job whose ranks wait for each other all of them
become slower at the same step, so who did it is decided by own work: the CPU time of the training thread and the wait
for data, or, with CUDA, the GPU time of the span `forward`. A rank that finds a change leaves what its own work was
before and after in its live/metrics.json. The lowest rank that shares the spool reads them and leaves a trace request
(perfkit.capture.requests): no collective, nothing on the training thread but one clock. The rank whose own work grew
most is slow if that explains the change; if none's does (a network, a file system), the lowest two are traced.

Ranks with a spool of their own (one per node) decide among themselves: then every node traces two ranks.
"""

from __future__ import annotations

import collections
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import thread_time_ns
from typing import TYPE_CHECKING, Any

from perfkit.capture.change_point import Change, ChangePoint
from perfkit.capture.guard import describe, say
from perfkit.errors import PerfkitError

if TYPE_CHECKING:
    from perfkit.capture.recorder import Recorder

HOUR_SECONDS = 3600.0
PATIENCE_SECONDS = 15.0
"""How long the deciding rank waits for what the others have found."""
HISTORY = 512
SPAN = "forward"
EXPLAINS, CONTRIBUTES, CLEARLY = 0.5, 0.1, 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TriggerRule:
    """When a change of step time is worth a trace."""

    slower: float = 0.10
    """Share by which steps must have become slower."""
    confirm: int = 10
    """Steps over which that must hold."""
    steps: int = 2
    """Steps of the trace."""
    per_hour: int = 4
    """Traces that may be asked for in an hour."""

    def __post_init__(self) -> None:
        if self.slower <= 0 or self.confirm < 3 or self.steps < 1 or self.per_hour < 1:
            raise ValueError("slower must be above 0, confirm at least 3, steps and per_hour at least 1")


def rule_from(given: Any) -> TriggerRule | None:
    """Return the rule behind what `init(trigger=…)` was given."""
    if given is None or isinstance(given, TriggerRule):
        return given
    if isinstance(given, bool):
        return TriggerRule() if given else None
    if isinstance(given, int):
        return TriggerRule(per_hour=given) if given else None
    raise ValueError(f"trigger={given!r} is neither a TriggerRule, a number of traces per hour, True nor None")


def choose(mine: int, changes: dict[int, dict[str, Any] | None]) -> tuple[int, int | None, float | None]:
    """Return (slow rank, its peer, share of the change that its own work explains; None if nobody's does).

    `changes` are what the ranks have left: own work before and after, and the time of steps. The peer is the rank
    whose own work grew least.
    """
    step = changes[mine]
    assert step is not None
    grown = {
        rank: found["own_after_ns"] - found["own_before_ns"]
        for rank, found in changes.items()
        if found is not None and found.get("own_after_ns") is not None and found.get("own_before_ns") is not None
    }
    ranks = sorted(changes)
    slow = max(grown, key=lambda rank: (grown[rank], -rank), default=None)
    if slow is None or not _stands_out(slow, grown, step["after_ns"] - step["before_ns"]):
        return ranks[0], ranks[1] if len(ranks) > 1 else None, None
    others = [rank for rank in ranks if rank != slow]
    peer = min(others, key=lambda rank: (abs(grown.get(rank, float("inf"))), rank), default=None)
    return slow, peer, grown[slow] / max(1.0, step["after_ns"] - step["before_ns"])


def _stands_out(slow: int, grown: dict[int, float], change_ns: float) -> bool:
    """Whether a rank's own work explains the change: half of it, or a tenth and far more than any other's.

    On a machine that is busy with other things, CPU time is a small part of what it takes.
    """
    second = max((ns for rank, ns in grown.items() if rank != slow), default=None)
    clear = second is not None and grown[slow] >= CLEARLY * max(0.0, second)
    return grown[slow] >= EXPLAINS * change_ns or (clear and grown[slow] >= CONTRIBUTES * change_ns)


class Trigger:
    """Watches one rank, and decides for those that share its spool."""

    def __init__(self, recorder: Recorder, rule: TriggerRule) -> None:
        self._recorder, self._rule = recorder, rule
        self._detector = ChangePoint(slower=rule.slower, confirm=rule.confirm)
        self._ended: collections.deque[tuple[int, int, int | None, int, bool]] = collections.deque(maxlen=4 * HISTORY)
        self._own: collections.deque[tuple[int, int]] = collections.deque(maxlen=HISTORY)
        self._before: tuple[int, int] | None = None
        self._asked: collections.deque[float] = collections.deque()
        self._pending: float | None = None
        self._found: Change | None = None
        self._own_before: float | None = None
        self._by_gpu = False

    # ---------------------------------------------------------------- the training thread

    def step_ended(self, number: int, end: int, wait: int | None, profiled: bool) -> None:
        """Note a step: two clocks and an append."""
        self._ended.append((number, end, wait, thread_time_ns(), profiled))

    # ---------------------------------------------------------------- the writer thread

    @property
    def change(self) -> dict[str, Any] | None:
        """What this rank has found, for its live/metrics.json."""
        if self._found is None:
            return None
        found = self._found
        after = [own for step, own in self._own if step >= found.first_step]
        enough = len(after) >= (1 if self._by_gpu else self._rule.confirm // 2)
        return {
            "step": found.found_at, "first_step": found.first_step, "before_ns": found.before_ns,
            "after_ns": found.after_ns, "own_before_ns": self._own_before,
            "own_after_ns": median(after) if enough else None, "own": "gpu_forward" if self._by_gpu else "thread_cpu",
        }  # fmt: skip

    def span_measured(self, name: str, step: int, gpu_ns: int | None) -> None:
        """Take the GPU time of a span, where there is one."""
        if name == SPAN and gpu_ns is not None:
            if not self._by_gpu:
                self._by_gpu = True
                self._own.clear()
            self._own.append((step, gpu_ns))

    def turn(self) -> bool:
        """Look at the steps that have ended; whether this rank has found a change just now."""
        fresh = False
        while self._ended:
            fresh = self._look(*self._ended.popleft()) or fresh
        if self._pending is not None:
            self._decide(self._pending)
        return fresh

    def _look(self, number: int, end: int, wait: int | None, cpu: int, profiled: bool) -> bool:
        before, self._before = self._before, (end, cpu)
        if profiled or before is None:
            return False
        if not self._by_gpu and self._recorder.gpu is None:  # with CUDA the training thread spins while it waits
            self._own.append((number, cpu - before[1] + (wait or 0)))
        found = self._detector.add(number, end - before[0])
        if found is None:
            return False
        self._found, self._pending = found, time.monotonic()
        ratio = found.after_ns / found.before_ns
        self._recorder.record("counters", (end, "perfkit_step_change_ratio", None, ratio, None))
        own = [one for step, one in self._own if step < found.first_step]
        self._own_before = median(own[-60:]) if own else None
        return True

    # ---------------------------------------------------------------- deciding

    def _decide(self, since: float) -> None:
        from perfkit.capture.requests import live_ranks

        recorder, mine = self._recorder, self._recorder.identity
        others = live_ranks(Path(recorder.settings.spool), mine.cluster, mine.run, mine.attempt)
        own = self.change
        assert own is not None
        if any(rank < mine.rank for rank in others):
            self._pending = None  # that one decides
            return
        near = 5 * self._rule.confirm
        changes: dict[int, dict[str, Any] | None] = {
            rank: found if found is not None and abs(found["step"] - own["step"]) <= near else None
            for rank, found in ((rank, snapshot.get("change")) for rank, snapshot in others.items())
        }
        changes[mine.rank] = own
        expected = min(mine.world_size or 1, len(changes))
        known = sum(found is not None and found.get("own_after_ns") is not None for found in changes.values())
        if known < expected and time.monotonic() - since < PATIENCE_SECONDS:
            return
        self._pending = None
        self._ask(own, *choose(mine.rank, changes))

    def _ask(self, change: dict[str, Any], slow: int, peer: int | None, share: float | None) -> None:
        from perfkit.capture.requests import request_trace

        now, mine = time.monotonic(), self._recorder.identity
        while self._asked and now - self._asked[0] > HOUR_SECONDS:
            self._asked.popleft()
        ratio = change["after_ns"] / change["before_ns"] - 1
        what = f"steps are {ratio:.0%} slower since step {change['first_step']}"
        if len(self._asked) >= self._rule.per_hour:
            say(f"{what}; no trace, the {self._rule.per_hour} of this hour are used up")
            return
        ranks = [slow] if peer is None else [slow, peer]
        try:
            asked = request_trace(
                Path(self._recorder.settings.spool),
                mine.run,
                steps=self._rule.steps,
                ranks=",".join(map(str, ranks)),
                cluster=mine.cluster,
                step_ns=change["after_ns"],
            )
        except (PerfkitError, OSError) as error:
            say(f"{what}; no trace: {describe(error)}")
            return
        self._asked.append(now)
        why = "no rank's own work explains it" if share is None else f"rank {slow}'s own work grew most"
        at = f"steps {asked.start_step} to {asked.start_step + asked.steps - 1}"
        say(f"{what}: {why}; tracing {at} of rank {' and '.join(map(str, ranks))}")
