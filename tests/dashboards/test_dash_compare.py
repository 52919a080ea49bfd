"""The compare page: the same answer as `perfkit compare`, from what analyses left in the store."""

from __future__ import annotations

import json

import pytest
from perfkit_dashboards import data_compare, figures_compare
from perfkit_dashboards.app import layout_for_tests
from perfkit_dashboards.data import Source
from perfkit_dashboards.pages.compare import command, kernels_table, waterfall_table
from perfkit_dashboards.theme import DARK, LIGHT
from perfkit_dashboards.view import View

from perfkit.cli.main import main
from perfkit.report.comparison import headline
from tests.dashboards.compare_store import make_pair

VIEW = View(page="compare", cluster="lab", run="after", base="before")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return Source(str(make_pair(tmp_path_factory.mktemp("pair"))))


@pytest.fixture(scope="module")
def answer(pair):
    return data_compare.comparison(pair, VIEW)


def test_the_page_says_what_the_command_says(pair, answer, capsys):
    capsys.readouterr()
    assert main(["compare", "lab/before", "lab/after", "--store", pair.uri, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["level"]) == (answer.verdict, answer.level)
    by_name = {q["name"]: q for q in (*told["quantities"], *told["waterfall"])}
    for quantity in (answer.quantities[0], *answer.terms):
        assert by_name[quantity.name]["change"] == pytest.approx(quantity.change)
        assert by_name[quantity.name]["low"] == pytest.approx(quantity.low)
    assert [row["name"] for row in told["kernels"]] == [row.name for row in answer.kernels]


def test_a_slow_rank_is_slower_and_named(answer):
    assert answer.verdict == "slower"
    assert any("Rank 1" in cause for cause in answer.causes)


def test_every_part_of_the_page_is_drawn(pair, answer):
    text = str(layout_for_tests(pair, "/compare", VIEW.query()))
    line = headline(answer)
    assert line[1:] in text
    assert "Kernels that changed" in text
    assert "This part" not in text  # of a failure


def test_without_a_base_runs_to_choose_from_are_listed(pair):
    text = str(layout_for_tests(pair, "/compare", VIEW.change(base="").query()))
    assert "Choose a run to compare with" in text
    assert data_compare.choices(pair, VIEW) == [("before", "before")]


def test_a_run_without_an_analysis_is_said_with_the_command(pair):
    text = str(layout_for_tests(pair, "/compare", VIEW.change(base="nothing").query()))
    assert "No analysis of lab/nothing is stored" in text
    assert "perfkit analyze lab/nothing --store" in text


def test_terms_without_evidence_are_grey_and_the_figure_has_words(answer):
    for theme in (LIGHT, DARK):
        chart = figures_compare.terms(answer, theme)
        bars = chart.figure["data"][0]
        verdicts = {q.name: q.verdict for q in answer.terms}
        assert len(bars["x"]) == len(bars["marker"]["color"]) <= len(verdicts)
        assert set(bars["marker"]["color"]) <= set(theme.groups.values())
        assert "in points of peak" in chart.alt


def test_rows_behind_the_sections_and_the_command_are_given(pair):
    assert waterfall_table(pair, VIEW)["name"].to_pylist()[0] == "step_time"
    assert "change_ns" in kernels_table(pair, VIEW).column_names
    assert kernels_table(pair, VIEW.change(base="")).num_rows == 0
    assert command(VIEW, pair) == f"perfkit compare lab/before lab/after --store {pair.uri} --format json"
    assert command(VIEW.change(base=""), pair) is None
