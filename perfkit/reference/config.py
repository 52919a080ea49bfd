"""The configuration of a run: one dataclass beside each owner, joined here, overridable by `--section.field value`.

    config = parse(["--train.steps", "8", "--model.dim", "128", "--fault", "slow-rank:1:1.5x"])

A value is read as the field's type; an unknown name is an error with the nearest one that exists.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from perfkit.errors import UsageError
from perfkit.reference.checkpoint import CheckpointConfig
from perfkit.reference.data import DataConfig
from perfkit.reference.instrument import CaptureConfig
from perfkit.reference.model import ModelConfig
from perfkit.reference.optim import OptimConfig
from perfkit.reference.parallel import ParallelConfig

DTYPES = ("auto", "bf16", "fp32")


@dataclass(kw_only=True, slots=True)
class TrainConfig:
    """The loop."""

    folder: str = "runs/reference"
    """Everything that the run writes goes here."""
    steps: int = 60
    """Steps of the whole run, over all attempts."""
    global_batch: int = 8
    """Sequences of a step of the whole job."""
    micro_batch: int = 4
    """Sequences of one forward pass on one replica; what is left of the global batch is accumulated."""
    eval_every: int = 0
    """Steps between evaluations; 0 does not evaluate."""
    eval_batches: int = 2
    """Global batches of an evaluation."""
    seed: int = 0
    """Seed of the weights."""
    dtype: str = "auto"
    """Autocast: bf16, fp32, or auto: bf16 where the GPU has it."""
    compile: str = ""
    """Backend of torch.compile, for example inductor; empty does not compile."""
    pin: bool = True
    """On a CPU: one core and one thread per process."""
    progress: bool = False
    """Rank 0 writes a progress bar with live metrics to standard error."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UsageError(f"train.dtype {self.dtype!r}", next_step=f"use one of {', '.join(DTYPES)}")
        for name in ("steps", "global_batch", "micro_batch"):
            if getattr(self, name) < 1:
                raise UsageError(f"train.{name} {getattr(self, name)} makes no sense", next_step="use 1 or more")


@dataclass(kw_only=True, slots=True)
class Config:
    """All sections."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    capture: CaptureConfig = field(default_factory=CaptureConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    faults: tuple[str, ...] = ()
    transforms: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the configuration as it is written beside the run."""
        return json.dumps(dataclasses.asdict(self), indent=1)


def parse(argv: Sequence[str]) -> Config:
    """Read a command line of `--section.field value`, `--fault F` and `--transform T`."""
    given: dict[str, dict[str, Any]] = {}
    repeated: dict[str, list[str]] = {"fault": [], "transform": []}
    words = list(argv)
    while words:
        word = words.pop(0)
        name, equals, text = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not (equals or words):
            raise UsageError(f"{word!r} is not --section.field VALUE", next_step="see `--help`")
        value = text if equals else words.pop(0)
        if name in repeated:
            repeated[name].append(value)
            continue
        section, _, key = name.partition(".")
        given.setdefault(section, {})[key] = _convert(name, value)
    sections = {name: _SECTIONS[name](**values) for name, values in given.items()}
    return Config(**sections, faults=tuple(repeated["fault"]), transforms=tuple(repeated["transform"]))


_SECTIONS: dict[str, Any] = {
    "model": ModelConfig, "data": DataConfig, "optim": OptimConfig, "parallel": ParallelConfig,
    "checkpoint": CheckpointConfig, "capture": CaptureConfig, "train": TrainConfig,
}  # fmt: skip


def _fields() -> dict[str, Any]:
    return {f"{name}.{key}": kind for name, cls in _SECTIONS.items() for key, kind in get_type_hints(cls).items()}


def _convert(name: str, text: str) -> Any:
    kinds = _fields()
    if name not in kinds:
        close = difflib.get_close_matches(name, kinds, n=1)
        hint = f"did you mean --{close[0]}?" if close else "see `--help`"
        raise UsageError(f"unknown option --{name}", next_step=hint)
    kind = kinds[name]
    try:
        if kind is bool:
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
        if kind in (int, float, str):
            return kind(text)
        return tuple(float(part) for part in text.split(","))
    except (KeyError, ValueError):
        wanted = getattr(kind, "__name__", str(kind))
        raise UsageError(f"--{name} {text!r} is not {wanted}") from None


def describe() -> str:
    """Return every option with its default, for `--help`."""
    lines = []
    for name, cls in _SECTIONS.items():
        lines += ["", f"{name}: {(cls.__doc__ or '').strip()}"]
        lines += [f"  --{name}.{f.name:<16} {f.default!r}" for f in dataclasses.fields(cls)]
    return "\n".join(lines)
