"""How one attempt of a simulated run goes, and what is true of the whole run.

    play_attempt(spec, dice, attempt=…, start_ns=…, from_block=…, slowdown=…, stop_ns=…) -> Attempt
    run_truth(spec, attempts) -> GPU-ns by bucket, by the definitions and from what was simulated

An attempt is arrays: blocks of steps and the phases between them. The truth is added up from these, naively and
without the code that it is there to check (perfkit.goodput).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfkit.analysis.intervals import Ints
from perfkit.simulate.fleet_random import Dice
from perfkit.simulate.fleet_world import SECOND, Spec

TEARDOWN_NS = 20 * SECOND
_EMPTY = np.empty(0, np.int64)


@dataclass
class Attempt:
    """One allocation of a run and what happened in it."""

    attempt: int
    start_ns: int
    end_ns: int = 0
    """When the GPUs were given back."""
    stop_ns: int | None = None
    """When work stopped, if it was interrupted."""
    cause: str | None = None
    """Why; null if it goes on at the end of the history."""
    blame: int | None = None
    """Node that did it."""
    nodes: Ints = field(default_factory=lambda: _EMPTY)
    first_step: int = 0
    block_start: Ints = field(default_factory=lambda: _EMPTY)
    block_end: Ints = field(default_factory=lambda: _EMPTY)
    block_steps: Ints = field(default_factory=lambda: _EMPTY)
    phases: list[tuple[str, Ints, Ints]] = field(default_factory=list)
    """Kind, starts, ends; disjoint from one another and from the blocks."""
    saved_block: int = 0
    """Where the next attempt begins."""
    finished: bool = False
    partial_ns: int = 0
    """Work of the step that was cut short."""
    slowdown: float = 1.0

    @property
    def last_step(self) -> Ints:
        """Number of the last step of each block."""
        return self.first_step + np.cumsum(self.block_steps) - 1


def play_attempt(
    spec: Spec,
    dice: Dice,
    *,
    attempt: int,
    start_ns: int,
    from_block: int,
    until_block: int,
    slowdown: float,
    stop_ns: int,
) -> Attempt:
    """Play until `until_block` is done or the clock reaches `stop_ns`."""
    one = Attempt(
        attempt,
        start_ns,
        end_ns=stop_ns,
        first_step=from_block * spec.block_steps,
        saved_block=from_block,
        slowdown=slowdown,
    )
    key = (spec.run, attempt)
    at = start_ns
    for kind, length in (
        ("init", int(spec.init_ns * dice.between(0.9, 1.4, *key, "init"))),
        ("checkpoint_restore", spec.restore_ns if attempt else 0),
        ("compile", spec.compile_ns),
    ):
        if length and at < stop_ns:
            one.phases.append((kind, np.array([at]), np.array([min(at + length, stop_ns)])))
            at = min(at + length, stop_ns)
    if at < stop_ns:
        _play_blocks(spec, dice, one, at, from_block, until_block, stop_ns)
    return one


def _play_blocks(
    spec: Spec, dice: Dice, one: Attempt, at: int, from_block: int, until_block: int, stop_ns: int
) -> None:
    key = (spec.run, one.attempt)
    room = (stop_ns - at) // (spec.block_steps * spec.step_ns) + 2
    size = int(min(until_block - from_block, room))
    number = from_block + np.arange(size)
    u = dice.uniform(*key, "slow", size=size)
    factor = one.slowdown * (1 + 0.003 * np.clip(dice.normal(*key, "pace", size=size), -3, 3))
    factor = np.where(u < 0.03, factor * (1.05 + 18 * u), factor)
    step_ns = np.round(spec.step_ns * factor).astype(np.int64)
    stalls = dice.uniform(*key, "stall", size=size) < spec.stall_share
    pre = np.where(stalls, (dice.uniform(*key, "stall_s", size=size) * 90 * SECOND).astype(np.int64), 0)
    warm = np.zeros(size, np.int64)
    warm[:1] = int(dice.between(0.5, 4.0, *key, "warm") * spec.step_ns)
    saves = (number + 1) % spec.save_blocks == 0
    save = np.where(saves, (spec.save_ns * (0.9 + 0.3 * dice.uniform(*key, "save", size=size))).astype(np.int64), 0)
    evals = (number + 1) % spec.eval_blocks == 0 if spec.eval_blocks else np.zeros(size, bool)
    post = np.where(evals, spec.eval_ns, 0)
    work = spec.block_steps * step_ns + warm
    total = pre + work + save + post
    begin = at + np.cumsum(total) - total
    start, end = begin + pre, begin + pre + work
    saved = end + save
    done = (end <= stop_ns) & (start < stop_ns)
    complete = int(done.sum())
    one.finished = complete == until_block - from_block and bool((saved + post)[-1] <= stop_ns)
    partial = None
    if complete < size and start[complete] < stop_ns:
        partial = complete
    _record_blocks(spec, one, start, end, step_ns, warm, complete, partial, stop_ns)
    ok = saves & (saved <= stop_ns)
    one.saved_block = int(number[ok][-1]) + 1 if ok.any() else from_block
    for kind, lows, highs in (
        ("data_stall", begin, start),
        ("checkpoint_save", end, saved),
        ("eval", saved, saved + post),
    ):
        some = (highs > lows) & (lows < stop_ns)
        one.phases.append((kind, lows[some], np.minimum(highs[some], stop_ns)))
    if one.finished:
        one.end_ns = int((saved + post)[-1]) + TEARDOWN_NS


def _record_blocks(
    spec: Spec, one: Attempt, start: Ints, end: Ints, step_ns: Ints, warm: Ints, complete: int, partial: int | None,
    stop_ns: int,
) -> None:  # fmt: skip
    """Keep whole blocks and the whole steps of the one that was cut; the first step is a row of its own."""
    begins, ends = start[:complete].tolist(), end[:complete].tolist()
    counts = [spec.block_steps] * complete
    if partial is not None:
        spent = stop_ns - int(start[partial])
        left = spent - int(warm[partial])
        steps = int(left // int(step_ns[partial])) if left > 0 else 0
        one.partial_ns = spent - (steps * int(step_ns[partial]) + int(warm[partial]) if steps else 0)
        if steps:
            begins.append(int(start[partial]))
            ends.append(int(start[partial]) + int(warm[partial]) + steps * int(step_ns[partial]))
            counts.append(steps)
    if counts:
        first_end = begins[0] + int(warm[0]) + int(step_ns[0])
        if counts[0] > 1:
            begins, ends, counts = (
                [begins[0], first_end, *begins[1:]],
                [first_end, *ends],
                [1, counts[0] - 1, *counts[1:]],
            )
    one.block_start, one.block_end = np.array(begins, np.int64), np.array(ends, np.int64)
    one.block_steps = np.array(counts, np.int64)


# ------------------------------------------------------------------ the truth


def run_truth(spec: Spec, attempts: list[Attempt]) -> dict[str, int]:
    """GPU-ns by bucket (definitions 18 and 19) and `allocated`."""
    truth = dict.fromkeys(
        (
            "productive",
            "init",
            "compile",
            "slow_step",
            "data_stall",
            "checkpoint",
            "restore",
            "eval",
            "lost",
            "recovery",
            "hang",
            "unknown",
            "allocated",
        ),
        0,
    )
    median, limit = _usual([a for a in attempts if len(a.block_steps)])
    for i, one in enumerate(attempts):
        resumed = min((a.first_step for a in attempts[i + 1 :] if len(a.block_steps)), default=None)
        for name, wall in _attempt_truth(one, i, resumed, median, limit).items():
            truth[name] += wall * spec.gpus
    return truth


def _attempt_truth(one: Attempt, position: int, resumed: int | None, median: int, limit: float) -> dict[str, int]:
    length = {kind: int((ends - starts).sum()) for kind, starts, ends in one.phases}
    wall = {
        "allocated": one.end_ns - one.start_ns,
        "restore": length.get("checkpoint_restore", 0),
        "compile": length.get("compile", 0),
        "data_stall": length.get("data_stall", 0),
        "checkpoint": length.get("checkpoint_save", 0),
        "eval": length.get("eval", 0),
        "hang": length.get("hang", 0),
        "recovery" if position else "init": length.get("init", 0),
    }
    wall.update({k: wall.get(k, 0) for k in ("productive", "lost", "slow_step", "recovery", "init")})
    work, last = one.block_end - one.block_start, one.last_step
    for row in range(len(work)):
        took, steps = int(work[row]), int(one.block_steps[row])
        warm = max(0, took - median) if row == 0 and steps == 1 and median else 0
        again = 0 if resumed is None else min(max(int(last[row]) - resumed + 1, 0), steps)
        if again not in (0, steps):
            raise AssertionError("attempts resume at block edges")
        slow = (
            max(0, took - steps * median) if median and not warm and took > limit * steps and (row or steps > 1) else 0
        )
        wall["compile"] += warm
        if again:
            wall["lost"] += took - warm
        else:
            wall["slow_step"] += slow
            wall["productive"] += took - warm - slow
    if one.stop_ns is not None:  # a step that was cut short; before the first whole step it is part of starting
        wall["lost" if len(work) else "recovery" if position else "init"] += one.partial_ns
        wall["recovery"] += one.end_ns - one.stop_ns - length.get("hang", 0)
    rest = wall["allocated"] - sum(value for name, value in wall.items() if name != "allocated")
    wall["unknown"] = rest
    return wall


def _usual(attempts: list[Attempt]) -> tuple[int, float]:
    """Median step of a run and the limit above which one is slow; first steps of attempts stay out."""
    rows = [(a.block_end - a.block_start, a.block_steps, np.arange(len(a.block_steps))) for a in attempts]
    if not rows:
        return 0, 0.0
    work, steps, row = (np.concatenate([r[i] for r in rows]) for i in range(3))
    plain = row > 0
    each, steps = work[plain] / steps[plain], steps[plain]
    if steps.sum() < 3:
        return 0, 0.0
    median = _middle(each, steps)
    spread = _middle(np.abs(each - median), steps)
    return round(median), median + max(3 * 1.4826 * spread, 0.01 * median)


def _middle(values: Any, counts: Any) -> float:
    order = np.argsort(values, kind="stable")
    values, upto = values[order], np.cumsum(counts[order])
    total = int(upto[-1])
    pair = [values[int(np.flatnonzero(upto > k)[0])] for k in ((total - 1) // 2, total // 2)]
    return float(pair[0] + pair[1]) / 2
