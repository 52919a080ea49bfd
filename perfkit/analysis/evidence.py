"""Is the difference between two series of steps more than noise? Moving-block bootstrap, no domain words.

    ratio(base, new)       -> Estimate of median(new)/median(base) − 1
    difference(base, new)  -> Estimate of mean(new) − mean(base)

Neighbouring values of a series hang together (a slow disk, a warm GPU), so resampling single values would promise too
much: blocks are drawn, as long as the series' own correlation asks for. The bootstrap gives a standard error; the
interval is that of Student's t with as many degrees of freedom as there are blocks, which keeps short series honest.
Fewer than MIN_VALUES values on either side: no interval; in a series of a few, neighbours pass for independent.
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
CAUTION = 0.6
"""Intervals are those of this share of the level: short series understate how much their values hang together."""
MIN_VALUES = 4
DRAWS = 1000
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
    errors, freedoms = [], []
    for number, values in enumerate((base, new)):
        length = block_length(values)
        draws = _redraw(values, length, np.random.default_rng(SEED + number))
        blocks = len(values) / length
        errors.append(float(np.var(statistic(draws))) * blocks / max(blocks - 1, 0.5))
        freedoms.append(max(blocks - 1, 1.0))
    total = sum(errors)
    if total == 0:
        return Estimate(change, change, change)
    freedom = total**2 / sum(e**2 / f for e, f in zip(errors, freedoms, strict=True))
    reach = student(1 - CAUTION * level / 2, freedom) * math.sqrt(total)
    return Estimate(change, change - reach, change + reach)


def block_length(values: Floats) -> int:
    """Return how many neighbours to keep together: three times the reach of their correlation, at most a fifth of all.

    The reach is the sum of the autocorrelations, cut where they drown in noise (Sokal's window). Outliers are clipped
    first, or one of them would hide the rest, and the bias of a short series (−1/n each) is given back.
    """
    n = len(values)
    centred = values - np.median(values)
    scale = 1.4826 * float(np.median(np.abs(centred)))
    clipped = np.clip(centred, -4 * scale, 4 * scale) if scale else centred
    clipped = clipped - clipped.mean()
    power = float(clipped @ clipped)
    if not power:
        return 1
    reach = 1.0
    for lag in range(1, n // 2):
        rho = float(clipped[:-lag] @ clipped[lag:]) / power + 1 / n
        reach += 2 * max(rho, 0.0)
        if lag >= 4 * reach or rho < 1 / math.sqrt(n):
            break
    return int(min(max(1, math.ceil(3 * reach) if reach > 1 else 1), max(1, n // 5)))


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
