"""How often to checkpoint, and what share of the time will be training: Young, Daly, and an ETTR estimate.

    plan(Risk(mttf_s=3.09 * 3600, save_s=30, restart_s=600)) -> intervals and what each gives

Derivation of `expected_ettr`. A run needs R seconds of training. It saves every t (cost w), so R costs R·(1 + w/t).
Failures come at rate λ = 1/MTTF while it holds its GPUs, for T seconds in all. Each costs the restart u and, on
average, half an interval of lost work; the first start costs u as well:

    T = R·(1 + w/t) + u + λ·T·(u + t/2)        =>   T = (R·(1 + w/t) + u) / (1 − λ·(u + t/2))

Each start waits q in the queue, and there are 1 + λ·T of them. ETTR = R / (T + q·(1 + λ·T)). For a long run without
queues this is (1 − λ(u + t/2)) / (1 + w/t): exactly the expected ETTR of Kokolis et al., "Revisiting Reliability in
Large-Scale Machine Learning Research Clusters" (arXiv:2410.21680v2, HPCA 2025), with λ = nodes × failures per node and
time. With queues and w = 0 it is (1 − λ(u + t/2)) / (1 + (u + q)/R + λq) to first order, the form of its version 1.

Young (1974): t = √(2wM). Daly (2006) adds the next terms of the expansion; both say how long to train between saves.
`best_interval_s` minimises the loss of the model above, restart included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from perfkit.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Risk:
    """What a run has to live with; seconds."""

    mttf_s: float
    """Mean time between failures of the whole run."""
    save_s: float
    """Training stands still for this long at each checkpoint."""
    restart_s: float
    """From the failure to the first new step: detection, restart, load."""
    queue_s: float = 0.0
    """Wait for GPUs at each start."""
    train_s: float = math.inf
    """Training that the run needs; infinite: the first start does not matter."""

    def __post_init__(self) -> None:
        for name in ("mttf_s", "train_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} must be more than 0, is {getattr(self, name)}")
        for name in ("save_s", "restart_s", "queue_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} must be 0 or more, is {getattr(self, name)}")


def mttf_of_run(nodes: float, failures_per_1000_node_days: float) -> float:
    """Seconds between failures of a run on `nodes` nodes."""
    rate = nodes * failures_per_1000_node_days / 1000 / 86400
    if rate <= 0:
        raise UsageError("nodes and failure rate must be more than 0")
    return 1 / rate


def young_interval_s(mttf_s: float, save_s: float) -> float:
    """Training between two saves, first order."""
    return math.sqrt(2 * save_s * mttf_s)


def daly_interval_s(mttf_s: float, save_s: float) -> float:
    """Training between two saves, higher order; as long as the MTTF if saving takes twice that or more."""
    if save_s >= 2 * mttf_s:
        return mttf_s
    x = math.sqrt(save_s / (2 * mttf_s))
    return math.sqrt(2 * save_s * mttf_s) * (1 + x / 3 + x * x / 9) - save_s


def expected_ettr(risk: Risk, interval_s: float) -> float:
    """Share of the time from eligible to end that is training; 0 if the run would never end."""
    rate = 1 / risk.mttf_s
    left = 1 - rate * (risk.restart_s + interval_s / 2)
    if left <= 0 or interval_s <= 0:
        return 0.0
    saves = 1 + risk.save_s / interval_s
    once = 0.0 if math.isinf(risk.train_s) else 1 / risk.train_s
    held = (saves + risk.restart_s * once) / left
    return 1 / (held + risk.queue_s * (once + rate * held))


def best_interval_s(risk: Risk) -> float:
    """Interval with the largest expected ETTR; it has one maximum, which golden-section search finds."""
    low, high = max(risk.save_s / 1000, 1e-3), max(2 * (risk.mttf_s - risk.restart_s), 1e-2)
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(200):
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        if expected_ettr(risk, a) < expected_ettr(risk, b):
            low = a
        else:
            high = b
    return (low + high) / 2


def plan(risk: Risk, *, current_interval_s: float | None = None) -> dict[str, Any]:
    """Compare checkpoint intervals."""
    candidates = {
        "young": young_interval_s(risk.mttf_s, risk.save_s),
        "daly": daly_interval_s(risk.mttf_s, risk.save_s),
        "best": best_interval_s(risk),
    }
    if current_interval_s:
        candidates["current"] = current_interval_s
    return {
        "mttf_hours": risk.mttf_s / 3600,
        "save_seconds": risk.save_s,
        "restart_seconds": risk.restart_s,
        "queue_seconds": risk.queue_s,
        "train_hours": None if math.isinf(risk.train_s) else risk.train_s / 3600,
        "intervals": {
            name: {"interval_seconds": t, "expected_ettr": expected_ettr(risk, t)} for name, t in candidates.items()
        },
    }
