"""Which rows the profiler would write: one template per stage, the same for all of its ranks.

    RowTemplate.build(program) -> RowTemplate           columns without times
    template.rows_of(column)   -> positions that the rank of this column has (faults and lost launches differ)

Arrow tables and Kineto JSON are both written from this template, so that they hold the same rows in the
same order. A time is a point of the engine plus a constant.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from perfkit.simulate.job import Job
from perfkit.simulate.model import CONCRETE_INPUTS
from perfkit.simulate.noise import Ints
from perfkit.simulate.program import (
    AUTOGRAD,
    CALL_END,
    CALL_START,
    MAIN,
    NEST_IN_NS,
    NEST_OUT_NS,
    OP_END,
    OP_START,
    STREAMS,
    SYNC_END,
    SYNC_START,
    TASK_END,
    TASK_START,
    Comm,
    Instruction,
    Mask,
    Program,
    Task,
)  # fmt: skip

DEVICE = 2
"""Place of a row on the device; 0 and 1 are the threads."""
FIRST_CORRELATION = 1_000
CONTEXT = 1
AUTOGRAD_FORWARD_THREAD = 1
"""`Fwd thread id` of everything in a backward pass."""
_CBID = {
    "cudaLaunchKernel": 211, "cudaLaunchKernelExC": 430, "cudaMemcpyAsync": 41, "cudaMemsetAsync": 51,
    "cudaStreamSynchronize": 131, "cudaMalloc": 20, "cudaFree": 22,
}  # fmt: skip


@dataclass(slots=True)
class Row:
    """One row of the profile, without its times."""

    phase: str
    category: str
    name: str
    start: tuple[int, int]
    """Point and constant."""
    end: tuple[int, int] | None
    place: int
    stream: int | None = None
    correlation: int | None = None
    external_id: int | None = None
    num_bytes: int | None = None
    python_id: int | None = None
    dims: tuple[tuple[int, ...], ...] | None = None
    types: tuple[str, ...] = ()
    concrete: tuple[str, ...] | None = None
    sequence_number: int | None = None
    task: Task | None = None
    comm: Comm | None = None
    sync_kind: str | None = None
    ranks: Mask | None = None

    @property
    def cbid(self) -> int | None:
        """Callback id of a runtime call."""
        return _CBID.get(self.name) if self.category == "cuda_runtime" else None


@dataclass
class RowTemplate:
    """The rows of a stage."""

    program: Program
    rows: list[Row] = field(default_factory=list)

    @classmethod
    def build(cls, program: Program, *, flows: bool = True) -> RowTemplate:
        """Write down the rows of every instruction and range; `flows` adds the arrows from launch to kernel."""
        template = cls(program)
        for index, instruction in enumerate(program.instructions):
            template._add(index, instruction, flows=flows)
        for i, span in enumerate(program.spans):
            external = 900_000 + i
            template.rows.append(
                Row("X", "user_annotation", span.name, (span.start, 0), (span.end, 0), MAIN, external_id=external)
            )
            ends = _device_span(program, span.start, span.end)
            if ends:
                template.rows.append(
                    Row("X", "gpu_user_annotation", span.name, (ends[0], 0), (ends[1], 0), DEVICE,
                        STREAMS["compute"], external_id=external)
                )  # fmt: skip
        return template

    def _add(self, index: int, instruction: Instruction, *, flows: bool) -> None:
        if instruction.kind == "mark":
            return
        at, correlation = instruction.point, FIRST_CORRELATION + index
        first = len(self.rows)
        if instruction.kind == "host":
            self.rows.append(_host_row(instruction, correlation))
        else:
            self._add_launch(instruction, index, correlation, at, flows=flows)
        if instruction.ranks is not None:
            for row in self.rows[first:]:
                row.ranks = instruction.ranks

    def _add_launch(self, instruction: Instruction, index: int, correlation: int, at: int, *, flows: bool) -> None:
        task, thread, rows = instruction.task, instruction.thread, self.rows
        assert task is not None
        ghost = instruction.kind == "ghost"
        comm = task.comm
        external = None if ghost else 10_000 + 8 * index + len(instruction.ops) - 1
        for depth, op in enumerate(instruction.ops):
            inner = depth == len(instruction.ops) - 1
            annotation = op.startswith("nccl:")
            row = Row(
                "X", "user_annotation" if annotation else "cpu_op", op, (at + OP_START, depth * NEST_IN_NS),
                (at + OP_END, -depth * NEST_OUT_NS), thread, external_id=10_000 + 8 * index + depth,
            )  # fmt: skip
            if (inner or op == "record_param_comms") and not annotation:
                row.dims = instruction.dims
                row.types = ("c10::BFloat16",) * len(instruction.dims)
                row.concrete = CONCRETE_INPUTS.get(op)
            if op == "record_param_comms":
                row.comm = comm
            if thread == AUTOGRAD and comm is None:
                row.sequence_number = index
            rows.append(row)
        if not ghost:
            kept = None if instruction.lost is None else ~instruction.lost
            rows.append(
                Row("X", "cuda_runtime", instruction.call, (at + CALL_START, 0), (at + CALL_END, 0), thread,
                    correlation=correlation, external_id=external, ranks=kept)
            )  # fmt: skip
            if flows:
                rows += [
                    Row("s", "ac2g", "ac2g", (at + CALL_START, 0), None, thread, correlation=correlation, ranks=kept),
                    Row("f", "ac2g", "ac2g", (at + TASK_START, 0), None, DEVICE, task.stream, correlation, ranks=kept),
                ]
        rows.append(
            Row("X", task.category, task.name, (at + TASK_START, 0), (at + TASK_END, 0), DEVICE, task.stream,
                correlation, external, task.num_bytes, task=task, comm=comm)
        )  # fmt: skip
        if instruction.kind == "item":
            sync = correlation + 500_000
            rows += [
                Row("X", "cuda_runtime", "cudaStreamSynchronize", (at + SYNC_START, 0), (at + SYNC_END, 0), thread,
                    correlation=sync, external_id=external),
                Row("X", "cuda_sync", "Stream Sync", (at + SYNC_START, 400), (at + SYNC_END, -300), DEVICE, task.stream,
                    sync, external, sync_kind="Stream Sync"),
            ]  # fmt: skip

    def rows_of(self, column: int) -> Ints:
        """Return the positions of the rows that a rank (by its column in the stage) has."""
        keep = np.ones(len(self.rows), bool)
        for position, ranks in self._masked:
            keep[position] = ranks[column]
        return np.flatnonzero(keep)

    @cached_property
    def _masked(self) -> list[tuple[int, Mask]]:
        return [(i, row.ranks) for i, row in enumerate(self.rows) if row.ranks is not None]

    @cached_property
    def starts(self) -> tuple[Ints, Ints]:
        """Points and constants of all starts."""
        points, constants = np.array([row.start for row in self.rows], np.int64).T
        return points, constants

    @cached_property
    def ends(self) -> tuple[Ints, Ints]:
        """Points and constants of all ends; a row without duration has its start."""
        points, constants = np.array([row.end or row.start for row in self.rows], np.int64).T
        return points, constants

    def times_of(self, job: Job, times: Ints, column: int, rows: Ints) -> tuple[Ints, Ints]:
        """Return start and duration of a rank's rows as its host's clock showed them."""
        rank = int(self.program.ranks[column])
        mine = np.ascontiguousarray(times[:, column])
        start = job.to_local(mine[self.starts[0][rows]] + self.starts[1][rows], rank)
        end = job.to_local(mine[self.ends[0][rows]] + self.ends[1][rows], rank)
        return start, end - start


def _host_row(instruction: Instruction, correlation: int) -> Row:
    name, at = instruction.ops[0], instruction.point
    row = Row("X", "user_annotation", name, (at, 0), (at + 1, 0), instruction.thread)
    if name.startswith("cuda"):
        row.category, row.correlation = "cuda_runtime", correlation
    elif "(" in name and ".py" in name:
        row.category, row.python_id = "python_function", correlation
    else:
        row.external_id = 10_000 + 8 * correlation
    return row


def _device_span(program: Program, start: int, end: int) -> tuple[int, int] | None:
    """Return the points of the first start and last end on the compute stream of what was launched in a range."""
    inside = [
        i.point
        for i in program.instructions
        if start < i.point < end and i.ranks is None and i.task is not None and i.task.stream == STREAMS["compute"]
    ]
    return (inside[0] + TASK_START, inside[-1] + TASK_END) if inside else None


# ------------------------------------------------------------------ who a rank is


@dataclass(frozen=True, slots=True)
class Group:
    """A process group of a rank."""

    role: str
    name: str
    desc: str
    ranks: tuple[int, ...]

    @property
    def ranks_text(self) -> str:
        """Ranks as Kineto writes them."""
        return json.dumps(list(self.ranks))


@dataclass(frozen=True)
class Identity:
    """What a trace says about the process that wrote it."""

    job: Job

    @cached_property
    def _groups(self) -> list[dict[str, Group]]:
        mesh = self.job.mesh
        world = tuple(range(mesh.world_size))
        everyone = Group("world", "0", "default_pg", world)
        groups: list[dict[str, Group]] = [{"world": everyone} for _ in world]
        number = 1
        for role in ("tp", "fsdp", "dp", "ep", "pp"):
            members = mesh.members(role)
            if members.shape[1] == 1:
                continue
            seen: dict[tuple[int, ...], Group] = {}
            for rank in world:
                key = tuple(int(member) for member in members[rank])
                if key not in seen:
                    seen[key] = Group(role, str(number), f"mesh_{role}", key)
                    number += 1
                groups[rank][role] = seen[key]
        return groups

    def groups(self, rank: int) -> dict[str, Group]:
        """Return role -> group; the world is always there."""
        return self._groups[rank]

    def host(self, rank: int) -> str:
        """Return the name of the rank's host."""
        return f"node{int(self.job.host_of[rank]):04d}"

    def device(self, rank: int) -> int:
        """Return the device index on its host."""
        return rank % self.job.hardware.gpus_per_host

    def pid(self, rank: int) -> int:
        """Return the process id."""
        return 40_000 + 10 * self.device(rank)

    def tid(self, rank: int, thread: int) -> int:
        """Return the thread id of Python or of the backward passes."""
        return self.pid(rank) + 3 * thread

    def message_ranks(self, rank: int, comm: Comm) -> tuple[int, int]:
        """Return sender and receiver of a message that a rank takes part in."""
        size = self.job.mesh.stage_size
        return comm.stages[0] * size + rank % size, comm.stages[1] * size + rank % size

    def message_sizes(self, rank: int, comm: Comm) -> tuple[int, int, list[int], list[int]]:
        """Return elements in and out, and how they split over the members, of an exchange of this rank."""
        if comm.to_experts is None:
            return comm.in_elements, comm.out_elements, [], []
        key = rank, comm.step, comm.in_elements, comm.to_experts
        if key not in self._sizes:
            members = np.array(self.groups(rank)["ep"].ranks)
            load, size = self.job.expert_load(comm.step, members), len(members)
            away = [int(v) for v in comm.in_elements * load // (1000 * size)]  # own tokens, to the experts of each
            mine = comm.in_elements * int(load[members == rank][0]) // (1000 * size)
            here = [mine] * size  # everybody's tokens for the experts of this rank
            split = (away, here) if comm.to_experts else (here, away)
            self._sizes[key] = sum(split[0]), sum(split[1]), *split
        return self._sizes[key]

    @cached_property
    def _sizes(self) -> dict[tuple[int, int, int, bool], tuple[int, int, list[int], list[int]]]:
        return {}

    def devices(self) -> list[dict[str, object]]:
        """Return `deviceProperties`."""
        hardware = self.job.hardware
        return [
            {
                "id": i, "name": hardware.device, "totalGlobalMem": hardware.memory_bytes,
                "computeMajor": hardware.compute_capability[0], "computeMinor": hardware.compute_capability[1],
                "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048, "regsPerBlock": 65536, "warpSize": 32,
                "sharedMemPerBlock": 49152, "numSms": hardware.num_sms,
            }
            for i in range(min(hardware.gpus_per_host, self.job.mesh.world_size))
        ]  # fmt: skip


def kernel_config(job: Job, row: Row) -> dict[str, object]:
    """Return the launch configuration of a kernel, by the names of Kineto's args."""
    block, grid = (544, 24) if row.comm else (256, job.hardware.num_sms)
    return {
        "queued": 0, "registers per thread": 96, "shared memory": 103_808 if row.comm else 0,
        "blocks per SM": grid / job.hardware.num_sms, "warps per SM": grid / job.hardware.num_sms * block / 32,
        "grid": [grid, 1, 1], "block": [block, 1, 1], "est. achieved occupancy %": 0 if row.comm else 25,
    }  # fmt: skip
