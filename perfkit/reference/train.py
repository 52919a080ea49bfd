"""The reference training loop: torchrun --nproc-per-node 2 -m perfkit.reference.train [--section.field VALUE]…

    --fault slow-rank:1:1.5x      break it on purpose (perfkit.reference.faults)
    --transform fused-qkv         rewrite the model (perfkit.reference.transforms)

Everything goes to `--train.folder`: config.json, the job's own log (job-<rank>.jsonl), checkpoints/, and perfkit's
store. Started again, or restarted by torchrun, it goes on from the newest checkpoint that verifies. Each phase is a
lifecycle event: init, checkpoint_restore, step, eval, checkpoint_save, drain, fault, end.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from perfkit.errors import PerfkitError
from perfkit.reference.checkpoint import Checkpointer
from perfkit.reference.config import Config, describe, parse
from perfkit.reference.data import Loader, TokenData, make_corpus
from perfkit.reference.faults import Faults, parse_fault
from perfkit.reference.instrument import Probe
from perfkit.reference.joblog import JobLog
from perfkit.reference.model import Decoder
from perfkit.reference.optim import clip_gradients, learning_rate, make_optimizer, set_learning_rate
from perfkit.reference.parallel import accumulate, data_place, make_mesh, parallelise, start
from perfkit.reference.progress import Progress
from perfkit.reference.transforms import transform


class Trainer:
    """One rank of the job."""

    def __init__(self, config: Config, device: torch.device) -> None:
        self.config, self.device = config, device
        self.rank = dist.get_rank()
        self.attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.folder = Path(config.train.folder)
        self.log = JobLog(self.folder, self.rank, self.attempt)
        self.log.write("start", pid=os.getpid(), world_size=dist.get_world_size())
        self.mesh = make_mesh(config.parallel, device)
        self.probe = Probe.open(config, self.folder, self.mesh)
        self._build()  # perfkit records `init` by itself: from the start of the process to the first step
        if self.checkpoints.any_committed():
            with self.probe.event("checkpoint_restore"):
                self._restore()

    def _build(self) -> None:
        config = self.config
        torch.manual_seed(config.train.seed)
        faults = tuple(parse_fault(text) for text in config.faults)
        watched = self.folder / "checkpoints" if config.checkpoint.every else None
        self.faults = Faults(faults, rank=self.rank, attempt=self.attempt, checkpoints=watched)
        replica, replicas = data_place(self.mesh)
        data = self._open_data()
        held_back = max(1, int(data.sequences * config.data.eval_share))
        cut = data.sequences - held_back
        batch: dict[str, Any] = {
            "global_batch": config.train.global_batch, "micro_batch": config.train.micro_batch, "replica": replica,
            "replicas": replicas, "seed": config.data.seed,
        }  # fmt: skip
        self.loader = Loader(data, **batch, last=cut)
        self.make_eval_loader: Callable[[], Loader] = partial(Loader, data, **batch, first=cut)
        self.dtype = _autocast_dtype(config.train.dtype, self.device)
        done = transform(Decoder(config.model).to(self.device), config.transforms)
        self.loss = done.loss
        self.faults.install(done.model.blocks)
        self.model = parallelise(done.model, self.mesh, config.parallel, dtype=self.dtype, compile=config.train.compile)
        self.optimizer = make_optimizer(self.model, config.optim, fused=done.fused_optimizer)
        slow = self.faults.mine.get("slow-checkpoint")
        if slow is not None:
            config.checkpoint.blocking = True
        self.checkpoints = Checkpointer(
            self.folder / "checkpoints", config.checkpoint, report=self._report,
            before_write=self.faults.before_write,
            writer=FileSystemWriter if slow is None else lambda path: _SlowWriter(path, self.faults.write_delay_s),
        )  # fmt: skip
        self.first_step = 0
        self.stop = False

    def _restore(self) -> None:
        began = time.time_ns()
        restored = self.checkpoints.restore(self.model, self.optimizer)
        if restored is not None:
            self.first_step, extra = restored
            self.loader.restore(extra["loader"])
            self.log.write("restored", step=self.first_step, start_ns=began, end_ns=time.time_ns())

    def run(self) -> None:
        """Train to the last step, or to SIGTERM."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        try:
            self._loop()
        except Exception as error:  # usually a peer that is gone
            self.log.write("failed", error=f"{type(error).__name__}: {error}"[:500])
            raise
        self.checkpoints.close()
        self.probe.finish()
        dist.barrier()  # nobody leaves while another still listens
        self.log.write("end")
        self.log.close()

    def _loop(self) -> None:
        config, loader = self.config, self.loader
        progress = Progress(config.train.steps) if config.train.progress and self.rank == 0 else None
        batches = iter(self.probe.data(self.faults.data(iter(loader))))
        for step in range(self.first_step, config.train.steps):
            self.faults.before_step(step)
            batch = next(batches).to(self.device, non_blocking=True)
            began = time.time_ns()
            tokens = batch[..., 1:].numel()
            with self.probe.step(step, tokens=tokens, samples=tokens // config.model.seq_len):
                loss, stop = self.train_step(step, batch)
                self.probe.log("loss", loss)
            ended, job_tokens, mfu = time.time_ns(), tokens * data_place(self.mesh)[1], self.probe.mfu()
            self.log.write("step", step=step, start_ns=began, end_ns=ended, loss=loss, tokens=job_tokens, mfu=mfu)
            if progress:
                progress.show(step, loss, job_tokens, mfu)
            if config.train.eval_every and (step + 1) % config.train.eval_every == 0:
                with self.probe.event("eval"):
                    self.log.write("eval", step=step, loss=self.evaluate())
            if stop:
                with self.probe.event("drain"):
                    self._save(step + 1)
                    self.checkpoints.wait()
                self.log.write("drained", step=step + 1)
                break
            if config.checkpoint.every and (step + 1) % config.checkpoint.every == 0:
                with self.probe.event("checkpoint_save", step=step):
                    self._save(step + 1)
        if progress:
            progress.close()

    def train_step(self, step: int, batch: Tensor) -> tuple[float, bool]:
        """Run forward, backward and the optimizer; return the job's loss and whether some rank was told to stop."""
        config = self.config
        set_learning_rate(self.optimizer, learning_rate(step, config.train.steps, config.optim))
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        for number, micro in enumerate(batch):
            with accumulate(self.model, last=number == len(batch) - 1):
                with self.probe.span("forward"):
                    loss = self._forward(micro)
                with self.probe.span("backward"):
                    (loss / len(batch)).backward()
                total += loss.detach() / len(batch)
        with self.probe.span("optimizer"):
            clip_gradients(self.model.parameters(), config.optim.clip)
            self.optimizer.step()
        self.faults.before_meeting()
        told = torch.stack((total, total.new_tensor(float(self.stop))))
        dist.all_reduce(told)
        return float(told[0]) / dist.get_world_size(), float(told[1]) > 0

    def evaluate(self) -> float:
        """Return the mean loss over the sequences that are held back, the same ones each time."""
        self.model.eval()
        total = torch.zeros((), device=self.device)
        batches = iter(self.make_eval_loader())
        with torch.no_grad():
            for _ in range(self.config.train.eval_batches):
                batch = next(batches).to(self.device)
                for micro in batch:
                    total += self._forward(micro) / len(batch)
        self.model.train()
        dist.all_reduce(total)
        return float(total) / self.config.train.eval_batches / dist.get_world_size()

    def _forward(self, micro: Tensor) -> Tensor:
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None):
            loss: Tensor = self.model(micro[:, :-1], micro[:, 1:], self.loss)
        return loss

    def _save(self, next_step: int) -> None:
        began = time.time_ns()
        self.checkpoints.save(next_step, self.model, self.optimizer, {"loader": self.loader.state()})
        self.log.write("saved", step=next_step, start_ns=began, end_ns=time.time_ns())

    def _report(self, kind: str, values: dict[str, Any]) -> None:
        self.log.write(kind, **values)
        if kind == "checkpoint_failed":  # no `fault`: training goes on
            cause = f"not written: {values['reason']}"
            with self.probe.event("checkpoint_save", step=values["step"], cause=cause, blocking=False):
                pass

    def _open_data(self) -> TokenData:
        config = self.config
        path = Path(config.data.path) if config.data.path else self.folder / "corpus.bin"
        if not config.data.path and self.rank == 0:
            wanted = config.data.tokens
            if not path.is_file() or path.stat().st_size != 2 * wanted:
                make_corpus(path, tokens=wanted, vocab=config.model.vocab, seed=config.data.seed)
        dist.barrier()
        return TokenData(path, seq_len=config.model.seq_len, vocab=config.model.vocab)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        self.stop = True


class _SlowWriter(FileSystemWriter):
    """Files that take longer, as on a busy shared file system."""

    def __init__(self, path: Path, delay_s: float) -> None:
        super().__init__(path)
        self._delay_s = delay_s

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Wait, then write."""
        time.sleep(self._delay_s)
        return super().write_data(plan, planner)


def _pin_to_core() -> None:
    """Give each process of this host a core of its own, as far as they go round, and one thread."""
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        cores = apart(sorted(os.sched_getaffinity(0)))
        os.sched_setaffinity(0, {cores[int(os.environ.get("LOCAL_RANK", "0")) % len(cores)]})


def apart(cores: Sequence[int], sys_cpu: Path = Path("/sys/devices/system/cpu")) -> list[int]:
    """Order logical cores so that those of one physical core come far apart: hyperthreads share its units."""
    seen: Counter[str] = Counter()
    order: list[tuple[int, int]] = []
    for core in cores:
        path = sys_cpu / f"cpu{core}" / "topology" / "thread_siblings_list"
        siblings = path.read_text() if path.is_file() else str(core)
        order.append((seen[siblings], core))
        seen[siblings] += 1
    return [core for _, core in sorted(order)]


def _autocast_dtype(name: str, device: torch.device) -> torch.dtype | None:
    if name == "fp32" or (name == "auto" and not (device.type == "cuda" and torch.cuda.is_bf16_supported())):
        return None
    return torch.bfloat16


def main(argv: Sequence[str] | None = None) -> int:
    """Train; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(words):
        print(__doc__, describe())  # noqa: T201  # the command's own output
        return 0
    try:
        config = parse(words)
        for text in config.faults:
            parse_fault(text)
        if config.train.pin and not torch.cuda.is_available():
            _pin_to_core()  # before gloo starts its threads: they inherit it
        device = start(config.parallel)
        try:
            trainer = Trainer(config, device)
            if trainer.rank == 0:
                (trainer.folder / "config.json").write_text(config.to_json())
            trainer.run()
        finally:
            dist.destroy_process_group()
    except PerfkitError as error:
        print(f"perfkit.reference: {error}", file=sys.stderr)  # noqa: T201  # one line, and torchrun shows the rank
        return error.exit_code
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # all is written: leave at once. Groups that the mesh still holds are torn down at interpreter exit otherwise, and
    # gloo then sometimes ends a finished job with "terminate called without an active exception"
    os._exit(code)
