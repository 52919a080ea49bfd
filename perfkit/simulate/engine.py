"""When everything happens: a discrete-event simulation on integer nanoseconds.

    run(job, programs) -> [times of stage 0, times of stage 1, …]      int64[points, ranks of the stage]

The loop runs over the instructions of a stage; every operation in it acts on all ranks of the stage at
once, so a thousand ranks cost little more than one. Stages meet in messages and in collectives of the
whole job: a stage stops (yields) where it needs the end of an exchange that others have not reached.

The rules: a host does one thing after the other; a task starts when it was launched (plus latency), its
stream is free, and what it depends on has ended; a collective ends when its last member has started and
the data has moved; a blocking call returns when its stream is empty; a launch blocks when the queue of the
device is full.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import numpy as np

from perfkit.simulate.faults import factors
from perfkit.simulate.job import Job
from perfkit.simulate.model import transfer_ns
from perfkit.simulate.noise import Ints, between, draw, hash_key, pick
from perfkit.simulate.program import (
    ARRIVED,
    CALL_END,
    CALL_START,
    NEST_IN_NS,
    NEST_OUT_NS,
    OP_END,
    OP_START,
    STREAMS,
    SYNC_END,
    SYNC_START,
    TASK_END,
    TASK_START,
    Instruction,
    Program,
    Task,
)  # fmt: skip

BLOCK = 256
"""Instructions whose random draws are held at a time."""
SLOT_NS = 32
"""Tasks of different streams start on different slots of this grid, so that no two start together."""
_SLOTS = {stream: 2 * i for i, stream in enumerate(STREAMS.values())}
HOST_START_NS = 150_000


def run(job: Job, programs: Sequence[Program]) -> list[Ints]:
    """Fill in the points of all programs."""
    meetings: dict[str, _Meeting] = {}
    stages = [_Stage(job, program, meetings) for program in programs]
    waiting = [stage.play() for stage in stages]
    while waiting:
        before = sum(stage.position for stage in stages)
        waiting = [one for one in waiting if next(one, None) is not None]
        assert not waiting or sum(stage.position for stage in stages) > before, "the schedule waits for itself"
    return [stage.times for stage in stages]


@dataclass(slots=True)
class _Meeting:
    """An exchange between stages: who has come so far."""

    posts: list[tuple[_Stage, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Draws:
    """Random durations of a block of instructions; shape (block, ranks)."""

    first: int
    gap: Ints
    before: Ints
    call: Ints
    after: Ints
    latency: Ints
    switch: Ints
    task: Ints
    extra: Ints


class _Stage:
    """One stage while it is played."""

    def __init__(self, job: Job, program: Program, meetings: dict[str, _Meeting]) -> None:
        self.job, self.program, self.meetings = job, program, meetings
        ranks = program.ranks
        self.times = np.zeros((program.num_points, len(ranks)), np.int64)
        start = between(pick(draw(job.seed, [hash_key("host start")], ranks), 0)[0], 0, 100_000)
        self.host = HOST_START_NS + start
        self.free: dict[int, Ints] = {}
        self.pending: dict[int, int] = {}
        """Stream -> instruction whose end is not known yet."""
        self.unknown: set[int] = set()
        self.started: list[Ints] = []
        """Starts of all tasks in the order of their launches."""
        self.position = 0
        self.spans_hosts = {
            role: _span_hosts(job, role, ranks) for role in ("tp", "fsdp", "dp", "ep") if job.mesh.split(role)[1] > 1
        }

    def play(self) -> Generator[bool, None, None]:
        """Run through the program; yield while another stage must go first."""
        draws = self._draw(0)
        for index, instruction in enumerate(self.program.instructions):
            if index >= draws.first + BLOCK:
                draws = self._draw(index)
            self.position = index + 1
            task = instruction.task
            if task is not None:
                while task.stream in self.pending or any(dep in self.unknown for dep in task.deps):
                    yield True
            row = index - draws.first
            if instruction.kind == "mark":
                self.host = self.host + draws.gap[row]
                self.times[instruction.point] = self.host
            elif instruction.kind == "host":
                self._act(instruction, draws, row)
            elif task is not None:
                self._launch(index, instruction, task, draws, row)

    def _draw(self, first: int) -> _Draws:
        """Draw the durations of the next block."""
        job, ranks = self.job, self.program.ranks
        block = self.program.instructions[first : first + BLOCK]
        keys = np.array([hash_key(instruction.key) for instruction in block], np.uint64)
        low, high = np.array([i.gap_ns for i in block], np.int64).T[:, :, None]
        depth = np.array([len(i.ops) for i in block], np.int64)[:, None]
        one, two = draw(job.seed, keys, ranks), draw(job.seed ^ 0x5EED, keys, ranks)
        speed = np.empty((len(block), len(ranks)), np.int64)
        base = np.empty_like(speed)
        slow = np.empty_like(speed)
        units = {"slow-host": job.host_of[ranks], "slow-rank": ranks, "throttle": ranks}
        by_step: dict[int, dict[str, Ints]] = {}
        for row, instruction in enumerate(block):
            step = instruction.step
            if step not in by_step:
                by_step[step] = {kind: factors(job.faults, kind, step, unit) for kind, unit in units.items()}
                by_step[step]["experts"] = job.expert_load(step, ranks)
            now, task = by_step[step], instruction.task
            speed[row] = now["slow-host"] * job.host_permille // 1000
            base[row] = instruction.host_ns if task is None else task.duration_ns
            if task is None:
                slow[row] = now["slow-host"]
            elif task.category == "kernel" and task.comm is None:
                slow[row] = now["slow-rank"] * (now["throttle"] if task.clock_bound else 1000) // 1000
                if task.of_experts:
                    slow[row] = slow[row] * now["experts"] // 1000
            else:
                slow[row] = 1000
        wobble = base + base * (pick(two, 1) - 32_768) // (32_768 * 25)  # ±4 %
        return _Draws(
            first=first,
            gap=between(pick(one, 0), low, high) * speed // 1000,
            before=between(pick(one, 1), 1_500, 4_500) * speed // 1000 + NEST_IN_NS * depth,
            call=between(pick(one, 2), 1_800, 4_200) * speed // 1000,
            after=between(pick(one, 3), 500, 1_500) * speed // 1000 + NEST_OUT_NS * depth,
            latency=between(pick(two, 0), 4_500, 9_000),
            switch=between(pick(two, 2), 700, 1_400),
            task=wobble * slow // 1000,
            extra=pick(two, 3),
        )

    def _act(self, instruction: Instruction, draws: _Draws, row: int) -> None:
        start = self.host + draws.gap[row]
        end = start
        if instruction.drains:
            end = np.maximum(end, self.free[STREAMS["compute"]])
        end = end + draws.task[row]
        self.times[instruction.point], self.times[instruction.point + 1] = start, end
        self.host = end if instruction.ranks is None else np.where(instruction.ranks, end, self.host)

    def _launch(self, index: int, instruction: Instruction, task: Task, draws: _Draws, row: int) -> None:
        times, at, stream = self.times, instruction.point, task.stream
        switch = draws.switch[row]
        ready = np.zeros_like(self.host)
        if instruction.kind != "ghost":
            op_start = self.host + draws.gap[row]
            call = op_start + draws.before[row]
            called = call + draws.call[row]
            if len(self.started) >= self.job.queue_depth:
                called = np.maximum(called, self.started[-self.job.queue_depth])
            times[at + OP_START], times[at + CALL_START], times[at + CALL_END] = op_start, call, called
            ready = call + draws.latency[row]
        if stream in self.free:
            ready = np.maximum(ready, self.free[stream] + switch)
        for dep in task.deps:
            ready = np.maximum(ready, times[self.program.instructions[dep].point + TASK_END] + switch + 1_000)
        if task.stall_ns is not None:
            ready = ready + task.stall_ns
        start = ready + (_SLOTS[stream] - ready) % SLOT_NS
        times[at + TASK_START] = start
        if task.comm is not None:
            self._meet(index, task)
        else:
            end = start + draws.task[row]
            times[at + TASK_END] = end
            if instruction.ranks is not None:
                end = np.where(instruction.ranks, end, self.free[stream])
            self.free[stream] = end
        if instruction.kind == "ghost":
            return
        if instruction.ranks is None:  # what only some ranks launch, they wait for: it does not stay in the queue
            self.started.append(start)
        finished = called
        if instruction.kind == "item":
            blocked = called + 700
            finished = np.maximum(blocked + 1_500, self.free[stream]) + between(draws.extra[row], 2_000, 6_000)
            times[at + SYNC_START], times[at + SYNC_END] = blocked, finished
        op_end = finished + draws.after[row]
        times[at + OP_END] = op_end
        self.host = op_end if instruction.ranks is None else np.where(instruction.ranks, op_end, self.host)

    # -------------------------------------------------------------- exchanges

    def _meet(self, index: int, task: Task) -> None:
        """Come to an exchange; whoever comes last works out when it ends."""
        comm = task.comm
        assert comm is not None
        self.unknown.add(index)
        self.pending[task.stream] = index
        meeting = self.meetings.setdefault(
            comm.meeting if len(comm.stages) > 1 else f"{self.program.stage}/{comm.meeting}", _Meeting()
        )
        meeting.posts.append((self, index))
        if len(meeting.posts) == len(comm.stages):
            _finish(self.job, meeting.posts)

    def finish(self, index: int, arrived: Ints, transfer: Ints) -> None:
        """Write down the end of an exchange on this stage; ranks see it up to 1.5 µs apart."""
        instruction = self.program.instructions[index]
        assert instruction.task is not None
        bits = pick(draw(self.job.seed, [hash_key(f"{instruction.key}/end")], self.program.ranks), 0)[0]
        end = arrived + transfer + between(bits, 0, 1_500)
        self.times[instruction.point + ARRIVED] = arrived
        self.times[instruction.point + TASK_END] = end
        self.free[instruction.task.stream] = end
        self.unknown.discard(index)
        del self.pending[instruction.task.stream]


def _finish(job: Job, posts: list[tuple[_Stage, int]]) -> None:
    """Work out arrival and transfer of a complete exchange and tell all stages."""
    stage, index = posts[0]
    task = stage.program.instructions[index].task
    assert task is not None
    assert task.comm is not None
    comm, step = task.comm, stage.program.instructions[index].step
    starts = [s.times[s.program.instructions[i].point + TASK_START] for s, i in posts]
    links = [factors(job.faults, "slow-link", step, s.program.ranks) for s, _ in posts]
    wobble = pick(draw(job.seed, [hash_key(f"{comm.meeting}/transfer")], stage.program.ranks), 0)[0]
    if comm.role == "pp":
        arrived, link = np.maximum(*starts), np.maximum(*links)
        hosts = [job.host_of[s.program.ranks] for s, _ in posts]
        base = [transfer_ns(job, comm.op, comm.num_bytes, 2, across_hosts=bool(b)) for b in (False, True)]
        transfer = np.where(hosts[0] != hosts[1], base[1], base[0])
    elif comm.role == "world":
        everyone = np.concatenate(starts)
        arrived = np.full_like(starts[0], everyone.max())
        link = np.full_like(starts[0], max(int(one.max()) for one in links))
        one = transfer_ns(job, comm.op, comm.num_bytes, job.mesh.world_size, across_hosts=job.num_hosts > 1)
        transfer, wobble = np.full_like(starts[0], one), np.full_like(wobble, wobble[0])
    else:
        split = job.mesh.split(comm.role)
        arrived, link, wobble = (group_max(values, split) for values in (starts[0], links[0], wobble))
        base = [transfer_ns(job, comm.op, comm.num_bytes, split[1], across_hosts=bool(b)) for b in (False, True)]
        transfer = np.where(stage.spans_hosts[comm.role], base[1], base[0])
        if comm.to_experts is not None:  # the rank that moves most decides
            link = link * group_max(np.maximum(job.expert_load(step, stage.program.ranks), 1000), split) // 1000
    transfer = (transfer + transfer * (wobble - 32_768) // (32_768 * 16)) * link // 1000  # ±6 %
    for one_stage, one_index in posts:
        one_stage.finish(one_index, arrived, transfer)


def group_max(values: Ints, split: tuple[int, int, int]) -> Ints:
    """Give every rank the maximum over its group."""
    cube = values.reshape(split)
    result: Ints = np.broadcast_to(cube.max(axis=1, keepdims=True), split).reshape(-1).copy()
    return result


def _span_hosts(job: Job, role: str, ranks: Ints) -> Ints:
    """Say for every rank whether its group spans hosts."""
    split, hosts = job.mesh.split(role), job.host_of[ranks]
    spans: Ints = (group_max(hosts, split) != -group_max(-hosts, split)).astype(np.int64)
    return spans
