"""Online metrics: end to end, without profiled steps, null where a part is unknown."""

from __future__ import annotations

import pytest

from perfkit.capture.meter import Meter, line
from perfkit.capture.settings import Settings
from perfkit.capture.yardstick import Yardstick, find_yardstick

MS = 1_000_000


def feed(meter, times_ms, *, tokens=1000, wait_ms=0, profiled=()):
    """Steps whose end-to-end times are given; the first starts at 0."""
    end, last = 0, None
    for number, took in enumerate(times_ms):
        end += took * MS
        row = (
            number,
            end - took * MS + wait_ms * MS,
            end,
            wait_ms * MS or None,
            tokens,
            None,
            None,
            number in profiled,
        )
        last = meter.add("steps", row)
    return last


def test_speed_counts_from_step_end_to_step_end_and_leaves_the_first_and_profiled_steps_out():
    meter = Meter()
    feed(meter, [900, 100, 100, 5000, 100], profiled={3}, wait_ms=20)
    seen = meter.snapshot()
    assert seen["tokens_per_second"] == pytest.approx(10_000)
    assert seen["data_wait_ratio"] == pytest.approx(0.2)
    assert (seen["counts"]["steps"], seen["counts"]["profiled_steps"]) == (5, 1)
    assert seen["counts"]["tokens"] == 5000


def test_mfu_is_model_flops_over_peak_and_time_of_the_replica():
    meter = Meter()
    meter.yardstick = Yardstick(flops_per_token=1e9, peak_flops=1e14, devices_per_replica=2)
    feed(meter, [100] * 5)
    assert meter.snapshot()["mfu"] == pytest.approx(1000 * 1e9 / (1e14 * 2 * 0.1))


@pytest.mark.parametrize("missing", ["flops_per_token", "peak_flops", "devices_per_replica"])
def test_mfu_is_null_when_a_part_is_unknown(missing):
    parts = {"flops_per_token": 1e9, "peak_flops": 1e14, "devices_per_replica": 1, missing: None}
    assert Yardstick(**parts).mfu(1000, 0.1) is None


def test_an_mfu_above_one_is_null():
    assert Yardstick(flops_per_token=1e12, peak_flops=1e12, devices_per_replica=1).mfu(1000, 0.1) is None


def test_a_step_without_tokens_makes_tokens_per_second_unknown():
    meter = Meter()
    feed(meter, [100] * 3, tokens=None)
    assert meter.snapshot()["tokens_per_second"] is None
    assert meter.snapshot()["mfu"] is None


def test_slow_steps_are_those_beyond_three_mads_and_one_percent():
    meter = Meter()
    assert not feed(meter, [100, 101, 99, 100, 102, 98, 100, 101, 99, 100, 100, 101])["slow"]
    meter = Meter()
    feed(meter, [100] * 12)
    end = 12 * 100 * MS
    assert not meter.add("steps", (12, end, end + int(100.5 * MS), None, 1, None, None, False))["slow"]
    end += int(100.5 * MS)
    assert meter.add("steps", (13, end, end + 150 * MS, None, 1, None, None, False))["slow"]


def test_phases_are_the_outermost_spans_of_a_step():
    meter = Meter()
    meter.add("spans", ("forward", 0, 0, 5, None, 0, 1, None))
    meter.add("spans", ("layer", 0, 0, 3, None, 1, 1, None))
    meter.add("spans", ("forward", 0, 0, 2, None, 0, 1, None))
    step = feed(meter, [100])
    assert step["phases_ns"] == {"forward": 7}
    assert feed(meter, [100])["phases_ns"] == {}


def test_the_line_shows_what_is_known_and_nothing_else():
    meter = Meter()
    feed(meter, [100] * 3, wait_ms=10)
    assert line(meter.snapshot()) == "step 2 · 100.0 ms/step · 10,000 tokens/s/replica · data 10.0%"


@pytest.mark.parametrize(
    ("mesh", "world", "per_replica", "note"),
    [
        (None, 1, 1, None),
        (None, 8, None, "mesh is unknown"),
        ({"dp": 4, "tp": 2}, 8, 2, None),
        ({"dp_replicate": 2, "dp_shard": 2, "tp": 2, "pp": 2}, 16, 4, None),
        (8, 8, 1, None),
        ({"dp": 3}, 8, None, "do not divide"),
        ({"banana": 3}, 3, None, "not known"),
    ],
)
def test_the_devices_of_a_replica_come_from_the_mesh(mesh, world, per_replica, note):
    found = find_yardstick(Settings(store="s", mesh=mesh), world)
    assert found.devices_per_replica == per_replica
    assert (note is None) == (not found.notes)
    assert note is None or note in found.notes[0]


def test_a_device_mesh_of_torch_is_understood():
    class DeviceMesh:
        mesh_dim_names = ("dp", "tp")
        shape = (4, 2)

    assert find_yardstick(Settings(store="s", mesh=DeviceMesh()), 8).devices_per_replica == 2


def test_the_model_and_the_peak_come_from_the_registry_with_their_source():
    settings = Settings(store="s", model="llama3-8b", seq_len=8192, hardware="NVIDIA H100 80GB HBM3")
    found = find_yardstick(settings, 1)
    assert found.flops_per_token == pytest.approx(6 * 8.03e9 + 12 * 32 * 4096 * 8192, rel=0.001)  # 6N + attention
    assert found.peak_flops == pytest.approx(989.4e12, rel=0.01)
    assert found.peak_source
    assert found.convention == "palm"


def test_an_unknown_device_or_model_is_said_and_leaves_mfu_null():
    found = find_yardstick(Settings(store="s", model="no-such-model", hardware="H100"), 1)
    assert found.flops_per_token is None
    assert any("no-such-model" in note for note in found.notes)
    found = find_yardstick(Settings(store="s", flops_per_token=1e9, hardware="Quantum 9"), 1)
    assert found.peak_flops is None
    assert any("Quantum 9" in note for note in found.notes)
