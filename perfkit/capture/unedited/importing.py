"""Call a function right after a module has been imported, whoever imports it.

    arm()                       attach to torch when the script imports it
    after_import(name, hook)    for any module; at once if it is there already

The finder steps aside while it looks for the real one, so that it changes nothing about how a module is found.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

Hook = Callable[[ModuleType], None]


class _Loader(importlib.abc.Loader):
    """Loads with the real loader, then calls the hook."""

    def __init__(self, real: importlib.abc.Loader, hook: Hook) -> None:
        self._real, self._hook = real, hook

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        module.__loader__ = self._real
        self._real.exec_module(module)
        self._hook(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds what it waits for by asking everybody else."""

    def __init__(self) -> None:
        self.waiting: dict[str, Hook] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        hook = self.waiting.pop(name, None)
        if hook is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, hook)
        return spec


_finder = _Finder()


def after_import(name: str, hook: Hook) -> None:
    """Call `hook` with a module once it has been imported."""
    if name in sys.modules:
        hook(sys.modules[name])
        return
    _finder.waiting[name] = hook
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def arm() -> None:
    """Attach to torch when it comes."""

    def attach(torch: ModuleType) -> None:
        from perfkit.capture.guard import describe, say

        try:
            from perfkit.capture.unedited.attach import attach_to

            attach_to(torch)
        except Exception as error:
            say(f"recording is off: {describe(error)}; training goes on without it")

    after_import("torch", attach)
