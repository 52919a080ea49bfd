"""Measure what this machine reaches: a matmul, a copy and, under torchrun, an all-reduce.

    calibrate(seconds=2.0) -> list of measurements, one per device; `save_measured` stores them

The peak of a matmul is the best of a sweep of square sizes: the largest rate that was seen is the least
the device can do. It is not the theoretical peak, so an MFU against it is higher and says so. numpy is
enough for a CPU; torch adds bf16 and GPUs. Under torchrun every rank takes part in the all-reduce and
rank 0 keeps the result. One measurement:

    {"device", "kind", "date", "backend", "host", "local_world_size", "cores", "max_clock_mhz", "clock_mhz",
     "matmul_tflops": {dtype: rate}, "matmul_size": {dtype: n}, "copy_gbps",
     "allreduce": null or {"world_size", "backend", "sweep": [{"bytes", "algbw_gbps", "busbw_gbps"}]}}
"""

from __future__ import annotations

import datetime
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from perfkit.errors import UsageError
from perfkit.hardware.detection import current_cpu_mhz, detect_cpu, detect_devices

Clock = Callable[[], float]

MATMUL_SIZES = (512, 1024, 2048, 4096, 8192)
COPY_BYTES = 256 * 2**20
ALLREDUCE_BYTES = tuple(2**n for n in range(16, 29, 2))


def best_rate(work: Callable[[], None], amount: float, *, seconds: float, clock: Clock = time.perf_counter) -> float:
    """Repeat `work` for about `seconds` (at least three times) and return the best `amount` per second."""
    work()  # warm up: threads, caches, clocks
    best, start, runs = 0.0, clock(), 0
    while runs < 3 or clock() - start < seconds:
        before = clock()
        work()
        elapsed = clock() - before
        best = max(best, amount / elapsed if elapsed > 0 else 0.0)
        runs += 1
    return best


def sweep_matmul(
    make: Callable[[int], Callable[[], None]], *, seconds: float, sizes: tuple[int, ...] = MATMUL_SIZES,
    clock: Clock = time.perf_counter,
) -> tuple[float, int]:  # fmt: skip
    """Return the best FLOP/s over the sizes and the size; stops when a product takes longer than its share."""
    best, best_size = 0.0, sizes[0]
    share = seconds / len(sizes)
    for size in sizes:
        work = make(size)
        before = clock()
        work()
        if clock() - before > 2 * share and best:
            break
        rate = best_rate(work, 2.0 * size**3, seconds=share, clock=clock)
        if rate > best:
            best, best_size = rate, size
    return best, best_size


def calibrate(*, seconds: float = 2.0, device: str = "auto") -> list[dict[str, Any]]:
    """Measure the CPU and, with torch, every GPU that this process sees; `device` is auto, cpu or gpu."""
    if device not in ("auto", "cpu", "gpu"):
        raise UsageError(f"--device {device!r}", next_step="use auto, cpu or gpu")
    torch = _torch()
    has_gpu = torch is not None and torch.cuda.is_available()
    if device == "gpu" and not has_gpu:
        raise UsageError("no GPU that torch can use", next_step="install torch with CUDA or ROCm, or use --device cpu")
    entries = []
    if has_gpu and device != "cpu":
        local = os.environ.get("LOCAL_RANK")
        indices = [int(local)] if local is not None else list(range(torch.cuda.device_count()))
        entries += [_calibrate_gpu(torch, index, seconds) for index in indices]
    if device != "gpu":
        entries.append(_calibrate_cpu(torch, seconds))
    if "WORLD_SIZE" in os.environ and torch is not None:
        reduced = _all_reduce_sweep(torch, "gpu" if has_gpu and device != "cpu" else "cpu")
        for entry in entries[:1]:
            entry["allreduce"] = reduced
    return entries


def _entry(name: str, kind: str, backend: str, **more: Any) -> dict[str, Any]:
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    sharing = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return {"device": name, "kind": kind, "date": date, "backend": backend, "host": platform.node(),
            "local_world_size": sharing, **more}  # fmt: skip


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch


def _calibrate_cpu(torch: Any, seconds: float) -> dict[str, Any]:
    import numpy as np

    cpu = detect_cpu()
    rates: dict[str, float] = {}
    sizes: dict[str, int] = {}
    if torch is None:
        backend = f"numpy {np.__version__}"
        makers: dict[str, Callable[[int], Callable[[], None]]] = {
            "fp32": partial(_numpy_matmul, np, "float32"),
            "fp64": partial(_numpy_matmul, np, "float64"),
        }
    else:
        backend = f"torch {torch.__version__}, {torch.get_num_threads()} threads"
        formats = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}
        makers = {name: partial(_torch_matmul, torch, dtype, "cpu") for name, dtype in formats.items()}
    for dtype, make in makers.items():
        flops, size = sweep_matmul(make, seconds=seconds, sizes=MATMUL_SIZES[:-1])
        rates[dtype], sizes[dtype] = flops / 1e12, size
    source = np.ones(COPY_BYTES // 8)
    target = np.empty_like(source)
    copied = best_rate(lambda: np.copyto(target, source), 2.0 * source.nbytes, seconds=seconds / 4)
    return _entry(
        cpu.name, "cpu", backend, cores=cpu.cores, max_clock_mhz=cpu.max_clock_mhz, clock_mhz=current_cpu_mhz(),
        matmul_tflops=rates, matmul_size=sizes, copy_gbps=copied / 1e9, allreduce=None,
    )  # fmt: skip


def _numpy_matmul(np: Any, dtype: str, size: int) -> Callable[[], None]:
    a, b = np.ones((size, size), dtype), np.ones((size, size), dtype)
    out = np.empty_like(a)
    return lambda: np.matmul(a, b, out=out)


def _torch_matmul(torch: Any, dtype: Any, device: Any, size: int) -> Callable[[], None]:
    a, b = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    out = torch.empty_like(a)

    def work() -> None:
        torch.mm(a, b, out=out)
        if device != "cpu":
            torch.cuda.synchronize(device)

    return work


def _calibrate_gpu(torch: Any, index: int, seconds: float) -> dict[str, Any]:
    device = torch.device("cuda", index)
    name = torch.cuda.get_device_name(index)
    facts = next((d for d in detect_devices() if d.kind == "gpu" and d.index == index), None)
    rates: dict[str, float] = {}
    sizes: dict[str, int] = {}
    for dtype, kind, tf32 in (("bf16", torch.bfloat16, False), ("fp16", torch.float16, False),
                              ("tf32", torch.float32, True), ("fp32", torch.float32, False)):  # fmt: skip
        torch.backends.cuda.matmul.allow_tf32 = tf32
        make = partial(_torch_matmul, torch, kind, device)
        flops, size = sweep_matmul(make, seconds=seconds, sizes=(*MATMUL_SIZES, 16384))
        rates[dtype], sizes[dtype] = flops / 1e12, size
    source = torch.ones(COPY_BYTES // 4, device=device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize(device)

    copied = best_rate(copy, 2.0 * COPY_BYTES, seconds=seconds / 4)
    try:
        clock = torch.cuda.clock_rate(index)
    except Exception:  # needs NVML; a missing clock must not lose the measurement
        clock = None
    return _entry(
        name, "gpu", f"torch {torch.__version__}", cores=None,
        max_clock_mhz=facts.max_clock_mhz if facts else None, clock_mhz=clock,
        matmul_tflops=rates, matmul_size=sizes, copy_gbps=copied / 1e9, allreduce=None,
    )  # fmt: skip


def _all_reduce_sweep(torch: Any, kind: str) -> dict[str, Any]:
    """All-reduce of growing size; bandwidths as in nccl-tests, SI GB/s."""
    import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]  # torch is an extra

    backend = "nccl" if kind == "gpu" else "gloo"
    mine = not dist.is_initialized()
    if mine:
        dist.init_process_group(backend)
    try:
        world = dist.get_world_size()
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if kind == "gpu" else "cpu"
        sweep = []
        for size in ALLREDUCE_BYTES:
            buffer = torch.ones(size // 4, device=device)
            for _ in range(2):
                dist.all_reduce(buffer)
            times = []
            for _ in range(5):  # the same number on every rank: a time limit would deadlock
                dist.barrier()
                before = time.perf_counter()
                dist.all_reduce(buffer)
                if kind == "gpu":
                    torch.cuda.synchronize(device)
                times.append(time.perf_counter() - before)
            rate = size / min(times) / 1e9
            sweep.append({"bytes": size, "algbw_gbps": rate, "busbw_gbps": rate * 2 * (world - 1) / world})
        return {"world_size": world, "backend": backend, "sweep": sweep}
    finally:
        if mine:
            dist.destroy_process_group()
