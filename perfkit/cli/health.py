"""Check this node, or find the weak nodes of a fleet.

Without --store it looks at this machine: GPUs (XID, ECC, remapped rows, throttling, NVLink, a lost GPU, a driver that
hangs), disk, clock, kernel log, and with --sniff a short burst of work against the node's own history. With --store it
reads the fleet tables: lemons, GPUs that run hot or throttle, XIDs that come back; with --run as well it joins what
happened on the run's nodes (XIDs, clocks held down by heat) to the steps that were slow meanwhile.

It only advises: the drain command is printed, and run only with --apply. Exit code: 0 healthy, 1 warning, 3 fault.

examples:
  perfkit health --expect-gpus 8
  perfkit health --sniff --format json
  perfkit health --store runs/
  perfkit health --store runs/ --run llama-8b
  perfkit health --snippet slurm          # for HealthCheckProgram in slurm.conf
  perfkit health --snippet kubernetes     # a probe for a DaemonSet
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfkit.goodput.checks import Check
    from perfkit.goodput.health_fleet import FleetFinding
    from perfkit.goodput.health_run import RunHealth

SNIPPETS = {
    "slurm": """#!/bin/bash
# slurm.conf: HealthCheckProgram=/etc/slurm/perfkit-health.sh  HealthCheckInterval=300  HealthCheckNodeState=ANY
# Drains the node on a fault only; warnings are left to people.
perfkit health --expect-gpus 8 --apply >/var/log/perfkit-health.log 2>&1
exit 0
""",
    "kubernetes": """# container of a DaemonSet: not ready on a fault (exit code 3), ready with warnings
readinessProbe:
  exec:
    command: ["/bin/sh", "-c", "perfkit health --expect-gpus 8; test $? -ne 3"]
  periodSeconds: 300
  timeoutSeconds: 60
  failureThreshold: 1
""",
}
EVENTS_SHOWN = 20
MARKS = {"ok": "ok     ", "unknown": "?      ", "warning": "warning", "fault": "FAULT  "}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--store", metavar="DIR", help="look at the fleet in this store instead of this node")
    parser.add_argument("--cluster", help="with --store: only this cluster")
    parser.add_argument(
        "--run", metavar="RUN", help="with --store: events on this run's nodes, and the steps they slowed"
    )
    parser.add_argument("--expect-gpus", type=int, metavar="N", help="a fault if this node has another number")
    parser.add_argument("--path", type=Path, action="append", metavar="DIR", help="file system to check (repeatable)")
    parser.add_argument("--sniff", action="store_true", help="run a short burst of work and compare with the past")
    parser.add_argument("--history", type=Path, metavar="FILE", help="where --sniff keeps its results")
    parser.add_argument("--seconds", type=float, default=0.5, help="of work per kind for --sniff (default: 0.5)")
    parser.add_argument("--apply", action="store_true", help="on a fault, run the drain command")
    parser.add_argument("--snippet", choices=sorted(SNIPPETS), help="print a ready-made configuration and end")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    """Check and advise."""
    if args.snippet:
        print(SNIPPETS[args.snippet], end="")
        return 0
    if args.run and not args.store:
        from perfkit.errors import UsageError

        raise UsageError(
            "--run needs the store that it is in", next_step=f"perfkit health --store DIR --run {args.run}"
        )
    if args.run:
        return _run(args)
    return _fleet(args) if args.store else _node(args)


def _node(args: argparse.Namespace) -> int:
    from perfkit.goodput.checks import EXIT_CODES, worst
    from perfkit.goodput.health_node import NodeOptions, check_node
    from perfkit.goodput.sniff import default_history, sniff

    paths = tuple(args.path) if args.path else NodeOptions().paths
    checks = check_node(NodeOptions(expect_gpus=args.expect_gpus, paths=paths))
    if args.sniff:
        checks += sniff(args.history or default_history(), seconds=args.seconds)
    verdict = worst(checks)
    faults = [check for check in checks if check.severity == "fault"]
    command = drain_command(faults) if faults else None
    if args.format == "json":
        about = {"schema_version": 1, "host": socket.gethostname(), "severity": verdict, "drain_command": command}
        print(json.dumps(about | {"checks": [check.as_json() for check in checks]}))
    else:
        _print_checks(checks, verdict, command, apply=args.apply)
    if command and args.apply:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"perfkit: {' '.join(command)} failed: {done.stderr.strip()}", file=sys.stderr)
    return EXIT_CODES[verdict]


def _print_checks(checks: list[Check], verdict: str, command: list[str] | None, *, apply: bool) -> None:
    print(f"{socket.gethostname()}: {verdict}")
    for check in checks:
        who = f"GPU {check.device} " if check.device is not None else ""
        print(f"  {MARKS[check.severity]}  {who}{check.name}: {check.detail}")
        if check.next:
            print(f"           next: {check.next}")
    if command:
        import shlex

        print(f"{'draining' if apply else 'to drain it'}: {shlex.join(command)}")


def drain_command(faults: list[Check]) -> list[str] | None:
    """Return the command that takes this node out of the scheduler that is here."""
    reason = "perfkit: " + "; ".join(f"{check.name} ({check.detail})" for check in faults)
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]
    if shutil.which("scontrol"):
        return ["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason[:200]}"]
    if shutil.which("kubectl"):
        return ["kubectl", "cordon", os.environ.get("NODE_NAME", node)]
    return None


def _fleet(args: argparse.Namespace) -> int:
    import pyarrow.compute as pc

    from perfkit.goodput.checks import EXIT_CODES
    from perfkit.goodput.health_fleet import check_fleet
    from perfkit.store import Store

    store = Store(args.store)
    tables = [store.read(name) for name in ("job_nodes", "gpu_rollup", "health_events")]
    if args.cluster:
        tables = [table.filter(pc.equal(table["cluster"], args.cluster)) for table in tables]
    findings = check_fleet(*tables)
    synthetic = any("synthetic" in table.column_names and pc.any(table["synthetic"]).as_py() for table in tables)
    verdict = max((f.severity for f in findings), key=("ok", "warning", "fault").index, default="ok")
    if args.format == "json":
        rows = {"job_nodes": tables[0].num_rows, "gpu_rollup": tables[1].num_rows, "health_events": tables[2].num_rows}
        about = {
            "schema_version": 1, "store": store.uri, "synthetic": synthetic, "severity": verdict, "rows": rows,
        }  # fmt: skip
        print(json.dumps(about | {"findings": [finding.as_json() for finding in findings]}))
    else:
        if synthetic:
            print("SYNTHETIC: of a simulated fleet")
        _print_fleet(findings, sum(table.num_rows for table in tables), store.uri)
    return EXIT_CODES[verdict]


def _print_fleet(findings: list[FleetFinding], rows: int, uri: str) -> None:
    if not rows:
        print(f"{uri} holds no fleet tables; fill them with `perfkit goodput SACCT_DUMP --store {uri}`")
        return
    if not findings:
        print("no node stands out")
        return
    for finding in findings:
        where = f"{finding.cluster}/{finding.node}" + (f" GPU {finding.device}" if finding.device is not None else "")
        print(f"{MARKS[finding.severity]}  {where}  {finding.kind}: {finding.detail}")


def _run(args: argparse.Namespace) -> int:
    from perfkit.goodput.checks import EXIT_CODES
    from perfkit.goodput.health_run import check_run
    from perfkit.store import Store

    store = Store(args.store)
    health = check_run(store, args.run, cluster=args.cluster)
    if args.format == "json":
        print(json.dumps({"schema_version": 1, "store": store.uri} | health.as_json()))
    else:
        _print_run(health)
    return EXIT_CODES[health.severity]


def _print_run(health: RunHealth) -> None:
    from perfkit.report.format import clean, plural

    if health.synthetic:
        print("SYNTHETIC DATA")
    told = plural(len(health.events), "event")
    print(f"{health.cluster}/{health.run}: {told} on its nodes, {plural(health.steps, 'step')} on record")
    for note in health.notes:
        print(f"note: {note}")
    for event in health.events[:EVENTS_SHOWN]:
        when = datetime.fromtimestamp(event.time_ns / 1e9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
        what = f"XID {event.code}" if event.kind == "xid" else f"{event.kind} {event.detail or ''}".strip()
        where = event.node + (f" GPU {event.device}" if event.device is not None else "")
        lasted = "" if event.end_ns is None else f" for {(event.end_ns - event.time_ns) / 1e9:,.1f} s"
        cost = "no slow step meanwhile"
        if event.steps_slowed:
            span = f"{event.first_step}" if event.steps_slowed == 1 else f"{event.first_step}–{event.last_step}"
            cost = (
                f"{plural(event.steps_slowed, 'slow step')} ({span}), {event.excess_ns / 1e9:,.1f} s beyond the median"
            )
        print(f"  {when}Z  {clean(where)}  {clean(what)}{lasted}: {cost}")
    if len(health.events) > EVENTS_SHOWN:
        print(f"… and {len(health.events) - EVENTS_SHOWN:,} more; --format json lists all")
