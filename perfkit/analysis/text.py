"""The summary of an analysis as text for a terminal.

    render(summary) -> str

Names come from traces and may hold anything: control characters are replaced, so that a kernel's name
cannot move the cursor or colour the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MAX_RANKS, MAX_CULPRITS, MAX_WIDTH = 16, 8, 70


def render(summary: dict[str, Any]) -> str:
    """Return the report; every line ends with a newline."""
    parts = (_scope, _quality, _totals, _culprits, _io, _ranks)
    return "\n".join(line for part in parts for line in part(summary)) + "\n"


def _scope(s: dict[str, Any]) -> Iterator[str]:
    scope, quality = s["scope"], s["quality"]
    world = f" of {scope['world_size']}" if scope["world_size"] else ""
    steps = "one window per rank" if scope["steps"] is None else f"steps {scope['steps'][0]} to {scope['steps'][1]}"
    if s["synthetic"]:
        yield "SYNTHETIC: these traces were simulated."
    ranks = "rank" if scope["ranks_traced"] == 1 and not world else "ranks"
    yield f"{scope['ranks_traced']}{world} {ranks}, {steps} (from {_clean(quality['steps_source'])})"


def _quality(s: dict[str, Any]) -> Iterator[str]:
    q, window = s["quality"], s["totals"]["window_ns"]
    yield ""
    yield "data quality"
    yield f"  events             {q['events']:,}, {q['undated_events']:,} without a time"
    for bad in q["rejected"]:
        yield f"  rejected           {_clean(bad['path'], 200)}: {_clean(bad['reason'], 200)}"
    if q["device_events"]:
        yield f"  launches missing   {q['launches_missing']:,} of {q['device_events']:,} device events"
        yield f"  through a graph    {_percent(q['graph_coverage'])} of device work"
        yield f"  unknown kernels    {_percent(_share(q['unknown_kernel_ns'], window))} of the windows"
        yield f"  outside windows    {_ms(q['carry_in_ns'])} before (carry-in), {_ms(q['after_last_ns'])} after"
        if q["spill_ns"] is not None:
            yield f"  spill              {_ms(q['spill_ns'])} of work ran in a later step's window"
    yield "  clocks             not aligned between ranks"
    for note in q["notes"]:
        yield f"  note               {_clean(note, 200)}"


def _totals(s: dict[str, Any]) -> Iterator[str]:
    totals, idle, window = s["totals"], s["idle"], s["totals"]["window_ns"]
    yield ""
    yield "where the time went (all ranks and steps)"
    for name, label in (
        ("compute_ns", "compute"), ("exposed_comm_ns", "exposed communication"),
        ("exposed_memcpy_ns", "exposed copies"), ("idle_ns", "idle"),
    ):  # fmt: skip
        yield _row(label, totals[name], window)
    for name in ("host_late", "launch", "dependency", "unattributed"):
        yield _row(f"  {name.replace('_', ' ')}", idle[f"{name}_ns"], window)
    yield _row("window", window, window)
    if totals["overlap"] is not None:
        yield f"  {_percent(totals['overlap'])} of communication is hidden behind compute"
    step = s["throughput"]
    if step["step_time_p50_ns"] is not None:
        slow = f", {step['slow_steps']} slow ({_ms(step['slow_step_excess_ns'])} lost)" if step["slow_steps"] else ""
        yield f"  step time {_ms(step['step_time_p50_ns'])} median, {_ms(step['step_time_p95_ns'])} p95{slow}"


def _culprits(s: dict[str, Any]) -> Iterator[str]:
    if not s["idle"]["culprits"]:
        return
    yield ""
    yield "who held the host up"
    for culprit in s["idle"]["culprits"][:MAX_CULPRITS]:
        where = "" if culprit["where"] is None else f"  {_clean(culprit['where'])}"
        yield _row(culprit["kind"], culprit["ns"], s["totals"]["window_ns"]) + where


def _io(s: dict[str, Any]) -> Iterator[str]:
    io, window = s["io"], s["totals"]["window_ns"]
    rows = [("data wait", io["data_wait_ns"]), ("checkpoint", io["checkpoint_exposed_ns"])]
    rows += [(f"{kind} copies", io[f"{kind}_exposed_ns"]) for kind in ("h2d", "d2h", "d2d", "p2p")]
    rows = [(label, ns) for label, ns in rows if ns]
    if not rows:
        return
    yield ""
    yield "input and output that nothing hides"
    for label, ns in rows:
        speed = io.get(f"{label.removesuffix(' copies')}_gbps")
        yield _row(label, ns, window) + (f"  {speed:.1f} GB/s" if speed else "")


def _ranks(s: dict[str, Any]) -> Iterator[str]:
    if len(s["ranks"]) < 2:
        return
    yield ""
    yield "rank    window ms   compute  exp. comm  exp. copies      idle"
    for row in s["ranks"][:MAX_RANKS]:
        names = ("compute_ns", "exposed_comm_ns", "exposed_memcpy_ns", "idle_ns")
        shares = (_percent(_share(row[name], row["window_ns"])) for name in names)
        columns = "".join(f"{text:>{width}}" for text, width in zip(shares, (10, 11, 13, 10), strict=True))
        yield f"{row['rank']:4} {row['window_ns'] / 1e6:12.3f}{columns}"
    if len(s["ranks"]) > MAX_RANKS:
        yield f"… and {len(s['ranks']) - MAX_RANKS} more ranks: --table ranks -o ranks.csv"


def _row(label: str, ns: int, window: int) -> str:
    return f"  {label:24} {ns / 1e6:14,.3f} ms {_percent(_share(ns, window)):>8}"


def _ms(ns: int | None) -> str:
    return "unknown" if ns is None else f"{ns / 1e6:,.3f} ms"


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.1f} %"


def _share(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None


def _clean(text: str, width: int = MAX_WIDTH) -> str:
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return shown if len(shown) <= width else shown[: width - 1] + "…"
