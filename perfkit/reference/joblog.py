"""The job's own log, independent of perfkit: one JSON line per event and rank, appended.

    log = JobLog(folder, rank, attempt); log.write("step_end", step=3, loss=2.1)
    read_log(folder) -> all events of all ranks and attempts, by time

What perfkit says about a run is checked against it, so it shares no code with capture. A line is one `write` to a
file opened for appending: a killed process leaves whole lines.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class JobLog:
    """Appends to `job-<rank>.jsonl`."""

    def __init__(self, folder: Path, rank: int, attempt: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(folder / f"job-{rank}.jsonl", flags, 0o644)
        self.rank, self.attempt = rank, attempt

    def write(self, kind: str, **values: Any) -> None:
        """Add an event, with the time of day in ns."""
        row = {"time_ns": time.time_ns(), "kind": kind, "rank": self.rank, "attempt": self.attempt, **values}
        os.write(self._file, (json.dumps(row) + "\n").encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class LogReader:
    """Reads what one rank has added to its log since the last look."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self._path, self._read = folder / f"job-{rank}.jsonl", 0

    def news(self) -> list[dict[str, Any]]:
        """Return the events since then; none while there is no file."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the events of all ranks, by time; half a line at the end of a file is left out."""
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.glob("job-*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
    return sorted(rows, key=lambda row: row["time_ns"])
