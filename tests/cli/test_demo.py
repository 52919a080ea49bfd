from __future__ import annotations

import os
import subprocess
import sys

import pytest

from perfkit.cli.main import main
from perfkit.errors import PerfkitError
from perfkit.reference.demo import DemoConfig, choose_ranks, command, job_facts, run_demo
from perfkit.store import Store


def test_one_core_gives_a_smaller_demo_and_says_so():
    assert choose_ranks(2, 8) == (2, [])
    ranks, notes = choose_ranks(2, 1)
    assert ranks == 1
    assert "smaller" in notes[0]


def test_a_folder_that_no_demo_made_is_left_alone(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(PerfkitError, match="holds something else"):
        run_demo(DemoConfig(folder=tmp_path), print)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_without_torch_the_demo_says_what_to_do(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["demo", "-o", str(tmp_path / "demo")]) == 2
    message = capsys.readouterr().err
    assert "torch is not installed" in message
    assert "pip install 'perfkit[train]'" in message
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize(
    ("words", "message"), [(["--fault", "slow-rank"], "slow-rank:1:1.5x"), (["--steps", "5"], "--steps 24 or more")]
)
def test_a_mistake_is_told_before_anything_starts(tmp_path, capsys, words, message):
    pytest.importorskip("torch")
    assert main(["demo", "-o", str(tmp_path / "demo"), *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize(
    ("fault", "restarts", "every"),
    [
        ("slow-rank:1:2x", "0", "25"),
        ("crash:1:20", "1", "10"),
        ("slow-checkpoint@5", "0", "2"),
        ("disk-full", "0", "10"),
    ],
)
def test_a_fault_gets_the_restarts_and_checkpoints_that_it_needs(fault, restarts, every):
    words = command(DemoConfig(faults=(fault,)), 2, "cpu", 1e11)
    assert words[words.index("--max-restarts") + 1] == restarts
    assert words[words.index("--checkpoint.every") + 1] == every
    assert words[words.index("--fault") + 1] == fault


def test_the_model_of_the_analysis_is_the_model_that_was_trained():
    pytest.importorskip("torch")
    import dataclasses

    from perfkit.flops.spec import spec_from_dict
    from perfkit.reference.model import ModelConfig

    for model in (ModelConfig(), ModelConfig(experts=4)):
        facts = job_facts({"model": dataclasses.asdict(model), "train": {"global_batch": 8}})
        assert spec_from_dict(facts["model"]) == model.spec()
        assert facts["tokens_per_step"] == 8 * model.seq_len


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_trains_analyzes_and_ends_without_a_terminal(tmp_path):
    pytest.importorskip("torch")
    folder = tmp_path / "demo"
    small = ["--steps", "24", "-o", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "perfkit", "demo", *small], capture_output=True, text=True, timeout=500,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert "step 24/24" in done.stderr
    assert "perfkit dashboard --store" in done.stdout
    page = (folder / "report.html").read_text()
    assert "<html" in page
    runs = Store(folder / "store").runs(cluster="demo", run="demo")
    assert [run.key.attempt for run in runs] == [0]
    import json

    from perfkit.reference.demo import analyze_run

    device = json.loads((folder / "config" / "measured.json").read_text())["devices"][-1]["device"]
    summary = analyze_run(folder / "store", folder, device).summary
    mfu = summary["mfu"]["value"]
    assert mfu is not None, summary["mfu"]
    assert 0 < mfu <= 1
    assert "measured on" in summary["hardware"]["source"]
    assert summary["scope"]["world_size"] == len(summary["ranks"])
    recorded = Store(folder / "store").read("steps", cluster="demo", run="demo")
    assert set(recorded["step"].to_pylist()) == set(range(24))
    again = subprocess.run(
        [sys.executable, "-m", "perfkit", "analyze", "demo", "--store", str(folder / "store")], capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
