"""The real nvidia-ml-py against a compiled stub of the driver's library, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.capture.gpus import Totals
from tests.capture.stub_library import StubGpus

pytest.importorskip("pynvml")


@pytest.fixture(scope="module")
def gpus(tmp_path_factory):
    return StubGpus(tmp_path_factory.mktemp("nvml"))


SCRIPT = """
import json, sys
from perfkit.capture.nvml import open_nvml
control, rounds = sys.argv[1], json.loads(sys.argv[2])
reader = open_nvml()
out = {"gpus": [g.uuid for g in reader.gpus], "absent": reader.absent, "rounds": []}
for settings in rounds if reader.absent is None else []:
    open(control, "w").write("".join(f"{k} {v}\\n" for k, v in settings.items()))
    found = reader.read(slow=True)
    happened = found.happenings + (reader.wait_for_happenings(100) if "xid" in settings else [])
    out["rounds"].append([found.rows, [[h.kind, h.index, h.code] for h in happened]])
print(json.dumps(out))
"""


def read(gpus, *rounds, **first):
    """Read once per round; returns (all that was found, [{(device, metric, series): value}], [happenings])."""
    gpus.set(**first)
    command = [sys.executable, "-c", SCRIPT, gpus.environ["NVML_STUB"], json.dumps(rounds or [first])]
    done = subprocess.run(command, env=gpus.environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    values = [{(row[0], row[2], row[3]): row[4] for row in rows} for rows, _ in out["rounds"]]
    return out, values, [happened for _, happened in out["rounds"]]


def test_values_arrive_in_base_units(gpus):
    out, (first, second), _ = read(gpus, {}, {})
    assert out["gpus"] == ["GPU-0", "GPU-1"]
    assert first[1, "gpu_utilization_ratio", None] == 0.51
    assert first[0, "gpu_sm_clock_hertz", None] == 1980e6
    assert first[0, "gpu_power_watts", None] == 700
    assert first[1, "gpu_temperature_celsius", None] == 61
    assert first[0, "gpu_throttle_seconds_total", "power"] == 2
    assert first[0, "gpu_nvlink_bytes_total", "tx"] == 4096
    assert first[1, "gpu_memory_used_bytes", None] == 2 << 30
    assert first[1, "gpu_ecc_errors_total", "uncorrected"] == 1
    assert first[1, "gpu_remapped_rows", "pending"] == 1
    assert first[0, "gpu_processes", None] == 1
    assert second[0, "gpu_energy_joules_total", None] - first[0, "gpu_energy_joules_total", None] == pytest.approx(1)


def test_activity_comes_from_the_second_round_on(gpus):
    _, (first, second), _ = read(gpus, {}, {})
    assert (0, "gpu_tensor_active_ratio", None) not in first
    assert second[0, "gpu_sm_active_ratio", None] == 0.8
    assert second[0, "gpu_tensor_active_ratio", None] == 0.45
    assert second[0, "gpu_dram_active_ratio", None] == 0.3


def test_a_gpu_before_hopper_has_no_activity_and_all_the_rest(gpus):
    _, (_, second), _ = read(gpus, {"gpm": 0}, {"gpm": 0})
    assert (0, "gpu_sm_active_ratio", None) not in second
    assert (0, "gpu_power_watts", None) in second


def test_what_is_not_supported_is_absent_and_not_zero(gpus):
    _, (first,), _ = read(gpus, {"unsupported": 1})
    assert (0, "gpu_utilization_ratio", None) not in first
    assert (0, "gpu_pcie_bytes_total", "rx") not in first
    assert first[0, "gpu_power_watts", None] == 700


def test_a_driver_without_a_symbol_costs_that_metric(tmp_path):
    _, (first,), _ = read(StubGpus(tmp_path, "-DNO_CLOCKS"), {})
    assert (0, "gpu_sm_clock_hertz", None) not in first
    assert first[0, "gpu_temperature_celsius", None] == 60


def test_a_lost_gpu_is_said_once_and_the_other_goes_on(gpus):
    _, (before, lost, after), happened = read(gpus, {}, {"lost": 1}, {"lost": 1})
    assert (1, "gpu_power_watts", None) in before
    assert not [key for key in {**lost, **after} if key[0] == 1]
    assert (0, "gpu_power_watts", None) in after
    assert happened == [[], [["lost", 1, None]], []]


def test_an_xid_arrives_with_its_gpu(gpus):
    _, _, happened = read(gpus, {"xid": "1 79"})
    assert happened == [[["xid", 1, 79]]]


def test_an_unknown_error_is_said_and_the_driver_left_alone_for_a_while(gpus):
    _, (_, second), happened = read(gpus, {"unknown": 1}, {})
    assert [kind for kind, _, _ in happened[0]] == ["nvml_error"]
    assert not [key for key in second if key[1] == "gpu_power_watts"]


def test_a_counter_that_wraps_goes_on(gpus):
    start = 2**32 - 1500
    _, rounds, _ = read(gpus, *[{"start": start}] * 3, start=start)
    found = [values[0, "gpu_pcie_bytes_total", "tx"] for values in rounds]
    assert [value - found[0] for value in found] == [0, 1000, 2000]


def test_slices_of_a_gpu_have_memory_and_activity_of_their_own(gpus):
    out, (_, second), _ = read(gpus, {"mig": 1}, {"mig": 1}, mig=1)
    assert out["gpus"] == ["GPU-0", "MIG-8", "MIG-9", "GPU-1"]
    assert second[0, "gpu_sm_active_ratio", None] == 0.8


def test_a_driver_that_does_not_match_its_library_is_absent_with_the_reason(gpus):
    out, _, _ = read(gpus, init=18)
    assert "NVML cannot be used" in out["absent"]


@given(st.lists(st.integers(0, 2**20), max_size=30), st.integers(0, 2**32 - 1))
def test_totals_follow_a_counter_of_32_bits_through_every_wrap(steps, raw):
    totals = Totals()
    total = totals.update("uuid", "metric", None, raw, 32)
    for step in steps:
        raw += step
        total = totals.update("uuid", "metric", None, raw % 2**32, 32)
    assert total == raw


def test_a_counter_that_starts_again_adds_what_it_counted_since():
    totals = Totals()
    assert [totals.update("u", "m", None, raw, 64) for raw in (100, 150, 20, 30)] == [100, 150, 170, 180]
