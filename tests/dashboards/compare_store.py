"""A store with two runs of one job, the second with a slow rank: simulated, ingested and analysed for real."""

from __future__ import annotations

from pathlib import Path

from perfkit.cli.main import main

RUNS: dict[str, list[str]] = {"before": ["--seed", "1"], "after": ["--seed", "2", "--fault", "slow-rank:1:4x"]}


def make_pair(path: Path) -> Path:
    """Return the store; cluster `lab`, runs `before` and `after`."""
    store = path / "store"
    for run, options in RUNS.items():
        traces = path / run
        size = ["--ranks", "2", "--parallel", "dp=2", "--layers", "2", "--steps", "16"]
        assert main(["simulate", "trace", *size, *options, "-o", str(traces)]) == 0
        assert main(["ingest", str(traces), "--store", str(store), "--cluster", "lab", "--run", run]) == 0
        answer = ["--format", "json", "-o", str(path / f"{run}.json")]
        assert main(["analyze", f"lab/{run}", "--store", str(store), *answer]) == 0
    return store
