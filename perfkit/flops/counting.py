"""Count FLOPs with the formulas of torch's flop counter, on the meta device: shapes only, no memory, no GPU.

    count_flops(step) -> FlopCount              `step` is any callable that runs the model
    StepCounter()                               the same for a step that only happens: start(), stop() -> FlopCount
    count_spec(spec) -> FlopCount               a stand-in model of the spec's shapes, forward and backward

The counter sees matrix products, convolutions and attention, and counts attention in full, so that its
number is to be compared with `megatron-full`. A backward of fused attention computes the scores again: the
counter charges that, conventions do not; `FlopCount.recomputed_scores` is that part. Needs torch
(`pip install 'perfkit[train]'`).
"""

from __future__ import annotations

import importlib
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
    counter = StepCounter()
    counter.start()
    try:
        step()
    finally:
        counted = counter.stop()
    return counted


class StepCounter:
    """The counter for code that cannot be called: start it before a step, stop it after.

    torch's own FlopCounterMode decomposes operations on the way, which changes the order of additions and with it the
    last bits of the gradients. This one only looks: results are bit-identical with and without it.
    """

    def __init__(self) -> None:
        self._mode = _make_mode()

    def start(self) -> None:
        """Count from here on, on this thread and in its backward passes."""
        self._mode.__enter__()

    def stop(self) -> FlopCount:
        """Stop and return what was seen."""
        self._mode.__exit__(None, None, None)
        return FlopCount(sum(self._mode.by_op.values()), dict(self._mode.by_op))


def _make_mode() -> Any:
    try:
        dispatch: Any = importlib.import_module("torch.utils._python_dispatch")
        counter: Any = importlib.import_module("torch.utils.flop_counter")
    except ImportError as error:
        raise _no_torch() from error
    base: Any = dispatch.TorchDispatchMode
    formulas = {
        **counter.flop_registry,
        **{op: counter.shape_wrapper(formula) for op, formula in _cpu_attention().items()},
    }

    class Looking(base):  # type: ignore[misc]
        """Adds up the FLOPs of what passes by."""

        def __init__(self) -> None:
            super().__init__()
            self.by_op: dict[str, int] = {}

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            formula = formulas.get(getattr(func, "_overloadpacket", None))
            if formula is not None:
                name = str(func._overloadpacket)
                self.by_op[name] = self.by_op.get(name, 0) + int(formula(*args, **(kwargs or {}), out_val=out))
            return out

    return Looking()


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
