"""The picture of a step: lanes of ranks above each other, bars in time. Plain columns that assets/timeline.js draws.

    picture(scene)  -> {lo, hi, length, rows, bars, lanes, heads, joins, …}     times in ns after the step's start
    palette()       -> theme -> {class: colour}, so that a change of theme asks for nothing

A bar that stands for several events is as pale as it was idle inside; its hover says how many they are and how long
they were busy. Lines join the starts (solid) and the ends (dotted) of one collective on several ranks. The mark
beside a rank's name is as wide as the error of its clock in both directions. Drawn on a canvas, not by plotly: a
thousand bars of SVG take a browser longer than the server needs for all the rest. All texts are drawn as text.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import format as fmt
from .data_timeline import CAUSES, Scene
from .figures import ink
from .theme import THEMES, Theme

ROW_PX, HOST_PX, HEAD_PX = 13, 10, 22
LABELS = {
    "compute": "compute", "communication": "communication", "memcpy": "copy", "memset": "memset", "sync": "sync",
    "device_range": "range on the device", "range": "range", "python": "Python", "op": "op", "runtime": "driver call",
    "gc": "garbage collection", "overhead": "profiler", "memory": "allocator", "other": "other",
    "host_late": "idle: host late", "launch": "idle: launch latency", "dependency": "idle: waits for a stream",
    "unattributed": "idle: unattributed",
}  # fmt: skip
CLASSES = tuple(LABELS)
SMALL = ("memcpy", "memset")
"""Classes that share a stream's row with kernels: drawn lower."""
FEWEST_LETTERS = 9
"""A name is drawn in its bar if so many letters of it may have room; the canvas measures."""


def colour_of(name: str, theme: Theme) -> str:
    """Return the colour of a class or cause."""
    kinds, groups = theme.kinds, theme.groups
    return {
        "compute": kinds["useful"], "communication": kinds["comm"], "memcpy": kinds["copy"], "memset": kinds["copy"],
        "sync": groups["idle"], "device_range": groups["idle"], "range": kinds["copy"], "python": kinds["bubble"],
        "op": kinds["compute"], "runtime": groups["unexplained"], "host_late": kinds["idle"],
        "launch": groups["down"], "dependency": kinds["bubble"],
    }.get(name, groups["unexplained"])  # fmt: skip


def palette() -> dict[str, Any]:
    """Return the colours of both themes: of each class with the ink on it, and of the frame."""
    return {
        theme.name: {
            "classes": [colour_of(name, theme) for name in CLASSES],
            "inks": [ink(colour_of(name, theme)) for name in CLASSES],
            **{name: getattr(theme, name) for name in ("text", "muted", "grid", "surface", "accent", "bad")},
        }
        for theme in THEMES.values()
    }


def picture(found: Scene) -> dict[str, Any]:
    """Return the scene as columns."""
    at = found.moment
    places, lanes, heads, height = _places(found)
    mine = [CLASSES.index(row.slot.name) for row in found.rows]
    rows = found.row.tolist()
    share = np.clip(found.busy / np.maximum(found.end - found.start, 1), 0, 1)
    letters = np.where(found.count == 1, (found.end - found.start) / max(at.hi - at.lo, 1) * 240, 0)
    names: dict[str, int] = {}
    text = [
        names.setdefault(fmt.clean(found.label[i], 60), len(names)) if room >= FEWEST_LETTERS else -1
        for i, room in enumerate(letters.tolist())
    ]
    return {
        "lo": at.lo, "hi": at.hi, "length": at.length_ns, "height": height, "cell": found.cell_ns,
        "rows": {"y": [round(y, 2) for y, _ in places], "h": [h for _, h in places], "class": mine},
        "bars": {"row": rows, "start": found.start.tolist(), "end": found.end.tolist(),
                 "fill": np.rint(100 * share).astype(int).tolist(), "text": text,
                 "hover": [_hover(found, i) for i in range(len(rows))]},
        "names": list(names), "lanes": lanes, "heads": _heads(found, heads), "edges": _edges(found, heads, height),
        "joins": [[[places[row][0], start, end] for row, start, end in join["points"]] for join in found.joins],
        "instances": _instances(found), "legend": legend(found), "words": words(found),
    }  # fmt: skip


def legend(found: Scene) -> list[tuple[str, int]]:
    """Return what is drawn: label and number of the class; -1 is the clock."""
    there = {found.rows[row].slot.name for row in np.unique(found.row).tolist()}
    found_clock = any(u is not None for u in found.uncertainty.values())
    clock = [("clock error, to scale", -1)] if found_clock and len(found.moment.ranks) > 1 else []
    return [*((label, i) for i, (name, label) in enumerate(LABELS.items()) if name in there), *clock]


def _places(found: Scene) -> tuple[list[tuple[float, float]], list[tuple[float, str]], dict[int, float], int]:
    """Return (centre, height) of every row, labels of lanes, where each rank's name stands, and the total height."""
    places: list[tuple[float, float]] = []
    lanes: list[tuple[float, str]] = []
    heads: dict[int, float] = {}
    lines: dict[tuple[Any, ...], float] = {}
    labelled: set[tuple[int, str]] = set()
    y = 0.0
    for row in found.rows:
        if row.rank not in heads:
            heads[row.rank] = y + HEAD_PX / 2
            y += HEAD_PX
        slot = row.slot
        size = HOST_PX if slot.kind == "host" else ROW_PX
        line = (row.rank, slot.lane, *((slot.name, slot.depth) if slot.kind == "host" else ()))
        if line not in lines:
            lines[line] = y + size / 2
            y += size
        if (row.rank, slot.lane) not in labelled:
            labelled.add((row.rank, slot.lane))
            lanes.append((lines[line], fmt.clean(slot.lane, 20)))
        size -= 2
        low = slot.name in SMALL or (slot.kind == "idle" and slot.name == "unattributed")
        places.append((lines[line] + (size / 4 if low else 0), size / 2 if low else size))
    return places, lanes, heads, int(max(y, 60)) + 6


def _hover(found: Scene, i: int) -> str:
    row = found.rows[int(found.row[i])]
    name = row.slot.name
    start, end, busy = int(found.start[i]), int(found.end[i]), int(found.busy[i])
    count = int(found.count[i])
    where = f"rank {row.rank}, {fmt.clean(row.slot.lane, 30)}"
    if count == 1:
        lines = [fmt.clean(found.label[i], 80), f"{LABELS[name]}, {where}, {fmt.duration(end - start)}"]
    else:
        share = fmt.percent(busy / max(end - start, 1))
        lines = [f"{count:,} × {LABELS[name]}, {where}",
                 f"busy {fmt.duration(busy)} of {fmt.duration(end - start)} ({share})",
                 f"longest: {fmt.clean(found.label[i], 70)}"]  # fmt: skip
    call = _call(found, i)
    if call:
        lines.append(_call_words(call))
    return "\n".join(lines)


def _call(found: Scene, i: int) -> dict[str, Any] | None:
    """Return what the analysis says about a bar that is one collective."""
    row = found.rows[int(found.row[i])]
    if row.slot.name != "communication" or found.count[i] != 1:
        return None
    return found.calls.get(row.rank, {}).get(int(found.event[i]))


def _instances(found: Scene) -> dict[int, int]:
    """Return bar -> instance of its collective, where it has one."""
    calls = ((i, _call(found, i)) for i in range(len(found.row)))
    return {i: call["instance"] for i, call in calls if call and call["instance"] is not None}


def _call_words(call: dict[str, Any]) -> str:
    parts = [f"{call['op']} in {fmt.clean(call['group'] or 'unknown group', 24)}"]
    if call["bytes"] is not None:
        parts.append(fmt.size(call["bytes"]))
    if call["wait_ns"] is not None:
        parts.append(f"wait {fmt.duration(call['wait_ns'])}, transfer {fmt.duration(call['transfer_ns'])}")
    else:
        parts.append("wait and transfer cannot be told apart")
    if call["caused_by"] is not None:
        parts.append(f"waited for rank {call['caused_by']}")
    return "; ".join(parts)


def _heads(found: Scene, heads: dict[int, float]) -> list[list[Any]]:
    """Return where each rank's name stands: y, name, clock in words, error in ns or null."""
    rows = []
    for rank, y in heads.items():
        u = found.uncertainty.get(rank)
        clock = "clock not aligned" if u is None else f"clock ±{fmt.duration(u)}"
        rows.append([y, f"rank {rank}", f"{fmt.clean(found.clocks.get(rank) or '', 24)}  {clock}".strip(), u])
    return rows


def _edges(found: Scene, heads: dict[int, float], height: int) -> list[list[float]]:
    """Return where each rank's own step begins and ends: ns, top, bottom."""
    at = found.moment
    tops = [y - HEAD_PX / 2 for y in heads.values()]
    return [
        [moment, top + HEAD_PX, bottom]
        for rank, top, bottom in zip(heads, tops, [*tops[1:], height], strict=True)
        for moment in at.windows.get(rank, ())
        if at.lo <= moment <= at.hi
    ]


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
    lanes = dict.fromkeys(fmt.clean(row.slot.lane, 20) for row in found.rows)
    whole = max((at.hi - at.lo) * len(at.ranks), 1)
    order = ("compute", "communication", "memcpy", *CAUSES)
    said = ", ".join(f"{LABELS[n]} {100 * busy[n] / whole:.1f} %" for n in order if busy.get(n))
    return (
        f"{step}, {span} after its start, on ranks {', '.join(map(str, at.ranks))}: {found.events:,} events in "
        f"{len(found.row):,} bars. Busy, summed over streams: {said or 'nothing'}. Lanes: {', '.join(lanes)}."
    )
