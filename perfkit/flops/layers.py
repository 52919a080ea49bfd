"""Forward FLOPs of one token from the shapes of the layers, as Megatron and MaxText count them.

    megatron_terms(spec, …) -> (linear, attention, head)
    maxtext_terms(spec, …) -> (linear, attention, head)

One multiply-add is two FLOPs. `perfkit.flops.conventions` names these and says where they come from.
"""

from __future__ import annotations

from perfkit.flops.spec import CannotCount, TransformerSpec


def score_and_value_widths(spec: TransformerSpec) -> tuple[int, int]:
    """Widths, over all heads, of the score product and of the value product."""
    if spec.mla:
        heads, nope, rope, value = spec.need("heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        return heads * (nope + rope), heads * value
    return spec.query_width, spec.query_width


def attention_matrices(spec: TransformerSpec, *, norms: bool) -> int:
    """Weights of one attention block; `norms` adds MLA's two norms, as Megatron does."""
    (hidden,) = spec.need("hidden")
    if not spec.mla:
        return 2 * hidden * (spec.query_width + spec.kv_width)
    scores, values = score_and_value_widths(spec)
    heads, rank, nope, rope = spec.need("heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")
    norm = 1 if norms else 0
    query = hidden * scores if not spec.q_lora_rank else spec.q_lora_rank * (hidden + scores + norm)
    key_value = rank * (hidden + heads * nope + values + norm)
    return query + key_value + hidden * rope + values * hidden


def window_layers(spec: TransformerSpec) -> int:
    """Layers whose attention has a window."""
    (layers,) = spec.need("layers")
    if spec.window is None:
        return 0
    return layers if spec.window_layers is None else spec.window_layers


def exact_window_context(window: float, tokens: float) -> float:
    """Mean number of tokens that a token sees through a causal sliding window of `window` tokens."""
    return tokens / 2 if window >= tokens else window - window * (window - 1) / (2 * tokens)


def megatron_terms(
    spec: TransformerSpec, *, causal: bool, windows: bool, every_gate: bool
) -> tuple[float, float, float]:
    """Megatron's count; see the conventions megatron, megatron-full and megatron-bridge."""
    hidden, vocab, gated = spec.need("hidden", "vocab", "gated")
    swiglu = spec.activation in (None, "silu", "swiglu")
    mats = 3 if gated and (every_gate or swiglu) else 2
    half = 0.5 if causal and spec.attention == "causal" else 1.0
    if spec.layer_pattern is not None:
        predictions = spec.layer_pattern.count("/")
        if spec.mtp_layers not in (0, predictions):
            raise CannotCount("prediction blocks of a hybrid stack belong into layer_pattern, as /*E")
        head = 2.0 * hidden * vocab * (1 + predictions)
        return (*_hybrid_terms(spec, spec.layer_pattern, mats=mats, half=half), head)
    head = 2.0 * hidden * vocab * (1 + spec.mtp_layers)
    layers, _ = spec.need("layers", "heads")
    blocks = layers + spec.mtp_layers
    linear = 2.0 * blocks * attention_matrices(spec, norms=True)
    linear += 2.0 * hidden * mats * _mlp_width(spec, layers)
    linear += 2.0 * spec.mtp_layers * (3 * hidden + 2 * hidden**2)
    width = sum(score_and_value_widths(spec))
    sliding = window_layers(spec) if windows else 0
    attention = 2.0 * width * (blocks - sliding) * spec.context * half
    if sliding:
        attention += 2.0 * width * sliding * exact_window_context(spec.need("window")[0], spec.context)
    return linear, attention, head


def _mlp_width(spec: TransformerSpec, layers: int) -> int:
    """Inner MLP widths that a token passes, summed over the layers (MTP blocks are like the last layer)."""
    moe = spec.moe_layers + (spec.mtp_layers if spec.experts else 0)
    dense = layers + spec.mtp_layers - moe
    total = dense * spec.need("ffn")[0] if dense else 0
    if moe:
        total += moe * (spec.need("active_experts")[0] * spec.expert_width + spec.shared_width)
    return total


def _hybrid_terms(spec: TransformerSpec, pattern: str, *, mats: int, half: float) -> tuple[float, float]:
    """Mamba, attention, MLP and MoE blocks in any order, as Megatron's hybrid count."""
    (d,) = spec.need("hidden")
    linear = attention = 0.0
    if count := pattern.count("*"):
        spec.need("heads")
        linear += count * 2.0 * attention_matrices(spec, norms=True)
        attention += count * 2.0 * sum(score_and_value_widths(spec)) * spec.context * half
    if count := pattern.count("-"):
        linear += count * 2.0 * mats * d * spec.need("ffn")[0]
    if count := pattern.count("E"):
        routed = spec.need("active_experts")[0] * spec.expert_width
        linear += count * 2.0 * mats * ((spec.moe_latent or d) * routed + d * spec.shared_width)
        linear += count * 4.0 * d * spec.moe_latent if spec.moe_latent else 0.0
    if count := pattern.count("M"):
        heads, state, groups = spec.need("mamba_heads", "mamba_state", "mamba_groups")
        inner = 2 * d  # the source's expansion; mamba_head_dim does not enter
        into = 2 * inner + 2 * groups * state + heads
        linear += count * (2.0 * d * into + 2.0 * inner * d)
        attention += count * 7.0 * inner * state
    return linear, attention


def maxtext_terms(spec: TransformerSpec, *, causal: bool) -> tuple[float, float, float]:
    """MaxText's count; see the convention maxtext."""
    layers, hidden, _, vocab, gated = spec.need("layers", "hidden", "heads", "vocab", "gated")
    if spec.layer_pattern is not None:
        raise CannotCount("the formula knows no Mamba layers")
    mats = 3 if gated else 2
    linear = 2.0 * layers * attention_matrices(spec, norms=False)
    dense = layers - spec.moe_layers
    if dense:
        linear += 2.0 * dense * mats * hidden * spec.need("ffn")[0]
    if spec.moe_layers:
        active, experts = spec.need("active_experts", "experts")
        per_token = active * spec.expert_width + spec.shared_width
        linear += 2.0 * spec.moe_layers * hidden * (mats * per_token + experts)
    tokens = spec.context
    local = window_layers(spec)
    seen = 0.0
    if local:
        (window,) = spec.need("window")
        seen = _chunk_context(window, tokens) if spec.chunked else min(float(window), tokens)
    half = 0.5 if causal and spec.attention == "causal" else 1.0
    attention = 2.0 * sum(score_and_value_widths(spec)) * half * ((layers - local) * tokens + local * seen)
    return linear, attention, 2.0 * hidden * vocab


def _chunk_context(chunk: int, tokens: float) -> float:
    """Mean length of the chunk that a token lies in."""
    whole, rest = divmod(tokens, chunk)
    return (whole * chunk**2 + rest**2) / tokens
