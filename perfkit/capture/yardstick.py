"""What MFU is measured against: model FLOPs of a token, the peak, and the devices of a replica.

    find_yardstick(settings, world_size) -> Yardstick; a part that is unknown is None, and `notes` say why

Works once per run, off the training thread. Nothing falls back: an unknown device or mesh leaves MFU null.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perfkit.capture.settings import Settings
from perfkit.errors import PerfkitError


@dataclass(slots=True)
class Yardstick:
    """Numerator and denominator of MFU."""

    flops_per_token: float | None = None
    convention: str | None = None
    peak_flops: float | None = None
    peak_source: str | None = None
    device: str | None = None
    devices_per_replica: int | None = None
    mesh: dict[str, int] | None = None
    model: str | None = None
    notes: list[str] = field(default_factory=list)

    def mfu(self, tokens: int | None, seconds: float) -> float | None:
        """Return the MFU of `tokens` of one replica in `seconds`; None if a part is unknown or it exceeds 1."""
        if None in (tokens, self.flops_per_token, self.peak_flops, self.devices_per_replica) or seconds <= 0:
            return None
        flops = tokens * self.flops_per_token  # type: ignore[operator]  # checked above
        value = float(flops / (self.peak_flops * self.devices_per_replica * seconds))  # type: ignore[operator]
        return value if value <= 1 else None

    def to_metadata(self) -> dict[str, Any]:
        """Return what a run remembers."""
        return {
            "device": self.device,
            "model": self.model,
            "mesh": None if self.mesh is None else json.dumps(self.mesh),
            "flops_per_token": self.flops_per_token,
            "convention": self.convention,
            "peak_flops": self.peak_flops,
            "peak_source": self.peak_source,
            "devices_per_replica": self.devices_per_replica,
        }


def find_yardstick(settings: Settings, world_size: int) -> Yardstick:
    """Resolve model, peak and mesh; what fails becomes a note."""
    found = Yardstick(device=settings.hardware or _device_name())
    _find_mesh(found, settings.mesh, world_size)
    for find in (_count_flops, _find_peak):
        try:
            find(found, settings)
        except PerfkitError as error:
            found.notes.append(str(error))
        except (TypeError, ValueError, KeyError) as error:
            found.notes.append(f"{type(error).__name__}: {error}")
    return found


def _count_flops(found: Yardstick, settings: Settings) -> None:
    found.model = _model_name(settings.model)
    if settings.flops_per_token is not None:
        found.flops_per_token, found.convention = float(settings.flops_per_token), settings.convention or "given"
        return
    if settings.model is None:
        return
    from perfkit.flops.calculator import compute_mfu

    counted = compute_mfu(
        settings.model, seq_len=settings.seq_len, convention=settings.convention, peak_flops=1e15,
        tokens_per_second_per_device=1.0,
    )  # fmt: skip
    found.flops_per_token, found.convention = counted.flops_per_token, counted.convention


def _model_name(model: Any) -> str | None:
    """Return a preset's or spec's name, else the spec itself as JSON."""
    if model is None or isinstance(model, str):
        return model
    keys = dataclasses.asdict(model) if dataclasses.is_dataclass(model) and not isinstance(model, type) else dict(model)
    return keys.get("name") or json.dumps({key: value for key, value in keys.items() if value is not None}, default=str)


def _find_peak(found: Yardstick, settings: Settings) -> None:
    if settings.peak_flops is not None:
        found.peak_flops, found.peak_source = float(settings.peak_flops), "given to perfkit.init"
        return
    if found.device is None or (settings.model is None and settings.flops_per_token is None):
        return
    from perfkit.hardware.lookup import resolve_peak

    peak = resolve_peak(found.device, settings.dtype, **_board())
    found.peak_flops, found.peak_source = peak.flops, peak.source


def _find_mesh(found: Yardstick, mesh: Any, world_size: int) -> None:
    """Read the parallel degrees; the devices of a replica are those over which no batch is split."""
    if mesh is None:
        found.devices_per_replica = 1 if world_size == 1 else None
        if found.devices_per_replica is None:
            found.notes.append("the mesh is unknown, so MFU is null; pass mesh={'dp': …, 'tp': …} to perfkit.init")
        return
    if isinstance(mesh, int) and not isinstance(mesh, bool):
        degrees = {"dp": mesh}
    elif isinstance(mesh, Mapping):
        degrees = {str(name): int(size) for name, size in mesh.items()}
    else:  # a torch DeviceMesh
        names, shape = getattr(mesh, "mesh_dim_names", None), tuple(getattr(mesh, "shape", ()))
        degrees = {str(name): int(size) for name, size in zip(names or (), shape, strict=False)}
    from perfkit.analysis.axes import ALL_AXES, BATCH_AXES, axis_of_dimension

    unknown = [name for name in degrees if axis_of_dimension(name) not in (*ALL_AXES, "etp")]
    replicas = 1
    for name, size in degrees.items():
        replicas *= size if axis_of_dimension(name) in BATCH_AXES else 1
    found.mesh = degrees
    if unknown or not degrees:
        found.notes.append(f"mesh dimensions {unknown or mesh!r} are not known; use dp, tp, pp, cp, ep")
    elif replicas < 1 or world_size % replicas:
        found.notes.append(f"{replicas} data-parallel replicas do not divide {world_size} ranks")
    else:
        found.devices_per_replica = world_size // replicas


def _cuda() -> Any:
    torch: Any = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized() else None


def _device_name() -> str | None:
    cuda = _cuda()
    return str(cuda.get_device_name()) if cuda else None


def _board() -> dict[str, Any]:
    cuda = _cuda()
    if cuda is None:
        return {}
    board = cuda.get_device_properties(cuda.current_device())
    return {
        "compute_capability": f"{board.major}.{board.minor}",
        "sm_count": board.multi_processor_count,
        "memory_bytes": board.total_memory,
    }
