"""Read a Hugging Face `config.json` into a TransformerSpec.

    spec_from_hf({"model_type": "llama", …}) -> TransformerSpec
    load_hf_config("path/config.json") -> TransformerSpec

Dimensions are read by the key names that the families use; what a family fixes in code (a gate, biases,
norms) comes from `_FAMILIES`. A model_type that is not listed there keeps those fields unknown, so that
only the conventions that do not need them answer: guessing a gate is a 50 % error in the MLP.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfkit.errors import UsageError
from perfkit.flops.json_file import read_json_object
from perfkit.flops.spec import TransformerSpec, spec_from_dict

_KEYS: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "model_dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "head_dim": ("head_dim", "attention_head_dim"),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "active_experts": ("num_experts_per_tok", "num_experts_per_token", "moe_topk"),
    "expert_ffn": ("moe_intermediate_size", "moe_ffn_hidden_size"),
    "shared_experts": ("n_shared_experts", "num_shared_experts"),
    "shared_ffn": ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
    "q_lora_rank": ("q_lora_rank",),
    "kv_lora_rank": ("kv_lora_rank",),
    "qk_nope_head_dim": ("qk_nope_head_dim",),
    "qk_rope_head_dim": ("qk_rope_head_dim",),
    "v_head_dim": ("v_head_dim",),
    "mtp_layers": ("num_nextn_predict_layers", "mtp_num_layers"),
}

_LLAMA = {"gated": True, "norm": "rms"}
_GPT = {"gated": False, "norm": "layer", "qkv_bias": True, "out_bias": True, "mlp_bias": True}
_GEMMA = {"gated": True, "activation": "geglu", "tied": True}
_FAMILIES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "phi3", "olmo2", "deepseek_v2", "deepseek_v3", "kimi_k2",
                     "ministral", "granite", "internlm2", "smollm3"), _LLAMA),
    "gpt2": {**_GPT, "tied": True},
    "gpt_bigcode": {**_GPT, "tied": True},
    "gpt_neox": {**_GPT, "tied": False},
    "opt": {**_GPT, "tied": True},
    "bloom": {**_GPT, "tied": True},
    "mpt": {"gated": False, "norm": "layer_nobias", "tied": True},
    "bert": {**_GPT, "tied": True, "attention": "full"},
    "starcoder2": {**_GPT, "tied": True},
    "nemotron": {"gated": False, "norm": "layer"},
    "qwen2": {**_LLAMA, "qkv_bias": True},
    "qwen2_moe": {**_LLAMA, "qkv_bias": True},
    "qwen3": {**_LLAMA, "qk_norm": True},
    "qwen3_moe": {**_LLAMA, "qk_norm": True},
    "gemma": _GEMMA,
    "gemma2": {**_GEMMA, "norms_per_layer": 4},
    "gemma3_text": {**_GEMMA, "norms_per_layer": 4, "qk_norm": True},
    "nemotron_h": {"gated": False, "norm": "rms"},
    "gpt_oss": {**_LLAMA, "activation": "quick_geglu", "qkv_bias": True, "out_bias": True, "mlp_bias": True},
    "llama4_text": _LLAMA,
}  # fmt: skip
_TIED_BY_DEFAULT = {"gemma", "gemma2", "gemma3_text", "gpt2", "opt", "bloom"}


def load_hf_config(path: str | Path) -> TransformerSpec:
    """Read a config.json (or the folder that holds one)."""
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    return spec_from_hf(read_json_object(file, what="a Hugging Face config.json"))


def spec_from_hf(config: Mapping[str, Any]) -> TransformerSpec:
    """Map a config to a spec; the text model of a multimodal config is used."""
    if isinstance(config.get("text_config"), Mapping):
        config = {**config["text_config"], "name_or_path": config.get("_name_or_path")}
    kind = str(config.get("model_type", ""))
    found: dict[str, Any] = {}
    for field, keys in _KEYS.items():
        value = next((config[key] for key in keys if config.get(key) is not None), None)
        if value is not None:
            found[field] = value
    if "layers" not in found or "hidden" not in found:
        raise UsageError(
            f"the config (model_type {kind!r}) names no layers or no width",
            next_step="use --spec FILE.json or the flags --layers, --hidden, …",
        )
    found |= _FAMILIES.get(kind, {})
    if "tie_word_embeddings" in config:
        found["tied"] = bool(config["tie_word_embeddings"])
    elif kind in _FAMILIES:
        found.setdefault("tied", kind in _TIED_BY_DEFAULT)
    _add_ffn(found, kind, config)
    _add_moe(found, kind, config)
    _add_window(found, kind, config)
    _add_hybrid(found, config)
    if kind in ("gpt2", "opt", "bert", "gpt_bigcode"):
        found["positions"] = config.get("n_positions") or config.get("max_position_embeddings")
        found["positions"] += 2 if kind == "opt" else 0  # OPT shifts its positions by two
    if config.get("attention_bias"):
        found |= {"qkv_bias": True, "out_bias": True}
    if config.get("mlp_bias"):
        found["mlp_bias"] = True
    name = config.get("_name_or_path") or config.get("name_or_path") or kind or None
    return spec_from_dict({"name": name, **found})


def _add_ffn(found: dict[str, Any], kind: str, config: Mapping[str, Any]) -> None:
    if "ffn" in found:
        return
    if kind in ("gpt2", "gpt_bigcode", "bloom"):
        found["ffn"] = 4 * int(found["hidden"])
    elif kind == "mpt":
        found["ffn"] = int(config.get("expansion_ratio", 4)) * int(found["hidden"])
        attention = config.get("attn_config") or {}
        if attention.get("kv_n_heads"):
            found["kv_heads"] = attention["kv_n_heads"]
        if not config.get("no_bias", False):
            found |= {"norm": "layer", "qkv_bias": True, "out_bias": True, "mlp_bias": True}
        if config.get("learned_pos_emb", True) and not attention.get("alibi") and not attention.get("rope"):
            found["positions"] = config.get("max_seq_len", 2048)


def _add_moe(found: dict[str, Any], kind: str, config: Mapping[str, Any]) -> None:
    if not found.get("experts") or int(found["experts"]) < 2:
        for key in ("experts", "active_experts", "expert_ffn", "shared_experts", "shared_ffn"):
            found.pop(key, None)
        return
    layers = int(found["layers"])
    if kind == "llama4_text":  # intermediate_size is the experts' width here
        found["expert_ffn"] = config["intermediate_size"]
        found["ffn"] = config.get("intermediate_size_mlp", config["intermediate_size"])
        found["shared_experts"] = 1
        step = int(config.get("interleave_moe_layer_step", 1))
        found["dense_layers"] = layers - len(config.get("moe_layers") or range(step - 1, layers, step))
    elif "first_k_dense_replace" in config:
        found["dense_layers"] = config["first_k_dense_replace"]
    elif kind in ("qwen2_moe", "qwen3_moe"):
        step = int(config.get("decoder_sparse_step", 1))
        only = set(config.get("mlp_only_layers") or ())
        found["dense_layers"] = sum((i + 1) % step != 0 or i in only for i in range(layers))
        if found.get("shared_ffn"):
            found["shared_experts"] = 1


def _add_hybrid(found: dict[str, Any], config: Mapping[str, Any]) -> None:
    """Mamba stacks; their prediction blocks have a pattern of their own."""
    if not config.get("hybrid_override_pattern"):
        return
    blocks = int(found.pop("mtp_layers", 0))
    found["layer_pattern"] = (
        config["hybrid_override_pattern"] + blocks * f"/{config.get('mtp_hybrid_override_pattern', '')}"
    )
    keys = {"mamba_heads": "mamba_num_heads", "mamba_head_dim": "mamba_head_dim", "mamba_state": "ssm_state_size",
            "mamba_groups": "n_groups", "moe_latent": "moe_latent_size"}  # fmt: skip
    found |= {field: config[key] for field, key in keys.items() if config.get(key) is not None}


def _add_window(found: dict[str, Any], kind: str, config: Mapping[str, Any]) -> None:
    kinds = config.get("layer_types")
    window = config.get("sliding_window")
    layers = int(found["layers"])
    if kind == "llama4_text":
        window = config.get("attention_chunk_size")
        found["chunked"] = window is not None
        kinds = kinds or ["full" if (i + 1) % 4 == 0 else "chunked_attention" for i in range(layers)]
    if window is None or config.get("use_sliding_window") is False:
        found.pop("chunked", None)
        return
    found["window"] = window
    if kinds:
        found["window_layers"] = sum(str(k).startswith(("sliding", "chunked")) for k in kinds)
    elif kind == "gemma2":
        found["window_layers"] = (layers + 1) // 2
    elif "sliding_window_pattern" in config:
        found["window_layers"] = layers - layers // int(config["sliding_window_pattern"])
    elif kind == "gpt_oss":
        found["window_layers"] = layers // 2
