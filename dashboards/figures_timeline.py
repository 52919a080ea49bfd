"""The picture of a step: lanes of ranks above each other, bars in time. Plain dicts, no Dash.

A bar that stands for several events is as pale as it was idle inside; its hover says how many they are and how long
they were busy. Lines join the starts (solid) and the ends (dotted) of one collective on several ranks. The mark
beside a rank's name is as wide as the error of its clock in both directions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import format as fmt
from .data_timeline import CAUSES, Scene
from .figures import Chart, escape, ink, packed
from .theme import Theme, layout

ROW_PX, HEAD_PX = 13, 22
LABELS = {
    "compute": "compute", "communication": "communication", "memcpy": "copy", "memset": "memset", "sync": "sync",
    "device_range": "range on the device", "range": "range", "python": "Python", "op": "op", "runtime": "driver call",
    "gc": "garbage collection", "overhead": "profiler", "memory": "allocator", "other": "other",
    "host_late": "idle: host late", "launch": "idle: launch latency", "dependency": "idle: waits for a stream",
    "unattributed": "idle: unattributed",
}  # fmt: skip
SMALL = ("memcpy", "memset")
"""Classes that share a stream's row with kernels: drawn lower."""


def colour_of(name: str, theme: Theme) -> str:
    """Return the colour of a class or cause."""
    kinds, groups = theme.kinds, theme.groups
    return {
        "compute": kinds["useful"], "communication": kinds["comm"], "memcpy": kinds["copy"], "memset": kinds["copy"],
        "sync": groups["idle"], "device_range": groups["idle"], "range": kinds["copy"], "python": kinds["bubble"],
        "op": kinds["compute"], "runtime": groups["unexplained"], "host_late": kinds["idle"],
        "launch": groups["down"], "dependency": kinds["bubble"],
    }.get(name, groups["unexplained"])  # fmt: skip


def legend(found: Scene, theme: Theme) -> list[tuple[str, str]]:
    """Return what is drawn: (label, colour)."""
    there = {found.rows[row].slot.name for row in np.unique(found.row).tolist()}
    found_clock = any(u is not None for u in found.uncertainty.values())
    clock = [("clock error, to scale", theme.bad)] if found_clock and len(found.moment.ranks) > 1 else []
    return [*((label, colour_of(name, theme)) for name, label in LABELS.items() if name in there), *clock]


def timeline(found: Scene, theme: Theme) -> Chart:
    """Draw the scene."""
    at = found.moment
    places, ticks, heads, height = _places(found)
    data: list[dict[str, Any]] = []
    names = [row.slot.name for row in found.rows]
    for name in LABELS:
        mine = np.flatnonzero(np.array([n == name for n in names] + [False])[found.row])
        if len(mine):
            data.append(_bars(found, mine, name, places, theme))
    data += _joins(found, places, theme)
    data.append(_clocks(found, heads, theme))
    notes, shapes = _heads(found, heads, height, theme)
    figure = {
        "data": data,
        "layout": layout(
            theme, height=height + 46, barmode="overlay", bargap=0, dragmode="zoom", hovermode="closest",
            margin={"l": 8, "r": 10, "t": 4, "b": 8}, annotations=notes, shapes=shapes,
            meta={"zoom": {"first": "lo", "last": "hi", "scale": 1e6}},
            xaxis={"range": [at.lo / 1e6, at.hi / 1e6], "title": "ms after the start of the step", "showgrid": True,
                   "zeroline": False, "nticks": 12, "tickformat": ",~g"},
            yaxis={"range": [height, 0], "fixedrange": True, "showgrid": False, "zeroline": False,
                   "tickvals": [y for y, _ in ticks], "ticktext": [text for _, text in ticks],
                   "tickfont": {"size": 10, "color": theme.muted}},
        ),
    }  # fmt: skip
    return Chart(figure, words(found), height + 46)


def _places(found: Scene) -> tuple[list[tuple[float, float]], list[tuple[float, str]], dict[int, float], int]:
    """Return (centre, height) of every row, labels of lanes, where each rank's name stands, and the total height."""
    places: list[tuple[float, float]] = []
    ticks: list[tuple[float, str]] = []
    heads: dict[int, float] = {}
    lines: dict[tuple[Any, ...], float] = {}
    labelled: set[tuple[int, str]] = set()
    y = 0.0
    for row in found.rows:
        if row.rank not in heads:
            heads[row.rank] = y + HEAD_PX / 2
            y += HEAD_PX
        slot = row.slot
        line = (row.rank, slot.lane, *((slot.name, slot.depth) if slot.kind == "host" else ()))
        if line not in lines:
            size = ROW_PX if slot.kind != "host" else ROW_PX - 3
            lines[line] = y + size / 2
            y += size
        if (row.rank, slot.lane) not in labelled:
            labelled.add((row.rank, slot.lane))
            ticks.append((lines[line], escape(fmt.clean(slot.lane, 20))))
        size = (ROW_PX if slot.kind != "host" else ROW_PX - 3) - 2
        low = slot.name in SMALL or (slot.kind == "idle" and slot.name == "unattributed")
        places.append((lines[line] + (size / 4 if low else 0), size / 2 if low else size))
    return places, ticks, heads, int(max(y, 60)) + 6


def _bars(found: Scene, mine: Any, name: str, places: list[tuple[float, float]], theme: Theme) -> dict[str, Any]:
    start, end, busy = found.start[mine], found.end[mine], found.busy[mine]
    share = np.clip(busy / np.maximum(end - start, 1), 0, 1)
    colour = colour_of(name, theme)
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    rows = found.row[mine].tolist()
    shown = found.moment.hi - found.moment.lo
    letters = np.where(found.count[mine] == 1, (end - start) / max(shown, 1) * 140, 0).astype(int)
    return {
        "type": "bar", "orientation": "h", "name": LABELS[name], "y": [round(places[row][0], 2) for row in rows],
        "width": [places[row][1] for row in rows], "base": [round(v, 6) for v in (start / 1e6).tolist()],
        "x": [round(v, 6) for v in ((end - start) / 1e6).tolist()],
        "marker": {"color": [f"rgba({red},{green},{blue},{a})" for a in np.round(0.25 + 0.75 * share, 2).tolist()],
                   "line": {"width": 0.5, "color": theme.surface}},
        "text": [_short(found.label[i], n) for i, n in zip(mine.tolist(), letters.tolist(), strict=True)],
        "textposition": "inside", "insidetextanchor": "start", "constraintext": "none", "textangle": 0,
        "textfont": {"size": 9, "color": ink(colour)}, "cliponaxis": True,
        "customdata": [_hover(found, int(i), name) for i in mine.tolist()],
        "hovertemplate": "%{customdata}<extra></extra>",
    }  # fmt: skip


def _short(text: str, letters: int) -> str:
    """Return a name that fits its bar; nothing rather than a stump."""
    return escape(fmt.clean(text, min(letters, 60))) if letters >= min(len(text), 9) else ""


def _hover(found: Scene, i: int, name: str) -> str:
    row = found.rows[int(found.row[i])]
    start, end, busy = int(found.start[i]), int(found.end[i]), int(found.busy[i])
    count = int(found.count[i])
    where = f"rank {row.rank}, {escape(fmt.clean(row.slot.lane, 30))}"
    if count == 1:
        lines = [
            f"<b>{escape(fmt.clean(found.label[i], 80))}</b>",
            f"{LABELS[name]}, {where}, {fmt.duration(end - start)}",
        ]
    else:
        share = fmt.percent(busy / max(end - start, 1))
        lines = [f"<b>{count:,} × {LABELS[name]}</b>, {where}",
                 f"busy {fmt.duration(busy)} of {fmt.duration(end - start)} ({share})",
                 f"longest: {escape(fmt.clean(found.label[i], 70))}"]  # fmt: skip
    call = found.calls.get(row.rank, {}).get(int(found.event[i])) if name == "communication" and count == 1 else None
    if call:
        lines.append(_call_words(call))
    return "<br>".join(lines)


def _call_words(call: dict[str, Any]) -> str:
    parts = [f"{escape(str(call['op']))} in {escape(fmt.clean(call['group'] or 'unknown group', 24))}"]
    if call["bytes"] is not None:
        parts.append(fmt.si(call["bytes"], "B"))
    if call["wait_ns"] is not None:
        parts.append(f"wait {fmt.duration(call['wait_ns'])}, transfer {fmt.duration(call['transfer_ns'])}")
    else:
        parts.append("wait and transfer cannot be told apart")
    if call["caused_by"] is not None:
        parts.append(f"waited for rank {call['caused_by']}")
    return "; ".join(parts)


def _joins(found: Scene, places: list[tuple[float, float]], theme: Theme) -> list[dict[str, Any]]:
    """Return the starts and the ends of collectives, joined across ranks."""
    lines: list[dict[str, Any]] = []
    for which, dash in ((1, "solid"), (2, "dot")):
        x: list[float | None] = []
        y: list[float | None] = []
        for join in found.joins:
            x += [*(round(point[which] / 1e6, 6) for point in join["points"]), None]
            y += [*(round(places[point[0]][0], 2) for point in join["points"]), None]
        if x:
            lines.append({"type": "scatter", "mode": "lines", "x": x, "y": y, "hoverinfo": "skip", "cliponaxis": True,
                          "name": "one collective", "connectgaps": False,
                          "line": {"color": theme.text, "width": 0.8, "dash": dash}, "opacity": 0.55})  # fmt: skip
    return lines


def _clocks(found: Scene, heads: dict[int, float], theme: Theme) -> dict[str, Any]:
    """Return the error of each rank's clock as a mark of its true width."""
    at = found.moment
    ranks = [rank for rank in heads if found.uncertainty.get(rank) is not None]
    u = np.array([found.uncertainty[rank] or 0 for rank in ranks], float) / 1e6
    centre = at.lo / 1e6 + 0.62 * (at.hi - at.lo) / 1e6
    return {
        "type": "scatter", "mode": "markers", "name": "clock error", "x": [centre] * len(ranks),
        "y": [heads[rank] for rank in ranks], "marker": {"symbol": "line-ns-open", "size": 8, "color": theme.bad,
                                                         "line": {"width": 1.5, "color": theme.bad}},
        "error_x": {"type": "data", "array": packed(u, "f8"), "color": theme.bad, "thickness": 1.5, "width": 3},
        "customdata": [f"rank {rank}: clock ±{fmt.duration(found.uncertainty[rank])}" for rank in ranks],
        "hovertemplate": "%{customdata}<extra></extra>",
    }  # fmt: skip


def _heads(
    found: Scene, heads: dict[int, float], height: int, theme: Theme
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the names of the ranks, lines between them, and where each rank's own step begins and ends."""
    at = found.moment
    notes, shapes = [], []
    tops = [y - HEAD_PX / 2 for y in heads.values()]
    for i, (rank, y) in enumerate(heads.items()):
        u = found.uncertainty.get(rank)
        clock = "clock not aligned" if u is None else f"clock ±{fmt.duration(u)}"
        text = f"<b>rank {rank}</b>  {escape(fmt.clean(found.clocks.get(rank) or '', 24))}  {clock}"
        notes.append({"x": at.lo / 1e6, "y": y, "xref": "x", "yref": "y", "xanchor": "left", "yanchor": "middle",
                      "text": text, "showarrow": False, "font": {"size": 11, "color": theme.text}})  # fmt: skip
        shapes.append({"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": tops[i], "y1": tops[i],
                       "line": {"color": theme.grid, "width": 1}, "layer": "below"})  # fmt: skip
        bottom = tops[i + 1] if i + 1 < len(tops) else height
        for moment in at.windows.get(rank, ()):
            if at.lo <= moment <= at.hi:
                shapes.append({"type": "line", "xref": "x", "x0": moment / 1e6, "x1": moment / 1e6, "yref": "y",
                               "y0": tops[i] + HEAD_PX, "y1": bottom, "layer": "below",
                               "line": {"color": theme.accent, "width": 1, "dash": "dash"}})  # fmt: skip
    return notes, shapes


def words(found: Scene) -> str:
    """Say what the picture shows."""
    at = found.moment
    step = "the whole trace" if at.step is None else f"step {at.step}"
    span = f"{fmt.duration(at.lo)} to {fmt.duration(at.hi)}"
    busy: dict[str, int] = {}
    for row, ns in zip(found.row.tolist(), found.busy.tolist(), strict=True):
        slot = found.rows[row].slot
        if slot.depth == 0 and slot.kind != "host":
            busy[slot.name] = busy.get(slot.name, 0) + ns
    whole = max((at.hi - at.lo) * len(at.ranks), 1)
    order = ("compute", "communication", "memcpy", *CAUSES)
    said = ", ".join(f"{LABELS[n]} {100 * busy[n] / whole:.1f} %" for n in order if busy.get(n))
    return (
        f"{step}, {span} after its start, on ranks {', '.join(map(str, at.ranks))}: {found.events:,} events in "
        f"{len(found.row):,} bars. Busy, summed over streams: {said or 'nothing'}."
    )
