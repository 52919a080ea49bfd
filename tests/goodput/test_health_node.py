from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfkit.capture import gpus as names
from perfkit.capture.gpus import Gpu, Happening
from perfkit.goodput.checks import Check, worst
from perfkit.goodput.health_node import NodeOptions, check_clock, check_disk, check_gpus, judge_gpus, parse_xids
from tests.capture.stub_library import StubGpus

H100 = Gpu(0, "GPU-0", "NVIDIA H100 80GB HBM3", 80 << 30)


def judge(values=None, happenings=(), absent=None, *, answered=True, **options):
    found = [] if absent else [H100]
    values = {(0, metric, series): value for (metric, series), value in (values or {}).items()}
    checks = judge_gpus(found, values, list(happenings), absent, answered=answered, options=NodeOptions(**options))
    return [(check.name, check.severity) for check in checks]


def test_a_quiet_gpu_is_fine():
    assert judge({(names.CLOCK_REASONS, None): 4, (names.TEMPERATURE, None): 70}) == [("gpu", "ok")]


@pytest.mark.parametrize(
    ("metric", "value", "expected"),
    [
        ((names.ECC_ERRORS, "uncorrected"), 1, ("uncorrected ECC errors", "fault")),
        ((names.REMAPPED_ROWS, "failure"), 1, ("row remapping failed", "fault")),
        ((names.REMAPPED_ROWS, "pending"), 1, ("rows wait for remapping", "warning")),
        ((names.LINK_ERRORS, "nvlink_recovery"), 3, ("NVLink recoveries", "warning")),
        ((names.TEMPERATURE, None), 95, ("temperature", "warning")),
        ((names.CLOCK_REASONS, None), 0x40, ("clocks", "warning")),
    ],
)
def test_each_symptom_has_its_severity(metric, value, expected):
    assert judge({metric: value}) == [expected]


def test_xids_of_the_board_are_faults_and_those_of_the_program_are_not():
    happened = [Happening(1, 0, "GPU-0", "xid", "fault", code, f"XID {code}") for code in (79, 13)]
    assert judge(happenings=happened)[:2] == [("xid", "fault"), ("xid", "warning")]


def test_gpus_that_are_expected_and_missing_are_a_fault():
    assert judge(absent="no driver", expect_gpus=8) == [("gpus", "fault")]
    assert judge(expect_gpus=8)[0] == ("gpus", "fault")


def test_a_machine_without_gpus_is_unknown_and_not_healthy():
    assert judge(absent="no driver") == [("gpus", "unknown")]


def test_a_driver_that_does_not_answer_is_a_fault():
    assert judge(answered=False) == [("gpu driver", "fault")]


def test_the_stub_gpus_are_read_through_the_real_nvml(tmp_path, monkeypatch):
    pytest.importorskip("pynvml")
    for name, value in StubGpus(tmp_path).environ.items():
        monkeypatch.setenv(name, value)
    checks = list(check_gpus(NodeOptions(expect_gpus=2, gpu_timeout_s=90)))
    assert [(check.name, check.device, check.severity) for check in checks] == [
        ("gpu", 0, "ok"),
        ("uncorrected ECC errors", 1, "fault"),  # the stub counts as many errors as the GPU's index says
        ("row remapping failed", 1, "fault"),
        ("rows wait for remapping", 1, "warning"),
    ]


def test_a_hung_driver_is_a_fault_and_the_check_ends(tmp_path, monkeypatch):
    pytest.importorskip("pynvml")
    stub = StubGpus(tmp_path)
    stub.set(hang=1)
    for name, value in stub.environ.items():
        monkeypatch.setenv(name, value)
    checks = list(check_gpus(NodeOptions(gpu_timeout_s=3)))
    assert [(check.name, check.severity) for check in checks] == [("gpu driver", "fault")]


def test_disks(tmp_path):
    assert check_disk(tmp_path, 0.0).severity == "ok"
    assert check_disk(tmp_path, 1.0).severity == "warning"
    assert check_disk(tmp_path / "none", 0.0).severity == "fault"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_disk_that_cannot_be_written_is_a_fault():
    assert check_disk(Path("/proc"), 0.0).severity == "fault"


def test_the_clock_is_judged_or_said_to_be_unknown():
    assert check_clock().severity in ("ok", "warning", "unknown")
    assert check_clock().detail


def test_xids_are_counted_per_board():
    log = (
        "[1.0] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
        "[2.0] NVRM: Xid (PCI:0000:3b:00): 79, pid=2\n[3.0] NVRM: Xid (PCI:0000:af:00): 13, pid=3\n[4] usb 1-1: Xid"
    )
    assert parse_xids(log) == {("0000:3b:00", 79): 2, ("0000:af:00", 13): 1}


def test_the_worst_check_decides():
    checks = [Check(name="x", severity=severity, detail="") for severity in ("ok", "warning", "unknown")]
    assert worst(checks) == "warning"
    assert worst([]) == "unknown"
