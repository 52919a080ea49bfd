"""TransformerSpec: what the FLOPs conventions may ask about a model.

    TransformerSpec(layers=32, hidden=4096, …)         from keywords
    spec_from_dict({"layers": 32, …})                  from JSON; refuses keys that it does not know
    perfkit.flops.presets.preset("llama3-8b")          from a name
    perfkit.flops.huggingface.spec_from_hf(config)     from a config.json

Everything may be left out: a convention that needs a missing field says so by name, and the others
still answer. Nothing is filled in silently, except where the default is the definition (`kv_heads` is
`heads`, `head_dim` is `hidden / heads`).
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfkit.errors import UsageError
from perfkit.flops.quantities import LARGEST, read_count, read_number


@dataclass(frozen=True, kw_only=True)
class TransformerSpec:
    """A decoder or encoder stack as the conventions see it. Counts are per model, not per device."""

    name: str | None = None
    """What to call it."""
    layers: int | None = None
    """Transformer blocks, without multi-token-prediction blocks."""
    hidden: int | None = None
    """Width of the residual stream."""
    heads: int | None = None
    """Query heads."""
    kv_heads: int | None = None
    """Key/value heads (GQA); default: heads."""
    head_dim: int | None = None
    """Width of a head; default: hidden / heads."""
    ffn: int | None = None
    """Inner width of a dense MLP."""
    gated: bool | None = None
    """Whether the MLP has a gate (SwiGLU, GeGLU): three matrices instead of two."""
    activation: str | None = None
    """`silu` (the default for a gated MLP), `geglu`, …: Megatron's counter sees a gate only with SiLU."""
    vocab: int | None = None
    """Rows of the output projection, padding included."""
    tied: bool | None = None
    """Input embedding and output projection are one matrix."""
    n_params: int | None = None
    """All parameters, if published; else they are counted from the shapes."""
    active_params: int | None = None
    """Parameters that one token uses, if published (MoE)."""
    seq_len: int | None = None
    """Tokens per sequence."""
    attention_len: float | None = None
    """Packed sequences: sum of squared document lengths over their sum; default: seq_len."""
    attention: str = "causal"
    """`causal` or `full` (encoders): whether a convention that halves causal attention may halve."""
    window: int | None = None
    """Sliding (or chunked) attention window in tokens."""
    window_layers: int | None = None
    """Layers that have the window; default: all of them."""
    chunked: bool = False
    """The window is a chunk (Llama 4): attention within blocks of `window` tokens."""
    experts: int | None = None
    """Routed experts of a MoE layer."""
    active_experts: int | None = None
    """Routed experts per token (top-k); shared ones are not counted here."""
    shared_experts: int = 0
    """Experts that every token uses."""
    expert_ffn: int | None = None
    """Inner width of one expert; default: ffn."""
    shared_ffn: int | None = None
    """Inner width of all shared experts together; default: shared_experts x expert_ffn."""
    dense_layers: int = 0
    """Layers of a MoE model that have a dense MLP."""
    router: bool = True
    """The router is a linear layer from hidden to experts."""
    q_lora_rank: int | None = None
    """MLA: rank of the query compression; null: queries are not compressed."""
    kv_lora_rank: int | None = None
    """MLA: rank of the key/value compression; given if and only if the model has MLA."""
    qk_nope_head_dim: int | None = None
    """MLA: width of a head's part without rotary embedding."""
    qk_rope_head_dim: int | None = None
    """MLA: width of a head's rotary part."""
    v_head_dim: int | None = None
    """MLA: width of a head's value."""
    mtp_layers: int = 0
    """Multi-token-prediction blocks behind the stack."""
    layer_pattern: str | None = None
    """Hybrid models, one letter per block: M Mamba, * attention, - MLP, E MoE; `/*E` adds a prediction block."""
    mamba_heads: int | None = None
    """Mamba: heads of a block."""
    mamba_head_dim: int | None = None
    """Mamba: width of a head; kept for the record, no formula asks for it."""
    mamba_state: int | None = None
    """Mamba: width of the state."""
    mamba_groups: int | None = None
    """Mamba: groups that share B and C."""
    moe_latent: int | None = None
    """Width that routed experts work in, if it is smaller than hidden (Nemotron 3 Super)."""
    frozen_params: int | None = None
    """Parameters on the token's path that get no weight gradient (4 FLOPs instead of 6)."""
    lora_rank: int | None = None
    """LoRA: rank of the adapters; the rest is then frozen unless frozen_params says how much."""
    lora_targets: tuple[str, ...] = ("q", "k", "v", "o")
    """LoRA: which matrices have adapters, of q, k, v, o, gate, up, down."""
    norm: str = "rms"
    """`rms` (one vector), `layer` (two), `layer_nobias` (one) or `none`; for the parameter count."""
    norms_per_layer: int = 2
    """Norms of the model's width in a layer; for the parameter count."""
    qk_norm: bool = False
    """Queries and keys are normalised per head; for the parameter count."""
    qkv_bias: bool = False
    """Biases of q, k and v; for the parameter count."""
    out_bias: bool = False
    """Bias of the attention's output; for the parameter count."""
    mlp_bias: bool = False
    """Biases of the MLP; for the parameter count."""
    positions: int | None = None
    """Learned position embeddings; 0 means one per token of seq_len (MPT)."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if not 0 <= value < LARGEST or (value == 0 and field.name in _POSITIVE):
                raise UsageError(f"{field.name} = {value} makes no sense", next_step="use a positive number")
        if self.attention not in ("causal", "full"):
            raise UsageError(f"attention = {self.attention!r}", next_step="use 'causal' or 'full'")
        if self.norm not in ("rms", "layer", "layer_nobias", "none"):
            raise UsageError(f"norm = {self.norm!r}", next_step="use rms, layer, layer_nobias or none")
        self._check_heads()
        if self.experts and self.active_experts and self.active_experts > self.experts:
            raise UsageError(f"active_experts = {self.active_experts} of {self.experts} experts makes no sense")
        if self.layers is not None and (self.window_layers or 0) > self.layers:
            raise UsageError(f"window_layers = {self.window_layers} of {self.layers} layers makes no sense")
        if self.layers is not None and self.dense_layers > self.layers:
            raise UsageError(f"dense_layers = {self.dense_layers} of {self.layers} layers makes no sense")
        if bad := set(self.lora_targets) - {"q", "k", "v", "o", "gate", "up", "down"}:
            raise UsageError(f"lora_targets {sorted(bad)} are not known", next_step="use q, k, v, o, gate, up, down")
        if self.layer_pattern is not None and (bad := set(self.layer_pattern) - set("M*-E/")):
            raise UsageError(f"layer_pattern has {sorted(bad)}", next_step="use M, *, -, E and /")

    def _check_heads(self) -> None:
        """Refuse head counts that no model has: they are typing errors, and a quiet one is a wrong MFU."""
        if self.heads is None or self.mla:
            return
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise UsageError(f"{self.heads} heads cannot share {self.kv_heads} kv_heads evenly")
        if self.head_dim is None and self.hidden is not None and self.hidden % self.heads:
            raise UsageError(
                f"hidden = {self.hidden} is not a multiple of heads = {self.heads}", next_step="give head_dim"
            )

    def need(self, *fields: str) -> tuple[int, ...]:
        """Return these fields, in order; raise `MissingFields` if one is not known."""
        values = tuple(getattr(self, field) for field in fields)
        if None in values:
            raise MissingFields(tuple(field for field, value in zip(fields, values, strict=True) if value is None))
        return values

    @property
    def context(self) -> float:
        """Tokens that a token's attention spans before masks: the sequence, or its packed equivalent."""
        if self.attention_len is not None:
            return self.attention_len
        return float(self.need("seq_len")[0])

    @property
    def mla(self) -> bool:
        """Whether attention is multi-head latent attention."""
        return self.kv_lora_rank is not None

    @property
    def head_width(self) -> int:
        """Width of a query head."""
        if self.head_dim is not None:
            return self.head_dim
        hidden, heads = self.need("hidden", "heads")
        return hidden // heads

    @property
    def query_width(self) -> int:
        """Heads times head width (H·Q); the hidden width if the heads are not known."""
        if self.heads is None:
            return self.need("hidden")[0]
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        """Width of the keys (and of the values) of one token."""
        kv_heads = self.kv_heads if self.kv_heads is not None else self.heads
        if kv_heads is None:
            return self.query_width
        return kv_heads * self.head_width

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        if not self.experts:
            return 0
        return self.need("layers")[0] - self.dense_layers

    @property
    def shared_width(self) -> int:
        """Inner width of all shared experts together."""
        if self.shared_ffn is not None:
            return self.shared_ffn
        if not self.shared_experts:
            return 0
        return self.shared_experts * self.expert_width

    @property
    def expert_width(self) -> int:
        """Inner width of one routed expert."""
        width = self.expert_ffn if self.expert_ffn is not None else self.ffn
        if width is None:
            raise MissingFields(("expert_ffn",))
        return width


class CannotCount(UsageError):
    """A convention has no answer for this model; the others may."""


class MissingFields(CannotCount):
    """A convention or a count needs fields that the spec does not have."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        super().__init__(f"needs {', '.join(fields)}", next_step="give them as flags or in the spec")
        self.fields = fields


_POSITIVE = frozenset(
    ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "n_params", "active_params", "seq_len",
     "window", "experts", "active_experts", "expert_ffn", "kv_lora_rank", "lora_rank")
)  # fmt: skip

FIELDS: dict[str, dataclasses.Field[Any]] = {field.name: field for field in dataclasses.fields(TransformerSpec)}
"""Every key of a spec."""

_MLA_KEYS = {"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}
_ALIASES = {"qk_head_dim": "qk_nope_head_dim", "qk_pos_emb_head_dim": "qk_rope_head_dim", "mtp": "mtp_layers",
            "top_k": "active_experts"}  # fmt: skip


def spec_from_dict(document: Mapping[str, Any], *, base: TransformerSpec | None = None) -> TransformerSpec:
    """Build a spec from JSON keys, on top of `base` if given. `mla` may be a table of the MLA keys."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if key == "mla":
            if isinstance(value, Mapping):
                flat.update(value)
            elif value and not _MLA_KEYS & set(document):
                raise UsageError("mla is true but its widths are missing", next_step=f"give {sorted(_MLA_KEYS)}")
        else:
            flat[key] = value
    flat = {_ALIASES.get(key, key): value for key, value in flat.items()}
    for key in flat:
        if key not in FIELDS:
            close = difflib.get_close_matches(key, FIELDS, n=1, cutoff=0.6)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise UsageError(f"unknown spec key {key!r}", next_step=f"{hint}known keys: {', '.join(FIELDS)}")
    values = {key: _convert(key, value) for key, value in flat.items() if value is not None}
    return dataclasses.replace(base, **values) if base is not None else TransformerSpec(**values)


def _convert(key: str, value: Any) -> Any:
    kind = str(FIELDS[key].type)
    try:
        if kind.startswith("bool"):
            return _to_bool(value)
        if kind.startswith("int"):
            return read_count(key, value)
        if kind.startswith("float"):
            return read_number(key, value)
        if kind.startswith("tuple"):
            parts = value.replace(",", " ").split() if isinstance(value, str) else value
            return tuple(str(part) for part in parts)
        return str(value)
    except (TypeError, ValueError):
        raise UsageError(f"{key} = {value!r} is not {kind.split(' ')[0]}") from None


def _to_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("true", "yes", "1", "1.0"):
        return True
    if text in ("false", "no", "0", "0.0"):
        return False
    raise ValueError(text)
