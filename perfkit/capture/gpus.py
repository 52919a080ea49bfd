"""What a GPU reader gives, whoever makes the GPU, and the names of its counters.

    reader = open_reader()      NVIDIA (NVML), else AMD (amdsmi), else NoGpus with the reason
    reader.gpus                 what is in the machine
    reader.read(slow=False)     -> Readings: counter rows, and things that happened

Names are OpenMetrics-like: base units, ratios 0-1, `_total` only grows (a counter that wraps or restarts goes on from
where it was). A value that the driver does not give is absent, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

UTILIZATION = "gpu_utilization_ratio"
SM_CLOCK = "gpu_sm_clock_hertz"
MEMORY_CLOCK = "gpu_memory_clock_hertz"
POWER = "gpu_power_watts"
ENERGY = "gpu_energy_joules_total"
TEMPERATURE = "gpu_temperature_celsius"
MEMORY_TEMPERATURE = "gpu_memory_temperature_celsius"
CLOCK_REASONS = "gpu_clock_event_reasons"
THROTTLE_SECONDS = "gpu_throttle_seconds_total"
"""Series: power, thermal, sw_thermal, hw_thermal, power_brake."""
MEMORY_USED = "gpu_memory_used_bytes"
MEMORY_TOTAL = "gpu_memory_total_bytes"
PCIE_BYTES = "gpu_pcie_bytes_total"
"""Series: tx, rx."""
NVLINK_BYTES = "gpu_nvlink_bytes_total"
"""Series: tx, rx."""
ECC_ERRORS = "gpu_ecc_errors_total"
"""Series: corrected, uncorrected."""
REMAPPED_ROWS = "gpu_remapped_rows"
"""Series: corrected, uncorrected, pending, failure."""
LINK_ERRORS = "gpu_link_errors_total"
"""Series: nvlink_crc, nvlink_replay, nvlink_recovery, pcie_correctable."""
SM_ACTIVE = "gpu_sm_active_ratio"
TENSOR_ACTIVE = "gpu_tensor_active_ratio"
DRAM_ACTIVE = "gpu_dram_active_ratio"
PROCESSES = "gpu_processes"
DRIVER_SECONDS = "gpu_driver_seconds_total"
"""Time that the driver took to answer perfkit: its own overhead."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one slice of it."""

    index: int
    uuid: str
    name: str | None
    memory_bytes: int | None


Row = tuple[int, str, str, str | None, float]
"""(device index, uuid, metric, series, value)"""


@dataclass(frozen=True, slots=True)
class Happening:
    """An XID, a lost GPU, a driver that failed: a row of health_events in the making."""

    time_ns: int
    index: int | None
    uuid: str | None
    kind: str
    severity: str
    code: int | None = None
    detail: str = ""


@dataclass(slots=True)
class Readings:
    """What one round of reading gave."""

    time_ns: int
    rows: list[Row] = field(default_factory=list)
    happenings: list[Happening] = field(default_factory=list)


class GpuReader(Protocol):
    """Reads the GPUs of this machine."""

    gpus: Sequence[Gpu]
    absent: str | None

    def read(self, *, slow: bool) -> Readings:
        """Read what is due: the fast counters, and with `slow` those that change rarely."""

    def close(self) -> None:
        """Let go of the driver."""


class NoGpus:
    """No GPU can be read here; `absent` says why."""

    def __init__(self, absent: str) -> None:
        self.gpus: Sequence[Gpu] = ()
        self.absent: str | None = absent

    def read(self, *, slow: bool) -> Readings:
        """Give nothing."""
        raise RuntimeError("there is no GPU to read")

    def close(self) -> None:
        """Nothing to let go of."""


class Totals:
    """Counters that only grow, whatever the driver's own counter does."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str | None], tuple[int, int]] = {}

    def update(self, uuid: str, metric: str, series: str | None, raw: int, bits: int) -> int:
        """Return the total behind a raw value: a step back is a wrap near the top of its range, else a restart."""
        key = (uuid, metric, series)
        before, total = self._seen.get(key, (raw, raw))
        if raw >= before:
            total += raw - before
        elif before > (1 << bits) * 0.9 and raw < (1 << bits) * 0.1:
            total += (1 << bits) - before + raw
        else:
            total += raw
        self._seen[key] = (raw, total)
        return total


def open_reader() -> GpuReader:
    """Return a reader for the GPUs of this machine."""
    from perfkit.capture.amdsmi import open_amdsmi
    from perfkit.capture.nvml import open_nvml

    nvidia = open_nvml()
    if nvidia.absent is None:
        return nvidia
    amd = open_amdsmi()
    if amd.absent is None:
        return amd
    return NoGpus(f"{nvidia.absent}; {amd.absent}")
