"""What the rules of `findings` look at, weighed by who sets the pace.

    Facts(steps=..., terms=..., kernels=..., ...)         the tables of an analysis
    facts.paced(table, "idle_ns")                         GPU-ns of the job that each row of a rank costs

Ranks that train together move at the pace of the slowest. Its loss is everybody's, and the time that the others
spend in communication meanwhile is not a loss of the network. So per step the rank with the least exposed
communication stands for all: what it lost, times the number of devices, is what the job could recover. This needs
no clocks. Ranks that do not communicate stand for themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.distortion import Distortion
from perfkit.analysis.intervals import Ints
from perfkit.analysis.ops import Floats
from perfkit.analysis.timeline import ints
from perfkit.analysis.utilisation import Peaks

if TYPE_CHECKING:
    from perfkit.analysis.job_results import JobResults

_NO_STEP = -(2**62)


@dataclass(frozen=True)
class Facts:
    """Tables of an analysis; see the modules that make them."""

    steps: pa.Table
    terms: pa.Table
    kernels: pa.Table
    idle: pa.Table
    """By the step that launched the next work: the wait for a step's data is that step's."""
    exchanges: pa.Table
    copies: pa.Table
    distortion: Sequence[Distortion] = ()
    peaks: Peaks = field(default_factory=Peaks)
    mfu: float | None = None
    quality: Mapping[str, Any] = field(default_factory=dict)
    job: JobResults | None = None
    """What the ranks together show; None for one rank without communication."""

    @cached_property
    def window_ns(self) -> int:
        """B: GPU-ns of all windows."""
        return int(pc.sum(self.steps["window_ns"]).as_py() or 0)

    @property
    def has_device(self) -> bool:
        """Whether any rank has device work: stretches of host ops are not kernels."""
        return bool(self.quality.get("device_events"))

    @property
    def by_nsys(self) -> bool:
        """Whether Nsight Systems recorded all of it: whoever did is told its options, not torch.profiler's."""
        return set(self.quality.get("sources") or ()) == {"nsys"}

    @cached_property
    def num_steps(self) -> int:
        """Distinct steps, at least 1."""
        return max(1, len(set(self.steps["step"].to_pylist())))

    @cached_property
    def num_devices(self) -> int:
        """Devices that were traced."""
        return max(1, len(set(zip(self.steps["rank"].to_pylist(), self.steps["device"].to_pylist(), strict=True))))

    def points(self, gpu_ns: float) -> float:
        """Return GPU-ns as points of the ladder."""
        return 100.0 * gpu_ns / self.window_ns if self.window_ns else 0.0

    @cached_property
    def pace(self) -> dict[tuple[int, int | None, int], int]:
        """(rank, device, step) -> devices that it stands for; those left out stand for none."""
        rows = self.steps
        keys = list(zip(rows["rank"].to_pylist(), rows["device"].to_pylist(), _steps(rows).tolist(), strict=True))
        if self.num_devices == 1 or not (pc.sum(rows["comm_ns"]).as_py() or 0):
            return dict.fromkeys(keys, 1)
        members: dict[int, list[tuple[int, int]]] = {}
        for i, (key, exposed) in enumerate(zip(keys, rows["exposed_comm_ns"].to_pylist(), strict=True)):
            members.setdefault(key[2], []).append((exposed, i))
        return {keys[min(found)[1]]: len(found) for found in members.values()}

    def paced(self, table: pa.Table, column: str) -> Floats:
        """Return the GPU-ns that each row of a table with rank, device and step costs the job."""
        keys = zip(table["rank"].to_pylist(), table["device"].to_pylist(), _steps(table).tolist(), strict=True)
        pace = self.pace
        weight = np.array([pace.get(key, 0) for key in keys], np.float64)
        result: Floats = ints(table[column], 0) * weight
        return result

    def paced_sum(self, table: pa.Table, column: str, by: Sequence[str]) -> list[dict[str, Any]]:
        """Sum the paced GPU-ns of a column by some text columns, the largest first."""
        rows = table.select(list(by)).append_column("gpu_ns", pa.array(self.paced(table, column)))
        rows = rows.append_column("ns", table[column])
        found = rows.group_by(list(by), use_threads=False).aggregate([("gpu_ns", "sum"), ("ns", "sum")])
        listed: list[dict[str, Any]] = found.rename_columns([*by, "gpu_ns", "ns"]).to_pylist()
        return sorted((r for r in listed if r["gpu_ns"] > 0), key=lambda r: (-r["gpu_ns"], str(r)))

    @cached_property
    def late_host(self) -> dict[str, list[dict[str, Any]]]:
        """Culprit -> places, each with the GPU-ns that it costs the job."""
        late = self.idle.filter(pc.equal(self.idle["cause"].cast(pa.utf8()), "host_late"))
        late = pa.table({c: late[c].cast(pa.utf8()) if c in ("culprit", "where") else late[c]
                         for c in ("rank", "device", "step", "culprit", "where", "idle_ns")})  # fmt: skip
        result: dict[str, list[dict[str, Any]]] = {}
        for row in self.paced_sum(late, "idle_ns", ["culprit", "where"]):
            result.setdefault(row["culprit"] or "unattributed", []).append(row)
        return result

    def paced_idle(self, cause: str) -> float:
        """GPU-ns of idle time with a cause."""
        return float(self.paced(self.idle_of(cause), "idle_ns").sum())

    def idle_of(self, cause: str, *, blamed: bool | None = None) -> pa.Table:
        """Return the rows of `idle` with a cause: all, or only those with or without a culprit."""
        rows = self.idle.filter(pc.equal(self.idle["cause"].cast(pa.utf8()), cause))
        if blamed is None:
            return rows
        return rows.filter(pc.is_valid(rows["culprit"]) if blamed else pc.is_null(rows["culprit"]))

    def kernel_rows(self, condition: pa.ChunkedArray) -> pa.Table:
        """Return kernels that meet a condition, the longest first."""
        return self.kernels.filter(condition).sort_by([("owned_ns", "descending")])

    def family(self, *names: str) -> pa.ChunkedArray:
        """Mark kernels of some families."""
        return pc.is_in(self.kernels["family"].cast(pa.utf8()), pa.array(names))


def _steps(table: pa.Table) -> Ints:
    return ints(table["step"], _NO_STEP)
