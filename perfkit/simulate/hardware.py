"""The machine that a simulated job runs on: a handful of rates.

    resolve_hardware("h100") -> HardwareModel

These numbers shape durations; they are not the peak registry. The MFU in the truth divides by
`peak_flops` as given here, and the truth states it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfkit.errors import UnknownHardware


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareModel:
    """One kind of device and the links around it; rates are per second and per device."""

    device: str
    """Name as the driver reports it."""
    peak_flops: float
    """Dense bf16."""
    memory_bandwidth: float
    """Device memory, bytes/s."""
    link_bandwidth: float
    """Inside a host, bytes/s in one direction."""
    network_bandwidth: float
    """Between hosts, bytes/s in one direction."""
    copy_bandwidth: float
    """Between host and device, bytes/s."""
    memory_bytes: int
    num_sms: int
    compute_capability: tuple[int, int]
    gpus_per_host: int = 8


H100 = HardwareModel(
    device="NVIDIA H100 80GB HBM3",
    peak_flops=989.4e12,
    memory_bandwidth=3.35e12,
    link_bandwidth=450e9,
    network_bandwidth=50e9,
    copy_bandwidth=55e9,
    memory_bytes=85_028_634_624,
    num_sms=132,
    compute_capability=(9, 0),
)
A100 = replace(
    H100,
    device="NVIDIA A100-SXM4-80GB",
    peak_flops=312e12,
    memory_bandwidth=2.039e12,
    link_bandwidth=300e9,
    network_bandwidth=25e9,
    copy_bandwidth=25e9,
    memory_bytes=84_987_740_160,
    num_sms=108,
    compute_capability=(8, 0),
)
MODELS = {"h100": H100, "a100": A100}


def resolve_hardware(name: str) -> HardwareModel:
    """Find a model by its short name or by its exact device name."""
    for key, model in MODELS.items():
        if name.lower() == key or name == model.device:
            return model
    known = ", ".join(f"{key} ({model.device})" for key, model in MODELS.items())
    raise UnknownHardware(f"the simulator knows no hardware {name!r}", next_step=f"use one of: {known}")
