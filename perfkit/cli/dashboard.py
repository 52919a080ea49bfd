"""Serve the dashboard: MFU, throughput and uptime per cluster, down to a rank.

examples:
  perfkit dashboard --store runs/
  perfkit dashboard --store s3://bucket/perf --port 8051
  perfkit dashboard --store runs/ --workers 2               # gunicorn, for a team
  perfkit dashboard --store runs/ --prefix /perf/           # behind a proxy; keeps the prefix

It only reads the store, binds 127.0.0.1 unless --host says otherwise, and asks nobody for a password: put a
proxy that does in front of it before you bind anything else.
"""

from __future__ import annotations

import argparse
import sys

from perfkit.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--store", default="runs/", metavar="DIR", help="local folder or URI of the store (default: runs/)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8050, help="0 takes any free one (default: 8050)")
    parser.add_argument("--prefix", default="/", metavar="PATH", help="path under which a proxy serves it (default: /)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes; more than 1 needs gunicorn")
    parser.add_argument("--threads", type=int, default=4, metavar="N", help="threads per process (default: 4)")


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    if args.workers < 1 or args.threads < 1 or not 0 <= args.port < 65536:
        raise UsageError("--workers and --threads start at 1, --port is 0 to 65535")
    try:
        from perfkit_dashboards.serve import serve
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the dashboard needs {error.name}", next_step="install it with `pip install 'perfkit[dashboard]'`"
        ) from None
    serve(args.store, host=args.host, port=args.port, prefix=args.prefix, workers=args.workers, threads=args.threads,
          say=lambda line: print(line, file=sys.stderr, flush=True))  # fmt: skip
    return 0
