"""Span, step, event: each is a context manager and a decorator, closes on exceptions, and may be nested.

A use is one entry on a linked stack in a context variable, so one span object can be open in several threads
and tasks, and in itself, at once. The training thread does nothing here but read a clock and append a tuple;
a failure inside perfkit goes to the guard, an exception of the user's code passes through untouched.
"""

from __future__ import annotations

import functools
import inspect
import sys
from _thread import get_native_id
from collections.abc import Callable
from contextvars import ContextVar
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from perfkit.capture.recorder import Recorder

F = TypeVar("F", bound=Callable[..., Any])
Entry = tuple[Any, ...]
"""(span, start, depth, range handle, gpu mark, enclosing entry)."""

compiling: Callable[[], bool] = bool
"""torch.compiler.is_dynamo_compiling once torch is there: inside a compiled function hooks do nothing, because
Dynamo can trace neither clocks nor context variables, and with fullgraph=True that would be an error. They return
a `nullcontext` there, which Dynamo knows."""


def find_compiler() -> None:
    """Look whether torch has been imported."""
    global compiling
    compiler: Any = sys.modules.get("torch.compiler")
    compiling = getattr(compiler, "is_dynamo_compiling", compiling)


find_compiler()

_open: ContextVar[Entry | None] = ContextVar("perfkit_open_spans", default=None)


class Decorating:
    """Makes a context manager with `_again()` a decorator of functions, coroutines and generators."""

    __slots__ = ()

    def _again(self) -> Any:
        """Return a context manager for one call."""
        return self

    def __call__(self, function: F) -> F:
        """Decorate a function, a coroutine function or a generator function."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self._again():
                    return await function(*args, **kwargs)

        elif inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self._again():
                    return (yield from function(*args, **kwargs))

        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                if compiling():
                    return function(*args, **kwargs)
                with self._again():
                    return function(*args, **kwargs)

        return cast(F, wrapper)


class Nothing(Decorating):
    """What a recorder that is off hands out."""

    __slots__ = ()

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, function: F) -> F:
        """Leave the function as it is."""
        return function

    def __setattr__(self, name: str, value: object) -> None:
        """Take what a step would take (`step.tokens = …`)."""


NOTHING = Nothing()


class Span(Decorating):
    """A named stretch of the script."""

    __slots__ = ("_recorder", "name")

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder, self.name = recorder, name

    def __enter__(self) -> Span:
        recorder, outer = self._recorder, _open.get()
        handle = gpu = None
        try:
            if recorder.watched():
                handle = recorder.ranges.open(self.name)
            if recorder.gpu is not None:
                gpu = recorder.gpu.mark()
        except Exception as error:
            recorder.guard.failed("spans", error)
        _open.set((self, perf_counter_ns(), 0 if outer is None else outer[2] + 1, handle, gpu, outer))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = perf_counter_ns()
        entry = close_entry(self)
        if entry is None:
            return
        recorder = self._recorder
        row = (self.name, recorder.current_step, entry[1], end - entry[1], None, entry[2], get_native_id(),
               kind and kind.__name__)  # fmt: skip
        try:
            if entry[4] is None:
                recorder.record("spans", row)
            else:
                recorder.gpu.close(entry[4], row)  # type: ignore[union-attr]  # a mark was made by it
            if entry[3] is not None:
                recorder.ranges.close(entry[3])
        except Exception as failure:
            recorder.guard.failed("spans", failure)


class Event(Span):
    """A phase of the job, one of the lifecycle kinds; becomes a goodput bucket."""

    __slots__ = ("_blocking", "_cause", "_detail", "_step", "kind")

    def __init__(
        self, recorder: Recorder, kind: str, step: int | None, cause: str | None, detail: str | None, blocking: bool
    ) -> None:
        super().__init__(recorder, f"perfkit.{kind}")
        self.kind, self._step, self._cause, self._detail, self._blocking = kind, step, cause, detail, blocking

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end, entry = perf_counter_ns(), close_entry(self)
        if entry is None:
            return
        recorder = self._recorder
        try:
            cause = self._cause if kind is None else kind.__name__
            recorder.record_event(self.kind, entry[1], end, self._step, cause, self._blocking, self._detail)
            if entry[4] is not None:
                recorder.gpu.drop(entry[4])  # type: ignore[union-attr]
            if entry[3] is not None:
                recorder.ranges.close(entry[3])
        except Exception as failure:
            recorder.guard.failed("events", failure)


class Step(Decorating):
    """One training step. `tokens`, `samples` and `loss` may be set while it is open."""

    __slots__ = ("_recorder", "loss", "number", "samples", "tokens")

    def __init__(self, recorder: Recorder, tokens: int | None, samples: int | None, number: int | None) -> None:
        self._recorder, self.tokens, self.samples, self.number = recorder, tokens, samples, number
        self.loss: float | None = None

    def _again(self) -> Step:
        return Step(self._recorder, self.tokens, self.samples, None)

    def __enter__(self) -> Step:
        recorder, outer, handle = self._recorder, _open.get(), None
        try:
            recorder.step_begins(self)
            if recorder.watched():
                handle = recorder.ranges.open(recorder.step_range, "perfkit.step")
        except Exception as error:
            recorder.guard.failed("steps", error)
        _open.set((self, perf_counter_ns(), -1 if outer is None else outer[2], handle, None, outer))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end, entry = perf_counter_ns(), close_entry(self)
        if entry is None:
            return
        recorder = self._recorder
        try:
            if entry[3] is not None:
                recorder.ranges.close(entry[3])
            recorder.step_ends(self, entry[1], end, None if kind is None else kind.__name__)
        except Exception as failure:
            recorder.guard.failed("steps", failure)


def close_entry(span: object) -> Entry | None:
    """Take the innermost open use of a span off the stack; None if it is not open here."""
    entry = top = _open.get()
    if top is not None and top[0] is span:
        _open.set(top[5])
        return top
    while entry is not None and entry[0] is not span:  # a generator was left half-way, or ends out of order
        entry = entry[5]
    if entry is not None:
        _open.set(_without(top, span))
    return entry


def _without(entry: Entry | None, span: object) -> Entry | None:
    if entry is None:
        return None
    return entry[5] if entry[0] is span else (*entry[:5], _without(entry[5], span))
