"""What went wrong outside the traced steps, in sentences: ranks that died or hung, late ranks, lost checkpoints.

    incidents({attempt: (lifecycle, steps)}) -> ["Rank 1 ended without a word after step 29; ...", ...]

A trace shows a few steps of a job that runs; what stops a job is in its records. A rank that is killed leaves no
word of its own, but its side process notes that it is gone. If it went first, it died and took the others along. If
the others gave up first, after long without a step, it hung: it was alive and did not answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from perfkit.report.format import plural

SILENT = "ended without"
NOT_WRITTEN = "not written: "
STALLED_STEPS, STALLED_S = 10.0, 2.0
"""Nothing moved if no step ended, or a rank did not begin one, for this many usual steps and at least so long."""
SHOWN = 3
Row = dict[str, Any]


def incidents(attempts: Mapping[int, tuple[pa.Table, pa.Table]]) -> list[str]:
    """Return one line per incident, in order; `lifecycle` and `steps` of each attempt of a run."""
    lines: list[str] = []
    numbers = sorted(attempts)
    for number in numbers:
        lifecycle, steps = (table.to_pylist() for table in attempts[number])
        after = [row["step"] for later in numbers if later > number for row in attempts[later][1].to_pylist()]
        lines += _late_ranks(steps)
        lines += _lost_checkpoints(lifecycle, steps)
        lines += _ending(lifecycle, steps, min(after, default=None))
    return lines


def _ending(lifecycle: list[Row], steps: list[Row], next_step: int | None) -> list[str]:
    """Say how an attempt failed, if it did."""
    silent, failed = _silent(lifecycle), _failed(lifecycle)
    if not silent and not failed:
        return []
    last = max((row["step"] for row in steps), default=None)
    when = "before its first step" if last is None else f"after step {last}"
    gone, gave_up = (", ".join(f"rank {rank}" for rank in sorted(found)) for found in (silent, failed))
    errors = ", ".join(sorted({str(row["cause"]) for row in failed.values()}))
    first_ns = min(row["start_ns"] for row in (*silent.values(), *failed.values()))
    still_s = 0.0 if last is None else (first_ns - max(row["end_ns"] for row in steps)) / 1e9
    waited = failed and all(row["start_ns"] > first_ns for row in silent.values())
    if silent and waited and still_s > _limit_s(steps):
        line = (
            f"Nothing moved for {still_s:.0f} s {when}; then {gave_up} gave up ({errors}), and {gone} was still there "
            f"but did not answer: {gone} hung"
        )
    elif silent:
        line = f"{gone} ended without a word {when}: it was killed, or its host died"
        line += f"; {gave_up} then failed ({errors})" if failed else ""
    else:
        line = f"{gave_up} failed {when} ({errors})"
    if next_step is not None and last is not None:
        again = max(0, last + 1 - next_step)
        lost = f"{plural(again, 'step')} ran a second time" if again else "no step was lost"
        line += f". The job was started again and went on from step {next_step}: {lost}"
    return [line[0].upper() + line[1:]]


def _lost_checkpoints(lifecycle: list[Row], steps: list[Row]) -> list[str]:
    saves = [row for row in lifecycle if row["kind"] == "checkpoint_save" and row["step"] is not None]
    bad = {row["step"]: row["cause"] for row in saves if str(row["cause"]).startswith(NOT_WRITTEN)}
    tried = {row["step"] + 1 for row in saves if row["blocking"]}  # a save is of the state before the next step
    if (_silent(lifecycle) or _failed(lifecycle)) and steps:  # the last one could not end: that is no news
        bad.pop(max(row["step"] for row in steps) + 1, None)
    if not bad:
        return []
    reason = str(bad[max(bad)]).removeprefix(NOT_WRITTEN)
    first = min((row["step"] for row in steps), default=0)
    kept = max(tried - set(bad), default=first)
    return [
        f"{len(bad)} of {len(tried)} checkpoints were not written: {reason}. Training went on; had it stopped after "
        f"step {max(bad) - 1}, it would have gone back to step {kept}"
    ]


def _late_ranks(steps: list[Row]) -> list[str]:
    """Say which rank began a step long after the others, which then waited for it."""
    began: dict[int, dict[int, int]] = {}
    for row in steps:
        began.setdefault(row["step"], {})[row["rank"]] = row["start_ns"]
    limit_s, first, found = _limit_s(steps), min(began, default=0), []
    for step, starts in began.items():
        late = max(starts, key=lambda rank: starts[rank])
        others = [ns for rank, ns in starts.items() if rank != late]
        late_s = (starts[late] - max(others)) / 1e9 if others else 0.0
        if step > first and late_s > limit_s:
            found.append((late_s, f"Rank {late} began step {step} {late_s:.1f} s after the others, who waited for it"))
    return [line for _, line in sorted(found, reverse=True)[:SHOWN]]


def _limit_s(steps: list[Row]) -> float:
    usual_s = float(np.median([row["end_ns"] - row["start_ns"] for row in steps])) / 1e9 if steps else 0.0
    return max(STALLED_S, STALLED_STEPS * usual_s)


def _silent(lifecycle: list[Row]) -> dict[int, Row]:
    rows = (row for row in lifecycle if row["kind"] == "fault" and str(row["cause"]).startswith(SILENT))
    return {row["rank"]: row for row in rows}


def _failed(lifecycle: list[Row]) -> dict[int, Row]:
    return {row["rank"]: row for row in lifecycle if row["kind"] == "end" and row["cause"] is not None}
