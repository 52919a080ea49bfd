from __future__ import annotations

from trace_rows import call, events, kernel, step

from perfkit.analysis.analyze import analyze_tables


def slow(*lengths: int) -> list[tuple[int, int]]:
    """(step, excess) of the slow ones among steps of these lengths."""
    rows, at = [], 0
    for number, length in enumerate(lengths):
        corr = number + 1
        rows += [step(number, at, at + length), call(at, at + 1, corr), kernel(at, at + length, corr)]
        at += length
    table = analyze_tables({"events": events(*rows)}).tables["steps"].to_pylist()
    assert [r["window_ns"] for r in table] == list(lengths)
    return [(r["step"], r["excess_ns"]) for r in table if r["slow"]]


def test_a_step_far_beyond_the_spread_is_slow_by_what_it_took_beyond_the_median() -> None:
    assert slow(1000, 1010, 990, 1005, 995, 1500) == [(5, 498)]


def test_steps_inside_the_spread_are_not_slow() -> None:
    assert slow(1000, 1100, 900, 1050, 950, 1200) == []


def test_without_any_spread_one_percent_is_still_allowed() -> None:
    assert slow(1000, 1000, 1000, 1000, 1010) == []
    assert slow(1000, 1000, 1000, 1000, 1011) == [(4, 11)]


def test_two_steps_tell_nothing() -> None:
    assert slow(1000, 5000) == []


def test_where_steps_run_into_each_other_the_last_is_not_slow_for_having_no_next_one() -> None:
    #  device  |0 |0 ...|1 |   first kernel of a step runs early, beside the main work of the one before
    rows, at = [], 0
    for number in range(5):
        early, main = 2 * number + 1, 2 * number + 2
        rows += [step(number, at, at + 1000), call(at, at + 1, early), call(at + 2, at + 3, main)]
        rows += [kernel(at + 10, at + 20, early), kernel(at + 600, at + 1500, main)]
        at += 1000
    table = analyze_tables({"events": events(*rows)}).tables["steps"].to_pylist()
    assert [r["window_ns"] for r in table] == [1000, 1000, 1000, 1000, 1490]
    assert not any(r["slow"] for r in table)
