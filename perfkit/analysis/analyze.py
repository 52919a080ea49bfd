"""`perfkit.analyze`: traces in, one Analysis out.

    analyze("traces/")                    files, folders and archives of any supported source
    analyze_tables({"events": ...})       the same from Arrow tables (perfkit.schema)

Inputs are read and analysed on an engine, one per worker, and only the small results are kept: memory is
that of one rank per worker. An input that cannot be used is listed in quality.rejected; if none can, that is an
error.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from perfkit.analysis.inputs import TracePart, plan_inputs, read_input, reason
from perfkit.analysis.rank import Options, RankPart, analyze_rank
from perfkit.analysis.summary import ranks_table, steps_table, summarize
from perfkit.analysis.timeline import ints
from perfkit.engine.base import Engine
from perfkit.engine.local import LocalEngine
from perfkit.errors import InputError, PerfkitError, UsageError
from perfkit.sources.ranks import PlannedInput

WORKERS_PAY_BYTES = 16_000_000
"""Stored bytes above which starting worker processes is faster than reading in this one."""


@dataclass(frozen=True)
class Analysis:
    """The result: `summary` has the shape of `--format json`, `tables` all rows behind it."""

    summary: dict[str, Any]
    tables: dict[str, pa.Table]
    sources: dict[int, str] = field(default_factory=dict)
    """The trace file of each rank; the first one if there are several."""

    def to_hta(self, **options: Any) -> Any:
        """Return an `hta.trace_analysis.TraceAnalysis` on the same files (`pip install perfkit[hta]`)."""
        try:
            from hta.trace_analysis import TraceAnalysis
        except ImportError:
            raise UsageError("HTA is not installed", next_step="run `pip install 'perfkit[hta]'`") from None
        inside = [path for path in self.sources.values() if "!" in path]
        if inside or not self.sources:
            raise UsageError(
                f"HTA reads plain trace files, and {inside[0] if inside else 'this analysis'} is none",
                next_step="unpack the archive and analyze the folder",
            )
        return TraceAnalysis(trace_files=self.sources, **options)


@dataclass(frozen=True)
class _Task:
    planned: PlannedInput
    options: Options
    ranks: frozenset[int] | None


@dataclass
class _Result:
    """What one input gave; small enough to cross processes."""

    parts: list[RankPart] = field(default_factory=list)
    rejected: list[dict[str, str]] = field(default_factory=list)
    infos: dict[int, dict[str, Any]] = field(default_factory=dict)
    sources: dict[int, str] = field(default_factory=dict)
    world_sizes: set[int] = field(default_factory=set)
    synthetic: bool = False

    def add(self, trace: TracePart, options: Options) -> None:
        """Analyse one part of the input."""
        try:
            new = analyze_rank(trace.tables, options)
            if not new:
                raise PerfkitError("no events")
        except PerfkitError as error:
            self.rejected.append({"path": trace.path, "reason": "; ".join([str(error), *trace.oddities])})
            return
        if trace.num_events is not None:
            new[0].quality.events = trace.num_events
        new[0].quality.notes += [f"{trace.path}: {oddity}" for oddity in trace.oddities]
        self.parts += new
        self.infos.update(trace.infos())
        if trace.rank is not None:
            self.sources.setdefault(trace.rank, trace.path)
        if trace.world_size is not None:
            self.world_sizes.add(trace.world_size)
        self.synthetic |= trace.synthetic


def analyze(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    window: str = "step",
    first_step: int | None = None,
    last_step: int | None = None,
    ranks: Collection[int] | None = None,
    engine: Engine | None = None,
) -> Analysis:
    """Analyse trace files, folders or archives."""
    options = Options(window, first_step, last_step)
    wanted = None if ranks is None else frozenset(ranks)
    paths = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    results = [_Result()]
    with tempfile.TemporaryDirectory(prefix="perfkit-") as spool:
        planned = plan_inputs(paths, Path(spool), results[0].rejected)
        if wanted is not None:
            planned = [one for one in planned if wanted & {part.rank for part in one.parts}]
        tasks = [_Task(one, options, wanted) for one in planned]
        small = sum(one.input.size_bytes for one in planned) < WORKERS_PAY_BYTES
        runner = engine or LocalEngine(1 if small else None)
        for outcome in runner.map(_analyze_input, tasks, cost=lambda t: t.planned.input.size_bytes, ordered=True):
            results.append(outcome.unwrap())
    return _finish(results)


def analyze_tables(
    tables: Mapping[str, pa.Table],
    *,
    window: str = "step",
    first_step: int | None = None,
    last_step: int | None = None,
    synthetic: bool = False,
) -> Analysis:
    """Analyse Arrow tables of one or many ranks."""
    result = _Result()
    result.add(TracePart("tables", dict(tables), synthetic=synthetic), Options(window, first_step, last_step))
    return _finish([result])


def _analyze_input(task: _Task) -> _Result:
    result = _Result()
    path = task.planned.input.path
    try:
        for trace in read_input(task.planned):
            if task.ranks is None or trace.rank in task.ranks:
                result.add(trace, task.options)
    except InputError as error:
        result.rejected.append({"path": error.path, "reason": reason(error)})
    except (OSError, pa.ArrowException, MemoryError) as error:
        result.rejected.append({"path": path, "reason": f"{type(error).__name__}: {error}"})
    return result


def _finish(results: Sequence[_Result]) -> Analysis:
    parts = [part for result in results for part in result.parts]
    rejected = [row for result in results for row in result.rejected]
    if not parts:
        reasons = "; ".join(f"{r['path']}: {r['reason']}" for r in rejected[:5]) or "no trace found"
        raise PerfkitError(f"nothing to analyze: {reasons}")
    _note_overlaps(parts)
    attribution = pa.concat_tables([p.attribution for p in parts])
    steps = steps_table(attribution)
    if not len(steps):
        known = sorted({step for part in parts for step in part.quality.steps_found})
        held = f"steps {known[0]} to {known[-1]}" if known else "no numbered steps"
        raise UsageError(f"none of the steps that were asked for; the traces hold {held}")
    ranks = ranks_table(steps, {rank: info for result in results for rank, info in result.infos.items()})
    tables = {
        "attribution": attribution,
        "steps": steps,
        "ranks": ranks,
        "idle": pa.concat_tables([p.idle for p in parts]),
        "io": pa.concat_tables([p.io for p in parts]),
    }
    memory = [p.memory for p in parts if p.memory is not None]
    if memory:
        tables["memory"] = pa.concat_tables(memory)
    summary = summarize(
        parts,
        steps,
        ranks,
        rejected=rejected,
        synthetic=any(result.synthetic for result in results),
        world_size=max((size for result in results for size in result.world_sizes), default=None),
    )
    sources = {rank: path for result in reversed(results) for rank, path in result.sources.items()}
    return Analysis(summary, tables, dict(sorted(sources.items())))


def _note_overlaps(parts: list[RankPart]) -> None:
    """Say when two files claim one rank at one time: then two runs are mixed."""
    spans: dict[int, list[tuple[int, int, RankPart]]] = {}
    for part in parts:
        start, window = ints(part.attribution["start_ns"]), ints(part.attribution["window_ns"])
        if len(start):
            spans.setdefault(part.rank, []).append((int(start.min()), int((start + window).max()), part))
    for rank, found in spans.items():
        found.sort(key=lambda span: span[:2])
        for (_, before, _), (after, _, part) in pairwise(found):
            if after < before:
                part.quality.notes.append(f"two files claim rank {rank} at the same time: are these two runs?")
