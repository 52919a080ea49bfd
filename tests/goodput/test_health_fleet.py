from __future__ import annotations

from perfkit.goodput.health_fleet import check_fleet, slowed_steps
from perfkit.schema import GPU_ROLLUP, HEALTH_EVENTS, JOB_NODES, STEPS, table_from_rows

SECOND = 10**9


def gpu(node, *, celsius=60.0, lost=0, device=0):
    return {
        "cluster": "prod", "node": node, "device": device, "name": "H100", "start_ns": 0, "end_ns": 1,
        "temp_mean_celsius": celsius, "throttle_thermal_ns": lost, "allocated_ns": 1000,
    }  # fmt: skip


def event(node, code, time_ns, *, kind="xid", end_ns=None, device=0):
    return {
        "cluster": "prod", "node": node, "device": device, "time_ns": time_ns, "end_ns": end_ns, "kind": kind,
        "code": code,
    }  # fmt: skip


def check(gpus=(), events=()):
    findings = check_fleet(
        table_from_rows(JOB_NODES, []), table_from_rows(GPU_ROLLUP, gpus), table_from_rows(HEALTH_EVENTS, events)
    )
    return [(finding.node, finding.kind) for finding in findings]


def test_an_xid_that_comes_back_is_found_and_one_of_the_program_is_not():
    assert check(
        events=[event("a", 79, 1), event("a", 79, 2), event("b", 79, 3), event("c", 31, 1), event("c", 31, 2)]
    ) == [("a", "repeated XIDs")]


def test_xids_of_two_gpus_or_months_apart_have_not_come_back():
    month = 31 * 24 * 3600 * 10**9
    assert check(events=[event("a", 79, 0), event("a", 79, month)]) == []
    assert check(events=[event("a", 79, 0), event("a", 79, 1) | {"device": 5}]) == []


def test_a_gpu_that_stands_out_among_its_peers_is_hot():
    gpus = [gpu(f"n{i}", celsius=60 + i % 3) for i in range(10)] + [gpu("hot", celsius=75)]
    assert check(gpus) == [("hot", "hot GPU")]
    assert check([gpu("a", celsius=60), gpu("b", celsius=90)]) == []  # two tell nothing


def test_throttling_by_heat_is_found():
    assert check([gpu("a", lost=50), gpu("b", lost=5)]) == [("a", "thermal throttling")]


def test_an_empty_fleet_has_no_findings():
    assert check() == []


def test_events_are_joined_to_the_steps_that_they_slowed():
    rows = [
        {
            "rank": rank,
            "step": step,
            "start_ns": step * SECOND,
            "end_ns": (step + 1) * SECOND + (SECOND // 2 if slow else 0),
        }
        for rank in (0, 1)
        for step in range(10)
        for slow in [rank == 1 and step in (4, 5)]
    ]
    events = table_from_rows(
        HEALTH_EVENTS,
        [event("a", 0x40, 4 * SECOND, kind="throttle", end_ns=5 * SECOND), event("b", 1, 8 * SECOND), event("c", 1, 1)],
    )
    found = slowed_steps(events, table_from_rows(STEPS, rows), {"a": {1}, "b": {0}}).to_pylist()
    assert [(row["node"], row["rank"], row["step"], row["excess_ns"]) for row in found] == [
        ("a", 1, 4, SECOND // 2),
        ("a", 1, 5, SECOND // 2),
    ]
