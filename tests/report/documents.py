"""Reports built by hand: every number is visible here, and none comes from the analysis under test."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pyarrow as pa

from perfkit.report.report import Report
from perfkit.schema import KERNELS, table_from_rows

MS = 1_000_000
HOSTILE = (
    "</script><script>window.PWNED=1</script><img src=x onerror=window.PWNED=1>\"'`${PWNED=1}\x1b[31m\u202e[red]=cmd"
)
PARTS = ("compute_ns", "exposed_comm_ns", "exposed_memcpy_ns", "idle_ns")


def terms(*rows: tuple[str, float | None, str | None], window_ns: int) -> list[dict[str, Any]]:
    """Waterfall rows from (term, points, parent); points None: not measured."""
    return [
        {
            "term": term, "points": points, "ns": None if points is None else round(points / 100 * window_ns),
            "gpu_hours": None if points is None else points / 100 * window_ns / 3600e9, "parent": parent,
            "measured": points is not None,
        }
        for term, points, parent in rows
    ]  # fmt: skip


def report(
    *, ranks: int = 8, steps: int = 6, name: str = "kernel", synthetic: bool = True, mfu: float | None = 0.412,
    kernels: int = 40, seed: int = 0,
) -> Report:  # fmt: skip
    """A report with every part filled; rank 5 is slow, and `name` is in every text that a trace can choose."""
    random = np.random.default_rng(seed)
    windows = np.full((ranks, steps), 60 * MS) + random.integers(0, MS, (ranks, steps))
    idle = (windows * 0.08).astype(np.int64)
    comm = (windows * 0.12).astype(np.int64)
    if ranks > 5:
        idle[5] += 4 * MS
    copies = np.full_like(windows, MS // 2)
    compute = windows - idle - comm - copies
    parts = dict(zip(PARTS, (compute, comm, copies, idle), strict=True))
    step_rows = [
        {
            "rank": r, "step": 10 + s, "start_ns": 10**18 + s * 60 * MS, "window_ns": int(windows[r, s]),
            **{k: int(v[r, s]) for k, v in parts.items()}, "spill_ns": 0,
        }
        for r in range(ranks)
        for s in range(steps)
    ]  # fmt: skip
    rank_rows = [
        {
            "rank": r, "host": f"{name}-host-{r // 8}", "device": "NVIDIA H100 80GB HBM3", "role": None,
            "window_ns": int(windows[r].sum()), **{k: int(v[r].sum()) for k, v in parts.items()},
            "hfu": None, "straggler_score": None, "wait_caused_ns": None,
        }
        for r in range(ranks)
    ]  # fmt: skip
    total = int(windows.sum())
    totals = {"window_ns": total, **{k: int(v.sum()) for k, v in parts.items()}}
    useful = 100 * mfu if mfu is not None else 45.0
    left = 100 - useful
    shares = [
        ("mfu" if mfu is not None else "hfu", useful, None), ("matmul_below_peak", left * 0.3, None),
        ("gemm", left * 0.25, "matmul_below_peak"), ("attention", left * 0.05, "matmul_below_peak"),
        ("throttled_clocks", None, "matmul_below_peak"), ("recompute", left * 0.1, None),
        ("non_matmul", left * 0.2, None), ("elementwise", left * 0.2, "non_matmul"), ("unsplit_comm", left * 0.2, None),
        ("exposed_wait", None, "unsplit_comm"), ("exposed_memcpy", left * 0.02, None), ("idle_host", left * 0.1, None),
        ("python", left * 0.1, "idle_host"), ("idle_data", left * 0.08, None), ("idle_launch", 0.0, None),
    ]  # fmt: skip
    families = ("gemm", "attention", "elementwise", "norm", "reduction", "optimizer")
    kernel_rows = [
        {
            "rank": r, "name": f"{name}_{families[k % 6]}_{k}_bf16_128x256_warpspecialized", "family": families[k % 6],
            "op": f"aten::{name}" if k % 3 else "aten::mm", "module": None, "phase": ("forward", "backward")[k % 2],
            "count": 10 + k, "total_ns": int(40 * MS / (k + 1)), "owned_ns": int(40 * MS / (k + 1)),
            "flops": None if k % 6 > 3 else float(40e-3 / (k + 1) * 10 ** (12 + random.random() * 2.8)),
            "bytes": None if k % 6 > 3 else float(40e-3 / (k + 1) * 10 ** (11 + random.random() * 1.4)),
            "waste_ns": None if k % 6 > 3 else int(20 * MS / (k + 1)), "bound": "compute" if k % 6 < 2 else "memory",
        }
        for r in range(min(ranks, 8))
        for k in range(kernels)
    ]  # fmt: skip
    summary = {
        "schema_version": 1, "synthetic": synthetic,
        "scope": {"ranks_traced": ranks, "world_size": ranks + 1, "steps": [10, 9 + steps]},
        "quality": {
            "ranks": list(range(ranks)), "steps_kept": ranks * steps, "steps_source": "ProfilerStep",
            "events": 1_234_567,
            "rejected": [{"path": f"traces/{name}.json", "reason": "ends in the middle of an event"}],
            "clock": {"aligned": False, "uncertainty_ns": None},
            "unknown_kernel_ns": total // 200,
            "carry_in_ns": 3 * MS, "spill_ns": 0, "graph_coverage": 0.25, "launches_missing": 12,
            "device_events": 90_000,
            "notes": [f"{name}: two files claim rank 3"],
        },
        "hardware": {
            "device": "NVIDIA H100 80GB HBM3", "peak_flops": 989.4e12, "dtype": "bf16", "source": "NVIDIA datasheet",
            "memory_bytes_per_second": 3.35e12, "notes": [],
        },
        "throughput": {
            "step_time_p50_ns": 60 * MS, "step_time_p95_ns": 64 * MS, "tokens_per_second": 1_250_000.0,
            "tokens_per_second_per_device": 18_000.0, "slow_steps": 1, "slow_step_excess_ns": 4 * MS,
        },
        "mfu": {
            "value": mfu, "hfu": 0.45, "convention": "palm" if mfu is not None else None,
            "model_flops_per_step": 3.2e15 if mfu is not None else None, "source": "model llama3-8b, --tokens-per-step",
            "flops_coverage": 0.97, "other_conventions": {"megatron": 0.44, "torchtitan": 0.43},
            "ladder_start": "mfu" if mfu is not None else "hfu",
            "messages": [] if mfu is not None else ["pass --model NAME"],
        },
        "totals": {**totals, "comm_ns": 2 * totals["exposed_comm_ns"], "overlap": 0.5},
        "idle": {
            "host_late_ns": totals["idle_ns"] // 2, "launch_ns": totals["idle_ns"] - totals["idle_ns"] // 2,
            "dependency_ns": 0, "unattributed_ns": 0,
            "culprits": [
                {"kind": "data_loader", "where": f"train.py:88 {name}", "ns": totals["idle_ns"] // 3},
                {"kind": "python", "where": None, "ns": totals["idle_ns"] // 9},
            ],
        },
        "io": {
            "data_wait_ns": 5 * MS, "h2d_exposed_ns": MS, "h2d_gbps": 21.5, "checkpoint_ns": None,
            "checkpoint_exposed_ns": None,
        },
        "steps": step_rows[:1000], "ranks": rank_rows,
        "collectives": [
            {
                "group": f"dp {name}", "op": "all_reduce", "ranks": ranks, "count": 96, "bytes": 4e9,
                "algbw_gbps": 120.0,
                "busbw_gbps": 210.0, "efficiency": 0.62, "wait_ns": None, "transfer_ns": None, "exposed_wait_ns": None,
                "exposed_transfer_ns": None, "matched": None, "class": "comm",
            }
        ],
        "kernels": [], "waterfall": terms(*shares, window_ns=total),
        "findings": [
            {
                "id": "data_bound", "title": "The data loader holds the host up", "points": 4.2,
                "evidence": {"wait_ns": 5 * MS, "share": 0.041, "where": [{"where": f"train.py:88 {name}", "ns": MS}]},
                "next": f"Raise num_workers, or move {name} out of the collate function.",
            },
            {
                "id": "exposed_comm", "title": "Communication that no compute hides", "points": 6.1,
                "evidence": "all_reduce of the dp group: 7.2 ms a step, 50 % hidden",
                "next": "Overlap gradient reduction.",
            },
            {"id": "tiny_kernels", "title": "Tiny kernels", "points": 2, "evidence": None, "next": "Use CUDA graphs."},
            {"id": "slow_steps", "title": "Some steps are slow", "points": None, "evidence": [], "next": None},
        ],
    }  # fmt: skip
    tables = {
        "steps": pa.Table.from_pylist(step_rows), "ranks": pa.Table.from_pylist(rank_rows),
        "kernels": table_from_rows(KERNELS, kernel_rows), "timeline": timeline(ranks, seed),
    }  # fmt: skip
    return Report(summary, tables)


def timeline(ranks: int, seed: int, bins: int = 400) -> pa.Table:
    """One step in bins, as perfkit.analysis.bins makes it."""
    random = np.random.default_rng(seed)
    width = 60 * MS // bins
    busy = np.repeat(random.random((ranks, bins // 20)), 20, axis=1)
    compute = np.where(busy > 0.25, width, 0)
    comm = np.where((busy > 0.1) & (busy <= 0.25), width, 0)
    return pa.table(
        {
            "rank": pa.array(np.repeat(np.arange(ranks), bins), pa.int32()),
            "step": pa.array(np.full(ranks * bins, 12), pa.int64()),
            "start_ns": pa.array(np.tile(10**18 + np.arange(bins) * width, ranks)),
            "window_ns": pa.array(np.full(ranks * bins, width)),
            "compute_ns": compute.ravel(),
            "exposed_comm_ns": comm.ravel(),
            "exposed_memcpy_ns": np.zeros(ranks * bins, np.int64),
            "idle_ns": (width - compute - comm).ravel(),
        }
    )


def bare() -> Report:
    """The least that an analysis may give: everything unknown, no tables."""
    full = copy.deepcopy(report(ranks=1, steps=1).summary)
    quality = {**dict.fromkeys(full["quality"]), "ranks": [], "notes": [], "rejected": []}
    return Report({"schema_version": 1, "synthetic": False, "quality": quality})
