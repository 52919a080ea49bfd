"""A progress bar with live metrics in one line, on a terminal; a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

WIDTH = 24
QUIET_LINES = 8
"""Lines of a whole run where standard error is not a terminal."""


class Progress:
    """Shows step, loss, tokens per second and MFU."""

    def __init__(self, steps: int, stream: TextIO | None = None) -> None:
        self.steps, self.stream = steps, stream or sys.stderr
        self._before: float | None = None
        self._rate: float | None = None

    def show(self, step: int, loss: float, tokens: int, mfu: float | None, *, now: float | None = None) -> None:
        """Report a step that has ended, at `now` in seconds; `tokens` of the whole job."""
        now = time.monotonic() if now is None else now
        if self._before is not None and now > self._before:
            rate = tokens / (now - self._before)
            self._rate = rate if self._rate is None else 0.8 * self._rate + 0.2 * rate
        self._before = now
        line = render(step + 1, self.steps, loss, self._rate, mfu)
        if self.stream.isatty():
            self.stream.write(f"\r{line}\x1b[K")
        elif (step + 1) % max(1, self.steps // QUIET_LINES) == 0 or step + 1 == self.steps:
            self.stream.write(f"{line}\n")
        self.stream.flush()

    def say(self, text: str) -> None:
        """Put a line between the steps."""
        self.stream.write(f"\r{text}\x1b[K\n" if self.stream.isatty() else f"{text}\n")
        self._before = None
        self.stream.flush()

    def close(self) -> None:
        """Leave the line."""
        if self.stream.isatty():
            self.stream.write("\n")


def render(done: int, steps: int, loss: float, tokens_per_second: float | None, mfu: float | None) -> str:
    """Return the line; what is not known yet is left out."""
    filled = round(WIDTH * done / steps)
    parts = [f"[{'█' * filled}{'·' * (WIDTH - filled)}] step {done}/{steps}", f"loss {loss:.3f}"]
    if tokens_per_second is not None:
        parts.append(f"{tokens_per_second:,.0f} tokens/s")
    if mfu is not None:
        parts.append(f"MFU {mfu:.1%}")
    return "  ".join(parts)
