"""Random numbers for the fleet simulator, named by what they are for.

Dice(seed).uniform("outage", 17, size=8)      the same numbers on every machine and in any order of asking
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from perfkit.simulate.noise import draw, hash_key


class Dice:
    """A family of streams; each call names its own."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def uniform(self, *name: object, size: int = 1) -> Any:
        """Numbers in (0, 1)."""
        key = hash_key("/".join(map(str, name)))
        hashes = draw(self.seed, [key], np.arange(size, dtype=np.uint64))[0]
        return ((hashes >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53

    def normal(self, *name: object, size: int = 1) -> Any:
        """Return standard normal numbers (Box–Muller)."""
        u, v = self.uniform(*name, "u", size=size), self.uniform(*name, "v", size=size)
        return np.sqrt(-2 * np.log(u)) * np.cos(2 * math.pi * v)

    def exponential(self, mean: float, *name: object) -> float:
        """One exponential number."""
        return float(-mean * math.log(self.uniform(*name)[0]))

    def between(self, low: float, high: float, *name: object) -> float:
        """One number of [low, high)."""
        return float(low + (high - low) * self.uniform(*name)[0])

    def chance(self, probability: float, *name: object) -> bool:
        """Whether something of this probability happens."""
        return bool(self.uniform(*name)[0] < probability)

    def choose(self, options: Any, *name: object, weights: Any = None) -> Any:
        """One of some options."""
        share = np.cumsum(np.ones(len(options)) if weights is None else np.asarray(weights, float))
        return options[int(np.searchsorted(share / share[-1], self.uniform(*name)[0], side="right"))]

    def order(self, size: int, *name: object) -> Any:
        """Return a permutation."""
        return np.argsort(self.uniform(*name, size=size), kind="stable")
