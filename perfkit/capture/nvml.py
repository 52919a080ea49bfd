"""NVIDIA GPUs through nvidia-ml-py: batched reads, and failures that cost only what failed.

    open_nvml() -> GpuReader

One `nvmlDeviceGetFieldValues` per GPU and round reads most counters; each element carries its own return code. A metric
that a GPU does not support, or that this driver has no function for, is off for that GPU from then on. A lost GPU is
said once and left alone; the others go on. A driver that answers `unknown error` is closed and opened again, with
growing pauses. Any call can hang for good, so this runs in a process of its own (perfkit.capture.gpu_process).
Power is read from the instant sensor and as an energy counter; utilisation of Hopper and later through GPM.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfkit.capture import gpus as names
from perfkit.capture.gpus import Gpu, GpuReader, Happening, NoGpus, Readings, Row, Totals

ALL_LINKS = 0xFFFFFFFF
MAX_PAUSE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Field:
    """A value of nvmlDeviceGetFieldValues: its NVML name, where it goes, and the factor to base units."""

    constant: str
    metric: str
    series: str | None
    scale: float
    total: bool = False
    scope: int = 0


FAST_FIELDS = (
    Field("NVML_FI_DEV_POWER_INSTANT", names.POWER, None, 1e-3),
    Field("NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION", names.ENERGY, None, 1e-3, total=True),
    Field("NVML_FI_DEV_MEMORY_TEMP", names.MEMORY_TEMPERATURE, None, 1),
    Field("NVML_FI_DEV_PERF_POLICY_POWER", names.THROTTLE_SECONDS, "power", 1e-9, total=True),
    Field("NVML_FI_DEV_PERF_POLICY_THERMAL", names.THROTTLE_SECONDS, "thermal", 1e-9, total=True),
    Field("NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN", names.THROTTLE_SECONDS, "sw_thermal", 1e-9, total=True),
    Field("NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN", names.THROTTLE_SECONDS, "hw_thermal", 1e-9, total=True),
    Field(
        "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
        names.THROTTLE_SECONDS,
        "power_brake",
        1e-9,
        total=True,
    ),
    Field("NVML_FI_DEV_PCIE_COUNT_TX_BYTES", names.PCIE_BYTES, "tx", 1, total=True),
    Field("NVML_FI_DEV_PCIE_COUNT_RX_BYTES", names.PCIE_BYTES, "rx", 1, total=True),
    Field("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", names.NVLINK_BYTES, "tx", 1024, total=True, scope=ALL_LINKS),
    Field("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", names.NVLINK_BYTES, "rx", 1024, total=True, scope=ALL_LINKS),
)
SLOW_FIELDS = (
    Field("NVML_FI_DEV_ECC_SBE_VOL_TOTAL", names.ECC_ERRORS, "corrected", 1, total=True),
    Field("NVML_FI_DEV_ECC_DBE_VOL_TOTAL", names.ECC_ERRORS, "uncorrected", 1, total=True),
    Field("NVML_FI_DEV_REMAPPED_COR", names.REMAPPED_ROWS, "corrected", 1),
    Field("NVML_FI_DEV_REMAPPED_UNC", names.REMAPPED_ROWS, "uncorrected", 1),
    Field("NVML_FI_DEV_REMAPPED_PENDING", names.REMAPPED_ROWS, "pending", 1),
    Field("NVML_FI_DEV_REMAPPED_FAILURE", names.REMAPPED_ROWS, "failure", 1),
    Field("NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", names.LINK_ERRORS, "nvlink_crc", 1, total=True),
    Field("NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", names.LINK_ERRORS, "nvlink_replay", 1, total=True),
    Field("NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", names.LINK_ERRORS, "nvlink_recovery", 1, total=True),
    Field("NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS", names.LINK_ERRORS, "pcie_correctable", 1, total=True),
)
GPM_METRICS = ((2, names.SM_ACTIVE), (5, names.TENSOR_ACTIVE), (10, names.DRAM_ACTIVE))

VALUE_FIELDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of the union by nvmlValueType; 32 bits for uiVal and siVal, 64 else."""
BITS = (64, 32, 64, 64, 63, 31, 16)

FOR_GOOD = ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "NO_PERMISSION", "INVALID_ARGUMENT", "ARGUMENT_VERSION_MISMATCH")
LATER = ("NO_DATA", "TIMEOUT", "IN_USE", "NOT_READY", "INSUFFICIENT_RESOURCES", "INSUFFICIENT_SIZE")
GONE = ("GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND")


class DriverTrouble(Exception):
    """The driver answered something that only a new session with it can heal."""


@dataclass(slots=True)
class Device:
    """A GPU and what is known about reading it."""

    gpu: Gpu
    handle: Any
    slice_of: Any = None
    instance: int | None = None
    off: set[str] = field(default_factory=set)
    lost: bool = False
    samples: tuple[Any, Any] | None = None
    primed: bool = False


def open_nvml() -> GpuReader:
    """Open NVML; a reader without GPUs if it is absent or broken."""
    try:
        import pynvml
    except ImportError:
        return NoGpus("nvidia-ml-py is not installed (pip install 'perfkit[train]')")
    try:
        return NvmlReader(pynvml)
    except (pynvml.NVMLError, OSError) as error:
        return NoGpus(f"NVML cannot be used: {error}")


class NvmlReader:
    """Reads all NVIDIA GPUs of the machine."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._totals = Totals()
        self._driver_ns = 0
        self._retry_at = 0.0
        self._pause = 5.0
        self._codes = {getattr(nvml, f"NVML_ERROR_{name}"): name for name in (*FOR_GOOD, *LATER, *GONE)}
        self._fields = {
            False: [(f, getattr(nvml, f.constant)) for f in FAST_FIELDS if hasattr(nvml, f.constant)],
            True: [(f, getattr(nvml, f.constant)) for f in SLOW_FIELDS if hasattr(nvml, f.constant)],
        }
        self.absent: str | None = None
        self._devices: list[Device] = []
        nvml.nvmlInit()
        self._devices = list(self._find())
        self.gpus: Sequence[Gpu] = tuple(device.gpu for device in self._devices)
        self._events = self._watch()

    # ---------------------------------------------------------------- finding

    def _find(self) -> Iterator[Device]:
        for index in range(self._nvml.nvmlDeviceGetCount()):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                device = Device(self._describe(index, handle), handle)
            except self._nvml.NVMLError:
                continue  # `happenings` of the first round say that it is missing
            slices = list(self._slices(index, handle))
            yield device
            yield from slices

    def _describe(self, index: int, handle: Any) -> Gpu:
        nvml = self._nvml
        name = self._try(lambda: nvml.nvmlDeviceGetName(handle))
        memory = self._try(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total)
        return Gpu(index, nvml.nvmlDeviceGetUUID(handle), name, memory)

    def _slices(self, index: int, handle: Any) -> Iterator[Device]:
        """Yield the MIG devices of a GPU."""
        nvml = self._nvml
        mode = self._try(lambda: nvml.nvmlDeviceGetMigMode(handle))
        if not mode or not mode[0]:
            return
        for place in range(self._try(lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
            part = self._try(lambda place=place: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place))  # type: ignore[misc]
            if part is not None:
                instance = self._try(lambda part=part: nvml.nvmlDeviceGetGpuInstanceId(part))  # type: ignore[misc]
                yield Device(self._describe(index, part), part, slice_of=handle, instance=instance)

    def _try(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._nvml.NVMLError:
            return None

    # ---------------------------------------------------------------- reading

    def read(self, *, slow: bool) -> Readings:
        """Read all GPUs once."""
        readings = Readings(time.time_ns())
        if self._retry_at:
            if time.monotonic() < self._retry_at:
                return readings
            self._reopen(readings)
        began = time.perf_counter_ns()
        try:
            for device in self._devices:
                if not device.lost:
                    self._read_device(device, slow, readings)
        except DriverTrouble as trouble:
            readings.happenings.append(
                Happening(readings.time_ns, None, None, "nvml_error", "warning", detail=str(trouble))
            )
            self._retry_at = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)
        self._driver_ns += time.perf_counter_ns() - began
        if self._devices:
            first = self._devices[0].gpu
            readings.rows.append((first.index, first.uuid, names.DRIVER_SECONDS, None, self._driver_ns / 1e9))
        return readings

    def _read_device(self, device: Device, slow: bool, readings: Readings) -> None:
        rows, gpu = readings.rows, device.gpu
        for metric, series, value in self._plain(device, slow):
            rows.append((gpu.index, gpu.uuid, metric, series, value))
        if device.slice_of is None:
            rows.extend(self._field_rows(device, slow=False))
            if slow:
                rows.extend(self._field_rows(device, slow=True))
        rows.extend(self._activity(device))
        if device.lost:
            readings.happenings.append(
                Happening(readings.time_ns, gpu.index, gpu.uuid, "lost", "fault", detail="the driver lost this GPU")
            )

    def _plain(self, device: Device, slow: bool) -> Iterator[tuple[str, str | None, float]]:
        """Yield what has a call of its own."""
        nvml, handle = self._nvml, device.handle
        memory = self._ask(device, names.MEMORY_USED, lambda: nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2))
        if memory is not None:
            yield names.MEMORY_USED, None, memory.used
            if slow:
                yield names.MEMORY_TOTAL, None, memory.total
        if device.slice_of is not None:
            return
        use = self._ask(device, names.UTILIZATION, lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        if use is not None:
            yield names.UTILIZATION, None, use.gpu / 100
        simple = (
            (names.SM_CLOCK, 1e6, lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            (names.MEMORY_CLOCK, 1e6, lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            (names.CLOCK_REASONS, 1, lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)),
            (names.TEMPERATURE, 1, lambda: nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU)),
        )
        for metric, scale, call in simple:
            value = self._ask(device, metric, call)
            if value is not None:
                yield metric, None, value * scale
        if slow:
            running = self._ask(device, names.PROCESSES, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
            if running is not None:
                yield names.PROCESSES, None, len(running)

    def _field_rows(self, device: Device, *, slow: bool) -> Iterator[Row]:
        wanted = [(f, number) for f, number in self._fields[slow] if f.constant not in device.off]
        batch = f"fields-{slow}"
        if not wanted:
            return
        ids = [(number, f.scope) for f, number in wanted]
        values = self._ask(device, batch, lambda: self._nvml.nvmlDeviceGetFieldValues(device.handle, ids))
        if values is None:
            return
        gpu = device.gpu
        for (f, _), found in zip(wanted, values, strict=True):
            if found.nvmlReturn != 0:
                self._note(device, f.constant, found.nvmlReturn)
                continue
            kind = found.valueType
            if not 0 <= kind < len(VALUE_FIELDS):
                device.off.add(f.constant)
                continue
            value = getattr(found.value, VALUE_FIELDS[kind])
            if f.total:
                value = self._totals.update(gpu.uuid, f.metric, f.series, int(value), BITS[kind])
            yield gpu.index, gpu.uuid, f.metric, f.series, value * f.scale

    def _activity(self, device: Device) -> Iterator[Row]:
        """Yield SM, tensor and DRAM activity since the last round (GPM; Hopper and later)."""
        if "gpm" in device.off or device.lost:
            return
        if device.samples is None and not self._start_gpm(device):
            return
        assert device.samples is not None
        before, now = device.samples
        if self._ask(device, "gpm", lambda: self._gpm_sample(device, now)) is None:
            return
        device.samples = (now, before)
        if not device.primed:
            device.primed = True
            return
        answer = self._ask(device, "gpm", lambda: self._gpm_between(before, now))
        if answer is None:
            return
        for place, (_, metric) in enumerate(GPM_METRICS):
            found = answer.metrics[place]
            if found.nvmlReturn == 0 and found.value == found.value:  # not NaN
                yield device.gpu.index, device.gpu.uuid, metric, None, found.value / 100

    def _start_gpm(self, device: Device) -> bool:
        nvml = self._nvml
        card = device.slice_of or device.handle
        support = self._ask(device, "gpm", lambda: nvml.nvmlGpmQueryDeviceSupport(card))
        if support is None or not support.isSupportedDevice:
            device.off.add("gpm")
            return False
        pair = self._ask(device, "gpm", lambda: (nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()))
        device.samples = pair
        return pair is not None

    def _gpm_sample(self, device: Device, sample: Any) -> Any:
        if device.instance is not None:
            return self._nvml.nvmlGpmMigSampleGet(device.slice_of, device.instance, sample)
        return self._nvml.nvmlGpmSampleGet(device.handle, sample)

    def _gpm_between(self, before: Any, now: Any) -> Any:
        request = self._nvml.c_nvmlGpmMetricsGet_t()
        request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(GPM_METRICS)
        request.sample1, request.sample2 = before, now
        for place, (number, _) in enumerate(GPM_METRICS):
            request.metrics[place].metricId = number
        return self._nvml.nvmlGpmMetricsGet(request)

    # ---------------------------------------------------------------- failing

    def _ask(self, device: Device, what: str, call: Callable[[], Any]) -> Any:
        """Call the driver; None if it has no answer, and then it may not be asked again."""
        if device.lost or what in device.off:
            return None
        try:
            return call()
        except self._nvml.NVMLError as error:
            self._note(device, what, error.value)
        except AttributeError:  # nvidia-ml-py is older than this function
            device.off.add(what)
        return None

    def _note(self, device: Device, what: str, code: int) -> None:
        name = self._codes.get(code)
        if name in FOR_GOOD:
            device.off.add(what)
        elif name in GONE:
            device.lost = True
        elif name not in LATER:
            raise DriverTrouble(f"{self._nvml.NVMLError(code)} while reading {what} of GPU {device.gpu.index}")

    def _reopen(self, readings: Readings) -> None:
        self._retry_at = 0.0
        try:
            self._try(self._nvml.nvmlShutdown)
            self._nvml.nvmlInit()
            self._devices = list(self._find())
            self._events = self._watch()
        except self._nvml.NVMLError as error:
            readings.happenings.append(
                Happening(readings.time_ns, None, None, "nvml_error", "warning", detail=str(error))
            )
            self._retry_at = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)

    # ---------------------------------------------------------------- XIDs

    def _watch(self) -> Any:
        """Ask for XIDs of every GPU; None where the driver has no events."""
        nvml = self._nvml
        events = self._try(nvml.nvmlEventSetCreate)
        if events is None:
            return None
        watched = [
            device for device in self._devices if device.slice_of is None and self._registered(device.handle, events)
        ]
        return events if watched else None

    def _registered(self, handle: Any, events: Any) -> bool:
        try:
            self._nvml.nvmlDeviceRegisterEvents(handle, self._nvml.nvmlEventTypeXidCriticalError, events)
        except self._nvml.NVMLError:
            return False
        return True

    def wait_for_happenings(self, timeout_ms: int) -> list[Happening]:
        """Wait for XIDs, on a thread of its own; an empty list after the time-out."""
        events = self._events
        if events is None:
            time.sleep(timeout_ms / 1000)
            return []
        try:
            data = self._nvml.nvmlEventSetWait_v2(events, timeout_ms)
        except self._nvml.NVMLError as error:
            if error.value != self._nvml.NVML_ERROR_TIMEOUT:
                time.sleep(timeout_ms / 1000)
            return []
        if data.eventType != self._nvml.nvmlEventTypeXidCriticalError:
            return []
        uuid = self._try(lambda: self._nvml.nvmlDeviceGetUUID(data.device))
        index = next((gpu.index for gpu in self.gpus if gpu.uuid == uuid), None)
        return [Happening(time.time_ns(), index, uuid, "xid", "fault", int(data.eventData), f"XID {data.eventData}")]

    def close(self) -> None:
        """Let go of the driver."""
        self._try(self._nvml.nvmlShutdown)
