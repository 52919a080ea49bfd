"""The machine that a simulated job runs on: a handful of rates.

    resolve_hardware("h100") -> HardwareModel          two models that never change, for reproducible traces
    resolve_hardware("NVIDIA B200") -> HardwareModel   any device of the peak registry with a bf16 or fp16 peak

These numbers shape durations. The MFU in the truth divides by `peak_flops` as given here, and the truth states
it. Where the registry does not know a link, a simulated one has the rate of the next slower known link, else of
PCIe 4; a network has 25 GB/s. They are simulated machines: the truth lists every rate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfkit.errors import UnknownHardware
from perfkit.hardware.lookup import find_device
from perfkit.hardware.registry import normalise


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


DEFAULT_COPY_BANDWIDTH = 25e9
DEFAULT_NETWORK_BANDWIDTH = 25e9


def resolve_hardware(name: str) -> HardwareModel:
    """Find a model by its short name or exact device name, else make one from the peak registry."""
    for key, model in MODELS.items():
        if name.lower() == key or name == model.device:
            return model
    try:
        found = find_device(name)
    except UnknownHardware:
        raise UnknownHardware(
            f"{name!r} is neither {' nor '.join(MODELS)} nor in the peak registry",
            next_step="`perfkit hardware` lists the registry",
        ) from None
    device = found.device
    if found.candidates:
        names = ", ".join(one.id for one in found.candidates)
        raise UnknownHardware(f"{name!r} may be several devices", next_step=f"use one of: {names}")
    peak = device.peak_flops("bf16") or device.peak_flops("fp16")
    memory = device.get("memory_gbps")
    if peak is None or memory is None:
        missing = "bf16 or fp16 peak" if peak is None else "memory bandwidth"
        raise UnknownHardware(
            f"the registry has no {missing} of {device.id!r}", next_step=f"use one of: {', '.join(MODELS)}, or add it"
        )
    copy = device.pcie_gbps
    link, network = device.get("link_gbps"), device.get("nic_gbps")
    major, _, minor = (device.compute_capability or "0.0").partition(".")
    return HardwareModel(
        device=next((n for n in device.names if normalise(n) == normalise(name)), (*device.names, device.id)[0]),
        peak_flops=peak,
        memory_bandwidth=memory * 1e9,
        link_bandwidth=(link or copy or DEFAULT_COPY_BANDWIDTH / 1e9) * 1e9,
        network_bandwidth=network * 1e9 if network else DEFAULT_NETWORK_BANDWIDTH,
        copy_bandwidth=copy * 1e9 if copy else DEFAULT_COPY_BANDWIDTH,
        memory_bytes=round((device.memory_gb[0] if device.memory_gb else device.get("memory_gb") or 0) * 1e9),
        num_sms=device.sm_count or 1,
        compute_capability=(int(major), int(minor or 0)) if major.isdigit() else (0, 0),
    )
