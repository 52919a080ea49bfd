"""Wait until the side processes of a recorded run have stored everything: `finish()` waits two seconds only."""

from __future__ import annotations

import time
from pathlib import Path

from perfkit.sources.spool import compact_folder, find_spools
from perfkit.store import Store


def settled(folder: Path, seconds: float = 90.0) -> Store:
    """Return the store in a folder, once nothing is left in its spool and no side process works on it.

    What is still there after that time is taken as `perfkit ingest SPOOL` would take it: a test of what was recorded
    does not depend on how fast the machine is.
    """
    deadline = time.monotonic() + seconds
    spool = folder / "spool"
    while time.monotonic() < deadline:
        waiting = [*spool.rglob("*.spool"), *spool.rglob("traces/step-*"), *spool.rglob("live/side.json")]
        if not waiting and Store(folder).exists:
            return Store(folder)
        time.sleep(0.05)
    for rank in find_spools(spool):
        compact_folder(rank, str(folder), include_open=True)
    return Store(folder)
