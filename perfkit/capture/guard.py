"""Never harm training: count failures, switch the failing part off, and say so in one line.

    guard = Guard()
    guard.failed("profiler", error)       -> True when that was one failure too many and the part is off now
    guard.give_up("recording", reason)    off at once

One cause is one line: a full disk stops spool, traces and compaction, and training logs have room for one
sentence about it. What was given up stays readable in `guard.given_up`.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading

MAX_FAILURES = 3
logger = logging.getLogger("perfkit")


class Guard:
    """Failures of the parts of one recorder."""

    def __init__(self, *, max_failures: int = MAX_FAILURES) -> None:
        self._max = max_failures
        self._failures: dict[str, int] = {}
        self._causes: set[object] = set()
        self._lock = threading.Lock()
        self.given_up: dict[str, str] = {}

    def ok(self, part: str) -> bool:
        """Whether a part is still on."""
        return part not in self.given_up

    def succeeded(self, part: str) -> None:
        """Forget the failures of a part that works again."""
        self._failures.pop(part, None)

    def failed(self, part: str, error: BaseException, what_now: str = "") -> bool:
        """Count a failure; True if the part is off."""
        with self._lock:
            self._failures[part] = self._failures.get(part, 0) + 1
            too_many = self._failures[part] >= self._max
        if too_many:
            self.give_up(part, describe(error), what_now, cause=_cause(error))
        return not self.ok(part)

    def give_up(self, part: str, reason: str, what_now: str = "", *, cause: object = None) -> None:
        """Switch a part off and say so, unless its cause was named before."""
        with self._lock:
            if part in self.given_up:
                return
            self.given_up[part] = reason
            key = cause if cause is not None else (part, reason)
            told = key in self._causes
            self._causes.add(key)
        if not told:
            say(f"{part} is off: {reason}; {what_now or 'training goes on without it'}")


def describe(error: BaseException) -> str:
    """Return an error in a few words."""
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}"
    text = (str(error).splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _cause(error: BaseException) -> object:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return errno.ENOSPC
    return (error.errno, error.filename) if isinstance(error, OSError) else None


def say(message: str, *, level: int = logging.WARNING) -> None:
    """Log one line; where the script has set up no logging, it goes to standard error."""
    line = f"perfkit: {message}"
    try:
        if logger.hasHandlers():
            logger.log(level, line)
        else:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
    except Exception:
        os.write(2, (line + "\n").encode("utf-8", "replace"))
