"""`perfkit export`: the command around `redact_trace`."""

from __future__ import annotations

import argparse
import gzip
import json

import pytest

from perfkit.cli import export
from perfkit.errors import UsageError

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
    assert "host            1 names hashed" in out
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
    assert export.default_output(trace) == copy


def test_a_second_copy_does_not_replace_the_first(tmp_path):
    (tmp_path / "redacted.json.gz").touch()
    assert export.default_output(str(tmp_path / "host.json")) == str(tmp_path / "redacted.2.json.gz")
