from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import perfkit
from perfkit.cli import analyze as command
from perfkit.cli.main import main
from perfkit.errors import GateTripped, PerfkitError, UsageError

US = 1000


def run(*argv: str | Path) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(a) for a in argv]))


def trace_file(path: Path, rank: int = 0, name: str = "gemm") -> Path:
    """Two steps of 100 µs, with a data wait of 30 µs before the second."""
    events = []

    def add(category: str, name: str, start: float, dur: float, **args: object) -> None:
        events.append(
            {"ph": "X", "cat": category, "name": name, "ts": start, "dur": dur, "pid": 1, "tid": 1, "args": args}
        )

    for step in (0, 1):
        at = 100.0 * step
        add("user_annotation", f"ProfilerStep#{step}", at, 100)
        add("user_annotation", "enumerate(DataLoader)#x.__next__", at, 30)
        add("cuda_runtime", "cudaLaunchKernel", at + 30, 1, correlation=step + 1)
        add("kernel", name, at + 35, 60, correlation=step + 1, device=0, stream=7)
    head = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 2, "backend": "nccl"}}
    path.write_text(json.dumps({**head, "traceEvents": events}))
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return trace_file(tmp_path / "trace.json")


def test_the_help_names_the_tables_that_there_are(tmp_path: Path) -> None:
    job = ["--ranks", "4", "--steps", "2", "--layers", "2", "--parallel", "pp=2,dp=2"]
    assert main(["simulate", "trace", *job, "-o", str(tmp_path / "traces")]) == 0
    words = (command.__doc__ or "").partition("Tables: ")[2].partition(". Those")[0]
    named = set(re.findall(r"[a-z_]+(?=[,;]|$)", words))
    without_allocations = {"memory"}  # the simulator makes none
    assert named - without_allocations == set(perfkit.analyze(tmp_path / "traces").tables)


def test_json_is_one_document_with_the_promised_keys(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(trace, "--format", "json") == 0
    got = json.loads(capsys.readouterr().out)
    assert got["schema_version"] == 1
    assert got["synthetic"] is False
    assert got["scope"] == {"ranks_traced": 1, "world_size": 2, "steps": [0, 1]}
    assert got["totals"] == {
        "window_ns": 165 * US, "compute_ns": 120 * US, "exposed_comm_ns": 0, "exposed_memcpy_ns": 0,
        "idle_ns": 45 * US, "comm_ns": 0, "overlap": None,
    }  # fmt: skip
    assert [(s["step"], s["window_ns"], s["compute_ns"], s["spill_ns"]) for s in got["steps"]] == [
        (0, 100 * US, 60 * US, 0), (1, 65 * US, 60 * US, 0)]  # fmt: skip
    assert {k: got["idle"][f"{k}_ns"] for k in ("host_late", "launch", "dependency", "unattributed")} == {
        "host_late": 35 * US, "launch": 5 * US, "dependency": 0, "unattributed": 5 * US}  # fmt: skip
    assert got["idle"]["culprits"][0] == {
        "kind": "data_loader", "where": "enumerate(DataLoader)#x.__next__", "ns": 30 * US}  # fmt: skip
    assert got["io"]["data_wait_ns"] == 30 * US
    assert got["ranks"][0]["window_ns"] == 165 * US
    promised = {
        "ranks", "steps_kept", "steps_source", "events", "rejected", "clock", "unknown_kernel_ns", "carry_in_ns",
        "spill_ns", "graph_coverage", "launches_missing",
    }  # fmt: skip
    assert promised <= set(got["quality"])
    assert {"data_wait_ns", "h2d_exposed_ns", "h2d_gbps", "checkpoint_ns"} <= set(got["io"])
    assert {"rank", "host", "device", "role", "hfu", "straggler_score", "wait_caused_ns"} <= set(got["ranks"][0])


def test_text_says_where_the_time_went_and_who_held_the_host_up(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(trace, "--details") == 0
    out = capsys.readouterr().out
    assert out.startswith("MFU unknown\n")
    assert "1 of 2 ranks · steps 0 to 1 (from ProfilerStep)" in out
    assert re.search(r"^  data loader +30\.0 µs +18\.2 % +enumerate\(DataLoader\)#x\.__next__$", out, re.M)


def test_text_lists_ranks_and_rejected_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1):
        trace_file(tmp_path / f"{rank}.json", rank)
    (tmp_path / "broken.json").write_text('{"traceEvents": [x')
    assert run(tmp_path, "--details") == 0
    out = capsys.readouterr().out
    assert "2 of 2 ranks" in out
    assert "broken.json" in out
    assert re.search(r"^ +1 +165 µs +72\.7 %", out, re.M)


def test_html_is_one_file_and_needs_a_place(trace: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs a file"):
        run(trace, "--format", "html")
    assert run(trace, "--format", "html", "-o", tmp_path / "report.html") == 0
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_a_gate_fails_after_the_report_was_printed(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(trace, "--fail-on", "idle>90%") == 0
    capsys.readouterr()
    with pytest.raises(GateTripped, match=r"idle is 0\.27"):
        run(trace, "--format", "json", "--fail-on", "idle>20%")
    assert json.loads(capsys.readouterr().out)["schema_version"] == 1
    with pytest.raises(PerfkitError, match="mfu is unknown") as caught:
        run(trace, "--fail-on", "mfu<0.5")
    assert caught.value.exit_code == 2
    with pytest.raises(UsageError, match="nothing is called 'mfuu'"):
        run("nowhere.json", "--fail-on", "mfuu<0.5")  # said before anything is read


def test_the_trace_window_ignores_steps(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(trace, "--window", "trace", "--format", "json")
    got = json.loads(capsys.readouterr().out)
    assert (got["quality"]["steps_source"], got["totals"]["window_ns"]) == ("trace", 160 * US)


def test_steps_and_ranks_are_selected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1, 2):
        trace_file(tmp_path / f"{rank}.json", rank)
    run(tmp_path, "--steps", "1:", "--ranks", "0,2", "--format", "json")
    got = json.loads(capsys.readouterr().out)
    assert [(s["rank"], s["step"]) for s in got["steps"]] == [(0, 1), (2, 1)]
    assert got["totals"]["window_ns"] == 2 * 65 * US
    assert sum(got["idle"][f"{k}_ns"] for k in ("host_late", "launch", "dependency", "unattributed")) == 2 * 5 * US


def test_tables_are_written_as_csv_and_parquet(trace: Path, tmp_path: Path) -> None:
    run(trace, "--table", "steps", "-o", tmp_path / "steps.csv")
    with (tmp_path / "steps.csv").open() as file:
        assert [row["compute_ns"] for row in csv.DictReader(file)] == ["60000", "60000"]
    run(trace, "--table", "idle", "-o", tmp_path / "idle.parquet")
    assert sum(pq.read_table(tmp_path / "idle.parquet")["idle_ns"].to_pylist()) == 45 * US


def test_a_name_that_a_spreadsheet_would_run_is_quoted(tmp_path: Path) -> None:
    path = trace_file(tmp_path / "trace.json")
    path.write_text(path.read_text().replace("enumerate(DataLoader)#x.__next__", "=HYPERLINK(1)"))
    run(path, "--table", "idle", "-o", tmp_path / "idle.csv")
    with (tmp_path / "idle.csv").open() as file:
        assert "'=HYPERLINK(1)" in {row["where"] for row in csv.DictReader(file)}


def test_control_characters_in_names_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace_file(tmp_path / "trace.json")
    path.write_text(path.read_text().replace("enumerate(DataLoader)#x.__next__", "\\u001b[31mred\\u0007"))
    run(path, "--details")
    out = capsys.readouterr().out
    assert "red" in out
    assert "\x1b" not in out
    assert "\x07" not in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--steps", "3"], "no range"),
        (["--steps", "a:b"], "no range"),
        (["--steps", "7:9"], "the traces hold steps 0 to 1"),
        (["--ranks", "x"], "no list of ranks"),
        (["--ranks", "98-99"], "no trace of ranks 98-99; there are 0"),
        (["--table", "idle"], "needs a file"),
        (["--table", "idle", "-o", "idle.xlsx"], "needs a file"),
        (["--table", "nope", "-o", "nope.csv"], "there are attribution, steps, ranks, idle, gaps, io"),
    ],
)
def test_bad_usage_says_what_to_write(trace: Path, argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(trace, *argv)


def test_nothing_to_analyze_is_an_error_that_names_the_reason(tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text('{"traceEvents": []}')
    with pytest.raises(PerfkitError, match=r"empty\.json: .*no device work and no framework ops|nothing to analyze"):
        run(tmp_path / "empty.json")
    with pytest.raises(PerfkitError):
        run(tmp_path / "nowhere.json")


def test_a_run_that_holds_only_an_answer_says_how_to_add_its_traces(trace: Path, tmp_path: Path) -> None:
    store = tmp_path / "runs"
    assert run(trace, "--store", store, "--run", "toy") == 0
    with pytest.raises(UsageError, match=r"default/toy holds no trace events.*perfkit ingest"):
        run("toy", "--store", store)


def test_a_file_that_cannot_be_written_is_a_clear_error(trace: Path, tmp_path: Path) -> None:
    with pytest.raises(PerfkitError, match="cannot write"):
        run(trace, "-o", tmp_path / "no" / "such" / "folder.txt")


LEAN = """
import sys
from perfkit.cli.main import main
code = main(["analyze", sys.argv[1], "--format", sys.argv[2]])
unwanted = "pandas plotly duckdb torch dash pyarrow.dataset pydoc sqlite3 tomllib multiprocessing".split()
heavy = [name for name in (*unwanted, "perfkit.sources.scan_python", "perfkit.flops.spec") if name in sys.modules]
import pyarrow as pa, pyarrow.compute as pc
assert pc.sum(pa.array([1, 2])).as_py() == 3 and "Parameters" in pc.sum.__doc__
from pyarrow.vendored.docscrape import NumpyDocString
assert NumpyDocString("Sum.\\n\\nParameters\\n----------\\nx : int")["Parameters"], "the real one"
frame = pa.table({"x": [1, 2]}).to_pandas()
print(code, heavy, type(frame).__name__, file=sys.stderr)
"""


@pytest.mark.parametrize("format", ["json", "text"])
def test_text_and_json_import_nothing_heavy_and_pandas_still_comes_on_request(format: str) -> None:
    sample = Path(__file__).resolve().parents[2] / "sample_traces" / "ddp_gloo"
    done = subprocess.run(
        [sys.executable, "-c", LEAN, str(sample), format], capture_output=True, text=True, check=True
    )  # fmt: skip
    assert done.stderr.strip().splitlines()[-1] == "0 [] DataFrame"


def test_a_dash_is_standard_output_and_no_file(
    trace: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(trace, "--format", "json", "-o", "-") == 0
    assert json.loads(capsys.readouterr().out)["scope"]["ranks_traced"] == 1
    assert not Path("-").exists()
