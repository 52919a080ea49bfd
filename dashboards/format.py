"""Numbers and times as the pages show them. Unknown is `–`, never 0; names become printable text."""

from __future__ import annotations

import datetime

from perfkit.report.format import UNKNOWN, clean, duration, percent, plural, si

__all__ = [
    "UNKNOWN",
    "ago",
    "clean",
    "count",
    "day",
    "duration",
    "gpu_hours",
    "number",
    "percent",
    "plural",
    "points",
    "si",
    "size",
    "speed",
    "utc",
]


def number(value: float | None, digits: int = 0) -> str:
    """Render a number with separators."""
    return UNKNOWN if value is None or value != value else f"{value:,.{digits}f}"


def count(value: float | None) -> str:
    """Render a count."""
    return number(value)


def size(value: float | None) -> str:
    """Render bytes; below 1000 there are no parts of one."""
    return si(value, "B") if value is None or abs(value) >= 1000 else f"{value:,.0f} B"


def speed(gbps: float | None) -> str:
    """Render a bandwidth, given in GB/s, with the prefix that it needs."""
    return si(None if gbps is None else 1e9 * gbps, "B/s")


def points(value: float | None) -> str:
    """Render a change in percentage points with its sign."""
    return UNKNOWN if value is None else f"{'+' if value >= 0 else '−'}{abs(value):.1f}"


def gpu_hours(value: float | None) -> str:
    """Render GPU-hours with a prefix that keeps them short."""
    if value is None or value != value:
        return UNKNOWN
    for scale, unit in ((1e6, " M"), (1e3, " k")):
        if abs(value) >= 10 * scale or (scale == 1e6 and abs(value) >= scale):
            return f"{value / scale:,.1f}{unit}"
    return f"{value:,.0f}" if abs(value) >= 10 or value == 0 else f"{value:,.2f}"


def utc(time_ns: int | None) -> str:
    """Render a moment (UTC, minutes)."""
    if time_ns is None or not 0 <= time_ns < 1 << 62:
        return UNKNOWN
    if time_ns < 10**17:
        return f"{time_ns / 1e9:,.1f} s since boot"
    return f"{datetime.datetime.fromtimestamp(time_ns / 1e9, datetime.timezone.utc):%Y-%m-%d %H:%M}"


def day(time_ns: int) -> str:
    """Render a date."""
    return utc(time_ns)[:10]


def ago(seconds: float) -> str:
    """Render how long ago something was."""
    for scale, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * scale:
            return f"{seconds / scale:,.0f} {unit} ago"
    return "just now" if seconds < 60 else "1 min ago"
