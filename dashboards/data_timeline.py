"""A step of some ranks on one clock: what ran when, joined until it fits a screen.

    moment(source, view)      -> Moment: the step, the ranks, the part of it that is shown
    scene(source, view)       -> Scene: at most MAX_BARS bars, collectives joined across ranks, clock error of each rank
    shares(source, view)      -> rows {rank, lane, class, events, busy_ns, share}: the same window, nothing joined
    longest(source, view)     -> the longest single events of the window
    write_trace(source, at, path)                             the window for Perfetto

A zoom costs two binary searches per row of the picture and one pass over what is inside. Events shorter than a cell are
joined with their neighbours of the row into one bar that knows how many they are and how long they were busy
(timeline_bars), so no class disappears at any zoom and sums stay exact. Times are those of the analysis's `alignment`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.alignment import StoredClocks, align
from perfkit.analysis.intervals import union
from perfkit.analysis.rank_lists import rank_ranges
from perfkit.errors import UsageError
from perfkit.report.report import Report
from perfkit.store.layout import slug

from .data import Rows, Source
from .data_run import analysed
from .timeline_bars import Joined, inside, join_small
from .timeline_events import CAUSES, DEVICE_WORK, HOST, Moment, RankEvents, Slot, alignment, rank_events
from .view import View

MAX_BARS = 1_000
MAX_RANKS = 16
DEFAULT_RANKS = 8
MAX_JOINS = 120
Ints = Any

__all__ = ["CAUSES", "DEVICE_WORK", "HOST", "Moment", "Scene", "longest", "moment", "scene", "shares", "write_trace"]


@dataclass(frozen=True)
class Row:
    """A row of the picture."""

    rank: int
    slot: Slot


@dataclass(frozen=True)
class Scene:
    """What is drawn: arrays of equal length, one entry per bar; times in ns after the step's start."""

    moment: Moment
    rows: list[Row]
    row: Ints
    start: Ints
    end: Ints
    busy: Ints
    count: Ints
    label: list[str]
    """Name of the event; of several, the one that takes most time."""
    event: Ints
    cell_ns: int
    """Events shorter than this are joined; 0: none are."""
    events: int
    uncertainty: dict[int, int | None]
    clocks: dict[int, str | None]
    joins: Rows
    """{instance, op, group, points: [(row, ns), …]}: starts of one collective on several ranks."""
    calls: dict[int, dict[int, dict[str, Any]]]
    """Rank -> event -> what the analysis says about the collective."""
    hidden: dict[str, int]
    """Instances of collectives that have no line, by reason."""


# ------------------------------------------------------------------ which step, which ranks


def parse_ranks(text: str, available: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ranks that `0-3,7` names, those that there are, at most MAX_RANKS; none of them means the first few.

    A part of the text that names no ranks is passed over: a page is shown in any case.
    """
    chosen: list[int] = []
    for part in text.split(",")[:64]:
        with suppress(UsageError):
            chosen += [rank for some in rank_ranges(part) for rank in available if rank in some]
    found = tuple(dict.fromkeys(chosen)) or available[:DEFAULT_RANKS]
    return found[:MAX_RANKS]


def moment(source: Source, view: View) -> Moment | None:
    """Return the step and ranks of a view; None if no analysis of the run has windows."""
    key = source.run_key(view)
    columns = ["rank", "step", "start_ns", "window_ns", "carry_in"]
    rows = analysed(source, key, "attribution", columns=columns) if key else None
    if key is None or rows is None:
        return None
    rows = rows.filter(pc.invert(pc.fill_null(rows["carry_in"], False)))
    if not len(rows):
        return None
    steps = tuple(sorted(pc.unique(rows["step"]).drop_null().to_pylist()))
    step = (view.step if view.step in steps else steps[len(steps) // 2]) if steps else None
    mine = rows.filter(pc.equal(rows["step"], step)) if step is not None else rows.filter(pc.is_null(rows["step"]))
    clocks = alignment(source, key)
    spans: dict[int, tuple[int, int]] = {}
    rank, start = mine["rank"].to_numpy(), mine["start_ns"].to_numpy()
    end = start + mine["window_ns"].to_numpy()
    for one in np.unique(rank).tolist():
        here = rank == one
        low, high = align(clocks.get(one, []), np.array([start[here].min(), end[here].max()])).tolist()
        spans[one] = (low, high)
    origin = min(low for low, _ in spans.values())
    length = max(high for _, high in spans.values()) - origin
    available = tuple(sorted(spans))
    lo = min(view.lo or 0, max(length - 1, 0))
    hi = min(view.hi or length, length)
    if hi <= lo:
        lo, hi = 0, length
    windows = {one: (low - origin, high - origin) for one, (low, high) in spans.items()}
    chosen = parse_ranks(view.ranks or ("" if view.rank is None else str(view.rank)), available)
    return Moment(key, step, steps, chosen, available, origin, length, lo, hi, windows)


# ------------------------------------------------------------------ what is drawn


@dataclass(frozen=True)
class _Cut:
    """Events of the window, clipped, of all chosen ranks and lanes; sorted by row and start."""

    rows: list[Row]
    row: Ints
    start: Ints
    end: Ints
    busy: Ints
    count: Ints
    name: Ints
    event: Ints
    names: list[list[str]]
    rank: Ints
    """Index into the chosen ranks, by row of the picture."""


def _cut(source: Source, view: View, at: Moment) -> _Cut:
    rows: list[Row] = []
    ranks: list[int] = []
    parts: list[dict[str, Ints]] = []
    names = []
    for i, (rank, events) in enumerate(zip(at.ranks, rank_events(source, view, at), strict=True)):
        names.append(events.names)
        first, last = inside(events.edges, events.start, events.reach, at.lo, at.hi)
        for slot, low, high, begin in zip(
            events.slots, first.tolist(), last.tolist(), events.edges.tolist(), strict=False
        ):
            if view.lanes == "device" and slot.kind == "host":
                continue
            rows.append(Row(rank, slot))
            ranks.append(i)
            if high > low:
                parts.append(_clip(events, low, high, begin, at.lo, at.hi) | {"row": len(rows) - 1})
    columns = ("start", "end", "busy", "count", "name", "event")
    joined = {c: np.concatenate([part[c] for part in parts]) if parts else np.empty(0, np.int64) for c in columns}
    row = np.repeat(
        np.array([part["row"] for part in parts], np.int32), np.array([len(part["start"]) for part in parts], np.int64)
    )
    return _Cut(rows, row, names=names, rank=np.array(ranks, np.int64), **joined)


def _clip(events: RankEvents, low: int, high: int, begin: int, lo: int, hi: int) -> dict[str, Any]:
    """Return the rows of one slot that touch [lo, hi); each ns is counted once."""
    start, end = events.start[low:high], events.end[low:high]
    before = np.empty(high - low, np.int64)
    before[1:] = events.reach[low : high - 1]
    before[:1] = events.reach[low - 1] if low > begin else np.iinfo(np.int64).min
    count, whole = events.count[low:high], events.busy[low:high]
    first, last = np.maximum(start, lo), np.minimum(end, hi)
    busy = np.maximum(last - np.maximum(first, before), 0)
    if (count > 1).any():  # a row of several stretches is cut in proportion
        share = np.maximum(last - first, 0) / np.maximum(end - start, 1)
        busy = np.where(count > 1, np.rint(whole * share).astype(np.int64), busy)
    found = {"start": first, "end": last, "busy": busy, "count": count, "name": events.name[low:high],
             "event": events.event[low:high]}  # fmt: skip
    touching = last > first
    return found if touching.all() else {name: column[touching] for name, column in found.items()}


def scene(source: Source, view: View) -> Scene | None:
    """Return the picture of a view; None without an analysis."""
    at = moment(source, view)
    if at is None:
        return None
    cut = _cut(source, view, at)
    bars = join_small(cut.row, cut.start, cut.end, cut.busy, cut.count, lo=at.lo, hi=at.hi, most=MAX_BARS)
    of = cut.rank[bars.row]
    label = [cut.names[r][n] for r, n in zip(of.tolist(), cut.name[bars.longest].tolist(), strict=True)]
    event = np.where(bars.single, cut.event[bars.longest], -1)
    clocks = alignment(source, at.key)
    calls, joins, hidden = _collectives(source, at, cut, bars, max(bars.cell_ns, (at.hi - at.lo) // 400))
    return Scene(
        at, cut.rows, bars.row, bars.start, bars.end, bars.busy, bars.count, label, event, bars.cell_ns,
        int(cut.count.sum()), {r: _first(clocks.get(r), "uncertainty_ns") for r in at.ranks},
        {r: _first(clocks.get(r), "clock") for r in at.ranks}, joins, calls, hidden,
    )  # fmt: skip


def _first(rows: Rows | None, name: str) -> Any:
    return rows[0][name] if rows else None


CALLS = ["rank", "instance", "group", "op", "bytes", "start_ns", "dur_ns", "wait_ns", "transfer_ns", "caused_by",
         "segment", "event_id", "busbw_gbps", "size", "skew_ns", "uncertainty_ns", "class"]  # fmt: skip


def _collectives(
    source: Source, at: Moment, cut: _Cut, bars: Joined, shortest: int
) -> tuple[dict[int, dict[int, dict[str, Any]]], Rows, dict[str, int]]:
    """Return what is known about the calls that have a bar of their own, and lines between the ranks of an instance."""
    low, high = at.origin_ns + at.lo, at.origin_ns + at.hi
    wanted = (pc.field("start_ns") < high) & (pc.field("start_ns") + pc.field("dur_ns") > low)
    found = analysed(source, at.key, "collectives", columns=CALLS, ranks=list(at.ranks), filter=wanted)
    if found is None:
        return {}, [], {}
    instance = pc.fill_null(found["instance"], -1).to_numpy()
    event = pc.fill_null(pc.add(pc.shift_left(found["segment"].cast(pa.int64()), 40), found["event_id"]), -1).to_numpy()
    dur = found["dur_ns"].to_numpy()
    numbers, code, members = np.unique(instance, return_inverse=True, return_counts=True)
    longest = np.zeros(len(numbers), np.int64)
    np.maximum.at(longest, code, dur)
    shared = (numbers >= 0) & (members > 1)
    long = np.flatnonzero(shared & (longest >= shortest))
    chosen = long[np.argsort(-longest[long], kind="stable")][:MAX_JOINS]
    drawn = np.unique(cut.event[bars.longest[bars.single]])
    calls: dict[int, dict[int, dict[str, Any]]] = {}
    for one in found.take(np.flatnonzero(np.isin(event, drawn) & (event >= 0))).to_pylist():
        calls.setdefault(one["rank"], {}).setdefault(_event(one), one)
    some = found.take(np.flatnonzero(np.isin(code, chosen))).to_pylist()
    rows = _rows_of(cut, {(one["rank"], _event(one)) for one in some})
    joined: dict[int, dict[str, Any]] = {}
    for one in some:
        if (row := rows.get((one["rank"], _event(one)))) is not None:
            start = one["start_ns"] - at.origin_ns
            join = joined.setdefault(
                one["instance"], {**{n: one[n] for n in ("instance", "op", "group")}, "points": []}
            )
            join["points"].append((row, start, start + one["dur_ns"]))
    for join in joined.values():
        join["points"].sort()
    hidden = {"short": int(shared.sum()) - len(long), "many": max(0, len(long) - MAX_JOINS)}
    return calls, [one for one in joined.values() if len(one["points"]) > 1], hidden


def _event(call: dict[str, Any]) -> int:
    return -1 if call["event_id"] is None else (call["segment"] << 40) | call["event_id"]


def _rows_of(cut: _Cut, wanted: set[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Return the row of the picture that holds each (rank, event)."""
    events = np.array(sorted({event for _, event in wanted if event >= 0}), np.int64)
    hits = np.flatnonzero(np.isin(cut.event, events))
    return {(cut.rows[row].rank, event): row for row, event in
            zip(cut.row[hits].tolist(), cut.event[hits].tolist(), strict=True)}  # fmt: skip


def longest(source: Source, view: View, count: int = 12) -> Rows:
    """Return the longest single events of the window: {rank, lane, class, name, start, end, event}."""
    at = moment(source, view)
    if at is None:
        return []
    cut = _cut(source, view, at)
    plain = np.flatnonzero(
        np.array([row.slot.name not in ("sync", "device_range") for row in cut.rows] + [False])[cut.row]
    )
    length = (cut.end - cut.start)[plain]
    top = plain[np.argpartition(-length, min(count, len(length) - 1))[:count]] if len(length) else plain
    top = top[np.argsort(-(cut.end - cut.start)[top], kind="stable")]
    return [
        {
            "rank": cut.rows[row].rank, "lane": cut.rows[row].slot.lane, "class": cut.rows[row].slot.name,
            "name": cut.names[cut.rank[row]][cut.name[i]], "start_ns": int(cut.start[i]),
            "dur_ns": int(cut.end[i] - cut.start[i]),
        }
        for i, row in zip(top.tolist(), cut.row[top].tolist(), strict=True)
    ]  # fmt: skip


def shares(source: Source, view: View) -> Rows:
    """Return how long each class was busy in the window, by rank and lane: all events, nothing joined."""
    at = moment(source, view)
    if at is None:
        return []
    cut = _cut(source, view, at)
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    edges = np.searchsorted(cut.row, np.arange(len(cut.rows) + 1))
    for i, row in enumerate(cut.rows):
        low, high = int(edges[i]), int(edges[i + 1])
        name = (row.rank, row.slot.lane, row.slot.name)
        one = found.setdefault(
            name, {"rank": row.rank, "lane": row.slot.lane, "class": row.slot.name, "events": 0, "busy_ns": 0, "of": []}
        )
        one["events"] += int(cut.count[low:high].sum())
        one["busy_ns"] += int(cut.busy[low:high].sum())
        one["of"].append((cut.start[low:high], cut.end[low:high]))
    for one in found.values():
        parts = one.pop("of")
        if len(parts) > 1:  # nested calls: each ns once
            one["busy_ns"] = union(*(np.concatenate(column) for column in zip(*parts, strict=True))).total
        one["share"] = one["busy_ns"] / (at.hi - at.lo)
    return [one for one in found.values() if one["events"]]


# ------------------------------------------------------------------ the window as a file


def write_trace(source: Source, at: Moment, path: str) -> None:
    """Write the window as a trace for Perfetto: the stored analysis says which clock, so nothing is computed again."""
    from perfkit.export.perfetto import write_perfetto

    tables = {name: analysed(source, at.key, name) for name in ("attribution", "collectives", "alignment")}
    known = {name: rows for name, rows in tables.items() if rows is not None}
    clocks = StoredClocks(known.pop("alignment")) if "alignment" in known else None
    window = at.origin_ns + at.lo, at.origin_ns + at.hi
    name = f"{slug(at.key.cluster)}/{slug(at.key.run)}/{at.key.attempt}"
    write_perfetto(
        path, name, store=source.uri, ranks=list(at.ranks), window_ns=window, report=Report({}, known, clock=clocks)
    )
