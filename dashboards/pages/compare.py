"""Compare: is the run faster or slower than another one beyond noise, where in the waterfall, and what changed."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
import pyarrow as pa
from dash import dcc, html

from perfkit.analysis.compare import Comparison, Quantity, Row
from perfkit.report.comparison import change_text, headline

from .. import cards, data_compare, figures_compare, shell
from .. import format as fmt
from ..commands import text
from ..data import Source
from ..section import Context, Page, Section
from ..view import View

USES = ("base", "base_cluster")
SHOWN = 25
NAMES = {"step_time": "Step time", "tokens_per_second_per_device": "Tokens/s per GPU", "mfu": "MFU", "hfu": "HFU"}
QUANTITIES = pa.schema(
    [(name, pa.utf8() if name in ("name", "unit", "verdict") else pa.float64()) for name in Quantity.__annotations__]
)
CHANGES = pa.schema(
    [
        *((name, pa.utf8() if name in ("name", "detail", "status") else pa.float64()) for name in Row.__annotations__),
        ("change_ns", pa.float64()),
    ]
)
MARKS = {"slower": "bad", "faster": "good", "no evidence": "", "added": "warn", "removed": "info"}


def head(found: Context) -> Any:
    """Title and the choice of the run to compare with."""
    view = found.view
    data = [
        {"value": value, "label": fmt.clean(label, 60)} for value, label in data_compare.choices(found.source, view)
    ]
    clusters = [{"value": name, "label": fmt.clean(name, 40)} for name in found.source.clusters()]
    controls = [
        dmc.Select(id={"control": "base"}, label="Compare with", data=data, value=view.base or None, w=230, size="xs",
                   searchable=True, clearable=True, placeholder="choose a run", nothingFoundMessage="no such run"),
        shell.live_control(view),
    ]  # fmt: skip
    if len(clusters) > 1:
        controls.insert(0, dmc.Select(
            id={"control": "base_cluster"}, label="of cluster", data=clusters, w=140, size="xs", clearable=True,
            value=view.base_cluster or None, placeholder=fmt.clean(view.cluster or "", 40)))  # fmt: skip
    return shell.bar(f"Changes of {cards.name_of(view.run)}", shell.run_pages(found), controls)


def verdict(found: Context) -> Any:
    """Say whether the run is faster or slower beyond noise, by how much, and because of what."""
    view = found.view
    if not view.base:
        others = data_compare.choices(found.source, view)
        links = [html.Li(dcc.Link(fmt.clean(label, 80), href=found.link(base=value))) for value, label in others[:8]]
        title = "Choose a run to compare with" if others else "There is no other run in this cluster"
        body: list[Any] = [cards.empty(title, "Its steps are the base; this run is what is new.")]
        return html.Div([*body, html.Ul(links, className="pk-plain")], className="pk-card")
    answer = data_compare.comparison(found.source, view)
    if answer is None:
        return html.Div(_nothing(found), className="pk-card")
    base = data_compare.other(view)
    line = headline(answer)
    parts = [
        html.P([html.Strong(line[:1].upper() + line[1:]), f". Base is {cards.name_of(base.run)}."]),
        cards.badge(answer.verdict, MARKS.get(answer.verdict, "")),
    ]
    stats = [_stat(q) for q in answer.quantities if q.change is not None]
    causes = [html.Li(fmt.clean(cause, 200)) for cause in answer.causes]
    notes = [html.P(f"Note: {fmt.clean(note, 300)}.", className="pk-sub") for note in answer.notes]
    return html.Div(
        [
            html.Div(parts, className="pk-verdict", style={"marginBottom": 16}),
            html.Section(
                [
                    html.Div(stats, className="pk-kpis"),
                    *([html.P("What changed most, of the traced steps:", className="pk-sub", style={"marginTop": 12}),
                       html.Ul(causes, className="pk-plain")] if causes else []),
                    *notes,
                ],
                className="pk-card",
                style={"height": "auto", "paddingTop": 14},
                **{"aria-label": "Verdict"},
            ),
        ]
    )  # fmt: skip


def _stat(quantity: Quantity) -> Any:
    """Return a number of the new run with its change and interval."""
    if quantity.unit == "ns":
        value, unit = fmt.duration(quantity.new), ""
    elif quantity.unit == "ratio":
        value, unit = fmt.number(None if quantity.new is None else 100 * quantity.new, 1), "%"
    else:
        value, unit = fmt.number(quantity.new), ""
    kind = {"faster": "good", "slower": "bad"}.get(quantity.verdict, "")
    change = html.Div(change_text(quantity), className=f"pk-delta {kind}".strip(), style={"marginLeft": 0})
    key = quantity.name if quantity.name != "tokens_per_second_per_device" else "tokens"
    return cards.stat(NAMES.get(quantity.name, quantity.name), value, unit, key=key, delta=change)


def _nothing(found: Context) -> Any:
    views = (data_compare.other(found.view), found.view)
    missing = next(one for one in views if data_compare.stored_report(found.source, one) is None)
    name = fmt.clean(f"{missing.cluster}/{missing.run}", 120)
    command = f"perfkit analyze {name} --store {fmt.clean(found.source.uri, 200)}"
    return cards.empty(f"No analysis of {name} is stored", "Both runs need one; then the page compares them.", command)


def waterfall(found: Context) -> Any:
    """How every term moved, with its interval."""
    title = "Where it changed"
    answer = _answer(found)
    if answer is None or not answer.terms:
        return cards.card(title, cards.empty("No waterfall of both runs", "It comes with their analyses."))
    chart = figures_compare.terms(answer, found.theme)
    theme = found.theme.groups
    legend = cards.legend(
        [("more of the step", theme["failures"]), ("less", theme["productive"]), ("no evidence", theme["idle"])]
    )
    return cards.card(
        title, [legend, cards.chart(chart, "compare.waterfall")], key="waterfall", csv=found.csv("compare.waterfall"),
        sub=f"terms of the waterfall, in points of each run's own peak; {1 - answer.level:.0%} interval", png="changes",
    )  # fmt: skip


def kernels(found: Context) -> Any:
    """Kernels that were added, removed, slower or faster."""
    return _changes(found, "Kernels that changed", "kernels", "by op, shape, number format and phase")


def collectives(found: Context) -> Any:
    """List the collectives that changed."""
    return _changes(found, "Collectives that changed", "collectives", "by group, operation and size")


def _changes(found: Context, title: str, name: str, by: str) -> Any:
    answer = _answer(found)
    rows: tuple[Row, ...] = () if answer is None else getattr(answer, name)
    if not rows:
        text = "None changed by more than 0.2 % of a step." if answer else "Choose a run to compare with."
        return cards.card(title, cards.empty("Nothing to list", text))
    columns = [(name[:-1].capitalize(), None, False), ("", None, False), ("Base", None, True), ("New", None, True),
               ("Change", None, True), ("Count", None, True)]  # fmt: skip
    cells = [
        [
            html.Span(fmt.clean(_name(row), 56), title=fmt.clean(_name(row), 400)),
            cards.badge(row.status, MARKS.get(row.status, "")), fmt.duration(row.base_ns), fmt.duration(row.new_ns),
            f"{'+' if row.change_ns >= 0 else '−'}{fmt.duration(abs(row.change_ns))}",
            f"{row.base_count:.3g} → {row.new_count:.3g}",
        ]
        for row in rows[:SHOWN]
    ]  # fmt: skip
    return cards.card(
        title, cards.table(columns, cells, title, scroll=True), csv=found.csv(f"compare.{name}"),
        sub=f"{min(SHOWN, len(rows))} of {len(rows)}, {by}; time per step and GPU",
    )  # fmt: skip


def _name(row: Row) -> str:
    return f"{row.name} {row.detail}".strip()


def _answer(found: Context) -> Comparison | None:
    return data_compare.comparison(found.source, found.view) if found.view.base else None


def waterfall_table(source: Source, view: View) -> pa.Table:
    """Terms and quantities of both runs."""
    answer = data_compare.comparison(source, view) if view.base else None
    rows = [] if answer is None else [vars(quantity) for quantity in (*answer.quantities, *answer.terms)]
    return pa.Table.from_pylist(rows, QUANTITIES)


def kernels_table(source: Source, view: View) -> pa.Table:
    """Rows of the kernels that changed."""
    return _rows_table(source, view, "kernels")


def collectives_table(source: Source, view: View) -> pa.Table:
    """Rows of the collectives that changed."""
    return _rows_table(source, view, "collectives")


def _rows_table(source: Source, view: View, name: str) -> pa.Table:
    answer = data_compare.comparison(source, view) if view.base else None
    rows = () if answer is None else getattr(answer, name)
    return pa.Table.from_pylist([{**vars(row), "change_ns": row.change_ns} for row in rows], CHANGES)


def command(view: View, source: Source) -> str | None:
    """Return the call that gives the same numbers."""
    base = data_compare.other(view)
    if not (base.cluster and base.run and view.cluster and view.run):
        return None
    return text("compare", f"{base.cluster}/{base.run}", f"{view.cluster}/{view.run}", "--store", source.uri)


PAGE = Page(
    "compare",
    head,
    (
        Section("compare.verdict", verdict, USES, minimum=160),
        Section("compare.waterfall", waterfall, USES, waterfall_table, minimum=320, width=6),
        Section("compare.collectives", collectives, USES, collectives_table, minimum=320, width=6),
        Section("compare.kernels", kernels, USES, kernels_table, minimum=300),
    ),
    command=command,
)
