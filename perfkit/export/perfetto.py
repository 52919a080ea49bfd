"""A trace for Perfetto, chrome://tracing and TensorBoard: chosen ranks and steps on one clock, with what perfkit found.

    write_perfetto("window.json.gz", "llama-8b", store="runs/", ranks=[0, 3], steps=(10, 12)) -> Written
    write_perfetto(io.BytesIO(), "prod/llama-8b/0", store="runs/", window_ns=(a, b))             to any binary file

`steps` are A <= step < B; `window_ns` is a stretch on the reference clock (that of table `collectives`). Every rank
shows its host and devices as they were recorded and one more process: the step windows, what each nanosecond of them
went to, and every collective as wait and transfer, with the rank that was waited for. Starts are moved by the clock
that the ranks' collectives agree on, durations are left alone; if there is no such clock, each rank keeps its own and
the file says so. Events stream to the file one rank at a time.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.clocks import Clocks
from perfkit.analysis.intervals import Ints, Spans
from perfkit.analysis.timeline import EVENT_COLUMNS, ints, read_timelines
from perfkit.errors import UsageError
from perfkit.export.chosen import choose, matches, mend
from perfkit.export.chrome import OWN_PID, Places, event_lines, flow_lines, largest_id, locate, text_bytes
from perfkit.export.json_text import join, member, micros, texts
from perfkit.export.opened import OpenRun, Paths, open_run
from perfkit.export.tracks import Slices, busy_devices, partition, split_exposed, step_slices, wait_slices
from perfkit.export.whole_file import whole_file
from perfkit.report.report import Report
from perfkit.sources.kineto_fields import SIDE_TABLES

FOREVER = 2**62
MARGIN_NS = 60 * 10**9
"""Zero of a file of several ranks lies this much before the first one's start: times stay small, and above zero."""
Range = tuple[int | None, int | None]


@dataclass
class Written:
    """What is in the file."""

    run: str
    ranks: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    events: int = 0
    bytes: int = 0
    """Of JSON, before compression."""
    aligned: bool = False
    uncertainty_ns: int | None = None
    notes: list[str] = field(default_factory=list)


def write_perfetto(
    target: str | os.PathLike[str] | BinaryIO,
    run: Paths,
    *,
    store: str | os.PathLike[str] | None = None,
    ranks: Collection[int] | None = None,
    steps: Range | None = None,
    window_ns: tuple[int, int] | None = None,
    report: Report | None = None,
    tracks: bool = True,
) -> Written:
    """Write a Chrome trace (gzipped if the name ends in .gz).

    `run` is a run of `store`, or trace files. `report` is its analysis if the caller has it; `tracks=False` needs
    none, and then clocks stay as they are.
    """
    if steps is not None and window_ns is not None:
        raise UsageError("steps and a window are two ways to say the same", next_step="leave one of them out")
    with open_run(run, store=store, report=report) as opened, _output(target) as out:
        there = _ranks(opened, ranks)
        analysis = opened.analysis() if tracks or steps is not None else opened.report
        job = _Export(opened, analysis, there, steps, window_ns, tracks=tracks)
        for piece in job.pieces():
            job.written.bytes += len(piece)
            out.write(piece)
        return job.written


@contextmanager
def _output(target: str | os.PathLike[str] | BinaryIO) -> Iterator[BinaryIO]:
    """Open the file, complete or not at all."""
    if not isinstance(target, (str, os.PathLike)):
        yield target
        return
    path = Path(target)
    with whole_file(path) as file:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=3, mtime=0) as packed:
                yield packed  # type: ignore[misc]  # a binary file for writing
        else:
            yield file


def _ranks(opened: OpenRun, wanted: Collection[int] | None) -> list[int]:
    there = opened.ranks
    if not there:
        raise UsageError(
            f"{opened.name} holds no trace events",
            next_step="ask the run for a trace with `perfkit trace`, or ingest one",
        )
    chosen = there if wanted is None else sorted(set(wanted) & set(there))
    if not chosen:
        raise UsageError(f"{opened.name} has no trace of ranks {sorted(wanted or ())}; there are {there}")
    return chosen


class _Export:
    """One file on its way."""

    def __init__(
        self, opened: OpenRun, analysis: Report | None, ranks: list[int], steps: Range | None,
        window_ns: tuple[int, int] | None, *, tracks: bool,
    ) -> None:  # fmt: skip
        self.opened, self.analysis, self.ranks, self.tracks = opened, analysis, ranks, tracks
        self.steps, self.window_ns = steps, window_ns
        clock = analysis.clock if analysis is not None else None
        self.clock: Clocks | None = clock if clock is not None and clock.aligned else None
        self.written = Written(opened.name, ranks, notes=list(opened.notes))
        self.written.aligned = self.clock is not None
        self.written.uncertainty_ns = self.clock.u_ns if self.clock is not None else None
        if self.clock is None and len(ranks) > 1:
            self.written.notes.append("clocks are not aligned: every rank keeps its own")
        self.windows = _step_windows(analysis, steps) if steps is not None and analysis is not None else {}
        self.written.steps = sorted({step for rows in self.windows.values() for step in rows["step"].to_pylist()})
        self.base = 0
        self._mended: dict[str, int] = {}
        self._devices: list[dict[str, object]] = []

    def align(self, rank: int, time: Ints) -> Ints:
        """Return times on the clock of the file."""
        return time if self.clock is None else self.clock.align(np.full(len(time), rank, np.int64), time)

    def _find_base(self) -> int:
        """Return a time shortly before the first event of the first rank; the others are near it."""
        events = self.opened.read("events", self.ranks[0])
        dated = ints(events["start_ns"].drop_null())
        first = int(self.align(self.ranks[0], dated).min()) if len(dated) else 0
        return first - (MARGIN_NS if len(self.ranks) > 1 else 0)

    def pieces(self) -> Iterator[bytes]:
        """Yield the file."""
        self.base = self._find_base()
        head = {
            "schemaVersion": 1,
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": self.base,
            "traceName": self.opened.name,
            **({"perfkit_synthetic": True} if self.opened.synthetic else {}),
            **self._distributed(),
        }
        yield (json.dumps(head)[:-1] + ', "traceEvents": [\n').encode()
        offset = 0
        for slot, rank in enumerate(self.ranks):
            places = Places(rank, slot, many=len(self.ranks) > 1, offset=offset)
            yield from self._rank(places)
            yield from places.metadata()
            self._describe_devices(places)
            offset = places.offset
        self.written.notes += [f"{number:,} {note}" for note, number in self._mended.items()]
        about = {key: value for key, value in vars(self.written).items() if key != "bytes"}
        tail = json.dumps({"deviceProperties": self._devices, "perfkit": about})[1:]
        last = {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "ts": 0, "args": {"labels": ""}}
        yield f"{json.dumps(last)}\n], {tail}\n".encode()

    def _describe_devices(self, places: Places) -> None:
        """Remember what the recording says of the rank's devices, under the numbers of this file."""
        for row in self.opened.read("device_info", places.rank).to_pylist():
            told = json.loads(row["properties"]) if row["properties"] else {"name": row["name"]}
            number = int(places.device(np.array([row["device"]]))[0])
            self._devices.append({**(told if isinstance(told, dict) else {}), "id": number})

    def _distributed(self) -> dict[str, object]:
        if len(self.ranks) > 1:
            return {}
        return {"distributedInfo": {"rank": self.ranks[0], "world_size": self._world_size()}}

    def _world_size(self) -> int | None:
        size = self.opened.world_size
        return size if size is not None or self.analysis is None else self.analysis.document["scope"]["world_size"]

    def _rank(self, places: Places) -> Iterator[bytes]:
        rank = places.rank
        events = self.opened.read("events", rank)
        sides = {name: rows for name in SIDE_TABLES if len(rows := self.opened.read(name, rank))}
        labels = self.opened.read("tracks", rank)
        segments = np.unique(ints(events["segment"])).tolist()
        places.several = places.many or len(segments) > 1
        for segment in segments:
            mine = pc.equal(events["segment"], segment)
            here = {name: rows.filter(pc.equal(rows["segment"], segment)) for name, rows in sides.items()}
            yield from self._segment(
                events.filter(mine), here, labels.filter(pc.equal(labels["segment"], segment)), places
            )
        if self.tracks:
            yield from self._own_tracks(events, sides, places)

    def _segment(
        self, events: pa.Table, sides: Mapping[str, pa.Table], labels: pa.Table, places: Places
    ) -> Iterator[bytes]:  # fmt: skip
        start = self.align(places.rank, ints(events["start_ns"], 0))
        chosen = choose(events, sides.get("syncs"), start, self._window(places.rank, events, start))
        rows, start = events.take(pa.array(chosen)), start[chosen] - self.base
        mended = mend(rows, dict(sides), start)
        for note, number in mended.notes.items():
            self._mended[note] = self._mended.get(note, 0) + number
        process, thread = locate(rows, labels, places)
        yield from event_lines(rows, sides, start, process, thread, places, mended)
        yield from flow_lines(rows, start, process, thread, places)
        self.written.events += len(rows)
        places.offset += largest_id(events, sides) + 1 if places.several else 0

    def _window(self, rank: int, events: pa.Table, start: Ints) -> tuple[int, int]:
        """Return what of a rank is written, on the clock of the file."""
        if self.window_ns is not None:
            return self.window_ns
        if self.steps is None:
            return -FOREVER, FOREVER
        rows = self.windows.get(rank)
        if rows is None or not len(rows):
            return 0, 0
        begin = self.align(rank, ints(rows["start_ns"]))
        low, high = int(begin.min()), int((begin + ints(rows["window_ns"])).max())
        marks = [f"ProfilerStep#{step}" for step in pc.unique(rows["step"]).to_pylist()]
        host = start[matches(events["name"].cast(pa.utf8()), *marks) & matches(events["phase"].cast(pa.utf8()), "X")]
        return min([low, *host.tolist()]), high

    def _own_tracks(self, events: pa.Table, sides: Mapping[str, pa.Table], places: Places) -> Iterator[bytes]:
        """Yield the tracks that perfkit adds to a rank."""
        assert self.analysis is not None
        rank, pid = places.rank, places.pid(OWN_PID)
        places.names[pid] = "perfkit"
        table = self.analysis.tables.get("collectives")
        calls = table.filter(pc.equal(table["rank"], rank)) if table is not None else None
        wanted = [name for name in EVENT_COLUMNS if name in events.column_names]
        records = self.opened.recorded_steps()
        tables = {
            **({"ops": sides["ops"]} if "ops" in sides else {}),
            **({"steps": records} if records is not None else {}),
        }
        tid = 1
        for timeline in read_timelines(events.select([*wanted, "category", "phase"])):
            for device in busy_devices(timeline):
                split = split_exposed(self._on_own_clock(calls, rank)) if calls is not None else _unsplit
                where = "" if device is None or len(timeline.devices) == 1 else f", GPU {device}"
                rows = self._attribution(rank, device)
                if timeline.segment == 0:
                    yield from self._track(step_slices(rows), rank, pid, tid, f"steps{where}", places)
                found = partition(timeline, device, tables, split)
                yield from self._track(found, rank, pid, tid + 1, f"where the time went{where}", places)
                tid += 2
        for number, lane in enumerate(wait_slices(calls) if calls is not None else []):
            name = "wait and transfer" + (f" {number + 1}" if number else "")
            yield from self._track(lane, rank, pid, tid + number, name, places, aligned=True)

    def _on_own_clock(self, calls: pa.Table, rank: int) -> pa.Table:
        """Return calls with starts on the rank's own clock, to about a nanosecond."""
        start = ints(calls["start_ns"])
        moved = start - (self.align(rank, start) - start)
        return calls.set_column(calls.column_names.index("start_ns"), "start_ns", pa.array(moved))

    def _attribution(self, rank: int, device: int | None) -> pa.Table:
        assert self.analysis is not None
        rows = self.analysis.tables["attribution"]
        rows = rows.filter(pc.equal(rows["rank"], rank))
        return rows.filter(
            pc.is_null(rows["device"]) if device is None or device < 0 else pc.equal(rows["device"], device)
        )

    def _track(
        self, slices: Slices, rank: int, pid: int, tid: int, name: str, places: Places, *, aligned: bool = False
    ) -> Iterator[bytes]:
        """Yield the slices of one track that touch the window."""
        if not len(slices.start):
            return
        start = slices.start if aligned else self.align(rank, slices.start)
        end = start + (slices.end - slices.start)
        low, high = self._track_window(rank)
        chosen = np.flatnonzero((end > low) & (start < high))
        if not len(chosen):
            return
        places.threads[pid, tid] = name
        begin = start[chosen] - self.base
        lines = join(
            '{"ph": "X", "cat": "perfkit", "name": ', texts(pa.array([slices.name[i] for i in chosen])),
            f', "pid": {pid}, "tid": {tid}, "ts": ', micros(begin), ', "dur": ', micros((end - start)[chosen]),
            member("args", pa.array([slices.args[i] for i in chosen]), raw=True), "},\n",
        )  # fmt: skip
        self.written.events += len(chosen)
        yield text_bytes(lines)

    def _track_window(self, rank: int) -> tuple[int, int]:
        if self.steps is None:
            return self.window_ns or (-FOREVER, FOREVER)
        rows = self.windows.get(rank)
        if rows is None or not len(rows):
            return 0, 0
        begin = self.align(rank, ints(rows["start_ns"]))
        return int(begin.min()), int((begin + ints(rows["window_ns"])).max())


def _unsplit(exposed: Spans) -> dict[str, Spans]:
    return {"exposed communication": exposed}


def _step_windows(analysis: Report, steps: Range) -> dict[int, pa.Table]:
    """Return the windows of the chosen steps by rank."""
    rows = analysis.tables["attribution"]
    rows = rows.filter(pc.and_(pc.is_valid(rows["step"]), pc.invert(pc.fill_null(rows["carry_in"], False))))
    step = ints(rows["step"])
    low, high = -FOREVER if steps[0] is None else steps[0], FOREVER if steps[1] is None else steps[1]
    chosen = rows.filter(pa.array((step >= low) & (step < high)))
    if not len(chosen):
        held = f"steps {step.min()} to {step.max()}" if len(step) else "no numbered steps"
        raise UsageError(f"none of the steps that were asked for; the run holds {held}")
    ranks = ints(chosen["rank"])
    return {rank: chosen.filter(pa.array(ranks == rank)) for rank in np.unique(ranks).tolist()}
