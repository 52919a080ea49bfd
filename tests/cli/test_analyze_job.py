"""The flags of `perfkit analyze` that say what was trained."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest
from test_analyze import run, trace_file

from perfkit.cli.arguments import add_job_arguments, parse_question
from perfkit.errors import PerfkitError, UsageError

SPEC = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 1000, "n_params": 1_000_000}
JOB = ["--format", "json", "--dtype", "bf16", "--peak-flops", "989T", "--tokens-per-step", "2k", "--seq-len", "128"]


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "toy.json"
    path.write_text(json.dumps(SPEC))
    return path


def test_a_model_and_its_tokens_give_mfu(tmp_path: Path, spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = trace_file(tmp_path / "trace.json")
    assert run(trace, "--model", str(spec), *JOB) == 0
    got = json.loads(capsys.readouterr().out)
    # two steps in 165 µs on each of two ranks
    seconds = 165e-6 / 2
    assert got["throughput"]["tokens_per_second"] == pytest.approx(2000 / seconds)
    assert got["mfu"]["value"] == pytest.approx(got["mfu"]["model_flops_per_step"] / (2 * 989e12 * seconds), rel=1e-3)
    assert sum(row["points"] for row in got["waterfall"] if row["parent"] is None) == 100.0
    assert got["hardware"]["source"] == "given with --peak-flops"


def test_the_world_size_can_be_given(tmp_path: Path, spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = trace_file(tmp_path / "trace.json")
    values = []
    for ranks in ("2", "4"):
        run(trace, "--model", str(spec), *JOB, "--world-size", ranks)
        values.append(json.loads(capsys.readouterr().out)["mfu"]["value"])
    assert values[0] == pytest.approx(2 * values[1], rel=1e-3)


def question(*argv: str) -> dict[str, Any]:
    parser = ArgumentParser()
    add_job_arguments(parser)
    return parse_question(parser.parse_args(argv))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("4194304", 4194304), ("4M", 4e6), ("4Mi", 4194304), ("0.5k", 500), ("2e6", 2e6), ("1_000", 1000), ("2B", 2e9)],
)
def test_tokens_have_suffixes(text: str, tokens: float) -> None:
    assert question("--tokens-per-step", text)["tokens_per_step"] == tokens


@pytest.mark.parametrize("text", ["many", "nan", "inf", "4X"])
def test_what_is_no_number_of_tokens_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"tokens_per_step = .* is not a number; "):
        question("--tokens-per-step", text)


def test_what_is_not_said_about_the_job_stays_unknown() -> None:
    assert set(question().values()) == {None}


def test_an_unknown_model_is_answered_with_a_flag_that_the_command_has() -> None:
    with pytest.raises(UsageError, match=r"or use --model FILE\.json$"):
        question("--model", "no-such-model")


@pytest.mark.parametrize("argv", [["--model", "no-such-model"], ["--model", "no-such-file.json"], ["--dtype", "fp7"],
                                  ["--peak-flops", "fast"], ["--tokens-per-step", "0"]])  # fmt: skip
def test_mistakes_are_errors_before_or_after_reading(tmp_path: Path, argv: list[str]) -> None:
    with pytest.raises(PerfkitError):
        run(trace_file(tmp_path / "trace.json"), *argv)
