"""Figures are valid, small, honest about the unknown, and say in words what they show."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from perfkit_dashboards import (
    data_cluster,
    data_events,
    data_fleet,
    data_rank,
    data_ranks,
    data_run,
    figures_ranks,
    figures_run,
)
from perfkit_dashboards import figures as fleet_figures
from perfkit_dashboards.data import Source
from perfkit_dashboards.figures import Chart, escape, ink, packed, short
from perfkit_dashboards.metrics import BUCKETS, DEFINITIONS, QUANTITIES
from perfkit_dashboards.theme import DARK, GROUPS, LIGHT, THEMES, Theme
from perfkit_dashboards.view import GPU_QUANTITIES, RANK_QUANTITIES, View

from perfkit.schema import GOODPUT_BUCKETS
from tests.dashboards.made_stores import HOSTILE

ALL = View(range="all")
CLUSTER = View(page="cluster", cluster="beta", range="all")
RUN = View(page="run", cluster="alpha", run="steady", range="all")
RANKS = View(page="ranks", cluster="alpha", run="steady", rank=5)


def charts(source: Source, theme: Theme) -> dict[str, Chart]:
    gpus = data_cluster.gpus(source, CLUSTER)
    rows, width = data_cluster.over_time(source, CLUSTER)
    found = {
        "hours": fleet_figures.gpu_hours(data_fleet.hours(source, ALL), theme, "/cluster?cluster={customdata}"),
        "time": fleet_figures.over_time(rows, theme, width),
        "causes": fleet_figures.by_cause(data_cluster.interruptions(source, CLUSTER), theme),
        "no causes": fleet_figures.by_cause([], theme),
        "curves": figures_run.curves(data_run.series(source, RUN), data_events.events(source, RUN), theme),
        "phases": figures_ranks.phases(data_rank.phases(source, RANKS), theme),
        "counters": figures_ranks.counters(data_rank.counters(source, RANKS), theme),
    }
    hourly = RUN.change(cluster="beta", run="shaky")
    found["hourly"] = figures_run.curves(data_run.series(source, hourly), data_events.events(source, hourly), theme)
    found |= {f"gpus {q}": fleet_figures.gpu_map(gpus, q, theme) for q in GPU_QUANTITIES}
    found |= {f"ladder {n}": figures_run.waterfall(one, theme) for n, one in data_run.ladders(source, RUN).items()}
    for quantity in RANK_QUANTITIES:
        grid = data_ranks.grid(source, RANKS.change(quantity=quantity))
        if grid is not None:
            found[f"ranks {quantity}"] = figures_ranks.rank_map(grid, theme, "/ranks?rank={row}")
    return found


@pytest.mark.parametrize("name", THEMES)
def test_every_figure_is_valid_and_has_words_and_a_height(source: Source, name: str) -> None:
    import plotly.graph_objects as go

    found = charts(source, THEMES[name])
    assert len(found) == 20
    for chart in found.values():
        go.Figure(chart.figure)
        assert chart.figure["layout"]["height"] == chart.height
        assert len(chart.alt) > 20
        assert "nan" not in chart.alt
        json.dumps(chart.figure, allow_nan=False)


def test_figures_import_neither_dash_nor_plotly() -> None:
    code = (
        "import sys, perfkit_dashboards.figures, perfkit_dashboards.figures_run, perfkit_dashboards.figures_ranks;"
        "print([m for m in ('dash', 'plotly', 'flask', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_stack_of_a_cluster_sums_to_a_hundred(source: Source) -> None:
    figure = fleet_figures.gpu_hours(data_fleet.hours(source, ALL), LIGHT).figure
    for i in range(2):
        assert sum(trace["x"][i] for trace in figure["data"]) == pytest.approx(100)


def test_the_waterfall_is_drawn_from_rung_to_rung(source: Source) -> None:
    ladder = data_run.ladders(source, RUN)["A"]
    bar = figures_run.waterfall(ladder, LIGHT).figure["data"][0]
    assert bar["base"][0] == 0
    for i in range(1, len(bar["x"])):
        assert bar["base"][i] == pytest.approx(bar["base"][i - 1] + bar["x"][i - 1])
    assert bar["base"][-1] + bar["x"][-1] == pytest.approx(100)


def test_names_are_text_in_labels_and_hover(source: Source) -> None:
    assert "<" not in short(HOSTILE, 200)
    assert escape("a<b>%{x}") == "a&lt;b&gt;%\u200b{x}"
    rows = [{"cluster": HOSTILE, "bucket": "productive", "gpu_hours": 1.0}]
    figure = fleet_figures.gpu_hours(rows, LIGHT).figure
    assert "<script" not in json.dumps(figure["layout"])
    gpu = [{"node": HOSTILE, "device": 0, "mfu": 0.4, "throttle": None, "temperature": None, "health": "up"}]
    assert "<script" not in json.dumps(fleet_figures.gpu_map(gpu, "mfu", LIGHT).figure)
    events = [{"kind": "fault", "time_ns": 1, "step": 1, "text": HOSTILE}]
    series = data_run.Series(np.array([1.0]), "step", {"mfu": np.array([1.0])})
    assert "<script" not in json.dumps(figures_run.curves(series, events, LIGHT).figure)


def test_what_was_not_measured_is_not_drawn_as_zero() -> None:
    gpu = [{"node": "n", "device": 0, "mfu": None, "throttle": None, "temperature": None, "health": None}]
    for quantity in ("mfu", "throttle", "temperature"):
        chart = fleet_figures.gpu_map(gpu, quantity, LIGHT)
        assert "not measured" in chart.alt
        assert chart.figure["data"][0]["z"] == packed([[np.nan]])
    series = data_run.Series(np.array([1.0, 2.0]), "step", {"mfu": np.full(2, np.nan), "loss": np.array([1.0, 2.0])})
    names = [trace["name"] for trace in figures_run.curves(series, [], LIGHT).figure["data"]]
    assert names == ["loss"]


def test_every_bucket_is_in_one_group_and_has_words() -> None:
    members = [b for _, some in GROUPS.values() for b in some]
    assert sorted(members) == sorted([*GOODPUT_BUCKETS, "idle", "down"])
    assert set(BUCKETS) == set(GOODPUT_BUCKETS)
    for theme in THEMES.values():
        assert set(theme.groups) == set(GROUPS)
    assert {*GPU_QUANTITIES, *RANK_QUANTITIES} <= set(QUANTITIES)
    assert {*GPU_QUANTITIES, *RANK_QUANTITIES} <= set(DEFINITIONS)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_colours_have_the_contrast_of_wcag_aa(theme: Theme) -> None:
    for text in (theme.text, theme.muted, theme.accent, theme.bad):
        assert contrast(text, theme.surface) >= 4.5
    absence = {"idle"}  # not work: drawn as background, with its words and share beside it
    for colours in (theme.groups, theme.kinds):
        for name, colour in colours.items():
            assert name in absence or contrast(colour, theme.surface) >= 3, name
            assert contrast(ink(colour), colour) >= 4.5, name


def test_the_style_sheet_has_the_colours_of_the_figures() -> None:
    from pathlib import Path

    import perfkit_dashboards

    css = Path(perfkit_dashboards.__file__).with_name("assets").joinpath("style.css").read_text()
    light, dark = css.split(':root[data-mantine-color-scheme="dark"]')
    for part, theme in ((light, LIGHT), (dark, DARK)):
        for name in ("text", "muted", "surface", "accent"):
            assert f"--pk-{name}: {getattr(theme, name)};" in part


def values_of(figure: dict[str, Any]) -> int:
    return len(json.dumps(figure))


def test_the_largest_map_of_ranks_stays_within_the_budget() -> None:
    z = np.random.default_rng(0).random((data_ranks.MAX_ROWS, data_ranks.MAX_CELLS // data_ranks.MAX_ROWS))
    labels = [f"rank {i}  pp0 dp{i} tp0" for i in range(len(z))]
    grid = data_ranks.Grid(
        z, np.arange(z.shape[1]), labels, list(range(len(z))), "idle", 4096, 10, 0, 1, "ms", "analysis"
    )
    assert values_of(figures_ranks.rank_map(grid, LIGHT, "/ranks?rank={row}").figure) < 500_000


def test_no_step_is_labelled_twice_when_there_are_few() -> None:
    def axis(steps: list[int]) -> dict[str, Any]:
        z = np.ones((2, len(steps)))
        grid = data_ranks.Grid(z, np.array(steps), ["0", "1"], [0, 1], "idle", 2, 1, 0, 1, "ms", "analysis")
        found: dict[str, Any] = figures_ranks.rank_map(grid, LIGHT).figure["layout"]["xaxis"]
        return found

    assert axis([4, 5, 6])["dtick"] == axis([7])["dtick"] == 1
    assert "dtick" not in axis(list(range(1000)))
