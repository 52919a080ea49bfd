"""The fleet that is simulated: clusters, nodes with their faults, and the runs that people submit.

    world = World.build(FleetOptions(clusters=3, days=365, runs=2000, seed=1))

Node faults follow what is published: about 5 failures per 1,000 node-days (Llama 3: 3.8; Meta's research clusters:
2.3 and 6.5), a few nodes that fail far more often, a few that are slow. Who they are is the truth to be found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfkit.analysis.intervals import Ints
from perfkit.errors import UsageError
from perfkit.hardware.lookup import resolve_peak
from perfkit.simulate.fleet_random import Dice

SECOND = 10**9
HOUR = 3600 * SECOND
DAY = 24 * HOUR
GPUS_PER_NODE = 8
FAILURES_PER_NODE_DAY = 0.005
FLAKY_FACTOR = 20.0
SLOW_SHARE, FLAKY_SHARE = 0.015, 0.01

CLUSTERS = (
    ("atlas", "NVIDIA H100 80GB HBM3", 0.60), ("borealis", "NVIDIA A100-SXM4-80GB", 0.78),
    ("cinder", "NVIDIA H200", 0.62), ("dune", "NVIDIA B200", 0.55), ("ember", "NVIDIA L40S", 0.40),
)  # fmt: skip
"""Name, device, share of GPU-time that is asked for."""
MODELS = (
    ("llama3-8b", 8.03e9, 0.44), ("llama3-70b", 70.6e9, 0.41), ("mixtral-8x7b", 12.9e9, 0.31),
    ("qwen2.5-7b", 7.6e9, 0.43), ("vit-22b", 21.7e9, 0.47), ("dlrm-dcn", 1.2e9, 0.12),
)  # fmt: skip
"""Name, active parameters, usual MFU."""
USERS = ("aino", "bo", "chidi", "dana", "emre", "farah", "goro", "hana", "ines", "jonas", "kofi", "lena")


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """What to simulate."""

    clusters: int = 3
    days: int = 365
    runs: int = 2000
    ranks: int = 4096
    """Of the largest run."""
    seed: int = 0
    end_ns: int = 1_767_225_600 * SECOND
    """When the history ends: 1 January 2026, 00:00 UTC."""

    def __post_init__(self) -> None:
        limits = {"clusters": (1, 50), "days": (2, 3650), "runs": (1, 1_000_000), "ranks": (8, 100_000)}
        for name, (low, high) in limits.items():
            if not low <= getattr(self, name) <= high:
                raise UsageError(f"--{name} must be {low} to {high}, is {getattr(self, name)}")
        if self.ranks % GPUS_PER_NODE:
            raise UsageError(f"--ranks must be a multiple of {GPUS_PER_NODE}, is {self.ranks}")

    @property
    def start_ns(self) -> int:
        """When the history begins."""
        return self.end_ns - self.days * DAY


@dataclass
class Cluster:
    """A cluster and what is wrong with its nodes."""

    index: int
    name: str
    device: str
    peak_flops: float
    nodes: int
    load: float
    slow: dict[int, tuple[float, int, int]] = field(default_factory=dict)
    """Node -> (how much slower, since when, device that throttles)."""
    flaky: set[int] = field(default_factory=set)

    def node_name(self, node: int) -> str:
        """Name of a node."""
        return f"{self.name}-n{node:04d}"

    def slowdown(self, nodes: Ints, at: int) -> Any:
        """How slow each node is, 1 being normal."""
        return np.array([self._slowdown(int(n), at) for n in nodes])

    def _slowdown(self, node: int, at: int) -> float:
        factor, since, _ = self.slow.get(node, (1.0, 0, 0))
        return factor if at >= since else 1.0


@dataclass(kw_only=True)
class Spec:
    """A run as submitted."""

    run: str
    name: str
    cluster: Cluster
    user: str
    model: str
    params: float
    nodes: int
    submit_ns: int
    step_ns: int
    block_steps: int
    """Steps of a block, the unit in which the simulator thinks: about ten minutes."""
    blocks: int
    """Blocks until it is done."""
    save_blocks: int
    """Blocks between checkpoints."""
    save_ns: int
    restore_ns: int
    init_ns: int
    compile_ns: int
    eval_blocks: int
    eval_ns: int
    stall_share: float
    """Share of blocks that wait for data."""
    mfu: float
    fate: str = "completed"
    """`completed`, or why it will fail by itself."""
    fate_at: float = 1.0
    """Share of the work after which it fails by itself."""
    reserved: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of the run."""
        return self.nodes * GPUS_PER_NODE

    @property
    def tokens_per_step(self) -> int:
        """Tokens of the job in a step, from MFU and step time."""
        flops = self.mfu * self.cluster.peak_flops * self.gpus * self.step_ns / 1e9
        return max(1024, round(flops / (6 * self.params) / 1024) * 1024)

    @property
    def flops_per_step(self) -> float:
        """Model FLOPs of the job in a step, at 6 per parameter and token."""
        return 6 * self.params * self.tokens_per_step


@dataclass
class World:
    """Everything that is given before time starts."""

    options: FleetOptions
    dice: Dice
    clusters: list[Cluster]
    specs: list[Spec]

    @classmethod
    def build(cls, options: FleetOptions) -> World:
        """Make clusters, lemons and submissions."""
        dice = Dice(options.seed)
        clusters = [_cluster(i, options, dice) for i in range(options.clusters)]
        size = [c.nodes**0.5 for c in clusters]
        where = [int(dice.choose(range(len(clusters)), "where", i, weights=size)) for i in range(options.runs - 1)]
        specs = [_giant(clusters[0], options, dice)]
        for cluster in clusters:
            specs += _submissions(cluster, [i for i, c in enumerate(where) if c == cluster.index], options, dice)
        return cls(options, dice, clusters, specs)


def _cluster(index: int, options: FleetOptions, dice: Dice) -> Cluster:
    name, device, load = CLUSTERS[index % len(CLUSTERS)]
    peak = resolve_peak(device, "bf16").flops
    if index >= len(CLUSTERS):
        name = f"{name}{index // len(CLUSTERS) + 1}"
    largest = options.ranks // GPUS_PER_NODE
    nodes = math.ceil(largest * 1.125) if index == 0 else max(8, largest >> min(1 + index, 6))
    cluster = Cluster(index, name, device, peak, nodes, load)
    order = dice.order(nodes, name, "faulty")
    num_slow, num_flaky = max(1, round(SLOW_SHARE * nodes)), max(1, round(FLAKY_SHARE * nodes))
    for node in order[:num_slow].tolist():
        since = options.start_ns + int(dice.between(0.0, 0.5, name, "since", node) * options.days * DAY)
        cluster.slow[node] = (round(dice.between(1.08, 1.35, name, "slow", node), 3), since, node % GPUS_PER_NODE)
    cluster.flaky = set(order[num_slow : num_slow + num_flaky].tolist())
    return cluster


def _submissions(cluster: Cluster, numbers: list[int], options: FleetOptions, dice: Dice) -> list[Spec]:
    """Return runs of one cluster; their lengths are scaled so that together they ask for the cluster's load."""
    sizes = [2**k for k in range(12) if 2**k <= max(1, cluster.nodes // 4)]
    weights = [1.0 + 0.35 * k for k in range(len(sizes))]
    drawn = []
    for i in numbers:
        nodes = int(dice.choose(sizes, "nodes", i, weights=weights))
        hours = min(20 * 24.0, 30.0 * math.exp(1.1 * float(dice.normal("hours", i)[0])))
        drawn.append((i, nodes, hours))
    asked = sum(nodes * hours for _, nodes, hours in drawn)
    scale = cluster.load * cluster.nodes * options.days * 24 / asked if asked else 1.0
    longest = options.days * 24 / 4
    specs = []
    for i, nodes, hours in drawn:
        submit = options.start_ns + int(dice.uniform("submit", i)[0] * options.days * DAY)
        specs.append(_spec(f"run-{i:05d}", i, cluster, nodes, min(hours * scale, longest, 30 * 24.0), submit, dice))
    return specs


def _spec(run: str, i: object, cluster: Cluster, nodes: int, hours: float, submit: int, dice: Dice) -> Spec:
    model, params, mfu = dice.choose(MODELS, "model", i)
    step_ns = round(dice.between(2.0, 18.0, "step", i) * 1000) * (SECOND // 1000)
    block_steps = max(2, round(600 * SECOND / step_ns))
    fails = dice.chance(0.16, "fails", i)
    fate = dice.choose(("application", "out_of_memory", "software", "user"), "fate", i, weights=(5, 2, 2, 3))
    penalty = 0.012 * math.log2(nodes)
    return Spec(
        run=run,
        name=f"{model}-{dice.choose(('pretrain', 'sft', 'ablate', 'long'), 'kind', i)}-{nodes * GPUS_PER_NODE}",
        cluster=cluster,
        user=dice.choose(USERS, "user", i, weights=[1 / (k + 1) for k in range(len(USERS))]),
        model=model,
        params=params,
        nodes=nodes,
        submit_ns=submit,
        step_ns=step_ns,
        block_steps=block_steps,
        blocks=max(1, round(hours * HOUR / (block_steps * step_ns))),
        save_blocks=int(dice.choose((2, 3, 6, 12), "save", i, weights=(2, 4, 3, 1))),
        save_ns=int(dice.between(4, 45, "save_s", i) * SECOND),
        restore_ns=int(dice.between(20, 150, "load_s", i) * SECOND),
        init_ns=int((40 + 14 * math.log2(nodes + 1)) * dice.between(0.8, 2.0, "init", i) * SECOND),
        compile_ns=int(dice.choose((0, 45, 120), "compile", i) * SECOND),
        eval_blocks=int(dice.choose((0, 24, 48), "eval", i)),
        eval_ns=int(dice.between(60, 400, "eval_s", i) * SECOND),
        stall_share=float(dice.choose((0.0, 0.02, 0.4), "stall", i, weights=(6, 3, 1))),
        mfu=max(0.03, mfu * (0.42 / 0.44 if "A100" in cluster.device else 1.0) - penalty)
        * dice.between(0.8, 1.08, "mfu", i),
        fate=fate if fails else "completed",
        fate_at=dice.between(0.01, 0.9, "fate_at", i),
    )


def _giant(cluster: Cluster, options: FleetOptions, dice: Dice) -> Spec:
    """Return the largest run: it has a reservation, and lasts for 54 days if the history does."""
    nodes = options.ranks // GPUS_PER_NODE
    hours = 24.0 * min(54.0, options.days * 0.3)
    submit = options.end_ns - int((hours * 1.25 + 24 * min(3.0, options.days / 10)) * HOUR)
    spec = _spec(f"giant-{options.ranks}", "giant", cluster, nodes, hours, submit, dice)
    spec.name, spec.model, spec.params, spec.user = (
        f"llama3-405b-pretrain-{options.ranks}",
        "llama3-405b",
        405.9e9,
        "lena",
    )
    spec.step_ns, spec.block_steps, spec.save_blocks = 12 * SECOND, 50, 3
    spec.blocks = max(1, round(hours * HOUR / (spec.block_steps * spec.step_ns)))
    spec.save_ns, spec.restore_ns, spec.compile_ns = 14 * SECOND, 95 * SECOND, 120 * SECOND
    spec.init_ns, spec.stall_share, spec.mfu, spec.fate = 280 * SECOND, 0.02, 0.405, "completed"
    spec.eval_blocks, spec.reserved = 0, True
    return spec
