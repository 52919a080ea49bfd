"""Ask a live run for a profiler trace.

The run must be recorded by perfkit (`perfkit.init` or `perfkit run`). Its ranks look for the request between
steps and record the same steps; the traces appear in the store under traces/, compressed and as tables.

examples:
  perfkit trace llama-8b --store runs/
  perfkit trace llama-8b --store runs/ --steps 5 --ranks 0,8,16 --wait 120
  perfkit trace llama-8b --spool /local/spool        # on a node with a spool of its own

exit codes: 0 asked (and, with --wait, all traces have arrived), 2 no such live run, or --wait ran out
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN", help="name of the run")
    parser.add_argument("--store", metavar="DIR", default="runs", help="store of the run (default: %(default)s)")
    parser.add_argument("--spool", type=Path, metavar="DIR", help="spool of the run (default: DIR/spool of the store)")
    parser.add_argument("--cluster", help="if runs of several clusters have this name")
    parser.add_argument("--steps", type=int, default=3, help="steps to record (default: %(default)s)")
    parser.add_argument("--ranks", default="all", help="all, per-host, or numbers such as 0,8,16 (default: all)")
    parser.add_argument("--wait", type=float, default=0.0, metavar="SECONDS", help="wait until the traces are there")


def run(args: argparse.Namespace) -> int:
    """Leave the request, and wait for the traces if asked to."""
    from perfkit.capture.names import SPOOL_FOLDER
    from perfkit.capture.requests import request_trace
    from perfkit.errors import PerfkitError, UsageError

    if args.spool is None and "://" in args.store:
        raise UsageError("a remote store has no spool inside", next_step="name the spool with --spool")
    spool = args.spool or Path(args.store) / SPOOL_FOLDER
    asked = request_trace(spool, args.run, steps=args.steps, ranks=args.ranks, cluster=args.cluster)
    of = f" of {asked.world_size}" if asked.world_size else ""
    print(f"asked {len(asked.ranks)}{of} ranks for steps {asked.start_step} to {asked.start_step + asked.steps - 1}")
    if asked.world_size and len(asked.ranks) < asked.world_size and args.ranks == "all":
        print("the other ranks have a spool of their own; ask on their nodes too")
    if not args.wait:
        print(f"next: perfkit analyze {args.store}/traces")
        return 0
    found = _wait(args, asked)
    for path in found:
        print(path)
    if len(found) < len(asked.ranks):
        raise PerfkitError(
            f"{len(found)} of {len(asked.ranks)} traces after {args.wait:g} s", next_step="they may still come"
        )
    return 0


def _wait(args: argparse.Namespace, asked: object) -> list[str]:
    from perfkit.capture.requests import Request
    from perfkit.sources.spool import trace_path

    assert isinstance(asked, Request)
    from perfkit.store.files import Files

    files = Files(args.store)
    who = {"cluster": asked.cluster, "run": asked.run, "attempt": asked.attempt}
    wanted = [trace_path({**who, "rank": rank}, asked.start_step) for rank in asked.ranks]
    deadline = time.monotonic() + args.wait
    while True:
        found = [path for path, size in zip(wanted, files.sizes(wanted), strict=True) if size is not None]
        if len(found) == len(wanted) or time.monotonic() > deadline:
            return [files.path(path) for path in found]
        time.sleep(0.5)
