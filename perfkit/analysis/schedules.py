"""Pipeline schedules: in which order a stage runs its passes, what it sends and receives, and how long it must wait.

    passes("1f1b", stage, Shape(stages=4, micro_batches=8))  -> [Pass("F", 0, 0), …]
    recognise(observed, stages)                              -> schedule and shape that observed messages belong to
    replay(schedule, shape, forward_ns, backward_ns)         -> Waits: what each stage waits if passes take so long

`forward_ns` and `backward_ns` have one row per stage and any number of columns, which are played side by side: steps,
replicas. Without `message_ns` messages take no time: a stage waits what the order of the passes alone makes it wait.
Chunk c of stage s is virtual stage c·stages + s, as in Megatron-LM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from perfkit.analysis.intervals import Ints

Floats: TypeAlias = npt.NDArray[np.float64]
MAX_PASSES = 100_000
"""Passes of all stages above which a replay is left out."""
MAX_CHUNKS = 8


class Shape(NamedTuple):
    """Size of a pipeline."""

    stages: int
    micro_batches: int
    chunks: int = 1

    @property
    def ideal_ratio(self) -> float:
        """Share of a step that stages stand still if all passes take equally long: (p-1)/(m·v+p-1)."""
        return (self.stages - 1) / (self.micro_batches * self.chunks + self.stages - 1)


class Pass(NamedTuple):
    """A forward (F) or backward (B) pass of one micro-batch through one chunk."""

    kind: str
    micro_batch: int
    chunk: int


class Waits(NamedTuple):
    """What each stage (row) waits for messages; all stages start together."""

    first: Ints
    """Before its first pass."""
    inner: Ints
    """Between its first and its last pass."""
    tail: Ints
    """From its last pass to the end of the last stage to finish."""


def passes(schedule: str, stage: int, shape: Shape) -> list[Pass]:
    """Return the passes of a stage in order."""
    total = shape.micro_batches * shape.chunks
    forward = [Pass("F", *_unit(k, shape, reverse=False)) for k in range(total)]
    backward = [Pass("B", *_unit(k, shape, reverse=True)) for k in range(total)]
    if schedule == "gpipe":
        return forward + backward
    warmup = shape.stages - stage - 1
    if schedule == "interleaved":
        warmup = warmup * 2 + (shape.chunks - 1) * shape.stages
    warmup = min(warmup, total)
    steady = [one for pair in zip(forward[warmup:], backward, strict=False) for one in pair]
    return [*forward[:warmup], *steady, *backward[total - warmup :]]


def _unit(k: int, shape: Shape, *, reverse: bool) -> tuple[int, int]:
    """Return micro-batch and chunk of the k-th pass: as many micro-batches as stages per chunk, then the next."""
    group, within = divmod(k, shape.stages * shape.chunks)
    chunk, number = divmod(within, shape.stages)
    if shape.chunks == 1:
        return k, 0
    return group * shape.stages + number, shape.chunks - 1 - chunk if reverse else chunk


def messages(schedule: str, stage: int, shape: Shape) -> str:
    """Return what a stage sends (S) and receives (R) in a step, in order."""
    last = shape.stages * shape.chunks - 1
    text = []
    for one in passes(schedule, stage, shape):
        virtual = one.chunk * shape.stages + stage
        source, target = (0, last) if one.kind == "F" else (last, 0)
        text.append(("" if virtual == source else "R") + ("" if virtual == target else "S"))
    return "".join(text)


def recognise(
    observed: Sequence[str], stages: int, gaps: Sequence[Floats] | None = None
) -> tuple[str | None, Shape | None]:
    """Return the schedule and shape that give the messages of every stage, as `messages` writes them.

    `gaps` is the time from each send of a stage to its next, without waits. It decides where the messages leave a
    choice: two stages with two chunks and two micro-batches send and receive in the same order as six micro-batches
    without chunks, but their passes do not take equally long.

    Without an exact match the shape comes from how many receives the stages have (in the middle 2·m·v, at the ends
    m fewer) and the schedule is not known. With two stages the count alone leaves chunks open: one is assumed.
    """
    counts = [text.count("R") for text in observed]
    shapes = []
    for chunks in range(1, MAX_CHUNKS + 1):
        micro_batches, rest = divmod(counts[0], 2 * chunks - 1)
        middle = all(count == 2 * micro_batches * chunks for count in counts[1:-1])
        whole = chunks == 1 or micro_batches % stages == 0
        if micro_batches and whole and not rest and counts[-1] == counts[0] and middle:
            shapes.append(Shape(stages, micro_batches, chunks))
    fitting = [
        (schedule, shape)
        for shape in shapes
        for schedule in (("interleaved",) if shape.chunks > 1 else ("1f1b", "gpipe"))
        if all(messages(schedule, stage, shape) == text for stage, text in enumerate(observed))
    ]
    if not fitting:
        return None, shapes[0] if shapes else None
    if len(fitting) == 1 or gaps is None:
        return fitting[0]
    return min(fitting, key=lambda one: sum(_misfit(one[0], one[1], stage, gap) for stage, gap in enumerate(gaps)))


def _misfit(schedule: str, shape: Shape, stage: int, gaps: Floats) -> float:
    """Return the squared error of the best times of a forward and a backward pass for the gaps between sends."""
    last = shape.stages * shape.chunks - 1
    number = np.zeros((messages(schedule, stage, shape).count("S") + 1, 2))
    at = 0
    for one in passes(schedule, stage, shape):
        number[at, "FB".index(one.kind)] += 1
        at += one.chunk * shape.stages + stage != (last if one.kind == "F" else 0)
    between = number[1:-1]
    best = np.linalg.lstsq(between, gaps, rcond=None)[0]
    return float(((between @ best - gaps) ** 2).sum())


def replay(schedule: str, shape: Shape, forward_ns: Ints, backward_ns: Ints, message_ns: int = 0) -> Waits:
    """Play the passes; the times are those of one micro-batch through one chunk, and of one message."""
    stages, last = shape.stages, shape.stages * shape.chunks - 1
    plans = [passes(schedule, stage, shape) for stage in range(stages)]
    free = np.zeros_like(forward_ns)
    first, inner = np.zeros_like(free), np.zeros_like(free)
    ended: dict[tuple[str, int, int], Ints] = {}
    position = [0] * stages
    moved = True
    while moved:
        moved = False
        for stage, plan in enumerate(plans):
            while position[stage] < len(plan):
                kind, micro_batch, chunk = plan[position[stage]]
                virtual = chunk * stages + stage
                source = virtual - 1 if kind == "F" else virtual + 1
                before = (kind, micro_batch, source)
                if 0 <= source <= last and before not in ended:
                    break
                start = np.maximum(free[stage], ended[before] + message_ns) if before in ended else free[stage]
                (first if position[stage] == 0 else inner)[stage] += start - free[stage]
                free[stage] = start + (forward_ns if kind == "F" else backward_ns)[stage]
                ended[kind, micro_batch, virtual] = free[stage].copy()
                position[stage] += 1
                moved = True
    assert all(at == len(plan) for at, plan in zip(position, plans, strict=True)), "the schedule waits for itself"
    return Waits(first, inner, free.max(axis=0) - free)
