"""A store with real events: simulated traces through the real ingest and the real analysis."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from perfkit.cli.main import main

RUNS = {
    "tp": ["--ranks", "8", "--parallel", "dp=4,tp=2", "--fault", "slow-rank:5:1.3x", "--fault", "data-stall:3:4ms"],
    "pp": ["--ranks", "4", "--parallel", "pp=2,dp=2"],
}
"""Rank 5 of `tp` computes slowly, and rank 3 waits for data; `pp` is healthy and sends messages."""
HOSTILE = "<img src=x onerror=window.PWNED=1>"
HARDWARE = "NVIDIA H100 80GB HBM3"


def make_traced(path: Path, *, layers: int = 2, steps: int = 3) -> Path:
    """Simulate, ingest and analyse the runs; return the store."""
    store = path / "store"
    for run, options in RUNS.items():
        traces = path / run
        size = ["--layers", str(layers), "--steps", str(steps), "--seed", "11"]
        assert main(["simulate", "trace", *options, *size, "-o", str(traces)]) == 0
        assert main(["ingest", str(traces), "--store", str(store), "--cluster", "lab", "--run", run]) == 0
        answer = ["--format", "json", "-o", str(path / f"{run}.json")]
        assert main(["analyze", f"lab/{run}", "--store", str(store), *answer]) == 0
    return store


def make_hostile(path: Path, store: Path) -> None:
    """Add the run `hostile`, whose kernels and ops have a name that a careless page would run."""
    traces = path / "hostile"
    assert (
        main(["simulate", "trace", "--ranks", "2", "--layers", "1", "--steps", "2", "--seed", "1", "-o", str(traces)])
        == 0
    )
    for file in traces.rglob("*.json*"):
        packed = file.suffix == ".gz"
        document = json.loads(gzip.decompress(file.read_bytes()) if packed else file.read_bytes())
        for event in document.get("traceEvents", ()) if isinstance(document, dict) else ():
            if event.get("cat") in ("kernel", "cpu_op") and "nccl" not in event["name"]:
                event["name"] = f"{HOSTILE} {event['name']}"
        text = json.dumps(document).encode()
        file.write_bytes(gzip.compress(text) if packed else text)
    assert main(["ingest", str(traces), "--store", str(store), "--cluster", "lab", "--run", "hostile"]) == 0
    assert (
        main(["analyze", "lab/hostile", "--store", str(store), "--format", "json", "-o", str(path / "hostile.json")])
        == 0
    )
