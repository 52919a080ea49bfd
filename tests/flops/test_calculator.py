from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.errors import UsageError
from perfkit.flops.calculator import compute_mfu, packed_length
from perfkit.flops.conventions import CONVENTIONS
from perfkit.flops.spec import CannotCount

H100 = "NVIDIA H100 80GB HBM3"


def llama(**more: object):
    return compute_mfu(
        "llama3-8b", **({"seq_len": 8192, "hardware": H100, "tokens_per_second_per_device": 5762} | more)
    )


def test_mfu_is_flops_times_speed_over_the_peak():
    result = llama()
    assert result.convention == "palm"
    assert result.flops_per_token == 6 * 8030261248 + 12 * 32 * 4096 * 8192
    assert result.mfu == pytest.approx(result.flops_per_token * 5762 / 989.5e12)
    assert result.hfu == result.mfu
    assert result.peak_flops == 989.5e12
    assert "Lightning" in (result.peak_source or "")
    assert set(result.conventions) == set(CONVENTIONS)


def test_all_ways_to_give_the_speed_agree():
    one = llama()
    tokens = 5762.0
    job = llama(tokens_per_second_per_device=None, tokens_per_second=tokens * 64, devices=64)
    step = llama(tokens_per_second_per_device=None, step_time=16 * 8192 / tokens / 8, global_batch=16, devices=8)
    counted = llama(tokens_per_second_per_device=None, step_time=2.0, tokens_per_step=2 * tokens * 8, devices=8)
    accumulated = llama(
        tokens_per_second_per_device=None,
        step_time=16 * 8192 / tokens / 8,
        micro_batch=1,
        grad_accum=4,
        data_parallel=4,
        devices=8,
    )
    reported = llama(tokens_per_second_per_device=None, tflops_per_device=one.tflops_per_device)
    for other in (job, step, counted, accumulated, reported):
        assert other.mfu == pytest.approx(one.mfu)
        assert other.tokens_per_second_per_device == pytest.approx(tokens)


def test_reported_tflops_need_no_model():
    result = compute_mfu(hardware=H100, tflops_per_device=400)
    assert result.mfu == pytest.approx(400 / 989.5)
    assert result.flops_per_token is None
    assert result.conventions == {}
    assert result.convention == "given"
    assert compute_mfu(hardware=H100, tflops_per_device=400, convention="narayanan").convention == "narayanan"


def test_reported_tflops_need_no_shapes_either():
    result = compute_mfu({"n_params": 7_000_000_000}, hardware=H100, tflops_per_device=400)
    assert result.mfu == pytest.approx(400 / 989.5)
    assert "layers" in (result.conventions["palm"].reason or "")


def test_recompute_of_a_given_figure_is_unknown_and_not_none():
    for result in (
        compute_mfu(hardware=H100, tflops_per_device=400, recompute="full"),
        llama(flops_per_token=6e10, recompute="full"),
    ):
        assert result.mfu is not None
        assert result.hfu is None
        assert any("HFU is unknown" in note for note in result.notes)


def test_a_given_figure_cannot_be_split_by_number_format():
    with pytest.raises(UsageError, match="split"):
        compute_mfu(hardware=H100, tflops_per_device=400, dtype="fp8", attention_dtype="bf16")


def test_a_speed_without_a_model_says_what_is_missing():
    with pytest.raises(UsageError, match="no model"):
        compute_mfu(hardware=H100, tokens_per_second_per_device=5000)


def test_a_total_that_is_not_of_these_shapes_is_pointed_out():
    assert not llama().notes or "one model" not in llama().notes[0]
    result = compute_mfu(
        {"n_params": 70 * 10**9, "layers": 32, "hidden": 4096, "heads": 32, "ffn": 14336, "gated": True, "vocab": 32000,
         "tied": False, "seq_len": 4096},
        hardware=H100, tokens_per_second_per_device=500,
    )  # fmt: skip
    assert "is that one model?" in result.notes[0]


def test_more_frozen_parameters_than_there_are_is_an_error():
    with pytest.raises(UsageError, match="frozen_params"):
        compute_mfu({"n_params": 100, "frozen_params": 101}, tflops_per_device=1, hardware=H100)


def test_two_figures_for_the_tokens_of_a_step_must_agree():
    step = {"tokens_per_second_per_device": None, "step_time": 2.0, "devices": 8, "global_batch": 16}
    assert llama(**step, tokens_per_step=16 * 8192).mfu == llama(**step).mfu
    with pytest.raises(UsageError, match="leave one of them out"):
        llama(**step, tokens_per_step=4e6)


@pytest.mark.parametrize(
    "more",
    [
        {"tokens_per_second_per_device": None},
        {"tokens_per_second": 1.0},
        {"tokens_per_second_per_device": None, "tokens_per_second": 5.0},
        {"tokens_per_second_per_device": None, "step_time": 1.0, "devices": 8},
        {"tokens_per_second_per_device": -1},
        {"tokens_per_second_per_device": None, "step_time": 0.0, "devices": 8, "global_batch": 8},
        {"peak_flops": 0},
        {"convention": "mine"},
        {"recompute": "half"},
        {"peak": "guessed"},
        {
            "tokens_per_second_per_device": None,
            "step_time": 1.0,
            "devices": 8,
            "global_batch": 9,
            "micro_batch": 2,
            "data_parallel": 4,
        },
        {"seq_lens": [0]},
    ],
)
def test_nonsense_is_refused(more):
    with pytest.raises(UsageError):
        llama(**more)


def test_an_unknown_device_has_no_mfu_and_the_message_names_the_override():
    result = llama(hardware="NVIDIA H100 Something")
    assert result.mfu is None
    assert result.hfu is None
    assert result.peak_flops is None
    assert result.flops_per_token is not None
    assert all(r.mfu is None and r.flops_per_token for r in result.conventions.values())
    assert any("--peak-flops" in message for message in result.messages)
    json.dumps(result.to_json(), allow_nan=False)


def test_no_device_at_all_is_said_too():
    assert "--hardware" in compute_mfu("gpt2", tokens_per_second_per_device=1).messages[0]


def test_a_given_peak_overrides_the_registry():
    result = llama(peak_flops=500e12)
    assert result.mfu == pytest.approx(result.tflops_per_device / 500)
    assert "--peak-flops" in (result.peak_source or "")
    for wrong in (989, -1.0, 0.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="FLOP/s"):
            llama(peak_flops=wrong)


def test_a_result_above_one_is_invalid_and_has_three_causes():
    result = llama(tokens_per_second_per_device=57620)
    assert result.mfu is None
    assert result.hfu is None
    (message,) = [m for m in result.messages if "above 1" in m]
    assert "(1)" in message
    assert "(3)" in message
    assert "(4)" not in message
    assert result.conventions["palm"].mfu is None
    assert "invalid" in (result.conventions["palm"].reason or "")


def test_full_attention_is_the_first_suspect_when_causal_would_fit():
    result = llama(tokens_per_second_per_device=18000)
    message = next(m for m in result.messages if "above 1" in m)
    assert message.index("masked half") < message.index("(2)")
    assert result.conventions["megatron"].mfu is not None


def test_an_impossible_hfu_is_dropped_alone():
    result = llama(tokens_per_second_per_device=15000, recompute="full")
    assert result.mfu is not None
    assert result.hfu is None
    assert any("HFU" in m for m in result.messages)


def test_mixed_precision_adds_the_ideal_times_of_the_formats():
    result = llama(convention="megatron", dtype="fp8", attention_dtype="bf16", head_dtype="bf16")
    parts = CONVENTIONS["megatron"].count(_llama_spec()).parts
    ideal = parts["linear"] / 1979e12 + (parts["attention"] + parts["head"]) / 989.5e12
    assert result.mfu == pytest.approx(ideal * 5762)
    assert result.peak_flops == pytest.approx(sum(parts.values()) / ideal)
    assert result.flops_by_dtype["fp8"] == parts["linear"]
    only_fp8 = llama(convention="megatron", dtype="fp8")
    assert only_fp8.mfu < result.mfu < llama(convention="megatron").mfu


def _llama_spec():
    from perfkit.flops.presets import preset

    return preset("llama3-8b")


def test_mixed_precision_with_one_unknown_peak_has_no_mfu():
    result = llama(hardware="NVIDIA H20", dtype="fp8", attention_dtype="bf16")
    assert result.mfu is None
    assert result.peak_source is None


def test_one_given_peak_cannot_serve_two_formats():
    with pytest.raises(UsageError, match=r"peaks\.toml"):
        llama(dtype="fp8", attention_dtype="bf16", peak_flops=1e15)


def test_a_convention_that_cannot_count_names_those_that_can():
    with pytest.raises(CannotCount, match="palm"):
        compute_mfu(
            {"n_params": 10**9, "layers": 2, "hidden": 64, "seq_len": 64},
            convention="megatron",
            tokens_per_second_per_device=1,
        )


def test_narayanan_says_that_it_counts_recompute():
    assert any("hardware utilisation" in m for m in llama(convention="narayanan").notes)


def test_packed_documents_lower_attention():
    assert packed_length([2048] * 4) == 2048
    assert packed_length([1, 3]) == 2.5
    packed, plain = llama(seq_lens=[2048] * 4), llama()
    assert packed.flops_per_token == plain.flops_per_token - 12 * 32 * 4096 * (8192 - 2048)


def test_json_has_the_promised_keys():
    document = llama().to_json()
    promised = [
        "mfu",
        "hfu",
        "tflops_per_device",
        "flops_per_token",
        "convention",
        "peak_flops",
        "peak_source",
        "conventions",
    ]
    assert list(document)[: len(promised)] == promised
    assert {"mfu", "flops_per_token"} <= set(document["conventions"]["megatron"])


@given(st.floats(1e-3, 1e6), st.floats(1e9, 1e17))
def test_an_mfu_is_never_above_one_and_never_negative(speed, peak):
    result = llama(tokens_per_second_per_device=speed, peak_flops=peak)
    for value in (result.mfu, result.hfu, *(r.mfu for r in result.conventions.values())):
        assert value is None or 0 < value <= 1
    assert result.ok or any("above 1" in m for m in result.messages)


def test_a_count_of_your_own_replaces_the_convention():
    result = llama(flops_per_token=50e9)
    assert result.convention == "given"
    assert result.mfu == pytest.approx(50e9 * 5762 / 989.5e12)
    assert result.conventions["palm"].mfu == pytest.approx(llama().mfu)
    alone = compute_mfu(flops_per_token=50e9, hardware=H100, tokens_per_second_per_device=5762)
    assert alone.mfu == result.mfu
    with pytest.raises(UsageError):
        llama(flops_per_token=0)


def test_a_misspelt_argument_is_refused():
    with pytest.raises(UsageError, match="token_per_second"):
        llama(token_per_second=3)
