"""Cluster: what it delivered, which GPUs and nodes are in the way, what interrupts its runs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from dash import dcc, html

from .. import cards, data_cluster, data_fleet, data_notes, figures, shell
from .. import format as fmt
from ..data import Source
from ..metrics import QUANTITIES
from ..section import TIME, Context, Page, Section
from ..view import GPU_QUANTITIES, View
from .fleet import judge, why


def head(found: Context) -> Any:
    """Title and controls."""
    view = found.view
    title = f"Cluster {cards.name_of(view.cluster)}"
    controls = [shell.range_control(view), *shell.day_controls(view), shell.live_control(view)]
    links = [
        dcc.Link("Runs of this cluster", href=found.href("fleet", clusters=(view.cluster or "",))),
        " · ",
        dcc.Link("Health", href=found.href("node-health")),
    ]
    return shell.bar(title, links, controls)


def overview(found: Context) -> Any:
    """Show the cluster's numbers."""
    rows = data_fleet.clusters(found.source, found.view)
    if not rows:
        name = cards.name_of(found.view.cluster)
        return cards.card(
            "Overview",
            cards.empty(
                f"Nothing about {name} in this range",
                "Choose a longer time range.",
                f"perfkit goodput sacct.txt --import-to {fmt.clean(found.source.uri, 200)}",
            ),
        )
    row, sure = rows[0], data_cluster.reliability(found.source, found.view)
    before = row["before"]

    def share(label: str, key: str) -> Any:
        value = fmt.UNKNOWN if row[key] is None else f"{100 * row[key]:.1f}"
        return cards.stat(label, value, "%", key=key, delta=cards.delta(row[key], before.get(key)))

    stats = [
        share("MFU", "mfu"),
        share("Effective MFU", "effective_mfu"),
        share("Goodput", "goodput"),
        share("Uptime", "uptime"),
        cards.stat("Tokens/s per GPU", fmt.number(row["tokens_per_gpu_s"]), key="tokens"),
        cards.stat("MTTF", fmt.number(sure["mttf_hours"], 1), "h", key="mttf"),
        cards.stat("MTTR", fmt.number(sure["mttr_hours"], 2), "h", key="mttr"),
        cards.stat("GPUs", fmt.count(row.get("gpus")), f"{fmt.count(row.get('unhealthy'))} unhealthy"),
    ]
    kind = judge(row["delivered"])
    text = "; ".join(why(row))
    return html.Div(
        [
            html.Div(
                html.P(f"{text[:1].upper()}{text[1:]}."), className=f"pk-verdict {kind}", style={"marginBottom": 16}
            ),
            html.Section(
                html.Div(stats, className="pk-kpis"),
                className="pk-card",
                style={"height": "auto", "paddingTop": 14},
                **{"aria-label": "Overview"},
            ),
        ]
    )


def gpu_map(found: Context) -> Any:
    """Node × GPU."""
    rows = data_cluster.gpus(found.source, found.view)
    quantity = found.view.gpu
    label, _ = QUANTITIES[quantity]
    pick = shell.choice("gpu", "Show", [(q, QUANTITIES[q][0]) for q in GPU_QUANTITIES], quantity)
    if not rows:
        uri = fmt.clean(found.source.uri, 200)
        body: Any = cards.empty(
            "No GPU counters",
            "They come from capture or from scraped exporters.",
            f"perfkit goodput metrics.prom --import-to {uri}",
        )
        return cards.card("GPUs", body)
    found_chart = figures.gpu_map(rows, quantity, found.theme)
    body = [html.Div(pick, style={"marginBottom": 6}), cards.chart(found_chart, "cluster.gpus"),
            html.P(found_chart.alt, className="pk-sub")]  # fmt: skip
    if quantity == "health":
        states = [(s, found.theme.states[s]) for s in figures.STATES if any(r["health"] == s for r in rows)]
        body.insert(1, cards.legend(states))
    sub = f"{len(rows):,} GPUs, at most the last {data_cluster.GPU_DAYS} days of the range"
    return cards.card(f"Nodes × GPUs: {label}", body, key=quantity, sub=sub, csv=found.csv("cluster.gpus"), png="gpus")


def over_time(found: Context) -> Any:
    """MFU and where the hours went, over time."""
    rows, width = data_cluster.over_time(found.source, found.view)
    notes = data_notes.notes_on(found.source, found.view)
    if not rows:
        return cards.card("Over time", cards.empty("Nothing in this range", "Choose a longer time range."))
    there = [
        {"bucket": b, "gpu_hours": 1}
        for b in {k[:-3] for row in rows for k, v in row.items() if k.endswith("_ns") and v}
    ]
    body = [cards.legend([("MFU (dotted: effective)", found.theme.accent), *figures.group_legend(there, found.theme)]),
            cards.chart(figures.over_time(rows, found.theme, width, notes), "cluster.time")]  # fmt: skip
    return cards.card(
        "MFU and GPU-hours over time", body, key="goodput", csv=found.csv("cluster.time"), png="over-time"
    )


def interruptions(found: Context) -> Any:
    """Interruptions by cause."""
    rows = data_cluster.interruptions(found.source, found.view)
    sure = data_cluster.reliability(found.source, found.view)
    if not rows:
        return cards.card(
            "Interruptions",
            cards.empty("None in this range", "No run of this cluster was interrupted."),
            key="interruptions",
        )
    body = [cards.chart(figures.by_cause(rows, found.theme), "cluster.causes")]
    sub = f"{sure['interruptions']:,}, of which {sure['failures']:,} unplanned"
    return cards.card(
        "Interruptions", body, key="interruptions", sub=sub, csv=found.csv("cluster.causes"), png="interruptions"
    )


def lemons(found: Context) -> Any:
    """Nodes that are slow or break runs, and nodes with health events."""
    rows, faulty = data_cluster.lemons(found.source, found.view), data_cluster.faulty(found.source, found.view)
    kinds = {row["node"]: row for row in faulty}
    if not rows and not faulty:
        body = cards.empty("No lemon", "No node was slow, blamed or faulty beyond chance in this range.")
        return cards.card("Lemons", body, key="lemon")
    columns = [
        ("Node", None, False),
        ("Why", "lemon", False),
        ("Expected", None, True),
        ("Chance", None, True),
        ("Health events", None, False),
    ]
    cells = [
        [
            html.Span(cards.name_of(row["node"], 48), className="nowrap"),
            _why_lemon(row),
            f"{row['expected']:.1f}",
            _chance(row["p_value"]),
            fmt.clean((kinds.get(row["node"]) or {}).get("kinds") or "", 60),
        ]
        for row in rows[:40]
    ]
    lemon_nodes = {row["node"] for row in rows}
    cells += [
        [
            html.Span(cards.name_of(row["node"], 48), className="nowrap"),
            f"{row['faults']:,} faults, last {fmt.utc(row['last_ns'])}",
            "",
            "",
            fmt.clean(row["kinds"] or "", 60),
        ]
        for row in faulty[:20]
        if row["node"] not in lemon_nodes
    ]
    sub = f"{len(lemon_nodes):,} beyond chance" + (f"; {len(kinds):,} with health events" if kinds else "")
    body = cards.table(columns, cells, "Nodes that are slow, break runs or report faults", scroll=True)
    return cards.card("Lemons", body, key="lemon", sub=sub, csv=found.csv("cluster.lemons"))


def _why_lemon(row: dict[str, Any]) -> str:
    if row["kind"] == "slow":
        slower = "" if row["slowdown"] is None else f", ×{row['slowdown']:.2f}"
        return f"slow in {row['bad']:,} of {row['of']:,} runs{slower}"
    return f"broke runs on {row['bad']:,} of {row['of']:,} days"


def _chance(p_value: float) -> str:
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"


def worst_runs(found: Context) -> Any:
    """List the runs that lost most."""
    rows, total = data_fleet.runs(found.source, found.view, count=12)
    if not rows:
        return cards.card("Runs", cards.empty("No run in this range", "Choose a longer time range."))
    columns = [
        ("Run", None, False),
        ("User", None, False),
        ("State", None, False),
        ("GPUs", None, True),
        ("MFU", "mfu", True),
        ("Goodput", "goodput", True),
        ("GPU-h lost", None, True),
        ("Interruptions", "interruptions", True),
    ]
    cells = [
        [
            dcc.Link(cards.name_of(row["run"], 48), href=found.href("run", run=row["run"])),
            cards.name_of(row.get("user") or "–", 24),
            row.get("state") or fmt.UNKNOWN,
            fmt.count(row.get("gpus")),
            fmt.percent(data_fleet.valid_mfu(row.get("mfu"))),
            fmt.percent(row.get("goodput")),
            fmt.gpu_hours(row.get("lost_hours")),
            fmt.count(row.get("interruptions")),
        ]
        for row in rows
    ]
    return cards.card(
        "Runs",
        cards.table(columns, cells, "Runs that lost most GPU-hours"),
        csv=found.csv("cluster.runs"),
        sub=f"those that lost most, of {total:,}",
    )


def _table(ask: Any) -> Any:
    def make(source: Source, view: View) -> pa.Table:
        found = ask(source, view)
        return pa.Table.from_pylist(found[0] if isinstance(found, tuple) else found)

    return make


def _plain_overview(source: Source, view: View) -> pa.Table:
    keep = (str, int, float, type(None))
    rows = [{k: v for k, v in row.items() if isinstance(v, keep)} for row in data_fleet.clusters(source, view)]
    return pa.Table.from_pylist([{**row, **data_cluster.reliability(source, view)} for row in rows])


PAGE = Page(
    "cluster",
    head,
    (
        Section("cluster.overview", overview, TIME, _plain_overview, minimum=150),
        Section("cluster.gpus", gpu_map, (*TIME, "gpu"), _table(data_cluster.gpus), minimum=360),
        Section("cluster.time", over_time, TIME, _table(data_cluster.over_time), minimum=400, width=8),
        Section("cluster.causes", interruptions, TIME, _table(data_cluster.interruptions), minimum=400, width=4),
        Section("cluster.lemons", lemons, TIME, _table(data_cluster.lemons), minimum=300, width=6),
        Section("cluster.runs", worst_runs, TIME, _table(data_fleet.runs), minimum=300, width=6),
    ),
)
