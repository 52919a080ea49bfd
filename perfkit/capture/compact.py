"""Compact one rank's folder into the store: `python -m perfkit.capture.compact FOLDER STORE [--ingest-traces]`.

Prints one JSON object: what was done, or `reason` if the store could not take it. Running it again, or twice at
once, changes nothing; see perfkit.sources.spool.
"""

from __future__ import annotations

import errno
import json
import sys
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
    except Exception as error:
        known = isinstance(error, (PerfkitError, OSError))
        reason = getattr(error, "message", None) or (str(error) if known else f"{type(error).__name__}: {error}")
        code = getattr(error, "errno", None) or getattr(error.__cause__, "errno", None)
        full = code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        outcome = {"reason": reason, "errno": errno.ENOSPC if full else None}
    sys.stdout.write(json.dumps(outcome))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
