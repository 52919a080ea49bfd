"""What is known of one run, as arrays: its allocations, its phases, its steps, its interruptions.

    Timeline.from_tables(lifecycle, steps, as_of_ns=…) -> Timeline       (tables with a column `attempt`)

The job's time line is that of its lead rank: the lowest rank that left records. Training is synchronous, so a
stall of any rank is a stall of all of them, and reading one rank of thousands is enough. Records of the whole
job (rank null) count as well. A record that makes no sense is dropped and said in `notes`, never in silence.

A lifecycle row of kind `step` stands for all steps since the row before it, up to and including its `step`:
loggers that write a line every so often are as good as a record per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.intervals import Ints
from perfkit.goodput.causes import is_planned, normalise_cause

PHASES = ("hang", "checkpoint_restore", "checkpoint_save", "eval", "data_stall", "compile", "fault", "restart",
          "drain", "init")  # fmt: skip
"""Kinds that last, from the strongest claim on a nanosecond to the weakest; a step is weaker than all of them."""
HEARTBEAT_FLOOR_NS = 600 * 10**9
"""A run that is silent for less than this is never called lost."""
HEARTBEAT_STEPS = 20
"""… nor one that is silent for fewer usual steps than this."""

_NONE = np.empty(0, np.int64)


@dataclass
class Allocations:
    """One row per attempt, in time order and disjoint."""

    attempt: Ints = field(default_factory=lambda: _NONE)
    start: Ints = field(default_factory=lambda: _NONE)
    end: Ints = field(default_factory=lambda: _NONE)
    gpus: Ints = field(default_factory=lambda: _NONE)


@dataclass
class Steps:
    """One row per step, or per block of consecutive steps, in time order and disjoint."""

    start: Ints = field(default_factory=lambda: _NONE)
    end: Ints = field(default_factory=lambda: _NONE)
    first: Ints = field(default_factory=lambda: _NONE)
    last: Ints = field(default_factory=lambda: _NONE)
    wait_ns: Ints = field(default_factory=lambda: _NONE)
    """Wait for data just before `start`."""
    tokens: Ints = field(default_factory=lambda: _NONE)
    """Of the job; -1 is unknown."""
    flops: np.ndarray[Any, np.dtype[np.float64]] = field(default_factory=lambda: np.empty(0))
    """Model FLOPs of the job; NaN is unknown."""
    loss: np.ndarray[Any, np.dtype[np.float64]] = field(default_factory=lambda: np.empty(0))

    def __len__(self) -> int:
        return len(self.start)

    @property
    def count(self) -> Ints:
        """Steps that each row stands for."""
        return self.last - self.first + 1

    def take(self, rows: Any) -> Steps:
        """Return some of the rows."""
        return Steps(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})


@dataclass
class Timeline:
    """One run."""

    allocations: Allocations = field(default_factory=Allocations)
    steps: Steps = field(default_factory=Steps)
    phase_kind: Ints = field(default_factory=lambda: _NONE)
    """Index into PHASES."""
    phase_start: Ints = field(default_factory=lambda: _NONE)
    phase_end: Ints = field(default_factory=lambda: _NONE)
    fault_time: Ints = field(default_factory=lambda: _NONE)
    _fault_attempt: Ints = field(default_factory=lambda: _NONE)
    fault_cause: list[str | None] = field(default_factory=list)
    fault_node: list[str | None] = field(default_factory=list)
    eligible_ns: int | None = None
    end_ns: int | None = None
    """When the run said that it ended; null if it never did."""
    end_cause: str | None = None
    last_seen_ns: int | None = None
    state: str = "running"
    notes: list[str] = field(default_factory=list)

    @classmethod
    def from_tables(
        cls,
        lifecycle: pa.Table,
        steps: pa.Table | None = None,
        *,
        gpus: int | None = None,
        replicas: int = 1,
        as_of_ns: int | None = None,
        heartbeat_ns: int | None = None,
    ) -> Timeline:
        """Build the time line of one run from its records.

        `gpus` is used where no record says how many; `replicas` is the number of data-parallel replicas, by
        which a rank's tokens and FLOPs are multiplied. Without `as_of_ns` the last record is now.
        """
        line = cls()
        table = _lead(lifecycle)
        kinds = np.array(table["kind"].to_pylist(), object)
        start, end = _ints(table["start_ns"]), _ints(table["end_ns"], -1)
        line.steps = _join_steps(
            _steps_of_table(steps, replicas) if steps is not None and len(steps) else None,
            _steps_of_lifecycle(table.filter(pa.array(kinds == "step")), line.notes),
            line.notes,
        )
        seen = [*start.tolist(), *end[end >= 0].tolist(), *line.steps.end[-1:].tolist()]
        line.last_seen_ns = max(seen, default=None)
        ended = table.filter(pa.array(kinds == "end"))
        last_attempt = pc.max(table["attempt"]).as_py() if len(table) else None
        final = [r for r in ended.to_pylist() if r["attempt"] == last_attempt]
        if final:
            line.end_ns = max(r["end_ns"] or r["start_ns"] for r in final)
            line.end_cause = normalise_cause(final[-1]["cause"], missing="completed")
        waiting = len(table) > 0 and bool((kinds[_ints(table["attempt"]) == last_attempt] == "eligible").all())
        line.state = "queued" if waiting else line._state(as_of_ns, heartbeat_ns)
        line._set_faults(table, kinds)
        line._set_allocations(table, kinds, steps, gpus, as_of_ns)
        waits = np.asarray(pc.fill_null(table["blocking"], True))
        line._set_phases(np.where(waits, kinds, ""), start, end)
        eligible = start[kinds == "eligible"]
        line.eligible_ns = int(eligible.min()) if len(eligible) else None
        return line

    def _state(self, as_of_ns: int | None, heartbeat_ns: int | None) -> str:
        """Judge by the last word: an end, or how long it has been silent."""
        if self.end_ns is not None:
            return "failed" if is_planned(self.end_cause) is False else "ended"
        if self.last_seen_ns is None or as_of_ns is None:
            return "running"
        usual = int(np.median((self.steps.end - self.steps.start) // self.steps.count)) if len(self.steps) else 0
        limit = max(HEARTBEAT_FLOOR_NS, HEARTBEAT_STEPS * usual) if heartbeat_ns is None else heartbeat_ns
        return "running" if as_of_ns - self.last_seen_ns <= limit else "lost"

    def _set_faults(self, table: pa.Table, kinds: Any) -> None:
        rows = table.filter(pa.array(kinds == "fault")).sort_by("start_ns").to_pylist()
        self.fault_time = np.array([r["start_ns"] for r in rows], np.int64)
        self._fault_attempt = np.array([r["attempt"] for r in rows], np.int64)
        self.fault_cause = [normalise_cause(r["cause"]) for r in rows]
        self.fault_node = [None] * len(rows)

    def _set_phases(self, kinds: Any, start: Ints, end: Ints) -> None:
        code = {kind: i for i, kind in enumerate(PHASES)}
        which = np.array([code.get(kind, -1) for kind in kinds], np.int64)
        open_end = self.last_seen_ns or 0
        until = np.where(end >= 0, end, np.where(which == code["fault"], start, open_end))
        keep = (which >= 0) & (until > start)
        if bad := int(((which >= 0) & (end >= 0) & (end < start)).sum()):
            self.notes.append(f"{bad} lifecycle records end before they start; they count as instants")
        self.phase_kind, self.phase_start, self.phase_end = which[keep], start[keep], until[keep]

    def _set_allocations(
        self, table: pa.Table, kinds: Any, steps: pa.Table | None, gpus: int | None, as_of_ns: int | None
    ) -> None:
        """Set when each attempt held GPUs: as its `allocated` row says, else from its first record to its last."""
        open_end = self.last_seen_ns or 0
        if self.state == "running" and as_of_ns is not None:
            open_end = max(open_end, as_of_ns)
        attempts, start, end = _ints(table["attempt"]), _ints(table["start_ns"]), _ints(table["end_ns"], -1)
        of_job = (kinds == "allocated") | np.asarray(pc.is_null(table["rank"]))  # a rank's row counts its own GPUs
        count = np.where(of_job, _ints(table["gpus"], -1), -1)
        stepped = _step_spans(steps)
        every = sorted({*attempts.tolist(), *stepped})
        rows = []
        for attempt in every:
            mine = attempts == attempt
            inside = mine & (kinds != "eligible")
            times = [*start[inside].tolist(), *end[inside & (end >= 0)].tolist(), *stepped.get(attempt, ())]
            if not times:
                continue
            known = count[mine & (count > 0)]
            num = int(known.max()) if len(known) else gpus
            if num is None:
                self.notes.append(f"attempt {attempt}: no record says how many GPUs; counted as 1")
            said = mine & (kinds == "allocated")
            first, last = min(times), max(times)
            died = max(start[mine & (kinds == "fault")].tolist(), default=-1) >= last
            over = (kinds[mine] == "end").any() or attempt != every[-1] or died
            if said.any():
                first = int(start[said].min())
                if (end[said] >= 0).all():
                    last = int(end[said].max())
            if not over and not (said.any() and (end[said] >= 0).all()):
                last = max(last, open_end)
            rows.append((attempt, first, last, num or 1))
        self.allocations = disjoint(rows, self.notes)
        self._settle_faults()

    def _settle_faults(self) -> None:
        """Keep a fault inside its own attempt: who reports a death may do so when the next attempt has begun."""
        where = self.allocations
        after = np.searchsorted(where.attempt, self._fault_attempt, side="right") if len(where.start) else _NONE
        later = np.append(where.start, np.iinfo(np.int64).max)[after] if len(after) else self.fault_time + 1
        moved = np.minimum(self.fault_time, later - 1)
        order = np.argsort(moved, kind="stable")
        self.fault_time, self._fault_attempt = moved[order], self._fault_attempt[order]
        self.fault_cause = [self.fault_cause[i] for i in order.tolist()]


def _step_spans(steps: pa.Table | None) -> dict[int, tuple[int, int]]:
    """First and last moment of the steps of each attempt."""
    if steps is None or not len(steps):
        return {}
    table = steps
    if "attempt" not in table.column_names:
        table = table.append_column("attempt", pa.array(np.zeros(len(table), np.int32)))
    begin = pc.subtract(table["start_ns"], pc.max_element_wise(pc.fill_null(table["data_wait_ns"], 0), 0))
    plain = pa.table({"attempt": table["attempt"].cast(pa.int64()), "begin": begin, "end": table["end_ns"]})
    found = plain.group_by("attempt").aggregate([("begin", "min"), ("end", "max")]).to_pydict()
    return {a: (b, e) for a, b, e in zip(found["attempt"], found["begin_min"], found["end_max"], strict=True)}


def disjoint(rows: Sequence[tuple[int, int, int, int]], notes: list[str]) -> Allocations:
    """Order attempts in time and cut each where the next begins."""
    rows = sorted((r for r in rows if r[2] > r[1]), key=lambda r: (r[1], r[0]))
    attempt, start, end, gpus = (np.array([r[i] for r in rows], np.int64) for i in range(4))
    if len(rows) > 1 and (end[:-1] > start[1:]).any():
        notes.append("attempts overlap in time; each is cut where the next begins")
        end[:-1] = np.minimum(end[:-1], start[1:])
    keep = end > start
    return Allocations(attempt[keep], start[keep], end[keep], gpus[keep])


def _lead(table: pa.Table) -> pa.Table:
    """Keep the records of the whole job and of the lowest rank of each attempt."""
    if "attempt" not in table.column_names:
        table = table.append_column("attempt", pa.array(np.zeros(len(table), np.int32)))
    if not len(table) or table["rank"].null_count == len(table):
        return table
    lowest = table.group_by("attempt").aggregate([("rank", "min")]).to_pydict()
    keep = pc.is_null(table["rank"])
    for attempt, rank in zip(lowest["attempt"], lowest["rank_min"], strict=True):
        if rank is not None:
            keep = pc.or_(keep, pc.and_kleene(pc.equal(table["attempt"], attempt), pc.equal(table["rank"], rank)))
    return table.filter(pc.fill_null(keep, False))


def _steps_of_table(table: pa.Table, replicas: int) -> Steps:
    lead = _lead(table)
    number = _ints(lead["step"])
    tokens = _ints(lead["tokens"], -1)
    return Steps(
        _ints(lead["start_ns"]), _ints(lead["end_ns"]), number, number, np.maximum(_ints(lead["data_wait_ns"], 0), 0),
        np.where(tokens >= 0, tokens * replicas, -1), _floats(lead["model_flops"]) * replicas, _floats(lead["loss"]),
    )  # fmt: skip


def _steps_of_lifecycle(table: pa.Table, notes: list[str]) -> Steps | None:
    rows = table.filter(pc.and_(pc.is_valid(table["step"]), pc.is_valid(table["end_ns"])))
    if lacking := len(table) - len(rows):
        notes.append(f"{lacking} lifecycle rows of kind step without a number or an end; left out")
    if not len(rows):
        return None
    rows = rows.sort_by("start_ns")
    last = _ints(rows["step"])
    attempt = _ints(rows["attempt"])
    before = np.r_[last[0] - 1, last[:-1]]
    same = np.r_[False, attempt[1:] == attempt[:-1]]
    first = np.where(same & (before < last), before + 1, last)
    size = len(rows)
    return Steps(
        _ints(rows["start_ns"]), _ints(rows["end_ns"]), first, last, np.zeros(size, np.int64),
        np.full(size, -1, np.int64), np.full(size, np.nan), np.full(size, np.nan),
    )  # fmt: skip


def _join_steps(table: Steps | None, blocks: Steps | None, notes: list[str]) -> Steps:
    """Prefer a record per step; without one the blocks of the lifecycle."""
    steps = table or blocks
    if steps is None:
        return Steps()
    keep = steps.end > steps.start
    if bad := int((~keep).sum()):
        notes.append(f"{bad} steps end before they start; left out")
    steps = steps.take(np.flatnonzero(keep)[np.argsort(steps.start[keep], kind="stable")])
    before = np.r_[np.int64(-(2**62)), np.maximum.accumulate(steps.end)[:-1]] if len(steps) else _NONE
    keep = steps.end > before
    if bad := int((~keep).sum()):
        notes.append(f"{bad} steps lie inside another; left out")
    steps = steps.take(keep)
    before = np.r_[np.int64(-(2**62)), steps.end[:-1]] if len(steps) else _NONE
    steps.start = np.maximum(steps.start, before)
    steps.wait_ns = np.minimum(steps.wait_ns, steps.start - before)
    return steps


def _ints(column: pa.ChunkedArray, missing: int = 0) -> Ints:
    return np.asarray(pc.fill_null(column.cast(pa.int64()), missing).to_numpy(), np.int64)


def _floats(column: pa.ChunkedArray) -> Any:
    return np.asarray(pc.fill_null(column.cast(pa.float64()), np.nan).to_numpy(), np.float64)
