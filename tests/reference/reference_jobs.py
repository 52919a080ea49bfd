"""Run the reference loop as users do: torchrun, real processes, a folder of results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from perfkit.reference.joblog import read_log

TINY = {
    "model.vocab": 128, "model.dim": 32, "model.layers": 2, "model.heads": 4, "model.kv_heads": 2, "model.ffn": 64,
    "model.seq_len": 16, "data.tokens": 20_000, "train.global_batch": 8, "train.micro_batch": 2, "train.steps": 6,
    "capture.enabled": "false",
}  # fmt: skip
TIMEOUT_S = 280


def command(folder: Path, options: dict[str, Any], *, ranks: int, restarts: int = 0, extra: tuple[str, ...] = ()):
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    words += ["--max-restarts", str(restarts), "-m", "perfkit.reference.train", "--train.folder", str(folder)]
    for name, value in {**TINY, **options}.items():
        words += [f"--{name}", str(value)]
    return [*words, *extra]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def train(folder: Path, options: dict[str, Any] | None = None, *, ranks: int = 2, check: bool = True, **more: Any):
    """Run a job to its end and return its own log."""
    done = subprocess.run(
        command(folder, options or {}, ranks=ranks, **more), env=environment(), capture_output=True, text=True,
        timeout=TIMEOUT_S,
    )  # fmt: skip
    if check and done.returncode:
        raise AssertionError(f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")
    return read_log(folder)


def losses(log: list[dict[str, Any]], attempt: int | None = None) -> dict[int, float]:
    """Loss of each step as rank 0 logged it; a step that ran again counts as it ran last."""
    rows = (row for row in log if row["kind"] == "step" and row["rank"] == 0)
    return {row["step"]: row["loss"] for row in rows if attempt is None or row["attempt"] == attempt}


def kinds(log: list[dict[str, Any]], rank: int = 0) -> list[str]:
    return [row["kind"] for row in log if row["rank"] == rank]
