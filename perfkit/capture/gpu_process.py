"""The process that reads GPU counters, because a driver call can hang for good.

    python -m perfkit.capture.gpu_process [--interval 1.0] [--slow-every 10]

Writes one JSON line per round to standard output, also when there is nothing to say: the line is the heartbeat. The
first line says what there is: {"gpus": [...], "absent": null}. Ends when its standard input closes, and is
killed by the kernel when its parent dies, so that a reader that hangs outlives nobody.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import queue
import select
import signal
import sys
import threading
import time
from typing import Any

from perfkit.capture.gpus import GpuReader, Happening, open_reader

PR_SET_PDEATHSIG = 1
EVENT_WAIT_MS = 1000


def main(argv: list[str] | None = None) -> int:
    """Read until nobody listens."""
    parser = argparse.ArgumentParser(prog="perfkit.capture.gpu_process")
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--slow-every", type=int, default=10, help="rounds between reads of what changes rarely")
    args = parser.parse_args(argv)
    _die_with_parent()
    reader = open_reader()
    try:
        _say({"gpus": [[g.index, g.uuid, g.name, g.memory_bytes] for g in reader.gpus], "absent": reader.absent})
        if reader.absent is None:
            _serve(reader, args.interval, args.slow_every)
    except (BrokenPipeError, KeyboardInterrupt):
        pass
    return 0


def _serve(reader: GpuReader, interval_s: float, slow_every: int) -> None:
    happened: queue.SimpleQueue[Happening] = queue.SimpleQueue()
    wait = getattr(reader, "wait_for_happenings", None)
    if wait is not None:
        threading.Thread(target=_listen, args=(wait, happened), daemon=True).start()
    turn = 0
    due = time.monotonic()
    while True:
        readings = reader.read(slow=turn % slow_every == 0)
        while not happened.empty():
            readings.happenings.append(happened.get())
        _say(
            {
                "time_ns": readings.time_ns,
                "rows": readings.rows,
                "happenings": [
                    [h.time_ns, h.index, h.uuid, h.kind, h.severity, h.code, h.detail] for h in readings.happenings
                ],
            }
        )
        turn += 1
        due = max(due + interval_s, time.monotonic())
        if select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
            return  # standard input ended, or somebody wrote: both mean stop


def _listen(wait: Any, happened: queue.SimpleQueue[Happening]) -> None:
    while True:
        for happening in wait(EVENT_WAIT_MS):
            happened.put(happening)


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def _die_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):  # not Linux: standard input still ends with the parent
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
