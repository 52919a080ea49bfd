"""Online metrics of one rank: what a step took, what it made, how that compares with the last hundred.

    meter.add(table, row); meter.snapshot() -> {name: value}

Runs on the writer thread. Step time is from step end to step end, so that data wait counts; the first step and
steps under a profiler are left out of speed and MFU. A slow step is one above median + 3 · 1.4826 · MAD of the
last hundred, and at least 1 % above the median (definition 19).
"""

from __future__ import annotations

import collections
from typing import Any

from perfkit.capture.yardstick import Yardstick

WINDOW = 100
MAD_TO_SIGMA = 1.4826
FLOOR = 0.01
REFRESH = 10
"""Steps between updates of what counts as slow."""


class Meter:
    """Counts and recent steps of one rank."""

    def __init__(self) -> None:
        self.yardstick = Yardstick()
        self.counts: collections.Counter[str] = collections.Counter()
        self.phases_ns: collections.Counter[str] = collections.Counter()
        self.events_ns: collections.Counter[str] = collections.Counter()
        self.memory_bytes: int | None = None
        self.last: dict[str, Any] = {}
        self._recent: collections.deque[tuple[int, int | None, int | None]] = collections.deque(maxlen=WINDOW)
        self._open_phases: dict[str, int] = {}
        self._previous_end: int | None = None
        self._limit: float | None = None

    def add(self, table: str, row: tuple[Any, ...]) -> dict[str, Any] | None:
        """Take a record; returns the metrics of a step."""
        if table == "steps":
            return self._step(row)
        if table == "spans" and row[5] == 0:
            self._open_phases[row[0]] = self._open_phases.get(row[0], 0) + row[3]
        elif table == "lifecycle" and row[2] is not None:
            self.events_ns[row[0]] += row[2] - row[1]
        return None

    def _step(self, row: tuple[Any, ...]) -> dict[str, Any]:
        number, start, end, wait, tokens, samples, loss, profiled = row
        before, self._previous_end = self._previous_end, end
        took = end - (start if before is None else before)
        slow = False
        if not profiled and before is not None:
            slow = self._is_slow(took)
            self._recent.append((took, tokens, wait))
        self.counts["steps"] += 1
        self.counts["slow_steps"] += slow
        self.counts["profiled_steps"] += bool(profiled)
        for name, value in (("tokens", tokens), ("samples", samples), ("data_wait_ns", wait)):
            self.counts[name] += value or 0
        phases, self._open_phases = self._open_phases, {}
        self.phases_ns.update(phases)
        self.last = {
            "step": number, "step_ns": took, "data_wait_ns": wait, "tokens": tokens, "samples": samples, "loss": loss,
            "slow": slow, "profiled": bool(profiled), "phases_ns": phases,
            "mfu": None if profiled or before is None else self.yardstick.mfu(tokens, took / 1e9),
        }  # fmt: skip
        return self.last

    def _is_slow(self, took: int) -> bool:
        if len(self._recent) < REFRESH:
            return False
        if self._limit is None or self.counts["steps"] % REFRESH == 0:  # two medians a step would be our largest cost
            times = sorted(one[0] for one in self._recent)
            median = times[len(times) // 2]
            spread = sorted(abs(one - median) for one in times)[len(times) // 2]
            self._limit = median + max(3 * MAD_TO_SIGMA * spread, FLOOR * median)
        return took > self._limit

    def snapshot(self) -> dict[str, Any]:
        """Return counts since the start and speeds over the recent steps; unknown is None."""
        took = sum(one[0] for one in self._recent)
        counted = [one[1] for one in self._recent]
        tokens = sum(one or 0 for one in counted) if counted and None not in counted else None
        speed = tokens / took * 1e9 if tokens is not None and took else None
        times = sorted(one[0] for one in self._recent)
        waits = [one[2] for one in self._recent]
        replica = self.yardstick.devices_per_replica
        return {
            "step": self.last.get("step"),
            "step_ns": self.last.get("step_ns"),
            "step_p50_ns": times[len(times) // 2] if times else None,
            "loss": self.last.get("loss"),
            "tokens_per_second": speed,
            "tokens_per_second_per_device": speed / replica if speed is not None and replica else None,
            "mfu": None if tokens is None else self.yardstick.mfu(tokens, took / 1e9),
            "data_wait_ratio": sum(w or 0 for w in waits) / took
            if took and any(w is not None for w in waits)
            else None,
            "peak_memory_bytes": self.memory_bytes,
            "counts": dict(self.counts),
            "phases_ns": dict(self.phases_ns),
            "events_ns": dict(self.events_ns),
        }


def line(metrics: dict[str, Any]) -> str:
    """Return the line that `log_every` prints."""
    parts = [f"step {metrics['step']}"]
    if metrics["loss"] is not None:
        parts.append(f"loss {metrics['loss']:.4f}")
    if metrics["step_p50_ns"] is not None:
        parts.append(f"{metrics['step_p50_ns'] / 1e6:,.1f} ms/step")
    if metrics["tokens_per_second_per_device"] is not None:
        parts.append(f"{metrics['tokens_per_second_per_device']:,.0f} tokens/s/device")
    elif metrics["tokens_per_second"] is not None:
        parts.append(f"{metrics['tokens_per_second']:,.0f} tokens/s/replica")
    if metrics["mfu"] is not None:
        parts.append(f"MFU {metrics['mfu']:.1%}")
    if metrics["data_wait_ratio"] is not None:
        parts.append(f"data {metrics['data_wait_ratio']:.1%}")
    if metrics["peak_memory_bytes"] is not None:
        parts.append(f"peak {metrics['peak_memory_bytes'] / 2**30:.2f} GiB")
    if slow := metrics["counts"].get("slow_steps"):
        parts.append(f"{slow} slow")
    return " · ".join(parts)
