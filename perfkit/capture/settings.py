"""What `perfkit.init` takes, in one place and checked."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit.capture import names

if TYPE_CHECKING:
    from perfkit.capture.schedule import ProfileSchedule


@dataclass(kw_only=True, slots=True)
class Settings:
    """How to record."""

    store: str = ""
    """Where tables go: a folder or a URI. Default: $PERFKIT_STORE, else `runs`."""
    spool: str = ""
    """Where ranks append. Default: $PERFKIT_SPOOL, else `<store>/spool`, else a temporary folder."""
    model: Any = None
    """Preset name, TransformerSpec or its keys; for model FLOPs."""
    seq_len: int | None = None
    """Sequence length, for the attention term."""
    flops_per_token: float | None = None
    """Model FLOPs of one token (forward and backward), in place of `model`."""
    convention: str | None = None
    """How model FLOPs are counted; default: palm."""
    mesh: Any = None
    """Parallel degrees, `{"dp": 8, "tp": 4}`, a DeviceMesh, or the data-parallel degree. Unknown: MFU is null."""
    hardware: str | None = None
    """Device name for the peak; default: what torch reports."""
    dtype: str = "bf16"
    """Number format of the matmuls, for the peak."""
    peak_flops: float | None = None
    """Peak of one device in FLOP/s, in place of the registry."""
    profile: ProfileSchedule | None = None
    """When perfkit runs torch.profiler; None: only on demand."""
    trigger: Any = None
    """Trace when steps become slower: True, traces per hour, or a TriggerRule. None: not (perfkit.capture.trigger)."""
    log_every: int = 0
    """Steps between lines of metrics on rank 0; 0: none."""
    metrics_port: int | None = None
    """Port of a Prometheus endpoint, served by the side process of local rank 0; 0 picks a free one."""
    metrics_host: str = "127.0.0.1"
    """Address of that endpoint."""
    loggers: tuple[Any, ...] = ()
    """`tensorboard`, `mlflow`, `wandb`, or functions (step, metrics); called on rank 0, off the training thread."""
    first_step: int = 0
    """Number of the first step, for a run that resumes; `step(step=…)` sets it too."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Anything to remember with the run."""
    host_seconds: float = 5.0
    """Seconds between samples of the host; 0: none."""
    gpu_seconds: float = 1.0
    """Seconds between samples of the host's GPUs, by a process of its own; 0: none."""
    gc_events: bool = True
    """Record long garbage collections."""
    gpu_time: bool = True
    """Measure spans on the GPU with CUDA events."""
    gpu_time_every: int = 10
    """Every how many steps; two events cost about ten microseconds a span."""
    flush_seconds: float = 0.5
    """How long a record may wait before it is on disk."""
    sync_seconds: float = 5.0
    """How long it may wait before it survives a power cut."""
    rotate_seconds: float = 600.0
    """Age at which the first segment is handed to the compactor; the age doubles up to four times this.
    `perfkit ingest SPOOL` takes what is there at any time."""
    rotate_bytes: int = 8 << 20
    """Size at which a segment is handed over."""
    buffer_records: int = 65536
    """Records that wait for the writer at most; more are dropped and counted."""
    side_process: bool = True
    """Start the process that compacts, compresses and samples."""
    ingest_traces: bool = True
    """Turn captured traces into tables too."""

    def __post_init__(self) -> None:
        self.store = os.fspath(self.store) or os.environ.get(names.STORE) or "runs"
        if "://" not in self.store:  # the script may change its folder later
            self.store = str(Path(self.store).expanduser().absolute())
        self.spool = str(
            Path(self.spool or os.environ.get(names.SPOOL) or self._default_spool()).expanduser().absolute()
        )
        if self.trigger is not None:
            from perfkit.capture.trigger import rule_from

            self.trigger = rule_from(self.trigger)
        if self.gpu_time_every < 1 or self.buffer_records < 1:
            raise ValueError("gpu_time_every and buffer_records must be at least 1")

    def _default_spool(self) -> str:
        if "://" in self.store:
            return str(Path(tempfile.gettempdir(), f"perfkit-spool-{os.getuid()}"))
        return str(Path(self.store) / names.SPOOL_FOLDER)
