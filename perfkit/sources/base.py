"""What a source is: an `Input` goes in, labelled Arrow tables come out.

    peek(input)          -> list[PartInfo]         cheap: enough to plan ranks, no events read
    read(input, options) -> Reading                iterate it for Chunks; its `parts` are final afterwards

A source never knows the final rank or segment of what it reads: tables carry neither column, and
`perfkit.sources.ingest` adds them. One input may hold several ranks (an nsys report of a whole node),
so every chunk says which part of the input it belongs to.

Oddities are counted, not raised: `PartInfo.note(kind, count, detail)` becomes a row of `quality`.
Only an input of which nothing can be used raises `InputError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from concurrent.futures import Future

    from perfkit.sources.archives import Member
    from perfkit.sources.remote import RemoteFile

QUALITY_KINDS: dict[str, str] = {
    "truncated": "the file ends in the middle; everything before the cut was kept",
    "invalid_json": "the JSON is broken at a byte offset; everything before it was kept",
    "trailing_data": "bytes after the end of the trace, such as a second document; not read, nothing else is lost",
    "invalid_utf8": "bytes that are not UTF-8 were replaced by U+FFFD",
    "missing_ts": "events without a timestamp; start_ns is null",
    "missing_dur": "X events without a duration; dur_ns is null",
    "negative_dur": "negative durations; dur_ns is null",
    "time_out_of_range": "times that do not fit int64 nanoseconds, or are not numbers; null",
    "integer_out_of_range": "integers that do not fit their column; null",
    "type_mismatch": "values of another type than their column; null",
    "not_an_event": "elements of traceEvents that are not objects; skipped",
    "unmatched_begin": "B events without an E; kept with dur_ns null",
    "unmatched_end": "E events without a B; kept with dur_ns null",
    "duplicate_key": "a top-level key that occurs twice; the first one counts",
    "no_time_zone": "times of a text log without a time zone; read as UTC",
    "averaged_steps": "a log line that stands for several steps; its time is their mean, the others have no row",
    "time_disagrees": "a stated duration is longer than the time since the line before; the latter counts",
    "no_base_time": "times are relative to an unknown origin; they cannot be compared with other files",
    "rank_assigned": "the source names no rank; perfkit assigned one",
    "rank_from_file_name": "the rank was taken from the file name",
    "rank_shared": "perfkit had assigned this rank to a file that names none: are they one rank?",
    "rank_disagrees": "two places name different ranks",
    "odd_rank": "a stated rank that is no number, or not below the world size",
    "overlapping_rank": "another file claims the same rank at the same time; not merged",
    "missing_table": "a table that this kind of report usually has is absent",
    "unresolved": "references (string ids, correlations) that lead nowhere",
    "not_read": "rows of a kind that perfkit does not take over",
    "lost_events": "the profiler itself reports that it lost events",
    "damaged_frame": "batches of a spool that no checksum vouches for; their rows are lost, all others were kept",
}
"""Every kind of oddity that a source may note."""


@dataclass(slots=True)
class Oddity:
    """One kind of oddity in one part: how often, and the first case."""

    kind: str
    count: int
    detail: str


@dataclass(slots=True)
class PartInfo:
    """What is known about one rank's share of an input."""

    rank: int | None = None
    rank_source: str | None = None
    """Where the rank comes from: `distributedInfo`, `file name`, `environment`, …"""
    world_size: int | None = None
    host: str | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    num_events: int = 0
    source: str = ""
    """kineto, nsys, …"""
    synthetic: bool = False
    versions: dict[str, str] = field(default_factory=dict)
    oddities: dict[str, Oddity] = field(default_factory=dict)

    def note(self, kind: str, count: int, detail: str = "") -> None:
        """Count an oddity; the first detail is kept."""
        assert kind in QUALITY_KINDS, kind
        if count <= 0:
            return
        if kind in self.oddities:
            self.oddities[kind].count += count
        else:
            self.oddities[kind] = Oddity(kind, count, detail)

    def see_times(self, first_ns: int | None, last_ns: int | None) -> None:
        """Widen the part's time range."""
        if first_ns is not None:
            self.start_ns = first_ns if self.start_ns is None else min(self.start_ns, first_ns)
        if last_ns is not None:
            self.end_ns = last_ns if self.end_ns is None else max(self.end_ns, last_ns)


class Chunk(NamedTuple):
    """Some rows of one table of one part, without rank and segment columns."""

    part: int
    table: str
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read, the same for all sources."""

    keep_args: bool = False
    """Keep args without a column of their own as JSON text in events.args."""
    threads: int = 1
    """Threads that one input may use."""
    scanner: str = "auto"
    """`c`, `python`, or `auto`: C if it was built."""
    rows_per_chunk: int = 32_768
    """Rows of `events` per chunk, about; bounds the memory of a reading."""


class Reading(Protocol):
    """An input being read. Iterate once; afterwards `parts` is final."""

    parts: list[PartInfo]

    @property
    def bytes_read(self) -> int:
        """Uncompressed bytes so far, for progress and for MB/s."""
        ...

    def __iter__(self) -> Iterator[Chunk]: ...


@dataclass(frozen=True, slots=True)
class Input:
    """One thing to read, picklable, so that a worker process can open it.

    Made by `perfkit.sources.detect.find_inputs`; `kind` says which source reads it.
    """

    path: str
    """What the user sees: the file, or `archive.tar.gz!member`."""
    kind: str
    """`kineto`, `nsys-sqlite`, `nsys-parquet`, `torchtitan`, `megatron`, `bytedance`."""
    file: Path | RemoteFile
    """A local file (or folder, for nsys-parquet), or one in object storage, that `open` opens."""
    size_bytes: int
    """Stored size, compressed if it is."""
    identity: str | Future[str]
    """Of the content: the same bytes give the same value on any machine. A future if it is read beside the rest."""
    compression: str = "none"
    """`none`, `gzip`, `zstd`: of the stored bytes."""
    member: Member | None = None
    """Member of a zip or tar archive at `file`, and where it lies in there."""

    @property
    def fingerprint(self) -> str:
        """The identity; waits for it if need be."""
        return self.identity if isinstance(self.identity, str) else self.identity.result()

    def open(self) -> BinaryIO:
        """Open the uncompressed bytes, guarded against bombs."""
        from perfkit.sources.inputs import open_input

        return open_input(self)
