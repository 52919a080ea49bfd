"""Collectives: which group and operation, how fast against its link, who waits and for whom, down to one instance."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
import pyarrow as pa
from dash import dcc, html

from .. import cards, data_collectives, figures_collectives, shell
from .. import format as fmt
from ..data import Source
from ..section import Context, Page, Section, rows_of
from ..view import View

CHOICE = ("group", "op")
CLASSES = {"skew": "warn", "transfer": "", "mixed": "", "inconclusive": ""}


def head(found: Context) -> Any:
    """Title, group and operation."""
    view = found.view
    rows = data_collectives.kinds(found.source, view)
    controls: list[Any] = []
    for name, label, values in (
        ("group", "Group", sorted({row["group"] for row in rows if row["group"]})),
        ("op", "Operation", sorted({row["op"] for row in rows if row["op"]})),
    ):
        data = [{"value": value, "label": fmt.clean(value, 40)} for value in values]
        controls.append(
            dmc.Select(
                id={"control": name},
                label=label,
                data=data,
                value=getattr(view, name) or None,
                w=150,
                size="xs",
                clearable=True,
                placeholder="all",
            )
        )
    controls.append(shell.live_control(view))
    return shell.bar(f"Collectives of {cards.name_of(view.run)}", shell.run_pages(found), controls)


def nothing(found: Context, title: str) -> Any:
    """Say what makes the table."""
    text = "Collectives come with an analysis of traces that hold communication, of two ranks or more."
    command = f"perfkit analyze traces/ --store {fmt.clean(found.source.uri, 200)}"
    return cards.card(title, cards.empty("No collectives on record", text, command), key="exposed_comm")


def kinds(found: Context) -> Any:
    """List groups and operations."""
    rows = data_collectives.kinds(found.source, found.view)
    if not rows:
        return nothing(found, "By group and operation")
    columns = [("Group", "group_role", False), ("Operation", None, False), ("Ranks", None, True), ("Count", None, True),
               ("Median size", None, True), ("Bus bandwidth", "busbw", True), ("Of link", "link_share", True),
               ("Wait", "wait", True), ("Transfer", "transfer", True), ("Exposed", "exposed_comm", True)]  # fmt: skip
    cells = []
    for row in rows:
        here = (row["group"] or "") == found.view.group and row["op"] == found.view.op
        link = found.link(group="", op="", instance=None) if here else found.link(
            group=row["group"] or "", op=row["op"], instance=None)  # fmt: skip
        exposed = data_collectives.exposed_ns(row)
        share = fmt.UNKNOWN if row["efficiency"] is None else fmt.percent(row["efficiency"])
        peak = f" of {row['link']} {row['peak_gbps']:,.0f} GB/s" if row["peak_gbps"] and row["link"] else ""
        cells.append([
            html.Span([dcc.Link(fmt.clean(row["group"] or "unknown", 30), href=link), " ",
                       cards.badge("chosen", "info") if here else ""]),
            row["op"], fmt.count(row["size"]), fmt.count(row["instances"] + row["alone"]),
            fmt.size(row["median_bytes"]),
            fmt.speed(row["busbw_gbps"]),
            html.Span(share, title=f"share{peak}" if peak else "the peak of the link is not known"),
            fmt.duration(row["wait_ns"]), fmt.duration(row["transfer_ns"]), fmt.duration(exposed),
        ])  # fmt: skip
    verdict = html.P(sentence(found, rows), style={"marginBottom": 8})
    return cards.card(
        "By group and operation",
        [verdict, cards.table(columns, cells, "Collectives by group and operation", scroll=True)],
        key="exposed_comm",
        sub="the most exposed first; times are summed over ranks and steps",
        csv=found.csv("collectives.kinds"),
    )


def sentence(found: Context, rows: list[dict[str, Any]]) -> list[Any]:
    """Say in one sentence what communication costs and why."""
    wait, transfer, bubble = (
        sum(row[name] or 0 for row in rows) for name in ("exposed_wait_ns", "exposed_transfer_ns", "bubble_ns")
    )
    both = wait + transfer + bubble
    if not both:
        return ["No communication is exposed that could be told apart."]
    middle, tail = (",", f" and {fmt.percent(bubble / both)} is pipeline bubble") if bubble else (" and", "")
    parts: list[Any] = [
        f"Of {fmt.duration(both)} of exposed communication, ",
        html.Strong(f"{fmt.percent(wait / both)} is waiting for others"),
        f"{middle} {fmt.percent(transfer / both)} moves data{tail}. ",
    ]
    blamed = data_collectives.culprits(found.source, found.view.change(group="", op=""))
    if blamed and blamed[0]["share"] and blamed[0]["share"] > 0.3:
        first = blamed[0]
        parts += [
            "Most waited for is ",
            dcc.Link(f"rank {first['rank']}", href=found.href("ranks", rank=first["rank"])),
            f", with {fmt.percent(first['share'])} of the waiting.",
        ]
    return parts


def bandwidth(found: Context) -> Any:
    """Bandwidth against size; a point leads to its instance."""
    points = data_collectives.points(found.source, found.view)
    title = "Bandwidth against message size"
    if points is None:
        return html.Div()
    if not len(points.bytes):
        text = (
            "Sizes come with the collectives' arguments in the trace, bandwidths with traces of all members of a group."
        )
        return cards.card(title, cards.empty("No bandwidth is known", text), key="busbw")
    kinds_there = list(dict.fromkeys(sorted(points.kind)))
    go = found.link(instance=None)
    go += ("&" if "?" in go else "?") + "instance={customdata}"
    chart = figures_collectives.bandwidth(points, kinds_there, found.theme, go, found.view.instance)
    thinned = f"{len(points.bytes):,} of {points.total:,} are drawn. " if len(points.bytes) < points.total else ""
    missing = f"{points.unknown:,} have no known size or time. " if points.unknown else ""
    style = figures_collectives.styles(kinds_there, found.theme)
    return cards.card(
        title,
        [cards.legend([(fmt.clean(kind, 40), colour) for kind, (colour, _) in style.items()]),
         cards.chart(chart, "collectives.bandwidth")],
        key="busbw", sub=f"{thinned}{missing}Click a point for its members.", csv=found.csv("collectives.bandwidth"),
        png="bandwidth",
    )  # fmt: skip


def waits(found: Context) -> Any:
    """Wait against transfer."""
    rows = data_collectives.kinds(found.source, found.view)
    if not rows:
        return html.Div()
    chart = figures_collectives.waits(rows, found.theme, None)
    marks = [(label, found.theme.groups[group]) for column, label, group in figures_collectives.PARTS
             if any(figures_collectives.part(row, column) for row in rows)]  # fmt: skip
    return cards.card(
        "Wait against transfer",
        [cards.legend(marks), cards.chart(chart, "collectives.waits")],
        key="wait",
        csv=found.csv("collectives.kinds"),
        png="waits",
    )


def skew(found: Context) -> Any:
    """Skew over steps."""
    rows = data_collectives.skew(found.source, found.view)
    if not rows:
        return html.Div()
    groups = list(dict.fromkeys(str(row["group"]) for row in rows))
    style = figures_collectives.styles(groups, found.theme)
    chart = figures_collectives.skew(rows, found.theme)
    return cards.card(
        "Skew over steps",
        [cards.legend([(fmt.clean(group, 30), colour) for group, (colour, _) in style.items()]),
         cards.chart(chart, "collectives.skew")],
        key="skew", sub="solid: largest, dashed: median", csv=found.csv("collectives.skew"), png="skew",
    )  # fmt: skip


def culprits(found: Context) -> Any:
    """List who is waited for."""
    rows = data_collectives.culprits(found.source, found.view)
    title = "Who is waited for"
    if data_collectives.calls(found.source, found.view) is None:
        return html.Div()
    if not rows:
        text = "Nobody is blamed: nobody waited, or the clocks do not allow it."
        return cards.card(title, cards.empty("Nobody", text), key="waited_for")
    columns = [("Rank", None, False), ("GPU-time waited", "waited_for", True), ("Exposed", "waited_for", True),
               ("Share", None, True), ("Came last", None, True), ("Steps", None, True)]  # fmt: skip
    cells = [
        [
            dcc.Link(f"rank {row['rank']}", href=found.href("ranks", rank=row["rank"])),
            fmt.duration(row["wait_ns"]),
            fmt.duration(row["exposed_wait_ns"]),
            fmt.percent(row["share"]),
            fmt.count(row["last"]),
            fmt.count(row["steps"]),
        ]
        for row in rows[:12]
    ]
    sub = (
        "the rank that an instance waited for; in the chosen group and operation"
        if found.view.group or found.view.op
        else ("the rank that an instance waited for")
    )
    return cards.card(
        title,
        cards.table(columns, cells, "Ranks that others waited for", scroll=True),
        key="waited_for",
        sub=sub,
        csv=found.csv("collectives.culprits"),
    )


def instances(found: Context) -> Any:
    """Show the chosen instance, or the dearest ones."""
    if data_collectives.calls(found.source, found.view) is None:
        return html.Div()
    if found.view.instance is not None:
        return one_instance(found)
    rows = data_collectives.instances(found.source, found.view)
    if not rows:
        return cards.card("Instances", cards.empty("No matched instance", "Only calls without partners are on record."))
    columns = [("Instance", None, True), ("Step", None, True), ("Group", None, False), ("Operation", None, False),
               ("Size", None, True), ("Skew", "skew", True), ("Came last", None, False),
               ("Exposed wait", "wait", True), ("Exposed transfer", "transfer", True), ("Bus bandwidth", "busbw", True),
               ("Mostly", None, False)]  # fmt: skip
    cells = [
        [dcc.Link(f"{row['instance']}", href=found.link(instance=row["instance"])), fmt.count(row["step"]),
         fmt.clean(row["group"] or "unknown", 24), row["op"],
         fmt.UNKNOWN if row["bytes"] is None else fmt.size(row["bytes"]), fmt.duration(row["skew_ns"]),
         fmt.UNKNOWN if row["last_rank"] is None else f"rank {row['last_rank']}",
         fmt.duration(row["exposed_wait_ns"]), fmt.duration(row["exposed_transfer_ns"]),
         fmt.speed(row["busbw_gbps"]),
         cards.badge(row["class"] or fmt.UNKNOWN, CLASSES.get(row["class"] or "", ""))]
        for row in rows
    ]  # fmt: skip
    return cards.card("Instances", cards.table(columns, cells, "Dearest instances", scroll=True),
                      sub=f"the {len(rows)} that cost most exposed time; a number opens its members",
                      csv=found.csv("collectives.instances"))  # fmt: skip


def one_instance(found: Context) -> Any:
    """Show the members of one instance."""
    rows = data_collectives.members(found.source, found.view)
    title = f"Instance {found.view.instance}"
    back = dcc.Link("All instances", href=found.link(instance=None), className="pk-action")
    if not rows:
        return cards.card(title, cards.empty("No such instance", "Another analysis may number them differently."),
                          actions=[back])  # fmt: skip
    first = min(row["start_ns"] for row in rows)
    one = rows[0]
    u = fmt.UNKNOWN if one["uncertainty_ns"] is None else f"±{fmt.duration(one['uncertainty_ns'])}"
    facts = [
        f"{one['op']} in {fmt.clean(one['group'] or 'unknown', 30)}",
        f"step {one['step']}" if one["step"] is not None else "",
        fmt.size(one["bytes"]) if one["bytes"] is not None else "",
        fmt.speed(one["busbw_gbps"]) if one["busbw_gbps"] is not None else "",
        f"skew {fmt.duration(one['skew_ns'])}" if one["skew_ns"] is not None else "",
        f"clocks {u}",
        f"{len(rows)} of {one['size']} members traced" if one["size"] else f"{len(rows)} members traced",
    ]
    link = timeline_link(found, rows)
    columns = [("Rank", None, False), ("Arrives after the first", None, True), ("Duration", None, True),
               ("Wait", "wait", True), ("Transfer", "transfer", True), ("Exposed wait", None, True),
               ("Exposed transfer", None, True), ("Waited for", None, False)]  # fmt: skip
    cells = [
        [
            dcc.Link(f"rank {row['rank']}", href=found.href("ranks", rank=row["rank"])),
            f"{fmt.duration(row['start_ns'] - first)}",
            fmt.duration(row["dur_ns"]),
            fmt.duration(row["wait_ns"]),
            fmt.duration(row["transfer_ns"]),
            fmt.duration(row["exposed_wait_ns"]),
            fmt.duration(row["exposed_transfer_ns"]),
            fmt.UNKNOWN if row["caused_by"] is None else f"rank {row['caused_by']}",
        ]
        for row in rows[:256]
    ]
    parts: list[Any] = [html.P(", ".join(fact for fact in facts if fact) + ".", style={"marginBottom": 8})]
    if link:
        parts.append(html.P(dcc.Link("Show it in the timeline", href=link)))
    parts.append(cards.table(columns, cells, "Members of the instance", scroll=True))
    return cards.card(title, parts, sub="on aligned clocks", csv=found.csv("collectives.instances"), actions=[back])


def timeline_link(found: Context, rows: list[dict[str, Any]]) -> str | None:
    """Return the link to the window of an instance."""
    from ..data_timeline import moment

    step = rows[0]["step"]
    ranks = ",".join(str(row["rank"]) for row in rows[:8])
    at = moment(found.source, found.view.to("timeline", step=step, ranks=ranks)) if step is not None else None
    if at is None:
        return None
    first = min(row["start_ns"] for row in rows) - at.origin_ns
    last = max(row["start_ns"] + row["dur_ns"] for row in rows) - at.origin_ns
    room = max((last - first) // 2, 1000)
    lo, hi = max(0, first - room), min(at.length_ns, last + room)
    return found.href("timeline", step=step, ranks=ranks, **({"lo": lo, "hi": hi} if lo < hi else {}))


def instances_table(source: Source, view: View) -> pa.Table:
    """Return all instances of what is chosen, or the members of one."""
    if view.instance is not None:
        return pa.Table.from_pylist(data_collectives.members(source, view))
    rows = data_collectives.chosen_instances(source, view)
    return pa.table({"instance": []}) if rows is None else rows


PAGE = Page(
    "collectives",
    head,
    (
        Section("collectives.kinds", kinds, CHOICE, rows_of(data_collectives.kinds), minimum=240),
        Section("collectives.bandwidth", bandwidth, (*CHOICE, "instance"), instances_table, minimum=420, width=7),
        Section("collectives.waits", waits, (), rows_of(data_collectives.kinds), minimum=300, width=5),
        Section("collectives.skew", skew, CHOICE, rows_of(data_collectives.skew), minimum=340, width=7),
        Section("collectives.culprits", culprits, CHOICE, rows_of(data_collectives.culprits), minimum=240, width=5),
        Section("collectives.instances", instances, (*CHOICE, "instance"), instances_table, minimum=240),
    ),
)
