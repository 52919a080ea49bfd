r"""Ladder A: where 100 points of peak went, exactly (definition 15).

    terms = ladder_terms(steps, compute, idle, numerator)         -> TERMS    ns by rank, device, step and term
    waterfall(terms, start)                                       -> rows of `waterfall`: job, ranks, steps
    ladder_rows(rows, start)                                      -> one scope's rows as dicts

| start | when | first term |
|---|---|---|
| `mfu` | a model, its tokens and a peak are known | FLOPs of the model / peak |
| `hfu` | a peak, and FLOPs of some ops | FLOPs that the ops executed / peak; recomputed ones too |
| `time` | no peak | none: matrix kernels are shown by their time |

Terms without a parent sum to the windows to the ns, because each ns of K, C \ K, M \ (K ∪ C) and idle is
counted once and the first term is taken out of the matrix kernels' time. Points are multiples of 2^-24 that
are shared out by largest remainder: added up as floats, in any order, they give exactly 100.

Matrix kernels below peak is signed: a model whose FLOPs the kernels skip (full attention on causal kernels)
makes it negative. A term that the inputs cannot support is listed as not measured, under the term that holds
its time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.culprits import Shares, sum_shares
from perfkit.analysis.idle import Gaps
from perfkit.analysis.ops import MATMUL
from perfkit.analysis.timeline import Timeline, device_column, ints
from perfkit.analysis.windows import Windows
from perfkit.schema import WATERFALL, conform

WINDOW_IDLE = pa.schema(
    [
        ("rank", pa.int32()), ("device", pa.int32()), ("step", pa.int64()), ("cause", pa.utf8()),
        ("culprit", pa.utf8()), ("where", pa.utf8()), ("idle_ns", pa.int64()), ("gaps", pa.int64()),
    ]
)  # fmt: skip
"""Idle time by the window in which it passed (the `idle` table has the step that launched the next work)."""
TERMS = pa.schema(
    [
        ("rank", pa.int32()), ("device", pa.int32()), ("step", pa.int64()), ("term", pa.utf8()), ("part", pa.utf8()),
        ("ns", pa.int64()),
    ]
)  # fmt: skip
"""`part` is the child's name; null if the term has none."""
ORDER = (
    "mfu", "hfu", "matmul", "matmul_below_peak", "recompute", "non_matmul", "bubble", "exposed_transfer",
    "exposed_wait", "unsplit_comm", "exposed_memcpy",
    "idle_host", "idle_data", "idle_checkpoint", "idle_launch", "idle_dependency", "idle_unattributed",
)  # fmt: skip
"""Terms from the top of the ladder to its foot."""
COMM_TERMS = ("bubble", "exposed_transfer", "exposed_wait", "unsplit_comm")
"""What exposed communication is split into where the ranks' clocks allow it; the last is what they do not."""
NOT_MEASURED = (
    ("throttled_clocks", "matmul_below_peak"), ("exposed_transfer", "unsplit_comm"), ("exposed_wait", "unsplit_comm"),
    ("bubble", "unsplit_comm"), ("recompute", "non_matmul"),
    *((term, holder) for holder in ("idle_host", "idle_unattributed") for term in ("idle_data", "idle_checkpoint")),
)  # fmt: skip
"""(term, the one that holds its time): needs counters, the clocks of all ranks, or what the host did. Not listed if it
is measured."""
UNMATCHED = "flops_unmatched"
BEYOND = "flops_beyond_model"
"""FLOPs that the ops executed and the model does not count, as time at peak; negative the other way round."""
_IDLE = {"data_loader": "idle_data", "checkpoint": "idle_checkpoint"}
_UNIT = 2**24


@dataclass(frozen=True)
class Numerator:
    """What the ladder starts with."""

    start: str
    """`mfu`, `hfu` or `time`."""
    peaks: Mapping[str, float] = field(default_factory=dict)
    """Dense FLOP/s by number format."""
    model_ns: int = 0
    """Ideal time of the model's FLOPs on one device in one step, if start is `mfu`."""


def window_idle(timeline: Timeline, device: int | None, windows: Windows, gaps: Gaps, shares: Shares) -> pa.Table:
    """Sum idle stretches by window, cause, culprit and place."""
    if not len(windows.step):
        return WINDOW_IDLE.empty_table()
    at = np.clip(np.searchsorted(windows.edges, gaps.start, side="right") - 1, 0, len(windows.step) - 1)
    total = sum_shares(windows.step[at], gaps, shares)
    step = total.step
    return pa.table(
        {
            "rank": pa.array(np.full(len(step), timeline.rank, np.int32)),
            "device": device_column(device, len(step)),
            "step": pa.array(step, mask=step < 0),
            "cause": total.cause,
            "culprit": total.culprit,
            "where": total.where,
            "idle_ns": total.idle_ns,
            "gaps": total.gaps,
        },
        schema=WINDOW_IDLE,
    )


# ------------------------------------------------------------------ terms


def ladder_terms(
    steps: pa.Table, compute: pa.Table, idle: pa.Table, numerator: Numerator, comm: Mapping[str, Any] | None = None,
    bubble_idle: Any = None, untold: Collection[int] = (),
) -> pa.Table:  # fmt: skip
    """Return the ns of every term by rank, device and step; they sum to window_ns.

    `steps` are rows of `attribution` without carry-in, `compute` of kernels.COMPUTE_SCHEMA, `idle` of WINDOW_IDLE.
    `comm` splits the exposed communication of each step into COMM_TERMS; `bubble_idle` marks the rows of `idle` in
    which the host waited for a pipeline receive. Of the ranks `untold` nobody knows what the host did.
    """
    nothing = np.zeros(len(steps), np.int64)
    told = steps.filter(pa.array(~np.isin(ints(steps["rank"]), list(untold))))
    phased = pc.any(pc.is_in(compute["phase"], pa.array(("forward", "backward", "recompute")))).as_py()
    parts = [
        *(
            _rows(steps, term, None, ns)
            for term, ns in (comm or {"unsplit_comm": ints(steps["exposed_comm_ns"])}).items()
        ),
        _rows(steps, "exposed_memcpy", None, ints(steps["exposed_memcpy_ns"])),
        _idle_terms(idle, bubble_idle),
        *(_rows(told, term, None, nothing[: len(told)]) for term in ("idle_data", "idle_checkpoint")),
        *([_rows(steps, "recompute", None, nothing)] if phased else []),
        *_compute_terms(compute, numerator),
    ]
    if numerator.start == "mfu":
        ideal = np.full(len(steps), numerator.model_ns, np.int64)
        parts += [_rows(steps, "mfu", None, ideal), _rows(steps, "matmul_below_peak", BEYOND, -ideal)]
    return pa.concat_tables(parts)


def ideal_ns(compute: pa.Table, peaks: Mapping[str, float]) -> tuple[Any, Any]:
    """Return the time at peak of each row's matrix FLOPs, and whether it is known."""
    flops = pc.fill_null(compute["flops"], 0.0).to_numpy()
    peak = np.array([peaks.get(d or "", 0.0) for d in compute["dtype"].to_pylist()], np.float64)
    known = np.array(pc.is_valid(compute["flops"])) & (peak > 0)
    ns = np.where(known, flops / np.where(peak > 0, peak, 1.0) * 1e9, 0.0)
    return np.round(ns).astype(np.int64), known


def _compute_terms(compute: pa.Table, numerator: Numerator) -> list[pa.Table]:
    owned = ints(compute["owned_ns"])
    family = np.array(compute["family"].to_pylist(), object)
    again = np.array([p == "recompute" for p in compute["phase"].to_pylist()], bool)
    product = np.isin(family, MATMUL)
    rest = ~product & ~again
    if numerator.start == "time":
        term = np.where(again, "recompute", np.where(product, "matmul", "non_matmul"))
        return [_rows(compute, term, family, owned)]
    ideal, known = ideal_ns(compute, numerator.peaks)
    ideal = np.where(product, ideal, 0)
    below = product & ~again
    part = np.where(known, family, UNMATCHED)
    rows = [
        _rows(compute, "non_matmul", family, np.where(rest, owned, 0)),
        _rows(compute, "matmul_below_peak", part, np.where(below, owned - ideal, 0)),
    ]
    if numerator.start == "mfu":  # what was run again is no part of the model: all of its time is lost
        rows.append(_rows(compute, "recompute", family, np.where(again, owned, 0)))
        return [*rows, _rows(compute, "matmul_below_peak", BEYOND, np.where(below, ideal, 0))]
    rows.append(_rows(compute, "recompute", family, np.where(again, owned - ideal, 0)))
    return [*rows, _rows(compute, "hfu", None, ideal)]


def _idle_terms(idle: pa.Table, bubble: Any) -> pa.Table:
    cause, culprit = idle["cause"].to_pylist(), idle["culprit"].to_pylist()
    late = [c == "host_late" for c in cause]
    term = [
        _IDLE.get(who or "", "idle_host") if is_late else f"idle_{why}"
        for is_late, why, who in zip(late, cause, culprit, strict=True)
    ]
    if bubble is not None:
        term = ["bubble" if waits else t for t, waits in zip(term, bubble.tolist(), strict=True)]
    part = [who if t == "idle_host" else None for t, who in zip(term, culprit, strict=True)]
    return _rows(idle, np.array(term, object), np.array(part, object), ints(idle["idle_ns"]))


def _rows(table: pa.Table, term: Any, part: Any, ns: Any) -> pa.Table:
    size = len(table)
    terms = [term] * size if isinstance(term, str) else term.tolist()
    parts = [part] * size if part is None or isinstance(part, str) else part.tolist()
    columns = [table["rank"], table["device"], table["step"], pa.array(terms, pa.utf8()), pa.array(parts, pa.utf8())]
    return pa.table([*columns, pa.array(ns)], schema=TERMS)


# ------------------------------------------------------------------ ladders


def waterfall(terms: pa.Table, start: str, scopes: Sequence[str] = ("job", "rank", "step")) -> pa.Table:
    """Return the rows of `waterfall` for the whole job, each rank and each step."""
    found: list[dict[str, Any]] = []
    place: list[tuple[int | None, int | None]] = []  # rank and step of each row
    for scope in scopes:
        keys = [] if scope == "job" else [scope]
        table = terms.group_by([*keys, "term", "part"], use_threads=False).aggregate([("ns", "sum")])
        grouped: dict[Any, list[dict[str, Any]]] = {}
        for row in table.rename_columns([*keys, "term", "part", "ns"]).to_pylist():
            grouped.setdefault(row.get(scope), []).append(row)
        if scope == "step":
            grouped.pop(None, None)
        for key in sorted(grouped):
            rows = ladder_rows(grouped[key], start)
            found += rows
            place += [(key if scope == "rank" else None, key if scope == "step" else None)] * len(rows)
    of_row = {name: [row[name] for row in found] for name in WATERFALL.names if name not in ("rank", "step")}
    of_row |= {name: [where[i] for where in place] for i, name in enumerate(("rank", "step"))}
    return conform(WATERFALL, pa.table(of_row))


def ladder_rows(rows: Iterable[Mapping[str, Any]], start: str) -> list[dict[str, Any]]:
    """Return one scope's ladder from rows of (term, part, ns)."""
    sums: dict[str, int] = {}
    parts: dict[str, dict[str, int]] = {}
    for row in rows:
        sums[row["term"]] = sums.get(row["term"], 0) + row["ns"]
        if row["part"] is not None:
            children = parts.setdefault(row["term"], {})
            children[row["part"]] = children.get(row["part"], 0) + row["ns"]
    for term in COMM_TERMS[1:3]:
        if sums.get(term) == 0 and sums.get("unsplit_comm"):  # it may be in there
            del sums[term]
    idle_holder = "idle_host" if sums.get("idle_host") else "idle_unattributed"
    optional = {"mfu", "hfu", "matmul", "matmul_below_peak", *(term for term, _ in NOT_MEASURED)}
    shown = [t for t in ORDER if t in sums or t not in optional]
    if start != "time":
        shown = [t for t in ORDER if t in shown or t in (start, "matmul_below_peak")]
    total = sum(sums.values())
    units = share_out([sums.get(t, 0) for t in shown], 100 * _UNIT, total, 100 * _UNIT) if total else None
    result: list[dict[str, Any]] = []

    def add(term: str, ns: int | None, unit: int | None, parent: str | None, *, measured: bool = True) -> None:
        points = None if unit is None else unit / _UNIT
        result.append(
            {"ladder": "A", "position": len(result), "term": term, "parent": parent, "points": points, "gpu_ns": ns,
             "measured": measured}
        )  # fmt: skip

    for i, term in enumerate(shown):
        unit = None if units is None else units[i]
        add(term, sums.get(term, 0), unit, None)
        inside = [(name, ns) for name, ns in parts.get(term, {}).items() if ns]
        inside.sort(key=lambda item: (-item[1], item[0]))
        shares: Sequence[int | None] = [None] * len(inside)
        if unit is not None and inside:
            shares = share_out([ns for _, ns in inside], 100 * _UNIT, total, unit)
        for (name, ns), share in zip(inside, shares, strict=True):
            add(name, ns, share, term)
        for name, parent in NOT_MEASURED:
            if parent == term and name not in sums and (name not in _IDLE.values() or term == idle_holder):
                add(name, None, None, term, measured=False)
    return result


def share_out(amounts: Sequence[int], units: int, whole: int, target: int) -> list[int]:
    """Return amount / whole in units, rounded by largest remainder so that the sum is `target`.

    `target` is the rounded sum: the sum of the rounded-down shares falls short of it by at most one each.
    """
    assert whole > 0
    shares = [amount * units // whole for amount in amounts]
    rest = [amount * units % whole for amount in amounts]
    missing = target - sum(shares)
    assert 0 <= missing <= len(amounts), (amounts, whole, target)
    for i in sorted(range(len(amounts)), key=lambda i: (-rest[i], i))[:missing]:
        shares[i] += 1
    return shares


def to_json(table: pa.Table) -> list[dict[str, Any]]:
    """Return the job's ladder in the shape of `--format json`."""
    job = table.filter(pc.and_(pc.is_null(table["rank"]), pc.is_null(table["step"])))
    return [
        {
            "term": row["term"], "points": row["points"], "ns": row["gpu_ns"],
            "gpu_hours": None if row["gpu_ns"] is None else row["gpu_ns"] / 3.6e12, "parent": row["parent"],
            "measured": row["measured"],
        }
        for row in job.to_pylist()
    ]  # fmt: skip
