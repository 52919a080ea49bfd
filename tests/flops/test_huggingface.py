from __future__ import annotations

import dataclasses
import json

import pytest

from perfkit.errors import CorruptInput, InputError, UsageError
from perfkit.flops.conventions import CONVENTIONS
from perfkit.flops.huggingface import load_hf_config, spec_from_hf
from perfkit.flops.presets import preset
from perfkit.flops.spec import CannotCount

CONFIGS = {
    "gpt2": {
        "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257},
    "llama3-8b": {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False},
    "mixtral-8x7b": {
        "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
        "sliding_window": None, "tie_word_embeddings": False, "vocab_size": 32000},
    "mistral-7b": {
        "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "sliding_window": 4096, "tie_word_embeddings": False,
        "vocab_size": 32000},
    "qwen2.5-7b": {
        "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
        "num_hidden_layers": 28, "num_key_value_heads": 4, "sliding_window": 131072, "use_sliding_window": False,
        "tie_word_embeddings": False, "vocab_size": 152064},
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe", "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048,
        "intermediate_size": 6144, "mlp_only_layers": [], "moe_intermediate_size": 768, "num_attention_heads": 32,
        "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
        "tie_word_embeddings": False, "vocab_size": 151936},
    "deepseek-v3": {
        "model_type": "deepseek_v3", "first_k_dense_replace": 3, "hidden_size": 7168, "intermediate_size": 18432,
        "kv_lora_rank": 512, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
        "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "tie_word_embeddings": False, "vocab_size": 129280},
    "gpt-oss-120b": {
        "model_type": "gpt_oss", "head_dim": 64, "hidden_size": 2880, "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * 18, "num_attention_heads": 64,
        "num_experts_per_tok": 4, "num_hidden_layers": 36, "num_key_value_heads": 8, "num_local_experts": 128,
        "sliding_window": 128, "tie_word_embeddings": False, "vocab_size": 201088, "attention_bias": True},
    "gemma2-9b": {
        "model_type": "gemma2", "head_dim": 256, "hidden_size": 3584, "intermediate_size": 14336,
        "num_attention_heads": 16, "num_hidden_layers": 42, "num_key_value_heads": 8, "sliding_window": 4096,
        "vocab_size": 256000},
    "llama4-maverick": {
        "model_type": "llama4", "text_config": {
            "model_type": "llama4_text", "attention_chunk_size": 8192, "head_dim": 128, "hidden_size": 5120,
            "interleave_moe_layer_step": 2, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
            "num_attention_heads": 40, "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8,
            "num_local_experts": 128, "tie_word_embeddings": False, "vocab_size": 202048}},
    "mpt-7b": {
        "model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "expansion_ratio": 4, "max_seq_len": 2048,
        "no_bias": False, "learned_pos_emb": True, "vocab_size": 50368, "attn_config": {"alibi": False}},
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_counts_like_the_preset_of_the_same_model_in_every_convention(name):
    wanted = preset(name)
    spec = dataclasses.replace(spec_from_hf(CONFIGS[name]), seq_len=wanted.seq_len, n_params=wanted.n_params)
    for convention in CONVENTIONS.values():
        try:
            expected = convention.count(wanted).model
        except CannotCount:
            continue
        assert convention.count(spec).model == pytest.approx(expected), convention.name


def test_an_unlisted_family_keeps_the_gate_unknown():
    spec = spec_from_hf({"model_type": "brandnew", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                         "intermediate_size": 128, "vocab_size": 100})  # fmt: skip
    assert spec.gated is None
    with pytest.raises(CannotCount, match="gated"):
        CONVENTIONS["megatron"].count(dataclasses.replace(spec, seq_len=8))


def test_a_config_without_layers_is_refused():
    with pytest.raises(UsageError, match="--spec"):
        spec_from_hf({"model_type": "resnet", "hidden_sizes": [1, 2]})


def test_a_folder_or_a_file_may_be_given_and_a_broken_one_is_named(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["gpt2"]))
    assert load_hf_config(tmp_path).layers == load_hf_config(tmp_path / "config.json").layers == 12
    with pytest.raises(InputError, match=r"nothing\.json"):
        load_hf_config(tmp_path / "nothing.json")
    for text in ("{", "[]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(CorruptInput, match=r"config\.json"):
            load_hf_config(tmp_path)


def test_a_mamba_hybrid_has_its_pattern_and_its_prediction_blocks():
    # the keys of NVIDIA-Nemotron-3-Super-120B-A12B, with a shorter stack
    config = {"model_type": "nemotron_h", "num_hidden_layers": 4, "hybrid_override_pattern": "ME*E",
              "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
              "vocab_size": 131072,
              "n_routed_experts": 512, "num_experts_per_tok": 22, "moe_intermediate_size": 2688,
              "moe_latent_size": 1024, "moe_shared_expert_intermediate_size": 5376, "n_shared_experts": 1,
              "ssm_state_size": 128, "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8,
              "num_nextn_predict_layers": 2, "mtp_hybrid_override_pattern": "*E"}  # fmt: skip
    spec = spec_from_hf(config)
    reference = dataclasses.replace(preset("nemotron3-super"), layer_pattern="ME*E/*E/*E")
    assert spec.layer_pattern == reference.layer_pattern
    count = CONVENTIONS["megatron"].count
    assert count(dataclasses.replace(spec, seq_len=8192)).model == count(reference).model
