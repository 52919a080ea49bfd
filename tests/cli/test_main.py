"""`perfkit.cli.main`: whatever happens, an exit code that tells the truth and one line that says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfkit.cli import ingest
from perfkit.cli.main import main
from tests.conftest import ROOT
from tests.sources.trace_files import document, op, write


def perfkit(*argv: str | Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "perfkit", *map(str, argv)],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("error", [RuntimeError("line one\nline two"), OSError(28, "No space left"), MemoryError()])
def test_what_nobody_foresaw_is_one_line_and_no_tripped_gate(error, monkeypatch, capsys):
    def fail(args: object) -> int:
        raise error

    monkeypatch.setattr(ingest, "run", fail)
    monkeypatch.delenv("PERFKIT_DEBUG", raising=False)
    assert main(["ingest", "x", "--store", "s"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"perfkit: {type(error).__name__}: ")
    assert "PERFKIT_DEBUG=1" in err
    monkeypatch.setenv("PERFKIT_DEBUG", "1")
    with pytest.raises(type(error)):
        main(["ingest", "x", "--store", "s"])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_ingest_cleans_up_says_one_line_and_can_go_on(tmp_path, number, code):
    for rank in range(60):
        write(tmp_path / f"in/rank{rank}.json", document(*[op(ts=2e15 + i) for i in range(2000)], rank=rank))
    (tmp_path / "tmp").mkdir()
    command = ("ingest", tmp_path / "in", "--store", tmp_path / "s", "--run", "r", "--workers", "2")
    process = perfkit(*command, TMPDIR=str(tmp_path / "tmp"))
    deadline = time.monotonic() + 60
    while not list((tmp_path / "s").glob("manifests/**/commits/*.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, number)  # as Ctrl-C does: every process of the terminal's foreground
    out, err = process.communicate()
    assert (process.returncode, out) == (code, "")
    assert err.count("\n") == 1
    assert "run the same command again to go on" in err
    assert list((tmp_path / "tmp").iterdir()) == []
    assert list((tmp_path / "s/.tmp").iterdir()) == []
    process = perfkit(*command)
    out, _ = process.communicate()
    assert process.returncode == 0
    assert "60 of 8 ranks" in out or "unchanged" in out
    assert len(list((tmp_path / "s").glob("manifests/**/commits/*.json"))) == 60


def test_names_that_the_terminal_cannot_show_are_escaped(tmp_path):
    path = write(tmp_path / "ü.json", document(op(ts=2e15), rank=0))
    process = perfkit("ingest", path, "--store", tmp_path / "s", PYTHONIOENCODING="ascii")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert "run \\xfc" in out
