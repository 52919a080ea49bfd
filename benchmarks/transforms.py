"""Time and memory of the reference model with each transform, against the model without.

    python benchmarks/transforms.py [--layers 4 --dim 256 --vocab 8192]

CPU time of a training step (user and system, one thread), interleaved so that a busy machine disturbs all alike;
the ratio is of medians, with the spread of the plain model beside it. Memory is the peak of the tensors that live
during a step, from torch's profiler; resident memory would show the allocator's mood.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch

from perfkit.reference.model import Decoder, ModelConfig
from perfkit.reference.optim import OptimConfig, make_optimizer
from perfkit.reference.transforms import NAMES, transform


class Subject:
    """A model with some transforms, and a batch."""

    def __init__(self, config: ModelConfig, names: tuple[str, ...], batch: int) -> None:
        torch.manual_seed(0)
        self.done = transform(Decoder(config), names)
        self.optimizer = make_optimizer(self.done.model, OptimConfig(), fused=self.done.fused_optimizer)
        self.tokens = torch.randint(0, config.vocab, (batch, config.seq_len + 1))

    def step(self) -> None:
        """Train one step."""
        self.optimizer.zero_grad(set_to_none=True)
        self.done.model(self.tokens[:, :-1], self.tokens[:, 1:], self.done.loss).backward()
        self.optimizer.step()

    def cpu_seconds(self) -> float:
        """Return the CPU time of a step."""
        before = time.process_time()
        self.step()
        return time.process_time() - before


def peak_bytes(subject: Subject) -> int:
    """Return the most that tensors made during a step hold at once, gradients included."""
    subject.optimizer.zero_grad(set_to_none=True)  # so that a step starts from the same state
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        subject.step()
    live = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            most = max(most, live)
    return most


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 4), ("dim", 256), ("ffn", 768), ("vocab", 8192), ("seq-len", 128), ("batch", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    config = ModelConfig(layers=args.layers, dim=args.dim, ffn=args.ffn, vocab=args.vocab, seq_len=args.seq_len)
    variants: dict[str, tuple[str, ...]] = {"none": (), **{name: (name,) for name in NAMES}, "all": NAMES}
    subjects = {name: Subject(config, names, args.batch) for name, names in variants.items()}
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for subject in subjects.values():
        subject.step()
    for _ in range(args.rounds):
        for name, subject in subjects.items():
            times[name].append(subject.cpu_seconds())
    base = statistics.median(times["none"])
    peaks = {name: peak_bytes(subject) for name, subject in subjects.items()}
    spread = statistics.median(abs(t - base) for t in times["none"]) / base
    print(f"{args.layers} layers, dim {args.dim}, vocab {args.vocab}, {args.batch} x {args.seq_len} tokens, fp32, CPU")
    print(f"plain step: {base * 1e3:.1f} ms CPU time (median of {args.rounds}, MAD {spread:.1%})")
    print(f"{'transform':<16} {'time':>7} {'peak memory of a step':>24}")
    for name, most in peaks.items():
        ratio = statistics.median(times[name]) / base
        print(f"{name:<16} {ratio:>6.3f}x {most / 2**20:>14.1f} MiB {most / peaks['none']:>7.3f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
