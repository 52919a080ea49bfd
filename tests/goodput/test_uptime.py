"""Uptime from an inventory of nodes."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfkit.goodput.rollup import exact_sum
from perfkit.goodput.uptime import STATES, cluster_hours, uptime
from perfkit.schema import NODES, RUN_ROLLUP, table_from_rows

H = 3600 * 10**9


def inventory(*rows):
    names = ("node", "start_ns", "end_ns", "state")
    return table_from_rows(NODES, [{"cluster": "c", "gpus": 8, **dict(zip(names, row, strict=True))} for row in rows])


def test_a_node_that_was_down_for_an_hour_of_ten():
    nodes = inventory(("a", 0, 4 * H, "up"), ("a", 4 * H, 5 * H, "down"), ("a", 5 * H, None, "up"))
    rows = cluster_hours(nodes, end_ns=10 * H)
    assert len(rows) == 10
    assert uptime(rows) == 0.9
    assert exact_sum(rows["installed_ns"]) == 10 * H * 8


def test_unknown_time_counts_on_neither_side():
    nodes = inventory(("a", 0, 4 * H, "up"), ("a", 6 * H, 8 * H, "drained"), ("a", 8 * H, None, "rebooting?"))
    rows = cluster_hours(nodes, end_ns=10 * H)
    assert exact_sum(rows["unknown_ns"]) == 4 * H * 8
    assert uptime(rows) == 4 / 6


def test_of_two_rows_that_overlap_the_later_wins():
    rows = cluster_hours(inventory(("a", 0, 10 * H, "up"), ("a", 2 * H, 3 * H, "unhealthy")), end_ns=10 * H)
    assert exact_sum(rows["unhealthy_ns"]) == 8 * H
    assert exact_sum(rows["up_ns"]) == 2 * H * 8
    assert exact_sum(rows["unknown_ns"]) == 7 * H * 8


def test_idle_is_what_is_up_and_held_by_nobody():
    run = {"cluster": "c", "run": "r", "start_ns": 0, "end_ns": H, "allocated_ns": 6 * H}
    rows = cluster_hours(inventory(("a", 0, 2 * H, "up")), table_from_rows(RUN_ROLLUP, [run]))
    assert rows["idle_ns"].to_pylist() == [2 * H, 8 * H]
    assert cluster_hours(inventory(("a", 0, H, "up")))["idle_ns"].to_pylist() == [None]


def test_an_empty_inventory_has_no_uptime():
    rows = cluster_hours(NODES.empty())
    assert len(rows) == 0
    assert uptime(rows) is None


states = st.sampled_from([*STATES, "nonsense"])
rows_of_a_node = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), states), min_size=1, max_size=6)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(rows_of_a_node, min_size=1, max_size=4), st.integers(1, 13))
def test_states_add_up_to_what_is_installed(nodes, interval):
    rows = [(f"n{i}", s, s + length, state) for i, mine in enumerate(nodes) for s, length, state in mine]
    found = cluster_hours(inventory(*rows), interval_ns=interval)
    for row in found.to_pylist():
        assert row["installed_ns"] == sum(row[f"{s}_ns"] for s in STATES)
    last = max(end for _, _, end, _ in rows)
    first = {node: min(s for n, s, _, _ in rows if n == node) for node, *_ in rows}
    assert exact_sum(found["installed_ns"]) == sum(8 * (last - begin) for begin in first.values())
