"""The only file of the reference loop that knows perfkit's capture API.

    probe = Probe.open(config, folder, mesh)
    for batch in probe.data(loader):                          time spent waiting for data
        with probe.step(number, tokens=…, samples=…):         a training step
            with probe.span("forward"): …
        with probe.event("checkpoint_save"): …                a phase of the job

It is what a user adds to a script: `perfkit.init` once, and a `with` around what should have a name. With
`--capture.enabled false` nothing of perfkit runs, and the losses are the same bit for bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

import perfkit

if TYPE_CHECKING:
    from perfkit.reference.config import Config


@dataclass(kw_only=True, slots=True)
class CaptureConfig:
    """What perfkit records."""

    enabled: bool = True
    """Record steps, phases and traces."""
    store: str = ""
    """Store; empty: `store` in the run folder."""
    run: str = "reference"
    """Name of the run."""
    cluster: str = "local"
    """Name of the cluster."""
    profile_first: int = 10
    """First profiled step, counted from the start of the process."""
    profile_active: int = 6
    """Profiled steps of a window, on every rank; 0 does not profile."""
    profile_every: int = 0
    """Steps between windows; 0 profiles once."""
    peak_flops: float = 0.0
    """Peak of one device, for the MFU; 0: by the registry, which knows GPUs."""
    hardware: str = ""
    """Name of the device, where torch does not tell it (CPUs)."""


class Probe:
    """A recorder, or nothing."""

    def __init__(self, recorder: Any | None) -> None:
        self._recorder = recorder

    @classmethod
    def open(cls, config: Config, folder: Path, mesh: DeviceMesh) -> Probe:
        """Start recording this rank."""
        capture = config.capture
        if not capture.enabled:
            return cls(None)
        schedule = None
        if capture.profile_active:
            schedule = perfkit.ProfileSchedule(
                first=capture.profile_first, active=capture.profile_active, every=capture.profile_every, ranks="all",
                min_free_bytes=1 << 28,
            )  # fmt: skip
        recorder = perfkit.init(
            capture.run, cluster=capture.cluster, store=capture.store or folder / "store", model=config.model.spec(),
            seq_len=config.model.seq_len, mesh=mesh, profile=schedule,
            dtype="bf16" if mesh.device_type == "cuda" else "fp32", peak_flops=capture.peak_flops or None,
            hardware=capture.hardware or None,
            metadata={"faults": list(config.faults), "transforms": list(config.transforms)},
        )  # fmt: skip
        return cls(recorder)

    def data(self, loader: Iterable[Tensor]) -> Iterable[Tensor]:
        """Hand the batches on and time the wait for each."""
        return loader if self._recorder is None else self._recorder.data(loader)

    def step(self, number: int, *, tokens: int, samples: int) -> Any:
        """Time a step; tokens and samples of this rank's replica."""
        if self._recorder is None:
            return contextlib.nullcontext()
        return self._recorder.step(step=number, tokens=tokens, samples=samples)

    def span(self, name: str) -> Any:
        """Time a part of a step."""
        return contextlib.nullcontext() if self._recorder is None else self._recorder.span(name)

    def event(self, kind: str, *, step: int | None = None, cause: str | None = None, blocking: bool = True) -> Any:
        """Time a phase of the job, during which training stands still if it is `blocking`."""
        if self._recorder is None:
            return contextlib.nullcontext()
        return self._recorder.event(kind, step=step, cause=cause, blocking=blocking)

    def log(self, name: str, value: float) -> None:
        """Keep a number."""
        if self._recorder is not None:
            self._recorder.log(name, value)

    def mfu(self) -> float | None:
        """Return the MFU of the recent steps that were not profiled; None if it is not known."""
        return None if self._recorder is None else self._recorder.metrics.get("mfu")

    def finish(self) -> None:
        """Write what is left."""
        if self._recorder is not None:
            self._recorder.finish(timeout=30.0)
