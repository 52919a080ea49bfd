from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfkit.simulate.noise import between, draw, hash_key, pick

KEYS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20, unique=True)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**40), keys=KEYS, ranks=st.lists(st.integers(0, 10_000), min_size=1, max_size=8, unique=True)
)
def test_a_draw_depends_on_its_key_and_rank_and_on_nothing_else(seed: int, keys: list[int], ranks: list[int]) -> None:
    together = draw(seed, keys, ranks)
    alone = [[int(draw(seed, [key], [rank])[0, 0]) for rank in ranks] for key in keys]
    assert together.tolist() == alone


def test_draws_look_even() -> None:
    bits = np.concatenate([pick(draw(5, np.arange(200), np.arange(200)), part).ravel() for part in range(4)])
    counts = np.bincount(bits // 4096, minlength=16)
    expected = len(bits) / 16
    assert ((counts - expected) ** 2 / expected).sum() < 50  # 15 degrees of freedom; 1 in 100,000 is above 50


@given(low=st.integers(-(10**9), 10**9), width=st.integers(1, 10**9), bits=st.integers(0, 65_535))
def test_a_spread_value_lies_in_its_range(low: int, width: int, bits: int) -> None:
    value = int(between(np.array([bits], np.int64), low, low + width)[0])
    assert low <= value < low + width


def test_keys_are_the_same_on_every_machine() -> None:
    assert hash_key("s0/F/m0/c0/L0/qkv") == 12318826728654783981
