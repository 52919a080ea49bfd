"""Find the step at which training became slower and stayed so.

    found = detector.add(step, took_ns) -> Change | None

Of the last `confirm` steps most (70 %) must take longer than the median of the `window` steps before them, by the share
`slower` and by more than steps scatter anyway. So single slow steps (a checkpoint, garbage collection) are harmless; a
window that moves along makes a slow drift harmless; the first `warmup` steps are left out. After a change the detector
starts anew at the new level, so that one change is found once.
"""

from __future__ import annotations

import collections
import itertools
import math
from dataclasses import dataclass
from statistics import median

MAD_TO_SIGMA = 1.4826
MEDIAN_SPREAD = 1.2533
"""Standard deviation of a median over that of a mean."""
SIGMAS = 4.0
MOST = 0.7


@dataclass(frozen=True, slots=True)
class Change:
    """Steps became slower."""

    first_step: int
    """First of the slow steps, as well as the medians can tell."""
    found_at: int
    before_ns: float
    after_ns: float


class ChangePoint:
    """Watches the times of steps."""

    def __init__(self, *, slower: float = 0.10, confirm: int = 10, window: int = 60, warmup: int = 10) -> None:
        self._slower, self._confirm, self._warmup = slower, confirm, warmup
        self._recent: collections.deque[tuple[int, int]] = collections.deque()
        self._before: collections.deque[tuple[int, int]] = collections.deque(maxlen=window)
        self._least = max(confirm, window // 3)
        self._left = warmup
        self._limit: float | None = None
        self._fresh = 0

    def add(self, step: int, took_ns: int) -> Change | None:
        """Take a step that no profiler disturbed."""
        if self._left > 0:
            self._left -= 1
            return None
        self._recent.append((step, took_ns))
        if len(self._recent) <= self._confirm:
            return None
        self._before.append(self._recent.popleft())
        self._fresh += 1
        if len(self._before) < self._least:
            return None
        if self._limit is None or self._fresh >= self._confirm:
            self._limit, self._fresh = self._find_limit(), 0
        times = sorted(took for _, took in self._recent)
        least = times[int(len(times) * (1 - MOST))]
        if least < self._limit or least < self._find_limit():  # the cheap question first
            return None
        before, after = median(took for _, took in self._before), median(times)
        found = Change(self._first_above((before + after) / 2), step, before, after)
        self._recent.clear()
        self._before.clear()
        self._limit = None
        return found

    def _find_limit(self) -> float:
        usual = median(took for _, took in self._before)
        scatter = MAD_TO_SIGMA * median(abs(took - usual) for _, took in self._before)
        chance = SIGMAS * scatter * MEDIAN_SPREAD / math.sqrt(self._confirm)
        return usual + max(self._slower * usual, chance)

    def _first_above(self, limit: float) -> int:
        """Return where the run of slow steps begins; single fast ones do not break it."""
        first = self._recent[-1][0]
        missed = 0
        for step, took in itertools.chain(reversed(self._recent), reversed(self._before)):
            missed = 0 if took >= limit else missed + 1
            if missed > 1:
                break
            if took >= limit:
                first = step
        return first
