"""What stopped a job is said in words, with the rank."""

from __future__ import annotations

import pyarrow as pa
import pytest

from perfkit.reference.incidents import incidents
from perfkit.schema import LIFECYCLE, STEPS, table_from_rows

S = 1_000_000_000


def steps(last: int, *, ranks: int = 2, first: int = 0, start_s: float = 100.0, late: dict[int, float] | None = None):
    """A step takes 0.2 s; `late` is step -> seconds by which the last rank begins it later than the others."""
    rows, now = [], start_s
    for step in range(first, last + 1):
        behind = (late or {}).get(step, 0.0)
        for rank in range(ranks):
            start = now + (behind if rank == ranks - 1 else 0)
            rows.append(
                {"rank": rank, "step": step, "start_ns": int(start * S), "end_ns": int((now + behind + 0.2) * S)}
            )
        now += behind + 0.2
    return table_from_rows(STEPS, rows)


def lifecycle(*rows: tuple[int, str, float, str | None, int | None, bool]) -> pa.Table:
    names = ("rank", "kind", "start_ns", "cause", "step", "blocking")
    return table_from_rows(
        LIFECYCLE, [dict(zip(names, (*row[:2], int(row[2] * S), *row[3:]), strict=True)) for row in rows]
    )


ENDED = "ended without finish()"


def test_a_job_that_runs_has_no_incidents():
    quiet = lifecycle((0, "init", 90.0, None, 0, True), (0, "end", 103.0, None, 10, True))
    assert incidents({0: (quiet, steps(9))}) == []


def test_a_rank_that_goes_first_was_killed_and_took_the_others_along():
    crashed = lifecycle((1, "fault", 102.1, ENDED, None, True), (0, "end", 102.3, "RuntimeError", 9, True))
    (line,) = incidents({0: (crashed, steps(9)), 1: (lifecycle(), steps(14, first=6, start_s=110))})
    assert "Rank 1 ended without a word after step 9" in line
    assert "rank 0 then failed (RuntimeError)" in line
    assert "went on from step 6: 4 steps" in line


def test_a_rank_that_is_killed_after_the_others_gave_up_hung():
    hung = lifecycle((0, "end", 142.0, "RuntimeError", 9, True), (1, "fault", 173.0, ENDED, None, True))
    (line,) = incidents({0: (hung, steps(9))})
    assert line.startswith("Nothing moved for 40 s after step 9")
    assert line.endswith("rank 1 hung")


def test_a_side_process_that_notices_late_makes_no_hang_of_a_crash():
    crashed = lifecycle((0, "end", 102.2, "RuntimeError", 9, True), (1, "fault", 103.0, ENDED, None, True))
    (line,) = incidents({0: (crashed, steps(9))})
    assert "Rank 1 ended without a word" in line


def test_an_exception_on_every_rank_is_a_failure():
    rows = [(rank, "end", 102.2, "ValueError", 9, True) for rank in (0, 1)]
    assert incidents({0: (lifecycle(*rows), steps(9))}) == ["Rank 0, rank 1 failed after step 9 (ValueError)"]


def test_checkpoints_that_were_not_written_say_how_far_back_the_job_would_go():
    full = "not written: OSError: [Errno 28] No space left on device"
    saves = [(0, "checkpoint_save", 100.0 + step, None, step, True) for step in (3, 7, 11)]
    lost = [(rank, "checkpoint_save", 109.0, full, step, False) for step in (8, 12) for rank in (0, 1)]
    (line,) = incidents({0: (lifecycle(*saves, *lost), steps(13))})
    assert line.startswith("2 of 3 checkpoints were not written: OSError: [Errno 28] No space left on device")
    assert "after step 11, it would have gone back to step 4" in line


def test_the_checkpoint_that_a_crash_cut_off_is_not_a_second_incident():
    rows = [
        (0, "checkpoint_save", 101.9, None, 9, True),
        (0, "checkpoint_save", 102.2, "not written: Connection reset by peer", 10, False),
        (1, "fault", 102.1, ENDED, None, True),
    ]
    assert len(incidents({0: (lifecycle(*rows), steps(9))})) == 1


@pytest.mark.parametrize(("behind_s", "found"), [(5.0, 1), (1.5, 0)])
def test_a_rank_that_begins_a_step_long_after_the_others_is_named(behind_s, found):
    lines = incidents({0: (lifecycle(), steps(20, ranks=3, late={12: behind_s}))})
    assert len(lines) == found
    assert all("Rank 2 began step 12 5.0 s after the others" in line for line in lines)
