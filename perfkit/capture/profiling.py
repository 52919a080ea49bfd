"""torch.profiler, owned by perfkit: windows by schedule or on demand, exported without harm.

Everything on the training thread happens between steps. A window ends by handing the finished profile to a
thread that writes the raw trace under a temporary name and renames it; the side process compresses and commits
it. Nothing that goes wrong there reaches the training loop: a full disk costs the trace and one line.

A profiler that the script runs is respected: no window starts while one records, and if the script starts one
during a window, the window is thrown away first (two Kineto sessions lose each other's data).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit.capture.guard import describe
from perfkit.capture.schedule import ProfileSchedule
from perfkit.capture.segments import TRACES

if TYPE_CHECKING:
    from perfkit.capture.recorder import Recorder


class Profiling:
    """Starts and ends windows between steps."""

    def __init__(self, recorder: Recorder, schedule: ProfileSchedule | None) -> None:
        self._recorder, self._schedule = recorder, schedule
        self._caps = schedule or ProfileSchedule()
        self._count = 0
        self._window: _Window | None = None
        self._request: dict[str, Any] | None = None
        self._export: threading.Thread | None = None
        self._cooldown = False
        self._spent_bytes = 0
        self._born_ns = time.time_ns()

    @property
    def disturbed(self) -> bool:
        """Whether a step that ends now was slowed down by a window or its export."""
        return self._window is not None or self._cooldown or (self._export is not None and self._export.is_alive())

    @property
    def recording(self) -> bool:
        """Whether a window of ours is open."""
        return self._window is not None

    def step_ended(self, number: int) -> None:
        """Move on: called on the training thread after every step."""
        self._count += 1
        self._cooldown = False
        if not self._recorder.guard.ok("profiling"):
            return
        try:
            if self._window is not None:
                self._go_on(self._window)
            elif (wanted := self._wanted(number + 1)) is not None:
                self._begin(number + 1, *wanted)
        except Exception as error:
            self._discard()
            self._recorder.guard.give_up("profiling", describe(error))

    def requested(self, request: dict[str, Any]) -> None:
        """Take a request of `perfkit trace` (called by the writer thread)."""
        who = self._recorder.identity
        try:
            wanted = ProfileSchedule(every=0, active=int(request["steps"]), ranks=str(request.get("ranks", "all")))
            if int(request["time_ns"]) > self._born_ns and wanted.applies_to(who.rank, who.local_rank):
                self._request = request
        except (KeyError, ValueError, TypeError) as error:
            self._recorder.say_once(f"a trace request was not understood: {describe(error)}")

    def close(self) -> None:
        """End a window that is open, keeping what it has, and give its export a moment."""
        window = self._window
        if window is not None:
            with contextlib.suppress(Exception):
                self._end(window)
        if self._export is not None:
            self._export.join(1.0)

    # ---------------------------------------------------------------- windows

    def _wanted(self, next_step: int) -> tuple[int, int] | None:
        """Return (warmup, active) if a window starts with the next step."""
        request = self._request
        if request is not None and next_step >= int(request.get("start_step") or 0) - self._caps.warmup:
            self._request = None
            return self._caps.warmup, int(request["steps"])
        schedule, who = self._schedule, self._recorder.identity
        if schedule is None or not schedule.starts_at(self._count) or not schedule.applies_to(who.rank, who.local_rank):
            return None
        return schedule.warmup, schedule.active

    def _begin(self, step: int, warmup: int, active: int) -> None:
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return
        if self._recorder.ranges.profiler_enabled():
            self._recorder.say_once("a profiler of the script is running; perfkit leaves its own windows out")
            return
        if self._export is not None and self._export.is_alive():
            return
        if self._spent_bytes >= self._caps.max_bytes:
            self._recorder.guard.give_up("profiling", f"traces of {self._spent_bytes:,} bytes reached max_bytes")
            return
        self._window = window = _Window(torch, step, warmup, active, self._caps)
        window.start(self._script_starts_a_profiler)

    def _go_on(self, window: _Window) -> None:
        window.step()
        late = time.monotonic() - window.started > self._caps.max_seconds
        if window.complete or late:
            if late and not window.complete:
                self._recorder.say_once(f"a profile window was ended after {self._caps.max_seconds:.0f} s")
            self._end(window)

    def _end(self, window: _Window) -> None:
        self._window, self._cooldown = None, True
        if window.stop():
            self._export = threading.Thread(
                target=self._export_trace, args=(window,), name="perfkit-export", daemon=True
            )
            self._export.start()

    def _discard(self) -> None:
        window, self._window = self._window, None
        if window is not None:
            with contextlib.suppress(Exception):
                window.stop()

    def _script_starts_a_profiler(self) -> None:
        self._recorder.say_once("the script started a profiler during a perfkit window; the window was thrown away")
        self._discard()

    # ---------------------------------------------------------------- export (a thread of its own)

    def _export_trace(self, window: _Window) -> None:
        folder = self._recorder.writer.folder / TRACES
        part = folder / f".step-{window.first:08d}.part"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(folder).free < self._caps.min_free_bytes:
                raise OSError(errno.ENOSPC, "less free space than min_free_bytes", str(folder))
            window.profile.export_chrome_trace(str(part))
            _check_whole(part)
            self._spent_bytes += part.stat().st_size
            final = folder / f"step-{window.first:08d}.json"
            final.with_suffix(".who").write_text(json.dumps(self._recorder.writer.header()))
            part.replace(final)
            self._recorder.writer.sidecar.send({"do": "compact"})
        except Exception as error:
            with contextlib.suppress(OSError):
                part.unlink()
            cause = errno.ENOSPC if _is_full(folder) else getattr(error, "errno", None)
            reason = f"the trace of step {window.first} could not be written: {describe(error)}"
            self._recorder.guard.give_up("profiling", reason, cause=cause)


class _Window:
    """One torch profile from warm-up to end; step numbers in the trace are those of the training loop."""

    def __init__(self, torch: Any, step: int, warmup: int, active: int, caps: ProfileSchedule) -> None:
        self.first = step + warmup
        self.started = time.monotonic()
        self._torch, self._left = torch, warmup + active
        self._length, self._warmup, self._base = warmup + active, warmup, step
        self._recorded = False
        self._restore: Any = None
        self.profile = torch.profiler.profile(
            schedule=self._action, on_trace_ready=self._trace_ready, record_shapes=caps.record_shapes,
            with_stack=caps.with_stack, profile_memory=caps.profile_memory,
            experimental_config=_trace_only(torch, caps),
        )  # fmt: skip
        self.profile.step_num = step

    @property
    def complete(self) -> bool:
        """Whether all its steps have been made."""
        return self._left <= 0

    def start(self, on_foreign: Any) -> None:
        """Start, and watch for the script starting a profiler of its own."""
        self.profile.start()
        kind = self._torch.autograd.profiler.profile
        original = kind._prepare_trace

        def prepare(profiler: Any) -> Any:
            self._unwatch()
            on_foreign()
            return original(profiler)

        self._restore = (kind, original)
        kind._prepare_trace = prepare

    def step(self) -> None:
        """Tell torch that a step has ended."""
        self._left -= 1
        if self._left > 0:
            self.profile.step()

    def stop(self) -> bool:
        """End the window; whether there is anything to export."""
        self._unwatch()
        self.profile.stop()
        return self._recorded

    def _unwatch(self) -> None:
        if self._restore is not None:
            kind, original = self._restore
            kind._prepare_trace = original
            self._restore = None

    def _action(self, number: int) -> Any:
        actions = self._torch.profiler.ProfilerAction
        at = max(0, number - self._base)
        if at < self._warmup:
            return actions.WARMUP
        return actions.RECORD if at < self._length - 1 else actions.RECORD_AND_SAVE

    def _trace_ready(self, profile: Any) -> None:
        self._recorded = True


def _trace_only(torch: Any, caps: ProfileSchedule) -> Any:
    """Skip building Python event objects at the end of a window, where torch can: only the file is wanted."""
    if caps.with_stack or caps.profile_memory:
        return None
    try:
        return torch.profiler._ExperimentalConfig(trace_only=True)
    except (AttributeError, TypeError):
        return None


def _is_full(folder: Path) -> bool:
    """Whether a disk has no room left: the exporter does not always say so."""
    try:
        return shutil.disk_usage(folder).free < 1 << 20
    except OSError:
        return False


def _check_whole(path: Path) -> None:
    """Raise if a trace was cut off: on a full disk the exporter may end without a word."""
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 64))
        if not file.read().rstrip().endswith(b"}"):
            raise OSError(errno.ENOSPC, "the trace was cut off", str(path))
