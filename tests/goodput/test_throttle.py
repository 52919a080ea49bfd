from __future__ import annotations

import pytest

from perfkit.goodput.throttle import clock_events, peak_clock_hertz, throttle_days
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
    (row,) = throttle_days(counters(*samples), {"GPU-0": reference} if reference else {}).to_pylist()
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
    assert throttle_days(table_from_rows(COUNTERS, []), {}).num_rows == 0


def test_a_sample_counts_on_the_day_on_which_it_was_taken():
    midnight = 86400
    table = counters((midnight - 10, 1000, 0x4), (midnight, 1000, 0x40), (midnight + 10, 2000, 0))
    rows = throttle_days(table, {"GPU-0": 2000e6}).to_pylist()
    assert [(row["day"], row["power_ns"], row["thermal_ns"]) for row in rows] == [
        (0, 5 * SECOND, 0),
        (1, 0, 5 * SECOND),
    ]
    assert [row["sampled_ns"] for row in rows] == [10 * SECOND, 10 * SECOND]


def on_host(*samples):
    table = counters(*samples)
    names = COUNTERS.names
    for name, value in (("host", "n0"), ("device", 3)):
        column = table_from_rows(COUNTERS, [{name: value, "time_ns": 0, "name": "x", "value": 0.0}] * len(table))[name]
        table = table.set_column(names.index(name), name, column)
    return table


def test_heat_is_an_event_from_its_first_sample_to_its_last_and_the_power_limit_is_none():
    samples = [(i, 1500, 0x4) for i in range(5)] + [(i, 1000, 0x44) for i in range(5, 8)] + [(8, 1500, 0x4)]
    (event,) = clock_events(on_host(*samples), cluster="prod").to_pylist()
    assert (event["time_ns"], event["end_ns"]) == (5 * SECOND, 8 * SECOND)
    assert (event["node"], event["device"], event["code"], event["kind"]) == ("n0", 3, 0x40, "throttle")


def test_a_gap_in_the_samples_ends_an_event():
    events = clock_events(on_host((0, 1000, 0x40), (3600, 1000, 0x40), (3601, 1000, 0)), cluster="prod").to_pylist()
    assert [(e["time_ns"] // SECOND, e["end_ns"] // SECOND) for e in events] == [(0, 30), (3600, 3601)]


def test_the_clock_of_the_peak_is_unknown_for_a_name_that_says_too_little():
    assert peak_clock_hertz("H100-SXM5-80GB") == 1830e6
    assert peak_clock_hertz("H100") is None
    assert peak_clock_hertz("no such thing") is None
    assert peak_clock_hertz(None) is None
