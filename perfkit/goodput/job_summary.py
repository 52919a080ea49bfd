"""Jobs -> what a scheduler knows: GPU-hours, outcomes, queue, restarts, MTTF; by any key.

    summarize_jobs(jobs, by="user", price=2.5) -> dict

A scheduler knows nothing of steps: goodput, ETTR and effective MFU are null. A job that does not say how many GPUs it
held adds nothing to a sum and is counted in `jobs_without_gpu_count`; a sum over such jobs only is null. A million jobs
are arrays, never a loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.intervals import Ints
from perfkit.goodput.causes import is_planned
from perfkit.goodput.rollup import DAY_NS
from perfkit.goodput.summary import HOUR, date_of, encode, ints_of, sum_by


def summarize_jobs(
    jobs: pa.Table, *, by: str | None = None, price: float | None = None, as_of_ns: int | None = None
) -> dict[str, Any]:
    """Add up jobs; one that still runs counts until `as_of_ns`, else until the latest time in the list."""
    started = jobs.filter(pc.is_valid(jobs["start_ns"]))
    latest = max((pc.max(jobs[n]).as_py() or 0 for n in ("start_ns", "end_ns")), default=0)
    now = latest if as_of_ns is None else as_of_ns
    start = ints_of(started, "start_ns")
    end = np.asarray(pc.fill_null(started["end_ns"], now).to_numpy(), np.int64)
    wall = np.maximum(end - start, 0)
    gpus_known = np.asarray(pc.is_valid(started["gpus"]))
    gpu_ns = wall * ints_of(started, "gpus")
    view = _JobView(started, start, wall, gpu_ns, gpus_known, price)
    totals = view.measure(np.zeros(len(started), np.int64), 1)[0]
    totals |= {"jobs_listed": len(jobs), "jobs_never_started": len(jobs) - len(started), **view.queue()}
    result: dict[str, Any] = {"source": "jobs", "totals": totals}
    if by is not None:
        result["groups"] = view.groups(by)
    return result


class _JobView:
    """Jobs as arrays."""

    def __init__(self, jobs: pa.Table, start: Ints, wall: Ints, gpu_ns: Ints, known: Any, price: float | None) -> None:
        self.jobs, self.start, self.wall, self.gpu_ns, self.known, self.price = jobs, start, wall, gpu_ns, known, price
        self.cause, self.causes = encode(jobs["cause"])
        self.failed = np.array([c is not None and is_planned(c) is False for c in self.causes], bool)[self.cause]
        self.stopped = np.array([c not in (None, "completed") for c in self.causes], bool)[self.cause]

    def measure(self, codes: Ints, size: int) -> list[dict[str, Any]]:
        held, wall = sum_by(codes, self.gpu_ns, size), sum_by(codes, self.wall, size)
        count = np.bincount(codes, minlength=size)
        attempts = np.bincount(codes, ints_of(self.jobs, "attempt") > 0, minlength=size)
        failures = np.bincount(codes, self.failed, minlength=size)
        stated = np.bincount(codes, np.array([c is not None for c in self.causes], bool)[self.cause], minlength=size)
        unknown = np.bincount(codes, ~self.known, minlength=size)
        pairs = codes * len(self.causes) + self.cause
        by_cause = sum_by(pairs, self.gpu_ns, size * len(self.causes))
        counts = np.bincount(pairs, minlength=size * len(self.causes))
        unknown_by_cause = np.bincount(pairs, ~self.known, minlength=size * len(self.causes))
        result = []
        for i in range(size):
            mine = range(i * len(self.causes), (i + 1) * len(self.causes))
            outcome = {
                str(self.causes[k % len(self.causes)] or "no state"): {
                    "jobs": int(counts[k]),
                    **self._hours_and_cost("gpu_hours", _unless_unknown(by_cause[k], counts[k], unknown_by_cause[k])),
                }
                for k in mine if counts[k]
            }  # fmt: skip
            result.append(
                {
                    "jobs": int(count[i]),
                    **self._allocated(_unless_unknown(held[i], count[i], unknown[i])),
                    "goodput": None,
                    "ettr": None,
                    "effective_mfu": None,
                    "jobs_without_gpu_count": int(unknown[i]),
                    "restarts": int(attempts[i]),
                    "failures": int(failures[i]) if stated[i] or not count[i] else None,
                    "mttf_hours": wall[i] / HOUR / int(failures[i]) if failures[i] else None,
                    "outcomes": dict(sorted(outcome.items(), key=lambda item: -(item[1]["gpu_hours"] or 0.0))),
                }
            )
        return result

    def queue(self) -> dict[str, Any]:
        begin = pc.coalesce(self.jobs["eligible_ns"], self.jobs["submit_ns"])
        known = np.asarray(pc.is_valid(begin))
        wait = (self.start - np.asarray(pc.fill_null(begin, 0).to_numpy(), np.int64))[known]
        if not len(wait):
            return {"queue_p50_seconds": None, "queue_p95_seconds": None}
        p50, p95 = np.percentile(np.maximum(wait, 0), [50, 95])
        return {"queue_p50_seconds": float(p50) / 1e9, "queue_p95_seconds": float(p95) / 1e9}

    def groups(self, by: str) -> list[dict[str, Any]]:
        if by == "day":
            return self._days()
        if by == "node":
            return self._nodes()
        column = "job" if by == "run" else by
        codes, names = encode(self.jobs[column])
        rows = [{"key": name, **row} for name, row in zip(names, self.measure(codes, len(names)), strict=True)]
        return sorted(rows, key=lambda d: (-(d["allocated_ns"] or 0), str(d["key"])))

    def _days(self) -> list[dict[str, Any]]:
        """Cut jobs at midnight (UTC) and add up what falls on each day."""
        first, last = self.start // DAY_NS, np.maximum(self.start + self.wall - 1, self.start) // DAY_NS
        parts = last - first + 1
        row = np.repeat(np.arange(len(parts)), parts)
        day = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts) + first[row]
        low = np.maximum(self.start[row], day * DAY_NS)
        high = np.minimum((self.start + self.wall)[row], (day + 1) * DAY_NS)
        gpu_ns = (high - low) * ints_of(self.jobs, "gpus")[row]
        days, codes = np.unique(day, return_inverse=True)
        held = self._known_sums(codes, gpu_ns, row, len(days))
        started = np.bincount(np.searchsorted(days, first), minlength=len(days))
        return [
            {"key": date_of(int(d)), **self._allocated(ns), "jobs_started": int(n), "goodput": None}
            for d, ns, n in zip(days, held, started, strict=True)
        ]

    def _nodes(self) -> list[dict[str, Any]]:
        """Share each job's time out to its nodes; jobs whose nodes are not named are one group."""
        lists = self.jobs["nodes"].combine_chunks()
        size = np.asarray(pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False), np.int64)
        row = np.repeat(np.arange(len(size)), size)
        codes, names = encode(lists.flatten())
        share = self.gpu_ns[row] // np.maximum(size[row], 1)
        held = self._known_sums(codes, share, row, len(names)) if len(row) else []
        failures: Any = np.bincount(codes, self.failed[row], minlength=len(names)) if len(row) else []
        jobs: Any = np.bincount(codes, minlength=len(names)) if len(row) else []
        rows = [
            {"key": n, **self._allocated(h), "jobs": int(j), "failures": int(f), "goodput": None}
            for n, h, j, f in zip(names, held, jobs, failures, strict=True)
        ]
        nowhere = np.flatnonzero(size == 0)
        if len(nowhere):
            [ns] = self._known_sums(np.zeros(len(nowhere), np.int64), self.gpu_ns[nowhere], nowhere, 1)
            rows.append({"key": None, **self._allocated(ns), "jobs": len(nowhere), "failures": None, "goodput": None})
        return sorted(rows, key=lambda d: (-(d["failures"] or 0), -(d["allocated_ns"] or 0), str(d["key"])))

    def _known_sums(self, codes: Ints, gpu_ns: Ints, row: Ints, size: int) -> list[int | None]:
        """Add up parts of jobs by group; `row` says which job a part is of."""
        parts = np.bincount(codes, minlength=size)
        unknown = np.bincount(codes, ~self.known[row], minlength=size)
        return [_unless_unknown(*group) for group in zip(sum_by(codes, gpu_ns, size), parts, unknown, strict=True)]

    def _allocated(self, ns: int | None) -> dict[str, Any]:
        return {"allocated_ns": ns, **self._hours_and_cost("allocated_gpu_hours", ns)}

    def _hours_and_cost(self, name: str, ns: int | None) -> dict[str, Any]:
        hours = None if ns is None else ns / HOUR
        return {name: hours, "cost": None if hours is None or self.price is None else hours * self.price}


def _unless_unknown(gpu_ns: int, jobs: int, unknown: int) -> int | None:
    """Return the GPU time of jobs, null if none of them says how many GPUs it held: that sum is not 0."""
    return None if jobs and unknown == jobs else gpu_ns
