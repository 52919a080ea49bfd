"""The kernels page against the table that it reads."""

from __future__ import annotations

import json
from pathlib import Path

import plotly.graph_objects as go
import pyarrow.compute as pc
import pytest
from perfkit_dashboards import data_kernels, figures_kernels
from perfkit_dashboards.app import layout_for_tests
from perfkit_dashboards.data import Source
from perfkit_dashboards.theme import THEMES
from perfkit_dashboards.view import View

from perfkit.store import Store
from tests.dashboards.test_dash_collectives import figures

VIEW = View(page="kernels", cluster="lab", run="tp")


@pytest.fixture(scope="module")
def lab(traced: Path) -> Source:
    return Source(str(traced))


@pytest.fixture(scope="module")
def table(traced: Path):
    return Store(traced).read("kernels", run="tp")


def test_rows_add_up_to_the_table_and_the_largest_waste_is_first(lab, table):
    rows = data_kernels.kernels(lab, VIEW)
    assert sum(row["total_ns"] for row in rows) == pc.sum(table["total_ns"]).as_py()
    assert sum(row["waste_ns"] or 0 for row in rows) == pc.sum(table["waste_ns"]).as_py()
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    known = [row["waste_ns"] for row in rows if row["waste_ns"] is not None]
    assert known == sorted(known, reverse=True)
    assert all(row["waste_ns"] is None for row in rows[len(known) :]), "unknown waste comes after"


def test_no_kernel_is_above_its_roof(lab):
    peaks, gbps = data_kernels.roofs(lab, VIEW)
    assert dict(peaks)["bf16"] == 989.5e12
    assert gbps == 3350
    for row in data_kernels.kernels(lab, VIEW):
        if row["intensity"] and row["peak_flops"]:
            roof = min(row["peak_flops"], row["intensity"] * gbps * 1e9)
            assert row["flops_per_s"] <= roof * 1.001
            least = row["flops"] / roof * 1e9
            assert row["waste_ns"] == pytest.approx(row["total_ns"] - least, rel=1e-3, abs=len(str(row)))


def test_families_and_paths_hold_all_time(lab, table):
    whole = pc.sum(table["total_ns"]).as_py()
    assert sum(row["total_ns"] for row in data_kernels.families(lab, VIEW)) == whole
    assert sum(row["owned_ns"] for row in data_kernels.paths(lab, VIEW)) == pc.sum(table["owned_ns"]).as_py()
    chosen = data_kernels.kernels(lab, VIEW.change(family="gemm"))
    assert {row["family"] for row in chosen} == {"gemm"}
    assert len(data_kernels.families(lab, VIEW.change(family="gemm"))) > 1, "the bars stay, to choose another"


def test_a_small_part_of_many_paths_is_one_row_per_op(lab, monkeypatch):
    monkeypatch.setattr(data_kernels, "MAX_LEAVES", 3)
    rows = data_kernels.paths(Source(lab.uri), VIEW)
    assert sum(row["owned_ns"] for row in rows) == sum(row["owned_ns"] for row in data_kernels.paths(lab, VIEW))
    assert len([row for row in rows if row["kernel"] is not None]) == 3


def test_search_looks_in_kernel_op_and_shape_and_words_add(lab):
    everything = data_kernels.kernels(lab, VIEW)
    assert 0 < len(data_kernels.kernels(lab, VIEW.change(search="NVJET"))) < len(everything)
    both = data_kernels.kernels(lab, VIEW.change(search="nvjet aten::mm"))
    assert {row["op"] for row in both} == {"aten::mm"}
    assert data_kernels.kernels(lab, VIEW.change(search="no such kernel")) == []
    assert data_kernels.kernels(lab, VIEW.change(search=".*[(")) == [], "words, not patterns"


def test_the_slow_rank_stands_out(lab):
    spread = data_kernels.by_rank(lab, VIEW.change(family="gemm"))
    assert spread.ranks.tolist() == list(range(8))
    others = [ns for rank, ns in zip(spread.ranks, spread.total_ns, strict=True) if rank != 5]
    assert spread.total_ns[5] > 1.2 * max(others)
    chart = figures_kernels.spread(spread, THEMES["light"], None)
    assert "most on rank 5" in chart.alt
    assert data_kernels.by_rank(lab, VIEW.change(run="none")) is None


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("query", ["", "&family=gemm", "&search=norm", "&search=zzz", "&kernel=zzz", "&op=aten::mm"])
def test_the_page_is_drawn_for_any_choice(lab, theme, query):
    parts = layout_for_tests(lab, "/kernels", f"?cluster=lab&run=tp{query}", theme)
    for figure in figures(parts):
        go.Figure(figure)
        assert len(json.dumps(figure)) < 400_000
