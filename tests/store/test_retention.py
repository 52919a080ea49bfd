"""Retention removes what is too old and nothing else, and says so first."""

import json
import time
from dataclasses import replace

import pyarrow as pa
import pytest

from perfkit.cli.main import main
from perfkit.errors import UsageError
from perfkit.sources.base import PartInfo
from perfkit.store import layout
from perfkit.store.catalog import Catalog, Which
from perfkit.store.files import Files
from perfkit.store.retention import parse_duration_ns

DAY_NS = 86_400 * 10**9


def age(store, run, days):
    """Make a run look as if it had been ingested some days ago."""
    files = Files(store.uri)
    for commit in Catalog(files).commits(Which(run=run)):
        old = replace(commit, written_ns=time.time_ns() - days * DAY_NS)
        files.publish_bytes(old.to_json(), layout.commit_path(old.key, old.rank, old.segment))


def write_rank(store, run, rank, events):
    info = PartInfo(rank=rank, world_size=4, source="kineto")
    oddity = pa.table({"path": ["t.json"], "kind": ["truncated"], "count": [1], "detail": ["cut"]})
    with store.writer("c", run, rank=rank, segment=0, fingerprint=f"{run}-{rank}") as writer:
        writer.write("events", events)
        writer.write("quality", oddity)
        writer.commit(info, source_path="t.json")


@pytest.fixture
def aged(store, make_events):
    for run, days in (("fresh", 1), ("month", 30), ("old", 200)):
        for rank in range(2):
            write_rank(store, run, rank, make_events(10))
        store.finalise("c", run)
        age(store, run, days)
    return store


def gc(store, *options):
    return main(["store", "gc", store.uri, "--older-than", "0", "--format", "json", *options])


def names(store):
    return [run.run for run in store.runs()]


@pytest.mark.parametrize(
    ("text", "days"), [("90d", 90), ("12h", 0.5), ("2w", 14), ("1y", 365), ("1.5d", 1.5), (" 3 D ", 3)]
)
def test_durations(text, days):
    assert parse_duration_ns(text) == days * DAY_NS


@pytest.mark.parametrize("text", ["90", "d", "-1d", "90m", "", "1e9d"])
def test_no_durations(text):
    with pytest.raises(UsageError, match="90d"):
        parse_duration_ns(text)


def test_nothing_happens_without_delete(aged, capsys):
    assert gc(aged, "--keep", "90d", "--keep-traces", "14d") == 0
    said = json.loads(capsys.readouterr().out)
    assert [run["run"] for run in said["runs"]] == ["old"]
    assert said["trimmed_segments"] == 2
    assert not said["deleted"]
    assert names(aged) == ["fresh", "month", "old"]
    assert len(aged.read("events")) == 60


def test_old_runs_go_as_a_whole_and_older_traces_lose_their_events(aged, tmp_path):
    assert gc(aged, "--keep", "90d", "--keep-traces", "14d", "--delete") == 0
    assert names(aged) == ["fresh", "month"]
    assert not list(tmp_path.rglob("*run=old*"))
    assert len(aged.read("events", run="month")) == 0
    assert len(aged.read("quality", run="month")) == 2
    assert len(aged.read("events", run="fresh")) == 20
    month = next(run for run in aged.runs() if run.run == "month")
    assert (month.ranks, month.world_size) == ((0, 1), 4)
    assert gc(aged, "--keep", "90d", "--keep-traces", "14d", "--delete") == 0
    assert names(aged) == ["fresh", "month"]


def test_what_is_packed_is_trimmed_too(aged, tmp_path):
    aged.compact(quiet_hours=0)
    aged.gc(older_than_hours=0, dry_run=False)
    assert gc(aged, "--keep", "90d", "--keep-traces", "14d", "--delete") == 0
    assert gc(aged, "--keep", "90d", "--keep-traces", "14d", "--delete") == 0
    assert len(aged.read("events", run="month")) == 0
    assert len(aged.read("quality", run="month")) == 2
    assert len(aged.read("events", run="fresh")) == 20
    assert not list((tmp_path / "lake" / "events").rglob("*run=month*/*.parquet"))
    assert len(list((tmp_path / "lake" / "manifests").rglob("*run=month*/**/packs/*.json"))) == 1


def test_only_what_is_asked_for_goes(aged):
    assert gc(aged, "--delete") == 0
    assert len(aged.read("events")) == 60
    assert gc(aged, "--keep", "1y", "--delete") == 0
    assert len(aged.read("events")) == 60
    assert gc(aged, "--keep-traces", "1y", "--delete") == 0
    assert len(aged.read("events")) == 60


def test_fleet_tables_stay(aged):
    from perfkit.schema import JOBS

    aged.write_fleet("jobs", JOBS.empty(), date="2020-01-01", part="sacct")
    assert gc(aged, "--keep", "1h", "--delete") == 0
    assert names(aged) == []
    assert len(aged.listing("jobs")) == 1


def test_a_trimmed_trace_can_be_ingested_again(tmp_path):
    import perfkit
    from tests.dumps import all_rows, assert_same_rows, make_dump

    dump, store = make_dump(tmp_path / "job", 2), tmp_path / "store"
    perfkit.ingest(dump, store=store)
    before = all_rows(store, "job")
    from perfkit.store import Store

    Store(store).expire(keep_traces_ns=-1, dry_run=False)
    assert len(Store(store).read("events", run="job")) == 0
    report = perfkit.ingest(dump, store=store)
    assert {file.status for file in report.files} == {"ingested"}
    assert_same_rows(before, all_rows(store, "job"))
