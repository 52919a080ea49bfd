"""Every error that perfkit raises on purpose, and the exit code it becomes.

    PerfkitError                 exit 2
    ├── UsageError               the command line or an argument makes no sense
    │   └── CannotCount          a convention has no answer for this model (flops.spec)
    │       └── MissingFields    it needs fields that the spec does not have (flops.spec)
    ├── InputError               one input file cannot be used; the others go on
    │   ├── UnsupportedInput     readable, but not a format that perfkit knows
    │   │   ├── NotATrace        undamaged, but nothing to ingest (sources.kinds)
    │   │   │   └── ForOtherCommand   another command of perfkit reads it (sources.detect)
    │   │   └── TraceInstead     a trace where a dump was expected (sources.flight_recorder)
    │   ├── CorruptInput         the format is known and the content is broken
    │   └── UnsafeInput          refused: bomb, path trick, symbolic link, too deep
    ├── StoreError               the store cannot be read or written
    │   ├── StoreFull            no space, or a quota (store.files)
    │   ├── DamagedCommit        a commit cannot be parsed (store.commits)
    │   └── SegmentTaken         another source was committed under this rank and segment (store.segment)
    ├── SchemaError              a table does not have the columns its schema promises
    ├── UnknownHardware          no peak is known; names the override
    ├── WorkerDied               the process that worked on an item was killed or crashed (engine.base)
    ├── RemoteError              what a worker raised cannot cross to this process (engine.base)
    ├── GateUnknown              a --fail-on condition is over a value that is null (report.gate)
    └── GateTripped              exit 1: a --fail-on condition holds

Those with a place live there, below `perfkit`. A message says what is wrong and what to do next. `perfkit.cli.main` is
the only place where an error becomes an exit code.
"""

from __future__ import annotations

import os
from pathlib import Path


class PerfkitError(Exception):
    """Base of the tree. `next_step` tells the user what to do; it is printed after the message."""

    exit_code = 2

    def __init__(self, message: str, *, next_step: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.message}; {self.next_step}" if self.next_step else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.next_step, self.__dict__)


def _rebuild(
    cls: type[PerfkitError], message: str, next_step: str | None, state: dict[str, object]
) -> PerfkitError:  # an error crosses process boundaries whole, next step included
    error = cls.__new__(cls)
    PerfkitError.__init__(error, message, next_step=next_step)
    error.__dict__.update(state)
    return error


def first_line(error: BaseException) -> str:
    """Return the first line of what an error of a library says, or its kind if it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def cannot_write(path: str | os.PathLike[str], error: OSError) -> PerfkitError:
    """Return what is said when a file that somebody asked for cannot be written."""
    absent = isinstance(error, FileNotFoundError)
    next_step = f"make its folder with `mkdir -p {Path(path).parent}`" if absent else "choose another place"
    return PerfkitError(f"cannot write {os.fspath(path)}: {error.strerror or error}", next_step=next_step)


class UsageError(PerfkitError):
    """The command line, or an argument of a library function, makes no sense."""


class InputError(PerfkitError):
    """One input cannot be used; the others are still ingested."""

    def __init__(self, message: str, *, path: str, next_step: str | None = None) -> None:
        super().__init__(message, next_step=next_step)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: {super().__str__()}"


class UnsupportedInput(InputError):
    """Readable, but not a format that perfkit knows."""


class CorruptInput(InputError):
    """The format is known and the content is broken."""


class UnsafeInput(InputError):
    """Refused: a decompression bomb, a path trick, a symbolic link, absurd nesting."""


class StoreError(PerfkitError):
    """The store cannot be read or written."""


class SchemaError(PerfkitError):
    """A table lacks what its schema promises."""


class UnknownHardware(PerfkitError):
    """No peak is known for this device; the message names the override."""


class GateTripped(PerfkitError):
    """A `--fail-on` condition holds."""

    exit_code = 1
