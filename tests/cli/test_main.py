"""`perfkit.cli.main`: whatever happens, an exit code that tells the truth and one line that says why."""

from __future__ import annotations

import json
import os
import shlex
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


@pytest.mark.parametrize("command", [["store", "ls", "s"], ["analyze", "r", "--store", "s", "--format", "json"]])
@pytest.mark.parametrize(
    ("streams", "code", "said"),
    [
        (">&-", 0, ""),
        (">&- 2>&- <&-", 0, ""),
        (">/dev/full", 2, "perfkit: cannot write the output: No space left on device; choose another place\n"),
        ("2>/dev/full", 0, ""),
    ],
)
def test_output_that_nobody_wants_is_dropped_and_output_that_is_lost_is_said(
    tmp_path, command, streams, code, said, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["ingest", str(ROOT / "sample_traces/ddp_gloo"), "--store", "s", "--run", "r"]) == 0
    line = shlex.join([sys.executable, "-m", "perfkit", *command])
    for unbuffered in ("", "1"):
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(f"{line} {streams}", shell=True, capture_output=True, text=True, env=environment)
        assert (done.returncode, done.stderr) == (code, said)


@pytest.mark.parametrize("command", ["store ls s", "mfu --list", "hardware", "analyze r --store s"])
def test_a_reader_who_has_left_is_no_tripped_gate(tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["ingest", str(ROOT / "sample_traces/ddp_gloo"), "--store", "s", "--run", "r"]) == 0
    ours, gone = os.pipe()
    os.close(ours)
    done = subprocess.run([sys.executable, "-m", "perfkit", *command.split()], stdout=gone, stderr=subprocess.PIPE)
    os.close(gone)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_mistake_is_no_tripped_gate_where_nobody_can_read_it():
    line = shlex.join([sys.executable, "-m", "perfkit", "store", "ls", "nowhere"])
    assert subprocess.run(f"{line} 2>/dev/full", shell=True).returncode == 2
    assert subprocess.run(f"{line} 2>&-", shell=True).returncode == 2


def test_an_answer_that_the_store_does_not_take_is_printed_with_one_line(tmp_path):
    assert main(["ingest", str(ROOT / "sample_traces/ddp_gloo"), "--store", str(tmp_path / "s"), "--run", "r"]) == 0
    (tmp_path / "s/.tmp").rmdir()
    (tmp_path / "s/.tmp").touch()  # where a store is written; permissions do not stop root
    process = perfkit("analyze", "r", "--store", tmp_path / "s", "--format", "json")
    out, err = process.communicate()
    assert process.returncode == 0
    assert json.loads(out)["scope"]["ranks_traced"] == 2
    assert err == f"perfkit: the answer is not kept in the store: {tmp_path}/s: cannot write: Not a directory\n"


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        (["ingest", "", "--store", "s"], "PATH"),
        (["ingest", "in", "", "--store", "s"], "PATH"),
        (["ingest", "in", "--store", "s", "--run", ""], "--run"),
        (["ingest", "in", "--store", ""], "--store"),
        (["analyze", ""], "PATH"),
        (["analyze", "in", "--run="], "--run"),
        (["analyze", "in", "-o", ""], "--output"),
        (["compare", "", "in"], "BASE"),
        (["compare", "in", "in", "--base", ""], "--base"),
        (["whatif", ""], "PATH"),
        (["export", "", "--redact"], "RUN"),
        (["hang", ""], "DIR"),
        (["store", "ls", ""], "DIR"),
        (["store", "compact", "s", "--run", ""], "--run"),
        (["trace", ""], "RUN"),
    ],
)
def test_an_empty_argument_is_an_unset_variable_and_not_the_current_folder(typed, name, tmp_path, monkeypatch, capsys):
    write(tmp_path / "in/rank0.json", document(op(ts=2e15), rank=0))
    monkeypatch.chdir(tmp_path / "in")
    assert main(typed) == 2
    said = capsys.readouterr()
    assert f": {name} is empty; is a shell variable not set? `perfkit {typed[0]}" in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["rank0.json"]


def test_empty_arguments_of_the_command_that_is_run_are_its_own():
    done = subprocess.run(
        [sys.executable, "-m", "perfkit", "run", "--", "printf", "%s|", "a", "", "b"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "a||b|")


def test_an_error_stays_on_its_line_whatever_the_names_hold(tmp_path, capsys):
    assert main(["analyze", str(tmp_path / "a\nb\x1b[31m")]) == 2
    said = capsys.readouterr().err
    assert r"a\nb\x1b[31m: no such file or folder" in said
    assert said.count("\n") == 1


def test_names_that_the_terminal_cannot_show_are_escaped(tmp_path):
    path = write(tmp_path / "ü.json", document(op(ts=2e15), rank=0))
    process = perfkit("ingest", path, "--store", tmp_path / "s", PYTHONIOENCODING="ascii")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert "run \\xfc" in out
