"""AMD GPUs through `amdsmi`, where ROCm has installed it, behind the same interface as NVML.

    open_amdsmi() -> GpuReader

The package comes with ROCm, not from PyPI, and could not be run without an AMD GPU: only its absence is tested. Each
call stands alone, so a function that a release renamed costs its own counters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from perfkit.capture import gpus as names
from perfkit.capture.gpus import Gpu, GpuReader, NoGpus, Readings, Totals


def open_amdsmi() -> GpuReader:
    """Open amdsmi; a reader without GPUs if it is absent or broken."""
    try:
        import amdsmi
    except Exception as error:  # the module loads its library on import and raises what it likes
        return NoGpus(f"amdsmi cannot be used: {error}")
    try:
        amdsmi.amdsmi_init()
        return AmdReader(amdsmi)
    except Exception as error:
        return NoGpus(f"amdsmi cannot be used: {error}")


class AmdReader:
    """Reads all AMD GPUs of the machine."""

    def __init__(self, smi: Any) -> None:
        self._smi = smi
        self._totals = Totals()
        self._off: set[tuple[str, str]] = set()
        self.absent: str | None = None
        self._handles = list(smi.amdsmi_get_processor_handles())
        self.gpus: Sequence[Gpu] = tuple(self._describe(index, handle) for index, handle in enumerate(self._handles))

    def _describe(self, index: int, handle: Any) -> Gpu:
        uuid = str(self._smi.amdsmi_get_gpu_device_uuid(handle))
        board = self._ask(uuid, "name", lambda: self._smi.amdsmi_get_gpu_asic_info(handle)) or {}
        memory = self._ask(uuid, "memory", lambda: self._smi.amdsmi_get_gpu_vram_usage(handle)) or {}
        total = memory.get("vram_total")
        return Gpu(index, uuid, board.get("market_name"), total * 1024 * 1024 if isinstance(total, int) else None)

    def _ask(self, uuid: str, what: str, call: Callable[[], Any]) -> Any:
        if (uuid, what) in self._off:
            return None
        try:
            return call()
        except Exception:
            self._off.add((uuid, what))
            return None

    def read(self, *, slow: bool) -> Readings:
        """Read all GPUs once."""
        readings = Readings(time.time_ns())
        for gpu, handle in zip(self.gpus, self._handles, strict=True):
            for metric, series, value in self._values(gpu, handle, slow):
                if isinstance(value, (int, float)):
                    readings.rows.append((gpu.index, gpu.uuid, metric, series, value))
        return readings

    def _values(self, gpu: Gpu, handle: Any, slow: bool) -> Iterator[tuple[str, str | None, Any]]:
        smi = self._smi
        activity = self._ask(gpu.uuid, "activity", lambda: smi.amdsmi_get_gpu_activity(handle)) or {}
        if isinstance(activity.get("gfx_activity"), int):
            yield names.UTILIZATION, None, activity["gfx_activity"] / 100
        power = self._ask(gpu.uuid, "power", lambda: smi.amdsmi_get_power_info(handle)) or {}
        watts = next(
            (v for key in ("current_socket_power", "socket_power") if isinstance(v := power.get(key), int)), None
        )
        yield names.POWER, None, watts
        heat = self._ask(
            gpu.uuid,
            "temperature",
            lambda: smi.amdsmi_get_temp_metric(
                handle, smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
            ),
        )
        yield names.TEMPERATURE, None, heat
        clock = self._ask(gpu.uuid, "clock", lambda: smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX)) or {}
        if isinstance(clock.get("clk"), int):
            yield names.SM_CLOCK, None, clock["clk"] * 1e6
        memory = self._ask(gpu.uuid, "memory", lambda: smi.amdsmi_get_gpu_vram_usage(handle)) or {}
        if isinstance(memory.get("vram_used"), int):
            yield names.MEMORY_USED, None, memory["vram_used"] * 1024 * 1024
        if slow:
            ecc = self._ask(gpu.uuid, "ecc", lambda: smi.amdsmi_get_gpu_total_ecc_count(handle)) or {}
            for key, series in (("correctable_count", "corrected"), ("uncorrectable_count", "uncorrected")):
                if isinstance(ecc.get(key), int):
                    yield (
                        names.ECC_ERRORS,
                        series,
                        self._totals.update(gpu.uuid, names.ECC_ERRORS, series, ecc[key], 64),
                    )

    def close(self) -> None:
        """Let go of the driver."""
        self._ask("", "shut down", self._smi.amdsmi_shut_down)
