"""Figures of the ranks page: rank × step, and one rank's phases and counters. Plain dicts, no Dash."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import format as fmt
from .data_ranks import Grid
from .figures import Chart, Rows, escape, ink, packed, short, whole_numbers
from .figures_run import span_of, stamp
from .metrics import QUANTITIES
from .theme import CIVIDIS, Theme, layout


def rank_map(found: Grid, theme: Theme, go: str | None = None) -> Chart:
    """Rank × step, rows arranged by the mesh or by rank."""
    label, unit = QUANTITIES[found.quantity][0], found.unit
    rows, columns = found.z.shape
    height = int(min(560, max(220, 80 + 12 * rows)))
    stride = max(1, -(-rows // 32))
    figure: dict[str, Any] = {
        "data": [
            {
                "type": "heatmap",
                "z": packed(found.z, "f4"),
                "x": packed(found.steps, "f8"),
                "y": packed(np.arange(rows), "i4"),
                "customdata": None,
                "text": None,
                "hoverongaps": False,
                "colorscale": CIVIDIS,
                "zmin": found.low,
                "zmax": found.high,
                "ygap": 1 if rows <= 64 else 0,
                "xgap": 0,
                "hovertemplate": "step %{x}, row %{y}: %{z:,.2f} " + unit + "<extra></extra>",
                "colorbar": {
                    "thickness": 10,
                    "outlinewidth": 0,
                    "ticksuffix": f" {unit}",
                    "nticks": 6,
                    "tickfont": {"color": theme.muted, "size": 11},
                },
            }
        ],
        "layout": layout(
            theme,
            height=height,
            meta={"go": go, "rows": found.ranks} if go else {},
            xaxis={
                "title": "step",
                "showgrid": False,
                "fixedrange": True,
                "zeroline": False,
                **whole_numbers(np.min(found.steps), np.max(found.steps)),
            },
            yaxis={
                "tickvals": list(range(0, rows, stride)),
                "ticktext": [short(t, 30) for t in found.labels[::stride]],
                "autorange": "reversed",
                "fixedrange": True,
                "showgrid": False,
                "zeroline": False,
            },
        ),
    }
    if rows <= 64 and rows * columns <= 12_000:
        figure["data"][0]["customdata"] = [[t] * columns for t in map(short, found.labels)]
        figure["data"][0]["hovertemplate"] = "%{customdata}, step %{x}: %{z:,.2f} " + unit + "<extra></extra>"
    figure["data"][0] = {k: v for k, v in figure["data"][0].items() if v is not None}
    known = np.isfinite(found.z)
    worst = ""
    if known.any():
        means = np.nanmean(np.where(known.any(axis=1)[:, None], found.z, 0.0), axis=1)
        at = int(np.argmax(means))
        highest = f"{found.labels[at]} with {means[at]:,.2f} {unit}"
        worst = f" Highest on average: {highest}; median {np.nanmedian(found.z):,.2f} {unit}."
    folded = f" Each row is the worst of {found.folded} ranks." if found.folded > 1 else ""
    return Chart(
        figure, f"{label} of {found.num_ranks:,} ranks over {columns:,} columns of steps.{folded}{worst}", height
    )


def phases(rows: Rows, theme: Theme) -> Chart:
    """Draw a rank's time by phase against the median of all ranks: {name, kind, ms, median_ms}."""
    height = 40 + 30 * max(2, len(rows))
    figure = {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "name": "this rank",
                "y": list(range(len(rows))),
                "x": [r["ms"] for r in rows],
                "marker": {"color": [theme.kinds.get(r["kind"], theme.accent) for r in rows]},
                "text": [fmt.duration(1e6 * r["ms"]) for r in rows],
                "textposition": "auto",
                "insidetextfont": {"size": 11, "color": [ink(theme.kinds.get(r["kind"], theme.accent)) for r in rows]},
                "outsidetextfont": {"size": 11, "color": theme.text},
                "customdata": [[escape(fmt.clean(r["name"], 60)), fmt.number(r["median_ms"], 2)] for r in rows],
                "hovertemplate": "%{customdata[0]}: %{x:,.2f} ms a step; median of all ranks %{customdata[1]} ms"
                "<extra></extra>",
            },
            {
                "type": "scatter",
                "mode": "markers",
                "name": "median of all ranks",
                "y": list(range(len(rows))),
                "x": [r["median_ms"] for r in rows],
                "hoverinfo": "skip",
                "marker": {
                    "symbol": "line-ns-open",
                    "size": 16,
                    "line": {"width": 2, "color": theme.text},
                    "color": theme.text,
                },
            },
        ],
        "layout": layout(
            theme,
            height=height,
            bargap=0.35,
            xaxis={"title": "ms a step", "fixedrange": True, "rangemode": "tozero", "nticks": 5},
            yaxis={
                "tickvals": list(range(len(rows))),
                "ticktext": [short(r["name"], 26) for r in rows],
                "autorange": "reversed",
                "fixedrange": True,
                "showgrid": False,
                "tickfont": {"color": theme.text, "size": 12},
            },
        ),
    }
    words = "; ".join(
        f"{fmt.clean(r['name'], 40)} {fmt.number(r['ms'], 2)} ms (median {fmt.number(r['median_ms'], 2)})" for r in rows
    )
    return Chart(figure, f"Phases of the rank, per step: {words or 'nothing measured'}.", height)


def counters(lines: dict[str, tuple[Any, Any]], theme: Theme) -> Chart:
    """Counters of a rank over time, one panel each: name -> (time_ns, value)."""
    names = list(lines)
    height = 40 + 92 * max(1, len(names))
    gap = 0.09
    each = (1 - gap * (len(names) - 1)) / max(1, len(names))
    data, axes, notes = [], {}, []
    for i, name in enumerate(names):
        time_ns, value = lines[name]
        top = 1 - i * (each + gap)
        axis = "yaxis" if i == 0 else f"yaxis{i + 1}"
        axes[axis] = {"domain": [max(0.0, top - each), top], "nticks": 3, "fixedrange": True}
        notes.append(
            {
                "text": short(name.replace("_", " "), 40),
                "xref": "paper",
                "yref": "paper",
                "x": 0,
                "y": top,
                "xanchor": "left",
                "yanchor": "bottom",
                "showarrow": False,
                "font": {"size": 11, "color": theme.muted},
            }
        )
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": short(name),
                "x": [stamp(t) for t in time_ns],
                "y": packed(value, "f4"),
                "yaxis": f"y{i + 1}" if i else "y",
                "line": {"color": theme.accent, "width": 1.4},
                "hovertemplate": "%{y:,.4g}<extra></extra>",
            }
        )
    figure = {"data": data, "layout": layout(
            theme,
            height=height,
            hovermode="x unified",
            annotations=notes,
            margin={"l": 8, "r": 12, "t": 20, "b": 8},
            xaxis={
                "type": "date",
                "showgrid": False,
                "fixedrange": True, "anchor": f"y{len(names)}" if len(names) > 1 else "y"}, **axes)}  # fmt: skip
    words = "; ".join(
        f"{fmt.clean(name, 40)} {span_of(np.asarray(value, float))}" for name, (_, value) in lines.items()
    )
    return Chart(figure, f"Counters of the rank: {words or 'none'}.", height)
