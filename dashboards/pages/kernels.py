"""Kernels: what wastes most against the roofline, in which family, launched by what, and on which ranks."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
import pyarrow as pa
from dash import dcc, html

from .. import cards, data_kernels, figures_kernels, shell
from .. import format as fmt
from ..data import Source
from ..section import Context, Page, Section, rows_of
from ..view import View

USES = ("family", "op", "search")
SHOWN = 60


def head(found: Context) -> Any:
    """Title, search and family."""
    view = found.view
    families = [row["family"] for row in data_kernels.families(found.source, View(
        page="kernels", cluster=view.cluster, run=view.run, attempt=view.attempt)) if row["family"]]  # fmt: skip
    controls = [
        dmc.TextInput(id={"control": "search"}, label="Find kernels", value=view.search, size="xs", w=230, debounce=400,
                      placeholder="kernel, op, module or shape"),
        dmc.Select(id={"control": "family"}, label="Family", data=[{"value": f, "label": f} for f in families], w=140,
                   value=view.family or None, size="xs", clearable=True, placeholder="all"),
        shell.live_control(view),
    ]  # fmt: skip
    return shell.bar(f"Kernels of {cards.name_of(view.run)}", shell.run_pages(found), controls)


def table(found: Context) -> Any:
    """List kernels by waste."""
    view = found.view
    rows = data_kernels.kernels(found.source, view)
    title = "Kernels by waste"
    if not rows:
        if data_kernels.rows_of(found.source, view) is None:
            text = "Kernels come with an analysis of the run's traces."
            command = f"perfkit analyze traces/ --store {fmt.clean(found.source.uri, 200)}"
            return cards.card(title, cards.empty("No kernels on record", text, command), key="waste")
        body = [cards.empty("Nothing matches", "No kernel, op, module or shape holds these words in this family."),
                html.P(dcc.Link("Show all kernels", href=found.link(search="", family="", op="", kernel="")),
                       style={"textAlign": "center"})]  # fmt: skip
        return cards.card(title, body, key="waste")
    columns = [("Kernel", None, False), ("Op", None, False), ("Shape", None, False), ("Family", None, False),
               ("Count", None, True), ("Time", None, True), ("Share", None, True), ("Waste", "waste", True),
               ("Speed", None, True), ("Bound", "bound", False)]  # fmt: skip
    cells = [_cells(found, row) for row in rows[:SHOWN]]
    chips: list[Any] = []
    for name in ("op", "kernel"):
        if value := getattr(view, name):
            chips += [cards.badge(f"{name}: {fmt.clean(value, 60)}", "info"), " ",
                      dcc.Link("all", href=found.link(**{name: ""})), " "]  # fmt: skip
    known = sum(row["waste_ns"] is not None for row in rows)
    sub = (
        f"{min(SHOWN, len(rows)):,} of {len(rows):,} by kernel, op and shape, over all ranks; {known:,} have a known "
        "roofline. A kernel shows its spread, an op chooses."
    )
    parts = [html.P(chips)] if chips else []
    return cards.card(
        title,
        [*parts, cards.table(columns, cells, "Kernels, largest waste first", scroll=True)],
        key="waste",
        sub=sub,
        csv=found.csv("kernels.table"),
    )


def _cells(found: Context, row: dict[str, Any]) -> list[Any]:
    speed = fmt.UNKNOWN
    if row["flops_per_s"]:
        speed = f"{row['flops_per_s'] / 1e12:,.1f} TFLOP/s"
    elif row["bytes"] and row["total_ns"]:
        speed = f"{row['bytes'] / row['total_ns']:,.0f} GB/s"
    name = fmt.clean(row["name"], 58)
    more = f" and {row['modules'] - 1} more" if row["modules"] > 1 else ""
    module = f"; module {fmt.clean(row['module'], 80)}{more}" if row["module"] else ""
    return [
        html.Span(dcc.Link(name, href=found.link(kernel=row["name"])), title=fmt.clean(row["name"], 400) + module),
        dcc.Link(fmt.clean(row["op"], 34), href=found.link(op=row["op"])) if row["op"] else fmt.UNKNOWN,
        html.Span(fmt.clean(row["input_dims"], 34) if row["input_dims"] else fmt.UNKNOWN,
                  title=fmt.clean(row["input_dims"] or "not recorded", 300)),
        row["family"] or fmt.UNKNOWN, fmt.count(row["count"]), fmt.duration(row["total_ns"]), fmt.percent(row["share"]),
        fmt.duration(row["waste_ns"]), speed, html.Span(row["bound"] or fmt.UNKNOWN, className="nowrap"),
    ]  # fmt: skip


def roofline(found: Context) -> Any:
    """Speed against intensity."""
    rows = data_kernels.kernels(found.source, found.view)
    if not rows:
        return html.Div()
    if not any(row["intensity"] for row in rows):
        text = "FLOPs and bytes come from the shapes of ops: record_shapes=True when profiling."
        return cards.card("Roofline", cards.empty("No FLOPs are known", text), key="roofline")
    peaks, gbps = data_kernels.roofs(found.source, found.view)
    go = found.link(kernel="")
    go += ("&" if "?" in go else "?") + "kernel={customdata}"
    chart = figures_kernels.roofline(rows, peaks, gbps, found.theme, go, found.view.kernel)
    shown = list(dict.fromkeys(row["family"] for row in rows if row["intensity"] and row["flops_per_s"]))
    marks = [(family or "unknown", figures_kernels.style_of(family, found.theme)[0]) for family in shown]
    sub = "area is time; click a point for its spread" if peaks else "no peak of this device is known: no roof"
    return cards.card(
        "Roofline",
        [cards.legend(marks), cards.chart(chart, "kernels.roofline")],
        key="roofline",
        sub=sub,
        csv=found.csv("kernels.table"),
        png="roofline",
    )


def families(found: Context) -> Any:
    """Time by family."""
    rows = data_kernels.families(found.source, found.view)
    if not rows:
        return html.Div()
    go = found.link(family="")
    go += ("&" if "?" in go else "?") + "family={customdata}"
    theme = found.theme
    marks = [("at the roof", theme.groups["productive"]), ("waste", theme.groups["failures"]),
             ("not judged", theme.groups["idle"])]  # fmt: skip
    return cards.card("Families", [cards.legend(marks), cards.chart(figures_kernels.families(rows, theme, go),
                      "kernels.families")], sub="click a bar to choose one", csv=found.csv("kernels.families"),
                      png="families", key="family")  # fmt: skip


def paths(found: Context) -> Any:
    """Op → kernel → module."""
    rows = data_kernels.paths(found.source, found.view)
    if not rows:
        return html.Div()
    modules = any(row["module"] for row in rows)
    sub = "each ns has one owner; click to go in, the bar on top to go back"
    if not modules:
        sub += ". Modules are recorded with with_modules or with_stack"
    return cards.card("Op → kernel → module", cards.chart(figures_kernels.paths(rows, found.theme), "kernels.paths"),
                      sub=sub, csv=found.csv("kernels.paths"), png="paths")  # fmt: skip


def spread(found: Context) -> Any:
    """Time by rank."""
    rows = data_kernels.by_rank(found.source, found.view)
    if rows is None:
        return html.Div()
    go = found.href("ranks")
    go += ("&" if "?" in go else "?") + "rank={customdata}"
    chart = figures_kernels.spread(rows, found.theme, go)
    return cards.card(f"By rank: {fmt.clean(rows.title, 60)}", cards.chart(chart, "kernels.spread"), key="rank_spread",
                      sub="dotted: median; other colour: more than 10 % off", csv=found.csv("kernels.spread"),
                      png="by-rank")  # fmt: skip


def spread_table(source: Source, view: View) -> pa.Table:
    """Return time by rank."""
    found = data_kernels.by_rank(source, view)
    if found is None:
        return pa.table({"rank": []})
    return pa.table(
        {"rank": found.ranks, "total_ns": found.total_ns, "mean_ns": pa.array(found.mean_ns, from_pandas=True)}
    )


PAGE = Page(
    "kernels",
    head,
    (
        Section("kernels.table", table, (*USES, "kernel"), rows_of(data_kernels.kernels), minimum=400),
        Section("kernels.roofline", roofline, (*USES, "kernel"), rows_of(data_kernels.kernels), minimum=440, width=7),
        Section("kernels.families", families, USES, rows_of(data_kernels.families), minimum=300, width=5),
        Section("kernels.spread", spread, (*USES, "kernel"), spread_table, minimum=280),
        Section("kernels.paths", paths, USES, rows_of(data_kernels.paths), minimum=360),
    ),
)
