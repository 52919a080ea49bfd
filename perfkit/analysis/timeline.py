"""One rank's trace as arrays: what the device did, what the host did, and who launched what.

    read_timelines(events) -> Iterator[Timeline]      one per (rank, segment), in that order

A segment is one source file of a rank: correlation ids and the silence between two files mean nothing
across segments, so each is analysed alone. Rows without a start or a duration cannot be placed and are
counted in `undated`; a call into the runtime that has no end still tells when its work was launched.
Device work whose device is not recorded belongs to the rank's only device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.classify import CLASSES, DEVICE_WORK, classify_events, encode_text, kernel_family
from perfkit.analysis.intervals import Ints
from perfkit.arrays import constant, nulls, to_numpy, valid_mask

HOST_CLASSES = ("op", "runtime", "python", "range", "gc")
TIMELINE_CLASSES = (*DEVICE_WORK, *HOST_CLASSES)
MANY_EVENTS = 1_000_000
"""Above this, memory that is free goes back to the system at once."""
Mask: TypeAlias = npt.NDArray[np.bool_]
Kinds: TypeAlias = npt.NDArray[np.int8]
EVENT_COLUMNS = (
    "rank", "segment", "event_id", "class", "name", "start_ns", "dur_ns", "device", "pid", "tid", "track",
    "correlation", "external_id", "bytes",
)  # fmt: skip
"""What a timeline is made of; `category` and `phase` too if nobody has classified the events."""


class Work(NamedTuple):
    """Device work of one timeline, one entry per event."""

    start: Ints
    end: Ints
    kind: Kinds
    """Index into CLASSES."""
    name: Ints
    """Index into Timeline.names."""
    device: Ints
    launch: Ints
    """Entry of the host call that launched it; -1 if that call is not in the trace."""
    bytes: Ints
    """-1 if unknown."""
    event_id: Ints
    external_id: Ints
    """Id of the op that issued it; -1 if unknown."""

    def take(self, rows: Ints | Mask) -> Work:
        """Return some of the entries."""
        return Work(*(column[rows] for column in self))  # type: ignore[arg-type]  # each keeps its type


class Host(NamedTuple):
    """Intervals on host threads."""

    start: Ints
    end: Ints
    kind: Kinds
    name: Ints
    thread: Ints
    event_id: Ints
    external_id: Ints

    def take(self, rows: Ints | Mask) -> Host:
        """Return some of the entries."""
        return Host(*(column[rows] for column in self))  # type: ignore[arg-type]  # each keeps its type


@dataclass(frozen=True)
class Timeline:
    """One rank and segment."""

    rank: int
    segment: int
    names: list[str]
    """Every name that occurs; a missing one is the empty string."""
    work: Work
    host: Host
    num_events: int
    undated: int
    """Rows of device work or host intervals without a start or duration."""

    @cached_property
    def devices(self) -> list[int]:
        """Devices with work, -1 for one that is not recorded."""
        return [int(d) for d in np.unique(self.work.device)]

    def work_of(self, device: int) -> Work:
        """Return the work of one device; without a copy if there is no other."""
        return self.work if self.devices == [device] else self.work.take(self.work.device == device)

    @cached_property
    def unknown(self) -> Mask:
        """Compute kernels that no pattern knows."""
        is_compute = self.work.kind == CLASSES.index("compute")
        used = np.unique(self.work.name[is_compute])
        families = kernel_family(pa.array([self.names[i] for i in used], pa.utf8()))
        lut = np.zeros(len(self.names), bool)
        lut[used] = [family == "unknown" for family in families.to_pylist()]
        result: Mask = lut[self.work.name] & is_compute
        return result

    @cached_property
    def launched_by_graph(self) -> Mask:
        """Work whose launch call replays a graph."""
        is_graph = np.array(["graphlaunch" in name.lower() for name in self.names], bool)
        found = self.work.launch >= 0
        result: Mask = found.copy()
        result[found] = is_graph[self.host.name[self.work.launch[found]]]
        return result


def read_timelines(events: pa.Table) -> Iterator[Timeline]:
    """Split `events` into timelines; the rows may come in any order."""
    if not len(events):
        return
    only_rank, only_segment = _only_value(events["rank"]), _only_value(events["segment"])
    if only_rank is not None and only_segment is not None:
        yield _timeline(only_rank, only_segment, events)
        return
    rank, segment = ints(events["rank"]), ints(events["segment"])
    key = rank * (int(segment.max()) + 1) + segment
    if (key[1:] < key[:-1]).any():
        order = np.argsort(key, kind="stable")
        events, key, rank, segment = events.take(order), key[order], rank[order], segment[order]
    edges = np.append(np.flatnonzero(np.append(True, key[1:] != key[:-1])), len(key)).tolist()
    parts = [(int(rank[lo]), int(segment[lo]), events.slice(lo, hi - lo)) for lo, hi in pairwise(edges)]
    del events, rank, segment, key  # millions of rows that nobody needs while a timeline is analysed
    while parts:
        give_back(len(parts[0][2]))
        timeline = _timeline(*parts.pop(0))
        give_back(timeline.num_events)
        yield timeline


def _only_value(column: pa.ChunkedArray) -> int | None:
    """Return the value that all rows have, None if they differ or one has none."""
    found = pc.min_max(column).as_py()
    return None if column.null_count or found["min"] != found["max"] else int(found["min"])


def give_back(num_events: int) -> None:
    """Return memory that is free to the system, after a trace of many events."""
    if num_events <= MANY_EVENTS:
        return
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)


def of_classes(events: pa.Table, classes: Collection[str]) -> Mask:
    """Say which events are of one of these classes."""
    codes, values = encode_text(events["class"])
    result: Mask = np.array([*(value in classes for value in values), False])[codes]
    return result


def _timeline(rank: int, segment: int, events: pa.Table) -> Timeline:
    columns = {name: events[name] for name in events.column_names}
    kind = _kinds(columns)
    codes, names = encode_text(columns.pop("name"))
    names = [*names, ""]
    begun = valid_mask(columns["start_ns"])
    dated = begun & valid_mask(columns["dur_ns"])
    on_device = np.isin(kind, [CLASSES.index(c) for c in DEVICE_WORK])
    on_host = np.isin(kind, [CLASSES.index(c) for c in HOST_CLASSES])
    undated = int(np.count_nonzero((on_device | on_host) & ~dated))
    hanging = begun & (kind == CLASSES.index("runtime"))  # a call without an end still launched its work
    device_rows, host_rows = np.flatnonzero(on_device & dated), np.flatnonzero(on_host & (dated | hanging))

    number = len(events)
    del events

    def split(name: str) -> tuple[Ints, Ints]:
        """Take a column out, so that its memory is free before the next one is read."""
        if name not in columns:
            return np.full(len(host_rows), -1, np.int64), np.full(len(device_rows), -1, np.int64)
        column = columns.pop(name)
        if column.num_chunks == 1 and column.null_count == 0 and column.type == pa.int64():
            values = to_numpy(column.chunk(0))  # no copy of millions of rows, only to choose among them
        else:
            values = ints(column)
        return values[host_rows], values[device_rows]

    name_at, named = (codes[rows].astype(np.int64) for rows in (host_rows, device_rows))  # callers compose keys of them
    for chosen in (name_at, named):
        chosen[chosen < 0] = len(names) - 1
    kind_at, kind = kind[host_rows], kind[device_rows]
    del codes, on_device, on_host, begun, dated, hanging
    thread = _threads(columns, host_rows)
    (begin, start), (host_length, length) = split("start_ns"), split("dur_ns")
    (event_at, event_id), (external_at, external) = split("event_id"), split("external_id")
    asked, correlation = split("correlation")
    host = Host(begin, begin + np.maximum(host_length, 0), kind_at, name_at, thread, event_at, external_at)
    calls = np.flatnonzero((kind_at == CLASSES.index("runtime")) & (asked > 0))
    launch = _launches(correlation, start, calls, asked[calls], begin[calls], host.end[calls])
    device, size = _one_device(split("device")[1]), split("bytes")[1]
    work = Work(start, start + length, kind, named, device, launch, size, event_id, external)
    return Timeline(rank, segment, names, work, host, number, undated)


def _kinds(columns: dict[str, pa.ChunkedArray]) -> Kinds:
    classes = columns["class"]
    if classes.null_count == len(classes):  # a source that leaves classes to us
        classes = classify_events(columns["category"], columns["name"], phase=columns["phase"])
    codes, values = encode_text(classes)
    lut = np.array([*(CLASSES.index(v) if v in CLASSES else -1 for v in values), -1], np.int8)
    result: Kinds = lut[codes]
    return result


def _threads(columns: dict[str, pa.ChunkedArray], rows: Ints) -> Ints:
    """Give every (pid, tid, track) a number, in the chosen rows; takes the columns out."""
    result: Ints = np.zeros(len(rows), np.int64)
    for name in ("pid", "tid", "track"):
        column = columns.pop(name)
        if column.null_count == len(column) or (name != "track" and _only_value(column) is not None):
            continue  # it tells nobody apart
        codes, values = encode_text(column) if name == "track" else _factorize(column)
        result *= len(values) + 1
        result += codes[rows]
        result += 1
    return result


def _launches(work: Ints, begin: Ints, calls: Ints, ids: Ints, start: Ints, end: Ints) -> Ints:
    """Entry of the call with the correlation id of each piece of work, -1 if there is none. Ids below 1 mean none.

    Of calls inside each other the outer one; of others with the same id the last before the work began.
    """
    launch = np.full(len(work), -1, np.int64)
    wanted = work > 0
    if not len(calls) or not wanted.any():
        return launch
    low, high = int(ids.min()), int(ids.max())
    if high - low < 16 * len(ids) + 1_000_000:
        table = np.full(high - low + 1, -1, np.int64)
        table[ids - low] = calls
        if np.count_nonzero(table >= 0) == len(ids):  # the usual case: every id is of one call
            inside = wanted & (work >= low) & (work <= high)
            launch[inside] = table[work[inside] - low]
            return launch
    order = np.lexsort((start, ids)) if (ids[1:] <= ids[:-1]).any() else np.arange(len(ids))
    ids, start, end, calls = ids[order], start[order], end[order], calls[order]
    first = np.append(True, ids[1:] != ids[:-1])
    again = ~first & (start > np.append(0, end[:-1]))
    at = np.minimum(np.searchsorted(ids[first], work), np.count_nonzero(first) - 1)
    launch = np.where(wanted & (ids[first][at] == work), calls[first][at], -1)
    if again.any():  # an id that was used again, as after a wrap
        rows = np.flatnonzero(np.isin(work, ids[again]))
        heads = np.flatnonzero((first | again) & np.isin(ids, ids[again]))
        launch[rows] = _last_before(work[rows], begin[rows], ids[heads], start[heads], calls[heads], launch[rows])
    return launch


def _last_before(work: Ints, begin: Ints, ids: Ints, start: Ints, calls: Ints, otherwise: Ints) -> Ints:
    """Return the last call of the same id that starts before each piece of work."""
    order = np.lexsort((np.arange(len(ids) + len(work)) >= len(ids), np.append(start, begin), np.append(ids, work)))
    last = np.maximum.accumulate(np.where(order < len(ids), np.arange(len(order)), -1))
    is_work = order >= len(ids)
    known = last[is_work] >= 0
    row, call = order[is_work][known] - len(ids), order[last[is_work][known]]
    same = ids[call] == work[row]
    result = otherwise.copy()
    result[row[same]] = calls[call[same]]
    return result


def _one_device(device: Ints) -> Ints:
    known = np.unique(device[device >= 0])
    result: Ints = np.where(device < 0, known[0], device) if len(known) == 1 else device
    return result


def _factorize(values: pa.ChunkedArray) -> tuple[Ints, list[object]]:
    encoded = pc.dictionary_encode(values).combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0) if encoded.num_chunks == 1 else pa.concat_arrays(encoded.chunks)
    return pc.fill_null(encoded.indices.cast(pa.int64()), -1).to_numpy(
        zero_copy_only=False
    ), encoded.dictionary.to_pylist()


def ints(column: pa.ChunkedArray, null: int = -1) -> Ints:
    """Return a column as int64, with `null` for nulls."""
    result: Ints = pc.fill_null(column.cast(pa.int64()), null).to_numpy()
    return result


def device_column(device: int | None, length: int) -> pa.Array:
    """Return a device as a column; null for a rank without one, and for one that is not recorded."""
    known = device is not None and device >= 0
    return constant(device or 0, pa.int32(), length) if known else nulls(pa.int32(), length)
