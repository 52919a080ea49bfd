"""From dumps to a store: what is kept, what is refused, and that doing it twice changes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import perfkit
from perfkit.errors import PerfkitError, StoreError
from perfkit.schema import TABLES
from perfkit.sources import ingest as ingest_module
from perfkit.sources import kineto
from perfkit.sources import work as work_module
from perfkit.sources.base import Input
from perfkit.sources.ingest import IngestReport, default_run
from perfkit.sources.unpacking import PREFIX, unpacking_folder
from perfkit.store import Store
from perfkit.store import segment as segment_module
from tests.conftest import ROOT
from tests.sources.trace_files import document, kernel, op, write

T0 = 2_000_000_000_000_000


def trace(rank: int | None = 0, *, start: int = 0, count: int = 3, **keys: Any) -> dict[str, Any]:
    """Events on [start, start + 10 * count) microseconds after T0."""
    events = [op(ts=T0 + start + 10 * i, dur=8) for i in range(count)]
    return document(*events, kernel(ts=T0 + start, dur=5), rank=rank, **keys)


def ingest(*paths: Path, store: Path, **options: Any) -> IngestReport:
    return perfkit.ingest(list(paths), store=store, run="r", workers=1, **options)


def events(store: Path) -> pa.Table:
    return Store(store).read("events", cluster="default", run="r")


def snapshot(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def reasons(report: IngestReport) -> str:
    return "\n".join(str(error) for error in report.rejected)


def test_a_folder_of_ranks_becomes_one_run(tmp_path):
    for rank in range(3):
        write(tmp_path / f"in/t{rank}.json.gz", trace(rank))
    report = ingest(tmp_path / "in", store=tmp_path / "store")
    assert (report.ranks, report.world_size, report.num_events) == ([0, 1, 2], 8, 12)
    assert sorted(set(events(tmp_path / "store")["rank"].to_pylist())) == [0, 1, 2]
    assert events(tmp_path / "store").schema.equals(TABLES["events"].arrow)


def test_ingesting_twice_changes_nothing(tmp_path):
    write(tmp_path / "in/rank0.json", trace())
    ingest(tmp_path / "in", store=tmp_path / "store")
    before = snapshot(tmp_path / "store")
    report = ingest(tmp_path / "in", store=tmp_path / "store")
    assert [file.status for file in report.files] == ["unchanged"]
    assert snapshot(tmp_path / "store") == before


def test_other_options_replace_what_is_there(tmp_path):
    path = write(tmp_path / "rank0.json", document(op(ts=T0, args={"cbid": 7}), rank=0))
    ingest(path, store=tmp_path / "store")
    assert events(tmp_path / "store")["args"].to_pylist() == [None]
    report = ingest(path, store=tmp_path / "store", keep_args=True)
    assert [file.status for file in report.files] == ["ingested"]
    assert events(tmp_path / "store")["args"].to_pylist() == ['{"cbid":7}']


def test_a_moved_copy_is_recognised_by_its_content(tmp_path):
    write(tmp_path / "in/rank0.json", trace())
    ingest(tmp_path / "in", store=tmp_path / "store")
    shutil.copytree(tmp_path / "in", tmp_path / "elsewhere")
    report = ingest(tmp_path / "elsewhere", store=tmp_path / "store")
    assert [file.status for file in report.files] == ["unchanged"]


def test_the_same_content_twice_in_one_dump_is_taken_once(tmp_path):
    write(tmp_path / "in/a.json", trace())
    write(tmp_path / "in/b.json", trace())
    report = ingest(tmp_path / "in", store=tmp_path / "store")
    assert [Path(file.path).name for file in report.files] == ["a.json"]
    assert "same content as" in report.ignored[0].reason


def test_several_files_of_one_rank_are_segments(tmp_path):
    write(tmp_path / "in/a.json", trace(start=0))
    write(tmp_path / "in/b.json", trace(start=1000))
    ingest(tmp_path / "in", store=tmp_path / "store")
    assert set(events(tmp_path / "store")["segment"].to_pylist()) == {0, 1}


def test_two_files_that_claim_one_rank_at_the_same_time_are_not_merged(tmp_path):
    write(tmp_path / "in/a.json", trace(start=0))
    write(tmp_path / "in/b.json", trace(start=5))
    report = ingest(tmp_path / "in", store=tmp_path / "store")
    assert [Path(file.path).name for file in report.files] == ["a.json"]
    assert "claims rank 0" in reasons(report)
    assert "--run NAME" in reasons(report)
    assert len(events(tmp_path / "store")) == 4
    later = ingest(write(tmp_path / "c.json", trace(start=6)), store=tmp_path / "store")  # also against the store
    assert "claims rank 0" in reasons(later)


def test_a_missing_rank_comes_from_the_name_or_is_assigned_and_said_so(tmp_path):
    write(tmp_path / "in/rank1.json", trace(None))
    write(tmp_path / "in/some.json", trace(None, start=1))
    report = ingest(tmp_path / "in", store=tmp_path / "store")
    assert {Path(file.path).name: (file.ranks, file.rank_source) for file in report.files} == {
        "rank1.json": ([1], "file name"),
        "some.json": ([0], "assigned"),
    }
    quality = Store(tmp_path / "store").read("quality", cluster="default", run="r")
    assert sorted(quality["kind"].to_pylist()) == ["rank_assigned", "rank_from_file_name"]


def test_a_rank_that_stands_after_the_events_is_found(tmp_path):
    late = trace(None)
    late["distributedInfo"] = {"rank": 4, "world_size": 8}
    write(tmp_path / "in/late.json", late)
    write(tmp_path / "in/other.json", trace(0))
    report = ingest(tmp_path / "in", store=tmp_path / "store")
    assert {Path(file.path).name: file.ranks for file in report.files} == {"late.json": [4], "other.json": [0]}


def test_archives_are_read_in_place(tmp_path):
    for rank in range(4):
        write(tmp_path / f"src/rank{rank}.json{'.gz' if rank % 2 else ''}", trace(rank))
    with tarfile.open(tmp_path / "dump.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "src/rank0.json", "d/rank0.json")
        tar.add(tmp_path / "src/rank1.json.gz", "d/rank1.json.gz")
    with zipfile.ZipFile(tmp_path / "dump.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(tmp_path / "src/rank2.json", "rank2.json")
        archive.write(tmp_path / "src/rank3.json.gz", "rank3.json.gz")
    report = ingest(tmp_path / "dump.tar.gz", tmp_path / "dump.zip", store=tmp_path / "store")
    assert report.ranks == [0, 1, 2, 3]
    assert reasons(report) == ""


def test_zstd_is_read(tmp_path):
    packed = pa.compress(json.dumps(trace(3)).encode(), codec="zstd", asbytes=True)
    report = ingest(write(tmp_path / "t.json.zst", packed), store=tmp_path / "store")
    assert report.ranks == [3]


BAD = {
    "empty.json": b"",
    "not.json": b"hello there",
    "broken.json": b'{"traceEvents": [ {"ph" ',
    "header.json": b"{ {",
    "other.json": b'{"nodes": [1]}',
    "notgzip.json.gz": b"plain",
    "lfs.json": b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 5\n",
    "deep.json": b'{"traceEvents": [' + b"[" * 100_000,
    "page.json": b"<!DOCTYPE html><html><body>404</body></html>",
}


def test_every_bad_file_gets_one_line_and_the_good_ones_are_ingested(tmp_path):
    for name, data in BAD.items():
        (tmp_path / name).write_bytes(data)
    good = write(tmp_path / "good.json", trace())
    report = ingest(*(tmp_path / name for name in BAD), good, tmp_path / "missing.json", store=tmp_path / "store")
    assert [file.path for file in report.files] == [str(good)]
    rejected = {Path(error.path).name: error for error in report.rejected}
    assert set(rejected) == {*BAD, "missing.json"}
    for error in report.rejected:
        assert error.next_step, error
        assert "\n" not in str(error)


def test_a_truncated_gzip_keeps_what_came_before_the_cut(tmp_path):
    whole = write(tmp_path / "whole.json.gz", trace(count=3000)).read_bytes()
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    report = ingest(cut, store=tmp_path / "store")
    assert [note["kind"] for note in report.files[0].notes] == ["truncated"]
    assert 500 < report.num_events < 3000


def test_hostile_names_stay_inside_the_store(tmp_path):
    path = write(tmp_path / "t.json", trace())
    perfkit.ingest(path, store=tmp_path / "store", cluster="../../evil", run="a/b\x00=c")
    outside = [child.name for child in tmp_path.iterdir()]
    assert sorted(outside) == ["store", "t.json"]
    assert [(run.cluster, run.run) for run in Store(tmp_path / "store").runs()] == [("../../evil", "a/b\x00=c")]


def test_the_store_reads_with_duckdb_pandas_and_polars(tmp_path):
    write(tmp_path / "in/rank0.json", trace(0))
    write(tmp_path / "in/rank1.json", trace(1))
    ingest(tmp_path / "in", store=tmp_path / "store")
    files = f"{tmp_path}/store/events/**/*.parquet"
    by_rank = duckdb.sql(
        f"select rank, run, count(*) from read_parquet('{files}', hive_partitioning=true) group by all order by 1"
    )
    assert by_rank.fetchall() == [(0, "r", 4), (1, "r", 4)]
    assert len(pd.read_parquet(tmp_path / "store/events")) == 8
    assert pl.scan_parquet(files, hive_partitioning=True).select(pl.len()).collect().item() == 8


def test_a_killed_ingest_goes_on_where_it_stopped(tmp_path):
    for rank in range(12):
        write(tmp_path / f"in/rank{rank}.json", trace(rank, count=4000))
    command = [sys.executable, "-m", "perfkit", "ingest", str(tmp_path / "in"), "--store", str(tmp_path / "store")]
    command += ["--run", "r", "--workers", "1", "--format", "json"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if len(list((tmp_path / "store").glob("manifests/**/commits/*.json"))) >= 3:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 3 <= len(list((tmp_path / "store").glob("manifests/**/commits/*.json"))) < 12
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    report = json.loads(done.stdout)
    statuses = [file["status"] for file in report["files"]]
    assert len(statuses) == 12
    assert statuses.count("unchanged") >= 3
    assert len(events(tmp_path / "store")) == 12 * 4001


def test_a_place_that_another_ingest_took_meanwhile_is_given_up_for_the_next(tmp_path, monkeypatch):
    ours = write(tmp_path / "ours.json", trace(None))
    theirs = write(tmp_path / "theirs.json", trace(None, start=10**6))
    real = work_module.ingest_group

    def slower_than_the_other(work: work_module.GroupWork) -> Any:
        monkeypatch.setattr(ingest_module, "ingest_group", real)
        ingest(theirs, store=tmp_path / "store")
        return real(work)

    monkeypatch.setattr(ingest_module, "ingest_group", slower_than_the_other)
    report = ingest(ours, store=tmp_path / "store")
    assert (report.ranks, reasons(report)) == ([1], "")
    assert sorted(set(events(tmp_path / "store")["rank"].to_pylist())) == [0, 1]


@pytest.mark.slow
def test_two_ingests_into_one_run_at_once_lose_nothing(tmp_path):
    for name in "ab":
        for number in range(4):
            write(tmp_path / name / f"{number}.json", trace(None, start=ord(name) * 10**6, count=500 + number))
    for round in range(6):
        store = tmp_path / f"store{round}"
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "perfkit", "ingest", str(tmp_path / name), "--store", str(store), "--run", "r"],
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
            )
            for name in "ab"
        ]
        assert [process.wait() for process in started] == [0, 0]
        assert len(events(store)) == 2 * sum(501 + number for number in range(4))


def test_a_store_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "file").touch()
    paths = [write(tmp_path / f"rank{rank}.json", trace(rank)) for rank in range(3)]
    with pytest.raises(StoreError, match="Not a directory; choose a --store that is a folder"):
        ingest(*paths, store=tmp_path / "file")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": 0}, "workers must be at least 1, is 0"),
        ({"attempt": -1}, "attempt must not be negative, is -1"),
        ({"cluster": ""}, "must not be empty"),
        ({"store": ""}, "the name of the store is empty"),
        ({"store": "runs\udcff"}, "the name is not UTF-8"),
    ],
)
def test_nonsense_is_refused_before_anything_is_read(tmp_path, monkeypatch, options, says):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "t.json", trace())
    with pytest.raises(PerfkitError, match=says):
        perfkit.ingest(path, **{"store": "s", **options})
    assert sorted(child.name for child in tmp_path.iterdir()) == ["t.json"]


def test_file_names_that_are_not_utf8_are_shown_escaped(tmp_path):
    folder = Path(os.fsdecode(bytes(tmp_path / "in") + b"\xff"))
    write(folder / "rank0.json", trace(0))
    write(folder / os.fsdecode(b"rank1\xfe.json"), json.dumps(trace(1))[:-30])
    report = perfkit.ingest(folder, store=tmp_path / "store")
    assert (report.run, reasons(report)) == ("in\\xff", "")
    quality = Store(tmp_path / "store").read("quality", run="in\\xff")
    assert {Path(path).name for path in quality["path"].to_pylist()} == {"rank1\\xfe.json"}


def test_what_dead_processes_unpacked_is_deleted_and_what_living_ones_need_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    dead, young, foreign = (tmp_path / f"{PREFIX}{name}" for name in ("dead", "young", "foreign"))
    for folder in (dead, young, foreign):
        folder.mkdir()
    for folder in (dead, young):
        (folder / "lock").touch()
    for folder in (dead, foreign):
        os.utime(folder, (0, 0))
    with unpacking_folder() as living:
        os.utime(living, (0, 0))
        with unpacking_folder() as other:
            assert living.is_dir()
            assert sorted(tmp_path.iterdir()) == sorted([living, other, young, foreign])
    assert sorted(tmp_path.iterdir()) == sorted([young, foreign])


def test_a_full_disk_is_reported_and_costs_nothing_else(tmp_path):
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root to mount a small file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("cannot mount here")
    try:
        small = write(tmp_path / "in/a.json", trace(0))
        large = document(*[op(name=os.urandom(40).hex(), ts=T0 + i) for i in range(20_000)], rank=1)
        write(tmp_path / "in/b.json", large)
        report = ingest(tmp_path / "in", store=disk / "store")
        assert [file.path for file in report.files] == [str(small)]
        assert "space" in reasons(report).lower()
        assert len(events(disk / "store")) == 4
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_all_real_dumps_end_in_rows_or_one_clear_line(traces, tmp_path):
    report = perfkit.ingest(traces, store=tmp_path / "store", run="all")
    assert len(report.files) >= 60
    for error in report.rejected:
        assert error.next_step, error
    overlapping = {"same_priority_streams.json.gz", "trace-ST.parquet"}  # another file has their ranks at that time
    assert {Path(error.path).name for error in report.rejected} == {"report3.nsys-rep"} | overlapping


@pytest.mark.parametrize(
    ("paths", "name"),
    [
        (["traces/"], "traces"), (["a/rank0.pt.trace.json.gz"], "rank0"), (["dump.tar.gz"], "dump"),
        (["x/a.json", "x/b.json"], "x"), (["report.sqlite"], "report"), (["t.json.zst"], "t"),
    ],
)  # fmt: skip
def test_a_run_is_named_after_what_was_given(paths, name):
    assert default_run(paths) == name


def break_footer(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-20] ^= 255
    path.write_bytes(content)


def break_page(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[60] ^= 255  # the first page begins after four bytes and its header
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [break_footer, Path.unlink])
def test_what_is_damaged_in_the_store_is_written_anew_by_the_next_ingest(tmp_path, damage):
    file = write(tmp_path / "rank0.json", trace())
    ingest(file, store=tmp_path / "s")
    before = events(tmp_path / "s")
    (part,) = (Path(path) for path in Store(tmp_path / "s").files("events"))
    damage(part)
    with pytest.raises(StoreError):
        events(tmp_path / "s")
    assert [f.status for f in ingest(file, store=tmp_path / "s").files] == ["ingested"]
    assert events(tmp_path / "s").equals(before)


def test_a_damaged_commit_is_written_anew_by_the_next_ingest(tmp_path):
    files = [write(tmp_path / f"rank{rank}.json", trace(rank)) for rank in range(2)]
    ingest(*files, store=tmp_path / "s")
    before = events(tmp_path / "s")
    commit = next((tmp_path / "s").rglob("commits/00001-*.json"))
    commit.write_bytes(commit.read_bytes()[:-30])
    done = ingest(*files, store=tmp_path / "s")
    assert sorted(file.status for file in done.files) == ["ingested", "unchanged"]
    assert events(tmp_path / "s").equals(before)


@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_commit_gets_its_place_back_among_other_segments_of_the_rank(tmp_path, number):
    files = [write(tmp_path / f"{i}.rank0.json", trace(start=1000 * i)) for i in range(2)]
    ingest(*files, store=tmp_path / "s")
    before = events(tmp_path / "s")
    commit = next((tmp_path / "s").rglob(f"commits/00000-000{number}.json"))
    commit.write_bytes(b"{")
    done = ingest(*files, store=tmp_path / "s")
    assert (done.rejected, sorted(file.status for file in done.files)) == ([], ["ingested", "unchanged"])
    assert events(tmp_path / "s").equals(before)


def test_a_damaged_commit_of_another_file_keeps_its_rows_and_is_said(tmp_path):
    first, second = (write(tmp_path / f"{i}.rank0.json", trace(start=1000 * i)) for i in range(2))
    ingest(first, store=tmp_path / "s")
    (part,) = (Path(path) for path in Store(tmp_path / "s").files("events"))
    content = part.read_bytes()
    (tmp_path / "s").joinpath(next((tmp_path / "s").rglob("commits/*.json"))).write_bytes(b"{")
    done = ingest(second, store=tmp_path / "s")
    assert [file.path for file in done.files] == [str(second)]
    assert "00000-0000.json: damaged commit" in reasons(done)
    assert part.read_bytes() == content
    assert ingest(first, store=tmp_path / "s").rejected == []
    assert len(events(tmp_path / "s")) == 8


def test_a_known_file_costs_no_look_at_the_files_of_all_others(tmp_path, monkeypatch):
    files = [write(tmp_path / f"rank{rank}.json", trace(rank)) for rank in range(5)]
    ingest(*files, store=tmp_path / "s")
    looked_at: list[str] = []
    check = segment_module.check_footer
    monkeypatch.setattr(
        segment_module, "check_footer", lambda files, path, crc: (looked_at.append(path), check(files, path, crc))
    )
    assert [file.status for file in ingest(files[2], store=tmp_path / "s").files] == ["unchanged"]
    assert looked_at
    assert all("part-00002-" in path for path in looked_at)


def test_replace_writes_anew_what_only_reading_all_pages_would_show(tmp_path):
    file = write(tmp_path / "rank0.json", trace(count=3000))
    ingest(file, store=tmp_path / "s")
    before = events(tmp_path / "s")
    (part,) = (Path(path) for path in Store(tmp_path / "s").files("events"))
    break_page(part)
    with pytest.raises(StoreError, match="damaged"):
        events(tmp_path / "s")
    assert [f.status for f in ingest(file, store=tmp_path / "s").files] == ["unchanged"]
    assert [f.status for f in ingest(file, store=tmp_path / "s", replace=True).files] == ["ingested"]
    assert events(tmp_path / "s").equals(before)


def test_a_file_that_has_grown_takes_the_place_of_what_it_held_only_if_told_to(tmp_path):
    file = write(tmp_path / "rank0.json", trace(count=3))
    ingest(file, store=tmp_path / "s")
    write(file, trace(count=9))
    assert "has changed since it was ingested" in reasons(ingest(file, store=tmp_path / "s"))
    assert len(events(tmp_path / "s")) == 4
    done = ingest(file, store=tmp_path / "s", replace=True)
    assert (done.rejected, len(events(tmp_path / "s"))) == ([], 10)


class TestReplaceIsSureOfWhatItReplaces:
    def starts(self, store: Path) -> list[int]:
        return sorted(set(events(store)["start_ns"].to_pylist()))

    def test_a_file_that_was_renamed_keeps_its_rows_when_another_has_its_name(self, tmp_path):
        file = write(tmp_path / "in/rank0.json", trace())
        ingest(file, store=tmp_path / "s")
        file.rename(tmp_path / "in/rank0.1.json")
        write(file, trace(start=1000))
        done = ingest(tmp_path / "in", store=tmp_path / "s", replace=True)
        assert (done.rejected, [f.status for f in done.files]) == ([], ["ingested", "ingested"])
        assert len(events(tmp_path / "s")) == 8

    def test_a_file_of_another_folder_with_the_same_relative_path_is_another(self, tmp_path, monkeypatch):
        for job in ("a", "b"):
            write(tmp_path / job / "traces/rank0.json", trace(count=3 if job == "a" else 5))
        monkeypatch.chdir(tmp_path / "a")
        ingest(Path("traces"), store=tmp_path / "s")
        monkeypatch.chdir(tmp_path / "b")
        done = ingest(Path("traces"), store=tmp_path / "s", replace=True)
        assert "both cover the same time; not merged" in reasons(done)
        assert len(events(tmp_path / "s")) == 4
        done = perfkit.ingest(Path("traces"), store=tmp_path / "s", replace=True)
        assert done.rejected == []

    def test_a_file_that_covers_another_time_replaces_nothing(self, tmp_path):
        file = write(tmp_path / "rank0.json", trace())
        ingest(file, store=tmp_path / "s")
        write(file, trace(start=1000))
        done = ingest(file, store=tmp_path / "s", replace=True)
        assert "covers another time" in reasons(done)
        assert "without --replace to keep both" in reasons(done)
        assert len(events(tmp_path / "s")) == 4
        assert ingest(file, store=tmp_path / "s").rejected == []
        assert len(events(tmp_path / "s")) == 8

    def test_of_several_states_of_a_path_none_is_chosen(self, tmp_path):
        file = tmp_path / "rank0.json"
        for start in (0, 1000):
            ingest(write(file, trace(start=start)), store=tmp_path / "s")
        write(file, trace(start=1000, count=9))
        done = ingest(file, store=tmp_path / "s", replace=True)
        assert "several states, or other ranks, of this path (rank 0, 0); nothing was replaced" in reasons(done)
        assert len(events(tmp_path / "s")) == 8

    def test_a_file_that_names_another_rank_now_replaces_nothing(self, tmp_path):
        file = write(tmp_path / "t.json", trace(None))
        ingest(file, store=tmp_path / "s")
        write(file, trace(2, count=9))
        done = ingest(file, store=tmp_path / "s", replace=True)
        assert "or other ranks, of this path (rank 0)" in reasons(done)
        assert set(events(tmp_path / "s")["rank"].to_pylist()) == {0}

    def test_what_takes_the_place_must_not_overlap_with_others_of_the_rank(self, tmp_path):
        growing, other = tmp_path / "a.rank0.json", write(tmp_path / "b.rank0.json", trace(start=100))
        ingest(write(growing, trace()), other, store=tmp_path / "s")
        write(growing, trace(count=30))
        done = ingest(growing, other, store=tmp_path / "s", replace=True)
        assert "both cover the same time; not merged" in reasons(done)
        assert len(events(tmp_path / "s")) == 8


@pytest.mark.parametrize(("name", "rank"), [("b.json", 0), ("rank0.json", None)])
def test_a_rank_that_was_assigned_before_and_is_named_now_is_said(tmp_path, name, rank):
    ingest(write(tmp_path / "a.json", trace(None)), store=tmp_path / "s")
    done = ingest(write(tmp_path / name, trace(rank, start=500)), store=tmp_path / "s")
    (note,) = (note for note in done.files[0].notes if note["kind"] == "rank_shared")
    assert "a.json names no rank and was given 0 before" in note["detail"]
    refused = reasons(ingest(write(tmp_path / "c.json", trace(0)), store=tmp_path / "s"))
    assert "is of rank 0, which" in refused
    assert "a.json was given because it names none, and both cover the same time; not merged" in refused


def test_a_rank_that_is_named_after_the_events_is_no_assigned_one(tmp_path):
    late = trace(0)
    late["distributedInfo"] = late.pop("distributedInfo")
    assert list(late)[-1] == "distributedInfo"
    (file,) = ingest(write(tmp_path / "a.json", late), store=tmp_path / "s").files
    assert (file.ranks, file.rank_source, file.notes) == ([0], "distributedInfo", [])


def test_a_file_that_ends_its_worker_costs_no_other_of_its_rank(tmp_path, monkeypatch):
    files = [write(tmp_path / f"{i}.rank0.json", trace(start=1000 * i)) for i in range(3)]
    read = kineto.read

    def refuse(input: Input, *options: Any, **more: Any) -> Any:
        if input.path == str(files[1]):
            raise SystemExit(3)
        return read(input, *options, **more)

    monkeypatch.setattr(kineto, "read", refuse)
    done = ingest(*files, store=tmp_path / "s")
    assert [file.path for file in done.files] == [str(files[0]), str(files[2])]
    assert [error.path for error in done.rejected] == [str(files[1])]
    assert len(events(tmp_path / "s")) == 8


def test_folders_that_are_nested_deeper_than_a_stack_are_walked(tmp_path):
    here, home = tmp_path, Path.cwd()
    try:
        for _ in range(1100):
            os.chdir(here)
            here = Path("d")
            here.mkdir()
        done = ingest(write(tmp_path / "rank0.json", trace()), tmp_path, store=tmp_path / "s")
    finally:
        os.chdir(home)
        subprocess.run(["rm", "-r", tmp_path / "d"], check=True)  # Python's own way recurses
    assert [file.ranks for file in done.files] == [[0]]


def test_what_is_there_already_is_said_where_nothing_can_be_written(tmp_path, monkeypatch):
    file = write(tmp_path / "rank0.json", trace())
    ingest(file, store=tmp_path / "s")

    def refuse(*_: Any, **__: Any) -> None:
        raise StoreError("cannot write: Permission denied")

    monkeypatch.setattr(Store, "finalise", refuse)
    done = ingest(file, store=tmp_path / "s")
    assert (done.rejected, [file.status for file in done.files]) == ([], ["unchanged"])
    done = ingest(write(tmp_path / "rank1.json", trace(1)), store=tmp_path / "s")
    assert "Permission denied" in reasons(done)
