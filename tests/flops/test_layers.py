from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.flops.layers import exact_window_context, maxtext_terms, megatron_terms
from perfkit.flops.presets import preset


@given(st.integers(1, 200), st.integers(1, 200))
def test_the_mean_window_is_the_mean_over_tokens(window, tokens):
    seen = sum(min(i + 1, window) for i in range(tokens)) / tokens
    expected = seen if window < tokens else tokens / 2  # the source halves the square where the window does not cut
    assert exact_window_context(window, tokens) == pytest.approx(expected)


def test_chunked_attention_costs_the_squares_of_its_chunks():
    import dataclasses

    spec = dataclasses.replace(preset("llama4-scout"), seq_len=20000)
    plain = dataclasses.replace(spec, window=None)
    width = 2 * 40 * 128
    chunked = 2 * 36 * width * (2 * 8192**2 + (20000 - 2 * 8192) ** 2) / 20000
    full = 2 * 36 * width * 20000
    difference = maxtext_terms(plain, causal=False)[1] - maxtext_terms(spec, causal=False)[1]
    assert difference == pytest.approx(full - chunked)


def test_a_hybrid_stack_counts_each_kind_of_block():
    spec = preset("nemotron3-nano")
    assert (spec.layer_pattern or "").count("M") == 23
    linear, attention, head = megatron_terms(spec, causal=True, windows=False, every_gate=False)
    d = 2688
    mamba = 23 * (2 * d * (4 * d + 2 * 8 * 128 + 64) + 4 * d * d)
    experts = 23 * 4 * d * (6 * 1856 + 3712)
    attn = 6 * 4 * d * (32 * 128 + 2 * 128)
    assert linear == mamba + experts + attn
    assert attention == 6 * 2 * 32 * 128 * 8192 + 23 * 7 * 2 * d * 128
    assert head == 2 * d * 131072
