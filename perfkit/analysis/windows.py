"""Cut a rank's timeline into step windows (definition 1).

    find_windows(timeline, device, mode="step" | "trace", steps=find_steps(timeline, records)) -> Windows

A step is a range on the host; its window is on the device. It starts when the first compute work that
was launched inside the range (on any thread) starts, and ends where the next window starts: work that a
step queued late, or that runs long, is paid by the window in which it runs. Starts never go back
(running maximum). The last window ends at the later of its last device end and the range's end.

Where the ranges come from, first that exists: ProfilerStep, a user's step range, perfkit's step records,
the period of the kernel sequence, the whole trace; `source` says which. A range in which nothing was
launched has no window of its own: `without_work` counts them. A rank without a device has its windows on
the host.

Ranges need not be tidy. Of those that overlap under one number (a step seen from several threads) the
longest counts; where others overlap or nest, an instant belongs to the one that started last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from perfkit.analysis.classify import CLASSES, kernel_family
from perfkit.analysis.intervals import Ints
from perfkit.analysis.timeline import Timeline, Work, ints
from perfkit.errors import UsageError

PROFILER_STEP = re.compile(r"ProfilerStep\s*#?\s*(\d+)\Z")
USER_STEP = re.compile(
    r"(?:#*\s*)?(?:perfkit[.:/ ])?(?:global|train(?:ing)?|optim(?:izer)?)?[_\-. ]?"
    r"(?:step|iter|iteration)[_\-. #:=]*(\d*)(?:\s*#*)?\Z",
    re.IGNORECASE,
)
NEVER, FOREVER = -(2**62), 2**62
MIN_PERIOD, MIN_REPEATS, MIN_MATCH = 16, 3, 0.95
"""A period counts if it is this many kernels, fits this often, and this share of kernels repeats."""


@dataclass(frozen=True)
class Steps:
    """Step ranges on the host, in order of start."""

    number: Ints
    start: Ints
    end: Ints
    source: str

    def at(self, time: Ints) -> Ints:
        """Return the position of the step that contains each instant, -1 for none."""
        edges, owner = self._owners
        result: Ints = owner[np.searchsorted(edges, time, side="right")]
        return result

    @cached_property
    def _owners(self) -> tuple[Ints, Ints]:
        """Edges in time, and the step that owns the stretch before each of them; none after the last."""
        edges = np.unique(np.append(self.start, self.end))
        owner = np.full(len(edges) + 1, -1, np.int64)
        first, last = np.searchsorted(edges, self.start) + 1, np.searchsorted(edges, self.end) + 1
        for step, (low, high) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
            owner[low:high] = step
        return edges, owner


@dataclass(frozen=True)
class Windows:
    """Windows of one device, back to back: window i is [edges[i], edges[i + 1])."""

    step: Ints
    """Step number; -1 for a whole-trace window."""
    edges: Ints
    source: str
    without_work: int = 0
    position: Ints | None = None
    """Entry of Steps behind each window, where windows come from steps."""

    @property
    def start(self) -> Ints:
        """Start of each window."""
        return self.edges[:-1]

    @property
    def end(self) -> Ints:
        """End of each window."""
        return self.edges[1:]

    def select(self, first: int | None, last: int | None) -> Windows:
        """Keep the steps first <= step < last; a window without a number is kept if neither is given."""
        if first is None and last is None:
            return self
        low, high = max(NEVER if first is None else first, 0), FOREVER if last is None else last
        keep = np.flatnonzero((self.step >= low) & (self.step < high))
        if not len(keep):
            return replace(self, step=self.step[:0], edges=self.edges[:1], position=None)
        start, stop = int(keep[0]), int(keep[-1]) + 1
        if stop - start != len(keep):
            raise UsageError(
                f"the chosen steps are not consecutive: the trace holds them in the order {_shown(self.step)}",
                next_step="leave --steps out, and choose rows of --table steps",
            )
        position = None if self.position is None else self.position[start:stop]
        return replace(self, step=self.step[start:stop], edges=self.edges[start : stop + 1], position=position)


def find_steps(timeline: Timeline, records: pa.Table | None = None) -> Steps | None:
    """Return the step ranges of a rank, or None if nothing marks its steps."""
    for pattern, source in ((PROFILER_STEP, "ProfilerStep"), (USER_STEP, "user_range")):
        steps = _named(timeline, pattern, source)
        if steps is not None:
            return steps
    if records is not None and len(records):
        rank = ints(records["rank"])
        number, start, end = (ints(records[c])[rank == timeline.rank] for c in ("step", "start_ns", "end_ns"))
        low, high = extent(timeline)
        seen = (start < high) & (end > low)
        if seen.any():
            return _ordered(number[seen], start[seen], end[seen], "step_records")
    return None


def find_windows(timeline: Timeline, device: int | None, *, mode: str = "step", steps: Steps | None = None) -> Windows:
    """Return the windows of one device (None: the host of a rank without one)."""
    assert mode in ("step", "trace"), mode
    if device is None:
        return _host_windows(timeline, steps if mode == "step" else None)
    if mode == "trace":
        return _whole(timeline.work)
    work = timeline.work_of(device)
    if steps is not None:
        return _device_windows(timeline, work, steps) or _whole(timeline.work)
    return _periodic(timeline, work) or _whole(timeline.work)


def launch_times(timeline: Timeline, work: Work, missing: int) -> Ints:
    """Start of the launch call of each piece of work; `missing` if it is not in the trace.

    Where nothing of the host is recorded (a trace of ops) work stands for its own launch: steps are known from
    records, on the same clock.
    """
    if not len(timeline.host.start):
        return work.start
    result: Ints = np.where(work.launch >= 0, timeline.host.start[work.launch], missing)
    return result


def extent(timeline: Timeline) -> tuple[int, int]:
    """First start and last end of everything in the timeline."""
    start = np.append(timeline.work.start, timeline.host.start)
    end = np.append(timeline.work.end, timeline.host.end)
    return (int(start.min()), int(end.max())) if len(start) else (0, 0)


def _device_windows(timeline: Timeline, work: Work, steps: Steps) -> Windows | None:
    at = steps.at(launch_times(timeline, work, NEVER))
    inside = at >= 0
    first, first_any, last_end = (np.full(len(steps.number), v, np.int64) for v in (FOREVER, FOREVER, NEVER))
    compute = inside & (work.kind == CLASSES.index("compute"))
    np.minimum.at(first, at[compute], work.start[compute])
    np.minimum.at(first_any, at[inside], work.start[inside])
    np.maximum.at(last_end, at[inside], work.end[inside])
    first = np.where(first < FOREVER, first, first_any)  # a step of copies only
    has_work = first < FOREVER
    if not has_work.any():
        return None
    end = max(int(last_end[has_work][-1]), int(steps.end[has_work][-1]))
    edges = np.maximum.accumulate(np.append(first[has_work], end))
    return Windows(
        steps.number[has_work], edges, steps.source, without_work=int(np.count_nonzero(~has_work)),
        position=np.flatnonzero(has_work),
    )  # fmt: skip


def _host_windows(timeline: Timeline, steps: Steps | None) -> Windows:
    low, high = extent(timeline)
    if steps is None:
        return Windows(np.array([-1]), np.array([low, high], np.int64), "trace")
    # what the last step's threads still do after the range ends belongs to it, as on a device
    inside = (timeline.host.start >= steps.start[-1]) & (timeline.host.start < steps.end[-1])
    last = int(np.max(timeline.host.end[inside], initial=steps.end[-1]))
    return Windows(steps.number, np.append(steps.start, last), steps.source, position=np.arange(len(steps.number)))


def _whole(work: Work) -> Windows:
    edges = np.array([work.start.min(), work.end.max()], np.int64)
    return Windows(np.array([-1]), edges, "trace")


def _named(timeline: Timeline, pattern: re.Pattern[str], source: str) -> Steps | None:
    """Find ranges with such names; of several kinds (`iteration 7` around `step 0`) the one that fills most time."""
    kinds: dict[str, dict[int, str]] = {}
    for code, name in enumerate(timeline.names):
        if found := pattern.match(name):
            kind = name[: found.start(1)] + name[found.end(1) :]
            kinds.setdefault(kind, {})[code] = found.group(1)
    if not kinds:
        return None
    host = timeline.host
    on_host = np.isin(host.kind, [CLASSES.index("op"), CLASSES.index("range")])
    best, best_ns = None, -1
    for digits in kinds.values():
        rows = np.flatnonzero(on_host & np.isin(host.name, list(digits)))
        rows = rows[np.argsort(host.start[rows], kind="stable")]
        names = host.name[rows].tolist()
        numbered = all(digits[name] for name in names)
        total = int((host.end[rows] - host.start[rows]).sum())
        if not len(rows) or (not numbered and len(rows) < 2) or total <= best_ns:
            continue
        number = np.array([int(digits[name]) for name in names] if numbered else range(len(rows)), np.int64)
        best, best_ns = _ordered(number, host.start[rows], host.end[rows], source), total
    return best


def _ordered(number: Ints, start: Ints, end: Ints, source: str) -> Steps:
    """Sort by start; of several ranges that overlap under one number the longest stays."""
    kept: list[int] = []
    reach = NEVER
    for i in np.lexsort((start, number)).tolist():
        if kept and number[i] == number[kept[-1]] and start[i] < reach:
            reach = max(reach, int(end[i]))
            if end[i] - start[i] > end[kept[-1]] - start[kept[-1]]:
                kept[-1] = i
        else:
            kept.append(i)
            reach = int(end[i])
    rows = np.array(kept, np.int64)
    rows = rows[np.lexsort((-end[rows], start[rows]))]
    return Steps(number[rows], start[rows], end[rows], source)


def _shown(steps: Ints) -> str:
    text = ", ".join(map(str, steps[:12].tolist()))
    return f"{text}, …" if len(steps) > 12 else text


def _periodic(timeline: Timeline, work: Work) -> Windows | None:
    """Find a period in the order of kernels; None if there is no clear one.

    Layers repeat as well as steps: a period counts only if there is an optimizer's work in each.
    """
    rows = np.flatnonzero(work.kind == CLASSES.index("compute"))
    rows = rows[np.argsort(work.start[rows], kind="stable")]
    names, starts = work.name[rows], work.start[rows]
    period = _period(names)
    if not period:
        return None
    first = starts[: len(starts) - period + 1 : period]
    is_update = np.array([name.startswith("Optimizer.step#") for name in timeline.names], bool)
    updates = np.count_nonzero(is_update[timeline.host.name])
    families = kernel_family(pa.array([timeline.names[i] for i in np.unique(names[:period])], pa.utf8())).to_pylist()
    if "optimizer" not in families and abs(updates - len(first)) > 1:
        return None
    # The last step ends where the next one would begin; what follows it (a part of one, or one that differs) is after.
    rest = starts[len(first) * period :]
    edges = np.append(first, rest[0] if len(rest) else work.end.max())
    return Windows(np.arange(len(first), dtype=np.int64), np.maximum.accumulate(edges), "periodicity")


def _period(names: Ints) -> int:
    """Return after how many entries the sequence repeats, 0 if it does not."""
    _, index, counts = np.unique(names, return_inverse=True, return_counts=True)
    rare = np.argsort(counts, kind="stable")
    rare = rare[counts[rare] >= MIN_REPEATS][:8]
    candidates: set[int] = set()
    for value in rare:  # distances between the rarest kernels are multiples or parts of the period
        distance = np.diff(np.flatnonzero(index == value))
        candidates |= set(np.unique(distance[distance >= MIN_PERIOD])[:8].tolist())
    best, best_match = 0, MIN_MATCH
    for period in sorted(candidates):
        if period * MIN_REPEATS > len(names) or len(np.unique(names[:period])) < MIN_REPEATS:
            continue
        match = float(np.mean(names[period:] == names[:-period]))
        if match > best_match:
            best, best_match = period, match
    return best
