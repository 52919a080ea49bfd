import re
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.errors import UsageError
from perfkit.store import layout
from perfkit.store.layout import RunKey, slug


@pytest.mark.parametrize("name", ["llama-8b", "prod.a", "123456", "a", "2026-10-01", "job_7+x", "R" * 100])
def test_a_harmless_name_stays_as_it_is(name):
    assert slug(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "..",
        ".",
        "../../etc",
        "a/b",
        "a\\b",
        "a=b",
        "a b",
        "ü",
        "-rf",
        "_x",
        ".hidden",
        "a\0b",
        "R" * 101,
        "a\nb",
        "%2e",
    ],
)
def test_any_other_name_gets_a_hash(name):
    assert re.fullmatch(r"[A-Za-z0-9_+-]+-[0-9a-f]{10}", slug(name))


@pytest.mark.parametrize("name", ["007", "null", "NULL", "None", "NaN", "__HIVE_DEFAULT_PARTITION__"])
def test_a_name_that_hive_readers_would_turn_into_something_else_gets_a_hash(name):
    assert slug(name) != name


def test_an_empty_name_is_refused():
    with pytest.raises(UsageError, match="empty"):
        slug("")


@given(st.text(min_size=1), st.text(min_size=1))
def test_a_slug_is_one_path_part_and_tells_names_apart(one, other):
    parts = PurePosixPath(f"x/{slug(one)}/y").parts
    assert parts == ("x", slug(one), "y")
    assert slug(one) not in (".", "..")
    assert len(slug(one)) <= 100
    assert slug(slug(one)) == slug(one)
    assert (slug(one) == slug(other)) == (one == other)


def test_parts_lie_where_hive_readers_look_and_sort_by_number():
    key = RunKey("c", "r", 2)
    assert layout.part_path("events", key, 3, 0) == "events/cluster=c/run=r/attempt=2/part-00003-0000.parquet"
    assert layout.part_path("events", key, 3, 0, 1) == "events/cluster=c/run=r/attempt=2/part-00003-0000-1.parquet"
    assert layout.segment_key(2, 1) < layout.segment_key(10, 0)


@pytest.mark.parametrize(
    "make",
    [lambda: layout.segment_key(-1, 0), lambda: layout.segment_key(0, -1), lambda: RunKey("c", "r", -1).folder],
)
def test_negative_numbers_are_refused(make):
    with pytest.raises(UsageError, match="negative"):
        make()


@pytest.mark.parametrize("date", ["2026-13-01", "today", "../x", ""])
def test_a_fleet_table_needs_a_real_date(date):
    with pytest.raises(UsageError, match="yyyy-mm-dd"):
        layout.fleet_path("jobs", date, "p")
