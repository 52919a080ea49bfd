"""Break a training job on purpose: real effects in the real job, not edits of a trace.

    slow-rank:1:1.5x        rank 1 computes 1.5 times as long (of its own CPU time in a step): more matrix products
                            behind every block, and what is then missing before the ranks meet
    slow-data:50ms          every batch comes 50 ms late, on every rank; slow-data:50ms:1 on rank 1 only
    slow-checkpoint:400ms   checkpoints block training, and their files take that much longer
    sync-point:200          every block averages 200 statistics over all ranks, one by one, and reads them on the host
    gc-storm:100ms          Python collects a large heap in every step, for that long
    slow-link:20MBps        the kernel paces the sockets between the ranks (Linux, TCP): the delay is in the transfer
    crash:1:20              rank 1 is killed before step 20 (first attempt only; waits for a committed checkpoint)
    hang:1:20               rank 1 stops before step 20; hang:1:20:30s goes on after 30 s
    disk-full:2             the first 2 checkpoints meet a full disk (/dev/full); without a number all of them

`@N` at the end lets a fault begin at step N. The others know nothing of it: no fault writes a record of its own.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from perfkit.errors import UsageError
from perfkit.reference.checkpoint import committed

_FORMS = {
    "slow-rank": (r"(?P<rank>\d+):(?P<amount>[\d.]+)x", None),
    "slow-data": (r"(?P<amount>[\d.]+)ms(:(?P<rank>\d+))?", 50.0),
    "slow-checkpoint": (r"(?P<amount>[\d.]+)ms", 400.0),
    "sync-point": (r"(?P<amount>\d+)", 200.0),
    "gc-storm": (r"(?P<amount>[\d.]+)ms", 100.0),
    "slow-link": (r"(?P<amount>[\d.]+)mbps", 20.0),
    "crash": (r"(?P<rank>\d+):(?P<step>\d+)", None),
    "hang": (r"(?P<rank>\d+):(?P<step>\d+)(:(?P<amount>[\d.]+)s)?", 1e9),
    "disk-full": (r"(?P<amount>\d+)", 1e9),
}
"""Kind -> what follows it, and the amount if nothing does (None: something must)."""
KINDS = tuple(_FORMS)
HEAP_OBJECTS = 200_000
COMMIT_WAIT_S = 120.0
_SO_MAX_PACING_RATE = 47


@dataclass(frozen=True)
class Fault:
    """One fault."""

    kind: str
    rank: int | None = None
    """Where; None: on every rank."""
    amount: float = 0.0
    """A factor, milliseconds, seconds, MB/s or a number, as the kind has it."""
    step: int = 0
    """When it happens, or begins."""


def parse_fault(text: str) -> Fault:
    """Read `kind[:…][@step]`."""
    whole, _, begin = text.strip().lower().partition("@")
    kind, colon, rest = whole.partition(":")
    if kind not in _FORMS:
        raise UsageError(f"no fault {kind!r}", next_step=f"use one of {', '.join(KINDS)}")
    pattern, default = _FORMS[kind]
    found = re.fullmatch(pattern, rest) if colon else None
    if ((colon or default is None) and found is None) or (begin and not begin.isdigit()):
        example = next(line.split()[0] for line in (__doc__ or "").splitlines() if line.strip().startswith(kind))
        raise UsageError(f"--fault {text!r} cannot be read", next_step=f"write it like {example}")
    parts = found.groupdict() if found else {}
    amount = float(parts["amount"]) if parts.get("amount") else default or 0.0
    if kind == "slow-rank" and amount <= 1:
        raise UsageError(f"--fault {text!r}: a factor above 1 is slower")
    rank = int(parts["rank"]) if parts.get("rank") else None
    return Fault(kind, rank, amount, int(parts["step"]) if parts.get("step") else int(begin or 0))


class Faults:
    """The faults of a job as its loop calls them; without any, each call does nothing."""

    def __init__(self, faults: tuple[Fault, ...], *, rank: int, attempt: int, checkpoints: Path | None) -> None:
        self.rank, self.attempt, self.checkpoints = rank, attempt, checkpoints
        self.mine = {f.kind: f for f in faults if f.rank is None or f.rank == rank}
        self.step = 0
        self._began_s = self._added_s = 0.0
        self._heap: list[Any] = []
        self._failed_writes = 0

    def active(self, kind: str) -> Fault | None:
        """Return the fault of this kind if it is on at the present step."""
        fault = self.mine.get(kind)
        return fault if fault is not None and self.step >= fault.step else None

    def install(self, blocks: nn.ModuleList) -> None:
        """Put hooks on the blocks of the model."""
        for block in blocks:
            if "slow-rank" in self.mine:
                started: list[float] = []
                block.register_forward_pre_hook(lambda *_, s=started: s.append(time.thread_time()))
                block.register_forward_hook(lambda *_, s=started: self._slow_block(s.pop()))
            if "sync-point" in self.mine:
                block.register_forward_hook(lambda module, args, out: self._read_statistics(out))

    def data(self, loader: Iterator[Tensor]) -> Iterator[Tensor]:
        """Hand the batches on, late."""
        for batch in loader:
            if fault := self.active("slow-data"):
                time.sleep(fault.amount / 1e3)
            yield batch

    def before_step(self, step: int) -> None:
        """Crash, hang, or slow the link."""
        self.step = step
        self._began_s, self._added_s = time.thread_time(), 0.0
        crash, hang = self.mine.get("crash"), self.mine.get("hang")
        if crash and crash.step == step and self.attempt == 0:
            self._wait_for_commit()
            os.kill(os.getpid(), signal.SIGKILL)
        if hang and hang.step == step and self.attempt == 0:
            end = time.monotonic() + hang.amount
            while time.monotonic() < end:
                time.sleep(0.1)
        if (link := self.active("slow-link")) and step < link.step + 3:  # groups connect at their first use
            pace_links(link.amount * 1e6)

    def before_meeting(self) -> None:
        """Collect garbage, and catch up on what a slow rank would have needed so far; the ranks meet after this."""
        if slow := self.active("slow-rank"):
            own = time.thread_time() - self._began_s - self._added_s
            self._compute(own * (slow.amount - 1) - self._added_s)
        if not (fault := self.active("gc-storm")):
            return
        if not self._heap:
            self._heap = [{"number": i, "pair": [i, i]} for i in range(HEAP_OBJECTS)]
        end = time.perf_counter() + fault.amount / 1e3
        while time.perf_counter() < end:
            gc.collect()

    def before_write(self, folder: Path) -> None:
        """Put a full disk under this rank's file of a checkpoint."""
        fault = self.active("disk-full")
        if fault and self._failed_writes < fault.amount:
            self._failed_writes += 1
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"__{self.rank}_0.distcp").symlink_to("/dev/full")

    @property
    def write_delay_s(self) -> float:
        """How much longer a checkpoint's files take."""
        fault = self.active("slow-checkpoint")
        return fault.amount / 1e3 if fault else 0.0

    def _slow_block(self, started: float) -> None:
        if fault := self.active("slow-rank"):
            forward = time.thread_time() - started
            passes = 3 if torch.is_grad_enabled() else 1  # the backward pass costs two forward passes
            self._compute(forward * passes * (fault.amount - 1))

    def _compute(self, seconds: float) -> None:
        """Multiply matrices for a while, as a slower device would; in CPU time, so that waiting for others is none."""
        began = time.thread_time()
        a = torch.ones(256, 256)
        with torch.no_grad():
            while time.thread_time() - began < seconds:
                torch.mm(a, a)
        self._added_s += time.thread_time() - began

    def _read_statistics(self, out: Tensor) -> None:
        if fault := self.active("sync-point"):
            statistics = out.detach().abs().flatten(0, -2).mean(0).split(1)
            for number in range(int(fault.amount)):
                value = statistics[number % len(statistics)]
                dist.all_reduce(value)
                value.item()

    def _wait_for_commit(self) -> None:
        end = time.monotonic() + COMMIT_WAIT_S
        while self.checkpoints is not None and not committed(self.checkpoints) and time.monotonic() < end:
            time.sleep(0.05)


def pace_links(bytes_per_second: float) -> int:
    """Let the kernel send at this rate on every TCP connection to another rank; returns how many there are."""
    if not hasattr(os, "sched_getaffinity"):
        raise UsageError("slow-link needs Linux")
    paced, store_port = 0, int(os.environ.get("MASTER_PORT", "0"))
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  # numbers, not paths
        try:
            link = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with link:
            try:
                if link.family not in (socket.AF_INET, socket.AF_INET6) or link.getpeername()[1] == store_port:
                    continue
                link.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, int(bytes_per_second))
                paced += 1
            except OSError:
                continue
    return paced
