"""Stores built by hand for the dashboard's tests: every number is chosen here, none comes from the code under test."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from perfkit.schema import GOODPUT_LOSSES, TABLES, table_from_rows
from perfkit.sources.base import PartInfo
from perfkit.store import Store

HOUR = 3600 * 10**9
DAY = 24 * HOUR
START = 20_400 * DAY
"""A day in November 2025."""
PEAK = 989e12
HOSTILE = "<script>window.PWNED=1</script><img src=x onerror=window.PWNED=1>"
NAMES = (HOSTILE, "javascript:alert(1)", "x" * 300, "\u202eabc\u202c", "a/b ../c?d=e&f#g", "[md](javascript:alert(1))")


def date_of(time_ns: int) -> str:
    return (datetime.date(1970, 1, 1) + datetime.timedelta(days=time_ns // DAY)).isoformat()


def write_days(store: Store, table: str, rows: list[dict[str, Any]], time: str = "start_ns", part: str = "m") -> None:
    """Write rows of a fleet table by day."""
    days: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        days.setdefault(date_of(row[time]), []).append(row)
    for day, some in days.items():
        store.write_fleet(table, table_from_rows(TABLES[table], some), date=day, part=part)


def run_hours(
    cluster: str, run: str, *, hours: int, start_ns: int = START, gpus: int = 16, mfu: float = 0.4,
    losses: dict[str, float] | None = None, state: str = "ended", user: str = "ada", **extra: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """Rows of run_rollup: `losses` are shares of the allocated time of every hour."""
    losses = losses or {"slow_step": 0.02, "checkpoint": 0.03}
    rows = []
    for hour in range(hours):
        allocated = gpus * HOUR
        buckets = {f"{name}_ns": round(losses.get(name, 0.0) * allocated) for name in GOODPUT_LOSSES}
        productive = allocated - sum(buckets.values())
        step_ns = productive + buckets["slow_step_ns"]
        flops = mfu * PEAK * step_ns * 1e-9
        rows.append(
            {
                "cluster": cluster, "run": run, "attempt": 0, "start_ns": start_ns + hour * HOUR,
                "end_ns": start_ns + (hour + 1) * HOUR, "name": run, "user": user, "model": "llama3-8b",
                "device": "NVIDIA H100 80GB HBM3", "world_size": gpus, "gpus": gpus, "num_nodes": gpus // 8,
                "state": state, "eligible_ns": start_ns - HOUR, "run_start_ns": start_ns,
                "last_seen_ns": start_ns + hours * HOUR, "steps": 3600, "lost_steps": 0, "tokens": 3600 * 65536,
                "model_flops": flops, "retained_flops": mfu * PEAK * productive * 1e-9, "peak_flops": PEAK,
                "step_ns": step_ns, "mfu_ratio": mfu, "loss": 3.0 - hour / hours, "step_time_p50_ns": 10**9,
                "step_time_p95_ns": 12 * 10**8, "allocated_ns": allocated, "productive_ns": productive, **buckets,
                "queue_ns": gpus * HOUR if hour == 0 else 0, "interruptions": 0, "restarts": 0, "synthetic": True,
                **extra,
            }
        )  # fmt: skip
    return rows


def cluster_hours(
    cluster: str, *, hours: int, gpus: int, used: int, down: int = 0, start_ns: int = START
) -> list[dict[str, Any]]:
    """Rows of cluster_rollup with the same state in every hour."""
    return [
        {
            "cluster": cluster, "start_ns": start_ns + hour * HOUR, "end_ns": start_ns + (hour + 1) * HOUR,
            "device": "NVIDIA H100 80GB HBM3", "nodes": gpus // 8, "gpus": gpus, "gpus_down": down,
            "installed_ns": gpus * HOUR, "up_ns": (gpus - down) * HOUR, "down_ns": down * HOUR, "drained_ns": 0,
            "unhealthy_ns": 0, "unknown_ns": 0, "allocated_ns": used * HOUR, "idle_ns": (gpus - down - used) * HOUR,
            "synthetic": True,
        }
        for hour in range(hours)
    ]  # fmt: skip


def gpu_days(
    cluster: str, *, days: int, nodes: int, start_ns: int = START, hot: tuple[int, int] = (1, 3)
) -> list[dict[str, Any]]:
    """Rows of gpu_rollup; GPU `hot` (node, device) is hot, throttled and slow."""
    rows = []
    for day in range(days):
        for node in range(nodes):
            for device in range(8):
                bad = (node, device) == hot
                rows.append(
                    {
                        "cluster": cluster, "node": f"{cluster}-n{node:03d}", "device": device,
                        "name": "NVIDIA H100 80GB HBM3", "start_ns": start_ns + day * DAY,
                        "end_ns": start_ns + (day + 1) * DAY, "state": "unhealthy" if bad else "up",
                        "allocated_ns": DAY, "samples": 1440, "busy_ratio": 0.9, "mfu_ratio": 0.31 if bad else 0.41,
                        "temp_mean_celsius": 80.0 if bad else 60.0, "temp_max_celsius": 91.0 if bad else 66.0,
                        "throttle_thermal_ns": DAY // 10 if bad else 0, "throttle_power_ns": DAY // 50,
                        "xid_count": 2 if bad else 0, "synthetic": True,
                    }
                )  # fmt: skip
    return rows


def make_fleet(path: Path, *, days: int = 4, names: tuple[str, ...] = ("alpha", "beta")) -> Store:
    """Two clusters: the first is fine, the second loses time to failures and has nodes down."""
    store = Store(path)
    hours = 24 * days
    good, poor = names[0], names[1]
    runs = run_hours(good, "steady", hours=hours, gpus=32, mfu=0.45, state="running")
    runs += run_hours(good, "short", hours=5, gpus=8, mfu=0.38, user="grace")
    runs += run_hours(poor, "shaky", hours=hours, gpus=64, mfu=0.30, state="running",
                      losses={"lost": 0.12, "recovery": 0.08, "hang": 0.05, "init": 0.01,
                              "data_stall": 0.04})  # fmt: skip
    for row in runs:
        if row["run"] == "shaky" and (row["start_ns"] - START) % DAY == 6 * HOUR:
            row |= {"interruptions": 1, "restarts": 1, "cause": "xid"}
    write_days(store, "run_rollup", runs)
    write_days(store, "cluster_rollup", cluster_hours(good, hours=hours, gpus=48, used=34)
               + cluster_hours(poor, hours=hours, gpus=96, used=64, down=16))  # fmt: skip
    write_days(store, "gpu_rollup", gpu_days(good, days=days, nodes=6) + gpu_days(poor, days=days, nodes=12))
    write_days(store, "interruptions", [
        {"cluster": poor, "run": "shaky", "attempt": d, "time_ns": START + d * DAY + 6 * HOUR,
         "resumed_ns": START + d * DAY + 7 * HOUR, "cause": "xid" if d % 2 == 0 else "network", "planned": False,
         "user": "ada", "gpus": 64, "node": f"{poor}-n001", "lost_ns": 64 * HOUR // 2, "recovery_ns": 64 * HOUR // 3,
         "down_ns": HOUR, "synthetic": True}
        for d in range(days)
    ], time="time_ns")  # fmt: skip
    write_days(store, "health_events", [
        {"cluster": poor, "node": f"{poor}-n001", "device": 3, "time_ns": START + d * DAY + 6 * HOUR, "kind": "xid",
         "code": 79, "severity": "fault", "detail": "GPU has fallen off the bus", "synthetic": True}
        for d in range(days)
    ], time="time_ns")  # fmt: skip
    write_days(store, "job_nodes", [
        {"cluster": poor, "run": f"job{j}", "attempt": 0, "node": f"{poor}-n{n:03d}", "start_ns": START + j * HOUR,
         "end_ns": START + (j + 1) * HOUR, "num_nodes": 12, "ranks": 8, "gpus": 8, "steps": 100,
         "own_ns": 1_200_000_000 if n == 1 else 1_000_000_000, "slowdown": 1.2 if n == 1 else 1.0,
         "slowdown_basis": "own_work", "wait_caused_ns": HOUR if n == 1 else 0, "interrupted": n == 1 and j % 3 == 0,
         "synthetic": True}
        for j in range(16) for n in range(12)
    ])  # fmt: skip
    return store


def make_run(
    store: Store, cluster: str = "alpha", run: str = "steady", *, ranks: int = 8, steps: int = 40, slow: int = 5,
    mesh: dict[str, int] | None = None, kernel: str = "ampere_gemm", host: str = "node",
) -> None:  # fmt: skip
    """A captured and analysed run: rank `slow` takes 12 % longer for its own work, and the others wait for it."""
    ms = 1_000_000
    own, own_slow, comm = 80 * ms, 92 * ms, 10 * ms
    step_ns = own_slow + comm
    mesh = mesh or {"dp": ranks // 2, "tp": 2}
    replicas = mesh.get("dp", 1)  # FLOPs and tokens of a step are those of one replica
    for rank in range(ranks):
        mine = own_slow if rank == slow else own
        at = START + 3 * DAY + np.arange(steps) * step_ns
        rows = {
            "rank": pa.array(np.full(steps, rank, np.int32)), "step": pa.array(np.arange(steps)),
            "start_ns": pa.array(at), "end_ns": pa.array(at + step_ns),
            "data_wait_ns": pa.array(np.full(steps, 2 * ms)), "tokens": pa.array(np.full(steps, 4096)),
            "model_flops": pa.array(np.full(steps, 0.4 * PEAK * ranks * step_ns * 1e-9 / replicas)),
            "loss": pa.array(3.0 - np.arange(steps) / steps), "profiled": pa.array(np.arange(steps) == 9),
        }  # fmt: skip
        spans = {
            "rank": np.full(2 * steps, rank, np.int32), "name": pa.array(["forward", "backward"] * steps),
            "step": np.repeat(np.arange(steps), 2), "start_ns": np.repeat(at, 2),
            "dur_ns": np.tile([mine // 3, 2 * mine // 3], steps), "depth": np.zeros(2 * steps, np.int32),
        }  # fmt: skip
        counters = {
            "rank": np.full(2 * steps, rank, np.int32), "host": pa.array([f"{host}{rank // 8}"] * 2 * steps),
            "device": np.full(2 * steps, rank % 8, np.int32), "time_ns": np.repeat(at, 2),
            "name": pa.array(["gpu_temp_celsius", "gpu_clock_mhz"] * steps),
            "value": np.tile([84.0 if rank == slow else 61.0, 1500.0 if rank == slow else 1900.0], steps),
        }  # fmt: skip
        with store.writer(cluster, run, 0, rank=rank, segment=0, fingerprint=f"made-{rank}") as writer:
            for name, columns in (("steps", rows), ("spans", spans), ("counters", counters)):
                writer.write(name, pa.table(columns))
            if rank == 0:
                writer.write("lifecycle", table_from_rows(TABLES["lifecycle"], [
                    {"rank": 0, "kind": "init", "start_ns": int(at[0]) - 60 * 10**9, "end_ns": int(at[0]),
                     "gpus": ranks},
                    {"rank": 0, "kind": "checkpoint_save", "start_ns": int(at[20]), "end_ns": int(at[20]) + 50 * ms,
                     "step": 20, "blocking": True},
                    {"rank": 0, "kind": "restart", "start_ns": int(at[30]), "step": 30, "cause": "xid"},
                ]))  # fmt: skip
            writer.write("events", pa.table(events_of(rank, at[steps // 2 - 1 : steps // 2 + 2], mine, comm, kernel)))
            info = PartInfo(source="simulator", rank=rank, rank_source="environment", world_size=ranks,
                            host=f"{host}{rank // 8}", start_ns=int(at[0]), end_ns=int(at[-1] + step_ns),
                            num_events=steps, synthetic=True, versions={"torch": "2.13.0"})  # fmt: skip
            writer.commit(info, source_path=f"rank{rank}")
    store.finalise(cluster, run, 0, {
        "model": "llama3-8b", "mesh": mesh, "device": "NVIDIA H100 80GB HBM3",
        "git_commit": "0123456789abcdef", "user": "ada", "world_size": ranks,
    })  # fmt: skip
    write_analysis(store, cluster, run, ranks=ranks, steps=steps, slow=slow, kernel=kernel)
    write_days(store, "health_events", [
        {"cluster": cluster, "node": f"{host}{slow // 8}", "device": slow % 8, "time_ns": START + 3 * DAY + 5 * step_ns,
         "end_ns": START + 3 * DAY + 9 * step_ns, "kind": "throttle", "code": 64, "severity": "warning",
         "detail": "HW thermal slowdown", "synthetic": True}
    ], time="time_ns", part="run")  # fmt: skip


def events_of(rank: int, starts: Any, own_ns: int, comm_ns: int, kernel: str) -> dict[str, Any]:
    """What a profiler saw of some steps: an op on the host, its kernel, a collective after it."""
    n = len(starts)
    return {
        "rank": np.full(3 * n, rank, np.int32), "segment": np.zeros(3 * n, np.int32), "event_id": np.arange(3 * n),
        "phase": pa.array(["X"] * 3 * n), "category": pa.array(["cpu_op", "kernel", "kernel"] * n),
        "class": pa.array(["op", "compute", "communication"] * n), "name": pa.array(["aten::mm", kernel, "nccl"] * n),
        "start_ns": np.stack([starts, starts + 1000, starts + own_ns], axis=1).ravel(),
        "dur_ns": np.tile([5000, own_ns - 1000, comm_ns], n), "stream": pa.array([None, 7, 20] * n, pa.int64()),
        "device": pa.array([None, rank % 8, rank % 8] * n, pa.int32()),
        "tid": pa.array([1, None, None] * n, pa.int64()),
    }  # fmt: skip


def write_analysis(store: Store, cluster: str, run: str, *, ranks: int, steps: int, slow: int, kernel: str) -> None:
    """What `perfkit analyze --store` leaves: the derived tables of one analysis."""
    ms = 1_000_000
    window, comm = 102 * ms, 10 * ms
    attribution, collectives, kernels, idle, gaps, alignment = [], [], [], [], [], []
    for rank in range(ranks):
        compute = 84 * ms if rank == slow else 72 * ms
        wait = 0 if rank == slow else 12 * ms
        for step in range(steps):
            at = START + 3 * DAY + step * window
            attribution.append({"rank": rank, "device": rank % 8, "step": step, "start_ns": at, "window_ns": window,
                                "compute_ns": compute, "exposed_comm_ns": comm + wait, "exposed_memcpy_ns": 0,
                                "idle_ns": window - compute - comm - wait, "comm_ns": 30 * ms, "overlap_ns": 8 * ms,
                                "unknown_ns": 0, "spill_ns": 0, "carry_in": False})  # fmt: skip
            collectives.append({"rank": rank, "step": step, "instance": step, "group": "dp", "op": "all_reduce",
                                "bytes": 1 << 20, "start_ns": at, "dur_ns": comm + wait, "wait_ns": wait,
                                "transfer_ns": comm, "exposed_wait_ns": wait, "exposed_transfer_ns": comm,
                                "busbw_gbps": 180.0, "caused_by": None if rank == slow else slow,
                                "matched": True, "size": ranks, "skew_ns": 12 * ms, "last_rank": slow,
                                "uncertainty_ns": 2000, "class": "mixed", "link": "nvlink", "peak_gbps": 450.0,
                                "segment": 0, "event_id": 2})  # fmt: skip
        kernels.append({"rank": rank, "name": kernel, "family": "gemm", "op": "aten::mm", "count": steps,
                        "total_ns": compute * steps, "owned_ns": compute * steps, "waste_ns": 10 * ms * steps,
                        "bound": "compute", "phase": "forward", "dtype": "bf16",
                        "flops": 0.5 * PEAK * compute * steps * 1e-9, "bytes": 1e9 * steps,
                        "peak_flops": PEAK, "peak_gbps": 3350.0})  # fmt: skip
        idle.append({"rank": rank, "device": rank % 8, "cause": "host_late", "culprit": "data_loader",
                     "where": "train.py:10", "idle_ns": 8 * ms * steps, "gaps": steps})  # fmt: skip
        gaps += [{"rank": rank, "device": rank % 8, "step": step, "start_ns": START + 3 * DAY + step * window,
                  "dur_ns": 8 * ms, "idle_ns": 8 * ms, "stretches": 1, "cause": "host_late", "culprit": "data_loader",
                  "where": "train.py:10"} for step in range(steps)]  # fmt: skip
        alignment.append({"rank": rank, "clock": "node0", "from_ns": START + 3 * DAY, "offset_ns": 0, "drift_ppm": 0.0,
                          "uncertainty_ns": 2000})  # fmt: skip
    terms = (("mfu", None, 40.0), ("matmul_below_peak", None, 31.0), ("unsplit_comm", None, 20.0),
             ("idle_host", None, 6.0), ("idle_data", None, 3.0), ("exposed_wait", "unsplit_comm", 11.0))  # fmt: skip
    total = ranks * steps * window
    waterfall = [{"ladder": "A", "position": i, "term": term, "parent": parent, "points": points,
                  "gpu_ns": round(points / 100 * total), "measured": True}
                 for i, (term, parent, points) in enumerate(terms)]  # fmt: skip
    findings = [
        {"position": 0, "id": "straggler", "title": f"Rank {slow} is slow: the others wait for it", "points": 10.5,
         "evidence": json.dumps([{"rank": slow, "score": 0.87, "wait_caused_ns": 12 * ms * steps * (ranks - 1)}]),
         "next": "look at its clocks and temperature"},
        {"position": 1, "id": "data_wait", "title": f"Waiting for data in {kernel}", "points": 3.0,
         "evidence": json.dumps([{"where": "train.py:10", "ns": 8 * ms * steps}]), "next": "more loader workers"},
    ]  # fmt: skip
    compared = [{"rank": rank, "role": "all", "peers": ranks - 1, "steps": steps, "own_ns": own * steps,
                 "peers_ns": 72 * ms * steps, "score": 72 * ms / own, "persistence": float(rank == slow),
                 "flagged": rank == slow, "cause": "compute" if rank == slow else None,
                 "excess_ns": (own - 72 * ms) * steps,
                 "wait_caused_ns": 12 * ms * steps * (ranks - 1) if rank == slow else 0}
                for rank in sorted(range(ranks), key=lambda rank: rank != slow)
                for own in [84 * ms if rank == slow else 72 * ms]]  # fmt: skip
    blame = [{"rank": rank, "step": step, "wait_caused_ns": 12 * ms * (ranks - 1) if rank == slow else 0,
              "exposed_wait_ns": 0 if rank == slow else 12 * ms}
             for rank in range(ranks) for step in range(steps)]  # fmt: skip
    for name, rows in (("attribution", attribution), ("collectives", collectives), ("kernels", kernels),
                       ("idle", idle), ("gaps", gaps), ("alignment", alignment), ("waterfall", waterfall),
                       ("stragglers", compared), ("blame_steps", blame), ("findings", findings)):  # fmt: skip
        store.write_derived(name, table_from_rows(TABLES[name], rows), cluster, run, 0, analysis_id="default")
