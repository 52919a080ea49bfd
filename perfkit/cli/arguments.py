"""Arguments that several commands share: which part of a run, where it is kept, what was trained.

add_part_arguments · add_store_arguments · add_job_arguments        declare them
attempt · hours                                                     types of single arguments
parse_steps · parse_ranks · parse_question                          read them, or say how to write them
write_output                                                        write the file of `-o`
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from perfkit.errors import UsageError, cannot_write


def add_part_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which steps and ranks are looked at."""
    parser.add_argument("--steps", metavar="A:B", help="only steps A <= step < B; either may be left out")
    parser.add_argument("--ranks", metavar="LIST", help="only these ranks, for example 0,4-7")


def add_store_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where answers are kept and runs are looked up."""
    place = parser.add_argument_group(
        "store", "where the answer is kept, and where a PATH that is no file is looked up"
    )
    place.add_argument("--store", metavar="DIR", help="local folder or URI of the store")
    place.add_argument("--cluster", help="cluster that the run belongs to (default: default)")
    place.add_argument("--run", help="name of the run (default: as `perfkit ingest` names it)")
    place.add_argument(
        "--attempt", type=attempt, metavar="K", help="restart count of the run (default: the last, or 0)"
    )


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the traces may not tell about the job."""
    job = parser.add_argument_group("job, for MFU", "what the traces do not tell, or instead of what they tell")
    job.add_argument("--model", metavar="M", help="a preset (see `perfkit mfu --list`) or a JSON file of spec keys")
    job.add_argument(
        "--tokens-per-step", metavar="N", help="tokens of one step of the whole job; 4M is 4 million, 4Mi is 4 · 2^20"
    )
    job.add_argument("--seq-len", type=int, metavar="N", help="tokens of a sequence, if the model does not fix it")
    job.add_argument("--hardware", metavar="H", help="device name as the driver reports it")
    job.add_argument("--dtype", help="number format of the matrix products (default: what most FLOPs of the trace use)")
    job.add_argument("--convention", help="which FLOPs are counted (default palm)")
    job.add_argument("--peak-flops", metavar="F", help="dense FLOP/s of one device (989e12, 989T)")
    job.add_argument("--peak", choices=("registry", "measured"), help="measured: by `perfkit hardware --calibrate`")
    job.add_argument("--world-size", type=int, metavar="N", help="ranks of the job, if the traces do not record it")
    job.add_argument("--mesh", metavar="M", help="parallel degrees, instead of what the groups show: tp=2,pp=4,dp=8")


def attempt(text: str) -> int:
    """Parse the restart count of a run, which tables keep in 32 bits."""
    if text.strip().isdecimal() and (number := int(text)) < 1 << 31:
        return number
    raise argparse.ArgumentTypeError(f"{text!r} is no restart count; use 0 to {(1 << 31) - 1}")


def hours(text: str) -> float:
    """Parse a length of time in hours."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of hours; use 0 or more, such as 24")
    return number


def parse_steps(text: str | None) -> tuple[int | None, int | None]:
    """Parse `A:B`; either side may be empty."""
    if text is None:
        return None, None
    first, colon, last = text.partition(":")
    try:
        numbers = tuple(int(part) if part else None for part in (first, last))
    except ValueError:
        numbers = ()
    if not colon or len(numbers) != 2:
        raise UsageError(f"--steps {text!r} is no range", next_step="write it like 10:20, 10: or :20")
    return numbers


def parse_ranks(text: str | None) -> set[int] | None:
    """Parse `0,4-7`; None is all."""
    if text is None:
        return None
    from perfkit.analysis.rank_lists import rank_ranges

    return {rank for some in rank_ranges(text) for rank in some}


def parse_question(args: argparse.Namespace) -> dict[str, Any]:
    """Return what the user says about the job, as arguments of `perfkit.analyze`."""
    question: dict[str, Any] = {
        key: getattr(args, key) for key in ("seq_len", "hardware", "dtype", "convention", "peak", "world_size", "mesh")
    }
    given = {"tokens_per_step": args.tokens_per_step, "peak_flops": args.peak_flops}
    if args.model and args.model.endswith(".json"):
        given["spec"] = args.model
    if any(value is not None for value in given.values()):
        from perfkit.flops.inputs import arguments_from

        question |= arguments_from(given)
    if args.model and "spec" not in given:
        from perfkit.flops.presets import preset

        question["model"] = preset(args.model, instead="--model FILE.json")
    return question


def write_output(path: Path, data: bytes) -> None:
    """Write a file, or say why that is not possible; `-` is standard output."""
    if str(path) == "-":
        sys.stdout.write(data.decode())
        return
    try:
        path.write_bytes(data)
    except OSError as error:
        raise cannot_write(path, error) from None
