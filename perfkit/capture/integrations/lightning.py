"""One callback for Lightning: steps, tokens, data wait, phases, validation, checkpoints, MFU.

    trainer = Trainer(callbacks=[PerfkitCallback(run="my-run", store="runs/", model="llama3-8b")])

A step is an optimizer step: batches that are accumulated belong to one step, recognised by `trainer.global_step`.
Lightning says when a checkpoint is about to be written but not when it is done, so `trainer.save_checkpoint` is
timed itself.
"""

from __future__ import annotations

import functools
from typing import Any

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:  # the older name of the same package
    from pytorch_lightning.callbacks import Callback

from perfkit.capture.integrations.loop import Loop, safely


class PerfkitCallback(Callback):  # type: ignore[misc]  # Any to the type checker
    """Records a Trainer; arguments are those of `perfkit.init`."""

    def __init__(self, run: str | None = None, **settings: Any) -> None:
        self.loop = Loop(run, settings)
        self._settings = settings
        self._global_step = 0

    @safely
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Time checkpoints."""
        save = trainer.save_checkpoint
        if not hasattr(save, "__wrapped__"):

            @functools.wraps(save)
            def timed(*args: Any, **kwargs: Any) -> Any:
                self.loop.mark()
                began = self.loop.mark_ns
                try:
                    return save(*args, **kwargs)
                finally:
                    self._saved(began, trainer.global_step)

            trainer.save_checkpoint = timed

    @safely
    def _saved(self, began: int, step: int) -> None:
        self.loop.record("checkpoint_save", began, step=step)

    @safely
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the recorder."""
        found: dict[str, Any] = {} if "mesh" in self._settings else {"mesh": {"dp": int(trainer.world_size)}}
        if "dtype" not in self._settings:
            precision = str(trainer.precision)
            found["dtype"] = next(
                (name for name in ("bf16", "fp16") if name[2:] in precision and name[:2] in precision), "fp32"
            )
            if precision.startswith("16"):
                found["dtype"] = "fp16"
        self.loop.start(**found)
        self._global_step = trainer.global_step

    @safely
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Open a step with its first batch."""
        self.loop.waited_for_data()
        self.loop.begin_step(trainer.global_step)
        self.loop.count(batch)
        self.loop.open_span("forward")

    @safely
    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """End the forward, begin the backward."""
        self.loop.close_spans()
        self.loop.open_span("backward")

    @safely
    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """End the backward."""
        self.loop.close_spans()

    @safely
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Begin the optimizer."""
        self.loop.close_spans()
        self.loop.open_span("optimizer")

    @safely
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Close the step if the optimizer has moved."""
        self.loop.close_spans()
        if trainer.global_step != self._global_step:
            self._global_step = trainer.global_step
            self.loop.end_step()
            logged = {name: float(value) for name, value in trainer.logged_metrics.items() if _on_host(value)}
            self.loop.log(logged)
        self.loop.mark()

    @safely
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Remember when the evaluation began."""
        self.loop.mark()

    @safely
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Record the evaluation; the sanity check before training is part of starting up."""
        if not trainer.sanity_checking:
            self.loop.record("eval", self.loop.mark_ns, step=trainer.global_step)

    @safely
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Record what ended training."""
        if self.loop.on:
            self.loop.recorder.record_event("fault", self.loop.mark_ns, None, None, type(exception).__name__, True)
        self.loop.finish()

    @safely
    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """End the recording."""
        self.loop.finish()


def _on_host(value: Any) -> bool:
    """Whether a number can be read without waiting for the GPU."""
    return isinstance(value, (int, float)) or not getattr(value, "is_cuda", False)
