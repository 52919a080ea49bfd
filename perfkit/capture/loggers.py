"""Hand the online metrics to TensorBoard, MLflow or Weights & Biases, if they are there.

    loggers = Loggers(("tensorboard", my_function), store, guard)
    loggers.notice()               on the training thread, at each step
    loggers.offer(run, metrics)    never waits: a full queue drops and says so once
    loggers.end(); loggers.join(deadline)

They have a thread of their own: a server that hangs stops neither training nor the spool. One that fails three
times is switched off, the others go on. The script's own run is used, perfkit starts none and closes none.

MLflow keeps the active run per thread, so `notice` looks for it where the script started it. W&B drops rows whose
step is lower than one it has seen, and counts every row: a row of ours could cost the script its own. So our values
join the script's next row (`commit=False`), with `perfkit/step` as their axis.
"""

from __future__ import annotations

import importlib.util
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from perfkit.capture.guard import Guard, describe, say

Sink = Callable[[int, dict[str, Any]], None]
QUEUE_STEPS = 1000
NAME_LETTERS = 150


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
        found[f"perfkit/phase_seconds/{_plain(name)}"] = ns / 1e9
    return {name: value for name, value in found.items() if value is not None}


def _scaled(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9


def _plain(name: str) -> str:
    """Return a span's name as MLflow, the strictest, takes it: words, no path."""
    return re.sub(r"[^\w -]", "_", str(name))[:NAME_LETTERS].strip() or "_"


class Loggers:
    """The loggers of one recorder, and their thread."""

    def __init__(self, wanted: str | Iterable[Any], store: str, guard: Guard) -> None:
        self._wanted = (wanted,) if isinstance(wanted, str) or callable(wanted) else tuple(wanted)
        self._store, self._guard = store, guard
        self._queue: queue.Queue[tuple[str, dict[str, Any]] | None] = queue.Queue(QUEUE_STEPS)
        self._thread: threading.Thread | None = None
        self._looking = "mlflow" in self._wanted
        self.mlflow_run: str | None = None
        self.dropped = 0

    def notice(self) -> None:
        """Look for MLflow's active run, until there is one; called on the thread of the script."""
        if self._looking and (mlflow := sys.modules.get("mlflow")) is not None:
            try:
                if (run := mlflow.active_run()) is not None:
                    self.mlflow_run, self._looking = run.info.run_id, False
            except Exception as error:
                self._looking = False
                self._guard.give_up("logger mlflow", describe(error))

    def offer(self, run: str, metrics: dict[str, Any]) -> None:
        """Hand over the metrics of a step."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="perfkit-loggers", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait((run, metrics))
        except queue.Full:
            if not self.dropped:
                say("loggers are slower than the steps; they do not get all of them (the store does)")
            self.dropped += 1

    def end(self) -> None:
        """Let the thread finish what it has; returns at once."""
        if self._thread is not None:
            try:
                self._queue.put_nowait(None)
            except queue.Full:
                self._thread = None  # it hangs; there is nothing to wait for

    def join(self, deadline: float) -> None:
        """Wait for the thread, but not beyond the deadline."""
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
            if self._thread.is_alive():
                say("loggers did not finish in time; their last steps may be missing")

    # ---------------------------------------------------------------- the thread

    def _work(self) -> None:
        sinks: list[tuple[str, Sink]] | None = None
        while (item := self._queue.get()) is not None:
            run, metrics = item
            if sinks is None:
                sinks = self._open(run)
            for part, sink in sinks:
                if self._guard.ok(part):
                    self._feed(part, sink, metrics)
        for part, sink in sinks or ():
            close = getattr(sink, "close", None)
            if close is not None:
                try:
                    close()
                except Exception as error:
                    self._guard.give_up(part, describe(error), "its last steps may be missing")

    def _feed(self, part: str, sink: Sink, metrics: dict[str, Any]) -> None:
        try:
            sink(metrics["step"], metrics)
            self._guard.succeeded(part)
        except Exception as error:
            self._guard.failed(part, error)

    def _open(self, run: str) -> list[tuple[str, Sink]]:
        """Open every logger that can be opened; say which cannot."""
        makers: dict[str, Callable[[], Sink]] = {
            "tensorboard": lambda: TensorBoard(self._store, run),
            "mlflow": lambda: Mlflow(self),
            "wandb": Wandb,
        }
        sinks: list[tuple[str, Sink]] = []
        for one in self._wanted:
            if callable(one):
                sinks.append((f"logger {getattr(one, '__name__', one)}", one))
            elif one not in makers:
                say(f"logger {one!r} is not one of {', '.join(makers)} or a function (step, metrics)")
            else:
                try:
                    sinks.append((f"logger {one}", makers[one]()))
                except Exception as error:
                    say(f"logger {one!r} is left out: {describe(error)}")
        return sinks


class TensorBoard:
    """Event files in the store's folder `tensorboard/RUN`, or in `runs/tensorboard/RUN` if the store is remote."""

    def __init__(self, store: str, run: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = Path("runs" if "://" in store else store) / "tensorboard" / run
        self._writer: Any = SummaryWriter(str(folder))

    def __call__(self, step: int, metrics: dict[str, Any]) -> None:
        """Write one step."""
        for name, value in scalars(metrics).items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what waits in memory: the writer holds it for up to two minutes."""
        self._writer.close()


class Mlflow:
    """The run that was active on the script's thread when a step began."""

    def __init__(self, loggers: Loggers) -> None:
        _require("mlflow")
        self._loggers = loggers
        self._client: Any = None

    def __call__(self, step: int, metrics: dict[str, Any]) -> None:
        """Write one step, in one request."""
        run, now_ms = self._loggers.mlflow_run, int(time.time() * 1000)
        if run is None:
            return
        mlflow: Any = sys.modules["mlflow"]
        self._client = self._client or mlflow.MlflowClient()
        rows = [mlflow.entities.Metric(name, value, now_ms, step) for name, value in scalars(metrics).items()]
        self._client.log_batch(run, metrics=rows)


class Wandb:
    """The script's `wandb.run`; our values join its next row."""

    def __init__(self) -> None:
        _require("wandb")
        self._defined: str | None = None

    def __call__(self, step: int, metrics: dict[str, Any]) -> None:
        """Leave the numbers for the next row."""
        run: Any = getattr(sys.modules.get("wandb"), "run", None)
        if run is None:
            return
        if run.id != self._defined:
            run.define_metric("perfkit/*", step_metric="perfkit/step")
            self._defined = run.id
        run.log({**scalars(metrics), "perfkit/step": step}, commit=False)


def _require(package: str) -> None:
    """Ask whether a package is there. It is not imported: without the script's own run there is nothing to log to."""
    if importlib.util.find_spec(package) is None:
        raise ImportError(f"{package} is not installed")
