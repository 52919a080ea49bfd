"""Pipeline bubbles by stage, against what the schedule itself costs (definition 12).

    bubbles(view, steps, window_idle, compute) -> Bubbles

A bubble is exposed time with a pipeline receive outstanding. The part with a receive on the device is `bubble_ns` of
the job's steps. Where a receive blocks the host and the device idles, it is idle time that the host spent in a
receive: those rows of `window_idle` are handed back in `idle`, to be moved from idle to bubble in the ladder.

The split replays the recognised schedule (perfkit.analysis.schedules) with three sets of pass times: all stages equal
(ideal), each stage its own median (stage imbalance), each replica and step its own (straggler); and once more with the
median time that a message takes to arrive once both ends are there (message). What is left of the measured bubble is
`other`: a late host, a schedule that was not followed. Parts never exceed
the bubble and sum to it. A stage's first wait of a step lies in the window before (definition 1), and its wait after
the last pass is a bubble only if it is free to ask for the next step's first message meanwhile.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.classify import encode_text
from perfkit.analysis.intervals import Ints
from perfkit.analysis.layout import Layout, View
from perfkit.analysis.pipeline_work import Messages, Work, add_up, is_one_of, message_texts, pass_times
from perfkit.analysis.schedules import MAX_PASSES, Floats, Shape, Waits, recognise, replay
from perfkit.analysis.timeline import Mask, ints

PARTS = ("ideal_ns", "imbalance_ns", "straggler_ns", "message_ns", "other_ns")
BUBBLE = pa.schema(
    [
        ("rank", pa.int32()), ("device", pa.int32()), ("step", pa.int64()), ("stage", pa.int32()),
        ("window_ns", pa.int64()), ("bubble_ns", pa.int64()), ("device_ns", pa.int64()), ("idle_ns", pa.int64()),
        *((part, pa.int64()) for part in PARTS),
    ]
)  # fmt: skip
"""bubble = device + idle = the five parts; the parts are null if they cannot be told."""
STAGES = pa.schema(
    [
        ("stage", pa.int32()), ("ranks", pa.int64()), ("window_ns", pa.int64()), ("bubble_ns", pa.int64()),
        ("ratio", pa.float64()), *((part, pa.int64()) for part in PARTS), ("pass_ns", pa.int64()),
    ]
)  # fmt: skip
"""`pass_ns` is the median time of one micro-batch, forward and backward, through the stage."""
BLOCKING_NS = 100_000
"""A receive that keeps the host for less than this a time only posts: that is launch overhead."""
_RECEIVE = re.compile(r"(?<![a-z])i?recv|receive_(forward|backward)")


@dataclass(frozen=True)
class Bubbles:
    """Bubbles of a job; empty without a pipeline."""

    ranks: pa.Table = field(default_factory=BUBBLE.empty_table)
    stages: pa.Table = field(default_factory=STAGES.empty_table)
    idle: pa.Table | None = None
    """Rows of `window_idle` that are bubbles."""
    schedule: str | None = None
    """1f1b, interleaved, gpipe; None if the messages follow none of them."""
    shape: Shape | None = None
    notes: tuple[str, ...] = ()

    @property
    def ratio(self) -> float | None:
        """Measured share of all windows."""
        total = pc.sum(self.ranks["window_ns"]).as_py()
        return pc.sum(self.ranks["bubble_ns"]).as_py() / total if total else None

    @property
    def ideal_ratio(self) -> float | None:
        """Share that the schedule leaves idle if all stages take equally long."""
        return None if self.shape is None else self.shape.ideal_ratio

    @property
    def evidence(self) -> dict[str, object]:
        """What a finding shows."""
        sums = {name: pc.sum(self.ranks[name]).as_py() for name in ("bubble_ns", *PARTS)}
        shape = None if self.shape is None else dict(self.shape._asdict())
        return {
            "schedule": self.schedule, "shape": shape, "ratio": self.ratio, "ideal_ratio": self.ideal_ratio, **sums,
            "stages": self.stages.to_pylist(),
        }  # fmt: skip

    @property
    def sentence(self) -> str | None:
        """One sentence on the bubble; None without a pipeline."""
        if self.ratio is None:
            return None
        text = f"pipeline bubble {100 * self.ratio:.1f} % of the time"
        if self.shape is not None:
            name = self.schedule or "schedule not recognised, counted as 1f1b"
            text += (
                f"; {name} with {self.shape.stages} stages, {self.shape.micro_batches} micro-batches"
                + (f", {self.shape.chunks} chunks" if self.shape.chunks > 1 else "")
                + f" costs {100 * self.shape.ideal_ratio:.1f} % if stages take equally long"
            )
        return text


def bubbles(view: View, steps: pa.Table, window_idle: pa.Table, compute: pa.Table | None = None) -> Bubbles:
    """Return the bubbles of all traced ranks; `steps` are of `attribution`, `compute` of kernels.COMPUTE_SCHEMA."""
    layout = view.layout
    if layout is None or layout.degrees.get("pp", 1) < 2:
        return Bubbles()
    waits = window_idle.filter(pa.array(waits_for_receive(window_idle)))
    rows = _measured(view, layout, waits)
    notes: list[str] = []
    messages = message_texts(view, layout)
    schedule, shape = _recognise(layout, messages, notes)
    work = pass_times(view, layout, rows, steps, window_idle, waits, compute)
    split = None
    if shape is not None and shape.stages * 2 * shape.micro_batches * shape.chunks <= MAX_PASSES:
        moving = _message_ns(view, layout)
        split = split_bubble(layout, rows, work, messages, schedule or _default(shape), shape, message_ns=moving)
        if split is None:
            notes.append("bubble: not every stage has a traced rank, its causes are not split")
    nothing = pa.nulls(len(rows), pa.int64())
    for number, name in enumerate(PARTS):
        rows = rows.append_column(name, nothing if split is None else pa.array(split[number]))
    rows = rows.select(BUBBLE.names).cast(BUBBLE)
    return Bubbles(rows, _by_stage(rows, work, shape), waits, schedule, shape, tuple(notes))


def waits_for_receive(window_idle: pa.Table) -> Mask:
    """Say which rows are idle time with the host blocked in a receive."""
    codes, names = encode_text(window_idle["where"])
    causes, kinds = encode_text(window_idle["cause"])
    receives = np.array([*(_RECEIVE.search(name) is not None for name in names), False])[codes]
    late = np.array([*(kind == "host_late" for kind in kinds), False])[causes]
    long = ints(window_idle["idle_ns"]) >= BLOCKING_NS * np.maximum(ints(window_idle["gaps"]), 1)
    result: Mask = receives & late & long
    return result


def _default(shape: Shape) -> str:
    return "interleaved" if shape.chunks > 1 else "1f1b"


def _measured(view: View, layout: Layout, waits: pa.Table) -> pa.Table:
    """Return the measured bubble of every rank and step with a known stage, in order of both."""
    table = view.steps.select(["rank", "device", "step", "window_ns", "bubble_ns"])
    stage = pa.array([layout.coordinates.get(rank, {}).get("pp") for rank in table["rank"].to_pylist()], pa.int32())
    on_device = ints(table["bubble_ns"], 0)
    idle = add_up(table, waits, ints(waits["idle_ns"], 0))
    columns = {"stage": stage, "device_ns": on_device, "idle_ns": idle, "total_ns": on_device + idle}
    table = table.drop_columns("bubble_ns")
    for name, values in columns.items():
        table = table.append_column("bubble_ns" if name == "total_ns" else name, pa.array(values))
    return table.filter(pc.is_valid(table["stage"])).sort_by([("rank", "ascending"), ("step", "ascending")])


def _recognise(layout: Layout, found: Messages, notes: list[str]) -> tuple[str | None, Shape | None]:
    """Return the schedule that most ranks of every stage follow in most steps."""
    stages = layout.degrees["pp"]
    stage_of = [layout.coordinates.get(rank, {}).get("pp") for rank in found.rank]
    texts: list[str] = []
    gaps: list[Floats] = []
    for stage in range(stages):
        mine = [i for i, at in enumerate(stage_of) if at == stage]
        if not mine:
            notes.append(f"bubble: no messages of stage {stage} are recorded, the schedule is not known")
            return None, None
        texts.append(Counter(found.text[i] for i in mine).most_common(1)[0][0])
        gaps.append(np.median([found.gaps[i] for i in mine if found.text[i] == texts[-1]], axis=0))
    schedule, shape = recognise(texts, stages, gaps)
    given = layout.degrees.get("vpp")
    if shape is not None and given is not None and given != shape.chunks:
        total = shape.micro_batches * (2 * shape.chunks - 1)
        if total % (2 * given - 1) == 0:
            schedule, shape = None, Shape(stages, total // (2 * given - 1), given)
        else:
            notes.append(f"bubble: vpp={given} was given, but the messages fit {shape.chunks} chunks")
    if shape is None:
        notes.append("bubble: the numbers of messages fit no schedule that is known, no ideal")
    elif schedule is None:
        notes.append("bubble: the order of the messages is that of no schedule that is known; split as if it were 1f1b")
    return schedule, shape


def _message_ns(view: View, layout: Layout) -> int:
    """Return the median time that a pipeline message moves; 0 if that could not be told."""
    receives = is_one_of(view.calls["op"], ("recv",)) & np.isin(ints(view.members["gid"]), list(layout.pipeline_gids))
    moved = view.members["transfer_ns"].filter(pa.array(receives)).drop_null().to_numpy()
    return int(np.median(moved)) if len(moved) else 0


def split_bubble(
    layout: Layout, rows: pa.Table, work: Work, messages: Messages, schedule: str, shape: Shape, *, message_ns: int = 0
) -> list[Ints] | None:
    """Return the parts of every row's bubble, None if a stage is not traced."""
    stage, step, bubble = ints(rows["stage"]), ints(rows["step"]), ints(rows["bubble_ns"])
    steps, at = np.unique(step, return_inverse=True)
    lanes: dict[tuple[int, ...], int] = {}
    of_rank = {
        rank: lanes.setdefault(tuple(n for a, n in sorted(c.items()) if a not in ("pp", "ep")), len(lanes))
        for rank, c in sorted(layout.coordinates.items())
    }
    lane = np.array([of_rank[rank] for rank in rows["rank"].to_pylist()], np.int64)
    cube = np.full((2, shape.stages, len(lanes), len(steps)), np.nan)
    cube[:, stage, lane, at] = np.stack([work.forward_ns, work.backward_ns]) / (shape.micro_batches * shape.chunks)
    if np.isnan(cube).all(axis=(0, 2, 3)).any():
        return None
    median = np.nanquantile(cube, 0.5, axis=(2, 3), method="lower")  # of two replicas the healthy one is typical
    typical = replay(schedule, shape, *median[..., None].round().astype(np.int64))
    synced = _ends_together(layout, messages, typical)
    own = np.where(np.isnan(cube), median[:, :, None, None], cube).reshape(2, shape.stages, -1)
    equal = np.broadcast_to(median.mean(axis=1, keepdims=True), median.shape)
    reached = np.zeros_like(bubble)
    parts = []
    for times, moving in ((equal[..., None], 0), (median[..., None], 0), (own, 0), (own, message_ns)):
        forward, backward = times.round().astype(np.int64)
        waits = replay(schedule, shape, forward, backward, moving)
        cell = lane * len(steps) + at if times.shape[-1] > 1 else np.zeros_like(at)
        after = cell + 1 if times.shape[-1] > 1 else cell
        expected = _of_window(waits, stage, cell, after, last=at == len(steps) - 1, synced=synced)
        new = np.minimum(bubble, np.maximum(expected, reached))
        parts.append(new - reached)
        reached = new
    return [*parts, bubble - reached]


def _ends_together(layout: Layout, messages: Messages, typical: Waits) -> bool:
    """Say whether stages wait for each other between steps otherwise than for the next step's first message."""
    last = layout.degrees["pp"] - 1
    waits = [
        wait
        for rank, step, wait in zip(messages.rank, messages.step, messages.first_wait, strict=True)
        if layout.coordinates.get(rank, {}).get("pp") == last and step > min(messages.step)
    ]
    limit = int(typical.first[last, 0]) + int(typical.tail[last, 0]) / 2
    return not waits or float(np.median(waits)) < limit


def _of_window(waits: Waits, stage: Ints, cell: Ints, after: Ints, *, last: Mask, synced: bool) -> Ints:
    """Return what a window holds: the waits inside its step, and before the first pass of the next."""
    following = waits.first[stage, np.where(last, 0, after)]
    if not synced:
        following = following + waits.tail[stage, cell]
    result: Ints = waits.inner[stage, cell] + np.where(last, 0, following)
    return result


def _by_stage(rows: pa.Table, work: Work, shape: Shape | None) -> pa.Table:
    stage = ints(rows["stage"])
    found = []
    for one in np.unique(stage).tolist():
        mine = rows.filter(pa.array(stage == one))
        sums = {name: pc.sum(mine[name]).as_py() for name in ("window_ns", "bubble_ns", *PARTS)}
        total = np.median((work.forward_ns + work.backward_ns)[stage == one])
        found.append(
            {
                "stage": one, "ranks": len(pc.unique(mine["rank"])), **sums,
                "ratio": sums["bubble_ns"] / sums["window_ns"] if sums["window_ns"] else None,
                "pass_ns": None if shape is None else round(total / shape.micro_batches),
            }
        )  # fmt: skip
    return pa.Table.from_pylist(found, schema=STAGES)
