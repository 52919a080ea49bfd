"""Hand a run or a trace to other tools: Perfetto, Prometheus, CSV, Parquet, or a redacted copy to share.

RUN is a run in a store (with --store: RUN, CLUSTER/RUN or CLUSTER/RUN/ATTEMPT), or trace files, folders and archives.

  perfetto     one trace of the chosen ranks and steps on one clock, with perfkit's tracks: step windows, where every
               nanosecond went, who waited for whom. Opens in ui.perfetto.dev, chrome://tracing and TensorBoard
  csv, parquet  every table (docs/tables.md) into a folder, or one with --table; cells cannot run as formulas
  prometheus, openmetrics   the run's figures in the names of a live run; -o - is standard output, only of these
  --redact     a copy of a trace, or of all ranks of a job (-o FOLDER), without names of hosts, users, paths, models and
               your own functions. Names of public libraries, kernels, times, shapes and all numbers stay, so that
               perfkit, HTA and Perfetto read the copy like the original. A string that is not known to be harmless is
               replaced. The copy is not named after the trace, whose name often holds a host; of it only the rank is
               kept

examples:
  perfkit export traces/ --format perfetto -o job.json.gz
  perfkit export llama-8b --store runs/ --format perfetto --ranks 0,4-7 --steps 10:12 -o window.json.gz
  perfkit export llama-8b --store runs/ --format csv --table kernels -o kernels.csv
  perfkit export llama-8b --store runs/ --format parquet -o tables/
  perfkit export llama-8b --store runs/ --format prometheus -o /var/lib/node_exporter/perfkit.prom
  perfkit export rank3.json.gz --redact                    writes redacted-rank3.json.gz beside it
  perfkit export traces/ --redact -o to-share/             every rank, with names that fit together
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from perfkit.cli.arguments import add_part_arguments, parse_ranks, parse_steps
from perfkit.errors import UsageError, cannot_write
from perfkit.report.format import plural

if TYPE_CHECKING:
    from perfkit.export.opened import OpenRun
    from perfkit.redact import RedactionReport

METRICS = ("prometheus", "openmetrics")
FORMATS = ("perfetto", "csv", "parquet", *METRICS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run of the store, or traces")
    parser.add_argument(
        "--format", choices=(*FORMATS, "text", "json"), help="what to write; with --redact: how to print its summary"
    )
    parser.add_argument("-o", "--output", metavar="F", help="file or folder to write")
    parser.add_argument("--store", metavar="DIR", help="store in which RUN is")
    add_part_arguments(parser)
    parser.add_argument("--table", metavar="NAME", help="csv, parquet: only this table, into one file")
    share = parser.add_argument_group("a copy to share")
    share.add_argument("--redact", action="store_true", help="hash what identifies you; RUN is trace files")
    share.add_argument("--salt", help="makes tokens the same in several exports; keep it secret (default: random)")


def run(args: argparse.Namespace) -> int:
    """Write what is asked for."""
    if args.output == "-" and (args.redact or args.format not in METRICS):
        raise UsageError(
            "only metrics go to standard output, where the others say what they wrote",
            next_step="name a file or folder with -o",
        )
    if args.redact:
        return _redact(args)
    if args.format not in FORMATS:
        raise UsageError(
            "say what to write", next_step=f"add --format {'|'.join(FORMATS)}, or --redact for a copy to share"
        )
    from perfkit.export.opened import open_run

    ranks, steps = parse_ranks(args.ranks), parse_steps(args.steps) if args.steps else None
    if args.table and args.format not in ("csv", "parquet"):
        raise UsageError(f"--table is of no use with {args.format}", next_step="use --format csv or parquet")
    if args.format in METRICS:
        with open_run(args.runs, store=args.store) as opened:
            return _metrics(opened, args)
    if not args.output:
        suffix = "F.json.gz" if args.format == "perfetto" else f"F.{args.format}" if args.table else "FOLDER"
        raise UsageError(f"--format {args.format} needs a place to write to", next_step=f"add `-o {suffix}`")
    if args.format == "perfetto":
        from perfkit.export.perfetto import write_perfetto

        written = write_perfetto(args.output, args.runs, store=args.store, ranks=ranks, steps=steps)
        clock = (
            "one clock" if written.aligned else "each on its own clock" if len(written.ranks) > 1 else "its own clock"
        )
        error = f" (± {written.uncertainty_ns / 1e3:,.1f} µs)" if written.uncertainty_ns is not None else ""
        print(f"{args.output}: {written.events:,} events of {len(written.ranks)} ranks on {clock}{error}")
        _say(written.notes)
        return 0
    with open_run(args.runs, store=args.store) as opened:
        _tables(opened, args, ranks, steps)
        _say(opened.notes)
    return 0


def _say(notes: list[str]) -> None:
    for note in notes:
        print(f"  note: {note}")


def _metrics(opened: OpenRun, args: argparse.Namespace) -> int:
    from perfkit.export.prometheus import metrics_text
    from perfkit.export.whole_file import whole_file

    text = metrics_text(opened, openmetrics=args.format == "openmetrics")
    if args.output in (None, "-"):
        sys.stdout.write(text)
        return 0
    with whole_file(Path(args.output)) as file:  # a collector must not read half of it
        file.write(text.encode())
    return 0


def _tables(
    opened: OpenRun, args: argparse.Namespace, ranks: set[int] | None, steps: tuple[int | None, int | None] | None
) -> None:
    from perfkit.export.tables import run_tables, write_run_table

    target = Path(args.output)
    if args.table:
        if target.suffix != f".{args.format}":
            raise UsageError(f"{target} does not end in .{args.format}", next_step=f"add `-o F.{args.format}`")
        rows = write_run_table(opened, args.table, target, ranks=ranks, steps=steps)
        print(f"{target}: {rows:,} rows")
        return
    if target.exists() and not target.is_dir():
        raise UsageError(f"{target} is a file", next_step="name a folder, or choose one table with --table")
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(target, error) from None
    for name in run_tables(opened):
        rows = write_run_table(opened, name, target / f"{name}.{args.format}", ranks=ranks, steps=steps)
        print(f"{target / f'{name}.{args.format}'}: {rows:,} rows")


def _redact(args: argparse.Namespace) -> int:
    """Write the copy and say what was hashed."""
    import dataclasses
    import json

    from perfkit.redact import free_name, redact_trace, redact_traces

    if args.store or args.ranks or args.steps or args.table or args.format in FORMATS:
        raise UsageError(
            "--redact copies trace files as they are", next_step="run it on files, and on their copies what you like"
        )
    trace = Path(args.runs[0])
    to_folder = args.output is not None and (args.output.endswith("/") or Path(args.output).is_dir())
    is_many = len(args.runs) > 1 or trace.is_dir() or to_folder
    if is_many and not args.output:
        raise UsageError("several copies need a folder", next_step="name one with -o")
    if is_many:
        reports = redact_traces(args.runs, args.output, salt=args.salt)
    else:
        reports = [redact_trace(trace, args.output or free_name(trace.parent, args.runs[0]), salt=args.salt)]
    if args.format == "json":
        documents = [dataclasses.asdict(report) for report in reports]
        print(json.dumps(documents if is_many else documents[0], indent=2))
        return 0
    for report in reports:
        _say_redacted(report)
    _say_before_sharing(reports, is_job=is_many or bool(args.salt))
    return 0


def _say_redacted(report: RedactionReport) -> None:
    print(f"{report.target}: {report.bytes_out:,} bytes of JSON, from {report.bytes_in:,}")
    for kind, count in report.names.items():
        times = report.occurrences.get(kind, 0)
        print(f"  {kind:<8} {count:>8,} {'name' if count == 1 else 'names'} hashed, {plural(times, 'time')}")
    print(f"  kept     {report.strings_kept:>8,} names of libraries and profiler")
    print(f"  checked  {report.strings_checked:>8,} strings of the copy: no hashed name is left")
    if report.problem:
        print(f"  note: {report.problem}; the copy ends there too")


def _say_before_sharing(reports: list[RedactionReport], *, is_job: bool) -> None:
    from perfkit.sources.kineto import rank_in_name

    lost = [rank_in_name(r.source) for r in reports if not r.rank_recorded and rank_in_name(r.target) is None]
    for rank in filter(lambda rank: rank is not None, lost):
        print(f"That this is rank {rank} only its name said: give the copy a name such as rank{rank}.json.gz.")
    print(
        "Look at the copy before you share it: numbers, shapes and times are unchanged."
        + ("" if is_job else " For several ranks of one job give all the same --salt, or all at once with -o FOLDER.")
    )
