"""AdamW with a warm-up and a cosine, and clipping of sharded gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(kw_only=True, slots=True)
class OptimConfig:
    """The optimizer."""

    lr: float = 1e-3
    """Peak learning rate."""
    min_lr: float = 1e-4
    """Learning rate at the end of the cosine."""
    warmup: int = 10
    """Steps to the peak."""
    weight_decay: float = 0.1
    """For matrices; vectors have none."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of the moments."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 does not clip."""


def make_optimizer(model: nn.Module, config: OptimConfig, *, fused: bool = False) -> torch.optim.Optimizer:
    """Return AdamW over matrices (decayed) and vectors."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=fused, foreach=False if fused else None)


def learning_rate(step: int, steps: int, config: OptimConfig) -> float:
    """Return the learning rate of a step, from 0: linear warm-up, then a cosine down to min_lr."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    done = min(1.0, (step - config.warmup) / max(1, steps - config.warmup))
    return config.min_lr + (config.lr - config.min_lr) * 0.5 * (1 + math.cos(math.pi * done))


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set it for all groups."""
    for group in optimizer.param_groups:
        group["lr"] = value


def clip_gradients(parameters: Iterable[Tensor], limit: float) -> Tensor:
    """Scale the gradients down to a norm of `limit` and return the norm before; sharded ones count as a whole.

    Parameters may live on different meshes (norms are not tensor-parallel), and a norm over two meshes is an error
    in torch: so one norm per mesh, then the norm of these.
    """
    parameters = [p for p in parameters if p.grad is not None]
    by_mesh: dict[Any, list[Tensor]] = {}
    for p in parameters:
        assert p.grad is not None
        by_mesh.setdefault(getattr(p.grad, "device_mesh", None), []).append(p.grad)
    norms = [whole(torch.nn.utils.get_total_norm(grads)) for grads in by_mesh.values()]
    total = torch.linalg.vector_norm(torch.stack(norms)) if len(norms) > 1 else norms[0]
    if limit > 0:
        for grads in by_mesh.values():
            factor = (limit / (total + 1e-6)).clamp(max=1.0)
            for grad in grads:
                grad.mul_(factor)
    return total


def whole(tensor: Tensor) -> Tensor:
    """Return a distributed tensor as a plain one."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()
