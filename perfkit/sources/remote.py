"""Files of a dump that lie in object storage: listed once, read in pieces, never copied as a whole.

    list_remote("s3://bucket/traces/")  -> [RemoteFile, …]     one listing; sizes and times come with it
    remote_file.open()                  -> RemoteIO            a raw file: readinto, seek, tell

Storage charges and waits per request, so a reader asks for megabytes at a time, and for the next piece while the
last one is being parsed. A request that fails is made again from where it stopped, with growing pauses, on top
of what the storage client itself retries; only then is the file given up.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa

from perfkit.errors import InputError, StoreError
from perfkit.store.filesystems import explain, is_absent, is_transient, open_filesystem

FIRST_BYTES = 1 << 18
"""Of the first request to a file: enough to tell what it is."""
PIECE_BYTES = 8 << 20
"""Of every later request."""
ATTEMPTS = 4
PAUSE_SECONDS = 0.5

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One object, as the listing describes it; picklable."""

    uri: str
    """Of what was listed: says which file system, endpoint and region."""
    path: str
    """In that file system."""
    size_bytes: int
    mtime_ns: int | None

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def shown(self) -> str:
        """What the user sees."""
        scheme = urlsplit(self.uri).scheme
        return f"{scheme}://{self.path.lstrip('/')}"

    def open(self, mode: str = "rb") -> RemoteIO:
        """Open it for reading."""
        assert mode == "rb", mode
        return RemoteIO(self)


def list_remote(uri: str) -> list[RemoteFile]:
    """Return the file of that name, or all files below it, sorted by path; there may be none."""
    import pyarrow.fs as pafs

    try:
        filesystem, path = open_filesystem(uri)
    except StoreError as error:
        raise InputError(error.message.removeprefix(f"{uri}: "), path=uri, next_step=error.next_step) from None

    def listing() -> list[pafs.FileInfo]:
        found: list[pafs.FileInfo] = []
        with suppress(NotADirectoryError):
            found = filesystem.get_file_info(pafs.FileSelector(path, recursive=True, allow_not_found=True))
        if found or (info := filesystem.get_file_info(path)).type == pafs.FileType.Directory:
            return list(found)
        if info.type == pafs.FileType.File:
            return [info]
        return list(filesystem.get_file_info(pafs.FileSelector(path, recursive=True)))  # says what is wrong

    found = patiently(listing, uri)
    files = (info for info in found if info.type == pafs.FileType.File)
    return sorted((RemoteFile(uri, i.path, i.size, i.mtime_ns) for i in files), key=lambda file: file.path)


def patiently(ask: Callable[[], T], shown: str) -> T:
    """Ask a storage, again and again if that can help; what remains is one line with a next step."""
    for attempt in range(ATTEMPTS):
        try:
            return ask()
        except (OSError, pa.ArrowException) as error:
            if attempt + 1 < ATTEMPTS and is_transient(error):
                time.sleep(PAUSE_SECONDS * 2**attempt)
                continue
            if is_absent(error):
                raise InputError("no such file or folder", path=shown, next_step="check the path") from None
            reason, step = explain(error)
            raise InputError(reason, path=shown, next_step=step or "run the same command again") from error
    raise AssertionError("unreachable")


class RemoteIO(io.RawIOBase):
    """A remote file as a raw Python file that reads ahead."""

    def __init__(self, file: RemoteFile) -> None:
        super().__init__()
        self._file = file
        self._filesystem = open_filesystem(file.uri)[0]
        self._source: pa.NativeFile | None = None
        self._position = 0
        self._piece, self._piece_at = memoryview(b""), 0
        self._ahead: tuple[int, Future[bytes]] | None = None
        self._pool: ThreadPoolExecutor | None = None

    def readable(self) -> bool:
        """Tell io that this is a reader."""
        return True

    def seekable(self) -> bool:
        """Tell io that it can be anywhere; going back asks the storage again."""
        return True

    def tell(self) -> int:
        """Return where the next byte comes from."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go somewhere; costs nothing until it is read."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.size_bytes}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read some bytes; 0 at the end."""
        view = memoryview(buffer).cast("B")
        if self._position >= self._file.size_bytes or not len(view):
            return 0
        if not 0 <= self._position - self._piece_at < len(self._piece):
            self._next_piece()
        piece = self._piece[self._position - self._piece_at :][: len(view)]
        view[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

    def close(self) -> None:
        """Stop reading ahead and close the file."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = self._ahead = None
        if self._source is not None:
            self._source.close()
            self._source = None
        super().close()

    def _next_piece(self) -> None:
        at, follows = self._position, self._position == self._piece_at + len(self._piece) and len(self._piece)
        if self._ahead is not None and self._ahead[0] == at:
            data = self._ahead[1].result()
        else:
            data = self._fetch(at, PIECE_BYTES if follows else FIRST_BYTES)
        if not data:
            raise InputError(
                f"ends after {at:,} of {self._file.size_bytes:,} bytes: it was replaced while it was read",
                path=self._file.shown,
                next_step="run the same command again",
            )
        self._piece, self._piece_at, self._ahead = memoryview(data), at, None
        if follows and at + len(data) < self._file.size_bytes:
            self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="perfkit-ahead")
            self._ahead = (at + len(data), self._pool.submit(self._fetch, at + len(data), PIECE_BYTES))

    def _fetch(self, at: int, count: int) -> bytes:
        """Read one piece in one request, opening the file anew after a failure."""

        def ask() -> bytes:
            try:
                if self._source is None:
                    self._source = self._filesystem.open_input_file(self._file.path)
                return bytes(self._source.read_at(min(count, self._file.size_bytes - at), at))
            except (OSError, pa.ArrowException):
                self._source = None
                raise

        return patiently(ask, self._file.shown)
