"""Names that capture shares with its readers, free of imports so that a training script pays nothing for them.

`LIFECYCLE_KINDS` repeats perfkit.schema's (a test compares): that module needs pyarrow, which a trainer need not
load. `slug` makes a folder of whatever a user calls a run; who a folder belongs to is said by the segments.
"""

from __future__ import annotations

import hashlib
import re

LIFECYCLE_KINDS = (
    "eligible", "allocated", "init", "compile", "step", "eval", "data_stall", "checkpoint_save",
    "checkpoint_restore", "restart", "fault", "hang", "drain", "end",
)  # fmt: skip

ENABLE = "PERFKIT"
"""Environment: `0` switches capture off altogether."""
STORE = "PERFKIT_STORE"
SPOOL = "PERFKIT_SPOOL"
"""Environment: where ranks append; a local disk of the node is best."""

REQUEST_FILE = "trace-request.json"
SPOOL_FOLDER = "spool"
"""Folder of the spool inside a local store."""

_HARMLESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


def slug(name: str) -> str:
    """Return `name` if it is safe as one part of a path, else its safe characters and a hash."""
    if _HARMLESS.fullmatch(name) and ".." not in name:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    kept = re.sub(r"[^A-Za-z0-9_+-]+", "_", name).strip("_-+")[:60] or "x"
    return f"{kept}-{digest}"
