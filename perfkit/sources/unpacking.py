"""A folder for what must be unpacked before it can be read, gone when it is no longer needed.

    with unpacking_folder() as folder: ...

Deleted at the end, also after an exception. A process that is killed cannot delete anything, and what it
unpacked may fill the disk; so every folder holds a locked file, and whoever comes next deletes the folders
whose lock has gone with its owner.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perfkit.errors import UsageError

PREFIX = "perfkit-unpacked-"
LOCK = "lock"
NEW_SECONDS = 60.0


@contextmanager
def unpacking_folder() -> Iterator[Path]:
    """Make a private folder under TMPDIR, and delete what dead processes left there."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    except OSError as error:
        raise UsageError(
            f"cannot make a temporary folder: {error.strerror or error}", next_step="set TMPDIR to one with free space"
        ) from None
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            with suppress(OSError):  # a file system without locks: nothing is deleted there
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            _delete_abandoned(folder)
            yield folder
        finally:
            os.close(descriptor)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _delete_abandoned(own: Path) -> None:
    with os.scandir(own.parent) as entries:  # not glob: temporary folders can hold a great many files
        left = [own.parent / entry.name for entry in entries if entry.name.startswith(PREFIX)]
    for folder in left:
        if folder == own:
            continue
        with suppress(OSError):  # somebody else's, or gone
            found = folder.lstat()
            is_new = time.time() - found.st_mtime < NEW_SECONDS  # its owner may not have locked it yet
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or is_new:
                continue
            descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
