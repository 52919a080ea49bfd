"""Health: nodes and GPUs that are in the way, what happened to them beside step time, and the evidence.

The page's address is `node-health`: `health` is where probes ask.
"""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
import pyarrow as pa
from dash import dcc, html

from .. import cards, data_health, figures_health, shell
from .. import format as fmt
from ..data import Source
from ..section import TIME, Context, Page, Section, rows_of
from ..view import View

STATES = {"up": "good", "drained": "info", "unhealthy": "warn", "down": "bad"}


def head(found: Context) -> Any:
    """Title, range, node."""
    view = found.view
    rows = data_health.nodes(found.source, view)
    data = [{"value": row["node"], "label": fmt.clean(row["node"], 40)} for row in rows[:500] if row["node"]]
    controls = [
        *([] if view.run else [shell.range_control(view)]),
        dmc.Select(id={"control": "node"}, label="Node", data=data, value=view.node or None, w=190, size="xs",
                   clearable=True, searchable=True, placeholder="the worst"),
        dmc.NumberInput(id={"control": "device"}, label="GPU", value="" if view.device is None else view.device, min=0,
                        w=80, size="xs", allowDecimal=False, placeholder="all", debounce=400, hideControls=True),
        shell.live_control(view),
    ]  # fmt: skip
    if view.run:
        return shell.bar(f"Health of {cards.name_of(view.run)}", shell.run_pages(found), controls)
    back = [dcc.Link("Cluster", href=found.href("cluster")), " · ", html.Strong("Health")]
    return shell.bar(f"Health of {cards.name_of(view.cluster)}", back, controls)


def events(found: Context) -> Any:
    """Draw events beside step time."""
    strip = data_health.events(found.source, found.view)
    title = "Events beside step time"
    if not strip.rows and not len(strip.value):
        text = "XIDs, throttling and ECC errors come from capture's GPU sampler, from logs, or from an exporter."
        command = f"perfkit run --store {fmt.clean(found.source.uri, 200)} -- torchrun train.py"
        return cards.card(title, cards.empty("No health events on record", text, command), key="health_events")
    chart = figures_health.events(strip, found.theme)
    kinds = list(dict.fromkeys(row["kind"] for row in strip.rows))
    marks = [figures_health.style_of(kind, found.theme)[::-1][:2] for kind in kinds]
    few = f"the last {len(strip.rows):,} of " if len(strip.rows) < strip.total else ""
    sub = f"{few}{fmt.plural(strip.total, 'event')} on {fmt.plural(len(strip.nodes), 'node')}, warnings and faults"
    return cards.card(
        title,
        [cards.legend(marks), cards.chart(chart, "node-health.events")],
        key="health_events",
        sub=sub,
        csv=found.csv("node-health.events"),
        png="health",
    )


def lemons(found: Context) -> Any:
    """List lemons, each with what speaks against it."""
    rows = data_health.lemons(found.source, found.view)
    title = "Lemons and their evidence"
    if not rows:
        body = cards.empty("No lemon", "No node was slow, or blamed for interruptions, beyond chance in this range.")
        return cards.card(title, body, key="lemon")
    parts = []
    for i, row in enumerate(rows):
        runs = [
            html.Li([dcc.Link(cards.name_of(one["run"], 60), href=found.href("run", run=one["run"])),
                     f": {_run_words(one)}, {fmt.utc(one['start_ns'])}"])
            for one in row["evidence"]
        ]  # fmt: skip
        seen = ", ".join(f"{one['count']:,} × {fmt.clean(one['what'], 40)}" for one in row["events"])
        broke = ", ".join(f"{one['count']:,} × {fmt.clean(one['cause'] or 'unknown', 40)} "
                          f"({fmt.gpu_hours(one['gpu_hours'])} GPU-h)" for one in row["interruptions"])  # fmt: skip
        lines: list[Any] = [
            html.P(_chance_words(row)),
            html.P([html.Strong("Health events: "), seen or "none on record"]),
            html.P([html.Strong("Blamed for: "), broke or "no interruption on record"]),
            html.P(dcc.Link("Its counters", href=found.link(node=row["node"], device=None))),
        ]
        if runs:
            lines += [html.P(html.Strong("Latest evidence")), html.Ul(runs, className="pk-list")]
        summary = html.Summary([
            html.Span([html.Strong(cards.name_of(row["node"], 48)), " ", _verdict(row)]),
            html.Span(row["kind"], className="pk-points"),
        ])  # fmt: skip
        parts.append(html.Details([summary, html.Div(lines)], className="pk-finding", open=i == 0))
    sub = f"{len(rows)} beyond chance; open one for its evidence"
    return cards.card(title, parts, key="lemon", sub=sub, csv=found.csv("node-health.lemons"))


def _verdict(row: dict[str, Any]) -> str:
    if row["kind"] == "slow":
        slow = f", typically {row['slowdown']:.2f} × its peers" if row["slowdown"] else ""
        return f"was slow in {row['bad']} of {row['of']} runs{slow}"
    return f"broke runs on {row['bad']} of {row['of']} days"


def _chance_words(row: dict[str, Any]) -> str:
    p = row["p_value"]
    chance = "below 1 in a million" if p < 1e-6 else f"{p:.2g}"
    since = fmt.utc(row["since_ns"])
    return f"By chance {row['expected']:.1f} would be expected; the chance of so many is {chance}. Since {since}."


def _run_words(one: dict[str, Any]) -> str:
    parts = [f"{one['slowdown']:.2f} × its peers"] if one["slowdown"] else []
    parts += ["interrupted, blamed"] if one["interrupted"] else []
    return ", ".join(parts) or "no measurement"


def nodes(found: Context) -> Any:
    """List nodes, the worst first."""
    rows = data_health.nodes(found.source, found.view)
    if not rows:
        text = "Nodes come from an inventory, a scheduler's records, or capture on them."
        body = cards.empty("No node on record", text, f"perfkit store rollup {fmt.clean(found.source.uri, 200)}")
        return cards.card("Nodes", body)
    columns = [("Node", None, False), ("State", "health", False), ("XIDs", None, True), ("Faults", None, True),
               ("Thermal loss", "throttle", True), ("Power limit", None, True), ("Hottest", "temperature", True),
               ("ECC", None, True), ("Slowdown", "slowdown", True), ("Last event", None, False)]  # fmt: skip
    cells = []
    for row in rows[:40]:
        chosen = row["node"] == data_health.chosen_node(found.source, found.view)
        marks = [cards.badge("lemon", "bad")] if row["lemon"] else []
        marks += [cards.badge("shown", "info")] if chosen else []
        cells.append(
            [
                html.Span(
                    [
                        dcc.Link(cards.name_of(row["node"], 40), href=found.link(node=row["node"], device=None)),
                        " ",
                        *marks,
                    ]
                ),
                cards.badge(row["state"], STATES.get(row["state"], "")) if row["state"] else fmt.UNKNOWN,
                fmt.count(row["xids"]),
                fmt.count(row["faults"]),
                fmt.percent(row["thermal"]),
                fmt.percent(row["power"]),
                fmt.UNKNOWN if row["temperature"] is None else f"{row['temperature']:.0f} °C",
                fmt.count(row["ecc"]),
                fmt.UNKNOWN if row["slowdown"] is None else f"{row['slowdown']:.2f} ×",
                fmt.utc(row["last_ns"]),
            ]
        )
    sub = f"{min(40, len(rows))} of {len(rows):,}, lemons and faults first; a name shows its counters"
    table = cards.table(columns, cells, "Nodes, the worst first", scroll=True)
    return cards.card("Nodes", table, sub=sub, csv=found.csv("node-health.nodes"))


def counters(found: Context) -> Any:
    """Draw the counters of one node."""
    lines = data_health.counters(found.source, found.view)
    node = data_health.chosen_node(found.source, found.view)
    title = f"Counters of {cards.name_of(node, 40)}" if node else "Counters"
    if lines is None:
        text = "Capture samples them while a run holds the node; exporters bring them for the whole fleet."
        return cards.card(title, cards.empty("No counters of this node", text))
    devices = sorted({device for _, _, panel in lines.panels for device in panel})
    style = figures_health.gpu_styles(devices, found.theme)
    chart = figures_health.counters(lines, found.theme)
    sub = "every sample's peak" if lines.by == "sample" else "by day (UTC)"
    return cards.card(
        title, [cards.legend([(f"GPU {device}{'' if style[device][1] == 'solid' else ', dashed'}", style[device][0])
                              for device in devices]),
                cards.chart(chart, "node-health.counters")],
        sub=sub, csv=found.csv("node-health.counters"), png="counters",
    )  # fmt: skip


def joined(found: Context) -> Any:
    """List the events of a run with the steps they slowed."""
    if not found.view.run:
        return html.Div()
    answer = data_health.of_run(found.source, found.view)
    title = "Events of this run and the steps they slowed"
    if answer is None or (not answer["events"] and not answer["notes"]):
        return cards.card(
            title, cards.empty("Nothing happened", "No event on its nodes while it ran, as far as is recorded.")
        )
    columns = [
        ("Event", None, False),
        ("Node", None, False),
        ("GPU", None, True),
        ("When (UTC)", None, False),
        ("Steps slowed", "steps_slowed", True),
        ("Excess", "steps_slowed", True),
        ("Steps", None, False),
    ]
    cells = []
    for event in answer["events"][:30]:
        code = f" {event['code']}" if event["kind"] == "xid" and event["code"] is not None else ""
        span = fmt.UNKNOWN
        if event["first_step"] is not None:
            link = found.href("run", first=event["first_step"], last=event["last_step"])
            span = dcc.Link(f"{event['first_step']:,} – {event['last_step']:,}", href=link)
        name = figures_health.KINDS.get(event["kind"], ("", "", event["kind"]))[2]
        cells.append([
            html.Span(f"{fmt.clean(name, 30)}{code}", title=fmt.clean(event["detail"] or "", 200)),
            dcc.Link(cards.name_of(event["node"], 40), href=found.link(node=event["node"], device=event["device"])),
            fmt.count(event["device"]), fmt.utc(event["time_ns"]), fmt.count(event["steps_slowed"]),
            fmt.duration(event["excess_ns"]) if event["steps_slowed"] else fmt.UNKNOWN, span,
        ])  # fmt: skip
    notes = [html.P("; ".join(answer["notes"]) + ".", className="pk-sub")] if answer["notes"] else []
    table = [cards.table(columns, cells, "Events of the run, the dearest first", scroll=True)] if cells else []
    sub = "the dearest first; that a step was slow meanwhile is no proof of the cause"
    return cards.card(title, [*table, *notes], sub=sub, csv=found.csv("node-health.joined"))


# ------------------------------------------------------------------ exports


def counters_table(source: Source, view: View) -> pa.Table:
    """Return the points behind the counters."""
    found = data_health.counters(source, view)
    rows = [
        {"node": found.node, "counter": label, "unit": unit, "device": device, "time_ns": int(t), "value": float(v)}
        for label, unit, lines in (found.panels if found else ())
        for device, (times, values) in lines.items()
        for t, v in zip(times, values, strict=True)
    ]
    return pa.Table.from_pylist(rows)


def lemons_table(source: Source, view: View) -> pa.Table:
    """Return the lemons."""
    names = ("node", "kind", "bad", "of", "expected", "p_value", "slowdown", "since_ns")
    rows = data_health.lemons(source, view)
    return pa.Table.from_pylist([{**{n: row[n] for n in names}, "runs": " ".join(row["runs"] or ())} for row in rows])


def joined_table(source: Source, view: View) -> pa.Table:
    """Return the events of the run."""
    answer = data_health.of_run(source, view) if view.run else None
    rows = answer["events"] if answer else []
    return pa.Table.from_pylist([{k: str(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows])


def events_table(source: Source, view: View) -> pa.Table:
    """Return the events."""
    return pa.Table.from_pylist(data_health.events(source, view).rows)


PAGE = Page(
    "node-health",
    head,
    (
        Section("node-health.events", events, TIME, events_table, minimum=300),
        Section("node-health.lemons", lemons, TIME, lemons_table, minimum=160),
        Section("node-health.joined", joined, (), joined_table, minimum=40),
        Section("node-health.nodes", nodes, (*TIME, "node"), rows_of(data_health.nodes), minimum=300),
        Section("node-health.counters", counters, (*TIME, "node", "device"), counters_table, minimum=420),
    ),
)
