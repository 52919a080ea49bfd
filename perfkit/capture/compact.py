"""Compact one rank's folder into the store: `python -m perfkit.capture.compact FOLDER STORE [--ingest-traces]`.

With rank 0's rows the run's roll-ups are renewed. Prints one JSON object: what was done, or `reason` if the store
could not take it. Running it again, or twice at once, changes nothing; see perfkit.sources.spool.
"""

from __future__ import annotations

import contextlib
import errno
import json
import sys
import time
from pathlib import Path
from typing import Any


def main(argv: list[str]) -> int:
    """Compact, and say what happened."""
    from perfkit.errors import PerfkitError
    from perfkit.sources.spool import compact_folder

    outcome: dict[str, Any] = {}
    try:
        done = compact_folder(Path(argv[0]), argv[1], ingest_traces="--ingest-traces" in argv)
        outcome = {"segments": done.num_segments, "rows": done.rows, "traces": done.num_traces}
        if done.problems:
            outcome["reason"] = str(done.problems[0])
        elif done.num_segments and done.header is not None and done.header["rank"] == 0:
            _roll_up(argv[1], done.header)
    except Exception as error:
        known = isinstance(error, (PerfkitError, OSError))
        reason = getattr(error, "message", None) or (str(error) if known else f"{type(error).__name__}: {error}")
        code = getattr(error, "errno", None) or getattr(error.__cause__, "errno", None)
        full = code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        outcome = {"reason": reason, "errno": errno.ENOSPC if full else None}
    sys.stdout.write(json.dumps(outcome))
    return 0


def _roll_up(store: str, header: dict[str, Any]) -> None:
    """Bring the fleet tables up to date, so that the dashboard shows the run; they can be made again at any time."""
    from perfkit.errors import PerfkitError
    from perfkit.goodput.capture_rollup import write_rollups
    from perfkit.store import Store

    with contextlib.suppress(PerfkitError, OSError):
        write_rollups(Store(store), cluster=header["cluster"], run=header["run"], as_of_ns=time.time_ns())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
