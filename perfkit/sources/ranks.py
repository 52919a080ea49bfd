"""Decide which rank and segment every part of every input becomes.

    plan_parts(peeked, committed) -> [[PlannedInput, …], …]     one list per group of ranks

A rank comes from the source, else from the file name, else the smallest free one is assigned (in the order
of the paths) and said so. Files that torch's profiler names after one process, HOST_PID.TIME, are segments of one
rank: a schedule that repeats writes a file each time. What the store already holds keeps its numbers, so that an
interrupted ingest goes on with the same ones. Inputs that share a rank are in one group: they are read one after the
other, because only then can an overlap in time be seen before anything is committed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfkit.sources.base import Input, PartInfo

if TYPE_CHECKING:
    from perfkit.store.catalog import Place
    from perfkit.store.commits import Commit

MAX_RANK = 2**31 - 1
_OF_PROCESS = re.compile(r"(.+_\d+)\.\d{10,}\.pt\.trace\.json(?:\.gz)?\Z")


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """Where one part goes."""

    rank: int
    segment: int
    rank_source: str
    """`distributedInfo`, `file name`, …, or `assigned`."""


@dataclass(frozen=True, slots=True)
class PlannedInput:
    """An input and where its parts go."""

    input: Input
    parts: tuple[PlannedPart, ...]


@dataclass(frozen=True, slots=True)
class TimeRange:
    """What one committed segment of a rank covers."""

    rank: int
    start_ns: int
    end_ns: int
    path: str
    """As it was given then."""
    where: str
    """The same, absolute."""
    source: str = ""
    is_assigned: bool = False
    """The source did not name the rank."""


BESIDE = ("capture", "torchtitan", "megatron")
"""Sources that record all the time, beside every trace of the same rank."""


def plan_parts(
    peeked: Sequence[tuple[Input, list[PartInfo]]], committed: Iterable[Commit], unreadable: Iterable[Place] = ()
) -> list[list[PlannedInput]]:
    """Give every part a rank and a segment, and group the inputs that share a rank.

    The place of a commit that is `unreadable` is taken too; the input that it was made of gets it back.
    """
    next_segment: dict[int, int] = {}
    placed_before: dict[str, Commit | Place] = {}
    all_held: list[Commit | Place] = [*unreadable, *committed]
    for held in all_held:
        next_segment[held.rank] = max(next_segment.get(held.rank, 0), held.segment + 1)
        if held.fingerprint is not None:
            placed_before[held.fingerprint.partition("+")[0]] = held
    taken = set(next_segment) | {part.rank for _, parts in peeked for part in parts if part.rank is not None}
    free = (rank for rank in range(MAX_RANK) if rank not in taken)
    planned = []
    of_process: dict[str, int] = {}
    for input, parts in peeked:
        placed = []
        for number, part in enumerate(parts):
            before = placed_before.get(f"{input.fingerprint}#{number}") if placed_before else None
            rank, source = part.rank, part.rank_source or "source"
            if before:  # the ingest was interrupted after it, or its commit was damaged
                told = getattr(before, "rank_source", source if rank == before.rank else "assigned")
                placed.append(PlannedPart(before.rank, before.segment, told or "source"))
                continue
            if rank is None:
                rank, source = _assign(input, free, of_process) if len(parts) == 1 else next(free), "assigned"
            segment = next_segment.get(rank, 0)
            next_segment[rank] = segment + 1
            placed.append(PlannedPart(rank, segment, source))
        planned.append(PlannedInput(input, tuple(placed)))
    return _group(planned)


def _assign(input: Input, free: Iterator[int], of_process: dict[str, int]) -> int:
    """Return the rank of the process that the file is named after, if one of its files has one, else a free one."""
    process = _OF_PROCESS.match(input.path)
    if process is None:
        return next(free)
    if process[1] not in of_process:
        of_process[process[1]] = next(free)
    return of_process[process[1]]


def _group(planned: list[PlannedInput]) -> list[list[PlannedInput]]:
    """Put inputs that a common rank connects into one list, in the order given."""
    leader: dict[int, int] = {}

    def find(rank: int) -> int:
        while leader.setdefault(rank, rank) != rank:
            leader[rank] = leader[leader[rank]]
            rank = leader[rank]
        return rank

    for item in planned:
        for part in item.parts[1:]:
            leader[find(part.rank)] = find(item.parts[0].rank)
    groups: dict[int, list[PlannedInput]] = {}
    for item in planned:
        groups.setdefault(find(item.parts[0].rank), []).append(item)
    return list(groups.values())


def overlapping(info: PartInfo, rank: int, earlier: Iterable[TimeRange]) -> TimeRange | None:
    """Return an earlier segment of the same rank that covers some of the same time."""
    if info.start_ns is None or info.end_ns is None:
        return None
    for other in earlier:
        beside = info.source != other.source and (info.source in BESIDE or other.source in BESIDE)
        if other.rank == rank and not beside and max(info.start_ns, other.start_ns) < min(info.end_ns, other.end_ns):
            return other
    return None
