"""A Llama-style decoder: RMSNorm, RoPE, grouped-query attention, SwiGLU, and optional mixture of experts.

    Decoder(ModelConfig(dim=256, layers=4))(tokens) -> logits       [batch, seq] -> [batch, seq, vocab]
    config.spec()                                   -> the same model as perfkit counts its FLOPs

Shapes are never read where a sharded tensor would lie about them: heads are split off with
`unflatten(-1, (-1, head_dim))`, so that the same code runs on a tensor-parallel rank with fewer heads. A block
recomputes itself in the backward pass, from inside: hooks of FSDP on the block then run once, not twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from perfkit.errors import UsageError

if TYPE_CHECKING:
    from perfkit.flops.spec import TransformerSpec

RECOMPUTE = ("none", "selective", "full")


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    """Shape of the decoder."""

    vocab: int = 2048
    """Rows of the embedding."""
    dim: int = 256
    """Width of the residual stream."""
    layers: int = 4
    """Blocks."""
    heads: int = 8
    """Query heads."""
    kv_heads: int = 4
    """Key and value heads."""
    ffn: int = 768
    """Inner width of the MLP, or of one expert."""
    seq_len: int = 128
    """Tokens of a sequence."""
    experts: int = 0
    """Routed experts of each block; 0 is a dense model."""
    active_experts: int = 2
    """Experts of a token."""
    rope_theta: float = 10_000.0
    """Base of the rotary frequencies."""
    norm_eps: float = 1e-5
    """Added to the mean square."""
    recompute: str = "none"
    """Activation checkpointing: none, selective (keep matrix products and attention) or full."""

    def __post_init__(self) -> None:
        if self.dim % self.heads or (self.dim // self.heads) % 2 or self.heads % self.kv_heads:
            raise UsageError(
                f"model.dim {self.dim}, heads {self.heads} and kv_heads {self.kv_heads} do not divide",
                next_step="dim / heads must be even, and heads a multiple of kv_heads",
            )
        if self.recompute not in RECOMPUTE:
            raise UsageError(f"model.recompute {self.recompute!r}", next_step=f"use one of {', '.join(RECOMPUTE)}")
        if self.experts and not 0 < self.active_experts <= self.experts:
            raise UsageError(f"model.active_experts {self.active_experts} of {self.experts} experts makes no sense")

    def spec(self) -> TransformerSpec:
        """Return the model as the FLOPs conventions see it."""
        from perfkit.flops.spec import TransformerSpec

        return TransformerSpec(
            name="reference", layers=self.layers, hidden=self.dim, heads=self.heads, kv_heads=self.kv_heads,
            ffn=self.ffn, gated=True, vocab=self.vocab, tied=False, seq_len=self.seq_len,
            experts=self.experts or None, active_experts=self.active_experts if self.experts else None,
            expert_ffn=self.ffn if self.experts else None,
        )  # fmt: skip


def rope_table(config: ModelConfig) -> Tensor:
    """Return cos and sin of every position and frequency: [2, seq, head_dim / 2]."""
    head_dim = config.dim // config.heads
    frequency = config.rope_theta ** -(torch.arange(0, head_dim, 2).float() / head_dim)
    angle = torch.arange(config.seq_len).float()[:, None] * frequency
    return torch.stack((angle.cos(), angle.sin()))


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate pairs of [batch, seq, heads, head_dim] by their position."""
    cos, sin = rope[0][:, None], rope[1][:, None]
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


class Attention(nn.Module):
    """Causal grouped-query attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.dim // config.heads
        self.wq = nn.Linear(config.dim, config.heads * self.head_dim, bias=False)
        self.wk = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(config.heads * self.head_dim, config.dim, bias=False)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        """Attend."""
        split = (-1, self.head_dim)
        q = rotate(self.wq(x).unflatten(-1, split), rope).transpose(1, 2)
        k = rotate(self.wk(x).unflatten(-1, split), rope).transpose(1, 2)
        v = self.wv(x).unflatten(-1, split).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out: Tensor = self.wo(mixed.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.dim, config.ffn, bias=False)
        self.up = nn.Linear(config.dim, config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return down(silu(gate(x)) · up(x))."""
        out: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return out


class MixtureOfExperts(nn.Module):
    """Route every token to its best experts; none is dropped.

    An expert without tokens still multiplies an empty matrix: every parameter gets a gradient on every rank, which
    DDP and FSDP rely on. There is no balancing loss: this model is trained for minutes.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.active = config.active_experts
        self.router = nn.Linear(config.dim, config.experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(config) for _ in range(config.experts))

    def forward(self, x: Tensor) -> Tensor:
        """Sum the chosen experts, weighed by the router."""
        tokens = x.flatten(0, 1)
        weight, chosen = self.router(tokens).softmax(-1).topk(self.active, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            row, slot = torch.where(chosen == number)
            part = expert(tokens[row]) * weight[row, slot, None]
            out = out.index_add(0, row, part.to(out.dtype))
        return out.view_as(x)


class Block(nn.Module):
    """Attention and MLP, each behind a norm and around a residual."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.recompute = config.recompute
        self.attention_norm = nn.RMSNorm(config.dim, config.norm_eps)
        self.attention = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.dim, config.norm_eps)
        self.mlp: nn.Module = MixtureOfExperts(config) if config.experts else FeedForward(config)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        """Run the block, keeping its activations or not."""
        if self.recompute == "none" or not torch.is_grad_enabled():
            return self.layers(x, rope)
        options: dict[str, Any] = {"context_fn": _keep_products} if self.recompute == "selective" else {}
        out: Tensor = checkpoint(self.layers, x, rope, use_reentrant=False, **options)
        return out

    def layers(self, x: Tensor, rope: Tensor) -> Tensor:
        """Run attention and MLP."""
        x = x + self.attention(self.attention_norm(x), rope)
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class Decoder(nn.Module):
    """Embedding, blocks, norm and output projection."""

    rope: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.dim, config.norm_eps)
        self.output = nn.Linear(config.dim, config.vocab, bias=False)
        self.register_buffer("rope", rope_table(config), persistent=False)
        self.apply(_initialise)

    def hidden(self, tokens: Tensor) -> Tensor:
        """Return the normalised residual stream, [batch, seq, dim]."""
        x: Tensor = self.embedding(tokens)
        rope = self.rope[:, : tokens.shape[1]]
        for block in self.blocks:
            x = block(x, rope)
        out: Tensor = self.norm(x)
        return out

    def forward(self, tokens: Tensor, targets: Tensor | None = None, loss: Loss | None = None) -> Tensor:
        """Return logits, or with targets the loss: inside forward, so that FSDP has gathered the output matrix."""
        x = self.hidden(tokens)
        if targets is None:
            logits: Tensor = self.output(x)
            return logits
        return (loss or cross_entropy)(self.output, x, targets)


Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def cross_entropy(output: nn.Module, x: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy over all tokens, in fp32."""
    return functional.cross_entropy(output(x).flatten(0, 1).float(), targets.flatten())


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


def _keep_products() -> Any:
    kept = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        keep = op in kept or "scaled_dot_product" in str(op)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
