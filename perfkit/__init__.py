"""perfkit: what is my MFU, where did the rest go, who is to blame, and what do I fix first?

The public names are resolved on first use, so that `import perfkit` costs a few milliseconds and
needs neither torch nor dash nor a GPU.
"""

from __future__ import annotations

import importlib
from typing import Any

from perfkit.errors import PerfkitError

__version__ = "0.1.0"

_LAZY = {
    "ProfileSchedule": "perfkit.capture",
    "Store": "perfkit.store",
    "TriggerRule": "perfkit.capture.trigger",
    "TransformerSpec": "perfkit.flops.spec",
    "analyze": "perfkit.analysis.analyze",
    "compute_mfu": "perfkit.flops.calculator",
    "current": "perfkit.capture",
    "data": "perfkit.capture",
    "event": "perfkit.capture",
    "find_device": "perfkit.hardware.lookup",
    "finish": "perfkit.capture",
    "ingest": "perfkit.sources.ingest",
    "init": "perfkit.capture",
    "instrument": "perfkit.capture",
    "log": "perfkit.capture",
    "preset": "perfkit.flops.presets",
    "resolve_peak": "perfkit.hardware.lookup",
    "span": "perfkit.capture",
    "step": "perfkit.capture",
}

__all__ = ["PerfkitError", "__version__", *sorted(_LAZY)]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
        return value
    raise AttributeError(f"module 'perfkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
