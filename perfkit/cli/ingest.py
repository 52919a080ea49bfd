"""Turn trace dumps into parquet tables.

Reads torch.profiler / Kineto traces (.json, .gz, .zst, inside .tar and .zip), Nsight Systems exports (SQLite,
parquetdir), torchtitan's structured logs and Megatron's text logs, chosen by content, and the spool that a recorded
run left behind (its records belong to the run that they name). A bad file is reported and the others go on. Running
the same command again changes nothing, unless the store was damaged; after an interruption it goes on where it
stopped.

examples:
  perfkit ingest traces/ --store runs/
  perfkit ingest rank*.json.gz --store runs/ --cluster prod-a --run llama-8b
  perfkit ingest dump.tar.gz --store runs/ --format json | jq .rejected
  perfkit ingest s3://bucket/dump/ --store s3://bucket/perf --engine ray --address auto
  srun -n 64 perfkit ingest dump/ --store runs/ --shard auto      # then: perfkit analyze runs/

exit codes: 0 fine (also if some files were rejected), 2 if nothing could be ingested, 130 interrupted (Ctrl-C),
143 terminated
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

from perfkit.cli.arguments import attempt
from perfkit.cli.lean import leave_out_what_takes_long
from perfkit.cli.streams import escaped, say
from perfkit.engine import add_engine_arguments, open_engine
from perfkit.errors import UsageError

if TYPE_CHECKING:
    from perfkit.sources.ingest import IngestReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="trace file, folder or archive")
    parser.add_argument("--store", required=True, metavar="DIR", help="where the tables go (a folder or a URI)")
    parser.add_argument("--cluster", default="default", help="cluster that the run belongs to (default: %(default)s)")
    parser.add_argument("--run", help="name of the run (default: the name of the folder or file)")
    parser.add_argument("--attempt", type=attempt, default=0, help="restart count of the run (default: 0)")
    parser.add_argument("--keep-args", action="store_true", help="keep args without a column of their own as JSON text")
    parser.add_argument(
        "--replace",
        action="store_true",
        help="write anew what the store holds, and take files that have changed since in place of what they held",
    )
    parser.add_argument("--workers", type=int, help="processes to use (default: all CPUs)")
    add_engine_arguments(parser)
    parser.add_argument(
        "--shard",
        metavar="I/N",
        help="ingest only share I of N, counted from 0; auto: what Slurm, Kubernetes or MPI says that this process is",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="output format (default: text)")


def run(args: argparse.Namespace) -> int:
    """Ingest and print a summary."""
    leave_out_what_takes_long()
    from perfkit.engine.shards import parse_shard
    from perfkit.sources.ingest import ingest

    shard = parse_shard(args.shard, os.environ) if args.shard else None
    if shard and args.engine != "local":
        raise UsageError("--shard divides the work itself", next_step="leave out --engine, or --shard")
    show = _Bar() if sys.stderr.isatty() and args.format == "text" else None
    try:
        with open_engine(args.engine, address=args.address) as engine:
            report = ingest(
                args.paths,
                store=args.store,
                cluster=args.cluster,
                run=args.run,
                attempt=args.attempt,
                keep_args=args.keep_args,
                replace=args.replace,
                workers=args.workers,
                engine=engine,
                shard=shard,
                on_progress=show.update if show else None,
            )
    finally:
        if show:
            show.close()
    if args.format == "json":
        print(json.dumps(report.to_json(), indent=2))
    else:
        print(render(report))
    for error in report.rejected:
        say(str(error))
    if report.shard and not report.files and not report.rejected:
        return 0
    if not report.files and not report.rejected and report.spools:
        if args.format == "text":
            print(f"nothing left to ingest: all {len(report.spools)} ranks of the spool are in the store already")
        return 0
    if not report.files and not report.rejected:
        say(f"nothing to ingest under {', '.join(args.paths)}; name a trace file, a folder or an archive")
    return 0 if report.files else 2


def render(report: IngestReport) -> str:
    """Return the summary for a terminal."""
    new = [file for file in report.files if file.status == "ingested"]
    same = len(report.files) - len(new)
    lines = []
    if report.shard and not report.files:
        lines.append(f"shard {report.shard}: there is nothing for it; the others have all files")
    if new:
        speed = f", {report.bytes_read / 1e6 / report.seconds:,.0f} MB/s" if report.seconds else ""
        lines.append(
            f"ingested {_count(len(new), 'file')}, {_ranks(report)}, "
            f"{_count(sum(file.num_events for file in new), 'event')}: "
            f"{report.bytes_read / 1e6:,.1f} MB of trace in {report.seconds:.2f} s{speed}"
        )
    if same:
        lines.append(f"unchanged: {_count(same, 'file')} already in the store")
    if report.files:
        lines.append(f"store {report.store}: cluster {report.cluster}, run {report.run}, attempt {report.attempt}")
    if report.joined:
        lines.append(
            f"note: run {report.run} already held {report.joined}; if that is another job, give each a name with --run"
        )
    lines += _notes(report)
    if report.ignored:
        example = report.ignored[0]
        lines.append(f"ignored {_count(len(report.ignored), 'other file')}, such as {example.path}: {example.reason}")
    if rejected := len(report.rejected) - (report.full is not None):
        lines.append(f"rejected {_count(rejected, 'file')}; the reasons follow")
    if report.full:
        lines.append("the store is full: not everything was ingested")
    if report.files and report.shard:
        lines.append(
            f"shard {report.shard} is done; after the last one: perfkit analyze {report.run} --store {report.store}"
        )
    elif report.files:
        lines.append(f"next: perfkit store ls {report.store}")
    return "\n".join(map(escaped, lines))


_LOSSES = ("truncated", "invalid_json", "trailing_data", "duplicate_key", "missing_table", "lost_events")
"""Notes that every file gets a line of its own for: some of what it held is not in the store."""


def _notes(report: IngestReport) -> list[str]:
    """Return a line for each kind of oddity, with an example; and one for each file of which something is lost."""
    notes: dict[tuple[str, str], list[tuple[str, int, str]]] = {}
    for file in report.files:
        for note in file.notes:
            alone = file.path if note["kind"] in _LOSSES else ""
            notes.setdefault((note["kind"], alone), []).append((file.path, note["count"], note["detail"]))
    lines = []
    for (kind, _), cases in sorted(notes.items()):
        path, _, detail = cases[0]
        others = len({path for path, _, _ in cases}) - 1
        more = f" (and {_count(others, 'more file')})" if others else ""
        about = f"{path}: {detail}" if detail else path
        lines.append(f"note: {kind.replace('_', ' ')}, {sum(count for _, count, _ in cases):,}×: {about}{more}")
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _ranks(report: IngestReport) -> str:
    have = len(report.ranks)
    if report.world_size and have > report.world_size:  # several jobs under one path
        return f"{_count(have, 'rank')} although a job of {report.world_size} is named"
    return f"{have} of {report.world_size} ranks" if report.world_size else _count(have, "rank")


class _Bar:
    """A progress bar on stderr."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("ingest"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task("ingest", total=None)
        self._progress.start()

    def update(self, done: int, total: int) -> None:
        """Show `done` of `total` bytes."""
        self._progress.update(self._task, completed=done, total=total)

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()
