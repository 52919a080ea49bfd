"""The fault matrix: whatever breaks, training ends with the loss it has without perfkit, and one line says so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from perfkit.store import Store
from tests.capture.job import FAULT_AT
from tests.conftest import ROOT

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def train(store: Path, *options: str, perfkit: bool = True) -> tuple[int, list[str], list[str]]:
    """Run the job; returns exit code, the losses it printed, and the lines that perfkit logged."""
    environment = {**os.environ, "PERFKIT": "1" if perfkit else "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.capture.job", str(store), *options],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    losses = re.findall(r"^LOSS .*", done.stdout, flags=re.MULTILINE)
    return done.returncode, losses, [line for line in done.stderr.splitlines() if line.startswith("perfkit:")]


@cache
def true_losses() -> tuple[str, ...]:
    code, losses, lines = train(Path("nowhere"), perfkit=False)
    assert (code, lines) == (0, [])
    assert losses
    return tuple(losses)


def stored_steps(store: Path) -> list[int]:
    return sorted(Store(store).read("steps", run="job")["step"].to_pylist())


@pytest.mark.parametrize(
    ("fault", "options", "lines"),
    [
        ("none", ("--profile", "3"), []),
        ("full-disk", (), ["recording is off: File too large"]),
        ("slow-disk", ("--finish-seconds", "0.5"), ["ran out of time"]),
        ("export", ("--profile", "3"), ["profiling is off: the trace of step 3"]),
        ("vanishing-store", (), ["recording is off: the spool was removed"]),
        ("clock", (), ["the clock was stepped"]),
        ("fork", (), []),
    ],
)
def test_training_ends_with_its_own_loss_and_one_line(tmp_path, fault, options, lines):
    options = (*options, "--step-seconds", "0.05", "--fault", fault)
    code, losses, said = train(tmp_path / "store", *options)
    assert code == 0
    assert tuple(losses) == true_losses()
    assert len(said) == len(lines), said
    assert all(expected in line for expected, line in zip(lines, said, strict=True))
    if fault in ("none", "export", "clock", "fork"):
        assert stored_steps(tmp_path / "store") == list(range(24))
    if fault == "full-disk":  # what had been acknowledged is kept
        assert stored_steps(tmp_path / "store")[:FAULT_AT] == list(range(FAULT_AT))


def test_a_store_that_cannot_be_written_is_one_line(tmp_path):
    code, losses, said = train(Path("/sys/perfkit-store"), "--step-seconds", "0.05")
    assert (code, tuple(losses), len(said)) == (0, true_losses(), 1)
    assert "recording is off" in said[0]


def test_a_store_that_cannot_be_written_leaves_the_records_in_the_spool(tmp_path):
    spool = tmp_path / "spool"
    code, losses, said = train(Path("/sys/perfkit-store"), "--spool", str(spool))
    assert (code, tuple(losses), len(said)) == (0, true_losses(), 1)
    assert f"records are safe: perfkit ingest {spool}" in said[0]
    done = subprocess.run(
        [sys.executable, "-m", "perfkit", "ingest", str(spool), "--store", str(tmp_path / "store")],
        cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert stored_steps(tmp_path / "store") == list(range(24))


def test_an_exception_of_the_script_stays_its_own_and_ends_the_run_with_its_name(tmp_path):
    code, losses, said = train(tmp_path / "store", "--fault", "exception")
    assert (code, losses, said) == (1, [], [])
    assert stored_steps(tmp_path / "store") == list(range(FAULT_AT))
    rows = Store(tmp_path / "store").read("lifecycle", run="job").to_pylist()
    assert [row["cause"] for row in rows if row["kind"] == "end"] == ["RuntimeError"]


@pytest.mark.parametrize(("fault", "code"), [("sigterm", -15), ("sigkill", -9)])
def test_a_signal_ends_the_script_as_ever_and_what_was_acknowledged_is_stored(tmp_path, fault, code):
    found, losses, said = train(tmp_path / "store", "--fault", fault, "--step-seconds", "0.02")
    assert (found, losses, len(said)) == (code, [], 1)
    assert "ended without finish()" in said[0]
    assert stored_steps(tmp_path / "store") == list(range(FAULT_AT))
    rows = Store(tmp_path / "store").read("lifecycle", run="job").to_pylist()
    assert [row["cause"] for row in rows if row["kind"] == "fault"] == ["ended without finish()"]


def test_a_disk_that_is_really_full_costs_the_recording_and_one_line(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        (disk / "filler").write_bytes(b"x" * 48 * 1024)
        code, losses, said = train(disk / "store", "--profile", "3", "--step-seconds", "0.05")
        assert (code, tuple(losses), len(said)) == (0, true_losses(), 1), said
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)
