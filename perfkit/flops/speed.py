"""Tokens per second and device, from whichever figures a run reports.

    Speed(step_time=32, global_batch=1536, devices=1024).tokens_per_device(seq_len=2048) -> tokens per second

Exactly one way must be given. Gradient accumulation multiplies the sequences of a step; it does not
change what a token costs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from perfkit.errors import UsageError
from perfkit.flops.quantities import LARGEST


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """How fast a run is, as it was reported; null is not given."""

    tokens_per_second_per_device: float | None = None
    tokens_per_second: float | None = None
    """Of the whole job; needs `devices`."""
    tflops_per_device: float | None = None
    """As somebody reported it; tokens then follow from the FLOPs of a token."""
    step_time: float | None = None
    """Seconds of an optimizer step; needs its tokens and `devices`."""
    global_batch: int | None = None
    """Sequences of a step."""
    micro_batch: int | None = None
    grad_accum: int | None = None
    data_parallel: int | None = None
    tokens_per_step: float | None = None
    devices: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not 0 < value < LARGEST:
                raise UsageError(f"{field.name} = {value} makes no sense", next_step="use a positive number")
        ways = (self.tokens_per_second_per_device, self.tokens_per_second, self.tflops_per_device, self.step_time)
        given = sum(way is not None for way in ways)
        if given != 1:
            raise UsageError(
                "the speed is given twice" if given else "no speed is given",
                next_step="give one of --tokens-per-second-per-device, --tokens-per-second with --devices, "
                "--step-time with --global-batch and --devices, or --tflops-per-device",
            )

    def tokens_per_device(self, seq_len: int | None) -> float | None:
        """Tokens per second of one device; None if only TFLOP/s were reported."""
        if self.tflops_per_device is not None:
            return None
        if self.tokens_per_second_per_device is not None:
            return self.tokens_per_second_per_device
        if self.devices is None:
            raise UsageError("the speed of the whole job needs the number of devices", next_step="add --devices")
        if self.tokens_per_second is not None:
            return self.tokens_per_second / self.devices
        assert self.step_time is not None
        return self._step_tokens(seq_len) / self.step_time / self.devices

    def _step_tokens(self, seq_len: int | None) -> float:
        """Tokens of an optimizer step; refuse two figures for it that disagree."""
        sequences = self.sequences_per_step()
        counted = None if sequences is None or seq_len is None else float(sequences * seq_len)
        if self.tokens_per_step is None:
            if counted is None:
                raise UsageError("a step time needs the tokens of a step", next_step="add --global-batch and --seq-len")
            return counted
        if counted is not None and abs(self.tokens_per_step / counted - 1) > 0.01:
            raise UsageError(
                f"tokens_per_step {self.tokens_per_step:g} is not {sequences} x {seq_len} = {counted:g} tokens",
                next_step="leave one of them out",
            )
        return self.tokens_per_step

    def sequences_per_step(self) -> int | None:
        """Sequences of an optimizer step, given whole or as micro batch x accumulation x data parallel."""
        parts = (self.micro_batch, self.data_parallel)
        if all(part is None for part in (*parts, self.grad_accum)):
            return self.global_batch
        if self.micro_batch is None or self.data_parallel is None:
            if self.global_batch is not None:
                return self.global_batch
            raise UsageError("a global batch needs micro_batch and data_parallel (and grad_accum)")
        product = self.micro_batch * (self.grad_accum or 1) * self.data_parallel
        if self.global_batch is not None and product != self.global_batch:
            raise UsageError(
                f"global_batch {self.global_batch} is not micro_batch {self.micro_batch} x grad_accum "
                f"{self.grad_accum or 1} x data_parallel {self.data_parallel} = {product}",
                next_step="leave one of them out",
            )
        return product
