"""What straggles in a pipeline job, from its per-op trace: workers, a stage, or neither.

    whatif_pipeline("trace.parquet", changes) -> WhatIf, with `straggling`

The measures are those of "Understanding Stragglers in Large Model Training Using What-if Analysis". T is the mean step
played without unexplained delays, T_ideal the same with every op of a kind equally long everywhere; slowdown = T /
T_ideal. A rank's score is the smaller of its replica's and its stage's slowdown, each with only their own ops slow.
Mw = (T - T_w) / (T - T_ideal), where T_w has the worst 3 % of ranks (at least one) made ideal; Ms the same with the
last stage. They say how much of the loss goes away: near 1 all of it; above 1 when the ideal is not the best there is.

Predictions compare plays without delays, and scale the measured step by them: the trace does not say what a delay
hangs on (mostly the order in which the host asks for messages), so keeping it would pin what a change sets free.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from perfkit.analysis.intervals import Ints
from perfkit.analysis.replay.changes import Change, NotTold, combined
from perfkit.analysis.replay.graph import NEVER
from perfkit.analysis.replay.pipeline import PASSES, Pipeline, Times
from perfkit.analysis.whatif import Prediction, WhatIf
from perfkit.schema import CRITICAL_PATH, conform
from perfkit.sources.bytedance import KINDS, read_ops

WORST_SHARE = 0.03
MOSTLY = 0.5
"""A share of the loss above this is what causes it."""


@dataclass(frozen=True)
class Straggling:
    """Why the job is slower than if nothing straggled."""

    step_time_ns: int
    """T: without unexplained delays."""
    ideal_ns: int
    worst_ranks: list[int]
    without_worst_ns: int
    without_last_stage_ns: int

    @property
    def slowdown(self) -> float:
        """T / T_ideal."""
        return self.step_time_ns / self.ideal_ns

    @property
    def mw(self) -> float | None:
        """Share of the loss that goes away with the worst ranks; None if there is no loss."""
        return self._share(self.without_worst_ns)

    @property
    def ms(self) -> float | None:
        """Share of the loss that goes away with the last stage."""
        return self._share(self.without_last_stage_ns)

    def _share(self, without_ns: int) -> float | None:
        loss = self.step_time_ns - self.ideal_ns
        return (self.step_time_ns - without_ns) / loss if loss > 0 else None

    @property
    def cause(self) -> str:
        """Say what causes most of the loss: worker, stage, or neither of the two."""
        if self.mw is not None and self.mw >= MOSTLY and self.mw >= (self.ms or 0.0):
            return "worker"
        return "stage" if self.ms is not None and self.ms >= MOSTLY else "neither a few workers nor the last stage"

    def as_json(self) -> dict[str, Any]:
        """Return the part `straggling` of the document."""
        return {
            "step_time_ns": self.step_time_ns, "ideal_ns": self.ideal_ns, "slowdown": self.slowdown, "mw": self.mw,
            "ms": self.ms, "cause": self.cause, "worst_ranks": self.worst_ranks,
            "without_worst_ns": self.without_worst_ns, "without_last_stage_ns": self.without_last_stage_ns,
        }  # fmt: skip


def whatif_pipeline(path: str | os.PathLike[str], *, changes: Sequence[Change] = ()) -> WhatIf:
    """Play a per-op trace again."""
    pipeline = Pipeline.build(read_ops(path))
    ops, own = pipeline.ops, pipeline.without_delays()
    found = straggling(pipeline)
    asked = [list(changes)] if changes else _table(found)
    questions, column = [pipeline.measured, own], list[int | str]()
    for one in asked:
        try:
            times = own
            for change in one:
                times = _apply(change, pipeline, times)
            column.append(len(questions))
            questions.append(times)
        except NotTold as reason:
            column.append(str(reason))
    played = pipeline.step_times(questions).mean(axis=0)
    measured = float(_recorded(pipeline).mean())
    predictions = [_prediction(one, where, played, measured) for one, where in zip(asked, column, strict=True)]
    ranks, steps = np.unique(ops.rank), np.unique(ops.step)
    return WhatIf(
        round(measured), None, float(played[0]) / measured - 1, float(played[1]) / measured - 1,
        1 - float(played[1]) / measured, predictions, _path(pipeline), ranks.tolist(), None, len(steps), "op trace",
        notes=["a rank of this trace stands for its tensor-parallel ranks too, if there are any; steps are a sample"],
        straggling=found,
    )  # fmt: skip


def _prediction(changes: Sequence[Change], where: int | str, played: Ints, measured: float) -> Prediction:
    if isinstance(where, str):
        return Prediction(combined(changes), None, None, note=where)
    delays = 1.0 if any(change.kind == "no-host-gaps" for change in changes) else measured / float(played[1])
    time = float(played[where]) * delays
    return Prediction(combined(changes), round(time), 1 - time / measured)


def straggling(pipeline: Pipeline) -> Straggling:
    """Work out the measures."""
    ops, own, ideal = pipeline.ops, pipeline.without_delays(), pipeline.ideal()
    replicas, stages = np.unique(ops.dp), np.unique(ops.stage)
    parts = [*(ops.dp == one for one in replicas.tolist()), *(ops.stage == one for one in stages.tolist())]
    slow = pipeline.step_times([pipeline.mixed(ideal, own, rows) for rows in parts]).mean(axis=0)
    ranks, first = np.unique(ops.rank, return_index=True)
    of_replica = slow[: len(replicas)][np.searchsorted(replicas, ops.dp[first])]
    of_stage = slow[len(replicas) :][np.searchsorted(stages, ops.stage[first])]
    score = np.minimum(of_replica, of_stage)
    number = -(-len(ranks) * round(100 * WORST_SHARE) // 100)
    worst = ranks[np.lexsort((ranks, -score))[:number]]
    last = ops.stage == stages[-1]
    questions = [own, ideal, *(pipeline.mixed(own, ideal, rows) for rows in (np.isin(ops.rank, worst), last))]
    times = pipeline.step_times(questions).mean(axis=0)
    own_ns, ideal_ns, without_worst, without_last = (round(float(time)) for time in times)
    return Straggling(own_ns, ideal_ns, sorted(worst.tolist()), without_worst, without_last)


def _table(found: Straggling) -> list[list[Change]]:
    return [
        [Change("healthy", tuple(found.worst_ranks))], [Change("healthy")], [Change("network", factor=2.0)],
        [Change("network")], [Change("balance")], [Change("no-host-gaps")],
    ]  # fmt: skip


def _apply(change: Change, pipeline: Pipeline, times: Times) -> Times:
    ops = pipeline.ops
    if change.kind == "healthy":
        ranks = np.unique(ops.rank) if change.ranks is None else np.array(change.ranks)
        return _like_peers(pipeline, times, ranks)
    if change.kind == "network":
        moving = np.maximum(times.transfer, 0)
        faster = np.zeros_like(moving) if np.isinf(change.factor) else np.rint(moving / change.factor).astype(np.int64)
        return replace(times, transfer=times.transfer - moving + faster)
    if change.kind == "balance":
        return _balanced(pipeline, times)
    if change.kind == "no-host-gaps":
        return times  # delays are left out of every play, and added back unless this is asked
    raise NotTold("an op trace has no kernels, no data loading and no streams")


def _like_peers(pipeline: Pipeline, times: Times, ranks: Ints) -> Times:
    """Let ops take the median of the same op on the other ranks of the stage, in the same step."""
    ops = pipeline.ops
    mine = np.isin(ops.rank, ranks)
    key = np.stack([ops.step, ops.stage, ops.kind, ops.seq])
    _, cell = np.unique(key, axis=1, return_inverse=True)
    cell = cell.ravel()
    healthy = ~mine if (~mine).any() else np.ones(len(mine), bool)
    rows = np.flatnonzero(healthy)
    rows = rows[np.lexsort((times.op[rows], cell[rows]))]
    first = np.searchsorted(cell[rows], np.arange(int(cell.max()) + 1))
    number = np.bincount(cell[rows], minlength=len(first))
    if not number[cell[mine]].all():
        raise NotTold("a rank has no peer in its stage")
    low, high = (
        rows[first[cell[mine]] + (number[cell[mine]] - 1) // 2],
        rows[first[cell[mine]] + number[cell[mine]] // 2],
    )
    op = times.op.copy()
    op[mine] = np.where(pipeline.meets[mine], op[mine], (times.op[low] + times.op[high]) // 2)
    return replace(times, op=op)


def _balanced(pipeline: Pipeline, times: Times) -> Times:
    ops = pipeline.ops
    if len(np.unique(ops.stage)) < 2:
        raise NotTold("the job has one stage")
    op = times.op.copy()
    for name in PASSES:
        mine = ops.kind == KINDS.index(name)
        mean = np.bincount(ops.stage[mine], op[mine]) / np.maximum(np.bincount(ops.stage[mine]), 1)
        factor = mean[mean > 0].mean() / np.where(mean > 0, mean, 1.0)
        op[mine] = np.rint(op[mine] * factor[ops.stage[mine]]).astype(np.int64)
    return replace(times, op=op)


def _recorded(pipeline: Pipeline) -> Ints:
    """Return the time of every step as recorded."""
    ops = pipeline.ops
    steps, code = np.unique(ops.step, return_inverse=True)
    low, high = np.full(len(steps), -NEVER), np.full(len(steps), NEVER)
    np.minimum.at(low, code, ops.start)
    np.maximum.at(high, code, ops.end)
    return high - low


def _path(pipeline: Pipeline) -> pa.Table:
    """Return the critical path of the step of median length, without the delays that nothing explains."""
    ops, graph = pipeline.ops, pipeline.graph
    recorded = _recorded(pipeline)
    step = int(np.unique(ops.step)[np.argsort(recorded, kind="stable")[len(recorded) // 2]])
    own = pipeline.without_delays()
    points = pipeline.play([own])[:, 0]
    times = np.full(graph.num_points, NEVER)
    times[: len(points)] = points
    meets = np.flatnonzero(pipeline.meets)
    np.maximum.at(times, 2 * len(ops.start) + pipeline.meeting[meets], times[2 * meets])
    binding = graph.binding(pipeline.lags(own), times)
    mine = np.flatnonzero(ops.step == step)
    point = 2 * int(mine[np.argmax(times[2 * mine + 1])]) + 1
    rows: list[tuple[int, str, int, int]] = []
    while (edge := int(binding[point])) >= 0:
        source = int(graph.source[edge])
        if times[point] > times[source]:
            is_op = point < 2 * len(ops.start) and point % 2 == 1
            op = min(point // 2, len(ops.start) - 1)
            kind = "unexplained" if not is_op else "communication" if pipeline.meets[op] else "compute"
            rows.append((op, kind, int(times[source]), int(times[point])))
        point = source
    rows.reverse()
    which = np.array([row[0] for row in rows], np.int64)
    work = [row[1] != "unexplained" for row in rows]
    names = [KINDS[kind] if real else None for kind, real in zip(ops.kind[which].tolist(), work, strict=True)]
    return conform(
        CRITICAL_PATH,
        pa.table(
            {
                "rank": ops.rank[which].astype(np.int32), "segment": np.zeros(len(rows), np.int32),
                "position": np.arange(len(rows)), "kind": [row[1] for row in rows],
                "name": pa.array(names, pa.utf8()), "step": ops.step[which],
                "start_ns": np.array([row[2] for row in rows], np.int64),
                "dur_ns": np.array([row[3] - row[2] for row in rows], np.int64),
            }
        ),
    )  # fmt: skip
