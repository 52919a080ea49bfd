"""A torch model on the meta device with the matrix products of a TransformerSpec, and nothing else.

    build(spec) -> function: [batch, tokens, hidden] -> a scalar loss

Norms, activations and rotary embeddings are left out: the flop counter does not see them. Routed experts
are one MLP over `active_experts` copies of the tokens, which costs what a balanced dropless layer costs.
Imports torch at import time; only `perfkit.flops.counting` imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from perfkit.errors import UsageError
from perfkit.flops.layers import score_and_value_widths
from perfkit.flops.spec import TransformerSpec

Layer = Callable[[Any], Any]


class _Linear:
    """A weight matrix; plain classes keep torch's (untyped) Module out of the type checker's way."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs = inputs
        self.weight = torch.empty(outputs, inputs, device="meta", requires_grad=True)

    def __call__(self, x: Any) -> Any:
        return functional.linear(x, self.weight)


class _Attention:
    def __init__(self, spec: TransformerSpec) -> None:
        hidden, heads = spec.need("hidden", "heads")
        self.heads, self.mla = heads, spec.mla
        scores, values = score_and_value_widths(spec)
        self.qk_width = scores // heads
        if spec.mla:
            rank, nope, rope = spec.need("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")
            self.nope, self.rope = nope, rope
            self.q_down = _Linear(hidden, spec.q_lora_rank) if spec.q_lora_rank else None
            self.q = _Linear(spec.q_lora_rank or hidden, scores)
            self.kv_down = _Linear(hidden, rank + rope)
            self.kv_up = _Linear(rank, heads * nope + values)
            self.kv_heads = heads
        else:
            self.q = _Linear(hidden, scores)
            self.kv_heads = spec.kv_width // self.qk_width
            self.k, self.v = _Linear(hidden, spec.kv_width), _Linear(hidden, spec.kv_width)
        self.out = _Linear(values, hidden)

    def _split(self, x: Any, heads: int) -> Any:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    def __call__(self, x: Any) -> Any:
        if self.mla:
            q = self._split(self.q(self.q_down(x) if self.q_down is not None else x), self.heads)
            compressed, rope = self.kv_down(x).split([self.kv_up.inputs, self.rope], dim=-1)
            up = self._split(self.kv_up(compressed), self.heads)
            k = torch.cat([up[..., : self.nope], self._split(rope, 1).expand(-1, self.heads, -1, -1)], dim=-1)
            v = up[..., self.nope :]
        else:
            q = self._split(self.q(x), self.heads)
            repeat = self.heads // self.kv_heads
            k, v = (
                self._split(project(x), self.kv_heads).repeat_interleave(repeat, dim=1) for project in (self.k, self.v)
            )
        weights = functional.softmax(q @ k.transpose(-1, -2), dim=-1)  # two plain products: counted in full
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class _Mlp:
    def __init__(self, hidden: int, width: int, gated: bool) -> None:
        self.up, self.down = _Linear(hidden, width), _Linear(width, hidden)
        self.gate = _Linear(hidden, width) if gated else None

    def __call__(self, x: Any) -> Any:
        up = self.up(x)
        return self.down(up if self.gate is None else up * self.gate(x))


class _Moe:
    def __init__(self, spec: TransformerSpec) -> None:
        hidden, experts, self.active = spec.need("hidden", "experts", "active_experts")
        gated = bool(spec.need("gated")[0])
        self.router = _Linear(hidden, experts) if spec.router else None
        self.expert = _Mlp(hidden, spec.expert_width, gated)
        self.shared = _Mlp(hidden, spec.shared_width, gated) if spec.shared_width else None

    def __call__(self, x: Any) -> Any:
        copies = x.unsqueeze(1).expand(-1, self.active, -1, -1).reshape(x.shape[0], -1, x.shape[2])
        y = self.expert(copies).unflatten(1, (self.active, x.shape[1])).sum(1)
        if self.router is not None:
            y = y * self.router(x).sum(-1, keepdim=True)
        return y if self.shared is None else y + self.shared(x)


class _Model:
    def __init__(self, spec: TransformerSpec) -> None:
        layers, hidden, vocab, gated = spec.need("layers", "hidden", "vocab", "gated")
        mlps: list[Layer] = []
        if dense := layers - spec.moe_layers:
            mlps += [_Mlp(hidden, spec.need("ffn")[0], bool(gated)) for _ in range(dense)]
        mlps += [_Moe(spec) for _ in range(spec.moe_layers)]
        self.attention = [_Attention(spec) for _ in range(layers)]
        self.mlps = mlps
        self.head = _Linear(hidden, vocab)

    def __call__(self, x: Any) -> Any:
        for attention, mlp in zip(self.attention, self.mlps, strict=True):
            x = x + attention(x)
            x = x + mlp(x)
        return self.head(x).sum()


def build(spec: TransformerSpec) -> Layer:
    """Build the stand-in; hybrid stacks and multi-token prediction have none."""
    if spec.layer_pattern is not None or spec.mtp_layers:
        raise UsageError("no stand-in for Mamba layers or multi-token prediction", next_step="use mtp_layers=0")
    return _Model(spec)
