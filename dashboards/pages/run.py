"""Run: the verdict and the waterfall first, then the curves, what to do next, and what the numbers rest on."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
import pyarrow as pa
from dash import dcc, html

from perfkit.report.format import evidence as evidence_lines
from perfkit.report.verdict import Ladder, not_measured

from .. import cards, data_events, data_manifest, data_run, figures_run, shell
from .. import format as fmt
from ..data import Source
from ..metrics import BUCKETS
from ..section import Context, Page, Section
from ..view import View

STATES = {"running": "good", "ended": "", "failed": "bad", "lost": "warn"}


def head(found: Context) -> Any:
    """Title, attempt and step range."""
    view = found.view
    attempts = found.source.attempts(view)
    controls: list[Any] = []
    if len(attempts) > 1:
        data = [{"value": str(a), "label": f"attempt {a}"} for a in reversed(attempts)]
        controls.append(
            dmc.Select(
                id={"control": "attempt"},
                label="Attempt",
                data=data,
                w=130,
                size="xs",
                allowDeselect=False,
                value=str(view.attempt if view.attempt is not None else attempts[-1]),
            )
        )
    controls += shell.step_controls(view)
    controls.append(shell.live_control(view))
    links = [
        dcc.Link("Ranks of this run", href=found.href("ranks")),
        *(
            part
            for page, label in shell.PAGE_LABELS.items()
            if page != "ranks"
            for part in (" · ", dcc.Link(label, href=found.href(page)))
        ),
        " · cluster ",
        dcc.Link(cards.name_of(view.cluster, 40), href=found.href("cluster")),
    ]
    return shell.bar(f"Run {cards.name_of(view.run)}", links, controls)


def verdict(found: Context) -> Any:
    """Show the numbers of the run, and in one sentence what they mean."""
    source, view = found.source, found.view
    row = data_run.totals(source, view)
    ladders = data_run.ladders(source, view)
    traced = next((r.points for r in ladders["A"].rungs if r.term == "mfu"), None) if "A" in ladders else None
    if row is None and not ladders and not source.attempts(view):
        return nothing(found)
    steps = data_run.traced_step_ns(source, view) or {}
    row = {**steps, **{name: value for name, value in (row or {}).items() if value is not None}}
    stats = _stats(row, row.get("mfu", None if traced is None else traced / 100), ladders)
    state = row.get("state")
    parts: list[Any] = [html.P(_sentence(row, ladders, data_manifest.findings(source, view), traced))]
    if state:
        parts.append(cards.badge(state, STATES.get(state, "")))
    return html.Div(
        [
            html.Div(parts, className="pk-verdict", style={"marginBottom": 16}),
            html.Section(
                [html.Div(stats, className="pk-kpis"), _quality(found)],
                className="pk-card",
                style={"height": "auto", "paddingTop": 14},
                **{"aria-label": "Verdict"},
            ),
        ]
    )


def _stats(row: dict[str, Any], mfu: float | None, ladders: dict[str, Ladder]) -> list[Any]:
    """Return the numbers that there are; MFU is always among them."""
    executed = next((r.points for r in ladders["A"].rungs if r.term == "hfu"), None) if "A" in ladders else None
    p95 = f"p95 {fmt.duration(row['step_time_p95_ns'])}" if row.get("step_time_p95_ns") else ""
    known = [
        ("mfu", "MFU", *_share(mfu)), ("hfu", "HFU", *_share(None if executed is None else executed / 100)),
        ("effective_mfu", "Effective MFU", *_share(row.get("effective_mfu"))),
        ("goodput", "Goodput", *_share(row.get("goodput"))), ("ettr", "ETTR", *_share(row.get("ettr"))),
        ("tokens", "Tokens/s per GPU", fmt.number(row.get("tokens_per_gpu_s")), ""),
        ("step_time", "Step time", fmt.duration(row.get("step_time_p50_ns")), p95),
        ("gpus", "GPUs", fmt.count(row.get("gpus")), ""),
        ("interruptions", "Interruptions", fmt.count(row.get("interruptions")), ""),
    ]  # fmt: skip
    return [
        cards.stat(label, value, unit, key=key)
        for key, label, value, unit in known
        if key == "mfu" or value != fmt.UNKNOWN
    ]


def _sentence(
    row: dict[str, Any], ladders: dict[str, Any], findings: list[dict[str, Any]], traced: float | None
) -> list[Any]:
    parts: list[Any] = []
    if row.get("mfu") is not None:
        parts.append(html.Strong(f"MFU {fmt.percent(row['mfu'])}"))
        if row.get("effective_mfu") is not None:
            parts.append(f", of which {fmt.percent(row['effective_mfu'])} is left after what the allocation lost. ")
        else:
            parts.append(". ")
    elif traced is not None:
        parts += [html.Strong(f"MFU {fmt.number(traced, 1)} %"), " in the traced steps. "]
    else:
        parts.append("MFU is unknown: the model or the device's peak is not on record. ")
    if "A" in ladders:
        lost = [r for r in ladders["A"].rungs if r.parent is None and r.kind != "useful" and r.points]
        if lost:
            worst = max(lost, key=lambda r: r.points or 0)
            unit = "points" if ladders["A"].unit == "points" else "% of the time"
            parts.append(
                f"The traced steps lose most to {fmt.clean(worst.label, 60)} ({fmt.number(worst.points, 1)} {unit}). "
            )
    elif row.get("allocated_ns"):
        losses = [(row[f"{b}_ns"], BUCKETS[b]) for b in BUCKETS if b != "productive" and row.get(f"{b}_ns")]
        if losses:
            parts.append(
                f"The allocation loses most to {max(losses)[1]} ({fmt.percent(max(losses)[0] / row['allocated_ns'])}). "
            )
    if findings:
        first = findings[0]
        gain = "" if first["points"] is None else f" (worth {fmt.number(first['points'], 1)} points)"
        parts.append(f"Fix first: {fmt.clean(first['title'], 160)}{gain}.")
    return parts


def _share(value: float | None) -> tuple[str, str]:
    return (fmt.UNKNOWN, "") if value is None else (f"{100 * value:.1f}", "%")


def _quality(found: Context) -> Any:
    lines = data_manifest.quality(found.source, found.view)
    if not lines:
        return html.Div()
    return html.P(["Data quality: ", "; ".join(lines), "."], className="pk-sub", style={"marginTop": 12})


def nothing(found: Context) -> Any:
    """Say that the store knows nothing of the run."""
    uri = fmt.clean(found.source.uri, 200)
    return html.Div(
        cards.empty(
            f"The store knows nothing of run {cards.name_of(found.view.run)}",
            "The name may be misspelt, or the run is in another cluster.",
            f"perfkit ingest traces/ --store {uri} --run NAME",
        ),
        className="pk-card",
    )


# ------------------------------------------------------------------ ladders, findings


def waterfall(found: Context) -> Any:
    """Ladder A: where 100 points of the traced steps went."""
    ladders = data_run.ladders(found.source, found.view)
    if "A" not in ladders:
        text = "It comes with an analysis of the run's traces."
        body = cards.empty("No waterfall of traced steps", text, _analyze(found))
        return cards.card("Traced steps", body, key="waterfall")
    return _ladder(found, ladders["A"], "Traced steps", "run.waterfall")


def allocation(found: Context) -> Any:
    """Ladder B: where the allocated GPU-time went."""
    ladders = data_run.ladders(found.source, found.view)
    if "B" not in ladders:
        body = cards.empty("No goodput records", "They come from capture or from a scheduler's records.",
                           f"perfkit store rollup {fmt.clean(found.source.uri, 200)}")  # fmt: skip
        return cards.card("Whole allocation", body, key="goodput")
    return _ladder(found, ladders["B"], "Whole allocation", "run.allocation")


def _ladder(found: Context, ladder: Ladder, title: str, name: str) -> Any:
    chart = figures_run.waterfall(ladder, found.theme)
    unit = "in points of peak; they add up to 100" if ladder.unit == "points" else f"in {ladder.unit}"
    parts: list[Any] = [cards.chart(chart, name)]
    missing = not_measured(ladder)
    if missing:
        parts.append(html.P(f"{missing[:1].upper()}{missing[1:]}.", className="pk-sub"))
    return cards.card(
        title, parts, key="waterfall", sub=unit, csv=found.csv("run.waterfall"), png=title.lower().replace(" ", "-")
    )


def _analyze(found: Context) -> str:
    return f"perfkit analyze traces/ --store {fmt.clean(found.source.uri, 200)}"


def findings(found: Context) -> Any:
    """List what to do next, each with its evidence one click away."""
    rows = data_manifest.findings(found.source, found.view)
    if not rows:
        text = "Findings come with an analysis of the run's traces."
        return cards.card("What to do next", cards.empty("No findings stored", text, _analyze(found)))
    parts = []
    for row in rows:
        points = "" if row["points"] is None else f"{fmt.number(row['points'], 1)} points"
        lines = [html.P(fmt.clean(line, 400)) for line in evidence_lines(row["evidence"])[:12]]
        rank = _rank_of(row["evidence"])
        if rank is not None:
            lines.append(html.P(dcc.Link(f"Look at rank {rank}", href=found.href("ranks", rank=rank))))
        parts.append(
            html.Details(
                [
                    html.Summary([html.Span(fmt.clean(row["title"], 240)), html.Span(points, className="pk-points")]),
                    html.Div([html.P([html.Strong("Next: "), fmt.clean(row["next"] or "", 400)]), *lines]),
                ],
                className="pk-finding",
                open=False,
            )
        )
    return cards.card(
        "What to do next", parts, sub="what to fix first; open one for its evidence", csv=found.csv("run.findings")
    )


def _rank_of(evidence: Any) -> int | None:
    first = evidence[0] if isinstance(evidence, list) and evidence else evidence
    rank = first.get("rank") if isinstance(first, dict) else None
    return rank if isinstance(rank, int) else None


# ------------------------------------------------------------------ curves, manifest


def curves(found: Context) -> Any:
    """MFU, tokens/s, step time and loss, with events."""
    series = data_run.series(found.source, found.view)
    if not len(series.x):
        uri = fmt.clean(found.source.uri, 200)
        return cards.card(
            "Over steps",
            cards.empty(
                "No step is on record",
                "Steps come from capture: perfkit.init and pk.step, or",
                f"perfkit run --store {uri} -- torchrun train.py",
            ),
        )
    events = data_events.events(found.source, found.view)
    chart = figures_run.curves(series, events, found.theme)
    kinds = list(dict.fromkeys(event["kind"] for event in events))
    marks = [
        ({"xid": "XID"}.get(k, k), found.theme.groups[figures_run.SYMBOLS.get(k, ("", "unexplained"))[1]])
        for k in kinds
    ]
    sub = (
        f"{series.total:,} steps, {series.note}"
        if series.over == "step"
        else f"{series.total:,} steps, {series.note}; no single steps on record"
    )
    return cards.card(
        "Over steps" if series.over == "step" else "Over time",
        [cards.legend(marks), cards.chart(chart, "run.curves")],
        sub=sub,
        csv=found.csv("run.curves"),
        png="curves",
    )


def manifest(found: Context) -> Any:
    """Show what the run says about itself."""
    pairs = data_manifest.manifest(found.source, found.view)
    return cards.card("Manifest", cards.facts(pairs), csv=found.csv("run.manifest"))


def curves_table(source: Source, view: View) -> pa.Table:
    """Points behind the curves."""
    series = data_run.series(source, view)
    name = "step" if series.over == "step" else "start_ns"
    return pa.table({name: series.x, **{k: pa.array(v, from_pandas=True) for k, v in series.curves.items()}})


def waterfall_table(source: Source, view: View) -> pa.Table:
    """Terms of the ladders."""
    rows = [
        {
            "ladder": name,
            "term": r.term,
            "parent": r.parent,
            "points": r.points,
            "gpu_hours": r.gpu_hours,
            "measured": r.measured,
        }
        for name, ladder in data_run.ladders(source, view).items()
        for r in ladder.rungs
    ]
    return pa.Table.from_pylist(rows)


def findings_table(source: Source, view: View) -> pa.Table:
    """Return the findings."""
    rows = data_manifest.findings(source, view)
    return pa.Table.from_pylist(
        [
            {k: str(row[k]) if k == "evidence" else row[k] for k in ("id", "title", "points", "next", "evidence")}
            for row in rows
        ]
    )


def manifest_table(source: Source, view: View) -> pa.Table:
    """Return the manifest."""
    return pa.Table.from_pylist(
        [{"name": name, "value": value} for name, value in data_manifest.manifest(source, view)]
    )


PAGE = Page(
    "run",
    head,
    (
        Section("run.verdict", verdict, (), minimum=160),
        Section("run.waterfall", waterfall, (), waterfall_table, minimum=300, width=4),
        Section("run.allocation", allocation, (), waterfall_table, minimum=300, width=4),
        Section("run.findings", findings, ("range",), findings_table, minimum=300, width=4),
        Section("run.curves", curves, ("first", "last"), curves_table, minimum=500, width=8),
        Section("run.manifest", manifest, (), manifest_table, minimum=240, width=4),
    ),
)
