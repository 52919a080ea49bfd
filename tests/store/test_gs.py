"""The same over gs://: a server that speaks Google's API on loopback, and what goes wrong on the way to it."""

import subprocess
import sys

import pytest

import perfkit
from perfkit.cli.main import main
from perfkit.errors import StoreError
from perfkit.sources import remote
from perfkit.store import Store, filesystems
from tests.dumps import all_rows, assert_same_rows, make_dump
from tests.googlestore import GoogleServer
from tests.objectstore import FaultyProxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server():
    with GoogleServer() as started:
        yield started


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    return make_dump(tmp_path_factory.mktemp("dump") / "job", 4)


@pytest.fixture(scope="module")
def expected(dump, tmp_path_factory):
    store = tmp_path_factory.mktemp("local")
    perfkit.ingest(dump, store=store)
    return all_rows(store, "job")


@pytest.fixture
def folder(server, dump, monkeypatch, request):
    """A folder of the bucket that holds the dump; the endpoint is in the environment."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    uri = f"gs://{server.bucket}/{request.node.name}"
    filesystem, path = filesystems.open_filesystem(uri)
    for trace in sorted(dump.iterdir()):
        with filesystem.open_output_stream(f"{path}/job/{trace.name}", compression=None) as stream:
            stream.write(trace.read_bytes())
    return uri


def perfkit_command(*arguments):
    """Run a command in a process of its own: pyarrow's Google client holds the interpreter that the proxy needs."""
    done = subprocess.run(
        [sys.executable, "-m", "perfkit", *arguments], capture_output=True, text=True, timeout=200, check=False
    )
    return done.returncode, done.stderr


@pytest.fixture
def proxy(server, folder, monkeypatch):
    with FaultyProxy(server.port) as between:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", between.url)
        yield between


def test_a_dump_in_a_bucket_becomes_a_store_in_a_bucket_with_the_same_rows(folder, expected, dump):
    report = perfkit.ingest(f"{folder}/job", store=f"{folder}/lake", workers=2)
    assert not report.rejected
    assert_same_rows(expected, all_rows(f"{folder}/lake", "job"))
    again = perfkit.ingest(f"{folder}/job", store=f"{folder}/lake")
    assert {file.status for file in again.files} == {"unchanged"}
    here, there = perfkit.analyze(dump), perfkit.analyze("job", store=f"{folder}/lake")
    assert there.summary["waterfall"] == here.summary["waterfall"]
    assert len(Store(f"{folder}/lake").read("waterfall"))


def test_packing_and_retention_work_in_a_bucket(folder, dump, expected):
    store = Store(f"{folder}/lake")
    perfkit.ingest(dump, store=store.uri)
    [packed] = store.compact(quiet_hours=0).values()
    assert packed.segments == 4
    store.gc(older_than_hours=0, dry_run=False)
    assert_same_rows(expected, all_rows(store.uri, "job"))
    assert len(set(store.files("events"))) == 1
    store.expire(keep_ns=-1, dry_run=False)
    assert store.runs() == []


@pytest.mark.parametrize("kind", ["500", "slow", "cut"])
def test_requests_that_break_are_made_again_and_no_row_is_lost(server, folder, proxy, expected, kind, monkeypatch):
    def fault(request):  # some, and not more: Google's client pauses for a second and longer after each
        return kind if request.number % 8 == 1 and request.method == "GET" and len(proxy.broken) < 6 else None

    proxy.fault = fault
    code, said = perfkit_command("ingest", f"{folder}/job", "--store", f"{folder}/lake")
    assert code == 0, said
    assert len(proxy.broken) > 3
    assert set(proxy.broken) == {kind}
    proxy.fault = lambda request: None
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    assert_same_rows(expected, all_rows(f"{folder}/lake", "job"))


# ------------------------------------------------------------------ one line each, with the next step


def says(capsys, *arguments):
    assert main(list(arguments)) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_a_bucket_that_does_not_exist(folder, dump, capsys, tmp_path):
    for arguments in (
        ("ingest", "gs://no-such-bucket/x", "--store", str(tmp_path)),
        ("ingest", str(dump), "--store", "gs://no-such-bucket/lake"),
        ("store", "ls", "gs://no-such-bucket/lake"),
        ("analyze", "gs://no-such-bucket/x"),
    ):
        line = says(capsys, *arguments)
        assert "there is no such bucket" in line
        assert "endpoint" in line


def test_nothing_there(folder, capsys, tmp_path):
    assert "no such file or folder" in says(capsys, "ingest", f"{folder}/empty/", "--store", str(tmp_path))


def test_an_address_that_nobody_answers(dump, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(filesystems, "GOOGLE_RETRY_SECONDS", 2)
    monkeypatch.setattr(remote, "PAUSE_SECONDS", 0.01)
    filesystems._gs_client.cache_clear()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:9")
    for arguments in (
        ("ingest", "gs://traces/job", "--store", str(tmp_path)),
        ("ingest", str(dump), "--store", "gs://traces/lake"),
    ):
        line = says(capsys, *arguments)
        assert "does not answer" in line
        assert "STORAGE_EMULATOR_HOST" in line


@pytest.mark.parametrize(("status", "reason"), [(401, "credentials"), (403, "access is denied")])
def test_wrong_credentials(folder, proxy, tmp_path, status, reason):
    proxy.fault = lambda request: str(status)
    code, said = perfkit_command("ingest", f"{folder}/job", "--store", str(tmp_path))
    assert code == 2
    [line] = said.strip().splitlines()
    assert reason in line
    assert "GOOGLE_APPLICATION_CREDENTIALS" in line


def test_who_one_is_may_not_stand_in_the_uri_but_that_one_is_nobody_may():
    with pytest.raises(StoreError) as refused:
        Store("gs://token:secret@bucket/lake")
    assert "secret" not in str(refused.value)
    filesystem, path = filesystems.open_filesystem("gs://anonymous@bucket/lake/")
    assert (filesystem.type_name, path) == ("gcs", "bucket/lake")
