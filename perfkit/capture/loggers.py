"""Hand the online metrics to TensorBoard, MLflow or Weights & Biases, if they are there.

    open_sinks(("tensorboard", my_function), store, run) -> [sink, …];   sink(step, metrics)

Called on the writer thread of rank 0. The script's own run is used (`mlflow.active_run`, `wandb.run`): perfkit
starts none and closes none. A logger that fails three times is switched off like every other part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from perfkit.capture.guard import say

Sink = Callable[[int, dict[str, Any]], None]


def scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return what a logger draws; unknown values are left out."""
    found = {
        "perfkit/step_seconds": _scaled(metrics.get("step_ns")),
        "perfkit/data_wait_seconds": _scaled(metrics.get("data_wait_ns")),
        "perfkit/mfu": metrics.get("mfu"),
        "perfkit/slow_step": float(bool(metrics.get("slow"))),
    }
    if metrics.get("tokens") is not None and metrics.get("step_ns"):
        found["perfkit/tokens_per_second"] = metrics["tokens"] / metrics["step_ns"] * 1e9
    for name, ns in (metrics.get("phases_ns") or {}).items():
        found[f"perfkit/phase_seconds/{name}"] = ns / 1e9
    return {name: value for name, value in found.items() if value is not None}


def _scaled(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9


def open_sinks(wanted: Iterable[Any], store: str, run: str) -> list[Sink]:
    """Open every logger that can be opened; say which cannot."""
    sinks: list[Sink] = []
    for one in wanted:
        if callable(one):
            sinks.append(one)
            continue
        try:
            sinks.append(_OPENERS[str(one)](store, run))
        except KeyError:
            say(f"logger {one!r} is not one of {', '.join(_OPENERS)} or a function (step, metrics)")
        except ImportError as error:
            say(f"logger {one!r} is left out: {error}")
    return sinks


def _tensorboard(store: str, run: str) -> Sink:
    from torch.utils.tensorboard import SummaryWriter

    folder = "runs" if "://" in store else store
    writer = SummaryWriter(str(Path(folder) / "tensorboard" / run))

    def sink(step: int, metrics: dict[str, Any]) -> None:
        for name, value in scalars(metrics).items():
            writer.add_scalar(name, value, step)

    return sink


def _mlflow(store: str, run: str) -> Sink:
    import mlflow  # type: ignore[import-not-found, unused-ignore]

    def sink(step: int, metrics: dict[str, Any]) -> None:
        if mlflow.active_run() is not None:
            mlflow.log_metrics(scalars(metrics), step=step)

    return sink


def _wandb(store: str, run: str) -> Sink:
    import wandb  # type: ignore[import-not-found, unused-ignore]

    def sink(step: int, metrics: dict[str, Any]) -> None:
        if wandb.run is not None:
            wandb.run.log({**scalars(metrics), "perfkit/step": step})  # no step=: wandb refuses steps out of order

    return sink


_OPENERS: dict[str, Callable[[str, str], Sink]] = {"tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb}
