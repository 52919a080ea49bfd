"""What README and docs/ tell a reader to type works, and what is generated is current."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from perfkit.cli.main import build_parser, main
from tests.conftest import ROOT
from tests.docs.pages import blocks_of, pages

OTHERS = {
    *("--nproc-per-node", "--query-gpu", "--parsable2", "--allusers", "--duplicates", "--starttime", "--log-interval"),
    *("--train", "--transform", "--checkpoint", "--model", "--parallel"),  # of the reference loop
}
"""Options of other programs."""
BENCHMARKS = {
    option
    for script in (ROOT / "benchmarks").glob("*.py")
    for option in re.findall(r'add_argument\("(--[\w-]+)"', script.read_text("utf-8"))
}
NAMES = {str(page.relative_to(ROOT)): page for page in pages()}


def test_every_fence_names_its_language():
    """A bare fence would be neither run nor called output."""
    for name, page in NAMES.items():
        fences = [line for line in page.read_text("utf-8").splitlines() if line.startswith("```")]
        assert all(fence != "```" for fence in fences[::2]), f"{name}: a block has no language"


def test_a_block_that_is_not_run_says_why():
    skipped = {(name, block.line): block.reason for name, page in NAMES.items() for block in blocks_of(page)}
    reasons = [reason for reason in skipped.values() if reason is not None]
    assert all(len(reason) > 8 for reason in reasons)
    assert len(reasons) < len(skipped) / 3, "most of what is written must be run"


def test_the_answer_that_the_readme_shows_is_the_answer(capsys, monkeypatch):
    shown = re.search(r"```text\n(MFU .*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["analyze", str(ROOT / "sample_traces/reference_slow_rank")]) == 0
    said = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert said.startswith(shown[1].rstrip())


def test_every_option_that_a_page_names_exists():
    known = set(build_parser().options()) | OTHERS | BENCHMARKS
    for name, page in NAMES.items():
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]+", page.read_text("utf-8")):
            assert option in known, f"{name}: no command has {option}"


def test_every_file_that_a_page_names_exists():
    for name, page in NAMES.items():
        for path in re.findall(
            r"`((?:perfkit|tests|benchmarks|dashboards|docs|sample_traces)/[\w./*-]+)", page.read_text("utf-8")
        ):
            assert list(ROOT.glob(path.rstrip("./"))), f"{name}: there is no {path}"


PRINT_NO_FIGURES = {"quiet", "record", "record_steps", "screenshots"}


def test_what_every_benchmark_printed_last_is_kept_with_command_day_and_machine():
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - PRINT_NO_FIGURES
    kept = {path.stem: path.read_text("utf-8") for path in (ROOT / "benchmarks/results").glob("*.txt")}
    assert scripts == set(kept)
    for name, text in kept.items():
        command, machine = text.splitlines()[:2]
        assert command.startswith(f"# python benchmarks/{name}.py")
        assert re.match(r"# \d{4}-\d\d-\d\d, \d+ cores ", machine), name
        assert len(text.splitlines()) > 3, f"{name} printed nothing"


def test_the_command_reference_is_current():
    from perfkit.cli.reference import PAGE, render_reference

    assert PAGE.read_text("utf-8") == render_reference(), "run `make docs`"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name, page in NAMES.items() if blocks_of(page)])
def test_every_block_runs(name, tmp_path):
    (tmp_path / "sample_traces").symlink_to(ROOT / "sample_traces")
    own = {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(tmp_path / ".config"), "COLUMNS": "100"}
    command = [sys.executable, "-m", "tests.docs.pages", str(NAMES[name])]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | own, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert (tmp_path / "site/index.html").exists()
