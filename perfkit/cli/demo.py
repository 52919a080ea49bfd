"""Train a small model on this machine, analyze it, and serve the dashboard.

About a minute: two processes, one core each, real data parallelism over gloo. The run is recorded as a job on GPUs
would be; its verdict is printed, an HTML report is written, and the dashboard shows it.

examples:
  perfkit demo
  perfkit demo --fault slow-rank:1:1.5x      what perfkit says about a slow rank
  perfkit demo --fault crash:1:20            a crash, a restart, and what it cost
  perfkit demo --no-serve                    end after the report

Faults: slow-rank:R:Fx, slow-data:50ms, slow-checkpoint, sync-point, gc-storm, slow-link, crash:R:STEP, hang:R:STEP,
disk-full. Needs torch (`pip install 'perfkit[train]'`). Without a terminal it ends after the report.
"""

from __future__ import annotations

import argparse
import importlib.util
import socket
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from perfkit.errors import UsageError

if TYPE_CHECKING:
    from perfkit.reference.demo import DemoResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--fault", action="append", default=[], metavar="F", help="break it; may be repeated")
    parser.add_argument("--steps", type=int, default=60, help="training steps (default 60)")
    parser.add_argument("--ranks", type=int, default=2, help="processes, if there are as many cores (default 2)")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("runs/demo"), metavar="DIR", help="folder (default runs/demo)"
    )
    parser.add_argument("--no-serve", action="store_true", help="end after the report")
    parser.add_argument("--port", type=int, default=8050, help="of the dashboard (default 8050)")


def run(args: argparse.Namespace) -> int:
    """Run the demo and show what it found."""
    from perfkit.reference.demo import DemoConfig, check_torch, run_demo

    if args.steps < 24 or args.ranks < 1:
        raise UsageError("the demo profiles steps 12 to 19", next_step="use --steps 24 or more, and --ranks 1 or more")
    check_torch()
    if args.fault:
        from perfkit.reference.faults import parse_fault

        for text in args.fault:
            parse_fault(text)  # a mistake is cheaper now
    config = DemoConfig(folder=args.output, faults=tuple(args.fault), steps=args.steps, ranks=args.ranks)
    result = run_demo(config, lambda line: print(line, file=sys.stderr, flush=True))
    _show(result)
    if args.no_serve or not sys.stdout.isatty():
        return 0
    return _serve(result, args.port)


def _show(result: DemoResult) -> None:
    from perfkit.reference.demo import attempts_of
    from perfkit.report.format import clean
    from perfkit.report.text import show

    print(flush=True)
    if result.incidents:
        print("what went wrong")
        for line in result.incidents:
            print(textwrap.fill(clean(line), width=100, initial_indent="  - ", subsequent_indent="    "))
        print(flush=True)
    show(result.report, details=False)
    rows = {
        "report": result.html, "traces": result.traces, "store": result.store,
        "job's own log": result.folder / "job-0.jsonl", "configuration": result.folder / "config.json",
    }  # fmt: skip
    if len(attempts := attempts_of(result.store)) > 1:
        from perfkit.goodput.question import ask
        from perfkit.goodput.text import render as render_goodput

        print(f"\nWhat {len(attempts) - 1} restart cost (`perfkit goodput demo --store {result.store}`)\n")
        print(render_goodput(ask(["demo"], store=str(result.store))), end="")
    print()
    for name, path in rows.items():
        print(f"  {name:<14} {path}")
    print(f"\n  look closer    perfkit analyze demo --store {result.store} --details")
    print(f"  dashboard      perfkit dashboard --store {result.store}")
    print("  break it       perfkit demo --fault slow-rank:1:1.5x", flush=True)


def _serve(result: DemoResult, port: int) -> int:
    """Serve the dashboard until interrupted; what is missing costs a line, not the demo."""
    if importlib.util.find_spec("dash") is None:
        print("\nThe dashboard needs dash: pip install 'perfkit[dashboard]'", file=sys.stderr)
        return 0
    from perfkit.cli import dashboard

    if not _is_free(port):
        print(f"\nport {port} is taken; another is used", file=sys.stderr)
        port = 0
    parser = argparse.ArgumentParser()
    dashboard.add_arguments(parser)
    return dashboard.run(parser.parse_args(["--store", str(result.store), "--port", str(port)]))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
