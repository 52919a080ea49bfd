"""Count the parameters of a TransformerSpec: all, active, embeddings, adapters.

    total_params(spec), active_params(spec), embedding_params(spec), position_params(spec), lora_params(spec)

A published `n_params` wins over the count. Biases and norms are included, so that presets reproduce
the published totals to the last parameter (a test says so). Multi-token-prediction blocks are left
out, as in the published totals of models that have them (DeepSeek-V3: 671 B, 685 B with the block).
"""

from __future__ import annotations

from perfkit.flops.layers import attention_matrices
from perfkit.flops.spec import CannotCount, TransformerSpec


def total_params(spec: TransformerSpec) -> int:
    """All parameters: the published number, else counted from the shapes."""
    return spec.n_params if spec.n_params is not None else counted_params(spec)


def active_params(spec: TransformerSpec) -> int:
    """Parameters that one token uses: all but the routed experts that it does not visit."""
    if spec.active_params is not None:
        return spec.active_params
    total = total_params(spec)
    if not spec.experts:
        return total
    (active,) = spec.need("active_experts")
    idle = spec.experts - active
    return total - idle * spec.moe_layers * expert_params(spec)


def counted_params(spec: TransformerSpec) -> int:
    """Count from the shapes, whatever `n_params` says."""
    if spec.layer_pattern is not None:
        raise CannotCount("parameters of a hybrid stack are not counted", next_step="give n_params")
    layers, hidden, *_ = spec.need("layers", "hidden", "heads", "vocab", "gated")
    norm = {"rms": 1, "layer": 2, "layer_nobias": 1, "none": 0}[spec.norm] * hidden
    total = layers * (attention_params(spec) + spec.norms_per_layer * norm) + norm
    total += embedding_params(spec) + position_params(spec)
    dense = layers - spec.moe_layers
    if dense:
        total += dense * _mlp_params(spec, spec.need("ffn")[0])
    if spec.experts:
        router = hidden * spec.experts if spec.router else 0
        shared = _mlp_params(spec, spec.shared_width) if spec.shared_width else 0
        total += spec.moe_layers * (router + spec.experts * expert_params(spec) + shared)
    return total + (0 if spec.tied else embedding_params(spec))


def attention_params(spec: TransformerSpec) -> int:
    """Matrices, biases and norms of one attention block."""
    hidden, _ = spec.need("hidden", "heads")
    if spec.mla:
        return attention_matrices(spec, norms=True)
    q, kv = spec.query_width, spec.kv_width
    biases = (q + 2 * kv if spec.qkv_bias else 0) + (hidden if spec.out_bias else 0)
    return attention_matrices(spec, norms=False) + biases + (2 * spec.head_width if spec.qk_norm else 0)


def expert_params(spec: TransformerSpec) -> int:
    """Parameters of one routed expert."""
    return _mlp_params(spec, spec.expert_width)


def _mlp_params(spec: TransformerSpec, width: int) -> int:
    hidden, gated = spec.need("hidden", "gated")
    ups = 2 if gated else 1
    return (ups + 1) * hidden * width + (ups * width + hidden if spec.mlp_bias else 0)


def embedding_params(spec: TransformerSpec) -> int:
    """Count the token embedding; the output projection has the same size."""
    vocab, hidden = spec.need("vocab", "hidden")
    return vocab * hidden


def position_params(spec: TransformerSpec) -> int:
    """Learned position embeddings; none for rotary and ALiBi models."""
    if spec.positions is None:
        return 0
    (hidden,) = spec.need("hidden")
    return (spec.positions or spec.need("seq_len")[0]) * hidden


def lora_params(spec: TransformerSpec) -> int:
    """Adapter parameters on a token's path: rank x (inputs + outputs) of every target matrix."""
    if not spec.lora_rank:
        return 0
    layers, hidden, _ = spec.need("layers", "hidden", "heads")
    if spec.mla:
        raise CannotCount("LoRA on latent attention is not modelled")
    q, kv = spec.query_width, spec.kv_width
    sizes = {"q": hidden + q, "k": hidden + kv, "v": hidden + kv, "o": q + hidden}
    if any(target in ("gate", "up", "down") for target in spec.lora_targets):
        if spec.experts:
            raise CannotCount("LoRA on experts is not modelled", next_step="use the targets q, k, v, o")
        (ffn,) = spec.need("ffn")
        sizes |= dict.fromkeys(("gate", "up", "down"), hidden + ffn)
    return layers * spec.lora_rank * sum(sizes[target] for target in spec.lora_targets)
