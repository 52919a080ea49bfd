"""`perfkit goodput` on the command line."""

from __future__ import annotations

import json
import re

import fsspec
import pytest

from perfkit.cli.main import main
from perfkit.schema import RUN_ROLLUP, table_from_rows
from perfkit.store import Store

H = 3600 * 10**9
SACCT = (
    "JobID|User|State|Start|End|AllocTRES\n"
    "1|ann|COMPLETED|2024-01-01T00:00:00|2024-01-01T02:00:00|gres/gpu=8\n"
    "2|<script>alert(1)</script>|FAILED|2024-01-01T00:00:00|2024-01-01T01:00:00|gres/gpu=4\n"
    "3|bo|FAILED|2024-01-01T05:00:00|2024-01-01T01:00:00|gres/gpu=4\n"
)


@pytest.fixture
def dump(tmp_path):
    path = tmp_path / "sacct.txt"
    path.write_text(SACCT)
    return str(path)


@pytest.fixture
def store(tmp_path):
    row = {
        "cluster": "prod",
        "run": "a\x1b[31m",
        "attempt": 0,
        "start_ns": 0,
        "end_ns": H,
        "gpus": 8,
        "user": "ann",
        "state": "ended",
        "allocated_ns": 8 * H,
        "productive_ns": 6 * H,
        "lost_ns": 2 * H,
        "eligible_ns": 0,
        "queue_ns": 0,
    }
    store = Store(tmp_path / "store")
    store.write_fleet("run_rollup", table_from_rows(RUN_ROLLUP, [row]), date="1970-01-01", part="x")
    return str(tmp_path / "store")


def test_a_dump_as_text(dump, capsys):
    assert main(["goodput", dump, "--by", "user", "--price", "2"]) == 0
    shown = capsys.readouterr().out
    assert "2 jobs held 20.0 GPU-hours, 40" in shown
    assert "goodput is unknown: a scheduler sees jobs, not steps" in shown
    assert "line 4: ends before it starts: job '3'" in shown
    assert "ann" in shown


def test_a_dump_as_json_is_one_document(dump, capsys):
    assert main(["goodput", dump, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["totals"]["allocated_gpu_hours"] == 20.0
    assert document["quality"]["files"][0]["left_out"] == {"ends before it starts": 1}


def test_a_store_as_text_and_json(store, capsys):
    assert main(["goodput", store]) == 0
    shown = capsys.readouterr().out
    assert "goodput 75.0 % of 8.0 GPU-hours" in shown
    assert "lost: steps run again" in shown
    assert "\x1b" not in shown
    assert main(["goodput", store, "--format", "json", "--by", "cluster"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["totals"]["goodput"] == 0.75
    assert document["groups"][0]["key"] == "prod"


def test_a_store_may_be_behind_a_uri(store, capsys):
    assert main(["goodput", f"file://{store}"]) == 0
    assert "goodput 75.0 % of 8.0 GPU-hours" in capsys.readouterr().out


def test_a_dump_behind_a_uri_is_not_taken_for_a_store(capsys):
    fsspec.filesystem("memory").pipe("/slurm/sacct.txt", SACCT.encode())
    assert main(["goodput", "memory://slurm/sacct.txt"]) == 2
    said = "no store at memory://slurm/sacct.txt; check the URI; a dump is read from a local file, so copy it here"
    assert said in capsys.readouterr().err


def test_dumps_can_be_imported_into_a_store(dump, tmp_path, capsys):
    target = str(tmp_path / "imported")
    assert main(["goodput", dump, "--import-to", target]) == 0
    assert main(["goodput", target, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["totals"]["jobs"] == 2
    assert main(["goodput", dump, "--import-to", target]) == 0
    assert len(Store(target).read("jobs")) == 2


def test_planning(capsys):
    arguments = ["goodput", "--plan", "--mttf-hours", "3.09", "--save-seconds", "30", "--restart-seconds", "600"]
    assert main([*arguments, "--format", "json", "--interval-seconds", "3600"]) == 0
    intervals = json.loads(capsys.readouterr().out)["intervals"]
    assert set(intervals) == {"young", "daly", "best", "current"}
    assert intervals["current"]["expected_ettr"] < intervals["best"]["expected_ettr"]
    assert main(arguments) == 0
    assert "a failure every 3.1 h" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to look at"),
        (["nowhere.txt"], "no such file; for a run in a store add --store DIR"),
        (["--plan"], "--plan needs --save-seconds"),
        (["--plan", "--save-seconds", "1", "--restart-seconds", "1"], "--plan needs --mttf-hours"),
        (["x", "--as-of", "yesterday"], "is no time"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_2(arguments, message, capsys):
    assert main(["goodput", *arguments]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1


def test_nothing_usable_is_an_error_with_the_reason(tmp_path, capsys):
    (tmp_path / "x.md").write_text("# notes\n")
    assert main(["goodput", str(tmp_path / "x.md")]) == 2
    assert "not a dump that perfkit knows" in capsys.readouterr().err


def test_a_simulated_fleet_can_be_asked(tmp_path, capsys):
    folder = str(tmp_path / "fleet")
    arguments = ["--clusters", "1", "--days", "4", "--runs", "6", "--ranks", "16", "--seed", "2"]
    assert main(["simulate", "fleet", *arguments, "-o", folder]) == 0
    assert "synthetic store" in capsys.readouterr().out
    assert main(["goodput", folder]) == 0
    assert capsys.readouterr().out.startswith("SYNTHETIC DATA")
    assert main(["simulate", "fleet", *arguments, "-o", folder]) == 2


def test_snapshots_of_nodes_add_up_to_an_uptime(tmp_path, capsys):
    target, dump = str(tmp_path / "store"), tmp_path / "sinfo.txt"
    for hour, state in ((0, "idle"), (1, "down*"), (2, "idle"), (3, "idle")):
        dump.write_text(f"PARTITION|NODELIST|GRES|STATE\np|n1|gpu:a100:8|{state}\np|n2|gpu:a100:8|idle\n")
        arguments = ["--as-of", f"2025-01-01T0{hour}:00:00Z", "--import-to", target, "--cluster", "prod"]
        assert main(["goodput", str(dump), *arguments]) == 0
    rows = Store(target).read("cluster_rollup").to_pylist()
    assert [(r["up_ns"] / H, r["down_ns"] / H) for r in rows] == [(16, 0), (8, 8), (16, 0)]
    assert all(r["cluster"] == "prod" for r in rows)


def test_gpu_hours_that_a_dump_does_not_know_are_said_to_be_unknown(tmp_path, capsys):
    dump = tmp_path / "sacct.txt"
    dump.write_text("JobID|State|Start|End\n1|COMPLETED|2024-01-01T00:00:00|2024-01-01T02:00:00\n")
    assert main(["goodput", str(dump), "--by", "day"]) == 0
    shown = capsys.readouterr().out
    assert "1 job held unknown GPU-hours" in shown
    assert "1 job does not say how many GPUs it held\n" in shown
    assert re.search(r"completed +1 job +unknown GPU-hours", shown)
    assert re.search(r"2024-01-01 +– +1 ", shown)


def test_gpu_hours_of_some_jobs_are_without_the_others(tmp_path, capsys):
    dump = tmp_path / "sacct.txt"
    dump.write_text(SACCT.replace("|gres/gpu=8", "|"))
    assert main(["goodput", str(dump)]) == 0
    shown = capsys.readouterr().out
    assert "2 jobs held 4.0 GPU-hours" in shown
    assert "1 job does not say how many GPUs it held: the GPU-hours are without it" in shown


def test_what_is_supported_is_said_once(tmp_path, capsys):
    for name in "abcde":
        (tmp_path / f"{name}.bin").write_bytes(b"\0binary")
    (tmp_path / "notes.md").write_text("# notes\n")
    assert main(["goodput", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "a.bin and 4 more: a binary file; " in said
    assert said.count("Prometheus") == 1
    (tmp_path / "sacct.txt").write_text(SACCT)
    assert main(["goodput", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("Prometheus") == 1
