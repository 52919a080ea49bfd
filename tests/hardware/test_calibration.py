from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfkit.errors import UsageError
from perfkit.hardware.calibration import best_rate, calibrate, sweep_matmul


class FakeClock:
    """Advances only when work is done."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_best_run_counts():
    clock = FakeClock()
    durations = iter([9.0, 2.0, 1.0, 4.0, 5.0])

    def work() -> None:
        clock.now += next(durations)

    assert best_rate(work, 10.0, seconds=1.0, clock=clock) == 10.0  # the run of 1 s; the first is the warm-up


def test_the_sweep_keeps_the_best_size_and_stops_when_products_get_too_long():
    clock = FakeClock()
    seen = []

    def make(size: int):
        def work() -> None:
            seen.append(size)
            clock.now += 2.0 * size**3 / (3e12 if size == 1024 else 1e12)

        return work

    flops, size = sweep_matmul(make, seconds=0.4, sizes=(512, 1024, 2048, 8192, 16384), clock=clock)
    assert size == 1024
    assert flops == pytest.approx(3e12)
    assert seen.count(8192) == 1  # 1.1 s is too long for its share
    assert 16384 not in seen


def test_an_unknown_device_kind_is_refused():
    with pytest.raises(UsageError):
        calibrate(device="tpu")


@pytest.mark.slow
def test_a_cpu_is_measured_with_numpy_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (entry,) = calibrate(seconds=0.1, device="cpu")
    assert entry["matmul_tflops"]["fp32"] > 0
    assert entry["copy_gbps"] > 0
    assert entry["allreduce"] is None
    json.dumps(entry)


@pytest.mark.slow
def test_ranks_under_torchrun_measure_an_all_reduce_and_one_of_them_stores_it(tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "measure.py"
    script.write_text(
        "import argparse\nfrom perfkit.cli import hardware\n"
        "p = argparse.ArgumentParser(); hardware.add_arguments(p)\n"
        "hardware.run(p.parse_args(['--calibrate', '--seconds', '0.05', '--device', 'cpu', '--format', 'json']))\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)],
        env={**os.environ, "PYTHONPATH": str(root), "PERFKIT_CONFIG_DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=200, check=True,
    )  # fmt: skip
    document = json.loads(done.stdout)
    sweep = document["measured"][0]["allreduce"]
    assert sweep["world_size"] == 2
    assert all(row["busbw_gbps"] == pytest.approx(row["algbw_gbps"]) for row in sweep["sweep"])  # 2(n-1)/n is 1
    assert json.loads((tmp_path / "measured.json").read_text())["devices"] == document["measured"]
