"""Events of one rank in one step, as sorted arrays on the job's clock: read once, then cut at any zoom.

    rank_events(source, view, at) -> [RankEvents]      of the chosen ranks, from memory where they are kept
    alignment(source, key)        -> rank -> rows      of the analysis's `alignment`

Every lane of the picture is a stream, a host thread, or the idle time of the device; every class of it has a slot, and
nested calls of a host thread one for each depth. Row groups that begin after the step are not read. What is kept is
bounded in bytes, and belongs to an engine: each worker process has its own.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.alignment import align
from perfkit.analysis.classify import DEVICE_WORK
from perfkit.analysis.idle import CAUSES
from perfkit.store.layout import RunKey

from .data import Rows, Source
from .data_run import analysed
from .view import View

MAX_THREADS = 4
"""Host threads of a rank with lanes of their own; the others share one."""
READERS = 4
KEPT_BYTES = 160 << 20
"""Events that a worker keeps ready."""
HOST = ("range", "python", "op", "runtime", "gc", "overhead", "memory", "other")
DEVICE = (*DEVICE_WORK, "sync", "device_range")
COLUMNS = ["segment", "event_id", "class", "name", "start_ns", "dur_ns", "device", "stream", "pid", "tid", "track"]
Ints = Any


@dataclass(frozen=True)
class Moment:
    """What is looked at."""

    key: RunKey
    step: int | None
    steps: tuple[int, ...]
    ranks: tuple[int, ...]
    available: tuple[int, ...]
    origin_ns: int
    """Start of the step on the job's clock: the first of its ranks."""
    length_ns: int
    """Until the last rank's window ends."""
    lo: int
    """Shown part, in ns after origin_ns."""
    hi: int
    windows: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Rank -> its window of the step, in ns after origin_ns."""


@dataclass(frozen=True)
class Slot:
    """One row: a class of a lane. `depth` is how many of the class enclose an event; the last one holds the rest."""

    lane: str
    kind: str
    """device, idle or host."""
    order: tuple[Any, ...]
    name: str
    """Class of the events, or cause of idle time."""
    depth: int = 0


@dataclass(frozen=True)
class RankEvents:
    """Events of one rank in one step, sorted by slot and start, on the job's clock."""

    slots: list[Slot]
    edges: Ints
    """Slot i holds rows edges[i] to edges[i + 1]."""
    start: Ints
    end: Ints
    reach: Ints
    """Latest end in the slot up to this row."""
    busy: Ints
    """ns of the row; less than end - start where a row already stands for several stretches."""
    count: Ints
    name: Ints
    names: list[str]
    event: Ints
    """segment << 40 | event_id; -1 for idle."""

    @property
    def nbytes(self) -> int:
        """What it costs to keep."""
        columns = (self.start, self.end, self.reach, self.busy, self.count, self.name, self.event)
        return sum(column.nbytes for column in columns) + 80 * len(self.names)


def alignment(source: Source, key: RunKey) -> dict[int, Rows]:
    """Return the clock of each rank, as the analysis found it."""
    rows = analysed(source, key, "alignment")
    found: dict[int, Rows] = {}
    for row in rows.to_pylist() if rows is not None else []:
        found.setdefault(row["rank"], []).append(row)
    return found


# ------------------------------------------------------------------ events of one rank


class Kept:
    """Events of the last steps that were looked at, up to KEPT_BYTES; one per engine, and so per process."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[Any, ...], RankEvents] = OrderedDict()
        self._making: dict[tuple[Any, ...], threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, name: tuple[Any, ...], make: Any) -> RankEvents:
        """Return what is kept under a name, or make it; who comes second waits."""
        with self._lock:
            if name in self._found:
                self._found.move_to_end(name)
                return self._found[name]
            mine = self._making.setdefault(name, threading.Lock())
        with mine:
            with self._lock:
                if name in self._found:
                    return self._found[name]
            try:
                made: RankEvents = make()
            finally:
                with self._lock:
                    self._making.pop(name, None)
            with self._lock:
                self._found[name] = made
                size = sum(one.nbytes for one in self._found.values())
                while size > KEPT_BYTES and len(self._found) > 1:
                    size -= self._found.popitem(last=False)[1].nbytes
            return made


_KEPT: weakref.WeakKeyDictionary[Any, Kept] = weakref.WeakKeyDictionary()
_KEPT_LOCK = threading.Lock()


def rank_events(source: Source, view: View, at: Moment) -> list[RankEvents]:
    """Return the events of each chosen rank that touch the step, and its idle time by cause."""
    engine, version = source.engine, source.version(view)  # a source may be somebody's only inside their request
    host = view.lanes == "all"
    clocks = alignment(source, at.key)
    with _KEPT_LOCK:
        kept = _KEPT.setdefault(engine, Kept())

    gaps = _Gaps(engine, at)

    def one(rank: int) -> RankEvents:
        mine = clocks.get(rank, [])
        return kept.get(
            (at.key, rank, at.step, version, host), lambda: _read_rank(engine, at, rank, mine, gaps, host=host)
        )

    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(one, at.ranks))


def read_events(engine: Any, key: RunKey, rank: int, low: int, high: int, *, host: bool) -> pa.Table:
    """Return the events with a duration that touch [low, high) of the rank's own clock, with or without the host's."""
    start, dur = pc.field("start_ns"), pc.field("dur_ns")
    wanted = (start < high) & dur.is_valid() & ((start + dur > low) | ((start >= low) & (dur == 0)))
    if not host:
        wanted = wanted & pc.field("class").isin(list(DEVICE))
    rows, _ = engine.run_table("events", key, columns=COLUMNS, ranks=[rank], filter=wanted, keep=False)
    return rows


def own_window(at: Moment, clocks: Rows) -> tuple[int, int]:
    """Return the shown step on the rank's own clock, with room for the error of turning it back."""
    low, high = at.origin_ns, at.origin_ns + at.length_ns
    shift = int(low - align(clocks, np.array([low]))[0]) if clocks else 0
    drift = max((abs(row["drift_ppm"]) for row in clocks), default=0.0) * 1e-6
    jumps = max((abs(row["offset_ns"] - shift) for row in clocks), default=0)
    room = int(2 * drift * at.length_ns) + 2 * jumps + 1000
    return low + shift - room, high + shift + room


def _read_rank(engine: Any, at: Moment, rank: int, clocks: Rows, idle: _Gaps, *, host: bool) -> RankEvents:
    low, high = own_window(at, clocks)
    rows = read_events(engine, at.key, rank, low, high, host=host).unify_dictionaries().combine_chunks()
    start = align(clocks, rows["start_ns"].to_numpy()) - at.origin_ns
    end = start + np.maximum(rows["dur_ns"].to_numpy(), 1)  # lengths are of the rank's own clock
    order = _in_order(start, end)
    order = order[(end[order] > 0) & (start[order] < at.length_ns)]
    start, end = start[order], end[order]
    group, groups = _lanes(rows)
    group = group[order]
    depth = _depths(start, end, group, [one["kind"] == "host" for one in groups])
    names, name = _names(rows["name"])
    name = name[order]
    gaps = _gaps(idle.of(rank), at, clocks)
    used, slot = _renumber(group * DEPTHS + depth, len(groups) * DEPTHS)
    made = [Slot(**{**groups[code // DEPTHS], "depth": code % DEPTHS}) for code in used.tolist()]
    slots = [*made, *(Slot("idle", "idle", (1, i), CAUSES[i]) for i in range(len(CAUSES)))]
    event = (rows["segment"].to_numpy()[order].astype(np.int64) << 40) | rows["event_id"].to_numpy()[order]
    columns = {
        "slot": np.append(slot, len(made) + gaps["cause"]), "start": np.append(start, gaps["start"]),
        "end": np.append(end, gaps["end"]), "busy": np.append(end - start, gaps["idle"]),
        "count": np.append(np.ones(len(start), np.int32), gaps["stretches"]).astype(np.int32),
        "name": np.append(name, gaps["name"] + len(names)).astype(np.int32),
        "event": np.append(event, np.full(len(gaps["start"]), -1, np.int64)),
    }  # fmt: skip
    return _by_slot(slots, columns, [*names, *gaps["names"]])


def _in_order(start: Ints, end: Ints) -> Ints:
    """Return the rows by start, and of equal starts the longer first; nearly free where they come sorted by start."""
    order: Ints = np.argsort(start, kind="stable")
    equal = np.diff(start[order]) == 0
    if equal.any():
        some = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
        rows = order[some]
        order[some] = rows[np.lexsort((-end[rows], start[rows]))]
    return order


def _grouped(number: Ints, most: int) -> Ints:
    """Return the rows by number, each number's in the order they had; small numbers are sorted without comparing."""
    return np.argsort(number.astype(np.int16 if most < 2**15 else np.int64), kind="stable")


def _renumber(codes: Ints, most: int) -> tuple[Ints, Ints]:
    """Return the codes below `most` that occur, and the place of each row's among them."""
    there = np.bincount(codes, minlength=most) > 0
    return np.flatnonzero(there), (np.cumsum(there) - 1)[codes]


def _by_slot(slots: list[Slot], columns: dict[str, Ints], names: list[str]) -> RankEvents:
    """Put rows that are in order of start in order of slot; slots without rows are dropped."""
    order = sorted(range(len(slots)), key=lambda i: (*slots[i].order, slots[i].depth))
    place = np.empty(len(slots), np.int64)
    place[order] = np.arange(len(slots))
    slot = place[columns["slot"]]
    rows = _grouped(slot, len(slots))
    sizes = np.bincount(slot, minlength=len(slots))
    there = np.flatnonzero(sizes)
    edges = np.append(0, np.cumsum(sizes[there]))
    found = {name: column[rows] for name, column in columns.items() if name != "slot"}
    reach = found["end"].copy()
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        np.maximum.accumulate(reach[low:high], out=reach[low:high])
    return RankEvents([slots[order[i]] for i in there.tolist()], edges, reach=reach, names=names, **found)


def _names(column: pa.ChunkedArray) -> tuple[list[str], Ints]:
    """Return the distinct names that occur, and the number of each row's."""
    if not len(column):
        return [], np.empty(0, np.int32)
    coded = column.combine_chunks()
    coded = coded if isinstance(coded, pa.DictionaryArray) else coded.dictionary_encode()
    codes = pc.fill_null(coded.indices, len(coded.dictionary)).to_numpy(zero_copy_only=False)
    used, code = _renumber(codes, len(coded.dictionary) + 1)
    texts = pa.concat_arrays([coded.dictionary.cast(pa.utf8()), pa.array(["(no name)"])])
    return texts.take(pa.array(used)).to_pylist(), code.astype(np.int32)


def _lanes(rows: pa.Table) -> tuple[Ints, list[dict[str, Any]]]:
    """Give every event the lane and class that it is drawn in."""
    codes = np.zeros(len(rows), np.int64)
    columns = {}
    for name in ("class", "device", "stream", "pid", "tid", "track"):
        column = rows[name].combine_chunks()
        column = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
        columns[name] = column
        number = len(column.dictionary)
        codes = codes * (number + 1) + pc.fill_null(column.indices, number).to_numpy(zero_copy_only=False)
    coded = pa.array(codes).dictionary_encode()  # by hashing; sorting would cost more than reading
    codes = coded.indices.to_numpy()
    first = np.empty(len(coded.dictionary), np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    found = {name: column.take(pa.array(first)).dictionary_decode().to_pylist() for name, column in columns.items()}
    blank = {"class": "", "track": "", "device": -(2**31), "stream": -(2**62), "pid": -(2**62), "tid": -(2**62)}
    samples = [
        {name: blank[name] if found[name][i] is None else found[name][i] for name in blank} for i in range(len(first))
    ]
    sizes = np.bincount(codes, minlength=len(samples))
    threads: dict[tuple[Any, ...], int] = {}
    for sample, size in zip(samples, sizes.tolist(), strict=True):
        if not _on_device(sample):
            where = (sample["pid"], sample["tid"], sample["track"])
            threads[where] = threads.get(where, 0) + size
    own = sorted(threads, key=lambda where: -threads[where])[:MAX_THREADS]
    devices = {sample["device"] for sample in samples if _on_device(sample)}
    described = [_describe(sample, own, len(devices) > 1) for sample in samples]
    distinct: list[dict[str, Any]] = []
    number: dict[Any, int] = {}
    for one in described:
        mark = (one["lane"], one["name"])
        if mark not in number:
            number[mark] = len(distinct)
            distinct.append(one)
    table = np.array([number[one["lane"], one["name"]] for one in described], np.int64)
    return (table[codes] if len(table) else codes), distinct


def _on_device(sample: dict[str, Any]) -> bool:
    return sample["class"] in DEVICE


def _describe(sample: dict[str, Any], own: list[tuple[Any, ...]], several: bool) -> dict[str, Any]:
    if _on_device(sample):
        where = f"GPU {sample['device']} " if several else ""
        kind = DEVICE.index(sample["class"])
        if sample["class"] in DEVICE_WORK:
            lane = f"stream {sample['stream']}" if sample["stream"] > -(2**62) else "no stream"
            order = (0, sample["device"], 0, sample["stream"], kind)
        else:  # drawn on the device, and no work of it
            lane, order = {"sync": "syncs"}.get(sample["class"], "ranges"), (0, sample["device"], 1, kind, 0)
        return {"lane": where + lane, "kind": "device", "order": order, "name": sample["class"]}
    name = sample["class"] if sample["class"] in HOST else "other"
    where = (sample["pid"], sample["tid"], sample["track"])
    if where in own:
        label = sample["track"] or (f"thread {sample['tid']}" if sample["tid"] > -(2**62) else "host")
        at = own.index(where)
    else:
        label, at = "other threads", len(own)
    return {"lane": label, "kind": "host", "order": (2, at, HOST.index(name), 0), "name": name}


DEPTHS = 3
"""Rows of a class of a host thread: calls that are nested deeper share the last."""


def _depths(start: Ints, end: Ints, group: Ints, nested: list[bool]) -> Ints:
    """Return how many events of its group enclose each event, at most DEPTHS - 1; rows are in order (_in_order).

    Groups that are not nested have no depth.
    """
    depth = np.zeros(len(start), np.int64)
    order = _grouped(group, len(nested))
    edges = np.append(0, np.cumsum(np.bincount(group, minlength=len(nested)))).tolist()
    for number in np.flatnonzero(nested).tolist():
        rows = order[edges[number] : edges[number + 1]]
        open_now = np.arange(len(rows)) - np.searchsorted(np.sort(end[rows]), start[rows], side="right")
        depth[rows] = np.clip(open_now, 0, DEPTHS - 1)
    return depth


class _Gaps:
    """The idle stretches of all ranks of a picture: they lie in one file, which is read once, when the first asks."""

    def __init__(self, engine: Any, at: Moment) -> None:
        self._engine, self._at = engine, at
        self._rows: pa.Table | None = None
        self._lock = threading.Lock()

    def of(self, rank: int) -> pa.Table:
        """Return those of one rank."""
        with self._lock:
            if self._rows is None:
                columns = ["rank", "step", "start_ns", "dur_ns", "idle_ns", "stretches", "cause", "culprit", "where"]
                ranks = list(self._at.ranks)
                self._rows, _ = self._engine.run_table("gaps", self._at.key, columns=columns, ranks=ranks, keep=False)
        return self._rows.filter(pc.equal(self._rows["rank"], rank))


def _gaps(rows: pa.Table, at: Moment, clocks: Rows) -> dict[str, Any]:
    """Return the idle stretches of a rank's device inside the step."""
    if not len(rows):
        empty = np.empty(0, np.int64)
        return {"names": [], **dict.fromkeys(("cause", "start", "end", "idle", "stretches", "name"), empty)}
    start = align(clocks, rows["start_ns"].to_numpy()) - at.origin_ns
    end = start + rows["dur_ns"].to_numpy()
    inside = np.argsort(start, kind="stable")
    inside = inside[(end[inside] > 0) & (start[inside] < at.length_ns)]
    rows = rows.take(inside)
    cause = pc.fill_null(pc.index_in(rows["cause"].cast(pa.utf8()), pa.array(CAUSES)), len(CAUSES) - 1)
    said = [_names(pc.fill_null(rows[name].cast(pa.utf8()), "")) for name in ("culprit", "where")]
    (culprits, culprit), (places, place) = said
    pairs, name = np.unique(culprit * np.int64(max(len(places), 1)) + place, return_inverse=True)
    parts = ((culprits[pair // len(places)], places[pair % len(places)]) for pair in pairs.tolist())
    return {
        "cause": cause.to_numpy().astype(np.int64), "start": start[inside], "end": end[inside],
        "names": [": ".join(part for part in pair if part) or "idle" for pair in parts],
        "idle": rows["idle_ns"].to_numpy(), "stretches": rows["stretches"].to_numpy(), "name": name,
    }  # fmt: skip
