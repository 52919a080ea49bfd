"""The module-level functions: `perfkit.init`, and hooks that act on the current recorder."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

from perfkit.capture import spans
from perfkit.capture.guard import Guard, describe, say
from perfkit.capture.identity import Identity, find_identity
from perfkit.capture.names import ENABLE
from perfkit.capture.recorder import Recorder
from perfkit.capture.settings import Settings
from perfkit.capture.spans import NOTHING, Decorating

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_current: Recorder | None = None
_lock = threading.Lock()
_hooked = False


class OffRecorder:
    """What `init` returns when capture is switched off: every hook does nothing."""

    on = False
    identity = Identity()
    acknowledged_step: int | None = None
    current_step = 0
    dropped = 0

    def __init__(self) -> None:
        self.guard = Guard()
        self.metrics: dict[str, Any] = {}
        spans.find_compiler()

    def span(self, name: str) -> Any:
        """Do nothing."""
        return contextlib.nullcontext() if spans.compiling() else NOTHING

    def step(self, *, tokens: int | None = None, samples: int | None = None, step: int | None = None) -> Any:
        """Do nothing."""
        return contextlib.nullcontext() if spans.compiling() else NOTHING

    def event(self, kind: str, **_: Any) -> Any:
        """Do nothing."""
        return contextlib.nullcontext() if spans.compiling() else NOTHING

    def data(self, loader: Iterable[T]) -> Iterable[T]:
        """Return the loader."""
        return loader

    def log(self, name: str, value: Any) -> None:
        """Do nothing."""

    def finish(self, *, timeout: float | None = None) -> None:
        """Do nothing."""


def init(
    run: str | None = None,
    *,
    cluster: str | None = None,
    store: str | os.PathLike[str] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    attempt: int | None = None,
    job: str | None = None,
    **settings: Any,
) -> Recorder | OffRecorder:
    """Start recording this rank and return the recorder.

    Who this process is comes from the arguments, else from torch.distributed or the launcher's environment; no
    collective is run. `settings` are the fields of `perfkit.capture.settings.Settings`: `model`, `seq_len`, `mesh`,
    `hardware`, `dtype`, `profile`, `log_every`, `metrics_port`, `loggers`, …

    A wrong argument raises; a store that cannot be written, or anything that breaks later, costs one log line.
    With PERFKIT=0 in the environment nothing is recorded.
    """
    global _current
    if os.environ.get(ENABLE, "1").lower() in ("0", "off", "false", "no"):
        return OffRecorder()
    chosen = Settings(store=os.fspath(store) if store is not None else "", **settings)
    who = find_identity(
        rank=rank, world_size=world_size, local_rank=local_rank, run=run, cluster=cluster, attempt=attempt, job=job
    )
    with _lock:
        _hook_process()
        if _current is not None and _current.on:
            _current.finish()
        _current = None
        if (reason := _unusable(chosen)) is not None:
            say(f"recording is off: {reason}; training goes on without it")
            return OffRecorder()
        try:
            recorder = Recorder(chosen, who)
            _add_profiling(recorder)
        except Exception as error:
            say(f"recording is off: {describe(error)}; training goes on without it")
            return OffRecorder()
        _current = recorder
    return recorder


def _unusable(settings: Settings) -> str | None:
    """Say at once what can be seen at once."""
    for name, place in (("store", settings.store), ("spool", settings.spool)):
        if "://" in place:
            continue
        path = Path(place).expanduser()
        for part in (path, *path.parents):
            if part.exists():
                if not part.is_dir():
                    return f"the {name} {place} is a file, or inside one; choose a folder"
                break
    return None


def _add_profiling(recorder: Recorder) -> None:
    from perfkit.capture.profiling import Profiling

    recorder.profiling = Profiling(recorder, recorder.settings.profile)
    if recorder.settings.trigger is not None:
        from perfkit.capture.trigger import Trigger

        recorder.trigger = Trigger(recorder, recorder.settings.trigger)


def _hook_process() -> None:
    global _hooked
    if not _hooked:
        _hooked = True
        atexit.register(finish)
        os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    global _current, _lock
    recorder, _current = _current, None
    _lock = threading.Lock()  # another thread may have held it
    if recorder is not None:
        try:
            recorder.forked()
        except Exception:
            recorder.on = False


def current() -> Recorder | None:
    """Return the recorder that the module-level functions act on, if there is one."""
    return _current


class Late(Decorating):
    """A hook that finds its recorder when it is entered: for decorators that run before `init`."""

    __slots__ = ("_args", "_chosen", "_kwargs", "_of", "_what")

    def __init__(self, what: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._what, self._args, self._kwargs = what, args, kwargs
        self._of: Recorder | None = None
        self._chosen: Any = NOTHING

    def _again(self) -> Any:
        recorder = _current
        return NOTHING if recorder is None else getattr(recorder, self._what)(*self._args, **self._kwargs)

    def __enter__(self) -> Any:
        recorder = _current
        if recorder is None:
            return NOTHING
        if self._of is not recorder:  # a span may be open in many threads at once, so one object serves them all
            self._chosen, self._of = self._again(), recorder
        return self._chosen.__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._of is not None:
            self._chosen.__exit__(kind, error, trace)  # of a recorder that has ended: does nothing


_spans: dict[str, Late] = {}


def span(name: str) -> Any:
    """Record a named stretch with the current recorder; context manager and decorator."""
    if spans.compiling():
        return contextlib.nullcontext()
    found = _spans.get(name)
    if found is None:
        if len(_spans) >= 4096:  # names with numbers in them
            _spans.clear()
        found = _spans[name] = Late("span", (name,), {})
    return found


def step(*, tokens: int | None = None, samples: int | None = None, step: int | None = None) -> Any:
    """Record a training step with the current recorder; context manager and decorator."""
    if spans.compiling():
        return contextlib.nullcontext()
    return Late("step", (), {"tokens": tokens, "samples": samples, "step": step})


def event(kind: str, **details: Any) -> Any:
    """Record a phase of the job with the current recorder; context manager and decorator."""
    return contextlib.nullcontext() if spans.compiling() else Late("event", (kind,), details)


def data(loader: Iterable[T]) -> Iterable[T]:
    """Watch a loader with the current recorder."""
    return loader if _current is None else _current.data(loader)


def log(name: str, value: Any) -> None:
    """Record a number with the current recorder."""
    if _current is not None:
        _current.log(name, value)


def finish(*, timeout: float | None = None) -> None:
    """End the current recording."""
    global _current
    recorder, _current = _current, None
    if recorder is not None:
        recorder.finish(timeout=timeout)


def instrument(run: str | None = None, **arguments: Any) -> Callable[[F], F]:
    """Decorate a `main()`: `init` before it, `finish` after it, a `fault` event if it raises."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            recorder = init(run, **arguments)
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                if not isinstance(error, SystemExit):
                    with recorder.event("fault", cause=type(error).__name__, blocking=True):
                        pass
                raise
            finally:
                finish() if recorder is _current else recorder.finish()

        return cast(F, wrapper)

    return decorate
