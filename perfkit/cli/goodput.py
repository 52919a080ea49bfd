"""How much of the GPU time became training progress, and what ate the rest.

examples:
  perfkit goodput runs/                                     a store: all of its runs, summed
  perfkit goodput llama-8b --store runs/ --price 2.5        one run, in money as well
  perfkit goodput runs/ --by user                           cluster, user, node, day, run, model or partition
  perfkit goodput runs/ --by cluster --since 2025-12-01 --until 2026-01-01 --of-cluster atlas
  perfkit goodput sacct.txt pods.json --by partition        what schedulers know: GPU-hours, outcomes, queue, MTTF
  perfkit goodput sacct.txt --timezone Europe/Berlin --import-to runs/
  perfkit goodput --plan --gpus 16384 --mttf-hours 3.09 --save-seconds 30 --restart-seconds 600

PATH is a store, or a dump: sacct (any delimiter), scontrol show node|job, sinfo, a CSV of jobs (Philly),
`kubectl get jobs,pods -o json`, Prometheus text (dcgm-exporter, nvidia_gpu_exporter), nvidia-smi CSV; or a folder.
A record that cannot be used costs one line. docs/goodput.md says what the buckets mean.
"""

from __future__ import annotations

import argparse
import json
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("paths", nargs="*", metavar="PATH|RUN", help="a store, dumps, or with --store runs")
    parser.add_argument("--store", metavar="DIR", help="store in which RUN is looked up")
    parser.add_argument(
        "--by", choices=("cluster", "user", "node", "day", "run", "model", "partition"), help="break it down"
    )
    parser.add_argument(
        "--price", type=float, metavar="X", help="price of a GPU-hour; shows everything in money as well"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")
    part = parser.add_argument_group("a part of a store")
    part.add_argument("--since", metavar="TIME", help="hours that begin here or later, ISO 8601")
    part.add_argument("--until", metavar="TIME", help="hours that begin before, ISO 8601")
    part.add_argument("--of-cluster", action="append", default=[], metavar="C", help="only this cluster (repeatable)")
    dumps = parser.add_argument_group("dumps")
    dumps.add_argument("--cluster", default="imported", help="cluster of dumps that name none (default: imported)")
    dumps.add_argument(
        "--timezone", default="UTC", help="of times without a zone: schedulers print local time (default UTC)"
    )
    dumps.add_argument("--as-of", metavar="TIME", help="when a snapshot was taken, ISO 8601 (default: the file's time)")
    dumps.add_argument("--fields", help="column names of a table without a header: JobID,State,Start,End,…")
    dumps.add_argument("--import-to", metavar="DIR", help="write jobs, nodes and GPU days into this store")
    planning = parser.add_argument_group("planning")
    planning.add_argument("--plan", action="store_true", help="best checkpoint interval and expected ETTR")
    planning.add_argument("--mttf-hours", type=float, help="mean time between failures of the run")
    planning.add_argument("--gpus", type=int, help="GPUs of the run (8 per node), with --failures-per-1000-node-days")
    planning.add_argument("--gpus-per-node", type=int, default=8, help="default 8")
    planning.add_argument("--failures-per-1000-node-days", type=float, metavar="R", help="instead of --mttf-hours")
    planning.add_argument("--save-seconds", type=float, help="training stands still for this long at a checkpoint")
    planning.add_argument("--restart-seconds", type=float, help="from a failure to the first new step")
    planning.add_argument("--queue-seconds", type=float, default=0.0, help="wait for GPUs at each start (default 0)")
    planning.add_argument("--interval-seconds", type=float, help="your interval, to compare with")


def run(args: argparse.Namespace) -> int:
    """Answer, and print it."""
    document = _plan(args) if args.plan else _ask(args)
    if args.format == "json":
        print(json.dumps(document))
        return 0
    from perfkit.goodput.text import render, render_plan

    print("\n".join(render_plan(document)) if args.plan else render(document), end="" if not args.plan else "\n")
    return 0


def _ask(args: argparse.Namespace) -> dict[str, Any]:
    from perfkit.errors import UsageError
    from perfkit.goodput.importers import Assume
    from perfkit.goodput.importers.base import iso_ns
    from perfkit.goodput.question import Part, ask

    if not args.paths and args.store is None:
        raise UsageError("nothing to look at", next_step="name a store, a dump, or RUN --store DIR")
    times = {}
    for name, text in (("as-of", args.as_of), ("since", args.since), ("until", args.until)):
        times[name] = iso_ns(text)
        if text and times[name] is None:
            raise UsageError(f"--{name} {text!r} is no time", next_step="write it like 2025-03-01T12:00:00Z")
    part = Part(times["since"], times["until"], tuple(args.of_cluster))
    assume = Assume(
        cluster=args.cluster,
        timezone=args.timezone,
        as_of_ns=times["as-of"],
        fields=tuple(name.strip() for name in args.fields.split(",")) if args.fields else (),
    )
    return ask(
        args.paths, store=args.store, by=args.by, price=args.price, assume=assume, import_to=args.import_to, part=part
    )  # fmt: skip


def _plan(args: argparse.Namespace) -> dict[str, Any]:
    from perfkit.errors import UsageError
    from perfkit.goodput.planning import Risk, mttf_of_run, plan

    if args.save_seconds is None or args.restart_seconds is None:
        raise UsageError(
            "--plan needs --save-seconds and --restart-seconds",
            next_step="add them, for example `--save-seconds 30 --restart-seconds 600`",
        )
    if args.mttf_hours is not None:
        if not args.mttf_hours > 0:
            raise UsageError(
                f"--mttf-hours must be more than 0, is {args.mttf_hours:g}",
                next_step="`perfkit goodput STORE` shows the MTTF of runs that were recorded",
            )
        mttf_s = args.mttf_hours * 3600
    elif args.gpus and args.failures_per_1000_node_days:
        mttf_s = mttf_of_run(args.gpus / args.gpus_per_node, args.failures_per_1000_node_days)
    else:
        raise UsageError(
            "--plan needs --mttf-hours, or --gpus with --failures-per-1000-node-days",
            next_step="add one, for example `--mttf-hours 3.09` or `--gpus 16384 --failures-per-1000-node-days 6.5`",
        )
    risk = Risk(mttf_s=mttf_s, save_s=args.save_seconds, restart_s=args.restart_seconds, queue_s=args.queue_seconds)
    return plan(risk, current_interval_s=args.interval_seconds)
