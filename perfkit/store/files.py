"""The files of a store: whole objects that appear at once, on a local disk or anywhere pyarrow.fs reaches.

Locally an object is written under `.tmp/`, fsynced and renamed. Elsewhere it is spooled on the local disk
and put in one piece: object stores make it visible only when the put ends, and have no rename. Nothing
above this module knows which of the two happens.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from perfkit.errors import StoreError
from perfkit.store import layout
from perfkit.store.filesystems import explain, is_absent, open_filesystem
from perfkit.store.footer import footer_crc

T = TypeVar("T")

_NO_FOLDERS = {"s3", "gcs", "abfs"}  # there, creating a folder leaves an empty object behind
_BLOCK = 8 << 20
_AT_ONCE = 8
_NEXT_STEPS = {
    errno.ENOSPC: "free some space or choose another --store, then run the same command again to go on",
    errno.EACCES: "check the permissions of the store or choose another --store",
    errno.EROFS: "choose a --store that can be written",
    errno.ENOTDIR: "choose a --store that is a folder",
}
_NEXT_STEPS |= dict.fromkeys((errno.EDQUOT, errno.EFBIG), _NEXT_STEPS[errno.ENOSPC])
_NEXT_STEPS |= {errno.EPERM: _NEXT_STEPS[errno.EACCES], errno.EEXIST: _NEXT_STEPS[errno.ENOTDIR]}


class StoreFull(StoreError):
    """No space, or a quota: the disk's fault and not that of the file being written."""


@contextmanager
def store_errors(doing: str) -> Iterator[None]:
    """Turn an I/O failure into a StoreError that says what to do."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        code = getattr(error, "errno", None)
        reason, step = explain(error)
        kind = StoreFull if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else StoreError
        raise kind(f"{doing}: {reason}", next_step=step or _NEXT_STEPS.get(code or 0)) from error


class Files:
    """Access to the objects of one store by relative path."""

    def __init__(self, uri: str | os.PathLike[str], *, filesystem: pafs.FileSystem | None = None) -> None:
        self.filesystem, self.root = _resolve(os.fspath(uri), filesystem)
        self.local = isinstance(self.filesystem, pafs.LocalFileSystem)
        self.name = os.fspath(uri)

    def path(self, relative: str) -> str:
        """Path of an object inside the file system."""
        return f"{self.root}/{relative}" if self.root else relative

    # ---------------------------------------------------------------- reading

    def walk(self, folder: str) -> list[pafs.FileInfo]:
        """All files below a folder, sorted by path; none if the folder does not exist."""
        selector = pafs.FileSelector(self.path(folder), recursive=True, allow_not_found=True)
        with store_errors(f"{self.name}: cannot list {folder}"):
            found = self.filesystem.get_file_info(selector)
        return sorted((info for info in found if info.type == pafs.FileType.File), key=lambda info: str(info.path))

    def own(self, folder: str) -> list[pafs.FileInfo]:
        """All files below a folder that lie in the store itself: a symbolic link may lead to anything."""
        found = self.walk(folder)
        if not self.local:
            return found
        root = Path(self.root).resolve()
        folders = {parent: Path(parent).resolve() for parent in {str(Path(info.path).parent) for info in found}}
        return [info for info in found if folders[str(Path(info.path).parent)].is_relative_to(root)]

    def check_reachable(self) -> None:
        """Raise what is wrong with the place: a bucket that does not exist looks like one without a store."""
        if not self.local:
            selector = pafs.FileSelector(self.path("").rstrip("/").split("/")[0], recursive=False)
            with store_errors(f"{self.name}: cannot be reached"):
                try:
                    self.filesystem.get_file_info(selector)
                except (OSError, pa.ArrowException) as error:
                    if not is_absent(error):
                        raise

    def relative(self, info: pafs.FileInfo) -> str:
        """Relative path of a listed object; some file systems begin their paths with a slash, others do not."""
        return str(info.path).lstrip("/").removeprefix(self.root.lstrip("/")).lstrip("/")

    def sizes(self, relatives: list[str]) -> list[int | None]:
        """Size of each object, or None where there is none."""
        if not relatives:
            return []
        with store_errors(f"{self.name}: cannot look at the files"):
            infos = self.filesystem.get_file_info([self.path(relative) for relative in relatives])
        return [info.size if info.type == pafs.FileType.File else None for info in infos]

    def read_bytes(self, relative: str) -> bytes | None:
        """Content of a small object, or None if there is none."""
        try:
            with self.filesystem.open_input_stream(self.path(relative)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None
        except (OSError, pa.ArrowException) as error:
            with store_errors(f"{self.name}: cannot read {relative}"):
                raise error

    # ---------------------------------------------------------------- writing

    def scratch_path(self) -> Path:
        """Name a private local folder for objects in the making, which is not there yet."""
        if self.local:
            return Path(self.path(layout.SCRATCH), uuid.uuid4().hex)
        return Path(tempfile.gettempdir(), f"perfkit-{uuid.uuid4().hex}")

    def scratch(self, folder: Path | None = None) -> Path:
        """Make such a folder."""
        folder = folder or self.scratch_path()
        with store_errors(f"{self.name}: cannot write"):
            folder.mkdir(parents=True, mode=0o700)
        return folder

    def publish(self, finished: Mapping[str, Path], *, last: Mapping[str, Path] | None = None) -> None:
        """Make finished scratch files appear in the store (relative path -> file), each whole, and durably.

        They are flushed or uploaded side by side: a disk's journal takes several fsyncs in one go. Those of `last`
        appear only when all others are there to stay.
        """
        batches = [batch for batch in (finished, last) if batch]
        everything = [path for batch in batches for path in batch.values()]
        more = f" and {len(everything) - 1} more files" if len(everything) > 1 else ""
        doing = f"{self.name}: cannot write {next(iter(finished or last or {}), '')}{more}"
        with store_errors(doing), ThreadPoolExecutor(_AT_ONCE) as pool:
            if self.local:
                side_by_side(_fsync, everything, pool)
            for batch in batches:
                if not self.local:
                    side_by_side(lambda item: self._upload(item[1], item[0]), batch.items(), pool)
                    continue
                self.make_folders(batch)
                targets = {relative: Path(self.path(relative)) for relative in batch}
                for relative, target in targets.items():
                    batch[relative].replace(target)
                side_by_side(_fsync_folder, {target.parent for target in targets.values()}, pool)

    def make_folders(self, relatives: Iterable[str]) -> None:
        """Make the folders that objects will appear in; elsewhere an object needs none."""
        if self.local:
            with store_errors(f"{self.name}: cannot write"):
                for folder in {Path(self.path(relative)).parent for relative in relatives}:
                    folder.mkdir(parents=True, exist_ok=True)

    def _upload(self, finished: Path, relative: str) -> None:
        with finished.open("rb") as source:
            self._put(relative, iter(lambda: source.read(_BLOCK), b""), finished.stat().st_size)
        finished.unlink()

    def publish_bytes(self, data: bytes, relative: str) -> None:
        """Make a small object appear, whole."""
        if not self.local:
            with store_errors(f"{self.name}: cannot write {relative}"):
                self._put(relative, [data], len(data))
            return
        folder = self.scratch()
        try:
            with store_errors(f"{self.name}: cannot write {relative}"):
                (folder / "object").write_bytes(data)
            self.publish({relative: folder / "object"})
        finally:
            discard(folder)

    def _put(self, relative: str, blocks: Iterable[bytes], size: int) -> None:
        path = self.path(relative)
        folder = path.rpartition("/")[0]
        if folder and self.filesystem.type_name not in _NO_FOLDERS:
            self.filesystem.create_dir(folder, recursive=True)
        try:
            with self.filesystem.open_output_stream(path) as stream:
                for block in blocks:
                    stream.write(block)
        except BaseException:
            # Closing a broken upload may have left a stump. A whole object is another writer's: the same content.
            with suppress(OSError, pa.ArrowException):
                if self.filesystem.get_file_info(path).size not in (None, size):
                    self.filesystem.delete_file(path)
            raise

    @contextmanager
    def locked(self, relative: str) -> Iterator[None]:
        """Keep other processes on this file system out; the lock ends with the process, however that ends.

        There is none where a file system cannot lock, nor in object stores: see docs/store.md.
        """
        if not self.local:
            yield
            return
        path = Path(self.path(relative))
        with store_errors(f"{self.name}: cannot write {relative}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = _lock(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # before it is let go: whoever waited for it then finds another file there
            os.close(descriptor)

    def delete(self, relative: str) -> None:
        """Remove an object if it is there."""
        with store_errors(f"{self.name}: cannot delete {relative}"), suppress(FileNotFoundError):
            self.filesystem.delete_file(self.path(relative))

    def prune(self, folder: str) -> None:
        """Remove the empty folders below a local folder."""
        if self.local:
            for path in sorted(Path(self.path(folder)).glob("**/"), reverse=True):
                with suppress(OSError):  # not empty
                    path.rmdir()


def check_footer(files: Files, path: str, crc: int | None) -> None:
    """Raise an error unless a file's footer has that checksum; where the file is damaged it may be a ValueError.

    Object stores check what they keep by themselves, and there it would cost another request.
    """
    if crc is not None and files.local and footer_crc(files.path(path)) != crc:
        raise not_committed(files.path(path))


def not_committed(path: str) -> StoreError:
    """Return the error for a file that is another than its commit promises."""
    return StoreError(
        f"{path} is damaged, or not the file that was committed",
        next_step="read again if the run is being written, else ingest its source again",
    )


def open_parquet(files: Files, path: str, crc: int | None = None) -> pq.ParquetFile:
    """Open a Parquet file of a store that perfkit wrote, with a footer of that checksum if it is known."""
    with store_errors(f"{files.name}: cannot read {path}"):
        try:
            check_footer(files, path, crc)
        except ValueError as error:
            raise not_committed(files.path(path)) from error
        return pq.ParquetFile(files.path(path), filesystem=files.filesystem, page_checksum_verification=True)


def discard(folder: Path) -> None:
    """Remove a scratch folder; what cannot be removed is left to `gc`."""
    shutil.rmtree(folder, ignore_errors=True)


def side_by_side(function: Callable[[T], None], items: Iterable[T], pool: Executor) -> None:
    """Call a function for each item, one of them in this thread: a single one needs no other."""
    listed = list(items)
    waiting = [pool.submit(function, item) for item in listed[1:]]
    for own in listed[:1]:
        function(own)
    for one in waiting:
        one.result()


def _lock(path: Path) -> int:
    """Return a descriptor that holds the lock of a file which is there now, not of one that its last owner removed."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fsync_folder(folder: Path) -> None:
    try:
        _fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot, and need not
            raise


def _resolve(uri: str, filesystem: pafs.FileSystem | None) -> tuple[pafs.FileSystem, str]:
    if not uri.strip() and filesystem is None:
        raise StoreError("the name of the store is empty", next_step="name a folder or a URI with --store")
    try:
        uri.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(uri).decode("utf-8", "backslashreplace")
        raise StoreError(f"{shown}: the name is not UTF-8", next_step="choose another --store") from None
    if filesystem is not None:
        return filesystem, uri.strip("/") if not isinstance(filesystem, pafs.LocalFileSystem) else uri.rstrip("/")
    if "://" not in uri:
        return pafs.LocalFileSystem(), str(Path(uri).expanduser().absolute())
    return open_filesystem(uri)
