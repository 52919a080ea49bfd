from __future__ import annotations

import pytest

from perfkit.analysis.rank_lists import rank_ranges
from perfkit.errors import UsageError


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("5", [5]), ("0,4-7", [0, 4, 5, 6, 7]), (" 2 , 0 ", [2, 0]), ("3-3", [3]), ("0 - 1,1", [0, 1, 1])],
)
def test_ranks_come_in_the_order_in_which_they_are_written(text: str, ranks: list[int]) -> None:
    assert [rank for some in rank_ranges(text) for rank in some] == ranks


@pytest.mark.parametrize("text", ["", ",", "1,", "1-", "-1", "1-2-3", "x", "1:3", "1.5", "٣", "0-99999999999"])
def test_what_names_no_ranks_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no list of ranks; write it like 0,4-7"):
        rank_ranges(text)


def test_a_range_that_runs_backwards_is_turned_around_by_whoever_wrote_it() -> None:
    with pytest.raises(UsageError, match="--healthy '0,3-1': 3-1 runs backwards; write it like 1-3"):
        rank_ranges("0,3-1", option="--healthy")
