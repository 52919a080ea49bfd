"""What changed between two runs, and is it noise?

BASE and NEW are trace files, folders, archives or stores; with --store they name runs in it. Runs of a job differ on a
machine that is shared or warms up: give several of each side with --base and --new, recorded alternately. Step time is
compared with a confidence interval (moving blocks of steps; between several runs, their spread), the waterfall term by
term, kernels by op and shape, collectives by role and size. --fail-on trips only when the evidence is there:
'step_time>+3%', 'mfu<-2%', 'waterfall.exposed_wait>+1points'.

examples:
  perfkit compare traces/before traces/after
  perfkit compare baseline candidate --store runs/ --fail-on 'step_time>+3%'
  perfkit compare baseline candidate --base baseline-2 --new candidate-2 --store runs/
  perfkit compare base/ new/ --format markdown -o comment.md
  perfkit compare base/ new/ --format junit -o perf.xml --fail-on 'step_time>+3%'
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit.cli.arguments import add_job_arguments, parse_question, write_output

if TYPE_CHECKING:
    import pyarrow as pa

    from perfkit.report.report import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("base", metavar="BASE", help="traces, a store, or with --store a run")
    parser.add_argument("new", metavar="NEW", help="the same, to compare with it")
    parser.add_argument("--base", dest="more_base", action="append", default=[], metavar="RUN",
                        help="another run of the base side; may be repeated")  # fmt: skip
    parser.add_argument("--new", dest="more_new", action="append", default=[], metavar="RUN",
                        help="another run of the new side; may be repeated")  # fmt: skip
    parser.add_argument("--run-spread", type=float, metavar="SHARE",
                        help="how far runs of the same job lie apart (standard deviation), where there is one of each "
                        "(default: 0.005 is assumed, nothing if the steps swing or stall)")  # fmt: skip
    parser.add_argument("--store", metavar="DIR", help="store in which BASE and NEW are runs")
    parser.add_argument("--level", type=float, default=0.05, help="chance of a false alarm (default: 0.05)")
    parser.add_argument("--fail-on", metavar="EXPR", help="exit with 1 if a change is beyond a limit")
    parser.add_argument("--format", choices=("text", "json", "markdown", "junit"), default="text")
    parser.add_argument("-o", "--output", type=Path, metavar="F", help="write to a file")
    add_job_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Compare and judge."""
    from perfkit.analysis.compare import compare
    from perfkit.errors import GateTripped, PerfkitError, UsageError
    from perfkit.report import comparison as render
    from perfkit.report.gate import GateUnknown

    if not 0 < args.level < 1:
        raise UsageError(f"--level {args.level}", next_step="use a chance such as 0.05")
    if args.run_spread is not None and args.run_spread < 0:
        raise UsageError(f"--run-spread {args.run_spread}", next_step="use a share such as 0.005")
    question = parse_question(args)
    base = [_load(name, args.store, question) for name in (args.base, *args.more_base)]
    new = [_load(name, args.store, question) for name in (args.new, *args.more_new)]
    steps = [[steps for _, steps in side if steps is not None] for side in (base, new)]
    all_recorded = len(steps[0]) == len(base) and len(steps[1]) == len(new)
    found = compare(
        [report for report, _ in base],
        [report for report, _ in new],
        level=args.level,
        run_spread=args.run_spread,
        steps=(steps[0], steps[1]) if all_recorded else None,
    )
    problem: PerfkitError | None = None
    if args.fail_on:
        try:
            render.check_change(found, args.fail_on)
        except (GateTripped, GateUnknown) as error:
            problem = error
    text = {
        "text": lambda: render.to_text(found),
        "json": lambda: json.dumps(found.as_json(), allow_nan=False) + "\n",
        "markdown": lambda: render.to_markdown(found),
        "junit": lambda: render.to_junit(found, str(problem) if problem else None),
    }[args.format]()
    if args.output:
        write_output(args.output, text.encode())
    else:
        print(text, end="")
    if problem is not None:
        raise problem
    return 0


def _load(name: str, store: str | None, question: dict[str, Any]) -> tuple[Report, pa.Table | None]:
    """Return the analysis of one side, and its recorded steps if it is a run in a store."""
    import perfkit
    from perfkit.analysis.stored import find_run, is_store, recorded_steps
    from perfkit.store import Store

    if store is None and not is_store(name):
        return perfkit.analyze(name, **question), None
    lake = Store(store or name)
    summary = find_run(lake, name if store else None)
    return perfkit.analyze(name, store=store, **question), recorded_steps(lake, summary.key)
