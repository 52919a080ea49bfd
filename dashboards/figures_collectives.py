"""Figures of the collectives page: bandwidth against size, wait against transfer, skew over steps. Dicts, no Dash."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import format as fmt
from .data_collectives import Points
from .figures import Chart, Rows, escape, packed, short
from .theme import Theme, layout

SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x", "star", "hexagon", "triangle-down", "pentagon")
"""Kinds differ by shape as well as by colour."""
LABEL_APART = 3.0
"""Peaks closer than this factor have no room for a label each."""


def palette(theme: Theme) -> list[str]:
    """Return colours for kinds that have none of their own."""
    kinds, groups = theme.kinds, theme.groups
    return [
        kinds["useful"],
        kinds["comm"],
        kinds["bubble"],
        groups["failures"],
        kinds["compute"],
        groups["unexplained"],
        groups["down"],
    ]


def styles(names: list[str], theme: Theme) -> dict[str, tuple[str, str]]:
    """Return colour and shape of each name."""
    colours = palette(theme)
    return {name: (colours[i % len(colours)], SYMBOLS[i % len(SYMBOLS)]) for i, name in enumerate(names)}


def bandwidth(found: Points, kinds: list[str], theme: Theme, go: str | None, marked: int | None) -> Chart:
    """Bus bandwidth against message size, both on logarithmic axes, below the peaks of the links."""
    height = 380
    style = styles(kinds, theme)
    data: list[dict[str, Any]] = []
    for kind in kinds:
        mine = np.flatnonzero(np.array([k == kind for k in found.kind], bool))
        if not len(mine):
            continue
        colour, symbol = style[kind]
        data.append({
            "type": "scatter", "mode": "markers", "name": short(kind, 40), "x": packed(found.bytes[mine], "f8"),
            "y": packed(found.busbw_gbps[mine], "f4"),
            "customdata": [[int(found.instance[i]), _where(found, int(i))] for i in mine.tolist()],
            "marker": {"symbol": symbol, "size": 7, "color": colour, "opacity": 0.7,
                       "line": {"width": 0.5, "color": theme.surface}},
            "hovertemplate": f"<b>{short(kind, 40)}</b><br>%{{x:.3s}}B at %{{y:,.4g}} GB/s<br>%{{customdata[1]}}"
            "<extra></extra>",
        })  # fmt: skip
    if marked is not None and (at := np.flatnonzero(found.instance == marked)).size:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "chosen",
                "hoverinfo": "skip",
                "x": [float(found.bytes[at[0]])],
                "y": [float(found.busbw_gbps[at[0]])],
                "marker": {"symbol": "circle-open", "size": 16, "color": theme.text, "line": {"width": 2}},
            }
        )
    lines, notes = _roofs(found.peaks, theme)
    top = max([*found.busbw_gbps.tolist(), *(peak for _, peak in found.peaks)], default=1.0)
    low = min(found.busbw_gbps.tolist(), default=top)
    figure = {"data": data, "layout": layout(
        theme, height=height, hovermode="closest", shapes=lines, annotations=notes, meta={"go": go} if go else {},
        margin={"l": 8, "r": 12, "t": 8, "b": 8},
        xaxis={"type": "log", "title": "message size (bytes, as nccl-tests counts)", "fixedrange": True,
               "showgrid": False, **_decades(found.bytes)},
        yaxis={"type": "log", "title": "bus bandwidth (GB/s)", "fixedrange": True, "tickformat": "~g",
               "range": [np.log10(low) - 0.15, np.log10(top) + 0.2], "nticks": 6},
    )}  # fmt: skip
    words = [_kind_words(found, kind) for kind in kinds]
    peaks = "; ".join(f"peak of {link} {peak:,.4g} GB/s" for link, peak in found.peaks) or "no peak of a link is known"
    return Chart(
        figure, f"Bus bandwidth of {found.total:,} collectives: {'; '.join(filter(None, words))}. {peaks}.", height
    )


def _decades(values: Any) -> dict[str, Any]:
    """Return ticks of a logarithmic axis of bytes: decades, or their halves where there are few."""
    low, high = int(np.floor(np.log10(values.min()))), int(np.ceil(np.log10(values.max())))
    steps = (1, 2, 5) if high - low <= 2 else (1,)
    stride = 1 if high - low <= 8 else 2
    ticks = [m * 10.0**e for e in range(low, high + 1, stride) for m in steps]
    return {
        "tickvals": ticks,
        "ticktext": [fmt.size(value).replace(".00 ", " ").replace(".0 ", " ") for value in ticks],
    }


def _where(found: Points, i: int) -> str:
    step = found.step[i]
    wait = found.wait_ns[i]
    parts = [] if np.isnan(step) else [f"step {step:.0f}"]
    parts += [] if np.isnan(wait) else [f"members waited {fmt.duration(wait)} in sum"]
    return ", ".join([f"instance {found.instance[i]}", *parts])


def _kind_words(found: Points, kind: str) -> str:
    mine = np.array([k == kind for k in found.kind], bool)
    if not mine.any():
        return ""
    speed = found.busbw_gbps[mine]
    return f"{fmt.clean(kind, 40)} median {np.median(speed):,.4g} GB/s, from {speed.min():,.4g} to {speed.max():,.4g}"


def _roofs(peaks: list[tuple[str, float]], theme: Theme) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Draw the peaks; those that lie close share a label, which stands on the highest of them."""
    lines: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    said: list[list[tuple[str, float]]] = []
    for link, peak in sorted(peaks[:6], key=lambda one: -one[1]):
        if said and said[-1][0][1] < LABEL_APART * peak:
            said[-1].append((link, peak))
        else:
            said.append([(link, peak)])
        lines.append({"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": peak, "y1": peak,
                      "line": {"color": theme.bad, "width": 1.4, "dash": "dash"}})  # fmt: skip
    for group in said:
        text = ", ".join(f"{short(link, 24)} {fmt.speed(peak)}" for link, peak in group)
        notes.append({"xref": "paper", "x": 1, "xanchor": "right", "yref": "y", "y": np.log10(group[0][1]),
                      "yanchor": "bottom", "showarrow": False, "text": f"peak of {text}", "bgcolor": theme.surface,
                      "font": {"size": 11, "color": theme.bad}})  # fmt: skip
    return lines, notes


PARTS = (
    ("exposed_wait_ns", "exposed wait", "failures"), ("exposed_transfer_ns", "exposed transfer", "stalls"),
    ("bubble_ns", "pipeline bubble", "checkpoints"),
    ("hidden_ns", "hidden behind compute", "productive"), ("unsplit_ns", "cannot be told apart", "unexplained"),
)  # fmt: skip


def waits(rows: Rows, theme: Theme, go: str | None) -> Chart:
    """One bar per kind: exposed wait and transfer, what compute hides, what cannot be told; ms per step and rank."""
    shown = list(rows)[:12]
    height = 44 + 30 * max(2, len(shown))
    data = []
    for column, label, group in PARTS:
        values = [part(row, column) / 1e6 / row["steps"] / max(row["ranks"], 1) for row in shown]
        if any(values):
            data.append({
                "type": "bar", "orientation": "h", "name": label, "x": [round(v, 6) for v in values],
                "y": list(range(len(shown))), "marker": {"color": theme.groups[group]},
                "customdata": [[f"{row['group'] or ''}", escape(str(row["op"]))] for row in shown],
                "hovertemplate": f"{label}: %{{x:,.3f}} ms a step and rank<extra></extra>",
            })  # fmt: skip
    figure = {"data": data, "layout": layout(
        theme, height=height, barmode="stack", bargap=0.35, meta={"go": go} if go else {},
        xaxis={"title": "ms a step and rank", "fixedrange": True, "rangemode": "tozero", "nticks": 6},
        yaxis={"tickvals": list(range(len(shown))), "fixedrange": True, "autorange": "reversed", "showgrid": False,
               "ticktext": [short(f"{row['group'] or 'unknown'} {row['op']}", 30) for row in shown],
               "tickfont": {"color": theme.text, "size": 12}},
    )}  # fmt: skip
    said = "; ".join(
        f"{fmt.clean(row['group'] or 'unknown', 20)} {row['op']}: wait {fmt.duration(row['exposed_wait_ns'])}, moving "
        f"{fmt.duration(row['exposed_transfer_ns'])}"
        for row in shown
    )
    return Chart(figure, f"Exposed time by group and operation, summed over ranks and steps: {said or 'none'}.", height)


def part(row: dict[str, Any], column: str) -> float:
    """Return a part of a kind's time; what is hidden is the rest of what could be split."""
    if column == "hidden_ns":
        known = (row["wait_ns"] or 0) + (row["transfer_ns"] or 0)
        return max(0, known - sum(row[name] or 0 for name in ("exposed_wait_ns", "exposed_transfer_ns", "bubble_ns")))
    return row[column] or 0


def skew(rows: Rows, theme: Theme) -> Chart:
    """How far apart members arrive, by step: largest and median of each role; below the dotted line is noise."""
    groups = list(dict.fromkeys(row["group"] for row in rows))
    style = styles([str(group) for group in groups], theme)
    data: list[dict[str, Any]] = []
    for group in groups:
        mine = [row for row in rows if row["group"] == group]
        colour, symbol = style[str(group)]
        for column, label, dash in (("max_ns", "largest", "solid"), ("median_ns", "median", "dash")):
            data.append({
                "type": "scatter", "mode": "lines+markers", "name": f"{short(str(group), 20)}, {label}",
                "x": [row["step"] for row in mine], "y": [(row[column] or 0) / 1e3 for row in mine],
                "line": {"color": colour, "width": 1.6, "dash": dash},
                "marker": {"size": 6, "symbol": symbol if column == "max_ns" else f"{symbol}-open", "color": colour},
                "hovertemplate": f"{short(str(group), 20)}, {label}: %{{y:,.4g}} µs<extra></extra>",
            })  # fmt: skip
    noise = [row["noise_ns"] for row in rows if row["noise_ns"] is not None]
    shapes, notes = [], []
    if noise:
        level = max(noise) / 1e3
        shapes.append({"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": level, "y1": level,
                       "line": {"color": theme.muted, "width": 1.2, "dash": "dot"}})  # fmt: skip
        notes.append({"xref": "paper", "x": 1, "xanchor": "right", "yref": "y", "y": np.log10(max(level, 1e-3)),
                      "yanchor": "top", "showarrow": False, "text": f"twice the clock error, {level:,.3g} µs",
                      "font": {"size": 11, "color": theme.muted}, "bgcolor": theme.surface})  # fmt: skip
    steps = [row["step"] for row in rows]
    stride = max(1, (max(steps, default=0) - min(steps, default=0)) // 10)
    figure = {"data": data, "layout": layout(
        theme, height=300, hovermode="x unified", shapes=shapes, annotations=notes,
        xaxis={"title": "step", "showgrid": False, "fixedrange": True, "tickformat": "d", "dtick": stride},
        yaxis={"title": "skew (µs)", "type": "log", "fixedrange": True, "tickformat": "~g", "nticks": 5},
    )}  # fmt: skip
    said = []
    for group in groups:
        mine = [row for row in rows if row["group"] == group]
        worst = max(mine, key=lambda row: row["max_ns"] or 0)
        said.append(f"{fmt.clean(str(group), 20)} up to {fmt.duration(worst['max_ns'])} in step {worst['step']}")
    return Chart(figure, f"Skew of arrivals by step: {'; '.join(said) or 'unknown'}.", 300)
