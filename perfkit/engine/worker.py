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
    try:
        function = _load(connection)
        while True:
            _serve(connection, function, connection.recv_bytes())
    except (EOFError, ConnectionError):  # the parent has closed the channel, or is gone
        sys.stderr.flush()
        os._exit(0)  # nothing is open any more, and taking Arrow and NumPy apart would keep the parent waiting


def _load(connection: Connection) -> Any:
    data = connection.recv_bytes()
    try:
        function = pickle.loads(data)
    except Exception as error:
        connection.send_bytes(pickle.dumps(("unusable", portable(error), traceback.format_exc())))
        raise EOFError from error
    connection.send_bytes(pickle.dumps(("ready",)))
    return function


def _serve(connection: Connection, function: Any, data: bytes) -> None:
    progress = _Progress(connection)
    base.listen(progress.add)
    try:
        reply = pickle.dumps(("value", function(pickle.loads(data))))
    except (EOFError, ConnectionError) as error:
        reply = pickle.dumps(("error", portable(error), traceback.format_exc()))
    except MemoryError:
        reply = pickle.dumps(("no memory",))
    except BaseException as error:
        if isinstance(error, _Leave):
            raise
        reply = pickle.dumps(("error", portable(error), traceback.format_exc()))
    finally:
        base.listen(None)
    progress.finish(reply)


class _Progress:
    """Adds up increments and sends them now and then, and the reply after the last of them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pending = 0
        self._sent_at = 0.0
        self._lock = threading.Lock()  # the function may report from several threads

    def add(self, increment: int) -> None:
        with self._lock:
            self._pending += increment
            if time.monotonic() - self._sent_at >= PROGRESS_SECONDS:
                self._send()

    def finish(self, reply: bytes) -> None:
        with self._lock:
            if self._pending:
                self._send()
            self._connection.send_bytes(reply)

    def _send(self) -> None:
        self._connection.send_bytes(pickle.dumps(("progress", self._pending)))
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


def _leave(number: int, frame: FrameType | None) -> None:
    raise _Leave(1)


def _leave_again(lost: sys.UnraisableHookArgs) -> None:
    """Raise `_Leave` once more: it came while a generator was being thrown away, which swallows exceptions."""
    if isinstance(lost.exc_value, _Leave):
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
