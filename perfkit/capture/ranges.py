"""Show spans to whoever else is watching: Kineto (record_function) and Nsight (NVTX).

    ranges = Ranges(); handle = ranges.open("perfkit.data"); ranges.close(handle)

Nothing is opened while nobody watches: `watched()` is one C call. torch's fast record function is written to
traces as a cpu_op, which no tool takes for an annotation, so the ordinary one is used, and only while a
profiler records. NVTX has one domain, `perfkit`, with registered strings; without an attached tool the nvtx
package gives a dummy, and then it is left out. Inside asyncio no range is opened: both kinds nest per thread,
and tasks that take turns would close each other's.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from perfkit.capture import spans

Handle = tuple[Any, bool]
"""What `close` needs: the record_function (or None) and whether an NVTX range is open."""


class Ranges:
    """Opens ranges in the tools that watch."""

    def __init__(self) -> None:
        self._domain = _nvtx_domain()
        self._attributes: dict[str, Any] = {}
        self._enabled: Callable[[], bool] | None = None
        self._record_function: Any = None
        self.find_torch()

    def find_torch(self) -> None:
        """Look whether torch has been imported meanwhile."""
        spans.find_compiler()
        torch: Any = sys.modules.get("torch")
        if self._enabled is None and torch is not None and hasattr(torch, "autograd"):
            enabled = getattr(torch.autograd, "_profiler_enabled", None)
            profiler = sys.modules.get("torch.autograd.profiler")
            if enabled is not None and profiler is not None:
                self._record_function = profiler.record_function
                self._enabled = enabled

    @property
    def profiler_enabled(self) -> Callable[[], bool]:
        """Tells whether a torch profiler records this thread."""
        return self._enabled or _no

    @property
    def watched(self) -> Callable[[], bool]:
        """Tells whether anybody would see a range: call the result, it is cheap."""
        return _yes if self._domain is not None else self.profiler_enabled

    def open(self, name: str, nvtx_name: str | None = None) -> Handle | None:
        """Open a range; None if there is nothing to close. NVTX registers names for good, so it may need another."""
        if asyncio._get_running_loop() is not None:
            return None
        record = None
        if self._enabled is not None and self._enabled():
            record = self._record_function(name)
            record.__enter__()
        if self._domain is not None:
            self._domain.push_range(self._attribute(nvtx_name or name))
        return (record, self._domain is not None) if record is not None or self._domain is not None else None

    def close(self, handle: Handle) -> None:
        """Close a range."""
        record, pushed = handle
        if pushed:
            self._domain.pop_range()
        if record is not None:
            record.__exit__(None, None, None)

    def _attribute(self, name: str) -> Any:
        found = self._attributes.get(name)
        if found is None:
            if len(self._attributes) >= 4096:  # names with numbers in them: registering is forever
                self._attributes.clear()
            found = self._attributes[name] = self._domain.get_event_attributes(message=name)
        return found


def _nvtx_domain() -> Any:
    """Return the domain if a tool is attached, else None."""
    try:
        import nvtx

        domain = nvtx.get_domain("perfkit")
    except Exception:
        return None
    return None if type(domain).__name__ == "DummyDomain" else domain


def _no() -> bool:
    return False


def _yes() -> bool:
    return True
