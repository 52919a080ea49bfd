"""Run a command and let nothing else take its cores: python benchmarks/quiet.py NAME CMD… (Linux, root)

Of the command and what it starts, the processes with NAME in their command line are scheduled in real time, their
gloo threads one step above the rest, as an idle machine would wake them; others, for example helpers that compress a
trace, are left as they are. `nice` does not do this: it ranks processes within a group, the kernel makes a group of
every session (sched_autogroup), and torchrun starts each rank in a session of its own. For short measurements: the
rest of the machine gets about 5 % of a core meanwhile.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

POLL_S = 0.1
BASE = 10
"""Above everything that is not real time, and below the threads of the kernel (50 and more)."""


def descendants(root: int) -> set[int]:
    """Return a process and all below it."""
    above: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            above[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {root}
    while more := {pid for pid, parent in above.items() if parent in found} - found:
        found |= more
    return found


def schedule(pid: int, name: str) -> None:
    """Raise the threads of a process that has the name, and put others back that inherited it."""
    folder = Path(f"/proc/{pid}")
    try:
        chosen = name in (folder / "cmdline").read_text()
        for thread in (folder / "task").iterdir():
            level = BASE + ("gloo" in (thread / "comm").read_text()) if chosen else 0
            tid, wanted = int(thread.name), (os.SCHED_RR if chosen else os.SCHED_OTHER, level)
            if (os.sched_getscheduler(tid), os.sched_getparam(tid).sched_priority) != wanted:
                os.sched_setscheduler(tid, wanted[0], os.sched_param(level))
    except (FileNotFoundError, ProcessLookupError):
        return  # gone meanwhile


def main(argv: list[str] | None = None) -> int:
    name, *words = sys.argv[1:] if argv is None else argv
    job = subprocess.Popen(words)
    try:
        while job.poll() is None:
            for pid in descendants(job.pid):
                schedule(pid, name)
            time.sleep(POLL_S)
    finally:  # Ctrl-C
        if job.poll() is None:
            job.terminate()
            job.wait()
    return job.returncode


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    try:
        sys.exit(main())
    except PermissionError:
        sys.exit("benchmarks/quiet.py: only root may schedule in real time")
