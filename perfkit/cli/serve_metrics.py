"""Serve the live metrics of recorded runs to Prometheus.

One endpoint for all ranks that share a spool. Metrics and their names are listed in docs/capture.md. A run can
also serve its own: perfkit.init(metrics_port=9464).

examples:
  perfkit serve-metrics --store runs/                      # http://127.0.0.1:9464/metrics
  perfkit serve-metrics --spool /local/spool --host 0.0.0.0 --port 9500
  perfkit serve-metrics --store runs/ --once               # print the metrics and end
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--store", metavar="DIR", default="runs", help="store of the runs (default: %(default)s)")
    parser.add_argument("--spool", type=Path, metavar="DIR", help="spool of the runs (default: DIR/spool of the store)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=9464, help="port; 0 picks a free one (default: %(default)s)")
    parser.add_argument("--once", action="store_true", help="print the metrics and end")


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    from perfkit.capture.metrics import read_snapshots, render
    from perfkit.capture.names import SPOOL_FOLDER
    from perfkit.capture.prometheus import MetricsServer
    from perfkit.errors import UsageError

    spool = args.spool or Path(args.store) / SPOOL_FOLDER
    if not spool.is_dir():
        raise UsageError(f"no spool at {spool}", next_step="name the store or spool of a recorded run")
    if args.once:
        print(render(read_snapshots(spool)), end="")
        return 0
    try:
        server = MetricsServer(spool, args.host, args.port)
    except (OSError, OverflowError) as error:
        raise UsageError(f"cannot listen on {args.host}:{args.port}: {error}", next_step="try --port 0") from None
    host, port = server.server_address[:2]
    print(f"serving http://{host!s}:{port}/metrics; Ctrl-C ends it", flush=True)
    with server:
        server.serve_forever()
    return 0
