"""Small rewrites of the model that compute the same with fewer or larger kernels: `--transform NAME`.

    fused-qkv         q, k and v are one matrix product                     FX pass
    fused-gate-up     gate and up are one matrix product                    FX pass
    chunked-loss      cross entropy by chunks of tokens; the logits of all tokens never exist at once
    fused-optimizer   AdamW updates all parameters in one kernel

`merge_linears` is the pass behind the first two: linear layers of a module that read the same value become one layer
and a split. Parameters get other names and shapes, so a checkpoint belongs to the transforms that it was made with,
and tensor parallelism (which looks for the separate matrices) refuses them. Effect on time and memory:
benchmarks/transforms.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from perfkit.errors import UsageError
from perfkit.reference.model import Attention, Decoder, FeedForward, Loss, cross_entropy

CHUNK_TOKENS = 256
"""Tokens whose logits exist at once under chunked-loss."""
NAMES = ("fused-qkv", "fused-gate-up", "chunked-loss", "fused-optimizer")


@dataclass(frozen=True)
class Transformed:
    """A model after its transforms, and what the loop has to use with it."""

    model: Decoder
    loss: Loss
    fused_optimizer: bool


def transform(model: Decoder, names: Sequence[str]) -> Transformed:
    """Apply transforms by name, in place."""
    for name in names:
        if name not in NAMES:
            raise UsageError(f"no transform {name!r}", next_step=f"use {', '.join(NAMES)}")
    if "fused-qkv" in names:
        _rewrite(model, Attention, lambda module: merge_linears(module, ("wq", "wk", "wv"), "wqkv"))
    if "fused-gate-up" in names:
        _rewrite(model, FeedForward, lambda module: merge_linears(module, ("gate", "up"), "gate_up"))
    loss = partial(chunked_cross_entropy, chunk=CHUNK_TOKENS) if "chunked-loss" in names else cross_entropy
    return Transformed(model, loss, "fused-optimizer" in names)


def merge_linears(module: nn.Module, names: Sequence[str], merged: str) -> fx.GraphModule:
    """Return the module with the linear layers `names`, which read the same value, replaced by one and a split."""
    traced = fx.symbolic_trace(module)
    graph = traced.graph
    calls = {str(node.target): node for node in graph.nodes if node.op == "call_module" and node.target in names}
    if set(calls) != set(names) or len({node.args[0] for node in calls.values()}) != 1:
        raise UsageError(f"{', '.join(names)} of {type(module).__name__} are not siblings")
    layers = [_linear(traced, name) for name in names]
    traced.add_submodule(merged, _stack(layers))
    first = min(calls.values(), key=list(graph.nodes).index)
    with graph.inserting_before(first):
        whole = graph.call_module(merged, (first.args[0],))
        parts = graph.call_function(torch.split, (whole, [layer.out_features for layer in layers], -1))
        pieces = [graph.call_function(operator.getitem, (parts, i)) for i in range(len(layers))]
    for name, piece in zip(names, pieces, strict=True):
        calls[name].replace_all_uses_with(piece)
        graph.erase_node(calls[name])
    traced.delete_all_unused_submodules()
    graph.lint()
    traced.recompile()
    return traced


def chunked_cross_entropy(output: nn.Module, x: Tensor, targets: Tensor, *, chunk: int) -> Tensor:
    """Mean cross entropy, `chunk` tokens at a time; the backward pass computes each chunk's logits again."""
    x, targets = x.flatten(0, 1), targets.flatten()

    def part(rows: Tensor, wanted: Tensor) -> Tensor:
        return functional.cross_entropy(output(rows).float(), wanted, reduction="sum")

    total = x.new_zeros((), dtype=torch.float32)
    for rows, wanted in zip(x.split(chunk), targets.split(chunk), strict=True):
        total = total + checkpoint(part, rows, wanted, use_reentrant=False)
    return total / len(targets)


def _rewrite(model: nn.Module, kind: type[nn.Module], change: Callable[[Any], nn.Module]) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, kind):
                setattr(parent, name, change(child))


def _linear(module: nn.Module, name: str) -> nn.Linear:
    layer = module.get_submodule(name)
    if not isinstance(layer, nn.Linear) or "bias" in dict(layer.named_parameters()):
        raise UsageError(f"{name} is not a linear layer without bias")
    return layer


def _stack(layers: Sequence[nn.Linear]) -> nn.Linear:
    first = layers[0]
    rows = sum(layer.out_features for layer in layers)
    result = nn.Linear(first.in_features, rows, bias=False, device="meta")
    result.weight = nn.Parameter(torch.cat([layer.weight.detach() for layer in layers]))
    return result
