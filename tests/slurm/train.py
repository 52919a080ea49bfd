"""A job for Slurm: checkpoints every five steps, dies once in the middle, goes on from its last checkpoint.

Keeps its own diary (a line per phase with its clock) for the test to compare with what the store says.
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


def note(kind: str, began: float, **more: object) -> None:
    """Write a line to the diary."""
    with (work / "diary.jsonl").open("a") as diary:
        line = {"kind": kind, "attempt": attempt, "start": began, "end": time.time(), **more}
        diary.write(json.dumps(line) + "\n")


pk = perfkit.init(run="slurm-job", store=store)
saved = work / "checkpoint"
first = 0
if saved.exists():
    began = time.time()
    with pk.event("checkpoint_restore"):
        time.sleep(0.6)
        first = int(saved.read_text())
    note("restore", began)
for step in range(first, STEPS):
    began = time.time()
    with pk.step(tokens=64, step=step):
        time.sleep(0.2)
    note("step", began, step=step)
    if step % EVERY == EVERY - 1:
        began = time.time()
        with pk.event("checkpoint_save"):
            time.sleep(0.3)
            saved.write_text(str(step + 1))
        note("save", began)
    if attempt == 0 and step == DIES_AFTER:
        began = time.time()
        while pk.acknowledged_step is None or pk.acknowledged_step < step:
            time.sleep(0.01)  # what is not on disk cannot be accounted for
        note("dying", began)
        os._exit(1)
pk.finish(timeout=60)
