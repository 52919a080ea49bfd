"""Joining events into bars: nothing is lost at any zoom."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from perfkit_dashboards.timeline_bars import inside, join_small


@st.composite
def events(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of a picture and events in them, sorted by row and start, some of them far longer than others."""
    number = draw(st.integers(1, 300))
    seed = draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    row = np.sort(generator.integers(0, draw(st.integers(1, 12)), number))
    start = generator.integers(0, 10_000, number)
    order = np.lexsort((start, row))
    length = np.maximum(1, generator.pareto(1.0, number) * 20).astype(np.int64)
    return row[order], start[order], np.minimum(start[order] + length, 10_500)


@given(events(), st.integers(20, 120))
def test_bars_keep_the_count_and_the_busy_time_of_every_row(found, most):
    row, start, end = found
    ones = np.ones(len(row), np.int64)
    bars = join_small(row, start, end, end - start, ones, lo=0, hi=10_500, most=most)
    assert len(bars.row) <= max(most, len(np.unique(row)))
    for one in np.unique(row):
        assert bars.count[bars.row == one].sum() == np.count_nonzero(row == one)
        assert bars.busy[bars.row == one].sum() == (end - start)[row == one].sum()
        assert bars.start[bars.row == one].min() == start[row == one].min()
        assert bars.end[bars.row == one].max() == end[row == one].max()
    assert (np.lexsort((bars.start, bars.row)) == np.arange(len(bars.row))).all()
    assert (row[bars.longest] == bars.row).all()
    assert (start[bars.longest] >= bars.start).all()
    assert (end[bars.longest] <= bars.end).all()


@given(events())
def test_what_fits_is_not_joined(found):
    row, start, end = found
    bars = join_small(row, start, end, end - start, np.ones(len(row), np.int64), lo=0, hi=10_500, most=1000)
    assert bars.cell_ns == 0
    assert bars.single.all()
    assert (bars.start == start).all()


def test_a_long_event_stays_alone_among_short_ones():
    start = np.arange(0, 2000, 2)
    end = start + 1
    start, end = np.append(start, 1000), np.append(end, 1900)
    order = np.argsort(start, kind="stable")
    row = np.zeros(len(start), np.int64)
    bars = join_small(
        row, start[order], end[order], (end - start)[order], np.ones(1001, np.int64), lo=0, hi=2000, most=50
    )
    alone = np.flatnonzero(bars.single)
    assert (bars.end - bars.start)[alone].max() == 900
    assert bars.count.sum() == 1001
    assert bars.cell_ns > 0


@given(events(), st.integers(0, 9000), st.integers(1, 5000))
def test_a_window_finds_all_that_touches_it_and_little_more(found, lo, length):
    row, start, end = found
    hi = lo + length
    rows, first = np.unique(row, return_index=True)
    edges = np.append(first, len(row))
    reach = np.concatenate([np.maximum.accumulate(end[a:b]) for a, b in pairwise(edges)])
    low, high = inside(edges, start, reach, lo, hi)
    for i in range(len(rows)):
        here = np.arange(edges[i], edges[i + 1])
        touching = here[(end[here] > lo) & (start[here] < hi)]
        assert set(touching) <= set(range(low[i], high[i]))
        assert all(start[j] < hi for j in range(low[i], high[i]))
