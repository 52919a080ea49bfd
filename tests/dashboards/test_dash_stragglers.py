"""Ranks on the page against their peers: the numbers of `perfkit analyze`, or none."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from perfkit_dashboards import data_ranks, data_stragglers
from perfkit_dashboards.app import layout_for_tests
from perfkit_dashboards.commands import analyse_again, command_of
from perfkit_dashboards.data import Source
from perfkit_dashboards.pages.ranks import cause
from perfkit_dashboards.view import View

import perfkit
from perfkit.analysis.stragglers import own_work
from perfkit.analysis.timeline import ints
from perfkit.cli.main import main
from tests.conftest import ROOT

SLOW_RANK = View(page="ranks", cluster="lab", run="gloo")
PIPELINE = View(page="ranks", cluster="lab", run="stages")
COMPARED = ("role", "peers", "steps", "own_ns", "peers_ns", "score", "persistence", "flagged", "cause", "excess_ns",
            "wait_caused_ns")  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference job with a slow rank, and a simulated pipeline in which rank 2 is slow. Read only."""
    path = tmp_path_factory.mktemp("stragglers")
    size = ["--ranks", "8", "--parallel", "pp=2,tp=2,dp=2", "--layers", "4", "--steps", "6", "--seed", "7"]
    faults = ["--fault", "slow-rank:2:1.4x", "--fault", "data-stall:5:3ms"]
    assert main(["simulate", "trace", *size, *faults, "-o", str(path / "traces")]) == 0
    traces = {"gloo": str(ROOT / "sample_traces" / "reference_slow_rank"), "stages": str(path / "traces")}
    for run, where in traces.items():
        assert main(["ingest", where, "--store", str(path / "store"), "--cluster", "lab", "--run", run]) == 0
        answer = ["--format", "json", "-o", str(path / f"{run}.json")]
        assert main(["analyze", f"lab/{run}", "--store", str(path / "store"), *answer]) == 0
    return path / "store"


def compared(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {row["rank"]: {name: row[name] for name in COMPARED} for row in rows}


def words(layout: Any) -> str:
    return json.dumps(layout, default=lambda part: part.to_plotly_json(), ensure_ascii=False)


@pytest.mark.parametrize("view", [SLOW_RANK, PIPELINE], ids=lambda view: view.run)
def test_the_page_has_the_rows_of_the_analysis(store: Path, view: View) -> None:
    shown = data_stragglers.stragglers(Source(str(store)), view)
    report = perfkit.analyze(f"lab/{view.run}", store=store)
    said = report.tables["stragglers"].to_pylist()
    assert [row["rank"] for row in shown] == [row["rank"] for row in said]
    assert compared(shown) == compared(said)
    scores = {row["rank"]: (row["straggler_score"], row["wait_caused_ns"]) for row in report.summary["ranks"]}
    assert {row["rank"]: (row["score"], row["wait_caused_ns"]) for row in shown} == scores


def test_the_slow_rank_of_the_sample_is_the_one_of_the_readme(store: Path) -> None:
    source = Source(str(store))
    first, second = data_stragglers.stragglers(source, SLOW_RANK)
    assert (first["rank"], first["flagged"], first["cause"]) == (1, True, "compute")
    assert first["score"] == pytest.approx(0.5269, abs=1e-4)
    assert not second["flagged"]
    text = words(layout_for_tests(source, "/ranks", SLOW_RANK.query()))
    assert "1 flagged below 0.90" in text
    assert "its compute takes longer" in text


def test_peers_in_a_pipeline_are_the_ranks_of_the_stage(store: Path) -> None:
    rows = {row["rank"]: row for row in data_stragglers.stragglers(Source(str(store)), PIPELINE)}
    assert {row["peers"] for row in rows.values()} == {3}
    assert rows[2]["flagged"]
    assert rows[2]["cause"] == "compute"
    assert len({rows[rank]["role"] for rank in range(4)}) == 1
    assert rows[0]["role"] != rows[4]["role"]


@pytest.mark.parametrize("view", [SLOW_RANK, PIPELINE], ids=lambda view: view.run)
def test_own_work_on_the_map_adds_up_to_that_of_the_comparison(store: Path, view: View) -> None:
    source = Source(str(store))
    key = source.run_key(view)
    assert key is not None
    found = data_ranks.own_work(source, key, view)
    assert found is not None
    assert dict(zip(found.ranks.tolist(), np.nansum(found.values, axis=1).tolist(), strict=True)) == {
        row["rank"]: row["own_ns"] for row in data_stragglers.stragglers(source, view)
    }


@pytest.mark.parametrize("view", [SLOW_RANK, PIPELINE], ids=lambda view: view.run)
def test_chosen_steps_are_compared_as_an_analysis_of_them_compares(store: Path, view: View, tmp_path: Path) -> None:
    source = Source(str(store))
    key = source.run_key(view)
    assert key is not None
    whole = data_ranks.own_work(source, key, view)
    assert whole is not None
    first, last = int(whole.steps[1]), int(whole.steps[-2])
    view = view.change(first=first, last=last)
    shown = data_stragglers.stragglers(source, view)
    command = command_of(view, source)
    assert command is not None
    copy = tmp_path / "store"  # the command keeps its answer, and the page would then show that
    shutil.copytree(store, copy)
    call = [word.replace(str(store), str(copy)) for word in shlex.split(command)]
    assert main([*call[1:], "-o", str(tmp_path / "said.json")]) == 0
    said = {row["rank"]: row for row in json.loads((tmp_path / "said.json").read_text())["ranks"]}
    assert {row["steps"] for row in shown} == {len(whole.steps) - 2}
    for row in shown:  # there the gap before the first step is no step's, and fewer collectives align the clocks
        assert row["score"] == pytest.approx(said[row["rank"]]["straggler_score"], rel=0.05)
        assert row["wait_caused_ns"] == pytest.approx(said[row["rank"]]["wait_caused_ns"], rel=0.05, abs=1e6)
    tables = perfkit.analyze(f"lab/{view.run}", store=copy, first_step=first - 1, last_step=last + 1).tables
    parts = own_work(tables["steps"], tables["idle"])
    own = np.where(ints(tables["steps"]["step"]) < first, 0, np.sum(list(parts.values()), axis=0))
    sums = np.bincount(ints(tables["steps"]["rank"]), own)
    assert {row["rank"]: row["own_ns"] for row in shown} == dict(enumerate(sums.tolist()))


def test_the_charges_of_all_steps_one_by_one_are_those_of_the_run(store: Path) -> None:
    source = Source(str(store))
    whole = {row["rank"]: row["wait_caused_ns"] for row in data_stragglers.stragglers(source, PIPELINE)}
    sums = dict.fromkeys(whole, 0)
    for step in range(100):
        for row in data_stragglers.stragglers(source, PIPELINE.change(first=step, last=step)):
            sums[row["rank"]] += row["wait_caused_ns"]
    assert sums == whole


def test_a_store_of_an_older_perfkit_is_to_be_analysed_again(store: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(store, old)
    for table in ("stragglers", "blame_steps"):
        shutil.rmtree(old / table)
    source = Source(str(old))
    for view in (SLOW_RANK, SLOW_RANK.change(first=0)):
        assert data_stragglers.stragglers(source, view) == []
        assert data_stragglers.why_none(source, view) == "older_analysis"
    assert "Analyse this run again" in words(layout_for_tests(source, "/ranks", SLOW_RANK.query()))
    assert main([*shlex.split(analyse_again(SLOW_RANK, source))[1:], "-o", str(tmp_path / "said.txt")]) == 0
    again = data_stragglers.stragglers(Source(str(old)), SLOW_RANK)
    assert compared(again) == compared(data_stragglers.stragglers(Source(str(store)), SLOW_RANK))


def test_the_comparison_of_an_earlier_analysis_does_not_stand_beside_a_later_one(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    perfkit.analyze("lab/gloo", store=copy, ranks=[0])
    source = Source(str(copy))
    assert data_stragglers.stragglers(source, SLOW_RANK) == []
    assert data_stragglers.why_none(source, SLOW_RANK) == "no_analysis", "the newest is of one rank"


def test_steps_that_were_not_traced_are_not_compared(store: Path) -> None:
    source, view = Source(str(store)), PIPELINE.change(first=10_000)
    assert data_stragglers.stragglers(source, view) == []
    assert data_stragglers.why_none(source, view) == "no_steps"


def test_ranks_without_peers_are_not_compared(tmp_path: Path) -> None:
    size = ["--ranks", "2", "--parallel", "pp=2", "--layers", "2", "--steps", "2", "--seed", "1"]
    assert main(["simulate", "trace", *size, "-o", str(tmp_path / "traces")]) == 0
    perfkit.analyze(tmp_path / "traces", store=tmp_path / "store", cluster="lab", run="stages")
    source = Source(str(tmp_path / "store"))
    assert data_stragglers.stragglers(source, PIPELINE) == []
    assert data_stragglers.why_none(source, PIPELINE) == "no_peers"
    assert "No two ranks" in words(layout_for_tests(source, "/ranks", PIPELINE.query()))


def test_a_cause_is_said_in_words() -> None:
    assert cause("compute") == "its compute takes longer"
    assert cause("host: data_loader") == "its host is late: data loader"
    assert cause("compute: tokens") == "it was given more: tokens"
