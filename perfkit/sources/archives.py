"""List and open members of tar and zip archives in place; nothing is ever extracted by its name.

    tar_members(stream)   -> Iterator[Member]     any forward stream, so a .tar.gz too
    zip_members(file)     -> list[Member]
    zip_members_before_cut(file) -> Iterator[Member]    of an archive that has lost its directory
    open_member(file, member) -> Stream           stored bytes of one member (zip's deflate undone)

A member that an extractor could be tricked with (a link, a device, an absolute name, `..`, control
characters) is listed with `refused` set and skipped; the others are read. An archive that lies about its
structure (overlapping zip entries, absurd counts) is refused whole.

tar is parsed here, on `tarfile.TarInfo.frombuf`: `tarfile` reads header extensions of any declared length
into memory, and wants to seek.
"""

from __future__ import annotations

import io
import stat
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isal import isal_zlib

from perfkit.errors import CorruptInput, UnsafeInput, UnsupportedInput
from perfkit.sources.inputs import (
    DeflateStream,
    Limits,
    SliceStream,
    Stream,
    ZstdStream,
    open_regular,
)
from perfkit.sources.remote import RemoteFile

TAR_BLOCK = 512
ZIP_MAGIC = b"PK\x03\x04"
ZIP_EMPTY_MAGIC = b"PK\x05\x06"
_ZIP_ENTRY_BYTES = 46
_ZIP_HEADER = struct.Struct("<4s2xHH4xIIIHH")
"""Of a member: magic, flags, method, checksum, stored and uncompressed bytes, lengths of the name and of extensions."""
_ZIP_STORED, _ZIP_DEFLATED, _ZIP_ZSTD = 0, 8, 93


@dataclass(frozen=True, slots=True)
class Member:
    """One member of an archive."""

    name: str
    offset: int
    """Of the stored bytes, from the start of the (uncompressed) archive; for zip, of the local header."""
    stored_bytes: int
    size_bytes: int
    """Uncompressed, as the archive claims."""
    method: int = _ZIP_STORED
    crc: int | None = None
    refused: str | None = None
    """Why it is not read."""
    is_folder: bool = False
    is_zipped: bool = False
    """In a zip archive, not in a tar."""


def is_tar(head: bytes) -> bool:
    """Tell whether a file that starts with `head` is a tar archive: its first header has a valid checksum."""
    if len(head) < TAR_BLOCK or not head[0]:
        return False
    try:
        tarfile.TarInfo.frombuf(head[:TAR_BLOCK], "utf-8", "backslashreplace")
    except tarfile.HeaderError:
        return False
    return True


def name_problem(name: str, limits: Limits) -> str | None:
    """Say what is wrong with a member's name, if anything."""
    if not name:
        return "it has no name"
    if len(name.encode(errors="backslashreplace")) > limits.max_name_bytes:
        return f"its name has more than {limits.max_name_bytes:,} bytes"
    if not name.isprintable():
        return "its name has control characters"
    path = name.replace("\\", "/")
    if path.startswith("/") or path[1:2] == ":":
        return "its name is an absolute path"
    if ".." in path.split("/"):
        return "its name leads out of the archive (..)"
    return None


def shown_name(name: str) -> str:
    """Make a member's name safe to print on one line."""
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in name)
    return text if len(text) <= 200 else text[:199] + "…"


# --- tar ------------------------------------------------------------------------------------------


def tar_members(stream: Stream, *, limits: Limits | None = None) -> Iterator[Member]:
    """Walk a tar archive forward; the consumer may read a member's bytes from `stream` before it goes on.

    Raises `CorruptInput` at a cut or a broken header, after all members before it.
    """
    limits = limits or Limits()
    start = stream.bytes_out
    extra: dict[str, str] = {}
    num_members = 0
    seen: set[str] = set()
    while True:
        header = stream.read(TAR_BLOCK) or b""
        if len(header) < TAR_BLOCK:  # a whole archive ends with a block of zeros
            raise CorruptInput(
                f"the tar archive has no end after {num_members} members, so more may be missing",
                path=stream.path,
                next_step="copy it again from where it was made",
            )
        if not any(header):
            return
        try:
            info = tarfile.TarInfo.frombuf(header, "utf-8", "backslashreplace")
        except tarfile.HeaderError as error:
            raise CorruptInput(
                f"broken tar header at byte {stream.bytes_out - start - TAR_BLOCK:,} ({error})",
                path=stream.path,
                next_step="copy it again from where it was made",
            ) from error
        if info.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE, b"L", b"K"):
            body = _tar_extension(stream, info.size, limits)
            if info.type == b"L":
                extra["path"] = body.rstrip(b"\0").decode("utf-8", "backslashreplace")
            elif info.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
                extra.update(_pax_records(body, stream.path))
            continue
        num_members += 1
        if num_members > limits.max_members:
            raise UnsafeInput(
                f"more than {limits.max_members:,} members",
                path=stream.path,
                next_step="unpack it and give the folder",
            )
        name = extra.get("path", info.name)
        size = _pax_size(extra, info.size, stream.path)
        sparse = info.type == tarfile.GNUTYPE_SPARSE or any(key.startswith("GNU.sparse") for key in extra)
        extra = {}
        refused = name_problem(name, limits)
        if refused is None and info.type not in (*tarfile.REGULAR_TYPES, tarfile.DIRTYPE):
            refused = _TAR_KINDS.get(info.type, f"its type is {info.type!r}")
        if refused is None and sparse:
            refused = "it is a sparse file"
        if refused is None and name in seen and info.type != tarfile.DIRTYPE:
            refused = "another member has the same name"
        seen.add(name)
        # Links, devices and folders have no content, whatever size they claim.
        stored = 0 if info.type in _TAR_KINDS or info.type == tarfile.DIRTYPE else size
        offset = stream.bytes_out - start
        yield Member(name, offset, stored, stored, refused=refused, is_folder=info.type == tarfile.DIRTYPE)
        end = offset + -(-stored // TAR_BLOCK) * TAR_BLOCK
        if not _skip(stream, end - (stream.bytes_out - start), slack=end - offset - stored):
            raise CorruptInput(
                f"the tar archive ends early, inside member {shown_name(name)}",
                path=stream.path,
                next_step="copy it again from where it was made",
            )


_TAR_KINDS = {
    tarfile.SYMTYPE: "it is a symbolic link",
    tarfile.LNKTYPE: "it is a hard link",
    tarfile.CHRTYPE: "it is a device",
    tarfile.BLKTYPE: "it is a device",
    tarfile.FIFOTYPE: "it is a named pipe",
}


def _tar_extension(stream: Stream, size: int, limits: Limits) -> bytes:
    if not 0 <= size <= limits.max_header_bytes:
        raise UnsafeInput(
            f"a tar header extension of {size:,} bytes", path=stream.path, next_step="unpack it and give the folder"
        )
    body = stream.read(-(-size // TAR_BLOCK) * TAR_BLOCK) or b""
    return body[:size]


def _pax_records(body: bytes, path: str) -> dict[str, str]:
    records: dict[str, str] = {}
    position = 0
    while position < len(body):
        space = body.find(b" ", position, position + 20)
        digits = body[position:space] if space > 0 else b""
        length = int(digits) if digits.isdigit() else 0
        record = body[space + 1 : position + length]
        key, equals, value = record.partition(b"=")
        if not equals or not value.endswith(b"\n") or position + length > len(body):
            raise CorruptInput("broken pax header in the tar archive", path=path, next_step="unpack it another way")
        records[key.decode("utf-8", "backslashreplace")] = value[:-1].decode("utf-8", "backslashreplace")
        position += length
    return records


def _pax_size(extra: dict[str, str], size: int, path: str) -> int:
    text = extra.get("size", str(size))
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise CorruptInput("a tar member with an impossible size", path=path, next_step="unpack it another way")
    return int(text)


def _skip(stream: Stream, count: int, *, slack: int) -> bool:
    """Skip forward; a missing last `slack` bytes (padding) is forgiven."""
    if isinstance(stream, SliceStream):
        return stream.skip(count, slack=slack)
    buffer = memoryview(bytearray(min(count, 1 << 20)))
    while count > 0:
        got = stream.readinto(buffer[:count])
        if not got:
            return count <= slack
        count -= got
    return True


# --- zip ------------------------------------------------------------------------------------------


def zip_members(file: Path | RemoteFile, *, path: str, limits: Limits | None = None) -> list[Member]:
    """List the members of a zip archive in the order of its directory."""
    limits = limits or Limits()
    with open_regular(file, path=path) as raw:
        _check_directory_size(raw, path, limits)
        try:
            whole = raw if isinstance(raw, io.FileIO) else io.BufferedReader(raw)  # a piece is not all of a directory
            with zipfile.ZipFile(whole) as archive:
                infos = archive.infolist()
                directory_at = archive.start_dir
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OSError) as error:
            raise CorruptInput(
                f"broken zip archive ({error})", path=path, next_step="copy it again from where it was made"
            ) from error
    if len(infos) > limits.max_members:
        raise UnsafeInput(f"{len(infos):,} members", path=path, next_step="unpack it and give the folder")
    end = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        if info.header_offset < end:
            raise UnsafeInput(
                "zip members overlap (a zip bomb)", path=path, next_step="ask whoever made it for a plain file"
            )
        end = info.header_offset + 30 + info.compress_size
    if end > directory_at:
        raise UnsafeInput(
            "zip members overlap its directory", path=path, next_step="ask whoever made it for a plain file"
        )
    seen: set[str] = set()
    members = []
    for info in infos:
        refused = name_problem(info.filename, limits) or _zip_problem(info)
        if refused is None and info.filename in seen:
            refused = "another member has the same name"
        seen.add(info.filename)
        members.append(
            Member(
                name=info.filename,
                offset=info.header_offset,
                stored_bytes=info.compress_size,
                size_bytes=info.file_size,
                method=info.compress_type,
                crc=info.CRC,
                refused=refused,
                is_folder=info.is_dir(),
                is_zipped=True,
            )
        )
    return members


def zip_members_before_cut(file: Path | RemoteFile, *, path: str, limits: Limits | None = None) -> Iterator[Member]:
    """Walk the members themselves: a zip archive that was cut has no directory, and perhaps half a last member."""
    limits = limits or Limits()
    seen: set[str] = set()
    with open_regular(file, path=path) as raw:
        size, at = raw.seek(0, 2), 0
        for _ in range(limits.max_members):
            raw.seek(at)
            header = raw.read(_ZIP_HEADER.size) or b""
            if len(header) < _ZIP_HEADER.size or not header.startswith(ZIP_MAGIC):
                return
            _, flags, method, crc, stored, uncompressed, name_bytes, extra_bytes = _ZIP_HEADER.unpack(header)
            name = (raw.read(name_bytes) or b"").decode("utf-8" if flags & 0x800 else "cp437", "backslashreplace")
            start = at + _ZIP_HEADER.size + name_bytes + extra_bytes
            if flags & 0x8 or stored == 0xFFFFFFFF or start > size:
                return  # its size stands behind it or in an extension: where the next one begins is not known
            refused = name_problem(name, limits) or ("it is encrypted" if flags & 0x1 else None)
            if refused is None and name in seen:
                refused = "another member has the same name"
            seen.add(name)
            yield Member(
                name=name,
                offset=at,
                stored_bytes=min(stored, size - start),
                size_bytes=uncompressed,
                method=method,
                crc=crc,
                refused=refused,
                is_folder=name.endswith("/"),
                is_zipped=True,
            )
            at = start + stored


def _zip_problem(info: zipfile.ZipInfo) -> str | None:
    mode = info.external_attr >> 16
    if stat.S_ISLNK(mode):
        return "it is a symbolic link"
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "it is a device or a pipe"
    if info.flag_bits & 0x1:
        return "it is encrypted"
    return None


def _check_directory_size(raw: Any, path: str, limits: Limits) -> None:
    """Refuse a huge directory before zipfile makes an object of every entry in it."""
    size = raw.seek(0, 2)
    tail_at = max(0, size - (1 << 16) - 22 - 76)
    raw.seek(tail_at)
    tail = raw.read(size - tail_at) or b""
    raw.seek(0)
    at = tail.rfind(ZIP_EMPTY_MAGIC)
    if at < 0 or len(tail) < at + 22:
        raise CorruptInput(
            "a zip archive without a directory (cut short?)",
            path=path,
            next_step="copy it again from where it was made",
        )
    directory_bytes = struct.unpack_from("<I", tail, at + 12)[0]
    wide = tail.rfind(b"PK\x06\x06", 0, at)
    if directory_bytes == 0xFFFFFFFF and wide >= 0 and len(tail) >= wide + 48:
        directory_bytes = struct.unpack_from("<Q", tail, wide + 40)[0]
    # A name and its extras may be long, but 100,000 of them are not: 256 bytes each on average.
    if min(directory_bytes, size) > limits.max_members * (_ZIP_ENTRY_BYTES + 256):
        raise UnsafeInput(
            f"a zip directory of {directory_bytes:,} bytes", path=path, next_step="unpack it and give the folder"
        )


class ZipStream(Stream):
    """A zip member without its zip compression; its declared size and checksum are checked."""

    def __init__(self, file: Path | RemoteFile, member: Member, *, path: str, limits: Limits) -> None:
        super().__init__(path, limits)
        self._crc = 0
        self._member = member
        self.waits = not isinstance(file, Path)
        if member.method == _ZIP_STORED:
            self._inner = raw_member(file, member, path=path, limits=limits)
        elif member.method == _ZIP_DEFLATED:
            self._inner = DeflateStream(
                lambda: raw_member(file, member, path=path, limits=limits), path=path, gzip=False, limits=limits
            )
        elif member.method == _ZIP_ZSTD:
            self._inner = ZstdStream(
                lambda: raw_member(file, member, path=path, limits=limits), path=path, limits=limits
            )
        else:
            name = zipfile.compressor_names.get(member.method, f"method {member.method}")  # type: ignore[attr-defined]
            raise UnsupportedInput(
                f"compressed with {name} inside the zip", path=path, next_step="unpack it and give the folder"
            )

    def _fill(self, view: memoryview) -> int:
        count = self._inner.readinto(view)
        self._crc = isal_zlib.crc32(view[:count], self._crc)
        total = self.bytes_out + count
        if total > self._member.size_bytes:
            raise UnsafeInput(
                f"the zip claims {self._member.size_bytes:,} bytes and holds more",
                path=self.path,
                next_step="ask whoever made it for a plain file",
            )
        if count < len(view):
            if self._inner.problem:
                self._cut(self._inner.problem, truncated=self._inner.truncated)
            elif total < self._member.size_bytes:
                self._cut(f"the zip claims {self._member.size_bytes:,} bytes and holds {total:,}", truncated=True)
            elif self._crc != self._member.crc:
                self._cut("the checksum of the zip member does not match its content", truncated=False)
        return count

    def close(self) -> None:
        """Close the archive."""
        if hasattr(self, "_inner"):
            self._inner.close()
        super().close()


def raw_member(file: Path | RemoteFile, member: Member, *, path: str, limits: Limits) -> Stream:
    """Open the stored bytes of a zip member, still compressed."""
    with open_regular(file, path=path) as raw:
        raw.seek(member.offset)
        header = raw.read(30) or b""
    if len(header) < 30 or not header.startswith(ZIP_MAGIC):
        raise CorruptInput(
            "the zip directory points to a place without a member",
            path=path,
            next_step="copy it again from where it was made",
        )
    name_bytes, extra_bytes = struct.unpack_from("<HH", header, 26)
    return SliceStream(
        file,
        path=path,
        offset=member.offset + 30 + name_bytes + extra_bytes,
        length=member.stored_bytes,
        limits=limits,
    )


def open_member(file: Path | RemoteFile, member: Member, *, path: str, limits: Limits) -> Stream:
    """Open a member where it lies; an archive of thousands is not walked again for each."""
    if member.is_zipped:
        return ZipStream(file, member, path=path, limits=limits)
    return SliceStream(file, path=path, offset=member.offset, length=member.stored_bytes, limits=limits)
