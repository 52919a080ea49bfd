"""What every renderer says first, worked out once from the document.

    verdict(document) -> Verdict        MFU with its convention and peak, or why there is none; scope; speed; doubts
    ladder(document) -> Ladder          the waterfall as rungs with their offset, ready to draw

Nothing is measured here: where the document has no waterfall, the ladder is the exact partition of time, and says
that it holds shares of time and not points of peak.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfkit.report import format as fmt

Document = Mapping[str, Any]

_COLOURS = {
    "mfu": "useful", "hfu": "useful", "unsplit_comm": "comm", "exposed_comm": "comm", "exposed_transfer": "comm",
    "exposed_wait": "comm", "bubble": "bubble", "exposed_memcpy": "copy",
}  # fmt: skip
_LABELS = {
    "mfu": "model FLOPs (MFU)", "hfu": "executed FLOPs (HFU)", "matmul": "matmul", "non_matmul": "other than matmul",
    "unsplit_comm": "exposed communication", "exposed_comm": "exposed communication",
    "exposed_transfer": "exposed transfer", "exposed_wait": "exposed wait",
    "exposed_memcpy": "exposed copies", "bubble": "pipeline bubble", "flops_unmatched": "FLOPs unknown",
    "flops_beyond_model": "FLOPs beyond the model",
}  # fmt: skip


UNSPLIT = "communication, unsplit"
"""Where the rest is split into waiting and transfer."""


UNKNOWN_KIND = "compute of unknown kind"
"""Where most of what is not known to be matmul is not known to be anything else either."""


@dataclass(frozen=True)
class Verdict:
    """The first lines of a report."""

    mfu: str
    """`38.2 %`, or `unknown`."""
    hfu: str | None
    basis: list[str]
    """What the number is made of, or why there is none."""
    scope: str
    speed: list[str]
    doubts: list[str]
    """What a careful reader must know before trusting a number; empty in a perfect trace."""
    synthetic: bool


@dataclass(frozen=True)
class Rung:
    """One term of the ladder."""

    term: str
    label: str
    kind: str
    """useful, compute, comm, bubble, copy, idle: how to colour it."""
    points: float | None
    offset: float
    """Points already spent above it."""
    ns: int | None
    gpu_hours: float | None
    parent: str | None
    measured: bool


@dataclass(frozen=True)
class Ladder:
    """The waterfall, top down."""

    title: str
    unit: str
    """`points` of peak, or `% of time`."""
    rungs: list[Rung]


def verdict(document: Document) -> Verdict:
    """Read the document."""
    mfu = document["mfu"]
    hfu = None if mfu["hfu"] is None else fmt.percent(mfu["hfu"], 1 if mfu["hfu"] >= 0.01 else 2)
    if mfu["hfu"] is not None and mfu["hfu"] < 0.00005:
        hfu = "< 0.01 %"
    return Verdict(
        mfu="unknown" if mfu["value"] is None else fmt.percent(mfu["value"]),
        hfu=hfu,
        basis=_basis(document) if mfu["value"] is not None else [*why_no_mfu(document), *_executed(document)],
        scope=scope(document),
        speed=_speed(document),
        doubts=doubts(document),
        synthetic=bool(document["synthetic"]),
    )


def why_no_mfu(document: Document) -> list[str]:
    """Say why MFU is null: what the analysis says, else which of its parts is missing."""
    mfu = document["mfu"]
    if mfu["value"] is not None:
        return []
    if mfu["messages"]:
        return [fmt.clean(message) for message in mfu["messages"]]
    reasons = []
    if mfu["model_flops_per_step"] is None:
        reasons.append("no model was given: add --model NAME and --tokens-per-step N (global)")
    if document["hardware"]["peak_flops"] is None:
        device = document["hardware"]["device"]
        reasons.append(f"no peak is known for {fmt.clean(device)}" if device else "the traces name no device")
    return reasons or ["the analysis gave none"]


def _basis(document: Document) -> list[str]:
    mfu = document["mfu"]
    parts = [f"convention {fmt.clean(mfu['convention'])}" if mfu["convention"] else "convention unknown"]
    if mfu["model_flops_per_step"] is not None:
        parts.append(f"{fmt.si(mfu['model_flops_per_step'], 'FLOP')} a step")
    if mfu["source"]:
        parts.append(fmt.clean(mfu["source"]))
    lines = [" · ".join(parts), peak_line(document)]
    lines += _coverage(mfu)
    others = sorted((share, name) for name, share in (mfu["other_conventions"] or {}).items() if share is not None)
    if others:
        ends = dict.fromkeys([others[0], others[-1]])
        shown = " to ".join(f"{fmt.percent(share)} ({fmt.clean(name)})" for share, name in ends)
        lines.append(f"{fmt.plural(len(others), 'other convention')}: {shown}")
    return [*lines, *(fmt.clean(message) for message in mfu["messages"] or ())]


def _executed(document: Document) -> list[str]:
    mfu = document["mfu"]
    lines = _coverage(mfu)
    if document["hardware"]["peak_flops"] is not None:
        lines.append(peak_line(document))
    return lines


def _coverage(mfu: Mapping[str, Any]) -> list[str]:
    """Say how much of the work HFU knows: below all of it, HFU is too low, and may even be below MFU."""
    if mfu["hfu"] is None:
        return []
    known = mfu["flops_coverage"]
    if known is None:
        return ["HFU is from the shapes of the trace's ops"]
    less = "" if known > 0.995 else ", so it is too low by what the rest computes"
    return [f"HFU is from ops with known shapes, {fmt.percent(known)} of matmul time{less}"]


def peak_line(document: Document) -> str:
    """Say what MFU is measured against; of many sources the first."""
    hardware = document["hardware"]
    if hardware["peak_flops"] is None:
        return "peak unknown"
    dtype = f" {fmt.clean(hardware['dtype'])}" if hardware["dtype"] else ""
    device = f", {fmt.clean(hardware['device'])}" if hardware["device"] else ""
    first, *more = [fmt.clean(one) for one in re.split(r"; (?![^(]*\))", hardware["source"] or "")]
    source = f" ({first}{f', and {len(more)} more' if more else ''})" if first else ""
    return f"peak {fmt.si(hardware['peak_flops'], 'FLOP/s')}{dtype}{device}{source}"


def scope(document: Document) -> str:
    """Say which ranks and steps the numbers cover."""
    found, quality = document["scope"], document["quality"]
    traced, world = found["ranks_traced"], found["world_size"]
    ranks = f"{traced:,} of {fmt.plural(world, 'rank')}" if world else fmt.plural(traced or 0, "rank")
    steps = found["steps"]
    if steps is None:
        return f"{ranks} · one window{' per rank' if (traced or 0) > 1 else ''}, the whole trace"
    covers = f"step {steps[0]}" if steps[0] == steps[1] else f"steps {steps[0]} to {steps[1]}"
    source = f" (from {fmt.clean(quality['steps_source'])})" if quality["steps_source"] else ""
    return f"{ranks} · {covers}{source}"


def _speed(document: Document) -> list[str]:
    speed, totals = document["throughput"], document["totals"]
    lines, far = [], False
    if speed["step_time_p50_ns"] is not None:
        slow = speed["slow_steps"]
        lost = f", {fmt.plural(slow, 'slow step')} ({fmt.duration(speed['slow_step_excess_ns'])} lost)" if slow else ""
        one = speed["step_time_p50_ns"] == speed["step_time_p95_ns"]
        mean = speed.get("step_time_mean_ns")
        far = mean is not None and abs(mean / speed["step_time_p50_ns"] - 1) > FAR_FROM_MEDIAN
        middle = f", {fmt.duration(mean)} mean" if far else ""
        spread = f" median{middle}, {fmt.duration(speed['step_time_p95_ns'])} p95{_of_how_many(document)}"
        lines.append(f"step {fmt.duration(speed['step_time_p50_ns'])}{'' if one else spread}{lost}")
    if speed["tokens_per_second"] is not None:
        each = speed["tokens_per_second_per_device"]
        per_device = f" ({fmt.si(each, '')} per device)" if each is not None else ""
        lines.append(f"{fmt.si(speed['tokens_per_second'], '')} tokens/s{per_device}{' by the mean' if far else ''}")
    if totals["overlap"] is not None:
        lines.append(f"{fmt.percent(totals['overlap'])} of communication hidden behind compute")
    return lines


def _of_how_many(document: Document) -> str:
    """Say how few windows a percentile is of: a step is a window on each rank."""
    kept, ranks = document["quality"]["steps_kept"], document["scope"]["ranks_traced"] or 1
    if not kept or kept >= MANY_WINDOWS:
        return ""
    return f" of {fmt.plural(kept, 'window')} on {ranks} ranks" if ranks > 1 else f" of {fmt.plural(kept, 'step')}"


def doubts(document: Document) -> list[str]:
    """List what the traces lack, most serious first."""
    quality, found, window = document["quality"], document["scope"], document["totals"]["window_ns"]
    rejected = quality["rejected"] or []
    lines = [f"rejected {fmt.clean(bad['path'])}: {fmt.clean(bad['reason'])}" for bad in rejected[:3]]
    if len(rejected) > 3:
        lines.append(f"and {len(rejected) - 3:,} more inputs rejected")
    world, traced = found["world_size"], found["ranks_traced"]
    if world and traced is not None and traced < world:
        lines.append(f"{world - traced:,} of {world:,} ranks have no trace: shares are of those that do")
    if quality["clock"]["aligned"]:
        lines.append(f"clocks aligned to ± {fmt.duration(quality['clock']['uncertainty_ns'])}")
    elif (traced or 0) > 1:
        lines.append("clocks of the ranks are not aligned: waiting cannot be told from transfer")
    unknown = fmt.ratio(quality["unknown_kernel_ns"], window)
    if unknown and unknown >= WORTH_SAYING:
        lines.append(f"{fmt.percent(unknown)} of the time is in kernels that no pattern knows (inside compute)")
    missing, events = quality["launches_missing"], quality["device_events"]
    if missing:
        of = f" of {events:,}" if events else ""
        lines.append(f"{missing:,}{of} device events have no launch in the trace: their gaps have no cause")
    if quality["graph_coverage"]:
        lines.append(f"{fmt.percent(quality['graph_coverage'])} of device work was launched by CUDA graphs")
    if quality["carry_in_ns"]:
        lines.append(f"{fmt.duration(quality['carry_in_ns'])} of work before the first window is left out (carry-in)")
    if quality["after_last_ns"]:
        lines.append(f"{fmt.duration(quality['after_last_ns'])} of work after the last window is left out")
    if quality["spill_ns"]:
        lines.append(f"{fmt.duration(quality['spill_ns'])} of work ran in a later step's window (spill)")
    if quality["undated_events"]:
        lines.append(f"{quality['undated_events']:,} events have no time")
    lines += [fmt.clean(note) for note in document["hardware"]["notes"] or ()]
    notes = Counter(fmt.clean(note) for note in quality["notes"] or ())
    return [*lines, *(note if often == 1 else f"{note} ({often:,} times)" for note, often in notes.items())]


def ladder(document: Document) -> Ladder:
    """Return the waterfall, or the partition of time where there is none."""
    rows = document["waterfall"]
    if not rows:
        return _time_ladder(document)
    start = document["mfu"]["ladder_start"] or next(
        (row["term"] for row in rows if row["term"] in ("mfu", "hfu")), "time"
    )
    title, unit = {
        "mfu": ("where 100 points of peak went", "points"),
        "hfu": ("where 100 points of peak went, from HFU down: MFU is unknown", "points"),
    }.get(start, (f"where the time went{_why_not_points(document)}", "% of time"))
    return Ladder(title, unit, _rungs(rows))


def _why_not_points(document: Document) -> str:
    if "hardware" not in document:  # a waterfall from a store comes without what explains it
        return ""
    if document["hardware"]["peak_flops"] is None:
        return ", as no peak is known"
    if document["mfu"]["flops_coverage"] == 0:
        how = "an nsys report has none" if by_nsys(document) else "record_shapes=True"
        return f", as no matrix product has its shapes ({how})"
    return ", as no FLOPs are known"


def by_nsys(document: Document) -> bool:
    """Say whether Nsight Systems recorded all traces, which has other options than torch.profiler."""
    return (document["quality"].get("sources") or []) == ["nsys"]


def nothing_found(document: Document) -> str:
    """Say that no rule applies, and where most of the time goes all the same."""
    found = ladder(document)
    lost = [r for r in found.rungs if r.parent is None and r.term not in ("mfu", "hfu", "matmul", "compute")]
    large = sorted((r for r in lost if (r.points or 0) >= WORTH_NAMING), key=lambda r: -(r.points or 0))[:2]
    if not large:
        return "no rule found anything to fix"
    named = " and ".join(f"{r.label} ({_with_parts(r, found)})" for r in large)
    most = "most" if sum(r.points or 0 for r in lost) > 50 else "most of what is lost"
    return f"no rule applies; {most} goes to {named}: {_where_to_look(large[0].kind, large[0].term, document)}"


def pace_note(findings: Sequence[Mapping[str, Any]]) -> str | None:
    """Say why findings and the waterfall count the same time differently, if some of these findings do."""
    return PACED if any(_differs(row["evidence"]) for row in findings) else None


def _differs(item: Any) -> bool:
    """Find a row whose loss, by the rank that sets the pace, is not what all ranks measured."""
    if isinstance(item, Mapping):
        lost = item.get("lost_gpu_ms")
        measured = [item[name] for name in ("idle_ms", "exposed_ms") if name in item]
        return (lost is not None and bool(measured) and lost not in measured) or any(map(_differs, item.values()))
    return isinstance(item, (list, tuple)) and any(map(_differs, item))


PACED = (
    "what is lost on all ranks, and the gain from it, is what the rank that sets the pace lost in each step (the one "
    "with the least exposed communication), times the ranks; idle, exposed and the waterfall add up what each rank "
    "lost itself"
)


def _with_parts(rung: Rung, found: Ladder) -> str:
    """Say what a term is worth, and which of its parts are worth naming."""
    parts = [r for r in found.rungs if r.parent == rung.term and (r.points or 0) >= WORTH_NAMING]
    parts.sort(key=lambda r: -(r.points or 0))
    shown = ", ".join(f"{r.label} {fmt.points(r.points, 1)}" for r in parts[:3])
    return f"{fmt.points(rung.points, 1)} {found.unit}" + (f": {shown}" if shown else "")


def _where_to_look(kind: str, term: str, document: Document) -> str:
    if term == "idle_unattributed":
        if document["quality"]["launches_missing"]:
            how = (
                "let the device finish before the recording starts"
                if by_nsys(document)
                else "profile with ProfilerActivity.CPU too"
            )
            return f"the trace lacks the launches; {how}"
        return "no device work follows in the window, so that nothing tells what was waited for; profile more steps"
    return {
        "idle": "see who held the host up, --details",
        "comm": "see the collectives, --details; waiting is told from transfer when all ranks are given",
        "copy": "see the copies, --details",
    }.get(kind, "see the kernels by waste, --details")


FAR_FROM_MEDIAN = 0.02
"""Of the mean, which MFU and tokens per second are made of: then it is said."""
MANY_WINDOWS = 100
"""Windows from which a 95th percentile means what it says."""
WORTH_NAMING = 5.0
"""Points of a term that is worth a look although no rule applies."""
WORTH_SAYING = 0.001
"""Share of the time below which unknown kernels are not mentioned."""


def _rungs(rows: list[dict[str, Any]]) -> list[Rung]:
    """Place the rungs: each starts where the one above ends; parts start with their parent."""
    offsets: dict[str | None, float] = {None: 0.0}
    tops = {row["term"] for row in rows if row["parent"] is None}
    children: dict[str | None, list[dict[str, Any]]] = {}
    for row in rows:
        children.setdefault(row["parent"] if row["parent"] in tops else None, []).append(row)
    split = any(row["term"] in ("exposed_transfer", "exposed_wait") and row["measured"] for row in rows)
    ordered = [one for top in children.get(None, []) for one in (top, *children.get(top["term"], []))]
    rungs = []
    for row in ordered:
        parent = row["parent"] if row["parent"] in tops else None
        offset, term = offsets[parent], row["term"]
        if row["measured"]:
            offsets[parent] = offset + (row["points"] or 0)
        if parent is None:
            offsets[term] = offset
        label = UNSPLIT if split and term == "unsplit_comm" else term_label(term, parent)
        if any(
            part["term"] == "unknown" and 2 * part["ns"] > row["ns"] for part in children.get(term, []) if row["ns"]
        ):
            label = UNKNOWN_KIND
        rungs.append(
            Rung(term, label, kind_of(term, parent), row["points"], offset, row["ns"],
                 row["gpu_hours"], parent, bool(row["measured"]))
        )  # fmt: skip
    return rungs


def _time_ladder(document: Document) -> Ladder:
    totals, idle, window = document["totals"], document["idle"], document["totals"]["window_ns"]
    rows = [
        {"term": name, "ns": totals[f"{name}_ns"], "parent": None}
        for name in ("compute", "exposed_comm", "exposed_memcpy", "idle")
    ]
    rows += [
        {"term": name, "ns": idle[f"{name}_ns"], "parent": "idle"}
        for name in ("host_late", "launch", "dependency", "unattributed")
        if idle[f"{name}_ns"]
    ]
    for row in rows:
        share = fmt.ratio(row["ns"], window)
        row.update(points=None if share is None else 100 * share, measured=row["ns"] is not None)
        row["gpu_hours"] = None if row["ns"] is None else row["ns"] / 3600e9
    return Ladder("where the time went", "% of time", _rungs(rows))


def term_label(term: str, parent: str | None = None) -> str:
    """Name a term in words."""
    if term.startswith("idle_"):
        return "idle: " + fmt.label(term.removeprefix("idle_"))
    return _LABELS.get(term) or fmt.label(term)


def kind_of(term: str, parent: str | None = None) -> str:
    """Say how to colour a term: like the one that holds it."""
    name = parent or term
    return "idle" if name.startswith("idle") else _COLOURS.get(name, "compute")


def not_measured(found: Ladder) -> str | None:
    """Say which terms the traces cannot support, and where their time is, if there is any."""
    inside: dict[str, list[str]] = {}
    holders = {rung.term: rung.label for rung in found.rungs if rung.parent is None and rung.ns}
    for rung in found.rungs:
        if not rung.measured and rung.parent in holders:
            inside.setdefault(holders[rung.parent], []).append(rung.label)
    parts = [f"{', '.join(names)} (inside {parent})" for parent, names in inside.items()]
    return "not measured: " + "; ".join(parts) if parts else None
