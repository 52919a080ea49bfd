"""Nothing in the store assumes a local path, a rename, or folders."""

import datetime
import gc
import os
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from perfkit.errors import StoreError
from perfkit.store import Store
from perfkit.store.filesystems import open_filesystem


class NoRename(pafs.FileSystemHandler):
    """An object store: no rename, no folders, an object appears when its upload is closed."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.fail_on: str | None = None

    def __eq__(self, other):
        return self is other

    def __ne__(self, other):
        return self is not other

    def get_type_name(self):
        return "objects"

    def normalize_path(self, path):
        return path

    def _info(self, path):
        if path in self.objects:
            now = datetime.datetime.now(datetime.timezone.utc)
            return pafs.FileInfo(path, pafs.FileType.File, size=len(self.objects[path]), mtime=now)
        return pafs.FileInfo(path, pafs.FileType.NotFound)

    def get_file_info(self, paths):
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector):
        prefix = selector.base_dir.rstrip("/") + "/"
        return [self._info(path) for path in self.objects if path.startswith(prefix)]

    def create_dir(self, path, recursive):
        pass

    def open_input_stream(self, path):
        if path not in self.objects:
            raise FileNotFoundError(path)
        return pa.BufferReader(self.objects[path])

    open_input_file = open_input_stream

    def open_output_stream(self, path, metadata):
        return pa.PythonFile(_Upload(self, path), mode="w")

    def delete_file(self, path):
        if path not in self.objects:
            raise FileNotFoundError(path)
        del self.objects[path]

    def _no(self, *args):
        raise NotImplementedError("an object store has no such thing")

    move = copy_file = delete_dir = delete_dir_contents = delete_root_dir_contents = open_append_stream = _no


class _Upload:
    def __init__(self, store: NoRename, path: str) -> None:
        self._store, self._path, self._data, self.closed = store, path, b"", False

    def write(self, data):
        if self._store.fail_on and self._store.fail_on in self._path:
            raise OSError(28, "No space left on device")
        self._data += bytes(data)
        return len(data)

    def flush(self):
        pass

    def tell(self):
        return len(self._data)

    def close(self):
        if not self.closed:
            self._store.objects[self._path] = self._data
            self._store.puts.append(self._path)
        self.closed = True


def open_local(tmp_path):
    return Store(tmp_path / "lake")


def open_file_uri(tmp_path):
    return Store((tmp_path / "lake").as_uri())


def open_relative(tmp_path):
    return Store(os.path.relpath(tmp_path / "lake"))


def open_subtree(tmp_path):
    return Store("lake", filesystem=pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()))


def open_mock(tmp_path):
    return Store("bucket/lake", filesystem=pafs._MockFileSystem())


def open_no_rename(tmp_path):
    return Store("bucket/lake", filesystem=pafs.PyFileSystem(NoRename()))


def open_root_of_a_bucket(tmp_path):
    return Store("", filesystem=pafs.SubTreeFileSystem("bucket/", pafs.PyFileSystem(NoRename())))


def open_fsspec_uri(tmp_path):
    pytest.importorskip("fsspec")
    return Store(f"memory://{tmp_path.name}/lake")


OPENERS = [
    open_local, open_file_uri, open_relative, open_subtree, open_mock, open_no_rename, open_root_of_a_bucket,
    open_fsspec_uri,
]  # fmt: skip


@pytest.fixture(params=OPENERS, ids=lambda opener: opener.__name__.removeprefix("open_"))
def anywhere(request, tmp_path):
    return request.param(tmp_path)


def test_a_store_works_anywhere(anywhere, write):
    store = anywhere
    assert not store.exists
    assert store.committed("c", "a/b") == []
    for rank in range(3):
        write(store, run="a/b", rank=rank, tables=("events", "ops"))
    write(store, run="a/b", rank=0, tables=("events", "ops"))  # idempotent
    write(store, run="a/b", rank=1, rows=4, fingerprint="new", replace=True)
    store.finalise("c", "a/b", metadata={"user": "ada"})
    assert store.exists
    assert store.read("events", columns=["rank"])["rank"].to_pylist() == [0] * 10 + [1] * 4 + [2] * 10
    assert sum(batch.num_rows for batch in store.scan("ops", run="a/b")) == 20
    assert store.dataset("events", ranks=[1]).count_rows() == 4
    assert store.runs()[0].ranks == (0, 1, 2)
    assert store.runs()[0].metadata == {"user": "ada"}
    assert store.gc(older_than_hours=0, dry_run=False) == []
    assert store.migrate() == 0
    assert len(store.files("events")) == 3


def test_nothing_of_a_store_elsewhere_stays_on_the_local_disk(tmp_path, monkeypatch, write):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = open_no_rename(tmp_path)
    write(store)
    with store.writer("c", "r", rank=1, segment=0, fingerprint="x"):
        pass
    store.finalise("c", "r")
    assert list(tmp_path.iterdir()) == []


def test_without_rename_every_object_is_put_once_and_the_commit_last(write):
    handler = NoRename()
    store = Store("b", filesystem=pafs.PyFileSystem(handler))
    write(store, tables=("events", "ops"))
    kinds = [path.split("/")[1] for path in handler.puts]
    assert sorted(kinds[:3]) == ["events", "ops", "perfkit-store.json"]
    assert kinds[3:] == ["manifests"]


@pytest.mark.parametrize("moment", ["ops", "manifests"])
def test_a_failed_put_leaves_the_segment_invisible_and_no_stump(write, moment):
    handler = NoRename()
    store = Store("b", filesystem=pafs.PyFileSystem(handler))
    write(store, rank=0, tables=("events", "ops"))
    handler.fail_on = moment
    with pytest.raises(StoreError, match="No space left on device"):
        write(store, rank=1, tables=("events", "ops"))
    gc.collect()
    handler.fail_on = None
    assert not [path for path in handler.objects if moment in path and "00001" in path]
    assert set(store.read("events")["rank"].to_pylist()) == {0}
    write(store, rank=1, tables=("events", "ops"))
    assert set(store.read("ops")["rank"].to_pylist()) == {0, 1}


def test_an_unknown_scheme_is_refused():
    with pytest.raises(StoreError, match=r"nonsense://x.*use a local folder"):
        Store("nonsense://x")


def test_the_home_folder_is_expanded(monkeypatch, tmp_path, write):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(Store("~/lake"))
    assert Path(tmp_path, "lake", "perfkit-store.json").exists()


def test_a_scheme_that_needs_fsspec_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(
        StoreError, match=r"memory://x: memory:// needs fsspec; install it with `pip install 'perfkit\[s3\]'`"
    ):
        open_filesystem("memory://x")
