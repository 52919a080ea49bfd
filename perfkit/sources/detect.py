"""Find what can be ingested, and choose its reader by content, never by extension.

    find_inputs(paths, spool=folder) -> Found(inputs, rejected, ignored)

Each path is a file, a folder or an archive, here or in object storage (`s3://…`, which is listed once and read in
place: only databases and parquet, which cannot be streamed, are copied). Nothing raises: a file that cannot be used
becomes one `InputError` (path, reason, next step) in `rejected`, and the search goes on.

What a file is, `perfkit.sources.kinds` says; where files are is found here. The tables of an nsys parquetdir
export are one input, as a folder or inside an archive.

A file that the user names is rejected if it is no trace; the same file met inside a folder or archive is
`ignored`, because people point at the whole run directory. Damage is rejected in both cases.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from perfkit.errors import CorruptInput, InputError, UnsafeInput, UnsupportedInput
from perfkit.report.format import plural
from perfkit.sources import archives
from perfkit.sources.base import Input
from perfkit.sources.identity import fingerprint, identified
from perfkit.sources.inputs import (
    Limits,
    SliceStream,
    Stream,
    compression_of,
    copy_stream,
    decompress,
    file_kind,
    os_error,
    shown_path,
)
from perfkit.sources.kinds import (
    HEAD_BYTES,
    NSYS_TABLE,
    NotATrace,
    Verdict,
    blaming,
    check_nsys_projection,
    check_nsys_tables,
    classify,
    log_kind,
    nsys_exports,
)
from perfkit.sources.remote import RemoteFile, list_remote
from perfkit.store.filesystems import is_remote
from perfkit.store.layout import MARKER as STORE_MARKER

SPOOL_MARKER = "perfkit-spool.json"
LOG_SEARCH_BYTES = 32 << 20
"""How far into a text file a training log may begin: a job's launcher and its start-up print before it."""
LOG_LINE_BYTES = 4096
REMOTE_AT_ONCE = 16
"""Requests under way while remote files are looked at: latency, not work."""
REMOTE_HEADS = 256
"""Remote files whose heads are held at once."""
DUMP_HEAD_BYTES = 1 << 13
"""How much of a text is looked at to tell whether it is a scheduler's: its header line."""
HIDDEN_SHOWN = 3
MAX_REFUSALS = 50
"""Lines about refused members of one archive; the rest are counted in one more."""


class Ignored(NamedTuple):
    """A file in a folder or archive that is no trace, and why."""

    path: str
    reason: str
    command: str = ""
    """The command of perfkit that reads it, if there is one."""


class ForOtherCommand(NotATrace):
    """No trace, but what another command of perfkit reads."""

    def __init__(self, message: str, *, path: str, next_step: str, command: str) -> None:
        super().__init__(message, path=path, next_step=next_step)
        self.command = command


def _for_other_command(head: bytes, path: str) -> ForOtherCommand | None:
    """Recognise what is no trace by its first bytes, so that whoever took the wrong command learns the right one."""
    from perfkit.goodput.importers import is_dump  # only then: neither is needed to look at a trace
    from perfkit.sources.flight_recorder import looks_like_dump

    if looks_like_dump(head):
        return ForOtherCommand(
            "a Flight Recorder dump", path=path, next_step="`perfkit hang FOLDER` explains it", command="hang"
        )
    if is_dump(head[:DUMP_HEAD_BYTES]):
        return ForOtherCommand(
            "a list of jobs, nodes or counters, not a trace",
            path=path,
            next_step="`perfkit goodput FILE` reads it",
            command="goodput",
        )
    return None


def _classify(head: bytes, *, path: str, complete: bool, limits: Limits) -> Verdict:
    """Say what a file is; what is no trace raises, with the right command if another one reads it."""
    try:
        return classify(head, path=path, complete=complete, limits=limits)
    except NotATrace as error:
        raise _for_other_command(head, path) or error from None


@dataclass(slots=True)
class Found:
    """What a search found, each list sorted by path."""

    inputs: list[Input] = field(default_factory=list)
    rejected: list[InputError] = field(default_factory=list)
    ignored: list[Ignored] = field(default_factory=list)
    spools: list[Path] = field(default_factory=list)
    """Folders of ranks in a spool: perfkit.sources.spool compacts them."""


def find_inputs(
    paths: Iterable[str | os.PathLike[str]],
    *,
    limits: Limits | None = None,
    spool: Path | None = None,
    identify: bool = True,
) -> Found:
    """Find every input under `paths`.

    Members of compressed tar archives, and databases and parquet that are inside something, are copied to
    `spool` (the caller makes and deletes it); without it they are rejected. All else is opened in place.

    Without `identify` traces are not read for their fingerprints: see perfkit.sources.identity.
    """
    search = _Search(limits or Limits(), spool)
    for path in paths:
        if is_remote(path):
            search.remote(os.fspath(path))
        else:
            search.path(Path(path))
    found = search.found
    if identify:
        found.inputs = identified(found.inputs, found.rejected, limits)
    found.inputs.sort(key=lambda input: input.path)
    found.rejected.sort(key=lambda error: (error.path, error.message))
    found.ignored.sort()
    return found


class Head(NamedTuple):
    """The first bytes of a file, or why they cannot be read."""

    data: bytes
    complete: bool
    problem: str | None = None
    """What is wrong with the stored bytes."""
    error: InputError | None = None


def read_head(stream: Stream) -> Head:
    """Read what is looked at to tell what a file is."""
    data, complete = stream.read(HEAD_BYTES) or b"", not stream.read(1)
    if not data and stream.problem:
        return Head(data, complete, error=_damaged(stream.problem, stream.path))
    return Head(data, complete, stream.problem)


def _damaged(problem: str, path: str) -> CorruptInput:
    return CorruptInput(problem, path=path, next_step="copy it again from where it was made")


@dataclass(slots=True)
class _Candidate:
    """Stored bytes that may be an input."""

    path: str
    file: Path | RemoteFile
    size_bytes: int
    named: bool
    """The user named this very file."""
    packed: archives.Member | None = None
    """What it is in an archive."""
    spooled: bool = False
    """`file` is a copy of its own, no longer the archive."""
    below: str | None = None
    """Name below the remote folder that was listed."""
    head: Head | None = None
    """If it has been read already."""
    open: Callable[[], Stream] = field(kw_only=True)

    @property
    def name(self) -> str | None:
        return self.below if self.packed is None else self.packed.name

    @property
    def member(self) -> archives.Member | None:
        return None if self.spooled else self.packed


class _Search:
    """One search: what was found so far, and what it has cost."""

    def __init__(self, limits: Limits, spool: Path | None) -> None:
        self.limits = limits
        self.spool = spool
        self.found = Found()
        self._seen: dict[Path, str] = {}
        self._taken: set[Path] = set()  # files of exports that are inputs as a whole
        self._held: list[tuple[_Candidate, Verdict]] = []  # parquet of the archive that is being walked
        self._spooled_bytes = 0
        self._num_spooled = 0

    # paths and folders

    def path(self, path: Path) -> None:
        """Take a path that the user named."""
        shown = shown_path(path)
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
        if not self._first_time(root):
            return
        before = len(self.found.inputs), len(self.found.rejected), len(self.found.ignored), len(self._seen)
        self._walk(root, root.resolve())
        inputs, rejected, ignored, seen = before
        if len(self.found.inputs) > inputs or len(self.found.rejected) > rejected or self.found.spools:
            return
        skipped = self.found.ignored[ignored:]
        if not skipped and len(self._seen) > seen:
            return
        if any(item.reason.startswith(_SAME_FILE) for item in skipped):
            return
        if (root / STORE_MARKER).is_file():
            reason = "a perfkit store, not traces"
            next_step = f"`perfkit analyze RUN --store {shown_path(root)}` reads it"
        else:
            reason = _why_no_trace(root, skipped)
            next_step = _other_commands(root, skipped) or "give the folder that the profiler wrote its traces to"
        self._reject(UnsupportedInput(reason, path=shown_path(root), next_step=next_step))

    def _walk(self, root: Path, target: Path) -> None:
        waiting = [root]  # not by recursion: a hostile tree may be deeper than the stack
        while waiting:
            waiting += reversed(self._take_folder(waiting.pop(), target))

    def _take_folder(self, folder: Path, root: Path) -> list[Path]:
        """Take the files of a folder, and return the folders in it."""
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            self._reject(os_error(error, shown_path(folder)))
            return []
        if any(entry.name == SPOOL_MARKER for entry in entries):
            self.found.spools.append(folder)
            return []
        entries = [entry for entry in self._outside_store(folder, entries) if folder / entry.name not in self._taken]
        self._export(folder, entries)
        folders = []
        for entry in entries:
            path = folder / entry.name
            if path in self._taken:
                continue
            if entry.name.startswith(".") or entry.name == "__MACOSX":
                self._ignore(shown_path(path), _HIDDEN_FOLDER if entry.is_dir(follow_symlinks=False) else "hidden")
                continue
            try:
                if entry.is_symlink() and not self._link_stays(path, root):
                    continue
                mode = entry.stat().st_mode
            except OSError as error:
                self._reject(os_error(error, shown_path(path)))
                continue
            if stat.S_ISDIR(mode):
                if self._first_time(path):
                    folders.append(path)
            elif stat.S_ISREG(mode):
                self._file(path, named=False)
            else:
                self._ignore(shown_path(path), file_kind(mode))
        return folders

    def _outside_store(self, folder: Path, entries: list[os.DirEntry[str]]) -> list[os.DirEntry[str]]:
        """Leave out what perfkit itself wrote, if a store lies in this folder."""
        names = {entry.name for entry in entries}
        if STORE_MARKER not in names:
            return entries
        from perfkit.store.layout import TOP_LEVEL  # only then: a store is no part of most folders

        self._ignore(shown_path(folder / STORE_MARKER), "a perfkit store; its tables are not looked at")
        return [entry for entry in entries if entry.name not in TOP_LEVEL]

    def _link_stays(self, path: Path, root: Path) -> bool:
        try:
            target = path.resolve(strict=True)
        except (OSError, RuntimeError):
            self._reject(
                InputError(
                    "a symbolic link to nothing", path=shown_path(path), next_step="give the file it should lead to"
                )
            )
            return False
        if target.is_relative_to(root):
            return True
        self._reject(
            UnsafeInput(
                "a symbolic link that leaves the folder", path=shown_path(path), next_step=f"give {target} itself"
            )
        )
        return False

    def _first_time(self, path: Path) -> bool:
        real = path.resolve()
        if real in self._seen:
            self._ignore(shown_path(path), f"{_SAME_FILE} {self._seen[real]}")
            return False
        self._seen[real] = shown_path(path)
        return True

    # object storage

    def remote(self, uri: str) -> None:
        """Take a URI that the user named: a file, or everything below it."""
        try:
            files = list_remote(uri)
        except InputError as error:
            self._reject(error)
            return
        root = uri.split("?")[0].rstrip("/")
        named = len(files) == 1 and files[0].shown == root
        wanted = files if named else self._wanted_below(root, files)
        before = len(self.found.inputs) + len(self.found.rejected), len(self.found.ignored)
        for start in range(0, len(wanted), REMOTE_HEADS):
            some = wanted[start : start + REMOTE_HEADS]
            with ThreadPoolExecutor(REMOTE_AT_ONCE) as pool:
                heads = list(pool.map(self._remote_head, some))
            for file, head in zip(some, heads, strict=True):
                self._candidate(
                    _Candidate(
                        file.shown, file, file.size_bytes, named, head=head,
                        below=None if named else file.shown.removeprefix(f"{root}/"), open=partial(self._open, file),
                    )
                )  # fmt: skip
        self._release(root, "/")
        if len(self.found.inputs) + len(self.found.rejected) > before[0]:
            return
        skipped = self.found.ignored[before[1] :]
        self._reject(
            UnsupportedInput(
                f"no trace among {plural(len(skipped), 'file')}" if skipped else "nothing there",
                path=uri,
                next_step="give the folder that the profiler wrote its traces to" if skipped else "check the path",
            )
        )

    def _wanted_below(self, root: str, files: list[RemoteFile]) -> list[RemoteFile]:
        """Leave out what is hidden, and what perfkit itself wrote."""
        from perfkit.store.layout import TOP_LEVEL

        folders = Counter(file.shown.rpartition("/")[0] for file in files if file.name == STORE_MARKER)
        spools = {file.shown.rpartition("/")[0] for file in files if file.name == SPOOL_MARKER}
        for folder in spools:
            self._reject(
                UnsupportedInput("a spool", path=folder, next_step="copy it to a local disk and ingest it from there")
            )
        for folder in folders:
            self._ignore(f"{folder}/{STORE_MARKER}", "a perfkit store; its tables are not looked at")
        stored = tuple(f"{folder}/{name}" for folder in folders for name in TOP_LEVEL)
        wanted = []
        for file in files:
            parts = file.shown.removeprefix(f"{root}/").split("/")
            if any(part.startswith(".") or part == "__MACOSX" for part in parts):
                self._ignore(file.shown, "hidden")
            elif file.size_bytes and not file.shown.startswith((*stored, *(f"{folder}/" for folder in spools))):
                wanted.append(file)
        return wanted

    def _open(self, file: RemoteFile) -> Stream:
        return SliceStream(file, path=file.shown, limits=self.limits)

    def _remote_head(self, file: RemoteFile) -> Head:
        try:
            with self._open(file) as stream:
                return read_head(stream)
        except InputError as error:
            return Head(b"", True, error=error)

    # nsys exports in parquet

    def _export(self, folder: Path, entries: list[os.DirEntry[str]]) -> None:
        """Take the tables of an nsys export that lie in this folder as one input."""
        names = [entry.name for entry in entries if entry.name.endswith(".parquet") and entry.is_file()]
        folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        if any(NSYS_TABLE.fullmatch(name) for name in folders):
            for name in folders:
                with contextlib.suppress(OSError):  # the walk reports it
                    names += [f"{name}/{part.name}" for part in (folder / name).iterdir()]
        files = {name: folder / name for name in nsys_exports(names).get("", ())}
        self._taken.update(files.values())
        if files and self._first_time(folder / "*.parquet"):
            with self._one_line(shown_path(folder), named=False):
                self._add_export(folder, files, path=shown_path(folder))

    def _add_export(self, folder: Path, files: dict[str, Path], *, path: str) -> None:
        """Add an export whose files have these names in it; the names and the contents are its identity."""
        tables = {(name.partition("/")[0].removesuffix(".parquet"), "/" in name) for name in files}
        if twice := sorted(table for table, in_folder in tables if in_folder and (table, False) in tables):
            raise CorruptInput(
                f"the table {twice[0]} is there as a file and as a folder", path=path, next_step="remove one of the two"
            )
        digest = hashlib.blake2b(digest_size=16)
        size = 0
        for name, file in sorted(files.items()):
            if file.is_symlink():
                raise UnsafeInput(f"{name} is a symbolic link", path=path, next_step="copy the files themselves")
            with SliceStream(file, path=f"{path}/{name}", limits=self.limits) as stream:
                digest.update(f"{name}\0{fingerprint(stream)}\0".encode(errors="surrogateescape"))
                size += stream.bytes_out
        self.found.inputs.append(
            Input(path=path, kind="nsys-parquet", file=folder, size_bytes=size, identity=digest.hexdigest())
        )

    def _release(self, where: str, separator: str = "!") -> None:
        """Decide what the parquet files of an archive or remote folder are, now that all their names are known."""
        held = {candidate.name or "": (candidate, verdict) for candidate, verdict in self._held}
        self._held = []
        for root, names in nsys_exports(held).items():
            shown = where if root in ("", ".") else f"{where}{separator}{archives.shown_name(root)}"
            with self._one_line(shown, named=False):
                self._unpack_export({name: held.pop(member) for name, member in names.items()}, path=shown)
        for candidate, verdict in held.values():
            with self._one_line(candidate.path, named=False):
                self._projection(candidate, verdict)

    def _unpack_export(self, members: dict[str, tuple[_Candidate, Verdict]], *, path: str) -> None:
        """Gather the tables of an export in a folder of the spool."""
        folder = self._spool_path(path)
        folder.mkdir(mode=0o700)
        files: dict[str, Path] = {}
        for number, (name, (candidate, verdict)) in enumerate(sorted(members.items())):
            # Only the name of a table, which is letters and digits, reaches the file system; parts keep their order.
            table, slash, _ = name.partition("/")
            target = folder / table / f"{number:06d}.parquet" if slash else folder / table
            with self._one_line(candidate.path, named=False):
                target.parent.mkdir(mode=0o700, exist_ok=True)
                files[name] = _local(self._own_file(candidate, verdict)).rename(target)
        if files:
            self._add_export(folder, files, path=path)

    def _projection(self, candidate: _Candidate, verdict: Verdict) -> None:
        """Check that a parquet file is a projection of an nsys recipe, or an op trace; parquet is read from its end."""
        own = self._own_file(candidate, verdict)
        from perfkit.sources.bytedance import has_op_columns  # only then: it is not needed to look at a trace

        if has_op_columns(_local(own)):
            self._add(own, Verdict("bytedance", "none"))
            return
        try:
            check_nsys_projection(_local(own), path=candidate.path)
        except InputError:
            if own.spooled:
                self._spooled_bytes -= _local(own).stat().st_size
                _local(own).unlink()
            raise
        self._add(own, Verdict("nsys-parquet", "none"))

    # files

    def _file(self, path: Path, *, named: bool) -> None:
        if not self._first_time(path):
            return

        def open_file() -> Stream:
            return SliceStream(path, path=shown_path(path), limits=self.limits)

        try:
            size = path.stat().st_size
        except OSError as error:
            self._reject(os_error(error, shown_path(path)))
            return
        self._candidate(_Candidate(shown_path(path), path, size, named, open=open_file))

    def _candidate(self, candidate: _Candidate) -> None:
        """Find out what it is and record it; whatever is wrong with it becomes one line."""
        with self._one_line(candidate.path, named=candidate.named):
            if candidate.head is None:
                with candidate.open() as stream:
                    candidate.head = read_head(stream)
            head, complete, problem, unreadable = candidate.head
            candidate.head = None
            if unreadable is not None:
                raise unreadable
            try:
                with blaming(problem, path=candidate.path):
                    verdict = _classify(head, path=candidate.path, complete=complete, limits=self.limits)
            except NotATrace:
                if complete or (found := self._log_further_down(candidate, head)) is None:
                    raise
                verdict = found
            if verdict.kind in ("tar", "zip"):
                self._archive(candidate, verdict)
            elif verdict.kind == "spool":
                raise NotATrace(
                    "one segment of a spool", path=candidate.path, next_step="give the folder that it lies in"
                )
            elif verdict.kind in ("kineto", "torchtitan", "megatron"):
                self._add(candidate, verdict)
            elif verdict.kind == "nsys-sqlite":
                own = self._own_file(candidate, verdict)
                check_nsys_tables(_local(own), path=candidate.path)
                self._add(own, Verdict("nsys-sqlite", "none"))
            elif candidate.name is None:
                self._projection(candidate, verdict)
            else:
                self._held.append((candidate, verdict))

    def _log_further_down(self, candidate: _Candidate, head: bytes) -> Verdict | None:
        """Look for a training log behind what a launcher printed first; binary files are not looked at."""
        packed = compression_of(head)
        with decompress(candidate.open, packed, path=candidate.path, limits=self.limits) as stream:
            rest, read = b"", 0
            while read < LOG_SEARCH_BYTES and (piece := stream.read(HEAD_BYTES)):
                if b"\0" in piece:
                    return None
                if kind := log_kind(rest + piece):
                    return Verdict(kind, packed)
                read += len(piece)
                rest = piece[-LOG_LINE_BYTES:]
        return None

    def _add(self, candidate: _Candidate, verdict: Verdict) -> None:
        """Record an input; one that was copied is identified now, by the bytes that the copy was made of."""
        identity = ""
        if candidate.spooled:
            with candidate.open() as stream:
                identity = fingerprint(stream)
        self.found.inputs.append(
            Input(
                path=candidate.path,
                kind=verdict.kind,
                file=candidate.file,
                size_bytes=candidate.size_bytes,
                identity=identity,
                compression=verdict.compression,
                member=candidate.member,
            )
        )

    def _own_file(self, candidate: _Candidate, verdict: Verdict) -> _Candidate:
        """Return a candidate whose `file` has just its uncompressed bytes; SQLite and parquet need one."""
        here = candidate.spooled or not isinstance(candidate.file, RemoteFile)
        if here and candidate.member is None and verdict.compression == "none":
            return candidate
        with decompress(candidate.open, verdict.compression, path=candidate.path, limits=self.limits) as stream:
            file = self._to_spool(stream)
            if stream.problem:
                raise _damaged(stream.problem, candidate.path)
        own = replace(candidate, file=file, spooled=True)
        if not here:  # the copy tells what it is without being fetched again
            own.open = partial(SliceStream, file, path=candidate.path, limits=self.limits)
        return own

    # archives

    def _archive(self, candidate: _Candidate, verdict: Verdict) -> None:
        if candidate.packed is not None:
            raise UnsupportedInput(
                "an archive inside an archive",
                path=candidate.path,
                next_step="unpack the outer archive and give the folder",
            )
        before, held = len(self.found.inputs) + len(self.found.rejected), len(self._held)
        if verdict.kind == "zip" and verdict.compression != "none":
            raise UnsupportedInput(
                "a compressed zip archive", path=candidate.path, next_step="decompress it and give the zip"
            )
        try:
            if verdict.kind == "zip":
                self._zip(candidate)
            else:
                self._tar(candidate, verdict.compression)
        finally:  # also of what came before a cut
            self._held, outside = self._held[held:], self._held[:held]
            self._release(candidate.path)
            self._held = outside
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
                    f"{plural(num_refused - MAX_REFUSALS, 'more member')} refused",
                    path=archive,
                    next_step="unpack the archive yourself and give the folder",
                )
            )

    def _zip(self, archive: _Candidate) -> None:
        cut: CorruptInput | None = None
        members: Iterable[archives.Member]
        try:
            members = archives.zip_members(archive.file, path=archive.path, limits=self.limits)
        except CorruptInput as error:
            members, cut = archives.zip_members_before_cut(archive.file, path=archive.path, limits=self.limits), error
        num_found = 0
        for member, shown in self._readable(archive.path, members):
            self._member(archive.file, member, shown)
            num_found += 1
        if cut:
            found = f"; {plural(num_found, 'file')} at its beginning could be found" if num_found else ""
            raise CorruptInput(cut.message + found, path=cut.path, next_step=cut.next_step)

    def _tar(self, archive: _Candidate, compression: str) -> None:
        with decompress(archive.open, compression, path=archive.path, limits=self.limits) as stream:
            for member, shown in self._readable(archive.path, archives.tar_members(stream, limits=self.limits)):
                if compression == "none":
                    self._member(archive.file, member, shown)
                else:
                    self._spool_member(stream, member, shown)
            if stream.problem:
                raise _damaged(f"{stream.problem}; what came before was read", archive.path)

    def _member(self, archive: Path | RemoteFile, member: archives.Member, shown: str) -> None:
        """Take a member that can be read where it is."""

        def open_member() -> Stream:
            return archives.open_member(archive, member, path=shown, limits=self.limits)

        self._candidate(_Candidate(shown, archive, member.stored_bytes, False, member, open=open_member))

    def _spool_member(self, stream: Stream, member: archives.Member, shown: str) -> None:
        """Copy a member of a compressed tar to the spool, if its head looks like an input."""
        head = stream.read(min(HEAD_BYTES, member.stored_bytes)) or b""
        with self._one_line(shown, named=False):
            if stream.problem and not head:
                raise _damaged(stream.problem, shown)
            _classify(head, path=shown, complete=len(head) == member.stored_bytes, limits=self.limits)
            file = self._to_spool(_Joined(head, stream, member.stored_bytes, path=shown, limits=self.limits))

            def open_spooled() -> Stream:
                return SliceStream(file, path=shown, limits=self.limits)

            self._candidate(_Candidate(shown, file, member.stored_bytes, False, member, True, open=open_spooled))

    def _to_spool(self, stream: Stream) -> Path:
        target = self._spool_path(stream.path)
        allowed = self.limits.max_total_bytes - self._spooled_bytes
        self._spooled_bytes += copy_stream(stream, target, limits=self.limits, max_bytes=allowed)
        return target

    def _spool_path(self, path: str) -> Path:
        """Return a new place in the spool: numbered, so that no name in an archive reaches the file system."""
        if self.spool is None:
            raise UnsupportedInput(
                "it must be unpacked first, and there is no folder for that",
                path=path,
                next_step="unpack it and give the folder",
            )
        self._num_spooled += 1
        return self.spool / f"{self._num_spooled:06d}"

    # outcomes

    @contextlib.contextmanager
    def _one_line(self, path: str, *, named: bool) -> Iterator[None]:
        """Turn whatever is wrong with one file into one line, and go on."""
        try:
            yield
        except NotATrace as error:
            if named:
                self._reject(error)
            elif isinstance(error, ForOtherCommand):
                self._ignore(error.path, f"{error.message}; {error.next_step}", error.command)
            else:
                self._ignore(error.path, error.message)
        except InputError as error:
            self._reject(error)
        except OSError as error:
            self._reject(os_error(error, path))

    def _reject(self, error: InputError) -> None:
        self.found.rejected.append(error)

    def _ignore(self, path: str, reason: str, command: str = "") -> None:
        self.found.ignored.append(Ignored(path, reason, command))


_SAME_FILE = "the same file as"
_HIDDEN_FOLDER = "a hidden folder"
_OTHER_COMMANDS = (
    ("hang", "explains", "Flight Recorder dumps"),
    ("goodput", "reads", "lists of jobs, nodes or counters"),
)


def _why_no_trace(root: Path, skipped: list[Ignored]) -> str:
    """Say what lies in a folder without a trace."""
    hidden = [item for item in skipped if item.reason == _HIDDEN_FOLDER]
    files = [item for item in skipped if item.reason != _HIDDEN_FOLDER]
    if not skipped:
        return "an empty folder"
    if len(files) == 1 and not files[0].command:
        reason = f"no trace in this folder ({Path(files[0].path).name}: {files[0].reason})"
    else:
        reason = f"no trace among {plural(len(files), 'file')}" if files else "no files"
    if not hidden:
        return reason
    names = [item.path.removeprefix(f"{shown_path(root)}/") for item in hidden[:HIDDEN_SHOWN]]
    more = f" and {len(hidden) - HIDDEN_SHOWN:,} more" if len(hidden) > HIDDEN_SHOWN else ""
    return f"{reason}; hidden folders are skipped unless they are named: {', '.join(names)}{more}"


def _other_commands(root: Path, skipped: list[Ignored]) -> str:
    """Name the commands that read what lies in a folder without a trace."""
    steps = []
    for command, verb, what in _OTHER_COMMANDS:
        own = [item for item in skipped if item.command == command]
        if own:
            place = str(Path(own[0].path).parent) if command == "hang" else shown_path(root)
            steps.append(f"`perfkit {command} {place}` {verb} the {what}")
    return "; ".join(steps)


def _local(candidate: _Candidate) -> Path:
    """Return the file of a candidate that is here, or was copied here."""
    assert isinstance(candidate.file, Path), candidate.path
    return candidate.file


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


__all__ = ["Found", "Ignored", "NotATrace", "Verdict", "classify", "find_inputs"]
