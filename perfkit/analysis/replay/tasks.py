"""The tasks of all ranks side by side, on one clock.

    join_records(records, align) -> Tasks

Arrays of all ranks stand one behind the other, each rank's in the order of its record, so that everything that follows
is one pass over all of them. Names and streams get numbers that mean the same on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfkit.analysis.classify import CLASSES
from perfkit.analysis.intervals import Ints
from perfkit.analysis.replay.graph import NEVER
from perfkit.analysis.replay.record import Record
from perfkit.analysis.timeline import Mask

FAR = 2**62
COMPUTE, COMM = CLASSES.index("compute"), CLASSES.index("communication")


@dataclass
class Tasks:
    """Tasks and host calls of a job. A lane is one source file of a rank."""

    lane: Ints
    start: Ints
    end: Ints
    kind: Ints
    name: Ints
    family: Ints
    stream: Ints
    """Unique over all lanes, rising with the position."""
    ordinal: Ints
    """Number of the stream in its lane."""
    call: Ints
    step: Ints
    event_id: Ints
    main: Mask
    """Tasks of the stream that computes most in their lane."""
    call_lane: Ints
    call_start: Ints
    call_end: Ints
    call_kind: Ints
    call_chain: Ints
    """Unique over all lanes."""
    hop: Ints
    records: Sequence[Record]
    names: list[str]
    first_task: Ints
    """Of every lane; one more at the end."""
    first_call: Ints
    origin_ns: int
    """What to add to get times of the reference clock."""

    @property
    def previous(self) -> Ints:
        """Task before each one on its stream; -1 for none."""
        if not len(self.stream):
            return self.stream
        same = np.append(False, self.stream[1:] == self.stream[:-1])
        result: Ints = np.where(same, np.arange(len(same)) - 1, -1)
        return result

    @property
    def asked(self) -> Ints:
        """When the host began to launch each task; NEVER if that is not in the trace."""
        result: Ints = np.where(self.call >= 0, np.append(self.call_start, NEVER)[self.call], NEVER)
        return result


def join_records(records: Sequence[Record], align: Callable[[Ints, Ints], Ints]) -> Tasks:
    """Join; `align(ranks, times)` puts times on one clock."""
    numbers: dict[str, int] = {}
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    streams = chains = calls = 0
    first_task, first_call = [0], [0]
    for lane, one in enumerate(records):
        code = np.array([numbers.setdefault(name, len(numbers)) for name in one.names], np.int64)
        rank = np.full(max(len(one.start), len(one.call_start)), one.rank, np.int64)
        device = {n: align(rank[: len(one.start)], getattr(one, n)) for n in ("start", "end")}
        device["end"] = device["start"] + (one.end - one.start)  # lengths are those of the rank's own clock
        host = {n: align(rank[: len(one.call_start)], getattr(one, n)) for n in ("call_start", "call_end")}
        host["call_end"] = host["call_start"] + (one.call_end - one.call_start)
        share = {
            "lane": np.full(len(one.start), lane), **device, "kind": one.kind, "name": code[one.name],
            "family": one.family, "stream": one.stream + streams, "ordinal": one.stream,
            "call": np.where(one.call >= 0, one.call + calls, -1), "step": one.step, "event_id": one.event_id,
            "main": _main(one), "call_lane": np.full(len(one.call_start), lane), **host, "call_kind": one.call_kind,
            "call_chain": one.chain + chains, "hop": one.hop,
        }  # fmt: skip
        for name, values in share.items():
            columns[name].append(values)
        streams += int(one.stream.max(initial=-1)) + 1
        chains += int(one.chain.max(initial=-1)) + 1
        calls += len(one.call_start)
        first_task.append(first_task[-1] + len(one.start))
        first_call.append(calls)
    joined: dict[str, Any] = {name: np.concatenate(parts) for name, parts in columns.items()}
    origin = int(min(joined[name].min(initial=FAR) for name in ("start", "call_start")))
    for name in ("start", "end", "call_start", "call_end"):
        joined[name] = joined[name] - origin
    return Tasks(
        **joined, records=records, names=list(numbers), first_task=np.array(first_task),
        first_call=np.array(first_call), origin_ns=origin,
    )  # fmt: skip


_COLUMNS = (
    "lane", "start", "end", "kind", "name", "family", "stream", "ordinal", "call", "step", "event_id", "main",
    "call_lane", "call_start", "call_end", "call_kind", "call_chain", "hop",
)  # fmt: skip


def _main(record: Record) -> Mask:
    busy = np.bincount(record.stream, np.where(record.kind == COMPUTE, record.end - record.start, 0))
    result: Mask = record.stream == int(np.argmax(busy))
    return result
