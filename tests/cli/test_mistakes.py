"""What people get wrong first: one line that says what is the matter and what to do, and exit code 2."""

from __future__ import annotations

import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfkit.cli.main import main
from tests.conftest import ROOT

H100 = "NVIDIA H100 80GB HBM3"

MISTAKES = {
    # the folder and the file
    "analyze trace": "did you mean traces?",
    "analyze nowhere/": "nowhere: no such file or folder; check the path",
    "analyze empty": "an empty folder; give the folder that the profiler wrote its traces to",
    "analyze notes.txt": "give a torch.profiler JSON trace or an nsys SQLite export",
    "analyze snapshot.pickle": "a pickle, which perfkit never loads; give a profiler trace",
    "analyze flight.pickle": "`perfkit hang FOLDER` explains it",
    "analyze report.nsys-rep": "run `nsys export --type sqlite",
    "ingest empty --store s": "an empty folder; give the folder",
    # a store for a trace, a trace for a store, and none
    "ingest runs --store s": "a perfkit store, not traces; `perfkit analyze RUN --store runs` reads it",
    "analyze traces --store traces/": "traces/ is what is read, so it cannot be the store; name another --store",
    "analyze llama-8b": "a run in a store needs --store DIR",
    "analyze llama-8b --store traces": "no store at traces; create one with `perfkit ingest TRACE --store traces`",
    "store ls nowhere": "no store at nowhere; create one with",
    "health --store nowhere": "no store at nowhere; create one with",
    "ingest traces --store notes.txt": "choose a --store that is a folder",
    "ingest traces": "required: --store; `perfkit ingest --help` shows examples",
    "dashboard --store notes.txt": "notes.txt is a file; name the folder of a store",
    "serve-metrics --store nowhere --once": "name the store or spool of a recorded run",
    # names of runs
    "analyze llama-8 --store runs": "no run 'llama-8' in runs; near it default/llama-8b;",
    "compare llama-8c llama-8b --store runs": "near it default/llama-8b",
    "export mistral --store runs --format csv -o t": "there are default/llama-8b; name one as CLUSTER/RUN",
    "goodput llama-8 --store runs": "no records of a run 'llama-8' in runs",
    "health --store runs --run llama-8": "it has those of default/llama-8b",
    "trace llama-8b --store runs": "name its spool with --spool, or its store with --store",
    # typing errors
    "analyse traces": "there is no command 'analyse'; did you mean analyze? `perfkit --help`",
    "store list runs": "there is no action 'list'; use one of ls, gc",
    "analyze traces --formt json": "there is no option --formt; did you mean --format? `perfkit analyze --help`",
    "analyze traces --format jsn": "there is no --format 'jsn'; did you mean json?",
    "store ls runs --fromat=json": "did you mean --format?",
    "mfu llama3-8b": "nothing takes the argument 'llama3-8b'",
    "simulate trace --ranks eight -o t": "invalid int value: 'eight'",
    "analyze": "required: PATH",
    "analyze traces --fail-on mfuu<0.4": "nothing is called 'mfuu'; did you mean mfu",
    "analyze traces --fail-on mfu<<0.4": "write NAME OPERATOR NUMBER",
    "compare traces traces --fail-on steptime>+3%": "nothing is called 'steptime'; did you mean step_time?",
    "compare traces traces --fail-on step_time>3": "write it like 'step_time>+3%'",
    # models and hardware
    "analyze traces --model lama3-8b": "near it: llama-33b, llama3-8b; list all with `perfkit mfu --list`",
    "analyze traces --model zzz": "list all with `perfkit mfu --list`, or use --model FILE.json",
    "whatif traces --model zzz": "or use --model FILE.json",
    "compare traces traces --model zzz": "or use --model FILE.json",
    "mfu --model zzz": "or use --spec FILE.json or --hf-config config.json",
    "mfu --model llama3-8b --seq-len 8k": "may mean powers of 1000 or of 1024; write the number out, or 8Ki",
    "mfu --model llama3-8b": "no speed is given; give one of --tokens-per-second-per-device",
    "hardware H100": "give the name that the driver reports, one of 'NVIDIA H100 80GB HBM3'",
    "hardware H1000": "--peak-flops",
    # filters that select nothing, questions that make no sense
    "analyze traces --steps 100:200": "none of the steps that were asked for; the traces hold steps",
    "analyze traces --steps 9-12": "write it like 10:20, 10: or :20",
    "analyze traces --ranks 7": "no trace of ranks 7; there are 0-1",
    "analyze traces --ranks 7-4": "--ranks '7-4': 7-4 runs backwards; write it like 4-7",
    "analyze traces --ranks ,": "--ranks ',' is no list of ranks; write it like 0,4-7",
    "export traces --format csv -o t --ranks 1-": "--ranks '1-' is no list of ranks; write it like 0,4-7",
    "whatif traces --healthy 3-1": "--healthy '3-1': 3-1 runs backwards; write it like 1-3",
    "whatif traces --healthy fast": "--healthy 'fast' is no list of ranks; write it like 5, 0,4-7 or all",
    "whatif traces --healthy 9": "no trace of rank 9; name a rank that was traced",
    "whatif traces --family gemm": "--family 'gemm' names no factor; write gemm=1.2x",
    "whatif cpu": "`perfkit analyze` reads CPU traces",
    "simulate trace --fault slow-rank:99:2x -o t": "the job has only 8 of these; name one from 0 to 7",
    "simulate trace --ranks 4 --parallel dp=4,tp=2 -o t": "a mesh of 8 ranks, not 4; use --ranks 8, or degrees whose",
    "simulate trace -o traces": "traces is not an empty folder; name another with -o, or empty it",
    "export traces --format csv --table kernel -o k.csv": "has no table 'kernel'; did you mean kernels",
    "goodput empty": "name a store, or a dump of a scheduler",
    "export empty --format csv -o t": "name trace files or their folder, or a run with --store DIR",
    "goodput memory://nowhere/sacct.txt": "no store at memory://nowhere/sacct.txt; check the URI; a dump",
    "goodput --plan": "needs --save-seconds and --restart-seconds; add them, for example `--save-seconds 30",
    "goodput --plan --save-seconds 30 --restart-seconds 600": "add one, for example `--mttf-hours 3.09` or `--gpus",
    "goodput --plan --save-seconds 30 --restart-seconds 600 --mttf-hours 0": "`perfkit goodput STORE` shows the MTTF",
    "dashboard --workers 0": "--workers 0 serves nobody; use 1 or more",
    "dashboard --port 70000": "--port 70000 is no port; use 1 to 65535, or 0 for any that is free",
    "dashboard --heavy-per-minute 0": "use more than 0, such as 240",
    "hang nowhere": "name the folder of TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "hang empty": "point at the folder of TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    # a place that cannot be written
    "analyze traces --format html": "add `-o report.html`",
    "analyze traces --format html -o nowhere/r.html": "make its folder with `mkdir -p nowhere`",
    "analyze traces --format html -o notes.txt/r.html": "Not a directory; choose another place",
    "analyze traces --table idle -o notes.txt/idle.csv": "Not a directory; choose another place",
    "analyze traces --table idle -o idle.xls": "add `-o FILE.csv` or `-o FILE.parquet`",
    "compare traces traces -o nowhere/x": "cannot write nowhere/x: No such file or directory; make its folder with",
    "export traces --format perfetto -o notes.txt/j.json.gz": "Not a directory; choose another place",
    "export traces --format csv -o notes.txt/tables": "Not a directory; choose another place",
    "export traces --format perfetto": "add `-o F.json.gz`",
    "export traces --format perfetto -o -": "only metrics go to standard output",
    "export traces/rank00000.pt.trace.json.gz --redact -o -": "only metrics go to standard output",
    # numbers that are none
    "ingest traces --store s --attempt 99999999999": "is no restart count; use 0 to 2147483647;",
    "analyze llama-8b --store runs --attempt -1": "'-1' is no restart count",
    "store compact runs --quiet nan": "'nan' is no number of hours; use 0 or more",
    "store gc runs --older-than nan": "'nan' is no number of hours",
    "store gc runs --older-than -5": "'-5' is no number of hours",
    "store gc runs --older-than inf --delete": "'inf' is no number of hours",
    # commands to run
    "run": "put it after `--`: perfkit run -- torchrun train.py",
    "run -- no-such-command": "no such command; check the PATH or the virtual environment",
    "demo --fault slow-rnk:1:2x -o d": "no fault 'slow-rnk'; use one of slow-rank",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    traces = str(folder / "traces")
    assert main(["simulate", "trace", "--ranks", "2", "--steps", "3", "--layers", "1", "-o", traces]) == 0
    assert main(["ingest", traces, "--store", str(folder / "runs"), "--run", "llama-8b"]) == 0
    (folder / "empty").mkdir()
    (folder / "notes.txt").write_text("hello\n")
    (folder / "report.nsys-rep").write_bytes(bytes(range(256)))
    (folder / "snapshot.pickle").write_bytes(pickle.dumps({"segments": []}))
    (folder / "flight.pickle").write_bytes(pickle.dumps({"pg_config": {}, "entries": []}))
    (folder / "cpu").symlink_to(ROOT / "sample_traces/ddp_gloo")
    return folder


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_costs_one_line_that_says_what_to_do(
    typed: str, world: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(world)
    before = {str(path) for path in world.rglob("*")}
    assert main(typed.split()) == 2
    said = capfd.readouterr().err
    assert MISTAKES[typed] in said
    assert said.startswith("perfkit")
    assert said.count("\n") == 1
    assert "PERFKIT_DEBUG" not in said, "nobody foresaw it"
    assert {str(path) for path in world.rglob("*")} == before, "a mistake leaves nothing behind"


def test_an_ambiguous_device_gives_no_mfu_and_names_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    speed = ["--seq-len", "8192", "--tokens-per-second-per-device", "5762"]
    assert main(["mfu", "--model", "llama3-8b", "--hardware", "H100", *speed]) == 2
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert said.startswith("MFU unknown")
    assert f"'H100' is ambiguous: give the name that the driver reports, one of '{H100}'" in said


def test_a_second_job_under_the_name_of_the_first_is_noticed(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, store = tmp_path / "traces", str(tmp_path / "s")
    assert main(["simulate", "trace", "--ranks", "4", "--steps", "3", "--layers", "1", "-o", str(other)]) == 0
    assert main(["ingest", str(world / "traces"), "--store", store]) == 0
    capsys.readouterr()
    assert main(["ingest", str(world / "traces"), "--store", store]) == 0
    assert "another job" not in capsys.readouterr().out
    assert main(["ingest", str(other), "--store", store]) == 0
    said = capsys.readouterr()
    assert "note: run traces already held " in said.out
    assert "if that is another job, give each a name with --run" in said.out
    assert "both cover the same time; not merged; ingest it as a run of its own with --run NAME" in said.err


def test_two_runs_that_are_not_alike_are_compared_with_a_note(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(world / "traces"), str(world / "cpu")]) == 0
    assert "note: device differs" in capsys.readouterr().out


def test_a_port_that_is_taken_is_said_before_anything_is_served(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("dash")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["dashboard", "--store", str(world / "runs"), "--port", port]) == 2
    assert capsys.readouterr().err.endswith("Address already in use; choose another --port or --host\n")


@pytest.fixture
def perfkit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Start commands in a folder of their own: what they leave behind is not in the checkout."""
    folder = tmp_path_factory.mktemp("elsewhere")
    started: list[subprocess.Popen[str]] = []

    def start(*argv: str | Path, **environment: str) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "perfkit", *map(str, argv)], env={**os.environ, **environment}, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, cwd=folder,
            )
        )  # fmt: skip
        return started[-1]

    start.folder = folder
    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_dashboard_without_a_store_says_so_and_serves(perfkit, tmp_path: Path) -> None:
    pytest.importorskip("dash")
    process = perfkit("dashboard", "--store", tmp_path, "--port", "0")
    assert "yet; the pages fill as soon as `perfkit ingest" in process.stderr.readline()
    assert "(Ctrl-C ends it)" in process.stderr.readline()


@pytest.mark.parametrize(
    ("package", "argv", "extra"),
    [
        ("torch", ["demo", "--no-serve"], "train"),
        ("dash", ["dashboard", "--store", "runs"], "dashboard"),
        ("ray", ["ingest", "traces", "--store", "s", "--engine", "ray"], "ray"),
    ],
)
def test_a_missing_extra_is_named_with_its_command(perfkit, package, argv, extra, world: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib.machinery import PathFinder as Finder\n"
        "find = Finder.find_spec\n"
        f"Finder.find_spec = lambda name, *rest: None if name.split('.')[0] == '{package}' else find(name, *rest)\n"
    )
    process = perfkit(*argv, PYTHONPATH=str(tmp_path))
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said.count("\n")) == (2, 1), said
    assert f"pip install 'perfkit[{extra}]'" in said
    assert not any(perfkit.folder.iterdir()), "a mistake leaves nothing behind"


def _open_when_read(fifo: Path) -> int:
    """Open a pipe for writing as soon as somebody reads it."""
    for _ in range(1200):
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # no reader yet
            time.sleep(0.05)
    return pytest.fail("nobody reads")


def test_ctrl_c_in_an_analysis_is_one_line(perfkit, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank0.json")  # reading it waits for a writer, as a slow disk would
    process = perfkit("hang", tmp_path / "rank0.json")
    writer = _open_when_read(tmp_path / "rank0.json")
    os.killpg(process.pid, signal.SIGINT)
    out, said = process.communicate(timeout=60)
    os.close(writer)
    assert (process.returncode, out) == (130, "")
    assert said == "perfkit: interrupted\n", "only `ingest` goes on where it stopped"
