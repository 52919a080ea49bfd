"""A report for a terminal: the verdict on the first screen, tables on request.

    render(report, console, details=False)      to a rich console, as wide as it is
    to_text(report, width=100) -> str           the same without colours

Names from traces are placed in `Text` objects and never parsed as rich markup; `clean` has replaced what is not
printable. Bars start where the bar above ends, so that the eye follows the fall from 100 to what is left.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfkit.report import format as fmt
from perfkit.report.job import job_lines
from perfkit.report.verdict import Ladder, Rung, ladder, not_measured, nothing_found, pace_note, verdict

if TYPE_CHECKING:
    from perfkit.report.report import Report

TOP_FINDINGS, MAX_ROWS, PIPE_WIDTH = 3, 16, 100
STYLES = {
    "useful": "green", "compute": "blue", "comm": "yellow", "bubble": "magenta", "copy": "cyan", "idle": "bright_black"
}  # fmt: skip
_PLAIN = str.maketrans({"·": "|", "→": ">", "–": "-", "…": "~", "µ": "u", "−": "-"})
_EIGHTHS = "▏▎▍▌▋▊▉"


def render(report: Report, console: Console, *, details: bool = False, ascii_only: bool | None = None) -> None:
    """Print the report; whether bars are hashes is the console's encoding, unless it is said."""
    document = report.document
    found = ladder(document)
    plain = console.options.ascii_only if ascii_only is None else ascii_only
    parts = [
        _headline(document),
        _waterfall(found, console.width, details, plain),
        _job(document),
        _findings(document, details, found.unit),
    ]
    parts.append(_quality(document, details))
    if details:
        parts += [_culprits(document), _io(document), _ranks(document), _kernels(report), _collectives(document)]
    else:
        parts.append(_more(document))
    for line in (line for part in parts for line in part):
        console.print(line)


def to_text(report: Report, *, width: int = PIPE_WIDTH, details: bool = False, encoding: str = "utf-8") -> str:
    """Return the report as plain text; no line has trailing blanks. `encoding` is what its reader can show."""
    buffer, unicode = io.StringIO(), encoding.startswith("utf")
    console = Console(
        file=buffer,
        width=width,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        highlight=False,
        emoji=False,
    )
    render(report, console, details=details, ascii_only=not unicode)
    text = "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
    return text if unicode else text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)


def show(report: Report, *, details: bool = False) -> None:
    """Print to standard output: as wide as the terminal and coloured on one, plain in a pipe."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows another, not a traceback
    console = Console(highlight=False, emoji=False)
    if console.is_terminal:
        render(report, console, details=details)
    else:
        console.file.write(to_text(report, details=details, encoding=console.encoding))


Line = Text | Table | Padding | str


def _headline(document: Mapping[str, Any]) -> Iterator[Line]:
    said = verdict(document)
    if said.synthetic:
        yield Text("SYNTHETIC: these traces were simulated. No machine ran this.", style="bold black on yellow")
    head = Text("MFU ", style="bold")
    head.append(said.mfu, style="bold green" if document["mfu"]["value"] is not None else "bold yellow")
    if said.hfu is not None:
        head.append(f"   HFU {said.hfu}")
    yield head
    for line in said.basis:
        yield _indented(Text(line))
    yield _indented(Text(said.scope))
    if said.speed:
        yield _indented(Text(" · ".join(said.speed)))


def _waterfall(found: Ladder, width: int, details: bool, ascii_only: bool) -> Iterator[Line]:
    """Draw the ladder; without details only the terms at its top that took any time."""
    yield ""
    rungs = [r for r in found.rungs if r.measured and (details or (r.parent is None and r.ns))]
    rungs = rungs or [r for r in found.rungs if r.parent is None]
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), expand=True, pad_edge=False)
    wide = width >= 70
    names = max((len(r.label) + (2 if r.parent else 0) for r in rungs), default=0)
    table.add_column(no_wrap=True, overflow="ellipsis", width=min(names, width // 3) + 2)
    table.add_column(no_wrap=True, ratio=1)
    table.add_column(no_wrap=True, justify="right", width=8)
    if wide:
        table.add_column(no_wrap=True, justify="right", width=10)
    size = width - (min(names, width // 3) + 2) - 9 - (11 if wide else 0) - 1
    top = max([100.0, *(r.offset + (r.points or 0) for r in rungs)])
    for rung in rungs:
        bar = _bar(rung, max(size, 8), top, ascii_only=ascii_only)
        name = Text(("  " if rung.parent else "") + rung.label, style="dim" if rung.parent else "")
        row = [name, bar, Text(fmt.points(rung.points))]
        table.add_row(*row, *([Text(fmt.duration(rung.ns), style="dim")] if wide else []))
    head = Text(found.title, style="bold")
    head.append(f"   {found.unit}" + (", time" if wide else ""), style="dim not bold")
    yield head
    yield table
    missing = not_measured(found)
    if missing:
        yield Text(missing, style="dim")


def _bar(rung: Rung, size: int, top: float, *, ascii_only: bool) -> Text:
    """Draw a bar from `offset` to `offset + points`: its length is exact to an eighth of a cell, its place to one."""
    if rung.points is None or not rung.measured:
        return Text("")
    low, high = sorted((rung.offset, rung.offset + rung.points))
    start, end = round(max(low, 0) / top * size * 8), round(max(high, 0) / top * size * 8)
    if start == end and rung.points:
        end = start + 1
    cells, rest = divmod(end - start, 8)
    blank = " " * min(start // 8, size - 1)
    if rung.points < 0 or ascii_only:
        drawn = ("<" if rung.points < 0 else "#") * (cells + (rest > 3) or (start != end))
    else:
        drawn = "█" * cells + (_EIGHTHS[rest - 1] if rest else "")
    return Text(blank + drawn, style=STYLES[rung.kind])


def _job(document: Mapping[str, Any]) -> Iterator[Line]:
    lines = job_lines(document)
    if lines:
        yield ""
        yield Text("the job", style="bold")
    for line in lines:
        yield _indented(_hanging(f"{line.head:<11}", Text(line.text)))


def _findings(document: Mapping[str, Any], details: bool, unit: str) -> Iterator[Line]:
    rows = document["findings"]
    if rows is None:
        return
    yield ""
    yield Text("what to fix first", style="bold")
    if not rows:
        yield _indented(Text(nothing_found(document)))
    shown = rows if details else rows[:TOP_FINDINGS]
    for number, row in enumerate(shown, 1):
        head = Text(fmt.clean(row["title"]), style="bold")
        if row["points"] is not None:
            head.append(f"  up to {fmt.points(row['points'], 1)} {unit}", style="not bold green")
        yield _indented(_hanging(f"{number}. ", head))
        for line in fmt.evidence(row["evidence"], 8 if details else 2, unit)[: None if details else 2]:
            yield _indented(Text(line, style="dim"), 5)
        if row["next"]:
            yield _indented(_hanging("→ ", Text(fmt.clean(row["next"]))), 5)
    if len(rows) > len(shown):
        yield _indented(Text(f"and {fmt.plural(len(rows) - len(shown), 'more finding')}: --details", style="dim"))
    if (note := pace_note(shown)) is not None:
        yield _indented(Text(note, style="dim"))


def _quality(document: Mapping[str, Any], details: bool) -> Iterator[Line]:
    quality = document["quality"]
    lines = verdict(document).doubts
    yield ""
    head = Text("data quality", style="bold")
    head.append(f"   {fmt.count(quality['events'])} events", style="dim not bold")
    yield head
    shown = lines if details else lines[:6]
    for line in shown:
        yield _indented(Text(line))
    if len(lines) > len(shown):
        yield _indented(Text(f"and {fmt.plural(len(lines) - len(shown), 'more note')}: --details", style="dim"))
    if not lines:
        yield _indented(Text("unknown" if quality["events"] is None else "nothing to add"))


def _more(document: Mapping[str, Any]) -> Iterator[Line]:
    yield ""
    ranks = len(document["ranks"] or ())
    yield Text(
        f"--details for host culprits, copies, {fmt.plural(ranks, 'rank')} and kernels; --format html -o F for charts",
        style="dim",
    )


def _culprits(document: Mapping[str, Any]) -> Iterator[Line]:
    rows, window = document["idle"]["culprits"], document["totals"]["window_ns"]
    if rows:
        yield from _titled(
            "who held the host up", ("kind", "idle", "% of time", "where"),
            [
                (fmt.label(r["kind"] or "unknown"), fmt.duration(r["ns"]), fmt.percent(fmt.ratio(r["ns"], window)),
                 fmt.clean("" if r["where"] is None else r["where"], 200))
                for r in rows[:MAX_ROWS]
            ],
            left=(0, 3), more=len(rows) - MAX_ROWS, hint="--table idle -o idle.csv",
        )  # fmt: skip


def _io(document: Mapping[str, Any]) -> Iterator[Line]:
    io_, window = document["io"], document["totals"]["window_ns"]
    named = [("data wait", "data_wait_ns", None), ("checkpoint", "checkpoint_exposed_ns", None)]
    named += [
        (fmt.copies(k.removesuffix("_exposed_ns")), k, k.replace("_exposed_ns", "_gbps"))
        for k in io_
        if k.endswith("_exposed_ns") and k != "checkpoint_exposed_ns"
    ]
    rows = [
        (
            name,
            fmt.duration(io_[key]),
            fmt.percent(fmt.ratio(io_[key], window)),
            fmt.value("gbps", io_.get(speed or "")),
        )
        for name, key, speed in named
        if io_.get(key)
    ]
    if rows:
        yield from _titled("input and output that nothing hides", ("kind", "time", "% of time", "speed"), rows)


def _ranks(document: Mapping[str, Any]) -> Iterator[Line]:
    rows = document["ranks"] or []
    parts = ("compute_ns", "exposed_comm_ns", "exposed_memcpy_ns", "idle_ns")
    if len(rows) > 1:
        yield from _titled(
            "ranks", ("rank", "role", "window", "compute", "exp. comm", "exp. copies", "idle", "score", "wait caused"),
            [
                (str(r["rank"]), fmt.clean(r["role"] or ""), fmt.duration(r["window_ns"]),
                 *(fmt.percent(fmt.ratio(r[p], r["window_ns"])) for p in parts), fmt.points(r["straggler_score"]),
                 fmt.duration(r["wait_caused_ns"]))
                for r in rows[:MAX_ROWS]
            ],
            left=(1,), more=len(rows) - MAX_ROWS, hint="--table ranks -o ranks.csv",
        )  # fmt: skip


def _kernels(report: Report) -> Iterator[Line]:
    rows = report.kernels()
    if rows:
        yield from _titled(
            "kernels by waste (time beyond the roofline; where that is unknown, by all their time)",
            ("time", "waste", "launches", "TFLOP/s", "bound", "family", "kernel"),
            [
                (fmt.duration(r["ns"]), fmt.duration(r["waste_ns"]), fmt.count(r["count"]),
                 fmt.points(r["tflops"], 1), r["bound"] or fmt.UNKNOWN, fmt.clean(r["family"] or fmt.UNKNOWN),
                 fmt.clean(r["name"], 120))
                for r in rows[:MAX_ROWS]
            ],
            left=(4, 5, 6), more=len(rows) - MAX_ROWS, hint="--table kernels -o kernels.csv",
        )  # fmt: skip


def _collectives(document: Mapping[str, Any]) -> Iterator[Line]:
    rows = document["collectives"] or []
    more = ["exp. unsplit"] if any(r.get("exposed_unsplit_ns") for r in rows) else []
    if rows:
        yield from _titled(
            "collectives",
            ("op", "group", "count", "bytes", "bus GB/s", "of link", "exp. transfer", "exp. wait", *more, "class"),
            [
                (fmt.clean(r["op"]), fmt.clean(r["group"] or fmt.UNKNOWN, 30), fmt.count(r["count"]),
                 fmt.si(r["bytes"], "B"), fmt.points(r["busbw_gbps"], 1), fmt.percent(r["efficiency"], 0),
                 fmt.duration(r["exposed_transfer_ns"]), fmt.duration(r["exposed_wait_ns"]),
                 *([fmt.duration(r.get("exposed_unsplit_ns"))] if more else []),
                 fmt.clean(r["class"] or fmt.UNKNOWN))
                for r in rows[:MAX_ROWS]
            ],
            left=(0, 1, 8 + len(more)), more=len(rows) - MAX_ROWS, hint="--table collectives -o collectives.csv",
        )  # fmt: skip


def _titled(
    title: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, left: Iterable[int] = (0,), more: int = 0,
    hint: str = "",
) -> Iterator[Line]:  # fmt: skip
    """Print a table under its title, without the columns of which nothing is known."""
    yield ""
    yield Text(title, style="bold")
    cells = list(rows)
    known = [i for i in range(len(head)) if not i or any(row[i] != fmt.UNKNOWN for row in cells)]
    left = set(left)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for i in known:
        last = i == known[-1]
        table.add_column(head[i], justify="left" if i in left else "right", no_wrap=not last,
                         overflow="ellipsis" if not last else "fold")  # fmt: skip
    for row in cells:
        table.add_row(*(Text(row[i]) for i in known))
    yield _indented(table)
    if more > 0:
        yield _indented(Text(f"and {more:,} more: {hint}", style="dim"))


def _hanging(mark: str, what: Text) -> Table:
    """Put a mark before a paragraph whose further lines start below its text."""
    grid = Table.grid()
    grid.add_column(width=len(mark), no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(mark, style="bold"), what)
    return grid


def _indented(what: Text | Table, by: int = 2) -> Padding:
    return Padding(what, (0, 0, 0, by), expand=False)
