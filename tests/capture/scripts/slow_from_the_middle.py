"""Three ranks of DDP on gloo; from the middle on, rank 2 computes much more than the others.

Ends when two traces have been written, or after four minutes. The steps mostly sleep, so that a busy machine changes
their length little; the fault makes them several times longer.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import perfkit

BEGINS, SLOW_RANK, GIVE_UP_SECONDS = 45, 2, 240


def busy(seconds: float) -> None:
    """Compute for this much CPU time."""
    end = time.thread_time() + seconds
    square = torch.ones(64, 64)
    while time.thread_time() < end:
        square = square @ square / 64


def main() -> None:
    store = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    pk = perfkit.init(
        run="slow", store=store, flush_seconds=0.1, host_seconds=0, gpu_seconds=0,
        trigger=perfkit.TriggerRule(slower=1.0, per_hour=1),
        profile=perfkit.ProfileSchedule(first=10**9, every=0, min_free_bytes=0),
    )  # fmt: skip
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    began = time.monotonic()
    left = None
    for step in range(100_000):
        with pk.step(tokens=32):
            with pk.span("forward"):
                time.sleep(0.06)
                if rank == SLOW_RANK and step >= BEGINS:
                    busy(0.3)
                loss = model(torch.randn(8, 32)).square().mean()
            loss.backward()
            optimizer.step()
        traces = len(list(store.glob("spool/**/traces/step-*.json"))) + len(list(store.glob("traces/**/*.json.gz")))
        if left is None and (traces >= 2 or time.monotonic() - began > GIVE_UP_SECONDS):
            left = 5
        left = None if left is None else left - 1
        stop = torch.tensor(float(rank == 0 and left is not None and left <= 0))
        dist.all_reduce(stop)
        if stop.item():
            break
    if rank == 0:
        print("FAULT AT", BEGINS, flush=True)
    pk.finish(timeout=240)
    dist.barrier()
    os._exit(0)  # gloo's threads are not always gone when the interpreter is


if __name__ == "__main__":
    main()
