"""The recorder: what `perfkit.init` returns, and all that runs on the training thread.

    pk = Recorder(settings, identity)
    pk.data(loader); pk.step(tokens=…); pk.span(name); pk.event(kind); pk.log(name, value); pk.finish()

A hook reads a clock and appends a tuple to a bounded buffer; when the buffer is full it drops and counts.
Everything else happens elsewhere: the writer thread frames and writes batches and computes the online metrics,
the side process compacts, compresses and samples. No hook raises, waits, communicates or touches a file.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from perfkit.capture import spans
from perfkit.capture.guard import Guard, say
from perfkit.capture.identity import Identity, find_identity
from perfkit.capture.loggers import Loggers
from perfkit.capture.names import LIFECYCLE_KINDS
from perfkit.capture.ranges import Ranges
from perfkit.capture.settings import Settings
from perfkit.capture.spans import NOTHING, Event, Span, Step

if TYPE_CHECKING:
    from perfkit.capture.gpu_time import GpuTimes
    from perfkit.capture.profiling import Profiling
    from perfkit.capture.trigger import Trigger

T = TypeVar("T")
PRECIOUS = ("steps", "lifecycle")
"""What still goes in when spans have filled the buffer."""
LONG_GC_NS = 1_000_000
"""Collections that are shorter are not worth a record."""


class Recorder:
    """Records one rank of one attempt of a run."""

    def __init__(self, settings: Settings, identity: Identity) -> None:
        from perfkit.capture.writer import Writer

        self.settings, self.identity = settings, identity
        self.guard = Guard()
        self.ranges = Ranges()
        self.watched = self.ranges.watched
        self.gpu: GpuTimes | None = None
        self.gpu_uuid: str | None = None
        self.profiling: Profiling | None = None
        self.trigger: Trigger | None = None
        self.loggers = Loggers(settings.loggers, settings.store, self.guard) if settings.loggers else None
        self.current_step = settings.first_step
        self.dropped = 0
        self.on = True
        self._buffer: collections.deque[tuple[str, tuple[Any, ...]]] = collections.deque()
        self._capacity = settings.buffer_records
        self._data_wait_ns: int | None = None
        self._steps = 0
        self._loss: Any = None
        self.hook_ns = 0
        self._warned: set[str] = set()
        self._gc_start = 0
        self._gc_range: Any = None
        self._pid = os.getpid()
        self._finished = threading.Lock()
        self._init_from = _process_start()
        self.writer = Writer(self)
        if settings.gc_events:
            gc.callbacks.append(self._on_gc)

    # ---------------------------------------------------------------- the hooks

    def span(self, name: str) -> Any:
        """Record a named stretch of the script; context manager and decorator."""
        if spans.compiling():
            return contextlib.nullcontext()
        return Span(self, name) if self.on else NOTHING

    def step(self, *, tokens: int | None = None, samples: int | None = None, step: int | None = None) -> Any:
        """Record a training step; `tokens` and `samples` are those of this rank's data-parallel replica."""
        if spans.compiling():
            return contextlib.nullcontext()
        return Step(self, tokens, samples, step) if self.on else NOTHING

    def event(
        self,
        kind: str,
        *,
        step: int | None = None,
        cause: str | None = None,
        detail: str | None = None,
        blocking: bool = True,
    ) -> Any:
        """Record a phase of the job: one of the lifecycle kinds (definition 17)."""
        if spans.compiling():
            return contextlib.nullcontext()
        if not self.on:
            return NOTHING
        if kind not in LIFECYCLE_KINDS:
            self.say_once(f"event kind {kind!r} is not one of {', '.join(LIFECYCLE_KINDS)}; recorded as a span")
            return Span(self, kind)
        return Event(self, kind, step, cause, detail, blocking)

    def data(self, loader: Iterable[T]) -> Iterable[T]:
        """Iterate over a loader and record the time spent waiting for it."""
        return Data(self, loader) if self.on else loader

    def log(self, name: str, value: Any) -> None:
        """Record a number of this moment; `loss` inside a step becomes the step's. Tensors on a GPU are read later."""
        if not self.on or spans.compiling():
            return
        try:
            now = perf_counter_ns()
            if getattr(value, "is_cuda", False):
                if self.gpu is not None:
                    step = self.current_step
                    self.gpu.read_later(value, lambda number: self._log(now, name, number, step))
                return
            self._log(now, name, float(value))
            if name == "loss":
                self._loss = float(value)
        except Exception as error:
            self.guard.failed("log", error)

    def finish(self, *, timeout: float | None = None) -> None:
        """Write what is left and hand over to the side process; waits at most `timeout` seconds (2 by default)."""
        if not self._finished.acquire(blocking=False):
            return
        try:
            self._finish(2.0 if timeout is None else timeout)
        except Exception as error:
            self.guard.failed("finish", error)
        finally:
            self.on = False
            with contextlib.suppress(ValueError):
                gc.callbacks.remove(self._on_gc)

    # ---------------------------------------------------------------- facts for others

    @property
    def acknowledged_step(self) -> int | None:
        """Highest step that is on disk: it survives the end of this process, whatever ends it."""
        return self.writer.acknowledged_step

    @property
    def step_range(self) -> str:
        """Name of the step's range in Kineto; in a window of ours, ProfilerStep has the number already."""
        ours = self.profiling is not None and self.profiling.recording
        return "perfkit.step" if ours else f"perfkit.step#{self.current_step}"

    @property
    def metrics(self) -> dict[str, Any]:
        """The latest online metrics."""
        return self.writer.meter.snapshot()

    # ---------------------------------------------------------------- called by spans and steps

    def record(self, table: str, row: tuple[Any, ...]) -> None:
        """Put a row into the buffer, or drop and count it if the buffer is full."""
        if len(self._buffer) < self._capacity or (table in PRECIOUS and len(self._buffer) < 2 * self._capacity):
            self._buffer.append((table, row))
        else:
            self.dropped += 1

    def record_event(
        self,
        kind: str,
        start: int,
        end: int | None,
        step: int | None = None,
        cause: str | None = None,
        blocking: bool | None = None,
        detail: str | None = None,
    ) -> None:
        """Record a lifecycle row; times are of `perf_counter_ns`."""
        step = self.current_step if step is None else int(step)
        self.record("lifecycle", (kind, start, end, step, cause, blocking, detail))

    def step_begins(self, step: Step) -> None:
        """Give the step its number; at the first one, settle what only the training loop could tell."""
        if step.number is not None:
            self.current_step = int(step.number)
        if self.loggers is not None:
            self.loggers.notice()
        if self._steps == 0 and self._init_from is not None:
            self.ranges.find_torch()
            self.watched = self.ranges.watched
            self._settle_identity()
            self._start_gpu()
            self.record_event("init", self._init_from, perf_counter_ns(), None, None, True)
            self._init_from = None

    def step_ends(self, step: Step, start: int, end: int, error: str | None) -> None:
        """Record the step, then let the profiler decide about the next one."""
        number = self.current_step
        if error is not None:  # it did not happen: neither tokens nor time of a step
            self.record("spans", ("perfkit.step", number, start, end - start, None, 0, None, error))
            return
        profiling = self.profiling
        profiled = self.ranges.profiler_enabled() or (profiling is not None and profiling.disturbed)
        loss, self._loss = (self._loss if step.loss is None else float(step.loss)), None
        wait, self._data_wait_ns = self._data_wait_ns, None
        self.record("steps", (number, start, end, wait, _integer(step.tokens), _integer(step.samples), loss, profiled))
        if self.trigger is not None:
            self.trigger.step_ended(number, end, wait, profiled)
        self._steps += 1
        self.current_step = number + 1
        if self.gpu is not None:
            self.gpu.poll()
            self.gpu.active = self._steps % self.settings.gpu_time_every == 0
        if profiling is not None:
            profiling.step_ended(number)
        self.hook_ns += perf_counter_ns() - end

    def waited_for_data(self, start: int, end: int) -> None:
        """Add a wait to the step that follows."""
        self._data_wait_ns = (self._data_wait_ns or 0) + end - start
        self.record("spans", ("perfkit.data", self.current_step, start, end - start, None, 0, None, None))

    def drain(self) -> list[tuple[str, tuple[Any, ...]]]:
        """Take everything out of the buffer (called by the writer thread)."""
        buffer = self._buffer
        return [buffer.popleft() for _ in range(len(buffer))]

    def say_once(self, message: str) -> None:
        """Log a line the first time."""
        if message not in self._warned:
            self._warned.add(message)
            say(message)

    # ---------------------------------------------------------------- inside

    def _log(self, now: int, name: str, value: float, step: int | None = None) -> None:
        self.record("counters", (now, str(name), "log", value, None))
        if step is not None and name == "loss":  # its step has been written already
            self.record("losses", (step, value))

    def _settle_identity(self) -> None:
        """Ask torch.distributed, which a script may have set up after `perfkit.init`."""
        if self.identity.source != "arguments":
            found = find_identity(run=self.identity.run, cluster=self.identity.cluster, attempt=self.identity.attempt)
            if (found.rank, found.world_size) != (self.identity.rank, self.identity.world_size):
                self.identity = found
                self.writer.identity_changed()

    def _start_gpu(self) -> None:
        from perfkit.capture.gpu_records import own_gpu

        self.gpu_uuid = own_gpu()
        torch: Any = sys.modules.get("torch")
        if self.settings.gpu_time and torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            from perfkit.capture.gpu_time import GpuTimes

            self.gpu = GpuTimes(self, torch.cuda)

    def _on_gc(self, phase: str, info: dict[str, int]) -> None:
        try:
            if phase == "start":
                self._gc_start = perf_counter_ns()
                if info["generation"] == 2 and self.on and self.watched():
                    self._gc_range = self.ranges.open("perfkit.gc")
                return
            end = perf_counter_ns()
            if self._gc_range is not None:
                handle, self._gc_range = self._gc_range, None
                self.ranges.close(handle)
            if self.on and end - self._gc_start >= LONG_GC_NS:
                row = ("perfkit.gc", self.current_step, self._gc_start, end - self._gc_start, None, None, None, None)
                self.record("spans", row)
        except Exception as error:
            self.guard.failed("gc", error)

    def _finish(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        if self.profiling is not None:
            self.profiling.close()
        if self.gpu is not None:
            self.gpu.close_all()
        now = perf_counter_ns()
        error: Any = getattr(sys, "last_type", None)
        self.record_event("end", now, None, None, error.__name__ if error else None, None)
        self.on = False
        self.writer.close(deadline)

    def forked(self) -> None:
        """In a child process: let go of everything, record nothing."""
        self.on = False
        self._finished.acquire(blocking=False)
        self._buffer.clear()
        self.gpu = self.profiling = self.trigger = None
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._on_gc)
        self.writer.leave()


class Data(Generic[T]):
    """A loader that is watched; everything else of the loader passes through."""

    def __init__(self, recorder: Recorder, loader: Iterable[T]) -> None:
        self._recorder, self._loader = recorder, loader

    def __iter__(self) -> Iterator[T]:
        recorder = self._recorder
        start = perf_counter_ns()
        iterator = iter(self._loader)
        while True:
            handle = None
            with _guarded(recorder):
                if recorder.on and recorder.watched():
                    handle = recorder.ranges.open("perfkit.data")
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                with _guarded(recorder):
                    if handle is not None:
                        recorder.ranges.close(handle)
            if recorder.on:
                recorder.waited_for_data(start, perf_counter_ns())
            yield item
            start = perf_counter_ns()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


@contextlib.contextmanager
def _guarded(recorder: Recorder) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        recorder.guard.failed("data", error)


def _integer(value: Any) -> int | None:
    return None if value is None else int(value)


def _process_start() -> int | None:
    """Return when this process began, on the clock of `perf_counter_ns`."""
    try:
        with open("/proc/self/stat") as file:  # noqa: PTH123
            ticks = int(file.read().rpartition(")")[2].split()[19])
        started = ticks / os.sysconf("SC_CLK_TCK")
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        return perf_counter_ns() - int((now - started) * 1e9)
    except (OSError, ValueError, AttributeError, IndexError):
        return perf_counter_ns()
