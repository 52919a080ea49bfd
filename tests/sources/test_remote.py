"""Dumps behind a URI, on fsspec's file system in memory; a real S3 server is in tests/store/test_s3.py."""

import fsspec
import pytest

import perfkit
from perfkit.errors import InputError
from perfkit.sources import remote
from perfkit.sources.detect import find_inputs
from perfkit.store.filesystems import explain, is_transient
from tests.dumps import all_rows, assert_same_rows, make_dump


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    return make_dump(tmp_path_factory.mktemp("dump") / "job", 3)


@pytest.fixture
def place(request, dump):
    """The dump in memory, under a name of its own."""
    name = f"place-{abs(hash(request.node.name))}"
    memory = fsspec.filesystem("memory")
    for path in dump.iterdir():
        memory.pipe(f"/{name}/job/{path.name}", path.read_bytes())
    yield f"memory://{name}"
    memory.rm(f"/{name}", recursive=True)


def put(place, name, data=b"{}"):
    fsspec.filesystem("memory").pipe(f"/{place.removeprefix('memory://')}/{name}", data)


def test_a_dump_behind_a_uri_gives_the_rows_of_a_local_one(place, dump, tmp_path):
    report = perfkit.ingest(f"{place}/job", store=tmp_path / "a", workers=1)
    assert not report.rejected
    assert report.run == "job"
    perfkit.ingest(dump, store=tmp_path / "b")
    assert_same_rows(all_rows(tmp_path / "b", "job"), all_rows(tmp_path / "a", "job"))


def test_one_file_can_be_named(place):
    found = find_inputs([f"{place}/job/rank00001.pt.trace.json.gz"])
    assert [input.kind for input in found.inputs] == ["kineto"]
    assert not found.rejected


def test_what_is_hidden_or_perfkits_own_is_left_out(place):
    put(place, "job/.cache/x.json")
    put(place, "job/lake/perfkit-store.json")
    put(place, "job/lake/events/part.parquet", b"PAR1")
    put(place, "job/notes.txt", b"hello")
    found = find_inputs([f"{place}/job"])
    assert len(found.inputs) == 3
    assert not found.rejected
    assert sorted(item.path.removeprefix(place) for item in found.ignored) == [
        "/job/.cache/x.json", "/job/lake/perfkit-store.json", "/job/notes.txt",
    ]  # fmt: skip


def test_a_spool_must_be_local(place):
    put(place, "job/spool/perfkit-spool.json")
    found = find_inputs([f"{place}/job"])
    assert ["a spool" in str(error) for error in found.rejected] == [True]
    assert len(found.inputs) == 3


def test_a_folder_without_traces_says_so(place):
    put(place, "empty/notes.txt", b"hello")
    found = find_inputs([f"{place}/empty"])
    assert "no trace among 1 file" in str(found.rejected[0])


def test_nothing_there_is_one_line():
    [error] = find_inputs(["memory://no-such-place/x"]).rejected
    assert "no such file or folder" in str(error)


def test_an_unknown_scheme_is_one_line():
    [error] = find_inputs(["nonsense://x/y"]).rejected
    assert "s3://bucket/path" in str(error)
    assert "\n" not in str(error)


def test_what_can_pass_is_asked_again_and_what_cannot_is_not(monkeypatch):
    monkeypatch.setattr(remote, "PAUSE_SECONDS", 0)
    asked = []

    def flaky():
        asked.append(1)
        if len(asked) < 3:
            raise OSError("AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 18")
        return "there"

    assert remote.patiently(flaky, "s3://x") == "there"

    def refused():
        asked.append(1)
        raise OSError("AWS Error ACCESS_DENIED during GetObject operation")

    asked.clear()
    with pytest.raises(InputError, match="access is denied"):
        remote.patiently(refused, "s3://x")
    assert len(asked) == 1


def test_a_file_that_shrinks_while_it_is_read_is_said():
    put("memory://shrinking", "x", b"a" * 100)
    [file] = remote.list_remote("memory://shrinking/x")
    put("memory://shrinking", "x", b"a" * 10)
    with pytest.raises(InputError, match=r"ends after 10 of 100 bytes"), file.open() as stream:
        stream.read()


@pytest.mark.parametrize(
    ("text", "reason", "transient"),
    [
        (
            "AWS Error NO_SUCH_BUCKET during ListObjectsV2 operation: The specified bucket does not exist",
            "bucket",
            False,
        ),
        ("AWS Error INVALID_ACCESS_KEY_ID during HeadObject operation", "credentials", False),
        ("AWS Error UNKNOWN (HTTP status 403) during HeadObject operation: No response body.", "denied", False),
        ("AWS Error NETWORK_CONNECTION during GetObject: curlCode: 28, Timeout was reached", "does not answer", True),
        ("AWS Error UNKNOWN (HTTP status 503) during GetObject operation", "again and again", True),
        ("something else\nin two lines", "something else", True),
    ],
)
def test_storage_errors_become_a_line(text, reason, transient):
    said, _ = explain(OSError(text))
    assert reason in said
    assert "\n" not in said
    assert is_transient(OSError(text)) == transient
