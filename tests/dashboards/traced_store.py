"""A store with real events: simulated traces through the real ingest and the real analysis."""

from __future__ import annotations

from pathlib import Path

from perfkit.cli.main import main

RUNS = {
    "tp": ["--ranks", "8", "--parallel", "dp=4,tp=2", "--fault", "slow-rank:5:1.3x", "--fault", "data-stall:3:4ms"],
    "pp": ["--ranks", "4", "--parallel", "pp=2,dp=2"],
}
"""Rank 5 of `tp` computes slowly, and rank 3 waits for data; `pp` is healthy and sends messages."""
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
