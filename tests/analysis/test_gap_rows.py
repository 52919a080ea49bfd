"""When a device stood still: the rows keep every ns of every cause."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_rows import events, kernel

from perfkit.analysis import gap_rows
from perfkit.analysis.analyze import analyze
from perfkit.analysis.culprits import Blame
from perfkit.analysis.idle import CAUSES, Gaps
from perfkit.analysis.timeline import read_timelines
from perfkit.analysis.windows import Windows
from perfkit.cli.main import main

NONE = np.empty(0, np.int64)


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


CULPRITS = [("sync", "a.py:1"), ("sync", "b.py:2"), ("python", None)]
Stretch = tuple[int, int, int, int]  # length, pause after it, cause, label


def plain_rows(stretches: list[tuple[int, int, int, int]], edges: list[int]) -> list[tuple]:
    """Share the rows out one stretch at a time: (start, end, idle, stretches, cause, culprit, where)."""
    found: dict[tuple, list[tuple[int, int, int, int]]] = {}
    for window, (low, high) in enumerate(pairwise(edges)):
        inside = [s for s in stretches if low <= s[0] < high]
        longest = set(sorted(inside, key=lambda s: (s[0] - s[1], s[0]))[: gap_rows.MAX_ROWS])
        for one in inside:
            who = CULPRITS[one[3]][0] if one[3] >= 0 else None
            cell = one if one in longest else (one[0] - low) // ((high - low) // gap_rows.CELLS + 1)
            found.setdefault((window, one[2], who, cell), []).append(one)
    rows = []
    for (_, cause, who, _), row in found.items():
        places = {CULPRITS[s[3]][1] if s[3] >= 0 else None for s in row}
        where = places.pop() if len(places) == 1 else None
        idle = sum(s[1] - s[0] for s in row)
        rows.append((min(s[0] for s in row), max(s[1] for s in row), idle, len(row), CAUSES[cause], who, where))
    return rows


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3), st.integers(0, 3), st.integers(-1, 2)), max_size=60),
    st.integers(1, 4),
)
def test_rows_are_shared_as_one_stretch_at_a_time_would_share_them(drawn: list[Stretch], windows: int) -> None:
    stretches, now = [], 100
    for length, pause, cause, label in drawn:
        stretches.append((now, now + length, cause, label))
        now += length + pause
    size = (now - 100) // windows + 1
    edges = [100 + size * i for i in range(windows + 1)]
    cut = sorted(  # gaps never cross a window
        (max(a, low), min(b, high), cause, label)
        for a, b, cause, label in stretches
        for low, high in pairwise(edges)
        if a < high and b > low
    )
    start, end, cause, label = (np.array(column, np.int64) for column in zip(*cut, strict=True)) if cut else (NONE,) * 4
    shuffled = np.random.default_rng(len(cut)).permutation(len(cut))
    gaps = Gaps(*(NONE for _ in Gaps._fields))._replace(cause=cause)
    found = Blame(shuffled, start[shuffled], end[shuffled], label[shuffled], CULPRITS)
    (timeline,) = read_timelines(events(kernel(0, 1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gap_rows, "MAX_ROWS", 2)
        patch.setattr(gap_rows, "CELLS", 3)
        table = gap_rows.gap_rows(
            timeline, 0, Windows(np.arange(windows), np.array(edges), "test"), gaps, found
        ).to_pylist()
        expected = plain_rows(cut, edges)
    got = [
        (r["start_ns"], r["start_ns"] + r["dur_ns"], r["idle_ns"], r["stretches"], r["cause"], r["culprit"], r["where"])
        for r in table
    ]
    assert [row[0] for row in got] == sorted(row[0] for row in got), "rows come by their start"
    assert sorted(got, key=str) == sorted(expected, key=str)
