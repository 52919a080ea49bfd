"""GPU time of spans by CUDA events, read later, never synchronising.

    start = gpu.mark(); …; gpu.close(start, row)    at the ends of a span, on its stream
    gpu.poll()                                      between steps: rows whose events have passed go on

Events are asked (`query`) only between steps and only by the training thread: another thread's query would break
a CUDA graph capture. Events are reused. Rows whose events have not passed when the recorder ends, or after
`MAX_PENDING` others, go on without a GPU time.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfkit.capture.recorder import Recorder

MAX_PENDING = 4096
PER_POLL = 256
GPU_COLUMN = 4
"""Position of gpu_ns in a row of spans."""


class GpuTimes:
    """Events under way."""

    def __init__(self, recorder: Recorder, cuda: Any) -> None:
        self._recorder, self._cuda = recorder, cuda
        self._free: list[Any] = []
        self._pending: collections.deque[tuple[Any, Any, Any]] = collections.deque()
        self.active = True

    def mark(self) -> Any:
        """Record an event at the start of a span; None if this span is not measured."""
        if not self.active or len(self._pending) >= MAX_PENDING or self._cuda.is_current_stream_capturing():
            return None
        return self._record()

    def close(self, start: Any, row: tuple[Any, ...]) -> None:
        """Record an event at the end of a span; its row waits for both."""
        if self._cuda.is_current_stream_capturing():
            self.drop(start)
            self._recorder.record("spans", row)
            return
        self._pending.append((start, self._record(), row))

    def drop(self, start: Any) -> None:
        """Forget a mark."""
        self._free.append(start)

    def read_later(self, tensor: Any, then: Callable[[float], None]) -> None:
        """Copy a number off the GPU without waiting for it."""
        if len(self._pending) < MAX_PENDING and not self._cuda.is_current_stream_capturing():
            copy = tensor.detach().to("cpu", non_blocking=True)
            self._pending.append((None, self._record(), (copy, then)))

    def poll(self) -> None:
        """Hand on what has passed, in order."""
        for _ in range(min(PER_POLL, len(self._pending))):
            start, end, what = self._pending[0]
            if not end.query():
                return
            self._pending.popleft()
            if start is None:
                copy, then = what
                then(float(copy))
            else:
                gpu_ns = round(start.elapsed_time(end) * 1e6)
                self._recorder.record("spans", (*what[:GPU_COLUMN], gpu_ns, *what[GPU_COLUMN + 1 :]))
                self._free.append(start)
            self._free.append(end)

    def close_all(self) -> None:
        """Hand on everything; what has not passed has no GPU time."""
        self.poll()
        while self._pending:
            start, _, what = self._pending.popleft()
            if start is not None:
                self._recorder.record("spans", what)

    def _record(self) -> Any:
        event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
        event.record()
        return event
