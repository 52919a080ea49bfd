"""Hooks on torch for a script that is not edited.

    attach_to(torch)

Optimizers through torch's own global hooks; DataLoader, torch.save, torch.distributed.checkpoint and the collectives
that a script calls itself by wrapping them in place (the communication of DDP and FSDP happens in C++ and is seen in
traces). Every wrapper passes arguments, results and exceptions through untouched.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
from collections.abc import Iterator
from time import perf_counter_ns
from types import ModuleType
from typing import Any

from perfkit.capture.schedule import ProfileSchedule
from perfkit.capture.unedited.importing import after_import
from perfkit.capture.unedited.steps import Options, Unedited

ENVIRONMENT = "PERFKIT_RUN"
COLLECTIVES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "broadcast",
    "all_to_all", "all_to_all_single", "barrier",
)  # fmt: skip


def options_from(text: str) -> Options:
    """Read the options that `perfkit run` left in the environment."""
    given = json.loads(text)
    settings = dict(given.get("settings") or {})
    if given.get("profile"):
        settings["profile"] = ProfileSchedule(**given["profile"])
    return Options(run=given.get("run"), flops=given.get("flops", "auto"), settings=settings)


def attach_to(torch: Any) -> Unedited:
    """Put the hooks into torch."""
    watch = Unedited(torch, options_from(os.environ[ENVIRONMENT]))
    _watch_optimizers(watch)
    _watch_loader(torch.utils.data.DataLoader, watch)
    _watch_model(torch, watch)
    _time_saves(torch, "save", watch)
    after_import("torch.distributed.checkpoint.state_dict_saver", lambda module: _time_saves(module, "save", watch))
    after_import("torch.distributed.distributed_c10d", lambda module: _watch_collectives(module, watch))
    return watch


def _watch_optimizers(watch: Unedited) -> None:
    module: Any = importlib.import_module("torch.optim.optimizer")  # torch.optim hides it

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not watch.off:
            try:
                watch.before_optimizer(optimizer)
            except Exception as error:
                watch.failed(error)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not watch.off:
            try:
                watch.after_optimizer(optimizer)
            except Exception as error:
                watch.failed(error)

    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)
    made = module.Optimizer.__init__

    @functools.wraps(made)
    def remember(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        watch.optimizer_made(self)

    module.Optimizer.__init__ = remember


def _watch_model(torch: Any, watch: Unedited) -> None:
    def called(module: Any, args: Any) -> None:
        if not watch.off:
            try:
                watch.module_called(module)
            except Exception as error:
                watch.failed(error)

    watch.search_root(lambda: torch.nn.modules.module.register_module_forward_pre_hook(called))
    after_import("torch._dynamo.eval_frame", lambda module: _watch_compiled(module, watch))


def _watch_compiled(module: Any, watch: Unedited) -> None:
    """Take the hook that looks for the model away while a compiled module is called: torch warns about such hooks."""
    kind = getattr(module, "OptimizedModule", None)
    if kind is None:
        return
    call = kind.__call__

    @functools.wraps(call)
    def first(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            watch.module_called(self)
        except Exception as error:
            watch.failed(error)
        if watch.off or watch.has_root:
            kind.__call__ = call
        with watch.not_searching():
            return call(self, *args, **kwargs)

    kind.__call__ = first


def _watch_loader(loader: Any, watch: Unedited) -> None:
    iterate = loader.__iter__

    @functools.wraps(iterate)
    def watched(self: Any) -> Any:
        found = iterate(self)
        return found if watch.off else WatchedIterator(found, watch)

    loader.__iter__ = watched


class WatchedIterator:
    """A DataLoader's iterator, timed; everything else of it passes through."""

    def __init__(self, iterator: Iterator[Any], watch: Unedited) -> None:
        self._iterator, self._watch = iterator, watch

    def __iter__(self) -> WatchedIterator:
        return self

    def __next__(self) -> Any:
        watch = self._watch
        since = None
        if not watch.off:
            try:
                since = watch.batch_wanted()
            except Exception as error:
                watch.failed(error)
        batch = next(self._iterator)
        if since is not None and not watch.off:
            try:
                watch.batch_arrived(since)
            except Exception as error:
                watch.failed(error)
        return batch

    def __len__(self) -> int:
        return len(self._iterator)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


def _time_saves(module: Any, name: str, watch: Unedited) -> None:
    """Record a checkpoint around a function that writes one."""
    save = getattr(module, name)

    @functools.wraps(save)
    def timed(*args: Any, **kwargs: Any) -> Any:
        began = perf_counter_ns()
        try:
            return save(*args, **kwargs)
        finally:
            if not watch.off and watch.loop.on:
                try:
                    watch.loop.record("checkpoint_save", began)
                except Exception as error:
                    watch.failed(error)

    setattr(module, name, timed)


def _watch_collectives(module: ModuleType, watch: Unedited) -> None:
    """Open a span around the collectives that the script calls itself."""
    import torch.distributed as package

    for name in COLLECTIVES:
        call = getattr(module, name, None)
        if call is None:
            continue
        wrapped = _spanned(call, f"comm.{name}", watch)
        setattr(module, name, wrapped)
        if getattr(package, name, None) is call:
            setattr(package, name, wrapped)


def _spanned(call: Any, name: str, watch: Unedited) -> Any:
    @functools.wraps(call)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if watch.off or not watch.loop.on:
            return call(*args, **kwargs)
        with watch.loop.recorder.span(name):
            return call(*args, **kwargs)

    return wrapper
