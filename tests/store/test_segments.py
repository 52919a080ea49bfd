import json
import os
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfkit.errors import SchemaError, StoreError, UsageError
from perfkit.schema import EVENTS, JOBS, SCHEMA_VERSION, WATERFALL, table_from_rows
from perfkit.sources.base import PartInfo
from perfkit.store import Store
from perfkit.store.parquet import ROW_GROUP_ROWS
from perfkit.store.segment import SegmentTaken


def files_of(store: Store) -> dict[str, bytes]:
    root = Path(store.uri)
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


# ------------------------------------------------------------------ commit


def test_what_was_committed_is_read_back_with_rank_and_segment(store, write):
    write(store, rank=3, segment=1, rows=5)
    rows = store.read("events")
    assert rows.schema.equals(EVENTS.arrow)
    assert rows["rank"].to_pylist() == [3] * 5
    assert rows["segment"].to_pylist() == [1] * 5
    assert rows["name"].to_pylist() == ["kernel0", "kernel1", "kernel2", "kernel0", "kernel1"]
    assert rows["start_ns"].to_pylist() == [0, 10, 20, 30, 40]
    assert rows["stream"].null_count == 5


def test_nothing_is_visible_before_the_commit(store, write, make_events):
    write(store, rank=0)
    with store.writer("c", "r", rank=1, segment=0, fingerprint="x") as writer:
        writer.write("events", make_events(10))
        assert set(store.read("events")["rank"].to_pylist()) == {0}
        assert len(store.files("events")) == 1
        writer.commit()
    assert set(store.read("events")["rank"].to_pylist()) == {0, 1}


@pytest.mark.parametrize("background", [False, True])
def test_leaving_without_commit_leaves_no_trace(store, write, make_events, background):
    write(store)
    before = files_of(store)
    with store.writer("c", "r", rank=1, segment=0, fingerprint="x", background=background) as writer:
        writer.write("events", make_events(10))
    writer = store.writer("c", "r", rank=1, segment=0, fingerprint="x", background=background)
    writer.write("events", make_events(10))
    writer.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert files_of(store) == before
    assert not list(Path(store.uri, ".tmp").iterdir())


def test_committing_the_same_content_again_changes_nothing(store, write):
    first = write(store, tables=("events", "ops"))
    before = files_of(store)
    stamps = {path: Path(store.uri, path).stat().st_mtime_ns for path in before}
    assert write(store, tables=("events", "ops")) == first
    assert files_of(store) == before
    assert {path: Path(store.uri, path).stat().st_mtime_ns for path in before} == stamps


def test_a_lost_file_is_written_again(store, write):
    commit = write(store)
    Path(store.files("events")[0]).unlink()
    with pytest.raises(StoreError, match="gone"):
        store.read("events")
    write(store)
    assert len(store.read("events")) == commit.rows["events"]


def test_other_content_under_the_same_segment_is_refused(store, write):
    write(store, fingerprint="one", rows=3)
    before = files_of(store)
    with pytest.raises(StoreError, match=r"holds traces/rank0.json already.*another segment"):
        write(store, fingerprint="two", rows=4)
    assert files_of(store) == before


def test_replacing_switches_all_tables_at_once_and_removes_the_old_files(store, write):
    write(store, fingerprint="one", rows=3, tables=("events", "ops"))
    old = store.files("events") + store.files("ops")
    write(store, fingerprint="two", rows=4, tables=("events", "syncs"), replace=True)
    assert len(store.read("events")) == 4
    assert len(store.read("ops")) == 0
    assert len(store.read("syncs")) == 4
    assert not [path for path in old if Path(path).exists()]
    write(store, fingerprint="three", rows=5, replace=True)
    assert len(store.read("events")) == 5


def test_parts_of_a_writer_that_died_before_its_commit_do_not_outlive_the_next_one(store, write):
    write(store, tables=("events", "ops"))
    next(Path(store.uri).rglob("commits/*.json")).unlink()  # as if it had died one step before
    write(store, tables=("events",), rows=4)
    assert [path.name for path in Path(store.uri, "ops").rglob("*.parquet")] == []
    assert len(pq.read_table(Path(store.uri, "events"))) == 4


def test_tables_without_rows_have_no_file(store, write):
    write(store, rows=0, tables=("events", "ops"))
    assert store.committed("c", "r")[0].files == ()
    assert store.read("events").num_rows == 0
    assert not Path(store.uri, "events").exists()


def test_the_commit_says_everything_about_its_source(store, make_events):
    info = PartInfo(
        rank=2, rank_source="file name", world_size=8, host="n1", start_ns=2**62, end_ns=2**62 + 1, num_events=3,
        source="kineto", synthetic=True, versions={"torch": "2.13"},
    )  # fmt: skip
    info.note("missing_ts", 2, "event 7 \udc80")
    with store.writer("prod a", "x/y", 3, rank=2, segment=0, fingerprint="abc") as writer:
        writer.write("events", make_events(3))
        written = writer.commit(info, source_path="/data/t.json", extra={"parts": 4})
    (read,) = store.committed("prod a", "x/y", 3)
    assert read == written
    assert read.fingerprint == "abc"
    assert (read.cluster, read.run, read.attempt) == ("prod a", "x/y", 3)
    assert read.oddities == ({"kind": "missing_ts", "count": 2, "detail": "event 7 \udc80"},)
    assert read.start_ns == 2**62
    assert read.schema_version == SCHEMA_VERSION
    assert read.extra == {"parts": 4}
    assert store.committed("prod a", "z") == []


@pytest.mark.parametrize("background", [False, True])
def test_small_chunks_become_row_groups_with_one_dictionary_each(store, make_events, background):
    chunk = ROW_GROUP_ROWS // 4
    with store.writer("c", "r", rank=0, segment=0, fingerprint="x", background=background) as writer:
        for index in range(6):
            writer.write("events", make_events(chunk, first=index * chunk, name=f"n{index}-"))
        writer.commit()
    metadata = pq.read_metadata(store.files("events")[0])
    groups = [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]
    # A writer in the background begins with small groups, to have something to do early.
    assert groups == ([chunk, chunk, 2 * chunk, 2 * chunk] if background else [4 * chunk, 2 * chunk])
    rows = store.read("events")
    assert rows["event_id"].to_pylist() == list(range(6 * chunk))
    assert rows["name"][5 * chunk].as_py().startswith("n5-")


@pytest.mark.parametrize("background", [False, True])
def test_one_write_of_several_chunks_with_dictionaries_of_their_own_stays_a_dictionary(store, make_events, background):
    long = "a" * 1000
    chunks = [make_events(2000), make_events(2000)]
    for number, chunk in enumerate(chunks):
        names = pa.array([f"{long}{number}"] * len(chunk)).dictionary_encode()
        chunks[number] = chunk.set_column(chunk.column_names.index("name"), "name", names)
    with store.writer("c", "r", rank=0, segment=0, fingerprint="x", background=background) as writer:
        writer.write("events", pa.concat_tables(chunks))
        writer.commit()
    metadata = pq.read_metadata(store.files("events")[0])
    name = next(c for c in map(metadata.row_group(0).column, range(metadata.num_columns)) if c.path_in_schema == "name")
    assert name.total_uncompressed_size < 10 * len(long)  # as text it would be 4 MB


def test_one_large_write_is_cut_into_row_groups(store, make_events):
    with store.writer("c", "r", rank=0, segment=0, fingerprint="x") as writer:
        writer.write("events", make_events(2 * ROW_GROUP_ROWS + 5))
        writer.commit()
    metadata = pq.read_metadata(store.files("events")[0])
    rows = [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]
    assert rows == [ROW_GROUP_ROWS, ROW_GROUP_ROWS, 5]


_int64 = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(_int64, _int64, _int64, st.one_of(st.none(), st.text())), min_size=1, max_size=40))
def test_every_value_survives(tmp_path_factory, rows):
    starts, durations, streams, names = zip(*rows, strict=True)
    table = pa.table(
        {
            "event_id": np.arange(len(rows)),
            "start_ns": pa.array(starts, pa.int64()),
            "dur_ns": pa.array(durations, pa.int64()),
            "stream": pa.array(streams, pa.int64()),
            "name": pa.array([n and n.encode("utf-8", "replace").decode() for n in names], pa.utf8()),
        }
    )
    store = Store(tmp_path_factory.mktemp("lake"))
    with store.writer("c", "r", rank=0, segment=0, fingerprint="x") as writer:
        for cut in range(0, len(table), 7):
            writer.write("events", table.slice(cut, 7))
        writer.commit()
    back = store.read("events", columns=table.column_names)
    assert back.to_pydict() == table.to_pydict()


def test_rows_of_another_rank_are_refused(store, make_events):
    rows = make_events(3).append_column("rank", pa.array([0, 0, 1], pa.int32()))
    writer = store.writer("c", "r", rank=0, segment=0, fingerprint="x")
    with writer, pytest.raises(SchemaError, match="rows of another rank"):
        writer.write("events", rows)


@pytest.mark.parametrize("table", ["runs", "attribution", "jobs", "nonsense"])
def test_only_run_tables_go_into_a_segment(store, make_events, table):
    writer = store.writer("c", "r", rank=0, segment=0, fingerprint="x")
    with writer, pytest.raises(SchemaError, match="not a table that a segment can hold"):
        writer.write(table, make_events(1))


def test_a_writer_can_be_used_only_once(store, make_events):
    with store.writer("c", "r", rank=0, segment=0, fingerprint="x") as writer:
        writer.commit()
        with pytest.raises(UsageError, match="is committed"):
            writer.write("events", make_events(1))
        with pytest.raises(UsageError, match="is committed"):
            writer.commit()


# ------------------------------------------------------------------ read


def test_reading_selects_runs_ranks_columns_and_rows(store, write):
    for run in ("a", "b"):
        for rank in range(3):
            write(store, run=run, rank=rank, segment=0, rows=4)
    assert len(store.read("events")) == 24
    assert len(store.read("events", run="a")) == 12
    assert store.read("events", run="b", ranks=[2, 1], columns=["run", "rank"]).to_pylist() == [
        {"run": "b", "rank": rank} for rank in (1, 1, 1, 1, 2, 2, 2, 2)
    ]
    chosen = store.read("events", filter=(pc.field("run") == "a") & (pc.field("name") == "kernel2"))
    assert len(chosen) == 3
    assert chosen.column_names == list(EVENTS.names)
    labelled = store.read("events", run="a", ranks=[0], partitions=True)
    assert labelled.column_names[-3:] == ["cluster", "run", "attempt"]


def test_scanning_gives_the_same_rows_in_batches(store, write):
    for rank in range(3):
        write(store, rank=rank, rows=100)
    batches = list(store.scan("events", columns=["rank", "event_id"], ranks=[0, 2]))
    assert pa.Table.from_batches(batches).equals(store.read("events", columns=["rank", "event_id"], ranks=[0, 2]))
    assert store.dataset("events").count_rows() == 300


def test_ranks_and_segments_come_in_order_however_they_were_written(store, write):
    for rank, segment in ((10, 0), (2, 1), (2, 0), (1, 0)):
        write(store, rank=rank, segment=segment, rows=1)
    rows = store.read("events", columns=["rank", "segment"])
    assert list(zip(*rows.to_pydict().values(), strict=True)) == [(1, 0), (2, 0), (2, 1), (10, 0)]


def test_names_that_no_path_can_hold_are_given_back_as_they_were(store, write):
    for run in ("a/b", "a b", "../../x", "007", "7"):
        write(store, cluster="β", run=run, rows=2)
        assert len(store.read("events", run=run)) == 2
        assert store.read("events", run=run, columns=["cluster", "run"]).to_pylist()[0] == {"cluster": "β", "run": run}
    assert sorted(run.run for run in store.runs()) == ["../../x", "007", "7", "a b", "a/b"]
    assert {path.parts[0] for path in map(Path, files_of(store))} == {"events", "manifests", "perfkit-store.json"}


def test_asking_for_what_is_not_there_says_what_is(store, write):
    with pytest.raises(StoreError, match=r"no store at .*perfkit ingest TRACE --store"):
        store.read("events")
    write(store, run="a")
    with pytest.raises(StoreError, match=r"nothing of run 'b'; it has c/a"):
        store.read("events", run="b")
    with pytest.raises(UsageError, match=r"'event' is not a table; there are \['runs', 'events'"):
        store.read("event")
    with pytest.raises(UsageError, match=r"no columns \['nme'\]"):
        store.read("events", columns=["nme"])
    assert store.read("syncs").num_rows == 0


def test_a_flipped_bit_is_noticed_and_the_file_is_named(store, write):
    write(store, rank=0, rows=1000)
    write(store, rank=1, rows=1000)
    damaged = Path(store.files("events")[1])
    metadata = pq.read_metadata(damaged)
    names = metadata.schema.names
    chunk = metadata.row_group(0).column(names.index("start_ns"))
    content = bytearray(damaged.read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(StoreError, match=r"part-00001-0000.parquet is damaged.*ingest its source again"):
        store.read("events")
    with pytest.raises(StoreError, match=r"part-00001-0000\.parquet is damaged"):
        list(store.scan("events"))
    assert len(store.read("events", ranks=[0])) == 1000


def test_a_file_that_is_not_the_committed_one_is_not_read(store, write):
    write(store, run="a", fingerprint="one")
    write(store, run="b", fingerprint="two")
    mine, other = store.files("events", run="a")[0], store.files("events", run="b")[0]
    Path(mine).write_bytes(Path(other).read_bytes())
    with pytest.raises(StoreError, match="not the file that was committed"):
        store.read("events", run="a")


def test_a_damaged_commit_is_reported_and_the_next_ingest_repairs_it(store, write):
    write(store)
    commit = next(Path(store.uri).rglob("commits/*.json"))
    commit.write_bytes(commit.read_bytes()[:-5])
    with pytest.raises(StoreError, match="damaged commit"):
        store.read("events")
    assert len(store.damaged()) == 1
    write(store)
    assert len(store.read("events")) == 10
    assert store.damaged() == []


# ------------------------------------------------------------------ runs


def test_runs_add_up_their_commits(store, write):
    write(store, rank=0, rows=3, tables=("events", "ops"))
    write(store, rank=0, segment=1, rows=4)
    write(store, rank=2, rows=5)
    write(store, rank=0, attempt=1)
    first, second = store.runs()
    assert (first.cluster, first.run, first.attempt, first.ranks) == ("c", "r", 0, (0, 2))
    assert (first.world_size, first.segments, first.rows) == (4, 3, {"events": 12, "ops": 3})
    assert (first.start_ns, first.end_ns) == (0, 2050)
    assert first.bytes == sum(Path(p).stat().st_size for t in ("events", "ops") for p in store.files(t, attempt=0))
    assert first.hosts == ("host0", "host1")
    assert second.attempt == 1


def test_finalising_writes_a_row_that_sql_sees_and_keeps_what_was_known(store, write):
    write(store, rank=0)
    store.finalise("c", "r", metadata={"user": "ada", "mesh": {"dp": 4}})
    write(store, rank=1)
    store.finalise("c", "r", metadata={"model": "llama3-8b"})
    (row,) = pq.read_table(Path(store.uri, "runs")).to_pylist()
    assert (row["user"], row["model"], row["ranks_present"], row["world_size"]) == ("ada", "llama3-8b", 2, 4)
    assert json.loads(row["mesh"]) == {"dp": 4}
    assert row["synthetic"] is False
    assert (row["cluster"], row["run"]) == ("c", "r")
    (derived,) = store.read("runs", partitions=True).to_pylist()
    assert {**row, "attempt": 0} == derived


def test_a_run_is_listed_before_it_is_finalised(store, write):
    write(store)
    assert store.read("runs", columns=["ranks_present", "synthetic"]).to_pylist() == [
        {"ranks_present": 1, "synthetic": False}
    ]


def test_a_run_that_has_no_data_yet_is_listed_with_what_was_said_about_it(store):
    store.finalise("c", "live", metadata={"world_size": 16, "start_ns": 5})
    (run,) = store.runs()
    assert (run.run, run.ranks, run.world_size, run.start_ns, run.rows) == ("live", (), 16, 5, {})
    assert store.runs(run="other") == []


# ------------------------------------------------------------------ derived and fleet tables


def waterfall(points: float) -> pa.Table:
    row = {"ladder": "A", "position": 0, "term": "mfu", "points": points, "measured": True}
    return table_from_rows(WATERFALL, [row])


def test_a_derived_table_gives_the_newest_analysis_unless_one_is_named(store, write):
    write(store, run="a/b")
    store.finalise("c", "a/b")
    store.write_derived("waterfall", waterfall(1.0), "c", "a/b", analysis_id="one")
    store.write_derived("waterfall", waterfall(2.0), "c", "a/b", analysis_id="two")
    os.utime(next(Path(store.uri).rglob("analysis-one.parquet")), (1, 1))
    assert store.read("waterfall", columns=["points", "run"]).to_pylist() == [{"points": 2.0, "run": "a/b"}]
    assert store.read("waterfall", analysis_id="one", columns=["points"]).to_pylist() == [{"points": 1.0}]
    store.write_derived("waterfall", waterfall(3.0), "c", "a/b", analysis_id="two")
    assert store.read("waterfall", run="a/b", columns=["points"]).to_pylist() == [{"points": 3.0}]


def test_fleet_tables_are_cut_by_date_and_parts_are_replaced(store):
    def jobs(cluster: str, count: int) -> pa.Table:
        return table_from_rows(JOBS, [{"cluster": cluster, "job": str(i)} for i in range(count)])

    store.write_fleet("jobs", jobs("a", 3), date="2026-10-01", part="p0")
    store.write_fleet("jobs", jobs("b", 2), date="2026-10-02", part="p0")
    store.write_fleet("jobs", jobs("b", 4), date="2026-10-02", part="p0")
    assert len(store.read("jobs")) == 7
    assert len(store.read("jobs", dates=("2026-10-02", "2026-10-31"))) == 4
    assert len(store.read("jobs", cluster="a")) == 3
    assert set(store.read("jobs", columns=["date"])["date"].to_pylist()) == {"2026-10-01", "2026-10-02"}


def test_a_table_goes_only_where_its_kind_goes(store):
    with pytest.raises(UsageError, match="not a derived table"):
        store.write_derived("jobs", waterfall(1.0), "c", "r", analysis_id="x")
    with pytest.raises(UsageError, match="not a fleet table"):
        store.write_fleet("waterfall", waterfall(1.0), date="2026-10-01", part="x")


# ------------------------------------------------------------------ gc


def test_gc_removes_old_orphans_and_nothing_else(store, write):
    write(store, rank=0, tables=("events", "ops"))
    write(store, rank=1, tables=("events", "ops"))
    kept = {path: data for path, data in files_of(store).items() if "00001-0000" not in path}
    next(Path(store.uri).rglob("commits/00001-0000.json")).unlink()
    scratch = Path(store.uri, ".tmp", "dead")
    scratch.mkdir()
    (scratch / "events.parquet").write_bytes(b"half")
    assert store.gc() == []  # too young
    found = store.gc(older_than_hours=0)
    assert {Path(orphan.path).name for orphan in found} == {"part-00001-0000.parquet", "events.parquet"}
    assert len(found) == 3
    assert [orphan.path for orphan in store.gc(older_than_hours=0)] == [orphan.path for orphan in found]  # dry run
    store.gc(older_than_hours=0, dry_run=False)
    assert files_of(store) == kept
    assert not scratch.exists()


def test_gc_spares_what_belongs_to_a_commit_that_cannot_be_read(store, write):
    write(store)
    next(Path(store.uri).rglob("commits/*.json")).write_bytes(b"{")
    assert store.gc(older_than_hours=0, dry_run=False) == []
    assert list(Path(store.uri).rglob("part-*.parquet"))


class TestManifests:
    def test_any_flipped_bit_of_a_commit_is_noticed(self, store, write):
        written = write(store)
        path = next(Path(store.uri).rglob("commits/*.json"))
        content, noticed = path.read_bytes(), 0
        for seed in range(300):
            path.write_bytes(flipped(content, random.Random(seed)))
            try:
                (read,) = Store(store.uri).committed("c", "r")
            except StoreError:
                noticed += 1
                continue
            assert read == written  # the bit was in the checksum's own name, which takes the checksum away
        assert noticed > 280

    def test_the_place_of_an_unreadable_commit_is_not_given_to_other_content(self, store, write):
        write(store, fingerprint="one")
        next(Path(store.uri).rglob("commits/*.json")).write_bytes(b"{")
        (place,) = store.held("c", "r").unreadable
        assert place == (0, 0, "one")
        with pytest.raises(SegmentTaken, match="damaged commit"):
            write(store, fingerprint="two")
        write(store, fingerprint="one")
        assert (len(store.read("events")), store.held("c", "r").unreadable) == (10, [])

    def test_a_place_whose_parquet_files_tell_nothing_either_stays_taken(self, store, write):
        write(store)
        next(Path(store.uri).rglob("commits/*.json")).write_bytes(b"{")
        next(Path(store.uri).rglob("part-*.parquet")).write_bytes(b"PAR1 and nothing else PAR1")
        assert store.held("c", "r").unreadable == [(0, 0, None)]
        with pytest.raises(SegmentTaken, match=r"damaged commit.*delete the commit to give the segment up"):
            write(store)

    def test_a_damaged_pack_keeps_the_places_of_its_ranks(self, store, write):
        for rank in range(3):
            write(store, rank=rank, segment=rank)
        store.compact(quiet_hours=0)
        store.gc(older_than_hours=0, dry_run=False)
        next(Path(store.uri).rglob("packs/*.json")).write_bytes(b"{")
        held = store.held("c", "r")
        assert (held.commits, held.unreadable) == ([], [(rank, 2, None) for rank in range(3)])

    def test_a_run_json_that_is_damaged_is_written_anew(self, store, write):
        write(store)
        store.finalise("c", "r", metadata={"user": "ada"})
        next(Path(store.uri).rglob("run.json")).write_bytes(b"{")
        store.finalise("c", "r", metadata={"model": "m"})
        (run,) = store.runs()
        assert (run.damaged, run.metadata) == (0, {"model": "m"})

    def test_upkeep_leaves_a_damaged_run_alone_names_it_and_goes_on(self, store, write):
        for run in ("bad", "good"):
            for rank in range(2):
                write(store, run=run, rank=rank)
        next(Path(store.uri).glob("manifests/**/run=bad/**/commits/*.json")).write_bytes(b"{")
        told: list[StoreError] = []
        assert [key.run for key in store.compact(quiet_hours=0, on_damage=told.append)] == ["good"]
        assert [key.run for key in store.expire(keep_ns=0, on_damage=told.append).runs] == ["good"]
        assert store.migrate(on_damage=told.append) == 0
        assert len(told) == 3
        assert all("run=bad" in str(error) for error in told)
        with pytest.raises(StoreError, match="nothing of run 'nope'; it has c/bad, c/good"):
            store.read("events", run="nope")

    def test_a_stray_file_among_the_manifests_is_nobodys_commit(self, store, write):
        write(store)
        stray = Path(store.uri) / "manifests/cluster=c/run=r/commits/x.json"
        stray.parent.mkdir()
        stray.write_text("{}")
        assert [run.damaged for run in store.runs()] == [0]

    def test_numbers_that_no_segment_has_are_damage(self, store, write):
        write(store)
        path = next(Path(store.uri).rglob("commits/*.json"))
        document = json.loads(path.read_bytes())
        del document["crc"]
        path.write_text(json.dumps({**document, "rank": -1}))
        assert [run.damaged for run in store.runs()] == [1]

    def test_a_bit_of_run_json_moves_no_run(self, store, write):
        write(store)
        store.finalise("c", "r")
        (path,) = Path(store.uri).rglob("run.json")
        path.write_bytes(path.read_bytes().replace(b'"c"', b'"k"'))
        (run,) = Store(store.uri).runs()
        assert (run.cluster, run.run, run.damaged) == ("c", "r", 1)

    @pytest.mark.parametrize("path", ["../precious.parquet", "/etc/passwd", "events/cluster=c/run=other/attempt=0/x"])
    def test_a_commit_lists_files_of_its_own_run_only(self, store, write, path):
        write(store)
        commit = next(Path(store.uri).rglob("commits/*.json"))
        document = json.loads(commit.read_bytes())
        document["files"][0]["path"] = path
        commit.write_text(json.dumps(document))
        with pytest.raises(StoreError, match=r"damaged commit.*does not belong to it"):
            Store(store.uri).read("events")

    def test_a_damaged_run_costs_no_other(self, store, write):
        write(store, run="good")
        write(store, run="bad")
        commit = next(Path(store.uri).glob("manifests/**/run=bad/**/commits/*.json"))
        commit.write_bytes(commit.read_bytes()[:-9])
        runs = {run.run: run for run in Store(store.uri).runs()}
        assert (runs["good"].damaged, runs["good"].rows) == (0, {"events": 10})
        assert (runs["bad"].damaged, runs["bad"].rows) == (1, {})
        assert len(store.read("events", run="good")) == 10
        with pytest.raises(StoreError, match="damaged commit"):
            store.read("events", run="bad")


def flipped(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def test_gc_removes_nothing_behind_a_link(store, write, tmp_path):
    write(store)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    (elsewhere / "deep/thesis.txt").write_text("keep")
    root = Path(store.uri)
    (root / "events/cluster=c/run=linked").symlink_to(elsewhere)
    (root / ".tmp/linked").symlink_to(elsewhere)
    (root / "events/cluster=c/run=r/attempt=0/orphan.parquet").write_text("x")
    removed = store.gc(older_than_hours=0, dry_run=False)
    assert [Path(orphan.path).name for orphan in removed] == ["orphan.parquet"]
    assert (elsewhere / "deep/thesis.txt").read_text() == "keep"
