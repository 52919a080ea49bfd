"""What the host thread of a pipeline stage does, in order: one list of instructions for all of its ranks.

    Program.begin(job, stage)                          an empty program, to be filled by perfkit.simulate.step
    program.kernel(…) · .exchange(…) · .launch(…) · .host(…) · .open(…) · .close(…)

An instruction is a launch (an op, a runtime call, and a task on a stream), an activity of the host, or a
mark (a range opens or closes). It names the points in time that it creates; the engine fills them in for
all ranks at once, and rows, tiles and truth refer to them. A fault that acts on some ranks gives its
instruction a mask; the other ranks skip it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from perfkit.simulate import model
from perfkit.simulate.faults import amounts
from perfkit.simulate.job import Job
from perfkit.simulate.noise import Ints, draw, hash_key, pick

Mask = npt.NDArray[np.bool_]

MAIN, AUTOGRAD = 0, 1
"""Threads that launch work: Python, and the one that runs backward passes."""
COMPUTE, COMM, COPY = 0, 1, 2
"""Classes of device work."""

OP_START, CALL_START, CALL_END, OP_END, TASK_START, TASK_END = range(6)
"""Points of a launch. One that talks to other ranks has ARRIVED, one that blocks has SYNC_START and SYNC_END."""
ARRIVED = SYNC_START = 6
SYNC_END = 7
NEST_IN_NS, NEST_OUT_NS = 300, 200
"""How much later an inner op starts, and earlier it ends, than the op around it."""

STREAMS = {
    "compute": 7, "tp": 20, "fsdp.gather": 24, "fsdp.scatter": 28, "dp": 32, "ep": 36, "world": 40,
    "act.recv": 44, "act.send": 48, "grad.recv": 52, "grad.send": 56,
}  # fmt: skip
BACKWARD_NODES = {
    "aten::mm": "MmBackward0",
    "aten::_grouped_mm": "GroupedMmBackward0",
    "aten::native_layer_norm_backward": "NativeLayerNormBackward0",
    "aten::_scaled_dot_product_flash_attention_backward": "ScaledDotProductFlashAttentionBackward0",
    "aten::silu_backward": "SiluBackward0",
    "aten::add": "AddBackward0",
    "aten::embedding_dense_backward": "EmbeddingBackward0",
    "aten::_log_softmax_backward_data": "LogSoftmaxBackward0",
    "aten::index_select": "IndexSelectBackward0",
}
COMM_OPS = {
    "allreduce": ("c10d::allreduce_", "nccl:all_reduce", "ncclDevKernel_AllReduce_Sum_{}_RING_LL"),
    "_allgather_base": ("c10d::_allgather_base_", "nccl:_all_gather_base", "ncclDevKernel_AllGather_RING_LL"),
    "_reduce_scatter_base": (
        "c10d::_reduce_scatter_base_", "nccl:_reduce_scatter_base", "ncclDevKernel_ReduceScatter_Sum_{}_RING_LL",
    ),
    "all_to_allv": ("c10d::alltoall_base_", "nccl:all_to_all", "ncclDevKernel_SendRecv"),
    "send": ("c10d::send", "nccl:send", "ncclDevKernel_SendRecv"),
    "recv": ("c10d::recv_", "nccl:recv", "ncclDevKernel_SendRecv"),
}  # fmt: skip
DATA_LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@dataclass(slots=True)
class Comm:
    """What a collective is, the same on all ranks of the stage."""

    role: str
    op: str
    in_elements: int
    out_elements: int
    dtype: str
    seq: int
    meeting: str
    """Identity of the exchange over all stages that take part."""
    stages: tuple[int, ...]
    """Stages that take part; (sender, receiver) of a point-to-point message."""
    step: int = 0
    to_experts: bool | None = None
    """Whether tokens go to experts or come back: then ranks have different sizes."""

    @property
    def num_bytes(self) -> int:
        """Message size as nccl-tests counts it."""
        return self.bytes_of(self.in_elements, self.out_elements)

    def bytes_of(self, in_elements: int, out_elements: int) -> int:
        """Return the message size of a rank that has so many elements in and out."""
        return max(in_elements, out_elements) * (4 if self.dtype == "Float" else 2)


@dataclass(slots=True)
class Task:
    """Work on a stream of the device."""

    kind: int
    category: str
    name: str
    stream: int
    duration_ns: int
    deps: list[int] = field(default_factory=list)
    """Instructions whose tasks must have ended."""
    flops: int = 0
    full_flops: int = 0
    model_flops: bool = False
    """Counts for MFU; recomputed work does not."""
    clock_bound: bool = False
    num_bytes: int | None = None
    of_experts: bool = False
    comm: Comm | None = None
    stall_ns: Ints | None = None


@dataclass(slots=True)
class Instruction:
    """One thing that the host does."""

    key: str
    kind: str
    """`launch`, `item` (a launch that blocks on its stream), `host`, `mark`, or `ghost` (work launched before)."""
    step: int
    thread: int
    gap_ns: tuple[int, int]
    point: int
    ops: tuple[str, ...] = ()
    call: str = ""
    task: Task | None = None
    host_ns: Ints | int = 0
    drains: bool = False
    """A host activity that first waits for the compute stream."""
    ranks: Mask | None = None
    """Ranks of the stage that do it; None is all."""
    lost: Mask | None = None
    """Ranks whose profiler lost the launch call."""
    dims: tuple[tuple[int, ...], ...] = ()
    opens: str | None = None


@dataclass(slots=True)
class Span:
    """A range of the main thread between two points."""

    name: str
    start: int
    end: int
    depth: int


@dataclass
class Program:
    """The instructions of a stage, and the points and spans that they create."""

    job: Job
    stage: int
    ranks: Ints
    instructions: list[Instruction] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    num_points: int = 0
    _open: list[Span] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    """Tasks that the next kernel of the compute stream waits for."""
    last: int = -1
    """Last task of the compute stream."""
    seq: dict[str, int] = field(default_factory=dict)

    @classmethod
    def begin(cls, job: Job, stage: int) -> Program:
        """Return a program that only has the work of the step before the recording."""
        size = job.mesh.stage_size
        program = cls(job, stage, np.arange(stage * size, (stage + 1) * size))
        program._ghosts()
        return program

    # -------------------------------------------------------------- kinds of instructions

    def add(self, instruction: Instruction, points: int) -> int:
        """Append an instruction and reserve its points."""
        instruction.point = self.num_points
        self.num_points += points
        self.instructions.append(instruction)
        return len(self.instructions) - 1

    def launch(
        self, key: str, task: Task, *, step: int, thread: int, ops: tuple[str, ...],
        dims: tuple[tuple[int, ...], ...] = (), blocks: bool = False, ranks: Mask | None = None,
        lost: Mask | None = None,
    ) -> int:  # fmt: skip
        """Launch a task; one on the compute stream waits for what is awaited. `blocks` until the stream is empty."""
        call = {"gpu_memcpy": "cudaMemcpyAsync", "gpu_memset": "cudaMemsetAsync"}.get(
            task.category, "cudaLaunchKernelExC" if task.comm else "cudaLaunchKernel"
        )
        instruction = Instruction(
            key, "item" if blocks else "launch", step, thread, (1_500, 5_000), 0, ops, call, task, ranks=ranks,
            lost=lost, dims=dims,
        )  # fmt: skip
        index = self.add(instruction, 8 if blocks else 7 if task.comm else 6)
        if task.stream == STREAMS["compute"]:
            task.deps = [*task.deps, *self.waits]
            if ranks is None:  # ranks that skip it have still to wait
                self.waits, self.last = [], index
        return index

    def host(
        self, key: str, step: int, name: str, host_ns: Ints | int, *, ranks: Mask | None = None, drains: bool = False
    ) -> None:
        """Let the main thread do something that launches nothing."""
        instruction = Instruction(
            key, "host", step, MAIN, (1_000, 3_000), 0, (name,), host_ns=host_ns, ranks=ranks, drains=drains
        )
        self.add(instruction, 2)

    def open(self, key: str, step: int, name: str, gap_ns: tuple[int, int] = (600, 1_200)) -> None:
        """Open a range on the main thread."""
        index = self.add(Instruction(key, "mark", step, MAIN, gap_ns, 0, opens=name), 1)
        span = Span(name, self.instructions[index].point, -1, len(self._open))
        self.spans.append(span)
        self._open.append(span)

    def close(self, key: str, step: int) -> None:
        """Close the innermost range."""
        index = self.add(Instruction(key, "mark", step, MAIN, (600, 1_200), 0), 1)
        self._open.pop().end = self.instructions[index].point

    def kernel(
        self, part: model.Kernel, key: str, *, step: int, thread: int, counts: bool = True, stream: str = "compute",
        deps: Iterable[int] = (),
    ) -> int:  # fmt: skip
        """Launch a compute kernel; `counts` says whether it is part of the model or extra work."""
        task = Task(
            COMPUTE, "kernel", part.name, STREAMS[stream], part.duration_ns, list(deps), flops=part.flops,
            full_flops=part.full_flops, model_flops=counts, clock_bound=part.clock_bound, of_experts=part.of_experts,
        )  # fmt: skip
        ops = part.ops
        if thread == AUTOGRAD and counts:
            node = BACKWARD_NODES[ops[0]]
            ops = (f"autograd::engine::evaluate_function: {node}", node, *ops)
        if part.key == "attention":
            stall = amounts(self.job.faults, "stream-stall", step, self.ranks)
            task.stall_ns = stall if stall.any() else None
        lost = None
        if part.key == "silu":  # never the first kernel of a step: windows stay where they are
            losing = amounts(self.job.faults, "lost-launches", step, self.ranks) > 0
            bits = pick(draw(self.job.seed, [hash_key(f"{key}/lost")], self.ranks), 0)[0]
            lost = losing & (bits < 40_000) if losing.any() else None
        return self.launch(key, task, step=step, thread=thread, ops=ops, dims=part.dims, lost=lost)

    def exchange(
        self, key: str, role: str, op: str, *, step: int, thread: int, in_elements: int, out_elements: int,
        deps: Iterable[int], stream: str | None = None, dtype: str = "BFloat16", meeting: str | None = None,
        stages: tuple[int, ...] | None = None, seq: int | None = None, to_experts: bool | None = None,
    ) -> int:  # fmt: skip
        """Launch a collective or a message."""
        if seq is None:
            seq = self.seq[role] = self.seq.get(role, 0) + 1
        comm = Comm(
            role, op, in_elements, out_elements, dtype, seq, meeting or key, stages or (self.stage,), step, to_experts
        )
        outer, annotation, name = COMM_OPS[op]
        if op in ("send", "recv"):
            annotation = f"{annotation} {comm.stages[0]}->{comm.stages[1]}"
        name = name.format("bf16" if dtype == "BFloat16" else "f32") + "(ncclDevKernelArgsStorage<4096ul>)"
        task = Task(COMM, "kernel", name, STREAMS[stream or role], 0, list(deps), comm=comm)
        ops = (outer, "record_param_comms", annotation)
        return self.launch(key, task, step=step, thread=thread, ops=ops, dims=((in_elements,),))

    def _ghosts(self) -> None:
        """Work of the step before the recording: on the device, without launches."""
        for i in range(3):
            part = model.adam(self.job, "ghost", model.layer_parameters(self.job) // self.job.mesh.fsdp)
            task = Task(COMPUTE, "kernel", part.name, STREAMS["compute"], part.duration_ns)
            self.add(Instruction(f"ghost{i}", "ghost", -1, MAIN, (0, 0), 0, task=task), 6)
