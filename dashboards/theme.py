"""Colours and type of figures, in light and dark; the style sheet holds the same values as CSS variables.

Hues are those of Okabe and Ito, moved until each has 3:1 against its background: they differ for all kinds of colour
vision, and neighbours in a stack differ in lightness too. Heat maps use cividis, made for that purpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perfkit.schema import GOODPUT_LOSSES

FONT = "Inter, 'Segoe UI', system-ui, -apple-system, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True)
class Theme:
    """What a figure needs to know."""

    name: str
    text: str
    muted: str
    grid: str
    surface: str
    accent: str
    bad: str
    groups: dict[str, str]
    """Colour by group of where time went."""
    kinds: dict[str, str]
    """Colour by kind of waterfall term."""
    states: dict[str, str]
    """Colour by state of a node."""


LIGHT = Theme(
    name="light", text="#1b2129", muted="#59636f", grid="#e4e7eb", surface="#ffffff", accent="#1f5fbf", bad="#b3261e",
    groups={
        "productive": "#0b6fa8", "startup": "#3f9bd1", "stalls": "#c67d00", "checkpoints": "#a04c88",
        "failures": "#bf4a14", "unexplained": "#7d8793", "idle": "#c9d0d8", "down": "#3c2a3e",
    },
    kinds={"useful": "#0b6fa8", "compute": "#3f9bd1", "comm": "#c67d00", "bubble": "#a04c88", "copy": "#7d8793",
           "idle": "#bf4a14"},
    states={"up": "#d5dee6", "drained": "#3f9bd1", "unhealthy": "#c67d00", "down": "#a5261b", "unknown": "#8b95a1"},
)  # fmt: skip

DARK = Theme(
    name="dark", text="#e7ebf0", muted="#a3adb9", grid="#2b343f", surface="#171d24", accent="#7db3ff", bad="#ff8f85",
    groups={
        "productive": "#4aa8e0", "startup": "#8fd0f7", "stalls": "#f0ab2e", "checkpoints": "#d487bb",
        "failures": "#f07b45", "unexplained": "#94a0ad", "idle": "#465261", "down": "#b98fbd",
    },
    kinds={"useful": "#4aa8e0", "compute": "#8fd0f7", "comm": "#f0ab2e", "bubble": "#d487bb", "copy": "#94a0ad",
           "idle": "#f07b45"},
    states={"up": "#33404d", "drained": "#4aa8e0", "unhealthy": "#f0ab2e", "down": "#ff7a6e", "unknown": "#7c8896"},
)  # fmt: skip

THEMES = {"light": LIGHT, "dark": DARK}

GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "productive": ("productive", ("productive",)),
    "startup": ("start-up", ("init", "compile")),
    "stalls": ("slow steps, data", ("slow_step", "data_stall")),
    "checkpoints": ("checkpoint, eval", ("checkpoint", "restore", "eval")),
    "failures": ("failures", ("lost", "recovery", "hang")),
    "unexplained": ("unexplained", ("unknown",)),
    "idle": ("idle", ("idle",)),
    "down": ("down", ("down",)),
}
"""Groups of goodput buckets for a stack that people can read: label and members. The last two are not allocated."""

assert {b for _, members in GROUPS.values() for b in members} >= {"productive", *GOODPUT_LOSSES}

CIVIDIS = [
    [0.0, "#00224e"], [0.1, "#123570"], [0.2, "#3b496c"], [0.3, "#575d6d"], [0.4, "#707173"], [0.5, "#8a8678"],
    [0.6, "#a59c74"], [0.7, "#c3b369"], [0.8, "#e1cc55"], [0.9, "#f3dd4a"], [1.0, "#fee838"],
]  # fmt: skip


def layout(theme: Theme, **extra: Any) -> dict[str, Any]:
    """Return the layout that all figures share."""
    axis = {
        "gridcolor": theme.grid, "linecolor": theme.grid, "zerolinecolor": theme.grid, "tickcolor": theme.grid,
        "tickfont": {"color": theme.muted, "size": 11}, "title": {"font": {"color": theme.muted, "size": 11}},
        "automargin": True,
    }  # fmt: skip
    base: dict[str, Any] = {
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12, "color": theme.text},
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8}, "showlegend": False,
        "hoverlabel": {"bgcolor": theme.surface, "bordercolor": theme.grid,
                       "font": {"color": theme.text, "family": FONT, "size": 12}, "align": "left", "namelength": -1},
        "dragmode": False,
    }  # fmt: skip
    for name, value in extra.items():
        if name.startswith(("xaxis", "yaxis")):
            title = value.pop("title", None)
            value = {**axis, **value}
            if title:
                value["title"] = {"text": title, "font": {"color": theme.muted, "size": 11}, "standoff": 8}
        base[name] = value
    return base
