"""Figures of the compare page: how far each quantity moved, with its interval. Plain dicts, no Dash."""

from __future__ import annotations

from perfkit.analysis.compare import Comparison, Quantity
from perfkit.report.verdict import term_label

from . import format as fmt
from .figures import Chart, escape, short
from .theme import Theme, layout

SMALLEST_POINTS = 0.05


def terms(found: Comparison, theme: Theme) -> Chart:
    """Every term of the waterfall: its change in points of peak as a bar, its interval as a line."""
    rows = [
        q for q in found.terms if q.change is not None and max(abs(q.change), q.base or 0, q.new or 0) > SMALLEST_POINTS
    ]
    rows.sort(key=lambda q: -abs(q.change or 0))
    changes = [q.change or 0.0 for q in rows]
    low = [0.0 if q.low is None else change - q.low for q, change in zip(rows, changes, strict=True)]
    high = [0.0 if q.high is None else q.high - change for q, change in zip(rows, changes, strict=True)]
    height = 46 + 27 * max(3, len(rows))
    figure = {
        "data": [
            {
                "type": "bar", "orientation": "h", "y": list(range(len(rows))), "x": changes,
                "marker": {"color": [_colour(q, theme) for q in rows]},
                "error_x": {"type": "data", "symmetric": False, "array": high, "arrayminus": low, "thickness": 1.4,
                            "width": 4, "color": theme.text},
                "customdata": [_hover(q) for q in rows], "hovertemplate": "%{customdata}<extra></extra>",
            }
        ],
        "layout": layout(
            theme,
            height=height,
            bargap=0.34,
            margin={"l": 8, "r": 16, "t": 4, "b": 34},
            xaxis={"fixedrange": True, "zeroline": True, "zerolinecolor": theme.muted, "nticks": 7,
                   "range": _reach(rows), "title": "change in points of peak; the line is the interval"},
            yaxis={
                "tickvals": list(range(len(rows))), "ticktext": [short(term_label(q.name), 34) for q in rows],
                "autorange": "reversed", "fixedrange": True, "showgrid": False,
                "tickfont": {"color": theme.text, "size": 12},
            },
        ),
    }  # fmt: skip
    words = "; ".join(f"{fmt.clean(term_label(q.name), 40)} {q.change:+.2f} ({q.verdict})" for q in rows)
    return Chart(figure, f"Change of every term of the waterfall, in points of peak: {words}.", height)


def _reach(rows: list[Quantity]) -> list[float]:
    """Return a range that shows all bars, and intervals up to four times as long as the longest of them."""
    most = max((abs(q.change or 0) for q in rows), default=1.0) or 1.0
    ends = [end for q in rows for end in (q.low, q.high, q.change) if end is not None]
    limit = 4 * most
    low, high = max(min([*ends, 0.0]), -limit), min(max([*ends, 0.0]), limit)
    edge = 0.06 * (high - low) or 1.0
    return [low - edge, high + edge]


def _colour(quantity: Quantity, theme: Theme) -> str:
    """Return grey without evidence, else whether it takes more or less of the step."""
    if quantity.verdict not in ("more", "less"):
        return theme.groups["idle"]
    return theme.groups["failures" if quantity.verdict == "more" else "productive"]


def _hover(quantity: Quantity) -> str:
    inside = "" if quantity.low is None else f" [{quantity.low:+.2f}, {quantity.high:+.2f}]"
    was, now = (fmt.number(value, 2) for value in (quantity.base, quantity.new))
    name = escape(term_label(quantity.name))
    return f"<b>{name}</b> {was} → {now}<br>{quantity.change:+.2f}{inside}, {quantity.verdict}"
