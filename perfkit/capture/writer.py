"""The writer thread: drains the recorder's buffer into the spool, twice a second.

It turns monotonic times into epoch times, keeps the online metrics, polls for trace requests, and talks to the
side process through pipes that never block. The offset between the two clocks is taken once: a wall clock that
is stepped does not move records; the difference is stored as the counter `perfkit_clock_offset_seconds`.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import json
import logging
import os
import threading
import time
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from perfkit.capture.guard import describe, say
from perfkit.capture.meter import Meter, line
from perfkit.capture.names import REQUEST_FILE
from perfkit.capture.segments import LIVE, SpoolWriter, attempt_folder, rank_folder, write_atomically
from perfkit.capture.yardstick import find_yardstick

if TYPE_CHECKING:
    from perfkit.capture.recorder import Recorder
    from perfkit.capture.trigger import Trigger

HOPELESS = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ESTALE)
"""Errors that trying again does not cure."""
MAX_BATCH_ROWS = 1_000
"""Encoding a batch holds the interpreter lock: about a millisecond for this many rows."""
CLOCK_STEP_SECONDS = 1.0
LIVE_SECONDS = 2.0
"""Between two states of `live/metrics.json`, which the Prometheus endpoint reads."""
Row = tuple[Any, ...]


class Writer:
    """Owns the spool, the meter and the side process of one recorder."""

    def __init__(self, recorder: Recorder) -> None:
        from perfkit.capture.sidecar import Sidecar

        self.recorder, self.settings = recorder, recorder.settings
        self.meter = Meter()
        self.acknowledged_step: int | None = None
        self.offset_ns = time.time_ns() - perf_counter_ns()
        self.sidecar = Sidecar(recorder)
        self._spool: SpoolWriter | None = None
        self._waiting: list[tuple[str, Row]] = []
        self._reopen = False
        self._stop = threading.Event()
        self._synced = self._told = time.monotonic()
        self._rotations = 0
        self._own_ns = 0
        self._request_seen = 0
        self._announce = False
        self._thread = threading.Thread(target=self._run, name="perfkit-writer", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------- called from the training thread

    def identity_changed(self) -> None:
        """Continue in the folder of another rank."""
        self._reopen = True

    def close(self, deadline: float) -> None:
        """Write what is left, end the segment, and let the side process compact; not beyond the deadline."""
        self._stop.set()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            say("finish() ran out of time; what was written until the process ends is kept")
            self.sidecar.send({"do": "quiet"})
            return
        loggers = self.recorder.loggers
        if loggers is not None:
            loggers.end()
        self.sidecar.finish(deadline)
        if loggers is not None:
            loggers.join(deadline)

    def leave(self) -> None:
        """Let go of everything in a forked child: the thread does not exist there; its locks may be held for good."""
        self.sidecar.leave()
        if self._spool is not None:
            self._spool.leave()

    # ---------------------------------------------------------------- the thread

    def _run(self) -> None:
        wait = self.settings.flush_seconds
        while not self._stop.wait(wait):
            self._turn()
        self._turn(last=True)

    def _turn(self, last: bool = False) -> None:
        try:
            if self.recorder.guard.ok("recording"):
                self._take()
                self._flush(last)
                self._housekeeping(last)
        except OSError as error:
            self._failed(error, last)
        except Exception as error:
            self.recorder.guard.failed("recording", error)
        if not self.recorder.guard.ok("recording"):
            self.recorder.on = False
            self._waiting.clear()
            self.recorder.drain()
            if self._spool is not None:
                self._spool.give_up()
                self._spool = None
        self._own_ns = time.thread_time_ns()

    def _failed(self, error: OSError, last: bool) -> None:
        guard = self.recorder.guard
        if error.filename is None:
            error.filename = self.settings.spool
        if isinstance(error, FileNotFoundError):
            guard.give_up("recording", f"the spool was removed: {self.settings.spool}")
        elif last:
            guard.give_up("recording", describe(error), "the last records are lost, what was written before is kept")
        elif error.errno in HOPELESS:
            guard.give_up("recording", describe(error), "training goes on; choose another store or spool")
        else:
            guard.failed("recording", error, "training goes on without it; what was written before is kept")

    def _take(self) -> None:
        """Take the records of the last half second: meter them, and give them epoch times."""
        if self._reopen:
            self._reopen = False
            if self._spool is not None:
                self._spool.close()
                self._spool = None
        room = 2 * self.settings.buffer_records - len(self._waiting)
        taken = self.recorder.drain()
        self.recorder.dropped += max(0, len(taken) - room)
        for table, row in taken[: max(0, room)]:
            if table == "steps":
                self._measure()
            elif table == "spans" and self.recorder.trigger is not None:
                self.recorder.trigger.span_measured(row[0], row[1], row[4])
            metrics = self.meter.add(table, row)
            if metrics is not None:
                self._publish(metrics)
            self._waiting.append((table, self._shifted(table, row)))

    def _shifted(self, table: str, row: Row) -> Row:
        shift = self.offset_ns
        if table == "steps":
            number, start, end, wait, tokens, samples, loss, profiled = row
            per_token = self.meter.yardstick.flops_per_token
            flops = None if per_token is None or tokens is None else per_token * tokens
            return number, start + shift, end + shift, wait, tokens, samples, flops, loss, profiled
        if table == "spans":
            return (*row[:2], row[2] + shift, *row[3:])
        if table == "lifecycle":
            return (row[0], row[1] + shift, None if row[2] is None else row[2] + shift, *row[3:])
        return row if table == "losses" else (row[0] + shift, *row[1:])

    def _flush(self, last: bool) -> None:
        while self._waiting:
            rows = self._waiting[:MAX_BATCH_ROWS]
            batch: dict[str, Any] = collections.defaultdict(list)
            for table, row in rows:
                batch[table].append(row)
            if self.recorder.dropped:
                batch["dropped"] = self.recorder.dropped
            if self._announce:
                batch["metadata"] = self.meter.yardstick.to_metadata()
            self._open().append(batch)
            self._announce = False
            del self._waiting[: len(rows)]
            steps = batch.get("steps")
            if steps:
                self.acknowledged_step = max(self.acknowledged_step or 0, max(row[0] for row in steps))
            self.recorder.guard.succeeded("recording")
        if last and self._spool is not None:
            self._spool.append({"counters": self._own_counters()})
            self._spool.close()
            self._spool = None

    def _open(self) -> SpoolWriter:
        if self._spool is None:
            self._spool = SpoolWriter(self.folder, self.header())
            self.sidecar.start(self.folder)
        return self._spool

    @property
    def folder(self) -> Path:
        """Folder of this rank's segments."""
        who = self.recorder.identity
        return rank_folder(Path(self.settings.spool), who.cluster, who.run, who.attempt, who.rank)

    def header(self) -> dict[str, Any]:
        """Say whose rows a segment holds."""
        who = self.recorder.identity
        return {
            "format": 1, "cluster": who.cluster, "run": who.run, "attempt": who.attempt, "rank": who.rank,
            "world_size": who.world_size, "local_rank": who.local_rank, "host": who.host, "rank_source": who.source,
            "job": who.job, "pid": os.getpid(), "offset_ns": self.offset_ns, "store": self.settings.store,
            "versions": versions(), "metadata": {**self.settings.metadata, **self.meter.yardstick.to_metadata()},
        }  # fmt: skip

    # ---------------------------------------------------------------- beside the rows

    def _measure(self) -> None:
        """Find the yardstick when the first step has been made: only then is the device known."""
        if self.meter.counts["steps"] == 0:
            self.meter.yardstick = find_yardstick(self.settings, self.recorder.identity.world_size)
            self._announce = True
            asked = self.settings.model is not None or self.settings.flops_per_token is not None
            if asked and self.meter.yardstick.notes and self.recorder.identity.rank == 0:
                say(f"MFU is not computed: {self.meter.yardstick.notes[0]}", level=logging.INFO)

    def _publish(self, metrics: dict[str, Any]) -> None:
        """Print the line and feed the loggers."""
        if self.recorder.identity.rank != 0:
            return
        every = self.settings.log_every
        if every and self.meter.counts["steps"] % every == 0:
            say(line(self.meter.snapshot()), level=logging.INFO)
        if self.recorder.loggers is not None:
            self.recorder.loggers.offer(self.recorder.identity.run, metrics)

    def _housekeeping(self, last: bool) -> None:
        now = time.monotonic()
        if self._spool is not None and now - self._synced >= self.settings.sync_seconds:
            self._synced = now
            self._spool.check()
            self._spool.sync()
            self._spool.append({"counters": self._own_counters()})
        trigger = self.recorder.trigger
        found = trigger is not None and self.recorder.guard.ok("trigger") and self._watch(trigger)
        if now - self._told >= LIVE_SECONDS or last or found:
            self._told = now
            self.meter.memory_bytes = peak_memory()
            if self.acknowledged_step is not None:
                write_atomically(self.folder / LIVE / "metrics.json", self._live(last))
        if self._spool is not None:
            limit = self.settings.rotate_seconds * min(1 << self._rotations, 4)
            if self._spool.age_seconds > limit or self._spool.size_bytes > self.settings.rotate_bytes:
                self._rotations += 1
                self._spool.rotate()
                self.sidecar.send({"do": "compact"})
        self.sidecar.listen()
        if self.recorder.profiling is not None and self.acknowledged_step is not None:
            self._poll_requests()

    def _watch(self, trigger: Trigger) -> bool:
        try:
            return trigger.turn()
        except Exception as error:
            self.recorder.guard.failed("trigger", error)
            return False

    def _poll_requests(self) -> None:
        who = self.recorder.identity
        path = attempt_folder(Path(self.settings.spool), who.cluster, who.run, who.attempt) / REQUEST_FILE
        with contextlib.suppress(FileNotFoundError):
            changed = path.stat().st_mtime_ns
            if changed != self._request_seen:
                self._request_seen = changed
                self.recorder.profiling.requested(json.loads(path.read_text()))  # type: ignore[union-attr]

    def _own_counters(self) -> list[Row]:
        """Return what perfkit itself costs and loses, and how far the wall clock has moved."""
        now, recorder = time.time_ns(), self.recorder
        drift = (now - perf_counter_ns() - self.offset_ns) / 1e9
        if abs(drift) > CLOCK_STEP_SECONDS:
            recorder.say_once("the clock was stepped; records stay on the clock of the start")
        at = perf_counter_ns() + self.offset_ns
        values = {
            "perfkit_writer_cpu_seconds": time.thread_time_ns() / 1e9,
            "perfkit_step_hook_seconds": recorder.hook_ns / 1e9,
            "perfkit_dropped_records": recorder.dropped,
            "perfkit_clock_offset_seconds": drift,
            "perfkit_side_cpu_seconds": self.sidecar.cpu_seconds,
            "perfkit_peak_memory_bytes": self.meter.memory_bytes,
        }
        return [(at, name, None, value, None) for name, value in values.items() if value is not None]

    def _live(self, last: bool) -> dict[str, Any]:
        who = self.recorder.identity
        return {
            "cluster": who.cluster, "run": who.run, "attempt": who.attempt, "rank": who.rank, "host": who.host,
            "world_size": who.world_size, "time_ns": time.time_ns(), "ended": last, "dropped": self.recorder.dropped,
            "overhead_seconds": (self._own_ns + self.recorder.hook_ns) / 1e9,
            "given_up": self.recorder.guard.given_up, "gpu_uuid": self.recorder.gpu_uuid,
            "change": None if self.recorder.trigger is None else self.recorder.trigger.change, **self.meter.snapshot(),
        }  # fmt: skip


def versions() -> dict[str, str]:
    """Return the versions of what was loaded."""
    import platform
    import sys

    import perfkit

    found = {"perfkit": perfkit.__version__, "python": platform.python_version()}
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)
        for name in ("cuda", "hip"):
            if getattr(torch.version, name, None):
                found[name] = str(getattr(torch.version, name))
    return found


def peak_memory() -> int | None:
    """Return the peak of the device's allocator, or of this process where there is no device."""
    import resource
    import sys

    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
