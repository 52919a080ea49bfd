"""Join the parts of all ranks into one value with the shape of `perfkit analyze --format json`.

    summarize(parts, ...) -> dict       numbers are int ns; ratios are ratios of sums; unknown is None

carry_in rows are kept in the `attribution` table and stay outside every sum here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.idle import CAUSES
from perfkit.analysis.rank import RankPart
from perfkit.analysis.slow import slow_steps
from perfkit.analysis.throughput import throughput

if TYPE_CHECKING:
    from perfkit.analysis.job_results import JobResults

MAX_STEPS, MAX_CULPRITS, MAX_KERNELS = 1_000, 50, 300
"""Rows in the JSON; the tables hold all."""
PARTS = ("window_ns", "compute_ns", "exposed_comm_ns", "exposed_memcpy_ns", "idle_ns")
_SUMS = (*PARTS, "comm_ns", "overlap_ns")


def steps_table(attribution: pa.Table) -> pa.Table:
    """Return the rows of `attribution` that count, with what makes a step slow."""
    slow, excess = slow_steps(attribution)
    table = attribution.append_column("slow", pa.array(slow)).append_column("excess_ns", pa.array(excess))
    return table.filter(pc.invert(table["carry_in"])).drop_columns(["carry_in"])


def ranks_table(steps: pa.Table, infos: Mapping[int, Mapping[str, Any]]) -> pa.Table:
    """Return totals per rank."""
    table = steps.group_by("rank", use_threads=False).aggregate([(name, "sum") for name in _SUMS])
    table = table.rename_columns([name.removesuffix("_sum") for name in table.column_names]).sort_by("rank")
    ranks = table["rank"].to_pylist()
    overlap = [_ratio(o, c) for o, c in zip(table["overlap_ns"].to_pylist(), table["comm_ns"].to_pylist(), strict=True)]
    for name in ("device", "host"):
        table = table.add_column(1, name, pa.array([infos.get(r, {}).get(name) for r in ranks], pa.utf8()))
    return table.append_column("overlap", pa.array(overlap, pa.float64()))


def summarize(
    parts: Sequence[RankPart],
    steps: pa.Table,
    ranks: pa.Table,
    *,
    rejected: Sequence[Mapping[str, str]] = (),
    world_size: int | None = None,
    synthetic: bool = False,
    tokens_per_step: float | None = None,
    num_devices: int | None = None,
    hfu: Mapping[int, float | None] | None = None,
    job: JobResults | None = None,
) -> dict[str, Any]:
    """Return the JSON value; `analyze` adds hardware, MFU, kernels, waterfall and findings."""
    by_rank = job.by_rank() if job is not None else {}
    number = len(set(zip(steps["rank"].to_pylist(), steps["step"].to_pylist(), strict=True)))
    return {
        "schema_version": 1,
        "synthetic": synthetic,
        "scope": {"ranks_traced": len(ranks), "world_size": world_size, "steps": _scope(steps)},
        "quality": quality(parts, rejected, number, job),
        "throughput": throughput(steps, tokens_per_step=tokens_per_step, num_devices=num_devices),
        "totals": _totals(steps),
        "idle": idle_summary(pa.concat_tables([p.idle for p in parts])),
        "io": io_summary(pa.concat_tables([p.io for p in parts])),
        "memory": memory_summary([p.memory for p in parts if p.memory is not None]),
        "steps": steps.slice(0, MAX_STEPS).rename_columns({"device": "device_index"}).to_pylist(),
        "ranks": [
            {
                **row,
                "role": None,
                "hfu": (hfu or {}).get(row["rank"]),
                "straggler_score": None,
                "wait_caused_ns": None,
                **by_rank.get(row["rank"], {}),
            }
            for row in ranks.drop_columns(["overlap_ns"]).to_pylist()
        ],
    }


def _job_notes(job: JobResults | None) -> list[str]:
    """Return what is doubtful about the job: one rank alone has nothing to compare."""
    if job is None or not job.view.several:
        return []
    view = job.view
    matched = len(view.calls) - view.unmatched - view.alone
    notes = [f"{matched:,} of {len(view.calls):,} collective calls matched across ranks"] if len(view.calls) else []
    return [*(notes if view.unmatched else []), *view.notes]


def quality(
    parts: Sequence[RankPart], rejected: Sequence[Mapping[str, str]], steps_kept: int, job: JobResults | None = None
) -> dict[str, Any]:
    """Return the header that opens every report: what is missing, and what was left out."""
    found = [p.quality for p in parts]
    attribution = pa.concat_tables([p.attribution for p in parts])
    early = attribution.filter(attribution["carry_in"])
    kept = attribution.filter(pc.invert(attribution["carry_in"]))
    has_device = any(q.device_events for q in found)
    return {
        "ranks": sorted({p.rank for p in parts}),
        "steps_kept": steps_kept,
        "steps_source": " + ".join(dict.fromkeys(q.steps_source for q in found)),
        "sources": sorted({source for q in found for source in q.sources if source}),
        "steps_without_work": sum(q.steps_without_work for q in found),
        "events": sum(q.events for q in found),
        "undated_events": sum(q.undated for q in found),
        "rejected": [dict(r) for r in rejected],
        "clock": {"aligned": False, "uncertainty_ns": None} if job is None else job.clock(),
        "unknown_kernel_ns": _sum(kept, "unknown_ns") if has_device else None,
        "carry_in_ns": _sum(early, "window_ns") - _sum(early, "idle_ns"),
        "after_last_ns": sum(q.after_ns for q in found),
        "spill_ns": pc.sum(kept["spill_ns"]).as_py(),
        "graph_coverage": _ratio(sum(q.graph_ns for q in found), sum(q.work_ns for q in found)),
        "device_events": sum(q.device_events for q in found),
        "launches_missing": sum(q.launches_missing for q in found) if has_device else None,
        "notes": [note for q in found for note in q.notes] + _job_notes(job),
    }


def idle_summary(idle: pa.Table) -> dict[str, Any]:
    """Return idle time by cause, and the host's culprits, largest first."""
    cause = idle["cause"].cast(pa.utf8())
    result: dict[str, Any] = {f"{c}_ns": _sum(idle.filter(pc.equal(cause, c)), "idle_ns") for c in CAUSES}
    late = idle.filter(pc.equal(cause, "host_late"))
    late = pa.table(
        {"kind": late["culprit"].cast(pa.utf8()), "where": late["where"].cast(pa.utf8()), "ns": late["idle_ns"]}
    )
    table = late.group_by(["kind", "where"], use_threads=False).aggregate([("ns", "sum")])
    rows = table.rename_columns(["kind", "where", "ns"]).sort_by([("ns", "descending")]).to_pylist()
    by_kind = late.group_by("kind", use_threads=False).aggregate([("ns", "sum")]).sort_by([("ns_sum", "descending")])
    result["culprit_kinds"] = [{"kind": r["kind"], "ns": r["ns_sum"]} for r in by_kind.to_pylist()]
    result["culprits"] = rows[:MAX_CULPRITS]
    return result


def io_summary(io: pa.Table) -> dict[str, Any]:
    """Return waits for data, checkpoints, and copies by direction."""
    rows: dict[str, dict[str, Any]] = {}
    for row in io.to_pylist():
        total = rows.setdefault(row["kind"], {})
        for name, value in row.items():
            if isinstance(value, int) and name not in ("rank", "device"):
                total[name] = total.get(name, 0) + value
    data, checkpoint = rows.get("data", {}), rows.get("checkpoint", {})
    result = {
        "data_wait_ns": data.get("exposed_ns"), "data_loader_host_ns": data.get("host_ns"),
        "checkpoint_ns": checkpoint.get("host_ns"), "checkpoint_exposed_ns": checkpoint.get("exposed_ns"),
    }  # fmt: skip
    for kind in dict.fromkeys(["h2d", "d2h", "d2d", "p2p", *(k for k in rows if k not in ("data", "checkpoint"))]):
        row = rows.get(kind, {})
        result[f"{kind}_exposed_ns"] = row.get("exposed_ns")
        result[f"{kind}_gbps"] = _ratio(row.get("bytes"), row.get("bytes_ns"))
    return result


def memory_summary(series: Sequence[pa.Table]) -> list[dict[str, Any]]:
    """Return the peak of each device that recorded its memory."""
    if not series:
        return []
    table = pa.concat_tables(series).group_by(["rank", "device_type", "device"], use_threads=False)
    names = ("allocated_bytes", "reserved_bytes")
    peaks = table.aggregate([*((name, "max") for name in names), ("absolute", "min")])
    columns = ["rank", "device_type", "device", *(f"peak_{name}" for name in names), "absolute"]
    rows: list[dict[str, Any]] = peaks.rename_columns(columns).to_pylist()
    return rows


def kernels_summary(kernels: pa.Table) -> list[dict[str, Any]]:
    """Return kernels by name over all ranks, by waste; those without a known waste come after, by time."""
    table = kernels.group_by(["name", "family"], use_threads=False).aggregate(
        [(name, "sum") for name in ("count", "total_ns", "owned_ns", "flops", "bytes", "waste_ns")]
    )
    columns = ["name", "family", "count", "ns", "owned_ns", "flops", "bytes", "waste_ns"]
    rows: list[dict[str, Any]] = table.rename_columns(columns).to_pylist()
    return sorted(rows, key=lambda r: (-(r["waste_ns"] or 0), -r["ns"], r["name"]))[:MAX_KERNELS]


def _totals(steps: pa.Table) -> dict[str, Any]:
    totals: dict[str, Any] = {name: _sum(steps, name) for name in (*PARTS, "comm_ns")}
    return {**totals, "overlap": _ratio(_sum(steps, "overlap_ns"), totals["comm_ns"])}


def _scope(steps: pa.Table) -> list[int] | None:
    span = pc.min_max(steps["step"]).as_py()
    return None if span["min"] is None else [span["min"], span["max"]]


def _sum(table: pa.Table, name: str) -> int:
    return int(pc.sum(table[name]).as_py() or 0)


def _ratio(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None
