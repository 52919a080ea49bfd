"""For loops written with Accelerate: wrap the loader, and steps, tokens, phases and checkpoints are recorded.

    for batch in watch(accelerator, loader, run="my-run", store="runs/"):
        with accelerator.accumulate(model):
            ...accelerator.backward(loss); optimizer.step()...

A step ends when the next batch is asked for and Accelerate has synchronised gradients, so that accumulated batches make
one step. `accelerator.backward` and `accelerator.save_state` are timed as phases.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter_ns
from typing import Any, TypeVar

from perfkit.capture.integrations.loop import Loop

T = TypeVar("T")


def watch(accelerator: Any, loader: Iterable[T], run: str | None = None, **settings: Any) -> Iterable[T]:
    """Return the loader, watched; further arguments are those of `perfkit.init`."""
    return Watched(accelerator, loader, Loop(run, settings), settings)


class Watched:
    """A loader whose iteration makes steps."""

    def __init__(self, accelerator: Any, loader: Iterable[Any], loop: Loop, settings: dict[str, Any]) -> None:
        self._accelerator, self._loader, self.loop, self._settings = accelerator, loader, loop, settings
        self._number = 0
        self._wrap("backward", self._time_backward)
        self._wrap("save_state", self._time_save)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        self._safely(self._start)
        for batch in self._loader:
            self._safely(self._arrived, batch)
            yield batch
            self._safely(self._done)
        self._safely(self._done)

    def _start(self) -> None:
        found: dict[str, Any] = {}
        if "mesh" not in self._settings:
            found["mesh"] = {"dp": int(self._accelerator.num_processes)}
        if "dtype" not in self._settings:
            found["dtype"] = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}.get(
                self._accelerator.mixed_precision, "fp32"
            )
        self.loop.start(**found)

    def _arrived(self, batch: Any) -> None:
        self.loop.waited_for_data()
        self.loop.begin_step(self._number)
        self.loop.count(batch)

    def _done(self) -> None:
        if self.loop.in_step and self._accelerator.sync_gradients:
            self.loop.end_step()
            self._number += 1
        self.loop.mark()

    def _time_backward(self, call: Callable[[], Any]) -> Any:
        self._safely(self.loop.open_span, "backward")
        try:
            return call()
        finally:
            self._safely(self.loop.close_spans)

    def _time_save(self, call: Callable[[], Any]) -> Any:
        began = perf_counter_ns()
        try:
            return call()
        finally:
            self._safely(self._saved, began)

    def _saved(self, began: int) -> None:
        self.loop.record("checkpoint_save", began)

    def _wrap(self, name: str, timed: Callable[[Callable[[], Any]], Any]) -> None:
        original = getattr(self._accelerator, name)
        if getattr(original, "perfkit", False):
            return

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return timed(lambda: original(*args, **kwargs))

        wrapper.perfkit = True  # type: ignore[attr-defined]
        setattr(self._accelerator, name, wrapper)

    def _safely(self, hook: Callable[..., None], *args: Any) -> None:
        try:
            hook(*args)
        except Exception as error:
            self.loop.failed(error)

    def finish(self) -> None:
        """End the recording; the end of the process does it too."""
        self.loop.finish()
