"""One listing tells which files a table has and whether they changed."""

from __future__ import annotations

import pyarrow as pa
import pytest

from perfkit.errors import UsageError
from perfkit.store import Store


def test_files_are_listed_with_size_and_time(store, write):
    write(store, rank=0)
    write(store, rank=1)
    listed = store.listing("events")
    assert [file.path for file in listed] == store.files("events")
    infos = store.filesystem.get_file_info([file.path for file in listed])
    assert [(file.bytes, file.mtime_ns) for file in listed] == [(info.size, info.mtime_ns) for info in infos]
    assert store.listing("events", run="no such run") == []


def test_a_file_that_is_written_again_has_another_version(store):
    schema = {"position": pa.array([1], pa.int32()), "id": ["a"], "title": ["one"]}
    store.write_derived("findings", pa.table(schema), "c", "r", analysis_id="default")
    before = store.listing("findings", cluster="c", run="r", attempt=0)
    store.write_derived("findings", pa.table({**schema, "title": ["another"]}), "c", "r", analysis_id="default")
    after = store.listing("findings", cluster="c", run="r", attempt=0)
    assert [file.name for file in before] == [file.name for file in after]
    assert before != after


def test_no_store_lists_nothing_and_an_unknown_table_is_an_error(tmp_path):
    assert Store(tmp_path / "none").listing("events") == []
    with pytest.raises(UsageError, match="not a table"):
        Store(tmp_path / "none").listing("no_such_table")
