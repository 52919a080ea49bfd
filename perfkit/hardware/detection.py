"""What this machine has: GPUs as the driver reports them, the CPU and the memory.

    detect_devices() -> list of LocalDevice, GPUs first, the CPU last

NVML (nvidia-ml-py) is asked first, then `nvidia-smi`; torch is asked only if it is imported already, for
the SM count that the other two do not have. Nothing here raises because a driver is missing: a machine
without a GPU is a machine with a CPU.
"""

from __future__ import annotations

import csv
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_SMI_FIELDS = "name,compute_cap,memory.total,power.limit,clocks.max.sm,mig.mode.current"
_SMI_TIMEOUT_SECONDS = 20


@dataclass(frozen=True, slots=True)
class LocalDevice:
    """One device of this machine; null is what could not be found out."""

    index: int
    kind: str
    """`gpu` or `cpu`."""
    name: str
    compute_capability: str | None = None
    sm_count: int | None = None
    memory_bytes: int | None = None
    power_limit_watts: float | None = None
    max_clock_mhz: float | None = None
    mig: bool | None = None
    cores: int | None = None
    """Logical CPUs that this process may use."""


def detect_devices() -> list[LocalDevice]:
    """List the GPUs and the CPU."""
    return [*(_nvml_devices() or _smi_devices() or _torch_devices()), detect_cpu()]


def detect_cpu(proc: Path = Path("/proc")) -> LocalDevice:
    """Describe the CPU; its name is the key of a measured peak."""
    info = _read(proc / "cpuinfo")
    name = next((v for k, v in info if k == "model name"), "") or platform.processor() or platform.machine() or "CPU"
    memory = next((int(v.split()[0]) * 1024 for k, v in _read(proc / "meminfo") if k == "MemTotal"), None)
    clock = _max_clock_mhz() or next((float(v) for k, v in info if k == "cpu MHz"), None)
    return LocalDevice(0, "cpu", name, memory_bytes=memory, max_clock_mhz=clock, cores=usable_cores())


def current_cpu_mhz(proc: Path = Path("/proc")) -> float | None:
    """Clock that the fastest core runs at now."""
    clocks = [float(value) for key, value in _read(proc / "cpuinfo") if key == "cpu MHz"]
    return max(clocks, default=None)


def usable_cores() -> int:
    """CPUs that this process may run on, which in a container is less than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read(path: Path) -> list[tuple[str, str]]:
    try:
        lines = path.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [(key.strip(), value.strip()) for line in lines for key, _, value in [line.partition(":")] if value]


def _max_clock_mhz() -> float | None:
    try:
        return float(Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").read_text()) / 1000
    except (OSError, ValueError):
        return None


def _nvml_devices() -> list[LocalDevice]:
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_nvml_device(pynvml, i) for i in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def _nvml_device(pynvml: Any, index: int) -> LocalDevice:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)

    def ask(function: str, *args: Any) -> Any:
        try:
            return getattr(pynvml, function)(handle, *args)
        except (pynvml.NVMLError, AttributeError):
            return None

    name = ask("nvmlDeviceGetName") or "unknown GPU"
    memory, capability = ask("nvmlDeviceGetMemoryInfo"), ask("nvmlDeviceGetCudaComputeCapability")
    limit, mig = ask("nvmlDeviceGetEnforcedPowerLimit"), ask("nvmlDeviceGetMigMode")
    attributes = ask("nvmlDeviceGetAttributes_v2")
    device = LocalDevice(
        index=index,
        kind="gpu",
        name=name.decode() if isinstance(name, bytes) else str(name),
        compute_capability=None if capability is None else ".".join(map(str, capability)),
        sm_count=getattr(attributes, "multiprocessorCount", None),
        memory_bytes=None if memory is None else int(memory.total),
        power_limit_watts=None if limit is None else limit / 1000,
        max_clock_mhz=ask("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM),
        mig=None if mig is None else bool(mig[0]),
    )
    return _with_torch_sms(device)


def _smi_devices() -> list[LocalDevice]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        done = subprocess.run(
            [program, f"--query-gpu={_SMI_FIELDS}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_SMI_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [_with_torch_sms(device) for device in parse_smi(done.stdout)] if done.returncode == 0 else []


def parse_smi(text: str) -> list[LocalDevice]:
    """Parse `nvidia-smi --query-gpu` output; `[N/A]` and unknown words become null."""
    devices = []
    for index, row in enumerate(csv.reader(text.splitlines(), skipinitialspace=True)):
        if len(row) != len(_SMI_FIELDS.split(",")):
            continue
        name, capability, memory_mib, limit, clock, mig = (cell.strip() for cell in row)
        devices.append(
            LocalDevice(
                index=index,
                kind="gpu",
                name=name,
                compute_capability=capability if _number(capability) is not None else None,
                memory_bytes=None if (mib := _number(memory_mib)) is None else int(mib * 2**20),
                power_limit_watts=_number(limit),
                max_clock_mhz=_number(clock),
                mig={"Enabled": True, "Disabled": False}.get(mig),
            )
        )
    return devices


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _torch_devices() -> list[LocalDevice]:
    torch = sys.modules.get("torch")  # importing it here would cost seconds
    if torch is None or not torch.cuda.is_available():
        return []
    return [
        _with_torch_sms(LocalDevice(index, "gpu", torch.cuda.get_device_name(index)))
        for index in range(torch.cuda.device_count())
    ]


def _with_torch_sms(device: LocalDevice) -> LocalDevice:
    torch = sys.modules.get("torch")
    if torch is None or device.sm_count is not None or not torch.cuda.is_available():
        return device
    properties = torch.cuda.get_device_properties(device.index)
    return replace(
        device,
        sm_count=properties.multi_processor_count,
        memory_bytes=device.memory_bytes or properties.total_memory,
        compute_capability=device.compute_capability or f"{properties.major}.{properties.minor}",
    )
