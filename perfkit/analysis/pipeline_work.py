"""How long the passes of a pipeline stage take, and which messages it exchanges.

    pass_times(view, layout, rows, …) -> Work           forward and backward time of each rank and step
    message_texts(view, layout)       -> Messages       "SSRSRR…" of each rank and step, and the gaps between sends

A pass takes its compute and what stands in its way inside the stage: exposed communication with peers of the stage
(tensor, context, expert parallelism, gathers of shards) and idle time that is neither data, checkpoint nor bubble.
Forward and backward share that by their compute; without phases backward is taken for twice the forward.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.classify import encode_text
from perfkit.analysis.intervals import Ints
from perfkit.analysis.layout import Layout, View
from perfkit.analysis.schedules import Floats
from perfkit.analysis.timeline import Mask, ints

INSIDE = frozenset(("tp", "cp", "ep", "etp", "fsdp"))
"""Roles of groups that a pass waits for."""
NOT_INSIDE = ("data_loader", "checkpoint")
_KEYS = ("rank", "device", "step")


class Work(NamedTuple):
    """Time of all passes of a step, by row of the steps that were asked for."""

    forward_ns: Ints
    backward_ns: Ints


class Messages(NamedTuple):
    """Messages of a rank in a step; the lists are parallel."""

    rank: list[int]
    step: list[int]
    text: list[str]
    first_wait: list[int]
    """Bubble of the first receive."""
    gaps: list[Floats]
    """From each send to the next, without the bubbles of the receives between."""


def add_up(target: pa.Table, rows: pa.Table, values: Ints) -> Ints:
    """Return the sum of `values` over the rows with the rank, device and step of each row of `target`."""
    keys = np.concatenate([np.stack([ints(table[key]) for key in _KEYS], axis=1) for table in (target, rows)])
    distinct, code = np.unique(keys, axis=0, return_inverse=True)
    total = np.zeros(len(distinct), np.int64)
    np.add.at(total, code.ravel()[len(target) :], values)
    result: Ints = total[code.ravel()[: len(target)]]
    return result


def is_one_of(column: pa.ChunkedArray, words: frozenset[str] | tuple[str, ...]) -> Mask:
    """Say which values are one of the words."""
    codes, values = encode_text(column)
    result: Mask = np.array([*(value in words for value in values), False])[codes]
    return result


def pass_times(
    view: View, layout: Layout, rows: pa.Table, steps: pa.Table, idle: pa.Table, waits: pa.Table,
    compute: pa.Table | None,
) -> Work:  # fmt: skip
    """Return the time that the passes took in each row; `waits` are the rows of `idle` that are bubbles."""
    busy = add_up(rows, steps, ints(steps["compute_ns"], 0))
    if compute is not None and len(compute):
        owned = ints(compute["owned_ns"], 0)
        forward, backward = (
            add_up(rows, compute, np.where(is_one_of(compute["phase"], phases), owned, 0))
            for phases in (("forward",), ("backward", "recompute"))
        )
    else:
        forward, backward = busy // 3, busy - busy // 3
    unknown = (forward == 0) | (backward == 0)  # no phases recorded
    forward, backward = np.where(unknown, busy // 3, forward), np.where(unknown, busy - busy // 3, backward)
    roles = [*(role in INSIDE for role in layout.roles), False]
    within = np.array(roles, bool)[ints(view.members["gid"])]
    exposed = sum(ints(view.members[f"exposed_{label}_ns"], 0) for label in ("wait", "transfer", "unsplit"))
    loss = add_up(rows, view.calls, np.where(within, exposed, 0))
    standing = np.where(is_one_of(idle["culprit"], NOT_INSIDE), 0, ints(idle["idle_ns"], 0))
    still = add_up(rows, idle, standing) - add_up(rows, waits, ints(waits["idle_ns"], 0))
    passing = np.maximum(forward + backward, 1)
    extra = loss + np.maximum(still, 0) * np.minimum(passing, busy) // np.maximum(busy, 1)
    return Work(forward + extra * forward // passing, backward + extra * backward // passing)


def message_texts(view: View, layout: Layout) -> Messages:
    """Return what every rank sent (S) and received (R) in every step, in the order in which its host asked for it."""
    gid, step = ints(view.members["gid"]), ints(view.calls["step"])
    sends = is_one_of(view.calls["op"], ("send",))
    mine = np.isin(gid, list(layout.pipeline_gids)) & (sends | is_one_of(view.calls["op"], ("recv",))) & (step >= 0)
    rows = np.flatnonzero(mine)
    rank = ints(view.calls["rank"])[rows]
    start = ints(view.calls["start_ns"])[rows]
    asked = np.where(
        np.asarray(pc.is_valid(view.calls["host_start_ns"]))[rows], ints(view.calls["host_start_ns"])[rows], start
    )
    order = np.lexsort((rows, asked, step[rows], rank))
    rows, rank, start = rows[order], rank[order], start[order]
    waited = ints(view.members["bubble_ns"], 0)
    bubble = np.cumsum(waited[rows])
    edges = np.flatnonzero(np.append(True, (rank[1:] != rank[:-1]) | (step[rows][1:] != step[rows][:-1])))
    found = Messages([], [], [], [], [])
    for part in np.split(np.arange(len(rows)), edges[1:]) if len(rows) else []:
        is_send = sends[rows[part]]
        received = part[~is_send]
        found.rank.append(int(rank[part[0]]))
        found.step.append(int(step[rows[part[0]]]))
        found.first_wait.append(int(waited[rows[received[0]]]) if len(received) else 0)
        found.text.append("".join(np.where(is_send, "S", "R")))
        at = part[is_send]
        found.gaps.append((np.diff(start[at]) - np.diff(bubble[at])).astype(np.float64))
    return found
