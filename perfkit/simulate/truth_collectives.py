"""Wait and transfer of every exchange, from who arrived when (definition 9).

    collectives_of_stage(job, identity, programs, times, stage) -> table

`wait_ns` and `transfer_ns` are on the clock of each member and add up to its duration; `start_ns` is true
time since the start of the simulation, so that members compare without any clocks. `last_rank` is the
member that the others waited for. Members of an exchange have the same group, op and number; those of a
message have the same sender, receiver and number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from perfkit.simulate.engine import group_max
from perfkit.simulate.job import Job
from perfkit.simulate.noise import Ints
from perfkit.simulate.program import ARRIVED, TASK_END, TASK_START, Comm, Instruction, Program
from perfkit.simulate.rows import Identity

_NOBODY = np.iinfo(np.int64).max


def collectives_of_stage(
    job: Job, identity: Identity, programs: Sequence[Program], times: Sequence[Ints], stage: int
) -> pa.Table:
    """Return one row per exchange and rank of the stage."""
    program, mine = programs[stage], times[stage]
    found = exchanges(program)
    if not found:
        return _SCHEMA.empty_table()
    points = np.array([one.point for one, _ in found], np.int64)
    start, arrived, end = (mine[points + slot] for slot in (TASK_START, ARRIVED, TASK_END))
    last = _last_ranks(job, programs, times, stage)
    shared = {
        "step": pa.array([one.step + job.first_step for one, _ in found]),
        "group": pa.array([comm.role for _, comm in found]),
        "op": pa.array([comm.op for _, comm in found]),
        "seq": pa.array([comm.seq for _, comm in found]),
    }
    tables = []
    for column, rank in enumerate(program.ranks.tolist()):
        local = [job.to_local(values[:, column], rank) for values in (start, arrived, end)]
        groups = identity.groups(rank)
        pairs = [identity.message_ranks(rank, comm) if comm.role == "pp" else (None, None) for _, comm in found]
        mine_only = {
            "rank": np.full(len(found), rank, np.int32),
            "bytes": [comm.bytes_of(*identity.message_sizes(rank, comm)[:2]) for _, comm in found],
            "group_name": [groups[comm.role].name for _, comm in found],
            "src_rank": pa.array([pair[0] for pair in pairs], pa.int32()),
            "dst_rank": pa.array([pair[1] for pair in pairs], pa.int32()),
            "start_ns": start[:, column],
            "dur_ns": local[2] - local[0],
            "wait_ns": local[1] - local[0],
            "transfer_ns": local[2] - local[1],
            "last_rank": last[:, column],
        }
        tables.append(pa.table({**shared, **mine_only}).select(_SCHEMA.names).cast(_SCHEMA))
    return pa.concat_tables(tables)


def exchanges(program: Program) -> list[tuple[Instruction, Comm]]:
    """Return the instructions that launch an exchange."""
    return [(i, i.task.comm) for i in program.instructions if i.task is not None and i.task.comm is not None]


def _last_ranks(job: Job, programs: Sequence[Program], times: Sequence[Ints], stage: int) -> Ints:
    """Return who came last to each exchange, for every rank of the stage."""
    result = []
    elsewhere = {
        (other.stage, comm.meeting, comm.op): one.point
        for other in programs
        for one, comm in exchanges(other)
        if comm.role in ("pp", "world")
    }
    for one, comm in exchanges(programs[stage]):
        here = _came_last(programs[stage], times[stage], one.point)
        if comm.role == "pp":
            peer = comm.stages[0] if comm.op == "recv" else comm.stages[1]
            op = "send" if comm.op == "recv" else "recv"
            there = _came_last(programs[peer], times[peer], elsewhere[peer, comm.meeting, op])
            result.append(np.minimum(here, there))
        elif comm.role == "world":
            all_of_them = [
                _came_last(programs[s], times[s], elsewhere[s, comm.meeting, comm.op]).min() for s in comm.stages
            ]
            result.append(np.full_like(here, min(all_of_them)))
        else:
            result.append(-group_max(-here, job.mesh.split(comm.role)))
    return np.array(result, np.int64)


def _came_last(program: Program, times: Ints, point: int) -> Ints:
    """Return each rank's own number if the exchange began with it, else a number above all."""
    return np.where(times[point + TASK_START] == times[point + ARRIVED], program.ranks, _NOBODY)


_TEXTS, _RANKS = ("group", "group_name", "op"), ("rank", "src_rank", "dst_rank", "last_rank")
_COLUMNS = (
    "rank", "step", "group", "group_name", "op", "seq", "bytes", "src_rank", "dst_rank", "start_ns", "dur_ns",
    "wait_ns", "transfer_ns", "last_rank",
)  # fmt: skip
_SCHEMA = pa.schema(
    [(name, pa.utf8() if name in _TEXTS else pa.int32() if name in _RANKS else pa.int64()) for name in _COLUMNS],
    metadata={b"perfkit.synthetic": b"true"},
)
