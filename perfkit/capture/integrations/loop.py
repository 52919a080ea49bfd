"""What the callbacks share: a recorder, an open step, counted batches, and hooks that never raise.

A framework that lets an exception of a callback end training must not get one from here: `safely` hands it to the
recorder's guard, which says so once and switches the part off after a few.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any, TypeVar, cast

from perfkit.capture.api import current, init
from perfkit.capture.guard import describe, say

F = TypeVar("F", bound=Callable[..., Any])
TOKEN_KEYS = ("input_ids", "tokens", "input", "x", "idx", "inputs")


def safely(hook: F) -> F:
    """Make a method of a callback harmless: its failures go to the guard of its loop."""

    @functools.wraps(hook)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return hook(self, *args, **kwargs)
        except Exception as error:
            self.loop.failed(error)
            return None

    return cast(F, wrapper)


def count_batch(batch: Any) -> tuple[int | None, int | None]:
    """Return (tokens, samples) of a batch: a whole-number tensor of two dimensions is tokens, padding included."""
    tensors = _tensors(batch)
    samples = next((int(t.shape[0]) for t in tensors if t.dim() >= 1), None)
    tokens = next((int(t.numel()) for t in tensors if t.dim() == 2 and _whole(t)), None)
    return tokens, samples


def sequence_length(batch: Any) -> int | None:
    """Return the length of the sequences of a batch of tokens."""
    return next((int(t.shape[1]) for t in _tensors(batch) if t.dim() == 2 and _whole(t)), None)


def _whole(tensor: Any) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and str(tensor.dtype) != "torch.bool"


def _tensors(batch: Any) -> list[Any]:
    if isinstance(batch, Mapping):
        first = [batch[key] for key in TOKEN_KEYS if key in batch]
        values: Sequence[Any] = first + [value for key, value in batch.items() if key not in TOKEN_KEYS]
    elif isinstance(batch, (tuple, list)):
        values = batch
    else:
        values = [batch]
    return [value for value in values if hasattr(value, "numel") and hasattr(value, "dim")]


class Loop:
    """A training loop seen through callbacks."""

    def __init__(self, run: str | None, settings: dict[str, Any]) -> None:
        self._run, self._settings = run, settings
        self._owned = False
        self._step: Any = None
        self._spans: list[Any] = []
        self._tokens = self._samples = 0
        self._counted = False
        self._off = False
        self.recorder: Any = None
        self.mark_ns = perf_counter_ns()

    @property
    def on(self) -> bool:
        """Whether anything is recorded."""
        return not self._off and self.recorder is not None and self.recorder.on

    def failed(self, error: Exception) -> None:
        """Count a failure of a callback."""
        if self.recorder is None:
            if not self._off:
                say(f"the callback is off: {describe(error)}; training goes on without it")
            self._off = True
        elif self.recorder.guard.failed("callback", error):
            self._off = True

    def start(self, **found: Any) -> None:
        """Use the script's recorder, or start one with what the framework knows (`found`) and the user said."""
        if self.on:
            return
        self.recorder = current()
        if self.recorder is None:
            self.recorder = init(self._run, **{**found, **self._settings})
            self._owned = True
        self.mark()

    def mark(self) -> None:
        """Remember this moment: what comes next began here."""
        self.mark_ns = perf_counter_ns()

    def waited_for_data(self) -> None:
        """Count the time since the mark as waiting for data."""
        if self.on:
            self.recorder.waited_for_data(self.mark_ns, perf_counter_ns())

    def begin_step(self, number: int | None = None) -> None:
        """Open a step unless one is open."""
        if self.on and self._step is None:
            self._step = self.recorder.step(step=number)
            self._step.__enter__()

    @property
    def counted_tokens(self) -> int | None:
        """Tokens of the open step so far; None if no batch was recognised."""
        return self._tokens if self._counted else None

    @property
    def in_step(self) -> bool:
        """Whether a step is open."""
        return self._step is not None

    def count(self, batch: Any) -> None:
        """Add a batch to the step; the first one settles the sequence length."""
        tokens, samples = count_batch(batch)
        if tokens is not None:
            self._tokens += tokens
            self._counted = True
            if self.on and self.recorder.settings.seq_len is None:
                self.recorder.settings.seq_len = sequence_length(batch)
        self._samples += samples or 0

    def end_step(self, loss: float | None = None) -> None:
        """Close the step with what was counted."""
        step, self._step = self._step, None
        if step is not None:
            step.tokens = self._tokens if self._counted else None
            step.samples = self._samples or None
            step.loss = loss
            self.close_spans()
            step.__exit__(None, None, None)
        self._tokens = self._samples = 0
        self._counted = False
        self.mark()

    def open_span(self, name: str) -> None:
        """Open a span inside the step."""
        if self.on and self.in_step:
            span = self.recorder.span(name)
            span.__enter__()
            self._spans.append(span)

    def close_spans(self) -> None:
        """Close the spans that are open."""
        while self._spans:
            self._spans.pop().__exit__(None, None, None)

    def record(self, kind: str, start_ns: int, *, step: int | None = None) -> None:
        """Record a phase that began at `start_ns` and ends now."""
        if self.on:
            self.recorder.record_event(kind, start_ns, perf_counter_ns(), step, None, True)
        self.mark()

    def log(self, values: Mapping[str, Any]) -> None:
        """Record numbers."""
        if self.on:
            for name, value in values.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    self.recorder.log(name, value)

    def finish(self) -> None:
        """End the recording if it is ours."""
        if self._step is not None:
            self._step = None
        if self._owned and self.recorder is not None:
            self.recorder.finish()
