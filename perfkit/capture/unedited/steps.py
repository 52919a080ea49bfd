"""Steps of a script that does not say where they begin: from what its optimizers, loaders and model do.

A step ends with the last optimizer of a cycle. With one optimizer that is every `step()`; with several (two networks,
two parameter groups) the order is learned: a cycle is over when one comes again. Batches between two ends belong to
one step, so that gradient accumulation needs no special case. A step begins when its first batch has arrived, or,
where the script makes its own batches, when the step before it ended; evaluation in between (no gradients) is left
out of tokens and data wait.

The first cycle is recorded as warm-up (lifecycle kind `compile`): in it the model is found, the outermost module that
runs with gradients. From then on its inputs are counted. The second cycle is run under torch's flop counter unless
FLOPs are given: the result is labelled `counted`. A compiled model hides its operations from the counter, so there
FLOPs stay unknown.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

from perfkit.capture.guard import describe, say
from perfkit.capture.integrations.loop import Loop


@dataclass(kw_only=True)
class Options:
    """What `perfkit run` was told."""

    run: str | None = None
    flops: str = "auto"
    """`auto`: count the FLOPs of the second step unless a model is given; `none`: do not."""
    settings: dict[str, Any] = field(default_factory=dict)


class Unedited:
    """What the hooks tell about one process."""

    def __init__(self, torch: Any, options: Options) -> None:
        self._torch, self._options = torch, options
        self.loop = Loop(options.run, dict(options.settings))
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._last_of_cycle: int | None = None
        self._stepped: list[int] = []
        self._root: Any = None
        self._searching: Any = None
        self._hook_all: Any = None
        self._counter: Any = None
        self._cycles = 0
        self._warmup_began: int | None = None
        self._has_loader = False
        self.off = False

    def failed(self, error: Exception) -> None:
        """Give up on the first failure: hooks that are wrong once are wrong at every step."""
        if not self.off:
            self.off = True
            self._stop_counting()
            say(f"recording is off: {describe(error)}; training goes on without it")

    # ---------------------------------------------------------------- optimizers

    def optimizer_made(self, optimizer: Any) -> None:
        """Remember an optimizer."""
        self._optimizers.add(optimizer)

    def before_optimizer(self, optimizer: Any) -> None:
        """Close a step whose end was not recognised: an optimizer comes again."""
        if id(optimizer) in self._stepped:
            self._last_of_cycle = self._stepped[-1]
            self._stepped = []
            if self._cycles:  # the order has changed; the warm-up just takes the cycle in which it is learned, too
                self._end_step()
        self._begin_step()
        self.loop.close_spans()
        self.loop.open_span("optimizer")

    def after_optimizer(self, optimizer: Any) -> None:
        """Close the step if this is the last optimizer of the cycle."""
        self.loop.close_spans()
        self._stepped.append(id(optimizer))
        if len(self._optimizers) <= 1 or self._last_of_cycle == id(optimizer):
            self._end_step()

    # ---------------------------------------------------------------- batches

    @property
    def training(self) -> bool:
        """Whether gradients are wanted now."""
        return bool(self._torch.is_grad_enabled())

    def batch_wanted(self) -> int:
        """Note that the script asks a loader; returns when."""
        if self.training:
            self._has_loader = True
            self._start()
        return perf_counter_ns()

    def batch_arrived(self, since: int) -> None:
        """Count the wait and begin the step."""
        if self.training and self.loop.on:
            self.loop.recorder.waited_for_data(since, perf_counter_ns())
            self._begin_step()

    # ---------------------------------------------------------------- the model

    def module_called(self, module: Any) -> None:
        """Take the first module that runs with gradients for the model (called for every module until then)."""
        if self._root is not None or not self.training or not module.training:
            return
        self._root = module
        self._stop_searching()
        self._start()
        module.register_forward_pre_hook(self._guarded(self._forward_begins), with_kwargs=True)
        module.register_forward_hook(self._guarded(self._forward_ends))

    @property
    def has_root(self) -> bool:
        """Whether the model has been found."""
        return self._root is not None

    def search_root(self, hook: Callable[[], Any]) -> None:
        """Look for the model with a hook on all modules, until it has been found."""
        self._hook_all = hook
        self._searching = hook()

    def _stop_searching(self) -> None:
        handle, self._searching = self._searching, None
        if handle is not None:
            handle.remove()

    @contextlib.contextmanager
    def not_searching(self) -> Iterator[None]:
        """Take that hook away for a while."""
        searching = self._searching is not None
        self._stop_searching()
        try:
            yield
        finally:
            if searching and self._root is None:
                self._searching = self._hook_all()

    def _guarded(self, hook: Any) -> Any:
        def call(*args: Any) -> None:
            if not self.off:
                try:
                    hook(*args)
                except Exception as error:
                    self.failed(error)

        return call

    def _forward_begins(self, module: Any, args: Any, kwargs: Any) -> None:
        if self.training:
            self._begin_step()
            if self._cycles == 1 and self._counter is None:
                self._start_counting(module)
            self.loop.count(kwargs if kwargs and not args else args)
            self.loop.close_spans()
            self.loop.open_span("forward")

    def _forward_ends(self, module: Any, args: Any, output: Any) -> None:
        if self.training:
            self.loop.close_spans()
            self.loop.open_span("backward")

    # ---------------------------------------------------------------- steps

    def _start(self) -> None:
        if self.loop.recorder is None:
            found: dict[str, Any] = {"metadata": {"captured_by": "perfkit run"}}
            self.loop.start(**found)

    def _begin_step(self) -> None:
        self._start()
        if self._cycles:
            self.loop.begin_step(self._cycles)
        elif self._warmup_began is None:
            self._warmup_began = perf_counter_ns()

    def _end_step(self) -> None:
        self._stepped = []
        if self._cycles == 0:
            self.loop.close_spans()
            self.loop.record("compile", self._warmup_began or perf_counter_ns(), step=0)
        elif self._cycles == 1:
            self._settle()
        self._cycles += 1
        self.loop.end_step()
        if not self._has_loader:  # nothing else tells when the next one begins
            self._begin_step()

    def _settle(self) -> None:
        """After the first recorded step: tell the recorder what only a step could tell."""
        counted = self._stop_counting()
        if not self.loop.on:
            return
        settings = self.loop.recorder.settings
        if settings.mesh is None and _splits_batches(self._root):
            settings.mesh = {"dp": self.loop.recorder.identity.world_size}
        if counted and self.loop.counted_tokens:
            settings.flops_per_token = counted / self.loop.counted_tokens
            settings.convention = "counted"

    def _start_counting(self, module: Any) -> None:
        given = self._options.settings.keys() & {"model", "flops_per_token"}
        if self._options.flops != "auto" or given or _compiled(module):
            return
        from perfkit.flops.counting import StepCounter

        counter = StepCounter()
        counter.start()
        self._counter = counter

    def _stop_counting(self) -> float | None:
        counter, self._counter = self._counter, None
        return None if counter is None else counter.stop().model


def _compiled(module: Any) -> bool:
    return any("_dynamo" in type(part).__module__ for part in module.modules())


def _splits_batches(module: Any) -> bool:
    """Whether the model is wrapped for data parallelism and nothing else."""
    names = {cls.__name__ for part in (module.modules() if module is not None else ()) for cls in type(part).__mro__}
    return bool(names & {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"})
