"""Timeline: one step of some ranks on one clock, from the whole step down to single events."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import dash_mantine_components as dmc
import flask
import pyarrow as pa
from dash import dcc, html

from perfkit.errors import PerfkitError

from .. import cards, data_timeline, figures_timeline, shell
from .. import format as fmt
from ..data import Source
from ..limits import charge
from ..section import Context, Page, Section, rows_of
from ..theme import LIGHT
from ..view import View

USES = ("step", "ranks", "rank", "lo", "hi", "lanes")
EXPORT_COST = 20.0
"""Computed answers that a trace counts as."""
LANE_LABELS = {"device": "devices", "all": "devices and host"}


def head(found: Context) -> Any:
    """Title, step, ranks, lanes."""
    view = found.view
    at = data_timeline.moment(found.source, view)
    controls: list[Any] = []
    if at is not None and at.steps:
        data = [{"value": str(step), "label": str(step)} for step in at.steps[:500]]
        controls.append(
            dmc.Select(id={"control": "step"}, label="Step", data=data, w=110, size="xs", searchable=True,
                       clearable=True, value=str(view.step) if view.step in at.steps else None,
                       placeholder=str(at.step))
        )  # fmt: skip
    controls += [
        dmc.TextInput(id={"control": "ranks"}, label="Ranks", value=view.ranks, w=130, size="xs", debounce=400,
                      placeholder=_ranks(at.ranks) if at else "0-7"),
        shell.choice("lanes", "Lanes", list(LANE_LABELS.items()), view.lanes),
        shell.live_control(view),
    ]  # fmt: skip
    return shell.bar(f"Timeline of {cards.name_of(view.run)}", shell.run_pages(found), controls)


def _ranks(ranks: tuple[int, ...]) -> str:
    whole = len(ranks) > 2 and ranks == tuple(range(ranks[0], ranks[-1] + 1))
    return f"{ranks[0]}-{ranks[-1]}" if whole else ",".join(map(str, ranks))


def picture(found: Context) -> Any:
    """Return the place of the picture: assets/timeline.js asks for the window that the URL names, and draws it."""
    place = html.Div(className="pk-timeline", **{"data-version": found.source.version(found.view)})
    return cards.card(
        "Timeline", place, key="timeline", sub=html.Span(**{"data-timeline": "sub"}), png="timeline",
        csv=found.csv("timeline.picture"), csv_extra={"data-timeline": "csv"},
        actions=[html.A("Perfetto", href=trace_href(found), className="pk-action", download="",
                        **{"aria-label": "This window as a trace for Perfetto", "data-timeline": "trace"})],
    )  # fmt: skip


def answer(found: Context) -> dict[str, Any]:
    """Return the window as the script draws it, or what to say where there is none."""
    scene = data_timeline.scene(found.source, found.view)
    uri = fmt.clean(found.source.uri, 200)
    if scene is None:
        text = "A timeline needs the run's trace events in the store, and an analysis that knows its steps and clocks."
        command = f"perfkit ingest traces/ --store {uri} --run NAME && perfkit analyze NAME --store {uri}"
        return {"empty": ["No step to show", text, command]}
    if not len(scene.row):
        text = "The analysis is stored and the events are not, or these ranks have none here."
        return {"empty": ["No events in this window", text, f"perfkit ingest traces/ --store {uri} --run NAME"]}
    at = scene.moment
    joined = (
        f"events shorter than {fmt.duration(scene.cell_ns)} are joined with their neighbours: the paler, the emptier"
        if scene.cell_ns
        else "every event is drawn"
    )
    title = "Whole trace" if at.step is None else f"Step {at.step}"
    return {
        **figures_timeline.picture(scene),
        "palette": figures_timeline.palette(),
        "sub": f"{scene.events:,} events in {len(scene.row):,} bars; {joined}. Drag to zoom.",
        "span": f"{title}: {fmt.duration(at.lo)} – {fmt.duration(at.hi)} of {fmt.duration(at.length_ns)}",
        "moves": _moves(found, at), "notes": _notes(scene), "csv": found.csv("timeline.picture"),
        "trace": trace_href(found), "collectives": found.href("collectives"),
    }  # fmt: skip


def _moves(found: Context, at: data_timeline.Moment) -> list[tuple[str, str]]:
    """Return links that zoom and move: what the pointer does, for the keyboard and for a new tab."""
    span, middle = at.hi - at.lo, (at.hi + at.lo) // 2

    def link(label: str, lo: int, hi: int) -> tuple[str, str]:
        lo, hi = max(0, lo), min(at.length_ns, hi)
        whole = lo <= 0 and hi >= at.length_ns
        return label, found.link(lo=None if whole else lo, hi=None if whole else hi)

    half = max(span // 4, 50)
    parts = [
        link("Zoom in", middle - half, middle + half),
        link("Zoom out", middle - span, middle + span),
        link("Earlier", max(0, at.lo - span // 2), max(span, at.hi - span // 2)),
        link("Later", min(at.lo + span // 2, at.length_ns - span), at.hi + span // 2),
        link("Whole step", 0, at.length_ns),
    ]
    where = at.steps.index(at.step) if at.step in at.steps else -1
    for label, other in (("Previous step", where - 1), ("Next step", where + 1)):
        if where >= 0 and 0 <= other < len(at.steps):
            parts.append((label, found.link(step=at.steps[other], lo=None, hi=None)))
    return parts


def _notes(scene: data_timeline.Scene) -> str:
    at = scene.moment
    lines = []
    if scene.joins:
        lines.append(
            f"{len(scene.joins):,} collectives are joined across ranks: starts by a solid line, ends by a dotted"
        )
    missing = scene.hidden.get("short", 0) + scene.hidden.get("many", 0)
    if missing:
        lines.append(f"{missing:,} more are too short or too many for lines; zoom in")
    if len(at.available) > len(at.ranks):
        lines.append(f"{len(at.ranks)} of {len(at.available):,} traced ranks are shown")
    if any(u is None for u in scene.uncertainty.values()) and len(at.ranks) > 1:
        lines.append("clocks that are not aligned are drawn as recorded: do not compare these ranks")
    return "; ".join(lines) + "." if lines else ""


def trace_href(found: Context) -> str:
    """Return the address of the window as a trace."""
    return f"{found.prefix.rstrip('/')}/export/timeline.trace.json.gz{found.view.query()}"


def busy(found: Context) -> Any:
    """List how long each class was busy in the window."""
    rows = data_timeline.shares(found.source, found.view)
    if not rows:
        return html.Div()
    shown = (
        *data_timeline.DEVICE_WORK,
        *data_timeline.CAUSES,
        *(data_timeline.HOST if found.view.lanes == "all" else ()),
    )
    classes = [name for name in figures_timeline.LABELS if name in shown and any(row["class"] == name for row in rows)]
    at = data_timeline.moment(found.source, found.view)
    assert at is not None
    cells = []
    for rank in at.ranks:
        mine = [row for row in rows if row["rank"] == rank]
        sums = {name: sum(row["busy_ns"] for row in mine if row["class"] == name) for name in classes}
        counts = {name: sum(row["events"] for row in mine if row["class"] == name) for name in classes}
        cells.append([
            _line(dcc.Link(f"rank {rank}", href=found.href("ranks", rank=rank))),
            *(html.Span(fmt.duration(sums[name]) if counts[name] else fmt.UNKNOWN, title=f"{counts[name]:,} events")
              for name in classes),
        ])  # fmt: skip
    columns = [("Rank", None, False), *((figures_timeline.LABELS[name], None, True) for name in classes)]
    sub = "all events, nothing joined; streams and threads add up"
    return cards.card("Busy in this window", cards.table(columns, cells, "Busy time by rank and class", scroll=True),
                      sub=sub, csv=found.csv("timeline.busy"))  # fmt: skip


def _line(content: Any) -> html.Span:
    return html.Span(content, style={"whiteSpace": "nowrap"})


def longest(found: Context) -> Any:
    """List the longest events of the window, each a zoom."""
    rows = data_timeline.longest(found.source, found.view)
    at = data_timeline.moment(found.source, found.view)
    if not rows or at is None:
        return html.Div()
    cells = []
    for row in rows:
        around = max(row["dur_ns"], 1000)
        lo, hi = max(0, row["start_ns"] - around), min(at.length_ns, row["start_ns"] + row["dur_ns"] + around)
        name = fmt.clean(row["name"], 120)
        cells.append([
            dcc.Link(name, href=found.link(lo=lo, hi=hi), title=fmt.clean(row["name"], 300), className="pk-name"),
            _line(f"rank {row['rank']}"), _line(fmt.clean(row["lane"], 24)),
            _line(figures_timeline.LABELS[row["class"]]),
            fmt.duration(row["start_ns"]), fmt.duration(row["dur_ns"]),
        ])  # fmt: skip
    columns = [("Event", None, False), ("Rank", None, False), ("Lane", None, False), ("Class", None, False),
               ("After start", None, True), ("Duration", None, True)]  # fmt: skip
    table = cards.table(columns, cells, "Longest events of the window", scroll=True)
    return cards.card("Longest in this window", table, sub="a name zooms to it", csv=found.csv("timeline.longest"))


# ------------------------------------------------------------------ exports


def picture_table(source: Source, view: View) -> pa.Table:
    """Return the bars."""
    scene = data_timeline.scene(source, view)
    if scene is None:
        return pa.table({"rank": []})
    rows = [scene.rows[row] for row in scene.row.tolist()]
    return pa.table({
        "rank": pa.array([row.rank for row in rows], pa.int32()), "lane": [row.slot.lane for row in rows],
        "class": [row.slot.name for row in rows], "depth": pa.array([row.slot.depth for row in rows], pa.int32()),
        "start_ns": scene.start, "end_ns": scene.end, "busy_ns": scene.busy, "events": scene.count,
        "name": pa.array(scene.label, pa.utf8()),
    })  # fmt: skip


def wire(app: Any, source: Source, prefix: str) -> None:
    """Add the window as the script draws it, and its download as a trace."""

    @app.server.route(f"{prefix}export/timeline.json")  # type: ignore[untyped-decorator]
    def show_window() -> flask.Response:
        view = View.parse("/timeline", flask.request.query_string.decode("utf-8", "replace"))
        charge()
        try:
            document = answer(Context(source, view, LIGHT, prefix))
        except PerfkitError as error:
            document = {"empty": ["This part cannot be shown.", str(error), ""]}
        return flask.Response(json.dumps(document, separators=(",", ":")), mimetype="application/json")

    @app.server.route(f"{prefix}export/timeline.trace.json.gz")  # type: ignore[untyped-decorator]
    def export_trace() -> flask.Response:
        view = View.parse("/timeline", flask.request.query_string.decode("utf-8", "replace"))
        at = data_timeline.moment(source, view)
        if at is None:
            return flask.Response("no analysis of this run has windows\n", status=404, mimetype="text/plain")
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{view.run}-step{at.step}")[:80]
        try:
            charge(EXPORT_COST)
            with tempfile.TemporaryDirectory(prefix="perfkit-") as folder:
                path = Path(folder, "window.json.gz")
                data_timeline.write_trace(source, at, str(path))
                file = flask.Response(path.read_bytes(), mimetype="application/gzip")
        except PerfkitError as error:
            return flask.Response(f"{error}\n", status=409, mimetype="text/plain")
        file.headers["Content-Disposition"] = f'attachment; filename="{name}.trace.json.gz"'
        return file


PAGE = Page(
    "timeline",
    head,
    (
        Section("timeline.picture", picture, (), picture_table, minimum=520, at_once=True),
        Section("timeline.longest", longest, USES, rows_of(data_timeline.longest), minimum=200),
        Section("timeline.busy", busy, USES, rows_of(data_timeline.shares), minimum=200),
    ),
    wire,
)
