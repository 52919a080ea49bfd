"""Counters of a simulated cluster: `gpu_rollup`, one table per day.

    gpu_days(schedule) -> (day, table), …

Load follows the runs that held each node; the GPU of a slow node runs hot and throttles, and a failure leaves an XID.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from perfkit.analysis.intervals import Ints
from perfkit.schema import GPU_ROLLUP, conform
from perfkit.simulate.fleet_random import Dice
from perfkit.simulate.fleet_schedule import Schedule
from perfkit.simulate.fleet_tables import XIDS, gpu_uuid
from perfkit.simulate.fleet_world import DAY, GPUS_PER_NODE, Cluster

_HUGE = {"80GB": 80e9, "H200": 141e9, "B200": 180e9}
"""Memory by a part of the device's name."""


def gpu_days(schedule: Schedule) -> Iterator[tuple[int, pa.Table]]:
    """Yield (day, gpu_rollup) of a cluster."""
    world, cluster = schedule.world, schedule.cluster
    held, flops = _held_by_day(schedule)
    base = _FixedColumns(cluster, world.dice)
    xids, down = _marks_by_day(schedule)
    for day in range(world.options.days):
        yield day, _gpu_day(schedule, base, day, held[:, day], flops[:, day], xids.get(day, {}), down.get(day, {}))


def _held_by_day(schedule: Schedule) -> tuple[Ints, Any]:
    """Return the time that runs held each node, and the same times MFU, by day."""
    options = schedule.world.options
    held = np.zeros((schedule.cluster.nodes, options.days), np.int64)
    flops = np.zeros((schedule.cluster.nodes, options.days))
    for run in schedule.runs:
        for one in run.attempts:
            low, high = one.start_ns - options.start_ns, one.end_ns - options.start_ns
            days = np.arange(low // DAY, min(-(-high // DAY), options.days))
            part = np.minimum(high, (days + 1) * DAY) - np.maximum(low, days * DAY)
            work = int((one.block_end - one.block_start).sum()) / max(one.end_ns - one.start_ns, 1)
            held[np.ix_(one.nodes, days)] += part
            flops[np.ix_(one.nodes, days)] += part * (run.spec.mfu / one.slowdown * work)
    return np.minimum(held, DAY), flops


def _marks_by_day(schedule: Schedule) -> tuple[dict[int, dict[int, int]], dict[int, dict[int, str]]]:
    start = schedule.world.options.start_ns
    xids: dict[int, dict[int, int]] = {}
    down: dict[int, dict[int, str]] = {}
    for run in schedule.runs:
        for one in run.attempts:
            if one.blame is not None and one.stop_ns is not None and one.cause in XIDS:
                today = xids.setdefault((one.stop_ns - start) // DAY, {})
                today[one.blame] = today.get(one.blame, 0) + 1
    for outage in schedule.outages:
        for day in range(
            (outage.start_ns - start) // DAY, (max(outage.end_ns - 1, outage.start_ns) - start) // DAY + 1
        ):
            down.setdefault(day, {})[outage.node] = outage.state
    return xids, down


class _FixedColumns:
    """What does not change from day to day."""

    def __init__(self, cluster: Cluster, dice: Dice) -> None:
        size = cluster.nodes * GPUS_PER_NODE
        self.node = np.repeat(np.arange(cluster.nodes), GPUS_PER_NODE)
        self.device = np.tile(np.arange(GPUS_PER_NODE), cluster.nodes)
        names = [cluster.node_name(i) for i in range(cluster.nodes)]
        text = pa.int32()
        self.columns = {
            "cluster": pa.DictionaryArray.from_arrays(pa.array(np.zeros(size), text), [cluster.name]),
            "node": pa.DictionaryArray.from_arrays(pa.array(self.node, text), names),
            "device": pa.array(self.device, text),
            "uuid": pa.DictionaryArray.from_arrays(
                pa.array(np.arange(size), text),
                [gpu_uuid(cluster, int(n), int(d)) for n, d in zip(self.node, self.device, strict=True)],
            ),
            "name": pa.DictionaryArray.from_arrays(pa.array(np.zeros(size), text), [cluster.device]),
            "synthetic": pa.array(np.ones(size, bool)),
        }
        self.warm = 38 + 4 * (self.device % 2) + 3 * dice.normal(cluster.name, "warm", size=size)
        self.memory = int(next((v for k, v in _HUGE.items() if k in cluster.device), 48e9) * 0.78)


def _gpu_day(
    schedule: Schedule,
    fixed: _FixedColumns,
    day: int,
    held: Ints,
    flops: Any,
    xids: dict[int, int],
    down: dict[int, str],
) -> pa.Table:
    cluster, dice, options = schedule.cluster, schedule.world.dice, schedule.world.options
    size = len(fixed.node)
    start = options.start_ns + day * DAY
    share = (held / DAY)[fixed.node]
    noise = dice.normal(cluster.name, "day", day, size=size)
    used = held[fixed.node]
    mfu = np.divide(flops, held, out=np.zeros(len(held)), where=held > 0)[fixed.node]
    thermal = np.zeros(size, np.int64)
    for node, (factor, since, device) in cluster.slow.items():
        if since < start + DAY:
            thermal[node * GPUS_PER_NODE + device] = int(held[node] * (1 - 1 / factor))
    power = (used * np.clip(0.02 + 0.01 * noise, 0, None)).astype(np.int64)
    season = 3 * np.sin(2 * np.pi * day / 365)
    temp = np.round(fixed.warm + season + 26 * share + noise + np.where(thermal > 0, 14, 0))
    tdp = 700 if "A100" not in cluster.device else 400
    watts = np.round(70 + (0.86 * tdp - 70) * share + 6 * noise)
    ecc = (dice.uniform(cluster.name, "ecc", day, size=size) < 0.004).astype(np.int64)
    xid = np.zeros(size, np.int32)
    for node, count in xids.items():
        xid[node * GPUS_PER_NODE + (node if node in cluster.flaky else node + day) % GPUS_PER_NODE] = count
    state = np.zeros(cluster.nodes, np.int32)
    states = ["up", "down", "drained", "unhealthy"]
    for node, name in down.items():
        state[node] = states.index(name)
    clock = 1755 if "A100" not in cluster.device else 1380
    idle = used == 0

    def maybe(values: Any) -> pa.Array:
        return pa.array(np.asarray(values, np.float32), mask=idle)

    columns = {
        **fixed.columns,
        "start_ns": pa.array(np.full(size, start)), "end_ns": pa.array(np.full(size, start + DAY)),
        "state": pa.DictionaryArray.from_arrays(pa.array(state[fixed.node]), states),
        "allocated_ns": pa.array(used), "samples": pa.array(np.full(size, 8640)),
        "busy_ratio": pa.array(np.round(0.97 * share, 2).astype(np.float32)),
        "tensor_ratio": maybe(np.round(mfu * 1.15, 2)), "mfu_ratio": maybe(np.round(mfu, 3)),
        "clock_mean_mhz": maybe(np.round(clock * (1 - thermal / np.maximum(used, 1)) / 15) * 15),
        "temp_mean_celsius": pa.array(temp.astype(np.float32)),
        "temp_max_celsius": pa.array((temp + 6 + 3 * (noise > 1)).astype(np.float32)),
        "power_mean_watts": pa.array(watts.astype(np.float32)),
        "power_max_watts": pa.array(np.where(idle, watts, tdp).astype(np.float32)),
        "memory_peak_bytes": pa.array(np.where(idle, 0, fixed.memory)),
        "throttle_thermal_ns": pa.array(thermal), "throttle_power_ns": pa.array(power),
        "ecc_corrected": pa.array(ecc), "ecc_uncorrected": pa.array((xid > 0).astype(np.int64)),
        "nvlink_errors": pa.array(np.zeros(size, np.int64)), "xid_count": pa.array(xid),
    }  # fmt: skip
    return conform(GPU_ROLLUP, pa.table(columns))
