"""The newcomer's first minute: train, break if asked, analyze, report.

    result = run_demo(DemoConfig(folder="runs/demo", faults=("slow-rank:1:1.5x",)), say=print)
    result.report.summary["mfu"]["value"], result.html, result.store

Real parts only: torchrun starts one process per core (two at most), perfkit records them as it would a job on GPUs,
and the analysis reads the store. Torch is not imported here: it may be missing, and then the message says so.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit.errors import PerfkitError
from perfkit.reference.incidents import incidents
from perfkit.reference.joblog import LogReader
from perfkit.reference.progress import Progress

if TYPE_CHECKING:
    import pyarrow as pa

    from perfkit.report.report import Report

Say = Callable[[str], None]
POLL_S = 0.2
RESTARTING = ("crash", "hang")
CHECKPOINT_FAULTS = ("crash", "hang", "disk-full", "slow-checkpoint")


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """What to show."""

    folder: Path = Path("runs/demo")
    """Made anew; only a folder that an earlier demo made is overwritten."""
    faults: tuple[str, ...] = ()
    """As perfkit.reference.faults reads them."""
    steps: int = 60
    ranks: int = 2
    """At most; with one core it is one."""
    options: tuple[str, ...] = ()
    """Further options of the training loop."""


@dataclass(frozen=True)
class DemoResult:
    """What the demo leaves behind."""

    folder: Path
    store: Path
    html: Path
    report: Report
    ranks: int
    notes: list[str] = field(default_factory=list)
    incidents: list[str] = field(default_factory=list)
    """What stopped the job or held it up outside the traced steps."""

    @property
    def traces(self) -> Path:
        """Where the compressed traces are."""
        return self.store / "traces"


def run_demo(config: DemoConfig, say: Say) -> DemoResult:
    """Train, analyze and write the report."""
    check_torch()
    ranks, notes = choose_ranks(config.ranks, _cores())
    for note in notes:
        say(note)
    _clear(config.folder)
    store = config.folder / "store"
    say(f"Measuring what one core reaches, for the MFU {_dots()}")
    measured = measure_core(config.folder)
    name, peak = measured["device"], 1e12 * measured["matmul_tflops"]["fp32"]
    broken = f", with {', '.join(config.faults)}" if config.faults else ""
    say(f"Training a small Llama on {ranks} process{'es' if ranks > 1 else ''}, one core each{broken} {_dots()}")
    train(config, ranks, name, peak)
    say(f"Analyzing {_dots()}")
    report = analyze_run(store, config.folder, name)
    html = config.folder / "report.html"
    html.write_text(report.to_html(), encoding="utf-8")
    return DemoResult(config.folder, store, html, report, ranks, notes, incidents(records_of(store)))


def check_torch() -> None:
    """Refuse with the next step if torch is missing."""
    if importlib.util.find_spec("torch") is None:
        raise PerfkitError(
            "the demo trains a model, and torch is not installed",
            next_step="run `pip install 'perfkit[train]'` (or `make demo`, which installs the CPU build), or look at "
            "a trace without it: `perfkit simulate trace --ranks 4 -o traces && perfkit analyze traces`",
        )


def choose_ranks(wanted: int, cores: int) -> tuple[int, list[str]]:
    """Return how many processes this machine can give a core each, and what to say about it."""
    if cores >= wanted:
        return wanted, []
    return max(1, cores), [f"{cores} core here, so the demo is smaller: {max(1, cores)} process, no communication."]


def measure_core(folder: Path) -> dict[str, Any]:
    """Calibrate one core in a process of its own and return the measurement."""
    path = folder / "config" / "measured.json"
    _run([sys.executable, "-m", "perfkit.reference.core_peak", str(path)], "the calibration failed")
    entries = json.loads(path.read_text())["devices"]
    entry: dict[str, Any] = entries[-1]
    return entry


def command(config: DemoConfig, ranks: int, device: str, peak: float) -> list[str]:
    """Return the command line of the training job."""
    kinds = {fault.partition(":")[0].partition("@")[0] for fault in config.faults}
    restarts = "1" if kinds & set(RESTARTING) else "0"
    every = 2 if "slow-checkpoint" in kinds else 10 if kinds & set(CHECKPOINT_FAULTS) else 25
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    words += ["--max-restarts", restarts, "-m", "perfkit.reference.train"]
    options: dict[str, object] = {
        "train.folder": config.folder, "train.steps": config.steps, "train.eval_every": 30,
        "checkpoint.every": every, "capture.run": "demo", "capture.cluster": "demo", "capture.hardware": device,
        "capture.peak_flops": peak, "capture.profile_first": 12, "capture.profile_active": 8,
        "parallel.timeout_s": 40 if "hang" in kinds else 600,
    }  # fmt: skip
    for name, value in options.items():
        words += [f"--{name}", str(value)]
    for fault in config.faults:
        words += ["--fault", fault]
    return [*words, *config.options]


def train(config: DemoConfig, ranks: int, device: str, peak: float) -> None:
    """Run the training job and show its own log as a progress bar; what it prints goes to train.log."""
    words, output = command(config, ranks, device, peak), config.folder / "train.log"
    progress, news = Progress(config.steps), LogReader(config.folder)
    with output.open("wb") as file:
        job = subprocess.Popen(words, env=_environment(), stdout=file, stderr=subprocess.STDOUT)
        try:
            while job.poll() is None:
                _show(news, progress)
                time.sleep(POLL_S)
        finally:
            if job.poll() is None:  # Ctrl-C: torchrun ends its workers
                job.terminate()
                job.wait()
    _show(news, progress)
    progress.close()
    if job.returncode:
        raise PerfkitError(
            f"the training job failed (exit code {job.returncode})", next_step=f"look at {output}, its own output"
        )


def _show(news: LogReader, progress: Progress) -> None:
    for row in news.news():
        if row["kind"] == "step":
            progress.show(row["step"], row["loss"], row["tokens"], row["mfu"], now=row["end_ns"] / 1e9)
        elif row["kind"] == "restored":
            progress.say(f"restarted from the checkpoint of step {row['step']}")
        elif row["kind"] == "checkpoint_failed":
            progress.say(f"checkpoint of step {row['step']} was not written: {row['reason']}")


def analyze_run(store: Path, folder: Path, device: str) -> Report:
    """Put what is left of the spool into the store, and analyze the newest attempt that was traced."""
    from perfkit.analysis.analyze import analyze
    from perfkit.sources.spool import compact_folder, find_spools

    for spool in find_spools(store / "spool"):
        compact_folder(spool, str(store), include_open=True)
    traced = [attempt for attempt in attempts_of(store) if _has_traces(store, attempt)]
    if not traced:
        raise PerfkitError("no trace was captured", next_step=f"look at the job's own log: {folder}/job-0.jsonl")
    before = os.environ.get("PERFKIT_CONFIG_DIR")
    os.environ["PERFKIT_CONFIG_DIR"] = str(folder / "config")  # the measured peak of one core
    try:
        return analyze(
            ["demo"], store=store, cluster="demo", attempt=max(traced), hardware=device, peak="measured", dtype="fp32",
            **job_facts(json.loads((folder / "config.json").read_text())),
        )  # fmt: skip
    finally:
        if before is None:
            del os.environ["PERFKIT_CONFIG_DIR"]
        else:
            os.environ["PERFKIT_CONFIG_DIR"] = before


def attempts_of(store: Path) -> list[int]:
    """Return the attempts of the demo that left records."""
    from perfkit.store import Store

    return sorted(run.key.attempt for run in Store(store).runs(cluster="demo", run="demo"))


def records_of(store: Path) -> dict[int, tuple[pa.Table, pa.Table]]:
    """Return lifecycle and steps of each attempt of the demo."""
    from perfkit.store import Store

    read = partial(Store(store).read, cluster="demo", run="demo")
    return {
        attempt: (read("lifecycle", attempt=attempt), read("steps", attempt=attempt)) for attempt in attempts_of(store)
    }


def job_facts(config: dict[str, Any]) -> dict[str, Any]:
    """Return model and tokens of a step from the configuration that the job wrote, as arguments of `analyze`."""
    model = config["model"]
    spec = {
        "name": "reference", "layers": model["layers"], "hidden": model["dim"], "heads": model["heads"],
        "kv_heads": model["kv_heads"], "ffn": model["ffn"], "gated": True, "vocab": model["vocab"], "tied": False,
        "seq_len": model["seq_len"],
    }  # fmt: skip
    if model["experts"]:
        spec |= {"experts": model["experts"], "active_experts": model["active_experts"], "expert_ffn": model["ffn"]}
    return {"model": spec, "tokens_per_step": config["train"]["global_batch"] * model["seq_len"]}


def _has_traces(store: Path, attempt: int) -> bool:
    return any((store / "traces").glob(f"cluster=demo/run=demo/attempt={attempt}/*.json*"))


def _environment() -> dict[str, str]:
    return {
        **os.environ, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99", "PYTHONWARNINGS": "ignore",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }  # fmt: skip


def _run(words: list[str], failed: str) -> None:
    done = subprocess.run(words, env=_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise PerfkitError(
            f"{failed} (exit code {done.returncode})" + (f": {lines[-1]}" if lines else ""),
            next_step=f"run it alone to see why: {' '.join(words)}",
        )


def _clear(folder: Path) -> None:
    """Remove what an earlier demo left; anything else is not touched."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / ".perfkit-demo").exists():
            raise PerfkitError(f"{folder} holds something else", next_step="name another folder with -o")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".perfkit-demo").touch()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _dots() -> str:
    return "…" if "utf" in (sys.stderr.encoding or "").lower() else "..."
