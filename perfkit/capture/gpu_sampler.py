"""Start, watch and read the process that reads GPUs; never wait for it.

    sampler = GpuSampler(); batch = sampler.poll(); sampler.close()

`poll` takes what has arrived and returns at once. Silence for longer than `patience_s` means that a driver call
hangs: the process is killed (and not waited for: in a hung system call it dies when the driver lets it), one
`nvml_unresponsive` happening is given, and another one is started after a pause that grows. A machine without GPUs,
or with a broken driver, gives `absent` and costs nothing more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from perfkit.capture.gpus import Gpu, Happening

PATIENCE_S = 10.0
FIRST_PAUSE_S = 30.0
MAX_STARTS = 5
READ_BYTES = 1 << 20


@dataclass(slots=True)
class GpuBatch:
    """What arrived: counter rows (time_ns, device, uuid, metric, series, value) and happenings."""

    rows: list[tuple[int, int, str, str, str | None, float]] = field(default_factory=list)
    happenings: list[Happening] = field(default_factory=list)


class GpuSampler:
    """The parent's side of the reader process."""

    def __init__(
        self,
        *,
        interval_s: float = 1.0,
        slow_every: int = 10,
        patience_s: float = PATIENCE_S,
        max_starts: int = MAX_STARTS,
    ) -> None:
        self._command = [
            *(sys.executable, "-m", "perfkit.capture.gpu_process"),
            *("--interval", str(interval_s), "--slow-every", str(slow_every)),
        ]
        self._patience = patience_s + interval_s
        self._max_starts = max_starts
        self._pause = FIRST_PAUSE_S
        self._starts = 0
        self._again_at: float | None = None
        self._rest = b""
        self._process: subprocess.Popen[bytes] | None = None
        self.gpus: list[Gpu] = []
        self.absent: str | None = None
        self._start()

    def _start(self) -> None:
        self._starts += 1
        self._rest = b""
        self._again_at = None
        self._heard = time.monotonic()
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError as error:
            self.absent = f"the GPU reader cannot be started: {error}"
            return
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def poll(self) -> GpuBatch:
        """Return what has arrived since the last call."""
        batch = GpuBatch()
        if self._process is None:
            if self._again_at is not None and time.monotonic() >= self._again_at:
                self._start()
            return batch
        ended = self._drain(batch)
        if self.absent is not None:
            self.close()
        elif ended:
            self._give_up(batch, "nvml_error", f"the GPU reader ended with code {self._process.poll()}")
        elif time.monotonic() - self._heard > self._patience:
            self._give_up(batch, "nvml_unresponsive", f"no answer from the driver for {self._patience:.0f} s")
        return batch

    def _drain(self, batch: GpuBatch) -> bool:
        assert self._process is not None
        assert self._process.stdout is not None
        while True:
            try:
                data = os.read(self._process.stdout.fileno(), READ_BYTES)
            except BlockingIOError:
                return False
            if not data:
                return True
            self._heard = time.monotonic()
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line), batch)

    def _take(self, message: dict[str, Any], batch: GpuBatch) -> None:
        if "gpus" in message:
            self.gpus = [Gpu(*about) for about in message["gpus"]]
            self.absent = message["absent"]
            return
        time_ns = message["time_ns"]
        batch.rows += [(time_ns, *row) for row in message["rows"]]
        batch.happenings += [Happening(*about) for about in message["happenings"]]

    def _give_up(self, batch: GpuBatch, kind: str, detail: str) -> None:
        self._kill()
        if self._starts >= self._max_starts:
            self.absent = f"{detail}; given up after {self._starts} starts"
        else:
            self._again_at = time.monotonic() + self._pause
            self._pause *= 2
        batch.happenings.append(Happening(time.time_ns(), None, None, kind, "warning", detail=detail))

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            process.returncode = -9  # in a system call that hangs; the kernel takes it when that ends

    def close(self) -> None:
        """End the reader without waiting for the driver."""
        self._again_at = None
        self._kill()
