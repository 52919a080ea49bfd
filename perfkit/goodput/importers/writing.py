"""Write what dumps gave into a store's fleet tables, by date.

    write_dumps(dumps, store, cluster=…) -> rows by table

Jobs of the same files replace what these files gave before. Snapshots of nodes are kept, one beside the other: each
holds until the next, so that importing `sinfo` every few minutes gives an uptime (`cluster_rollup` is made anew from
all of them). Jobs do not become run_rollup: a captured run and the job that it ran in are the same GPU time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.goodput.gpu_days import gpu_days
from perfkit.goodput.importers import Dumps
from perfkit.goodput.rollup import DAY_NS
from perfkit.goodput.summary import date_of
from perfkit.goodput.uptime import cluster_hours
from perfkit.store import Store


def write_dumps(dumps: Dumps, store: Store, *, cluster: str = "imported") -> dict[str, int]:
    """Write jobs, nodes, GPU days and the uptime of clusters; return rows by table."""
    files = hashlib.sha256("\n".join(sorted(one.path for one in dumps.imported)).encode()).hexdigest()[:12]
    written: dict[str, int] = {}
    jobs, nodes, counters = (dumps.tables.get(name) for name in ("jobs", "nodes", "counters"))
    if jobs is not None and len(jobs):
        written["jobs"] = _write(store, "jobs", jobs, pc.coalesce(jobs["start_ns"], jobs["submit_ns"]), files)
    if counters is not None and len(counters):
        days = gpu_days(counters, cluster=cluster)
        written["gpu_rollup"] = _write(store, "gpu_rollup", days, days["start_ns"], files)
    if nodes is not None and len(nodes):
        moment = pc.max(nodes["start_ns"]).as_py()
        written["nodes"] = _write(store, "nodes", nodes, nodes["start_ns"], f"{files}-{moment}")
        written["cluster_rollup"] = _write_uptime(store)
    return written


def _write_uptime(store: Store) -> int:
    nodes = store.read("nodes")
    nodes = nodes.filter(pc.invert(pc.fill_null(nodes["synthetic"], False)))
    runs = store.read("run_rollup")
    hours = cluster_hours(nodes, runs if len(runs) else None)
    return _write(store, "cluster_rollup", hours, hours["start_ns"], "inventory")


def _write(store: Store, table: str, rows: pa.Table, times: Any, name: str) -> int:
    """Write rows by the day of `times`; a row without a time is left out."""
    rows, times = rows.filter(pc.is_valid(times)), times.drop_null()
    for date, part in _by_day(rows, np.asarray(times.to_numpy(), np.int64)):
        store.write_fleet(table, part, date=date, part=f"import-{name}")
    return len(rows)


def _by_day(rows: pa.Table, times: Any) -> Iterator[tuple[str, pa.Table]]:
    day = times // DAY_NS
    order = np.argsort(day, kind="stable")
    rows, day = rows.take(pa.array(order)), day[order]
    edges = np.flatnonzero(np.r_[True, day[1:] != day[:-1], True]) if len(day) else np.zeros(1, np.int64)
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        yield date_of(int(day[low])), rows.slice(low, high - low)
