"""What an engine is: it maps a function over items, somewhere, and reports each item on its own.

    engine.map(function, items, cost=..., ordered=..., on_progress=...) -> iterator of Outcome

The function and the items must be picklable, and the function must live in an importable module. Inside
the function, `report_progress(n)` adds to the progress of its item, wherever it runs. An item never
takes others down: an exception, or the death of the process that worked on it, is that item's `error`.

A function may return `Later(finish)` instead of its value, if what is left to do mostly waits (for a disk, for a
network): the local engine then lets its process begin with the next item. The item is done when `finish` is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from perfkit.errors import PerfkitError

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Item, Value]):
    """What became of one item."""

    index: int
    """Position of the item in what was given."""
    item: Item
    value: Value | None = None
    error: BaseException | None = None
    attempts: int = 1
    """How often it was tried; more than 1 only after a worker died."""
    traceback: str = ""
    """Of the error, as text, from the process where it happened."""

    def unwrap(self) -> Value:
        """Return the value or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # None is a value if the function returns it


@dataclass(frozen=True, slots=True)
class Later(Generic[Value]):
    """A value that is there when `finish` returns it; `finish` reports no progress, and may run in a thread."""

    finish: Callable[[], Value]


def finished(value: Value | Later[Value]) -> Value:
    """Return the value, now."""
    return value.finish() if isinstance(value, Later) else value


class WorkerDied(PerfkitError):
    """The process that worked on an item was killed or crashed, each time it was tried."""


class RemoteError(PerfkitError):
    """An exception that could not cross the process boundary; the message has its type and text."""


class Engine(Protocol):
    """Runs a function over many items."""

    def map(
        self,
        function: Callable[[Item], Value | Later[Value]],
        items: Iterable[Item],
        *,
        cost: Callable[[Item], float] | None = None,
        ordered: bool = False,
        on_progress: Callable[[Item, int], None] | None = None,
    ) -> Iterator[Outcome[Item, Value]]:
        """Yield an outcome per item: as they finish, or in the order of the items if `ordered`."""
        ...


_listener: Callable[[int], None] | None = None


def report_progress(increment: int) -> None:
    """Add to the progress of the item that this process is working on; does nothing outside an engine."""
    if _listener is not None:
        _listener(increment)


def listen(listener: Callable[[int], None] | None) -> None:
    """Say where `report_progress` goes (for engines)."""
    global _listener
    _listener = listener
