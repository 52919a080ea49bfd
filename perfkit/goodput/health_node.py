"""Is this node fit for work? GPUs, disk, clock, kernel log.

    check_node(NodeOptions(...)) -> list of Check

GPUs are read through capture's reader process, with a time limit: a driver that hangs is itself the finding. A machine
without GPUs is healthy unless GPUs are expected (`expect_gpus`).
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perfkit.capture import gpus as names
from perfkit.capture.gpu_sampler import GpuSampler
from perfkit.capture.gpus import Gpu, Happening
from perfkit.goodput.checks import Check
from perfkit.goodput.throttle import THERMAL

Values = dict[tuple[int, str, str | None], float]
HOT_CELSIUS = 87.0
MAX_CLOCK_ERROR_S = 0.1
STA_UNSYNC = 0x40
XID_LINE = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
HARMLESS_XIDS = {13, 31, 43, 45}
"""Faults of the program, not of the board (NVIDIA's XID catalogue: application errors and their clean-up)."""


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """What to check and how strictly."""

    expect_gpus: int | None = None
    paths: tuple[Path, ...] = (Path("/tmp"),)
    """File systems that jobs write to."""
    min_free_share: float = 0.05
    gpu_timeout_s: float = 20.0


def check_node(options: NodeOptions) -> list[Check]:
    """Run all checks."""
    return [
        *check_gpus(options),
        *(check_disk(path, options.min_free_share) for path in options.paths),
        check_clock(),
        *check_kernel_log(),
    ]


def check_gpus(options: NodeOptions) -> Iterator[Check]:
    """Check every GPU that the driver knows."""
    sampler = GpuSampler(interval_s=1.0, slow_every=1, patience_s=options.gpu_timeout_s, max_starts=1)
    values: Values = {}
    happenings: list[Happening] = []
    end = time.monotonic() + options.gpu_timeout_s
    rounds: set[int] = set()
    while sampler.absent is None and len(rounds) < 2 and time.monotonic() < end:  # two rounds: GPM needs both ends
        batch = sampler.poll()
        values |= {(row[1], row[3], row[4]): row[5] for row in batch.rows}
        rounds |= {row[0] for row in batch.rows}
        happenings += batch.happenings
        if any(h.kind == "nvml_unresponsive" for h in batch.happenings):
            break
        time.sleep(0.05)
    sampler.close()
    yield from judge_gpus(sampler.gpus, values, happenings, sampler.absent, answered=bool(rounds), options=options)


def judge_gpus(
    found: list[Gpu],
    values: Values,
    happenings: list[Happening],
    absent: str | None,
    *,
    answered: bool,
    options: NodeOptions,
) -> Iterator[Check]:
    """Turn what was read into checks."""
    expected = options.expect_gpus
    if any(h.kind == "nvml_unresponsive" for h in happenings) or (absent is None and not answered):
        yield Check(
            name="gpu driver",
            severity="fault",
            detail="the driver does not answer",
            next="look at `dmesg`, then reboot the node",
        )
        return
    if absent is not None:
        missing = bool(expected)
        yield Check(
            name="gpus",
            severity="fault" if missing else "unknown",
            detail=f"{expected} expected, none can be read: {absent}" if missing else f"none can be read: {absent}",
            next="look at `nvidia-smi` and the driver" if missing else "",
        )
        return
    boards = [gpu for gpu in found if not gpu.uuid.startswith("MIG-")]
    if expected is not None and len(boards) != expected:
        yield Check(
            name="gpus",
            severity="fault",
            detail=f"{expected} expected, {len(boards)} found",
            value=len(boards),
            next="look for a GPU that fell off the bus (`lspci`, XID 79)",
        )
    for happening in happenings:
        if happening.kind in ("lost", "xid"):
            harmless = happening.kind == "xid" and happening.code in HARMLESS_XIDS
            yield Check(
                name=happening.kind,
                severity="warning" if harmless else "fault",
                detail=happening.detail,
                device=happening.index,
                next="look at the job" if harmless else "drain the node and reset or replace the GPU",
            )
    for gpu in boards:
        yield from _judge_gpu(gpu, values)


def _judge_gpu(gpu: Gpu, values: Values) -> Iterator[Check]:
    def value(metric: str, series: str | None = None) -> float | None:
        return values.get((gpu.index, metric, series))

    rules = (
        (
            "uncorrected ECC errors",
            value(names.ECC_ERRORS, "uncorrected"),
            0,
            "fault",
            "drain the node and reset the GPU",
        ),
        ("row remapping failed", value(names.REMAPPED_ROWS, "failure"), 0, "fault", "replace the GPU"),
        (
            "rows wait for remapping",
            value(names.REMAPPED_ROWS, "pending"),
            0,
            "warning",
            "reset the GPU when it is idle",
        ),
        (
            "NVLink recoveries",
            value(names.LINK_ERRORS, "nvlink_recovery"),
            0,
            "warning",
            "check the NVLink bridge or tray",
        ),
        (
            "NVLink replays",
            value(names.LINK_ERRORS, "nvlink_replay"),
            100,
            "warning",
            "check the NVLink bridge or tray",
        ),
        ("temperature", value(names.TEMPERATURE), HOT_CELSIUS, "warning", "check the cooling"),
    )
    quiet = True
    for name, found, limit, severity, advice in rules:
        if found is not None and found > limit:
            quiet = False
            yield Check(
                name=name,
                severity=severity,
                detail=f"{found:g}, limit {limit:g}",
                value=found,
                device=gpu.index,
                next=advice,
            )
    reasons = value(names.CLOCK_REASONS)
    if reasons is not None and int(reasons) & THERMAL:
        quiet = False
        yield Check(
            name="clocks",
            severity="warning",
            detail=f"lowered by heat or hardware (reasons {int(reasons):#x})",
            value=reasons,
            device=gpu.index,
            next="check cooling and power supply",
        )
    if quiet:
        yield Check(name="gpu", severity="ok", detail=gpu.name or gpu.uuid, device=gpu.index)


def check_disk(path: Path, min_free_share: float) -> Check:
    """Check that a file system has room and can be written."""
    name = f"disk {path}"
    try:
        usage = shutil.disk_usage(path)
    except OSError as error:
        return Check(name=name, severity="fault", detail=error.strerror or str(error), next="mount it")
    free = usage.free / usage.total if usage.total else 0.0
    if free < min_free_share:
        detail = f"{free:.1%} of {usage.total / 1e9:.0f} GB free"
        return Check(name=name, severity="warning", detail=detail, value=free, next="remove what jobs left behind")
    probe = path / f".perfkit-health-{time.time_ns()}"
    try:
        probe.write_bytes(b"perfkit")
        probe.unlink()
    except OSError as error:
        return Check(name=name, severity="fault", detail=f"cannot be written: {error.strerror}", next="check the mount")
    return Check(name=name, severity="ok", detail=f"{free:.0%} of {usage.total / 1e9:.0f} GB free", value=free)


class _Timex(ctypes.Structure):
    _fields_ = [
        ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long), ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long), ("status", ctypes.c_int), ("rest", ctypes.c_long * 32),
    ]  # fmt: skip


def check_clock() -> Check:
    """Check that the kernel's clock is disciplined: traces of several hosts and logs depend on it."""
    timex = _Timex()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return Check(name="clock", severity="unknown", detail="this system has no adjtimex")
    if state < 0:
        return Check(name="clock", severity="unknown", detail="the kernel does not tell (a sandbox?)")
    error_s = timex.maxerror / 1e6
    if timex.status & STA_UNSYNC or error_s > MAX_CLOCK_ERROR_S:
        return Check(
            name="clock",
            severity="warning",
            detail=f"not synchronised (possible error {error_s:.3g} s)",
            value=error_s,
            next="start chrony or ntpd",
        )
    return Check(name="clock", severity="ok", detail=f"synchronised, error at most {error_s:.3g} s", value=error_s)


def check_kernel_log() -> Iterator[Check]:
    """Look for XIDs since boot."""
    try:
        done = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=10, errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        done = None
    if done is None or done.returncode != 0:
        yield Check(name="kernel log", severity="unknown", detail="cannot be read (dmesg needs root here)")
        return
    found = parse_xids(done.stdout)
    for (bus, code), count in sorted(found.items()):
        harmless = code in HARMLESS_XIDS
        yield Check(
            name="xid",
            severity="warning" if harmless else "fault",
            detail=f"XID {code} on {bus}, {count} times since boot",
            value=code,
            next="look at the job" if harmless else "drain the node and reset or replace the GPU",
        )
    if not found:
        yield Check(name="kernel log", severity="ok", detail="no XID since boot")


def parse_xids(log: str) -> dict[tuple[str, int], int]:
    """Return (bus, XID) -> how often, from a kernel log."""
    counts: dict[tuple[str, int], int] = {}
    for bus, code in XID_LINE.findall(log):
        counts[bus, int(code)] = counts.get((bus, int(code)), 0) + 1
    return counts
