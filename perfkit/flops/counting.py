"""Count FLOPs with torch's flop counter on the meta device: shapes only, no memory, no GPU.

    count_flops(step) -> FlopCount              `step` is any callable that runs the model
    count_spec(spec) -> FlopCount               a stand-in model of the spec's shapes, forward and backward

The counter sees matrix products, convolutions and attention, and counts attention in full, so that its
number is to be compared with `megatron-full`. A backward of fused attention computes the scores again: the
counter charges that, conventions do not; `FlopCount.recomputed_scores` is that part. Needs torch
(`pip install 'perfkit[train]'`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perfkit.errors import UsageError
from perfkit.flops.spec import TransformerSpec


@dataclass(frozen=True, slots=True)
class FlopCount:
    """What the counter saw."""

    total: int
    by_op: dict[str, int]

    @property
    def recomputed_scores(self) -> float:
        """FLOPs of the scores that fused attention computes a second time in its backward."""
        return sum(flops / 5 for op, flops in self.by_op.items() if "attention" in op and "backward" in op)

    @property
    def model(self) -> float:
        """Without recomputed scores: comparable with a convention."""
        return self.total - self.recomputed_scores


def count_flops(step: Callable[[], Any]) -> FlopCount:
    """Run `step` under the counter. Build model and inputs on the meta device to spend no memory."""
    counter_mode = _torch_counter()
    with counter_mode(display=False, custom_mapping=_cpu_attention()) as counter:
        step()
    by_op = {str(op): int(flops) for op, flops in counter.get_flop_counts().get("Global", {}).items()}
    return FlopCount(int(counter.get_total_flops()), by_op)


def count_spec(spec: TransformerSpec, *, batch: int = 1) -> FlopCount:
    """Count a training step of a model with the spec's shapes: one pass forward and one backward.

    Only what costs matrix products is built: projections, attention, (active) experts, router and head.
    """
    try:
        from perfkit.flops.reference_model import build
    except ImportError as error:
        raise _no_torch() from error
    import torch

    (seq_len,) = spec.need("seq_len")
    model = build(spec)
    x = torch.empty(batch, seq_len, spec.need("hidden")[0], device="meta", requires_grad=True)

    def step() -> None:
        model(x).backward()

    return count_flops(step)


def _torch_counter() -> Any:
    try:
        from torch.utils.flop_counter import FlopCounterMode
    except ImportError as error:
        raise _no_torch() from error
    return FlopCounterMode


def _cpu_attention() -> dict[Any, Any]:
    """Formulas for the CPU's fused attention, which torch's counter takes for zero."""
    import torch

    def forward(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
        return int(2 * q[0] * q[1] * q[2] * k[2] * (q[3] + v[3]))

    def backward(_: Any, q: Any, k: Any, v: Any, *__: Any, **___: Any) -> int:
        return int(2 * q[0] * q[1] * q[2] * k[2] * (3 * q[3] + 2 * v[3]))

    names = {"_scaled_dot_product_flash_attention_for_cpu": forward,
             "_scaled_dot_product_flash_attention_for_cpu_backward": backward}  # fmt: skip
    return {op: formula for name, formula in names.items() if (op := getattr(torch.ops.aten, name, None)) is not None}


def _no_torch() -> UsageError:
    return UsageError("counting FLOPs needs torch", next_step="pip install 'perfkit[train]'")
