"""The process behind `LocalEngine`: receive an item, call the function, send what came of it.

Started as a plain interpreter, not through multiprocessing: nothing is forked from a process with threads,
and the user's `__main__` is never imported again, so that a script without a `__main__` guard, a
notebook and a console script all work.

It ends when its parent does: a thread waits for the end of a pipe that only the parent holds.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from perfkit.engine import base

PROGRESS_SECONDS = 0.05
"""At most this often a worker reports progress."""


def main(channel: int, lifeline: int) -> None:
    """Serve items from `channel` until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which ends us
    signal.signal(signal.SIGTERM, _leave)
    sys.unraisablehook = _leave_again
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    connection = Connection(channel)
    serve = _Server(connection)
    try:
        serve.load(connection.recv_bytes())
        while True:
            serve.item(connection.recv_bytes())
    except (EOFError, ConnectionError):  # the parent has closed the channel, or is gone
        serve.wait()
        sys.stderr.flush()
        os._exit(0)  # nothing is open any more, and taking Arrow and NumPy apart would keep the parent waiting
    except _Leave as leaving:
        traceback.clear_frames(leaving.__traceback__)  # closes what was handed around unfinished, as `Later` is
        serve.wait()
        raise


class _Server:
    """Works on items; what is left of one for `Later` is finished in a thread, while the next one is worked on."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()  # the function may report from several threads, and one may be finishing
        self._function: Callable[[Any], Any] | None = None
        self._done = threading.Event()  # not Thread.join: one that a signal interrupts takes the thread for ended
        self._done.set()

    def load(self, data: bytes) -> None:
        """Take the function."""
        try:
            self._function = pickle.loads(data)
        except Exception as error:
            self.send(("unusable", portable(error), traceback.format_exc()))
            raise EOFError from error
        self.send(("ready",))

    def item(self, data: bytes) -> None:
        """Work on one item and send what came of it."""
        assert self._function is not None
        function, progress, later = self._function, _Progress(self.send), None

        def work() -> Any:
            nonlocal later
            value = function(pickle.loads(data))
            if isinstance(value, base.Later):
                later = value.finish
                return None
            return value

        base.listen(progress.add)
        try:
            reply = _reply(work)
        finally:
            base.listen(None)
        progress.finish()
        if later is None:
            self._send(reply)
            return
        self.wait()
        self.send(("finishing",))
        with _Calm():
            self._done = threading.Event()
            threading.Thread(target=self._finish, args=(later, self._done), name="perfkit-finish").start()

    def wait(self) -> None:
        """Wait until the item that is being finished is done."""
        self._done.wait()

    def send(self, message: tuple[Any, ...]) -> None:
        """Send a message to the parent."""
        self._send(pickle.dumps(message))

    def _finish(self, later: Callable[[], Any], done: threading.Event) -> None:
        try:
            with suppress(OSError):  # the parent is gone
                self.send(("finished", _reply(later)))
        finally:
            done.set()

    def _send(self, data: bytes) -> None:
        with self._lock:
            self._connection.send_bytes(data)


def _reply(call: Callable[[], Any]) -> bytes:
    """Return the message that says what came of a call."""
    try:
        return pickle.dumps(("value", call()))
    except MemoryError:
        return pickle.dumps(("no memory",))
    except BaseException as error:
        if isinstance(error, _Leave):
            raise
        return pickle.dumps(("error", portable(error), traceback.format_exc()))


class _Progress:
    """Adds up increments of one item and sends them now and then."""

    def __init__(self, send: Callable[[tuple[Any, ...]], None]) -> None:
        self._deliver = send
        self._pending = 0
        self._sent_at = 0.0
        self._lock = threading.Lock()

    def add(self, increment: int) -> None:
        with self._lock:
            self._pending += increment
            if time.monotonic() - self._sent_at >= PROGRESS_SECONDS:
                self._send()

    def finish(self) -> None:
        with self._lock:
            if self._pending:
                self._send()

    def _send(self) -> None:
        self._deliver(("progress", self._pending))
        self._pending = 0
        self._sent_at = time.monotonic()


def portable(error: BaseException) -> BaseException:
    """Return the error, or a stand-in if it does not survive pickling."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return base.RemoteError(f"{type(error).__name__}: {error}")


class _Leave(SystemExit):
    """The parent wants us to end; raised in the main thread, so that context managers clean up."""


class _Calm:
    """While this is entered nobody has to leave: a thread that is just being started can neither be kept nor joined."""

    entered = False
    asked = False

    def __enter__(self) -> None:
        _Calm.entered = True

    def __exit__(self, *_: object) -> None:
        _Calm.entered = False
        if _Calm.asked:
            raise _Leave(1)


def _leave(number: int, frame: FrameType | None) -> None:
    if _Calm.entered:
        _Calm.asked = True
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: a second one would cut the cleaning short
    raise _Leave(1)


def _leave_again(lost: sys.UnraisableHookArgs) -> None:
    """Raise `_Leave` once more: it came while a generator was being thrown away, which swallows exceptions."""
    if isinstance(lost.exc_value, _Leave):
        signal.signal(signal.SIGTERM, _leave)
        again = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))  # not here: this swallows it as well
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(lost)


def _die_with_parent(lifeline: int) -> None:
    os.read(lifeline, 1)  # returns when the parent closes it, or is gone
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
    os._exit(1)


def start_command(channel: int, lifeline: int) -> str:
    """Return the Python code that a new interpreter runs to become a worker."""
    path = [entry or os.getcwd() for entry in sys.path]  # noqa: PTH109
    return f"import sys; sys.path[:] = {path!r}; from perfkit.engine.worker import main; main({channel}, {lifeline})"
