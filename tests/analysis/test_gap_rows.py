"""When a device stood still: the rows keep every ns of every cause."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from perfkit.analysis import gap_rows
from perfkit.analysis.analyze import analyze
from perfkit.cli.main import main


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("gaps") / "traces"
    size = ["--ranks", "2", "--steps", "2", "--layers", "2", "--fault", "data-stall:1:3ms"]
    assert main(["simulate", "trace", *size, "-o", str(folder)]) == 0
    return folder


def by_cause(table: pa.Table) -> Counter:
    found: Counter = Counter()
    for rank, cause, culprit, ns in zip(
        *(table[n].to_pylist() for n in ("rank", "cause", "culprit", "idle_ns")), strict=True
    ):
        found[rank, cause, culprit] += ns
    return found


def check(report) -> None:
    gaps, attribution = report.tables["gaps"], report.tables["attribution"]
    assert by_cause(gaps) == by_cause(report.tables["idle"])
    for row in attribution.filter(pc.invert(attribution["carry_in"])).to_pylist():
        mine = gaps.filter(pc.and_(pc.equal(gaps["rank"], row["rank"]), pc.equal(gaps["step"], row["step"])))
        assert pc.sum(mine["idle_ns"]).as_py() == row["idle_ns"]
        start, end = mine["start_ns"].to_numpy(), pc.add(mine["start_ns"], mine["dur_ns"]).to_numpy()
        assert (start >= row["start_ns"]).all()
        assert (end <= row["start_ns"] + row["window_ns"]).all()
    assert (gaps["idle_ns"].to_numpy() <= gaps["dur_ns"].to_numpy()).all()


def test_every_idle_ns_has_a_place_in_time(traces):
    report = analyze(traces)
    check(report)
    assert set(report.tables["gaps"]["stretches"].to_pylist()) == {1}


def test_short_stretches_share_rows_and_nothing_is_lost(traces, monkeypatch):
    whole = analyze(traces).tables["gaps"]
    monkeypatch.setattr(gap_rows, "MAX_ROWS", 3)
    monkeypatch.setattr(gap_rows, "CELLS", 4)
    report = analyze(traces)
    check(report)
    few = report.tables["gaps"]
    assert len(few) < len(whole) / 2
    assert pc.sum(few["stretches"]).as_py() == len(whole)
    alone = few.filter(pc.equal(few["stretches"], 1))["dur_ns"].to_numpy()
    assert np.sort(alone)[-4:].tolist() == np.sort(whole["dur_ns"].to_numpy())[-4:].tolist(), "the longest stay alone"
