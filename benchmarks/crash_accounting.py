"""Crash a real job, let torchrun restart it, and hold perfkit's account against the job's own log.

    python benchmarks/crash_accounting.py                 100 steps, killed before step 74 (about a minute)
    python benchmarks/crash_accounting.py --runs 3

The job writes its own log (job-<rank>.jsonl), which shares no code with capture. Lost work is the time from the end of
the last step that was not run again to the failure, without checkpoints; recovery is from the failure to the start of
the next step that counts; restore is the loading of the checkpoint, a part of the recovery.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

RANKS = 2
OPTIONS = {
    "model.vocab": 2048, "model.dim": 256, "model.layers": 4, "model.heads": 8, "model.kv_heads": 4, "model.ffn": 768,
    "model.seq_len": 128, "train.micro_batch": 4, "data.tokens": 200_000, "capture.profile_active": 0,
}  # fmt: skip


class Agreement(NamedTuple):
    """One duration, twice."""

    what: str
    log_s: float
    store_s: float


def account(folder: Path) -> tuple[list[Agreement], dict[str, Any]]:
    """Return what the log and the store of a job that crashed once say, and the store's totals."""
    from perfkit.goodput.question import ask
    from perfkit.sources.spool import compact_folder, find_spools

    store = folder / "store"
    for spool in find_spools(store / "spool"):
        compact_folder(spool, str(store), include_open=True)
    log = [json.loads(line) for line in (folder / "job-0.jsonl").read_text().splitlines()]
    restored = next(row for row in log if row["kind"] == "restored")
    failed = next(row for row in log if row["kind"] == "failed")
    steps = {(row["attempt"], row["step"]): row for row in log if row["kind"] == "step"}
    kept_ns = steps[0, restored["step"] - 1]["end_ns"]  # the end of the last step that was not run again
    saves_ns = sum(
        row["end_ns"] - row["start_ns"]
        for row in log
        if row["kind"] == "saved" and row["attempt"] == 0 and row["start_ns"] >= kept_ns
    )
    totals: dict[str, Any] = ask(["reference"], store=str(store))["totals"]
    buckets = {name: bucket["ns"] / 1e9 / RANKS for name, bucket in totals["buckets"].items()}
    again_ns = steps[1, restored["step"]]["start_ns"]
    return [
        Agreement("lost work", (failed["time_ns"] - kept_ns - saves_ns) / 1e9, buckets["lost"]),
        Agreement("recovery", (again_ns - failed["time_ns"]) / 1e9, totals["mttr_hours"] * 3600),
        Agreement("restore", (restored["end_ns"] - restored["start_ns"]) / 1e9, buckets["restore"]),
    ], totals


def train(folder: Path, *, steps: int, every: int, crash: int) -> None:
    """Run the job to its end."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    words += ["--max-restarts", "1", "-m", "perfkit.reference.train", "--train.folder", str(folder)]
    chosen = {**OPTIONS, "train.steps": steps, "checkpoint.every": every}
    words += [word for name, value in chosen.items() for word in (f"--{name}", str(value))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    subprocess.run(
        [*words, "--fault", f"crash:1:{crash}"], env=environment, check=True, capture_output=True, timeout=600
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=25, help="steps between checkpoints")
    parser.add_argument("--crash", type=int, default=74, help="step before which rank 1 is killed")
    args = parser.parse_args(argv)
    print(f"{'':<12} {'job':>10} {'perfkit':>10} {'difference':>11}")
    worst = 0.0
    for _ in range(args.runs):
        with tempfile.TemporaryDirectory(prefix="perfkit-crash-") as folder:
            train(Path(folder), steps=args.steps, every=args.every, crash=args.crash)
            for one in account(Path(folder))[0]:
                off = one.store_s / one.log_s - 1
                worst = max(worst, abs(off))
                print(f"{one.what:<12} {one.log_s:>8.3f} s {one.store_s:>8.3f} s {off:>+11.2%}", flush=True)
    print(f"largest difference {worst:.2%}")
    return 1 if worst > 0.05 else 0


if __name__ == "__main__":
    sys.exit(main())
