"""`perfkit ingest` as a person and as a script see it."""

from __future__ import annotations

import json

from perfkit.cli.main import main
from tests.sources.trace_files import document, op, write


def test_the_summary_says_what_happened(tmp_path, capsys):
    write(tmp_path / "in/rank0.json", document(op(ts=2e15), rank=0, world_size=2))
    (tmp_path / "in/bad.json.gz").write_bytes(b"plain")
    assert main(["ingest", str(tmp_path / "in"), "--store", str(tmp_path / "s")]) == 0
    out, err = capsys.readouterr()
    assert "ingested 1 file, 1 of 2 ranks, 1 event" in out
    assert "rejected 1 file" in out
    assert "bad.json.gz" in err
    assert main(["ingest", str(tmp_path / "in"), "--store", str(tmp_path / "s")]) == 0
    assert "unchanged: 1 file already in the store" in capsys.readouterr().out


def test_json_is_one_document_and_nothing_else(tmp_path, capsys):
    path = write(tmp_path / "rank0.json", document(op(ts=2e15), rank=0))
    assert main(["ingest", str(path), "--store", str(tmp_path / "s"), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["ranks"], report["events"], report["files"][0]["status"]) == ([0], 1, "ingested")


def test_it_fails_only_if_nothing_could_be_ingested(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["ingest", str(tmp_path / "empty"), "--store", str(tmp_path / "s")]) == 2
    assert main(["ingest", str(tmp_path / "missing"), "--store", str(tmp_path / "s")]) == 2
    assert not (tmp_path / "s").exists()
    assert "missing" in capsys.readouterr().err


def test_the_help_shows_an_example(capsys):
    assert main(["ingest", "--help"]) == 0
    assert "perfkit ingest traces/ --store runs/" in capsys.readouterr().out
