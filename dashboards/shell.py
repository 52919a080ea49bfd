"""The frame around the pages: header, trail, how new the data is, controls that all pages share."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import fields
from html import escape
from pathlib import Path
from typing import Any

import dash_mantine_components as dmc
import flask
from dash import Dash, dcc, html

from . import cards
from . import format as fmt
from .data import Source
from .section import Context
from .view import OF_A_RUN, RANGES, View

PAGE_LABELS = {"ranks": "Ranks", "timeline": "Timeline", "collectives": "Collectives", "kernels": "Kernels",
               "compare": "Compare", "node-health": "Health"}  # fmt: skip
RANGE_LABELS = {"24h": "24 hours", "7d": "7 days", "30d": "30 days", "90d": "90 days", "1y": "1 year", "all": "All"}

GRID_PAGES = ("fleet",)
"""Pages that are drawn with the grid; assets/app.js loads it elsewhere when another page is opened."""
FIRST = """<div id="pk-first" class="pk-first">
      <div class="pk-header"><span class="pk-brand"><span class="pk-mark"></span>perfkit</span></div>
      <div class="pk-main">
        <div class="pk-bar"><div class="pk-title"><h1>Timeline</h1><div class="pk-sub">…</div></div></div>
        <section class="pk-card" aria-label="Timeline"><div class="pk-timeline"></div></section>
      </div>
    </div>"""
"""Where assets/timeline.js draws while the page is not there yet."""
LATER = "text/later"
"""Scripts that assets/timeline.js starts when the picture stands: the server has the cores until then."""
_GRID_SCRIPT = re.compile(r'<script src="([^"]*/dash_ag_grid/[^"]*)"></script>')


def index_string(prefix: str) -> str:
    """Return the HTML around the app; it names nothing outside this machine."""
    defaults = {field.name: field.default for field in fields(View) if isinstance(field.default, str)}
    config = escape(json.dumps({"prefix": prefix, "defaults": {**defaults, "live": "1"}}))
    icon = (
        "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 20 20'%3E"
        "%3Crect width='20' height='20' "
        "rx='5' fill='%231f5fbf'/%3E%3Crect x='4' y='8' width='12' height='8' fill='%23fff'/%3E%3C/svg%3E"
    )
    early = "\n    ".join(
        f'<script src="{escape(prefix)}assets/{name}?m={_changed(name)}"></script>'
        for name in ("theme.js", "timeline.js")
    )
    return f"""<!DOCTYPE html>
<html lang="en">
  <head>
    {{%metas%}}
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <meta name="referrer" content="same-origin">
    <meta name="perfkit" content="{config}">
    <title>{{%title%}}</title>
    <link rel="icon" href="{icon}">
    {{%css%}}
    {early}
  </head>
  <body>
    {{%app_entry%}}
    <footer>{{%config%}}{{%scripts%}}{{%renderer%}}</footer>
  </body>
</html>"""


class Frame(Dash):
    """The app, whose pages load the grid's megabyte only where there is a grid, and the timeline's picture first."""

    def interpolate_index(self, **parts: str) -> str:  # type: ignore[override]
        """Return the HTML of a page."""
        page = View.parse(flask.request.path, "", self.config.requests_pathname_prefix).page
        if page not in GRID_PAGES:
            parts["scripts"] = _GRID_SCRIPT.sub(
                r'<link rel="prefetch" as="script" data-late href="\1">', parts["scripts"]
            )
        if page == "timeline":
            parts["app_entry"] = FIRST + parts["app_entry"]
            for name in ("scripts", "renderer"):
                parts[name] = parts[name].replace("<script", f'<script type="{LATER}"')
        return str(super().interpolate_index(**parts))


def _changed(name: str) -> int:
    """Return when an asset was changed, so that a browser does not take an old one."""
    return int((Path(__file__).parent / "assets" / name).stat().st_mtime)


def frame(source: Source, prefix: str, refresh_s: int) -> Any:
    """Return the layout that never changes."""
    stores = [dcc.Store(id=name) for name in ("view", "shown", "version", "refresh", "tick", "nothing")]
    header = html.Header(
        [
            html.A("Skip to content", href="#page", className="pk-skip"),
            dcc.Link(
                [html.Span(className="pk-mark", **{"aria-hidden": "true"}), "perfkit"],
                href=prefix,
                className="pk-brand",
            ),
            html.Nav(id="crumbs", className="pk-crumbs", **{"aria-label": "Where you are"}),
            html.Div(id="status", className="pk-status", role="status"),
            html.Button("Notes", className="pk-button", type="button", **{"data-do": "notes", "aria-haspopup": "true"}),
            html.Div(id="command"),
            html.Button("Copy link", className="pk-button", type="button", **{"data-do": "link"}),
            html.Button(
                "Theme",
                className="pk-button",
                type="button",
                **{"data-do": "theme", "aria-label": "Light or dark theme"},
            ),
        ],
        className="pk-header",
    )
    return dmc.MantineProvider(
        [
            dcc.Location(id="url", refresh=False),
            dcc.Interval(id="clock", interval=1000 * refresh_s),
            *stores,
            header,
            html.Main([html.Div(id="warnings"), html.Div(id="page")], className="pk-main", tabIndex=-1),
        ],
        defaultColorScheme="light",
        theme={"fontFamily": "var(--pk-font)", "primaryColor": "blue", "defaultRadius": "sm"},
    )


def crumbs(found: Context) -> list[Any]:
    """Return the trail from the fleet to here."""
    view = found.view
    trail: list[tuple[str, str]] = [("Fleet", found.href("fleet"))]
    if view.page not in ("fleet", "missing") and view.cluster is not None:
        trail.append((cards.name_of(view.cluster, 60), found.href("cluster")))
    if view.page in OF_A_RUN and view.run is not None:
        trail.append((cards.name_of(view.run, 60), found.href("run")))
    if view.page in PAGE_LABELS:
        trail.append((PAGE_LABELS[view.page], found.href(view.page)))
    parts: list[Any] = []
    for i, (label, href) in enumerate(trail):
        if i:
            parts.append(html.Span("/", className="pk-sep", **{"aria-hidden": "true"}))
        last = i == len(trail) - 1
        parts.append(html.Span(label, **{"aria-current": "page"}) if last else dcc.Link(label, href=href))
    return parts


def status(found: Context) -> list[Any]:
    """Return how new the data is, and whether it is real."""
    as_of = found.source.as_of()
    parts: list[Any] = []
    if as_of.synthetic:
        parts.append(cards.badge("synthetic data", "info", "Some of what this store holds was made by the simulator."))
    if as_of.time_ns is None:
        return [*parts, cards.badge("no data", "warn")]
    age = as_of.age_s or 0.0
    newest = fmt.utc(as_of.time_ns)
    stamp = html.Span(["as of ", html.Time(f"{newest} UTC", dateTime=newest.replace(" ", "T"))], className="pk-long")
    if as_of.stale:
        tip = f"The newest data is of {fmt.utc(as_of.time_ns)} UTC. Time ranges end there."
        return [*parts, stamp, cards.badge(f"stale: {fmt.ago(age)}", "warn", tip)]
    return [*parts, stamp, cards.badge("live" if found.view.live else "paused", "good" if found.view.live else "")]


def command(text: str | None) -> Any:
    """Return the button that copies the command which gives the page's numbers."""
    if text is None:
        return []
    label = f"Copy as command: {fmt.clean(text, 400)}"
    extra = {"data-do": "command", "data-command": text, "data-tip": text, "aria-label": label}
    return html.Button("Copy as command", className="pk-button", type="button", **extra)


def warnings(found: Context) -> Any:
    """Return what could not be read, or nothing."""
    problems = found.source.problems(found.view)
    if not problems:
        return []
    shown = [html.Li(f"{fmt.clean(p.path, 160)}: {fmt.clean(p.reason, 300)}") for p in problems[:8]]
    more = [html.Li(f"and {len(problems) - 8:,} more")] if len(problems) > 8 else []
    some = "1 file" if len(problems) == 1 else f"{len(problems):,} files"
    return html.Details(
        [
            html.Summary(f"{some} of the store cannot be read; the rest is shown."),
            html.Ul([*shown, *more], className="pk-list"),
        ],
        className="pk-warning",
        role="alert",
    )


def missing(found: Context) -> Any:
    """Return the page for an address that is none."""
    return html.Div(
        [cards.empty("There is no such page", "The address is wrong or of a newer version."),
         html.Div(dcc.Link("To the fleet", href=found.prefix), style={"textAlign": "center"})],
        className="pk-card",
    )  # fmt: skip


def bar(title: str, sub: Any, controls: Sequence[Any]) -> html.Div:
    """Return a page's title and controls."""
    return html.Div(
        [html.Div([html.H1(title), html.Div(sub, className="pk-sub")], className="pk-title"), *controls],
        className="pk-bar",
    )


def run_pages(found: Context) -> list[Any]:
    """Return links between the pages of a run."""
    parts: list[Any] = []
    for page, label in {"run": "Run", **PAGE_LABELS}.items():
        if parts:
            parts.append(" · ")
        here = page == found.view.page
        parts.append(html.Strong(label) if here else dcc.Link(label, href=found.href(page)))
    return parts


def range_control(view: View) -> Any:
    """Return the choice of the time range."""
    data = [{"value": name, "label": RANGE_LABELS[name]} for name in RANGES]
    return dmc.Select(
        id={"control": "range"}, label="Time range", data=data, value=view.range, allowDeselect=False, w=120, size="xs",
        checkIconPosition="right",
    )  # fmt: skip


def day_controls(view: View) -> list[Any]:
    """Return the choice of first and last day, which go before the range."""
    chosen = [view.since, view.until] if view.since and view.until else []
    return [
        dmc.DatePickerInput(
            id={"control": "days"},
            label="or days (UTC)",
            type="range",
            value=chosen,
            placeholder="from – to",
            clearable=True,
            w=190,
            size="xs",
            valueFormat="D MMM YYYY",
            allowSingleDateInRange=True,
        )
    ]


def live_control(view: View) -> Any:
    """Return the switch of live refresh."""
    return dmc.Switch(id={"control": "live", "kind": "switch"}, label="Live", checked=view.live, size="xs", mb=6)


def choice(name: str, label: str, options: Sequence[tuple[str, str]], value: str) -> Any:
    """Return one of a few values, all visible."""
    control = dmc.SegmentedControl(
        id={"control": name}, data=[{"value": v, "label": text} for v, text in options], value=value, size="xs"
    )
    return html.Div(
        [html.Div(label, className="mantine-InputWrapper-label"), control], role="group", **{"aria-label": label}
    )


def step_controls(view: View) -> list[Any]:
    """Return the first and last step shown."""
    return [
        dmc.NumberInput(
            id={"control": name},
            label=label,
            value="" if getattr(view, name) is None else getattr(view, name),
            min=0,
            w=100,
            size="xs",
            allowDecimal=False,
            placeholder="all",
            debounce=400,
            hideControls=True,
        )
        for name, label in (("first", "From step"), ("last", "To step"))
    ]
