"""What is simulated: a training job on a mesh of ranks.

    Mesh.parse("dp=4,tp=2", ranks=8) -> Mesh
    Job(mesh=…, hardware=…, steps=4, faults=(…), seed=11)

Ranks are numbered as in Megatron-LM: tp varies fastest, then fsdp (with ep inside), dp, and pp slowest.
A pipeline stage is a block of consecutive ranks that run the same program, which is what lets the
engine treat all of them at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np

from perfkit.errors import UsageError
from perfkit.simulate.faults import ALL, KINDS, Fault, factors
from perfkit.simulate.hardware import H100, HardwareModel
from perfkit.simulate.noise import Ints, between, draw, hash_key, pick

EPOCH_NS = 1_767_189_312_000_000_000
"""A multiple of Kineto's base (7889238 s), so that `ts` looks as it does in real traces."""
START_NS = 4_321_098_765_432
"""When the simulated recording begins, after EPOCH_NS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Degrees of parallelism. `ep` divides dp·fsdp; `vpp` is the number of model chunks per pipeline stage."""

    dp: int = 1
    fsdp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    vpp: int = 1

    def __post_init__(self) -> None:
        if min(self.dp, self.fsdp, self.tp, self.pp, self.ep, self.vpp) < 1:
            raise UsageError(f"parallel degrees are at least 1: {self}")
        if (self.dp * self.fsdp) % self.ep:
            raise UsageError(f"ep={self.ep} does not divide dp·fsdp={self.dp * self.fsdp}")
        if self.vpp > 1 and self.pp == 1:
            raise UsageError("vpp needs pp: one stage has nothing to interleave")

    @classmethod
    def parse(cls, text: str, ranks: int) -> Mesh:
        """Read `dp=4,tp=2`; a missing dp and fsdp take the ranks that are left."""
        degrees: dict[str, int] = {}
        known = [f.name for f in fields(cls)]
        for part in filter(None, text.split(",")):
            match = re.fullmatch(r"\s*(\w+)=(\d+)\s*", part)
            if not match or match[1] not in known or match[1] in degrees:
                raise UsageError(
                    f"--parallel {text!r}: cannot read {part!r}", next_step=f"write for example dp=4,tp=2 with {known}"
                )
            degrees[match[1]] = int(match[2])
        rest = degrees.get("tp", 1) * degrees.get("pp", 1)
        if "dp" not in degrees and "fsdp" not in degrees and rest and ranks % rest == 0:
            degrees["dp"] = ranks // rest
        mesh = cls(**degrees)
        if mesh.world_size != ranks:
            raise UsageError(
                f"--parallel {text!r} is a mesh of {mesh.world_size} ranks, not {ranks}",
                next_step=f"use --ranks {mesh.world_size}, or degrees whose product is {ranks}",
            )
        return mesh

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.dp * self.fsdp * self.tp * self.pp

    @property
    def stage_size(self) -> int:
        """Ranks of one pipeline stage."""
        return self.dp * self.fsdp * self.tp

    def split(self, role: str) -> tuple[int, int, int]:
        """Return (outer, members, inner): how the ranks of a stage reshape so that a group lies on the middle axis."""
        data = self.dp * self.fsdp
        return {
            "tp": (data, self.tp, 1),
            "fsdp": (self.dp, self.fsdp, self.tp),
            "dp": (1, self.dp, self.fsdp * self.tp),
            "ep": (data // self.ep, self.ep, self.tp),
            "stage": (1, self.stage_size, 1),
        }[role]

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the rank's number on every axis: its position in its group."""
        found = {}
        for role, size in (("pp", self.pp), ("dp", self.dp), ("fsdp", self.fsdp), ("tp", self.tp), ("ep", self.ep)):
            inner = self.stage_size if role == "pp" else self.split(role)[2]
            found[role] = rank // inner % size
        return found

    def members(self, role: str) -> Ints:
        """Return the global ranks of each rank's group: shape (world, group size)."""
        world = np.arange(self.world_size)
        if role == "world":
            return np.broadcast_to(world, (len(world), len(world)))
        if role == "pp":
            return np.stack([world % self.stage_size + s * self.stage_size for s in range(self.pp)], axis=1)
        outer, size, inner = self.split(role)
        blocks = world.reshape(self.pp, outer, size, inner).swapaxes(2, 3)
        rows = np.repeat(blocks[..., None, :], size, axis=3).swapaxes(2, 3)
        return rows.reshape(len(world), size)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training job of a transformer; sizes are per data-parallel replica."""

    mesh: Mesh = field(default_factory=Mesh)
    hardware: HardwareModel = H100
    steps: int = 4
    seed: int = 0
    faults: tuple[Fault, ...] = ()
    layers: int = 4
    hidden: int = 2048
    head_dim: int = 128
    ffn: int = 8192
    vocab: int = 32_000
    experts: int = 8
    """Experts of a mixture-of-experts layer; used when ep > 1."""
    seq_len: int = 2048
    micro_batch: int = 1
    """Sequences per micro-batch."""
    micro_batches: int = 1
    """Micro-batches per step."""
    bucket_bytes: int = 25 * 2**20
    """Gradient bucket of DDP."""
    log_every: int = 1
    """Read the loss with `.item()` every so many steps; 0 never."""
    checkpoint_every: int = 0
    """Save a checkpoint every so many steps; 0 never."""
    checkpoint_ns: int = 20_000_000
    data_ns: int = 150_000
    """What the data loader takes when nothing is wrong."""
    loss_allreduce: bool = True
    """Average the loss over all ranks at the end of a step, without waiting for it."""
    host_permille: int = 1000
    """Speed of the host code: 2000 takes twice as long."""
    queue_depth: int = 1024
    """Launches that a device accepts ahead of its work."""
    first_step: int = 10
    """Number of the first ProfilerStep."""
    clock_offset_ns: int = 2_000_000
    """Host clocks are off by up to this much."""
    clock_drift_ppb: int = 20_000
    """Host clocks drift by up to this much, in 1e-9."""

    def __post_init__(self) -> None:
        mesh = self.mesh
        for name in ("steps", "layers", "hidden", "ffn", "vocab", "seq_len", "micro_batch", "micro_batches"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.layers % (mesh.pp * mesh.vpp):
            raise UsageError(f"{self.layers} layers do not divide into pp·vpp = {mesh.pp * mesh.vpp} chunks")
        if mesh.vpp > 1 and self.micro_batches % mesh.pp:
            raise UsageError(f"an interleaved schedule needs micro-batches in multiples of pp = {mesh.pp}")
        if self.hidden % self.head_dim or (self.hidden // self.head_dim) % mesh.tp or self.ffn % mesh.tp:
            raise UsageError(f"hidden {self.hidden} and ffn {self.ffn} do not divide over tp = {mesh.tp}")
        if mesh.ep > 1 and self.experts % mesh.ep:
            raise UsageError(f"{self.experts} experts do not divide over ep = {mesh.ep}")
        for fault in self.faults:
            if fault.kind == "hot-expert" and (mesh.ep == 1 or fault.target == ALL):
                raise UsageError(f"fault {fault}: needs ep > 1 and one rank")
            limit = self.num_hosts if KINDS[fault.kind][0] == "host" else mesh.world_size
            if fault.target is not None and fault.target >= limit:
                raise UsageError(
                    f"fault {fault}: the job has only {limit} of these", next_step=f"name one from 0 to {limit - 1}"
                )

    @property
    def num_hosts(self) -> int:
        """Hosts of the job."""
        return -(-self.mesh.world_size // self.hardware.gpus_per_host)

    @cached_property
    def host_of(self) -> Ints:
        """Host of each rank."""
        return np.arange(self.mesh.world_size) // self.hardware.gpus_per_host

    def expert_load(self, step: int, ranks: Ints) -> Ints:
        """Return the share of tokens that the experts of each rank receive, in thousandths; 1000 is an equal share.

        What a hot rank receives more, the others of its expert group receive less.
        """
        size = self.mesh.ep
        hot = np.minimum(factors(self.faults, "hot-expert", step, ranks), 1000 * size)
        members = self.mesh.members("ep")[ranks]
        every = np.minimum(factors(self.faults, "hot-expert", step, np.arange(self.mesh.world_size)), 1000 * size)[
            members
        ]
        surplus = (every - 1000).sum(axis=1)
        cold = np.maximum((every == 1000).sum(axis=1), 1)
        return np.where(hot == 1000, np.maximum(1000 - surplus // cold, 0), hot)

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch."""
        return self.seq_len * self.micro_batch

    @property
    def tokens_per_step(self) -> int:
        """Tokens of the whole job in one step."""
        return self.tokens * self.micro_batches * self.mesh.dp * self.mesh.fsdp

    @cached_property
    def clocks(self) -> tuple[Ints, Ints]:
        """Offset (ns) and drift (1e-9) of each host's clock."""
        bits = draw(self.seed, [hash_key("clock offset"), hash_key("clock drift")], np.arange(self.num_hosts))
        spread = pick(bits, 0)
        return (
            between(spread[0], -self.clock_offset_ns, self.clock_offset_ns + 1),
            between(spread[1], -self.clock_drift_ppb, self.clock_drift_ppb + 1),
        )

    def to_local(self, times: Ints, rank: int) -> Ints:
        """Map true times (ns since the start) to what the clock of a rank's host shows (Unix epoch ns)."""
        offset, drift = (int(values[self.host_of[rank]]) for values in self.clocks)
        return times + times * drift // 1_000_000_000 + (EPOCH_NS + START_NS + offset)
