"""Tokens from a memory-mapped file, in an order that depends on the seed and on nothing else.

    make_corpus(path, tokens=…, vocab=…, seed=…)                       a text-like corpus, the same for the same seed
    TokenData(path, seq_len=…, vocab=…)                                [sequences, seq_len + 1] over a memory map
    Loader(data, global_batch=…, replica=…, replicas=…, …).state()     samples of the whole job so far: one number

A sample's place in the epoch is global: replica r of n takes its slice of each global batch. So a job resumed on
another number of ranks, with the same global batch, reads exactly the samples that it would have read. There are no
workers and no prefetch: reading a memory map takes microseconds, and what a slow source costs is then easy to see.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from perfkit.errors import InputError, UsageError

Tokens = npt.NDArray[np.uint16]
MAGIC = {"format": "perfkit-tokens", "dtype": "uint16"}


@dataclass(kw_only=True, slots=True)
class DataConfig:
    """Where the tokens come from."""

    path: str = ""
    """File of uint16 tokens; empty: a corpus is generated in the run folder."""
    tokens: int = 2_000_000
    """Size of a generated corpus."""
    eval_share: float = 0.02
    """Share of the sequences, at the end of the file, that is kept for evaluation."""
    seed: int = 1
    """Seed of the generated corpus and of the order of samples."""

    def __post_init__(self) -> None:
        if not 0 < self.eval_share < 0.5:
            raise UsageError(f"data.eval_share {self.eval_share}", next_step="use a share between 0 and 0.5")


def make_corpus(path: Path, *, tokens: int, vocab: int, seed: int) -> Path:
    """Write tokens with structure to learn: words of 2 to 5 tokens, drawn by Zipf's law, as a text has them."""
    if vocab > 2**16:
        raise UsageError(f"a vocabulary of {vocab} does not fit uint16", next_step="use at most 65536")
    rng = np.random.default_rng(seed)
    count = 4096
    lengths = rng.integers(2, 6, count)
    words = rng.integers(0, vocab, (count, 5)).astype(np.uint16)
    chosen = np.minimum(rng.zipf(1.3, tokens // 2 + 1), count) - 1  # enough: every word has two tokens at least
    picked, sizes = words[chosen], lengths[chosen]
    stream = picked[np.arange(5) < sizes[:, None]][:tokens]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(stream.astype("<u2").tobytes())
    header = path.with_suffix(".json")
    header.write_text(json.dumps({**MAGIC, "tokens": len(stream), "vocab": vocab, "seed": seed, "generated": True}))
    temporary.replace(path)
    return path


class TokenData:
    """Sequences of seq_len + 1 tokens; input and target overlap by all but one."""

    def __init__(self, path: Path, *, seq_len: int, vocab: int) -> None:
        if not path.is_file():
            raise InputError("no such file", path=str(path), next_step="leave data.path out to generate a corpus")
        self.stream: Tokens = np.memmap(path, np.dtype("<u2"), "r")
        self.seq_len = seq_len
        self.sequences = (len(self.stream) - 1) // seq_len
        if self.sequences < 2:
            raise InputError(f"{len(self.stream)} tokens make no two sequences", path=str(path))
        header = path.with_suffix(".json")
        known = json.loads(header.read_text()).get("vocab") if header.is_file() else None
        if known is not None and known > vocab:
            raise InputError(f"tokens up to {known}, model.vocab is {vocab}", path=str(path))

    def read(self, numbers: npt.NDArray[np.int64]) -> Tensor:
        """Return these sequences, [n, seq_len + 1]."""
        rows = numbers[:, None] * self.seq_len + np.arange(self.seq_len + 1)
        return torch.from_numpy(self.stream[rows].astype(np.int64))


class Loader:
    """Endless batches of one data-parallel replica; stateful, resumable, sharded."""

    def __init__(
        self, data: TokenData, *, global_batch: int, micro_batch: int, replica: int, replicas: int, seed: int,
        first: int = 0, last: int | None = None,
    ) -> None:  # fmt: skip
        if global_batch % (micro_batch * replicas):
            raise UsageError(
                f"a global batch of {global_batch} cannot be cut into micro-batches of {micro_batch} on "
                f"{replicas} replicas",
                next_step="make train.global_batch a multiple of train.micro_batch times the replicas",
            )
        self.data, self.micro_batch, self.global_batch = data, micro_batch, global_batch
        self.replica, self.replicas, self.seed = replica, replicas, seed
        self.first, self.last = first, data.sequences if last is None else last
        self.accumulate = global_batch // (micro_batch * replicas)
        self.position = 0
        self._epoch, self._order = -1, np.zeros(0, np.int64)

    def __iter__(self) -> Iterator[Tensor]:
        """Yield the micro-batches of a step stacked: [accumulate, micro_batch, seq_len + 1]."""
        share = self.global_batch // self.replicas
        while True:
            places = self.position + self.replica * share + np.arange(share)
            batch = self.data.read(self._sequences(places)).unflatten(0, (self.accumulate, self.micro_batch))
            self.position += self.global_batch  # before the yield: whoever saves after the step saves the next place
            yield batch

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint has to keep."""
        return {"position": self.position}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.position = int(state["position"])

    def _sequences(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        size = self.last - self.first
        result = np.empty(len(places), np.int64)
        for epoch in np.unique(places // size).tolist():
            here = places // size == epoch
            if epoch != self._epoch:
                self._epoch, self._order = epoch, np.random.default_rng((self.seed, epoch)).permutation(size)
            result[here] = self.first + self._order[places[here] % size]
        return result
