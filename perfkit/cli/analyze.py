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
blame_steps, layout, arrangement, stages, bubbles, hosts. Those that a trace does not give are not there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit.cli.lean import leave_out_what_takes_long
from perfkit.engine import add_engine_arguments, open_engine
from perfkit.errors import UsageError, cannot_write

if TYPE_CHECKING:
    import pyarrow as pa

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
    parser.add_argument("--steps", metavar="A:B", help="only steps A <= step < B; either may be left out")
    parser.add_argument("--ranks", metavar="LIST", help="only these ranks, for example 0,4-7")
    parser.add_argument("--table", metavar="NAME", help="write this table instead of the report; needs -o")
    parser.add_argument("-o", "--output", type=Path, metavar="F", help="write to F (a table: .csv or .parquet)")
    parser.add_argument(
        "--fail-on", action="append", default=[], metavar="EXPR", help="exit 1 if it holds, for example 'mfu<0.38'"
    )

    add_engine_arguments(parser)
    add_store_arguments(parser)
    add_job_arguments(parser)


def add_store_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where answers are kept and runs are looked up."""
    place = parser.add_argument_group(
        "store", "where the answer is kept, and where a PATH that is no file is looked up"
    )
    place.add_argument("--store", metavar="DIR", help="local folder or URI of the store")
    place.add_argument("--cluster", help="cluster that the run belongs to (default: default)")
    place.add_argument("--run", help="name of the run (default: as `perfkit ingest` names it)")
    place.add_argument("--attempt", type=int, metavar="K", help="restart count of the run (default: the last, or 0)")


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the traces may not tell about the job."""
    job = parser.add_argument_group("job, for MFU", "what the traces do not tell, or instead of what they tell")
    job.add_argument("--model", metavar="M", help="a preset (see `perfkit mfu --list`) or a JSON file of spec keys")
    job.add_argument("--tokens-per-step", metavar="N", help="tokens of one step of the whole job; 4M is 4 million")
    job.add_argument("--seq-len", type=int, metavar="N", help="tokens of a sequence, if the model does not fix it")
    job.add_argument("--hardware", metavar="H", help="device name as the driver reports it")
    job.add_argument("--dtype", help="number format of the matrix products (default: what most FLOPs of the trace use)")
    job.add_argument("--convention", help="which FLOPs are counted (default palm)")
    job.add_argument("--peak-flops", metavar="F", help="dense FLOP/s of one device (989e12, 989T)")
    job.add_argument("--peak", choices=("registry", "measured"), help="measured: by `perfkit hardware --calibrate`")
    job.add_argument("--world-size", type=int, metavar="N", help="ranks of the job, if the traces do not record it")
    job.add_argument("--mesh", metavar="M", help="parallel degrees, instead of what the groups show: tp=2,pp=4,dp=8")


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


def parse_question(args: argparse.Namespace) -> dict[str, Any]:
    """Return what the user says about the job, as arguments of `perfkit.analyze`."""
    named = "spec" if args.model and args.model.endswith(".json") else "model"
    given = {named: args.model, "peak_flops": args.peak_flops}
    question = {}
    if given := {key: value for key, value in given.items() if value is not None}:
        from perfkit.flops.inputs import arguments_from

        question = arguments_from(given)
    if args.tokens_per_step is not None:
        question["tokens_per_step"] = parse_count(args.tokens_per_step)
    for key in ("seq_len", "hardware", "dtype", "convention", "peak", "world_size", "mesh"):
        question[key] = getattr(args, key)
    return question


def parse_count(text: str) -> float:
    """Parse `4194304`, `4e6`, `4M`."""
    scale = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}.get(text[-1:].lower())
    try:
        return float((text[:-1] if scale else text).replace("_", "").replace(",", "")) * (scale or 1.0)
    except ValueError:
        raise UsageError(f"--tokens-per-step {text!r} is no number", next_step="write 4194304 or 4M") from None


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
    """Parse `0,4-7`."""
    if text is None:
        return None
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            ranks |= set(range(int(first), int(last if dash else first) + 1))
        except ValueError:
            raise UsageError(f"--ranks {text!r} is no list of ranks", next_step="write it like 0,4-7") from None
    return ranks


def write_table(table: pa.Table, path: Path) -> None:
    """Write CSV or parquet by the suffix of `path`."""
    from perfkit.export import tables

    tables.write_table(table, path)


def write_output(path: Path, data: bytes) -> None:
    """Write a file, or say why that is not possible."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise cannot_write(path, error) from None
