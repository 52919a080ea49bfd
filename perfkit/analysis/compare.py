"""What changed between two runs, and is it noise?

    compare(base, new, level=0.05) -> Comparison        (two Reports)

Step time is compared by the median of a series: recorded steps that no profiler disturbed where both runs have them,
else the traced ones, each averaged over ranks. Every term of the waterfall is compared in points of its own run's
peak, kernels and collectives in time per step and device, so that runs of different size or hardware can stand side by
side; what differs in kind is said in `notes`. `causes` says where the time of the traced steps went or came from: the
terms, kernels and findings that changed most. Kernels are matched by op, shapes, number format and phase, or by name
where no op is known; collectives by role, op and size.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.evidence import LEVEL, MIN_VALUES, NOTHING, Estimate, Floats, difference, ratio
from perfkit.report.format import duration
from perfkit.report.report import Report
from perfkit.report.verdict import term_label

MIN_KERNEL_SHARE = 0.002
"""Kernels whose change is below this share of a step are not listed."""
MAX_ROWS = 40
MIN_CAUSE = 0.01
"""Changes below this share of a step are no cause."""


@dataclass(frozen=True)
class Quantity:
    """One number of both runs. `change` is relative for step time and tokens/s, else in the unit of the values."""

    name: str
    unit: str
    base: float | None
    new: float | None
    change: float | None
    low: float | None
    high: float | None
    verdict: str
    """faster, slower, no evidence, unknown; for terms more, less."""


@dataclass(frozen=True)
class Row:
    """A kernel or a collective of both runs, per step and device."""

    name: str
    detail: str
    status: str
    """added, removed, slower, faster."""
    base_ns: float
    new_ns: float
    base_count: float
    new_count: float

    @property
    def change_ns(self) -> float:
        """How much longer it takes a step."""
        return self.new_ns - self.base_ns


@dataclass(frozen=True)
class Comparison:
    """The answer."""

    verdict: str
    level: float
    steps: tuple[int, int]
    step_source: str
    quantities: tuple[Quantity, ...]
    terms: tuple[Quantity, ...]
    kernels: tuple[Row, ...]
    collectives: tuple[Row, ...]
    causes: tuple[str, ...] = ()
    """Sentences, the largest first; empty where nothing that was traced changed clearly."""
    notes: tuple[str, ...] = field(default_factory=tuple)

    def as_json(self) -> dict[str, Any]:
        """Return the answer as one JSON document."""
        rows = {
            name: [{**asdict(row), "change_ns": row.change_ns} for row in getattr(self, name)]
            for name in ("kernels", "collectives")
        }
        return {
            "schema_version": 1,
            "verdict": self.verdict,
            "level": self.level,
            "steps": {"base": self.steps[0], "new": self.steps[1], "source": self.step_source},
            "quantities": [asdict(q) for q in self.quantities],
            "waterfall": [asdict(q) for q in self.terms],
            **rows,
            "causes": list(self.causes),
            "notes": list(self.notes),
        }


def compare(
    base: Report, new: Report, *, level: float = LEVEL, steps: tuple[pa.Table, pa.Table] | None = None
) -> Comparison:
    """Compare two analyses; `steps` are the recorded steps of both runs, where there are any."""
    times, source = _step_times(base, new, steps)
    speed = ratio(*times, level=level)
    verdict = {1: "slower", -1: "faster", 0: "no evidence"}[speed.sign]
    quantities = [
        Quantity("step_time", "ns", _median(times[0]), _median(times[1]), speed.change, speed.low, speed.high, verdict),
        *_summary_quantities(base.document, new.document, speed),
    ]
    terms = tuple(_terms(base, new, level))
    kernels = tuple(_match(_kernel_rows(base), _kernel_rows(new), _step_ns(base)))
    collectives = tuple(_match(_collective_rows(base), _collective_rows(new), _step_ns(base)))
    return Comparison(
        verdict=verdict,
        level=level,
        steps=(len(times[0]), len(times[1])),
        step_source=source,
        quantities=tuple(quantities),
        terms=terms,
        kernels=kernels,
        collectives=collectives,
        causes=tuple(_causes(base, new, terms, kernels, collectives)),
        notes=tuple(_notes(base.document, new.document, times)),
    )


def _step_times(
    base: Report, new: Report, recorded: tuple[pa.Table, pa.Table] | None
) -> tuple[tuple[Floats, Floats], str]:
    if recorded is not None:
        found = tuple(recorded_step_times(table) for table in recorded)
        if min(len(one) for one in found) >= max(MIN_VALUES, len(_traced_times(base)), len(_traced_times(new))):
            return (found[0], found[1]), "recorded"
    return (_traced_times(base), _traced_times(new)), "traced"


def recorded_step_times(steps: pa.Table) -> Floats:
    """Return the time from step end to step end of the steps that no profiler touched, averaged over ranks."""
    if not steps.num_rows:
        return np.array([], np.float64)
    rank, step, end = (steps[name].to_numpy() for name in ("rank", "step", "end_ns"))
    attempt = steps["attempt"].to_numpy() if "attempt" in steps.column_names else np.zeros(len(rank), np.int64)
    profiled = np.asarray(pc.fill_null(steps["profiled"], False).to_numpy(zero_copy_only=False), bool)
    order = np.lexsort((end, rank, attempt))
    rank, step, end, attempt, profiled = rank[order], step[order], end[order], attempt[order], profiled[order]
    follows = (rank[1:] == rank[:-1]) & (attempt[1:] == attempt[:-1]) & (step[1:] == step[:-1] + 1)
    keep = follows & ~profiled[1:] & ~profiled[:-1]
    return _by_step(step[1:][keep] + attempt[1:][keep].astype(np.int64) * 2**40, (end[1:] - end[:-1])[keep])


def _traced_times(report: Report) -> Floats:
    table = report.tables.get("steps")
    if table is None or not table.num_rows or table["step"].null_count:
        return np.array([], np.float64)
    return _by_step(table["step"].to_numpy(), table["window_ns"].to_numpy())


def _by_step(step: Any, values: Any) -> Floats:
    """Average over ranks, in the order of steps."""
    if not len(step):
        return np.array([], np.float64)
    _, group = np.unique(step, return_inverse=True)
    return np.bincount(group, values) / np.bincount(group)


def _median(values: Floats) -> float | None:
    return float(np.median(values)) if len(values) else None


def _summary_quantities(base: Mapping[str, Any], new: Mapping[str, Any], speed: Estimate) -> Iterable[Quantity]:
    """Yield MFU and tokens/s, where both are known; work over time, so their interval is that of step time."""
    for name, unit, path in (
        ("tokens_per_second_per_device", "1/s", ("throughput", "tokens_per_second_per_device")),
        ("mfu", "ratio", ("mfu", "value")),
        ("hfu", "ratio", ("mfu", "hfu")),
    ):
        old, now = (document[path[0]][path[1]] if document[path[0]] else None for document in (base, new))
        if old is None or now is None:
            yield Quantity(name, unit, old, now, None, None, None, "unknown")
            continue
        change, low, high = now / old - 1 if old else None, None, None
        if change is not None and speed.change is not None and speed.low is not None and speed.high is not None:
            same = (1 + change) * (1 + speed.change)  # what would be left of the change at equal step time
            low, high = same / (1 + speed.high) - 1, same / (1 + speed.low) - 1
        sign = Estimate(change, low, high).sign
        yield Quantity(name, unit, old, now, change, low, high, {1: "faster", -1: "slower", 0: "no evidence"}[sign])


def _terms(base: Report, new: Report, level: float) -> Iterable[Quantity]:
    """Yield the change of every term of ladder A in points, step by step."""
    series = [_term_series(report) for report in (base, new)]
    for term in dict.fromkeys((*series[0], *series[1])):
        a, b = (one.get(term, np.array([], np.float64)) for one in series)
        if not a.any() and not b.any():
            continue
        found = difference(a, b, level=level) if len(a) and len(b) else NOTHING
        verdict = "unknown" if found.change is None else {1: "more", -1: "less", 0: "no evidence"}[found.sign]
        old, now = (float(one.mean()) if len(one) else None for one in (a, b))
        yield Quantity(term, "points", old, now, found.change, found.low, found.high, verdict)


def _term_series(report: Report) -> dict[str, Floats]:
    """Return term -> points of each step, all ranks together."""
    table = report.tables.get("waterfall")
    if table is None or not table.num_rows:
        return {}
    table = table.filter(pc.and_(pc.is_valid(table["step"]), pc.is_null(table["parent"])))
    table = table.filter(pc.and_(pc.equal(table["ladder"], "A"), table["measured"]))
    if table["rank"].null_count < table.num_rows:  # rows of single ranks, beside those of all of them
        table = table.filter(pc.is_valid(table["rank"]))
    if not table.num_rows:
        return {}
    window = table.group_by(["step"]).aggregate([("gpu_ns", "sum")])
    whole = dict(zip(window["step"].to_pylist(), window["gpu_ns_sum"].to_pylist(), strict=True))
    parts = table.group_by(["term", "step"]).aggregate([("gpu_ns", "sum")]).sort_by([("step", "ascending")])
    series: dict[str, list[float]] = {}
    for term, step, ns in zip(*(parts[c].to_pylist() for c in ("term", "step", "gpu_ns_sum")), strict=True):
        if whole[step]:
            series.setdefault(term, []).append(100 * ns / whole[step])
    return {term: np.array(values) for term, values in series.items()}


Key = tuple[str, str]
Rows = dict[Key, tuple[float, float]]
"""(name, detail) -> (ns, count) per step and device."""


def _device_steps(report: Report) -> int:
    table = report.tables.get("steps")
    return max(1, table.num_rows if table is not None else 1)


def _step_ns(report: Report) -> float:
    found = _median(_traced_times(report))
    return found if found is not None else float(report.document["totals"]["window_ns"] or 1)


def _kernel_rows(report: Report) -> Rows:
    table = report.tables.get("kernels")
    if table is None:
        return {}
    per = _device_steps(report)
    rows: Rows = {}
    for row in table.select(["name", "op", "input_dims", "dtype", "phase", "count", "total_ns"]).to_pylist():
        detail = " ".join(str(row[key]) for key in ("phase", "dtype", "input_dims") if row[key])
        key = (row["op"], detail) if row["op"] else (row["name"], "")
        ns, count = rows.get(key, (0.0, 0.0))
        rows[key] = (ns + row["total_ns"] / per, count + row["count"] / per)
    return rows


def _collective_rows(report: Report) -> Rows:
    table = report.tables.get("collectives")
    if table is None:
        return {}
    per = _device_steps(report)
    rows: Rows = {}
    for row in table.select(["group", "op", "bytes", "dur_ns"]).to_pylist():
        key = (f"{row['op']} ({row['group']})", _size(row["bytes"]))
        ns, count = rows.get(key, (0.0, 0.0))
        rows[key] = (ns + row["dur_ns"] / per, count + 1 / per)
    return rows


def _size(num_bytes: int | None) -> str:
    """Name a size by the power of two that holds it: sizes of all-to-alls differ from step to step."""
    if num_bytes is None:
        return "size unknown"
    exponent = max(0, num_bytes - 1).bit_length()
    unit = ("B", "KiB", "MiB", "GiB", "TiB")[min(exponent // 10, 4)]
    return f"up to {2 ** (exponent - 10 * min(exponent // 10, 4))} {unit}"


def _match(base: Rows, new: Rows, step_ns: float) -> list[Row]:
    """Pair rows by key; what only one side has is added or removed."""
    found = []
    for key in dict.fromkeys((*base, *new)):
        (old_ns, old_count), (now_ns, now_count) = base.get(key, (0.0, 0.0)), new.get(key, (0.0, 0.0))
        if abs(now_ns - old_ns) < MIN_KERNEL_SHARE * step_ns:
            continue
        status = (
            "added" if key not in base else "removed" if key not in new else "slower" if now_ns > old_ns else "faster"
        )
        found.append(Row(key[0], key[1], status, old_ns, now_ns, old_count, now_count))
    return sorted(found, key=lambda row: -abs(row.change_ns))[:MAX_ROWS]


def _causes(
    base: Report, new: Report, terms: Iterable[Quantity], kernels: Iterable[Row], collectives: Iterable[Row]
) -> Iterable[str]:
    """Yield findings that are new, and what changed most in time per step and device: terms, kernels, collectives."""
    known = {finding["id"] for finding in base.document["findings"] or ()}
    for finding in new.document["findings"] or ():
        if finding["id"] not in known:
            yield f"new finding: {finding['title']}"
    old_ns, now_ns = _step_ns(base), _step_ns(new)
    moved = [
        (q.new * now_ns / 100 - q.base * old_ns / 100, q.name)
        for q in terms
        if q.base is not None and q.new is not None and q.verdict in ("more", "less")
    ]
    least = MIN_CAUSE * max(old_ns, now_ns)
    for change, name in sorted(moved, key=lambda one: -abs(one[0]))[:3]:
        if abs(change) >= least:
            yield f"{term_label(name)}: {_signed(change)} a step"
    for what, rows in (("kernel", kernels), ("collective", collectives)):
        for row in list(rows)[:2]:
            if abs(row.change_ns) >= least:
                yield f"{what} {row.status}: {row.name} {row.detail}".rstrip() + f": {_signed(row.change_ns)} a step"


def _signed(ns: float) -> str:
    return f"{'+' if ns >= 0 else '−'}{duration(abs(ns))}"


def _notes(base: Mapping[str, Any], new: Mapping[str, Any], times: tuple[Floats, Floats]) -> Iterable[str]:
    for label, path in (("device", ("hardware", "device")), ("world size", ("scope", "world_size"))):
        old, now = (document[path[0]][path[1]] if document[path[0]] else None for document in (base, new))
        if old != now:
            difference_in_kind = f"{label} differs: {json.dumps(old)} and {json.dumps(now)}"
            yield f"{difference_in_kind}; times are per device, points are of each run's own peak"
    if base["mfu"] and new["mfu"] and base["mfu"]["convention"] != new["mfu"]["convention"]:
        yield f"MFU conventions differ: {base['mfu']['convention']} and {new['mfu']['convention']}"
    if base["synthetic"] or new["synthetic"]:
        yield "at least one of the runs is synthetic"
    short = min(len(one) for one in times)
    if short < MIN_VALUES:
        yield f"only {short} steps on one side: too few to tell a change from noise (30 are good)"
    elif short < 20:
        yield f"only {short} steps on one side: whether slow steps come in clusters cannot be seen (30 are good)"
