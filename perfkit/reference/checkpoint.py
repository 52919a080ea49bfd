"""Asynchronous sharded checkpoints: committed whole or not at all, verified, the last N kept.

    keeper = Checkpointer(folder, config, report=log)
    keeper.save(step, model, optimizer, {"loader": …})     returns when the state is copied; training goes on meanwhile
    keeper.restore(model, optimizer)                       -> (step, extra) of the newest one that verifies, or None
    keeper.close()                                         waits for the last write

    step-00000040.tmp/        being written by torch.distributed.checkpoint, one file per rank
    step-00000040/            complete: renamed after every rank's file and the metadata are on disk
    step-00000040/commit.json step, world size, and size and CRC-32 of every file: written before the rename

A crash at any moment leaves the older checkpoints as they were, and at most one `.tmp` that the next attempt removes.
A write that fails (a full disk) costs this checkpoint and not the training: it is reported and the next one is
tried. Model and optimizer are saved under canonical names, so that another number of ranks, or another kind of
parallelism, can load them.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save, save

from perfkit.errors import UsageError

COMMIT = "commit.json"


@dataclass(kw_only=True, slots=True)
class CheckpointConfig:
    """When and how checkpoints are written."""

    every: int = 0
    """Steps between checkpoints; 0 writes none, except on SIGTERM."""
    keep: int = 2
    """Committed checkpoints that stay on disk."""
    blocking: bool = False
    """Wait for the write instead of going on training."""

    def __post_init__(self) -> None:
        if self.every < 0 or self.keep < 1:
            raise UsageError(f"checkpoint.every {self.every}, keep {self.keep}", next_step="keep at least one")


def committed(folder: Path) -> list[int]:
    """Return the steps of complete checkpoints, the oldest first; does not read their files."""
    found = folder.glob(f"step-????????/{COMMIT}") if folder.is_dir() else ()
    return sorted(int(path.parent.name.removeprefix("step-")) for path in found)


def place(folder: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint."""
    return folder / f"step-{step:08d}"


def verify(path: Path) -> str | None:
    """Return what is wrong with a checkpoint, or None: every file has the size and CRC-32 of its commit."""
    try:
        commit = json.loads((path / COMMIT).read_text())
        for name, (size, crc) in commit["files"].items():
            if (path / name).stat().st_size != size:
                return f"{name} has not {size} bytes"
            if _crc(path / name) != crc:
                return f"{name} has changed since it was written"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


class Checkpointer:
    """Writes and reads the checkpoints of a job; every rank has one and calls it in the same order."""

    def __init__(
        self, folder: Path, config: CheckpointConfig, *, report: Callable[[str, dict[str, Any]], None],
        before_write: Callable[[Path], None] = lambda path: None, writer: Callable[[Path], Any] = FileSystemWriter,
    ) -> None:  # fmt: skip
        self.folder, self.config, self.report = folder, config, report
        self.before_write, self.writer = before_write, writer
        self.rank = dist.get_rank()
        self.group = dist.new_group(backend="gloo")  # its own: it runs beside the collectives of training
        self._committing: threading.Thread | None = None
        if self.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob("*.tmp"):  # of an attempt that died
                shutil.rmtree(left, ignore_errors=True)
        dist.barrier(group=self.group)

    def save(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, extra: dict[str, Any]) -> None:
        """Copy the state and write it, beside training unless told to block. One write at a time."""
        self.wait()
        final = place(self.folder, step)
        if final.exists():  # the step was reached again after a restart: what is there is the same
            return
        temporary = final.with_name(f"{final.name}.tmp")
        if self.rank == 0:
            temporary.mkdir(parents=True, exist_ok=True)
        self.before_write(temporary)
        state = _state(model, optimizer, extra, self.rank)
        started = time.time_ns()
        if self.config.blocking:
            future: Future[Any] = Future()
            try:
                future.set_result(save(state, storage_writer=self.writer(temporary), process_group=self.group))
            except (Exception, CheckpointException) as error:  # the latter is a BaseException
                future.set_exception(error)
        else:
            # a path, not a writer: writers stage by themselves, and on a CPU they do not copy
            started_save = async_save(state, checkpoint_id=temporary, process_group=self.group)
            future = started_save.upload_completion if isinstance(started_save, AsyncSaveResponse) else started_save
        self._committing = threading.Thread(target=self._commit, args=(future, step, temporary, final, started))
        self._committing.start()
        if self.config.blocking:
            self.wait()

    def wait(self) -> None:
        """Return when nothing is being written any more."""
        if self._committing is not None:
            self._committing.join()
        self._committing = None

    close = wait

    def any_committed(self) -> bool:
        """Whether there is something to restore, as rank 0 sees it: ranks that disagreed would wait for ever."""
        found = [bool(committed(self.folder))]
        dist.broadcast_object_list(found, src=0, group=self.group)
        return found[0]

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, dict[str, Any]] | None:
        """Load the newest checkpoint that verifies; rank 0 chooses for all."""
        chosen: list[int | None] = [self._choose() if self.rank == 0 else None]
        dist.broadcast_object_list(chosen, src=0, group=self.group)
        if chosen[0] is None:
            return None
        path = place(self.folder, chosen[0])
        state = _state(model, optimizer, {}, self.rank)
        reader = FileSystemReader(path)
        saved = reader.read_metadata().state_dict_metadata
        if f"rng.{self.rank}" not in saved:
            del state[f"rng.{self.rank}"]  # another number of ranks: this one had no generator then
        load(state, storage_reader=reader, process_group=self.group)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        if f"rng.{self.rank}" in state:
            torch.set_rng_state(state[f"rng.{self.rank}"])
        return chosen[0], json.loads(state["extra"])

    def _choose(self) -> int | None:
        for step in reversed(committed(self.folder)):
            problem = verify(place(self.folder, step))
            if problem is None:
                return step
            self.report("checkpoint_rejected", {"step": step, "reason": problem})
        return None

    def _commit(self, future: Future[Any], step: int, temporary: Path, final: Path, started: int) -> None:
        try:
            future.result()
            if self.rank == 0:
                files = {p.name: (p.stat().st_size, _crc(p)) for p in sorted(temporary.iterdir())}
                commit = {"step": step, "world_size": dist.get_world_size(), "files": files}
                (temporary / COMMIT).write_text(json.dumps(commit))
                temporary.replace(final)
                for old in committed(self.folder)[: -self.config.keep]:
                    shutil.rmtree(place(self.folder, old), ignore_errors=True)
            self.report("checkpoint_committed", {"step": step, "start_ns": started, "end_ns": time.time_ns()})
        except (Exception, CheckpointException) as error:  # whatever a writer raises must not end the training
            if self.rank == 0:
                shutil.rmtree(temporary, ignore_errors=True)
            reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
            self.report("checkpoint_failed", {"step": step, "reason": reason, "start_ns": started})


def _state(model: nn.Module, optimizer: torch.optim.Optimizer, extra: dict[str, Any], rank: int) -> dict[str, Any]:
    parameters, moments = get_state_dict(model, optimizer)
    return {
        "model": parameters,
        "optimizer": moments,
        "extra": json.dumps(extra),
        f"rng.{rank}": torch.get_rng_state(),
    }


def _crc(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            value = zlib.crc32(chunk, value)
    return value
