"""What changed between two runs, and is it noise?

    compare(base, new, level=0.05) -> Comparison        (two Reports, or several a side: runs of the same job)

Step time is compared by its typical value (perfkit.analysis.evidence): recorded steps that no profiler disturbed where
all runs have them, else the traced ones, each averaged over ranks. Every term of the waterfall is compared in points of
its own run's peak, kernels and collectives in time per step and device, so that runs of different size or hardware can
stand side by side; what differs in kind is said in `notes`. `causes` says where the time of the traced steps went or
came from: findings that are new, and the terms, kernels and collectives that changed most. Kernels are matched by op,
shapes, number format and phase, or by name where no op is known; collectives by role, op and size.

One run a side says how the two runs differ; that the job changed, it says only as far as runs of the job repeat. What
is assumed about that is in `run_spread`, up to where the verdict would hold in `holds_to`; if the steps of a run show
that the machine is not steady enough to assume anything, there are no intervals and the verdict is unknown (`doubt`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.evidence import (
    LEVEL,
    MIN_VALUES,
    NOTHING,
    RUN_SPREAD,
    Estimate,
    Floats,
    difference,
    ratio,
    typical,
)
from perfkit.report.format import plural, signed_duration
from perfkit.report.report import Report
from perfkit.report.verdict import term_label

MIN_KERNEL_SHARE = 0.002
"""Kernels whose change is below this share of a step are not listed."""
MAX_ROWS = 40
MIN_CAUSE = 0.01
"""Changes below this share of a step are no cause."""
GROWN = 5.0
"""A finding that both sides have is worse if it weighs so many points more."""
COVERAGE_APART = 0.1
"""HFU of two runs is not compared if the FLOPs of so much more matmul time are known in one of them."""
PARTS = {
    "compute": "compute_ns",
    "exposed_comm": "exposed_comm_ns",
    "exposed_memcpy": "exposed_memcpy_ns",
    "idle": "idle_ns",
}
WORK = ("mfu", "hfu")
"""Terms of the waterfall that are work, not loss: no cause of a slowdown."""

Side = Sequence[Report]
"""Runs of the same job."""


@dataclass(frozen=True)
class Quantity:
    """One number of both sides. `change` is in the unit of the values for terms and parts, else relative."""

    name: str
    unit: str
    base: float | None
    new: float | None
    change: float | None
    low: float | None
    high: float | None
    verdict: str
    """faster, slower, no evidence, unknown; for terms and parts more, less."""


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
    runs: tuple[int, int]
    steps: tuple[int, int]
    step_source: str
    quantities: tuple[Quantity, ...]
    parts: tuple[Quantity, ...]
    """Time of a traced step and device: compute, exposed communication and copies, idle; they sum to the step."""
    terms: tuple[Quantity, ...]
    kernels: tuple[Row, ...]
    collectives: tuple[Row, ...]
    doubt: str = ""
    """Why there is no interval: few (steps), or of one run a side: swing, stall (perfkit.analysis.evidence)."""
    run_spread: float | None = None
    """How far runs of the job are taken to lie apart (standard deviation); None with several runs or if in doubt."""
    holds_to: float | None = None
    """One run a side: up to which such spread the change would be one."""
    terms_of: str = "points of peak"
    """What the terms are shares of."""
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
            "doubt": self.doubt or None,
            "runs": {"base": self.runs[0], "new": self.runs[1]},
            "run_spread": {"assumed": self.run_spread, "holds_to": self.holds_to},
            "steps": {"base": self.steps[0], "new": self.steps[1], "source": self.step_source},
            "quantities": [asdict(q) for q in self.quantities],
            "parts": [asdict(q) for q in self.parts],
            "waterfall": [asdict(q) for q in self.terms],
            **rows,
            "causes": list(self.causes),
            "notes": list(self.notes),
        }


def compare(
    base: Report | Side,
    new: Report | Side,
    *,
    level: float = LEVEL,
    run_spread: float | None = None,
    steps: tuple[Sequence[pa.Table], Sequence[pa.Table]] | None = None,
) -> Comparison:
    """Compare analyses of one or several runs a side.

    `run_spread` is how far runs of the job lie apart, if known (as a share; one run a side only); `steps` are the
    recorded steps of each run, if all have them.
    """
    sides = [[one] if isinstance(one, Report) else list(one) for one in (base, new)]
    first, second = sides
    times, source = _step_times(sides, steps)
    speed = ratio(*times, level=level, run_spread=run_spread)
    old, now = typical(*times) or (None, None)
    verdict = "unknown" if speed.low is None else {1: "slower", -1: "faster", 0: "no evidence"}[speed.sign]
    quantities = [
        Quantity("step_time", "ns", old, now, speed.change, speed.low, speed.high, verdict),
        *_summary_quantities(first, second, speed),
    ]
    alone = len(first) == len(second) == 1
    spread = None if speed.doubt in ("swing", "stall") else RUN_SPREAD if run_spread is None else run_spread
    parts = tuple(_parts(first, second, level, spread))
    terms = tuple(_terms(first, second, level, spread))
    kernels = tuple(_match(_kernel_rows(first), _kernel_rows(second), _step_ns(first)))
    collectives = tuple(_match(_collective_rows(first), _collective_rows(second), _step_ns(first)))
    waits = [[recorded_data_wait(table) for table in side] for side in steps] if steps else [[], []]
    causes = [
        *_new_findings(first, second),
        *_longer_data_wait(waits, level, spread, _step_ns(first)),
        *_moved_most(first, second, speed.sign, terms, kernels, collectives),
    ]
    num_steps = [sum(map(len, side)) for side in times]
    return Comparison(
        verdict=verdict,
        level=level,
        runs=(len(first), len(second)),
        steps=(num_steps[0], num_steps[1]),
        step_source=source,
        quantities=tuple(quantities),
        parts=parts,
        terms=terms,
        kernels=kernels,
        collectives=collectives,
        doubt=speed.doubt,
        run_spread=spread if alone else None,
        holds_to=speed.holds_to,
        terms_of="points of peak" if all(_has_peak(one) for side in sides for one in side) else "% of time",
        causes=tuple(causes),
        notes=(*_notes(first, second), *_what_runs_tell(speed, times, spread)),
    )


def _step_times(
    sides: Sequence[Side], recorded: tuple[Sequence[pa.Table], Sequence[pa.Table]] | None
) -> tuple[list[list[Floats]], str]:
    traced = [[_traced_times(report) for report in side] for side in sides]
    if recorded is not None:
        found = [[recorded_step_times(table) for table in side] for side in recorded]
        least = max(MIN_VALUES, *(len(one) for side in traced for one in side))
        if min(len(one) for side in found for one in side) >= least:
            return found, "recorded"
    return traced, "traced"


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


def recorded_data_wait(steps: pa.Table) -> Floats:
    """Return how long the steps that no profiler touched waited for their data, averaged over ranks."""
    if "data_wait_ns" not in steps.column_names:
        return np.array([], np.float64)
    kept = steps.filter(pc.and_(pc.is_valid(steps["data_wait_ns"]), pc.invert(pc.fill_null(steps["profiled"], False))))
    attempt = kept["attempt"].to_numpy() if "attempt" in kept.column_names else np.zeros(len(kept), np.int64)
    return _by_step(kept["step"].to_numpy() + attempt.astype(np.int64) * 2**40, kept["data_wait_ns"].to_numpy())


def _traced_times(report: Report, column: str = "window_ns") -> Floats:
    table = report.tables.get("steps")
    if table is None or not table.num_rows or table["step"].null_count:
        return np.array([], np.float64)
    return _by_step(table["step"].to_numpy(), table[column].to_numpy())


def _by_step(step: Any, values: Any) -> Floats:
    """Average over ranks, in the order of steps."""
    if not len(step):
        return np.array([], np.float64)
    _, group = np.unique(step, return_inverse=True)
    return np.bincount(group, values) / np.bincount(group)


def _summary_quantities(base: Side, new: Side, speed: Estimate) -> Iterable[Quantity]:
    """Yield MFU and tokens/s, where all are known; work over time, so their interval is that of step time."""
    for name, unit, path in (
        ("tokens_per_second_per_device", "1/s", ("throughput", "tokens_per_second_per_device")),
        ("mfu", "ratio", ("mfu", "value")),
        ("hfu", "ratio", ("mfu", "hfu")),
    ):
        old, now = _mean_of(base, *path), _mean_of(new, *path)
        if not old or now is None or (name == "hfu" and _coverage_apart(base, new)):
            yield Quantity(name, unit, old, now, None, None, None, "unknown")
            continue
        change, low, high = now / old - 1, None, None
        if speed.change is not None and speed.low is not None and speed.high is not None:
            same = (1 + change) * (1 + speed.change)  # what would be left of the change at equal step time
            low, high = same / (1 + speed.high) - 1, same / (1 + speed.low) - 1
        sign = Estimate(change, low, high).sign
        verdict = "unknown" if low is None else {1: "faster", -1: "slower", 0: "no evidence"}[sign]
        yield Quantity(name, unit, old, now, change, low, high, verdict)


def _value(report: Report, section: str, name: str) -> Any:
    return (report.document.get(section) or {}).get(name)


def _mean_of(side: Side, section: str, name: str) -> float | None:
    found = [_value(report, section, name) for report in side]
    return None if None in found else float(np.mean(found))


def _coverage_apart(base: Side, new: Side) -> bool:
    old, now = _mean_of(base, "mfu", "flops_coverage"), _mean_of(new, "mfu", "flops_coverage")
    return old is not None and now is not None and abs(now - old) > COVERAGE_APART


def _parts(base: Side, new: Side, level: float, spread: float | None) -> Iterable[Quantity]:
    """Yield where a traced step and device spends its time."""
    for name, column in PARTS.items():
        series = [[_traced_times(report, column) for report in side] for side in (base, new)]
        if all(len(one) for side in series for one in side):
            yield _moved(name, "ns_per_step", series, level, None if spread is None else spread * _step_ns(base))


def _moved(name: str, unit: str, series: Sequence[Sequence[Floats]], level: float, spread: float | None) -> Quantity:
    """Return the change of a mean, in its own unit; without a spread of runs, without an interval."""
    found = difference(*series, level=level, run_spread=spread or 0.0) if all(series) else NOTHING
    if spread is None:
        found = Estimate(found.change, None, None)
    old, now = (float(np.mean([one.mean() for one in side])) if side else None for side in series)
    verdict = "unknown" if found.low is None else {1: "more", -1: "less", 0: "no evidence"}[found.sign]
    return Quantity(name, unit, old, now, found.change, found.low, found.high, verdict)


def _terms(base: Side, new: Side, level: float, spread: float | None) -> Iterable[Quantity]:
    """Yield the change of every term of ladder A in points, step by step."""
    several = [[_term_series(report) for report in side] for side in (base, new)]
    for term in dict.fromkeys(term for side in several for one in side for term in one):
        series = [[one[term] for one in side if term in one] for side in several]
        if any(one.any() for side in series for one in side):
            yield _moved(term, "points", series, level, None if spread is None else 100 * spread)


def _has_peak(report: Report) -> bool:
    return (report.document.get("mfu") or {}).get("ladder_start") != "time"


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
    place = {step: i for i, step in enumerate(sorted(step for step, ns in whole.items() if ns))}
    mean = sum(whole.values()) / max(1, len(place))  # so that the mean of a series is the ratio of the sums
    series: dict[str, Floats] = {}
    for term, step, ns in zip(*(parts[c].to_pylist() for c in ("term", "step", "gpu_ns_sum")), strict=True):
        if step in place:
            series.setdefault(term, np.zeros(len(place)))[place[step]] = 100 * ns / mean
    return series


Key = tuple[str, str]
Rows = dict[Key, tuple[float, float]]
"""(name, detail) -> (ns, count) per step and device."""


def _device_steps(side: Side) -> int:
    return max(1, sum(len(report.tables["steps"]) for report in side if "steps" in report.tables))


def _step_ns(side: Side) -> float:
    found = np.concatenate([_traced_times(report) for report in side])
    return float(found.mean()) if len(found) else float(side[0].document["totals"]["window_ns"] or 1)


def _kernel_rows(side: Side) -> Rows:
    per = _device_steps(side)
    rows: Rows = {}
    for row in _rows(side, "kernels", ["name", "op", "input_dims", "dtype", "phase", "count", "total_ns"]):
        detail = " ".join(str(row[key]) for key in ("phase", "dtype", "input_dims") if row[key])
        key = (row["op"], detail) if row["op"] else (row["name"], "")
        ns, count = rows.get(key, (0.0, 0.0))
        rows[key] = (ns + row["total_ns"] / per, count + row["count"] / per)
    return rows


def _collective_rows(side: Side) -> Rows:
    per = _device_steps(side)
    rows: Rows = {}
    for row in _rows(side, "collectives", ["group", "op", "bytes", "dur_ns"]):
        key = (f"{row['op']} ({row['group']})", _size(row["bytes"]))
        ns, count = rows.get(key, (0.0, 0.0))
        rows[key] = (ns + row["dur_ns"] / per, count + 1 / per)
    return rows


def _rows(side: Side, name: str, columns: Sequence[str]) -> Iterable[dict[str, Any]]:
    for report in side:
        if name in report.tables:
            yield from report.tables[name].select(columns).to_pylist()


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


def _new_findings(base: Side, new: Side) -> Iterable[str]:
    """Yield findings of most new runs that no base run has, or that weigh GROWN points more there."""
    before: dict[tuple[str, Any], float] = {}
    for finding in _findings(base):
        key = _subject(finding)
        before[key] = max(before.get(key, 0.0), finding["points"] or 0.0)
    often: Counter[tuple[str, Any]] = Counter()
    first: dict[tuple[str, Any], Mapping[str, Any]] = {}
    for finding in _findings(new):
        often[_subject(finding)] += 1
        first.setdefault(_subject(finding), finding)
    for key, finding in first.items():
        if 2 * often[key] <= len(new):
            continue
        if key not in before:
            yield f"new finding: {finding['title']}"
        elif (finding["points"] or 0.0) - before[key] >= GROWN:
            yield f"worse than before: {finding['title']}"


def _findings(side: Side) -> Iterable[Mapping[str, Any]]:
    for report in side:
        yield from report.document["findings"] or ()


def _subject(finding: Mapping[str, Any]) -> tuple[str, Any]:
    """Return what a finding is about: its kind, and the rank if it names one."""
    return finding["id"], (finding.get("evidence") or {}).get("rank")


def _longer_data_wait(
    waits: Sequence[Sequence[Floats]], level: float, spread: float | None, step_ns: float
) -> Iterable[str]:
    """Yield how much longer recorded steps wait for data: there are more of them than of traced ones."""
    if spread is None or not all(waits) or not all(len(one) for side in waits for one in side):
        return
    found = difference(*waits, level=level, run_spread=spread * step_ns)
    if found.change is not None and found.sign and abs(found.change) >= MIN_CAUSE * step_ns:
        yield f"waiting for data: {signed_duration(found.change)} a recorded step"


def _moved_most(
    base: Side, new: Side, sign: int, terms: Iterable[Quantity], kernels: Iterable[Row], collectives: Iterable[Row]
) -> Iterable[str]:
    """Yield what changed most in time per step and device: terms, kernels, collectives.

    A term counts if its own interval leaves out zero or it has none; where step time changed beyond noise, also if it
    moved that way.
    """
    old_ns, now_ns = _step_ns(base), _step_ns(new)
    apart = ("matmul_below_peak",) if _coverage_apart(base, new) else ()
    least = MIN_CAUSE * max(old_ns, now_ns)
    moved = [
        (q.new * now_ns / 100 - q.base * old_ns / 100, q)
        for q in terms
        if q.base is not None and q.new is not None and q.name not in (*WORK, *apart)
    ]
    for change, quantity in sorted(moved, key=lambda one: -abs(one[0]))[:3]:
        if abs(change) >= least and (quantity.verdict != "no evidence" or change * sign > 0):
            yield f"{term_label(quantity.name)}: {signed_duration(change)} a step"
    for what, rows in (("kernel", kernels), ("collective", collectives)):
        for row in list(rows)[:2]:
            if abs(row.change_ns) >= least:
                yield (
                    f"{what} {row.status}: {row.name} {row.detail}".rstrip()
                    + f": {signed_duration(row.change_ns)} a step"
                )


def _notes(base: Side, new: Side) -> Iterable[str]:
    first, second = base[0], new[0]
    for label, section, name in (("device", "hardware", "device"), ("world size", "scope", "world_size")):
        old, now = _value(first, section, name), _value(second, section, name)
        if old != now:
            difference_in_kind = f"{label} differs: {json.dumps(old)} and {json.dumps(now)}"
            yield f"{difference_in_kind}; times are per device, points are of each run's own peak"
    old, now = _value(first, "mfu", "convention"), _value(second, "mfu", "convention")
    if old and now and old != now:
        yield f"MFU conventions differ: {old} and {now}"
    if _coverage_apart(base, new):
        known = " and ".join(f"{_mean_of(side, 'mfu', 'flops_coverage'):.0%}" for side in (base, new))
        yield f"FLOPs are known of {known} of the matmul time: HFU and matmul below peak cannot be compared"
    if any(report.document["synthetic"] for report in (*base, *new)):
        yield "at least one of the runs is synthetic"


def _what_runs_tell(speed: Estimate, times: Sequence[Sequence[Floats]], spread: float | None) -> Iterable[str]:
    """Yield what so few steps, or one run a side, can and cannot tell."""
    if speed.change is None:
        return
    if speed.doubt == "few":
        short = min(sum(map(len, side)) for side in times)
        steps = plural(short, "step")
        yield f"only {steps} on one side: {MIN_VALUES} are needed to tell a change from noise, 100 are good"
        return
    if max(map(len, times)) > 1:
        return
    more = "give several runs of each side, recorded in turn (--base, --new)"
    if speed.doubt:
        seen = "steps swing together" if speed.doubt == "swing" else "the job stands still for longer than it steps"
        known = (
            f", or say how far runs of this job lie apart (--run-spread): up to {speed.holds_to:.1%} this is a change"
            if speed.holds_to
            else ""
        )
        yield f"one run a side, and {seen} inside a run: what differs between two runs cannot be told; {more}{known}"
        return
    holds = f" (up to {speed.holds_to:.1%} the verdict would stand)" if speed.holds_to else ""
    yield (
        f"one run a side: the two runs are compared, and runs of the same job are assumed to differ by {spread:.1%} "
        f"(standard deviation){holds}; on a machine that is shared or warms up, {more}"
    )
