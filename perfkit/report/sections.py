"""The sections of the HTML report, top down: each is a chart, the table below it, and a sentence on what it shows.

    sections(report) -> list[Section]

A section without content leaves neither a heading nor an entry in the menu.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.report import charts
from perfkit.report import format as fmt
from perfkit.report.job import heat_cells, job_lines
from perfkit.report.lanes import choose_lanes
from perfkit.report.markup import Html, raw, tag
from perfkit.report.verdict import Ladder, ladder, not_measured, nothing_found, pace_note, verdict

if TYPE_CHECKING:
    from perfkit.report.report import Report

MAX_KERNELS, MAX_COLUMNS, MAX_NAME = 500, 256, 400
PARTS = [name for name, _, _ in charts.PARTS]


def sections(report: Report) -> list[Section]:
    """Return the sections in the order in which a reader asks."""
    document = report.document
    found = ladder(document)
    return [
        _hero(document, found),
        _waterfall(found),
        _findings(document, found.unit),
        _steps(report),
        _job(report),
        _ranks(document),
        _timeline(report),
        _kernels(report),
        _culprits(document),
        _collectives(report),
        _quality(document),
    ]


class Section:
    """A part of the page with its entry in the menu; an empty one leaves neither."""

    def __init__(self, name: str, title: str, *content: object, intro: str | None = None) -> None:
        heading = tag("h2", title, id=f"{name}-title")
        lead = tag("p", intro, class_="intro") if intro else None
        self.link = tag("span", raw(f'<a href="#{name}">'), title, raw("</a>"))
        shown = [part for part in content if part]
        self.body = tag("section", heading, lead, shown, id=name, aria_labelledby=f"{name}-title") if shown else None


def _hero(document: dict[str, Any], found: Ladder) -> Section:
    said = verdict(document)
    totals, speed = document["totals"], document["throughput"]
    window = totals["window_ns"]
    tokens = speed["tokens_per_second"]
    tiles = [
        ("MFU", said.mfu, "main"),
        ("HFU", said.hfu, ""),
        (
            "step, median",
            fmt.duration(speed["step_time_p50_ns"]) if speed["step_time_p50_ns"] is not None else None,
            "",
        ),
        ("tokens/s", fmt.si(tokens, "") if tokens is not None else None, ""),
        ("exposed communication", _share(totals["exposed_comm_ns"], window), ""),
        ("idle", _share(totals["idle_ns"], window), ""),
    ]
    shown = [
        tag("div", tag("dt", name), tag("dd", value), class_=f"tile {kind}")
        for name, value, kind in tiles
        if value is not None
    ]
    lines = [tag("li", line) for line in (*said.basis, said.scope, *said.speed)]
    lines += [
        tag(
            "li",
            tag("strong", "Fix first: "),
            raw('<a href="#findings">'),
            row["title"],
            raw("</a>"),
            ", ",
            _gain(row["points"], found.unit),
        )
        for row in (document["findings"] or ())[:1]
    ]
    tops = charts.visible(found)
    legend = _legend((f"{r.kind} {tint}", r.label) for r, tint in zip(tops, charts.tints(tops), strict=True))
    facts = tag("ul", lines, class_="facts")
    tiled = tag("dl", shown, class_="tiles")
    return Section("verdict", "Verdict", tiled, charts.strip(found), legend, facts, _conventions(document))


def _conventions(document: dict[str, Any]) -> Html | None:
    others = document["mfu"]["other_conventions"] or {}
    if document["mfu"]["value"] is None or not others:
        return None
    rows = [(name, (fmt.percent(share, 2), share)) for name, share in others.items()]
    return _table("conventions-table", [("convention", False), ("MFU", True)], rows, summary="MFU by other conventions")


def _share(part: int | None, whole: int | None) -> str | None:
    share = fmt.ratio(part, whole)
    return None if share is None else fmt.percent(share)


def _legend(entries: Iterable[tuple[str, str]], prefix: str = "k") -> Html:
    grouped: dict[str, list[str]] = {}
    for kind, name in entries:
        grouped.setdefault(kind, []).append(name)
    keys = [tag("li", tag("span", class_=f"key {prefix}-{kind}"), ", ".join(names)) for kind, names in grouped.items()]
    return tag("ul", keys, class_="legend")


def _findings(document: dict[str, Any], unit: str) -> Section:
    rows = document["findings"]
    if rows is None:
        return Section("findings", "What to fix first")
    cards = [
        tag(
            "li",
            tag("div", tag("h3", row["title"]), _gain(row["points"], unit), class_="head"),
            [tag("p", line[:2000], class_="evidence") for line in fmt.evidence(row["evidence"], 5, unit)],
            tag("p", tag("strong", "Next: "), row["next"], class_="next") if row["next"] else None,
            tag("code", row["id"]),
        )
        for row in rows
    ]
    told = nothing_found(document)
    none = tag("p", f"{told[0].upper()}{told[1:]}.")
    note = pace_note(rows)
    intro = None if note is None else f"{note[0].upper()}{note[1:]}."
    return Section("findings", "What to fix first", tag("ol", cards, class_="findings") if cards else none, intro=intro)


def _chart(chart: Html | None) -> Html | None:
    """Let a chart scroll sideways where the window is too narrow to read it."""
    return None if chart is None else tag("div", chart, class_="scroll")


def _gain(points: float | None, unit: str) -> Html:
    return tag("span", "gain unknown" if points is None else f"up to {fmt.points(points, 1)} {unit}", class_="gain")


def _waterfall(found: Ladder) -> Section:
    top = max([100.0, *(r.offset + (r.points or 0) for r in found.rungs)])
    shown = charts.visible(found)
    tint = dict.fromkeys((r.term for r in found.rungs), "tint-0")
    tint |= {r.term: one for r, one in zip(shown, charts.tints(shown), strict=True)}
    rows = [
        tag(
            "tr",
            tag("th", rung.label, scope="row", class_="sub" if rung.parent else None),
            tag("td", charts.waterfall_bar(rung, top, tint[rung.parent or rung.term]), class_="barcell"),
            tag("td", fmt.points(rung.points), class_="num"),
            tag("td", fmt.duration(rung.ns), class_="num"),
            tag("td", fmt.hours(rung.gpu_hours), class_="num"),
        )
        for rung in found.rungs
        if rung.measured and rung.ns != 0
    ]
    tops = [r for r in found.rungs if r.parent is None and r.measured and r.points is not None]
    total = sum(r.points or 0 for r in tops)
    foot = tag(
        "tr", tag("th", "sum", scope="row"), tag("td"), tag("td", fmt.points(total), class_="num"),
        tag("td", fmt.duration(sum(r.ns or 0 for r in tops)), class_="num"), tag("td"),
    )  # fmt: skip
    head = _head([("term", False), ("", False), (found.unit, True), ("time", True), ("GPU-hours", True)])
    table = tag("table", head, tag("tbody", rows), tag("tfoot", foot) if tops else None, class_="waterfall")
    missing = not_measured(found)
    nothing = [r.label for r in found.rungs if r.parent is None and r.measured and r.ns == 0]
    said = [f"nothing went to {', '.join(nothing)}"] if nothing else []
    said += [missing] if missing else []
    note = tag("p", " ".join(_sentence(one) for one in said), class_="intro note") if said else None
    return Section("waterfall", "Waterfall", tag("div", table, class_="scroll"), note, intro=_sentence(found.title))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _head(columns: Iterable[tuple[str, bool]], *, sortable: bool = False) -> Html:
    cells = []
    for name, numeric in columns:
        content = tag("button", name, type="button", class_="sort") if sortable else name
        cells.append(tag("th", content, scope="col", class_="num" if numeric else None))
    return tag("thead", tag("tr", cells))


_LONG = ("kernel", "where", "host", "group")
"""Columns whose text may break anywhere: names of any length."""


def _table(
    name: str, columns: Sequence[tuple[str, bool]], rows: Iterable[Sequence[object]], *, summary: str | None = None,
    sortable: bool = False,
) -> Html:  # fmt: skip
    """Make a table; with a summary it is folded. A cell may be (text, number to sort by)."""
    lines = []
    for row in rows:
        cells = []
        for (title, numeric), cell in zip(columns, row, strict=True):
            shown, key = cell if isinstance(cell, tuple) else (cell, None)
            kind = "num" if numeric else "long" if title in _LONG else None
            cells.append(tag("td", shown, class_=kind, data_key=key))
        lines.append(tag("tr", cells))
    table = tag("table", _head(columns, sortable=sortable), tag("tbody", lines), id=name)
    box = tag("div", table, class_="scroll tall", tabindex=0, role="region", aria_label=summary or name)
    return tag("details", tag("summary", summary), box) if summary else box


_PART_COLUMNS = [(name, True) for _, _, name in charts.PARTS]


def _steps(report: Report) -> Section:
    columns, labels, note = step_columns(report)
    if not columns:
        return Section("steps", "Steps")
    rows = [
        (label, fmt.duration(sum(row[p] for p in PARTS)), *(fmt.duration(row[p]) for p in PARTS))
        for label, row in zip(labels, columns, strict=True)
    ]
    chart = _chart(charts.stack(columns, labels, table="steps-table", what="Time per step", x_name="step"))
    table = _table("steps-table", [("step", True), ("window", True), *_PART_COLUMNS], rows, summary="Steps as a table")
    return Section("steps", "Steps", chart, _legend((c, n) for _, c, n in charts.PARTS), table, intro=note)


def step_columns(report: Report) -> tuple[list[dict[str, float]], list[str], str]:
    """Return the mean over ranks of each step, in at most MAX_COLUMNS columns, their labels, and what they are."""
    steps = report.tables.get("steps")
    if steps is None:
        steps = pa.Table.from_pylist(report.document["steps"] or [])
    if not len(steps) or steps["step"].null_count == len(steps):
        return [], [], ""
    steps = steps.filter(steps["step"].is_valid())
    means = steps.select(["step", *PARTS]).group_by("step", use_threads=False).aggregate([(p, "mean") for p in PARTS])
    means = means.sort_by("step")
    number = means["step"].to_numpy()
    groups = np.array_split(np.arange(len(number)), min(len(number), MAX_COLUMNS))
    values = {p: means[f"{p}_mean"].to_numpy() for p in PARTS}
    columns = [{p: float(values[p][g].mean()) for p in PARTS} for g in groups]
    labels = [str(number[g[0]]) if len(g) == 1 else f"{number[g[0]]}–{number[g[-1]]}" for g in groups]
    ranks = len(pc.unique(steps["rank"]))
    note = f"Mean over {fmt.plural(ranks, 'rank')}." if ranks > 1 else "One rank."
    if len(groups) < len(number):
        note += f" {len(number):,} steps in {len(groups)} columns; --table steps has them all."
    return columns, labels, note


def _ranks(document: dict[str, Any]) -> Section:
    rows = document["ranks"] or []
    if len(rows) < 2:  # one rank's sums are the report's
        return Section("ranks", "Ranks")
    columns = [{p: row[p] for p in PARTS} for row in rows]
    labels = [str(row["rank"]) for row in rows]
    cells = [
        (
            (row["rank"], row["rank"]), fmt.clean(row["host"] or fmt.UNKNOWN, MAX_NAME),
            (fmt.duration(row["window_ns"]), row["window_ns"]),
            *((_share(row[p], row["window_ns"]) or fmt.UNKNOWN, row[p]) for p in PARTS),
            (fmt.percent(row["hfu"]), row["hfu"]),
            (fmt.points(row["straggler_score"]), row["straggler_score"]),
            (fmt.duration(row["wait_caused_ns"]), row["wait_caused_ns"]),
        )
        for row in rows
    ]  # fmt: skip
    head = [
        ("rank", True),
        ("host", False),
        ("window", True),
        *_PART_COLUMNS,
        ("HFU", True),
        ("score", True),
        ("wait caused", True),
    ]
    chart = _chart(charts.stack(columns, labels, table="ranks-table", what="Time per rank", x_name="rank"))
    table = _table("ranks-table", head, cells, summary=f"{fmt.plural(len(rows), 'rank')} as a table", sortable=True)
    legend = _legend((c, n) for _, c, n in charts.PARTS)
    return Section("ranks", "Ranks", chart, legend, table, intro="All steps of each rank, summed." + _extremes(rows))


def _job(report: Report) -> Section:
    lines = job_lines(report.document)
    if not lines:
        return Section("job", "The job")
    facts = tag("dl", [tag("div", tag("dt", line.head), tag("dd", line.text)) for line in lines], class_="pairs")
    heat = heat_cells(report)
    if heat is None:
        return Section("job", "The job", facts)
    cells = [(f"rank {rank}", *((fmt.duration(ns), ns) for ns in row)) for rank, row in
             zip(heat.ranks, heat.values, strict=True)]  # fmt: skip
    head = [("rank", False), *((f"step {label}", True) for label in heat.labels)]
    intro = tag("p", f"Waiting of others that is charged to a rank, by step; the darker, the longer.{heat.note}",
                class_="intro")  # fmt: skip
    drawing = charts.heat(heat.values, [f"rank {r}" for r in heat.ranks], heat.labels, table="heat-table")
    table = _table("heat-table", head, cells, summary="Waiting caused as a table", sortable=True)
    return Section("job", "The job", facts, tag("h3", "Whom the others wait for"), intro, drawing, table)


def _extremes(rows: Sequence[dict[str, Any]]) -> str:
    """Name the ranks that a long chart hides: the largest share of each loss, where ranks differ by a point."""
    said = ""
    for key, name in (("idle_ns", "idle"), ("exposed_comm_ns", "exposed communication")):
        shares = [(fmt.ratio(row[key], row["window_ns"]), row["rank"]) for row in rows]
        known = sorted((share, rank) for share, rank in shares if share is not None)
        if known and known[-1][0] - known[0][0] > 0.01:
            (low, _), (high, rank) = known[0], known[-1]
            said += f" Most {name}: rank {rank} ({fmt.percent(high)}; least is {fmt.percent(low)})."
    return said


def _timeline(report: Report) -> Section:
    aligned = bool(report.document["quality"]["clock"]["aligned"])
    found = choose_lanes(report.tables.get("timeline"), aligned=aligned)
    if found is None:
        return Section("timeline", "Timeline")
    lanes = [(f"rank {rank}", rows) for rank, rows in found.lanes]
    of = f" of step {found.step}" if found.step is not None else ""
    intro = f"{fmt.duration(found.span_ns)}{of}, in bins; blank is idle.{found.note}"
    names = tag("div", [tag("span", name) for name, _ in lanes], class_="lane-names", aria_hidden="true")
    buttons = tag(
        "div",
        [
            tag("button", text, type="button", data_zoom=zoom, aria_label=name)
            for text, zoom, name in (("+", "in", "Zoom in"), ("−", "out", "Zoom out"), ("◀", "left", "Earlier"),
                                     ("▶", "right", "Later"), ("Reset", "reset", "Whole step"))
        ],
        tag("output", id="timeline-range", class_="tick"),
        class_="buttons",
    )  # fmt: skip
    drawing = tag("div", names, charts.lanes([rows for _, rows in lanes], found.span_ns), class_="lane-box")
    totals = [
        (name, *(fmt.percent(fmt.ratio(sum(r[p] for r in rows), sum(r["window_ns"] for r in rows))) for p in PARTS))
        for name, rows in lanes
    ]
    shares = _table(
        "timeline-table", [("rank", False), *_PART_COLUMNS], totals, summary="Shares of this step as a table"
    )
    legend = _legend((c, n) for _, c, n in charts.PARTS[:3])
    return Section("timeline", "Timeline", buttons, drawing, legend, shares, intro=intro)


def _kernels(report: Report) -> Section:
    rows = report.kernels()
    if not rows:
        return Section("kernels", "Kernels")
    hardware = report.document["hardware"]
    shown = rows[:MAX_KERNELS]
    peaks = (hardware["peak_flops"], hardware["memory_bytes_per_second"])
    chart = _chart(charts.roofline(shown, *peaks, dtype=hardware["dtype"], table="kernels-table"))
    cells = [
        (
            (fmt.duration(r["waste_ns"]), r["waste_ns"]), (fmt.duration(r["ns"]), r["ns"]),
            (fmt.count(r["count"]), r["count"]),
            (fmt.points(r["tflops"], 1), r["tflops"]), (fmt.points(r["intensity"], 1), r["intensity"]),
            r["bound"] or fmt.UNKNOWN, r["family"] or fmt.UNKNOWN, r["phase"] or fmt.UNKNOWN,
            tag("div", tag("span", fmt.clean(r["name"], MAX_NAME), class_="name"), " ", _origin(r)),
        )
        for r in shown
    ]  # fmt: skip
    head = [("waste", True), ("time", True), ("launches", True), ("TFLOP/s", True), ("FLOP/B", True), ("bound", False),
            ("family", False), ("phase", False), ("kernel", False)]  # fmt: skip
    search = tag(
        "div",
        tag("label", "Search", for_="kernel-search"),
        tag("input", type="search", id="kernel-search", placeholder="name, op, family …", autocomplete="off"),
        tag("output", f"{len(shown):,} rows", id="kernel-count", class_="tick", aria_live="polite"),
        class_="search",
    )
    intro = "Waste is time beyond the roofline. Sums over all ranks, by kernel, op, phase and shape."
    if len(rows) > len(shown):
        intro += f" The first {len(shown)} of {len(rows):,}; --table kernels has them all."
    families = dict.fromkeys(charts.family_class(r["family"]) for _, r in charts.roofline_dots(shown))
    legend = _legend([(name, name) for name in families], prefix="f") if chart else None
    least = fmt.percent(charts.SMALLEST_DOT)
    note = f"Area is time; kernels below {least} of it are left out. Other dtypes have other peaks."
    caption = tag("p", note, class_="intro") if chart else None
    return Section("kernels", "Kernels", search, _table("kernels-table", head, cells, sortable=True),
                    tag("h3", "Roofline") if chart else None, caption, chart, legend, intro=intro)  # fmt: skip


def _origin(row: dict[str, Any]) -> Html | None:
    parts = [fmt.clean(row[key], 160) for key in ("op", "input_dims", "dtype") if row[key]]
    return tag("span", " · ".join(parts), class_="origin") if parts else None


def _culprits(document: dict[str, Any]) -> Section:
    rows, window = document["idle"]["culprits"] or [], document["totals"]["window_ns"]
    cells = [
        (fmt.label(r["kind"] or "unknown"), (fmt.duration(r["ns"]), r["ns"]), _share(r["ns"], window),
         fmt.clean(r["where"] if r["where"] is not None else fmt.UNKNOWN, MAX_NAME))
        for r in rows
    ]  # fmt: skip
    table = _table(
        "culprits-table", [("kind", False), ("idle", True), ("% of time", True), ("where", False)], cells, sortable=True
    )
    intro = "Device time lost because the host launched late, by what the host did meanwhile."
    return Section("host", "Host", table if rows else None, intro=intro)


def _collectives(report: Report) -> Section:
    rows = report.document["collectives"] or []
    keys = ["bytes", "busbw_gbps", "efficiency", "exposed_transfer_ns", "exposed_wait_ns"]
    bubbles = any(r.get("bubble_ns") for r in rows)
    keys += ["bubble_ns"] if bubbles else []
    unsplit = any(r.get("exposed_unsplit_ns") for r in rows)
    keys += ["exposed_unsplit_ns"] if unsplit else []
    cells = [
        (fmt.clean(r["op"], MAX_NAME), fmt.clean(r["group"] or fmt.UNKNOWN, MAX_NAME),
         (fmt.count(r["ranks"]), r["ranks"]), (fmt.count(r["count"]), r["count"]),
         *((fmt.value(key, r.get(key)), r.get(key)) for key in keys),
         r["class"] or fmt.UNKNOWN)
        for r in rows
    ]  # fmt: skip
    head = [("operation", False), ("group", False), ("ranks", True), ("count", True), ("bytes", True),
            ("bus bandwidth", True), ("efficiency", True), ("exposed transfer", True), ("exposed wait", True),
            *([("bubble", True)] if bubbles else []), *([("exposed, unsplit", True)] if unsplit else []),
            ("class", False)]  # fmt: skip
    intro = (
        "Bus bandwidth as nccl-tests counts it, from the last arrival to the last end; efficiency is of the link that "
        "the group spans. Waiting is for a late rank, transfer is moving data."
    )
    table = _table("collectives-table", head, cells, sortable=True) if rows else None
    return Section("collectives", "Collectives", table, _sizes(report) if rows else None, intro=intro if rows else None)


def _sizes(report: Report) -> Html | None:
    """Return the histogram of message sizes as a table."""
    table = report.tables.get("collective_sizes")
    rows = [row for row in table.to_pylist() if row["up_to_bytes"] is not None] if table is not None else []
    if not rows:
        return None
    rows.sort(key=lambda r: (str(r["group"]), r["op"], r["up_to_bytes"]))
    cells = [
        (r["op"], r["group"] or fmt.UNKNOWN, (fmt.si(r["up_to_bytes"], "B"), r["up_to_bytes"]),
         (fmt.count(r["count"]), r["count"]), (fmt.duration(r["transfer_ns"]), r["transfer_ns"]),
         (fmt.value("gbps", r["busbw_gbps"]), r["busbw_gbps"]))
        for r in rows[:MAX_KERNELS]
    ]  # fmt: skip
    head = [("operation", False), ("group", False), ("message up to", True), ("count", True), ("transfer", True),
            ("bus bandwidth", True)]  # fmt: skip
    return _table("sizes-table", head, cells, summary="Message sizes", sortable=True)


def _quality(document: dict[str, Any]) -> Section:
    quality = document["quality"]
    lines = verdict(document).doubts or (["Nothing is missing."] if quality["events"] is not None else [])
    facts = [f"{fmt.count(quality['events'])} events read", f"ranks {fmt.ranges(quality['ranks'] or [])}",
             f"{fmt.count(quality['steps_kept'])} windows kept"]  # fmt: skip
    if document["hardware"]["source"]:
        facts.append(f"peak from {document['hardware']['source']}")
    return Section(
        "quality", "Data quality", tag("p", " · ".join(facts)), tag("ul", [tag("li", line) for line in lines])
    )
