from __future__ import annotations

from perfkit.hardware.detection import current_cpu_mhz, detect_cpu, detect_devices, parse_smi

SMI = """NVIDIA H100 80GB HBM3, 9.0, 81559, 700.00, 1980, Disabled
NVIDIA A100-SXM4-80GB, 8.0, 81920, [N/A], [Unknown Error], Enabled
broken line
"""


def test_nvidia_smi_is_parsed_and_what_it_does_not_know_is_null():
    first, second = parse_smi(SMI)
    assert (first.name, first.compute_capability, first.power_limit_watts) == ("NVIDIA H100 80GB HBM3", "9.0", 700.0)
    assert first.memory_bytes == 81559 * 2**20
    assert first.mig is False
    assert second.power_limit_watts is None
    assert second.max_clock_mhz is None
    assert second.mig is True


def test_the_cpu_is_described_from_proc(tmp_path):
    (tmp_path / "cpuinfo").write_text("model name\t: Some CPU @ 2 GHz\ncpu MHz\t\t: 2100.5\ncpu MHz\t\t: 3000.0\n")
    (tmp_path / "meminfo").write_text("MemTotal:       1048576 kB\n")
    cpu = detect_cpu(tmp_path)
    assert cpu.name == "Some CPU @ 2 GHz"
    assert cpu.memory_bytes == 2**30
    assert cpu.cores is not None
    assert current_cpu_mhz(tmp_path) == 3000.0


def test_a_machine_without_proc_still_has_a_cpu(tmp_path):
    cpu = detect_cpu(tmp_path / "nothing")
    assert cpu.name
    assert cpu.memory_bytes is None


def test_the_cpu_is_always_listed_last():
    assert detect_devices()[-1].kind == "cpu"


def test_a_program_that_fails_is_a_machine_without_a_gpu(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert [d.kind for d in detect_devices()] == ["cpu"]
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{SMI}END\n")
    assert [d.name for d in detect_devices()][:2] == ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"]
