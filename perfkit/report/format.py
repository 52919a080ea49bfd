"""Numbers and names as people read them; the only place where units are converted.

Unknown is `–`, never 0. Names come from traces and may hold anything: `clean` replaces what is not printable, so
that a kernel's name can neither move a cursor nor reverse the direction of the text around it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

UNKNOWN = "–"

_TIME = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns"))
_SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))


def clean(text: object, width: int | None = None) -> str:
    """Return printable text of at most `width` characters."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text))
    return shown if width is None or len(shown) <= width else shown[: max(width - 1, 0)] + "…"


def duration(ns: float | None) -> str:
    """Render nanoseconds in the unit that keeps the number between 1 and 1000."""
    if ns is None:
        return UNKNOWN
    if abs(ns) >= 7200e9:
        return f"{ns / 3600e9:,.1f} h"
    for scale, unit in _TIME:
        if abs(ns) >= scale:
            return f"{ns / scale:,.{_decimals(ns / scale)}f} {unit}"
    return "0"


def signed_duration(ns: float) -> str:
    """Format a change of a duration."""
    return f"{'−' if ns < 0 else '+'}{duration(abs(ns))}"


def copies(direction: str) -> str:
    """Name the copies of a direction; a memset copies nothing."""
    return "memset" if direction == "memset" else f"{direction} copies"


def si(value: float | None, unit: str) -> str:
    """Render a number with an SI prefix: `989 TFLOP/s`."""
    if value is None:
        return UNKNOWN
    for scale, prefix in _SI:
        if abs(value) >= scale:
            return f"{value / scale:,.{_decimals(value / scale)}f} {prefix}{unit}".rstrip()
    return f"{value:.3g} {unit}".rstrip()


def power(exponent: int, unit: str) -> str:
    """Render 10^exponent with an SI prefix: `10 TFLOP/s`."""
    return si(10.0**exponent, unit).replace(".00 ", " ").replace(".0 ", " ")


def _decimals(value: float) -> int:
    return 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2


def hours(value: float | None) -> str:
    """Render GPU-hours."""
    if value is None:
        return UNKNOWN
    if 0 < abs(value) < 0.001:
        return "< 0.001" if value > 0 else "> -0.001"
    return f"{value:,.{3 if abs(value) < 100 else 0}f}"


def count(value: int | None) -> str:
    """Render an integer with separators."""
    return UNKNOWN if value is None else f"{value:,}"


def percent(share: float | None, digits: int = 1) -> str:
    """Render a fraction."""
    return UNKNOWN if share is None else f"{100 * share:.{digits}f} %"


def points(value: float | None, digits: int = 2) -> str:
    """Render points of peak."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def ratio(part: float | None, whole: float | None) -> float | None:
    """Divide, or None where either is unknown or the whole is nothing."""
    return part / whole if part is not None and whole else None


def plural(number: int, noun: str) -> str:
    """Say `1 rank`, `2 ranks`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def ranges(numbers: Iterable[int]) -> str:
    """Say `0-3, 7`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def value(name: str, item: Any) -> str:
    """Render a value by the unit that its name carries."""
    if item is None:
        return UNKNOWN
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, (int, float)):
        return _number(name, item)
    if isinstance(item, dict):
        return ", ".join(f"{label(key)} {value(key, part)}" for key, part in item.items())
    if isinstance(item, (list, tuple)):
        return ", ".join(value(name, part) for part in item)
    return clean(item)


def _number(name: str, item: float) -> str:
    if name.endswith("ns") and (name == "ns" or name.endswith("_ns")):
        return duration(item)
    if name == "ms" or name.endswith("_ms"):
        return duration(item * 1e6)
    if name.endswith("_ms_per_step"):
        return f"{duration(item * 1e6)} a step"
    if name.endswith("_us"):
        return duration(item * 1e3)
    if name.endswith("_points"):
        return f"{item:.2f} points"
    if name.startswith(("mfu", "hfu")) or name.endswith(
        ("_coverage", "share", "ratio", "efficiency", "overlap", "hfu", "_gain")
    ):
        return percent(item)
    if name.endswith("bytes"):
        return si(item, "B")
    if name.endswith("flops"):
        return si(item, "FLOP")
    if name.endswith("gbps"):
        return f"{item:,.{_decimals(item)}f} GB/s" if item >= 0.005 or not item else "< 0.01 GB/s"
    return f"{item:,}" if isinstance(item, int) else f"{item:,.4g}"


_UNITS = ("_ns", "_ms_per_step", "_ms", "_us", "_gbps", "_bytes", "_flops", "_ratio", "_points")


def _unit(name: str) -> str:
    return next((suffix for suffix in _UNITS if name.endswith(suffix)), "")


def label(name: str) -> str:
    """Turn a key into words, without the unit that the value shows."""
    return _WORDS.get(name) or clean(name.removesuffix(_unit(name)).removesuffix("_gpu")).replace("_", " ")


_WORDS = {
    "lost_gpu_ms": "lost on all ranks", "gbps": "at", "clock_uncertainty_us": "clocks ±", "input_dims": "shapes",
    "steps_first": "steps in which it cost most", "score": "speed against peers", "scores": "speed against peers",
    "matrix_kernels": "matrix kernels, times as long", "other_kernels": "other kernels, times as long",
    "imbalance": "heaviest rank over the mean", "graph_coverage": "work in CUDA graphs", "ratio": "share of the time",
    "ideal_ratio": "of the passes by the schedule's formula", "ideal_ns": "for the schedule",
    "imbalance_ns": "for unequal stages",
    "straggler_ns": "for a straggler", "message_ns": "for messages", "other_ns": "for the rest",
}  # fmt: skip
"""Where the key is not what people say."""


def evidence(item: Any, limit: int = 4, unit: str = "points") -> list[str]:
    """Render the evidence of a finding, one line per row: it may be text, a table of facts, or a list of rows.

    `unit` is what the ladder is in.
    """
    if item is None or item == "":
        return []
    if isinstance(item, dict):
        if item.get("lost_gpu_ms", 0) in (item.get("idle_ms"), item.get("exposed_ms")):
            item = {k: v for k, v in item.items() if k != "lost_gpu_ms"}  # one device: it lost what was measured
        flat = {k: v for k, v in item.items() if not isinstance(v, (list, dict)) and v is not None}
        lines = [" · ".join(_fact(k, v, unit) for k, v in flat.items())] if flat else []
        for key, part in item.items():
            if key not in flat and part:
                suffix = _unit(key)  # a table of numbers carries its unit in its own name
                inner = {f"{k}{suffix}": v for k, v in part.items()} if suffix and isinstance(part, dict) else part
                lines += [f"{label(key)}: {line}" for line in evidence(inner, limit, unit)]
        return lines
    if isinstance(item, (list, tuple)):
        lines = [line for row in item[:limit] for line in evidence(row, limit, unit)]
        return [*lines, f"and {len(item) - limit:,} more"] if len(item) > limit else lines
    return [clean(item)]


def short_name(name: str, width: int = 80) -> str:
    """Return what tells kernels apart at a glance: C++ names repeat their arguments over several lines."""
    return clean(name.removeprefix("void "), width)


def _fact(name: str, item: Any, unit: str) -> str:
    if name == "kernel" and isinstance(item, str):
        return short_name(item)
    if name.endswith("_points") and isinstance(item, (int, float)):
        return f"{label(name)} {points(item)} {unit}"
    return (
        value(name, item)
        if name in ("ns", "ms", "where", "kernel", "name", "kind", "op", "culprit")
        else f"{label(name)} {value(name, item)}"
    )
