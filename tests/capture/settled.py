"""Wait until the side processes of a recorded run have stored everything: `finish()` waits two seconds only."""

from __future__ import annotations

import time
from pathlib import Path

from perfkit.store import Store


def settled(folder: Path, seconds: float = 180.0) -> Store:
    """Return the store in a folder, once nothing is left in its spool and no side process works on it."""
    deadline = time.monotonic() + seconds
    spool = folder / "spool"
    while time.monotonic() < deadline:
        waiting = [*spool.rglob("*.spool"), *spool.rglob("traces/step-*"), *spool.rglob("live/side.json")]
        if not waiting and Store(folder).exists:
            return Store(folder)
        time.sleep(0.05)
    raise AssertionError(f"the side process has not stored everything: {sorted(spool.rglob('*'))}")
