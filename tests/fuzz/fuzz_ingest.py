"""Feed damaged files to the reader and check every row that comes out.

    python -m tests.fuzz.fuzz_ingest --count 20000 [--seed 1]

For each case: no crash, no hang, no exception but InputError; the C and the Python scanner give the same
rows; and whatever a file gives must be right. If `json` accepts the file, every column of every event must
equal the plain reading of tests/sources/test_kineto_exact.py. If it does not, every event must be equal to
the plain reading of the events that stand whole before the damage.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from perfkit.errors import InputError
from perfkit.sources import json_stream, kineto, scan
from perfkit.sources.base import Input, ReadOptions
from perfkit.sources.detect import find_inputs
from tests.fuzz.mutate import make
from tests.sources.test_kineto_exact import Written, as_int, expected_events

SECONDS_PER_CASE = 20
BATCH = 1000


class Wrong(Exception):
    """A row, or an outcome, that should not be."""


def read(input: Input, scanner: str) -> tuple[list[dict[str, Any]], list[str]] | str:
    """Rows of `events` and kinds of oddities, or the error."""
    base_ns = None
    for _ in range(2):
        rows: list[dict[str, Any]] = []
        reading = kineto.read(input, ReadOptions(scanner=scanner, threads=1), base_ns=base_ns)
        try:
            for chunk in reading:
                if chunk.table == "events":
                    rows += chunk.rows.to_pylist()
            return sorted(rows, key=lambda row: row["event_id"]), sorted(reading.parts[0].oddities)
        except kineto.RereadNeeded as again:
            base_ns = again.base_ns
        except InputError as error:
            return f"{type(error).__name__}: {error.message}"
    raise Wrong("asked to read a third time")


def plain_rows(data: bytes) -> list[dict[str, Any]] | None:
    """Rows by `json` alone; None if it does not accept the file or its shape."""
    try:
        document = json.loads(data.decode(), parse_float=Written, parse_constant=lambda _: None)
    except (ValueError, RecursionError, ArithmeticError):  # an exponent that Decimal does not have
        return None
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        return None
    base = as_int(document.get("baseTimeNanoseconds")) if isinstance(document, dict) else None
    try:
        return expected_events([event for event in events if isinstance(event, dict)], base or 0)
    except (ArithmeticError, ValueError, TypeError, AttributeError):
        return None  # a type that the plain reading does not model


def plain_prefix(data: bytes) -> list[dict[str, Any]] | None:
    """Rows of the events that stand whole before the damage, one `raw_decode` after the other."""
    text = data.decode("utf-8", "replace")
    start = re.match(r"\s*\[", text) or re.search(r'"traceEvents"\s*:\s*\[', text)
    if start is None or re.search(r"(?i)nan|inf", text):  # the reader takes nan and inf in any spelling
        return None
    decoder = json.JSONDecoder(parse_float=Written, strict=False)
    events, at = [], start.end()
    with contextlib.suppress(ValueError, RecursionError, ArithmeticError):
        while at < len(text) and text[at] != "]":
            if text[at] in " \t\r\n,":
                at += 1
                continue
            event, at = decoder.raw_decode(text, at)
            if isinstance(event, dict):
                events.append(event)
            elif not re.match(r"[\s,\]]", text[at:]):  # only after an object may another one begin at once
                break
    try:
        return expected_events(events, 0)
    except (ArithmeticError, ValueError, TypeError, AttributeError):
        return None


def compare(have: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Every column of every event that is not part of a B/E pair; only X has a duration, and no negative one."""
    wanted = {row["event_id"]: row for row in expected}
    for row in have:
        plain = wanted.get(row["event_id"])
        if plain is None:
            raise Wrong(f"event {row['event_id']} is not in the file")
        if plain["phase"] in ("B", "E"):
            continue
        for column, value in plain.items():
            if column == "dur_ns" and value is not None and (value < 0 or plain["phase"] != "X"):
                value = None
            bits = 31 if column == "device" else 63
            fits = not isinstance(value, int) or -(2**bits) <= value < 2**bits
            if row[column] != (value if fits else None):
                raise Wrong(f"event {row['event_id']}, {column}: {row[column]!r} instead of {value!r}")
    paired = sum(row["phase"] == "E" for row in expected)
    if not len(expected) - paired <= len(have) <= len(expected):
        raise Wrong(f"{len(have)} events instead of {len(expected)}")


def check(seed: int, folder: Path) -> str:
    """Run one case; returns what became of it."""
    data = make(seed)
    path = folder / "case.json"
    path.write_bytes(data)
    json_stream.CHUNK_BYTES = 256 if seed % 3 else 8 << 20
    json_stream.SLICE_BYTES = 1 << 20 if seed % 4 else 500  # less PADDING: some events fit, others do not
    found = find_inputs([path], spool=folder)
    outcome = "refused"
    for input in found.inputs:
        if input.kind != "kineto":
            continue
        results = [read(input, "python")] + ([read(input, "c")] if scan.have_c_scanner() else [])
        if results[0] != results[-1]:
            raise Wrong(f"the scanners differ: {results[0]!r:.300} / {results[-1]!r:.300}")
        if isinstance(results[0], str):
            continue
        outcome = "read"
        with contextlib.closing(input.open()) as stream:
            data = stream.read()
            plain = plain_rows(data)
            damaged = getattr(stream, "problem", None)
        if plain is not None and not any("duplicate" in kind for kind in results[0][1]):
            if {"truncated", "invalid_json"} & set(results[0][1]) and not damaged:
                raise Wrong(f"valid JSON was called {results[0][1]}")
            compare(results[0][0], plain)
            outcome = "verified"
        elif plain is None and (prefix := plain_prefix(data)) is not None:
            compare(results[0][0], prefix)
            outcome = "verified to the damage"
    return outcome


def run(first: int, count: int) -> dict[str, int]:
    """Run cases in this process."""
    tally: dict[str, int] = {}

    def hang(*_: object) -> None:
        raise Wrong(f"no result within {SECONDS_PER_CASE} s")

    signal.signal(signal.SIGALRM, hang)
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory() as folder:
            signal.alarm(SECONDS_PER_CASE)
            try:
                outcome = check(seed, Path(folder))
            except Exception as error:
                raise SystemExit(f"seed {seed}: {type(error).__name__}: {error}") from error
            finally:
                signal.alarm(0)
        tally[outcome] = tally.get(outcome, 0) + 1
    return tally


def main() -> int:
    """Run batches in processes of their own, so that a crash names its batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--here", action="store_true", help="in this process")
    args = parser.parse_args()
    if args.here:
        print(json.dumps(run(args.seed, args.count)))
        return 0
    total: dict[str, int] = {}
    failures = 0
    for first in range(args.seed, args.seed + args.count, BATCH):
        count = min(BATCH, args.seed + args.count - first)
        command = [
            sys.executable,
            "-m",
            "tests.fuzz.fuzz_ingest",
            "--here",
            "--seed",
            str(first),
            "--count",
            str(count),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            failures += 1
            print(f"seeds {first}–{first + count - 1}: exit {done.returncode}: {done.stderr.strip()[-500:]}")
            continue
        for outcome, number in json.loads(done.stdout).items():
            total[outcome] = total.get(outcome, 0) + number
    print(f"{args.count} damaged files: {total}, {failures} failed batches")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
