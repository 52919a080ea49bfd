"""One rank's trace as arrays: what the device did, what the host did, and who launched what.

    read_timelines(events) -> Iterator[Timeline]      one per (rank, segment), in that order

A segment is one source file of a rank: correlation ids and the silence between two files mean nothing
across segments, so each is analysed alone. Rows without a start or a duration cannot be placed and are
counted in `undated`. Device work whose device is not recorded belongs to the rank's only device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.classify import CLASSES, DEVICE_WORK, classify_events, encode_text, kernel_family
from perfkit.analysis.intervals import Ints

HOST_CLASSES = ("op", "runtime", "python", "range", "gc")
Mask: TypeAlias = npt.NDArray[np.bool_]
EVENT_COLUMNS = (
    "rank", "segment", "event_id", "class", "name", "start_ns", "dur_ns", "device", "pid", "tid", "track",
    "correlation", "bytes",
)  # fmt: skip
"""What a timeline is made of; `category` and `phase` too if nobody has classified the events."""


class Work(NamedTuple):
    """Device work of one timeline, one entry per event."""

    start: Ints
    end: Ints
    kind: Ints
    """Index into CLASSES."""
    name: Ints
    """Index into Timeline.names."""
    device: Ints
    launch: Ints
    """Entry of the host call that launched it; -1 if that call is not in the trace."""
    bytes: Ints
    """-1 if unknown."""

    def take(self, rows: Ints | Mask) -> Work:
        """Return some of the entries."""
        return Work(*(column[rows] for column in self))


class Host(NamedTuple):
    """Intervals on host threads."""

    start: Ints
    end: Ints
    kind: Ints
    name: Ints
    thread: Ints
    event_id: Ints

    def take(self, rows: Ints | Mask) -> Host:
        """Return some of the entries."""
        return Host(*(column[rows] for column in self))


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
    rank, segment = ints(events["rank"]), ints(events["segment"])
    key = rank * (int(segment.max()) + 1) + segment
    if (key[1:] < key[:-1]).any():
        order = np.argsort(key, kind="stable")
        events, key, rank, segment = events.take(order), key[order], rank[order], segment[order]
    edges = np.append(np.flatnonzero(np.append(True, key[1:] != key[:-1])), len(key))
    for lo, hi in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        yield _timeline(int(rank[lo]), int(segment[lo]), events.slice(lo, hi - lo))


def _timeline(rank: int, segment: int, events: pa.Table) -> Timeline:
    columns = {name: events[name] for name in events.column_names}
    kind = _kinds(columns)
    codes, names = encode_text(columns["name"])
    codes, names = np.where(codes < 0, len(names), codes), [*names, ""]
    start, length = columns["start_ns"], columns["dur_ns"]
    dated = np.array(pc.and_(pc.is_valid(start), pc.is_valid(length)))
    on_device = np.isin(kind, [CLASSES.index(c) for c in DEVICE_WORK])
    on_host = np.isin(kind, [CLASSES.index(c) for c in HOST_CLASSES])
    device_rows, host_rows = np.flatnonzero(on_device & dated), np.flatnonzero(on_host & dated)
    begin = ints(start)
    end = begin + ints(length, 0)
    correlation = ints(columns["correlation"])
    runtime = kind[host_rows] == CLASSES.index("runtime")
    host = Host(
        begin[host_rows], end[host_rows], kind[host_rows], codes[host_rows], _threads(columns)[host_rows],
        ints(columns["event_id"])[host_rows],
    )  # fmt: skip
    work = Work(
        begin[device_rows], end[device_rows], kind[device_rows], codes[device_rows],
        _one_device(ints(columns["device"])[device_rows]),
        _launches(correlation[device_rows], correlation[host_rows], np.flatnonzero(runtime), host.start),
        ints(columns["bytes"])[device_rows],
    )  # fmt: skip
    undated = int(np.count_nonzero((on_device | on_host) & ~dated))
    return Timeline(rank, segment, names, work, host, len(events), undated)


def _kinds(columns: dict[str, pa.ChunkedArray]) -> Ints:
    classes = columns["class"]
    if classes.null_count == len(classes):  # a source that leaves classes to us
        classes = classify_events(columns["category"], columns["name"], phase=columns["phase"])
    codes, values = encode_text(classes)
    lut = np.array([*(CLASSES.index(v) if v in CLASSES else -1 for v in values), -1], np.int64)
    result: Ints = lut[codes]
    return result


def _threads(columns: dict[str, pa.ChunkedArray]) -> Ints:
    """Give every (pid, tid, track) a number."""
    result = np.zeros(len(columns["pid"]), np.int64)
    for name in ("pid", "tid", "track"):
        codes, values = encode_text(columns[name]) if name == "track" else _factorize(columns[name])
        result = result * (len(values) + 1) + codes + 1
    return result


def _launches(work: Ints, host: Ints, calls: Ints, start: Ints) -> Ints:
    """Entry of the first call with the same correlation id, -1 if there is none. Ids below 1 mean none."""
    launch = np.full(len(work), -1, np.int64)
    calls = calls[host[calls] > 0]
    wanted = work > 0
    if not len(calls) or not wanted.any():
        return launch
    calls = calls[np.argsort(-start[calls], kind="stable")]  # the earliest is written last, and stays
    ids = host[calls]
    low, high = int(ids.min()), int(ids.max())
    if high - low < 16 * len(ids) + 1_000_000:
        table = np.full(high - low + 1, -1, np.int64)
        table[ids - low] = calls
        inside = wanted & (work >= low) & (work <= high)
        launch[inside] = table[work[inside] - low]
        return launch
    known, first = np.unique(ids[::-1], return_index=True)
    calls = calls[::-1][first]
    at = np.minimum(np.searchsorted(known, work), len(known) - 1)
    result: Ints = np.where(wanted & (known[at] == work), calls[at], -1)
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
