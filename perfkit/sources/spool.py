"""Turn a spool into tables: what `perfkit ingest SPOOL` and a rank's side process do.

    find_spools(path)                      -> folders of ranks under a path
    read_segment(path)                     -> SegmentRows: header, tables, what was odd
    compact_folder(folder, store)          -> Compacted; commits every segment, then deletes it

A segment becomes one segment of the store, and its commit remembers the name, so that compacting twice, or
after a crash in the middle, changes nothing. A segment whose writer still lives is left alone unless
`include_open`; then its rows so far are committed, and replaced by the whole when it has ended. Only what is
committed and complete is deleted. A damaged frame costs its own rows and is noted in `quality`.

Captured traces that wait in the folder are compressed, put into the store under `traces/`, and ingested.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from perfkit.capture.frames import SUFFIX, NotASegment, Segment, decode_segment, never_began
from perfkit.capture.identity import find_identity
from perfkit.capture.segments import CLAIM, MARKER_FILE, TRACES, claim_is_held
from perfkit.errors import CorruptInput, PerfkitError, SchemaError
from perfkit.schema import QUALITY, TABLES, table_from_rows
from perfkit.sources.base import PartInfo
from perfkit.sources.ranks import MAX_RANK
from perfkit.store import Store, layout
from perfkit.store.files import Files
from perfkit.store.segment import SegmentTaken, rank_commits

SOURCE = "capture"
QUIET_SECONDS = 60.0
"""A living writer appends every few seconds."""
MAX_SEGMENT_BYTES = 256 << 20
COLUMNS = {
    "steps": ("step", "start_ns", "end_ns", "data_wait_ns", "tokens", "samples", "model_flops", "loss", "profiled"),
    "spans": ("name", "step", "start_ns", "dur_ns", "gpu_ns", "depth", "tid", "error"),
    "lifecycle": ("kind", "start_ns", "end_ns", "step", "cause", "blocking", "detail"),
    "counters": ("time_ns", "name", "series", "value", "device"),
}
"""What the rows of a batch hold, in order."""
GPU_COLUMNS = ("time_ns", "device", "uuid", "name", "series", "value")
"""Rows of `gpu_counters` and `unclaimed_gpu_counters` (of GPUs that no rank uses), which become counters too."""
HEALTH_COLUMNS = ("time_ns", "device", "uuid", "kind", "severity", "code", "detail")
_HEADER = {"cluster": str, "run": str, "attempt": int, "rank": int, "host": str}
_TRACE_NAME = re.compile(r"step-(\d+)\.json")


@dataclass(slots=True)
class SegmentRows:
    """One segment as tables."""

    name: str
    header: dict[str, Any]
    tables: dict[str, pa.Table]
    info: PartInfo
    closed: bool
    fingerprint: str
    size_bytes: int
    health: pa.Table | None = None
    """Rows of the fleet table `health_events`."""


@dataclass(slots=True)
class Compacted:
    """What a compaction did."""

    header: dict[str, Any] | None = None
    num_segments: int = 0
    num_traces: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    bytes_read: int = 0
    problems: list[CorruptInput] = field(default_factory=list)
    """Segments that could not be taken; they stay where they are."""
    notes: list[dict[str, Any]] = field(default_factory=list)


def find_spools(path: Path) -> list[Path]:
    """Return the folders of ranks at or below a path."""
    if (path / MARKER_FILE).is_file():
        return [path]
    return sorted(marker.parent for marker in path.rglob(MARKER_FILE) if marker.is_file())


def read_segment(path: Path) -> SegmentRows:
    """Read a segment; raises `CorruptInput` if it does not say whose rows it holds."""
    shown = str(path)
    if path.stat().st_size > MAX_SEGMENT_BYTES:
        raise CorruptInput("larger than any segment that perfkit writes", path=shown, next_step="give a spool folder")
    return parse_segment(path.read_bytes(), shown)


def parse_segment(data: bytes, shown: str) -> SegmentRows:
    """Read a segment from its bytes; `shown` names it in errors."""
    try:
        segment = decode_segment(data)
    except NotASegment as error:
        raise CorruptInput(f"not a whole spool segment: {error}", path=shown, next_step=_COPY) from None
    header = segment.header
    if header is None or not _names_a_rank(header):
        raise CorruptInput("its header is missing or damaged", path=shown, next_step=_COPY)
    try:
        return _rows_of(segment, header, shown, len(data))
    except (
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
        OverflowError,
    ) as error:  # well-framed, but not by perfkit
        raise CorruptInput(f"not what perfkit writes ({type(error).__name__})", path=shown, next_step=_COPY) from None


def _names_a_rank(header: dict[str, Any]) -> bool:
    if not all(isinstance(header.get(name), kind) for name, kind in _HEADER.items()):
        return False
    numbers_fit = all(0 <= header[name] <= MAX_RANK for name in ("rank", "attempt"))
    return numbers_fit and bool(header["run"]) and bool(header["cluster"])


def _rows_of(segment: Segment, header: dict[str, Any], shown: str, size_bytes: int) -> SegmentRows:
    info = PartInfo(
        rank=header["rank"],
        rank_source=str(header.get("rank_source")),
        world_size=header.get("world_size"),
        host=header["host"],
        source=SOURCE,
        versions=dict(header.get("versions") or {}),
    )
    for batch in segment.batches:
        header["metadata"] = {**(header.get("metadata") or {}), **batch.get("metadata", {})}
    tables = _tables(segment, header, shown)
    _note(segment, info)
    for name, table in tables.items():
        info.num_events += len(table)
        _see(info, name, table)
    name = str(header.get("segment") or segment.uid.hex())
    fingerprint = f"spool:{segment.uid.hex()}:{segment.sound_bytes}:{len(segment.batches)}"
    return SegmentRows(
        name, header, tables, info, segment.closed, fingerprint, size_bytes, _health(segment, header, shown)
    )


def _health(segment: Segment, header: dict[str, Any], path: str) -> pa.Table | None:
    rows = [row for batch in segment.batches for row in batch.get("health", ())]
    if not rows:
        return None
    table = _table("health_events", HEALTH_COLUMNS, rows, path)
    for name, value in (("cluster", header["cluster"]), ("node", header["host"])):
        table = table.append_column(name, pa.array([value] * len(rows), pa.utf8()))
    return table


_COPY = "copy it again from the node that wrote it; what was compacted before is in the store"


def _tables(segment: Segment, header: dict[str, Any], path: str) -> dict[str, pa.Table]:
    tables = {}
    for name, columns in COLUMNS.items():
        rows = [row for batch in segment.batches for row in batch.get(name, ())]
        if name == "steps":
            rows = _with_late_losses(rows, [pair for batch in segment.batches for pair in batch.get("losses", ())])
        if rows:
            tables[name] = _table(name, columns, rows, path)
    counters = [_counters(tables.pop("counters"), header["rank"])] if "counters" in tables else []
    for name, rank in (("gpu_counters", header["rank"]), ("unclaimed_gpu_counters", None)):
        rows = [row for batch in segment.batches for row in batch.get(name, ())]
        if rows:
            counters.append(_counters(_table("counters", GPU_COLUMNS, rows, path), rank))
    if counters:
        table = pa.concat_tables(counters, promote_options="default")
        tables["counters"] = table.append_column("host", pa.array([header["host"]] * len(table), pa.utf8()))
    return tables


def _counters(table: pa.Table, rank: int | None) -> pa.Table:
    return table.append_column("rank", pa.array([rank] * len(table), pa.int32()))


def _table(name: str, columns: tuple[str, ...], rows: list[list[Any]], path: str) -> pa.Table:
    types = {column.name: column.type for column in TABLES[name].columns}
    try:
        arrays = [
            pa.array(values, types[column].value_type if pa.types.is_dictionary(types[column]) else types[column])
            for column, values in zip(columns, zip(*rows, strict=True), strict=True)
        ]
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, TypeError, OverflowError) as error:
        raise CorruptInput(
            f"rows of {name} are not what perfkit writes ({error})",
            path=path,
            next_step="ingest it with the version of perfkit that wrote it",
        ) from None
    return pa.table(arrays, names=list(columns))


def _with_late_losses(rows: list[list[Any]], losses: list[list[Any]]) -> list[list[Any]]:
    """Fill in the losses that were read from a GPU after their step had been written."""
    late = {int(step): float(value) for step, value in losses}
    at = COLUMNS["steps"].index("loss")
    return [[*r[:at], late[r[0]], *r[at + 1 :]] if r[at] is None and r[0] in late else r for r in rows]


def _note(segment: Segment, info: PartInfo) -> None:
    info.note("damaged_frame", segment.damaged, f"the first {segment.first_damage}; their rows are lost")
    if segment.torn_bytes and not segment.damaged:
        info.note("truncated", 1, f"the writer was killed: {segment.torn_bytes} bytes of an unfinished batch")
    dropped = max((int(batch.get("dropped", 0)) for batch in segment.batches), default=0)
    info.note("lost_events", dropped, "records that the training process dropped because its buffer was full")


def _see(info: PartInfo, name: str, table: pa.Table) -> None:
    import pyarrow.compute as pc

    if name == "spans":
        ends = pc.add(table["start_ns"], table["dur_ns"].fill_null(0))
        info.see_times(pc.min(table["start_ns"]).as_py(), pc.max(ends).as_py())
    elif name in ("steps", "lifecycle"):
        info.see_times(pc.min(table["start_ns"]).as_py(), pc.max(table["start_ns"]).as_py())
        info.see_times(None, pc.max(table["end_ns"]).as_py())
    else:
        info.see_times(pc.min(table["time_ns"]).as_py(), pc.max(table["time_ns"]).as_py())


# ------------------------------------------------------------------ into the store


def compact_folder(
    folder: Path, store: str, *, include_open: bool = False, ingest_traces: bool = True, run: str | None = None
) -> Compacted:
    """Commit what a rank has written; see the module's header for what is deleted and what stays."""
    done = Compacted()
    rows: Counter[str] = Counter()
    with _alone(folder):
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            owner = path.name.rpartition("-")[0]
            living = claim_is_held(folder / f"{owner}{CLAIM}")
            try:
                segment = read_segment(path)
                living = living or _may_live_elsewhere(path, segment.header["host"])
                if run is not None:
                    segment.header["run"] = run
                said = {k: v for k, v in (segment.header.get("metadata") or {}).items() if v is not None}
                segment.header["metadata"] = {**((done.header or {}).get("metadata") or {}), **said}
                done.header = segment.header
                if living and not segment.closed and not include_open:
                    continue
                if segment.tables or segment.info.oddities or segment.health is not None:
                    fresh = commit_segment(Store(store), segment, str(path))
                    done.num_segments += fresh
                    rows.update({name: len(table) for name, table in segment.tables.items()} if fresh else {})
                    done.bytes_read += segment.size_bytes
                    done.notes += [
                        {"kind": o.kind, "count": o.count, "detail": o.detail} for o in segment.info.oddities.values()
                    ]
                if segment.closed or not living:
                    path.unlink()
            except CorruptInput as error:
                if not living and never_began(path.read_bytes()):
                    path.unlink()  # killed while it wrote the header: nothing was acknowledged
                elif not living:
                    done.problems.append(error)
            except SchemaError as error:  # well-framed rows that break a promise of their table
                done.problems.append(CorruptInput(error.message, path=str(path), next_step=_COPY))
        _compact_traces(folder, store, done, ingest_traces)
        done.rows = dict(rows)
        _sweep(folder)
    if done.header is not None and (done.header["rank"] == 0 or include_open) and done.num_segments:
        _finalise(store, done.header)
    return done


def _may_live_elsewhere(path: Path, host: str) -> bool:
    """Whether a writer on another host was there just now: not every network file system tells of its locks."""
    return host != find_identity().host and time.time() - path.stat().st_mtime < QUIET_SECONDS


def commit_segment(store: Store, segment: SegmentRows, path: str) -> bool:
    """Write a segment into the store; False if it was there already."""
    header, info = segment.header, segment.info
    key = layout.RunKey(header["cluster"], header["run"], header["attempt"])
    for _ in range(1000):
        own = rank_commits(Files(store.uri), key, header["rank"])
        before = next((c for c in own.values() if c and c.extra.get("spool_segment") == segment.name), None)
        if before is not None and before.fingerprint == segment.fingerprint:
            return False
        number = before.segment if before is not None else max(own, default=-1) + 1
        try:
            with store.writer(
                *key, rank=header["rank"], segment=number, fingerprint=segment.fingerprint, replace=before is not None
            ) as writer:
                for name, table in segment.tables.items():
                    writer.write(name, table)
                writer.write("quality", _quality(info, path))
                extra = {"parts": 1, "bytes_read": segment.size_bytes, "spool_segment": segment.name}
                writer.commit(info, source_path=path, extra=extra)
            _write_health(store, segment)
            return True
        except SegmentTaken:  # a trace of the same rank was ingested meanwhile
            continue
    raise PerfkitError(f"{path}: no free segment number", next_step="run it again")


def _write_health(store: Store, segment: SegmentRows) -> None:
    """Write what happened to the GPUs of the host by date; the segment's name makes that repeatable."""
    if segment.health is None:
        return
    days = [time.strftime("%Y-%m-%d", time.gmtime(ns / 1e9)) for ns in segment.health["time_ns"].to_pylist()]
    for day in sorted(set(days)):
        rows = segment.health.filter(pa.array([one == day for one in days]))
        store.write_fleet("health_events", rows, date=day, part=f"capture-{segment.header['host']}-{segment.name}")


def _quality(info: PartInfo, path: str) -> pa.Table:
    rows = [{"path": path, "kind": o.kind, "count": o.count, "detail": o.detail} for o in info.oddities.values()]
    keep = [name for name in QUALITY.names if name not in ("rank", "segment")]
    filled = [{**row, "rank": 0, "segment": 0} for row in rows]
    return table_from_rows(QUALITY, filled).select(keep)


def _finalise(store: str, header: dict[str, Any]) -> None:
    metadata = {name: value for name, value in (header.get("metadata") or {}).items() if value is not None}
    metadata |= {"world_size": header.get("world_size"), "job": header.get("job"), "source": SOURCE}
    with contextlib.suppress(KeyError, ImportError, OSError):
        import getpass

        metadata.setdefault("user", getpass.getuser())
    Store(store).finalise(header["cluster"], header["run"], header["attempt"], metadata)


# ------------------------------------------------------------------ captured traces


def trace_path(header: dict[str, Any], step: int) -> str:
    """Return where a trace lies in the store."""
    key = layout.RunKey(header["cluster"], header["run"], header["attempt"])
    return f"traces/{key.folder}/rank-{header['rank']:05d}.step-{step:08d}.json.gz"


def _compact_traces(folder: Path, store: str, done: Compacted, ingest_traces: bool) -> None:
    """Compress the raw traces that wait in a rank's folder, commit them, and ingest them."""
    for raw in sorted((folder / TRACES).glob("step-*.json")):
        found = _TRACE_NAME.fullmatch(raw.name)
        header = _trace_header(raw, done.header)
        if found is None or header is None:
            continue
        packed = raw.with_suffix(".json.gz")
        try:
            _compress(raw, packed)
            target = trace_path(header, int(found[1]))
            files = Files(store)
            Store(store).create()
            if ingest_traces:
                _ingest_trace(packed, store, header, done)
            files.publish({target: packed})
            done.num_traces += 1
            raw.unlink()
            with contextlib.suppress(OSError):
                raw.with_suffix(".who").unlink()
        finally:
            with contextlib.suppress(OSError):
                packed.unlink()


def _trace_header(raw: Path, header: dict[str, Any] | None) -> dict[str, Any] | None:
    """Say whose trace it is: the exporter leaves a note beside it."""
    with contextlib.suppress(OSError, ValueError):
        note = json.loads(raw.with_suffix(".who").read_text())
        if all(isinstance(note.get(name), kind) for name, kind in _HEADER.items()):
            return dict(note)
    return header


def _compress(raw: Path, packed: Path) -> None:
    from isal import igzip

    with raw.open("rb") as source, igzip.open(packed, "wb", compresslevel=2) as target:  # type: ignore[no-untyped-call]
        shutil.copyfileobj(source, target, 1 << 20)


def _ingest_trace(path: Path, store: str, header: dict[str, Any], done: Compacted) -> None:
    from perfkit.sources.ingest import ingest

    report = ingest(
        [path], store=store, cluster=header["cluster"], run=header["run"], attempt=header["attempt"], workers=1
    )
    done.notes += [
        {"kind": "not_read", "count": 1, "detail": f"trace {path.name}: {error.message}"} for error in report.rejected
    ]


# ------------------------------------------------------------------ the folder


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other compactors of this folder waiting."""
    try:
        descriptor = os.open(folder / f"compact{CLAIM}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:  # a read-only copy of a spool: nobody else can compact it either
        yield
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove the claims of processes that have ended."""
    for path in folder.glob(f"*{CLAIM}"):
        if path.name != f"compact{CLAIM}" and not claim_is_held(path):
            with contextlib.suppress(OSError):
                path.unlink()
