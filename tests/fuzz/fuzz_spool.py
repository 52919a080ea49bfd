"""Damage spool segments and check every row that still comes out.

    python -m tests.fuzz.fuzz_spool --count 100000 [--seed 1]

For each case: no crash, no exception but CorruptInput; every batch that is read is one that was written, in its
order and once; and if any is missing, the segment says so (damaged, torn, or not closed). Half of the cases are
edits that keep frames whole: repeated, dropped, swapped, or pasted from another segment.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter

import pyarrow as pa

from perfkit.capture.frames import UID_BYTES, Batch, decode_segment, encode_frame, frame_seed, open_bytes
from perfkit.errors import CorruptInput
from perfkit.sources.spool import COLUMNS, parse_segment
from tests.fuzz.mutate import damage

HEADER = {"cluster": "c", "run": "r", "attempt": 0, "rank": 3, "host": "h", "world_size": 8, "segment": "s-0"}


class Wrong(Exception):
    """A row, or an outcome, that should not be."""


def build_batch(dice: random.Random, number: int) -> Batch:
    """Return a batch as the writer makes it, with odd but legal values."""
    now = 1_794_800_000_000_000_000 + number
    text = dice.choice(["forward", "é中😀", "", 'q"\\', "a" * 200])
    batch: Batch = {}
    if dice.random() < 0.7:
        loss = dice.choice([None, 0.5, float("nan"), 1e300])
        batch["steps"] = [[number * 3 + i, now, now + 5, None, 7, None, 1e12, loss, False] for i in range(3)]
    if dice.random() < 0.7:
        batch["spans"] = [[text, number, now, 9, None, 0, 77, dice.choice([None, "ValueError"])]]
    if dice.random() < 0.3:
        batch["lifecycle"] = [["checkpoint_save", now, dice.choice([None, now + 1]), number, None, True, text]]
    if dice.random() < 0.5:
        batch["counters"] = [[now, "loss", "log", dice.choice([0.1, float("inf")]), None]]
    if dice.random() < 0.1:
        batch["dropped"] = number
    return batch


def build_frames(dice: random.Random) -> tuple[bytes, list[bytes], list[Batch]]:
    """Return the opening, the frames and the batches of a segment."""
    uid = dice.randbytes(UID_BYTES)
    batches = [build_batch(dice, number) for number in range(dice.randint(0, 6))]
    closing: list[Batch] = [{"end": {}}] if dice.random() < 0.6 else []
    documents = [HEADER, *batches, *closing]
    return open_bytes(uid), [encode_frame(n, d, frame_seed(uid)) for n, d in enumerate(documents)], batches


def edit_frames(frames: list[bytes], dice: random.Random) -> list[bytes]:
    """Repeat, drop, swap or paste whole frames."""
    frames = list(frames)
    at = dice.randrange(len(frames))
    kind = dice.randrange(5)
    if kind == 0:
        frames.insert(dice.randrange(len(frames) + 1), frames[at])
    elif kind == 1:
        del frames[at]
    elif kind == 2:
        other = dice.randrange(len(frames))
        frames[at], frames[other] = frames[other], frames[at]
    elif kind == 3:
        frames.insert(at, dice.choice(build_frames(dice)[1]))
    else:
        frames[at] = frames[at][: dice.randrange(len(frames[at]) + 1)]
    return frames


def make(seed: int) -> tuple[bytes, list[Batch]]:
    """Return the bytes of one case, and what was written before the damage."""
    dice = random.Random(seed)
    opening, frames, batches = build_frames(dice)
    if dice.random() < 0.5:
        for _ in range(dice.randint(1, 3)):
            frames = edit_frames(frames, dice) if frames else frames
        return opening + b"".join(frames), batches
    return damage(opening + b"".join(frames), dice), batches


def same(one: object, other: object) -> bool:
    """Compare as text: NaN is equal to itself there."""
    return repr(one) == repr(other)


def check(seed: int) -> str:
    """Run one case; returns what became of it."""
    data, written = make(seed)
    try:
        rows = parse_segment(data, "case")
    except CorruptInput:
        return "refused"
    segment = decode_segment(data)
    at = 0
    for batch in segment.batches:
        while at < len(written) and not same(written[at], batch):
            at += 1
        if at == len(written):
            raise Wrong("a batch that was never written, or in another order")
        at += 1
    if len(segment.batches) < len(written) and segment.closed and not segment.damaged:
        raise Wrong("batches are missing and nothing says so")
    for name, columns in COLUMNS.items():
        expected = [row for batch in segment.batches for row in batch.get(name, ())]
        table: pa.Table | None = rows.tables.get(name)
        have = [] if table is None else [list(row.values()) for row in table.select(list(columns)).to_pylist()]
        if not same(have, expected):
            raise Wrong(f"rows of {name}: {have} instead of {expected}")
    return "whole" if len(segment.batches) == len(written) else "partly"


def run(seed: int, count: int) -> Counter[str]:
    """Run many cases; ends with the seed of the first that is wrong."""
    tally: Counter[str] = Counter()
    for number in range(seed, seed + count):
        try:
            tally[check(number)] += 1
        except Exception as error:
            raise SystemExit(f"seed {number}: {type(error).__name__}: {error}") from error
    return tally


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    tally = run(args.seed, args.count)
    print(f"{args.count:,} damaged segments: " + ", ".join(f"{n:,} {what}" for what, n in sorted(tally.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
