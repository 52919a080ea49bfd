"""Every allocated nanosecond goes into exactly one bucket, and into the right one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfkit.goodput.account import _PHASE_BUCKET, BUCKET, account, weighted_median
from perfkit.goodput.rollup import find_interruptions, rollup_run
from perfkit.goodput.timeline import PHASES, Timeline
from perfkit.schema import GOODPUT_BUCKETS, LIFECYCLE, STEPS, table_from_rows
from tests.goodput.records import S, every, lifecycle, seconds, steps


def test_a_run_without_trouble_is_start_up_and_steps():
    #  allocated |--------------------|
    #  init      |##|  steps |########|
    found = seconds(lifecycle(("allocated", 0, 20), ("init", 0, 4), ("end", 20, None)), steps(*every(0, 15, 4, 1)))
    assert found == {"init": 4, "productive": 16}


def test_time_between_allocation_and_first_step_is_start_up_without_a_record_too():
    assert seconds(lifecycle(("allocated", 0, 20)), steps(*every(0, 9, 10, 1))) == {"init": 10, "productive": 10}


def test_buckets_are_weighed_with_the_gpus():
    found = seconds(lifecycle(("allocated", 0, 20), ("end", 20, None), gpus=8), steps(*every(0, 9, 10, 1)))
    assert found == {"init": 80, "productive": 80}


def test_a_gap_between_two_steps_belongs_to_the_second():
    rows = [*every(0, 9, 0, 1), *every(10, 19, 10.002, 1)]
    found = seconds(lifecycle(("allocated", 0, 20.002)), steps(*rows))
    assert found == {"productive": 20.002}


def test_what_the_first_step_takes_beyond_the_usual_is_compilation():
    rows = [(0, 0, 5), *every(1, 10, 5, 1)]
    assert seconds(lifecycle(("allocated", 0, 15)), steps(*rows)) == {"compile": 4, "productive": 11}


def test_what_a_slow_step_takes_beyond_the_usual_is_a_loss_of_its_own():
    rows = [*every(0, 9, 0, 1), (10, 10, 13), *every(11, 20, 13, 1)]
    assert seconds(lifecycle(("allocated", 0, 23)), steps(*rows)) == {"slow_step": 2, "productive": 21}


def test_a_step_one_permille_slower_than_the_others_is_not_slow():
    rows = [*every(0, 9, 0, 1), (10, 10, 11.005), *every(11, 20, 11.005, 1)]
    assert seconds(lifecycle(("allocated", 0, 21.005)), steps(*rows)) == {"productive": 21.005}


def test_waiting_for_data_counts_before_the_step():
    rows = [*every(0, 9, 0, 1), (10, 12, 13, {"data_wait_ns": 2 * S}), *every(11, 20, 13, 1)]
    assert seconds(lifecycle(("allocated", 0, 23)), steps(*rows)) == {"data_stall": 2, "productive": 21}


def test_a_blocking_save_is_no_part_of_the_step_around_it():
    rows = [*every(0, 9, 0, 1), *every(10, 19, 13, 1)]
    found = seconds(lifecycle(("allocated", 0, 23), ("checkpoint_save", 10, 13, {"blocking": True})), steps(*rows))
    assert found == {"checkpoint": 3, "productive": 20}


def test_a_save_that_does_not_block_costs_nothing():
    rows = every(0, 19, 0, 1)
    found = seconds(lifecycle(("allocated", 0, 20), ("checkpoint_save", 10, 13, {"blocking": False})), steps(*rows))
    assert found == {"productive": 20}


def test_steps_that_a_later_attempt_runs_again_are_lost():
    #  attempt 0: steps 0..9, dies at 10; attempt 1: restore, steps 5..14
    records = lifecycle(
        ("allocated", 0, 12),
        ("fault", 10, None, {"cause": "gpu"}),
        ("allocated", 20, 40, {"attempt": 1}),
        ("checkpoint_restore", 23, 25, {"attempt": 1}),
        ("end", 40, None, {"attempt": 1}),
    )
    rows = steps(*every(0, 9, 0, 1), *every(5, 19, 25, 1, attempt=1))
    assert seconds(records, rows) == {"productive": 20, "lost": 5, "recovery": 2 + 3, "restore": 2}


def test_the_step_that_a_fault_cuts_short_is_lost_and_what_lies_beyond_it_is_unknown():
    records = lifecycle(("allocated", 0, 30), ("fault", 25, None, {"cause": "node"}))
    found = seconds(records, steps(*every(0, 9, 0, 1)))
    assert found == {"productive": 10, "lost": 3, "unknown": 12, "recovery": 5}


def test_a_restart_inside_an_allocation_is_recovery():
    records = lifecycle(("allocated", 0, 40), ("fault", 10, None, {"cause": "network"}), ("end", 40, None))
    found = seconds(records, steps(*every(0, 9, 0, 1), *every(8, 27, 20, 1)))
    assert found == {"productive": 28, "lost": 2, "recovery": 10}


def test_a_death_that_is_reported_when_the_next_attempt_has_begun_belongs_to_its_own():
    records = lifecycle(
        ("init", 0, 2),
        ("fault", 21, None, {"cause": "node"}),
        ("init", 20, 22, {"attempt": 1}),
        ("end", 40, None, {"attempt": 1}),
    )
    rows = steps(*every(0, 9, 2, 1), *every(8, 25, 22, 1, attempt=1))
    line = Timeline.from_tables(records, rows)
    assert line.fault_time.tolist() == [20 * S - 1]
    found = account(line).total(line)
    assert found["lost"] == 2 * S + 3 * S  # steps 8 and 9, and at most three usual steps of the one that was cut
    assert found["recovery"] == 2 * S + 1


def test_a_hang_beats_every_other_record():
    records = lifecycle(("allocated", 0, 30), ("hang", 10, 20), ("eval", 12, 30), ("checkpoint_save", 5, 30))
    found = seconds(records, steps(*every(0, 4, 0, 1)))
    assert found == {"productive": 5, "checkpoint": 5 + 10, "hang": 10}


def test_time_that_no_record_explains_is_unknown():
    assert seconds(lifecycle(("allocated", 0, 100))) == {"unknown": 100}
    found = seconds(lifecycle(("allocated", 0, 100), ("end", 100, None)), steps(*every(0, 9, 0, 1)))
    assert found == {"productive": 10, "unknown": 90}


def test_a_run_that_is_still_going_counts_until_now():
    records = lifecycle(("allocated", 0, None))
    line = Timeline.from_tables(records, steps(*every(0, 9, 0, 1)), as_of_ns=60 * S)
    assert line.state == "running"
    assert line.allocations.end.tolist() == [60 * S]


def test_a_run_that_fell_silent_is_lost_and_counts_until_its_last_word():
    records = lifecycle(("allocated", 0, None))
    line = Timeline.from_tables(records, steps(*every(0, 9, 0, 1)), as_of_ns=3600 * S)
    assert line.state == "lost"
    assert line.allocations.end.tolist() == [10 * S]


def test_slow_steps_are_patient_heartbeats():
    records = lifecycle(("allocated", 0, None))
    line = Timeline.from_tables(records, steps(*every(0, 9, 0, 300)), as_of_ns=(3000 + 5900) * S)
    assert line.state == "running"


def test_how_a_run_ended_is_said_by_its_last_attempt():
    for cause, state in ((None, "ended"), ("KeyboardInterrupt", "ended"), ("RuntimeError", "failed")):
        assert Timeline.from_tables(lifecycle(("allocated", 0, 9), ("end", 9, None, {"cause": cause}))).state == state
    waiting = lifecycle(("allocated", 0, 9), ("eligible", 10, None, {"attempt": 1}))
    assert Timeline.from_tables(waiting).state == "queued"


def test_only_the_lead_rank_counts():
    rows = steps(*every(0, 9, 0, 1), *every(0, 9, 0, 1, rank=1))
    records = lifecycle(("allocated", 0, 10, {"rank": 0}), ("eval", 0, 10, {"rank": 1}))
    assert seconds(records, rows) == {"productive": 10}


def test_rows_of_kind_step_stand_for_all_steps_since_the_row_before():
    #  steps 0 | 1..10, one second each | 11..15, two seconds each
    records = lifecycle(
        ("allocated", 0, 21),
        ("step", 0, 1, {"step": 0}),
        ("step", 1, 11, {"step": 10}),
        ("step", 11, 21, {"step": 15}),
    )
    line = Timeline.from_tables(records)
    assert line.steps.count.tolist() == [1, 10, 5]
    assert seconds(records) == {"productive": 16, "slow_step": 5}


def test_nonsense_is_said_and_left_out():
    rows = steps((0, 5, 3), *every(1, 5, 5, 1), (6, 6, 7))
    line = Timeline.from_tables(lifecycle(("allocated", 0, 20), ("eval", 12, 11)), rows)
    assert line.notes == [
        "1 steps end before they start; left out",
        "1 steps lie inside another; left out",
        "1 lifecycle records end before they start; they count as instants",
    ]


def test_overlapping_attempts_are_cut():
    line = Timeline.from_tables(lifecycle(("allocated", 0, 20), ("allocated", 10, 30, {"attempt": 1})))
    assert line.allocations.end.tolist() == [10 * S, 30 * S]
    assert "overlap" in line.notes[0]


def test_the_weighted_median_is_the_median_of_the_repeated_values():
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([2, 3, 1])
    assert weighted_median(values, weights) == np.median(np.repeat(values, weights))


# ------------------------------------------------------------------ any lifecycle


@st.composite
def histories(draw):
    """Random attempts, phases, faults and steps on a small clock, many of them absurd."""
    records, step_rows = [], []
    at = draw(st.integers(0, 20))
    for attempt in range(draw(st.integers(1, 3))):
        length = draw(st.integers(1, 60))
        end = None if draw(st.integers(0, 9)) == 0 else at + length
        records.append(
            {"kind": "allocated", "start_ns": at, "end_ns": end, "gpus": draw(st.integers(1, 4)), "attempt": attempt}
        )
        for _ in range(draw(st.integers(0, 5))):
            start = draw(st.integers(max(0, at - 5), at + length + 5))
            stop = draw(st.one_of(st.none(), st.integers(start - 2, start + 20)))
            kind = draw(st.sampled_from(PHASES))
            blocking = draw(st.sampled_from([None, True, False]))
            records.append({"kind": kind, "start_ns": start, "end_ns": stop, "attempt": attempt, "blocking": blocking})
        number, now = draw(st.integers(0, 6)), at + draw(st.integers(0, 8))
        for _ in range(draw(st.integers(0, 12))):
            wait, took = draw(st.integers(0, 3)), draw(st.integers(0, 5))
            row = {"rank": 0, "step": number, "start_ns": now + wait, "end_ns": now + wait + took, "attempt": attempt}
            step_rows.append({**row, "data_wait_ns": wait, "tokens": 7, "model_flops": 10.0})
            number += draw(st.sampled_from([1, 1, 1, 1, -2]))
            number = max(number, 0)
            now += wait + took + draw(st.integers(0, 2))
        at += length + draw(st.integers(0, 10))
    if draw(st.booleans()):
        records.append(
            {"kind": "end", "start_ns": at, "end_ns": None, "attempt": records[-1]["attempt"], "cause": None}
        )
    return records, step_rows


def build(history) -> Timeline:
    records, step_rows = history
    tables = []
    for schema, rows in ((LIFECYCLE, records), (STEPS, step_rows)):
        attempts = pa.array([row["attempt"] for row in rows], pa.int32())
        tables.append(table_from_rows(schema, rows).append_column("attempt", attempts))
    return Timeline.from_tables(tables[0], tables[1] if step_rows else None, as_of_ns=500)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories())
def test_pieces_are_exactly_the_allocations_for_any_lifecycle(history):
    line = build(history)
    where, pieces = line.allocations, account(line)
    covered = np.zeros(2000, int)
    held = np.zeros(2000, int)
    for start, end in zip(pieces.start, pieces.end, strict=True):
        assert end > start
        covered[start:end] += 1
    for start, end in zip(where.start, where.end, strict=True):
        held[start:end] += 1
    assert covered.tolist() == held.tolist()
    allocated = sum(int(g * (e - s)) for s, e, g in zip(where.start, where.end, where.gpus, strict=True))
    assert sum(pieces.total(line).values()) == allocated


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories())
def test_every_nanosecond_of_a_phase_goes_to_the_strongest_one(history):
    line = build(history)
    pieces = account(line)
    label = np.full(2000, -1)
    for start, end, bucket in zip(pieces.start, pieces.end, pieces.bucket, strict=True):
        label[start:end] = bucket
    for t in np.flatnonzero(label >= 0).tolist():
        here = [k for k, s, e in zip(line.phase_kind, line.phase_start, line.phase_end, strict=True) if s <= t < e]
        if here:
            wanted = _PHASE_BUCKET[PHASES[min(here)]]
            assert GOODPUT_BUCKETS[label[t]] in ((wanted, "recovery") if wanted == "init" else (wanted,))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories(), st.integers(3, 50))
def test_rollups_add_up_to_the_run_at_any_grain(history, interval):
    line = build(history)
    pieces = account(line)
    rows = rollup_run(line, pieces, {"cluster": "c", "run": "r", "peak_flops": 2.0}, interval_ns=interval)
    totals = pieces.total(line)
    for row in rows.to_pylist():
        assert row["allocated_ns"] == sum(row[f"{name}_ns"] for name in GOODPUT_BUCKETS)
        assert row["start_ns"] // interval == (row["end_ns"] - 1) // interval
    for name in GOODPUT_BUCKETS:
        assert sum(rows[f"{name}_ns"].to_pylist()) == totals[name]
    worked = np.unique(pieces.step[pieces.step >= 0])
    assert sum(rows["steps"].to_pylist()) <= len(line.steps)
    if len(worked) and not len(line.phase_kind):
        inside = [i for i in worked.tolist() if pieces.done[pieces.step == i].min() == 0]
        assert sum(rows["tokens"].to_pylist()) == 7 * sum(_whole(line, pieces, i) for i in inside)
    stops = find_interruptions(line, pieces, {"cluster": "c", "run": "r"})
    assert sum(rows["interruptions"].to_pylist()) == len(stops)
    assert all(row["cause"] for row in stops.to_pylist())


def _whole(line: Timeline, pieces, step: int) -> bool:
    """Whether all of the step's work lies inside an allocation."""
    mine = pieces.step == step
    return int(pieces.dur[mine].sum()) == int(pieces.work[mine][0])


def test_buckets_have_the_names_of_the_schema():
    assert tuple(BUCKET) == GOODPUT_BUCKETS
