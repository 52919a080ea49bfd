"""Instrument a training script in three lines, and never harm it.

    pk = perfkit.init(run="llama-8b", model="llama3-8b", seq_len=8192, store="runs/")
    for batch in pk.data(loader):
        with pk.step(tokens=batch.numel()):
            with pk.span("forward"): ...
    pk.finish()

`perfkit.step`, `span`, `data`, `event`, `log` and `finish` act on the current recorder, found when they are
used, so that a library can be decorated before the script calls `init`. With `PERFKIT=0`, and before `init`,
they do nothing. See docs/capture.md for where the records go and what happens when something breaks.
"""

from __future__ import annotations

from perfkit.capture.api import current, data, event, finish, init, instrument, log, span, step
from perfkit.capture.schedule import ProfileSchedule

__all__ = [
    "ProfileSchedule", "current", "data", "event", "finish", "init", "instrument", "log", "span", "step",
]  # fmt: skip
