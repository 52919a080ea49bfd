"""Kineto and Chrome traces (torch.profiler) to tables.

    peek(input)           -> [PartInfo]       from the keys before the events
    read(input, options)  -> KinetoReading    iterate for Chunks
    read_tables(path)     -> {table: pa.Table} one file in memory, with rank and segment columns

One file is one rank. Any valid JSON is read to the same result, whoever wrote or re-dumped it: top level
object or list, keys in any order, categories old or new. Categories are kept as written; `class` is
what perfkit makes of them.

`ts` counts microseconds from baseTimeNanoseconds, which many versions write after the events. Where times
look relative, the end of the file is searched for it first (a decompression at most). That is only a
guess: if the keys say otherwise in the end, `RereadNeeded` tells the caller to read again.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from perfkit import schema
from perfkit.arrays import constant, to_numpy, valid_mask
from perfkit.errors import InputError
from perfkit.sources.base import Chunk, Input, PartInfo, ReadOptions
from perfkit.sources.inputs import shown_path
from perfkit.sources.json_stream import DECODER, TraceWalk, Written
from perfkit.sources.kineto_fields import PLAN, PLAN_WITH_ARGS
from perfkit.sources.kineto_tables import EventPairs, Piece, make_piece, meta_rows
from perfkit.sources.scan import integer_of

RANK_IN_NAME = re.compile(
    r"(?:(?P<of>[a-z]+?)[-_. ]*)?(?:(?<![a-z])rank|(?<=(?-i:[a-z]))(?-i:Rank))[-_. ]?0*(\d{1,6})(?!\d)"
    r"|worker[-_]?0*(\d{1,6})(?!\d)|^profile_(\d{1,6})\.|^(\d{1,6})_trace\.",
    re.IGNORECASE,
)
"""Ranks in file names: rank3, rank_03, worker7, Accelerate's profile_5.json, Lightning's 2_trace.json."""
_LAST_WORD = re.compile(r"(?:[A-Z]?[a-z]+|[A-Z]+)$")
_PARTIAL_RANKS = frozenset(
    ("local", "node", "group", "role", "parallel", "pp", "vpp", "tp", "etp", "dp", "edp", "ep", "cp", "sp", "mp")
)
"""What a rank may count within: local_rank2 and tp_rank_1 say nothing about the rank in the job."""


RELATIVE_BELOW_US = 10**14
"""Timestamps from 1973 or before are relative to a base; absolute ones are sixteen digits long."""
TAIL_BYTES = 1 << 16
BASE_KEY = "baseTimeNanoseconds"
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*"?(-?\d[-+.\deE]*)')
_FIRST_TS = re.compile(rb'"ts"\s*:\s*"?(-?\d+)')


class RereadNeeded(Exception):
    """The base time is another than the one that was used: read again with this one."""

    def __init__(self, base_ns: int) -> None:
        super().__init__(f"baseTimeNanoseconds {base_ns} was found after the events")
        self.base_ns = base_ns


def peek(input: Input) -> list[PartInfo]:
    """Read the keys before the events."""
    with closing(input.open()) as stream:
        walk = TraceWalk(stream, input.path)
        walk.read_head()
    info = PartInfo(source="kineto")
    _describe(info, walk.keys, input.path)
    return [info]


def read(input: Input, options: ReadOptions, *, base_ns: int | None = None) -> KinetoReading:
    """Read a trace; `base_ns` overrides the base time (after `RereadNeeded`)."""
    return KinetoReading(input, options, base_ns)


def read_tables(path: str | os.PathLike[str], *, keep_args: bool = False, threads: int = 1) -> dict[str, pa.Table]:
    """Read one trace file into memory."""
    from perfkit.sources.detect import find_inputs

    found = find_inputs([path])
    if len(found.inputs) != 1:
        if found.rejected:
            raise found.rejected[0]
        raise InputError(f"{len(found.inputs)} traces", path=shown_path(path), next_step="give one trace file")
    input = found.inputs[0]
    options = ReadOptions(keep_args=keep_args, threads=threads)
    base_ns = None
    while True:
        tables: dict[str, list[pa.Table]] = {}
        reading = read(input, options, base_ns=base_ns)
        try:
            for chunk in reading:
                tables.setdefault(chunk.table, []).append(chunk.rows)
        except RereadNeeded as again:
            base_ns = again.base_ns
            continue
        break
    rank = reading.parts[0].rank or 0
    return {
        name: _label(definition, tables.get(name, []), rank)
        for name, definition in schema.TABLES.items()
        if definition in schema.TRACE_TABLES
    }


def _label(definition: schema.TableSchema, tables: list[pa.Table], rank: int) -> pa.Table:
    if not tables:
        return definition.empty()
    table = pa.concat_tables(tables).unify_dictionaries()
    labels = {"rank": rank, "segment": 0}
    for name, value in labels.items():
        table = table.append_column(name, constant(value, pa.int32(), len(table)))
    return schema.conform(definition, table)


@dataclass
class KinetoReading:
    """A trace being read; see `perfkit.sources.base.Reading`."""

    input: Input
    options: ReadOptions
    base_ns: int | None = None

    def __post_init__(self) -> None:
        self.parts = [PartInfo(source="kineto")]
        self._walk: TraceWalk | None = None

    @property
    def bytes_read(self) -> int:
        """Uncompressed bytes so far."""
        return self._walk.bytes_read if self._walk else 0

    def __iter__(self) -> Iterator[Chunk]:
        with closing(self.input.open()) as stream:
            walk = TraceWalk(stream, self.input.path, scanner=self.options.scanner, threads=self.options.threads)
            self._walk = walk
            walk.read_head()
            stated = _base_ns(walk.keys)
            base_ns = stated if self.base_ns is None else self.base_ns
            relative = stated is None and _looks_relative(walk.first_bytes)
            if relative and base_ns is None:
                base_ns = _base_in_tail(self.input)
            results = walk.scan(PLAN_WITH_ARGS if self.options.keep_args else PLAN, base_ns=base_ns or 0)
            yield from self._gather(make_piece(result, first) for first, result in results)
            whole = walk.problem is None or walk.problem.kind == "trailing_data"
            stated = _base_ns(walk.keys)
            if (stated or 0) != (base_ns or 0) and whole:
                raise RereadNeeded(stated or 0)
        info = self.parts[0]
        _describe(info, walk.keys, self.input.path)
        if stated is None and (written := walk.keys.get(BASE_KEY)) is not None:
            info.note("no_base_time", 1, f"{BASE_KEY} is {_shown(written)}, no integer of 64 bits; not used")
        elif relative and stated is None and not base_ns:
            info.note("no_base_time", 1, "timestamps are relative and the file does not say to what")
        if walk.problem:
            info.note(walk.problem.kind, 1, walk.problem.detail)
        info.note("invalid_utf8", walk.replaced, "replaced by U+FFFD")
        info.note("duplicate_key", len(walk.repeated), ", ".join(walk.repeated[:5]))
        yield from _metadata_chunks(walk.keys, info)

    def _gather(self, pieces: Iterable[Piece]) -> Iterator[Chunk]:
        """Collect pieces into chunks of about `rows_per_chunk` events."""
        info = self.parts[0]
        held: dict[str, list[pa.Table]] = {}
        num_rows = 0
        for tables in self._paired(pieces):
            events = tables.pop("events")
            info.num_events += len(events)
            info.see_times(*_time_range(events))
            num_rows += len(events)
            for name, rows in {"events": events, **tables}.items():  # the largest first
                if len(rows):
                    held.setdefault(name, []).append(rows)
            if num_rows >= self.options.rows_per_chunk:
                yield from _flush(held)
                num_rows = 0
        yield from _flush(held)

    def _paired(self, pieces: Iterable[Piece]) -> Iterator[dict[str, pa.Table]]:
        info, pairs = self.parts[0], EventPairs()
        for piece in pieces:
            for kind, odd in piece.oddities.items():
                info.note(kind, odd.number, odd.detail)
            yield pairs.match(piece.tables, info) if piece.has_pairs else piece.tables
        yield from pairs.finish(info)


def _flush(held: dict[str, list[pa.Table]]) -> Iterator[Chunk]:
    for name, tables in held.items():
        yield Chunk(0, name, pa.concat_tables(tables))  # whoever needs one dictionary unifies them
    held.clear()


def _time_range(events: pa.Table) -> tuple[int | None, int | None]:
    starts, durations = events["start_ns"], events["dur_ns"]
    if starts.null_count == len(starts):
        return None, None
    start, known = to_numpy(starts), valid_mask(starts)
    duration = np.where(known & valid_mask(durations), to_numpy(durations), 0)
    if starts.null_count:
        start, duration = start[known], duration[known]
    return int(start.min()), int(np.maximum(start, start + duration).max())  # an end beyond int64 is none


# ------------------------------------------------------------------ what the top-level keys say


def _base_ns(keys: dict[str, Any]) -> int | None:
    """Return the base time, exactly; None if there is none that fits 64 bits."""
    base = keys.get(BASE_KEY)
    text = base.text if isinstance(base, Written) else base
    return integer_of(str(text)) if isinstance(text, (str, int)) else None


def _shown(value: Any) -> str:
    """Quote a JSON value, shortened."""
    text = value.text if isinstance(value, Written) else json.dumps(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _looks_relative(first_bytes: bytes) -> bool:
    stamps = _FIRST_TS.findall(first_bytes)
    return bool(stamps) and int(max(stamps, key=len)[:19]) < RELATIVE_BELOW_US


def _base_in_tail(input: Input) -> int | None:
    """Find the base time in the last bytes of the file; None if it is not there."""
    with closing(input.open()) as stream:
        if input.compression == "none" and input.member is None and input.size_bytes > TAIL_BYTES:
            with input.file.open("rb") as file:
                file.seek(-TAIL_BYTES, os.SEEK_END)
                tail = file.read()
        else:
            buffer, tail = bytearray(1 << 20), b""
            while count := stream.readinto(buffer):  # type: ignore[attr-defined]  # every raw stream has it
                tail = (tail + bytes(memoryview(buffer)[:count]))[-TAIL_BYTES:]
    found = _BASE.search(tail)
    return integer_of(found[1].decode()) if found else None


def _int(value: Any) -> int | None:
    """Return a count or an index: from 0, and in 32 bits."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def _describe(info: PartInfo, keys: dict[str, Any], path: str) -> None:
    """Fill in rank, world size, host and versions."""
    distributed = keys.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    info.world_size = _rank(distributed.get("world_size"))
    host = keys.get("host_name")
    info.host = host if isinstance(host, str) and host else None
    info.synthetic = keys.get("perfkit_synthetic") is True
    for source in (keys, distributed):
        for key, value in source.items():
            if key.endswith("_version") and isinstance(value, (str, int)):
                info.versions[key] = str(value)
    named = rank_in_name(path)
    stated = distributed.get("rank")
    info.rank = _rank(stated)
    if info.rank is not None:
        info.rank_source = "distributedInfo"
        if named not in (None, info.rank):
            info.note(
                "rank_disagrees", 1, f"distributedInfo says {info.rank}, the file name {named}; the former counts"
            )
        if info.world_size is not None and info.rank >= info.world_size:
            info.note("odd_rank", 1, f"rank {info.rank} of a world of {info.world_size}; taken as it is")
        return
    if stated is not None:
        info.note("odd_rank", 1, f"distributedInfo says that the rank is {_shown(stated)}; not used")
    if named is not None:
        info.rank, info.rank_source = named, "file name"


def _rank(value: Any) -> int | None:
    """Return a rank or number of ranks, which some writers put in quotes."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 10:
        value = int(value)
    return _int(value)


def rank_in_name(path: str) -> int | None:
    """Rank that a file name mentions, None if it mentions none."""
    for match in RANK_IN_NAME.finditer(Path(path.rpartition("!")[2]).name):
        of, *groups = match.groups()
        word = _LAST_WORD.search(of or "")
        if word is None or word[0].lower() not in _PARTIAL_RANKS:
            return int(next(group for group in groups if group))
    return None


def _metadata_chunks(keys: dict[str, Any], info: PartInfo) -> Iterator[Chunk]:
    devices = [row for row in _as_list(keys.get("deviceProperties")) or [] if isinstance(row, dict)]
    rows: list[dict[str, object]] = []
    for device in devices:
        number = _int(device.get("id"))
        if number is None:
            continue
        name = device.get("name")
        memory = device.get("totalGlobalMem")
        rows.append(
            {
                "device": number,
                "name": name if isinstance(name, str) and name else None,
                "memory_bytes": memory if isinstance(memory, int) and 0 <= memory < 2**63 else None,
                "num_sms": _int(device.get("numSms")),
                "compute_major": _int(device.get("computeMajor")),
                "compute_minor": _int(device.get("computeMinor")),
                "properties": json.dumps(_finite(device)),
            }
        )
    if rows:
        yield Chunk(0, "device_info", meta_rows(schema.DEVICE_INFO, rows))
    distributed = keys.get("distributedInfo")
    groups = (_as_list(distributed.get("pg_config")) or []) if isinstance(distributed, dict) else []
    rows = []
    for group in groups:
        if not isinstance(group, dict) or group.get("pg_name") is None:
            continue
        listed = _as_list(group.get("ranks"))
        ranks = None if listed is None else [_rank(rank) for rank in listed]
        rows.append(
            {
                "name": str(group["pg_name"]),
                "desc": _text(group.get("pg_desc")),
                "backend": _text(group.get("backend_config") or group.get("backend")),
                "size": _rank(group.get("pg_size", group.get("group_size"))),
                "ranks": None if ranks is None or None in ranks else ranks,
            }
        )
    if rows:
        yield Chunk(0, "process_groups", meta_rows(schema.PROCESS_GROUPS, rows))


def _as_list(value: Any) -> list[Any] | None:
    if isinstance(value, str):  # some writers put JSON text here
        try:
            value = DECODER.decode(value)
        except (json.JSONDecodeError, RecursionError):
            return None
    return value if isinstance(value, list) else None


def _finite(value: Any) -> Any:
    """Replace by null what JSON has no number for."""
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)
