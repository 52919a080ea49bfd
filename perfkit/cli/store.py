"""Look after a store: list its runs, remove what is left over or too old, pack it, migrate it, roll it up.

examples:
  perfkit store ls runs/
  perfkit store ls s3://bucket/perf --format json
  perfkit store gc runs/                  # says what it would remove
  perfkit store gc runs/ --delete
  perfkit store gc runs/ --keep 90d --keep-traces 14d --delete    # retention
  perfkit store compact runs/             # many small files into few large ones; readers go on
  perfkit store migrate runs/
  perfkit store rollup runs/              # what dashboards read, from the records of captured runs
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any

from perfkit.cli.arguments import hours
from perfkit.cli.streams import escaped, say
from perfkit.report.format import plural

if TYPE_CHECKING:
    from perfkit.errors import StoreError
    from perfkit.store import RunSummary, Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the sub-commands."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("ls", help="list the runs", description="List the runs of a store.")
    collect = actions.add_parser(
        "gc",
        help="remove files that no commit lists, and what is too old",
        description="List files that no commit lists (a killed writer and `compact` leave them), runs that are older "
        "than --keep and events that are older than --keep-traces, and remove them with --delete.",
    )
    collect.add_argument(
        "--keep", metavar="AGE", help="how long a run is kept after it was last written to: 90d, 2w, 1y"
    )
    collect.add_argument(
        "--keep-traces", metavar="AGE", help="how long the events of traces are kept; analyses and step records stay"
    )
    collect.add_argument("--older-than", type=hours, default=24.0, metavar="HOURS", help="default: 24")
    collect.add_argument("--delete", action="store_true", help="remove them; without it they are only listed")
    migrate = actions.add_parser(
        "migrate", help="rewrite what an older perfkit wrote", description="Bring a store to today's schema."
    )
    rollup = actions.add_parser(
        "rollup",
        help="write the roll-ups of captured runs",
        description="Write run_rollup, interruptions, job_nodes and gpu_rollup from the records of captured runs.",
    )
    rollup.add_argument("--run", help="only this run (default: all)")
    compact = actions.add_parser(
        "compact",
        help="put many small files into few large ones",
        description="Pack the segments of runs that nobody writes to any more; `gc` removes the small files later.",
    )
    compact.add_argument("--run", help="only this run (default: all)")
    compact.add_argument(
        "--quiet",
        type=hours,
        default=1.0,
        metavar="HOURS",
        help="since when nobody has written to the run (default: 1)",
    )
    for action in (listing, collect, compact, migrate, rollup):
        action.add_argument("store", metavar="DIR", help="local folder or URI of the store")
        action.add_argument("--store", action=_StoreIsNoOption, help=argparse.SUPPRESS)
        action.add_argument("--format", choices=("text", "json"), default="text")


WIDE = 120
"""Columns of a terminal that has room for everything about a run."""


class _StoreIsNoOption(argparse.Action):
    """Every other command has --store, so people type it here as well."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.error(f"the store goes without --store: `{parser.prog} DIR`")


def run(args: argparse.Namespace) -> int:
    """Run one sub-command."""
    from perfkit.store import Store

    actions = {"ls": _list, "gc": _collect, "compact": _compact, "migrate": _migrate, "rollup": _rollup}
    actions[args.action](Store(args.store), args)
    return 0


def _list(store: Store, args: argparse.Namespace) -> None:
    runs = store.runs()
    if args.format == "json":
        print(json.dumps({"schema_version": 1, "store": store.uri, "runs": [_as_json(run) for run in runs]}))
        return
    if not runs:
        print(f"no runs in {store.uri}; add one with `perfkit ingest TRACE --store {store.uri}`")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 200)
    table = Table(box=None, pad_edge=False, header_style="bold")
    names = ("cluster", "run", "attempt", "ranks", "tables", "events", "rows", "size", "start (UTC)", "span", "from")
    shown = [name for name in names if console.width >= WIDE or name not in ("tables", "events", "from")]
    for name in shown:
        words = name in ("cluster", "run", "from")
        left = words or name == "start (UTC)"
        table.add_column(name, justify="left" if left else "right", overflow="fold", no_wrap=not words)
    for run in runs:
        cells = dict(zip(names, _as_cells(run), strict=True))
        table.add_row(*(Text(escaped(cells[name])) for name in shown))  # Text: names are data, not markup
    console.print(table)
    if any(run.damaged for run in runs):
        for error in store.damaged():
            _say(error)


def _say(error: StoreError) -> None:
    say(str(error))


def _as_json(run: RunSummary) -> dict[str, Any]:
    return {
        "cluster": run.cluster,
        "run": run.run,
        "attempt": run.attempt,
        "ranks_present": len(run.ranks),
        "ranks": list(run.ranks),
        "world_size": run.world_size,
        "segments": run.segments,
        "tables": run.rows,
        "rows": sum(run.rows.values()),
        "bytes": run.bytes,
        "start_ns": run.start_ns,
        "end_ns": run.end_ns,
        "hosts": list(run.hosts),
        "sources": list(run.sources),
        "synthetic": run.synthetic,
        "schema_versions": list(run.schema_versions),
        "damaged": run.damaged,
    }


def _as_cells(run: RunSummary) -> list[str]:
    world = "?" if run.world_size is None else str(run.world_size)
    span = None if run.start_ns is None or run.end_ns is None else (run.end_ns - run.start_ns) / 1e9
    sources = ", ".join(run.sources) + (" (synthetic)" if run.synthetic else "")
    return [
        run.cluster,
        run.run,
        str(run.attempt),
        f"{len(run.ranks)}/{world}",
        str(len(run.rows)),
        f"{run.rows.get('events', 0):,}",
        f"{sum(run.rows.values()):,}",
        f"{run.bytes / 1e6:,.1f} MB",
        _utc(run.start_ns),
        "?" if span is None else f"{span:,.3f} s",
        sources.strip(),
    ]


def _utc(time_ns: int | None) -> str:
    import datetime

    if time_ns is None:
        return "?"
    if not 0 <= time_ns < 1 << 62:
        return f"{time_ns} ns"
    if time_ns < 10**17:  # before 1973: a clock that counts from boot, not a date
        return f"{time_ns / 1e9:,.3f} s (no epoch)"
    moment = datetime.datetime.fromtimestamp(time_ns // 10**9, datetime.timezone.utc)
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def _collect(store: Store, args: argparse.Namespace) -> None:
    from perfkit.store.retention import parse_duration_ns

    keep, traces = (None if age is None else parse_duration_ns(age) for age in (args.keep, args.keep_traces))
    expired = store.expire(keep_ns=keep, keep_traces_ns=traces, dry_run=not args.delete, on_damage=_say)
    orphans = store.gc(older_than_hours=args.older_than, dry_run=not args.delete)
    if args.format == "json":
        files = [{"path": o.path, "bytes": o.bytes, "age_hours": round(o.age_hours, 2)} for o in orphans]
        runs = [{"cluster": key.cluster, "run": key.run, "attempt": key.attempt} for key in expired.runs]
        document = {"schema_version": 1, "store": store.uri, "deleted": args.delete, "files": files, "runs": runs}
        document |= {"trimmed_segments": len(expired.segments), "trimmed_bytes": expired.trace_bytes}
        print(json.dumps(document))
        return
    done = "removed" if args.delete else "would be removed; add --delete"
    for key, commits in expired.runs.items():
        size = sum(file.bytes for commit in commits for file in commit.files) / 1e6
        print(f"run {escaped(str(key))}: {size:,.1f} MB {done}")
    if expired.segments:
        segments = plural(len(expired.segments), "segment")
        trimmed_runs = plural(len({commit.key for commit in expired.segments}), "run")
        print(f"events of {segments} of {trimmed_runs}: {expired.trace_bytes / 1e6:,.1f} MB {done}")
    for orphan in orphans:
        print(f"{orphan.bytes:>14,} B  {orphan.age_hours:>8.1f} h  {orphan.path}")
    size = sum(orphan.bytes for orphan in orphans) / 1e6
    if orphans:
        print(f"{plural(len(orphans), 'file')}, {size:,.1f} MB {done}")
    elif not (expired.runs or expired.segments):
        print("nothing to remove")


def _compact(store: Store, args: argparse.Namespace) -> None:
    packed = store.compact(run=args.run, quiet_hours=args.quiet, on_damage=_say)
    if args.format == "json":
        runs = [{**key._asdict(), **dataclasses.asdict(done)} for key, done in packed.items()]
        print(json.dumps({"schema_version": 1, "store": store.uri, "runs": runs}))
        return
    for key, done in packed.items():
        print(
            f"{escaped(str(key))}: {plural(done.segments, 'segment')} into {plural(done.packs, 'pack')}, "
            f"{plural(done.files_before, 'file')} into "
            f"{done.files_after:,}, {done.bytes_before / 1e6:,.1f} MB into {done.bytes_after / 1e6:,.1f} MB"
        )
    if not packed:
        print("nothing to pack")
        return
    print(
        "the small files stay a day for whoever reads them now: perfkit counts each row once, but until they are gone a"
    )
    print("glob such as events/**/*.parquet in another tool finds the packed rows twice")
    print(f"next: perfkit store gc {store.uri} --delete   (--older-than 0 at once, if nobody reads)")


def _migrate(store: Store, args: argparse.Namespace) -> None:
    changed = store.migrate(on_damage=_say)
    if args.format == "json":
        print(json.dumps({"schema_version": 1, "store": store.uri, "changed": changed}))
    else:
        print(
            f"rewrote {changed:,} of the store's segments and files"
            if changed
            else "nothing to do: the store is current"
        )


def _rollup(store: Store, args: argparse.Namespace) -> None:
    import time

    from perfkit.goodput.capture_rollup import write_rollups

    written = write_rollups(store, run=args.run, as_of_ns=time.time_ns())
    if args.format == "json":
        print(json.dumps({"schema_version": 1, "store": store.uri, "rows": written}))
    else:
        rows = ", ".join(f"{count:,} of {table}" for table, count in sorted(written.items()))
        print(f"wrote {rows}" if rows else "nothing to do: no captured run left steps or lifecycle records")
