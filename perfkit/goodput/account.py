"""Charge every allocated nanosecond of a run to exactly one goodput bucket (definition 18).

    account(timeline) -> Pieces      disjoint, in time order; together they are the allocations, to the ns

A phase on record (hang, restore, save, eval, …) owns its time, the strongest claim first. A step owns what is
left between the end of the step before it and its own end, so that time between steps is never nobody's. Of that:

    lost       steps whose number is run again later, and the unfinished step before an interruption
    compile    what the first step after a start took beyond the usual step
    slow_step  what a slow step took beyond the usual step (definition 19)
    productive the rest

Before the first step it is init, after an interruption it is recovery until the next step. What no record
explains is unknown; it is never spread over the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from perfkit.analysis.intervals import Ints
from perfkit.analysis.slow import slow_above
from perfkit.goodput.timeline import PHASES, Steps, Timeline
from perfkit.schema import GOODPUT_BUCKETS

BUCKET = {name: i for i, name in enumerate(GOODPUT_BUCKETS)}
UNFINISHED_STEPS = 3
"""An interrupted step is believed to have run for at most so many usual steps; what is beyond is unknown."""
_NEVER = np.int64(2**62)
_PHASE_BUCKET = {
    "hang": "hang", "checkpoint_restore": "restore", "checkpoint_save": "checkpoint", "eval": "eval",
    "data_stall": "data_stall", "compile": "compile", "fault": "recovery", "restart": "recovery", "drain": "recovery",
    "init": "init",
}  # fmt: skip


@dataclass(frozen=True)
class Pieces:
    """Stretches of allocated time, each in one bucket."""

    start: Ints
    end: Ints
    bucket: Ints
    """Index into GOODPUT_BUCKETS."""
    allocation: Ints
    """Row of timeline.allocations."""
    step: Ints
    """Row of timeline.steps; -1 if it is no step's work."""
    done: Ints
    """The step's work before this piece."""
    work: Ints
    """The step's work in all; 0 where step is -1."""

    @property
    def dur(self) -> Ints:
        """Wall time of each."""
        return self.end - self.start

    def total(self, timeline: Timeline) -> dict[str, int]:
        """GPU-ns by bucket."""
        gpus = timeline.allocations.gpus[self.allocation]
        return {name: int((self.dur * gpus)[self.bucket == i].sum()) for name, i in BUCKET.items()}


def account(timeline: Timeline) -> Pieces:
    """Split the allocations of a run into pieces of one bucket each."""
    where = timeline.allocations
    fresh = _fresh(timeline)
    steps = timeline.steps
    begin = np.where(fresh, steps.start - steps.wait_ns, np.r_[0, steps.end[:-1]]) if len(steps) else steps.start
    edges = _edges(timeline, begin)
    start, end = edges[:-1], edges[1:]
    allocation = np.searchsorted(where.start, start, side="right") - 1
    inside = (allocation >= 0) & (start < where.end[np.maximum(allocation, 0)]) if len(where.start) else start < start
    start, end, allocation = start[inside], end[inside], allocation[inside]
    step = _covering(begin, steps.end, start)
    waits = _covering(steps.start - steps.wait_ns, steps.start, start)
    phase = _strongest_phase(timeline, start)
    gap = (phase < 0) & (step < 0)
    bucket = np.full(len(start), BUCKET["productive"], np.int64)
    bucket[gap] = _explain_gaps(timeline, start[gap], allocation[gap])
    bucket[(phase < 0) & (waits >= 0)] = BUCKET["data_stall"]
    table = np.array([BUCKET[_PHASE_BUCKET[kind]] for kind in PHASES], np.int64)
    bucket[phase >= 0] = table[phase[phase >= 0]]
    again = _started_before(timeline, start, allocation)
    bucket[(bucket == BUCKET["init"]) & again] = BUCKET["recovery"]
    working = (phase < 0) & (step >= 0) & (waits < 0)
    return _split_work(timeline, fresh, start, end, bucket, allocation, np.where(working, step, -1))


def usual_step_ns(work: Ints, steps: Steps, fresh: Any) -> tuple[int, float] | None:
    """Return the median work of a step and the limit above which one is slow; null with fewer than 3 steps."""
    plain = ~fresh & (work > 0)
    count = steps.count[plain]
    if count.sum() < 3:
        return None
    each = work[plain] / count
    median = weighted_median(each, count)
    spread = weighted_median(np.abs(each - median), count)
    return round(median), slow_above(median, spread)


def weighted_median(values: Any, weights: Any) -> float:
    """Median of `values`, each counted `weights` times."""
    order = np.argsort(values, kind="stable")
    upto = np.cumsum(weights[order])
    total = int(upto[-1])
    low, high = np.searchsorted(upto, [(total - 1) // 2, total // 2], side="right")
    return float(values[order][low] + values[order][high]) / 2


# ------------------------------------------------------------------ inside


def _fresh(timeline: Timeline) -> Any:
    """Mark the steps before which the run (re)started: first of an attempt, after a fault, or numbered backwards."""
    steps = timeline.steps
    if not len(steps):
        return np.zeros(0, bool)
    attempt = np.searchsorted(timeline.allocations.start, steps.start, side="right")
    starts = np.isin(timeline.phase_kind, [PHASES.index(k) for k in ("restart", "checkpoint_restore", "fault")])
    marks = np.sort(np.r_[timeline.fault_time, timeline.phase_start[starts]])
    seen = np.searchsorted(marks, steps.start, side="right")
    new = (attempt[1:] != attempt[:-1]) | (seen[1:] != seen[:-1]) | (steps.first[1:] <= steps.last[:-1])
    return np.r_[True, new]


def _edges(timeline: Timeline, begin: Ints) -> Ints:
    steps, where = timeline.steps, timeline.allocations
    usual = np.median((steps.end - steps.start) / steps.count) if len(steps) else 0
    limits = steps.end + int(UNFINISHED_STEPS * usual)
    return np.unique(
        np.concatenate(
            [where.start, where.end, timeline.phase_start, timeline.phase_end, begin, steps.start, steps.end, limits,
             steps.start - steps.wait_ns, timeline.fault_time]
        )
    )  # fmt: skip


def _covering(start: Ints, end: Ints, at: Ints) -> Ints:
    """Return which of some disjoint, sorted intervals covers each instant; -1 for none."""
    if not len(start):
        return np.full(len(at), -1, np.int64)
    row = np.searchsorted(start, at, side="right") - 1
    return np.where((row >= 0) & (at < end[np.maximum(row, 0)]), row, -1)


def _strongest_phase(timeline: Timeline, at: Ints) -> Ints:
    found = np.full(len(at), -1, np.int64)
    for kind in reversed(range(len(PHASES))):
        mine = timeline.phase_kind == kind
        if not mine.any():
            continue
        opened = np.searchsorted(np.sort(timeline.phase_start[mine]), at, side="right")
        closed = np.searchsorted(np.sort(timeline.phase_end[mine]), at, side="right")
        found[opened > closed] = kind
    return found


def _started_before(timeline: Timeline, at: Ints, allocation: Ints) -> Any:
    """Whether the run had been interrupted before each instant: in a later attempt, or after a fault."""
    faulted = np.searchsorted(timeline.fault_time, at, side="right") > 0
    return (allocation > 0) | faulted


def _explain_gaps(timeline: Timeline, at: Ints, allocation: Ints) -> Ints:
    """Say what time is that neither a phase nor a step owns."""
    steps, where = timeline.steps, timeline.allocations
    after = np.searchsorted(steps.start, at, side="right")
    begun, stop = where.start[allocation], where.end[allocation]
    next_step = np.r_[steps.start, _NEVER][after]
    last_end = np.r_[-_NEVER, steps.end][after]
    next_fault = np.r_[timeline.fault_time, _NEVER][np.searchsorted(timeline.fault_time, at, side="right")]
    step_follows, had_step = next_step < stop, last_end >= begun
    fault_follows = next_fault <= np.minimum(stop, next_step)
    faulted = _faults_between(timeline, np.maximum(last_end, begun), at)
    cut_short = fault_follows | (~step_follows & (allocation < len(where.start) - 1))
    usual = np.median((steps.end - steps.start) / steps.count) if len(steps) else 0
    unfinished = at < last_end + int(UNFINISHED_STEPS * usual)
    starting = np.where(_started_before(timeline, at, allocation), BUCKET["recovery"], BUCKET["init"])
    unknown, lost, recovery = (BUCKET[name] for name in ("unknown", "lost", "recovery"))
    return np.select(
        [faulted, ~had_step & (step_follows | fault_follows | (allocation > 0)), had_step & cut_short & unfinished,
         had_step & step_follows & ~fault_follows],
        [recovery, starting, lost, recovery],
        unknown,
    )  # fmt: skip


def _faults_between(timeline: Timeline, low: Ints, high: Ints) -> Any:
    times = timeline.fault_time
    return np.searchsorted(times, high, side="right") > np.searchsorted(times, low, side="left")


def _split_work(
    timeline: Timeline, fresh: Any, start: Ints, end: Ints, bucket: Ints, allocation: Ints, step: Ints
) -> Pieces:
    """Cut the work of each step into productive, slow or compile, and lost."""
    steps = timeline.steps
    working = step >= 0
    w_step, w_start, w_dur = step[working], start[working], (end - start)[working]
    work = np.bincount(w_step, w_dur, minlength=len(steps)).astype(np.int64)
    cumulative = np.cumsum(w_dur)
    first_row = np.searchsorted(w_step, np.arange(len(steps)))
    before = np.r_[0, cumulative][first_row]
    done = cumulative - w_dur - before[w_step]
    cuts = _cuts(steps, fresh, work)
    rest = ~working
    none, zero = np.full(int(rest.sum()), -1, np.int64), np.zeros(int(rest.sum()), np.int64)
    parts = [(start[rest], end[rest], bucket[rest], allocation[rest], none, zero)]
    for low, high, label in cuts:
        a = np.maximum(done, low[w_step])
        b = np.minimum(done + w_dur, high[w_step])
        some = b > a
        at = w_start[some] + (a - done)[some]
        parts.append((at, at + (b - a)[some], label[w_step[some]], allocation[working][some], w_step[some], a[some]))
    begin, finish, label, where, which, offset = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(begin, kind="stable")
    total = np.where(which >= 0, np.r_[work, 0][which], 0)
    return Pieces(
        begin[order], finish[order], label[order], where[order], which[order], offset[order], total[order]
    )  # fmt: skip


def _cuts(steps: Steps, fresh: Any, work: Ints) -> list[tuple[Ints, Ints, Ints]]:
    """Return (from, to, bucket) along each step's work: warm-up, productive, slow, lost; together all of it."""
    count = steps.count
    lost_steps = _lost_steps(steps)
    usual = usual_step_ns(work, steps, fresh)
    warm, slow = np.zeros_like(work), np.zeros_like(work)
    if usual is not None:
        median, limit = usual
        excess = np.maximum(work - count * median, 0)
        first = fresh & (count == 1)
        warm[first] = excess[first]
        late = ~first & (work > limit * count)
        slow[late] = excess[late]
    kept = np.where(lost_steps >= count, warm, work - _share(work - warm, lost_steps, count))
    slow = np.minimum(_share(slow, count - lost_steps, count), kept - warm)
    zero, ones = np.zeros_like(work), np.ones_like(work)
    return [
        (zero, warm, BUCKET["compile"] * ones),
        (warm, kept - slow, BUCKET["productive"] * ones),
        (kept - slow, kept, BUCKET["slow_step"] * ones),
        (kept, work, BUCKET["lost"] * ones),
    ]


def _share(amount: Ints, part: Ints, whole: Ints) -> Ints:
    """Return amount · part / whole without overflow of the product."""
    each, rest = np.divmod(amount, np.maximum(whole, 1))
    result: Ints = each * part + rest * part // np.maximum(whole, 1)
    return result


def _lost_steps(steps: Steps) -> Ints:
    """How many steps at the end of each row are run again later."""
    if not len(steps):
        return np.zeros(0, np.int64)
    later = np.minimum.accumulate(steps.first[::-1])[::-1]
    resumed = np.r_[later[1:], np.int64(2**62)]
    result: Ints = np.clip(steps.last - resumed + 1, 0, steps.count)
    return result
