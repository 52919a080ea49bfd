"""What perfkit's store says about a crash, against what the job itself wrote down."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from perfkit.goodput.question import ask
from perfkit.sources.spool import compact_folder, find_spools
from perfkit.store import Store
from tests.reference.reference_jobs import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
RANKS = 2


def close(seconds: float) -> object:
    """5 %, and a quarter of a second: two clocks are read one after the other on a machine that may be busy."""
    return pytest.approx(seconds, rel=0.05, abs=0.25)


def seconds(start_ns: int, end_ns: int) -> float:
    return (end_ns - start_ns) / 1e9


def test_lost_work_recovery_and_restore_agree_with_the_jobs_own_log(tmp_path: Path):
    options = {
        "model.vocab": 2048, "model.dim": 256, "model.layers": 4, "model.heads": 8, "model.kv_heads": 4,
        "model.ffn": 768, "model.seq_len": 128, "train.micro_batch": 4, "train.steps": 16, "checkpoint.every": 4,
        "data.tokens": 200_000, "capture.enabled": "true", "capture.profile_active": 0,
    }  # fmt: skip
    log = [
        row
        for row in train(tmp_path, options, restarts=1, extra=("--fault", "crash:1:14"), ranks=RANKS)
        if row["rank"] == 0
    ]
    store = tmp_path / "store"
    for spool in find_spools(store / "spool"):
        compact_folder(spool, str(store), include_open=True)

    restored = next(row for row in log if row["kind"] == "restored")
    failed = next(row for row in log if row["kind"] == "failed")
    steps = {(row["attempt"], row["step"]): row for row in log if row["kind"] == "step"}
    kept = steps[0, restored["step"] - 1]["end_ns"]  # the end of the last step that was not run again
    saves = sum(
        seconds(row["start_ns"], row["end_ns"])
        for row in log
        if row["kind"] == "saved" and row["attempt"] == 0 and row["start_ns"] >= kept
    )
    lost = seconds(kept, failed["time_ns"]) - saves
    down = seconds(failed["time_ns"], steps[1, restored["step"]]["start_ns"])
    restore = seconds(restored["start_ns"], restored["end_ns"])

    found = ask(["reference"], store=str(store))["totals"]
    assert found["interruptions"] == 1
    assert found["restarts"] == 1
    assert found["buckets"]["lost"]["ns"] / 1e9 / RANKS == close(lost)
    assert found["buckets"]["restore"]["ns"] / 1e9 / RANKS == close(restore)
    assert found["mttr_hours"] * 3600 == close(down)
    assert sum(bucket["ns"] for bucket in found["buckets"].values()) == found["allocated_ns"]

    recorded = Store(store).read("steps", cluster="local", run="reference", ranks=[0])
    assert sorted(recorded["step"].to_pylist()) == sorted(step for _, step in steps)  # none missing, none invented
