from __future__ import annotations

import pytest

from perfkit.goodput.throttle import throttle_loss
from perfkit.schema import COUNTERS, table_from_rows

SECOND = 10**9


def counters(*samples, uuid="GPU-0"):
    """Samples are (second, clock in MHz, reason bits)."""
    rows = []
    for second, mhz, bits in samples:
        rows.append({"uuid": uuid, "time_ns": int(second * SECOND), "name": "gpu_sm_clock_hertz", "value": mhz * 1e6})
        rows.append({"uuid": uuid, "time_ns": int(second * SECOND), "name": "gpu_clock_event_reasons", "value": bits})
    return table_from_rows(COUNTERS, rows)


def loss(*samples, reference=2000e6):
    (row,) = throttle_loss(counters(*samples), {"GPU-0": reference} if reference else {}).to_pylist()
    return row


def test_power_and_heat_are_told_apart():
    row = loss((0, 1000, 0x4), (10, 1500, 0x44), (20, 2000, 0), (30, 2000, 0))
    assert row["power_ns"] == 5 * SECOND  # ten seconds at half the clock
    assert row["thermal_ns"] == pytest.approx(2.5 * SECOND)  # heat takes precedence over the power bit
    assert row["unexplained_ns"] == 0
    assert row["sampled_ns"] == 30 * SECOND


def test_an_idle_gpu_and_one_above_the_reference_lose_nothing():
    row = loss((0, 300, 0x1), (10, 2100, 0x4), (20, 2000, 0))
    assert (row["power_ns"], row["thermal_ns"], row["unexplained_ns"]) == (0, 0, 0)


def test_a_gap_in_the_samples_is_not_time_at_that_clock():
    assert loss((0, 1000, 0x4), (3600, 2000, 0))["power_ns"] == 15 * SECOND


def test_without_a_reference_clock_the_loss_is_unknown():
    row = loss((0, 1000, 0x4), (10, 1000, 0x4), reference=None)
    assert (row["power_ns"], row["thermal_ns"]) == (None, None)
    assert row["sampled_ns"] == 10 * SECOND


def test_no_counters_no_rows():
    assert throttle_loss(table_from_rows(COUNTERS, []), {}).num_rows == 0
