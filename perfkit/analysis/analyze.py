"""`perfkit.analyze`: traces in, one Report out.

    analyze("traces/")                    files, folders and archives of any supported source
    analyze("llama-8b", store="runs/")    a run in a store; the answer is kept there
    analyze_tables({"events": ...})       the same from Arrow tables (perfkit.schema)

Inputs are read and analysed on an engine, one per worker, and only the small results are kept: memory is
that of one rank per worker. An input that cannot be used is listed in quality.rejected; if none can, that is an
error.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.findings import Facts, find, findings_json
from perfkit.analysis.inputs import KEPT, REPLAY_KEPT, TracePart, plan_inputs, read_input, reason
from perfkit.analysis.kernels import with_roofline
from perfkit.analysis.rank import Options, RankPart, analyze_rank
from perfkit.analysis.stored import (
    StoredRank,
    analysis_id,
    find_run,
    is_store,
    job_facts,
    plan_run,
    read_rank,
    recorded_steps,
    write_report,
)
from perfkit.analysis.summary import kernels_summary, ranks_table, steps_table, summarize
from perfkit.analysis.timeline import ints
from perfkit.analysis.utilisation import Question, rank_hfu, resolve
from perfkit.analysis.waterfall import ladder_terms, to_json, waterfall
from perfkit.engine.base import Engine, Outcome, RemoteError, WorkerDied
from perfkit.engine.local import LocalEngine
from perfkit.errors import InputError, PerfkitError, UsageError
from perfkit.report.format import plural
from perfkit.report.report import Report
from perfkit.sources.ranks import PlannedInput
from perfkit.store.filesystems import is_remote
from perfkit.store.layout import RunKey

if TYPE_CHECKING:
    from perfkit.analysis.job_results import JobResults
    from perfkit.analysis.replay.record import Record
    from perfkit.store.commits import RunSummary
    from perfkit.store.lake import Store

WORKERS_PAY_BYTES = 16_000_000
"""Stored bytes above which starting worker processes is faster than reading in this one."""


@dataclass(frozen=True)
class _Task:
    planned: PlannedInput | StoredRank
    options: Options
    ranks: frozenset[int] | None
    records: pa.Table | None = None
    """Steps that capture recorded."""
    replay: bool = False
    """Keep what a replay needs."""

    @property
    def size_bytes(self) -> int:
        """What it costs to read."""
        return self.planned.size_bytes if isinstance(self.planned, StoredRank) else self.planned.input.size_bytes


@dataclass
class _Result:
    """What one input gave; small enough to cross processes."""

    parts: list[RankPart] = field(default_factory=list)
    rejected: list[dict[str, str]] = field(default_factory=list)
    infos: dict[int, dict[str, Any]] = field(default_factory=dict)
    boards: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Device name -> what the driver says about the board."""
    sources: dict[int, str] = field(default_factory=dict)
    world_sizes: set[int] = field(default_factory=set)
    synthetic: bool = False
    replays: list[Record] = field(default_factory=list)

    def add(self, trace: TracePart, options: Options, *, replay: bool = False) -> None:
        """Analyse one part of the input."""
        try:
            kept = _read_record(trace.tables, options) if replay else []
            new = analyze_rank(trace.tables, options, by_nsys=set(trace.sources) == {"nsys"})
            if not new:
                raise _nothing_known(trace)
        except PerfkitError as error:
            self.rejected.append({"path": trace.path, "reason": "; ".join([str(error), *trace.oddities])})
            return
        if trace.num_events is not None:
            for part in new:  # the count is of all of them
                part.quality.events = trace.num_events if part is new[0] else 0
        new[0].quality.notes += [f"{Path(trace.path).name}: {oddity}" for oddity in trace.oddities]
        new[0].quality.sources = trace.sources
        self.parts += new
        self.replays += kept
        self.infos.update(trace.infos() or _infos(trace.tables.get("device_info")))
        self.boards.update(_boards(trace.tables.get("device_info")))
        if trace.rank is not None:
            self.sources.setdefault(trace.rank, trace.path)
        if trace.world_size is not None:
            self.world_sizes.add(trace.world_size)
        self.synthetic |= trace.synthetic


def _nothing_known(trace: TracePart) -> PerfkitError:
    """Return why there is nothing to analyse: no events, or only such as say nothing about a training job."""
    if not trace.num_events:
        return PerfkitError("no events")
    return PerfkitError(
        f"{plural(trace.num_events, 'event')}, none of which is known as device work, a framework op or a range",
        next_step="give a trace of torch.profiler or Nsight Systems, or name its categories in PERFKIT_CLASSES",
    )


def analyze(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    window: str = "step",
    first_step: int | None = None,
    last_step: int | None = None,
    ranks: Collection[int] | None = None,
    engine: Engine | None = None,
    model: Any = None,
    tokens_per_step: float | None = None,
    seq_len: int | None = None,
    hardware: str | None = None,
    dtype: str | None = None,
    convention: str | None = None,
    peak_flops: float | None = None,
    peak: str | None = None,
    world_size: int | None = None,
    mesh: str | None = None,
    store: str | os.PathLike[str] | None = None,
    cluster: str | None = None,
    run: str | None = None,
    attempt: int | None = None,
) -> Report:
    """Analyse trace files, folders or archives, or a run in a store.

    With a `store`, a path that is no file names a run in it, and the answer is kept there: under that run, or under
    `cluster`, `run` and `attempt`, which are named as `perfkit ingest` names them. A path to a store is analysed too.
    A run in a store that cannot be written is answered with a warning, `perfkit.analysis.stored.NotKept`.

    For MFU say what was trained: `model` (a preset, spec keys or a TransformerSpec) and `tokens_per_step` of the
    whole job. The others replace what the traces tell; see `perfkit.analysis.utilisation.Question`.
    """
    return examine(
        paths, window=window, first_step=first_step, last_step=last_step, ranks=ranks, engine=engine, store=store,
        cluster=cluster, run=run, attempt=attempt, model=model, tokens_per_step=tokens_per_step, seq_len=seq_len,
        hardware=hardware, dtype=dtype, convention=convention, peak_flops=peak_flops, peak=peak, world_size=world_size,
        mesh=mesh,
    ).report  # fmt: skip


@dataclass(frozen=True)
class Examined:
    """A report with what it was made of."""

    report: Report
    job: JobResults | None
    replays: list[Record]
    """What a replay needs of every rank; empty unless it was asked for."""
    store: tuple[Store, RunKey, str] | None = None
    """Where the answer is kept: store, run, and id of the analysis; None if it is not."""


def examine(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    replay: bool = False,
    window: str = "step",
    first_step: int | None = None,
    last_step: int | None = None,
    ranks: Collection[int] | None = None,
    engine: Engine | None = None,
    store: str | os.PathLike[str] | None = None,
    cluster: str | None = None,
    run: str | None = None,
    attempt: int | None = None,
    **question: Any,
) -> Examined:
    """Analyse, and keep the job's view beside the report; with `replay` what playing it again needs, too."""
    _question(question)  # mistakes first
    options = Options(window, first_step, last_step)
    wanted = None if ranks is None else frozenset(ranks)
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    lake, key, stored = _find_stored(given, store, cluster, run, attempt)
    results = [_Result()]
    with tempfile.TemporaryDirectory(prefix="perfkit-") as spool:
        planned: list[StoredRank] | list[PlannedInput]
        if lake is not None and stored is not None:
            planned = plan_run(lake, stored, wanted)
            if not planned:
                _nothing_stored(stored, wanted)
            inputs = [commit.fingerprint for commit in lake.committed(*stored.key)]
            results[0].rejected += _missing_shards(lake, stored)
        else:
            planned = plan_inputs(given, Path(spool), results[0].rejected)
            inputs = [one.input.fingerprint for one in planned]
            if wanted is not None:
                there = {part.rank for one in planned for part in one.parts}
                planned = [one for one in planned if wanted & {part.rank for part in one.parts}]
                if there and not planned:
                    raise UsageError(f"no trace of ranks {_shown(wanted)}; there are {_shown(there)}")
        records = recorded_steps(lake, key) if lake is not None and key is not None else None
        own_steps = _records_of(records, planned)
        tasks = [_Task(one, options, wanted, own_steps(one), replay) for one in planned]
        small = sum(task.size_bytes for task in tasks) < WORKERS_PAY_BYTES
        runner = engine or LocalEngine(1 if small else None)
        for outcome in runner.map(_analyze_input, tasks, cost=lambda t: t.size_bytes, ordered=True):
            results.append(outcome.value if outcome.error is None and outcome.value else _given_up(outcome))
    known = _run_facts(lake, key, records, results, question.get("world_size"))
    if question.get("model") is not None:  # then the run's own count of FLOPs is of no use
        known = {name: value for name, value in known.items() if name not in ("flops_per_token", "convention")}
    asked_of_it = _question({**known, **{k: v for k, v in question.items() if v is not None}})
    report, job = _finish(results, asked_of_it, records)
    place = None
    if store is not None and lake is not None and key is not None:
        asked = {**question, "window": window, "steps": (first_step, last_step), "ranks": sorted(wanted or ())}
        place = lake, key, analysis_id(inputs, asked)
        must = stored is None  # of files: then the store was named for no other reason
        if not write_report(report, lake, key, id=place[2], model=question.get("model"), must=must):
            place = None
    return Examined(report, job, [one for result in results for one in result.replays], place)


def _missing_shards(lake: Store, run: RunSummary) -> list[dict[str, str]]:
    """Say which shards of a divided ingest never came to their end."""
    absent, count = lake.missing_shards(*run.key) or ([], 0)
    if not absent:
        return []
    have = (
        f"{len(run.ranks)} of {run.world_size} ranks are here" if run.world_size else f"{len(run.ranks)} ranks are here"
    )
    step = f"run `perfkit ingest … --shard {absent[0]}/{count}` again"
    return [{"path": f"shards {_shown(absent)} of {count}", "reason": f"never came to their end; {have}; {step}"}]


def _given_up(outcome: Outcome[_Task, _Result]) -> _Result:
    """Report an input that no worker got through; the others count."""
    planned, error = outcome.item.planned, outcome.error
    if isinstance(error, PerfkitError) and not isinstance(error, (WorkerDied, RemoteError)):
        raise error  # about the store or the question, not about this input
    where = f"rank {planned.rank}" if isinstance(planned, StoredRank) else planned.input.path
    why = str(error) if isinstance(error, PerfkitError) else f"{type(error).__name__}: {error}"
    return _Result(rejected=[{"path": where, "reason": why}])


def _records_of(
    records: pa.Table | None, planned: Sequence[StoredRank | PlannedInput]
) -> Callable[[StoredRank | PlannedInput], pa.Table | None]:
    """Return who gives a worker the recorded steps of its rank, and not those of thousands of others."""
    if records is None or not any(isinstance(one, StoredRank) for one in planned):
        return lambda one: records
    records = records.take(pc.sort_indices(records, sort_keys=[("rank", "ascending"), ("step", "ascending")]))
    rank = ints(records["rank"])

    def own(one: StoredRank | PlannedInput) -> pa.Table | None:
        if not isinstance(one, StoredRank):
            return records
        first, last = np.searchsorted(rank, [one.rank, one.rank + 1])
        return pa.table(records.slice(first, last - first)).combine_chunks()

    return own


def _shown(ranks: Iterable[int]) -> str:
    from perfkit.report.format import ranges

    return ranges(sorted(ranks))


def _nothing_stored(run: RunSummary, wanted: frozenset[int] | None) -> NoReturn:
    """Say why a run of a store cannot be analysed."""
    name = f"{run.key.cluster}/{run.key.run}"
    if wanted is not None and run.ranks and not wanted & set(run.ranks):
        raise UsageError(f"{name} has no ranks {_shown(wanted)}; there are {_shown(run.ranks)}")
    raise UsageError(
        f"{name} holds no trace events, only what was recorded or computed from them",
        next_step=f"add its traces with `perfkit ingest TRACES --store DIR --run {run.key.run}`",
    )


def _find_stored(
    paths: list[str | os.PathLike[str]], store: str | os.PathLike[str] | None, cluster: str | None, run: str | None,
    attempt: int | None,
) -> tuple[Store | None, RunKey | None, RunSummary | None]:  # fmt: skip
    """Return the store, the run that the answer belongs to, and that run if it is what is analysed."""
    if store is None and not (paths and is_store(paths[0])):
        return None, None, None
    from perfkit.store.lake import Store

    if store is None:
        store, names = paths[0], [os.fspath(path) for path in paths[1:]]
    else:
        names = [os.fspath(path) for path in paths if not (is_remote(path) or Path(path).exists())]
        if names and len(names) < len(paths):
            raise UsageError(f"{names[0]} does not exist", next_step="name files, or one run of the store")
        if not names:
            from perfkit.sources.ingest import default_run

            lake = Store(store)
            lake.keep_apart_from(paths)
            return lake, RunKey(cluster or "default", run or default_run(paths), attempt or 0), None
    if len(names) > 1:
        raise UsageError(f"{', '.join(names)}: one run at a time", next_step="name one run of the store, or files")
    lake = Store(store)
    found = find_run(lake, names[0] if names else run, cluster=cluster, attempt=attempt)
    return lake, found.key, found


def _run_facts(
    lake: Store | None, key: RunKey | None, records: pa.Table | None, results: Sequence[_Result],
    world_size: int | None,
) -> dict[str, Any]:  # fmt: skip
    """Return what the run itself says about the job; what the user says goes before it."""
    if lake is None or key is None or not lake.exists:
        return {}
    run = next((one for one in lake.runs(cluster=key.cluster, run=key.run) if one.key == key), None)
    traced = max((size for result in results for size in result.world_sizes), default=None)
    size = world_size or (run.world_size if run else None) or traced
    facts = job_facts(records, run.metadata if run else {}, size)
    return {**facts, "world_size": run.world_size if run else None}


def analyze_tables(
    tables: Mapping[str, pa.Table],
    *,
    window: str = "step",
    first_step: int | None = None,
    last_step: int | None = None,
    synthetic: bool = False,
    **question: Any,
) -> Report:
    """Analyse Arrow tables of one or many ranks; the other arguments are those of `analyze`."""
    return examine_tables(
        tables, window=window, first_step=first_step, last_step=last_step, synthetic=synthetic, **question
    ).report


def examine_tables(
    tables: Mapping[str, pa.Table],
    *,
    replay: bool = False,
    window: str = "step",
    first_step: int | None = None,
    last_step: int | None = None,
    synthetic: bool = False,
    **question: Any,
) -> Examined:
    """Analyse Arrow tables, and keep what the report was made of."""
    asked = _question(question)
    result = _Result()
    options = Options(window, first_step, last_step)
    result.add(TracePart("tables", dict(tables), synthetic=synthetic), options, replay=replay)
    report, job = _finish([result], asked, tables.get("steps"))
    return Examined(report, job, result.replays)


def _question(arguments: dict[str, Any]) -> Question:
    if unknown := set(arguments) - {f.name for f in fields(Question)}:
        raise UsageError(f"unknown arguments {sorted(unknown)}", next_step="see perfkit.analysis.utilisation.Question")
    return Question(**{name: value for name, value in arguments.items() if value is not None})


def _infos(devices: pa.Table | None) -> dict[int, dict[str, Any]]:
    """Device name by rank, of tables that hold many ranks."""
    if devices is None or not len(devices):
        return {}
    names: dict[int, set[str]] = {}
    for rank, name in zip(devices["rank"].to_pylist(), devices["name"].to_pylist(), strict=True):
        names.setdefault(rank, set()).update([name] if name else [])
    return {rank: {"device": found.pop() if len(found) == 1 else None} for rank, found in names.items()}


def _boards(devices: pa.Table | None) -> dict[str, dict[str, Any]]:
    """Return what tells boards of one name apart; `find_device` takes it."""
    found: dict[str, dict[str, Any]] = {}
    for row in devices.to_pylist() if devices is not None else ():
        version = [row.get(name) for name in ("compute_major", "compute_minor")]
        if row["name"]:
            found[row["name"]] = {
                "compute_capability": None if None in version else ".".join(map(str, version)),
                "sm_count": row.get("num_sms"),
                "memory_bytes": row.get("memory_bytes"),
            }
    return found


def _analyze_input(task: _Task) -> _Result:
    result = _Result()
    path = str(task.planned.key) if isinstance(task.planned, StoredRank) else task.planned.input.path
    try:
        kept = REPLAY_KEPT if task.replay else KEPT
        one = task.planned
        for trace in [read_rank(one, kept)] if isinstance(one, StoredRank) else read_input(one, kept):
            if task.records is not None:
                trace.tables.setdefault("steps", task.records)
            if task.ranks is None or trace.rank in task.ranks:
                result.add(trace, task.options, replay=task.replay)
    except InputError as error:
        result.rejected.append({"path": error.path, "reason": reason(error)})
    except (OSError, pa.ArrowException, MemoryError) as error:
        result.rejected.append({"path": path, "reason": f"{type(error).__name__}: {error}"})
    return result


def _read_record(tables: Mapping[str, pa.Table], options: Options) -> list[Record]:
    from perfkit.analysis.replay.record import read_record

    return read_record(tables, options)


def _finish(
    results: Sequence[_Result], question: Question, records: pa.Table | None = None
) -> tuple[Report, JobResults | None]:
    _drop_copies(results)
    parts = [part for result in results for part in result.parts]
    rejected = [row for result in results for row in result.rejected]
    if not parts:
        reasons = "; ".join(f"{r['path']}: {r['reason']}" for r in rejected[:5]) or "no trace found"
        stored = "a run in a store needs --store DIR" if "no such file" in reasons else None
        raise PerfkitError(f"nothing to analyze: {reasons}", next_step=stored)
    _note_overlaps(parts)
    attribution = pa.concat_tables([p.attribution for p in parts])
    steps = steps_table(attribution)
    if not len(steps):
        known = sorted({step for part in parts for step in part.quality.steps_found})
        held = f"steps {known[0]} to {known[-1]}" if known else "no numbered steps"
        raise UsageError(f"none of the steps that were asked for; the traces hold {held}")
    infos = {rank: info for result in results for rank, info in result.infos.items()}
    ranks = ranks_table(steps, infos)
    sizes = sorted({size for result in results for size in result.world_sizes})
    world_size = question.world_size or (sizes[-1] if sizes else None)
    if len(sizes) > 1:
        parts[0].quality.notes.append(f"the traces disagree on the world size: {sizes}; taken is {world_size}")
    detail = {
        name: pa.concat_tables([getattr(p, name) for p in parts]).unify_dictionaries()
        for name in ("idle", "io", "kernels", "compute", "window_idle", "gaps", "exchanges", "copies")
    }
    devices = [infos.get(rank, {}).get("device") for rank in ranks["rank"].to_pylist()]
    boards = {name: board for result in results for name, board in result.boards.items()}
    use = resolve(
        detail["compute"], detail["kernels"], steps, question, devices=devices, boards=boards, world_size=world_size,
        unseen=any(part.quality.device_unseen for part in parts),
    )  # fmt: skip
    kernels = with_roofline(detail["kernels"], use.numerator.peaks, use.peaks.bytes_per_second)
    job = _job(parts, steps, detail, infos, world_size, question, records)
    split = {} if job is None else _comm_terms(job, steps, detail["window_idle"])
    untold = detail["io"].filter(
        pc.and_(pc.equal(detail["io"]["kind"], "data"), pc.is_null(detail["io"]["exposed_ns"]))
    )
    terms = ladder_terms(
        steps, detail["compute"], detail["window_idle"], use.numerator, **split,
        untold=set(untold["rank"].to_pylist()),
    )  # fmt: skip
    ladder = waterfall(terms, use.numerator.start)
    tables = {
        "attribution": attribution, "steps": steps, "ranks": ranks, "idle": detail["idle"], "gaps": detail["gaps"],
        "io": detail["io"], "kernels": kernels, "waterfall": ladder, "exchanges": detail["exchanges"],
        "copies": detail["copies"],
    }  # fmt: skip
    if lanes := [p.timeline for p in parts if p.timeline is not None]:
        tables["timeline"] = _on_one_clock(pa.concat_tables(lanes), job)
    memory = [p.memory for p in parts if p.memory is not None]
    if memory:
        tables["memory"] = pa.concat_tables(memory)
    summary = summarize(
        parts,
        steps,
        ranks,
        rejected=rejected,
        synthetic=any(result.synthetic for result in results),
        world_size=world_size,
        tokens_per_step=question.tokens_per_step,
        num_devices=use.num_devices,
        hfu=rank_hfu(detail["compute"], steps, use.numerator.peaks),
        job=job,
    )
    facts = Facts(
        steps=steps, terms=terms, kernels=kernels, idle=detail["idle"], exchanges=detail["exchanges"],
        copies=detail["copies"], distortion=[p.distortion for p in parts], peaks=use.peaks, mfu=use.mfu["value"],
        quality=summary["quality"], job=job,
    )  # fmt: skip
    tables["findings"] = find(facts)
    summary |= {
        "hardware": use.hardware, "mfu": use.mfu, "kernels": kernels_summary(kernels), "waterfall": to_json(ladder),
        "findings": findings_json(tables["findings"]),
        "collectives": None if job is None else job.collectives, "job": None if job is None else job.summary(),
    }  # fmt: skip
    if job is not None:
        tables |= job.tables()
    sources = {rank: path for result in reversed(results) for rank, path in result.sources.items()}
    clock = job.view.clock if job is not None and job.view.several else None
    return Report(summary, tables, dict(sorted(sources.items())), clock), job


def _job(
    parts: Sequence[RankPart], steps: pa.Table, detail: Mapping[str, pa.Table],
    infos: Mapping[int, Mapping[str, Any]], world_size: int | None, question: Question, records: pa.Table | None,
) -> JobResults | None:  # fmt: skip
    """Look at the ranks together; one that does not communicate is spared even the import."""
    if len({part.rank for part in parts}) < 2 and not any(len(part.calls) for part in parts):
        return None
    from perfkit.analysis.job_results import job_results

    return job_results(
        parts, steps=steps, idle=detail["idle"], window_idle=detail["window_idle"], compute=detail["compute"],
        records=records, hosts={rank: info.get("host") for rank, info in infos.items()},
        devices={rank: info.get("device") for rank, info in infos.items()}, world_size=world_size, mesh=question.mesh,
    )  # fmt: skip


def _on_one_clock(lanes: pa.Table, job: JobResults | None) -> pa.Table:
    """Return the lanes with their starts on the reference clock."""
    if job is None or not job.clock()["aligned"]:
        return lanes
    start = job.view.clock.align(ints(lanes["rank"]), ints(lanes["start_ns"]))
    return lanes.set_column(lanes.column_names.index("start_ns"), "start_ns", pa.array(start))


def _comm_terms(job: JobResults, steps: pa.Table, window_idle: pa.Table) -> dict[str, Any]:
    """Return how exposed communication is split, where more than one rank shows it."""
    from perfkit.analysis.bubble import waits_for_receive
    from perfkit.analysis.job_results import split_terms

    if not job.view.several or not len(job.view.instances):
        return {}
    bubble = waits_for_receive(window_idle) if len(job.bubbles.ranks) else None
    return {"comm": split_terms(job, steps), "bubble_idle": bubble}


def _drop_copies(results: Sequence[_Result]) -> None:
    """Count a trace once that is there twice, packed and unpacked for example."""
    seen: dict[int, list[tuple[RankPart, str]]] = {}
    for result in results:
        kept = []
        for part in result.parts:
            path, known = result.sources.get(part.rank, ""), seen.setdefault(part.rank, [])
            twin = next((where for other, where in known if _is_copy(part, other)), None)
            if twin is None or twin == path:
                known.append((part, path))
                kept.append(part)
            else:
                result.rejected.append({"path": path, "reason": f"holds the same as {twin}, which counts"})
        result.parts = kept


def _is_copy(part: RankPart, other: RankPart) -> bool:
    """Say whether two files hold the same recording."""
    same = part.quality.events == other.quality.events and part.attribution.equals(other.attribution)
    return same and part.kernels.equals(other.kernels)


def _note_overlaps(parts: list[RankPart]) -> None:
    """Say when two files claim one rank at one time: then two runs are mixed."""
    spans: dict[int, list[tuple[int, int, RankPart]]] = {}
    twice: dict[int, list[int]] = {}
    for part in parts:
        start, window = ints(part.attribution["start_ns"]), ints(part.attribution["window_ns"])
        if len(start):
            spans.setdefault(part.rank, []).append((int(start.min()), int((start + window).max()), part))
    for rank, found in spans.items():
        found.sort(key=lambda span: span[:2])
        for (_, before, _), (after, _, part) in pairwise(found):
            if after < before:
                part.quality.notes.append(f"two files claim rank {rank} at the same time: are these two runs?")
        if again := _steps_twice([part for _, _, part in found]):
            twice[rank] = again
    if twice:
        rank, again = next(iter(twice.items()))
        who = f"rank {rank} has" if len(twice) == 1 else f"{len(twice):,} ranks have"
        spans[rank][0][2].quality.notes.append(
            f"{who} step {again[0]}{' and others' if again[1:] else ''} twice, at different times: runs are added up "
            "here; `perfkit compare` sets one against the other"
        )


def _steps_twice(parts: list[RankPart]) -> list[int]:
    """Return numbers of steps that a device went through more than once, by the profiler's own count."""
    seen: Counter[tuple[int | None, int]] = Counter()
    for part in parts:
        if part.quality.steps_source == "ProfilerStep":
            steps = (part.attribution[name].to_pylist() for name in ("device", "step"))
            seen.update({(device, step) for device, step in zip(*steps, strict=True) if step is not None})
    return sorted({step for (_, step), times in seen.items() if times > 1})
