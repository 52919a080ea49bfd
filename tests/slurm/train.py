"""A job for Slurm: checkpoints every five steps, dies once in the middle, goes on from its last checkpoint.

Keeps its own diary for the test to compare with what the store says: a line per phase, with the clock just before and
after it (outer) and just inside it (inner). Capture's own time lies between the two, however busy the machine is.
"""

import json
import os
import sys
import time
from pathlib import Path

import perfkit

store, work = sys.argv[1], Path(sys.argv[2])
attempt = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
STEPS, EVERY, DIES_AFTER = 24, 5, 12


def note(kind: str, times: list[float], **more: object) -> None:
    """Write a line to the diary; times: before, inside at the beginning and at the end, after."""
    with (work / "diary.jsonl").open("a") as diary:
        line = {"kind": kind, "attempt": attempt, "outer": [times[0], times[3]], "inner": times[1:3], **more}
        diary.write(json.dumps(line) + "\n")


pk = perfkit.init(run="slurm-job", store=store)
saved = work / "checkpoint"
first = 0
if saved.exists():
    times = [time.time()]
    with pk.event("checkpoint_restore"):
        times.append(time.time())
        time.sleep(0.6)
        first = int(saved.read_text())
        times.append(time.time())
    note("restore", [*times, time.time()])
for step in range(first, STEPS):
    times = [time.time()]
    with pk.step(tokens=64, step=step):
        times.append(time.time())
        time.sleep(0.2)
        times.append(time.time())
    note("step", [*times, time.time()], step=step)
    if step % EVERY == EVERY - 1:
        times = [time.time()]
        with pk.event("checkpoint_save"):
            times.append(time.time())
            time.sleep(0.3)
            saved.write_text(str(step + 1))
            times.append(time.time())
        note("save", [*times, time.time()])
    if attempt == 0 and step == DIES_AFTER:
        while pk.acknowledged_step is None or pk.acknowledged_step < step:
            time.sleep(0.01)  # what is not on disk cannot be accounted for
        os._exit(1)
pk.finish(timeout=60)
