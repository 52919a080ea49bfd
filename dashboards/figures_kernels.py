"""Figures of the kernels page: roofline, families, op → kernel → module, spread over ranks. Plain dicts, no Dash."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfkit.analysis.classify import FAMILIES

from . import format as fmt
from .data_kernels import Spread
from .figures import Chart, Rows, ink, packed, short, whole_numbers
from .figures_collectives import SYMBOLS, palette
from .theme import Theme, layout

MAX_POINTS = 1_500


def style_of(family: str | None, theme: Theme) -> tuple[str, str]:
    """Return colour and shape of a family, the same on every chart."""
    at = FAMILIES.index(family) if family in FAMILIES else len(FAMILIES) - 1
    colours = palette(theme)
    return colours[at % len(colours)], SYMBOLS[at % len(SYMBOLS)]


def roofline(
    rows: Rows, peaks: list[tuple[str, float]], gbps: float | None, theme: Theme, go: str | None, marked: str
) -> Chart:
    """Speed against arithmetic intensity below the roofs; the area of a point is its time."""
    known = [row for row in rows if row["intensity"] and row["flops_per_s"]]
    known = sorted(known, key=lambda row: -row["total_ns"])[:MAX_POINTS]
    longest = max((row["total_ns"] for row in known), default=1)
    data: list[dict[str, Any]] = []
    for family in dict.fromkeys(row["family"] for row in known):
        mine = [row for row in known if row["family"] == family]
        colour, symbol = style_of(family, theme)
        data.append({
            "type": "scatter", "mode": "markers", "name": family or "unknown",
            "x": [row["intensity"] for row in mine], "y": [row["flops_per_s"] / 1e12 for row in mine],
            "customdata": [[row["name"], _point_words(row)] for row in mine],
            "marker": {"color": colour, "symbol": symbol, "opacity": 0.75,
                       "size": [round(6 + 22 * (row["total_ns"] / longest) ** 0.5, 1) for row in mine],
                       "line": {"width": [2.5 if row["name"] == marked else 0.5 for row in mine],
                                "color": [theme.text if row["name"] == marked else theme.surface for row in mine]}},
            "hovertemplate": "%{customdata[1]}<extra></extra>",
        })  # fmt: skip
    low = min((row["intensity"] for row in known), default=1.0) / 3
    high = (
        max([row["intensity"] for row in known] + [peak / (gbps * 1e9) for _, peak in peaks if gbps], default=1e3) * 4
    )
    for dtype, peak in peaks[:6]:
        data.append(_roof(dtype, peak, gbps, low, high, theme))
    figure = {"data": data, "layout": layout(
        theme, height=400, hovermode="closest", meta={"go": go} if go else {}, margin={"l": 8, "r": 12, "t": 8, "b": 8},
        xaxis={"type": "log", "title": "arithmetic intensity (FLOP/byte)", "fixedrange": True, "tickformat": "~g",
               "nticks": 8, "range": [float(np.log10(low)), float(np.log10(high))]},
        yaxis={"type": "log", "title": "speed (TFLOP/s)", "fixedrange": True, "tickformat": "~g", "nticks": 7},
    )}  # fmt: skip
    worst = next((row for row in rows if row["waste_ns"]), None)
    said = (
        ""
        if worst is None
        else f" Largest waste: {fmt.clean(worst['name'], 60)} with {fmt.duration(worst['waste_ns'])}."
    )
    roofs = ", ".join(f"{dtype} {peak / 1e12:,.4g} TFLOP/s" for dtype, peak in peaks) or "no peak known"
    memory = "" if not gbps else f", memory {gbps:,.4g} GB/s"
    return Chart(figure, f"Roofline of {len(known):,} kernels by shape; roofs: {roofs}{memory}.{said}", 400)


def _point_words(row: dict[str, Any]) -> str:
    waste = "" if row["waste_ns"] is None else f", waste {fmt.duration(row['waste_ns'])}"
    return (
        f"<b>{short(row['name'], 70)}</b><br>{short(row['op'] or 'no op', 40)} {short(row['input_dims'] or '', 60)}<br>"
        f"{row['flops_per_s'] / 1e12:,.4g} TFLOP/s at {row['intensity']:,.4g} FLOP/byte, {row['bound']}-bound<br>"
        f"{row['count']:,} launches, {fmt.duration(row['total_ns'])}{waste}"
    )


def _roof(dtype: str, peak: float, gbps: float | None, low: float, high: float, theme: Theme) -> dict[str, Any]:
    knee = peak / (gbps * 1e9) if gbps else low
    x = [low, knee, high] if low < knee < high else [low, high]
    y = [min(peak, v * gbps * 1e9) / 1e12 if gbps else peak / 1e12 for v in x]
    return {
        "type": "scatter",
        "mode": "lines+text",
        "name": f"roof {dtype}",
        "x": x,
        "y": y,
        "hoverinfo": "skip",
        "line": {"color": theme.bad, "width": 1.4, "dash": "dash"},
        "textposition": "top left",
        "text": [""] * (len(x) - 1) + [f"{dtype} {peak / 1e12:,.4g} TFLOP/s"],
        "textfont": {"size": 11, "color": theme.bad},
    }


def families(rows: Rows, theme: Theme, go: str | None) -> Chart:
    """Draw the time of each family: wasted, used, and not judged."""
    shown = list(rows)
    height = 44 + 26 * max(2, len(shown))
    parts = (
        ("at the roof", [(r["judged_ns"] or 0) - (r["waste_ns"] or 0) for r in shown], theme.groups["productive"]),
        ("waste", [r["waste_ns"] or 0 for r in shown], theme.groups["failures"]),
        ("not judged", [r["total_ns"] - (r["judged_ns"] or 0) for r in shown], theme.groups["idle"]),
    )
    data = [
        {"type": "bar", "orientation": "h", "name": label, "y": list(range(len(shown))),
         "x": [round(v / 1e6, 4) for v in values], "marker": {"color": colour},
         "customdata": [[row["family"] or ""] for row in shown],
         "hovertemplate": f"{label}: %{{x:,.4g}} ms<extra></extra>"}
        for label, values, colour in parts if any(values)
    ]  # fmt: skip
    figure = {
        "data": data,
        "layout": layout(
            theme,
            height=height,
            barmode="stack",
            bargap=0.3,
            meta={"go": go} if go else {},
            xaxis={"title": "ms, summed over ranks", "fixedrange": True, "rangemode": "tozero", "nticks": 5},
            yaxis={
                "tickvals": list(range(len(shown))),
                "ticktext": [short(row["family"] or "unknown", 20) for row in shown],
                "autorange": "reversed",
                "fixedrange": True,
                "showgrid": False,
                "tickfont": {"color": theme.text, "size": 12},
            },
        ),
    }
    said = "; ".join(f"{row['family'] or 'unknown'} {fmt.percent(row['share'])}" for row in shown)
    return Chart(figure, f"Time by family: {said or 'none'}.", height)


def paths(rows: Rows, theme: Theme) -> Chart:
    """Draw owned time as op → kernel → module; a click on a part opens it."""
    ids, labels, parents, values, colours = (
        ["all"],
        ["all kernels"],
        [""],
        [sum(r["owned_ns"] for r in rows)],
        [theme.grid],
    )
    at: dict[str, int] = {"all": 0}
    tint = palette(theme)
    ops = list(dict.fromkeys(row["op"] for row in rows))

    def add(name: str, label: str, parent: str, ns: int, colour: str) -> None:
        if name in at:
            values[at[name]] += ns
            return
        at[name] = len(ids)
        ids.append(name)
        labels.append(short(label, 60))
        parents.append(parent)
        values.append(ns)
        colours.append(colour)

    for row in rows:
        colour = tint[ops.index(row["op"]) % len(tint)]
        op = f"op:{row['op']}"
        add(op, row["op"] or "(no op)", "all", row["owned_ns"], colour)
        kernel = f"{op}|{row['kernel']}"
        add(kernel, row["kernel"] or "(smaller ones)", op, row["owned_ns"], colour)
        if row["module"]:
            add(f"{kernel}|{row['module']}", row["module"], kernel, row["owned_ns"], colour)
    numbers = {name: f"n{i}" for i, name in enumerate(ids)}
    figure = {
        "data": [
            {
                "type": "icicle",
                "ids": [numbers[i] for i in ids],
                "labels": labels,
                "branchvalues": "total",
                "parents": [numbers.get(p, "") for p in parents],
                "values": packed(np.array(values, float) / 1e6, "f8"),
                "marker": {"colors": colours, "line": {"width": 1, "color": theme.surface}},
                "tiling": {"orientation": "v"},
                "textinfo": "label",
                "insidetextfont": {"size": 11, "color": [ink(colour) for colour in colours]},
                "leaf": {"opacity": 1},
                "maxdepth": 4,
                "sort": True,
                "pathbar": {"visible": True, "thickness": 18},
                "hovertemplate": "%{label}<br>%{value:,.4g} ms, %{percentRoot:.1%} of all<extra></extra>",
            }
        ],
        "layout": layout(
            theme, height=330, uniformtext={"minsize": 10, "mode": "hide"}, margin={"l": 4, "r": 4, "t": 22, "b": 4}
        ),
    }
    sums: dict[str, int] = {}
    for row in rows:
        sums[row["op"] or "(no op)"] = sums.get(row["op"] or "(no op)", 0) + row["owned_ns"]
    top = sorted(sums.items(), key=lambda item: -item[1])[:5]
    said = "; ".join(f"{fmt.clean(op, 40)} {fmt.duration(ns)}" for op, ns in top)
    return Chart(figure, f"Time by op, kernel and module, largest ops: {said or 'none'}.", 330)


def spread(found: Spread, theme: Theme, go: str | None) -> Chart:
    """Time on each rank against the median of all."""
    total = found.total_ns / 1e6
    median = float(np.median(total))
    worst = int(np.argmax(total))
    odd = np.abs(total - median) > 0.1 * median
    figure = {"data": [{
        "type": "bar", "name": "time", "x": packed(found.ranks, "i4"), "y": packed(total, "f4"),
        "marker": {"color": [theme.groups["failures"] if o else theme.groups["productive"] for o in odd.tolist()]},
        "customdata": [[int(rank), fmt.duration(mean)] for rank, mean in
                       zip(found.ranks.tolist(), found.mean_ns.tolist(), strict=True)],
        "hovertemplate": "rank %{x}: %{y:,.4g} ms, %{customdata[1]} a launch<extra></extra>",
    }], "layout": layout(
        theme, height=240, bargap=0.2 if len(total) < 200 else 0, meta={"go": go} if go else {},
        shapes=[{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": median, "y1": median,
                 "line": {"color": theme.muted, "width": 1.2, "dash": "dot"}}],
        xaxis={"title": "rank", "fixedrange": True, "showgrid": False,
               **whole_numbers(found.ranks.min(), found.ranks.max())},
        yaxis={"title": "ms", "fixedrange": True, "rangemode": "tozero", "nticks": 5},
    )}  # fmt: skip
    return Chart(
        figure,
        f"Time of {fmt.clean(found.title, 60)} on {len(total):,} ranks: median {median:,.4g} ms, most on rank "
        f"{int(found.ranks[worst])} with {total[worst]:,.4g} ms; {int(odd.sum())} are more than 10 % off the median.",
        240,
    )
