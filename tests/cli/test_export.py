"""`perfkit export`: the command around `redact_trace`."""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

import pytest

from perfkit.cli import export
from perfkit.errors import UsageError
from perfkit.redact import free_name

TRACE = '{"host_name": "node-17", "traceEvents": [{"ph": "X", "name": "train.py(1): secret_step", "ts": 1.001}]}'


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    export.add_arguments(parser)
    return export.run(parser.parse_args(argv))


def test_the_copy_gets_a_name_of_its_own_and_the_summary_says_what_was_hashed(tmp_path, capsys):
    (tmp_path / "rank0.json").write_text(TRACE)
    assert run(str(tmp_path / "rank0.json"), "--redact") == 0
    copy = gzip.decompress((tmp_path / "redacted-rank0.json.gz").read_bytes()).decode()
    assert "secret_step" not in copy
    assert '"ts": 1.001' in copy
    out = capsys.readouterr().out
    assert "host            1 name hashed, 1 time" in out
    assert "no hashed name is left" in out


def test_json_output_is_the_report(tmp_path, capsys):
    (tmp_path / "rank0.json").write_text(TRACE)
    assert run(str(tmp_path / "rank0.json"), "--redact", "-o", str(tmp_path / "c.json"), "--format", "json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["target"] == str(tmp_path / "c.json")
    assert report["names"] == {"file": 1, "fn": 1, "host": 1}


def test_without_a_format_it_names_them():
    with pytest.raises(UsageError, match=r"say what to write; add --format perfetto\|csv"):
        run("t.json")


@pytest.mark.parametrize(
    ("trace", "copy"),
    [
        ("a/node-17.corp_4242.pt.trace.json", "a/redacted.json.gz"),
        ("alice_rank-03.json.gz", "redacted-rank3.json.gz"),
        ("trace", "redacted.json.gz"),
    ],
)
def test_of_the_name_of_the_trace_only_the_rank_is_taken_over(trace, copy):
    assert str(free_name(Path(trace).parent, trace)) == copy


def test_a_second_copy_does_not_replace_the_first(tmp_path):
    (tmp_path / "redacted.json.gz").touch()
    assert free_name(tmp_path, "host.json") == tmp_path / "redacted.2.json.gz"


def test_ranks_of_a_job_are_redacted_at_once_with_one_salt(tmp_path, capsys):
    for rank in range(2):
        trace = {"distributedInfo": {"rank": rank, "pg_config": [{"pg_name": "moonshot"}]}, "traceEvents": []}
        (tmp_path / f"host-17-rank{rank}.json").write_text(json.dumps(trace))
    assert run(str(tmp_path), "--redact", "-o", str(tmp_path / "copies")) == 0
    copies = [json.loads(gzip.decompress(path.read_bytes())) for path in sorted((tmp_path / "copies").iterdir())]
    assert sorted(path.name for path in (tmp_path / "copies").iterdir()) == [
        "redacted-rank0.json.gz",
        "redacted-rank1.json.gz",
    ]
    names = {copy["distributedInfo"]["pg_config"][0]["pg_name"] for copy in copies}
    assert len(names) == 1
    assert names != {"moonshot"}
    assert "--salt" not in capsys.readouterr().out


def test_several_traces_need_a_folder(tmp_path):
    (tmp_path / "rank0.json").write_text(TRACE)
    with pytest.raises(UsageError, match="need a folder"):
        run(str(tmp_path), "--redact")


def test_the_last_line_says_what_several_ranks_need(tmp_path, capsys):
    (tmp_path / "rank0.json").write_text(TRACE)
    run(str(tmp_path / "rank0.json"), "--redact")
    assert "give all the same --salt" in capsys.readouterr().out.splitlines()[-1]
    run(str(tmp_path / "rank0.json"), "--redact", "--salt", "s")
    assert "--salt" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("trace", "copy", "is_said"),
    [
        ({}, "copy.json", True),
        ({}, "copy-rank3.json", False),
        ({"distributedInfo": {"rank": 3}}, "copy.json", False),
    ],
)
def test_a_rank_that_only_the_name_of_the_trace_says_is_named(tmp_path, capsys, trace, copy, is_said):
    (tmp_path / "rank3.json").write_text(json.dumps({**trace, "traceEvents": []}))
    run(str(tmp_path / "rank3.json"), "--redact", "-o", str(tmp_path / copy))
    assert ("rank 3 only its name said" in capsys.readouterr().out) == is_said
