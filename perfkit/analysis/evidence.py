"""Is the difference between two sides more than noise? Moving blocks of a series, runs of a side; no domain words.

    ratio(base, new)                   -> Estimate of typical(new)/typical(base) − 1
    difference(base, new, run_spread)  -> Estimate of mean(new) − mean(base)

A side is one series, or several: the runs of one job. The typical value of a series is the mean of its logarithms,
outliers drawn in to 3·1.4826·MAD around the median; the limit is the same for all series, or its own noise would look
like a change.

*One series a side.* Neighbouring values hang together (a slow disk, a warm GPU). The error of a mean is the larger of
two: that of blocks of a third of the series (the variance of the moving-block bootstrap, which for a mean is known in
closed form, so nothing is drawn; long blocks see slow drift), and that of single values times (1 + ρ)/(1 − ρ), where
neighbours correlate by ρ. Few values hide their correlation: ρ is corrected for that, drawn towards PRIOR, and taken at
the upper end of its own interval.

What differs between two runs of one job cannot be seen in one of each, by no statistic: a series whose level is off
looks like any other. RUN_SPREAD is assumed, which runs on a machine of their own keep. Where a series shows that its
machine is not like that, nothing is assumed, and there is no interval unless `run_spread` is given: if neighbours swing
together by more than SWING, beyond chance; or if a series stands still for longer than it moves. Values that scatter
independently or alternate (an optimizer that runs every other step) average out and are no such sign. `holds_to` is the
spread of runs up to which the sign of a change would stand.

*Several series on a side.* The run is the unit: the error is the spread of the runs of each side (Welch's test), or
that of the blocks if it is larger. Nothing is assumed.

The interval is Student's, with the degrees of freedom that are left. Fewer than MIN_VALUES values on a side: no
interval. `benchmarks/compare.py` prints false alarms and power.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

LEVEL = 0.05
RUN_SPREAD = 0.005
"""Standard deviation that is assumed between runs of the same job where only one of each is there."""
SWING = 10 * RUN_SPREAD
"""Standard deviation, shared by neighbours, above which that is not believed."""
SWING_LIMIT = math.log(2)
"""A value of more than twice the median counts as twice; narrower, the slower of two speeds would pass for outliers."""
STALLED, SPARED = 2.0, 0.05
"""Nor if the mean is so many times the median, the largest values (a compilation, checkpoints) left out."""
PRIOR, PRIOR_WEIGHT = 0.8, 24
"""Correlation of neighbours that is assumed, and how many values it takes to outweigh it."""
MAX_CORRELATION = 0.98
UPPER = 1.64
"""Standard errors by which a correlation is taken too high, or a swing too low: a one-sided interval of 95 %."""
BLOCKS = 3
MIN_VALUES = 12
"""With fewer, whether slow values come in clusters cannot be seen, and no interval would be honest and of use."""
CLIP_MADS, MIN_CLIP = 3 * 1.4826, 0.01
CALM_MADS = 2 * 1.4826

Floats = npt.NDArray[np.float64]
Side = Floats | Sequence[Floats]


@dataclass(frozen=True)
class Estimate:
    """A change and the interval in which it lies at the given level; None where it cannot be told."""

    change: float | None
    low: float | None
    high: float | None
    doubt: str = ""
    """Why there is no interval: "few" values; values that "swing" or "stall" where there is one series a side."""
    holds_to: float | None = None
    """One series a side: the largest spread of runs with which the interval still leaves out zero."""

    @property
    def sign(self) -> int:
        """1 or −1 if the interval leaves out zero, else 0."""
        if self.low is None or self.high is None:
            return 0
        return 1 if self.low > 0 else -1 if self.high < 0 else 0


NOTHING = Estimate(None, None, None)


def ratio(base: Side, new: Side, *, level: float = LEVEL, run_spread: float | None = None) -> Estimate:
    """Return the relative change of the typical value; `run_spread` is relative, None if it is not known."""
    sides = _logarithms(base, new)
    if sides is None:
        return NOTHING
    found = _estimate(sides, level, RUN_SPREAD if run_spread is None else run_spread)
    change, low, high = (None if v is None else math.expm1(v) for v in (found.change, found.low, found.high))
    doubt = found.doubt or (_unsteady(base, new) if run_spread is None else "")
    return replace(found, change=change, low=None if doubt else low, high=None if doubt else high, doubt=doubt)


def difference(base: Side, new: Side, *, level: float = LEVEL, run_spread: float = 0.0) -> Estimate:
    """Return the change of the mean; `run_spread` is in its unit."""
    sides = [_series(base), _series(new)]
    return _estimate(sides, level, run_spread) if all(sides) else NOTHING


def typical(base: Side, new: Side) -> tuple[float, float] | None:
    """Return the two values that `ratio` compares."""
    sides = _logarithms(base, new)
    if sides is None:
        return None
    first, second = (math.exp(float(np.mean([run.mean() for run in side]))) for side in sides)
    return first, second


def _series(side: Side) -> list[Floats]:
    """Return the series of a side, without what is no number and without those that are empty."""
    several = [side] if isinstance(side, np.ndarray) else side
    return [kept for run in several if len(kept := run[np.isfinite(run)])]


def _logarithms(base: Side, new: Side) -> list[list[Floats]] | None:
    """Return the logarithms of both sides with outliers drawn in; None where there are none."""
    sides = [_series(base), _series(new)]
    if not all(sides) or any((run <= 0).any() for side in sides for run in side):
        return None
    logs = [[np.log(run) for run in side] for side in sides]
    spreads = [np.median(np.abs(run - np.median(run))) for side in logs for run in side]
    reach = max(CLIP_MADS * float(np.mean(spreads)), MIN_CLIP)
    return [[np.clip(run, np.median(run) - reach, np.median(run) + reach) for run in side] for side in logs]


def _estimate(sides: list[list[Floats]], level: float, run_spread: float) -> Estimate:
    means = [np.array([run.mean() for run in side]) for side in sides]
    change = float(means[1].mean() - means[0].mean())
    if min(sum(map(len, side)) for side in sides) < MIN_VALUES:
        return Estimate(change, None, None, "few")
    rho = correlation(*(run for side in sides for run in side))
    errors = [(error / len(side) ** 2, free) for side in sides for error, free in (_error(run, rho) for run in side)]
    if max(map(len, sides)) > 1:
        reach = _reach(level, *max(_added(errors), _between(means)))
        return Estimate(change, change - reach, change + reach)

    def reach_with(spread: float) -> float:
        return _reach(level, *_added([*errors, (2 * spread**2, math.inf)]))

    reach = reach_with(run_spread)
    return Estimate(change, change - reach, change + reach, holds_to=_largest(reach_with, run_spread, abs(change)))


def _reach(level: float, variance: float, freedom: float) -> float:
    return student(1 - level / 2, freedom) * math.sqrt(variance)


def _largest(reach_with: Callable[[float], float], least: float, change: float) -> float | None:
    """Return the largest spread that leaves the reach below the change, by halving; None if even the least does not."""
    if reach_with(least) >= change:
        return None
    low, high = least, max(least, change)
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if reach_with(middle) < change else (low, middle)
    return low


def _unsteady(base: Side, new: Side) -> str:
    """Say why the spread of runs cannot be assumed for one series a side; "" if it can."""
    runs = [run for side in (base, new) for run in _series(side)]
    if len(runs) > 2:
        return ""
    if max(map(swing, runs)) > SWING:
        return "swing"
    return "stall" if any(map(_stalls, runs)) else ""


def swing(series: Floats) -> float:
    """Return the standard deviation that neighbours share, as far as it is beyond chance, relative to the values."""
    logs = np.log(series)
    centred = np.clip(logs - np.median(logs), -SWING_LIMIT, SWING_LIMIT)
    centred -= centred.mean()
    chance = UPPER * float(centred @ centred) / math.sqrt(len(series))
    return math.sqrt(max(float(centred[:-1] @ centred[1:]) - chance, 0.0) / len(series))


def _stalls(series: Floats) -> bool:
    usual = np.sort(series)[: math.ceil((1 - SPARED) * len(series))]
    return bool(usual.mean() > STALLED * np.median(series))


def _error(series: Floats, rho: float) -> tuple[float, float]:
    """Return the variance of a series' mean, and its degrees of freedom."""
    n = len(series)
    if n < 2:
        return 0.0, 1.0
    centred = series - series.mean()
    length = max(1, n // BLOCKS)
    sums = np.concatenate(([0.0], np.cumsum(centred)))
    block_means = (sums[length:] - sums[:-length]) / length
    blocks = float(np.mean(block_means**2)) * length / (n - length)  # the bootstrap's variance, its bias taken out
    inflation = (1 + rho) / (1 - rho)
    single = float(centred @ centred) / n / (n - 1) * inflation
    return max(blocks, single), max(min(1.5 * n / length, n / inflation) - 1, 1.0)  # 1.5: blocks overlap


def _between(means: list[Floats]) -> tuple[float, float]:
    """Return the variance of the change by the spread of runs; a side of one run is taken to spread like the other."""
    several = [one for one in means if len(one) > 1]
    spreads = [float(one.var(ddof=1)) for one in several]
    if len(several) == 1:
        return spreads[0] * (1 + 1 / len(several[0])), float(len(several[0]) - 1)
    return _added([(spread / len(one), len(one) - 1.0) for spread, one in zip(spreads, several, strict=True)])


def _added(parts: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the sum of variances, and its degrees of freedom by Welch and Satterthwaite."""
    variance = sum(one for one, _ in parts)
    doubt = sum(one**2 / freedom for one, freedom in parts)
    return variance, variance**2 / doubt if doubt else math.inf


def correlation(*several: Floats) -> float:
    """Return how much a value says about the next one, over all series together, taken high rather than low."""
    together, power, number = 0.0, 0.0, 0
    for series in several:
        centred = series - np.median(series)
        reach = CALM_MADS * float(np.median(np.abs(centred))) or math.inf
        centred = np.clip(centred, -reach, reach)  # one outlier would hide how the rest hang together
        centred -= centred.mean()
        together += float(centred[:-1] @ centred[1:])
        power += float(centred @ centred)
        number += len(series)
    if not power:
        return 0.0
    mean = number / len(several)
    found = (together / power * mean + 1) / max(mean - 4, 1)  # a short series looks less correlated than it is
    drawn = (number * min(max(found, 0.0), 1.0) + PRIOR_WEIGHT * PRIOR) / (number + PRIOR_WEIGHT)
    return min(drawn + UPPER * math.sqrt((1 - drawn**2) / (number + PRIOR_WEIGHT)), MAX_CORRELATION)


def student(probability: float, freedom: float) -> float:
    """Return a quantile of Student's t (Cornish-Fisher expansion; exact for 1 and 2 degrees of freedom)."""
    if freedom < 1.5:
        return math.tan(math.pi * (probability - 0.5))
    if freedom < 2.5:
        return (2 * probability - 1) * math.sqrt(2 / (1 - (2 * probability - 1) ** 2))
    z = NormalDist().inv_cdf(probability)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
