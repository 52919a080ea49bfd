from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.errors import UsageError
from perfkit.flops.conventions import CONVENTIONS, RECOMPUTE, get_convention
from perfkit.flops.params import lora_params
from perfkit.flops.presets import preset
from perfkit.flops.spec import CannotCount, TransformerSpec


def per_token(name: str, spec: TransformerSpec, **how: str) -> float:
    return CONVENTIONS[name].count(spec, **how).model


GPT = TransformerSpec(layers=2, hidden=8, heads=2, ffn=32, gated=False, vocab=100, tied=True, seq_len=16, norm="none")
# by hand: attention 4·8² and MLP 8·8² a layer, embedding 800
GPT_N = 2 * 12 * 64 + 800


def test_each_convention_is_its_formula_on_a_model_small_enough_to_do_by_hand():
    attention = 12 * 2 * 8 * 16
    assert per_token("palm", GPT) == 6 * GPT_N + attention
    assert per_token("nanogpt", GPT) == 6 * GPT_N + attention
    assert per_token("llm-foundry", GPT) == 6 * GPT_N + attention
    assert per_token("torchtitan", GPT) == 6 * (GPT_N - 800) + attention  # tied: the source drops the head
    assert per_token("6n", GPT) == 6 * GPT_N
    assert per_token("megatron-full", GPT) == 6 * 2 * 12 * 64 + attention + 6 * 800
    assert per_token("megatron", GPT) == 6 * 2 * 12 * 64 + attention / 2 + 6 * 800
    assert per_token("maxtext", GPT) == per_token("megatron", GPT)
    assert per_token("korthikanti", GPT) == pytest.approx(72 * 2 * 64 * (1 + 16 / 48 + 100 / (12 * 8 * 2)))
    assert per_token("narayanan", GPT) == pytest.approx(96 * 2 * 64 * (1 + 16 / 48 + 100 / (16 * 2 * 8)))


def test_nanogpt_leaves_out_learned_positions_and_palm_does_not():
    spec = dataclasses.replace(GPT, positions=16)
    assert per_token("palm", spec) - per_token("nanogpt", spec) == 6 * 16 * 8


def test_attention_of_llm_foundry_goes_by_the_width_of_the_model():
    wide = dataclasses.replace(GPT, head_dim=16, n_params=1000)
    assert per_token("palm", wide) - per_token("llm-foundry", wide) == 12 * 2 * (32 - 8) * 16


def test_only_params_layers_and_width_are_needed_where_the_formula_asks_no_more():
    spec = TransformerSpec(n_params=7_000_000, layers=32, hidden=64, seq_len=128)
    for name in ("palm", "nanogpt", "llm-foundry", "6n"):
        assert per_token(name, spec) > 0
    for name in ("torchtitan", "megatron", "maxtext", "korthikanti"):
        with pytest.raises(CannotCount, match="vocab"):
            per_token(name, spec)


@pytest.mark.parametrize("name", CONVENTIONS)
def test_every_convention_has_a_formula_a_source_and_a_known_kind_of_attention(name):
    convention = CONVENTIONS[name]
    assert convention.doc
    assert convention.source
    assert convention.attention in ("full", "causal", "none")


def test_an_unknown_convention_names_the_known_ones():
    with pytest.raises(UsageError, match="megatron-full"):
        get_convention("megatron-half")
    assert get_convention(" PaLM ").name == "palm"


@pytest.mark.parametrize("name", CONVENTIONS)
def test_parts_sum_to_the_whole_and_forward_plus_backward_is_it(name):
    count = CONVENTIONS[name].count(preset("llama3-8b"))
    assert count.model == pytest.approx(sum(count.parts.values()))
    assert count.forward + count.backward == pytest.approx(count.model)
    if not CONVENTIONS[name].recompute_included:
        assert count.model == pytest.approx(3 * count.forward)


@pytest.mark.parametrize("name", CONVENTIONS)
def test_recompute_changes_what_was_executed_and_not_what_the_model_needs(name):
    counts = [CONVENTIONS[name].count(preset("llama3-8b"), recompute=mode) for mode in RECOMPUTE]
    assert len({count.model for count in counts}) == 1
    hardware = [count.hardware for count in counts]
    assert hardware == sorted(hardware)
    if CONVENTIONS[name].recompute_included:
        assert len(set(hardware)) == 1
    with pytest.raises(UsageError):
        CONVENTIONS[name].count(preset("llama3-8b"), recompute="some")


def test_full_recompute_of_llm_foundry_is_four_thirds():
    count = CONVENTIONS["llm-foundry"].count(preset("mpt-7b"), recompute="full")
    assert count.hardware == pytest.approx(count.model * 4 / 3)


def test_selective_recompute_of_korthikanti_doubles_attention():
    count = CONVENTIONS["korthikanti"].count(preset("gpt3-175b"), recompute="selective")
    assert count.hardware - count.model == pytest.approx(12 * 96 * 12288 * 2048)


@pytest.mark.parametrize(
    ("activation", "seen"), [(None, True), ("silu", True), ("geglu", False), ("quick_geglu", False)]
)
def test_megatron_sees_a_gate_only_with_silu(activation, seen):
    gated = dataclasses.replace(GPT, gated=True, activation=activation)
    extra = per_token("megatron", gated) - per_token("megatron", GPT)
    assert extra == (6 * 2 * 8 * 32 if seen else 0)
    assert per_token("megatron-bridge", gated) - per_token("megatron-bridge", GPT) == 6 * 2 * 8 * 32


def test_megatron_does_not_see_the_gate_of_gpt_oss_and_bridge_does():
    spec = dataclasses.replace(preset("gpt-oss-120b"), seq_len=4096, window=None)
    experts = 6 * 36 * 4 * 2880 * 2880
    assert per_token("megatron-bridge", spec) - per_token("megatron", spec) == pytest.approx(experts)


def test_formulas_for_gpt_have_no_answer_for_experts_and_latent_attention():
    for name in ("narayanan", "korthikanti"):
        with pytest.raises(CannotCount, match="experts"):
            per_token(name, preset("deepseek-v3"))


def test_an_encoder_is_not_halved():
    assert per_token("megatron", preset("bert-large")) == per_token("megatron-full", preset("bert-large"))


def test_packed_documents_cost_the_sum_of_their_squares():
    # 4 documents of 2048 in a row of 8192: a quarter of the attention
    spec = preset("llama3-8b")
    packed = dataclasses.replace(spec, attention_len=4 * 2048**2 / 8192)
    full, part = CONVENTIONS["palm"].count(spec).parts, CONVENTIONS["palm"].count(packed).parts
    assert part["attention"] == full["attention"] / 4
    assert part["linear"] == full["linear"]


def test_multi_token_prediction_costs_a_block_a_projection_and_a_head():
    with_mtp = preset("deepseek-v3")
    without = dataclasses.replace(with_mtp, mtp_layers=0)
    block = dataclasses.replace(without, layers=62)
    extra = 6 * (3 * 7168 + 2 * 7168**2) + 6 * 7168 * 129280
    assert per_token("megatron", with_mtp) == pytest.approx(per_token("megatron", block) + extra)


def test_frozen_parameters_cost_four_flops_and_not_six():
    spec = preset("llama3-8b")
    frozen = dataclasses.replace(spec, frozen_params=10**9)
    assert per_token("palm", spec) - per_token("palm", frozen) == pytest.approx(2e9, rel=1e-9)


def test_lora_trains_only_its_adapters():
    spec = dataclasses.replace(preset("llama3-8b"), lora_rank=16)
    adapters = 32 * 16 * ((4096 + 4096) * 2 + (4096 + 1024) * 2)
    assert lora_params(spec) == adapters
    base = CONVENTIONS["6n"].count(preset("llama3-8b"))
    assert per_token("6n", spec) == pytest.approx(base.model * 2 / 3 + 6 * adapters)


specs = st.builds(
    TransformerSpec,
    layers=st.integers(1, 8),
    hidden=st.integers(1, 16).map(lambda n: 64 * n),
    heads=st.sampled_from([1, 2, 4]),
    ffn=st.integers(1, 512),
    gated=st.booleans(),
    vocab=st.integers(1, 4096),
    tied=st.booleans(),
    seq_len=st.integers(1, 4096),
)


@given(specs, st.sampled_from(sorted(CONVENTIONS)))
def test_counts_are_positive_and_grow_with_the_sequence(spec, name):
    longer = dataclasses.replace(spec, seq_len=2 * (spec.seq_len or 1))
    assert 0 < per_token(name, spec) <= per_token(name, longer)


@given(specs)
def test_causal_is_full_less_half_the_attention(spec):
    full = CONVENTIONS["megatron-full"].count(spec)
    causal = CONVENTIONS["megatron"].count(spec)
    assert full.model - causal.model == pytest.approx(full.parts["attention"] / 2)


@given(specs, st.integers(1, 8192))
def test_a_window_never_costs_more_than_causal_attention(spec, window):
    sliding = dataclasses.replace(spec, window=window)
    assert per_token("megatron-bridge", sliding) <= per_token("megatron", spec) * (
        1 + 1e-12
    ) + 6 * 2 * spec.query_width * (
        spec.layers or 1
    )  # the exact window counts the diagonal, the halved square does not
    assert per_token("maxtext", sliding) <= per_token("maxtext", spec) * (1 + 1e-12)


def test_an_unneeded_window_changes_nothing():
    spec = dataclasses.replace(preset("mistral-7b"), seq_len=2048)
    assert per_token("megatron-bridge", spec) == per_token("megatron", spec)


def test_a_prediction_block_of_a_hybrid_stack_costs_its_blocks_and_one_more_head():
    spec = preset("nemotron3-super")
    (main, *_) = spec.layer_pattern.split("/")
    plain, longer = (dataclasses.replace(spec, layer_pattern=pattern) for pattern in (main, main + "*E"))
    head = 6 * spec.hidden * spec.vocab
    one = dataclasses.replace(spec, layer_pattern=main + "/*E")
    assert per_token("megatron", one) == per_token("megatron", longer) + head
    assert per_token("megatron", spec) - per_token("megatron", one) == per_token("megatron", one) - per_token(
        "megatron", plain
    )
    with pytest.raises(CannotCount, match="layer_pattern"):
        per_token("megatron", dataclasses.replace(plain, mtp_layers=2))
