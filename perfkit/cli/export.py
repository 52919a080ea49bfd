"""Write a trace in another form; today: a redacted copy that can be shared.

  perfkit export TRACE --redact               writes redacted-rank3.json.gz beside it
  perfkit export TRACE --redact -o copy.json

--redact replaces names of hosts, users, paths, models and your own functions by tokens. Names of public
libraries, kernels, times, shapes and all numbers stay, so that perfkit, HTA and Perfetto read the copy like
the original. A string that is not known to be harmless is replaced. The copy is not named after the trace, whose
name often holds a host; of it only the rank is kept.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from perfkit.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("trace", metavar="TRACE", help="a torch.profiler trace (.json, .json.gz, .json.zst)")
    parser.add_argument("--redact", action="store_true", help="hash what identifies you")
    parser.add_argument("-o", "--output", metavar="FILE", help="the copy; gzipped if the name ends in .gz")
    parser.add_argument("--salt", help="makes tokens the same in several exports; keep it secret (default: random)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="how to print the summary")


def run(args: argparse.Namespace) -> int:
    """Write the copy and say what was hashed."""
    if not args.redact:
        raise UsageError(
            "export has only --redact today; Perfetto, Prometheus and CSV come with a later version",
            next_step=f"run `perfkit export {args.trace} --redact`",
        )
    import dataclasses
    import json

    from perfkit.redact import redact_trace

    report = redact_trace(args.trace, args.output or default_output(args.trace), salt=args.salt)
    if args.format == "json":
        print(json.dumps(dataclasses.asdict(report), indent=2))
        return 0
    print(f"{report.target}: {report.bytes_out:,} bytes of JSON, from {report.bytes_in:,}")
    for kind, count in report.names.items():
        print(f"  {kind:<8} {count:>8,} names hashed, {report.occurrences.get(kind, 0):>10,} times")
    print(f"  kept     {report.strings_kept:>8,} names of libraries and profiler")
    print(f"  checked  {report.strings_checked:>8,} strings of the copy: no hashed name is left")
    if report.problem:
        print(f"  note: {report.problem}; the copy ends there too")
    print("Look at the copy before you share it: numbers, shapes and times are unchanged.")
    return 0


def default_output(trace: str) -> str:
    """Name the copy by what may be known of the trace: its rank. A file that is there is not replaced."""
    from perfkit.sources.kineto import rank_in_name

    rank = rank_in_name(trace)
    stem = "redacted" if rank is None else f"redacted-rank{rank}"
    names = itertools.chain([stem], (f"{stem}.{number}" for number in itertools.count(2)))
    paths = (Path(trace).parent / f"{name}.json.gz" for name in names)
    return str(next(path for path in paths if not path.exists()))
