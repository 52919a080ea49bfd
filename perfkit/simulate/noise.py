"""Random numbers that depend on what they are for, not on the order in which they are drawn.

    draw(seed, keys, ranks) -> uint64[keys, ranks]        one hash per (key, rank)

A fault may add work to one rank; every other draw stays as it was, because each is a hash of its own
identity (splitmix64). numpy's generators are avoided: their streams may change between versions.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


def hash_key(text: str) -> int:
    """Return 64 bits that stand for a text, the same on every machine."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _mix(values: Hashes) -> Hashes:
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def draw(seed: int, keys: npt.ArrayLike, ranks: npt.ArrayLike) -> Hashes:
    """Return one hash per key and rank."""
    rows = _mix(np.asarray(keys, np.uint64) ^ _mix(np.array([seed & (2**64 - 1)], np.uint64)))
    columns = _mix(np.asarray(ranks, np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    with np.errstate(over="ignore"):
        return _mix(rows[:, None] + columns[None, :])


def pick(hashes: Hashes, part: int) -> Ints:
    """Return 16 of the 64 bits, 0 to 65535; `part` is 0 to 3."""
    return ((hashes >> np.uint64(16 * part)) & np.uint64(0xFFFF)).astype(np.int64)


def between(bits: Ints, low: npt.ArrayLike, high: npt.ArrayLike) -> Ints:
    """Spread 16 bits evenly over [low, high)."""
    low = np.asarray(low, np.int64)
    result: Ints = low + ((bits * (np.asarray(high, np.int64) - low)) >> 16)
    return result
