"""The analyzer against the truth: it sees only rows, the truth only causes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from perfkit.analysis.analyze import analyze, analyze_tables
from perfkit.simulate import Simulation, sample_job, simulate, write_traces

PARTITION = (
    "step", "start_ns", "window_ns", "compute_ns", "exposed_comm_ns", "exposed_memcpy_ns", "idle_ns", "comm_ns",
    "overlap_ns", "spill_ns",
)  # fmt: skip


def check(rank: dict[str, Any], tables: Mapping[str, pa.Table]) -> None:
    """Partition and idle causes of one rank are equal to the ns."""
    rows = [row for row in tables["attribution"].to_pylist() if row["rank"] == rank["rank"]]
    assert [{key: row[key] for key in PARTITION} for row in rows] == [
        {key: row[key] for key in PARTITION} for row in [rank["carry_in"], *rank["steps"]]
    ]
    found: Counter[tuple[object, ...]] = Counter()
    for row in tables["idle"].to_pylist():
        if row["rank"] == rank["rank"]:
            found[row["step"], row["cause"], row["culprit"]] += row["idle_ns"]
    wanted: Counter[tuple[object, ...]] = Counter()
    for row in rank["idle"]:
        if row["window_step"] is not None:
            wanted[row["step"], row["cause"], row["culprit"]] += row["idle_ns"]
    assert found == wanted


def check_tables(sim: Simulation) -> None:
    for rank in sim.truth()["ranks"]:
        check(rank, analyze_tables(sim.tables(rank["rank"])).tables)


@pytest.mark.parametrize("seed", range(8))
def test_the_analyzer_finds_the_truth_to_the_nanosecond(seed: int) -> None:
    check_tables(simulate(sample_job(seed), flows=False))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 208))
def test_the_analyzer_finds_the_truth_of_two_hundred_more_jobs(seed: int) -> None:
    check_tables(simulate(sample_job(seed), flows=False))


@pytest.mark.parametrize("seed", [3, 11, 29, 42, 57])
def test_the_analyzer_finds_the_truth_in_files(seed: int, tmp_path: Path) -> None:
    sim = simulate(sample_job(seed))
    write_traces(sim, tmp_path)
    found = analyze(tmp_path)
    assert found.summary["synthetic"] is True
    for rank in sim.truth()["ranks"]:
        check(rank, found.tables)
