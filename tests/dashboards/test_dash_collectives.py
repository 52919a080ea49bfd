"""The collectives page against the table that it reads and the simulator's truth."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pyarrow.compute as pc
import pytest
from perfkit_dashboards import data_collectives, figures_collectives
from perfkit_dashboards.app import layout_for_tests
from perfkit_dashboards.data import Source
from perfkit_dashboards.theme import THEMES
from perfkit_dashboards.view import View

from perfkit.store import Store

VIEW = View(page="collectives", cluster="lab", run="tp")


@pytest.fixture(scope="module")
def lab(traced: Path) -> Source:
    return Source(str(traced))


@pytest.fixture(scope="module")
def table(traced: Path):
    return Store(traced).read("collectives", run="tp")


def test_kinds_add_up_to_the_table(lab, table):
    rows = data_collectives.kinds(lab, VIEW)
    for name in ("wait_ns", "transfer_ns", "exposed_wait_ns", "exposed_transfer_ns", "dur_ns"):
        assert sum(row[name] or 0 for row in rows) == pc.sum(table[name]).as_py()
    assert sum(row["calls"] for row in rows) == len(table)
    assert {(row["group"], row["op"]) for row in rows} == set(
        zip(table["group"].to_pylist(), table["op"].to_pylist(), strict=True)
    )


def test_what_analyze_prints_is_what_the_page_shows(lab, traced):
    report = json.loads((traced.parent / "tp.json").read_text())
    shown = {(row["group"], row["op"]): row for row in data_collectives.kinds(lab, VIEW)}
    assert report["collectives"]
    for row in report["collectives"]:
        mine = shown[row["group"], row["op"]]
        assert mine["instances"] + mine["alone"] == row["count"]
        assert mine["busbw_gbps"] == pytest.approx(row["busbw_gbps"], rel=1e-6)
        assert mine["efficiency"] == pytest.approx(row["efficiency"], rel=1e-6)
        assert (mine["exposed_wait_ns"], mine["exposed_transfer_ns"]) == (
            row["exposed_wait_ns"], row["exposed_transfer_ns"]
        )  # fmt: skip


def test_who_stalls_is_who_is_waited_for_most(lab):
    rows = data_collectives.culprits(lab, VIEW)
    assert rows[0]["rank"] == 3, "its data comes 4 ms late in every step"
    assert rows[0]["share"] > 0.5
    assert sum(row["share"] for row in rows) <= 1.0000001


def test_points_lie_below_the_peak_of_their_link_and_lead_to_their_instance(lab):
    found = data_collectives.points(lab, VIEW)
    assert found.total == len(found.instance) == len(set(found.instance.tolist()))
    assert found.peaks == [("nvlink", 450.0)]
    assert (found.busbw_gbps <= 450).all()
    chosen = int(found.instance[0])
    members = data_collectives.members(lab, VIEW.change(instance=chosen))
    assert len(members) == members[0]["size"]
    assert {row["instance"] for row in members} == {chosen}
    assert members[0]["busbw_gbps"] == pytest.approx(found.busbw_gbps[0])


def test_a_choice_narrows_everything_down(lab):
    tp = VIEW.change(group="tp", op="all_reduce")
    assert set(data_collectives.points(lab, tp).kind) == {"tp all_reduce"}
    assert {row["group"] for row in data_collectives.skew(lab, tp)} == {"tp"}
    assert {row["group"] for row in data_collectives.instances(lab, tp)} == {"tp"}
    assert data_collectives.instances(lab, VIEW.change(group="none")) == []
    assert data_collectives.culprits(lab, VIEW.change(run="none")) == []


def test_too_many_points_are_thinned_but_keep_the_extremes(lab, monkeypatch):
    whole = data_collectives.points(lab, VIEW)
    monkeypatch.setattr(data_collectives, "MAX_POINTS", 40)
    few = data_collectives.points(Source(lab.uri), VIEW)
    assert len(few.bytes) <= 40 < few.total == whole.total
    for size in np.unique(whole.bytes):
        speeds = whole.busbw_gbps[whole.bytes == size]
        kept = few.busbw_gbps[few.bytes == size]
        assert kept.min() == speeds.min()
        assert kept.max() == speeds.max()


def test_pipeline_bubble_is_neither_wait_nor_hidden(lab, traced):
    rows = data_collectives.kinds(lab, VIEW.change(run="pp"))
    receives = [row for row in rows if row["op"] == "recv"]
    assert receives[0]["bubble_ns"] > 0
    assert figures_collectives.part(receives[0], "hidden_ns") < receives[0]["dur_ns"] - receives[0]["bubble_ns"] + 1


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("query", ["", "&group=tp&op=all_reduce", "&instance=3", "&instance=999999", "&group=no"])
def test_the_page_is_drawn_for_any_choice(lab, theme, query):
    for run in ("tp", "pp"):
        parts = layout_for_tests(lab, "/collectives", f"?cluster=lab&run={run}{query}", theme)
        for figure in figures(parts):
            go.Figure(figure)


def figures(part):
    """All figures inside a layout."""
    if isinstance(part, (list, tuple)):
        for one in part:
            yield from figures(one)
    elif hasattr(part, "to_plotly_json"):
        if isinstance(getattr(part, "figure", None), dict):
            yield part.figure
        yield from figures(getattr(part, "children", None))
