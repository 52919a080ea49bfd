"""Figures of the health page: counters of a node's GPUs, and events beside step time. Plain dicts, no Dash."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import format as fmt
from .data_health import Counters, Strip
from .figures import Chart, escape, packed, short
from .figures_collectives import palette
from .figures_run import span_of, stamp
from .theme import Theme, layout

KINDS = {
    "xid": ("diamond", "failures", "XID"), "lost": ("x", "down", "GPU lost"), "ecc": ("square", "checkpoints", "ECC"),
    "thermal": ("triangle-up", "stalls", "thermal throttle"), "throttle": ("triangle-up", "stalls", "throttle"),
    "nvlink": ("star", "startup", "NVLink"),
}  # fmt: skip
"""Shape, colour and name of an event: shapes differ, so that colour is not needed."""
DASHES = ("solid", "dash", "dot", "dashdot")


def style_of(kind: str, theme: Theme) -> tuple[str, str, str]:
    """Return shape, colour and name of a kind of event."""
    symbol, group, label = KINDS.get(kind, ("circle", "unexplained", kind))
    return symbol, theme.groups[group], label


def gpu_styles(devices: list[int], theme: Theme) -> dict[int, tuple[str, str]]:
    """Return colour and dash of each GPU of a node."""
    colours = palette(theme)
    return {d: (colours[i % len(colours)], DASHES[i // len(colours) % len(DASHES)]) for i, d in enumerate(devices)}


def counters(found: Counters, theme: Theme) -> Chart:
    """Draw one panel per counter, one line per GPU."""
    number = len(found.panels)
    height = 40 + 118 * max(1, number)
    gap = 0.07 if number > 1 else 0
    each = (1 - gap * (number - 1)) / max(1, number)
    devices = sorted({device for _, _, lines in found.panels for device in lines})
    style = gpu_styles(devices, theme)
    data, axes, notes, said = [], {}, [], []
    for i, (label, unit, lines) in enumerate(found.panels):
        top = 1 - i * (each + gap)
        axes["yaxis" if i == 0 else f"yaxis{i + 1}"] = {
            "domain": [max(0.0, top - each), top], "nticks": 4, "fixedrange": True, "ticksuffix": f" {unit}",
            **_range(unit, lines),
        }  # fmt: skip
        notes.append({"text": short(label, 40), "xref": "paper", "yref": "paper", "x": 0, "y": top, "xanchor": "left",
                      "yanchor": "bottom", "showarrow": False, "font": {"size": 11, "color": theme.muted}})  # fmt: skip
        for device, (time_ns, value) in lines.items():
            colour, dash = style[device]
            data.append({
                "type": "scatter", "mode": "lines+markers" if len(value) < 3 else "lines", "name": f"GPU {device}",
                "x": [stamp(t) for t in time_ns], "y": packed(value, "f4"), "yaxis": "y" if i == 0 else f"y{i + 1}",
                "line": {"color": colour, "width": 1.4, "dash": dash}, "connectgaps": False,
                "hovertemplate": f"GPU {device}: %{{y:,.4g}} {unit}<extra></extra>",
            })  # fmt: skip
        peaks = {device: float(np.nanmax(value)) for device, (_, value) in lines.items() if np.isfinite(value).any()}
        if peaks:
            worst = max(peaks, key=lambda device: peaks[device])
            said.append(f"{label} highest on GPU {worst} with {peaks[worst]:,.4g} {unit}")
    figure = {"data": data, "layout": layout(
        theme, height=height, hovermode="x unified", annotations=notes, margin={"l": 8, "r": 12, "t": 20, "b": 8},
        xaxis={"type": "date", "showgrid": False, "fixedrange": True, "anchor": f"y{number}" if number > 1 else "y"},
        **axes,
    )}  # fmt: skip
    return Chart(figure, f"Counters of {fmt.clean(found.node, 40)} by {found.by}: {'; '.join(said) or 'none'}.", height)


def _range(unit: str, lines: dict[int, tuple[Any, Any]]) -> dict[str, Any]:
    """Shares begin at 0, and where all are 0 the axis still has a length."""
    if unit != "%":
        return {}
    high = max((float(np.nanmax(value, initial=0.0)) for _, value in lines.values()), default=0.0)
    return {"rangemode": "tozero"} if high > 0 else {"range": [0, 1]}


def events(found: Strip, theme: Theme) -> Chart:
    """Draw step time above, and below a row per node with its events."""
    shown = found.nodes[:24]
    rows = 18 * max(1, len(shown))
    steps = len(found.value) > 0
    height = 70 + rows + (130 if steps else 0)
    split = (rows + 20) / (height - 40) if steps else 1.0
    data: list[dict[str, Any]] = []
    at = {node: i for i, node in enumerate(shown)}
    first = int(found.time_ns[0]) if steps else 0  # what lasts from before is drawn from where the curve begins
    for kind in dict.fromkeys(row["kind"] for row in found.rows):
        mine = [row for row in found.rows if row["kind"] == kind and row["node"] in at]
        if not mine:
            continue
        symbol, colour, label = style_of(kind, theme)
        lasting = [row for row in mine if row["end_ns"] and row["end_ns"] > row["time_ns"]]
        for row in lasting[:300]:
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "x": [stamp(max(row["time_ns"], first)), stamp(row["end_ns"])],
                    "y": [at[row["node"]]] * 2,
                    "line": {"color": colour, "width": 4},
                    "hoverinfo": "skip",
                    "opacity": 0.6,
                }
            )
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": label,
                "x": [stamp(max(row["time_ns"], first)) for row in mine],
                "y": [at[row["node"]] for row in mine],
                "customdata": [_event_words(row) for row in mine],
                "marker": {"symbol": symbol, "size": 9, "color": colour, "line": {"width": 1, "color": theme.surface}},
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
    if steps:
        data.append({
            "type": "scatter", "mode": "lines", "name": found.label, "yaxis": "y2", "y": packed(found.value, "f4"),
            "x": [stamp(t) for t in found.time_ns], "line": {"color": theme.accent, "width": 1.4},
            "hovertemplate": f"{found.label} %{{y:,.4g}} {found.unit}<extra></extra>",
        })  # fmt: skip
    second: dict[str, Any] = {}
    notes = []
    if steps:
        second["yaxis2"] = {
            "domain": [split + 0.04, 1], "anchor": "x", "fixedrange": True, "nticks": 4, "rangemode": "tozero",
        }  # fmt: skip
        notes.append({"text": f"{found.label} ({found.unit})", "xref": "paper", "yref": "paper", "x": 0, "y": 1,
                      "xanchor": "left", "yanchor": "bottom", "showarrow": False,
                      "font": {"size": 11, "color": theme.muted}})  # fmt: skip
    figure = {"data": data, "layout": layout(
        theme, height=height, hovermode="closest", margin={"l": 8, "r": 12, "t": 20, "b": 8}, annotations=notes,
        xaxis={"type": "date", "showgrid": True, "fixedrange": True, "anchor": "y"},
        yaxis={"domain": [0, split], "tickvals": list(range(len(shown))), "ticktext": [short(n, 22) for n in shown],
               "range": [len(shown) - 0.4, -0.6], "fixedrange": True, "showgrid": True, "zeroline": False},
        **second,
    )}  # fmt: skip
    counts: dict[str, int] = {}
    for row in found.rows:
        label = style_of(row["kind"], theme)[2]
        counts[label] = counts.get(label, 0) + 1
    said = ", ".join(f"{n:,} {label}" for label, n in sorted(counts.items(), key=lambda item: -item[1]))
    curve = f" {found.label}: {span_of(np.asarray(found.value))} {found.unit}." if steps else ""
    most = f" Most on {fmt.clean(shown[0], 40)}." if shown else ""
    return Chart(figure, f"Health events: {said or 'none'}.{most}{curve}", height)


def _event_words(row: dict[str, Any]) -> str:
    code = f" {row['code']}" if row["code"] is not None and row["kind"] == "xid" else ""
    gpu = "" if row["device"] is None else f", GPU {row['device']}"
    lasted = f", for {fmt.duration(row['end_ns'] - row['time_ns'])}" if row["end_ns"] else ""
    detail = f"<br>{escape(fmt.clean(row['detail'], 100))}" if row["detail"] else ""
    name = KINDS.get(row["kind"], ("", "", row["kind"]))[2]
    what = f"<b>{escape(fmt.clean(name, 40))}{code}</b> {short(row['node'], 40)}{gpu}{lasted}"
    return f"{what}<br>{fmt.utc(row['time_ns'])}{detail}"
