"""A store of an older schema is migrated or read through the migration; a newer one is refused."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from perfkit.errors import StoreError
from perfkit.schema import EVENTS, SCHEMA_VERSION, VERSION_KEY, WATERFALL
from perfkit.store import MIGRATIONS, Store
from perfkit.store.segment import FINGERPRINT_KEY
from tests.store.conftest import without_checksums

OLD = SCHEMA_VERSION - 1


def from_old(name: str, rows: pa.Table) -> pa.Table:
    """The invented older version had times in µs and another name for them, and no ladder."""
    if name == "events":
        start_ns = pa.array(rows["ts_us"].to_numpy() * 1000)
        return rows.drop_columns(["ts_us"]).append_column("start_ns", start_ns)
    if name == "waterfall":
        return rows.append_column("ladder", pa.array(["A"] * len(rows)))
    return rows


@pytest.fixture
def old_store(tmp_path, monkeypatch, write) -> Store:
    """Two ranks of the older version, written by hand, and one of today's."""
    monkeypatch.setitem(MIGRATIONS, OLD, from_old)
    root = tmp_path / "lake"
    store = Store(root)
    write(store, rank=2, rows=3)
    for rank in range(2):
        path = f"events/cluster=c/run=r/attempt=0/part-{rank:05d}-0000.parquet"
        rows = pa.table(
            {
                "rank": pa.array([rank] * 3, pa.int32()),
                "segment": pa.array([0] * 3, pa.int32()),
                "event_id": np.arange(3),
                "name": ["a", "b", "c"],
                "ts_us": np.arange(3) + rank,
            }
        ).replace_schema_metadata({VERSION_KEY: str(OLD), FINGERPRINT_KEY: f"old{rank}"})
        pq.write_table(rows, root / path)
        commit = {
            "cluster": "c", "run": "r", "attempt": 0, "rank": rank, "segment": 0, "fingerprint": f"old{rank}",
            "files": [{"table": "events", "path": path, "rows": 3, "bytes": (root / path).stat().st_size}],
            "schema_version": OLD, "source_path": f"t{rank}.json", "world_size": 4, "host": "n0", "synthetic": True,
            "oddities": [{"kind": "truncated", "count": 1, "detail": "at 7"}], "a key of that time": 1,
        }  # fmt: skip
        (root / f"manifests/cluster=c/run=r/attempt=0/commits/{rank:05d}-0000.json").write_text(json.dumps(commit))
    return store


EXPECTED = [0, 1000, 2000, 1000, 2000, 3000, 0, 10, 20]


def check(store: Store) -> None:
    rows = store.read("events", partitions=True)
    assert rows["start_ns"].to_pylist() == EXPECTED
    assert rows["rank"].to_pylist() == [0] * 3 + [1] * 3 + [2] * 3
    assert rows.column_names == [*EVENTS.names, "cluster", "run", "attempt"]
    assert pa.Table.from_batches(list(store.scan("events", columns=["start_ns"])))["start_ns"].to_pylist() == EXPECTED
    assert (
        len(store.read("events", filter=(pa.compute.field("start_ns") >= 2000) & (pa.compute.field("run") == "r"))) == 3
    )


def test_an_older_store_is_read_through_the_migration(old_store):
    check(old_store)
    with pytest.raises(StoreError, match="perfkit store migrate"):
        old_store.dataset("events")


def test_migrating_rewrites_what_is_old_and_keeps_what_the_commits_said(old_store):
    untouched = old_store.files("events", ranks=[2])[0]
    before = Path(untouched).stat()
    assert old_store.migrate() == 2
    check(old_store)
    assert old_store.dataset("events").count_rows() == 9
    assert Path(untouched).stat().st_mtime_ns == before.st_mtime_ns
    commit = next(one for one in old_store.committed("c", "r") if one.fingerprint == "old1")
    assert (commit.schema_version, commit.source_path, commit.host, commit.synthetic) == (
        SCHEMA_VERSION, "t1.json", "n0", True,
    )  # fmt: skip
    assert commit.oddities == ({"kind": "truncated", "count": 1, "detail": "at 7"},)
    assert len(pq.read_table(Path(old_store.uri, "events"))) == 9  # the old files are gone
    assert old_store.migrate() == 0


def test_migrating_that_was_interrupted_goes_on(old_store, monkeypatch):
    def fails_on_the_second(name, rows):
        if rows["rank"][0].as_py() == 1:
            raise KeyboardInterrupt
        return from_old(name, rows)

    with monkeypatch.context() as patch:
        patch.setitem(MIGRATIONS, OLD, fails_on_the_second)
        with pytest.raises(KeyboardInterrupt):
            old_store.migrate()
    check(old_store)
    assert old_store.migrate() == 1
    check(old_store)


def test_derived_files_are_migrated_too(old_store):
    path = Path(old_store.uri, "waterfall/cluster=c/run=r/attempt=0/analysis-x.parquet")
    path.parent.mkdir(parents=True)
    rows = pa.table(
        {"position": pa.array([0], pa.int32()), "term": ["mfu"], "points": [40.0], "measured": [True]},
        metadata={VERSION_KEY: str(OLD)},
    )
    pq.write_table(rows, path)
    expected = {"ladder": "A", "points": 40.0}
    assert old_store.read("waterfall", columns=["ladder", "points"]).to_pylist() == [expected]
    assert old_store.migrate() == 3
    assert old_store.read("waterfall", columns=["ladder", "points"]).to_pylist() == [expected]
    assert pq.read_schema(path).names == list(WATERFALL.names)


def test_an_older_store_without_a_migration_is_refused(old_store, monkeypatch):
    monkeypatch.delitem(MIGRATIONS, OLD)
    with pytest.raises(StoreError, match=r"too old to be read.*ingest the traces again"):
        old_store.read("events")


def test_a_newer_segment_is_refused_for_reading_listing_and_writing(store, write):
    write(store)
    path = next(Path(store.uri).rglob("commits/*.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": SCHEMA_VERSION + 1}))
    before = path.read_bytes()
    for use in (lambda: store.read("events"), store.runs, store.migrate, lambda: write(store, fingerprint="x")):
        with pytest.raises(StoreError, match=r"written by a newer perfkit.*upgrade perfkit"):
            use()
    assert path.read_bytes() == before


def test_a_newer_file_is_refused(store, write):
    write(store)
    path = store.files("events")[0]
    rows = pq.read_table(path)
    metadata = {**rows.schema.metadata, VERSION_KEY: str(SCHEMA_VERSION + 1).encode()}
    pq.write_table(rows.replace_schema_metadata(metadata), path)
    without_checksums(store)
    with pytest.raises(StoreError, match="newer perfkit"):
        store.read("events")


def test_a_newer_layout_is_refused_at_once(store, write):
    write(store)
    Path(store.uri, "perfkit-store.json").write_text('{"layout_version": 99}')
    with pytest.raises(StoreError, match=r"newer perfkit \(layout 99\); upgrade"):
        Store(store.uri)
    Path(store.uri, "perfkit-store.json").write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        Store(store.uri)
