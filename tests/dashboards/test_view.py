"""The URL holds all state: what is written is read back, and nothing in a link can break a page."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st
from perfkit_dashboards.view import DAY_NS, GPU_QUANTITIES, ORDERS, PAGES, RANGES, RANK_QUANTITIES, View

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
days = st.dates(min_value=__import__("datetime").date(1970, 1, 1)).map(lambda day: day.isoformat())
numbers = st.none() | st.integers(0, 10**15 - 1)
views = st.builds(
    View, page=st.sampled_from(PAGES), cluster=st.none() | names, run=st.none() | names, attempt=numbers, rank=numbers,
    range=st.sampled_from(list(RANGES)), since=st.none() | days, until=st.none() | days,
    clusters=st.lists(names, unique=True, max_size=4).map(tuple), search=names, gpu=st.sampled_from(GPU_QUANTITIES),
    quantity=st.sampled_from(RANK_QUANTITIES), order=st.sampled_from(ORDERS), first=numbers, last=numbers,
    live=st.booleans(),
)  # fmt: skip


@given(views, st.sampled_from(["/", "/perf/", "/a/b/"]))
def test_a_link_shows_the_same_view(view: View, prefix: str) -> None:
    path, _, query = view.href(prefix).partition("?")
    assert View.parse(path, f"?{query}" if query else "", prefix) == view


@given(st.text(max_size=60), st.text(max_size=200))
def test_any_link_is_some_view_and_its_window_is_in_order(path: str, search: str) -> None:
    view = View.parse(path, search)
    assert view.page in (*PAGES, "missing")
    window = view.window_ns(10**18)
    assert window is None or window[0] < window[1]
    assert View.parse(f"/{view.page}", view.query()) == dataclasses.replace(view, page=view.page)


def test_the_default_view_has_the_shortest_link() -> None:
    assert View().href() == "/"
    assert View(page="cluster", cluster="a b").href("/perf/") == "/perf/cluster?cluster=a%20b"


def test_values_that_make_no_sense_are_left_at_their_default() -> None:
    view = View.parse("/ranks", "?rank=x&attempt=-1&range=9y&since=2025-02-30&quantity=__class__&first=1e3&live=maybe")
    assert view == View(page="ranks")


def test_names_that_browsers_rewrite_in_paths_survive() -> None:
    for name in ("..", ".", "", "a/b", "%2e%2e", "#x", "?y=1", "a&b", "+", "\u202e"):
        view = View(page="run", cluster=name, run=name)
        path, _, query = view.href().partition("?")
        assert path == "/run"
        assert View.parse(path, query) == view


def test_other_pages_keep_the_time_range_and_drop_the_rest() -> None:
    view = View(page="ranks", cluster="a", run="b", rank=3, range="7d", quantity="idle")
    assert view.to("cluster") == View(page="cluster", cluster="a", range="7d")
    assert view.to("fleet") == View(range="7d")
    assert view.to("run", run="c") == View(page="run", cluster="a", run="c", range="7d")


def test_days_are_inclusive_and_go_before_the_range() -> None:
    view = View(range="24h", since="1970-01-03", until="1970-01-02")
    assert view.window_ns(10**18) == (DAY_NS, 3 * DAY_NS)
    assert View(range="24h").window_ns(10 * DAY_NS) == (9 * DAY_NS, 10 * DAY_NS)
    assert View(range="all").window_ns(10 * DAY_NS) is None
