"""Does compute time follow the tokens that a rank was given?

    token_imbalance(view, steps, records)   -> Imbalance     sequence lengths, from recorded step tokens
    expert_imbalance(view, steps)           -> Imbalance     experts, from what all-to-alls carried

Both ask the same question of pairs (load, compute) by rank and step: inside a step, among ranks of one role, does
the rank with more load compute longer? Means of role and step are taken out first, so that neither a long step nor a
heavy pipeline stage counts. The statistic is Pearson's r of what is left with its 95 % interval (Fisher).
`cost_ns` is what the slope (ns per unit) makes of the heaviest rank's surplus over the mean, summed over steps: the
time that an even distribution would give back to a step that ends together.

The verdict is `load` if the interval lies above R_CLEAR, `no` if there is no such relation, `even` if the load does
not vary, `too few` below MIN_PAIRS pairs, and `not recorded`. Nothing is guessed from durations alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.intervals import Ints
from perfkit.analysis.layout import View
from perfkit.analysis.pipeline_work import is_one_of
from perfkit.analysis.schedules import Floats
from perfkit.analysis.timeline import ints

R_CLEAR = 0.5
"""The lower end of the interval must lie above this."""
MIN_PAIRS = 6
EVEN_RATIO = 1e-3
"""A load that varies less than this around its mean is even."""


@dataclass(frozen=True)
class Imbalance:
    """Whether load explains compute."""

    what: str
    """`sequence length` or `experts`."""
    verdict: str
    """load, no, even, too few, not recorded."""
    pairs: int = 0
    """(rank, step) pairs that were compared."""
    r: float | None = None
    r_low: float | None = None
    r_high: float | None = None
    load_ratio: float | None = None
    """Heaviest rank over the mean, median of the steps."""
    compute_ratio: float | None = None
    cost_ns: int | None = None
    worst_rank: int | None = None
    """The rank that most often has the heaviest load."""
    unit: str = "token"

    @property
    def evidence(self) -> dict[str, object]:
        """What a finding shows."""
        names = ("verdict", "pairs", "r", "r_low", "r_high", "load_ratio", "compute_ratio", "cost_ns", "worst_rank")
        return {name: getattr(self, name) for name in names}

    @property
    def sentence(self) -> str:
        """One sentence."""
        if self.verdict == "not recorded":
            how = "pk.step(tokens=…) records them" if self.unit == "token" else "all-to-alls on expert groups"
            return f"imbalance of {self.what}: not recorded ({how})"
        if self.verdict in ("even", "too few"):
            return f"imbalance of {self.what}: {'none' if self.verdict == 'even' else 'too few pairs to tell'}"
        assert self.r is not None
        tail = f"r = {self.r:.2f} ({self.r_low:.2f} to {self.r_high:.2f}) over {self.pairs} rank-steps"
        if self.verdict == "no":
            return f"compute time does not follow {self.what}: {tail}"
        return (
            f"compute time follows {self.what}: {tail}; the heaviest rank has {self.load_ratio:.2f} times the mean "
            f"load and computes {self.compute_ratio:.2f} times as long"
        )


def token_imbalance(view: View, steps: pa.Table, records: pa.Table | None) -> Imbalance:
    """Correlate compute with recorded tokens; `steps` are of `attribution`, `records` of the steps table."""
    what = "sequence length"
    if records is None or not len(records) or records["tokens"].null_count == len(records):
        return Imbalance(what, "not recorded")
    known = records.filter(pc.is_valid(records["tokens"]))
    load = dict(zip(_pairs(known), ints(known["tokens"]).tolist(), strict=True))
    return _correlate(what, "token", view, steps, load)


def expert_imbalance(view: View, steps: pa.Table) -> Imbalance:
    """Correlate compute with the bytes that all-to-alls of expert groups brought to a rank and took from it.

    A dispatch brings tokens and the combine takes as many back; a rank's own tokens are the same for all, so the sum
    grows with what its experts were given.
    """
    what, layout = "experts", view.layout
    roles = [*(role == "ep" for role in layout.roles), False] if layout is not None else [False]
    gid = ints(view.members["gid"])
    of_experts = np.array(roles)[np.clip(gid, -1, len(roles) - 1)] & is_one_of(view.calls["op"], ("all_to_all",))
    calls = view.calls.filter(pa.array(of_experts & np.asarray(pc.is_valid(view.calls["step"]))))
    sizes = pc.add(calls["in_bytes"], calls["out_bytes"])
    if not len(calls) or sizes.null_count:
        return Imbalance(what, "not recorded", unit="byte")
    load: dict[tuple[int, int], int] = {}
    for pair, size in zip(_pairs(calls), ints(sizes).tolist(), strict=True):
        load[pair] = load.get(pair, 0) + size
    return _correlate(what, "byte", view, steps, load)


def _pairs(table: pa.Table) -> list[tuple[int, int]]:
    return list(zip(ints(table["rank"]).tolist(), ints(table["step"]).tolist(), strict=True))


def _correlate(what: str, unit: str, view: View, steps: pa.Table, load: dict[tuple[int, int], int]) -> Imbalance:
    compute: dict[tuple[int, int], int] = {}
    for pair, ns in zip(_pairs(steps), ints(steps["compute_ns"], 0).tolist(), strict=True):
        compute[pair] = compute.get(pair, 0) + ns
    pairs = sorted(set(load) & set(compute))
    role_of = view.layout.role_of if view.layout is not None else {}
    roles = {role: i for i, role in enumerate(dict.fromkeys(role_of.get(rank) for rank, _ in pairs))}
    cell = np.array([(roles[role_of.get(rank)], step) for rank, step in pairs], np.int64).reshape(-1, 2)
    x, y = (np.array([table[pair] for pair in pairs], np.float64) for table in (load, compute))
    cells, group = np.unique(cell, axis=0, return_inverse=True)
    group = group.ravel()
    number = np.bincount(group, minlength=len(cells))
    compared = number[group] > 1
    x, y, group, ranks = x[compared], y[compared], group[compared], np.array([r for r, _ in pairs])[compared]
    if len(x) < MIN_PAIRS:
        return Imbalance(what, "too few", len(x), unit=unit)
    means = [np.bincount(group, values, len(cells)) / np.maximum(number, 1) for values in (x, y)]
    dx, dy = x - means[0][group], y - means[1][group]
    found = _heaviest(x, y, means, group, ranks)
    if np.abs(dx).max() <= EVEN_RATIO * x.mean():
        return Imbalance(what, "even", len(x), load_ratio=found[0], compute_ratio=found[1], unit=unit)
    spread = math.sqrt(float((dx**2).sum() * (dy**2).sum()))
    r = float((dx * dy).sum()) / spread if spread > 0 else 0.0
    low, high = _interval(r, len(x) - len(np.unique(group)) + 1)
    slope = float((dx * dy).sum() / (dx**2).sum())
    verdict = "load" if low > R_CLEAR else "no"
    surplus = np.zeros(len(cells))
    np.maximum.at(surplus, group, dx)
    cost = round(max(slope, 0.0) * float(surplus.sum())) if verdict == "load" else None
    return Imbalance(what, verdict, len(x), r, low, high, *found[:2], cost, found[2], unit)


def _heaviest(x: Floats, y: Floats, means: list[Floats], group: Ints, ranks: Ints) -> tuple[float, float, int]:
    """Return load and compute of a step's heaviest rank over the step's mean, and who that most often is."""
    order = np.lexsort((-x, group))
    first = order[np.append(True, group[order][1:] != group[order][:-1])]
    load, compute = (v[first] / np.maximum(m[group[first]], 1) for v, m in ((x, means[0]), (y, means[1])))
    who, count = np.unique(ranks[first], return_counts=True)
    return float(np.median(load)), float(np.median(compute)), int(who[np.argmax(count)])


def _interval(r: float, degrees: int) -> tuple[float, float]:
    """Return the 95 % interval of a correlation over so many independent pairs."""
    if degrees <= 3:
        return -1.0, 1.0
    z, half = math.atanh(min(max(r, -0.999999), 0.999999)), 1.96 / math.sqrt(degrees - 3)
    return math.tanh(z - half), math.tanh(z + half)
