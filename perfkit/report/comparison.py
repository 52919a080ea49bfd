"""A Comparison as text, Markdown for a pull request, and JUnit for CI; and its gate.

    to_text(comparison) · to_markdown(comparison) · to_junit(comparison, problem)
    check_change(comparison, "step_time>+3%")

    EXPR = NAME (">" | "<") CHANGE { ("," | "or") … }       NAME: step_time, mfu, hfu, tokens_per_second_per_device,
    CHANGE = [+-]NUMBER ("%" | "points")                          or waterfall.TERM

A condition trips when the change is beyond its limit and the evidence is there (the interval leaves out zero). A change
that is unknown never passes: exit code 2.
"""

from __future__ import annotations

import difflib
import re
from xml.sax.saxutils import quoteattr

from perfkit.analysis.compare import Comparison, Quantity, Row
from perfkit.errors import GateTripped, UsageError
from perfkit.report.format import duration, signed_duration
from perfkit.report.gate import GateUnknown

_CONDITION = re.compile(r"\s*([a-z_][\w.]*)\s*([<>])\s*([+-]?\d+(?:\.\d+)?)\s*(%|points)\s*$")
_SEPARATOR = re.compile(r",|\bor\b")


def check_change(comparison: Comparison, expression: str) -> None:
    """Raise if a condition holds (exit 1) or cannot be judged (exit 2)."""
    tripped, unknown = [], []
    for part in _SEPARATOR.split(expression):
        found = _CONDITION.match(part)
        if found is None:
            raise UsageError(f"--fail-on {part.strip()!r}", next_step="write it like 'step_time>+3%' or 'mfu<-2%'")
        name, sign, number, unit = found.groups()
        quantity = find_quantity(comparison, name)
        if (unit == "points") != (quantity.unit == "points"):
            raise UsageError(f"--fail-on {part.strip()!r}: {name} changes in {'points' if unit == '%' else '%'}")
        limit = float(number) / (100 if unit == "%" else 1)
        if quantity.change is None or quantity.low is None:
            unknown.append(f"the change of {name} is unknown, so `{part.strip()}` cannot pass")
        elif quantity.verdict != "no evidence" and (
            quantity.change > limit if sign == ">" else quantity.change < limit
        ):
            tripped.append(f"{part.strip()} holds: {name} changed by {change_text(quantity)}")
    if tripped:
        raise GateTripped("; ".join(tripped))
    if unknown:
        raise GateUnknown("; ".join(unknown))


def find_quantity(comparison: Comparison, name: str) -> Quantity:
    """Return a quantity by its name, or say which there are."""
    known = {q.name: q for q in comparison.quantities} | {f"waterfall.{q.name}": q for q in comparison.terms}
    if name not in known:
        near = difflib.get_close_matches(name, known)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
        raise UsageError(f"--fail-on: nothing is called {name!r}", next_step=hint)
    return known[name]


def to_text(comparison: Comparison) -> str:
    """Return what a terminal shows."""
    lines = [headline(comparison)]
    if comparison.causes:
        lines += ["what changed, of the traced steps:", *(f"  {cause}" for cause in comparison.causes)]
    lines.append("")
    lines += [_line(q) for q in comparison.quantities if q.change is not None]
    if comparison.parts:
        lines += ["", "where a traced step spends its time, per device", *map(_line, comparison.parts)]
    moved = [q for q in comparison.terms if q.change is not None]
    if moved:
        lines += ["", f"waterfall, {comparison.terms_of}"]
        lines += [_line(q) for q in sorted(moved, key=lambda q: -abs(q.change or 0))]
    for title, rows in (("kernels, per step and device", comparison.kernels), ("collectives", comparison.collectives)):
        if rows:
            lines += ["", title, *(f"  {_row(row)}" for row in rows[:12])]
    lines += ["", *(f"note: {note}" for note in comparison.notes)] if comparison.notes else []
    return "\n".join(lines) + "\n"


def headline(comparison: Comparison) -> str:
    """Return the verdict in one line."""
    speed = comparison.quantities[0]
    base, new = comparison.steps
    runs = f" of {comparison.runs[0]} and {comparison.runs[1]} runs" if max(comparison.runs) > 1 else ""
    steps = f"{base} and {new} {comparison.step_source} steps{runs}"
    about = f"{steps}, {1 - comparison.level:.0%} confidence"
    if comparison.run_spread is not None:
        about += f" if runs differ by {comparison.run_spread:.1%}"
    if speed.change is None:
        return f"no verdict: no step times on both sides ({about})"
    if speed.low is None:
        if comparison.doubt == "few":
            return f"no verdict: step time {change_text(speed)}, but {steps} are too few to tell that from noise"
        seen = "steps swing" if comparison.doubt == "swing" else "the job stalls"
        return f"no verdict: step time {change_text(speed)}, but {seen} and one run a side cannot tell that from noise"
    if comparison.verdict == "no evidence":
        return f"no evidence of a change in step time: {change_text(speed)} ({about})"
    return f"{comparison.verdict}: step time {change_text(speed)} ({about})"


def to_markdown(comparison: Comparison) -> str:
    """Return a comment for a pull request."""
    mark = {"slower": "🔴", "faster": "🟢"}.get(comparison.verdict, "⚪")
    lines = [f"### {mark} perfkit: {headline(comparison)}", "", "| | base | new | change |", "|---|---:|---:|---:|"]
    for quantity in (*comparison.quantities, *comparison.terms):
        if quantity.change is not None and (quantity.unit != "points" or quantity.verdict in ("more", "less")):
            cells = (
                quantity.name,
                _value(quantity.base, quantity),
                _value(quantity.new, quantity),
                change_text(quantity),
            )
            lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    lines += ["", *(f"- {_cell(cause)}" for cause in comparison.causes)] if comparison.causes else []
    if comparison.kernels:
        lines += [
            "",
            "<details><summary>kernels that changed</summary>",
            "",
            "| kernel | status | base | new |",
            "|---|---|---:|---:|",
        ]
        for row in comparison.kernels[:15]:
            cells = (f"{row.name} {row.detail}"[:90], row.status, duration(row.base_ns), duration(row.new_ns))
            lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
        lines += ["", "</details>"]
    lines += ["", *(f"> {_cell(note)}" for note in comparison.notes)] if comparison.notes else []
    return "\n".join(lines) + "\n"


def to_junit(comparison: Comparison, problem: str | None) -> str:
    """Return a JUnit file with one case: the gate."""
    failure = f"<failure message={quoteattr(problem)}/>" if problem else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuite name="perfkit" tests="1" failures="{int(bool(problem))}">'
        f'<testcase classname="perfkit.compare" name={quoteattr(headline(comparison))}>{failure}</testcase>'
        "</testsuite>\n"
    )


def _cell(text: str) -> str:
    """Keep a name from being Markdown or HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("`", "\\`").replace("\n", " ")


def _line(quantity: Quantity) -> str:
    mark = f"  {quantity.verdict}" if quantity.verdict in ("more", "less") else ""
    old, now = _value(quantity.base, quantity), _value(quantity.new, quantity)
    return f"  {quantity.name:<30} {old:>12} → {now:<12} {change_text(quantity)}{mark}"


def _value(value: float | None, quantity: Quantity) -> str:
    if value is None:
        return "–"
    if quantity.unit in ("ns", "ns_per_step"):
        return duration(value)
    return {"ratio": f"{value:.1%}", "points": f"{value:,.2f}", "1/s": f"{value:,.1f}"}[quantity.unit]


def change_text(quantity: Quantity) -> str:
    """Return a change with its interval."""
    if quantity.change is None:
        return "unknown"
    change, low, high = (_change(value, quantity.unit) for value in (quantity.change, quantity.low, quantity.high))
    return change if quantity.low is None else f"{change} [{low}, {high}]"


def _change(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "ns_per_step":
        return signed_duration(value)
    return (f"{value:+.2f}" if unit == "points" else f"{value:+.1%}").replace("-", "−")


def _row(row: Row) -> str:
    name = f"{row.name} {row.detail}".strip()
    name = name if len(name) <= 64 else name[:63] + "…"
    times = f"{duration(row.base_ns):>9} → {duration(row.new_ns):<9}"
    return f"{row.status:<8} {name:<64} {times} ×{row.base_count:.3g} → ×{row.new_count:.3g}"
