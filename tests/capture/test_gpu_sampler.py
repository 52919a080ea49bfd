"""The sampler's process: values, a driver that is absent, one that hangs, one that dies."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfkit.capture.gpu_sampler import GpuSampler
from tests.capture.stub_library import StubGpus

pytest.importorskip("pynvml")


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    stub = StubGpus(tmp_path)
    for name, value in stub.environ.items():
        monkeypatch.setenv(name, value)
    return stub


def wait_for(sampler, what, timeout_s=90):
    """Poll until `what(rows, happenings)` holds."""
    rows, happenings = [], []
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        batch = sampler.poll()
        rows += batch.rows
        happenings += batch.happenings
        if what(rows, happenings):
            return rows, happenings
        time.sleep(0.02)
    raise AssertionError(f"never came: {rows[-3:]} {happenings} {sampler.absent}")


def test_rows_arrive_with_time_device_and_uuid(gpus):
    sampler = GpuSampler(interval_s=0.05)
    before = time.time_ns()
    rows, _ = wait_for(sampler, lambda rows, _: any(row[3] == "gpu_tensor_active_ratio" for row in rows))
    sampler.close()
    assert [gpu.uuid for gpu in sampler.gpus] == ["GPU-0", "GPU-1"]
    powers = {(row[1], row[2], row[5]) for row in rows if row[3] == "gpu_power_watts"}
    assert powers == {(0, "GPU-0", 700.0), (1, "GPU-1", 700.0)}
    assert all(before <= row[0] <= time.time_ns() for row in rows)


def test_an_xid_is_a_happening(gpus):
    gpus.set(xid="1 79")
    sampler = GpuSampler(interval_s=0.05)
    _, happenings = wait_for(sampler, lambda _, happenings: happenings)
    sampler.close()
    assert [(h.kind, h.index, h.uuid, h.code, h.severity) for h in happenings] == [("xid", 1, "GPU-1", 79, "fault")]


def test_a_call_that_hangs_for_good_is_said_and_holds_nobody_up(gpus):
    sampler = GpuSampler(interval_s=0.05, patience_s=0.5)
    wait_for(sampler, lambda rows, _: rows)
    gpus.set(hang=1)
    _, happenings = wait_for(sampler, lambda _, happenings: happenings)
    assert [h.kind for h in happenings] == ["nvml_unresponsive"]
    assert sampler.poll().rows == []
    sampler.close()


def test_after_too_many_starts_it_is_given_up(gpus):
    gpus.set(hang=1)
    sampler = GpuSampler(interval_s=0.05, patience_s=0.2, max_starts=1)
    wait_for(sampler, lambda _, happenings: happenings)
    assert "given up" in sampler.absent
    assert sampler.poll().happenings == []


def test_a_reader_that_dies_is_said(gpus):
    sampler = GpuSampler(interval_s=0.05)
    wait_for(sampler, lambda rows, _: rows)
    os.kill(sampler._process.pid, 9)
    _, happenings = wait_for(sampler, lambda _, happenings: happenings)
    assert [h.kind for h in happenings] == ["nvml_error"]
    sampler.close()


def test_a_machine_without_gpus_says_why_and_starts_nothing_again(monkeypatch):
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    sampler = GpuSampler(interval_s=0.05)
    end = time.monotonic() + 90
    while sampler.absent is None and time.monotonic() < end:
        sampler.poll()
        time.sleep(0.02)
    if sampler.gpus:
        pytest.skip("this machine has GPUs")
    assert "NVML" in sampler.absent
    assert "amdsmi" in sampler.absent
    assert sampler.poll().rows == []


def test_the_reader_ends_with_its_parent(gpus):
    script = (
        "import os, sys\nfrom perfkit.capture.gpu_sampler import GpuSampler\n"
        "s = GpuSampler()\nprint(s._process.pid, flush=True)\nos._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    pid = int(done.stdout)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except FileNotFoundError:
            return
        time.sleep(0.05)
    raise AssertionError("the reader outlived its parent")
