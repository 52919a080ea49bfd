"""Serve the dashboard: MFU, throughput and uptime per cluster, down to a rank.

examples:
  perfkit dashboard --store runs/
  perfkit dashboard --store s3://bucket/perf --port 8051
  perfkit dashboard --store runs/ --workers 2               # gunicorn, for a team
  perfkit dashboard --store runs/ --prefix /perf/           # behind a proxy; keeps the prefix
  perfkit dashboard --store runs/ --auth-file users.json    # names and passwords, and who sees which clusters
  perfkit dashboard --hash-password                         # what users.json holds in place of a password

Of the store it writes only notes and saved views (not even those with --read-only). It binds 127.0.0.1 unless --host
says otherwise, and without --auth-file it asks nobody for a password. docs/dashboard.md has an example of the file.
"""

from __future__ import annotations

import argparse
import getpass
import sys
from pathlib import Path

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
    parser.add_argument("--read-only", action="store_true", help="no notes and saved views")
    access = parser.add_argument_group("access")
    access.add_argument("--auth-file", metavar="F", help="JSON: users, hashed passwords, and what each may see")
    access.add_argument("--trust-header", metavar="NAME", help="take the user from this header; needs --trust-proxy")
    access.add_argument(
        "--trust-proxy", action="append", default=[], metavar="ADDR", help="who may set it: an address or network"
    )
    access.add_argument(
        "--heavy-per-minute", type=float, metavar="N",
        help="computed answers per user and minute (default: 240 with --auth-file, else no limit)",
    )  # fmt: skip
    access.add_argument("--hash-password", action="store_true", help="read a password, print its hash and end")


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    for name in ("workers", "threads"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name} {getattr(args, name)} serves nobody", next_step="use 1 or more")
    if not 0 <= args.port < 65536:
        raise UsageError(f"--port {args.port} is no port", next_step="use 1 to 65535, or 0 for any that is free")
    if args.heavy_per_minute is not None and not args.heavy_per_minute > 0:
        raise UsageError(
            f"--heavy-per-minute {args.heavy_per_minute:g} answers nobody", next_step="use more than 0, such as 240"
        )
    try:
        import dash  # noqa: F401  the server imports it in every worker, where nobody would say this so clearly
        from perfkit_dashboards.access import hash_password
        from perfkit_dashboards.serve import Options, serve
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the dashboard needs {error.name}", next_step="install it with `pip install 'perfkit[dashboard]'`"
        ) from None
    if args.hash_password:
        print(hash_password(_password()))
        return 0
    options = Options(
        auth_file=args.auth_file, trust_header=args.trust_header, trust_proxies=tuple(args.trust_proxy),
        heavy_per_minute=args.heavy_per_minute, read_only=args.read_only,
    )  # fmt: skip
    _look(args.store)
    serve(args.store, host=args.host, port=args.port, prefix=args.prefix, workers=args.workers, threads=args.threads,
          options=options, say=lambda line: print(line, file=sys.stderr, flush=True))  # fmt: skip
    return 0


def _look(store: str) -> None:
    """Refuse a file, and say that there is no store yet: the pages fill when there is one."""
    from perfkit.analysis.stored import is_store
    from perfkit.store.filesystems import is_remote

    if is_remote(store) or is_store(store):
        return
    if Path(store).is_file():
        raise UsageError(f"{store} is a file", next_step="name the folder of a store with --store")
    say = (
        f"no store at {store} yet; the pages fill as soon as `perfkit ingest TRACE --store {store}` or a run makes one"
    )
    print(f"perfkit dashboard: {say}", file=sys.stderr, flush=True)


def _password() -> str:
    """Read a password twice from a terminal, or a line of standard input."""
    if not sys.stdin.isatty():
        password = sys.stdin.readline().rstrip("\n")
    else:
        password = getpass.getpass("Password: ")
        if getpass.getpass("Again: ") != password:
            raise UsageError("the two are not the same", next_step="try again")
    if not password:
        raise UsageError("the password is empty", next_step="type one, or send one as a line")
    return password
