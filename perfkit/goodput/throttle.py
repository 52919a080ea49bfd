"""Time that lowered clocks cost a GPU (definition 20), from sampled counters.

    throttle_loss(counters, reference_hertz) -> one row per GPU: sampled_ns, power_ns, thermal_ns, unexplained_ns

A sample stands for the time to the next one of the same GPU, at most MAX_HOLD_NS: a gap in the samples is not
time at that clock. Loss is t · (1 − clock/reference) while the GPU runs below the clock of its published peak, given
to hardware and thermal reasons first (a fault), then to the power limit (nearly every H100 under GEMMs carries that
bit: not a fault), else to `unexplained`. A sample with the idle bit is no loss: nobody asked for speed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.capture.gpus import CLOCK_REASONS, SM_CLOCK

IDLE = 0x1
POWER_CAP = 0x4
THERMAL = 0x8 | 0x20 | 0x40 | 0x80
"""Hardware slowdown, software and hardware thermal, power brake: NVML's clock event reasons."""
MAX_HOLD_NS = 30 * 10**9


def throttle_loss(counters: pa.Table, reference_hertz: Mapping[str, float]) -> pa.Table:
    """Return the loss of each GPU; `reference_hertz`: UUID -> clock of its published peak, absent if unknown."""
    clock = _series(counters, SM_CLOCK)
    reasons = _series(counters, CLOCK_REASONS)
    rows = []
    for uuid, (time_ns, hertz) in clock.items():
        reference = reference_hertz.get(uuid)
        hold = np.minimum(np.diff(time_ns, append=time_ns[-1:]), MAX_HOLD_NS)
        row: dict[str, object] = {"uuid": uuid, "sampled_ns": int(hold.sum())}
        row |= dict.fromkeys(("power_ns", "thermal_ns", "unexplained_ns"))
        if reference and uuid in reasons:
            loss = hold * np.clip(1 - hertz / reference, 0, 1)
            bits = _at(reasons[uuid], time_ns)
            loss[(bits & IDLE) != 0] = 0
            thermal = (bits & THERMAL) != 0
            power = ~thermal & ((bits & POWER_CAP) != 0)
            row["thermal_ns"] = round(float(loss[thermal].sum()))
            row["power_ns"] = round(float(loss[power].sum()))
            row["unexplained_ns"] = round(float(loss[~thermal & ~power].sum()))
        rows.append(row)
    kinds = {"uuid": pa.utf8(), "sampled_ns": pa.int64(), "power_ns": pa.int64(), "thermal_ns": pa.int64()}
    kinds["unexplained_ns"] = pa.int64()
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()})


def _series(counters: pa.Table, metric: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return uuid -> (times, values) of a metric, by time."""
    part = counters.filter(pc.equal(counters["name"], metric)).select(["uuid", "time_ns", "value"])
    part = part.filter(pc.and_(pc.is_valid(part["uuid"]), pc.is_valid(part["value"])))
    uuids = np.array(part["uuid"].cast(pa.utf8()).to_pylist(), dtype=object)
    times, values = part["time_ns"].to_numpy(), part["value"].to_numpy()
    found = {}
    for uuid in dict.fromkeys(uuids.tolist()):
        own = uuids == uuid
        order = np.argsort(times[own], kind="stable")
        found[uuid] = (times[own][order], values[own][order])
    return found


def _at(series: tuple[np.ndarray, np.ndarray], times: np.ndarray) -> np.ndarray:
    """Return the value in force at each time; before the first sample the first."""
    own_times, values = series
    place = np.clip(np.searchsorted(own_times, times, side="right") - 1, 0, None)
    return values[place].astype(np.int64)
