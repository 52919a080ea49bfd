"""Append batches to spool segments so that a killed process loses nothing that was acknowledged.

    spool = SpoolWriter(folder, header)
    spool.append({"steps": [...]})      returns when the kernel has it: it survives kill -9 from here on
    spool.sync()                        and a power cut from here on
    spool.rotate() / spool.close()      end the segment, so that the compactor may take and delete it

One folder per rank, one writer per process: file names carry the process's identity, so that a restarted
rank never meets its predecessor's files. While the process lives it holds a POSIX lock on `<uid>.claim`; the
lock ends with the process, however that ends, and fork does not inherit it. A write that fails half-way (a
full disk) is cut off again; if even that fails, the next append starts a new segment.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

from perfkit.capture.frames import SUFFIX, UID_BYTES, Batch, encode_frame, frame_seed, open_bytes

MARKER_FILE = "perfkit-spool.json"
"""Says that a folder is a rank's part of a spool; it stays when everything has been compacted."""
CLAIM = ".claim"
LIVE = "live"
TRACES = "traces"

_held: set[str] = set()
"""Claims of this process: opening such a file a second time and closing it would give the lock up."""


class SpoolWriter:
    """Writer of one rank's segments."""

    def __init__(self, folder: Path, header: Batch) -> None:
        self.folder, self._header = folder, header
        self._name = f"{time.time_ns():x}-{os.getpid():x}"
        self._pid = os.getpid()
        self._file: int | None = None
        self._number = 0
        self._frames = 0
        self._bytes = 0
        self._opened = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        marker = folder / MARKER_FILE
        if not marker.exists():
            marker.write_text(json.dumps({"about": "a rank's part of a perfkit spool; see docs/capture.md"}))
        self._claim: int | None = claim(folder / f"{self._name}{CLAIM}")

    @property
    def size_bytes(self) -> int:
        """Bytes of the segment that is open."""
        return self._bytes

    @property
    def age_seconds(self) -> float:
        """Age of the segment that is open."""
        return time.monotonic() - self._opened if self._file is not None else 0.0

    def append(self, batch: Batch) -> None:
        """Write a batch; when this returns, it survives the end of the process."""
        if self._file is None:
            self._open()
        self._write(encode_frame(self._frames, batch, self._seed))
        self._frames += 1

    def sync(self) -> None:
        """Make what was appended survive a power cut."""
        if self._file is not None:
            os.fsync(self._file)

    def check(self) -> None:
        """Raise if the segment was deleted: the kernel would take writes to it, and nobody could read them."""
        if self._file is not None and os.fstat(self._file).st_nlink == 0:
            self._abandon()
            raise FileNotFoundError(errno.ENOENT, "the spool was removed", str(self.folder))

    def rotate(self) -> None:
        """End the segment that is open, if there is one."""
        if self._file is None:
            return
        file = self._file
        try:
            self._write(encode_frame(self._frames, {"end": {"frames": self._frames}}, self._seed))
            with contextlib.suppress(OSError):
                os.fsync(file)
        finally:
            self._abandon()

    def close(self) -> None:
        """End the segment and give the claim up."""
        try:
            self.rotate()
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Let go without an end frame: the compactor takes what is there, as after a kill."""
        self._abandon()
        if self._claim is not None:
            release(self.folder / f"{self._name}{CLAIM}", self._claim)
            self._claim = None

    def leave(self) -> None:
        """Forget everything in a forked child: the files belong to the parent."""
        for descriptor in (self._file, self._claim):
            if descriptor is not None:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        _held.discard(str(self.folder / f"{self._name}{CLAIM}"))
        self._file = self._claim = None

    # ---------------------------------------------------------------- inside

    def _open(self) -> None:
        uid = os.urandom(UID_BYTES)
        path = self.folder / f"{self._name}-{self._number:04d}{SUFFIX}"
        self._number += 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o644)
        self._seed, self._frames, self._bytes, self._opened = frame_seed(uid), 1, 0, time.monotonic()
        header = {**self._header, "segment": path.name.removesuffix(SUFFIX), "opened_ns": time.time_ns()}
        self._write(open_bytes(uid) + encode_frame(0, header, self._seed))

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        done = 0
        try:
            while done < len(data):
                done += os.write(self._file, data[done:])
        except OSError:
            try:
                os.ftruncate(self._file, self._bytes)
            except OSError:
                self._abandon()
            if self._bytes == 0:  # not even the header went in
                self._abandon()
            raise
        self._bytes += done

    def _abandon(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
        self._file = None


def claim(path: Path) -> int | None:
    """Lock a claim for as long as this process lives; None where the file system cannot lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    _held.add(str(path))
    return descriptor


def release(path: Path, descriptor: int) -> None:
    """Give a claim up and remove it."""
    with contextlib.suppress(OSError):
        path.unlink()
    with contextlib.suppress(OSError):
        os.close(descriptor)
    _held.discard(str(path))


def claim_is_held(path: Path) -> bool:
    """Whether a living process holds a claim (this one included)."""
    if str(path) in _held:
        return True
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def rank_folder(spool: Path, cluster: str, run: str, attempt: int, rank: int) -> Path:
    """Return where a rank's segments lie: `<spool>/<cluster>/<run>/attempt-<k>/rank-<r>`."""
    return attempt_folder(spool, cluster, run, attempt) / f"rank-{rank:05d}"


def attempt_folder(spool: Path, cluster: str, run: str, attempt: int) -> Path:
    """Return the folder that the ranks of an attempt share on one file system."""
    from perfkit.capture.names import slug

    return spool / slug(cluster) / slug(run) / f"attempt-{attempt:d}"


def write_atomically(path: Path, document: Any) -> None:
    """Replace a small JSON file so that a reader sees all of it or none."""
    path.parent.mkdir(exist_ok=True)  # not its parents: what was removed stays removed
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(document))
    temporary.replace(path)
