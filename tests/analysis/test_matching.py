"""Which calls of different ranks are one collective: numbers, order, lost events, odd ranks."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfkit.analysis.matching import match_calls
from perfkit.analysis.matching_time import Ends, find_offset, match_in_time
from perfkit.simulate.job import Job, Mesh
from tests.analysis.job_cases import cached_view, call, calls_table


def job_of(ranks: int, steps: int, per_step: int = 4, *, seed: int = 0, **more: Any) -> list[dict[str, Any]]:
    """Return calls of a job whose clocks agree within 1 µs; `true` numbers the collectives."""
    dice = random.Random(seed)
    rows, end = [], 0
    for step in range(steps):
        for k in range(per_step):
            begin = end + dice.randrange(20_000, 60_000)
            end = begin + dice.randrange(30_000, 90_000)
            for rank in range(ranks):
                start = begin + dice.randrange(0, 10_000)
                rows.append(
                    call(rank, start, end + dice.randrange(0, 1_000), step=step, true=step * per_step + k,
                         op="all_reduce" if k % 2 else "all_gather", in_bytes=1000 * (k + 1), out_bytes=1000, **more)
                )  # fmt: skip
    return rows


def matched_of(rows: list[dict[str, Any]], ranks: int, world: int | None = None) -> tuple[Any, list[int]]:
    """Match, and return what was found with the true number of each row of the table."""
    rows = sorted(rows, key=lambda r: (r["rank"], r["segment"], r["start_ns"]))
    table = calls_table(rows, range(world or ranks))
    return match_calls(table, sorted({r["rank"] for r in rows}), world or ranks), [r["true"] for r in rows]


def assert_true(found: Any, true: list[int]) -> None:
    """Check that no instance mixes two collectives."""
    mixed: dict[int, set[int]] = {}
    for one, number in zip(found.instance.tolist(), true, strict=True):
        if one >= 0:
            mixed.setdefault(one, set()).add(number)
    assert all(len(numbers) == 1 for numbers in mixed.values()), mixed


def numbered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "seq": row["true"] + 100} for row in rows]


@pytest.mark.parametrize("number", [numbered, list], ids=["by sequence number", "by order"])
def test_all_calls_of_a_complete_job_match(number):
    found, true = matched_of(number(job_of(4, 3)), 4)
    assert found.unmatched == 0
    assert_true(found, true)
    assert len(set(found.instance.tolist())) == 12


@pytest.mark.parametrize("number", [numbered, list], ids=["by sequence number", "by order"])
def test_ranks_with_different_step_counts_match_where_they_meet(number):
    rows = [r for r in job_of(3, 4) if (r["rank"], r["step"]) not in {(1, 0), (2, 3)}]
    found, true = matched_of(number(rows), 3)
    assert found.unmatched == 0
    assert_true(found, true)


@pytest.mark.parametrize("number", [numbered, list], ids=["by sequence number", "by order"])
def test_a_trace_that_begins_in_the_middle_of_a_step_matches_by_time(number):
    rows = [r for r in job_of(3, 4) if not (r["rank"] == 1 and r["true"] < 2)]
    found, true = matched_of(number(rows), 3)
    assert_true(found, true)
    assert found.unmatched == 0


def test_lost_events_cost_only_themselves():
    rows = [r for r in job_of(4, 6, seed=3) if (r["rank"], r["true"]) not in {(0, 5), (2, 5), (3, 13), (1, 20)}]
    found, true = matched_of(rows, 4)
    assert_true(found, true)
    assert found.unmatched == 0


def test_without_steps_the_ends_in_time_decide():
    rows = [{**r, "step": None} for r in job_of(3, 5, seed=4) if not (r["rank"] == 2 and r["true"] < 3)]
    found, true = matched_of(rows, 3)
    assert_true(found, true)
    assert found.unmatched == 0


def test_work_from_before_the_first_step_counts_backwards_from_it():
    rows = [{**r, "step": None if r["step"] == 0 else r["step"]} for r in job_of(3, 3)]
    rows = [r for r in rows if not (r["rank"] == 1 and r["true"] == 0)]
    found, true = matched_of(rows, 3)
    assert_true(found, true)
    assert found.unmatched == 0


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.sets(st.tuples(st.integers(0, 2), st.integers(0, 23)), max_size=12), st.booleans())
def test_whatever_is_lost_no_two_collectives_are_taken_for_one(seed, lost, stepless):
    rows = [r for r in job_of(3, 6, seed=seed) if (r["rank"], r["true"]) not in lost]
    rows = [{**r, "step": None} for r in rows] if stepless else rows
    found, true = matched_of(rows, 3)
    assert_true(found, true)


def test_a_missing_rank_is_not_an_unmatched_call():
    found, _ = matched_of([r for r in job_of(4, 2) if r["rank"] != 3], 4, world=4)
    assert (found.unmatched, found.alone) == (0, 0)
    assert found.groups["traced"].to_pylist() == [3]


def test_calls_of_a_group_with_one_traced_member_are_alone():
    found, _ = matched_of([r for r in job_of(4, 2) if r["rank"] == 3], 4, world=4)
    assert (found.unmatched, found.alone) == (0, 8)
    assert (found.instance == -1).all()


def test_a_rank_that_comes_twice_is_matched_once():
    rows = numbered(job_of(2, 2))
    rows += [{**r, "segment": 1, "start_ns": r["start_ns"] + 5} for r in rows if r["rank"] == 1]
    found, true = matched_of(rows, 2)
    assert_true(found, true)
    assert found.unmatched == 8


def test_messages_pair_sender_and_receiver_in_order():
    rows = []
    for k in range(3):
        rows += [call(0, 1000 * k, 1000 * k + 100, op="send", peer=1, true=k),
                 call(1, 1000 * k, 1000 * k + 90, op="recv", peer=0, true=k),
                 call(1, 1000 * k + 200, 1000 * k + 300, op="send", peer=0, true=10 + k),
                 call(0, 1000 * k + 200, 1000 * k + 290, op="recv", peer=1, true=10 + k)]  # fmt: skip
    found, true = matched_of(rows, 2)
    assert_true(found, true)
    assert len(set(found.instance.tolist())) == 6
    assert found.unmatched == 0


def test_two_groups_over_the_same_ranks_are_told_apart_by_name():
    rows = [{**r, "group": "0" if r["true"] % 2 else "5"} for r in job_of(2, 2)]
    found, true = matched_of(rows, 2)
    assert sorted(found.groups["name"].to_pylist()) == ["0", "5"]
    assert_true(found, true)


def test_a_name_that_more_ranks_use_than_the_group_has_members_is_not_matched():
    rows = [{**r, "group": "tp", "group_size": 2, "group_ranks": None} for r in job_of(4, 1)]
    found, _ = matched_of(rows, 4)
    assert (found.instance == -1).all()
    assert any("not recorded" in note for note in found.notes)


def test_calls_that_name_no_group_are_taken_for_the_whole_job():
    rows = [{**r, "group": None, "group_size": None, "group_ranks": None} for r in job_of(3, 2)]
    found, true = matched_of(rows, 3)
    assert found.groups["ranks"].to_pylist() == [[0, 1, 2]]
    assert found.unmatched == 0
    assert_true(found, true)


def test_no_calls_give_nothing():
    found = match_calls(calls_table([]), [0, 1], 2)
    assert (len(found.instance), len(found.groups), found.unmatched) == (0, 0, 0)


@pytest.mark.parametrize("offset", [0, -3_000_000_000, 7_654_321])
def test_the_offset_of_two_clocks_is_what_most_pairs_agree_on(offset):
    dice = np.random.default_rng(5)
    end = np.cumsum(dice.integers(10**5, 10**6, 60))
    sign = dice.integers(0, 3, 60)
    keep = np.sort(dice.choice(60, 45, replace=False))
    seen = end[keep] + offset + dice.integers(0, 900, 45)
    assert find_offset(sign[keep], seen, sign, end) == pytest.approx(offset, abs=2_000)
    assert (
        match_in_time(Ends(sign[keep], seen, np.full(45, 10)), Ends(sign, end, np.full(60, 10)), None).tolist()
        == keep.tolist()
    )


def test_simulated_meshes_match_with_and_without_sequence_numbers():
    _, view = cached_view(Job(mesh=Mesh(dp=4, tp=2, pp=2), steps=3, layers=4, micro_batches=4, seed=4))
    bare = view.calls.set_column(view.calls.column_names.index("seq"), "seq", pa.nulls(len(view.calls), pa.int64()))
    again = match_calls(bare, view.ranks, view.world_size)
    assert view.unmatched == again.unmatched == 0
    assert (again.instance == view.members["instance"].to_numpy()).all()
