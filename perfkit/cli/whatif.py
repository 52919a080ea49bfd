"""What a fix would buy: step time and MFU if a rank were healthy, the network faster, the host never late.

The recorded job is played again with the change made: kernels on their streams, launches, collectives and messages
between ranks, waits for data. Without a change it prints the whole table. Several changes are made together.

examples:
  perfkit whatif traces/                                   everything that is worth asking
  perfkit whatif traces/ --healthy 5                       rank 5 works like its peers
  perfkit whatif traces/ --network 2x --no-data-wait       both at once
  perfkit whatif traces/ --family gemm=1.2x --format json
  perfkit whatif llama-8b --store runs/                    a run of a store; keeps its critical path there
  perfkit whatif traces/ --table critical_path -o path.csv

PATH is what `perfkit analyze` takes, or the per-op parquet of a pipeline (StragglerAnalysis). A replay is no oracle:
the first lines say how well it reproduces what was measured, the last what it cannot know. More in docs/whatif.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit.cli.arguments import (
    add_job_arguments,
    add_part_arguments,
    add_store_arguments,
    parse_question,
    parse_ranks,
    parse_steps,
    write_output,
)
from perfkit.errors import UsageError

if TYPE_CHECKING:
    from perfkit.analysis.replay.changes import Change


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="trace files, folders, archives, or a run in a store")
    what = parser.add_argument_group("changes", "made together; without any, all of them are tried one by one")
    what.add_argument("--healthy", metavar="RANKS", help="these ranks work like their peers: 5, 0,4-7 or all")
    what.add_argument("--network", metavar="K", help="data moves so many times faster: 2x, or inf")
    what.add_argument("--no-host-gaps", action="store_true", help="the host launches without delay")
    what.add_argument("--no-data-wait", action="store_true", help="data is there when it is asked for")
    what.add_argument("--overlap", action="store_true", help="compute never waits for a collective")
    what.add_argument("--balance", action="store_true", help="pipeline stages have equally much to compute")
    what.add_argument(
        "--family", action="append", default=[], metavar="F=K", help="kernels of a family are faster: gemm=1.2x"
    )
    add_part_arguments(parser)
    parser.add_argument("--format", choices=("text", "json"), default="text", help="what to print (default: text)")
    parser.add_argument("--table", metavar="NAME", help="write this table instead: critical_path; needs -o")
    parser.add_argument("-o", "--output", type=Path, metavar="F", help="write to F (a table: .csv or .parquet)")
    add_store_arguments(parser)
    add_job_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Play and print."""
    if args.table and not (args.output and args.output.suffix in (".csv", ".parquet")):
        raise UsageError("--table needs a file to write to", next_step="add `-o FILE.csv` or `-o FILE.parquet`")
    changes = parse_changes(args)
    first, last = parse_steps(args.steps)
    asked: dict[str, Any] = {"first_step": first, "last_step": last, "ranks": parse_ranks(args.ranks)}
    asked |= {name: getattr(args, name) for name in ("store", "cluster", "run", "attempt")}
    from perfkit.analysis.whatif import path_table, whatif
    from perfkit.report.whatif import to_text

    found = whatif(args.paths, changes=changes, **asked, **parse_question(args))
    if args.table:
        from perfkit.export.tables import write_table

        write_table(path_table(found, args.table), args.output)
        return 0
    text = json.dumps(found.as_json(), indent=1, allow_nan=False) + "\n" if args.format == "json" else to_text(found)
    if args.output:
        write_output(args.output, text.encode())
    else:
        print(text, end="")
    return 0


def parse_changes(args: argparse.Namespace) -> list[Change]:
    """Return the changes in the order in which they are made: durations first, then what waits."""
    from perfkit.analysis.replay.changes import parse_change

    changes = [parse_change("healthy", args.healthy)] if args.healthy is not None else []
    changes += [parse_change("family", text) for text in args.family]
    changes += [parse_change("balance")] if args.balance else []
    changes += [parse_change("network", args.network)] if args.network is not None else []
    for kind in ("no-host-gaps", "no-data-wait", "overlap"):
        if getattr(args, kind.replace("-", "_")):
            changes.append(parse_change(kind))
    return changes
