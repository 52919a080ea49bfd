"""Read traces for an analysis that needs no store.

    plan_inputs(paths, spool, rejected) -> [PlannedInput]
    read_input(planned)                 -> Iterator[TracePart]      one rank's share of one input at a time

Ranks and segments are planned as `perfkit ingest` does (perfkit.sources.ranks).

Only what the analysis looks at is kept in memory: no arrows, no args, and of the events the columns of
`timeline.EVENT_COLUMNS`. `num_events` counts all that were read.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from perfkit.analysis.call_args import ARG_COLUMNS
from perfkit.analysis.classify import DEVICE_WORK, classify_events
from perfkit.analysis.ops import OP_COLUMNS
from perfkit.analysis.timeline import EVENT_COLUMNS, HOST_CLASSES, give_back, of_classes
from perfkit.arrays import constant, from_numpy
from perfkit.errors import InputError
from perfkit.schema import TABLES, TRACE_TABLES
from perfkit.sources import kineto
from perfkit.sources.base import Chunk, Oddity, ReadOptions
from perfkit.sources.detect import find_inputs
from perfkit.sources.ranks import PlannedInput, plan_parts
from perfkit.sources.work import peek_all, reader_of

_CLASSES = (*DEVICE_WORK, *HOST_CLASSES, "memory", "overhead")
KEPT = {
    "events": EVENT_COLUMNS, "ops": ("event_id", "call_stack", *OP_COLUMNS), "memory": TABLES["memory"].names,
    "device_info": ("device", "name", "memory_bytes", "num_sms", "compute_major", "compute_minor"),
    "steps": TABLES["steps"].names,
    "collective_args": ("event_id", *ARG_COLUMNS), "process_groups": ("name", "desc", "size", "ranks"),
}  # fmt: skip
"""Tables and columns that the analysis looks at; `rank` and `segment` come on top."""
REPLAY_KEPT = {**KEPT, "events": (*EVENT_COLUMNS, "stream"), "syncs": TABLES["syncs"].names}
"""The same for a replay (perfkit.analysis.replay)."""
WHOLE: Mapping[str, Sequence[str]] = {schema.name: schema.names for schema in TRACE_TABLES}
"""Every table, column and event, for an export."""


@dataclass
class TracePart:
    """Tables of one rank from one input (or of many ranks, from a caller that has them)."""

    path: str
    tables: dict[str, pa.Table]
    world_size: int | None = None
    synthetic: bool = False
    rank: int | None = None
    host: str | None = None
    oddities: list[str] = field(default_factory=list)
    """What its source found odd."""
    num_events: int | None = None
    sources: tuple[str, ...] = ()
    """What recorded it: kineto, nsys, …"""

    def infos(self) -> dict[int, dict[str, Any]]:
        """Host and device name by rank, where known."""
        if self.rank is None:
            return {}
        names = [n for n in self.tables["device_info"]["name"].to_pylist() if n] if "device_info" in self.tables else []
        device = names[0] if len(set(names)) == 1 else None
        return {self.rank: {"host": self.host, "device": device}}


def plan_inputs(
    paths: Iterable[str | os.PathLike[str]], spool: Path, rejected: MutableSequence[dict[str, str]]
) -> list[PlannedInput]:
    """Find what is under `paths` and give every part its rank and segment, as ingest does.

    What cannot be used is appended to `rejected`. Members of archives may be copied to `spool`.
    """
    found = find_inputs(paths, spool=spool)
    peeked = peek_all(found.inputs, found.rejected)
    rejected += [{"path": e.path, "reason": reason(e)} for e in found.rejected]
    return [planned for group in plan_parts(peeked, ()) for planned in group]


def reason(error: InputError) -> str:
    """Return the message without the path."""
    return f"{error.message}; {error.next_step}" if error.next_step else error.message


def read_input(planned: PlannedInput, kept: Mapping[str, Sequence[str]] = KEPT) -> Iterator[TracePart]:
    """Read an input and yield what each of its parts holds of the tables and columns in `kept`."""
    input, source = planned.input, reader_of(planned.input)
    rows: dict[tuple[int, str], list[pa.Table]] = defaultdict(list)
    options = ReadOptions(keep_args=kept is WHOLE)
    reading = source.read(input, options)
    try:
        counts = _collect(reading, rows, kept)
    except kineto.RereadNeeded as again:  # the base time stands after the events
        rows.clear()
        reading = source.read(input, options, base_ns=again.base_ns)
        counts = _collect(reading, rows, kept)
    give_back(sum(counts.values()))
    for part, (info, place) in enumerate(zip(reading.parts, planned.parts, strict=True)):
        rank = place.rank if info.rank is None else info.rank  # a file may name its rank after the events
        tables = {name: _label(rows.pop((part, name)), rank, place.segment) for p, name in list(rows) if p == part}
        tables.setdefault("events", TABLES["events"].empty())
        oddities = [_in_words(odd) for odd in info.oddities.values()]
        yield TracePart(
            input.path, tables, info.world_size, info.synthetic, rank, info.host, oddities, counts[part], (info.source,)
        )


def _in_words(odd: Oddity) -> str:
    """Say what was odd, and how often unless the detail says it."""
    often = f", {odd.count:,} times" if odd.count > 1 and not odd.detail[:1].isdigit() else ""
    return odd.kind.replace("_", " ") + often + (f": {odd.detail}" if odd.detail else "")


def _collect(
    reading: Iterable[Chunk], rows: dict[tuple[int, str], list[pa.Table]], kept: Mapping[str, Sequence[str]]
) -> Counter[int]:
    """Keep what the analysis needs; return the number of events of each part."""
    counts: Counter[int] = Counter()
    for part, table, chunk in reading:
        if table == "events":
            counts[part] += len(chunk)
            chunk = _classified(chunk)
        if table not in kept:
            continue
        chunk = chunk.select([c for c in chunk.column_names if c in kept[table]])
        if table == "events" and kept is not WHOLE:
            chunk = chunk.filter(from_numpy(of_classes(chunk, _CLASSES)))
        rows[part, table].append(chunk)
    return counts


def _classified(events: pa.Table) -> pa.Table:
    """Return the events with a class; some sources leave that to us."""
    if "class" in events.column_names:
        if events["class"].null_count < len(events):
            return events
        events = events.drop_columns("class")
    return events.append_column("class", classify_events(events["category"], events["name"], phase=events["phase"]))


def _label(chunks: list[pa.Table], rank: int, segment: int) -> pa.Table:
    table = pa.concat_tables(chunks).unify_dictionaries()
    for column, value in (("segment", segment), ("rank", rank)):
        table = table.add_column(0, column, constant(value, pa.int32(), len(table)))
    return table
