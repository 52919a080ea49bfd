"""What the host threads were doing at every moment of a simulated step.

    Tiles.build(program) -> Tiles
    tiles.spread(…)      -> (interval, label, ns)        what a thread did in some intervals

A tile says what is on top of the stack of a thread from one point on, until the next tile. The program is
sequential: one thread acts, the other waits, and what is open on the main thread stays open meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfkit.simulate.job import Job
from perfkit.simulate.noise import Ints
from perfkit.simulate.program import (
    CALL_END,
    CALL_START,
    DATA_LOADER,
    MAIN,
    NEST_IN_NS,
    NEST_OUT_NS,
    OP_END,
    OP_START,
    SYNC_END,
    SYNC_START,
    Instruction,
    Program,
)

Bools = npt.NDArray[np.bool_]
Label = tuple["str | None", "str | None"]
"""Kind of culprit, and what the host was doing."""
NOTHING: Label = ("unattributed", None)


@dataclass
class Tiles:
    """What each thread had on top of its stack: from each point on, until the next."""

    point: Ints
    constant: Ints
    own: Ints
    """Label on the thread that acts."""
    main: Ints
    """Label on the main thread, which may only be waiting."""
    thread: Ints
    instruction: Ints
    is_call: Ints
    """A launch call, which the profiler may have lost."""
    labels: list[Label]

    @classmethod
    def build(cls, program: Program) -> Tiles:
        """Walk through the program once."""
        labels: dict[Label, int] = {NOTHING: 0}
        rows: list[tuple[int, ...]] = []
        stack: list[Label] = []

        def put(index: int, point: int, constant: int, own: Label, thread: int, is_call: bool = False) -> None:
            main = own if thread == MAIN else (stack[-1] if stack else NOTHING)
            ids = [labels.setdefault(label, len(labels)) for label in (own, main)]
            rows.append((point, constant, *ids, thread, index, is_call))

        for index, instruction in enumerate(program.instructions):
            if instruction.kind == "ghost":
                continue
            if instruction.kind == "mark":
                if instruction.opens is not None:
                    stack.append((_kind_of(instruction.opens, stack), instruction.opens))
                else:
                    stack.pop()
                put(index, instruction.point, 0, stack[-1] if stack else NOTHING, MAIN)
                continue
            thread = instruction.thread
            around = (stack[-1] if stack else NOTHING) if thread == MAIN else NOTHING
            for point, constant, name in _tops(instruction):
                own = around if name is None else (_kind_of(name, stack if thread == MAIN else []), name)
                put(
                    index,
                    point,
                    constant,
                    own,
                    thread,
                    point == instruction.point + CALL_START and name == instruction.call,
                )
        point, constant, own, main, acting, owner, is_call = np.array(rows, np.int64).T
        return cls(point, constant, own, main, acting, owner, is_call, list(labels))

    def spread(
        self, job: Job, times: Ints, done: Bools, lost: Bools, rank: int, start: Ints, stop: Ints, thread: Ints
    ) -> tuple[Ints, Ints, Ints]:
        """Return (interval, label, ns) for what a thread did in intervals that do not overlap.

        `times`, `done` and `lost` are the rank's own: its points, and by instruction whether it was carried
        out and whether its launch call was lost. Under a lost call the op is on top.
        """
        keep = done[self.instruction] & ~(lost[self.instruction] & (self.is_call == 1))
        point, constant = self.point[keep], self.constant[keep]
        at = job.to_local(times[point] + constant, rank)
        until = np.append(at[1:], np.iinfo(np.int64).max)
        first = np.searchsorted(at, start, side="right") - 1
        last = np.searchsorted(at, stop, side="left")
        count = last - first
        interval = np.repeat(np.arange(len(start)), count)
        tile = np.repeat(first, count) + np.arange(len(interval)) - np.repeat(np.cumsum(count) - count, count)
        before = tile < 0  # the host had not begun
        tile = np.maximum(tile, 0)
        ns = np.minimum(np.where(before, at[0], until[tile]), stop[interval]) - np.maximum(
            np.where(before, start[interval], at[tile]), start[interval]
        )
        own, main, acting = self.own[keep][tile], self.main[keep][tile], self.thread[keep][tile]
        label = np.where(acting == thread[interval], own, np.where(thread[interval] == MAIN, main, 0))
        label = np.where(before, 0, label)
        return interval[ns > 0], label[ns > 0], ns[ns > 0]


def _tops(instruction: Instruction) -> list[tuple[int, int, str | None]]:
    """Return (point, constant, name) where the top of the stack changes; None is what was there before."""
    at, ops = instruction.point, instruction.ops
    if instruction.kind == "host":
        return [(at, 0, ops[0]), (at + 1, 0, None)]
    tops: list[tuple[int, int, str | None]] = [(at + OP_START, depth * NEST_IN_NS, op) for depth, op in enumerate(ops)]
    tops += [(at + CALL_START, 0, instruction.call), (at + CALL_END, 0, ops[-1])]
    if instruction.kind == "item":
        tops += [(at + SYNC_START, 0, "cudaStreamSynchronize"), (at + SYNC_END, 0, ops[-1])]
    tops += [(at + OP_END, -depth * NEST_OUT_NS, ops[depth - 1]) for depth in reversed(range(1, len(ops)))]
    return [*tops, (at + OP_END, 0, None)]


_KINDS = {
    "cudaStreamSynchronize": "sync",
    "cudaMalloc": "allocator",
    "cudaFree": "allocator",
    "checkpoint_save": "checkpoint",
    DATA_LOADER: "data_loader",
    "Optimizer.step#AdamW.step": "optimizer",
}
_GENERAL = ("python", "framework", "runtime")


def _kind_of(name: str, stack: list[Label]) -> str:
    """Return the kind of an activity: its own, else that of what it runs in, else what recorded it."""
    if name in _KINDS:
        return _KINDS[name]
    around = next((kind for kind, _ in reversed(stack) if kind not in _GENERAL), None)
    if around is not None:
        return around
    if name.startswith("cuda"):
        return "runtime"
    is_op = "::" in name.split(" ")[0] or name.endswith("Backward0") or name == "record_param_comms"
    return "framework" if is_op and not name.startswith("nccl:") else "python"
