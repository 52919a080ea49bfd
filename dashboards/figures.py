"""Tables to figures of the fleet and cluster pages, as plain dicts that plotly takes. Nothing here knows Dash.

Each figure comes as a `Chart` with words that say the same to who cannot see it. Dicts, not graph objects: building
and validating those takes longer than the query; the tests validate every figure with plotly.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import format as fmt
from .metrics import BUCKETS, QUANTITIES
from .theme import CIVIDIS, GROUPS, Theme, layout

Rows = Sequence[dict[str, Any]]
MAX_CELLS = 250_000
MAX_POINTS = 5_000


@dataclass(frozen=True)
class Chart:
    """A figure, what it says in words, and its height in px."""

    figure: dict[str, Any]
    alt: str
    height: int


def packed(values: Any, dtype: str = "f4") -> dict[str, Any]:
    """Return an array as plotly's typed array: a third of the size of JSON numbers."""
    array = np.ascontiguousarray(np.asarray(values, dtype=np.dtype(dtype).newbyteorder("<")))
    found = {"dtype": dtype, "bdata": base64.b64encode(array.tobytes()).decode()}
    if array.ndim == 2:
        found["shape"] = f"{array.shape[0]}, {array.shape[1]}"
    return found


def whole_numbers(low: float, high: float, *, most: int = 16) -> dict[str, Any]:
    """Return how an axis of whole numbers is labelled: between a few of them plotly puts ticks, with rounded labels."""
    return {"tickformat": "d", "nticks": most, **({"dtick": 1} if high - low < most else {})}


def short(name: str | None, width: int = 24) -> str:
    """Return a name for an axis: plotly reads a few HTML tags in labels, so `<` must not stay one."""
    return escape(fmt.clean(name or "(no name)", width))


def escape(text: str) -> str:
    """Make text harmless where plotly would read tags or templates."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("%{", "%\u200b{")


# ------------------------------------------------------------------ fleet


def gpu_hours(rows: Rows, theme: Theme, go: str | None = None) -> Chart:
    """One bar per cluster: where its GPU-hours went, as shares; rows are of data_fleet.hours."""
    clusters = list(dict.fromkeys(row["cluster"] for row in rows))
    hours = {(row["cluster"], row["bucket"]): row["gpu_hours"] for row in rows}
    totals = {c: sum(hours.get((c, b)) or 0 for b in {row["bucket"] for row in rows}) for c in clusters}
    data = []
    for group, (label, members) in GROUPS.items():
        values = [sum(hours.get((c, b)) or 0 for b in members) for c in clusters]
        if not any(values):
            continue
        shares = [100 * v / totals[c] if totals[c] else 0 for v, c in zip(values, clusters, strict=True)]
        parts = [
            "<br>".join(f"{BUCKETS.get(b, b)}: {fmt.gpu_hours(hours.get((c, b)))} GPU-h" for b in members
                        if hours.get((c, b)))
            for c in clusters
        ]  # fmt: skip
        data.append(
            {
                "type": "bar", "orientation": "h", "name": label, "x": shares, "y": list(range(len(clusters))),
                "customdata": [[c, p] for c, p in zip(clusters, parts, strict=True)],
                "marker": {"color": theme.groups[group], "line": {"color": theme.surface, "width": 1}},
                "text": [f"{share:.0f} %" if share >= 5 else "" for share in shares], "textposition": "inside",
                "insidetextanchor": "middle", "textangle": 0, "constraintext": "inside",
                "textfont": {"size": 11, "color": ink(theme.groups[group])},
                "hovertemplate": f"<b>{label}</b> %{{x:.1f}} %<br>%{{customdata[1]}}<extra></extra>",
            }
        )  # fmt: skip
    height = 48 + 36 * max(1, len(clusters))
    figure = {
        "data": data,
        "layout": layout(
            theme, barmode="stack", bargap=0.32, height=height, meta={"go": go} if go else {},
            xaxis={"range": [0, 100], "ticksuffix": " %", "showgrid": False, "fixedrange": True, "nticks": 6},
            yaxis={"tickvals": list(range(len(clusters))), "ticktext": [short(c, 18) for c in clusters],
                   "autorange": "reversed", "fixedrange": True, "showgrid": False,
                   "tickfont": {"color": theme.text, "size": 12}},
        ),
    }  # fmt: skip
    said = []
    for c in clusters:
        top = sorted(((sum(hours.get((c, b)) or 0 for b in m), label) for label, m in GROUPS.values()), reverse=True)
        share = "; ".join(f"{label} {100 * v / totals[c]:.0f} %" for v, label in top[:4] if v and totals[c])
        said.append(f"{fmt.clean(c, 40)}: {share or 'nothing known'}")
    return Chart(figure, "Where GPU-hours went, by cluster. " + ". ".join(said), height)


def ink(colour: str) -> str:
    """Black or white, whichever reads better on a colour."""
    r, g, b = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    light = sum(w * (v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4)
                for w, v in zip((0.2126, 0.7152, 0.0722), (r, g, b), strict=True))  # fmt: skip
    return "#ffffff" if 1.05 / (light + 0.05) > (light + 0.05) / 0.0574 else "#10151b"  # the latter has 0.0074


def group_legend(rows: Rows, theme: Theme) -> list[tuple[str, str]]:
    """Return the legend of what is in the rows."""
    there = {row["bucket"] for row in rows if row["gpu_hours"]}
    return [(label, theme.groups[g]) for g, (label, members) in GROUPS.items() if there & set(members)]


# ------------------------------------------------------------------ cluster


def note_marks(notes: Rows, theme: Theme, axis: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a trace of stars along the top of an axis, and the lines below them; notes are of data_notes."""
    if not notes:
        return [], []
    times = [fmt.utc(note["time_ns"]) for note in notes]
    said = [escape(fmt.clean(f"{n['text']} ({n['by']})" if n["by"] else n["text"], 160)) for n in notes]
    mark = {"type": "scatter", "mode": "markers", "name": "note", "x": times, "y": [1] * len(times), "yaxis": axis,
            "marker": {"symbol": "star", "size": 10, "color": theme.accent}, "cliponaxis": False, "customdata": said,
            "hovertemplate": "%{customdata}<extra></extra>"}  # fmt: skip
    lines = [{"type": "line", "xref": "x", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1,
              "line": {"color": theme.accent, "width": 1, "dash": "dot"}} for at in times]  # fmt: skip
    return [mark], lines


def over_time(rows: Rows, theme: Theme, bin_ns: int, notes: Rows = ()) -> Chart:
    """MFU above, where GPU-time went below, notes across; rows are of data_cluster.over_time."""
    times = [fmt.utc(row["start_ns"]) for row in rows]
    data: list[dict[str, Any]] = []
    for key, label, dash, colour in (
        ("mfu", "MFU", "solid", theme.accent),
        ("effective_mfu", "effective MFU", "dot", theme.accent),
    ):
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": label,
                "x": times,
                "yaxis": "y2",
                "connectgaps": False,
                "y": [None if row[key] is None else round(100 * row[key], 2) for row in rows],
                "line": {"color": colour, "width": 1.8, "dash": dash},
                "hovertemplate": f"{label} %{{y:.1f}} %<extra></extra>",
            }
        )
    for group, (label, members) in GROUPS.items():
        hours = [sum(row.get(f"{b}_ns") or 0 for b in members) / 3.6e12 for row in rows]
        if not any(hours):
            continue
        data.append(
            {"type": "bar", "name": label, "x": times, "y": [round(h, 1) for h in hours], "width": bin_ns / 1e6,
             "offset": 0, "marker": {"color": theme.groups[group], "line": {"width": 0}},
             "hovertemplate": f"{label} %{{y:,.0f}} GPU-h<extra></extra>"}
        )  # fmt: skip
    inside = [n for n in notes if rows and rows[0]["start_ns"] <= n["time_ns"] <= rows[-1]["start_ns"] + bin_ns]
    marks, lines = note_marks(inside, theme, "y3")
    figure = {
        "data": [*data, *marks],
        "layout": layout(
            theme, barmode="stack", bargap=0, hovermode="x unified", height=330, shapes=lines,
            yaxis3={"overlaying": "y2", "domain": [0.68, 1], "range": [0, 1.05], "visible": False, "fixedrange": True},
            xaxis={"type": "date", "showgrid": False, "fixedrange": True, "anchor": "y"},
            yaxis={"domain": [0, 0.58], "rangemode": "tozero", "fixedrange": True, "nticks": 5, "title": "GPU-hours"},
            yaxis2={"domain": [0.68, 1], "rangemode": "tozero", "fixedrange": True, "nticks": 4, "ticksuffix": " %",
                    "title": "MFU", "anchor": "x"},
        ),
    }  # fmt: skip
    known = [row["mfu"] for row in rows if row["mfu"] is not None]
    words = f"MFU between {fmt.percent(min(known))} and {fmt.percent(max(known))}" if known else "MFU unknown"
    good = [row["goodput"] for row in rows if row["goodput"] is not None]
    more = f", goodput between {fmt.percent(min(good))} and {fmt.percent(max(good))}" if good else ""
    span = f" from {times[0]} to {times[-1]} UTC" if times else ""
    noted = "; ".join(f"{fmt.utc(n['time_ns'])} {fmt.clean(n['text'], 80)}" for n in inside)
    return Chart(figure, f"MFU and use of GPU-hours{span}: {words}{more}.{f' Notes: {noted}.' if noted else ''}", 330)


STATES = ("up", "drained", "unhealthy", "down", "unknown")


def gpu_map(rows: Rows, quantity: str, theme: Theme, go: str | None = None) -> Chart:
    """Node × GPU: nodes from left to right, their GPUs from top to bottom; rows are of data_cluster.gpus."""
    label, unit = QUANTITIES[quantity]
    nodes = sorted({row["node"] for row in rows})
    devices = sorted({row["device"] for row in rows})
    at_node, at_device = ({name: i for i, name in enumerate(names)} for names in (nodes, devices))
    z = np.full((len(devices), len(nodes)), np.nan)
    for row in rows:
        value = row[quantity]
        if quantity == "health":
            value = STATES.index(value) if value in STATES else len(STATES) - 1
        elif value is not None and quantity in ("mfu", "throttle"):
            value = 100 * value
        z[at_device[row["device"]], at_node[row["node"]]] = np.nan if value is None else value
    health = quantity == "health"
    height = 64 + max(96, min(26 * len(devices), 220))
    heat: dict[str, Any] = {
        "type": "heatmap", "z": packed(z), "x": packed(np.arange(len(nodes)), "i4"), "y": packed(devices, "i4"),
        "xgap": 1 if len(nodes) <= 200 else 0, "ygap": 1, "hoverongaps": False,
        "customdata": [list(map(short, nodes))] * len(devices) if len(z.ravel()) <= 20_000 else None,
        "hovertemplate": "%{customdata}<br>GPU %{y}: %{z:.1f} " + unit + "<extra></extra>",
        "colorscale": CIVIDIS,
        "colorbar": {"thickness": 10, "outlinewidth": 0, "ticksuffix": f" {unit}", "nticks": 5,
                     "tickfont": {"color": theme.muted, "size": 11}},
    }  # fmt: skip
    if heat["customdata"] is None:
        heat.pop("customdata")
        heat["hovertemplate"] = "node %{x}, GPU %{y}: %{z:.1f} " + unit + "<extra></extra>"
    if health:
        n = len(STATES)
        steps = [[edge, theme.states[s]] for i, s in enumerate(STATES) for edge in (i / n, (i + 1) / n)]
        heat |= {"zmin": -0.5, "zmax": n - 0.5, "colorscale": steps, "showscale": False,
                 "hovertemplate": heat["hovertemplate"].replace("%{z:.1f} ", "%{text}"),
                 "text": [[STATES[int(v)] if v == v else "no data" for v in line] for line in z]}  # fmt: skip
    stride = max(1, -(-len(nodes) // 24))
    figure = {
        "data": [heat],
        "layout": layout(
            theme, height=height, meta={"go": go} if go else {},
            xaxis={"tickvals": list(range(0, len(nodes), stride)), "ticktext": [short(n, 16) for n in nodes[::stride]],
                   "showgrid": False, "tickangle": -45 if len(nodes) > 8 else 0, "zeroline": False},
            yaxis={"title": "GPU", "autorange": "reversed", "dtick": 1, "showgrid": False, "fixedrange": True,
                   "zeroline": False},
        ),
    }  # fmt: skip
    return Chart(figure, _gpu_words(rows, quantity, label, unit, nodes, z), height)


def _gpu_words(rows: Rows, quantity: str, label: str, unit: str, nodes: list[str], z: Any) -> str:
    start = f"{label} of {len(rows):,} GPUs on {len(nodes):,} nodes"
    if quantity == "health":
        counts = {s: sum(row["health"] == s for row in rows) for s in STATES}
        return f"{start}: " + ", ".join(f"{n:,} {s}" for s, n in counts.items() if n) + "."
    if not np.isfinite(z).any():
        return f"{start}: not measured."
    scale = 100 if quantity in ("mfu", "throttle") else 1
    known = [row for row in rows if row[quantity] is not None]
    worst = (min if quantity == "mfu" else max)(known, key=lambda row: row[quantity])
    median = float(np.nanmedian(z))
    return (
        f"{start}: median {median:.1f} {unit}; worst is GPU {worst['device']} of {fmt.clean(worst['node'], 40)} with "
        f"{scale * worst[quantity]:.1f} {unit}."
    )


def by_cause(rows: Rows, theme: Theme) -> Chart:
    """Interruptions by cause; rows are of data_cluster.interruptions."""
    shown = list(rows)[:10]
    height = 40 + 26 * max(2, len(shown))
    figure = {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "y": list(range(len(shown))),
                "x": [row["count"] for row in shown],
                "marker": {
                    "color": [
                        theme.groups["unexplained"] if row["planned"] else theme.groups["failures"] for row in shown
                    ]
                },
                "text": [f"{row['count']:,}" for row in shown],
                "textposition": "outside",
                "cliponaxis": False,
                "textfont": {"color": theme.muted, "size": 11},
                "customdata": [
                    [
                        short(row["cause"], 60),
                        fmt.gpu_hours(row["lost_hours"]),
                        "planned" if row["planned"] else "unplanned",
                    ]
                    for row in shown
                ],
                "hovertemplate": "%{customdata[0]}: %{x} (%{customdata[2]})<br>%{customdata[1]} GPU-h lost"
                "<extra></extra>",
            }
        ],
        "layout": layout(
            theme,
            height=height,
            bargap=0.35,
            margin={"l": 8, "r": 32, "t": 4, "b": 8},
            xaxis={
                "showgrid": True,
                "rangemode": "tozero",
                "fixedrange": True,
                **whole_numbers(0, max((row["count"] for row in shown), default=0), most=5),
            },
            yaxis={
                "tickvals": list(range(len(shown))),
                "ticktext": [short(row["cause"], 22) for row in shown],
                "autorange": "reversed",
                "fixedrange": True,
                "showgrid": False,
                "tickfont": {"color": theme.text, "size": 12},
            },
        ),
    }
    words = ", ".join(f"{fmt.clean(row['cause'], 40)} {row['count']:,}" for row in shown)
    return Chart(figure, f"Interruptions by cause: {words or 'none'}.", height)
