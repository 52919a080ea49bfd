"""In which order a pipeline stage runs its micro-batches.

    order(stage, stages, micro_batches, chunks) -> [Slot("F", micro_batch, chunk), …]

One chunk per stage gives 1F1B; more give the interleaved schedule of Megatron-LM, where chunk c of
stage s is virtual stage c·stages + s.
"""

from __future__ import annotations

from typing import NamedTuple

from perfkit.errors import UsageError


class Slot(NamedTuple):
    """One forward (F) or backward (B) pass of one micro-batch through one chunk."""

    kind: str
    micro_batch: int
    chunk: int


def order(stage: int, stages: int, micro_batches: int, chunks: int = 1) -> list[Slot]:
    """Return the passes of a stage in the order in which its host issues them."""
    total = micro_batches * chunks
    if chunks == 1:
        warmup = min(stages - stage - 1, total)
    else:
        if micro_batches % stages:
            raise UsageError(
                f"an interleaved schedule needs micro-batches ({micro_batches}) in multiples of the stages ({stages})"
            )
        warmup = min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)
    forward = [Slot("F", *_unit(k, stages, chunks, reverse=False)) for k in range(total)]
    backward = [Slot("B", *_unit(k, stages, chunks, reverse=True)) for k in range(total)]
    slots = forward[:warmup]
    for k in range(total - warmup):
        slots += [forward[warmup + k], backward[k]]
    return slots + backward[total - warmup :]


def _unit(k: int, stages: int, chunks: int, *, reverse: bool) -> tuple[int, int]:
    """Return micro-batch and chunk of the k-th pass: `stages` micro-batches per chunk, then the next chunk."""
    if chunks == 1:
        return k, 0
    group, within = divmod(k, stages * chunks)
    chunk = within // stages
    return group * stages + within % stages, chunks - 1 - chunk if reverse else chunk


def ideal_bubble_ratio(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Return the share of a step that the schedule leaves idle if all stages take equally long."""
    return (stages - 1) / (micro_batches * chunks + stages - 1)
