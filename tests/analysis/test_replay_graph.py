"""Longest paths against a plain loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfkit.analysis.replay.graph import NEVER, Graph


@st.composite
def graphs(draw: st.DrawFn):
    points = draw(st.integers(1, 12))
    pairs = draw(st.lists(st.tuples(st.integers(0, points - 1), st.integers(0, points - 1)), max_size=30))
    edges = [(min(a, b), max(a, b)) for a, b in pairs if a != b]
    lags = draw(st.lists(st.integers(-5, 50), min_size=2 * len(edges), max_size=2 * len(edges)))
    base = draw(st.lists(st.integers(0, 100), min_size=points, max_size=points))
    return points, edges, np.array(lags, np.int64).reshape(len(edges), 2), np.array(base, np.int64)


def plain(edges, lag, base):
    times = base.tolist()
    for target in range(len(times)):  # edges lead to higher numbers only
        for (source, to), one in zip(edges, lag, strict=True):
            if to == target:
                times[target] = max(times[target], times[source] + one)
    return times


@given(graphs())
def test_a_sweep_gives_the_longest_paths_of_all_questions(case):
    points, edges, lags, base = case
    source, target = (np.array([edge[i] for edge in edges], np.int64) for i in (0, 1))
    graph = Graph.build(points, source, target)
    times = graph.solve(lags, np.stack([base, base + 7], axis=1))
    assert not len(graph.circular)
    assert times[:, 0].tolist() == plain(edges, lags[:, 0].tolist(), base)
    assert times[:, 1].tolist() == plain(edges, lags[:, 1].tolist(), base + 7)


@given(graphs())
def test_the_edge_that_decided_a_time_accounts_for_it(case):
    points, edges, lags, base = case
    source, target = (np.array([edge[i] for edge in edges], np.int64) for i in (0, 1))
    graph = Graph.build(points, source, target)
    times = graph.solve(lags[:, :1], base[:, None])[:, 0]
    decided = graph.binding(lags[:, 0], times)
    for point, edge in enumerate(decided.tolist()):
        if edge >= 0:
            assert target[edge] == point
            assert times[source[edge]] + lags[edge, 0] == times[point]
        else:
            assert times[point] == base[point]


def test_points_on_a_circle_are_named_and_keep_their_own_time():
    #  0 -> 1 -> 2 -> 1,  2 -> 3
    graph = Graph.build(4, np.array([0, 1, 2, 2]), np.array([1, 2, 1, 3]))
    assert graph.circular.tolist() == [1, 2, 3]
    times = graph.solve(np.ones((4, 1), np.int64), np.array([[5], [7], [8], [9]]))
    assert times[:, 0].tolist() == [5, 7, 8, 9]


def test_a_lag_of_never_takes_an_edge_out():
    graph = Graph.build(2, np.array([0]), np.array([1]))
    times = graph.solve(np.array([[10, NEVER]]), np.array([[3, 3], [1, 1]]))
    assert times[1].tolist() == [13, 1]
