"""Find what can be ingested, and choose its reader by content, never by extension.

    find_inputs(paths, spool=folder) -> Found(inputs, rejected, ignored)

Each path is a file, a folder or an archive. Nothing raises: a file that cannot be used becomes one
`InputError` (path, reason, next step) in `rejected`, and the search goes on.

Only a bounded head of each file decides. JSON that has not shown `traceEvents` within it is still taken
for a trace (a header may be megabytes of process groups): the reader decides.

A file that the user names is rejected if it is no trace; the same file met inside a folder or archive is
`ignored`, because people point at the whole run directory. Damage is rejected in both cases.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from perfkit.errors import CorruptInput, InputError, UnsafeInput, UnsupportedInput
from perfkit.sources import archives
from perfkit.sources.base import Input
from perfkit.sources.inputs import (
    GZIP_MAGIC,
    UTF8_BOM,
    ZSTD_MAGIC,
    BytesStream,
    Limits,
    SliceStream,
    Stream,
    copy_stream,
    decompress,
    file_kind,
    fingerprint,
    os_error,
)

HEAD_BYTES = 1 << 16
"""Stored, and then uncompressed, bytes that decide what a file is."""
MAX_REFUSALS = 50
"""Lines about refused members of one archive; the rest are counted in one more."""
SQLITE_MAGIC = b"SQLite format 3\0"
NSYS_REP_MAGIC = b"NVIDIA Tegra Profiler Report"
NSYS_TABLE = re.compile(
    r"CUPTI_ACTIVITY_KIND_\w+|NVTX_EVENTS|StringIds|META_DATA_EXPORT|EXPORT_META_DATA|TARGET_INFO_\w+"
    r"|ENUM_NSYS_EVENT_TYPE"
)
"""Names of tables that only an nsys export has."""


class Ignored(NamedTuple):
    """A file in a folder or archive that is no trace, and why."""

    path: str
    reason: str


@dataclass(slots=True)
class Found:
    """What a search found, each list sorted by path."""

    inputs: list[Input] = field(default_factory=list)
    rejected: list[InputError] = field(default_factory=list)
    ignored: list[Ignored] = field(default_factory=list)


class NotATrace(UnsupportedInput):
    """Readable and undamaged, but nothing to ingest; ignored unless the user named it."""


def find_inputs(
    paths: Iterable[str | os.PathLike[str]], *, limits: Limits | None = None, spool: Path | None = None
) -> Found:
    """Find every input under `paths`.

    Members of compressed tar archives, and databases that are inside something, are copied to `spool` (the
    caller makes and deletes it); without it they are rejected. All else is opened in place.
    """
    search = _Search(limits or Limits(), spool)
    for path in paths:
        search.path(Path(path))
    found = search.found
    found.inputs.sort(key=lambda input: input.path)
    found.rejected.sort(key=lambda error: (error.path, error.message))
    found.ignored.sort()
    return found


# --- what a file is --------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """What a file is, from its head."""

    kind: str
    """`kineto`, `nsys-sqlite`, `tar`, `zip`, `parquet`."""
    compression: str


def classify(head: bytes, *, path: str, complete: bool, limits: Limits | None = None) -> Verdict:
    """Decide from the first `HEAD_BYTES` stored bytes; `complete` says that there are no more.

    Raises `NotATrace`, or another `InputError` for what was meant as a trace and is damaged or in the wrong form.
    """
    for compression, magic in (("gzip", GZIP_MAGIC), ("zstd", ZSTD_MAGIC)):
        if head.startswith(magic):
            with decompress(lambda: BytesStream(head, path=path), compression, path=path, limits=limits) as stream:
                inner = stream.read(HEAD_BYTES) or b""
                inner_complete = complete and not stream.read(1)
            if not inner:
                raise CorruptInput(
                    f"empty or broken {compression} data", path=path, next_step="copy it again from where it was made"
                )
            if inner.startswith((GZIP_MAGIC, ZSTD_MAGIC)):
                raise UnsupportedInput(
                    "compressed twice", path=path, next_step="decompress it once and give the result"
                )
            return Verdict(_classify_plain(inner, path, inner_complete), compression)
    return Verdict(_classify_plain(head, path, complete), "none")


def _classify_plain(head: bytes, path: str, complete: bool) -> str:
    if head.startswith(SQLITE_MAGIC):
        return "nsys-sqlite"
    if head.startswith((archives.ZIP_MAGIC, archives.ZIP_EMPTY_MAGIC)):
        return "zip"
    if archives.is_tar(head):
        return "tar"
    if head.startswith(b"PAR1"):
        return "parquet"
    _refuse_known(head, path)
    text = head.removeprefix(UTF8_BOM).lstrip(b" \t\r\n")
    if text[:1] in (b"{", b"["):
        _check_json(text, path, complete)
        return "kineto"
    name = path.lower()
    if not text:
        what = "empty file" if not head else "nothing but white space"
        if _is_trace_name(name):
            raise CorruptInput(what, path=path, next_step="export the trace again")
        raise NotATrace(what, path=path, next_step="give a trace file")
    for ending, compression in ((".gz", "gzip"), (".tgz", "gzip"), (".zst", "zstd")):
        if name.endswith(ending):
            raise CorruptInput(
                f"named {ending} but it is not {compression} data (it starts with {_shown(head)})",
                path=path,
                next_step="copy it again from where it was made",
            )
    if name.endswith(".json"):
        raise CorruptInput(f"not JSON: it starts with {_shown(head)}", path=path, next_step="export the trace again")
    raise NotATrace(
        f"not a trace that perfkit knows (it starts with {_shown(head)})",
        path=path,
        next_step="give a torch.profiler JSON trace or an nsys SQLite export",
    )


def _refuse_known(head: bytes, path: str) -> None:
    """Raise for content that perfkit recognises and cannot use."""
    if head.startswith(NSYS_REP_MAGIC):
        raise UnsupportedInput("an nsys report, which only nsys can read", path=path, next_step=_nsys_rep_hint(path))
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        raise UnsupportedInput(
            "a git-LFS pointer, not the file itself", path=path, next_step="run `git lfs pull` in its repository"
        )
    if head[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        if b"pg_config" in head or b"pg_status" in head:
            raise NotATrace(
                "a Flight Recorder dump (pickle)",
                path=path,
                next_step="`perfkit hang` of a later version reads it; ingest takes profiler traces",
            )
        raise NotATrace("a pickle, which perfkit never loads", path=path, next_step="give a profiler trace")
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff", b"FEA1")):
        raise NotATrace("an Arrow file, not a trace", path=path, next_step="give a profiler trace")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or head[:2] in (b"{\0", b"[\0", b"\0{", b"\0["):
        raise UnsupportedInput(
            "text in UTF-16", path=path, next_step="convert it with `iconv -f UTF-16 -t UTF-8 FILE > NEW`"
        )
    if head.startswith((b"\xfd7zXZ\0", b"BZh")):
        what = "xz" if head.startswith(b"\xfd") else "bzip2"
        error: type[InputError] = UnsupportedInput if ".json" in path.lower() or ".tar" in path.lower() else NotATrace
        raise error(f"compressed with {what}", path=path, next_step="decompress it and give the result")
    start = head[:512].lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")) or (start.startswith(b"<?xml") and _is_trace_name(path.lower())):
        error = CorruptInput if _is_trace_name(path.lower()) else NotATrace
        raise error(
            "a web page, not a trace (a failed download?)",
            path=path,
            next_step="download the file itself, with the credentials it needs",
        )


def _check_json(text: bytes, path: str, complete: bool) -> None:
    """Raise `NotATrace` if this JSON is surely none."""
    if text[:1] == b"{":
        if b'"traceEvents"' in text:
            return
        keys, closed = _top_level_keys(text)
        if "nodes" in keys:
            raise NotATrace(
                "a PyTorch execution trace (ET), not a Kineto trace",
                path=path,
                next_step="give the file that torch.profiler's export_chrome_trace wrote",
            )
        if closed or (complete and not keys):
            shown = ", ".join(repr(key) for key in keys[:4]) or "no keys"
            raise NotATrace(
                f"JSON without traceEvents (it has {shown})",
                path=path,
                next_step="give the file that torch.profiler's export_chrome_trace wrote",
            )
        return
    first = text[1:].lstrip(b" \t\r\n")[:1]
    if first == b"{" and b'"ph"' in text:
        return
    if first == b"{" and not complete and b"}" not in text:
        return  # one enormous first element
    if not first and not complete:
        return
    what = "an empty list" if first == b"]" else "a JSON list that holds no trace events"
    raise NotATrace(what, path=path, next_step="give the file that torch.profiler's export_chrome_trace wrote")


_JSON_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)


def _top_level_keys(text: bytes) -> tuple[list[str], bool]:
    """Return the keys of the top-level object as far as `text` goes, and whether the object is closed."""
    depth = 0
    keys = []
    for token in _JSON_TOKEN.finditer(text):
        char = text[token.start()]
        if char == 0x22:
            if depth == 1 and text[token.end() : token.end() + 64].lstrip()[:1] == b":":
                keys.append(token.group()[1:-1][:80].decode("utf-8", "replace"))
        elif char in b"{[":
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                return keys, True
    return keys, False


def _is_trace_name(name: str) -> bool:
    return name.endswith((".json", ".json.gz", ".json.zst", ".gz", ".tgz", ".zst", ".tar", ".zip", ".sqlite"))


def _shown(head: bytes) -> str:
    """Show the first bytes on one line, whatever they are."""
    return repr(head[:16])[1:]


def _nsys_rep_hint(path: str) -> str:
    from perfkit.sources.nsys import NSYS_REP_HINT  # only then: nsys.py imports what SQLite and parquet need

    return NSYS_REP_HINT.format(stem=path.removesuffix(".nsys-rep"), path=path)


# --- where files are -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Candidate:
    """Stored bytes that may be an input."""

    path: str
    file: Path
    size_bytes: int
    named: bool
    """The user named this very file."""
    member: str | None = None
    open: Callable[[], Stream] = field(kw_only=True)

    @property
    def inside(self) -> bool:
        return "!" in self.path and not self.named


class _Search:
    """One search: what was found so far, and what it has cost."""

    def __init__(self, limits: Limits, spool: Path | None) -> None:
        self.limits = limits
        self.spool = spool
        self.found = Found()
        self._seen: dict[Path, str] = {}
        self._spooled_bytes = 0
        self._num_spooled = 0

    # paths and folders

    def path(self, path: Path) -> None:
        """Take a path that the user named."""
        shown = str(path)
        try:
            mode = path.stat().st_mode
        except (OSError, ValueError) as error:
            if isinstance(error, FileNotFoundError) and path.is_symlink():
                self._reject(
                    InputError(
                        "a symbolic link to nothing", path=shown, next_step="give the file that it should lead to"
                    )
                )
            else:
                self._reject(os_error(error, shown))
            return
        if stat.S_ISDIR(mode):
            self._folder(path)
        elif stat.S_ISREG(mode):
            self._file(path, named=True)
        else:
            self._reject(
                InputError(f"{file_kind(mode)}, not a file", path=shown, next_step="give the trace file itself")
            )

    def _folder(self, root: Path) -> None:
        before = len(self.found.inputs), len(self.found.rejected), len(self.found.ignored), len(self._seen)
        self._walk(root, root.resolve())
        inputs, rejected, ignored, seen = before
        if len(self.found.inputs) > inputs or len(self.found.rejected) > rejected:
            return
        skipped = self.found.ignored[ignored:]
        if not skipped and len(self._seen) > seen:
            return
        reason = "an empty folder" if not skipped else f"no trace among {len(skipped)} files"
        if len(skipped) == 1:
            reason = f"no trace in this folder ({Path(skipped[0].path).name}: {skipped[0].reason})"
        if any(item.reason.startswith(_SAME_FILE) for item in skipped):
            return
        self._reject(
            UnsupportedInput(reason, path=str(root), next_step="give the folder that the profiler wrote its traces to")
        )

    def _walk(self, folder: Path, root: Path) -> None:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            self._reject(os_error(error, str(folder)))
            return
        taken = self._nsys_parquet(folder, entries)
        for entry in entries:
            path = folder / entry.name
            if entry.name in taken:
                continue
            if entry.name.startswith(".") or entry.name == "__MACOSX":
                self._ignore(str(path), "hidden")
                continue
            try:
                if entry.is_symlink() and not self._link_stays(path, root):
                    continue
                mode = entry.stat().st_mode
            except OSError as error:
                self._reject(os_error(error, str(path)))
                continue
            if stat.S_ISDIR(mode):
                if self._first_time(path):
                    self._walk(path, root)
            elif stat.S_ISREG(mode):
                self._file(path, named=False)
            else:
                self._ignore(str(path), file_kind(mode))

    def _link_stays(self, path: Path, root: Path) -> bool:
        try:
            target = path.resolve(strict=True)
        except (OSError, RuntimeError):
            self._reject(
                InputError("a symbolic link to nothing", path=str(path), next_step="give the file it should lead to")
            )
            return False
        if target.is_relative_to(root):
            return True
        self._reject(
            UnsafeInput("a symbolic link that leaves the folder", path=str(path), next_step=f"give {target} itself")
        )
        return False

    def _first_time(self, path: Path) -> bool:
        real = path.resolve()
        if real in self._seen:
            self._ignore(str(path), f"{_SAME_FILE} {self._seen[real]}")
            return False
        self._seen[real] = str(path)
        return True

    def _nsys_parquet(self, folder: Path, entries: list[os.DirEntry[str]]) -> set[str]:
        """Take a folder of parquet files with nsys table names as one input; return the names it covers."""
        tables = [entry.name for entry in entries if entry.name.endswith(".parquet") and entry.is_file()]
        if not any(NSYS_TABLE.fullmatch(name.removesuffix(".parquet")) for name in tables):
            return set()
        if not self._first_time(folder / "*.parquet"):
            return set(tables)
        digest = hashlib.blake2b(digest_size=16)
        size = 0
        try:
            for name in tables:
                file = folder / name
                with SliceStream(file, path=str(file), limits=self.limits) as stream:
                    digest.update(f"{name}\0{fingerprint(stream)}\0".encode(errors="surrogateescape"))
                    size += stream.bytes_out
        except InputError as error:
            self._reject(error)
            return set(tables)
        self.found.inputs.append(
            Input(path=str(folder), kind="nsys-parquet", file=folder, size_bytes=size, fingerprint=digest.hexdigest())
        )
        return set(tables)

    # files

    def _file(self, path: Path, *, named: bool) -> None:
        if not self._first_time(path):
            return

        def open_file() -> Stream:
            return SliceStream(path, path=str(path), limits=self.limits)

        try:
            size = path.stat().st_size
        except OSError as error:
            self._reject(os_error(error, str(path)))
            return
        self._candidate(_Candidate(str(path), path, size, named, open=open_file))

    def _candidate(self, candidate: _Candidate) -> None:
        """Find out what it is and record it; whatever is wrong with it becomes one line."""
        try:
            with candidate.open() as stream:
                head = stream.read(HEAD_BYTES) or b""
                complete = not stream.read(1)
            verdict = classify(head, path=candidate.path, complete=complete, limits=self.limits)
            if verdict.kind in ("tar", "zip"):
                self._archive(candidate, verdict)
            elif verdict.kind == "kineto":
                self._add(candidate, verdict)
            elif verdict.kind == "nsys-sqlite":
                self._database(candidate, verdict)
            else:
                raise NotATrace(
                    "a parquet file that is not part of an nsys parquetdir export",
                    path=candidate.path,
                    next_step="for nsys, give the whole folder that `nsys export --type parquetdir` wrote",
                )
        except NotATrace as error:
            if candidate.named:
                self._reject(error)
            else:
                self._ignore(error.path, error.message)
        except InputError as error:
            self._reject(error)

    def _add(self, candidate: _Candidate, verdict: Verdict) -> None:
        with candidate.open() as stream:
            identity = fingerprint(stream)
        self.found.inputs.append(
            Input(
                path=candidate.path,
                kind=verdict.kind,
                file=candidate.file,
                size_bytes=candidate.size_bytes,
                fingerprint=identity,
                compression=verdict.compression,
                member=candidate.member,
            )
        )

    def _database(self, candidate: _Candidate, verdict: Verdict) -> None:
        """Check that a SQLite file is an nsys export; SQLite needs it as a file of its own."""
        file = candidate.file
        if candidate.member is not None or verdict.compression != "none":
            with decompress(candidate.open, verdict.compression, path=candidate.path, limits=self.limits) as stream:
                file = self._to_spool(stream)
                if stream.problem:
                    raise CorruptInput(
                        stream.problem, path=candidate.path, next_step="copy it again from where it was made"
                    )
        check_nsys_tables(file, path=candidate.path)
        copy = _Candidate(
            candidate.path,
            file,
            candidate.size_bytes,
            candidate.named,
            open=candidate.open,
        )
        self._add(copy, Verdict("nsys-sqlite", "none"))

    # archives

    def _archive(self, candidate: _Candidate, verdict: Verdict) -> None:
        if candidate.inside:
            raise UnsupportedInput(
                "an archive inside an archive",
                path=candidate.path,
                next_step="unpack the outer archive and give the folder",
            )
        before = len(self.found.inputs) + len(self.found.rejected)
        if verdict.kind == "zip":
            if verdict.compression != "none":
                raise UnsupportedInput(
                    "a compressed zip archive", path=candidate.path, next_step="decompress it and give the zip"
                )
            self._zip(candidate)
        else:
            self._tar(candidate, verdict.compression)
        if len(self.found.inputs) + len(self.found.rejected) == before:
            raise UnsupportedInput(
                "an archive without a trace in it", path=candidate.path, next_step="give a trace file"
            )

    def _readable(self, archive: str, members: Iterable[archives.Member]) -> Iterator[tuple[archives.Member, str]]:
        """Yield the members to look at; say why others are refused."""
        num_refused = 0
        for member in members:
            shown = f"{archive}!{archives.shown_name(member.name)}"
            if member.refused:
                num_refused += 1
                if num_refused <= MAX_REFUSALS:
                    self._reject(
                        UnsafeInput(
                            f"refused: {member.refused}",
                            path=shown,
                            next_step="if you need it, unpack the archive yourself and give the file",
                        )
                    )
            elif any((part.startswith(".") and part != ".") or part == "__MACOSX" for part in member.name.split("/")):
                self._ignore(shown, "hidden")
            elif not member.is_folder:
                yield member, shown
        if num_refused > MAX_REFUSALS:
            self._reject(
                UnsafeInput(
                    f"{num_refused - MAX_REFUSALS:,} more members refused",
                    path=archive,
                    next_step="unpack the archive yourself and give the folder",
                )
            )

    def _zip(self, archive: _Candidate) -> None:
        members = archives.zip_members(archive.file, path=archive.path, limits=self.limits)
        for member, shown in self._readable(archive.path, members):

            def open_member(member: archives.Member = member, shown: str = shown) -> Stream:
                return archives.ZipStream(archive.file, member, path=shown, limits=self.limits)

            self._candidate(_Candidate(shown, archive.file, member.stored_bytes, False, member.name, open=open_member))

    def _tar(self, archive: _Candidate, compression: str) -> None:
        with decompress(archive.open, compression, path=archive.path, limits=self.limits) as stream:
            for member, shown in self._readable(archive.path, archives.tar_members(stream, limits=self.limits)):
                if compression == "none":

                    def open_member(member: archives.Member = member, shown: str = shown) -> Stream:
                        return SliceStream(
                            archive.file,
                            path=shown,
                            offset=member.offset,
                            length=member.stored_bytes,
                            limits=self.limits,
                        )

                    self._candidate(
                        _Candidate(shown, archive.file, member.stored_bytes, False, member.name, open=open_member)
                    )
                else:
                    self._spool_member(stream, member, shown)
            if stream.problem:
                raise CorruptInput(
                    f"{stream.problem}; what came before was read",
                    path=archive.path,
                    next_step="copy it again from where it was made",
                )

    def _spool_member(self, stream: Stream, member: archives.Member, shown: str) -> None:
        """Copy a member of a compressed tar to the spool, if its head looks like an input."""
        head = stream.read(min(HEAD_BYTES, member.stored_bytes)) or b""
        try:
            classify(head, path=shown, complete=len(head) == member.stored_bytes, limits=self.limits)
            file = self._to_spool(_Joined(head, stream, member.stored_bytes, path=shown, limits=self.limits))
        except NotATrace as error:
            self._ignore(error.path, error.message)
            return
        except InputError as error:
            self._reject(error)
            return

        def open_spooled() -> Stream:
            return SliceStream(file, path=shown, limits=self.limits)

        self._candidate(_Candidate(shown, file, member.stored_bytes, False, open=open_spooled))

    def _to_spool(self, stream: Stream) -> Path:
        if self.spool is None:
            raise UnsupportedInput(
                "it must be unpacked first, and there is no folder for that",
                path=stream.path,
                next_step="unpack it and give the folder",
            )
        self._num_spooled += 1
        # Numbered, never named after the member: no name in an archive reaches the file system.
        target = self.spool / f"{self._num_spooled:06d}"
        allowed = self.limits.max_total_bytes - self._spooled_bytes
        self._spooled_bytes += copy_stream(stream, target, limits=self.limits, max_bytes=allowed)
        return target

    def _reject(self, error: InputError) -> None:
        self.found.rejected.append(error)

    def _ignore(self, path: str, reason: str) -> None:
        self.found.ignored.append(Ignored(path, reason))


_SAME_FILE = "the same file as"


class _Joined(Stream):
    """A member of an archive that is being walked: its head, already read, and the rest."""

    def __init__(self, head: bytes, rest: Stream, size: int, *, path: str, limits: Limits) -> None:
        super().__init__(path, limits)
        self.unread(head)
        self._rest = rest
        self._left = size - len(head)

    def _fill(self, view: memoryview) -> int:
        count = self._rest.readinto(view[: self._left]) if self._left else 0
        self._left -= count
        return count


def check_nsys_tables(file: Path, *, path: str) -> None:
    """Raise unless a SQLite file holds tables of an nsys export."""
    uri = file.absolute().as_uri() + "?mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(uri, uri=True)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            query = "SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 10000"
            tables = [str(row[0]) for row in connection.execute(query)]
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise CorruptInput(
            f"broken SQLite database ({error})", path=path, next_step="run `nsys export` again"
        ) from error
    if not any(NSYS_TABLE.fullmatch(table) for table in tables):
        shown = ", ".join(archives.shown_name(table) for table in tables[:4]) or "no tables"
        raise NotATrace(
            f"a SQLite database that nsys did not export (it has {shown})",
            path=path,
            next_step="give the file that `nsys export --type sqlite` wrote",
        )
