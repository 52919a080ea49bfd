"""`--fail-on EXPR`: conditions on the document that make a command fail.

    gate = parse("mfu < 38%, exposed_comm > 0.1")     UsageError before any work is done
    check([gate], document)                           raises GateTripped (exit 1) or GateUnknown (exit 2)

    EXPR      = CONDITION { ("," | "or") CONDITION }          any one trips
    CONDITION = NAME ("<" | "<=" | ">" | ">=" | "==" | "!=") NUMBER [UNIT]
    NAME      = a short name (SHORT), the dotted path of a number in the document,
                or waterfall.TERM, waterfall.TERM.PART for the points of a term
    UNIT      = % | ns | us | ms | s | min | h

There is no `and`: with it, a condition that is false would hide one that is unknown, and a value that is null
never passes. Units must fit: `mfu<38` is refused, because MFU is a fraction and the condition would always hold.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from perfkit.errors import GateTripped, PerfkitError, UsageError
from perfkit.report.format import duration
from perfkit.report.json_schema import COUNT, NS, NUMBER, RATIO, complete, numeric_paths

_NS_PER = {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9, "h": 3600e9}
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_CONDITION = re.compile(
    r"\s*(?P<name>[A-Za-z_][\w.]*)\s*(?P<op><=|>=|==|!=|<|>)\s*"
    r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>%|[A-Za-zµ]+)?\s*"
)
_SEPARATOR = re.compile(r",|\bor\b")

Getter = Callable[[Mapping[str, Any]], float | None]


class GateUnknown(PerfkitError):
    """A `--fail-on` condition is over a value that is null: no verdict, so no pass."""


@dataclass(frozen=True)
class Condition:
    """One comparison."""

    text: str
    name: str
    compare: str
    limit: float
    kind: str
    get: Getter

    def holds(self, document: Mapping[str, Any]) -> bool | None:
        """Say whether it holds; None if the value is unknown."""
        value = self.get(document)
        return None if value is None else _OPERATORS[self.compare](value, self.limit)


def parse(expression: str) -> tuple[Condition, ...]:
    """Parse an expression, or say what is wrong with it."""
    return tuple(_condition(part) for part in _SEPARATOR.split(expression))


def check(gates: Iterable[Iterable[Condition]], document: Mapping[str, Any]) -> None:
    """Raise if any condition holds (exit 1), or else if any is over a null (exit 2)."""
    document = complete(document)
    tripped, unknown = [], []
    for condition in (c for gate in gates for c in gate):
        value = condition.get(document)
        if value is None:
            why = _reason(condition.name, document)
            unknown.append(f"{condition.name} is unknown{why}, so `{condition.text}` cannot pass")
        elif condition.holds(document):
            shown = duration(value) if condition.kind == NS else f"{value:.6g}"
            tripped.append(f"{condition.text} holds: {condition.name} is {shown}")
    if tripped:
        raise GateTripped("; ".join(["--fail-on: " + tripped[0], *tripped[1:], *unknown]))
    if unknown:
        raise GateUnknown("--fail-on: " + "; ".join(unknown))


def _condition(text: str) -> Condition:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--fail-on: {text.strip()!r} is no condition",
            next_step="write NAME OPERATOR NUMBER, like 'mfu<0.38' or 'step_time_p95>70ms', with `,` in between",
        )
    name, unit = match["name"], match["unit"]
    kind, get = _lookup(name)
    limit = float(match["number"])
    if unit == "%":
        if kind != RATIO:
            raise UsageError(f"--fail-on: {name} is no fraction, so it cannot be compared with a percentage")
        limit /= 100
    elif unit is not None:
        if unit not in _NS_PER:
            raise UsageError(f"--fail-on: {unit!r} is no unit", next_step=f"use one of %, {', '.join(_NS_PER)}")
        if kind != NS:
            raise UsageError(f"--fail-on: {name} is no time, so it cannot be compared with {unit}")
        limit *= _NS_PER[unit]
    elif kind == NS and not name.endswith("_ns"):
        raise UsageError(f"--fail-on: {name} needs a unit", next_step=f"write '{text.strip()}ms', for example")
    elif kind == RATIO and not -1 <= limit <= 1:
        raise UsageError(
            f"--fail-on: {name} is a fraction from 0 to 1, so {match['number']} decides nothing",
            next_step=f"write {limit / 100:g} or {match['number']}%",
        )
    return Condition(" ".join(text.split()), name, match["op"], limit, kind, get)


def _lookup(name: str) -> tuple[str, Getter]:
    if name in SHORT:
        return SHORT[name][:2]
    if name.startswith("waterfall."):
        return NUMBER, _waterfall(name.removeprefix("waterfall."))
    paths = numeric_paths()
    if name in paths:
        return paths[name], _path(name)
    import difflib

    close = difflib.get_close_matches(name, [*SHORT, *paths], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else "docs/analyze.md lists the names"
    raise UsageError(f"--fail-on: nothing is called {name!r}", next_step=hint)


def _finite(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def _path(path: str) -> Getter:
    def get(document: Mapping[str, Any]) -> float | None:
        value: Any = document
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return _finite(value)

    return get


def _share(path: str) -> Getter:
    def get(document: Mapping[str, Any]) -> float | None:
        part, window = _path(path)(document), _path("totals.window_ns")(document)
        return part / window if part is not None and window else None

    return get


def _waterfall(path: str) -> Getter:
    parent, _, term = path.rpartition(".")

    def get(document: Mapping[str, Any]) -> float | None:
        rows = document["waterfall"] or ()
        found = [row for row in rows if (row["parent"] or "", row["term"]) == (parent, term) and row["measured"]]
        return _finite(found[0]["points"]) if found else None

    return get


def _length(*path: str) -> Getter:
    def get(document: Mapping[str, Any]) -> float | None:
        value: Any = document
        for name in path:
            value = value[name]
        return None if value is None else len(value)

    return get


def _ranks_missing(document: Mapping[str, Any]) -> float | None:
    world, traced = document["scope"]["world_size"], document["scope"]["ranks_traced"]
    return None if world is None or traced is None else world - traced


def _best_finding(document: Mapping[str, Any]) -> float | None:
    rows = document["findings"]
    if rows is None or any(row["points"] is None for row in rows):
        return None
    return max((float(row["points"]) for row in rows), default=0.0)


SHORT: dict[str, tuple[str, Getter, str]] = {
    "mfu": (RATIO, _path("mfu.value"), "`mfu.value`"),
    "hfu": (RATIO, _path("mfu.hfu"), "`mfu.hfu`"),
    "compute": (RATIO, _share("totals.compute_ns"), "share of the windows"),
    "exposed_comm": (RATIO, _share("totals.exposed_comm_ns"), "share of the windows"),
    "exposed_memcpy": (RATIO, _share("totals.exposed_memcpy_ns"), "share of the windows"),
    "idle": (RATIO, _share("totals.idle_ns"), "share of the windows"),
    "host_late": (RATIO, _share("idle.host_late_ns"), "share of the windows: idle because the host was late"),
    "data_wait": (RATIO, _share("io.data_wait_ns"), "share of the windows: idle for want of data"),
    "unknown_kernels": (RATIO, _share("quality.unknown_kernel_ns"), "share of the windows"),
    "overlap": (RATIO, _path("totals.overlap"), "`totals.overlap`: share of communication that compute hides"),
    "step_time_p50": (NS, _path("throughput.step_time_p50_ns"), "median step, with a unit: `70ms`"),
    "step_time_p95": (NS, _path("throughput.step_time_p95_ns"), "95th percentile, with a unit"),
    "tokens_per_second": (NUMBER, _path("throughput.tokens_per_second"), "of the job"),
    "tokens_per_second_per_device": (NUMBER, _path("throughput.tokens_per_second_per_device"), "per device"),
    "findings": (COUNT, _length("findings"), "number of findings"),
    "finding_points": (
        NUMBER,
        _best_finding,
        "points of the largest finding; 0 if there is none, null if any finding has no points",
    ),
    "rejected": (COUNT, _length("quality", "rejected"), "number of inputs that could not be used"),
    "ranks_missing": (COUNT, _ranks_missing, "ranks of the job without a trace"),
}
"""Short names: kind, how to get it, what it is."""


def _reason(name: str, document: Mapping[str, Any]) -> str:
    from perfkit.report.verdict import why_no_mfu

    reasons = why_no_mfu(document) if name in ("mfu", "mfu.value") else []
    return f" ({'; '.join(reasons)})" if reasons else ""
