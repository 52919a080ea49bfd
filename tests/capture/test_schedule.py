"""Which steps and ranks are recorded."""

from __future__ import annotations

import pytest

from perfkit.capture.schedule import ProfileSchedule


def test_windows_begin_with_their_warm_up_and_come_back():
    schedule = ProfileSchedule(first=5, every=10, active=3, warmup=2)
    assert [n for n in range(40) if schedule.starts_at(n)] == [3, 13, 23, 33]
    assert [n for n in range(40) if ProfileSchedule(first=5, every=0).starts_at(n)] == [4]
    assert ProfileSchedule(first=0).starts_at(0)


@pytest.mark.parametrize(
    ("ranks", "recorded"), [("0", [0]), ("0,3, 5", [0, 3, 5]), ("all", list(range(8))), ("per-host", [0, 4])]
)
def test_ranks_are_numbers_all_or_one_per_host(ranks, recorded):
    schedule = ProfileSchedule(ranks=ranks)
    assert [rank for rank in range(8) if schedule.applies_to(rank, rank % 4)] == recorded


@pytest.mark.parametrize(
    "wrong", [{"active": 0}, {"every": -1}, {"every": 3, "active": 3}, {"ranks": "some"}, {"warmup": -1}]
)
def test_a_schedule_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match=r"active|every|ranks"):
        ProfileSchedule(**wrong)
