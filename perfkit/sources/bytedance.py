"""Read the per-op parquet of pipeline jobs that ByteDance published with StragglerAnalysis.

    is_op_trace(path)  -> bool           by its columns; only the footer is read
    read_ops(path)     -> pa.Table       OPS: one row per op of a worker in a step, times in ns from the step's start
    peek, read                           the same as a source: one part per worker, ops as device events

A worker stands for a tensor-parallel group; `rank` is its number in the job. A step's times count from its own
beginning, and the steps are a sample: as events they follow each other without a pause, from 0.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.errors import CorruptInput, InputError, UnsupportedInput
from perfkit.schema import TABLES, conform
from perfkit.sources.base import Chunk, Input, PartInfo, Reading, ReadOptions
from perfkit.sources.inputs import local_file
from perfkit.store.parquet import check_parquet, iter_parquet

COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id", "gmc")
OPS = pa.schema(
    [
        ("rank", pa.int64()), ("dp", pa.int64()), ("stage", pa.int64()), ("step", pa.int64()), ("op", pa.utf8()),
        ("seq", pa.int64()),      # position among the ops of its kind, worker and step
        ("chunk", pa.int64()),    # model chunk inside the stage; -1 for none
        ("depth", pa.int64()),    # model chunk in the whole model; -1 for none
        ("start_ns", pa.int64()), ("dur_ns", pa.int64()),
    ]
)  # fmt: skip
KINDS = (
    "forward-compute", "backward-compute", "forward-recv", "forward-send", "backward-recv", "backward-send",
    "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce", "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce", "optimizer-clip-main-grad", "optimizer", "gc",
)  # fmt: skip
"""Kinds of ops."""
_COPY_AGAIN = "copy it again from where it was made"


def is_op_trace(path: str | os.PathLike[str]) -> bool:
    """Say whether a file is such a trace."""
    file = Path(path)
    return file.suffix == ".parquet" and file.is_file() and has_op_columns(file)


def has_op_columns(file: Path) -> bool:
    """Say whether a parquet file has the columns of such a trace; a broken one has not."""
    try:
        schema = check_parquet(file).schema
        return set(COLUMNS) <= {schema.column(number).path for number in range(len(schema))}
    except (InputError, pa.ArrowException, OSError, ValueError, MemoryError):
        return False


def read_ops(path: str | os.PathLike[str]) -> pa.Table:
    """Read the ops; whatever cannot be placed is an error, as a hole in the schedule would go unnoticed."""
    shown = os.fspath(path)
    batches = list(iter_parquet(Path(path), columns=COLUMNS))
    table = pa.Table.from_batches(batches) if batches else None
    missing = [name for name in COLUMNS if table is not None and name not in table.column_names]
    nulls = [name for name in COLUMNS if table is not None and not missing and table[name].null_count]
    if table is None or missing or nulls:
        what = f"nulls in {', '.join(nulls)}" if nulls else f"no {', '.join(missing) or 'rows'}"
        raise CorruptInput(f"an op trace with {what}", path=shown, next_step=_COPY_AGAIN)
    unknown = sorted(set(table["optype"].cast(pa.utf8()).unique().to_pylist()) - set(KINDS))
    if unknown:
        raise UnsupportedInput(
            f"ops of unknown kinds: {', '.join(unknown[:4])}", path=shown, next_step=f"known are {', '.join(KINDS)}"
        )
    columns = {
        "rank": table["rank"], "dp": table["dp_rank"], "stage": table["stage"], "step": table["step"],
        "op": table["optype"].cast(pa.utf8()), "seq": table["seq_id"], "chunk": table["mc"], "depth": table["gmc"],
        "start_ns": _ns(table["start_ts"]), "dur_ns": _ns(table["duration"]),
    }  # fmt: skip
    found = pa.table(columns).cast(OPS)
    if pc.min(found["dur_ns"]).as_py() < 0:
        raise CorruptInput("an op trace with negative durations", path=shown, next_step=_COPY_AGAIN)
    return found


def _ns(seconds: pa.ChunkedArray) -> pa.Array:
    return pa.array(np.rint(seconds.to_numpy().astype(np.float64) * 1e9).astype(np.int64))


# ------------------------------------------------------------------ as a source

_WORK = ("forward-compute", "backward-compute", "optimizer", "gc")
_COLLECTIVES = {
    "params-all-gather": ("_allgather_base", ("stage",)), "grads-reduce-scatter": ("_reduce_scatter_base", ("stage",)),
    "separate-grads-all-reduce": ("allreduce", ("stage",)), "optimizer-clip-main-grad": ("allreduce", ()),
    "embedding-grads-all-reduce": ("allreduce", ("dp",)),
}  # fmt: skip
"""What an op is, and which coordinates its members share."""


def peek(input: Input) -> list[PartInfo]:
    """Return one part per worker."""
    return _parts(read_ops(local_file(input)))


def read(input: Input, options: ReadOptions) -> Reading:
    """Read the ops as events."""
    return _OpReading(input)


def _parts(ops: pa.Table) -> list[PartInfo]:
    ranks = sorted(ops["rank"].unique().to_pylist())
    return [PartInfo(rank=rank, rank_source="rank column", source="bytedance") for rank in ranks]


class _OpReading:
    """An op trace being read: small, so all of it at once."""

    def __init__(self, input: Input) -> None:
        self._input = input
        self._ops = read_ops(local_file(input))
        self.parts = _parts(self._ops)

    @property
    def bytes_read(self) -> int:
        """Bytes of the columns."""
        return int(self._ops.nbytes)

    def __iter__(self) -> Iterator[Chunk]:
        ops = _on_one_axis(self._ops)
        for number, part in enumerate(self.parts):
            mine = ops.filter(pc.equal(ops["rank"], part.rank)).sort_by("start_ns")
            start, end = mine["start_ns"].to_numpy(), (mine["start_ns"].to_numpy() + mine["dur_ns"].to_numpy())
            part.num_events = len(mine)
            part.see_times(int(start.min()), int(end.max()))
            part.note("no_base_time", 1, "steps are a sample: they follow each other from 0")
            for name, rows in (
                ("events", _events(mine)), ("collective_args", _collective_args(mine, ops)), ("steps", _steps(mine)),
            ):  # fmt: skip
                yield Chunk(number, name, _shaped(name, rows))


def _shaped(name: str, rows: pa.Table) -> pa.Table:
    """Return rows with all columns of their table but rank and segment, which are not known here."""
    labels = [label for label in ("rank", "segment") if label in TABLES[name].names]
    for label in labels:
        rows = rows.append_column(label, pa.array(np.zeros(len(rows), np.int32)))
    return conform(TABLES[name], rows).drop_columns(labels)


def _on_one_axis(ops: pa.Table) -> pa.Table:
    """Put the steps one behind the other."""
    step, start = ops["step"].to_numpy(), ops["start_ns"].to_numpy()
    steps, code = np.unique(step, return_inverse=True)
    low, high = np.full(len(steps), 2**62), np.zeros(len(steps), np.int64)
    np.minimum.at(low, code, start)
    np.maximum.at(high, code, start + ops["dur_ns"].to_numpy())
    base = np.cumsum(high - low) - (high - low) - low
    return ops.set_column(ops.column_names.index("start_ns"), "start_ns", pa.array(start + base[code]))


def _events(mine: pa.Table) -> pa.Table:
    names = mine["op"].to_pylist()
    stream = [0 if name in _WORK else KINDS.index(name) for name in names]
    return pa.table(
        {
            "event_id": np.arange(len(mine)), "phase": ["X"] * len(mine), "category": ["kernel"] * len(mine),
            "class": ["compute" if name in _WORK else "communication" for name in names], "name": names,
            "start_ns": mine["start_ns"], "dur_ns": mine["dur_ns"], "device": pa.array([0] * len(mine), pa.int32()),
            "stream": pa.array(stream, pa.int64()),
        }
    )  # fmt: skip


def _collective_args(mine: pa.Table, ops: pa.Table) -> pa.Table:
    """Say who takes part in every exchange of a worker."""
    places = ops.select(["rank", "dp", "stage"]).group_by(["rank", "dp", "stage"]).aggregate([]).to_pylist()
    stages = 1 + max(place["stage"] for place in places)
    here = next(place for place in places if place["rank"] == mine["rank"][0].as_py())
    rank_at = {(place["dp"], place["stage"]): place["rank"] for place in places}
    rows: dict[str, dict[str, Any]] = {}
    for kind, (collective, shared) in _COLLECTIVES.items():
        members = [p for p in places if all(p[axis] == here[axis] for axis in shared)]
        if kind.startswith("embedding"):
            members = [p for p in members if p["stage"] in (0, stages - 1)]
        ranks = sorted(place["rank"] for place in members)
        name = {("stage",): "DATA_PARALLEL_GROUP", ("dp",): "EMBEDDING_GROUP", (): "WORLD"}[shared]
        rows[kind] = {
            "collective": collective, "group_ranks": json.dumps(ranks), "group_size": len(ranks), "group_desc": name,
        }  # fmt: skip
    pipeline = sorted(place["rank"] for place in places if place["dp"] == here["dp"])
    for kind in ("forward-send", "forward-recv", "backward-send", "backward-recv"):
        direction, way = kind.split("-")
        further = 1 if (direction == "forward") == (way == "send") else -1
        peer = rank_at.get((here["dp"], (here["stage"] + further) % stages))
        ends = (here["rank"], peer) if way == "send" else (peer, here["rank"])
        rows[kind] = {
            "collective": way, "src_rank": ends[0], "dst_rank": ends[1], "group_ranks": json.dumps(pipeline),
            "group_size": len(pipeline), "group_desc": "PIPELINE_MODEL_PARALLEL_GROUP",
        }  # fmt: skip
    names = mine["op"].to_pylist()
    known = [(event, rows[name]) for event, name in enumerate(names) if name in rows]
    texts, numbers = ("collective", "group_ranks", "group_desc"), ("group_size", "src_rank", "dst_rank")
    columns = {**dict.fromkeys(texts, pa.utf8()), **dict.fromkeys(numbers, pa.int64())}
    return pa.table(
        {
            "event_id": pa.array([event for event, _ in known], pa.int64()),
            **{name: pa.array([row.get(name) for _, row in known], kind) for name, kind in columns.items()},
        }
    )


def _steps(mine: pa.Table) -> pa.Table:
    found = mine.append_column("end_ns", pc.add(mine["start_ns"], mine["dur_ns"]))
    found = found.group_by("step").aggregate([("start_ns", "min"), ("end_ns", "max")]).sort_by("step")
    return found.rename_columns(["step", "start_ns", "end_ns"])
