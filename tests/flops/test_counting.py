from __future__ import annotations

import dataclasses

import pytest

from perfkit.errors import UsageError
from perfkit.flops.conventions import CONVENTIONS
from perfkit.flops.presets import preset

torch = pytest.importorskip("torch")

from perfkit.flops.counting import count_flops, count_spec  # noqa: E402

PRESETS = ["gpt2", "llama3-8b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-120b", "llama4-maverick",
           "grok-1", "nemotron4-15b", "mpt-7b", "gpt3-175b", "kimi-k2", "gemma2-9b"]  # fmt: skip


QUICK = ("llama3-8b", "mixtral-8x7b")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in PRESETS])
def test_the_flop_counter_agrees_with_the_formula_within_one_percent(name):
    # the counter knows neither masks nor windows: compare with full attention, every gate and no window
    spec = dataclasses.replace(
        preset(name), mtp_layers=0, activation=None, window=None, window_layers=None, attention="full"
    )
    counted = count_spec(spec).model / spec.seq_len
    assert CONVENTIONS["megatron-full"].count(spec).model == pytest.approx(counted, rel=0.01)
    assert CONVENTIONS["maxtext-full"].count(spec).model == pytest.approx(counted, rel=1e-4)
    if not spec.tied:
        assert CONVENTIONS["torchtitan"].count(spec).model == pytest.approx(counted, rel=0.01)


def test_any_callable_can_be_counted():
    weight = torch.empty(3, 5, device="meta")
    x = torch.empty(7, 3, device="meta")
    assert count_flops(lambda: x @ weight).total == 2 * 7 * 3 * 5


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_scores_that_a_fused_backward_computes_again_are_told_apart(device):
    q, k, v = (torch.empty(1, 2, 16, 8, device=device).normal_().requires_grad_() for _ in range(3))

    def step() -> None:
        torch.nn.functional.scaled_dot_product_attention(q, k, v).sum().backward()

    count = count_flops(step)
    product = 2 * 2 * 16 * 16 * 8
    assert count.model == 6 * product
    assert count.total == (7 if device == "cpu" else 6) * product  # plain products compute nothing twice


def test_multi_token_prediction_has_no_stand_in():
    with pytest.raises(UsageError, match="mtp_layers"):
        count_spec(preset("deepseek-v3"))
