"""Read one group of inputs and write it to the store: what a worker process does.

    ingest_group(GroupWork) -> [InputResult, …], later: the engine may go on while the last commit waits for the disk

A part is committed only when its whole input has been read and nothing speaks against it; everything
before that is scratch. One input's failure is its own result, never an exception.
"""

from __future__ import annotations

import importlib
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from perfkit.engine.base import Later, report_progress
from perfkit.errors import InputError, PerfkitError
from perfkit.schema import QUALITY
from perfkit.sources import kineto
from perfkit.sources.base import Input, PartInfo, Reading, ReadOptions
from perfkit.sources.detect import REMOTE_AT_ONCE
from perfkit.sources.inputs import os_error
from perfkit.sources.kineto_tables import meta_rows
from perfkit.sources.ranks import PlannedInput, TimeRange, overlapping
from perfkit.sources.remote import RemoteFile
from perfkit.store.filesystems import is_remote

if TYPE_CHECKING:
    from perfkit.store import Store
    from perfkit.store.commits import Commit
    from perfkit.store.segment import SegmentWriter


@dataclass(frozen=True, slots=True)
class GroupWork:
    """Inputs that share ranks, and everything needed to write them; picklable."""

    store: str
    cluster: str
    run: str
    attempt: int
    inputs: tuple[PlannedInput, ...]
    earlier: tuple[TimeRange, ...]
    """What the store already holds of these ranks."""
    options: ReadOptions
    replace: bool = False
    """What is in the places of the inputs goes."""
    replaced: tuple[TimeRange, ...] = ()
    """What is there, if it is another state of the same file: then it must cover some of the same time."""

    @property
    def size_bytes(self) -> int:
        """Stored bytes of the inputs."""
        return sum(item.input.size_bytes for item in self.inputs)


@dataclass(slots=True)
class InputResult:
    """What became of one input."""

    input: Input
    parts: list[PartInfo] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    bytes_read: int = 0
    seconds: float = 0.0
    rows: dict[str, int] = field(default_factory=dict)
    error: PerfkitError | None = None
    plan_again: list[PartInfo] | None = None
    """The plan did not hold: the source names other ranks after its events, or another ingest was faster."""


def absolute(path: str) -> str:
    """Return a path that means the same in every folder."""
    return path if is_remote(path) else os.path.abspath(path)  # noqa: PTH100  # links are followed by nobody here


def ranges_of(commits: Iterable[Commit]) -> list[TimeRange]:
    """Return what commits cover, as far as they say it."""
    return [
        TimeRange(
            c.rank, c.start_ns, c.end_ns, c.source_path, c.extra.get("where", ""), c.source, c.rank_source == "assigned"
        )
        for c in commits
        if c.start_ns is not None and c.end_ns is not None
    ]


def reader_of(input: Input):  # type: ignore[no-untyped-def]  # a module with peek and read
    """Return the source module that reads an input."""
    if input.kind == "kineto":
        return kineto
    if input.kind in ("torchtitan", "megatron", "bytedance"):
        return importlib.import_module(f"perfkit.sources.{input.kind}")
    from perfkit.sources import nsys

    return nsys


def peek(input: Input) -> list[PartInfo]:
    """Peek into an input with its own source."""
    parts: list[PartInfo] = reader_of(input).peek(input)
    return parts


def peek_all(inputs: Iterable[Input], rejected: list[InputError]) -> list[tuple[Input, list[PartInfo]]]:
    """Peek into each input; what cannot be read is appended to `rejected`. Remote ones are asked side by side."""

    def attempt(input: Input) -> list[PartInfo] | InputError:
        try:
            return peek(input)
        except InputError as error:
            return error
        except OSError as error:
            return os_error(error, input.path)

    listed = list(inputs)
    if any(isinstance(input.file, RemoteFile) for input in listed):
        with ThreadPoolExecutor(REMOTE_AT_ONCE) as pool:
            found = list(pool.map(attempt, listed))
    else:
        found = [attempt(input) for input in listed]
    rejected += [parts for parts in found if isinstance(parts, InputError)]
    return [(input, parts) for input, parts in zip(listed, found, strict=True) if isinstance(parts, list)]


def content_key(input: Input, part: int, options: ReadOptions) -> str:
    """Identity of what a part becomes: the source's bytes, and the options that change the rows."""
    return f"{input.fingerprint}#{part}" + ("+args" if options.keep_args else "")


def ingest_group(work: GroupWork) -> list[InputResult] | Later[list[InputResult]]:
    """Ingest the inputs of a group in order; what is left for later is the commit of the last one."""
    results: list[InputResult] = []
    steps = _ingest_in_order(work, results)
    next(steps, None)

    def finish() -> list[InputResult]:
        deque(steps, maxlen=0)
        return results

    return Later(finish)


def _ingest_in_order(work: GroupWork, results: list[InputResult]) -> Iterator[None]:
    """Append a result per input; yields before the last commit."""
    from perfkit.store import Store  # here, because who only reads does without the store
    from perfkit.store.segment import SegmentTaken

    store = Store(work.store)
    covered = list(work.earlier)
    for item in work.inputs:
        started = time.perf_counter()
        result = InputResult(item.input, ranks=[p.rank for p in item.parts], segments=[p.segment for p in item.parts])
        try:
            for _ in _ingest_one(store, work, item, covered, result):
                if item is work.inputs[-1]:
                    yield
        except SegmentTaken:
            result.plan_again = [
                PartInfo(rank=None if part.rank_source == "assigned" else part.rank, rank_source=part.rank_source)
                for part in item.parts
            ]
        except PerfkitError as error:
            result.error = error
        except MemoryError:
            result.error = InputError(
                "takes more memory than there is", path=item.input.path, next_step="use fewer --workers"
            )
        except (OSError, pa.ArrowException) as error:
            result.error = InputError(
                f"{type(error).__name__}: {error}", path=item.input.path, next_step="the other files are not affected"
            )
        result.seconds = time.perf_counter() - started
        results.append(result)


def _ingest_one(
    store: Store, work: GroupWork, item: PlannedInput, covered: list[TimeRange], result: InputResult
) -> Iterator[None]:
    """Read one input and commit it; yields in between, if there is something to commit."""
    base_ns: int | None = None
    while True:
        writers = [
            store.writer(
                work.cluster,
                work.run,
                work.attempt,
                rank=part.rank,
                segment=part.segment,
                fingerprint=partial(content_key, item.input, number, work.options),
                replace=work.replace,
                background=work.options.threads > 1,
            )
            for number, part in enumerate(item.parts)
        ]
        try:
            if item.input.kind == "kineto":
                reading: Reading = kineto.read(item.input, work.options, base_ns=base_ns)
            else:
                reading = reader_of(item.input).read(item.input, work.options)
            try:
                _copy(reading, writers, result)
            except kineto.RereadNeeded as again:
                base_ns = again.base_ns
                continue
            if _is_as_planned(reading, work, item, covered, result):
                yield
                _commit(reading, writers, item, covered)
            return
        finally:
            for writer in writers:
                writer.abort()  # does nothing after a commit


def _copy(reading: Reading, writers: Sequence[SegmentWriter], result: InputResult) -> None:
    result.rows = {}
    seen = 0
    for part, table, rows in reading:
        writers[part].write(table, rows)
        result.rows[table] = result.rows.get(table, 0) + len(rows)
        report_progress(reading.bytes_read - seen)
        seen = reading.bytes_read
    report_progress(reading.bytes_read - seen)
    result.bytes_read = reading.bytes_read
    result.parts = reading.parts


_DAMAGE = ("truncated", "invalid_json", "not_an_event", "missing_table")
"""Oddities that can be why an input holds no events."""


def _is_as_planned(
    reading: Reading, work: GroupWork, item: PlannedInput, covered: Sequence[TimeRange], result: InputResult
) -> bool:
    """Say whether an input that was read has the ranks that it was given, and raise what else speaks against it."""
    path, where = item.input.path, absolute(item.input.path)
    true_ranks = [
        planned.rank if info.rank is None else info.rank
        for info, planned in zip(reading.parts, item.parts, strict=True)
    ]
    if true_ranks != [part.rank for part in item.parts]:
        result.plan_again = [PartInfo(rank=rank, rank_source="distributedInfo") for rank in true_ranks]
        return False
    if not sum(info.num_events for info in reading.parts):
        damage = (o for info in reading.parts for o in info.oddities.values() if o.kind in _DAMAGE)
        reason = next((oddity.detail for oddity in damage), "it holds no events")
        raise InputError(f"nothing could be read: {reason}", path=path, next_step="export the trace again")
    for info, planned in zip(reading.parts, item.parts, strict=True):
        other = overlapping(info, planned.rank, covered)
        if work.replaced and overlapping(info, planned.rank, work.replaced) is None:
            raise InputError(
                "covers another time than what the store holds of a file at this path; nothing was replaced",
                path=path,
                next_step="ingest it without --replace to keep both",
            )
        if other is not None and other.where == where:
            raise InputError(
                "has changed since it was ingested; the store keeps what it held then",
                path=path,
                next_step="take its place with --replace, or ingest it as a run of its own with --run NAME",
            )
        if other is not None and other.is_assigned and info.rank is not None:
            raise InputError(
                f"is of rank {planned.rank}, which {other.path} was given because it names none, and both cover the "
                "same time; not merged",
                path=path,
                next_step="ingest it as a run of its own with --run NAME, or both at once into a new run",
            )
        if other is not None:
            raise InputError(
                f"claims rank {planned.rank}, as {other.path} does, and both cover the same time; not merged",
                path=path,
                next_step="ingest it as a run of its own with --run NAME",
            )
    return True


def _commit(reading: Reading, writers: Sequence[SegmentWriter], item: PlannedInput, covered: list[TimeRange]) -> None:
    path = item.input.path
    for writer, info, planned in zip(writers, reading.parts, item.parts, strict=True):
        if planned.rank_source == "file name":
            info.note("rank_from_file_name", 1, f"rank {planned.rank} was taken from the file name")
        elif planned.rank_source == "assigned" and info.rank is None:
            info.note("rank_assigned", 1, f"the source names no rank; perfkit assigned {planned.rank}")
        other = next((t for t in covered if t.rank == planned.rank and t.is_assigned), None)
        if other and info.rank is not None:
            info.note(
                "rank_shared", 1, f"{other.path} names no rank and was given {planned.rank} before: is it this one?"
            )
        if info.rank is None or info.rank_source is None:  # else it was named after the events, as it was assigned
            info.rank_source = planned.rank_source
        oddities = [
            {"path": path, "kind": oddity.kind, "count": oddity.count, "detail": oddity.detail}
            for oddity in info.oddities.values()
        ]
        writer.write("quality", meta_rows(QUALITY, oddities))
        extra = {"parts": len(item.parts), "bytes_read": reading.bytes_read, "where": absolute(path)}
        commit = writer.commit(info, source_path=path, extra=extra)
        covered += ranges_of([commit])
