"""Rules about the ranks together: stragglers, slow links, skewed all-to-all, stage imbalance, bubbles, uneven load.

Each takes Facts whose `job` is what perfkit.analysis.job and its neighbours found; without a job there is nothing to
say. Points are what the job could get back, not the sum of what others waited.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from perfkit.analysis.facts import Facts
from perfkit.analysis.findings_types import MAX_EVIDENCE, Finding, ms
from perfkit.analysis.timeline import ints

if TYPE_CHECKING:
    from perfkit.analysis.job_results import JobResults

STRAGGLER_POINTS, LINK_POINTS, A2A_POINTS, STAGE_POINTS, BUBBLE_POINTS, LOAD_POINTS = 1.5, 1.0, 1.0, 1.0, 2.0, 1.0
"""Below this a finding is not worth a reader's time."""
PERSISTENCE = 0.5
"""A culprit must have caused most of the waiting in more than this share of the steps."""
AHEAD = 1.5
"""A culprit must be ahead of the next by this factor, in what fixing it would bring."""
SLOW_LINK = 0.7
"""A group below this share of its peers' bandwidth has a slow link."""
LINK_BYTES = 2**20
"""Messages below this measure latency, not a link."""
UNEVEN = 1.25
"""Heaviest member of an all-to-all over the mean."""
_ADVICE = {
    "compute": "its kernels are slow: check clocks, power cap and temperature of that GPU, then dcgmi diag -r 3",
    "host: data_loader": "its data loader answers late: look at that host's storage, workers and CPU",
    "host: checkpoint": "it saves while the others train: save asynchronously, or on all ranks at once",
    "host: allocator": "its allocator runs dry: compare its memory with the others' and leave more of it free",
    "host: gc": "Python collects garbage there: call gc.freeze() and collect on all ranks in the same step",
}
"""By the cause that perfkit.analysis.stragglers found."""
_ON_HOST = "it computes longer: look at what else runs on its cores, at their clock, and at its share of the work"
"""Compute without a device."""
_BECAUSE = {
    "compute": "slow_rank", "host: data_loader": "data_bound", "host: checkpoint": "checkpoint_stall",
    "host: allocator": "allocator_churn", "host: sync": "sync_points",
}  # fmt: skip
"""The finding that says why, by the same causes."""
_MAKES_LATE = frozenset(
    {
        *_BECAUSE.values(), "host_bound", "stream_waits", "slow_launches", "pageable_copies", "exposed_copies",
        "stage_imbalance", "expert_imbalance", "sequence_imbalance", "skewed_all_to_all",
    }
)  # fmt: skip
"""What a single rank can do more of than its peers, so that they wait for it."""


def culprit(job: JobResults, points: Callable[[float], float], num_devices: int) -> dict[str, Any] | None:
    """Return the rank that holds the others up, if one clearly does: worth it, persistent, and ahead of the rest."""
    rows: list[dict[str, Any]] = job.view.blame.ranks.to_pylist()
    rows.sort(key=lambda r: -r["recoverable_ns"])
    if len(rows) < 2 or not rows[0]["recoverable_ns"]:
        return None
    first, second = rows[0], rows[1]
    if points(first["recoverable_ns"] * num_devices) < STRAGGLER_POINTS:
        return None
    if (first["persistence"] or 0) <= PERSISTENCE or first["recoverable_ns"] < AHEAD * second["recoverable_ns"]:
        return None
    return first


def straggler(facts: Facts) -> Finding | None:
    """Report the rank that the others wait for."""
    job = facts.job
    found = culprit(job, facts.points, facts.num_devices) if job is not None else None
    if job is None or found is None:
        return None
    rank = found["rank"]
    scores = {row["rank"]: row for row in job.stragglers.to_pylist()}
    score = scores.get(rank, {})
    cause = str(score.get("cause") or "")
    points = facts.points(found["recoverable_ns"] * facts.num_devices)
    where = job.view.hosts.get(rank)
    steps = found["steps"]
    often = "in the one step traced" if steps == 1 else f"most in {found['steps_first']} of {steps} steps"
    return Finding(
        "straggler",
        f"Rank {rank} holds the others up: they waited {_gpu_time(found['wait_caused_ns'])} for it, {often}",
        points,
        (_ON_HOST if cause == "compute" and not facts.has_device else _ADVICE.get(cause))
        or "compare what its host does before a late collective with the same step on another rank",
        {
            "rank": rank, "host": where, "role": score.get("role"), "cause": score.get("sentence") or cause or None,
            "score": score.get("score"), "wait_caused_ms": ms(found["wait_caused_ns"]),
            "gain_ms_per_step": ms(found["recoverable_ns"] / max(steps, 1)), "steps_first": found["steps_first"],
            "steps": steps, "clock_uncertainty_us": None if job.view.clock.u_ns is None else job.view.clock.u_ns / 1e3,
        },
        cause=False, because=_BECAUSE.get(cause) or ("host_bound" if cause.startswith("host") else None),
        explained_by=_MAKES_LATE,
    )  # fmt: skip


def slow_link(facts: Facts) -> Finding | None:
    """Report a group that moves data much slower than groups of the same role."""
    job = facts.job
    if job is None or not len(job.view.instances):
        return None
    view = job.view
    rows = view.instances
    bus = rows["busbw_gbps"].to_numpy(zero_copy_only=False).astype(np.float64)
    usable = ~np.isnan(bus) & (ints(rows["bytes"]) >= LINK_BYTES)
    if not usable.any():
        return None
    gid = ints(rows["gid"])
    roles = [*view.groups["role"].to_pylist(), None]
    op = rows["op"].cast("string").to_pylist()
    size = ints(rows["bytes"])
    kinds: dict[tuple[Any, ...], dict[int, list[float]]] = {}
    for i in np.flatnonzero(usable).tolist():
        kind = roles[gid[i]], op[i], int(size[i]).bit_length()
        kinds.setdefault(kind, {}).setdefault(int(gid[i]), []).append(float(bus[i]))
    ratios: dict[int, list[tuple[float, float, float]]] = {}
    for groups in kinds.values():
        if len(groups) < 2:
            continue
        medians = {g: float(np.median(values)) for g, values in groups.items()}
        for g, value in medians.items():
            others = float(np.median([v for other, v in medians.items() if other != g]))
            ratios.setdefault(g, []).append((value / others, value, others))
    slow = {g: min(found) for g, found in ratios.items() if min(found)[0] < SLOW_LINK}
    if not slow:
        return None
    transfer = ints(view.members["exposed_transfer_ns"])
    member_gid = ints(view.members["gid"])
    lost = {g: float(transfer[member_gid == g].sum()) * (1 - slow[g][0]) for g in slow}
    points = facts.points(sum(lost.values()))
    if points < LINK_POINTS:
        return None
    worst = max(slow, key=lambda g: lost[g])
    ranks = view.groups["ranks"].to_pylist()
    shared = set.intersection(*(set(ranks[g] or ()) for g in slow)) if len(slow) > 1 else set()
    who = f"rank {min(shared)}" if len(shared) == 1 else f"ranks {ranks[worst]}" if ranks[worst] else "one group"
    return Finding(
        "slow_link",
        f"The link of {who} is slow: {roles[worst] or 'its group'} moves {slow[worst][1]:.3g} GB/s (bus), "
        f"others {slow[worst][2]:.3g}",
        points,
        "run nccl-tests between these ranks and others; check NVLink and NIC error counters, PCIe width and NCCL_TOPO",
        {
            "groups": [
                {"role": roles[g], "ranks": ranks[g], "busbw_gbps": slow[g][1], "peers_gbps": slow[g][2],
                 "lost_gpu_ms": ms(lost[g])}
                for g in sorted(slow, key=lambda g: -lost[g])[:MAX_EVIDENCE]
            ],
        },
    )  # fmt: skip


def skewed_all_to_all(facts: Facts) -> Finding | None:
    """Report all-to-alls whose members carry uneven loads, or that mostly wait."""
    job = facts.job
    if job is None:
        return None
    rows = [r for r in job.collectives if r["op"] == "all_to_all"]
    bad = [r for r in rows if (r["imbalance"] or 1) >= UNEVEN or (r["class"] == "skew" and r["exposed_wait_ns"])]
    waited = sum(r["exposed_wait_ns"] or 0 for r in bad)
    loaded = sum((r["exposed_transfer_ns"] or 0) * (1 - 1 / (r["imbalance"] or 1)) for r in bad)
    if facts.points(waited + loaded) < A2A_POINTS:
        return None
    worst = max(bad, key=lambda r: (r["exposed_wait_ns"] or 0) + (r["exposed_transfer_ns"] or 0))
    uneven = (worst["imbalance"] or 1) >= UNEVEN
    slow = uneven and loaded >= waited  # what a rank sends makes the transfer longer, not the others' arrival later
    why = [] if slow else ["it is mostly waiting"]
    why += [f"its heaviest rank carries {worst['imbalance']:.2f} times the mean"] if uneven else []
    advice = [] if slow else ["its ranks arrive at different times: look at what they do before it, and balance that"]
    advice += ["balance what the ranks send: experts (capacity factor, auxiliary loss) or embedding shards (planner)"]
    return Finding(
        "skewed_all_to_all",
        f"The all-to-all of {worst['group']} is skewed: {', and '.join(why)}",
        facts.points(waited + loaded),
        "; ".join(advice if uneven else advice[:1]),
        {
            "all_to_all": [
                {"group": r["group"], "count": r["count"], "imbalance": r["imbalance"],
                 "exposed_wait_ms": ms(r["exposed_wait_ns"] or 0),
                 "exposed_transfer_ms": ms(r["exposed_transfer_ns"] or 0)}
                for r in bad[:MAX_EVIDENCE]
            ],
        },
        cause=slow,
    )  # fmt: skip


def stage_imbalance(facts: Facts) -> Finding | None:
    """Report pipeline stages that take unequally long."""
    bubbles = facts.job.bubbles if facts.job is not None else None
    lost = pc.sum(bubbles.ranks["imbalance_ns"]).as_py() if bubbles is not None else None
    if bubbles is None or not lost or facts.points(lost) < STAGE_POINTS:
        return None
    stages = [row for row in bubbles.stages.to_pylist() if row["pass_ns"]]
    slowest = max(stages, key=lambda r: r["pass_ns"], default=None)
    if slowest is None:
        return None
    mean = sum(r["pass_ns"] for r in stages) / len(stages)
    return Finding(
        "stage_imbalance",
        f"Pipeline stage {slowest['stage']} takes {slowest['pass_ns'] / mean:.2f} times the mean of the stages",
        facts.points(lost),
        "move layers away from it (embedding and loss count as layers), or give it fewer chunks",
        {"stages": [{"stage": r["stage"], "pass_ms": ms(r["pass_ns"]), "bubble_ratio": r["ratio"]} for r in stages]},
    )


def pipeline_bubble(facts: Facts) -> Finding | None:
    """Report a bubble that is larger than the schedule's own, or a schedule that costs much."""
    bubbles = facts.job.bubbles if facts.job is not None else None
    if bubbles is None or bubbles.ratio is None:
        return None
    total = pc.sum(bubbles.ranks["bubble_ns"]).as_py() or 0
    split = [pc.sum(bubbles.ranks[name]).as_py() for name in ("ideal_ns", "imbalance_ns")]
    beyond = total - sum(part or 0 for part in split)
    ideal = bubbles.ideal_ratio
    points = facts.points(total - (split[1] or 0 if stage_imbalance(facts) else 0))  # that is a finding of its own
    if points < 2 * BUBBLE_POINTS:
        return None
    large = ideal is not None and facts.points(beyond) >= BUBBLE_POINTS and bubbles.ratio > 1.25 * ideal
    title = f"The pipeline stands still {100 * bubbles.ratio:.0f} % of the time"
    if large and split[0] is not None:
        title += f"; its schedule explains {facts.points(split[0]):.0f} %"
    return Finding(
        "pipeline_bubble",
        title,
        facts.points(beyond) if large else points,
        "find what the late stage does (straggler, host, messages)" if large else
        "use more micro-batches, or an interleaved or zero-bubble schedule",
        bubbles.evidence,
    )  # fmt: skip


def uneven_load(facts: Facts) -> Finding | None:
    """Report compute that follows an uneven number of tokens."""
    job = facts.job
    found = [one for one in job.loads if one.verdict == "load" and one.cost_ns] if job is not None else []
    if not found:
        return None
    worst = max(found, key=lambda one: one.cost_ns or 0)
    points = facts.points(worst.cost_ns or 0)
    if points < LOAD_POINTS:
        return None
    experts = worst.what == "experts"
    return Finding(
        "expert_imbalance" if experts else "sequence_imbalance",
        f"Ranks have unequal loads: {worst.sentence}",
        points,
        "balance the experts (auxiliary loss, capacity factor, expert placement)" if experts else
        "pack or sort sequences so that the ranks of a step get equal work",
        worst.evidence,
    )  # fmt: skip


JOB_RULES = (straggler, slow_link, skewed_all_to_all, stage_imbalance, pipeline_bubble, uneven_load)


def _gpu_time(ns: float) -> str:
    """Say device time in the unit that suits it."""
    scale, unit = (3.6e12, "GPU-hours") if ns >= 1e12 else (1e9, "GPU-s") if ns >= 1e9 else (1e6, "GPU-ms")
    return f"{ns / scale:.3g} {unit}"
