from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from perfkit.analysis.evidence import RUN_SPREAD
from perfkit.cli.main import main


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store with three simulated runs of one job and one that is slower."""
    folder = tmp_path_factory.mktemp("compare")
    for name, more in {"a": ["--seed", "1"], "b": ["--seed", "2"], "c": ["--seed", "3"],
                       "slow": ["--seed", "4", "--fault", "slow-rank:1:3x"]}.items():  # fmt: skip
        made = ["simulate", "trace", "--ranks", "2", "--steps", "16", "--layers", "2", "-o", str(folder / name)]
        assert main([*made, *more]) == 0
        assert main(["ingest", str(folder / name), "--store", str(folder / "runs"), "--run", name]) == 0
    return str(folder / "runs")


def asked(capsys, *words):
    """Run the command; return exit code and output."""
    capsys.readouterr()
    code = main(["compare", *words])
    return code, capsys.readouterr().out


def test_the_verdict_and_its_cause_are_the_first_lines(store, capsys):
    code, out = asked(capsys, "a", "slow", "--store", store)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("slower: step time +")
    assert "Rank 1" in lines[2]


def test_runs_can_be_added_to_a_side(store, capsys):
    code, out = asked(capsys, "a", "slow", "--base", "b", "--base", "c", "--store", store, "--format", "json")
    told = json.loads(out)
    assert code == 0
    assert told["runs"] == {"base": 3, "new": 1}
    assert told["steps"]["base"] == 48


def test_the_gate_trips_in_junit_too(store, capsys):
    code, out = asked(capsys, "a", "slow", "--store", store, "--fail-on", "step_time>+3%", "--format", "junit")
    assert code == 1
    assert ElementTree.fromstring(out).get("failures") == "1"
    code, _ = asked(capsys, "a", "b", "--store", store, "--fail-on", "step_time>+3%")
    assert code == 0


@pytest.mark.parametrize("words", [("--level", "1.5"), ("--run-spread", "-1")])
def test_what_makes_no_sense_is_refused(store, words, capsys):
    assert asked(capsys, "a", "b", "--store", store, *words)[0] == 2


def test_what_is_assumed_of_one_run_a_side_is_in_every_format(store, capsys):
    said = f"if runs differ by {RUN_SPREAD:.1%}"
    for kind in ("text", "markdown", "junit"):
        assert said in asked(capsys, "a", "slow", "--store", store, "--format", kind)[1]
    told = json.loads(asked(capsys, "a", "slow", "--store", store, "--format", "json")[1])
    assert told["run_spread"]["assumed"] == RUN_SPREAD
    assert RUN_SPREAD < told["run_spread"]["holds_to"] < told["quantities"][0]["change"]
    told = json.loads(asked(capsys, "a", "slow", "--store", store, "--run-spread", "0.02", "--format", "json")[1])
    assert told["run_spread"]["assumed"] == 0.02


def test_a_model_may_be_a_file_as_in_an_analysis(store, tmp_path, capsys):
    model = tmp_path / "job.json"
    model.write_text('{"layers": 2, "hidden": 64, "heads": 4, "vocab": 1000, "n_params": 1000000, "seq_len": 128}')
    job = ["--model", str(model), "--tokens-per-step", "4k", "--peak-flops", "989T"]
    code, out = asked(capsys, "a", "slow", "--store", store, *job, "--format", "json")
    mfu = {one["name"]: one for one in json.loads(out)["quantities"]}["mfu"]
    assert code == 0
    assert 0 < mfu["new"] < mfu["base"]


def test_a_comparison_is_written_to_a_file(store, tmp_path, capsys):
    code, out = asked(capsys, "a", "slow", "--store", store, "-o", str(tmp_path / "said.txt"))
    assert (code, out) == (0, "")
    assert (tmp_path / "said.txt").read_text().startswith("slower: step time +")
