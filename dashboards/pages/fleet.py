"""Fleet: which cluster needs me? Tiles worst first, where the GPU-hours went, the runs."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
import pyarrow as pa
from dash import dcc, html

from .. import cards, data_fleet, figures, shell
from .. import format as fmt
from ..data import Source
from ..metrics import BUCKETS
from ..section import TIME, Context, Page, Section
from ..view import View
from . import runs_grid

ENOUGH, POOR = 0.95, 0.85
"""Share of GPU-time delivered from which a cluster is fine, and below which it needs somebody."""


def head(found: Context) -> Any:
    """Title and controls."""
    view = found.view
    names = [{"value": name, "label": cards.name_of(name, 40)} for name in found.source.clusters() if name]
    controls = [
        shell.range_control(view),
        *shell.day_controls(view),
        dmc.MultiSelect(
            id={"control": "clusters"},
            label="Clusters",
            data=names,
            value=list(view.clusters),
            w=210,
            size="xs",
            placeholder="" if view.clusters else "all",
            searchable=True,
            clearable=True,
            maxDropdownHeight=300,
        ),
        dmc.TextInput(
            id={"control": "search"},
            label="Find runs",
            value=view.search,
            w=150,
            size="xs",
            debounce=300,
            placeholder="run, user or model",
        ),
        shell.live_control(view),
    ]
    return shell.bar("Fleet", "Worst first: the share of GPU-time that was neither down nor wasted", controls)


# ------------------------------------------------------------------ verdict and tiles


def verdict(found: Context) -> Any:
    """Say which cluster needs somebody, and why."""
    rows = data_fleet.clusters(found.source, found.view)
    if not rows:
        return nothing(found)
    worst = rows[0]
    kind = judge(worst["delivered"])
    name = dcc.Link(cards.name_of(worst["cluster"], 60), href=found.href("cluster", cluster=worst["cluster"]))
    reasons = "; ".join(why(worst))
    if kind == "good":
        text = [html.Strong("All clusters are fine. "), "Lowest is ", name, f": {reasons}."]
    elif kind == "warn":
        text = [html.Strong(["Look at ", name, " first. "]), f"{reasons[:1].upper()}{reasons[1:]}."]
    else:
        text = [html.Strong([name, " needs you. "]), f"{reasons[:1].upper()}{reasons[1:]}."]
    return html.Div(html.P(text), className=f"pk-verdict {kind}", role="status")


def judge(delivered: float | None) -> str:
    """Return good, warn, bad, or nothing where it is unknown."""
    if delivered is None:
        return ""
    return "good" if delivered >= ENOUGH else "warn" if delivered >= POOR else "bad"


def why(row: dict[str, Any]) -> list[str]:
    """Say what a cluster loses, largest first."""
    parts = []
    if row["goodput"] is not None:
        change = _change(row["goodput"], row["before"].get("goodput"))
        parts.append(f"goodput {fmt.percent(row['goodput'])}{change}")
        if row["losses"]:
            loss, ns = row["losses"][0]
            parts.append(f"its largest loss is {BUCKETS[loss]} ({fmt.gpu_hours(ns / 3.6e12)} GPU-h)")
    if row["uptime"] is not None and row["uptime"] < 0.995:
        parts.append(f"uptime {fmt.percent(row['uptime'])}")
    if row.get("unhealthy"):
        parts.append(f"{row['unhealthy']:,} GPUs are down now")
    return parts or ["nothing is known of its goodput and uptime"]


def _change(now: float, before: float | None) -> str:
    if before is None or abs(now - before) < 0.0005:
        return ""
    return f" ({fmt.points(100 * (now - before))} points against the period before)"


def tiles(found: Context) -> Any:
    """One tile per cluster."""
    rows = data_fleet.clusters(found.source, found.view)
    return html.Div([_tile(row, found) for row in rows], className="pk-tiles")


def _tile(row: dict[str, Any], found: Context) -> Any:
    kind = judge(row["delivered"])
    word = {"good": "fine", "warn": "watch", "bad": "needs attention", "": "unknown"}[kind]
    share = f"{fmt.percent(row['delivered'], 0)} delivered" if row["delivered"] is not None else word
    before = row["before"]
    stats = [
        cards.stat("MFU", *_share(row["mfu"]), key="mfu", delta=cards.delta(row["mfu"], before.get("mfu"))),
        cards.stat(
            "Effective MFU",
            *_share(row["effective_mfu"]),
            key="effective_mfu",
            delta=cards.delta(row["effective_mfu"], before.get("effective_mfu")),
        ),
        cards.stat("Tokens/s per GPU", fmt.number(row["tokens_per_gpu_s"]), key="tokens"),
        cards.stat(
            "Goodput", *_share(row["goodput"]), key="goodput", delta=cards.delta(row["goodput"], before.get("goodput"))
        ),
        cards.stat(
            "Uptime", *_share(row["uptime"]), key="uptime", delta=cards.delta(row["uptime"], before.get("uptime"))
        ),
        cards.stat("Runs", fmt.count(row["runs"])),
    ]
    title = html.H2(dcc.Link(cards.name_of(row["cluster"], 60), href=found.href("cluster", cluster=row["cluster"])))
    label = cards.badge(f"{word}: {share}" if kind else word, kind, None)
    trend = [v for v in row["trend"] if v is not None]
    alt = (
        f"Goodput over the range, from {fmt.percent(trend[0])} to {fmt.percent(trend[-1])}, "
        f"lowest {fmt.percent(min(trend))}"
        if trend
        else "Goodput over the range is unknown"
    )
    return html.Article(
        [
            html.Div([title, label], className="pk-tile-head"),
            html.Div(stats, className="pk-stats"),
            html.Div(
                [
                    html.Span("goodput"),
                    cards.spark(row["trend"], alt),
                    html.Span(fmt.percent(trend[-1], 0) if trend else fmt.UNKNOWN),
                ],
                className="pk-spark",
            ),
            _gpus(row, found),
        ],
        className="pk-tile",
        **{"aria-label": f"Cluster {cards.name_of(row['cluster'], 60)}: {word}"},
    )


def _share(value: float | None) -> tuple[str, str]:
    return (fmt.UNKNOWN, "") if value is None else (f"{100 * value:.1f}", "%")


def _gpus(row: dict[str, Any], found: Context) -> Any:
    total = row.get("gpus")
    if not total:
        return html.Div("GPUs unknown: no inventory", className="pk-gpus")
    theme = found.theme
    parts = [("active", row.get("active"), theme.groups["productive"]), ("idle", row.get("idle"), theme.groups["idle"]),
             ("unhealthy", row.get("unhealthy"), theme.groups["failures"])]  # fmt: skip
    strip = [html.I(style={"width": f"{100 * (n or 0) / total:.2f}%", "background": colour}) for _, n, colour in parts]
    words = [
        html.Span(
            [
                html.I(className="pk-dot", style={"background": colour}),
                html.B(fmt.count(n)),
                " ",
                cards.term(name, name),
            ]
        )
        for name, n, colour in parts
    ]
    return html.Div([html.Div(strip, className="pk-fleetbar", **{"aria-hidden": "true"}),
                     html.Div([*words, html.Span(f"of {total:,} GPUs")], className="pk-gpus")])  # fmt: skip


def nothing(found: Context) -> Any:
    """Say what an empty store needs."""
    uri = fmt.clean(found.source.uri, 200)
    if found.source.as_of().empty:
        return html.Div(
            cards.empty(
                "This store is empty",
                "Put traces into it, capture a run, or make a synthetic fleet to look around.",
                f"perfkit ingest traces/ --store {uri}",
            ),
            className="pk-card",
        )
    if data_fleet.traced_runs(found.source, View()):
        text = "The store has runs, listed below, and no roll-ups: captured runs and scheduler records give them."
        return html.Div(
            cards.empty("No cluster numbers in this range", text, f"perfkit store rollup {uri}"),
            className="pk-card",
        )
    return html.Div(
        cards.empty("Nothing in this range", "Choose a longer time range or other clusters."), className="pk-card"
    )


# ------------------------------------------------------------------ GPU-hours


def hours(found: Context) -> Any:
    """Where the GPU-hours went."""
    rows = data_fleet.hours(found.source, found.view)
    if not rows:
        return []
    go = found.view.to("cluster", cluster=None).href(found.prefix)
    go += ("&" if "?" in go else "?") + "cluster={customdata}"
    body = [cards.legend(figures.group_legend(rows, found.theme)),
            cards.chart(figures.gpu_hours(rows, found.theme, go), "fleet.hours")]  # fmt: skip
    return cards.card("Where the GPU-hours went", body, sub="share of installed GPU-time; hover for GPU-hours",
                      csv=found.csv("fleet.hours"), png="gpu-hours")  # fmt: skip


def hours_table(source: Source, view: View) -> pa.Table:
    """Rows behind the bars."""
    return pa.Table.from_pylist(data_fleet.hours(source, view))


def clusters_table(source: Source, view: View) -> pa.Table:
    """Rows behind the tiles."""
    names = (
        "cluster",
        "mfu",
        "effective_mfu",
        "tokens_per_gpu_s",
        "goodput",
        "uptime",
        "delivered",
        "gpus",
        "active",
        "idle",
        "unhealthy",
        "runs",
        "interruptions",
    )
    return pa.Table.from_pylist([{n: row.get(n) for n in names} for row in data_fleet.clusters(source, view)])


PAGE = Page(
    "fleet",
    head,
    (
        Section("fleet.verdict", verdict, (*TIME, "clusters"), minimum=44),
        Section("fleet.tiles", tiles, (*TIME, "clusters"), clusters_table, minimum=210),
        Section("fleet.hours", hours, (*TIME, "clusters"), hours_table, minimum=190),
        Section("fleet.runs", runs_grid.runs, (*TIME, "clusters", "search"), runs_grid.runs_table, minimum=460),
    ),
    runs_grid.wire,
)
