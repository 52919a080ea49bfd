"""Kill a spool writer at random points and look for what it had acknowledged.

    python -m tests.capture.spool_killer --kills 1000 [--seed 1]

Each round forks a writer that appends numbered batches of random size, rotates and syncs at random, and reports
a batch on a pipe only after `append` has returned. The parent reads reports for a random while, then sends
SIGKILL. Every reported batch must be there, whole and once; whatever else is there must be the very next one.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
from pathlib import Path

from perfkit.capture.frames import decode_segment, never_began
from perfkit.capture.segments import SpoolWriter

HEADER = {"cluster": "c", "run": "r", "attempt": 0, "rank": 0, "host": "h", "world_size": 1}


class Lost(Exception):
    """An acknowledged batch is missing, or something is there that was never written."""


def batch_of(number: int, seed: int) -> dict[str, object]:
    """Return the batch of a number; the same for writer and checker."""
    dice = random.Random(seed * 1_000_003 + number)
    return {"steps": [[number, dice.getrandbits(60), "x" * dice.choice([0, 10, 100, 5000])]]}


def write_forever(folder: Path, report: int, seed: int) -> None:
    """Append batches until killed."""
    dice = random.Random(seed)
    spool = SpoolWriter(folder, HEADER)
    number = 0
    while True:
        spool.append(batch_of(number, seed))
        os.write(report, struct.pack("<I", number))
        number += 1
        chance = dice.random()
        if chance < 0.02:
            spool.rotate()
        elif chance < 0.03:
            spool.sync()


def kill_once(folder: Path, seed: int) -> tuple[int, int]:
    """Run and kill one writer; returns how many batches were reported and found."""
    dice = random.Random(-seed)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            write_forever(folder, writer, seed)
        finally:
            os._exit(1)
    os.close(writer)
    wanted = dice.choice([0, 1, 2, 5, 20, 100, 400])
    seen, data = 0, b""
    while seen < wanted and (data := os.read(reader, 4096)):
        seen += len(data) // 4
    time.sleep(dice.random() * 0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while data := os.read(reader, 65536):
        seen += len(data) // 4
    os.close(reader)
    return seen, check(folder, seed, seen)


def check(folder: Path, seed: int, reported: int) -> int:
    """Compare what is on disk with what was reported."""
    found = []
    for path in sorted(folder.glob("*.spool")):
        data = path.read_bytes()
        if never_began(data):
            continue  # killed before the header was whole
        segment = decode_segment(data)
        if segment.damaged:
            raise Lost(f"seed {seed}: {path.name} is damaged {segment.first_damage}")
        found += segment.batches
    expected = [batch_of(number, seed) for number in range(len(found))]
    if found != expected:
        raise Lost(f"seed {seed}: the batches on disk are not the ones that were written")
    if len(found) < reported:
        raise Lost(f"seed {seed}: {reported} batches were acknowledged and {len(found)} are there")
    if len(found) > reported + 1:
        raise Lost(f"seed {seed}: {len(found)} batches are there, and only {reported} were acknowledged")
    return len(found)


def kill_many(kills: int, seed: int = 1) -> tuple[int, int]:
    """Return how many batches were acknowledged and found over all rounds."""
    acknowledged = found = 0
    top = Path(tempfile.mkdtemp(prefix="perfkit-killer-"))
    try:
        for number in range(kills):
            folder = top / str(number)
            seen, there = kill_once(folder, seed + number)
            acknowledged, found = acknowledged + seen, found + there
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        shutil.rmtree(top, ignore_errors=True)
    return acknowledged, found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    acknowledged, found = kill_many(args.kills, args.seed)
    print(f"{args.kills} kills: {acknowledged:,} batches acknowledged, {found:,} found, none lost, none corrupt")
    return 0


if __name__ == "__main__":
    sys.exit(main())
