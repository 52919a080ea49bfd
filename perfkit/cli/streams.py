"""The standard streams of a command: always there, able to show any name, and clear about output that is lost.

prepare()          once, before anything is printed
escaped(name)      -> text of one line that moves no cursor
say(line)          one line on standard error
finish_output()    write what is buffered, or give it up
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from perfkit.errors import PerfkitError, cannot_write


class _Output(io.TextIOWrapper):
    """Standard output that says what failed: any other OSError is about a file of the command."""

    def write(self, text: str, /) -> int:
        with _told():
            return super().write(text)

    def flush(self) -> None:
        with _told():
            super().flush()


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise cannot_write("the output", error) from None


def prepare() -> None:
    """Open streams that the caller has closed (`>&-`), and set how the others show names, errors and warnings."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # in this order each gets the lowest number that is free: its own
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123  # as long as the process
    out = sys.stdout
    assert isinstance(out, io.TextIOWrapper)
    settings: dict[str, Any] = {"line_buffering": out.line_buffering, "write_through": out.write_through}
    encoding = out.encoding
    sys.stdout = _Output(out.detach(), encoding, "backslashreplace", **settings)
    setattr(sys, "__stdout__", sys.stdout)  # noqa: B010  # final to mypy; the interpreter flushes it at its end
    assert isinstance(sys.stderr, io.TextIOWrapper)
    sys.stderr.reconfigure(errors="backslashreplace")
    show = warnings.showwarning

    def tell(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if category.__module__.startswith("perfkit."):
            say(str(message))
        else:
            show(message, category, *place, **more)

    warnings.showwarning = tell


def escaped(name: str) -> str:
    """Return a name with what is not printable as Python writes it, so that it stays on its line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def say(line: str) -> None:
    """Say one line on standard error; where that cannot be written, the exit code has to do."""
    with suppress(OSError):
        print(f"perfkit: {escaped(line)}", file=sys.stderr, flush=True)


def finish_output() -> None:
    """Write what is left of the output or give it up: the interpreter would try again at its end, and complain."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, PerfkitError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
