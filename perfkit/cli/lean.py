"""Start without what takes longer than a small trace takes to read; for commands that run nobody else's code."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

_DOCS = "pyarrow.vendored.docscrape"


def leave_out_what_takes_long() -> None:
    """Keep pyarrow and numpy from what takes longer than reading a small trace.

    pyarrow imports pandas with the first array that it makes, to recognise data frames, and its datasets with the first
    grouping, to group those too; there are neither here. Both can still be imported by whoever uses them. And it
    writes the documentation of its functions when it is imported: here without a list of their options, which it
    would parse out of other documentation. Its own allocator takes memory in huge pages, a few for every thread, and
    the kernel has to clear them: with that of the system a trace needs less memory and less time.
    OpenBLAS, which comes with numpy, starts threads that take 0.1 s of CPU time in their search for matrices; there are
    none here either.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _Refuse)
    docs = sys.modules.setdefault(_DOCS, _NoDocs(_DOCS))
    try:
        import pyarrow as pa
        import pyarrow.compute

        pa.array([0])
        importlib.import_module("pyarrow.acero")
    finally:
        sys.meta_path.remove(_Refuse)
        if isinstance(docs, _NoDocs):
            del sys.modules[_DOCS]


class _Refuse:
    """Tells whoever asks that these modules do not exist."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Refuse some modules and leave every other to the next finder."""
        if name in ("pandas", "dateutil", "pyarrow.dataset"):
            raise ImportError(f"perfkit has no use here for {name}")


class _NoDocs(ModuleType):
    """Stands in for pyarrow's parser of documentation, and finds nothing in any."""

    @staticmethod
    def NumpyDocString(text: str) -> dict[str, list[str]]:  # noqa: N802  # pyarrow's name
        """Find no parameters."""
        return {"Parameters": []}
