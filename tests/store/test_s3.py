"""Sources and stores in object storage: a real S3 server on loopback, and what goes wrong on the way to it."""

import itertools
import re
import sqlite3
import tempfile
import threading

import pytest

import perfkit
from perfkit.cli.main import main
from perfkit.errors import StoreError
from perfkit.sources import remote
from perfkit.store import Store
from tests.dumps import all_rows, assert_same_rows, make_dump
from tests.objectstore import FaultyProxy, S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server():
    with S3Server() as started:
        yield started


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    return make_dump(tmp_path_factory.mktemp("dump") / "job", 6)


@pytest.fixture(scope="module")
def expected(dump, tmp_path_factory):
    store = tmp_path_factory.mktemp("local")
    perfkit.ingest(dump, store=store)
    return all_rows(store, "job")


_numbers = itertools.count()


@pytest.fixture
def bucket(server, monkeypatch):
    """A new bucket, with credentials and endpoint in the environment."""
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    name = f"bucket-{next(_numbers)}"
    server.put(f"/{name}")
    return name


@pytest.fixture
def proxy(server, bucket, monkeypatch):
    with FaultyProxy(server.port) as between:
        monkeypatch.setenv("AWS_ENDPOINT_URL", between.url)
        yield between


def upload(server, bucket, dump, prefix="job"):
    for path in sorted(dump.iterdir()):
        server.put(f"/{bucket}/{prefix}/{path.name}", path.read_bytes())


def test_a_dump_in_a_bucket_becomes_a_store_in_a_bucket_with_the_same_rows(server, bucket, dump, expected):
    upload(server, bucket, dump)
    report = perfkit.ingest(f"s3://{bucket}/job/", store=f"s3://{bucket}/lake", workers=2)
    assert not report.rejected
    assert report.ranks == [0, 1, 2, 3, 4, 5]
    assert_same_rows(expected, all_rows(f"s3://{bucket}/lake", "job"))
    again = perfkit.ingest(f"s3://{bucket}/job/", store=f"s3://{bucket}/lake")
    assert {file.status for file in again.files} == {"unchanged"}


def test_an_analysis_is_the_same_from_files_bucket_and_store(server, bucket, dump):
    upload(server, bucket, dump)
    perfkit.ingest(f"s3://{bucket}/job", store=f"s3://{bucket}/lake")
    here, there = perfkit.analyze(dump), perfkit.analyze(f"s3://{bucket}/job")
    stored = perfkit.analyze(f"s3://{bucket}/lake")
    kept = perfkit.analyze("job", store=f"s3://{bucket}/lake")
    for other in (there, stored, kept):
        assert other.summary["totals"] == here.summary["totals"]
        assert other.summary["waterfall"] == here.summary["waterfall"]
    assert len(Store(f"s3://{bucket}/lake").read("waterfall"))


def test_the_endpoint_may_stand_in_the_uri(server, bucket, dump, monkeypatch):
    upload(server, bucket, dump)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    uri = f"s3://{bucket}/job/rank00000.pt.trace.json.gz?endpoint_override={server.url}"
    report = perfkit.ingest(uri, store=f"s3://{bucket}/lake?endpoint_override={server.url}")
    assert (report.ranks, report.run) == ([0], "rank00000")


def test_a_bucket_is_listed_once_and_nothing_is_copied(server, bucket, proxy, dump, tmp_path, monkeypatch):
    upload(server, bucket, dump)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    perfkit.analyze(f"s3://{bucket}/job")
    listings = [request for request in proxy.requests if "list-type" in request.path and "prefix=job" in request.path]
    assert len(listings) == 1
    assert not list(tmp_path.iterdir())


def test_a_large_file_is_read_in_pieces_and_ahead(server, bucket, proxy, monkeypatch):
    data = bytes(range(256)) * 4096
    server.put(f"/{bucket}/large", data)
    monkeypatch.setattr(remote, "FIRST_BYTES", 1000)
    monkeypatch.setattr(remote, "PIECE_BYTES", 100_000)
    [file] = remote.list_remote(f"s3://{bucket}/large")
    with file.open() as stream:
        assert stream.read() == data
        stream.seek(-300, 2)
        assert stream.read(200) == data[-300:-100]
    sizes = [1 + int(b) - int(a) for r in proxy.requests if r.range for a, b in [re.findall(r"\d+", r.range)]]
    assert max(sizes) == 100_000
    assert len(sizes) <= 2 + -(-len(data) // 100_000)


@pytest.mark.parametrize("kind", ["500", "slow", "cut"])
def test_requests_that_break_are_made_again_and_no_row_is_lost(
    server, bucket, proxy, dump, expected, kind, monkeypatch
):
    monkeypatch.setattr(remote, "PAUSE_SECONDS", 0.01)
    upload(server, bucket, dump)
    proxy.fault = lambda request: kind if request.number % 4 == 1 and request.method in ("GET", "PUT") else None
    report = perfkit.ingest(f"s3://{bucket}/job", store=f"s3://{bucket}/lake", workers=1)
    assert not report.rejected
    assert len(proxy.broken) > 10
    assert set(proxy.broken) == {kind}
    assert_same_rows(expected, all_rows(f"s3://{bucket}/lake", "job"))


def test_a_file_that_cannot_be_fetched_is_one_line_and_the_others_go_on(server, bucket, proxy, dump, monkeypatch):
    monkeypatch.setattr(remote, "PAUSE_SECONDS", 0.01)
    upload(server, bucket, dump)
    proxy.fault = lambda request: "500" if "rank00002" in request.path and request.range else None
    report = perfkit.ingest(f"s3://{bucket}/job", store=f"s3://{bucket}/lake", workers=1)
    assert [error.path for error in report.rejected] == [f"s3://{bucket}/job/rank00002.pt.trace.json.gz"]
    assert "fails again and again" in str(report.rejected[0])
    assert report.ranks == [0, 1, 3, 4, 5]
    proxy.fault = lambda request: None
    assert not perfkit.ingest(f"s3://{bucket}/job", store=f"s3://{bucket}/lake", workers=1).rejected
    assert Store(f"s3://{bucket}/lake").runs()[0].ranks == (0, 1, 2, 3, 4, 5)


def test_an_upload_that_dies_leaves_its_segment_invisible(server, bucket, proxy, dump):
    proxy.fault = lambda request: "500" if request.method == "PUT" and "00003-0000" in request.path else None
    report = perfkit.ingest(dump, store=f"s3://{bucket}/lake", workers=1)
    assert len(report.rejected) == 1
    assert set(Store(f"s3://{bucket}/lake").read("events", columns=["rank"])["rank"].to_pylist()) == {0, 1, 2, 4, 5}


def test_packing_and_retention_work_in_a_bucket(bucket, dump, expected):
    store = Store(f"s3://{bucket}/lake")
    perfkit.ingest(dump, store=store.uri)
    [packed] = store.compact(quiet_hours=0).values()
    assert packed.segments == 6
    store.gc(older_than_hours=0, dry_run=False)
    assert_same_rows(expected, all_rows(store.uri, "job"))
    assert len(set(store.files("events"))) == 1
    store.expire(keep_ns=-1, dry_run=False)
    assert store.runs() == []


def test_databases_in_a_bucket_are_read_from_a_copy(server, bucket, tmp_path):
    path = tmp_path / "no-report.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE t (x)")
    database.close()
    server.put(f"/{bucket}/dir/no-report.sqlite", path.read_bytes())
    report = perfkit.ingest(f"s3://{bucket}/dir/no-report.sqlite", store=tmp_path / "lake")
    assert len(report.rejected) == 1
    assert "nsys" in str(report.rejected[0]).lower()


def test_archives_in_a_bucket_are_opened_where_they_are(server, bucket, dump, tmp_path):
    import shutil

    for kind in ("zip", "tar"):
        shutil.make_archive(str(tmp_path / "job"), kind, dump)
        server.put(f"/{bucket}/job.{kind}", (tmp_path / f"job.{kind}").read_bytes())
        report = perfkit.ingest(f"s3://{bucket}/job.{kind}", store=tmp_path / f"lake-{kind}", run="job")
        assert not report.rejected
        assert report.ranks == [0, 1, 2, 3, 4, 5]


# ------------------------------------------------------------------ one line each, with the next step


def says(capsys, *arguments):
    assert main(list(arguments)) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_a_bucket_that_does_not_exist(bucket, dump, capsys, tmp_path):
    for arguments in (
        ("ingest", "s3://no-such-bucket/x", "--store", str(tmp_path)),
        ("ingest", str(dump), "--store", "s3://no-such-bucket/lake"),
        ("store", "ls", "s3://no-such-bucket/lake"),
        ("analyze", "s3://no-such-bucket/x"),
    ):
        line = says(capsys, *arguments)
        assert "there is no such bucket" in line
        assert "endpoint" in line


def test_an_address_that_nobody_answers(bucket, dump, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "PAUSE_SECONDS", 0.01)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    for arguments in (
        ("ingest", f"s3://{bucket}/job", "--store", str(tmp_path)),
        ("ingest", str(dump), "--store", f"s3://{bucket}/lake"),
        ("store", "ls", f"s3://{bucket}/lake"),
    ):
        line = says(capsys, *arguments)
        assert "does not answer" in line
        assert "AWS_ENDPOINT_URL" in line


def test_wrong_credentials(dump, capsys, tmp_path, monkeypatch):
    with S3Server(free_requests=0) as strict:
        for name, value in strict.environ.items():
            monkeypatch.setenv(name, value)
        for arguments in (
            ("ingest", "s3://bucket/job", "--store", str(tmp_path)),
            ("ingest", str(dump), "--store", "s3://bucket/lake"),
        ):
            line = says(capsys, *arguments)
            assert "credentials" in line
            assert "AWS_ACCESS_KEY_ID" in line


def test_nothing_there(bucket, capsys, tmp_path):
    assert "no such file or folder" in says(capsys, "ingest", f"s3://{bucket}/empty/", "--store", str(tmp_path))


def test_credentials_in_a_uri_are_refused_and_not_repeated():
    with pytest.raises(StoreError) as refused:
        Store("s3://key:secret@bucket/lake")
    assert "secret" not in str(refused.value)


def test_two_shards_write_to_one_bucket_at_once(server, bucket, dump, expected):
    from perfkit.engine.shards import Shard

    upload(server, bucket, dump)
    uri, failed = f"s3://{bucket}/job", []

    def ingest(index):
        report = perfkit.ingest(uri, store=f"s3://{bucket}/lake", shard=Shard(index, 2), workers=1)
        failed.extend(report.rejected)

    threads = [threading.Thread(target=ingest, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert_same_rows(expected, all_rows(f"s3://{bucket}/lake", "job"))
