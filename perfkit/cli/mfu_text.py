"""Text of `perfkit mfu`: one result, a batch, the lists. Rich tables on a terminal, plain ones in a pipe."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from perfkit.flops.batch import RowResult
    from perfkit.flops.calculator import MfuResult


@contextmanager
def output() -> Iterator[Console]:
    """Give a console for standard output; in a pipe it is wide, without colours and without trailing blanks."""
    console = Console(highlight=False)
    if console.is_terminal:
        yield console
        return
    console = Console(highlight=False, width=140, no_color=True, file=io.StringIO())
    yield console
    text = console.file.getvalue()  # type: ignore[attr-defined]  # the StringIO from above
    print("\n".join(line.rstrip() for line in text.splitlines()))


def percent(value: float | None) -> str:
    """Render a fraction."""
    return "–" if value is None else f"{100 * value:.2f} %"


def rate(tflops: float) -> str:
    """Render TFLOP/s, or GFLOP/s where that is easier to read."""
    return f"{tflops:,.1f} TFLOP/s" if tflops >= 1 else f"{1000 * tflops:,.3g} GFLOP/s"


def _facts() -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def print_result(result: MfuResult) -> None:
    """Print one result: the number, what it is made of, and the other conventions."""
    with output() as console:
        _print_result(console, result)


def _print_result(console: Console, result: MfuResult) -> None:
    from perfkit.flops.conventions import CONVENTIONS

    headline = Text(f"MFU {percent(result.mfu)}" if result.ok else "MFU unknown", style="bold")
    headline.append(f"   HFU {percent(result.hfu)}", style="not bold")
    if result.tflops_per_device is not None:
        headline.append(f"   {rate(result.tflops_per_device)} per device", style="not bold")
    headline.append(f"   convention {result.convention}", style="not bold dim")
    console.print(headline)
    console.print()
    facts = _facts()
    if result.model or result.params:
        size = f"{result.params / 1e9:,.2f} B parameters" if result.params else "parameters unknown"
        if result.active_params and result.active_params != result.params:
            size += f", {result.active_params / 1e9:,.2f} B active"
        length = f", {result.seq_len} tokens a sequence" if result.seq_len else ""
        facts.add_row("model", f"{result.model or 'unnamed'}: {size}{length}")
    if result.tokens_per_second_per_device is not None:
        facts.add_row("speed", f"{result.tokens_per_second_per_device:,.1f} tokens/s per device")
    if result.flops_per_token is not None:
        convention = CONVENTIONS.get(result.convention)
        formula = convention.doc.splitlines()[0] if convention else "given"
        facts.add_row("FLOPs", f"{result.flops_per_token / 1e9:,.2f} G per token; {formula}")
        facts.add_row("counted by", convention.source if convention else "whoever gave --flops-per-token")
    if result.recompute != "none" and result.hardware_flops_per_token is not None:
        facts.add_row(
            "executed", f"{result.hardware_flops_per_token / 1e9:,.2f} G per token, recompute {result.recompute}"
        )
    if result.peak_flops is not None:
        parts = ", ".join(f"{dtype} {peak / 1e12:,.5g}" for dtype, peak in result.peaks.items())
        mixed = f"{result.peak_flops / 1e12:,.5g} TFLOP/s from {parts}" if len(result.peaks) > 1 else f"{parts} TFLOP/s"
        facts.add_row("peak", f"{mixed}, dense, {result.device or 'device not named'}")
        facts.add_row("peak source", result.peak_source or "")
    console.print(facts)
    _print_conventions(console, result)
    for note in result.notes:
        console.print(Text(f"note: {note}", style="dim"))
    for message in result.messages:
        console.print(Text(f"\n! {message}", style="yellow" if result.ok else "red"))


def _print_conventions(console: Console, result: MfuResult) -> None:
    from perfkit.flops.conventions import CONVENTIONS

    if not result.conventions:
        return
    table = Table(box=box.SIMPLE, title="the same run in all conventions", title_justify="left", title_style="dim")
    for name, justify in (("convention", "left"), ("attention", "left"), ("MFU", "right"), ("GFLOP/token", "right")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]  # rich's Literal
    table.add_column("", overflow="fold")
    for name, row in result.conventions.items():
        flops = "–" if row.flops_per_token is None else f"{row.flops_per_token / 1e9:,.2f}"
        style = "bold" if name == result.convention else ""
        remark = "with a recomputed forward" if CONVENTIONS[name].recompute_included else ""
        table.add_row(name, row.attention, percent(row.mfu), flops, row.reason or remark, style=style)
    console.print(table)


def print_rows(results: list[RowResult]) -> None:
    """Print a batch as one table; errors are listed below it."""
    with output() as console:
        _print_rows(console, results)


def _print_rows(console: Console, results: list[RowResult]) -> None:
    table = Table(box=box.SIMPLE)
    for name in ("row", "label", "model", "convention", "device"):
        table.add_column(name, overflow="fold")
    for name in ("MFU", "HFU", "TFLOP/s", "GFLOP/token"):
        table.add_column(name, justify="right", no_wrap=True)
    notes = []
    for row in results:
        r = row.result
        label = " ".join(row.labels.values())
        if r is None:
            table.add_row(str(row.row), label, "", "", "", "–", "–", "–", "–")
            notes.append(f"row {row.row}: {row.error}")
            continue
        tflops = "–" if r.tflops_per_device is None else f"{r.tflops_per_device:,.1f}"
        flops = "–" if r.flops_per_token is None else f"{r.flops_per_token / 1e9:,.2f}"
        table.add_row(
            str(row.row),
            label,
            r.model or "",
            r.convention,
            r.device or "",
            percent(r.mfu),
            percent(r.hfu),
            tflops,
            flops,
        )
        notes += [f"row {row.row}: {message}" for message in r.messages if not r.ok]
    console.print(table)
    for note in notes:
        console.print(Text(f"! {note}", style="red"))


def print_lists() -> None:
    """Print presets and conventions."""
    with output() as console:
        _print_lists(console)


def _print_lists(console: Console) -> None:
    from perfkit.flops.conventions import CONVENTIONS
    from perfkit.flops.params import active_params, total_params
    from perfkit.flops.presets import preset, preset_names
    from perfkit.flops.spec import CannotCount

    conventions = Table(box=box.SIMPLE, title="conventions", title_justify="left")
    conventions.add_column("name", no_wrap=True)
    conventions.add_column("counts", overflow="fold")
    conventions.add_column("source", overflow="fold", style="dim")
    for name, convention in CONVENTIONS.items():
        conventions.add_row(name, " ".join(convention.doc.split()), convention.source)
    console.print(conventions)
    presets = Table(box=box.SIMPLE, title="presets", title_justify="left")
    presets.add_column("name", no_wrap=True)
    presets.add_column("parameters", justify="right")
    presets.add_column("active", justify="right")
    for name in preset_names():
        try:
            total, active = (f"{count(preset(name)) / 1e9:,.2f} B" for count in (total_params, active_params))
        except CannotCount:
            total = active = "–"
        presets.add_row(name, total, active)
    console.print(presets)
