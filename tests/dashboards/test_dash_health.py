"""The health page: nodes, counters, events beside step time, lemons with their evidence."""

from __future__ import annotations

import json

import numpy as np
import plotly.graph_objects as go
import pytest
from perfkit_dashboards import data_health, figures_health
from perfkit_dashboards.app import layout_for_tests
from perfkit_dashboards.theme import THEMES
from perfkit_dashboards.view import View

from tests.dashboards.made_stores import DAY, HOUR, START
from tests.dashboards.test_dash_collectives import figures

VIEW = View(page="node-health", cluster="beta", range="all")
RUN = View(page="node-health", cluster="alpha", run="steady")


def test_the_worst_node_comes_first_with_what_is_wrong_with_it(source):
    rows = data_health.nodes(source, VIEW)
    assert rows[0]["node"] == "beta-n001"
    assert rows[0]["lemon"]
    assert rows[0]["faults"] == rows[0]["xids"] == 4
    assert rows[0]["thermal"] == pytest.approx(0.1 / 8), "one of its eight GPUs loses a tenth"
    assert len(rows) == 12
    assert not any(row["lemon"] for row in rows[1:])


def test_counters_of_a_node_have_a_line_per_gpu(source):
    found = data_health.counters(source, VIEW)
    assert (found.node, found.by) == ("beta-n001", "day")
    lines = {label: panel for label, _, panel in found.panels}["highest temperature"]
    assert sorted(lines) == list(range(8))
    assert set(lines[3][1]) == {91.0}
    assert set(lines[2][1]) == {66.0}
    assert lines[3][0].tolist() == [START + day * DAY for day in range(4)]
    one = data_health.counters(source, VIEW.change(device=3))
    assert {device for _, _, panel in one.panels for device in panel} == {3}
    assert data_health.counters(source, VIEW.change(node="no such node")) is None


def test_a_run_with_samples_shows_these(source):
    found = data_health.counters(source, RUN.change(node="node0"))
    assert found.by == "sample"
    panels = {label: (unit, lines) for label, unit, lines in found.panels}
    assert panels["temperature"][0] == "°C"
    assert set(panels["temperature"][1][5][1]) == {84.0}
    assert set(panels["SM clock"][1][0][1]) == {1900.0}


def test_events_stand_beside_step_time(source):
    found = data_health.events(source, VIEW)
    assert found.total == 4
    assert [row["time_ns"] for row in found.rows] == [START + day * DAY + 6 * HOUR for day in range(4)]
    assert found.nodes == ["beta-n001"]
    assert found.unit == "% of step time"
    steps = data_health.events(source, RUN)
    assert steps.unit == "ms"
    assert np.median(steps.value) == pytest.approx(102.0)


def test_a_lemon_has_its_evidence(source):
    rows = data_health.lemons(source, VIEW)
    assert {row["node"] for row in rows} == {"beta-n001"}
    slow = next(row for row in rows if row["kind"] == "slow")
    assert slow["bad"] == slow["of"] == 16
    assert slow["events"][0]["what"] == "XID 79"
    assert sum(one["count"] for one in slow["interruptions"]) == 4
    assert {one["run"] for one in slow["evidence"]} <= {f"job{j}" for j in range(16)}
    assert all(one["slowdown"] == 1.2 for one in slow["evidence"])
    assert data_health.lemons(source, View(page="node-health", cluster="alpha", range="all")) == []


def test_a_thinned_line_keeps_its_peaks():
    time_ns = np.arange(10_000)
    value = np.zeros(10_000)
    value[7_777] = 99
    times, values = data_health._thinned(time_ns, value)
    assert len(times) == len(values) <= data_health.MAX_SAMPLES
    assert values.max() == 99


def test_the_page_is_drawn_for_a_cluster_a_run_and_nothing(source):
    queries = ["?cluster=beta&range=all", "?cluster=beta&range=all&node=beta-n003&device=2",
               "?cluster=alpha&run=steady", "?cluster=no", "?cluster=alpha&run=none", ""]  # fmt: skip
    for theme in THEMES:
        for query in queries:
            parts = layout_for_tests(source, "/node-health", query, theme)
            for figure in figures(parts):
                go.Figure(figure)
                assert len(json.dumps(figure)) < 400_000


def test_events_of_unknown_kinds_and_no_node_are_drawn():
    rows = [{"node": "<b>n</b>", "device": None, "time_ns": START, "end_ns": START + HOUR, "kind": "<i>", "code": None,
             "severity": "fault", "detail": "%{x}"}]  # fmt: skip
    strip = data_health.Strip(rows, ["<b>n</b>"], 1, np.array([], np.int64), np.array([]), "x", "ms")
    chart = figures_health.events(strip, THEMES["dark"])
    go.Figure(chart.figure)
    assert "<b>n" not in json.dumps(chart.figure["layout"])
    assert "<i>" not in json.dumps([trace.get("customdata") for trace in chart.figure["data"]])
