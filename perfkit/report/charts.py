"""Charts as static SVG: they print, need no script, and take their colours from the page's style sheet.

    strip, waterfall_bar     the ladder
    stack                    columns of stacked parts (steps, ranks): one path per part, so 4,096 columns are 4 elements
    roofline                 FLOP/s over FLOP/byte, both logarithmic
    lanes                    bins of one step, one lane per rank
    heat                     a map of ranks and steps

A chart is a picture of a table that stands below it: `data-table` names it, and the page's script shows the table's
row for the column under the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from perfkit.report import format as fmt
from perfkit.report.markup import Html, tag, text
from perfkit.report.verdict import Ladder, Rung

PARTS = (
    ("compute_ns", "compute", "compute"), ("exposed_comm_ns", "comm", "exposed communication"),
    ("exposed_memcpy_ns", "copy", "exposed copies"), ("idle_ns", "idle", "idle"),
)  # fmt: skip
"""Column, colour and name of the exact partition, bottom up."""


SMALLEST_DOT = 0.001
"""Share of the kernels' time below which the roofline leaves a kernel out."""


def strip(ladder: Ladder) -> Html:
    """Draw all top terms in one bar of 100 points."""
    tops = visible(ladder)
    total = sum(r.points or 0 for r in tops) or 1
    at, boxes = 0.0, []
    for rung, tint in zip(tops, tints(tops), strict=True):
        width = (rung.points or 0) / total * 1000
        title = tag("title", f"{rung.label}: {fmt.points(rung.points)} {ladder.unit}")
        boxes.append(tag("rect", title, class_=f"k-{rung.kind} {tint} edge", x=_n(at), y=0, width=_n(width), height=20))
        at += width
    return tag(
        "svg", boxes, class_="strip", viewBox="0 0 1000 20", preserveAspectRatio="none", role="img",
        aria_label=ladder.title + "; the table below has the numbers",
    )  # fmt: skip


def visible(ladder: Ladder) -> list[Rung]:
    """Return the top terms that are wide enough to be seen in the strip."""
    return [r for r in ladder.rungs if r.parent is None and (r.points or 0) >= 0.05]


def tints(rungs: Sequence[Rung]) -> list[str]:
    """Return a class per rung that tells terms of one colour apart, darkest first."""
    seen: dict[str, int] = {}
    result = []
    for rung in rungs:
        number = seen.setdefault(rung.kind, 0)
        seen[rung.kind] += 1
        result.append(f"tint-{number % 4}")
    return result


def waterfall_bar(rung: Rung, top: float, tint: str) -> Html:
    """Draw one rung: from where the rung above ended to where this one ends."""
    bar: list[Html] = []
    if rung.points is not None and rung.measured:
        low, high = sorted((rung.offset, rung.offset + rung.points))
        left, right = max(low, 0) / top * 1000, max(high, 0) / top * 1000
        colour = f"k-{rung.kind} {tint}" + (" part" if rung.parent else "") + (" negative" if rung.points < 0 else "")
        if rung.points:
            bar = [tag("rect", class_=colour, x=_n(left), y=2, width=_n(max(right - left, 2)), height=12)]
    return tag("svg", bar, class_="bar", viewBox="0 0 1000 16", preserveAspectRatio="none", aria_hidden="true")


def stack(
    columns: Sequence[dict[str, Any]], labels: Sequence[str], *, table: str, what: str, x_name: str
) -> Html:  # fmt: skip
    """Draw one column of stacked parts per row; heights are times in ns."""
    heights = [sum(row[name] or 0 for name, _, _ in PARTS) for row in columns]
    top, ticks = _ticks(max(heights, default=1) or 1)
    left, right, high, low = 64, 996, 10, 230
    step = (right - left) / max(len(columns), 1)
    gap = 0 if step < 4 else max(min(step * 0.2, 12), step - 96)
    paths: dict[str, list[str]] = {name: [] for name, _, _ in PARTS}
    for i, row in enumerate(columns):
        at, y = left + i * step + gap / 2, float(low)
        for name, _, _ in PARTS:
            size = (row[name] or 0) / top * (low - high)
            if size > 0:
                paths[name].append(f"M{_n(at)} {_n(y)}h{_n(step - gap)}v{_n(-size)}h{_n(gap - step)}z")
            y -= size
    marks = [_y_mark(fmt.duration(v), low - v / top * (low - high), left, right) for v in ticks]
    every = max(math.ceil(len(labels) / 16), 1)
    names = [
        tag("text", label, class_="tick", x=_n(left + (i + 0.5) * step), y=low + 18, text_anchor="middle")
        for i, label in enumerate(labels)
        if i % every == 0
    ]
    drawn = [tag("path", class_=f"k-{colour}", d="".join(paths[name])) for name, colour, _ in PARTS]
    cursor = tag("rect", class_="cursor", x=left, y=high, width=_n(step), height=low - high, hidden=True)
    title = tag("text", x_name, class_="tick", x=(left + right) / 2, y=low + 36, text_anchor="middle")
    return tag(
        "svg", marks, drawn, cursor, names, title, class_="chart stack", viewBox="0 0 1000 274", role="img",
        tabindex=0, aria_label=f"{what}: arrow keys read the columns; the table below has the numbers",
        data_table=table, data_left=left, data_right=right, data_count=len(columns),
    )  # fmt: skip


def roofline_dots(rows: Sequence[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Return the rows, with their numbers, whose FLOPs and bytes are known and whose time matters."""
    least = SMALLEST_DOT * sum(r["ns"] or 0 for r in rows)
    return [(i, r) for i, r in enumerate(rows) if r["intensity"] and r["tflops"] and r["ns"] and r["ns"] >= least]


def roofline(
    rows: Sequence[dict[str, Any]], peak: float | None, bandwidth: float | None, *, dtype: str | None, table: str
) -> Html | None:
    """Draw a dot per kernel with known FLOPs and bytes; its area is its time. None if there is no such kernel."""
    dots = roofline_dots(rows)
    if not dots:
        return None
    xs = [r["intensity"] for _, r in dots]
    ys = [r["tflops"] * 1e12 for _, r in dots]
    ridge = [peak / bandwidth] if peak and bandwidth else []
    x_low, x_high, x_decades = _log_range([*xs, *ridge])
    y_low, y_high, y_decades = _log_range([*ys, *([peak] if peak else [])])
    left, right, high, low = 92, 980, 14, 360

    def x_of(value: float) -> float:
        return left + (math.log10(value) - x_low) / (x_high - x_low) * (right - left)

    def y_of(value: float) -> float:
        return low - (math.log10(value) - y_low) / (y_high - y_low) * (low - high)

    grid = []
    for power in x_decades:
        x = _n(x_of(10.0**power))
        grid += [
            tag("line", class_="grid", x1=x, x2=x, y1=high, y2=low),
            tag("text", f"{10.0**power:g}", class_="tick", x=x, y=low + 18, text_anchor="middle"),
        ]
    for power in y_decades:
        grid.append(_y_mark(fmt.power(power, "FLOP/s"), y_of(10.0**power), left, right))
    roof: list[Html] = []
    names: list[Html] = []
    if peak:
        start, y = ridge[0] if ridge else 10.0**x_low, y_of(peak)
        name = f"peak {fmt.si(peak, 'FLOP/s')} {dtype or ''}"
        roof += [
            tag("path", class_="roof", d=f"M{_n(x_of(start))} {_n(y)}H{right}"),
        ]
        at = x_of(start) - 10 if ridge else right  # above the roof is where no kernel can be
        names.append(
            tag("text", name, class_="tick strong", x=_n(at), y=_n(y + (4 if ridge else -8)), text_anchor="end")
        )
    if peak and bandwidth:
        start = max(10.0**x_low, 10.0**y_low / bandwidth)
        at, y = x_of(start), y_of(start * bandwidth)
        name = f"memory {fmt.si(bandwidth, 'B/s')}"
        roof += [
            tag("path", class_="roof", d=f"M{_n(at)} {_n(y)}L{_n(x_of(ridge[0]))} {_n(y_of(peak))}"),
        ]
        middle = ((at + x_of(ridge[0])) / 2 - 12, (y + y_of(peak)) / 2 - 4)
        names.append(tag("text", name, class_="tick strong", x=_n(middle[0]), y=_n(middle[1]), text_anchor="end"))
    longest = max(r["ns"] for _, r in dots)
    circles = [
        tag(
            "circle", tag("title", f"{r['name']}: {fmt.points(r['tflops'], 1)} TFLOP/s, {fmt.duration(r['ns'])}"),
            class_=f"dot f-{family_class(r['family'])}", cx=_n(x_of(r["intensity"])), cy=_n(y_of(r["tflops"] * 1e12)),
            r=_n(3 + 13 * math.sqrt(r["ns"] / longest)), data_row=i,
        )
        for i, r in sorted(dots, key=lambda dot: -dot[1]["ns"])
    ]  # fmt: skip
    axis = tag("text", "FLOP per byte", class_="tick", x=(left + right) / 2, y=low + 38, text_anchor="middle")
    return tag(
        "svg", grid, roof, circles, names, axis, class_="chart", viewBox="0 0 1000 404", role="img", data_table=table,
        aria_label="Roofline: FLOP/s over FLOP per byte; the kernel table has the numbers",
    )  # fmt: skip


_FAMILIES = ("gemm", "attention", "elementwise", "norm", "reduction", "optimizer")


def family_class(family: str | None) -> str:
    """Return the colour class of a kernel family."""
    return family if family in _FAMILIES else "other"


def lanes(rows: Sequence[Sequence[dict[str, Any]]], span_ns: int) -> Html:
    """Draw bins of one step: a lane per rank, each bin filled bottom up by its parts."""
    height, gap = 24, 4
    drawn = []
    for i, bins in enumerate(rows):
        base = i * (height + gap) + height
        paths: dict[str, list[str]] = {name: [] for name, _, _ in PARTS}
        for row in bins:
            x, y = row["at_ns"] / span_ns * 10000, float(base)
            width = row["window_ns"] / span_ns * 10000
            for name, _, _ in PARTS[:3]:
                size = row[name] / row["window_ns"] * height if row["window_ns"] else 0
                if size:
                    paths[name].append(f"M{_n(x)} {_n(y)}h{_n(width)}v{_n(-size)}h{_n(-width)}z")
                y -= size
        background = tag("rect", class_="lane", x=0, y=base - height, width=10000, height=height)
        drawn.append((background, [tag("path", class_=f"k-{c}", d="".join(paths[n])) for n, c, _ in PARTS[:3]]))
    total = len(rows) * (height + gap)
    return tag(
        "svg", drawn, class_="lanes", viewBox=f"0 0 10000 {total}", preserveAspectRatio="none", role="img", tabindex=0,
        data_span=span_ns, aria_label="Timeline of one step: plus and minus zoom, arrow keys move, 0 resets",
        id="timeline-svg", height=total,
    )  # fmt: skip


HEAT_LEVELS = 8


def heat(values: Sequence[Sequence[int]], rows: Sequence[str], columns: Sequence[str], *, table: str) -> Html:
    """Draw a map of rows and columns; a darker cell holds more. One path per shade, whatever the number of cells."""
    top = max((value for row in values for value in row), default=0) or 1
    left, right, high = 92, 996, 6
    height = 18 if len(rows) <= 32 else 9
    width = (right - left) / max(len(columns), 1)
    paths: list[list[str]] = [[] for _ in range(HEAT_LEVELS)]
    for i, row in enumerate(values):
        for k, value in enumerate(row):
            if value > 0:
                level = min(int(value / top * HEAT_LEVELS), HEAT_LEVELS - 1)
                paths[level].append(
                    f"M{_n(left + k * width)} {high + i * height}h{_n(width - 1)}v{height - 1}h{_n(1 - width)}z"
                )
    low = high + len(rows) * height
    background = tag("rect", class_="lane", x=left, y=high, width=right - left, height=low - high)
    drawn = [
        tag("path", class_="k-comm", d="".join(path), fill_opacity=_n((i + 1) / HEAT_LEVELS))
        for i, path in enumerate(paths)
        if path
    ]
    every = max(math.ceil(len(rows) * 12 / max(low - high, 1)), 1)
    names = [
        tag("text", name, class_="tick", x=left - 8, y=_n(high + (i + 0.5) * height + 4), text_anchor="end")
        for i, name in enumerate(rows)
        if i % every == 0
    ]
    apart = max(math.ceil(len(columns) / 16), 1)
    names += [
        tag("text", name, class_="tick", x=_n(left + (k + 0.5) * width), y=low + 16, text_anchor="middle")
        for k, name in enumerate(columns)
        if k % apart == 0
    ]
    axis = tag("text", "step", class_="tick", x=(left + right) / 2, y=low + 34, text_anchor="middle")
    return tag(
        "svg", background, drawn, names, axis, class_="chart", viewBox=f"0 0 1000 {low + 40}", role="img",
        aria_label="Waiting caused by rank and step; the table below has the numbers", data_table=table,
    )  # fmt: skip


def _y_mark(name: str, y: float, left: float, right: float) -> Html:
    line = tag("line", class_="grid", x1=left, x2=right, y1=_n(y), y2=_n(y))
    return text(line, tag("text", name, class_="tick", x=left - 8, y=_n(y + 4), text_anchor="end"))


def _n(value: float) -> str:
    """Two decimals are a fiftieth of a pixel; trailing zeros are bytes."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _ticks(top: float) -> tuple[float, list[float]]:
    rough = top / 4
    scale = 10 ** math.floor(math.log10(rough))
    step = next(s * scale for s in (1, 2, 2.5, 5, 10) if s * scale >= rough)
    number = math.ceil(top / step)
    return number * step, [i * step for i in range(number + 1)]


def _log_range(values: Sequence[float]) -> tuple[float, float, range]:
    """Return the exponents that enclose the values with some air, and the whole decades between them."""
    low, high = math.log10(min(values)) - 0.25, math.log10(max(values)) + 0.25
    low, high = min(low, math.ceil(low)), max(high, math.ceil(low) + 1)
    return low, high, range(math.ceil(low), math.floor(high) + 1)
