"""Put the GPU counters of a host into the spool, each GPU's with the rank that uses it.

    records = GpuRecords(folder, header, append, interval_s=1.0); records.turn(); records.close()

Runs in the side process of local rank 0. A rank says which GPU it uses (`gpu_uuid` in its live/metrics.json), and the
rows of that GPU go into the folder of that rank, as if it had sampled them; rows of a GPU that no rank of this host has
claimed so far are kept without a rank. What happens to a GPU (an XID, a lost GPU, a driver that hangs) becomes a row of
`health_events`, never a lifecycle `fault`: training may well go on, and goodput counts faults as interruptions.
How the sampling went is said in the run's metadata, and per host by the counter `gpu_sampler_up`.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfkit.capture.gpu_sampler import GpuBatch, GpuSampler
from perfkit.capture.segments import LIVE, SpoolWriter

UUID = "PERFKIT_GPU_UUID"
"""Environment: the GPU of this process, in place of what torch says."""
UP = "gpu_sampler_up"
METADATA = "gpu_counters"
CLAIMS_SECONDS = 5.0
ROTATE_SECONDS = 1200.0

Batch = dict[str, Any]


def own_gpu() -> str | None:
    """Return the UUID of the GPU that the calling thread uses; None if there is none or torch does not know."""
    if given := os.environ.get(UUID):
        return given
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    try:
        uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    except RuntimeError:
        return None
    return None if uuid is None else str(uuid)


def _bare(uuid: str) -> str:
    """Return what NVML (`GPU-1b2c…`) and torch (`1b2c…`) agree on."""
    return uuid.strip().lower().removeprefix("gpu-")


class GpuRecords:
    """Samples the GPUs of the host and hands every row to its rank."""

    def __init__(
        self,
        folder: Path,
        header: dict[str, Any],
        append: Callable[[Batch], None],
        *,
        interval_s: float = 1.0,
        sampler: GpuSampler | None = None,
    ) -> None:
        self._append = append
        self._sampler: GpuSampler | None = sampler or GpuSampler(interval_s=interval_s)
        self._writers: dict[Path, SpoolWriter | None] = {}
        self._claims: dict[str, Path] = {}
        self._claimed_at = self._born = time.monotonic()
        self._seen: set[str] = set()
        self._said: str | None = None
        self.follow(folder, header)

    def follow(self, folder: Path, header: dict[str, Any]) -> None:
        """Go on beside another folder: the rank turned out to be another one."""
        self._folder, self._header = folder, header
        self._claims = {}
        self._claimed_at = 0.0

    @property
    def folders(self) -> list[Path]:
        """Folders of other ranks that hold rows of ours."""
        return list(self._writers)

    def turn(self) -> None:
        """Take what the sampler has, and write it."""
        if self._sampler is None:
            return
        self._write(self._sampler.poll())
        if self._sampler.absent is not None:
            self._say(f"absent: {self._sampler.absent}", up=False)
            self._sampler = None
        for writer in self._writers.values():
            if writer is not None and writer.age_seconds > ROTATE_SECONDS:
                writer.rotate()

    def close(self) -> None:
        """Take the last rows, say how it went, and end the sampler without waiting for a driver."""
        sampler = self._sampler
        if sampler is not None:
            self.turn()
            sampler.close()
            if not self._seen and self._said is None:
                seconds = time.monotonic() - self._born
                self._say(f"none: no answer from the GPU driver in {seconds:.0f} s", up=False)
        self._sampler = None
        for writer in self._writers.values():
            if writer is not None:
                with contextlib.suppress(OSError):
                    writer.close()

    # ---------------------------------------------------------------- inside

    def _write(self, batch: GpuBatch) -> None:
        rows: dict[Path | None, list[Any]] = collections.defaultdict(list)
        if batch.rows:
            claims = self._current_claims()
            for row in batch.rows:
                rows[claims.get(_bare(row[2]))].append(row)
            fresh = {row[2] for row in batch.rows} - self._seen
            if fresh:
                self._seen |= fresh
                self._say(f"{len(self._seen)} GPUs", up=True)
        for folder, own in rows.items():
            if folder is None or not self._append_to(folder, own):
                self._append({"unclaimed_gpu_counters": own})
        if batch.happenings:
            found = batch.happenings
            rows_of = [(h.time_ns, h.index, h.uuid, h.kind, h.severity, h.code, h.detail) for h in found]
            self._append({"health": rows_of})

    def _append_to(self, folder: Path, rows: list[Any]) -> bool:
        """Append to a rank's folder; False if that cannot be done."""
        if folder == self._folder:
            self._append({"gpu_counters": rows})
            return True
        try:
            if folder not in self._writers:
                rank = int(folder.name.rpartition("-")[2])
                self._writers[folder] = SpoolWriter(folder, {**self._header, "rank": rank, "side": True})
            writer = self._writers[folder]
            if writer is not None:
                writer.append({"gpu_counters": rows})
            return writer is not None
        except OSError:
            self._writers[folder] = None
            return False

    def _current_claims(self) -> dict[str, Path]:
        """Return uuid -> folder of the rank that uses it, looked up again every few seconds."""
        now = time.monotonic()
        if now - self._claimed_at >= CLAIMS_SECONDS:
            self._claimed_at = now
            for path in self._folder.parent.glob(f"rank-*/{LIVE}/metrics.json"):
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    found = json.loads(path.read_text())
                    if found.get("host") == self._header["host"] and found.get("gpu_uuid"):
                        for uuid in str(found["gpu_uuid"]).split(","):
                            self._claims[_bare(uuid)] = path.parents[1]
        return self._claims

    def _say(self, text: str, *, up: bool) -> None:
        self._said = text
        self._append({"metadata": {METADATA: text}, "counters": [(time.time_ns(), UP, text, float(up), None)]})
