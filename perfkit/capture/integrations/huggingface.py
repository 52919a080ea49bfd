"""One callback for Hugging Face's Trainer: steps, tokens, data wait, phases, evaluation, checkpoints, MFU.

    trainer = Trainer(..., callbacks=[PerfkitCallback(run="my-run", store="runs/")])

A step is an optimizer step, whatever gradient accumulation makes of it; batches are counted where the model sees them
(padding included: the Trainer does not say what is padding without a synchronisation). The time between callbacks is
what tells phases: the Trainer fetches all batches of a step before `on_step_begin`, evaluates before
`on_evaluate` and saves before `on_save`. Model FLOPs come from the model's config unless `model=` is given.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from perfkit.capture.integrations.loop import Loop, safely


class PerfkitCallback(TrainerCallback):  # type: ignore[misc]  # Any to the type checker
    """Records a Trainer; arguments are those of `perfkit.init`."""

    def __init__(self, run: str | None = None, **settings: Any) -> None:
        self.loop = Loop(run, settings)
        self._settings = settings
        self._hooks: list[Any] = []

    @safely
    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Start the recorder and watch the model."""
        self.loop.start(**_found(args, model, self._settings))
        if model is not None:
            self._hooks = [
                model.register_forward_pre_hook(self._forward_begins, with_kwargs=True),
                model.register_forward_hook(self._forward_ends),
            ]

    def _forward_begins(self, model: Any, args: Any, kwargs: Any) -> None:
        if model.training and self.loop.in_step:
            try:
                self.loop.close_spans()
                self.loop.count(kwargs or args)
                self.loop.open_span("forward")
            except Exception as error:
                self.loop.failed(error)

    def _forward_ends(self, model: Any, args: Any, output: Any) -> None:
        if model.training and self.loop.in_step:
            try:
                self.loop.close_spans()
                self.loop.open_span("backward")
            except Exception as error:
                self.loop.failed(error)

    @safely
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open a step; what passed since the last callback was fetching its batches."""
        self.loop.waited_for_data()
        self.loop.begin_step(state.global_step)

    @safely
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the backward, begin the optimizer."""
        self.loop.close_spans()
        self.loop.open_span("optimizer")

    @safely
    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the optimizer."""
        self.loop.close_spans()

    @safely
    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the backward of one part of an accumulated step."""
        self.loop.close_spans()

    @safely
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the step."""
        self.loop.end_step()

    @safely
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Record what the Trainer logs."""
        self.loop.log(logs or {})
        self.loop.mark()

    @safely
    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the evaluation that ends here."""
        self.loop.record("eval", self.loop.mark_ns, step=state.global_step)

    @safely
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the checkpoint that ends here."""
        self.loop.record("checkpoint_save", self.loop.mark_ns, step=state.global_step)

    @safely
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Let go of the model and end the recording."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.loop.finish()


def _found(args: Any, model: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what the Trainer knows and the user did not say."""
    found: dict[str, Any] = {}
    if "mesh" not in settings and getattr(args, "parallelism_config", None) is None:
        found["mesh"] = {"dp": int(getattr(args, "world_size", 1))}
    if "dtype" not in settings:
        half = "fp16" if getattr(args, "fp16", False) else None
        found["dtype"] = "bf16" if getattr(args, "bf16", False) else half or _parameter_dtype(model)
    if not settings.keys() & {"model", "flops_per_token"}:
        spec = _spec(model)
        if spec is not None:
            found["model"] = spec
    return found


def _parameter_dtype(model: Any) -> str:
    parameter = next(iter(model.parameters()), None) if model is not None else None
    return {"torch.bfloat16": "bf16", "torch.float16": "fp16"}.get(str(getattr(parameter, "dtype", "")), "fp32")


def _spec(model: Any) -> Any:
    from perfkit.errors import PerfkitError
    from perfkit.flops.huggingface import spec_from_hf

    config = getattr(model, "config", None)
    try:
        return spec_from_hf(config.to_dict()) if config is not None else None
    except (PerfkitError, AttributeError, TypeError, ValueError):
        return None
