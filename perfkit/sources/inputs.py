"""Open the bytes of an input: uncompressed, streaming, and never more than the limits allow.

    open_input(input)          -> Stream    readinto-capable, uncompressed

A cut or broken stream is not an error here. Everything that can be decompressed before the damage is
delivered, then the stream ends with `truncated` and `problem` set; the reader reports the loss. Only a
bomb (`UnsafeInput`) and an unreadable file raise.

Decoders are fed in blocks, and a block with damage in it is decoded again in single bytes: libraries
drop the good bytes in front of an error, and those may be the last thousand events before a crash.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import pyarrow as pa
from isal import isal_zlib

from perfkit.errors import InputError, UnsafeInput, UnsupportedInput
from perfkit.sources.base import Input
from perfkit.sources.remote import RemoteFile, RemoteIO

READ_BYTES = 1 << 17
"""Compressed bytes per read: larger reads make the decoder copy a longer unread tail."""
DECODE_BYTES = 1 << 20
"""Uncompressed bytes per call of a decoder; stays in the second-level cache."""
ZSTD_BYTES = 1 << 16
"""Uncompressed bytes per call of Arrow's zstd decoder, which drops a whole call on an error."""
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ZSTD_SKIPPABLE_MAGIC = b"\x2a\x4d\x18"
"""After a byte 0x50 to 0x5f: a frame without content, with which pzstd begins; its length follows."""
UTF8_BOM = b"\xef\xbb\xbf"
_ISAL_ERROR = cast("type[Exception]", isal_zlib.IsalError)  # its type stub says "an Exception", not the class


@dataclass(frozen=True, slots=True)
class Limits:
    """What an input may cost before it is refused. Real traces compress up to 343:1."""

    max_ratio: float = 400.0
    """Uncompressed bytes per stored byte, once `ratio_floor_bytes` have come out."""
    ratio_floor_bytes: int = 256 << 20
    """Output below this is never a bomb, whatever its ratio."""
    max_stream_bytes: int = 256 << 30
    """Uncompressed bytes of one input."""
    max_total_bytes: int = 1 << 40
    """Bytes that one search may copy to its spool folder."""
    min_free_bytes: int = 1 << 30
    """Free disk space that copying to the spool folder leaves."""
    max_members: int = 100_000
    """Members of one archive."""
    max_name_bytes: int = 4096
    """Length of a member's name."""
    max_header_bytes: int = 1 << 20
    """Length of a tar header extension (long names, pax records)."""


if TYPE_CHECKING:

    class _RawIO(io.RawIOBase, BinaryIO):
        """A raw file that type checkers accept as a BinaryIO."""
else:
    _RawIO = io.RawIOBase


class Stream(_RawIO):
    """Uncompressed bytes of one input, forward only.

    `readinto` fills the buffer completely unless the end is reached.
    """

    def __init__(self, path: str, limits: Limits) -> None:
        super().__init__()
        self.path = path
        self.limits = limits
        self.truncated = False
        """The stored bytes end before the content does."""
        self.problem: str | None = None
        """What is wrong with the stored bytes, once the stream got there."""
        self.bytes_out = 0
        self.slow = True
        """Reading takes long enough (decompression, a network) to be worth a thread beside the parser."""
        self.waits = False
        """It does so because it waits, which needs no CPU."""
        self._pending = b""

    def readable(self) -> bool:
        """Tell io that this is a reader."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`; 0 at the end."""
        view = memoryview(buffer).cast("B")
        filled = 0
        if self._pending:
            filled = min(len(self._pending), len(view))
            view[:filled] = self._pending[:filled]
            self._pending = self._pending[filled:]
        while filled < len(view):
            count = self._fill(view[filled:])
            if count == 0:
                break
            filled += count
            self.bytes_out += count
        return filled

    def unread(self, data: bytes) -> None:
        """Put bytes back in front, as if they had not been read."""
        self._pending = data + self._pending

    def _fill(self, view: memoryview) -> int:
        """Write at least one byte to `view` and return how many; 0 at the end."""
        raise NotImplementedError

    def _cut(self, problem: str, *, truncated: bool) -> None:
        self.truncated = self.truncated or truncated
        self.problem = self.problem or problem

    def _guard(self, bytes_in: int, more: int) -> None:
        """Refuse a bomb before its next `more` bytes are handed out."""
        out, limits = self.bytes_out + more, self.limits
        if out > limits.max_stream_bytes:
            raise UnsafeInput(
                f"more than {limits.max_stream_bytes:,} bytes when decompressed",
                path=self.path,
                next_step="if the file is genuine, decompress it and give the plain file",
            )
        if out > limits.ratio_floor_bytes and out > limits.max_ratio * max(bytes_in, 1):
            raise UnsafeInput(
                f"decompresses to more than {limits.max_ratio:g} times its size (a decompression bomb?)",
                path=self.path,
                next_step="if the file is genuine, decompress it and give the plain file",
            )


class SliceStream(Stream):
    """Stored bytes as they are: a whole file, or `length` bytes of it from `offset`."""

    def __init__(
        self,
        file: Path | RemoteFile,
        *,
        path: str,
        offset: int = 0,
        length: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        super().__init__(path, limits or Limits())
        self._left = length
        self.slow = self.waits = not isinstance(file, Path)
        self._file = open_regular(file, path=path)
        if offset:
            self._file.seek(offset)

    def _fill(self, view: memoryview) -> int:
        if self._left is not None:
            view = view[: self._left]
            if not view:
                return 0
        try:
            count = self._file.readinto(view) or 0
        except OSError as error:
            raise os_error(error, self.path) from error
        if self._left is not None:
            if count == 0:
                self._cut(f"the archive ends {self._left:,} bytes before the member does", truncated=True)
                self._left = 0
            self._left -= count
        return count

    def where(self) -> tuple[int, int, int] | None:
        """Return descriptor, position and length of what is left, if it can be read from a local file in any order."""
        if self.slow or self._pending or not hasattr(os, "preadv"):
            return None
        file, at = self._file.fileno(), self._file.tell()
        left = os.fstat(file).st_size - at
        if self._left is not None:
            return (file, at, self._left) if self._left <= left else None
        return file, at, max(0, left)

    def skip(self, count: int, *, slack: int = 0) -> bool:
        """Go forward without reading; False if the file ends more than `slack` bytes before that."""
        at = self._file.tell()
        left = self._file.seek(0, os.SEEK_END) - at
        self._file.seek(at + count)
        self.bytes_out += count
        return count <= left + slack

    def close(self) -> None:
        """Close the file."""
        if hasattr(self, "_file"):
            self._file.close()
        super().close()


class BytesStream(Stream):
    """Bytes that are in memory already (the head of a file, when its kind is found)."""

    def __init__(self, data: bytes, *, path: str, limits: Limits | None = None) -> None:
        super().__init__(path, limits or Limits())
        self._rest = memoryview(data)

    def _fill(self, view: memoryview) -> int:
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


class _Decoder(Stream):
    """Common to the decompressing streams: the raw stream below, its count, and salvage after damage."""

    def __init__(self, reopen: Callable[[], Stream], *, path: str, limits: Limits | None = None) -> None:
        super().__init__(path, limits or Limits())
        self._reopen = reopen
        self._raw = reopen()
        self.waits = self._raw.waits
        self._rest: Iterator[bytes] | None = None

    def _fill(self, view: memoryview) -> int:
        data = b""
        while not data:
            if self._rest is None:
                data = self._decode(min(len(view), DECODE_BYTES))
                if not data and self._rest is None:
                    break
            else:
                data = next(self._rest, b"")
                if not data:
                    break
        if self._raw.problem:
            self._cut(self._raw.problem, truncated=self._raw.truncated)
        self._guard(self._raw.bytes_out, len(data))
        count = min(len(data), len(view))
        view[:count] = data[:count]
        if count < len(data):  # only salvage hands out more than was asked for
            self._rest = _chain(data[count:], self._rest)
        return count

    def _decode(self, size: int) -> bytes:
        """Return up to `size` bytes; on damage set `_rest` to what can be salvaged; b"" at the end."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the stream below."""
        if hasattr(self, "_raw"):
            self._raw.close()
        super().close()


def _chain(first: bytes, rest: Iterator[bytes] | None) -> Iterator[bytes]:
    yield first
    yield from rest or ()


class DeflateStream(_Decoder):
    """gzip (any number of members), or the raw deflate of a zip member; decoded by ISA-L."""

    def __init__(
        self, reopen: Callable[[], Stream], *, path: str, gzip: bool = True, limits: Limits | None = None
    ) -> None:
        super().__init__(reopen, path=path, limits=limits)
        self._wbits = 31 if gzip else -15
        self._input = b""
        self._decoder: Any = None
        self._member_at = 0  # where this member starts, in stored bytes
        self._member_out = 0  # and in uncompressed ones
        self._num_members = 0

    def _decode(self, size: int) -> bytes:
        while True:
            if not self._input:
                self._input = self._raw.read(READ_BYTES) or b""
            if self._decoder is None:
                if not self._start_member():
                    return b""
                continue
            at_end = not self._input
            try:
                data: bytes = self._decoder.decompress(self._input, size)
            except _ISAL_ERROR:
                self._rest = self._salvage(self.bytes_out - self._member_out)
                return b""
            if self._decoder.eof:
                self._input = self._decoder.unused_data
                self._decoder = None
                if data:
                    self._next_member_out = self.bytes_out + len(data)
                    return data
                self._next_member_out = self.bytes_out
            else:
                self._input = self._decoder.unconsumed_tail
                if data:
                    return data
                if at_end:
                    self._cut(f"the compressed data end early, after {self._raw.bytes_out:,} bytes", truncated=True)
                    self._rest = self._salvage(self.bytes_out - self._member_out)  # ISA-L keeps a few symbols back
                    return b""

    def _start_member(self) -> bool:
        """Begin the next gzip member, if there is one."""
        if self._num_members and self._wbits == 31:
            while self._input and not self._input.strip(b"\0"):  # tape padding is not an error
                self._input = self._raw.read(READ_BYTES) or b""
            self._input = self._input.lstrip(b"\0")
        if not self._input:
            if not self._num_members:
                self._cut("the compressed data are empty", truncated=True)
            return False
        if self._num_members:
            where = self._raw.bytes_out - len(self._input)
            if self._wbits != 31 or not self._input.startswith(GZIP_MAGIC[: len(self._input)]):
                self._cut(f"after the compressed data, at byte {where:,}, follows something else", truncated=False)
                self._input = b""
                self._rest = iter(())
                return False
            if self._num_members > 10_000 and self.bytes_out < 64 * self._num_members:
                raise UnsafeInput(
                    "thousands of nearly empty gzip members",
                    path=self.path,
                    next_step="if the file is genuine, decompress it and give the plain file",
                )
            self._member_out = self._next_member_out
        self._member_at = self._raw.bytes_out - len(self._input)
        self._num_members += 1
        self._decoder = isal_zlib.decompressobj(self._wbits)
        return True

    def _salvage(self, skip: int) -> Iterator[bytes]:
        """Decode the broken member again with zlib, which can step back, and go byte by byte at the damage.

        ISA-L cannot copy its state. The price, one slower decode, is paid by broken files only.
        """
        with self._reopen() as raw:
            left = self._member_at
            while left and (step := raw.read(min(left, READ_BYTES))):
                left -= len(step)
            decoder = zlib.decompressobj(self._wbits)
            position = self._member_at
            while block := raw.read(ZSTD_BYTES):
                before = decoder.copy()
                try:
                    pieces = iter((decoder.decompress(block),))
                    block = b""
                except zlib.error:
                    decoder = before
                    pieces = self._single_bytes(decoder, block, position)
                for piece in pieces:
                    if skip < len(piece):
                        yield piece[skip:]
                    skip = max(0, skip - len(piece))
                if block or decoder.eof:
                    return
                position += ZSTD_BYTES

    def _single_bytes(self, decoder: Any, block: bytes, position: int) -> Iterator[bytes]:
        for index in range(len(block)):
            try:
                piece = decoder.decompress(block[index : index + 1])
            except zlib.error as error:
                reason = str(error).rpartition(": ")[2] or "invalid data"
                self._cut(f"the compressed data are broken at byte {position + index:,} ({reason})", truncated=False)
                return
            if piece:
                yield piece


class ZstdStream(_Decoder):
    """Zstandard, any number of frames, decoded by Arrow."""

    def __init__(self, reopen: Callable[[], Stream], *, path: str, limits: Limits | None = None) -> None:
        super().__init__(reopen, path=path, limits=limits)
        self._stored = _Stored(self._raw)
        self._decoder = self._stored.decoder()

    def _decode(self, size: int) -> bytes:
        try:
            data: bytes = self._decoder.read(min(size, ZSTD_BYTES))
        except OSError as error:
            if truncated := "Truncated" in str(error):
                self._cut(f"the compressed data end early, after {self._raw.bytes_out:,} bytes", truncated=truncated)
            self._rest = self._salvage(self.bytes_out)
            return b""
        return data

    def _salvage(self, good: int) -> Iterator[bytes]:
        """Decode again what follows `good` bytes, and give the decoder single bytes of the read that met the damage.

        Arrow drops what one read of stored bytes gave (a megabyte and more) and what one call was to return, if
        there is an error in it: so the last bytes before the damage are asked for one by one, too.
        """
        for size in (ZSTD_BYTES, 1):
            with self._reopen() as raw, contextlib.suppress(OSError):
                stored = _Stored(raw, single_from=self._stored.last_read_at)
                decoder, skip = stored.decoder(), good
                while skip and (known := decoder.read(min(skip, ZSTD_BYTES))):
                    skip -= len(known)
                while piece := decoder.read(size):
                    good += len(piece)
                    yield piece
        self._cut(f"the compressed data are broken, before byte {stored.position:,}", truncated=False)


class _Stored(_RawIO):
    """Stored bytes for Arrow's decoder: as many as it asks for, but single ones from `single_from` on."""

    def __init__(self, raw: Stream, *, single_from: int | None = None) -> None:
        super().__init__()
        self.position = self.last_read_at = 0
        """Where the next read begins, and where the last one did: the decoder had used all that came before."""
        self._raw = raw
        self._single_from = single_from
        self._block = io.BytesIO()

    def decoder(self) -> Any:
        """Return Arrow's decoder of these bytes."""
        return pa.CompressedInputStream(pa.PythonFile(self, mode="r"), "zstd")

    def readable(self) -> bool:
        """Tell io that this is a reader."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Read `size` bytes, or fewer."""
        if self._single_from is None:
            data = self._raw.read(size) or b""
        elif self.position < self._single_from:
            data = self._raw.read(min(size, self._single_from - self.position)) or b""
        elif not (data := self._block.read(1)):
            self._block = io.BytesIO(self._raw.read(READ_BYTES) or b"")
            data = self._block.read(1)
        self.last_read_at = self.position
        self.position += len(data)
        return data


def compression_of(head: bytes) -> str:
    """Tell the compression of a file that starts with `head`: `none`, `gzip` or `zstd`."""
    if head.startswith(GZIP_MAGIC):
        return "gzip"
    at = 0
    while head[at + 1 : at + 4] == ZSTD_SKIPPABLE_MAGIC and head[at] & 0xF0 == 0x50 and len(head) >= at + 8:
        at += 8 + int.from_bytes(head[at + 4 : at + 8], "little")
    return "zstd" if head.startswith(ZSTD_MAGIC, at) else "none"


def open_regular(file: Path | RemoteFile, *, path: str) -> io.FileIO | RemoteIO:
    """Open a regular file for reading; a pipe, socket or device is refused and never waited for."""
    if isinstance(file, RemoteFile):
        return file.open()
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for a writer for ever.
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except (OSError, ValueError) as error:
        raise os_error(error, path) from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise InputError(f"{file_kind(mode)}, not a file", path=path, next_step="give the trace file itself")
    return io.FileIO(descriptor, "rb")


def open_stored(input: Input, *, limits: Limits | None = None) -> Stream:
    """Open the stored bytes of an input: the file, or the member of a tar or zip archive, still compressed inside."""
    if input.member is None:
        return SliceStream(input.file, path=input.path, limits=limits)
    from perfkit.sources.archives import open_member

    return open_member(input.file, input.member, path=input.path, limits=limits or Limits())


def open_input(input: Input, *, limits: Limits | None = None) -> Stream:
    """Open the uncompressed bytes of an input, guarded against bombs; a UTF-8 byte order mark is skipped."""
    stream = decompress(lambda: open_stored(input, limits=limits), input.compression, path=input.path, limits=limits)
    if input.kind == "kineto":
        start = stream.read(len(UTF8_BOM)) or b""
        if start != UTF8_BOM:
            stream.unread(start)
    return stream


def decompress(reopen: Callable[[], Stream], compression: str, *, path: str, limits: Limits | None = None) -> Stream:
    """Put the decoder of `compression` (`none`, `gzip`, `zstd`) on a stream that can be opened again."""
    if compression == "none":
        return reopen()
    if compression == "gzip":
        return DeflateStream(reopen, path=path, limits=limits)
    if compression == "zstd":
        return ZstdStream(reopen, path=path, limits=limits)
    raise UnsupportedInput(f"compressed with {compression}", path=path, next_step="decompress it, or use gzip or zstd")


def local_file(input: Input) -> Path:
    """Return the local file of an input of a kind that is always local: databases and parquet."""
    assert isinstance(input.file, Path), input.path
    return input.file


def copy_stream(stream: Stream, target: Path, *, limits: Limits, max_bytes: int | None = None) -> int:
    """Copy a stream to a new private file and return its size; a full disk is an `InputError`."""
    buffer = memoryview(bytearray(DECODE_BYTES))
    copied = 0
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
        with io.FileIO(descriptor, "wb") as out:
            while count := stream.readinto(buffer):
                if copied % (64 << 20) == 0 and shutil.disk_usage(target.parent).free < limits.min_free_bytes + count:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                copied += count
                if max_bytes is not None and copied > max_bytes:
                    raise UnsafeInput(
                        f"more than {limits.max_total_bytes:,} bytes to unpack",
                        path=stream.path,
                        next_step="unpack the archive yourself and give the folder",
                    )
                written = 0
                while written < count:
                    written += out.write(buffer[written:count]) or 0
    except OSError as error:
        with contextlib.suppress(OSError):
            target.unlink()
        raise InputError(
            f"cannot be unpacked to {target.parent}: {error.strerror or error}",
            path=stream.path,
            next_step="free space there, or set TMPDIR to a larger disk",
        ) from error
    except InputError:
        target.unlink()
        raise
    return copied


def shown_path(path: str | os.PathLike[str]) -> str:
    """Make a path safe to print and to store: bytes of a file name that are not UTF-8 are escaped."""
    return os.fspath(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def file_kind(mode: int) -> str:
    """Name what a file system entry is, if it is no regular file."""
    for test, name in (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    ):
        if test(mode):
            return name
    return "not a regular file"


def _near_path(path: str) -> str:
    """Return what to do about a path that does not exist: its neighbour of nearly the same name, if there is one."""
    import difflib  # only then: a path that exists needs no neighbours

    missing = Path(path)
    try:
        near = difflib.get_close_matches(missing.name, [entry.name for entry in missing.parent.iterdir()], n=1)
    except OSError:
        return "check the path"
    return f"did you mean {missing.with_name(near[0])}?" if near else "check the path"


def os_error(error: OSError | ValueError, path: str) -> InputError:
    """Turn an error of the operating system into one line with a next step."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ENOENT:
        return InputError("no such file or folder", path=path, next_step=_near_path(path))
    if number in (errno.EACCES, errno.EPERM):
        return InputError("permission denied", path=path, next_step="make it readable with `chmod u+r`")
    if number == errno.ELOOP:
        return UnsafeInput("symbolic links in a circle", path=path, next_step="give the file that is meant")
    if number in (errno.ENXIO, errno.ENODEV):
        return InputError("a socket or device, not a file", path=path, next_step="give the trace file itself")
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return InputError(f"cannot be read: {reason}", path=path, next_step="check the path and the disk")
