"""Is the difference between two series of steps more than noise? Moving-block bootstrap, no domain words.

    ratio(base, new)       -> Estimate of median(new)/median(base) − 1
    difference(base, new)  -> Estimate of mean(new) − mean(base)

Neighbouring values of a series hang together (a slow disk, a warm GPU), so resampling single values would promise too
much: blocks are drawn, as long as the series' own correlation asks for. A short series hides its correlation, and
blocks that are cut from it understate its spread. So the error is the larger of two: that of the blocks, and that of
single values times (1 + ρ)/(1 − ρ), where ρ is what neighbours of both series have in common, corrected for the bias of
short series and drawn towards PRIOR when there are few values. The interval is that of Student's t with as many degrees
of freedom as independent values are left. Fewer than MIN_VALUES values on either side: no interval.
`benchmarks/compare.py` measures what that gives: false alarms, and how many steps a slowdown of 3 % needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

LEVEL = 0.05
PRIOR, PRIOR_WEIGHT = 0.5, 16
"""Correlation of neighbours that is assumed, and how many values it takes to outweigh it."""
MAX_CORRELATION = 0.98
MOST_BLOCKS = 10
"""Few long blocks also see drift that correlation at small lags does not show; it costs little: t(18) is 2.1."""
MIN_VALUES = 4
DRAWS = 500
MAX_VALUES = 20_000
SEED = 20_261_116

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A change and the interval in which it lies at the given level; None where it cannot be told."""

    change: float | None
    low: float | None
    high: float | None

    @property
    def sign(self) -> int:
        """1 or −1 if the interval leaves out zero, else 0."""
        if self.low is None or self.high is None:
            return 0
        return 1 if self.low > 0 else -1 if self.high < 0 else 0


NOTHING = Estimate(None, None, None)


def ratio(base: Floats, new: Floats, *, level: float = LEVEL) -> Estimate:
    """Return the relative change of the median."""
    base, new = _clean(base), _clean(new)
    if not len(base) or not len(new) or np.median(base) <= 0 or np.median(new) <= 0:
        return NOTHING
    found = _estimate(base, new, lambda values: np.log(np.median(values, axis=-1)), level)
    return Estimate(*(None if value is None else math.expm1(value) for value in (found.change, found.low, found.high)))


def difference(base: Floats, new: Floats, *, level: float = LEVEL) -> Estimate:
    """Return the change of the mean."""
    base, new = _clean(base), _clean(new)
    if not len(base) or not len(new):
        return NOTHING
    return _estimate(base, new, lambda values: np.mean(values, axis=-1), level)


def _clean(values: Floats) -> Floats:
    values = np.asarray(values, np.float64)
    values = values[np.isfinite(values)]
    return values[:: max(1, len(values) // MAX_VALUES)]


def _estimate(base: Floats, new: Floats, statistic: Callable[[Floats], Any], level: float) -> Estimate:
    change = float(statistic(new) - statistic(base))
    if min(len(base), len(new)) < MIN_VALUES:
        return Estimate(change, None, None)
    rho = correlation(base, new)
    inflation = (1 + rho) / (1 - rho)
    errors, freedoms = [], []
    for number, values in enumerate((base, new)):
        length = block_length(values)
        random = np.random.default_rng(SEED + number)
        single = float(np.var(statistic(_redraw(values, 1, random)))) * inflation
        blocks = len(values) / length
        drawn = float(np.var(statistic(_redraw(values, length, random)))) * blocks / max(blocks - 1, 0.5)
        errors.append(max(single, drawn))
        freedoms.append(max(min(len(values) / inflation, blocks) - 1, 1.0))
    total = sum(errors)
    if total == 0:
        return Estimate(change, change, change)
    freedom = total**2 / sum(e**2 / f for e, f in zip(errors, freedoms, strict=True))
    reach = student(1 - level / 2, freedom) * math.sqrt(total)
    return Estimate(change, change - reach, change + reach)


def correlation(*several: Floats) -> float:
    """Return how much a value says about the next one, over all series together; between 0 and MAX_CORRELATION."""
    together, power, number = 0.0, 0.0, 0
    for values in several:
        clipped = _clipped(values)
        together += float(clipped[:-1] @ clipped[1:])
        power += float(clipped @ clipped)
        number += len(values)
    if not power:
        return 0.0
    mean = number / len(several)
    found = (together / power * mean + 1) / (mean - 4) if mean > 8 else PRIOR  # a short series looks less correlated
    drawn = (number * min(found, 1.0) + PRIOR_WEIGHT * PRIOR) / (number + PRIOR_WEIGHT)
    return min(max(drawn, 0.0), MAX_CORRELATION)


def _clipped(values: Floats) -> Floats:
    """Return the values around zero, outliers clipped: one of them would hide how the rest hang together."""
    centred = values - np.median(values)
    scale = 1.4826 * float(np.median(np.abs(centred)))
    clipped = np.clip(centred, -2 * scale, 2 * scale) if scale else centred
    result: Floats = clipped - clipped.mean()
    return result


def block_length(values: Floats) -> int:
    """Return how many neighbours to keep together: three times their correlation's reach, a tenth to a fifth of all.

    The reach is the sum of the autocorrelations, cut where they drown in noise (Sokal's window); the bias of a short
    series (−1/n each) is given back.
    """
    n = len(values)
    clipped = _clipped(values)
    power = float(clipped @ clipped)
    if not power:
        return 1
    reach = 1.0
    for lag in range(1, n // 2):
        rho = float(clipped[:-lag] @ clipped[lag:]) / power + 1 / n
        reach += 2 * max(rho, 0.0)
        if lag >= 4 * reach or rho < 1 / math.sqrt(n):
            break
    return min(max(1, math.ceil(3 * reach) if reach > 1 else 1, n // MOST_BLOCKS), max(1, n // 5))


def _redraw(values: Floats, length: int, random: np.random.Generator) -> Floats:
    """Return DRAWS series of blocks, wrapping around at the end so that every value is as likely."""
    n = len(values)
    starts = random.integers(0, n, (DRAWS, math.ceil(n / length)))
    places = (starts[:, :, None] + np.arange(length)).reshape(DRAWS, -1)[:, :n] % n
    drawn: Floats = values[places]
    return drawn


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
