"""How much one person may ask for: a bucket of answers that have to be computed, refilled over time.

    limits = Limits(per_minute=240)
    limits.take("ada")       -> 0.0, or how many seconds to wait
    charge()                 in a request: 429 with a clear text if the user has asked too much

What is in memory costs nothing, so looking at a page again and again is free; a script that walks through every run
is slowed down, and the others do not notice. Buckets lie in memory that processes share which were forked after they
were made, so a limit is one limit whatever the number of workers; the lock is the kernel's, and a worker that is
killed does not keep it. Names are kept as hashes. When there are more users than room, who asked longest ago begins
anew.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import flask
import numpy as np

try:
    import fcntl
except ModuleNotFoundError:  # Windows: one process
    fcntl = None  # type: ignore[assignment]

EXTENSION = "perfkit.limits"
HEAVY_PER_MINUTE = 240.0
"""Answers that have to be computed which one user may ask for, where users are known."""
KNOWN_USERS = 4096
NEIGHBOURS = 16
"""Places that a user may have: the first free one, else that of who asked longest ago."""
_BUCKET = np.dtype([("user", "u8"), ("left", "f8"), ("since", "f8")])


class Limits:
    """A bucket per user."""

    def __init__(self, per_minute: float, *, burst: float | None = None, clock: Callable[[], float] = time.monotonic):
        self.rate = per_minute / 60
        self.burst = burst if burst is not None else max(1.0, per_minute / 4)
        self._clock = clock
        self._buckets = np.frombuffer(mmap.mmap(-1, KNOWN_USERS * _BUCKET.itemsize), _BUCKET)
        self._lock = threading.Lock()
        self._locked = tempfile.TemporaryFile()  # noqa: SIM115 — empty: what processes lock
        weakref.finalize(self, self._locked.close)

    def take(self, user: str, cost: float = 1.0) -> float:
        """Take from a user's bucket; return 0, or the seconds until there is enough, and then nothing is taken."""
        mark = int.from_bytes(hashlib.blake2b(user.encode("utf-8", "surrogatepass"), digest_size=8).digest()) or 1
        places = (mark % KNOWN_USERS + np.arange(NEIGHBOURS)) % KNOWN_USERS
        with self._alone():
            now = self._clock()
            near = self._buckets[places]
            mine = np.flatnonzero(near["user"] == mark)
            place = int(mine[0]) if len(mine) else int(np.argmin(np.where(near["user"] == 0, -np.inf, near["since"])))
            left = self.burst
            if len(mine):
                left = min(self.burst, float(near["left"][place] + (now - near["since"][place]) * self.rate))
            wait = 0.0 if left >= min(cost, self.burst) else (min(cost, self.burst) - left) / self.rate
            self._buckets[places[place]] = (mark, left if wait else left - cost, now)
        return wait

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other threads and other processes out."""
        with self._lock:
            if fcntl is not None:
                fcntl.lockf(self._locked, fcntl.LOCK_EX)
            try:
                yield
            finally:
                if fcntl is not None:
                    fcntl.lockf(self._locked, fcntl.LOCK_UN)


def charge(cost: float = 1.0) -> None:
    """Charge the user of this request for an answer that has to be computed; too much ends it with 429."""
    if not flask.has_request_context():
        return
    limits: Limits | None = flask.current_app.extensions.get(EXTENSION)
    if limits is None:
        return
    wait = limits.take(flask.g.get("perfkit_user") or flask.request.remote_addr or "", cost)
    if wait:
        flask.abort(too_many(wait, f"more than {60 * limits.rate:.0f} computed answers a minute"))


def too_many(wait_s: float, what: str) -> flask.Response:
    """Return the answer to who asks too much."""
    seconds = max(1, math.ceil(wait_s))
    answer = flask.Response(f"Too many requests: {what}. Try again in {seconds} s.\n", 429, mimetype="text/plain")
    answer.headers["Retry-After"] = str(seconds)
    return answer
