"""Every function against a naive version that marks single instants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.analysis.intervals import (
    Spans,
    clip,
    covered,
    difference,
    gaps,
    innermost,
    intersect,
    join,
    nest,
    sweep,
    union,
)

BASE = 1_700_000_000_000_000_000
edge = st.integers(0, 24)
some = st.lists(st.tuples(edge, edge), max_size=8)


def spans(pairs: list[tuple[int, int]]) -> Spans:
    return union([BASE + a for a, _ in pairs], [BASE + b for _, b in pairs])


def instants(pairs: list[tuple[int, int]]) -> set[int]:
    return {t for a, b in pairs for t in range(a, b)}


def points(s: Spans) -> set[int]:
    return instants([(int(a) - BASE, int(b) - BASE) for a, b in zip(*s, strict=True)])


def assert_canonical(s: Spans) -> None:
    assert (s.end > s.start).all()
    assert (s.start[1:] > s.end[:-1]).all()
    assert s.start.dtype == s.end.dtype == np.int64


@given(some)
def test_union_covers_the_same_instants_and_is_canonical(pairs) -> None:
    got = spans(pairs)
    assert points(got) == instants(pairs)
    assert_canonical(got)
    assert got.total == len(instants(pairs))


@given(some, some)
def test_set_operations_agree_with_sets(a, b) -> None:
    for operation, expected in (
        (join, instants(a) | instants(b)),
        (intersect, instants(a) & instants(b)),
        (difference, instants(a) - instants(b)),
    ):
        got = operation(spans(a), spans(b))
        assert points(got) == expected
        assert_canonical(got)


@given(some, edge, edge)
def test_clip_and_gaps_split_a_window(pairs, lo, hi) -> None:
    window = set(range(lo, hi))
    assert points(clip(spans(pairs), BASE + lo, BASE + hi)) == instants(pairs) & window
    assert points(gaps(spans(pairs), BASE + lo, BASE + hi)) == window - instants(pairs)


@given(some, some)
def test_covered_measures_each_window(pairs, windows) -> None:
    got = covered(spans(pairs), [BASE + a for a, _ in windows], [BASE + b for _, b in windows])
    assert got.tolist() == [len(instants(pairs) & set(range(a, b))) for a, b in windows]


@given(some)
def test_sweep_counts_open_intervals(pairs) -> None:
    times, level = sweep([a for a, _ in pairs], [b for _, b in pairs])
    assert (np.diff(times) > 0).all()
    for t in range(25):
        at = np.searchsorted(times, t, side="right") - 1
        assert (level[at] if at >= 0 else 0) == sum(a <= t < b for a, b in pairs)


@st.composite
def forests(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Properly nested intervals in a few groups, in any order."""
    rows: list[tuple[int, int, int]] = []

    def grow(lo: int, hi: int, group: int, depth: int) -> None:
        cursor = lo
        while depth < 4 and cursor < hi and draw(st.booleans()):
            start = draw(st.integers(cursor, hi))
            end = draw(st.integers(start, hi))
            rows.append((start, end, group))
            grow(start, end, group, depth + 1)
            cursor = end

    for group in range(draw(st.integers(0, 3))):
        grow(0, 30, group * 7, 0)
    return draw(st.permutations(rows))


def owners_by_instant(rows: list[tuple[int, int, int]]) -> dict[tuple[int, int], tuple[int, int]]:
    """Who owns each instant of each group: the shortest interval that is open."""
    result: dict[tuple[int, int], tuple[int, int]] = {}
    for start, end, group in sorted(rows, key=lambda r: r[0] - r[1]):
        for t in range(start, end):
            result[group, t] = (start, end)
    return result


@given(forests())
def test_the_innermost_of_nested_intervals_owns_every_instant(rows) -> None:
    start, end, group = (np.array([r[i] for r in rows], np.int64) for i in range(3))
    pieces, parents = innermost(start + BASE, end + BASE, group)
    got = {}
    for a, b, owner in zip(*(x.tolist() for x in pieces), strict=True):
        for t in range(a - BASE, b - BASE):
            assert (rows[owner][2], t) not in got
            got[rows[owner][2], t] = rows[owner][:2]
    assert got == owners_by_instant(rows)
    for row, parent in enumerate(parents.tolist()):
        enclosing = [
            r
            for r in rows
            if r[2] == rows[row][2] and r[0] <= rows[row][0] and rows[row][1] <= r[1] and r[:2] != rows[row][:2]
        ]
        if parent >= 0:
            assert rows[parent][0] <= rows[row][0]
            assert rows[row][1] <= rows[parent][1]
            assert rows[parent][2] == rows[row][2]
        elif rows[row][1] > rows[row][0]:
            assert not enclosing


@given(st.lists(st.tuples(edge, edge), max_size=8))
def test_intervals_that_do_not_nest_still_own_every_covered_instant_once(pairs) -> None:
    start, end = (np.array([p[i] for p in pairs], np.int64) for i in range(2))
    pieces, _ = innermost(start, end, np.zeros(len(pairs), np.int64))
    owned = [t for a, b in zip(pieces.start, pieces.end, strict=True) for t in range(a, b)]
    assert len(owned) == len(set(owned))
    assert set(owned) <= instants(pairs)
    for a, b, owner in zip(*pieces, strict=True):
        assert start[owner] <= a < b <= end[owner]


def test_an_interval_that_outlives_its_parent_is_cut_there() -> None:
    #  parent |----------|
    #  child       |--------|
    pieces, parents = innermost(np.array([0, 5]), np.array([10, 13]), np.array([1, 1]))
    assert list(zip(*(x.tolist() for x in pieces), strict=True)) == [(0, 5, 0), (5, 10, 1)]
    assert parents.tolist() == [-1, 0]


def cut_with_a_stack(pairs: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Return end and parent of intervals in order of start."""
    ends: list[int] = []
    parents: list[int] = []
    stack: list[int] = []
    for i, (start, end) in enumerate(pairs):
        while stack and ends[stack[-1]] <= start:
            stack.pop()
        parents.append(stack[-1] if stack else -1)
        ends.append(min(end, ends[stack[-1]]) if stack else end)
        stack.append(i)
    return ends, parents


@pytest.mark.parametrize("length", [15, 95, 10_000])
def test_a_long_chain_of_overlaps_is_cut_as_a_stack_would(length: int) -> None:
    #  |--------|
    #    |--------|
    #      |--------|  ...
    pairs = [(10 * i, 10 * i + length) for i in range(3_000)]
    start, end = (np.array([p[i] for p in pairs], np.int64) for i in range(2))
    order, ends, parents = nest(start, end, np.zeros(len(pairs), np.int64))
    assert order.tolist() == list(range(len(pairs)))
    assert (ends.tolist(), parents.tolist()) == cut_with_a_stack(pairs)
