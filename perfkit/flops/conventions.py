"""FLOPs of one trained token, by named conventions.

    CONVENTIONS["palm"].count(spec, recompute="none") -> TokenFlops

A convention is a function from a `TransformerSpec` to the forward FLOPs of one token in three terms:
`linear` (matrices of the layers), `attention` (scores and values) and `head` (logits). Training costs
three forwards, because a matrix has two backward products; `TokenFlops` applies that, frozen weights,
LoRA and recompute the same way for all conventions. The conventions differ by 1.5x on the same run:
the docstring of each says what it counts and where it differs. The formulas are those of their sources,
quirks included; none is corrected here, because their tables are what a number gets compared with.

N active parameters, L layers, d hidden width, H heads of width Q, K key/value heads, f MLP width,
V vocabulary, T tokens per sequence (for packed documents: sum of squares over sum).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from perfkit.errors import UsageError
from perfkit.flops import layers as shapes
from perfkit.flops.params import active_params, embedding_params, lora_params, position_params
from perfkit.flops.spec import CannotCount, TransformerSpec

RECOMPUTE = ("none", "selective", "full")
"""What the backward pass computes again: nothing, core attention, or every layer's forward."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Forward FLOPs of one token."""

    linear: float
    attention: float
    head: float

    @property
    def forward(self) -> float:
        """All of them."""
        return self.linear + self.attention + self.head


@dataclass(frozen=True, slots=True)
class TokenFlops:
    """Training FLOPs of one token by one convention."""

    convention: str
    forward: float
    parts: dict[str, float]
    """Model FLOPs by term: linear, attention, head; the split that mixed precision needs."""
    hardware_parts: dict[str, float]
    """The same with recompute."""

    @property
    def model(self) -> float:
        """Without recompute; what MFU divides."""
        return sum(self.parts.values())

    @property
    def hardware(self) -> float:
        """With recompute; what HFU divides."""
        return sum(self.hardware_parts.values())

    @property
    def backward(self) -> float:
        """Model FLOPs that are not the forward pass."""
        return self.model - self.forward


@dataclass(frozen=True)
class Convention:
    """A named way to count."""

    name: str
    terms: Callable[[TransformerSpec], Terms]
    attention: str
    """`full`: as if every token saw every other; `causal`: halved; `none`: not counted."""
    source: str
    doc: str
    recompute_included: bool = False
    """The published figure already has a recomputed forward in it."""
    recompute_all: bool = False
    """Full recompute repeats the logits as well (MFU x 4/3)."""
    selective_factor: float = 1.0
    """Forwards of core attention that selective recompute is charged."""

    def count(self, spec: TransformerSpec, *, recompute: str = "none") -> TokenFlops:
        """Count training FLOPs of one token; raises `CannotCount` if the formula has no answer."""
        if recompute not in RECOMPUTE:
            raise UsageError(f"recompute {recompute!r} is not known", next_step=f"use one of {', '.join(RECOMPUTE)}")
        terms = self.terms(spec)
        parts = _train(terms, spec)
        if self.recompute_included:
            recompute = "none"  # it is in the figure already
            parts["linear"] += terms.linear
            parts["attention"] += terms.attention
        executed = dict(parts)
        if recompute == "selective":
            executed["attention"] += self.selective_factor * terms.attention
        elif recompute == "full":
            executed["linear"] += terms.linear
            executed["attention"] += terms.attention
            executed["head"] += terms.head if self.recompute_all else 0.0
        forward = terms.forward + 2 * lora_params(spec)
        return TokenFlops(self.name, forward, parts, executed)


def _train(terms: Terms, spec: TransformerSpec) -> dict[str, float]:
    """Forward to forward and backward: inputs' gradients for all, weights' gradients for what is trained."""
    adapters = lora_params(spec)
    frozen = spec.frozen_params
    if frozen is None:
        frozen = int((terms.linear + terms.head) / 2) if adapters else 0
    weights = 2.0 * min(frozen, (terms.linear + terms.head) / 2)
    total = terms.linear + terms.head
    share = weights / total if total else 0.0
    return {
        "linear": terms.linear * (3 - share) + 6.0 * adapters,
        "attention": 3 * terms.attention,
        "head": terms.head * (3 - share),
    }


CONVENTIONS: dict[str, Convention] = {}
"""All conventions by name."""


def _convention(
    name: str,
    *,
    attention: str,
    source: str,
    recompute_included: bool = False,
    recompute_all: bool = False,
    selective_factor: float = 1.0,
) -> Callable[[Callable[[TransformerSpec], Terms]], Callable[[TransformerSpec], Terms]]:
    def register(terms: Callable[[TransformerSpec], Terms]) -> Callable[[TransformerSpec], Terms]:
        doc = (terms.__doc__ or "").strip()
        CONVENTIONS[name] = Convention(
            name, terms, attention, source, doc, recompute_included, recompute_all, selective_factor
        )
        return terms

    return register


def get_convention(name: str) -> Convention:
    """Return a convention by name; case, spaces and underscores do not matter."""
    try:
        return CONVENTIONS[re.sub(r"[\s_-]+", "-", name.strip().lower())]
    except KeyError:
        raise UsageError(f"unknown convention {name!r}", next_step=f"use one of {', '.join(CONVENTIONS)}") from None


def _by_params(spec: TransformerSpec, params: int, attention: float) -> Terms:
    """Split 2N into layers and head; without a vocabulary the head stays inside `linear`."""
    head = 2.0 * embedding_params(spec) if spec.vocab is not None and spec.hidden is not None else 0.0
    head = min(head, 2.0 * params)
    return Terms(2.0 * params - head, attention, head)


@_convention("palm", attention="full", source="PaLM, arXiv 2204.02311, appendix B")
def palm(spec: TransformerSpec) -> Terms:
    """6N + 12·L·H·Q·T. N is every parameter, embeddings included; attention in full, not halved for the mask.

    MoE: N is the active parameters. Window, MLA and multi-token prediction are not seen.
    """
    (layers,) = spec.need("layers")
    return _by_params(spec, active_params(spec), 4.0 * layers * spec.query_width * spec.context)


@_convention("nanogpt", attention="full", source="karpathy/nanoGPT model.py estimate_mfu")
def nanogpt(spec: TransformerSpec) -> Terms:
    """6N + 12·L·H·Q·T as palm, but N is without learned position embeddings (the tied token embedding stays in)."""
    (layers,) = spec.need("layers")
    params = active_params(spec) - position_params(spec)
    return _by_params(spec, params, 4.0 * layers * spec.query_width * spec.context)


@_convention(
    "llm-foundry",
    attention="full",
    source="mosaicml/llm-foundry scripts/train/benchmarking/README.md",
    recompute_all=True,
)
def llm_foundry(spec: TransformerSpec) -> Terms:
    """3·(2N·T + 4·L·d·T²) a sequence. N is every parameter; attention by d_model, not H·Q, in full.

    HFU with activation checkpointing is 4/3 MFU, logits included.
    """
    layers, hidden = spec.need("layers", "hidden")
    return _by_params(spec, active_params(spec), 4.0 * layers * hidden * spec.context)


@_convention("torchtitan", attention="full", source="pytorch/torchtitan torchtitan/models/utils.py")
def torchtitan(spec: TransformerSpec) -> Terms:
    """6·(N − embedding) + 6·L·H·(qk + v widths)·T. Without the token embedding; attention in full.

    Its tables of 2024 on A100 were made before the embedding was left out: they are `palm`.
    MoE: active experts, shared experts and the router. With tied weights the source subtracts the only
    copy, so that logits are not counted: kept. Multi-token prediction is not seen.
    """
    (layers,) = spec.need("layers")
    params = active_params(spec) - embedding_params(spec)
    width = sum(shapes.score_and_value_widths(spec))
    terms = _by_params(spec, params, 2.0 * layers * width * spec.context)
    return Terms(terms.linear + terms.head, terms.attention, 0.0) if spec.tied else terms


@_convention("6n", attention="none", source="Kaplan et al., arXiv 2001.08361 (6 FLOPs a parameter and token)")
def six_n(spec: TransformerSpec) -> Terms:
    """6N: no attention term at all. N is every active parameter. Low by the share of attention, which grows with T."""
    return _by_params(spec, active_params(spec), 0.0)


@_convention("megatron", attention="causal", source="NVIDIA/Megatron-LM megatron/training/training.py")
def megatron(spec: TransformerSpec) -> Terms:
    """By shapes: 12·L·d·(Q·H·(1 + K/H) + f·(3/2 if gated)) + 6·V·d + 6·L·Q·H·T; attention halved for the mask.

    Counts logits, GQA, MLA, active and shared experts and multi-token prediction; not the router, and no
    window: sliding layers count as causal ones. A gate is seen only with SiLU (`args.swiglu`, or
    `gated_linear_unit and activation_func == F.silu`): the MLP of gpt-oss, Grok-1 or Gemma counts as two
    matrices, as Megatron-Bridge printed up to 26.04. `megatron-bridge` counts every gate.
    """
    return Terms(*shapes.megatron_terms(spec, causal=True, windows=False, every_gate=False))


@_convention("megatron-full", attention="full", source="NVIDIA/Megatron-LM before 2025; NVIDIA/NeMo flops_formulas.py")
def megatron_full(spec: TransformerSpec) -> Terms:
    """As megatron, with attention in full (12·L·Q·H·T): what Megatron printed before 2025, and NeMo's formulas."""
    return Terms(*shapes.megatron_terms(spec, causal=False, windows=False, every_gate=False))


@_convention(
    "megatron-bridge", attention="causal", source="NVIDIA-NeMo/Megatron-Bridge@0494433 training/utils/flop_utils.py"
)
def megatron_bridge(spec: TransformerSpec) -> Terms:
    """As megatron, with every gate counted and sliding layers by their exact window: W − W·(W − 1)/2T tokens."""
    return Terms(*shapes.megatron_terms(spec, causal=True, windows=True, every_gate=True))


@_convention(
    "narayanan",
    attention="full",
    source="Narayanan et al., arXiv 2104.04473, section 5",
    recompute_included=True,
)
def narayanan(spec: TransformerSpec) -> Terms:
    """96·B·s·l·h²·(1 + s/6h + V/16lh) a batch: four forwards of the layers, so recompute is in the figure.

    It is a hardware utilisation by nature: MFU and HFU are the same number here, and MFU proper is about 3/4
    of it. Attention in full, heads as wide as the model, an ungated MLP of 4h.
    """
    return _gpt_terms(spec)


@_convention(
    "korthikanti",
    attention="full",
    source="Korthikanti et al., arXiv 2205.05198, appendix A",
    selective_factor=3.0,
)
def korthikanti(spec: TransformerSpec) -> Terms:
    """72·B·L·s·h²·(1 + s/6h + v/12hL) a batch, without recompute; attention in full, ungated MLP of 4h.

    Hardware FLOPs with selective recompute are 72·B·L·s·h²·(1 + s/3h + v/12hL): the paper charges core
    attention twice over, forward and backward, where one more forward would be s/4.5h. Kept.
    """
    return _gpt_terms(spec)


def _gpt_terms(spec: TransformerSpec) -> Terms:
    layers, hidden, vocab = spec.need("layers", "hidden", "vocab")
    if spec.experts or spec.mla or spec.layer_pattern is not None:
        raise CannotCount("the formula knows no experts, no latent attention and no Mamba layers")
    return Terms(24.0 * layers * hidden**2, 4.0 * layers * hidden * spec.context, 2.0 * hidden * vocab)


@_convention("maxtext", attention="causal", source="AI-Hypercomputer/maxtext@020763f maxtext_utils.py")
def maxtext(spec: TransformerSpec) -> Terms:
    """By shapes, attention halved, windows and chunks counted, the router counted, no multi-token prediction.

    A window costs T·min(W, T), halved like the rest; a chunked layer the squares of its chunks.
    """
    return Terms(*shapes.maxtext_terms(spec, causal=True))


@_convention("maxtext-full", attention="full", source="AI-Hypercomputer/maxtext before April 2025")
def maxtext_full(spec: TransformerSpec) -> Terms:
    """As maxtext, with attention not halved: what MaxText printed before April 2025."""
    return Terms(*shapes.maxtext_terms(spec, causal=False))
