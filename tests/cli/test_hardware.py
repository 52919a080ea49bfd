from __future__ import annotations

import argparse
import json

import pytest

from perfkit.cli import hardware
from perfkit.errors import UnknownHardware, UsageError
from perfkit.hardware import calibration


@pytest.fixture(autouse=True)
def config_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("PERFKIT_CONFIG_DIR", str(tmp_path))
    return tmp_path


def run(capsys, *argv: str) -> str:
    parser = argparse.ArgumentParser()
    hardware.add_arguments(parser)
    assert hardware.run(parser.parse_args(list(argv))) == 0
    return capsys.readouterr().out


def test_the_list_has_this_machine_and_the_registry(capsys):
    text = run(capsys)
    assert "this machine" in text
    assert "cpu" in text
    assert "H100-SXM5-80GB" in text
    document = json.loads(run(capsys, "--format", "json"))
    assert document["local"][-1]["kind"] == "cpu"
    assert len(document["registry"]) > 40


def test_one_device_is_shown_with_its_sources(capsys):
    text = run(capsys, "NVIDIA H200")
    assert "989.5" in text
    assert "stas00/ml-engineering" in text
    document = json.loads(run(capsys, "nvidia gb200", "--format", "json"))
    bf16 = next(v for v in document["values"] if v["metric"] == "bf16")
    assert bf16["value"] == 2450
    assert "2500" in bf16["note"]


def test_an_unknown_device_is_an_error_with_suggestions(capsys):
    with pytest.raises(UnknownHardware, match="NVIDIA H100 PCIe"):
        run(capsys, "H100")


def entry() -> dict[str, object]:
    return {"device": "Some CPU", "kind": "cpu", "date": "2026-01-02T03:04:05+00:00", "backend": "numpy 2", "host": "h",
            "local_world_size": 1, "cores": 2, "max_clock_mhz": 2000.0, "clock_mhz": None,
            "matmul_tflops": {"fp32": 0.1}, "matmul_size": {"fp32": 1024}, "copy_gbps": 10.0,
            "allreduce": {"world_size": 2, "backend": "gloo",
                          "sweep": [{"bytes": 1048576, "algbw_gbps": 1.0, "busbw_gbps": 1.0}]}}  # fmt: skip


def test_a_calibration_is_stored_shown_and_used(capsys, monkeypatch, config_dir):
    monkeypatch.setattr(calibration, "calibrate", lambda **_: [entry()])
    text = run(capsys, "--calibrate")
    assert "0.100 TFLOP/s" in text
    assert "all-reduce" in text
    assert str(config_dir) in text
    assert "Some CPU" in run(capsys, "some cpu")
    from perfkit.cli.main import main

    argv = ["mfu", "--model", "gpt2", "--hardware", "Some CPU", "--peak", "measured", "--dtype", "fp32",
            "--tokens-per-second-per-device", "50", "--format", "json"]  # fmt: skip
    assert main(argv) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["peak_flops"] == 0.1e12
    assert "2026-01-02" in document["peak_source"]


def test_only_rank_0_stores_and_prints(capsys, monkeypatch, config_dir):
    monkeypatch.setattr(calibration, "calibrate", lambda **_: [entry()])
    monkeypatch.setenv("RANK", "1")
    assert run(capsys, "--calibrate") == ""
    assert not (config_dir / "measured.json").exists()


@pytest.mark.parametrize(
    "argv", [["--calibrate", "--seconds", "0"], ["--calibrate", "NVIDIA H200"], ["--calibrate", "--device", "tpu"]]
)
def test_nonsense_is_refused(capsys, argv):
    with pytest.raises(UsageError):
        run(capsys, *argv)
