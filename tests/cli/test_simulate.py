from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from perfkit.cli import simulate
from perfkit.errors import UsageError


def call(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    simulate.add_arguments(parser)
    return simulate.run(parser.parse_args(arguments))


SMALL = ("trace", "--layers", "2", "--hidden", "256", "--seq-len", "256", "--steps", "2")


def test_traces_and_truth_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "traces"
    arguments = (*SMALL, "--ranks", "4", "--parallel", "dp=2,tp=2", "--fault", "slow-rank:3:1.3x", "--seed", "11")
    assert call(*arguments, "-o", str(folder)) == 0
    assert "4 synthetic traces" in capsys.readouterr().out
    truth = json.loads((folder / "truth.json").read_text())
    assert truth["culprits"] == [3]
    assert truth["job"]["seed"] == 11
    assert truth["mesh"]["tp"] == 2
    assert len(list(folder.glob("rank*.json.gz"))) == 4


def test_a_pipeline_gets_enough_micro_batches(tmp_path: Path) -> None:
    assert call(*SMALL, "--ranks", "2", "--parallel", "pp=2", "-o", str(tmp_path / "t")) == 0
    assert json.loads((tmp_path / "t" / "truth.json").read_text())["job"]["micro_batches"] == 4


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(("--ranks", "6", "--parallel", "dp=4"), "4 ranks, not 6"), (("--fault", "slow"), "unknown fault"),
     (("--fault", "slow-rank:8:2x"), "only 8")],
)  # fmt: skip
def test_bad_usage_is_refused_before_anything_is_written(
    tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        call(*SMALL, *arguments, "-o", str(tmp_path / "t"))
    assert not (tmp_path / "t").exists()


def test_a_folder_with_content_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not an empty folder"):
        call(*SMALL, "-o", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
