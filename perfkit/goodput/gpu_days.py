"""Counters -> one row per GPU and day (`gpu_rollup`).

Knows the names of capture, of dcgm-exporter and of nvidia_gpu_exporter (METRICS) and brings them to one unit. Error
counters only grow: a day's errors are the growth seen in it; a counter that starts again counts from there.
Throttle loss is definition 20 (perfkit.goodput.throttle), null where the clock of the published peak is unknown.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.goodput.rollup import DAY_NS
from perfkit.goodput.throttle import peak_clock_hertz, throttle_days
from perfkit.schema import GPU_ROLLUP, conform

METRICS: dict[str, tuple[str, float]] = {
    "gpu_utilization_ratio": ("busy", 1.0),
    "gpu_sm_active_ratio": ("busy", 1.0),
    "DCGM_FI_DEV_GPU_UTIL": ("busy", 0.01),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("busy", 1.0),
    "nvidia_smi_utilization_gpu_ratio": ("busy", 1.0),
    "utilization.gpu [%]": ("busy", 0.01),
    "gpu_tensor_active_ratio": ("tensor", 1.0),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("tensor", 1.0),
    "gpu_sm_clock_hertz": ("clock", 1e-6),
    "DCGM_FI_DEV_SM_CLOCK": ("clock", 1.0),
    "nvidia_smi_clocks_current_sm_clock_hz": ("clock", 1e-6),
    "clocks.sm [MHz]": ("clock", 1.0),
    "clocks.current.sm [MHz]": ("clock", 1.0),
    "gpu_temperature_celsius": ("temp", 1.0),
    "DCGM_FI_DEV_GPU_TEMP": ("temp", 1.0),
    "nvidia_smi_temperature_gpu": ("temp", 1.0),
    "temperature.gpu": ("temp", 1.0),
    "gpu_power_watts": ("power", 1.0),
    "DCGM_FI_DEV_POWER_USAGE": ("power", 1.0),
    "nvidia_smi_power_draw_watts": ("power", 1.0),
    "power.draw [W]": ("power", 1.0),
    "gpu_memory_used_bytes": ("memory", 1.0),
    "DCGM_FI_DEV_FB_USED": ("memory", 2.0**20),
    "nvidia_smi_memory_used_bytes": ("memory", 1.0),
    "memory.used [MiB]": ("memory", 2.0**20),
}
"""Metric -> (what it is, factor to our unit)."""
COUNTED: dict[tuple[str, str | None], str] = {
    ("gpu_ecc_errors_total", "corrected"): "ecc_corrected",
    ("gpu_ecc_errors_total", "uncorrected"): "ecc_uncorrected",
    ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", None): "ecc_corrected",
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", None): "ecc_uncorrected",
    ("gpu_link_errors_total", "nvlink_crc"): "nvlink_errors",
}
"""(Metric, series) -> column; DCGM's have no series, and what labels are left (pod, namespace) does not matter."""


def gpu_days(counters: pa.Table, *, cluster: str, device: str | None = None, synthetic: bool | None = None) -> pa.Table:
    """Return the rows of every GPU and day that the counters tell of; a GPU without an index or host is left out.

    `device` names the GPUs, if all are of one kind: its peak clock is what throttle loss is measured against.
    """
    known = pc.and_(pc.is_valid(counters["device"]), pc.is_valid(counters["host"]))
    rows = counters.filter(pc.and_(known, pc.is_valid(counters["value"])))
    if not len(rows):
        return GPU_ROLLUP.empty()
    host, hosts = _codes(rows["host"])
    name, names = _codes(rows["name"])
    series, all_series = _codes(rows["series"])
    index = np.asarray(rows["device"].to_numpy(), np.int64)
    time = np.asarray(rows["time_ns"].to_numpy(), np.int64)
    value = np.asarray(rows["value"].to_numpy(), np.float64)
    keys, group = np.unique(np.stack([host, index, time // DAY_NS], 1), axis=0, return_inverse=True)
    group = group.reshape(-1)
    size = len(keys)
    columns: dict[str, Any] = _gauges(group, name, names, value, size)
    columns |= _growth(group, name, names, series, all_series, host, index, time, value, size)
    uuid = _first(group, rows["uuid"].to_pylist(), size)
    start = keys[:, 2] * DAY_NS
    columns |= _throttled(rows, uuid, keys[:, 2], device)
    columns |= {
        "cluster": [cluster] * size,
        "node": [hosts[h] for h in keys[:, 0]],
        "device": keys[:, 1],
        "uuid": uuid,
        "name": pa.array([device] * size, pa.utf8()),
        "start_ns": start,
        "end_ns": start + DAY_NS,
        "synthetic": pa.array([synthetic] * size, pa.bool_()),
        "samples": _samples(group, time, size),
    }
    return conform(GPU_ROLLUP, pa.table({k: _nullable(k, v) for k, v in columns.items()}))


def _codes(column: Any) -> tuple[Any, list[Any]]:
    values = column.combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    coded = pc.dictionary_encode(values, null_encoding="encode")
    return np.asarray(coded.indices.to_numpy(zero_copy_only=False), np.int64), coded.dictionary.to_pylist()


def _gauges(group: Any, name: Any, names: list[str], value: Any, size: int) -> dict[str, Any]:
    wanted = {"busy": ("busy_ratio", None), "tensor": ("tensor_ratio", None), "clock": ("clock_mean_mhz", None),
              "temp": ("temp_mean_celsius", "temp_max_celsius"), "power": ("power_mean_watts", "power_max_watts"),
              "memory": (None, "memory_peak_bytes")}  # fmt: skip
    result: dict[str, Any] = {}
    for what, (mean, top) in wanted.items():
        mine = np.isin(name, [i for i, n in enumerate(names) if METRICS.get(n, ("", 0))[0] == what])
        if not mine.any():
            continue
        factor = np.array([METRICS.get(n, ("", 0.0))[1] for n in names])
        scaled, at = value[mine] * factor[name[mine]], group[mine]
        count = np.bincount(at, minlength=size)
        if mean:
            with np.errstate(invalid="ignore", divide="ignore"):
                result[mean] = np.bincount(at, scaled, minlength=size) / count
        if top:
            best = np.full(size, -np.inf)
            np.maximum.at(best, at, scaled)
            result[top] = np.where(count > 0, best, np.nan)
    return result


def _growth(
    group: Any,
    name: Any,
    names: list[str],
    series: Any,
    all_series: list[Any],
    host: Any,
    device: Any,
    time: Any,
    value: Any,
    size: int,
) -> dict[str, Any]:
    """Growth of counters, in the day where it was seen."""
    result: dict[str, Any] = {}
    order = np.lexsort((time, series, name, device, host))
    same = np.ones(len(order), bool)
    for column in (host, device, name, series):
        same[1:] &= column[order][1:] == column[order][:-1]
    same[0] = False
    now = value[order]
    grown = np.where(same, np.where(now >= np.r_[0.0, now[:-1]], now - np.r_[0.0, now[:-1]], now), 0.0)
    for i, metric in enumerate(names):
        for j, which in enumerate(all_series):
            column = COUNTED.get((metric, None if metric.startswith("DCGM_") else which))
            if column is None:
                continue
            mine = (name[order] == i) & (series[order] == j)
            total = np.bincount(group[order][mine], grown[mine], minlength=size)
            result[column] = np.round(result.get(column, 0) + total).astype(np.int64)
    return result


def _throttled(rows: pa.Table, uuids: list[Any], days: Any, device: str | None) -> dict[str, Any]:
    """Return time lost by GPU and day; nothing if the reference clock is unknown."""
    hertz = peak_clock_hertz(device)
    if hertz is None:
        return {}
    found = throttle_days(rows, dict.fromkeys((uuid for uuid in uuids if uuid), hertz)).to_pylist()
    lost = {(row["uuid"], row["day"]): row for row in found}
    mine = [lost.get((uuid, day), {}) for uuid, day in zip(uuids, days.tolist(), strict=True)]
    return {
        f"throttle_{why}_ns": pa.array([r.get(f"{why}_ns") for r in mine], pa.int64()) for why in ("thermal", "power")
    }


def _samples(group: Any, time: Any, size: int) -> Any:
    pairs = np.unique(np.stack([group, time], 1), axis=0)
    return np.bincount(pairs[:, 0], minlength=size)


def _first(group: Any, values: list[Any], size: int) -> list[Any]:
    result: list[Any] = [None] * size
    for at, value in zip(group.tolist(), values, strict=True):
        if result[at] is None:
            result[at] = value
    return result


def _nullable(name: str, values: Any) -> Any:
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        kind = GPU_ROLLUP.arrow.field(name).type
        if pa.types.is_integer(kind):
            return pa.array(np.nan_to_num(values).astype(np.int64), mask=np.isnan(values))
        return pa.array(values, mask=np.isnan(values))
    return values
