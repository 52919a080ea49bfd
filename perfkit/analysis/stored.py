"""A run in a store, as the input of an analysis and as the place of its answer.

    find_run(store, "llama-8b")         -> RunSummary       also "cluster/llama-8b" and "cluster/llama-8b/2"
    plan_run(store, summary, ranks)     -> [StoredRank]     what a worker reads, one rank at a time
    read_rank(stored)                   -> TracePart
    write_report(report, store, key, …) -> bool             derived tables and what the run's row lacks

The id of an analysis is a hash of its inputs and its question: the same analysis replaces its own tables, another
one stands beside it. What capture or ingest wrote about a run is never overwritten, only completed.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.inputs import KEPT, TracePart
from perfkit.analysis.timeline import ints
from perfkit.errors import StoreError, UsageError
from perfkit.schema import TABLES, conform
from perfkit.store.filesystems import is_remote
from perfkit.store.layout import MARKER, RunKey

if TYPE_CHECKING:
    from perfkit.report.report import Report
    from perfkit.store.commits import Commit, RunSummary
    from perfkit.store.lake import Store

DERIVED = (
    "attribution", "idle", "gaps", "alignment", "collectives", "kernels", "stragglers", "blame_steps", "waterfall",
    "findings",
)  # fmt: skip
"""Tables of a report that a store keeps, in the order in which they are written."""


class NotKept(UserWarning):
    """The answer is right, and the store does not have it."""


@dataclass(frozen=True, slots=True)
class StoredRank:
    """One rank of a run in a store."""

    store: str
    key: RunKey
    rank: int
    size_bytes: int
    num_events: int
    world_size: int | None
    host: str | None
    synthetic: bool
    commits: tuple[Commit, ...] = ()
    """Its segments, so that a worker need not look through those of all ranks."""


def is_store(path: str | os.PathLike[str]) -> bool:
    """Say whether a folder or URI is a store."""
    if not is_remote(path):
        return (Path(path) / MARKER).is_file()
    from perfkit.store.lake import Store

    return Store(path).exists


def find_run(store: Store, name: str | None, *, cluster: str | None = None, attempt: int | None = None) -> RunSummary:
    """Return the run of that name, its last attempt unless one is named; without a name, the only run."""
    parts = (name or "").split("/")
    if len(parts) == 3 and parts[2].isdigit() and attempt is None:
        cluster, name, attempt = parts[0], parts[1], int(parts[2])
    elif len(parts) == 2 and cluster is None:
        cluster, name = parts
    known = store.runs()
    found = [
        run
        for run in known
        if (name is None or run.run == name)
        and cluster in (None, run.cluster)
        and attempt in (None, run.attempt)
        and (name is not None or run.rows.get("events"))
    ]
    if len({(run.cluster, run.run) for run in found}) == 1:
        return max(found, key=lambda run: run.attempt)
    problem = "several runs match" if found else f"no run {name!r}" if name else "no run with events"
    names = sorted({f"{run.cluster}/{run.run}" for run in found or known})
    near = difflib.get_close_matches(name or "", {run.run for run in known}) if not found else []
    if near:
        names = [one for one in names if one.partition("/")[2] in near]
    listed = ", ".join(names[:8]) + (f", … ({len(names)} in all)" if len(names) > 8 else "")
    raise UsageError(
        f"{problem} in {store.uri}; {'near it' if near else 'there are'} {listed or 'none'}",
        next_step=f"name one as CLUSTER/RUN, or a trace file that exists; `perfkit store ls {store.uri}` lists all",
    )


def plan_run(store: Store, summary: RunSummary, ranks: Collection[int] | None) -> list[StoredRank]:
    """Return the ranks that have events."""
    planned: dict[int, StoredRank] = {}
    by_rank: dict[int, list[Commit]] = {}
    committed = store.committed(*summary.key)
    for commit in committed:
        by_rank.setdefault(commit.rank, []).append(commit)
    for commit in committed:
        size = sum(file.bytes for file in commit.files)
        if not commit.rows.get("events") or (ranks is not None and commit.rank not in ranks):
            continue
        before = planned.get(commit.rank)
        planned[commit.rank] = StoredRank(
            store.uri, summary.key, commit.rank, size + (before.size_bytes if before else 0),
            commit.num_events + (before.num_events if before else 0), summary.world_size, commit.host,
            summary.synthetic, tuple(by_rank[commit.rank]),
        )  # fmt: skip
    return list(planned.values())


def read_rank(stored: StoredRank, kept: Mapping[str, Sequence[str]] = KEPT) -> TracePart:
    """Read the tables and columns in `kept` of one rank."""
    from perfkit.store.lake import Store

    store, key = Store(stored.store), stored.key
    tables: dict[str, pa.Table] = {}
    for name, columns in kept.items():
        if name == "steps":
            continue
        wanted = [c for c in TABLES[name].names if c in (*columns, "rank", "segment")]
        rows = store.read(name, cluster=key.cluster, run=key.run, attempt=key.attempt, columns=wanted,
                          commits=stored.commits)  # fmt: skip
        if len(rows) or name == "events":
            tables[name] = rows
    where = f"{key.cluster}/{key.run}"
    sources = tuple(sorted({commit.source for commit in stored.commits if commit.rows.get("events")}))
    return TracePart(
        where, tables, stored.world_size, stored.synthetic, stored.rank, stored.host, [], stored.num_events, sources
    )


def recorded_steps(store: Store, key: RunKey) -> pa.Table | None:
    """Return the steps that capture recorded; None if there are none."""
    commits = store.committed(*key) if store.exists else []
    if not any("steps" in commit.rows for commit in commits):
        return None
    rows = store.read("steps", cluster=key.cluster, run=key.run, attempt=key.attempt, commits=commits)
    return conform(TABLES["steps"], rows) if len(rows) else None


def unprofiled_step_ns(records: pa.Table) -> tuple[int, int] | None:
    """Return the median step time, from step end to step end, of steps that no profiler slowed, and their number."""
    if "profiled" not in records.column_names or records["profiled"].null_count == len(records):
        return None
    rank, step, end = (ints(records[c]) for c in ("rank", "step", "end_ns"))
    free = ~np.array(pc.fill_null(records["profiled"], True))
    order = np.lexsort((step, rank))
    rank, step, end, free = rank[order], step[order], end[order], free[order]
    follows = (rank[1:] == rank[:-1]) & (step[1:] == step[:-1] + 1) & free[1:] & free[:-1]
    times = np.diff(end)[follows]
    return (round(float(np.median(times))), len(times)) if len(times) else None


def job_facts(records: pa.Table | None, metadata: Mapping[str, Any], world_size: int | None) -> dict[str, Any]:
    """Return what capture knows about the job, as arguments of `Question`: FLOPs, the job's tokens, step time."""
    facts: dict[str, Any] = {}
    if metadata.get("flops_per_token"):
        facts["flops_per_token"] = float(metadata["flops_per_token"])
        facts["convention"] = metadata.get("convention")
    if records is None:
        return facts
    if (found := unprofiled_step_ns(records)) is not None:
        facts["step_time_ns"], facts["step_time_steps"] = found
    devices, tokens = metadata.get("devices_per_replica"), pc.mean(records["tokens"]).as_py()
    if devices and world_size and tokens:
        facts["tokens_per_step"] = float(tokens) * world_size / int(devices)
    return facts


def analysis_id(inputs: Iterable[str], question: Mapping[str, Any]) -> str:
    """Return the name of an analysis: the same for the same inputs and the same question."""
    document = json.dumps([sorted(inputs), sorted((k, str(v)) for k, v in question.items() if v is not None)])
    return "a" + hashlib.sha256(document.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def write_report(report: Report, store: Store, key: RunKey, *, id: str, model: Any = None, must: bool = True) -> bool:
    """Write the derived tables of a report, and what the run's row does not know yet; say whether that went well.

    Unless it `must`, a store that cannot be written is a warning: many may only read one, and have their answer.
    """
    facts = _facts(report, store, key, model)  # outside: what cannot be read is an error
    try:
        for name in DERIVED:
            if name in report.tables:
                store.write_derived(name, report.tables[name], *key, analysis_id=id)
        store.finalise(*key, metadata=facts)
    except StoreError as error:
        if must:
            raise
        warnings.warn(f"the answer is not kept in the store: {error.message}", NotKept, stacklevel=2)
        return False
    return True


def _facts(report: Report, store: Store, key: RunKey, model: Any) -> dict[str, Any]:
    runs = store.runs(cluster=key.cluster, run=key.run, attempt=key.attempt) if store.exists else []
    known: Mapping[str, Any] = next((run.metadata for run in runs), {})
    steps, scope = report.tables["steps"], report.summary["scope"]
    start, window = ints(steps["start_ns"]), ints(steps["window_ns"])
    devices: Sequence[str | None] = sorted({row["device"] for row in report.summary["ranks"] if row["device"]})
    facts = {
        "device": ", ".join(str(d) for d in devices) or report.summary["hardware"]["device"],
        "world_size": scope["world_size"],
        "model": model if isinstance(model, str) else getattr(model, "name", None),
        "synthetic": report.summary["synthetic"] or None,
        "start_ns": int(start.min()), "end_ns": int((start + window).max()),
    }  # fmt: skip
    return {name: value for name, value in facts.items() if value is not None and known.get(name) is None}
