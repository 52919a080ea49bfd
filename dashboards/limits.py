"""How much one person may ask for: a bucket of answers that have to be computed, refilled over time.

    limits = Limits(per_minute=240)
    limits.take("ada")       -> 0.0, or how many seconds to wait
    charge()                 in a request: 429 with a clear text if the user has asked too much

What is in memory costs nothing, so looking at a page again and again is free; a script that walks through every run
is slowed down, and the others do not notice. Buckets belong to a worker: with N workers a user has up to N times that.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

import flask

EXTENSION = "perfkit.limits"
KNOWN_USERS = 4096


class Limits:
    """A bucket per user."""

    def __init__(self, per_minute: float, *, burst: float | None = None, clock: Callable[[], float] = time.monotonic):
        self.rate = per_minute / 60
        self.burst = burst if burst is not None else max(1.0, per_minute / 4)
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, user: str, cost: float = 1.0) -> float:
        """Take from a user's bucket; return 0, or the seconds until there is enough, and then nothing is taken."""
        now = self._clock()
        with self._lock:
            left, since = self._left.pop(user, (self.burst, now))
            left = min(self.burst, left + (now - since) * self.rate)
            wait = 0.0 if left >= min(cost, self.burst) else (min(cost, self.burst) - left) / self.rate
            self._left[user] = (left if wait else left - cost, now)
            while len(self._left) > KNOWN_USERS:
                self._left.popitem(last=False)
        return wait


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
