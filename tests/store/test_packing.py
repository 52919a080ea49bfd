"""Packing changes how many files there are, and nothing that a reader sees."""

import json
import threading

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfkit.cli.main import main
from perfkit.errors import StoreError
from perfkit.schema import TABLES
from perfkit.store import Store, layout, packing
from perfkit.store.catalog import Catalog, Which
from perfkit.store.files import Files
from tests.dumps import plain


def rows_of(store, table="events", **which):
    return plain(store.read(table, **which))


def num_files(store_path):
    return sum(path.is_file() for path in store_path.rglob("*"))


@pytest.fixture
def filled(store, write):
    for rank in range(5):
        for segment in range(3):
            write(store, rank=rank, segment=segment, rows=3 + rank + segment, tables=("events", "ops"))
    store.finalise("c", "r", metadata={"user": "ada"})
    return store


def pack(store):
    return store.compact(quiet_hours=0)


def test_rows_and_their_order_stay_and_files_become_few(filled, tmp_path):
    before = {table: rows_of(filled, table) for table in ("events", "ops")}
    [done] = pack(filled).values()
    assert (done.packs, done.segments) == (1, 15)
    for table, rows in before.items():
        assert rows_of(filled, table).equals(rows)
    filled.gc(older_than_hours=0, dry_run=False)
    for table, rows in before.items():
        assert rows_of(filled, table).equals(rows)
    assert len(set(filled.files("events"))) == 1
    assert num_files(tmp_path) <= 8


def test_one_rank_is_read_from_its_own_row_groups(filled):
    before = rows_of(filled, ranks=[3])
    pack(filled)
    assert rows_of(filled, ranks=[3]).equals(before)
    [path] = set(filled.files("events"))
    assert pq.ParquetFile(path).num_row_groups == 15


def test_nothing_that_a_reader_may_have_listed_goes_before_its_time(filled):
    old = Store(filled.uri).files("events")
    selection = filled._select("events", "c", "r", 0)
    before = rows_of(filled)
    pack(filled)
    assert filled.gc(older_than_hours=1, dry_run=False) == []
    assert plain(selection.read()).equals(before)
    assert all(Files(filled.uri).filesystem.get_file_info(path).is_file for path in old)


def test_readers_see_the_same_rows_at_every_moment(filled):
    before, seen, failed, stop = rows_of(filled), [], [], threading.Event()

    def read():
        while not stop.is_set():
            try:
                seen.append(rows_of(Store(filled.uri)).equals(before))
            except Exception as error:
                failed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        pack(filled)
    finally:
        stop.set()
        reader.join()
    assert not failed
    assert all(seen)


def test_a_packed_segment_is_known_when_it_is_written_again(filled, write):
    pack(filled)
    filled.gc(older_than_hours=0, dry_run=False)
    before = rows_of(filled)
    write(filled, rank=2, segment=1, rows=6, tables=("events", "ops"))
    assert rows_of(filled).equals(before)
    with pytest.raises(StoreError, match="already"):
        write(filled, rank=2, segment=1, fingerprint="other")


def test_a_packed_segment_can_be_replaced_and_packed_again(filled, write):
    pack(filled)
    filled.gc(older_than_hours=0, dry_run=False)
    write(filled, rank=2, segment=1, rows=50, fingerprint="new", replace=True)
    assert len(rows_of(filled, ranks=[2])) == 5 + 50 + 7
    write(filled, rank=9, segment=0, rows=4)
    before = rows_of(filled)
    pack(filled)
    filled.gc(older_than_hours=0, dry_run=False)
    assert rows_of(filled).equals(before)


def test_packing_twice_writes_nothing_new(filled, tmp_path):
    pack(filled)
    names = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert pack(filled) == {}
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == names


def test_two_that_pack_at_once_write_the_same(filled):
    commits = Catalog(Files(filled.uri)).commits(Which())
    before = rows_of(filled)
    for _ in range(2):  # both took the same list
        packing.pack_run(Files(filled.uri), commits)
    assert len(Files(filled.uri).walk(layout.packs_folder(commits[0].key))) == 1
    assert rows_of(filled).equals(before)


def test_a_run_that_is_being_written_to_is_left_alone(filled):
    assert filled.compact(quiet_hours=1) == {}


def test_an_interrupted_pack_leaves_nothing_visible(filled, monkeypatch):
    before = rows_of(filled)

    def fail(self, data, relative):
        raise StoreError("no more")

    monkeypatch.setattr(Files, "publish_bytes", fail)
    with pytest.raises(StoreError):
        pack(filled)
    monkeypatch.undo()
    assert rows_of(filled).equals(before)
    filled.gc(older_than_hours=0, dry_run=False)
    assert rows_of(filled).equals(before)
    assert len(pack(filled)) == 1


def test_an_old_perfkit_refuses_a_store_with_packs(filled, monkeypatch):
    Files(filled.uri).publish_bytes(b'{"layout_version": 1}', layout.MARKER)
    pack(filled)
    monkeypatch.setattr(layout, "LAYOUT_VERSION", 1)
    with pytest.raises(StoreError, match="newer perfkit"):
        Store(filled.uri)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.dictionaries(st.integers(0, 6), st.integers(1, 9), min_size=2), limit=st.integers(2, 4))
def test_any_division_into_packs_keeps_every_row(tmp_path_factory, write, sizes, limit):
    store = Store(tmp_path_factory.mktemp("any"))
    for rank, rows in sizes.items():
        write(store, rank=rank, rows=rows)
    before = rows_of(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "MAX_CHUNKS", limit * len(TABLES["events"].names))
        pack(store)
    store.gc(older_than_hours=0, dry_run=False)
    assert rows_of(store).equals(before)


def test_the_command_says_what_became_of_the_files(filled, capsys):
    assert main(["store", "compact", filled.uri]) == 0
    assert "nothing to pack" in capsys.readouterr().out  # somebody has just written to it
    assert main(["store", "compact", filled.uri, "--quiet", "0"]) == 0
    said = capsys.readouterr().out
    assert "15 segments into 1 pack, 45 files into 3" in said
    assert "gc" in said
    assert main(["store", "gc", filled.uri, "--older-than", "0", "--delete"]) == 0
    assert main(["store", "compact", filled.uri, "--quiet", "0", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["runs"] == []
