"""Ranks: rank × step, arranged by the mesh; who is slow, why, and what it costs; one rank in detail."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
import pyarrow as pa
from dash import dcc, html

from .. import cards, commands, data_manifest, data_rank, data_ranks, data_stragglers, figures_ranks, shell
from .. import format as fmt
from ..data import Source
from ..metrics import QUANTITIES
from ..section import Context, Page, Section, rows_of
from ..view import ORDERS, RANK_QUANTITIES, View

ORDER_LABELS = {"mesh": "by mesh", "rank": "by rank", "slowest": "slowest first"}
NOT_COMPARED = {
    "no_analysis": (
        "Nothing to compare",
        "Comparing ranks needs an analysis of traces of at least two ranks.",
    ),
    "older_analysis": (
        "Analyse this run again",
        "Its newest analysis did not keep how the ranks compare: it is of an older perfkit.",
    ),
    "no_steps": ("No such steps", "The analysis has none of the chosen steps."),
    "no_peers": ("No peers", "No two ranks have the same role, so that nobody can be compared."),
}
"""Title and text by the answer of `data_stragglers.why_none`."""


def head(found: Context) -> Any:
    """Title and controls."""
    view = found.view
    controls = [
        dmc.Select(
            id={"control": "quantity"},
            label="Quantity",
            size="xs",
            w=180,
            allowDeselect=False,
            value=view.quantity,
            data=[{"value": q, "label": QUANTITIES[q][0]} for q in RANK_QUANTITIES],
        ),
        shell.choice("order", "Arrange rows", [(o, ORDER_LABELS[o]) for o in ORDERS], view.order),
        dmc.NumberInput(
            id={"control": "rank"},
            label="Rank",
            value="" if view.rank is None else view.rank,
            min=0,
            w=90,
            size="xs",
            allowDecimal=False,
            placeholder="none",
            debounce=400,
            hideControls=True,
        ),
        *shell.step_controls(view),
        shell.live_control(view),
    ]
    return shell.bar(f"Ranks of {cards.name_of(view.run)}", shell.run_pages(found), controls)


def heat(found: Context) -> Any:
    """Rank × step."""
    view = found.view
    grid = data_ranks.grid(found.source, view)
    quantity = view.quantity if grid is None else grid.quantity
    label, _ = QUANTITIES[quantity]
    title = f"{label[:1].upper()}{label[1:]} by rank and step"
    if grid is None:
        uri = fmt.clean(found.source.uri, 200)
        if view.quantity in ("step_time", "data_wait"):
            text, command = (
                "Steps come from capture or from an analysis.",
                f"perfkit run --store {uri} -- torchrun train.py",
            )
        else:
            text, command = (
                "This quantity comes with an analysis of the run's traces.",
                f"perfkit analyze traces/ --store {uri}",
            )
        return cards.card(
            title, cards.empty(f"{label[:1].upper()}{label[1:]} is not on record", text, command), key=view.quantity
        )
    go = found.link(rank=None)
    go += ("&" if "?" in go else "?") + "rank={row}"
    chart = figures_ranks.rank_map(grid, found.theme, go)
    fold = f"; each row is the worst of {grid.folded} ranks" if grid.folded > 1 else ""
    note = (
        "; coordinates by the usual order, tp fastest and pp slowest"
        if view.order == "mesh" and "  " in grid.labels[0]
        else ""
    )
    size = f"{grid.num_ranks:,} ranks, {grid.z.shape[1]:,} columns of steps"
    sub = f"{size}, in {grid.unit}, from {grid.source}{fold}{note}. Click a row for its rank."
    return cards.card(
        title, [cards.chart(chart, "ranks.heat")], key=quantity, sub=sub, csv=found.csv("ranks.heat"), png="ranks"
    )


def stragglers(found: Context) -> Any:
    """List the slowest ranks."""
    rows = data_stragglers.stragglers(found.source, found.view)
    said = [
        f for f in data_manifest.findings(found.source, found.view) if "straggler" in f["id"] or "slow_rank" in f["id"]
    ]
    if not rows:
        why = data_stragglers.why_none(found.source, found.view)
        title, text = NOT_COMPARED[why]
        helps = why in ("no_analysis", "older_analysis")
        command = fmt.clean(commands.analyse_again(found.view, found.source), 400) if helps else None
        return cards.card("Stragglers", cards.empty(title, text, command), key="straggler")
    flagged = sum(row["flagged"] for row in rows)
    columns = [
        ("Rank", None, False),
        ("Host", None, False),
        ("Score", "straggler", True),
        ("Own work", "own_work", True),
        ("Over peers", None, True),
        ("Cause", None, False),
        ("GPU-time others waited", "wait_caused", True),
    ]
    cells = [
        [
            html.Span(
                [
                    dcc.Link(row["label"], href=found.link(rank=row["rank"])),
                    " ",
                    cards.badge("straggler", "bad") if row["flagged"] else "",
                ]
            ),
            cards.name_of(row["host"] or fmt.UNKNOWN, 32),
            f"{row['score']:.2f}",
            fmt.duration(row["own_ns"] / row["steps"]),
            f"{'+' if row['excess_ns'] >= 0 else '−'}{fmt.duration(abs(row['excess_ns']) / row['steps'])}",
            cause(row["cause"]) if row["score"] < 0.97 else "",
            fmt.duration(row["wait_caused_ns"]),
        ]
        for row in rows
    ]
    words = [
        html.P(
            [html.Strong(fmt.clean(f["title"], 200)), ". ", fmt.clean(f["next"] or "", 200)], style={"marginBottom": 6}
        )
        for f in said[:2]
    ]
    sub = f"{flagged} flagged below 0.90" if flagged else "nobody is flagged; the slowest are shown"
    if found.view.first is not None or found.view.last is not None:
        sub += "; of the chosen steps, from the analysis of all"
    return cards.card(
        "Stragglers",
        [*words, cards.table(columns, cells, "Slowest ranks against their peers")],
        key="straggler",
        sub=sub,
        csv=found.csv("ranks.stragglers"),
    )


def cause(text: str | None) -> str:
    """Say in words which part of own work holds most of the excess."""
    part, _, what = (text or "").partition(": ")
    if part == "host":
        return f"its host is late: {fmt.clean(what.replace('_', ' '), 60)}"
    return f"it was given more: {fmt.clean(what, 60)}" if what else "its compute takes longer"


def phases(found: Context) -> Any:
    """Phases of the chosen rank."""
    if found.view.rank is None:
        return cards.card(
            "One rank",
            cards.empty("Choose a rank", "Click a row of the map, a rank in the table, or type its number above."),
        )
    rows = data_rank.phases(found.source, found.view)
    title = f"Rank {found.view.rank}: phases"
    if not rows:
        return cards.card(
            title,
            cards.empty("No phases on record", "They come from an analysis, or from spans of the training script."),
        )
    return cards.card(
        title,
        cards.chart(figures_ranks.phases(rows, found.theme), "ranks.phases"),
        sub="bars: this rank; ticks: median of all ranks",
        csv=found.csv("ranks.phases"),
        png="phases",
    )


def counters(found: Context) -> Any:
    """Counters of the chosen rank."""
    if found.view.rank is None:
        return html.Div()
    lines = data_rank.counters(found.source, found.view)
    title = f"Rank {found.view.rank}: counters"
    if not lines:
        return cards.card(
            title,
            cards.empty(
                "No counters on record", "Capture samples them on each host; not every rank is kept in a large run."
            ),
        )
    return cards.card(
        title,
        cards.chart(figures_ranks.counters(lines, found.theme), "ranks.counters"),
        csv=found.csv("ranks.counters"),
        png="counters",
    )


def kernels(found: Context) -> Any:
    """Kernels of the chosen rank."""
    if found.view.rank is None:
        return html.Div()
    rows = data_rank.kernels(found.source, found.view)
    title = f"Rank {found.view.rank}: kernels"
    if not rows:
        return cards.card(
            title, cards.empty("No kernels on record", "They come with an analysis; of a large run some ranks only.")
        )
    columns = [
        ("Kernel", None, False),
        ("Family", None, False),
        ("Shapes", None, True),
        ("Count", None, True),
        ("Time", None, True),
        ("Share", None, True),
        ("Waste", None, True),
        ("Bound", None, False),
    ]
    cells = [
        [
            html.Span(fmt.clean(row["name"], 90), title=fmt.clean(row["name"], 400)),
            row["family"] or fmt.UNKNOWN,
            fmt.count(row["shapes"]),
            fmt.count(row["count"]),
            fmt.duration(row["total_ns"]),
            fmt.percent(row["share"]),
            fmt.duration(row["waste_ns"]),
            row["bound"] or fmt.UNKNOWN,
        ]
        for row in rows
    ]
    return cards.card(
        title,
        cards.table(columns, cells, "Kernels of the rank"),
        sub="largest waste beyond the roofline first",
        csv=found.csv("ranks.kernels"),
    )


def heat_table(source: Source, view: View) -> pa.Table:
    """Return the cells of the map, in long form."""
    grid = data_ranks.grid(source, view)
    if grid is None:
        return pa.table({"rank": [], "step": [], "ms": []})
    rows, columns = grid.z.shape
    return pa.table(
        {
            "rank": pa.array([r for r in grid.ranks for _ in range(columns)]),
            "step": pa.array(list(grid.steps) * rows),
            f"{grid.quantity}_{grid.unit}": pa.array(grid.z.ravel(), from_pandas=True),
        }
    )


def counters_table(source: Source, view: View) -> pa.Table:
    """Return the samples behind the counters."""
    rows = [
        {"counter": name, "time_ns": int(t), "value": float(v)}
        for name, (times, values) in data_rank.counters(source, view).items()
        for t, v in zip(times, values, strict=True)
    ]
    return pa.Table.from_pylist(rows)


PAGE = Page(
    "ranks",
    head,
    (
        Section("ranks.heat", heat, ("quantity", "order", "first", "last"), heat_table, minimum=400),
        Section(
            "ranks.stragglers",
            stragglers,
            ("first", "last"),
            rows_of(data_stragglers.stragglers),
            minimum=240,
        ),
        Section("ranks.phases", phases, ("rank",), rows_of(data_rank.phases), minimum=160, width=6),
        Section("ranks.counters", counters, ("rank",), counters_table, minimum=160, width=6),
        Section("ranks.kernels", kernels, ("rank",), rows_of(data_rank.kernels), minimum=40),
    ),
)
