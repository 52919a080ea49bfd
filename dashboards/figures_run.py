"""Figures of the run page: ladders, and curves with events. Plain dicts, no Dash."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np

from perfkit.report.verdict import Ladder

from . import format as fmt
from .data_run import Series
from .figures import Chart, Rows, escape, packed, short
from .theme import Theme, layout

CURVES = (("mfu", "MFU", "%"), ("tokens_per_s", "tokens/s", ""), ("step_time", "step time", "ms"), ("loss", "loss", ""))
SYMBOLS = {
    "restart": ("triangle-up", "failures"), "fault": ("x", "failures"), "xid": ("diamond", "failures"),
    "hang": ("square", "failures"), "checkpoint": ("circle-open", "checkpoints"), "restore": ("circle", "checkpoints"),
    "eval": ("line-ns-open", "stalls"), "slow": ("triangle-down-open", "stalls"),
    "note": ("star", "productive"),
}  # fmt: skip
"""Shape and colour of an event: shapes differ, so that colour is not needed."""


def waterfall(found: Ladder, theme: Theme) -> Chart:
    """Where 100 points went, from the top down: one bar per term, each starting where the last one ended."""
    rungs = [rung for rung in found.rungs if rung.parent is None and rung.points is not None]
    tiny = [rung for rung in rungs if abs(rung.points or 0) < 0.05]
    rungs = [rung for rung in rungs if rung not in tiny]
    colours = [{**theme.groups, **theme.kinds}.get(rung.kind, theme.accent) for rung in rungs]
    inside = {rung.term: [r for r in found.rungs if r.parent == rung.term and r.measured] for rung in rungs}
    hover = []
    for rung in rungs:
        parts = "".join(f"<br>· {escape(r.label)} {fmt.number(r.points, 2)}" for r in inside[rung.term])
        hours = "" if rung.gpu_hours is None else f", {fmt.gpu_hours(rung.gpu_hours)} GPU-h"
        hover.append(f"<b>{escape(rung.label)}</b> {fmt.number(rung.points, 2)} {found.unit}{hours}{parts}")
    height = 20 + 27 * max(3, len(rungs))
    figure = {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "y": list(range(len(rungs))),
                "x": [rung.points for rung in rungs],
                "base": [rung.offset for rung in rungs],
                "marker": {"color": colours, "line": {"color": theme.surface, "width": 1}},
                "text": [fmt.number(rung.points, 1) for rung in rungs],
                "textposition": "outside",
                "cliponaxis": False,
                "textfont": {"color": theme.text, "size": 11},
                "customdata": hover,
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        ],
        "layout": layout(
            theme,
            height=height,
            bargap=0.28,
            margin={"l": 8, "r": 34, "t": 4, "b": 4},
            xaxis={
                "range": [min(0, min((r.offset + min(r.points, 0) for r in rungs), default=0)), 100],
                "fixedrange": True,
                "ticksuffix": "",
                "nticks": 6,
            },
            yaxis={
                "tickvals": list(range(len(rungs))),
                "ticktext": [short(r.label, 34) for r in rungs],
                "autorange": "reversed",
                "fixedrange": True,
                "showgrid": False,
                "tickfont": {"color": theme.text, "size": 12},
            },
        ),
    }
    words = "; ".join(f"{fmt.clean(r.label, 40)} {fmt.number(r.points, 1)}" for r in rungs)
    if tiny:
        words += "; below 0.05: " + ", ".join(fmt.clean(r.label, 40) for r in tiny)
    return Chart(figure, f"{found.title}, in {found.unit}: {words}.", height)


def curves(found: Series, events: Rows, theme: Theme) -> Chart:
    """MFU, tokens/s, step time and loss above each other, with a strip of events on top."""
    shown = [
        (name, label, unit) for name, label, unit in CURVES if np.isfinite(found.curves.get(name, np.array([]))).any()
    ]
    height = 70 + 105 * max(1, len(shown))
    gap, strip = 0.035, 0.07
    each = (1 - strip - gap * len(shown)) / max(1, len(shown))
    x = [stamp(v) for v in found.x] if found.over == "time" else packed(found.x, "f8")
    data: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    for i, (name, label, unit) in enumerate(shown):
        top = 1 - strip - gap - i * (each + gap)
        axes[f"yaxis{i + 2}"] = {
            "domain": [max(0.0, top - each), top],
            "title": f"{label}{f' ({unit})' if unit else ''}",
            "nticks": 4,
            "fixedrange": True,
            "rangemode": "normal" if name == "loss" else "tozero",
            "anchor": "x",
        }
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": label,
                "x": x,
                "y": packed(found.curves[name], "f4"),
                "yaxis": f"y{i + 2}",
                "line": {"color": theme.accent, "width": 1.4},
                "connectgaps": False,
                "hovertemplate": f"{label} %{{y:,.4g}} {unit}<extra></extra>",
            }
        )
    data += _event_marks(found, events, theme)
    if found.slow is not None and len(found.slow) and any(name == "step_time" for name, _, _ in shown):
        at = [name for name, _, _ in shown].index("step_time")
        symbol, colour = SYMBOLS["slow"]
        data.append({"type": "scatter", "mode": "markers", "name": "slow step", "x": [float(v) for v in found.slow],
                     "y": [round(float(v), 3) for v in found.slow_ms], "yaxis": f"y{at + 2}",
                     "marker": {"symbol": symbol, "size": 6, "color": theme.groups[colour]},
                     "hovertemplate": "slow step %{x}: %{y:,.1f} ms<extra></extra>"})  # fmt: skip
    figure = {
        "data": data,
        "layout": layout(
            theme,
            height=height,
            hovermode="x unified",
            dragmode="zoom",
            margin={"l": 8, "r": 12, "t": 4, "b": 8},
            meta={"zoom": found.over == "step"},
            xaxis={
                "title": "step" if found.over == "step" else "",
                "showgrid": False,
                "type": "date" if found.over == "time" else "linear",
                "anchor": f"y{len(shown) + 1}" if shown else "y",
                "showspikes": True,
                "spikethickness": 1,
                "spikecolor": theme.muted,
                "spikedash": "dot",
                "spikemode": "across",
            },
            yaxis={"domain": [1 - strip, 1], "visible": False, "range": [-1, 1], "fixedrange": True},
            **axes,
        ),
    }
    words = [f"{label} {span_of(found.curves[name])} {unit}".strip() for name, label, unit in shown]
    kinds = {kind: sum(e["kind"] == kind for e in events) for kind in dict.fromkeys(e["kind"] for e in events)}
    happened = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
    slow = f"; {len(found.slow)} slow steps marked" if found.slow is not None and len(found.slow) else ""
    return Chart(
        figure,
        f"Over {found.total:,} steps: {'; '.join(words) or 'nothing measured'}. Events: {happened or 'none'}{slow}.",
        height,
    )


def _event_marks(found: Series, events: Rows, theme: Theme) -> list[dict[str, Any]]:
    marks = []
    for kind in dict.fromkeys(event["kind"] for event in events):
        some = [e for e in events if e["kind"] == kind and (e["step"] is not None if found.over == "step" else True)]
        if not some:
            continue
        symbol, colour = SYMBOLS.get(kind, ("circle", "unexplained"))
        marks.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": kind,
                "yaxis": "y",
                "y": [0] * len(some),
                "x": [e["step"] if found.over == "step" else stamp(e["time_ns"]) for e in some],
                "marker": {
                    "symbol": symbol,
                    "size": 9,
                    "color": theme.groups[colour],
                    "line": {"width": 1.5, "color": theme.groups[colour]},
                },
                "customdata": [escape(fmt.clean(e["text"], 120)) for e in some],
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
    return marks


def stamp(time_ns: float) -> str:
    """Return a moment as plotly reads it."""
    return f"{datetime.datetime.fromtimestamp(float(time_ns) / 1e9, datetime.timezone.utc):%Y-%m-%d %H:%M:%S}"


def span_of(values: Any) -> str:
    """Say the median and the ends of values."""
    known = values[np.isfinite(values)]
    return f"median {np.median(known):,.4g}, from {known.min():,.4g} to {known.max():,.4g}" if len(known) else "unknown"
