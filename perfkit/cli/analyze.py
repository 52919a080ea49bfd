"""Say what the MFU is, where the rest of the time went and what to fix first, from trace files alone.

Every nanosecond of a step is charged to compute, exposed communication, exposed copies or idle, and idle
time to its cause and to whoever held the host up.

examples:
  perfkit analyze traces/                                  all ranks of a run, as text
  perfkit analyze rank0.json.gz --format json | jq .totals
  perfkit analyze traces/ --format html -o report.html     one file with charts, to forward
  perfkit analyze traces/ --fail-on 'exposed_comm>10%'     exit 1 if it holds, 2 if it cannot be told
  perfkit analyze traces/ --model llama3-8b --tokens-per-step 4M --seq-len 8192     with MFU
  perfkit analyze traces/ --steps 10:20 --ranks 0,4-7
  perfkit analyze traces/ --table idle -o idle.csv         every row behind the report
  perfkit analyze traces/ --store runs/ --run llama-8b     and keep the answer in a store, for the dashboard
  perfkit analyze llama-8b --store runs/                   a run that `perfkit ingest` put into a store

PATH is a trace file, a folder, an archive (.zip, .tar.gz), or a run in a store: RUN, CLUSTER/RUN or
CLUSTER/RUN/ATTEMPT. `--window trace` ignores steps and takes each rank from its first to its last device event.
MFU needs the model and the tokens that the whole job trains in a step; a run that perfkit captured knows both.
Tables: attribution, steps, ranks, idle, gaps, io, kernels, waterfall, findings, exchanges, copies, memory, timeline; of
several ranks also collectives, collective_sizes, groups, links, clocks, alignment, job_steps, stragglers, blame,
blame_steps, layout, arrangement, stages, bubbles. Those that a trace does not give are not there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from perfkit.cli.arguments import (
    add_job_arguments,
    add_part_arguments,
    add_store_arguments,
    parse_question,
    parse_ranks,
    parse_steps,
    write_output,
)
from perfkit.cli.lean import leave_out_what_takes_long
from perfkit.engine import add_engine_arguments, open_engine
from perfkit.errors import UsageError

if TYPE_CHECKING:
    from perfkit.report.report import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="trace files, folders or archives")
    parser.add_argument(
        "--format",
        choices=("text", "json", "html"),
        default="text",
        help="what to print (default: text); html needs -o",
    )
    parser.add_argument("--details", action="store_true", help="text: all findings, and tables of ranks, kernels, …")
    parser.add_argument(
        "--window", choices=("step", "trace"), default="step", help="cut at steps, or not (default: step)"
    )
    add_part_arguments(parser)
    parser.add_argument("--table", metavar="NAME", help="write this table instead of the report; needs -o")
    parser.add_argument("-o", "--output", type=Path, metavar="F", help="write to F (a table: .csv or .parquet)")
    parser.add_argument(
        "--fail-on", action="append", default=[], metavar="EXPR", help="exit 1 if it holds, for example 'mfu<0.38'"
    )

    add_engine_arguments(parser)
    add_store_arguments(parser)
    add_job_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Analyse and print."""
    from perfkit.report.gate import check, parse

    first, last = parse_steps(args.steps)
    ranks = parse_ranks(args.ranks)
    gates = [parse(expression) for expression in args.fail_on]
    if args.format == "html" and not (args.output or args.table):
        raise UsageError("--format html needs a file to write to", next_step="add `-o report.html`")
    if args.table and not (args.output and args.output.suffix in (".csv", ".parquet")):
        raise UsageError(
            "--table needs a file to write to, CSV or Parquet", next_step="add `-o FILE.csv` or `-o FILE.parquet`"
        )

    leave_out_what_takes_long()
    from perfkit.analysis.analyze import analyze

    question = parse_question(args)
    question |= {name: getattr(args, name) for name in ("store", "cluster", "run", "attempt")}
    with open_engine(args.engine, address=args.address) as engine:
        found = analyze(
            args.paths, window=args.window, first_step=first, last_step=last, ranks=ranks, engine=engine, **question
        )
    if args.table:
        if args.table not in found.tables:
            raise UsageError(f"no table {args.table!r} here; there are {', '.join(found.tables)}")
        from perfkit.export.tables import write_table

        write_table(found.tables[args.table], args.output)
    else:
        _render(found, args)
    check(gates, found.summary)
    return 0


def _render(report: Report, args: argparse.Namespace) -> None:
    if args.format == "text" and not args.output:
        from perfkit.report.text import show

        show(report, details=args.details)
        return
    if args.format == "html":
        text = report.to_html()
    else:
        text = report.to_json() if args.format == "json" else report.to_text(details=args.details)
    if args.output:
        write_output(args.output, text.encode())
    else:
        sys.stdout.write(text)
