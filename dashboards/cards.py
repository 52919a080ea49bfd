"""The parts that pages are made of: cards, numbers with a definition, charts with words beside them, states.

Everything that comes from a store is a text child or a property of a React component, so it is shown as text whatever
it holds; `fmt.clean` also takes out what would reverse the direction of the text around it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from dash import dcc, html

from . import format as fmt
from .figures import Chart
from .metrics import DEFINITIONS
from .section import Section

GRAPH = {
    "displayModeBar": False, "showSendToCloud": False, "displaylogo": False, "responsive": True, "doubleClick": "reset",
    "plotlyServerURL": "", "scrollZoom": False, "showTips": False,
}  # fmt: skip
"""plotly's cloud button is off; PNG has a button of its own that the keyboard reaches."""


def slot(section: Section, drawn: Any = None, key: str | None = None) -> html.Div:
    """Return the place where a section will be, or is as `drawn`."""
    wait = html.Div(className="pk-wait", **{"aria-hidden": "true"}) if drawn is None else drawn
    width = f" pk-w{section.width}" if section.width < 12 else ""
    inner = html.Div(
        wait, id={"section": section.name, "part": "body"}, className="slot", style={"minHeight": section.minimum}
    )
    return html.Div(
        [inner, dcc.Store(id={"section": section.name, "part": "drawn"}, data=key)], className=f"pk-slot{width}"
    )


def name_of(text: str | None, width: int = 80) -> str:
    """Return a name from a store, printable and not endless."""
    return fmt.clean(text, width) if text else "(no name)"


def term(label: str, key: str | None) -> Any:
    """Return a label whose definition shows on hover and on focus."""
    if key is None or key not in DEFINITIONS:
        return html.Span(label)
    return html.Span(
        label,
        className="pk-term",
        tabIndex=0,
        **{"data-tip": DEFINITIONS[key], "aria-label": f"{label}: {DEFINITIONS[key]}", "role": "note"},
    )


def stat(label: str, value: str, unit: str = "", *, key: str | None = None, delta: Any = None) -> html.Div:
    """Return a number with its name, unit and change."""
    parts = [value, html.Span(unit, className="pk-unit")] if unit and value != fmt.UNKNOWN else [value]
    if delta is not None:
        parts.append(delta)
    return html.Div([html.Div(term(label, key), className="pk-label"), html.Div(parts, className="pk-value")],
                    className="pk-stat")  # fmt: skip


def delta(now: float | None, before: float | None, *, scale: float = 100.0, unit: str = "") -> Any:
    """Return the change against the window before, or nothing; more is better."""
    if now is None or before is None:
        return None
    change = scale * (now - before)
    if abs(change) < 0.05:
        return None
    kind = "good" if change > 0 else "bad"
    word = "up" if change > 0 else "down"
    arrow = "▲" if change > 0 else "▼"
    return html.Span(
        [html.Span(f"{arrow} ", **{"aria-hidden": "true"}), f"{abs(change):.1f}{unit}"],
        className=f"pk-delta {kind}",
        title=f"{word} {abs(change):.1f} points against the period before",
    )


def card(
    title: str, children: Any, *, key: str | None = None, sub: Any = "", csv: str | None = None, png: str | None = None,
    actions: Sequence[Any] = (), csv_extra: dict[str, str] | None = None,
) -> html.Section:  # fmt: skip
    """Return a card with a title, what it means, and its exports."""
    buttons: list[Any] = [*actions]
    if csv:
        extra = {"aria-label": f"{title} as CSV", **(csv_extra or {})}
        buttons.append(html.A("CSV", href=csv, className="pk-action", download="", **extra))
    if png:
        buttons.append(
            html.Button(
                "PNG",
                className="pk-action",
                type="button",
                **{"data-do": "png", "data-name": png, "aria-label": f"{title} as PNG"},
            )
        )
    head = html.Header([html.H2(term(title, key)), html.Span(sub, className="pk-sub"),
                        html.Div(buttons, className="pk-actions")])  # fmt: skip
    body = children if isinstance(children, list) else [children]
    return html.Section([head, *body], className="pk-card", **{"aria-label": title})


def chart(found: Chart, name: str) -> html.Figure:
    """Return a graph with its text alternative."""
    graph = dcc.Graph(id={"graph": name}, figure=found.figure, config=GRAPH, style={"height": f"{found.height}px"})
    return html.Figure(
        [html.Div(graph, role="img", **{"aria-label": found.alt}), html.Figcaption(found.alt, className="pk-hidden")]
    )


def legend(items: Sequence[tuple[str, str]]) -> html.Div:
    """Return a legend in words: (label, colour)."""
    return html.Div([html.Span([html.I(className="pk-dot", style={"background": colour}), label])
                     for label, colour in items], className="pk-legend")  # fmt: skip


def spark(values: Sequence[float | None], alt: str) -> html.Div:
    """Return a line without axes, drawn as a mask so that it takes the theme's colour."""
    known = [(i, v) for i, v in enumerate(values) if v is not None and not math.isnan(v)]
    if len(known) < 2:
        return html.Div(className="pk-line", style={"background": "none"}, role="img", **{"aria-label": alt})
    low, high = min(v for _, v in known), max(v for _, v in known)
    low, high = (low, high) if high - low > 0.02 else (low - 0.01, high + 0.01)
    width = max(len(values) - 1, 1)
    dots = " ".join(f"{100 * i / width:.1f},{27 - 24 * (v - low) / (high - low):.1f}" for i, v in known)
    svg = (
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 100 30' preserveAspectRatio='none'><polyline "
        f"points='{dots}' fill='none' stroke='#000' stroke-width='1.6' vector-effect='non-scaling-stroke'/></svg>"
    )
    image = f'url("data:image/svg+xml,{quote(svg)}")'
    return html.Div(className="pk-line", style={"maskImage": image, "WebkitMaskImage": image}, role="img",
                    **{"aria-label": alt})  # fmt: skip


def badge(text: str, kind: str = "", title: str | None = None) -> html.Span:
    """Return a small label; the words say what the colour says."""
    extra = {"data-tip": title, "tabIndex": 0} if title else {}
    return html.Span(text, className=f"pk-badge {kind}", **extra)


def table(
    columns: Sequence[tuple[str, str | None, bool]], rows: Sequence[Sequence[Any]], caption: str, scroll: bool = False
) -> Any:
    """Return a small table: columns are (label, definition, is a number)."""
    head = html.Thead(html.Tr([html.Th(term(label, key), scope="col", className="num" if num else None)
                               for label, key, num in columns]))  # fmt: skip
    body = html.Tbody(
        [
            html.Tr([html.Td(cell, className="num" if columns[i][2] else None) for i, cell in enumerate(row)])
            for row in rows
        ]
    )
    found = html.Table([html.Caption(caption, className="pk-hidden"), head, body], className="pk-table")
    return (
        html.Div(found, className="pk-scroll", tabIndex=0, role="region", **{"aria-label": caption})
        if scroll
        else html.Div(found, className="pk-wide")
    )


def facts(pairs: Sequence[tuple[Any, Any]]) -> html.Dl:
    """Return names and values in two columns."""
    return html.Dl([one for name, value in pairs for one in (html.Dt(name), html.Dd(value))], className="pk-facts")


def empty(title: str, text: str, command: str | None = None) -> html.Div:
    """Return what stands where there is nothing, and says what to do."""
    parts: list[Any] = [html.H2(title), html.P(text)]
    if command:
        parts.append(html.Code(command))
    return html.Div(parts, className="pk-empty")


def failure(what: str, reason: str) -> html.Div:
    """Return what stands in place of a section that failed; the others are not touched."""
    return html.Div([html.Strong(what), html.Div(fmt.clean(reason, 400))], className="pk-error", role="alert")
