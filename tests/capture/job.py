"""A small training job, run as a process of its own by the tests: `python -m tests.capture.job STORE [options]`.

Prints `LOSS <hex>` when it has trained, the same with and without perfkit. `--fault` breaks something on the way;
`--ranks` jobs are started with torchrun and train with gloo, DDP or FSDP2.
"""

from __future__ import annotations

import argparse
import errno
import os
import resource
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

import perfkit
from perfkit.capture import segments, writer

FAULT_AT = 8


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("--spool", default="")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--parallel", choices=("none", "ddp", "fsdp"), default="none")
    parser.add_argument("--fault", default="none")
    parser.add_argument("--profile", type=int, default=0, metavar="FIRST", help="first profiled step")
    parser.add_argument("--finish-seconds", type=float, default=120.0)
    parser.add_argument("--acknowledged", type=Path, help="folder: <attempt>-<rank> holds the last acknowledged step")
    return parser.parse_args(argv)


def slow_down(true):
    def slow(*args):
        time.sleep(0.7)
        return true(*args)

    return slow


def break_at_start(fault: str) -> None:
    """Break what must be broken before the first record."""
    if fault == "slow-disk":
        segments.os = type("SlowOs", (), {**vars(os), "write": slow_down(os.write), "fsync": slow_down(os.fsync)})
    elif fault == "export":

        def fails(self, path):
            raise OSError(errno.EIO, "Input/output error", path)

        torch.profiler.profile.export_chrome_trace = fails


def break_now(fault: str, store: Path, pk: object) -> None:
    """Break what is broken in the middle."""
    if fault == "full-disk":  # every write that would make a file longer than this fails
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        deadline = time.monotonic() + 60
        while getattr(pk, "on", False) and time.monotonic() < deadline:
            time.sleep(0.01)
    elif fault == "vanishing-store":
        shutil.rmtree(store.rename(store.with_name("gone")), ignore_errors=True)
    elif fault == "clock":
        true = time.time_ns
        writer.time = type("SteppedTime", (), {**vars(time), "time_ns": staticmethod(lambda: true() - 3600 * 10**9)})
    elif fault == "fork":
        child = os.fork()
        if child == 0:
            with perfkit.step(tokens=1), perfkit.span("child"):
                os._exit(0)
        os.waitpid(child, 0)
    elif fault == "exception":
        raise RuntimeError("the script's own exception")
    elif fault == "sigterm":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    elif fault == "sigkill" or (fault == "sigkill-rank-1" and is_victim()):
        os.kill(os.getpid(), signal.SIGKILL)


def is_victim() -> bool:
    """Rank 1, until it has been restarted five times."""
    return os.environ["RANK"] == "1" and int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < 5


def build(parallel: str) -> torch.nn.Module:
    model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    if parallel == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif parallel == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),)))
    return model


def wait_until_acknowledged(pk: object, step: int) -> None:
    """Wait for the writer, so that a fault meets a recorder that has something on disk."""
    deadline = time.monotonic() + 60
    while getattr(pk, "on", False) and (pk.acknowledged_step or 0) < step and time.monotonic() < deadline:
        time.sleep(0.01)


def tell(path: Path | None, pk: object) -> None:
    """Write down which step the recorder says is safe."""
    if path is not None and pk.acknowledged_step is not None:
        path.write_text(str(pk.acknowledged_step))


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    break_at_start(args.fault)
    profile = perfkit.ProfileSchedule(first=args.profile or 3, every=0, active=2, ranks="all", min_free_bytes=0)
    pk = perfkit.init(
        run="job", store=args.store, spool=args.spool, mesh={"dp": int(os.environ.get("WORLD_SIZE", 1))},
        flops_per_token=1e6, peak_flops=1e13, profile=profile if args.profile else None, flush_seconds=0.05,
        sync_seconds=0.2, host_seconds=0.5,
    )  # fmt: skip
    rank = int(os.environ.get("RANK", 0))
    told = args.acknowledged and args.acknowledged / f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}-{rank}"
    if args.parallel != "none":
        torch.distributed.init_process_group("gloo")
    model = build(args.parallel)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(1 + rank)
    batches = [torch.randn(16, 32) for _ in range(args.steps)]
    loss = torch.zeros(())
    for number, batch in enumerate(pk.data(batches)):
        if number == FAULT_AT and args.fault != "none":
            wait_until_acknowledged(pk, number - 1)
            tell(told, pk)
            break_now(args.fault, args.store, pk)
        with pk.step(tokens=512, samples=16):
            with pk.span("forward"):
                loss = model(batch).pow(2).mean()
            with pk.span("backward"):
                loss.backward()
            with pk.span("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            pk.log("loss", loss.detach())
        time.sleep(args.step_seconds)
        tell(told, pk)
    sys.stdout.write(f"LOSS {rank} {loss.item().hex()}\n")
    sys.stdout.flush()
    pk.finish(timeout=args.finish_seconds)
    if args.parallel != "none":
        torch.distributed.barrier()
        os._exit(0)  # gloo's threads are not always gone when the interpreter is; that abort is not ours to test
    return 0


if __name__ == "__main__":
    sys.exit(main())
