"""`perfkit goodput`: what was asked, and the one document that answers it.

    ask(["sacct.txt"], by="user", price=2.5)           dumps of schedulers and exporters
    ask(["runs/"])                                     a store: all of its runs
    ask(["llama-8b"], store="runs/")                   some runs of a store

A store answers from its roll-ups; a run without one is rolled up on the fly from its records, and nothing is written.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.stored import is_store
from perfkit.errors import PerfkitError, UsageError
from perfkit.goodput.capture_rollup import captured_runs, run_tables
from perfkit.goodput.importers import SUPPORTED, Assume, Dumps, import_dumps, without_supported
from perfkit.goodput.job_summary import summarize_jobs
from perfkit.goodput.ladder import ladder_b, top_terms
from perfkit.goodput.planning import Risk, plan
from perfkit.goodput.rollup import exact_sum
from perfkit.goodput.summary import GROUPS, HOUR, encode, measure, summarize_rollup
from perfkit.goodput.uptime import STATES, uptime
from perfkit.report.format import plural
from perfkit.schema import GOODPUT_BUCKETS, INTERRUPTIONS, JOB_NODES, RUN_ROLLUP
from perfkit.store import RunSummary, Store
from perfkit.store.filesystems import is_remote

SCHEMA_VERSION = 1
RUNS_SHOWN = 50


@dataclass(frozen=True)
class Part:
    """A part of a store: hours that begin in [since, until), of some clusters; None is all."""

    since_ns: int | None = None
    until_ns: int | None = None
    clusters: tuple[str, ...] = ()

    def of(self, table: pa.Table, time: str = "start_ns") -> pa.Table:
        """Return the rows that belong to it."""
        if self.since_ns is not None:
            table = table.filter(pc.greater_equal(table[time], self.since_ns))
        if self.until_ns is not None:
            table = table.filter(pc.less(table[time], self.until_ns))
        if self.clusters:
            table = table.filter(pc.is_in(table["cluster"].cast(pa.utf8()), pa.array(self.clusters)))
        return table


def ask(
    paths: Sequence[str],
    *,
    store: str | None = None,
    by: str | None = None,
    price: float | None = None,
    assume: Assume | None = None,
    import_to: str | None = None,
    part: Part | None = None,
) -> dict[str, Any]:
    """Answer with one document; see docs/goodput.md for its keys. `part` cuts what a store holds."""
    if by is not None and by not in GROUPS:
        raise UsageError(f"--by {by!r} is none of {', '.join(GROUPS)}")
    if store is not None:
        return _of_store(Store(store), list(paths), by, price, assume, part or Part())
    stores = [path for path in paths if is_store(path)]
    if stores:
        if len(paths) > 1:
            raise UsageError(
                "name one store, and its runs with --store", next_step=f"perfkit goodput RUN --store {stores[0]}"
            )
        return _of_store(Store(stores[0]), [], by, price, assume, part or Part())
    if part is not None and part != Part():
        raise UsageError("--since, --until and --of-cluster cut what a store holds", next_step="name a store")
    if remote := [path for path in paths if is_remote(path)]:
        raise UsageError(
            f"no store at {remote[0]}", next_step="check the URI; a dump is read from a local file, so copy it here"
        )
    missing = [path for path in paths if not Path(path).exists()]
    if missing:
        raise UsageError(f"{missing[0]}: no such file", next_step="for a run in a store add --store DIR")
    return _of_dumps(import_dumps(paths, assume), by, price, assume or Assume(), import_to)


# ------------------------------------------------------------------ a store


def _of_store(
    store: Store, names: list[str], by: str | None, price: float | None, assume: Assume | None, part: Part
) -> dict[str, Any]:
    as_of = assume.as_of_ns if assume else None
    notes: list[str] = []
    rollup, stops, nodes = _read_fleet(store, names, as_of, notes)
    rollup, stops, nodes = part.of(rollup), part.of(stops, "time_ns"), part.of(nodes)
    if not len(rollup) and part != Part():
        raise PerfkitError(f"{store.uri} has no records of training there", next_step="choose other times or clusters")
    if not len(rollup):
        jobs = store.read("jobs")
        if len(jobs) and not names:
            document = summarize_jobs(jobs, by=by, price=price, as_of_ns=as_of)
            return {
                "schema_version": SCHEMA_VERSION,
                "synthetic": _any(jobs),
                "price_per_gpu_hour": price,
                "by": by,
                **document,
            }
        raise PerfkitError(
            f"{store.uri} has no records of training",
            next_step="capture a run, or import a scheduler's dump with --import-to",
        )
    if by == "partition":
        raise UsageError("records of training do not know partitions", next_step="--by cluster, user or node")
    document = summarize_rollup(rollup, stops, by=by, price=price, job_nodes=nodes)
    clusters = part.of(store.read("cluster_rollup")) if not names else None
    runs = _runs(rollup)
    return {
        "schema_version": SCHEMA_VERSION,
        "synthetic": _any(rollup),
        "price_per_gpu_hour": price,
        "by": by,
        "scope": _scope(rollup, runs),
        "notes": notes,
        **document,
        "uptime": _uptime(clusters),
        "runs": runs[:RUNS_SHOWN],
        "runs_left_off": max(0, len(runs) - RUNS_SHOWN),
        "waterfall": _ladder(store, document["totals"], names),
        "plan": _plan(document["totals"], stops, rollup) if len(runs) == 1 else None,
    }


def _read_fleet(
    store: Store, names: list[str], as_of: int | None, notes: list[str]
) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Roll-ups of the runs, from the store where it has them and from their records where not."""
    tables = {name: store.read(name) for name in ("run_rollup", "interruptions", "job_nodes")}
    known_runs = _known(tables["run_rollup"])
    captured = captured_runs(store)
    old = _stale(known_runs, captured)
    have = set(known_runs) - old
    wanted = None if not names else {key for key in have | set(captured) if key[1] in names or "/".join(key) in names}
    if names:
        known = {name for key in wanted or () for name in (key[1], "/".join(key))}
        if lost := [name for name in names if name not in known]:
            there = sorted({run for _, run in have | set(captured)})
            shown = ", ".join(there[:8]) + (f", … ({len(there)} in all)" if len(there) > 8 else "")
            near = difflib.get_close_matches(lost[0].rpartition("/")[2], there)
            raise UsageError(
                f"no records of a run {lost[0]!r} in {store.uri}; there are {', '.join(near) or shown or 'none'}",
                next_step=f"`perfkit goodput {store.uri} --by run` shows all" if there else "capture a run first",
            )
        for name, table in tables.items():
            tables[name] = _only(table, names)
    parts: dict[str, list[pa.Table]] = {name: [_without(table, old)] for name, table in tables.items()}
    for key, attempts in captured.items():
        if key not in have and (wanted is None or key in wanted):
            for name, table in run_tables(store, attempts, as_of_ns=as_of or time.time_ns(), notes=notes).items():
                if name in parts:
                    parts[name].append(table)
    schemas = {"run_rollup": RUN_ROLLUP, "interruptions": INTERRUPTIONS, "job_nodes": JOB_NODES}
    joined = {
        name: pa.concat_tables([t.select(schemas[name].names) for t in some]).unify_dictionaries()
        for name, some in parts.items()
    }
    return joined["run_rollup"], joined["interruptions"], joined["job_nodes"]


def _known(rollup: pa.Table) -> dict[tuple[str, str], tuple[str | None, int]]:
    """State and last attempt of every run that has a roll-up."""
    plain = pa.table({name: rollup[name].cast(pa.utf8()) for name in ("cluster", "run", "state")})
    plain = plain.append_column("attempt", pc.fill_null(rollup["attempt"], 0))
    wanted = [("state", "last"), ("attempt", "max")]
    rows = plain.group_by(["cluster", "run"], use_threads=False).aggregate(wanted).to_pylist()
    return {(row["cluster"], row["run"]): (row["state_last"], row["attempt_max"]) for row in rows}


def _stale(
    known: Mapping[tuple[str, str], tuple[str | None, int]], captured: Mapping[tuple[str, str], Sequence[RunSummary]]
) -> set[tuple[str, str]]:
    """Return the runs whose roll-up may be older than their records: not over when written, or with a new attempt."""
    return {
        key
        for key, attempts in captured.items()
        if key in known and any(one.sources != ("simulator",) for one in attempts)
        and (known[key][0] not in ("ended", "failed") or max(one.attempt for one in attempts) > known[key][1])
    }  # fmt: skip


def _without(table: pa.Table, runs: set[tuple[str, str]]) -> pa.Table:
    if not runs:
        return table
    full = pc.binary_join_element_wise(table["cluster"].cast(pa.utf8()), table["run"].cast(pa.utf8()), "\x1f")
    return table.filter(pc.invert(pc.is_in(full, pa.array(["\x1f".join(key) for key in runs]))))


def _only(table: pa.Table, names: list[str]) -> pa.Table:
    run = table["run"].cast(pa.utf8())
    full = pc.binary_join_element_wise(table["cluster"].cast(pa.utf8()), run, "/")
    chosen = pa.array(names)
    return table.filter(pc.or_(pc.is_in(run, chosen), pc.is_in(full, chosen)))


def _scope(rollup: pa.Table, runs: list[dict[str, Any]]) -> dict[str, Any]:
    states: dict[str, int] = {}
    for run in runs:
        states[run["state"]] = states.get(run["state"], 0) + 1
    return {
        "runs": len(runs),
        "clusters": sorted(c for c in pc.unique(rollup["cluster"]).to_pylist() if c),
        "states": states,
        "start_ns": pc.min(rollup["start_ns"]).as_py(),
        "end_ns": pc.max(rollup["end_ns"]).as_py(),
    }


def _runs(rollup: pa.Table) -> list[dict[str, Any]]:
    """One row per run, the largest first."""
    joined = pc.binary_join_element_wise(rollup["cluster"].cast(pa.utf8()), rollup["run"].cast(pa.utf8()), "\x1f")
    codes, keys = encode(joined)
    rows = measure(rollup, codes, len(keys), None)
    last: dict[int, int] = {}
    for i, code in enumerate(codes.tolist()):
        last[code] = i
    facts = rollup.select(["name", "user", "model", "state", "gpus", "attempt"])
    result = []
    for code, row in enumerate(rows):
        cluster, run = keys[code].split("\x1f")
        known = facts.slice(last[code], 1).to_pylist()[0]
        result.append(
            {
                "cluster": cluster, "run": run, "name": known["name"], "user": known["user"], "model": known["model"],
                "state": known["state"], "gpus": known["gpus"], "attempts": (known["attempt"] or 0) + 1,
                **{k: row[k] for k in ("allocated_gpu_hours", "goodput", "ettr", "mfu", "effective_mfu", "restarts")},
            }
        )  # fmt: skip
    return sorted(result, key=lambda r: (-r["allocated_gpu_hours"], r["run"]))


def _uptime(clusters: pa.Table | None) -> list[dict[str, Any]] | None:
    if clusters is None or not len(clusters):
        return None
    result = []
    for name in sorted(pc.unique(clusters["cluster"]).to_pylist()):
        mine = clusters.filter(pc.equal(clusters["cluster"], name))
        hours = {f"{s}_gpu_hours": exact_sum(mine[f"{s}_ns"]) / HOUR for s in (*STATES, "installed")}
        idle = mine["idle_ns"]
        hours["idle_gpu_hours"] = None if idle.null_count == len(idle) else exact_sum(idle) / HOUR  # type: ignore[assignment]
        result.append({"cluster": name, "uptime": uptime(mine), **hours})
    return result


def _ladder(store: Store, totals: dict[str, Any], names: list[str]) -> list[dict[str, Any]]:
    ladder_a: list[dict[str, Any]] = []
    if len(names) == 1:
        try:
            ladder_a = top_terms(store.read("waterfall", run=names[0].rpartition("/")[2]))
        except PerfkitError:
            ladder_a = []
    buckets = {name: totals["buckets"][name]["ns"] for name in GOODPUT_BUCKETS}
    rows = ladder_b(buckets, totals["effective_mfu"], ladder_a)
    return [
        {
            "term": r["term"],
            "points": r["points"],
            "ns": r["gpu_ns"],
            "gpu_hours": r["gpu_ns"] / HOUR,
            "parent": r["parent"],
            "measured": r["measured"],
        }
        for r in rows
    ]


def _plan(totals: dict[str, Any], stops: pa.Table, rollup: pa.Table) -> dict[str, Any] | None:
    """Return what the run's own failures say about its checkpoint interval; null without failures and saves."""
    saves = totals["buckets"]["checkpoint"]["ns"]
    if not totals["failures"] or totals["mttr_hours"] is None or not saves or totals["mttf_hours"] is None:
        return None
    lost = [row for row in stops["lost_ns"].to_pylist() if row]
    gpus = max((g for g in rollup["gpus"].to_pylist() if g), default=1)
    if not lost:
        return None
    interval_s = 2 * sum(lost) / len(lost) / gpus / 1e9  # on average half an interval is lost
    work_s = (totals["allocated_ns"] - saves) / gpus / 1e9
    save_s = saves / gpus / 1e9 / max(work_s / interval_s, 1)
    risk = Risk(mttf_s=totals["mttf_hours"] * 3600, save_s=save_s, restart_s=totals["mttr_hours"] * 3600)
    return plan(risk, current_interval_s=interval_s)


def _any(table: pa.Table) -> bool:
    return bool(pc.any(table["synthetic"]).as_py())


# ------------------------------------------------------------------ dumps


def _of_dumps(
    dumps: Dumps, by: str | None, price: float | None, assume: Assume, import_to: str | None
) -> dict[str, Any]:
    quality = {
        "files": [
            {"path": one.path, "kind": one.kind, "rows": {name: len(t) for name, t in one.tables.items()},
             "left_out": dict(one.counts), "bad_records": [{"line": n, "why": why} for n, why in one.bad],
             "assumed": one.assumed}
            for one in dumps.imported
        ],
        "rejected": dumps.rejected,
        "duplicates": dumps.duplicates,
    }  # fmt: skip
    if not dumps.imported:
        raise PerfkitError(
            f"nothing to import: {_why_rejected(dumps.rejected) or 'no files there'}",
            next_step=f"name a store, or a dump of a scheduler; {SUPPORTED}",
        )
    document: dict[str, Any] = {"source": "jobs", "totals": None}
    jobs = dumps.tables.get("jobs")
    if jobs is not None:
        document = summarize_jobs(jobs, by=by, price=price, as_of_ns=assume.as_of_ns)
    nodes = dumps.tables.get("nodes")
    inventory = None if nodes is None or not len(nodes) else _inventory(nodes)
    if import_to is not None:
        from perfkit.goodput.importers.writing import write_dumps

        quality["written"] = write_dumps(dumps, Store(import_to), cluster=assume.cluster)
    return {
        "schema_version": SCHEMA_VERSION,
        "synthetic": False,
        "price_per_gpu_hour": price,
        "by": by,
        "quality": quality,
        **document,
        "inventory": inventory,
        "counters": len(dumps.tables["counters"]) if "counters" in dumps.tables else 0,
    }


def _why_rejected(rejected: Sequence[Mapping[str, str]], limit: int = 3) -> str:
    """Name one file for each reason: a folder holds many files of a kind."""
    paths: dict[str, list[str]] = {}
    for one in rejected:
        paths.setdefault(without_supported(one["reason"]), []).append(one["path"])
    shown = [
        f"{own[0]}{f' and {len(own) - 1:,} more' if len(own) > 1 else ''}: {reason}"
        for reason, own in list(paths.items())[:limit]
    ]
    left = sum(len(own) for own in list(paths.values())[limit:])
    return "; ".join([*shown, f"and {plural(left, 'other file')}"] if left else shown)


def _inventory(nodes: pa.Table) -> dict[str, Any]:
    """Count nodes and GPUs by state; a node of which nobody says how many GPUs it has is counted as a node alone."""
    states: dict[str, dict[str, int]] = {s: {"nodes": 0, "gpus": 0} for s in STATES}
    for row in nodes.select(["state", "gpus"]).to_pylist():
        states[row["state"] or "unknown"]["nodes"] += 1
        states[row["state"] or "unknown"]["gpus"] += row["gpus"] or 0
    total = sum(s["gpus"] for s in states.values())
    known = total - states["unknown"]["gpus"]
    silent = nodes["gpus"].null_count
    return {
        "nodes": len(nodes),
        "gpus": total if silent < len(nodes) else None,
        "nodes_without_gpu_count": silent,
        "states": states,
        "up_share": states["up"]["gpus"] / known if known else None,
    }
