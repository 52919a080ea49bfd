"""Time that lowered clocks cost a GPU (definition 20), and when heat lowered them, from sampled counters.

    throttle_days(counters, reference_hertz)  -> by GPU and day: sampled_ns, power_ns, thermal_ns, unexplained_ns
    clock_events(counters, cluster=…)         -> rows of health_events: when hardware or heat held a clock down
    peak_clock_hertz("NVIDIA H100 80GB HBM3") -> the clock of the published peak, None if no source gives it

A sample stands for the time to the next one of the same GPU, at most MAX_HOLD_NS: a gap in the samples is not
time at that clock. Loss is t · (1 − clock/reference) while the GPU runs below the clock of its published peak, given
to hardware and thermal reasons first (a fault), then to the power limit (nearly every H100 under GEMMs carries that
bit: not a fault), else to `unexplained`. A sample with the idle bit is no loss: nobody asked for speed. The driver's
own seconds (gpu_throttle_seconds_total) count time with a lowered clock however little it fell: they are not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.capture.gpus import CLOCK_REASONS, SM_CLOCK
from perfkit.errors import PerfkitError
from perfkit.goodput.rollup import DAY_NS
from perfkit.schema import HEALTH_EVENTS, table_from_rows

IDLE = 0x1
POWER_CAP = 0x4
THERMAL = 0x8 | 0x20 | 0x40 | 0x80
"""Hardware slowdown, software and hardware thermal, power brake: NVML's clock event reasons."""
REASON_NAMES = {
    0x8: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake",
}  # fmt: skip
MAX_HOLD_NS = 30 * 10**9
_COLUMNS = ("power_ns", "thermal_ns", "unexplained_ns")
Series = dict[str, tuple[np.ndarray, np.ndarray]]


def peak_clock_hertz(device: str | None) -> float | None:
    """Return the clock at which a device reaches its published peak, None if unknown or if the name is ambiguous."""
    from perfkit.hardware.lookup import find_device

    try:
        mhz = find_device(device).device.get("peak_clock_mhz") if device else None
    except PerfkitError:
        return None
    return None if mhz is None else mhz * 1e6


def throttle_days(counters: pa.Table, reference_hertz: Mapping[str, float]) -> pa.Table:
    """Return the loss of each GPU by day; a sample counts on the day on which it was taken."""
    rows = []
    for uuid, time_ns, parts in _losses(counters, reference_hertz):
        days, place = np.unique(time_ns // DAY_NS, return_inverse=True)
        sums = {n: None if v is None else np.bincount(place, v, len(days)) for n, v in parts.items()}
        for i, day in enumerate(days.tolist()):
            rows.append({"uuid": uuid, "day": day} | {n: None if v is None else round(v[i]) for n, v in sums.items()})
    return _table({"uuid": pa.utf8(), "day": pa.int64()}, rows)


def clock_events(counters: pa.Table, *, cluster: str) -> pa.Table:
    """Return the intervals in which hardware or thermal reasons held a GPU's clock down, one row each."""
    known = counters.filter(pc.and_(pc.equal(counters["name"], CLOCK_REASONS), pc.is_valid(counters["host"])))
    names = pa.table({name: known[name].cast(pa.utf8()) for name in ("uuid", "host")})
    place = names.append_column("device", known["device"]).group_by(["uuid", "host", "device"]).aggregate([])
    where = {row["uuid"]: (row["host"], row["device"]) for row in place.to_pylist()}
    rows: list[dict[str, Any]] = []
    for uuid, (time_ns, values) in _series(known, CLOCK_REASONS).items():
        bits = values.astype(np.int64) & THERMAL
        until = time_ns + _hold(time_ns)
        goes_on = (bits[1:] == bits[:-1]) & (until[:-1] >= time_ns[1:])
        first = np.flatnonzero(np.r_[True, ~goes_on])
        last = np.r_[first[1:], len(bits)] - 1
        for low, high in zip(first.tolist(), last.tolist(), strict=True):
            if bits[low]:
                reasons = ", ".join(name for bit, name in REASON_NAMES.items() if bits[low] & bit)
                rows.append(
                    {
                        "cluster": cluster, "node": where[uuid][0], "device": where[uuid][1], "uuid": uuid,
                        "time_ns": int(time_ns[low]), "end_ns": int(until[high]), "kind": "throttle",
                        "code": int(bits[low]), "severity": "warning", "detail": reasons,
                    }
                )  # fmt: skip
    return table_from_rows(HEALTH_EVENTS, rows)


def _losses(
    counters: pa.Table, reference_hertz: Mapping[str, float]
) -> Iterator[tuple[str, np.ndarray, dict[str, np.ndarray | None]]]:
    """Yield UUID, sample times and what each sample stands for: time, and the loss by reason (None: unknown)."""
    reasons = _series(counters, CLOCK_REASONS)
    for uuid, (time_ns, hertz) in _series(counters, SM_CLOCK).items():
        hold = _hold(time_ns)
        parts: dict[str, np.ndarray | None] = {"sampled_ns": hold} | dict.fromkeys(_COLUMNS)
        reference = reference_hertz.get(uuid)
        if reference and uuid in reasons:
            loss = hold * np.clip(1 - hertz / reference, 0, 1)
            bits = _at(reasons[uuid], time_ns)
            loss[(bits & IDLE) != 0] = 0
            thermal = (bits & THERMAL) != 0
            power = ~thermal & ((bits & POWER_CAP) != 0)
            parts["thermal_ns"], parts["power_ns"] = loss * thermal, loss * power
            parts["unexplained_ns"] = loss * ~(thermal | power)
        yield uuid, time_ns, parts


def _table(keys: Mapping[str, pa.DataType], rows: list[dict[str, Any]]) -> pa.Table:
    kinds = dict(keys) | dict.fromkeys(("sampled_ns", *_COLUMNS), pa.int64())
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()})


def _hold(time_ns: np.ndarray) -> np.ndarray:
    """Return how long each sample stands for; the last one for no time."""
    return np.minimum(np.diff(time_ns, append=time_ns[-1:]), MAX_HOLD_NS)


def _series(counters: pa.Table, metric: str) -> Series:
    """Return uuid -> (times, values) of a metric, by time."""
    part = counters.filter(pc.equal(counters["name"], metric)).select(["uuid", "time_ns", "value"])
    part = part.filter(pc.and_(pc.is_valid(part["uuid"]), pc.is_valid(part["value"])))
    if not len(part):
        return {}
    coded = pc.dictionary_encode(part["uuid"].cast(pa.utf8()).combine_chunks())
    codes = np.asarray(coded.indices.to_numpy(zero_copy_only=False), np.int64)
    times, values = part["time_ns"].to_numpy(), part["value"].to_numpy()
    order = np.lexsort((times, codes))
    edges = np.searchsorted(codes[order], np.arange(len(coded.dictionary) + 1))
    return {
        uuid: (times[order[low:high]], values[order[low:high]])
        for uuid, low, high in zip(coded.dictionary.to_pylist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    }


def _at(series: tuple[np.ndarray, np.ndarray], times: np.ndarray) -> np.ndarray:
    """Return the value in force at each time; before the first sample the first."""
    own_times, values = series
    place = np.clip(np.searchsorted(own_times, times, side="right") - 1, 0, None)
    return values[place].astype(np.int64)
