"""Any supported dump to parquet tables in a store.

    perfkit.ingest(["traces/"], store="runs/") -> IngestReport

Find the inputs, peek at their heads, plan ranks, then read and write group by group on an engine. The
report says for every file what became of it. Ingesting the same dump again changes nothing, and after
an interruption the same call goes on where it stopped: what is committed is recognised by its content.
"""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from perfkit.engine.base import Engine
from perfkit.engine.local import LocalEngine, available_cpus
from perfkit.engine.shards import Shard
from perfkit.errors import InputError, PerfkitError, StoreError, UsageError
from perfkit.sources.base import Input, PartInfo, ReadOptions
from perfkit.sources.detect import Found, Ignored, find_inputs
from perfkit.sources.identity import identified, identified_beside
from perfkit.sources.inputs import Limits, os_error, shown_path
from perfkit.sources.ranks import PlannedInput, PlannedPart, plan_parts
from perfkit.sources.scan import have_c_scanner
from perfkit.sources.unpacking import unpacking_folder
from perfkit.sources.work import GroupWork, InputResult, absolute, content_key, ingest_group, peek_all, ranges_of
from perfkit.store import Store
from perfkit.store.commits import Commit
from perfkit.store.files import StoreFull
from perfkit.store.filesystems import is_remote
from perfkit.store.layout import RunKey
from perfkit.store.retention import REMOVED

_SUFFIXES = re.compile(r"(\.pt)?(\.trace)?\.(json|sqlite|db|tar|zip|tgz)(\.gz|\.zst)?$|\.(gz|zst)$", re.IGNORECASE)


TYPICAL_RATIO = 15
"""Of a gzipped Kineto trace."""
WORKERS_PAY_BYTES = 100_000_000
"""Uncompressed bytes above which starting worker processes is faster than reading in this one."""
PYTHON_IS_SLOWER = 40
"""How many times as long the scanner takes without its compiled part."""
FILE_COST_BYTES = 1_000_000
"""What opening, committing and flushing one file costs, in bytes that could be read meanwhile."""
MAX_PLANS = 5
"""How often files are given another rank or segment because the first plan did not hold."""


@dataclass(frozen=True, slots=True)
class IngestedFile:
    """One source file in the store."""

    path: str
    status: str
    """`ingested`, or `unchanged` if the store already had it."""
    ranks: list[int]
    rank_source: str | None
    world_size: int | None
    num_events: int
    bytes_read: int
    seconds: float
    notes: list[dict[str, Any]]
    """Oddities: kind, count, detail."""


@dataclass(slots=True)
class IngestReport:
    """What an ingest did."""

    store: str
    cluster: str
    run: str
    attempt: int
    files: list[IngestedFile] = field(default_factory=list)
    rejected: list[InputError] = field(default_factory=list)
    ignored: list[Ignored] = field(default_factory=list)
    spools: list[str] = field(default_factory=list)
    """Folders of ranks in a spool; the run they belong to is the one that they name."""
    joined: str | None = None
    """A file of another folder that the run already held: are they one job?"""
    shard: Shard | None = None
    """The share of the files that this ingest took on."""
    full: StoreFull | None = None
    """Set when the store took no more; `rejected` then has one line for all files that this concerns."""
    seconds: float = 0.0

    @property
    def ranks(self) -> list[int]:
        """Ranks that the files of this ingest hold."""
        return sorted({rank for file in self.files for rank in file.ranks})

    @property
    def world_size(self) -> int | None:
        """Ranks of the job, if a source says so."""
        return max((file.world_size for file in self.files if file.world_size is not None), default=None)

    @property
    def num_events(self) -> int:
        """Events of these files."""
        return sum(file.num_events for file in self.files)

    @property
    def bytes_read(self) -> int:
        """Uncompressed bytes that were read in this ingest."""
        return sum(file.bytes_read for file in self.files if file.status == "ingested")

    def to_json(self) -> dict[str, Any]:
        """Return the document of `--format json`."""
        return {
            "schema_version": 1,
            "store": self.store,
            "cluster": self.cluster,
            "run": self.run,
            "attempt": self.attempt,
            "ranks": self.ranks,
            "world_size": self.world_size,
            "events": self.num_events,
            "seconds": self.seconds,
            "bytes_read": self.bytes_read,
            "mb_per_second": self.bytes_read / 1e6 / self.seconds if self.seconds and self.bytes_read else None,
            "files": [asdict(file) for file in self.files],
            "rejected": [
                {"path": error.path, "reason": error.message, "next": error.next_step} for error in self.rejected
            ],
            "ignored": [{"path": item.path, "reason": item.reason} for item in self.ignored],
        }


def ingest(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    store: str | os.PathLike[str],
    cluster: str = "default",
    run: str | None = None,
    attempt: int = 0,
    keep_args: bool = False,
    replace: bool = False,
    workers: int | None = None,
    engine: Engine | None = None,
    shard: Shard | None = None,
    scanner: str = "auto",
    limits: Limits | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> IngestReport:
    """Ingest trace files, folders and archives.

    `run` defaults to the name of the folder or file. `on_progress(done, total)` counts stored bytes. With a
    `shard`, all files are looked at and that share of the ranks is ingested: n processes do the work of one.
    With `replace`, files that the store holds are written anew, and those that have changed take the place of what
    they held before.
    Nothing raises because of one bad file: see `rejected` of the report.
    """
    started = time.perf_counter()
    listed = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not listed:
        raise UsageError("no paths given", next_step="name a trace file, a folder or an archive")
    if workers is not None and workers < 1:
        raise UsageError(f"workers must be at least 1, is {workers}")
    report = IngestReport(os.fspath(store), shown_path(cluster), shown_path(run or default_run(listed)), attempt)
    report.shard = shard
    RunKey(report.cluster, report.run, attempt).check()
    lake = Store(report.store)
    options = ReadOptions(keep_args=keep_args, scanner=scanner)
    with unpacking_folder() as spool, ExitStack() as hired:
        found = find_inputs(listed, limits=limits, spool=spool, identify=False)
        report.rejected, report.ignored = list(found.rejected), found.ignored
        named: dict[str, list[PartInfo]] = {}
        if shard is not None:
            named = _take_share(found, shard, report)
        _ingest_spools(found.spools, report, run)
        held = lake.held(report.cluster, report.run, attempt)
        committed = held.commits
        cpus = 1 if engine is not None else workers or available_cpus()
        early = LocalEngine(cpus)
        if not committed and not (workers is None and _is_small(found.inputs)):
            hired.enter_context(early.hired(ingest_group, len(found.inputs)))
        is_new = not committed and not held.unreadable
        if is_new and len(found.inputs) == 1 and cpus > 1:  # then nothing below needs to know it before the end
            beside = hired.enter_context(ThreadPoolExecutor(1))
            found.inputs = [identified_beside(found.inputs[0], beside, limits)]
        else:
            found.inputs = identified(found.inputs, report.rejected, limits)
        known = _by_content(committed, found.inputs)
        sound = set() if replace else {c.fingerprint for own in known.values() for c in lake.intact(own)}
        fresh, again = _skip_known(found.inputs, known, options, report, sound=sound)
        if run is None and fresh:
            report.joined = _elsewhere(committed, listed)
        peeked = [(input, named[input.path]) for input in fresh if input.path in named]
        peeked += peek_all((input for input in fresh if input.path not in named), report.rejected)
        changed: list[tuple[PlannedInput, list[Commit]]] = []
        if replace:
            peeked, changed = _take_place(peeked, (c for c in committed if _content(c) not in known), report)
        groups = plan_parts(peeked, committed, held.unreadable)
        if groups or again or changed:
            lake.create()  # a store that cannot be written is one error, not one per file
        small = workers is None and _is_small(fresh)
        runner = engine or (LocalEngine(1) if small else early)
        options = dataclasses.replace(options, threads=min(cpus, 4) if small else max(1, cpus // max(1, len(groups))))
        replaced = (item.input for item in (*again, *(item for item, _ in changed)))
        progress = _Progress([*(input for input, _ in peeked), *replaced], on_progress)
        works = [_work(report, group, committed, options) for group in groups]
        works += [_work(report, [item], committed, options, replacing=known[item.input.fingerprint]) for item in again]
        works += [_work(report, [item], committed, options, replacing=old, new=True) for item, old in changed]
        late = _run(runner, works, lake, report, progress)
        for _ in range(MAX_PLANS):
            if not late:
                break
            held = lake.held(report.cluster, report.run, attempt)
            groups = plan_parts(late, held.commits, held.unreadable)
            works = [_work(report, group, held.commits, options) for group in groups]
            late = _run(runner, works, lake, report, progress)
        for input, _ in late:
            report.rejected.append(
                InputError("other ingests into this run are always faster", path=input.path, next_step="run it again")
            )
    if shard is not None and report.full is None:
        where = report.cluster, report.run, attempt
        lake.note_shard(*where, index=shard.index, count=shard.count, ranks=report.ranks)
    if any(file.rank_source != "spool" for file in report.files) and not (shard and shard.index):
        try:
            lake.finalise(report.cluster, report.run, attempt)
        except StoreFull as error:  # what is committed stays, and the next ingest writes what is missing
            report.full = report.full or error
        except StoreError as error:
            if any(file.status == "ingested" for file in report.files):  # else it is there, or can be derived
                report.rejected.append(InputError(error.message, path=report.store, next_step=error.next_step))
    if held.unreadable:
        for broken in lake.damaged(report.cluster, report.run, attempt):
            path = f"{report.store}/{broken.commit_path}"
            what = broken.message.removeprefix(f"{path}: ")
            report.rejected.append(InputError(what, path=path, next_step=broken.next_step))
    if report.full:
        report.rejected.append(_full_store(report, len(found.inputs)))
    report.files.sort(key=lambda file: file.path)
    report.rejected.sort(key=lambda error: error.path)
    report.seconds = time.perf_counter() - started
    return report


def _ingest_spools(folders: Sequence[Path], report: IngestReport, run: str | None) -> None:
    """Compact what ranks have written; each folder is one file of the report."""
    if not folders:
        return
    from perfkit.sources.spool import compact_folder

    for folder in folders:
        started = time.perf_counter()
        report.spools.append(shown_path(folder))
        try:
            done = compact_folder(folder, report.store, include_open=True, run=run)
        except PerfkitError as error:
            report.rejected.append(InputError(error.message, path=shown_path(folder), next_step=error.next_step))
            continue
        except OSError as error:
            report.rejected.append(os_error(error, shown_path(folder)))
            continue
        report.rejected += done.problems
        if done.header is None or not done.num_segments + done.num_traces:
            continue
        report.cluster, report.run, report.attempt = (done.header[name] for name in ("cluster", "run", "attempt"))
        report.files.append(
            IngestedFile(
                path=shown_path(folder), status="ingested", ranks=[done.header["rank"]], rank_source="spool",
                world_size=done.header.get("world_size"), num_events=sum(done.rows.values()),
                bytes_read=done.bytes_read, seconds=time.perf_counter() - started, notes=done.notes,
            )
        )  # fmt: skip


def _take_share(found: Found, shard: Shard, report: IngestReport) -> dict[str, list[PartInfo]]:
    """Keep of what was found the share of one shard, and return which ranks its files have.

    All shards divide the same list, so files of one rank stay together and files without a rank get the number that
    they would have without shards. What is wrong with a file, the first shard says for all.
    """
    rejected: list[InputError] = []
    groups = plan_parts(peek_all(found.inputs, rejected), ())
    if shard.index:
        report.rejected, report.ignored = [], []
    else:
        report.rejected += rejected
    found.spools = [folder for number, folder in enumerate(found.spools) if number % shard.count == shard.index]
    own = [item for group in shard.take(groups, _group_bytes) for item in group]
    found.inputs = sorted((item.input for item in own), key=lambda input: input.path)
    return {
        item.input.path: [PartInfo(rank=part.rank, rank_source=part.rank_source) for part in item.parts] for item in own
    }


def _group_bytes(group: Sequence[PlannedInput]) -> float:
    return sum(_expected_bytes(item.input) for item in group)


def default_run(paths: Sequence[str | os.PathLike[str]]) -> str:
    """Name a run after what was given: the file without its endings, the folder, or the common folder."""
    shown = [shown_path(path).split("?")[0] if is_remote(path) else shown_path(path) for path in paths]
    absolute = [Path(path).absolute() for path in shown]
    if len(absolute) == 1:
        name = absolute[0].name
        return _SUFFIXES.sub("", name) or name or "run"
    return Path(os.path.commonpath(absolute)).name or "run"


def _elsewhere(committed: Iterable[Commit], paths: Sequence[str | os.PathLike[str]]) -> str | None:
    """Return a file of the run that lies under none of these paths: folders of two jobs often have one name."""
    here = tuple(absolute(shown_path(path)).rstrip("/") for path in paths)
    elsewhere = (c for c in committed if c.source_path and not c.extra.get("where", c.source_path).startswith(here))
    return next((commit.source_path for commit in elsewhere), None)


def _content(commit: Commit) -> str:
    return commit.fingerprint.partition("#")[0]


def _by_content(committed: Iterable[Commit], inputs: Sequence[Input]) -> dict[str, list[Commit]]:
    """Return the commits of the very content of these inputs, by that and in the order of their parts."""
    found: dict[str, list[Commit]] = {}
    for commit in sorted(committed, key=_part_number):
        found.setdefault(_content(commit), []).append(commit)
    return (
        {input.fingerprint: found[input.fingerprint] for input in inputs if input.fingerprint in found} if found else {}
    )


def _skip_known(
    inputs: Sequence[Input],
    known: Mapping[str, Sequence[Commit]],
    options: ReadOptions,
    report: IngestReport,
    *,
    sound: Collection[str],
) -> tuple[list[Input], list[PlannedInput]]:
    """Leave out what the store already holds, and copies of the same content.

    Returns what is new, and what is there but must be replaced: it was read with other options, or the fingerprint of
    its commit is not among the `sound` ones.
    """
    if not known and len(inputs) == 1:
        return list(inputs), []
    fresh: list[Input] = []
    again: list[PlannedInput] = []
    first_path: dict[str, str] = {}
    for input in inputs:
        if input.fingerprint in first_path:
            report.ignored.append(Ignored(input.path, f"same content as {first_path[input.fingerprint]}"))
            continue
        first_path[input.fingerprint] = input.path
        commits = known.get(input.fingerprint, ())
        if not commits or len(commits) < commits[0].extra.get("parts", 1):
            fresh.append(input)
        elif all(REMOVED not in c.extra and c.fingerprint in sound for c in commits) and {
            c.fingerprint for c in commits
        } == {content_key(input, k, options) for k in range(len(commits))}:
            report.files.append(_already_there(input, commits))
        else:
            again.append(_in_place_of(commits, input))
    return fresh, again


def _take_place(
    peeked: Iterable[tuple[Input, list[PartInfo]]], others: Iterable[Commit], report: IngestReport
) -> tuple[list[tuple[Input, list[PartInfo]]], list[tuple[PlannedInput, list[Commit]]]]:
    """Let files that have changed since they were ingested take the place of what they held.

    `others` are of content that is nowhere among the inputs: a file that was only renamed keeps its rows.
    """
    by_path: dict[str, list[Commit]] = {}
    for commit in sorted(others, key=_part_number):
        by_path.setdefault(commit.extra.get("where", ""), []).append(commit)
    new: list[tuple[Input, list[PartInfo]]] = []
    changed: list[tuple[PlannedInput, list[Commit]]] = []
    for input, parts in peeked:
        old = by_path.get(absolute(input.path), [])
        if not old:
            new.append((input, parts))
        elif len(old) == len(parts) and all(p.rank in (None, c.rank) for p, c in zip(parts, old, strict=True)):
            changed.append((_in_place_of(old, input), old))
        else:
            held = ", ".join(str(commit.rank) for commit in old)
            report.rejected.append(
                InputError(
                    f"the store holds several states, or other ranks, of this path (rank {held}); nothing was replaced",
                    path=input.path,
                    next_step="ingest it without --replace to keep both, or as a run of its own with --run NAME",
                )
            )
    return new, changed


def _in_place_of(commits: Iterable[Commit], input: Input) -> PlannedInput:
    return PlannedInput(input, tuple(PlannedPart(c.rank, c.segment, c.rank_source or "source") for c in commits))


def _part_number(commit: Commit) -> int:
    """Return which part of its input a commit holds; see `content_key`."""
    return int(commit.fingerprint.partition("#")[2].partition("+")[0] or 0)


def _already_there(input: Input, commits: Sequence[Commit]) -> IngestedFile:
    return IngestedFile(
        path=input.path,
        status="unchanged",
        ranks=[commit.rank for commit in commits],
        rank_source=commits[0].rank_source,
        world_size=commits[0].world_size,
        num_events=sum(commit.num_events for commit in commits),
        bytes_read=int(commits[0].extra.get("bytes_read", 0)),
        seconds=0.0,
        notes=[dict(oddity) for commit in commits for oddity in commit.oddities],
    )


def _work(
    report: IngestReport,
    group: Sequence[PlannedInput],
    committed: Sequence[Commit],
    options: ReadOptions,
    *,
    replacing: Sequence[Commit] = (),
    new: bool = False,
) -> GroupWork:
    """Return the work on a group; with `new` content, what it is `replacing` is another state of the same file."""
    ranks = {part.rank for item in group for part in item.parts}
    own = {item.input.fingerprint for item in group if committed} | {_content(commit) for commit in replacing}
    beside = (
        c
        for c in committed
        if c.rank in ranks and _content(c) not in own
        if c.source != "capture"  # the recorder of the same rank runs all the time, beside every trace
    )
    where = report.store, report.cluster, report.run, report.attempt
    replaced = tuple(ranges_of(replacing)) if new else ()
    return GroupWork(*where, tuple(group), tuple(ranges_of(beside)), options, bool(replacing), replaced)


def _run(
    engine: Engine, works: Sequence[GroupWork], lake: Store, report: IngestReport, progress: _Progress
) -> list[tuple[Input, list[PartInfo]]]:
    """Work on the groups; returns the inputs for which the plan did not hold."""
    late: list[tuple[Input, list[PartInfo]]] = []
    broken: list[GroupWork] = []
    for outcome in engine.map(ingest_group, works, cost=lambda work: work.size_bytes, on_progress=progress.read):
        progress.finished(outcome.item)
        if outcome.error is not None and len(outcome.item.inputs) > 1:
            broken.append(outcome.item)  # which of its files has ended the worker?
            continue
        if outcome.error is not None:
            error = outcome.error
            reason = error.message if isinstance(error, PerfkitError) else f"{type(error).__name__}: {error}"
            for item in outcome.item.inputs:
                report.rejected.append(InputError(reason, path=item.input.path, next_step="run the same command again"))
            continue
        for result in outcome.unwrap():
            if isinstance(result.error, StoreFull):
                report.full = report.full or result.error  # a smaller file may still fit: go on
            elif result.plan_again is None:
                _record(result, report)
            else:
                late.append((result.input, result.plan_again))
    for work in broken:
        for item in work.inputs:
            held = lake.held(report.cluster, report.run, report.attempt)
            late += _run(engine, [_work(report, [item], held.commits, work.options)], lake, report, progress)
    return late


def _full_store(report: IngestReport, num_inputs: int) -> InputError:
    """Say once that nothing more fits, however many files that concerns."""
    assert report.full is not None
    left = num_inputs - sum(file.rank_source != "spool" for file in report.files)
    why = report.full.message.removeprefix(f"{report.store}: ")
    what = f"{why}; {left} of {num_inputs} files are not in the store" if left else why
    return InputError(what, path=report.store, next_step=report.full.next_step)


def _record(result: InputResult, report: IngestReport) -> None:
    error = result.error
    if error is None:
        report.files.append(
            IngestedFile(
                path=result.input.path,
                status="ingested",
                ranks=result.ranks,
                rank_source=result.parts[0].rank_source,
                world_size=result.parts[0].world_size,
                num_events=sum(part.num_events for part in result.parts),
                bytes_read=result.bytes_read,
                seconds=result.seconds,
                notes=[asdict(oddity) for part in result.parts for oddity in part.oddities.values()],
            )
        )
    elif isinstance(error, InputError):
        report.rejected.append(error)
    else:
        step = error.next_step or (
            "free some space and run the same command again" if isinstance(error, StoreError) else None
        )
        report.rejected.append(InputError(error.message, path=result.input.path, next_step=step))


def _is_small(inputs: Iterable[Input]) -> bool:
    """Say whether reading takes less than starting processes for it."""
    return sum(map(_expected_bytes, inputs)) < WORKERS_PAY_BYTES / (1 if have_c_scanner() else PYTHON_IS_SLOWER)


def _expected_bytes(input: Input) -> int:
    """Uncompressed size, roughly, and what every file costs."""
    return FILE_COST_BYTES + input.size_bytes * (1 if input.compression == "none" else TYPICAL_RATIO)


class _Progress:
    """Turns uncompressed bytes read into stored bytes done, so that a bar has a known end."""

    def __init__(self, inputs: Sequence[Input], callback: Callable[[int, int], None] | None) -> None:
        self._callback = callback
        self._total = sum(input.size_bytes for input in inputs)
        self._done: dict[int, int] = {}

    def read(self, work: GroupWork, increment: int) -> None:
        packed = any(item.input.compression != "none" for item in work.inputs)
        have = self._done.get(id(work), 0) + increment // (TYPICAL_RATIO if packed else 1)
        self._done[id(work)] = min(have, work.size_bytes)
        self._tell()

    def finished(self, work: GroupWork) -> None:
        self._done[id(work)] = work.size_bytes
        self._tell()

    def _tell(self) -> None:
        if self._callback:
            self._callback(min(sum(self._done.values()), self._total), self._total)
