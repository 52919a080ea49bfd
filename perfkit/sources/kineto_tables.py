"""One scanned chunk of a Kineto trace to rows of perfkit's tables.

    make_piece(ScanResult, first)     -> Piece     pure
    EventPairs().match(tables, info)  -> tables    B and E rows become one row each

Columns of numbers are taken over as they are; only the few that need meaning are computed: the class,
the device and stream of device work that names neither, text tracks, grids. Oddities are counted here,
because here a null can still be told from a value that did not fit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from perfkit import schema
from perfkit.analysis.classify import classify_events
from perfkit.arrays import codes_of, dictionary, from_list, from_numpy, nulls, one_chunk, to_numpy, valid_mask
from perfkit.sources.base import PartInfo
from perfkit.sources.kineto_fields import SIDE_TABLES
from perfkit.sources.scan import NUMBER_TEXT, Columns, ScanResult

ON_DEVICE = ("compute", "communication", "memcpy", "memset", "sync", "device_range")
"""Classes whose pid and tid are the device and the stream."""
Pairs: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
OLD_PROCESSES = {"CPU functions", "CUDA functions"}
"""Of PyTorch before 1.8, which wrote no categories. The threads of the second are devices."""


class Odd(NamedTuple):
    """How often a kind of oddity occurs in a chunk, and its first case: the same wherever a scanner cuts chunks."""

    number: int
    detail: str
    first: int


@dataclass(slots=True)
class Piece:
    """Rows of one chunk, without rank and segment columns."""

    tables: dict[str, pa.Table]
    has_pairs: bool = False
    """There are B or E events to match."""
    oddities: dict[str, Odd] = field(default_factory=dict)


def make_piece(result: ScanResult, first: int) -> Piece:
    """Turn scanned columns into rows of tables; `first` events come before them in the file."""
    columns = result.columns
    scanned = columns.groups[0]
    piece = Piece({})
    _note_misfits(piece, result.not_events, columns)
    phases = _used(scanned["ph"])
    collective = np.zeros(result.num_events, bool)
    for name, batch in zip(SIDE_TABLES, columns.groups[1:], strict=True):
        if batch.num_rows:
            piece.tables[name] = _side_table(name, batch, first, piece)
            if name == "collective_args":
                collective[to_numpy(batch["event"])[valid_mask(batch["collective"])]] = True
    events = _events(scanned, first, collective, piece)
    if "C" in phases:
        piece.tables["counters"] = _counters(scanned, events, piece)
    if "M" in phases:
        is_meta = _has_phase(scanned["ph"], "M")
        chosen = from_numpy(is_meta)
        piece.tables["tracks"] = _tracks(scanned.filter(chosen), events.filter(chosen))
        events = _without(events, is_meta)
    _note_missing(piece, events, columns)
    piece.has_pairs = "B" in phases or "E" in phases
    piece.tables["events"] = events
    return piece


def _used(column: pa.DictionaryArray) -> set[str | None]:
    return set(column.dictionary.to_pylist())


def _has_phase(phase: pa.DictionaryArray, wanted: str) -> npt.NDArray[np.bool_]:
    """Rows of one phase, by its code: comparing a million strings costs more than scanning them."""
    known = phase.dictionary.to_pylist()
    if wanted not in known:
        return np.zeros(len(phase), np.bool_)
    found: npt.NDArray[np.bool_] = codes_of(phase) == known.index(wanted)
    return found


def _events(scanned: pa.RecordBatch, first: int, collective: npt.NDArray[np.bool_], piece: Piece) -> pa.Table:
    is_old = not OLD_PROCESSES.isdisjoint(_used(scanned["pid_text"]))
    category = _processes_as_categories(scanned) if is_old else scanned["cat"]
    classes = classify_events(category, scanned["name"], collective, scanned["ph"])
    # device work without these args (gpu_user_annotation, old files) says it by its track
    lookup = np.array([*(name in ON_DEVICE for name in classes.dictionary.to_pylist()), False])
    on_device = lookup[codes_of(classes)]
    device = _where_null(scanned["device"], on_device, scanned["tid" if is_old else "pid"])
    stream = _where_null(scanned["stream"], on_device, scanned["tid"])
    arrays = {
        "event_id": from_numpy(np.arange(first, first + scanned.num_rows)),
        "phase": scanned["ph"],
        "category": scanned["cat"],
        "class": classes,
        "name": scanned["name"],
        "start_ns": scanned["ts"],
        "dur_ns": _durations(scanned, piece),
        "device": _to_int32(device, piece),
        "stream": stream,
        "pid": scanned["pid"],
        "tid": scanned["tid"],
        "track": _track(scanned["pid_text"], scanned["tid_text"]),
        "correlation": scanned["correlation"],
        "external_id": scanned["external_id"],
        "python_id": scanned["python_id"],
        "python_parent_id": scanned["python_parent_id"],
        "flow_id": scanned["id"],
        "bytes": scanned["bytes"],
    }
    if "unknown_args" in scanned.schema.names:
        arrays["args"] = scanned["unknown_args"]
    return pa.table(arrays)


def _durations(scanned: pa.RecordBatch, piece: Piece) -> pa.Array:
    """Durations of X events. B and E get theirs when they meet, and what others carry means nothing."""
    values, known = to_numpy(scanned["dur"]), valid_mask(scanned["dur"])
    interval = _has_phase(scanned["ph"], "X")
    stray, negative = known & ~interval, known & interval & (values < 0)
    if not stray.any() and not negative.any():
        return scanned["dur"]
    _add(piece, "not_read", stray, "dur of an event that is not X")
    if negative.any():
        _add(piece, "negative_dur", negative, f"the first is {values[negative][0]} ns")
    return from_numpy(values, known & interval & ~negative)


def _processes_as_categories(scanned: pa.RecordBatch) -> pa.DictionaryArray:
    written, process = (scanned[name].cast(pa.utf8()) for name in ("cat", "pid_text"))
    return pc.if_else(written.is_valid(), written, process).dictionary_encode()


def _without(rows: pa.Table, mask: npt.NDArray[np.bool_]) -> pa.Table:
    """Drop rows. Metadata events come in a few runs: slices around them need no copy, unlike a filter."""
    edges = np.flatnonzero(np.diff(np.concatenate(([True], mask, [True]))))  # starts and ends of what stays
    if len(edges) > 64:
        return rows.filter(from_numpy(~mask))
    return pa.concat_tables([rows.slice(0, 0), *(rows.slice(a, b - a) for a, b in edges.reshape(-1, 2))])


def _where_null(values: pa.Array, mask: npt.NDArray[np.bool_], other: pa.Array) -> pa.Array:
    """`other` where `mask` holds and `values` has nothing."""
    if values.null_count == 0:
        return values
    wanted = mask & ~valid_mask(values)
    return pc.if_else(from_numpy(wanted), other, values) if wanted.any() else values


def _to_int32(values: pa.Array, piece: Piece) -> pa.Array:
    if values.null_count == len(values):
        return nulls(pa.int32(), len(values))
    numbers, known = to_numpy(values), valid_mask(values)
    narrow = numbers.astype(np.int32)
    misfits = known & (narrow != numbers)
    _add(piece, "integer_out_of_range", misfits, "first in column device")
    return from_numpy(narrow, known & ~misfits)


def _track(pid: pa.DictionaryArray, tid: pa.DictionaryArray) -> pa.Array:
    """Text of a process or thread that is named, not numbered: `pid`, `tid` or `pid/tid`."""
    if pid.null_count == len(pid) and tid.null_count == len(tid):
        return nulls(schema.TEXT, len(pid))
    if (len(pid.dictionary) + 1) * (len(tid.dictionary) + 1) > 1_000_000:  # hostile: every event names its own
        joined = pc.binary_join_element_wise(pid.cast(pa.utf8()), tid.cast(pa.utf8()), "/", null_handling="skip")
        empty = pc.is_in(joined, from_list(["", "/"], pa.utf8()))
        return pc.if_else(empty, pa.nulls(len(joined), pa.utf8()), joined).dictionary_encode()
    names_p, names_t = [None, *pid.dictionary.to_pylist()], [None, *tid.dictionary.to_pylist()]
    texts = ["/".join(text for text in (p, t) if text) for p in names_p for t in names_t]  # by combined code
    codes = (codes_of(pid) + 1) * len(names_t) + codes_of(tid) + 1
    named = np.array([bool(text) for text in texts])
    return dictionary(codes.astype(np.int32), from_list(texts, pa.utf8()), named[codes])


def _side_table(name: str, batch: pa.RecordBatch, first: int, piece: Piece) -> pa.Table:
    event_id = from_numpy(to_numpy(batch["event"]) + first)
    table = pa.table([event_id, *batch.columns[1:]], names=["event_id", *batch.schema.names[1:]])
    if name == "kernels_meta":
        for column in ("grid", "block"):
            for axis, values in zip("xyz", _three_integers(batch, column, piece), strict=True):
                table = table.append_column(f"{column}_{axis}", values)
        table = table.drop_columns(["grid", "block"])
    return table


_DECODER = json.JSONDecoder(parse_int=lambda digits: int(digits) if len(digits) < 30 else None)
"""Python refuses to read an integer of thousands of digits; here it is none that a column could hold."""
_FLOATS = json.JSONDecoder(parse_int=float)


def _parsed(texts: pa.DictionaryArray, decoder: json.JSONDecoder = _DECODER) -> list[Any]:
    """Each distinct text of a JSON column as a value: one call for all is several times faster than one for each."""
    return list(decoder.decode(f"[{','.join(texts.dictionary.to_pylist())}]"))


@lru_cache(maxsize=65_536)
def _three(text: str) -> tuple[int | None, ...] | None:
    """Up to three integers in brackets; None if the text is anything else."""
    try:
        value: Any = [int(part) for part in text[1:-1].split(",")] if text[0] == "[" else None
    except ValueError:
        value = _DECODER.decode(text)
    whole = isinstance(value, list) and len(value) <= 3 and all(type(v) is int and abs(v) < 2**63 for v in value)
    return (*value, None, None, None)[:3] if whole else None


def _three_integers(batch: pa.RecordBatch, column: str, piece: Piece) -> list[pa.Array]:
    """`[x,y,z]` as three columns; each distinct text is parsed once."""
    texts = batch[column]
    words = texts.dictionary.to_pylist()
    found = [_three(text) for text in words]
    codes = codes_of(texts)
    if odd := [code for code, row in enumerate(found) if row is None]:
        misfits = np.isin(codes, odd)
        where = to_numpy(batch["event"])[misfits]
        detail = f"{column} is not up to three integers, such as {words[codes[misfits.argmax()]][:40]}"
        _add_at(piece, "type_mismatch", where, detail)
    rows = [row or (None, None, None) for row in found] or [(None, None, None)]
    known = np.array([[value is not None for value in row] for row in rows])
    values = np.array([[value or 0 for value in row] for row in rows])
    return [from_numpy(values[codes, axis], known[codes, axis] & (codes >= 0)) for axis in range(3)]


def _tracks(scanned: pa.RecordBatch, events: pa.Table) -> pa.Table:
    """Metadata events: process_name, thread_name, …; each distinct args text is parsed once."""
    values = [_meta_value(value) for value in _parsed(scanned["raw_args"])]
    named = scanned["name"].is_valid()
    of_process = pc.starts_with(scanned["name"].cast(pa.utf8()), "process_")
    of_process = from_numpy(to_numpy(of_process) & valid_mask(of_process))
    table = pa.table(
        {
            "pid": events["pid"],
            "tid": pc.if_else(of_process, nulls(pa.int64(), len(events)), one_chunk(events["tid"])),
            "track": events["track"],
            "key": scanned["name"],
            "value": from_list(values, pa.utf8()).take(scanned["raw_args"].indices),
        }
    )
    return table.filter(named)


def _meta_value(args: dict[str, Any]) -> str | None:
    value = next((args[key] for key in ("name", "labels", "sort_index") if key in args), None)
    return value if isinstance(value, str) or value is None else json.dumps(value)


def _counters(scanned: pa.RecordBatch, events: pa.Table, piece: Piece) -> pa.Table:
    """`C` events: one row per series in their args; each distinct args text is parsed once."""
    chosen = _has_phase(scanned["ph"], "C")
    for needed in ("raw_args", "ts", "name"):
        chosen &= valid_mask(scanned[needed])
    rows = scanned.filter(from_numpy(chosen))
    device = one_chunk(events["device"]).filter(from_numpy(chosen))
    series = [[(key, _finite(value)) for key, value in args.items()] for args in _parsed(rows["raw_args"], _FLOATS)]
    codes = to_numpy(rows["raw_args"].indices)
    odd = np.array([sum(value is None for _, value in pairs) for pairs in series], np.int64)[codes]
    if odd.any():
        example = next(key for key, value in series[codes[np.flatnonzero(odd)[0]]] if value is None)
        detail = f"series {example[:40]!r} of a counter is no number; the value has no row"
        _add_at(piece, "type_mismatch", np.repeat(np.flatnonzero(chosen), odd), detail)
    flat = [pair for pairs in series for pair in pairs if pair[1] is not None]
    sizes = np.array([sum(value is not None for _, value in pairs) for pairs in series], np.int64)
    starts = np.cumsum(sizes) - sizes
    repeat = sizes[codes]
    row = np.repeat(np.arange(len(codes)), repeat)
    within = np.arange(len(row)) - np.repeat(np.cumsum(repeat) - repeat, repeat)
    at, row = from_numpy(starts[codes][row] + within), from_numpy(row)
    return pa.table(
        {
            "device": device.take(row),
            "time_ns": rows["ts"].take(row),
            "name": rows["name"].take(row),
            "series": from_list([key for key, _ in flat], pa.utf8()).take(at),
            "value": from_list([value for _, value in flat], pa.float64()).take(at),
        }
    )


def _finite(value: Any) -> float | None:
    """Return a number, also one in quotes; None for anything else."""
    is_number = isinstance(value, float) or (isinstance(value, str) and NUMBER_TEXT.match(value))
    return float(value) if is_number and math.isfinite(float(value)) else None


# ------------------------------------------------------------------ oddities


def _add(piece: Piece, kind: str, where: npt.NDArray[np.bool_], detail: str) -> None:
    """Count the rows of a mask."""
    _add_at(piece, kind, np.flatnonzero(where), detail)


def _add_at(piece: Piece, kind: str, rows: npt.NDArray[np.int64], detail: str) -> None:
    """Count rows, which are in order."""
    if len(rows):
        _put(piece, kind, Odd(len(rows), detail, int(rows[0])))


def _put(piece: Piece, kind: str, odd: Odd) -> None:
    """Count an oddity; the detail of the first in the file is kept."""
    have = piece.oddities.get(kind, odd)
    number = odd.number if have is odd else have.number + odd.number
    piece.oddities[kind] = (odd if odd.first < have.first else have)._replace(number=number)


def _note_misfits(piece: Piece, not_events: int, columns: Columns) -> None:
    if not_events:
        _put(piece, "not_an_event", Odd(not_events, "traceEvents has elements that are not objects; skipped", 0))
    for tallies, otherwise in ((columns.mismatches, "type_mismatch"), (columns.out_of_range, "integer_out_of_range")):
        for column, tally in tallies.items():
            kind = "time_out_of_range" if column in ("ts", "dur") else otherwise
            _put(piece, kind, Odd(tally.number, f"first in column {column}", tally.first))
    for column in ("id", "device", "stream"):
        texts = columns.groups[0][f"{column}_text"]
        if texts.null_count < len(texts):
            example = texts.drop_null()[0].as_py()
            _add(piece, "type_mismatch", valid_mask(texts), f"{column} is text, such as {example[:40]!r}")


def _note_missing(piece: Piece, events: pa.Table, columns: Columns) -> None:
    def misfits(column: str) -> int:
        return sum(
            tallies[column].number for tallies in (columns.mismatches, columns.out_of_range) if column in tallies
        )

    missing = events["start_ns"].null_count - misfits("ts")
    if missing > 0:
        _put(piece, "missing_ts", Odd(missing, "kept with start_ns null", 0))
    if events["dur_ns"].null_count:
        is_interval = _has_phase(one_chunk(events["phase"]), "X")
        missing = int((is_interval & ~valid_mask(events["dur_ns"])).sum()) - misfits("dur")
        missing -= piece.oddities["negative_dur"].number if "negative_dur" in piece.oddities else 0
        if missing > 0:
            _put(piece, "missing_dur", Odd(missing, "kept with dur_ns null", 0))


# ------------------------------------------------------------------ B and E


FILLED = (
    "category", "name", "device", "stream", "correlation", "external_id", "python_id", "python_parent_id", "flow_id",
    "bytes", "args",
)  # fmt: skip
"""Columns of `events` that an E may say for its B."""


@dataclass(slots=True)
class _Waiting:
    """B events of one chunk without an E so far, and their rows of the side tables."""

    events: pa.Table
    thread: npt.NDArray[np.int64]
    threads: npt.NDArray[np.int64]
    """Each once."""
    side: dict[str, pa.Table]

    def ended_by(self, thread: npt.NDArray[np.int64]) -> Pairs:
        """Row numbers of (begin, end) pairs, where E events of these threads follow."""
        if not np.isin(self.threads, thread).any():
            return np.empty(0, np.int64), np.empty(0, np.int64)
        is_begin = np.arange(len(self.thread) + len(thread)) < len(self.thread)
        first, second = _nest(np.concatenate([self.thread, thread]), is_begin)
        return first, second - len(self.thread)

    def release(self, rows: npt.NDArray[np.int64], side: dict[str, pa.Table]) -> pa.Table:
        """Give away events, and their rows of side tables to `side`."""
        released, left = self.events.take(from_numpy(rows)), np.ones(len(self.events), bool)
        left[rows] = False
        self.events, self.thread = self.events.filter(from_numpy(left)), self.thread[left]
        for name, table in self.side.items():
            own, self.side[name] = _parted(table, released)
            side[name] = pa.concat_tables([side[name], own]) if name in side else own
        return released


class EventPairs:
    """Matches B and E events across chunks: per thread, in file order, innermost first.

    What waits is kept by the chunk that it came in, which is looked at again only for an E of one of its threads:
    events that never end cost no more than others.
    """

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []
        self._threads: dict[tuple[Any, ...], int] = {}

    def match(self, tables: dict[str, pa.Table], info: PartInfo) -> dict[str, pa.Table]:
        """Return the tables with every B whose E has come as one X row; open ones are held back."""
        events = tables["events"]
        phase = one_chunk(events["phase"])
        begin, end = _has_phase(phase, "B"), _has_phase(phase, "E")
        others, rows = events.filter(from_numpy(~(begin | end))), events.filter(from_numpy(begin | end))
        begin, thread = begin[begin | end], self._number_threads(rows)
        side = {name: tables[name] for name in SIDE_TABLES if name in tables}
        first, second = _nest(thread, begin)
        alone = np.ones(len(rows), bool)
        alone[first] = alone[second] = False
        begins, ends, strays = [rows.take(from_numpy(first))], [second], np.flatnonzero(alone & ~begin)
        for waiting in reversed(self._waiting):
            first, second = waiting.ended_by(thread[strays])
            if len(first):
                begins.append(waiting.release(first, side))
                ends.append(strays[second])
                strays = np.delete(strays, second)
        self._waiting = [waiting for waiting in self._waiting if len(waiting.events)]
        info.note("unmatched_end", len(strays), "kept with dur_ns null")
        pairs = _joined(pa.concat_tables(begins), rows.take(from_numpy(np.concatenate(ends))), side, info)
        self._hold(rows.filter(from_numpy(alone & begin)), thread[alone & begin], side)
        events = pa.concat_tables([others, pairs, rows.take(from_numpy(strays))]).unify_dictionaries()
        return {**tables, **side, "events": events}

    def _hold(self, events: pa.Table, thread: npt.NDArray[np.int64], side: dict[str, pa.Table]) -> None:
        held = {}
        for name, rows in side.items() if len(events) else ():
            held[name], side[name] = _parted(rows, events)
        if len(events):
            self._waiting.append(_Waiting(events, thread, np.unique(thread), held))

    def finish(self, info: PartInfo) -> Iterator[dict[str, pa.Table]]:
        """Yield the events that never ended, with their rows of side tables."""
        info.note("unmatched_begin", sum(len(waiting.events) for waiting in self._waiting), "kept with dur_ns null")
        for waiting in self._waiting:
            yield {"events": waiting.events, **waiting.side}

    def _number_threads(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        """Return a number per (pid, tid, track), the same in all chunks."""
        number = np.zeros(len(rows), np.int64)
        for name in ("pid", "tid", "track"):
            column = one_chunk(rows[name])
            values, known = codes_of(column) if name == "track" else to_numpy(column), valid_mask(column)
            distinct, code = np.unique(np.where(known, values, 0), return_inverse=True)
            code = np.where(known, code, len(distinct))  # a null is no -1, which some writers use as a thread
            _, first, number = np.unique(number * (len(distinct) + 1) + code, return_index=True, return_inverse=True)
        named = rows.select(["pid", "tid", "track"]).take(from_numpy(first))
        keys = zip(*(column.to_pylist() for column in named.columns), strict=True)
        numbers = [self._threads.setdefault(key, len(self._threads)) for key in keys]
        return np.array(numbers, np.int64)[number]


def _ids(rows: pa.Table) -> npt.NDArray[np.int64]:
    ids: npt.NDArray[np.int64] = to_numpy(rows["event_id"])
    return ids


def _parted(rows: pa.Table, events: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Rows that belong to these events, and the others."""
    chosen = np.isin(_ids(rows), _ids(events))
    return rows.filter(from_numpy(chosen)), rows.filter(from_numpy(~chosen))


def _joined(begins: pa.Table, ends: pa.Table, side: dict[str, pa.Table], info: PartInfo) -> pa.Table:
    """B events as X, with what only their E events say; their rows of side tables are joined in place."""
    lost = 0
    for name, rows in side.items():
        side[name], dropped = _side_rows_joined(rows, _ids(begins), _ids(ends))
        lost += dropped
    pairs, dropped = _filled(begins, ends, [name for name in FILLED if name in begins.column_names])
    info.note("not_read", lost + dropped, "values of an E whose B says something else")
    new = np.zeros(len(pairs), bool)
    for name in ("category", "name"):
        new |= valid_mask(pairs[name]) & ~valid_mask(begins[name])
    pairs = _classified_again(pairs, new, side.get("collective_args"))
    start, end = to_numpy(begins["start_ns"]), to_numpy(ends["start_ns"])
    known = valid_mask(begins["start_ns"]) & valid_mask(ends["start_ns"])
    duration, negative = end - start, known & (end < start)
    beyond = known & ~negative & (duration < 0)
    info.note("negative_dur", int(negative.sum()), "an E before its B")
    info.note("time_out_of_range", int(beyond.sum()), "from a B to its E")
    pairs = _replace(pairs, "dur_ns", from_numpy(duration, known & (duration >= 0) & ~negative))
    return _replace(pairs, "phase", dictionary(np.zeros(len(pairs), np.int32), from_list(["X"], pa.utf8())))


def _side_rows_joined(
    rows: pa.Table, begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> tuple[pa.Table, int]:
    """Rows of E events as rows of their B events; where both have one, it becomes one. Also counts the values lost."""
    ids = _ids(rows)
    pair = _places(ids, ends)
    of_end = np.flatnonzero(pair >= 0)
    if not len(of_end):
        return rows, 0
    begin = begins[pair[of_end]]
    twin = _places(begin, ids)
    first, second = twin[twin >= 0], of_end[twin >= 0]
    joined, lost = _filled(rows.take(from_numpy(first)), rows.take(from_numpy(second)), rows.column_names[1:])
    lone = _replace(rows.take(from_numpy(of_end[twin < 0])), "event_id", from_numpy(begin[twin < 0]))
    rest = np.ones(len(rows), bool)
    rest[of_end] = rest[first] = False
    return pa.concat_tables([rows.filter(from_numpy(rest)), joined, lone]), lost


def _places(wanted: npt.NDArray[np.int64], among: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where each value stands among others; -1 if it does not."""
    if not len(among):
        return np.full(len(wanted), -1)
    order = np.argsort(among)
    found = order[np.minimum(np.searchsorted(among, wanted, sorter=order), len(among) - 1)]
    return np.where(among[found] == wanted, found, -1)


def _filled(rows: pa.Table, others: pa.Table, names: Iterable[str]) -> tuple[pa.Table, int]:
    """Fill nulls from the same row of `others`. Also counts the values of `others` that another one keeps out."""
    lost, count = 0, len(rows)
    for name in names:
        if others[name].null_count == count:
            continue
        column = one_chunk(pa.chunked_array([*rows[name].chunks, *others[name].chunks], rows[name].type))
        known = valid_mask(column)
        values = codes_of(column) if pa.types.is_dictionary(column.type) else to_numpy(column)
        lost += int((known[:count] & known[count:] & (values[:count] != values[count:])).sum())
        place = np.arange(count)
        place[~known[:count]] += count
        rows = _replace(rows, name, column.take(from_numpy(place)))
    return rows, lost


def _classified_again(pairs: pa.Table, new: npt.NDArray[np.bool_], args: pa.Table | None) -> pa.Table:
    """Classify events of new category or name, and those that are known by now to be collectives."""
    collective = np.zeros(len(pairs), bool)
    if args is not None:
        collective = np.isin(_ids(pairs), _ids(args)[valid_mask(args["collective"])])
    chosen = np.flatnonzero(new | collective)
    if not len(chosen):
        return pairs
    rows = pairs.take(from_numpy(chosen))
    classes = classify_events(rows["category"], rows["name"], collective[chosen])
    column = one_chunk(pa.chunked_array([*pairs["class"].chunks, classes], classes.type))
    place = np.arange(len(pairs))
    place[chosen] = len(pairs) + np.arange(len(chosen))
    return _replace(pairs, "class", column.take(from_numpy(place)))


def _replace(table: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    index = table.column_names.index(name)
    return table.set_column(index, table.schema.field(index), values.cast(table.schema.field(index).type))


def _nest(thread: npt.NDArray[np.int64], begin: npt.NDArray[np.bool_]) -> Pairs:
    """Row numbers of matched (begin, end) pairs.

    Within a thread, a begin at depth d is closed by the next end that leaves depth d: rows sorted by
    (thread, depth, order) put the two next to each other.
    """
    order = np.argsort(thread, kind="stable")
    step = np.where(begin[order], 1, -1)
    depth = np.cumsum(step)
    level = np.where(step > 0, depth, depth + 1)
    by_level = np.lexsort((np.arange(len(order)), level, thread[order]))
    rows = order[by_level]
    same = (thread[rows[:-1]] == thread[rows[1:]]) & (level[by_level[:-1]] == level[by_level[1:]])
    pair = np.flatnonzero(same & begin[rows[:-1]] & ~begin[rows[1:]])
    return rows[pair], rows[pair + 1]


def meta_rows(definition: schema.TableSchema, rows: Iterable[dict[str, object]]) -> pa.Table:
    """Build a small table without rank and segment columns."""
    labelled = schema.table_from_rows(definition, [{"rank": 0, "segment": 0, **row} for row in rows])
    return labelled.drop_columns(["rank", "segment"])
