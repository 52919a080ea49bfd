"""What a fix would buy: the recorded job, played again with something changed.

    whatif("traces/")                                         -> WhatIf, the whole table
    whatif("traces/", changes=[parse_change("healthy", "5")]) -> WhatIf with these changes, made together

The job is played as a graph of what waits for what (perfkit.analysis.replay). Played with the measured durations it
gives the measured times, by construction. What says how far to trust it is the second number, `structure_error`: the
same graph with usual latencies instead of every task's own, so without any of the lags that no dependency explains.
Step time is the mean window over ranks and steps; MFU moves with it, as the FLOPs stay.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from perfkit.analysis.analyze import Examined, examine
from perfkit.analysis.classify import FAMILIES
from perfkit.analysis.replay.changes import About, Change, NotTold, combined
from perfkit.analysis.replay.critical import by_kind, by_rank, critical_path
from perfkit.analysis.replay.exchange import find_exchanges, no_exchanges
from perfkit.analysis.replay.model import Lags, Model, Played
from perfkit.analysis.replay.tasks import COMM, join_records
from perfkit.errors import PerfkitError, UsageError
from perfkit.sources.bytedance import is_op_trace

if TYPE_CHECKING:
    from perfkit.analysis.whatif_pipeline import Straggling

LOST = 0.002
"""A loss by a fix that is worth a word."""
TRUSTED = 0.02
"""A structure error above this is said aloud."""
FAMILY_FACTOR = 1.2
MAX_RANKS = 3
"""Stragglers that the table tries one by one."""
MAX_FAMILIES = 3


@dataclass(frozen=True)
class Prediction:
    """One line of the table. Unknown is None, with the reason in `note`."""

    name: str
    step_time_ns: int | None
    gain: float | None
    """Share of the step time that the change saves; negative if it costs."""
    mfu: float | None = None
    bound: str | None = None
    """`at best`: waiting could not be told from moving data, and counts as moving."""
    note: str | None = None


@dataclass
class WhatIf:
    """The answer."""

    step_time_ns: int
    """As measured: mean over ranks and steps."""
    mfu: float | None
    replay_error: float
    structure_error: float
    unexplained: float
    """Share of the critical path that consists of lags without a known cause."""
    predictions: list[Prediction]
    path: pa.Table
    ranks: list[int]
    world_size: int | None
    steps: int
    steps_source: str
    synthetic: bool = False
    notes: list[str] = field(default_factory=list)
    straggling: Straggling | None = None
    """Of a per-op trace: perfkit.analysis.whatif_pipeline."""

    def as_json(self) -> dict[str, Any]:
        """Return the document of docs/whatif.md."""
        total = max(sum(ns for _, _, ns in by_kind(self.path)), 1)
        return {
            "schema_version": 1,
            "synthetic": self.synthetic,
            "scope": {
                "ranks_traced": len(self.ranks), "world_size": self.world_size, "steps": self.steps,
                "steps_source": self.steps_source,
            },
            "measured": {"step_time_ns": self.step_time_ns, "mfu": self.mfu},
            "replay": {
                "error": self.replay_error, "structure_error": self.structure_error, "unexplained": self.unexplained,
            },
            "predictions": [
                {
                    "name": one.name, "step_time_ns": one.step_time_ns, "gain": one.gain, "mfu": one.mfu,
                    "bound": one.bound, "note": one.note,
                }
                for one in self.predictions
            ],
            "critical_path": {
                "ns": total,
                "by_kind": [
                    {"kind": kind, "family": family, "ns": ns, "share": ns / total}
                    for kind, family, ns in by_kind(self.path)
                ],
                "by_rank": [{"rank": rank, "ns": ns, "share": ns / total} for rank, ns in by_rank(self.path)],
            },
            "straggling": None if self.straggling is None else self.straggling.as_json(),
            "notes": self.notes,
        }  # fmt: skip


def whatif(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    changes: Sequence[Change] = (),
    **arguments: Any,
) -> WhatIf:
    """Play a recorded job again; the other arguments are those of `perfkit.analyze`.

    With a `store` the critical path is kept there, beside the tables of the analysis.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if len(given) == 1 and is_op_trace(given[0]):
        from perfkit.analysis.whatif_pipeline import whatif_pipeline

        return whatif_pipeline(given[0], changes=changes)
    examined = examine(given, replay=True, **arguments)
    found = play(examined, changes=changes)
    if examined.store is not None:
        store, key, id = examined.store
        store.write_derived("critical_path", found.path, *key, analysis_id=id)
    return found


def play(examined: Examined, *, changes: Sequence[Change] = ()) -> WhatIf:
    """Play what has been analysed."""
    model = build_model(examined)
    about = about_ranks(examined)
    asked = [list(changes)] if changes else _table(examined, model, about)
    questions: list[Lags] = [model.own, model.usual]
    column: list[int | str] = []
    for one in asked:
        try:
            lags = model.own
            for change in one:
                lags = change.apply(model, lags, about)
            column.append(len(questions))
            questions.append(lags)
        except NotTold as reason:
            column.append(str(reason))
    played = model.play(questions)
    times = [step_time(model, played, i, lags) for i, lags in enumerate(questions)]
    measured = measured_step_time(model)
    mfu = examined.report.summary["mfu"]["value"]
    unsplit = _unsplit(model)
    predictions = [
        _prediction(one, where, measured, times, mfu, unsplit) for one, where in zip(asked, column, strict=True)
    ]
    path = critical_path(model, played, 0, model.own)
    lost = sum(ns for kind, _, ns in by_kind(path) if kind == "unexplained")
    records, summary = model.tasks.records, examined.report.summary
    found = WhatIf(
        round(measured), mfu, times[0] / measured - 1, times[1] / measured - 1,
        lost / max(sum(ns for _, _, ns in by_kind(path)), 1), predictions, path,
        sorted({record.rank for record in records}), summary["scope"]["world_size"],
        max(len(record.window_step) for record in records), records[0].source, summary["synthetic"],
    )  # fmt: skip
    found.notes += _notes(found, model, examined, unsplit)
    return found


def build_model(examined: Examined) -> Model:
    """Join the ranks of an analysis into a job that can be played."""
    records = [record for record in examined.replays if len(record.window_step)]
    if not records:
        raise PerfkitError(
            "there is no device work to play again: a replay needs kernels on streams",
            next_step="profile with ProfilerActivity.CUDA; `perfkit analyze` reads CPU traces",
        )
    view = examined.job.view if examined.job is not None else None
    if view is None:
        tasks = join_records(records, lambda rank, time: time.copy())
        return Model.build(tasks, no_exchanges(tasks))
    tasks = join_records(records, view.clock.align)
    return Model.build(tasks, find_exchanges(tasks, view.calls, view.members, view.instances))


def about_ranks(examined: Examined) -> About:
    """Return what the analysis says about the ranks."""
    layout = examined.job.view.layout if examined.job is not None else None
    if layout is None:
        return About()
    stages = {rank: at["pp"] for rank, at in layout.coordinates.items() if "pp" in at}
    return About(dict(layout.role_of), stages if layout.degrees.get("pp", 1) > 1 else {})


def step_time(model: Model, played: Played, question: int, lags: Lags) -> float:
    """Return the mean window of a question."""
    windows = model.window_times(played, question, lags)
    return float(sum(int(w[-1] - w[0]) for w in windows) / sum(len(w) - 1 for w in windows))


def measured_step_time(model: Model) -> float:
    """Return the mean window as measured."""
    records = model.tasks.records
    return float(sum(int(r.edges[-1] - r.edges[0]) for r in records) / sum(len(r.window_step) for r in records))


def _table(examined: Examined, model: Model, about: About) -> list[list[Change]]:
    """Return what is worth asking of this job."""
    asked: list[list[Change]] = []
    if examined.job is not None and len({record.rank for record in model.tasks.records}) > 1:
        slow = [row["rank"] for row in examined.job.stragglers.to_pylist() if row["flagged"]][:MAX_RANKS]
        asked += [[Change("healthy", (rank,))] for rank in slow]
        asked.append([Change("healthy")])
    if (model.tasks.kind == COMM).any():
        asked += [[Change("network", factor=2.0)], [Change("network")], [Change("overlap")]]
    asked += [[Change("no-host-gaps")], [Change("no-data-wait")]]
    if about.stage_of:
        asked.append([Change("balance")])
    inside = (model.tasks.family >= 0) & (model.tasks.step >= 0)
    spent = np.bincount(model.tasks.family[inside], (model.tasks.end - model.tasks.start)[inside], len(FAMILIES))
    for family in np.argsort(-spent, kind="stable")[:MAX_FAMILIES].tolist():
        if spent[family] and FAMILIES[family] not in ("other", "unknown"):
            asked.append([Change("family", factor=FAMILY_FACTOR, family=FAMILIES[family])])
    return asked


def _unsplit(model: Model) -> float:
    """Return the share of communication time in which waiting cannot be told from moving data.

    Where members have no trace, what passes until the last traced one comes is waiting all the same.
    """
    tasks, exchanges = model.tasks, model.exchanges
    length = np.where(tasks.kind == COMM, tasks.end - tasks.start, 0)
    unclear = length.copy()
    moving = np.clip(exchanges.transfer, 0, length[exchanges.shared])
    unclear[exchanges.shared] = np.where(exchanges.split, 0, moving)
    return int(unclear.sum()) / max(int(length.sum()), 1)


def _prediction(
    changes: Sequence[Change], where: int | str, measured: float, times: Sequence[float], mfu: float | None,
    unsplit: float,
) -> Prediction:  # fmt: skip
    name = combined(changes)
    if isinstance(where, str):
        return Prediction(name, None, None, note=where)
    time = times[where] / times[0] * measured
    bound = "at best" if unsplit > 0.01 and any(change.kind == "network" for change in changes) else None
    return Prediction(name, round(time), 1 - time / measured, None if mfu is None else mfu * measured / time, bound)


def _notes(found: WhatIf, model: Model, examined: Examined, unsplit: float) -> list[str]:
    notes = []
    if abs(found.structure_error) > TRUSTED:
        notes.append(
            f"without the measured lags the graph is off by {100 * found.structure_error:+.1f} %: it misses "
            "dependencies that this trace does not record, and what depends on them stays as late as it was"
        )
    if found.unexplained > TRUSTED:
        notes.append(
            f"{100 * found.unexplained:.0f} % of the critical path are late starts without a recorded reason; "
            "every prediction keeps them"
        )
    if unsplit > 0.01:
        notes.append(
            f"in {100 * unsplit:.0f} % of the communication waiting cannot be told from moving data: a faster network "
            "counts all of that as moving"
        )
    world, traced = found.world_size, len(found.ranks)
    if world is not None and traced < world:
        notes.append(f"{traced} of {world} ranks are traced; the others are taken to keep up with every change")
    if examined.job is not None and examined.job.view.several:
        if not model.exchanges.num:
            notes.append("the ranks share no matched collective on aligned clocks: each is played by itself")
        elif not examined.job.view.clock.aligned:
            notes += [f"{note}; they are played apart" for note in examined.job.view.clock.notes if "aligned" in note]
    if any(" like " in one.name and (one.gain or 0.0) < -LOST for one in found.predictions):
        notes.append(
            "with the usual work of their peers these ranks would take longer: if they hold others up, it is not by "
            "their own work; look at what the host does before it"
        )
    late = next((row["evidence"] for row in examined.report.summary["findings"] if row["id"] == "straggler"), None)
    if late is not None and any(" like " in one.name for one in found.predictions):
        notes.append(
            f"`perfkit analyze` says that rank {late['rank']} costs {late['gain_ms_per_step']:.3g} ms a step: there it "
            "comes to every collective with the next latest, whatever made it late; here it works as long as its peers "
            "do, and is as late as what it waits for"
        )
    if model.tasks.records[0].source == "trace":
        notes.append("no steps are recorded: the whole trace is one step")
    return notes


def path_table(found: WhatIf, table: str) -> pa.Table:
    """Return a table of the answer by name."""
    if table != "critical_path":
        raise UsageError(f"no table {table!r} here; there is critical_path")
    return found.path
