"""Capture sample_traces/ddp_gloo: a small DDP job on CPU, profiled by torch.profiler on every rank.

    torchrun --standalone --nproc-per-node 2 sample_traces/capture.py sample_traces/ddp_gloo

Needs torch. The model is a toy; the traces are real: profiler, gloo collectives and data loader are
the ones that training jobs use.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

STEPS = 4


def train(folder: Path) -> None:
    """Train a few steps and write `rank<r>.pt.trace.json.gz`."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]))
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(TensorDataset(torch.randn(64 * (STEPS + 2), 256)), batch_size=64)
    activities = [torch.profiler.ProfilerActivity.CPU]
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=STEPS)
    with torch.profiler.profile(activities=activities, schedule=schedule, record_shapes=True) as profiler:
        for (batch,) in loader:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            profiler.step()
    raw = folder / f"rank{rank}.pt.trace.json"
    profiler.export_chrome_trace(str(raw))
    with gzip.GzipFile(f"{raw}.gz", "wb", mtime=0) as packed:
        packed.write(raw.read_bytes())
    raw.unlink()
    dist.destroy_process_group()


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    train(target)
