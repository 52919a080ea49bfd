"""`perfkit ingest` as a person and as a script see it."""

from __future__ import annotations

import json
import os
import stat

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


def test_every_file_that_lost_something_is_named_and_of_what_only_is_odd_an_example(tmp_path, capsys):
    whole = json.dumps(document(op(ts=2e15), op(ts=2e15 + 1, dur=-1), rank=None))
    for number in range(3):
        (tmp_path / f"cut{number}.json").write_text(whole[:-number] if number else whole)
    assert main(["ingest", *map(str, sorted(tmp_path.glob("cut*"))), "--store", str(tmp_path / "s")]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert sum(line.startswith("note: truncated, 1×: ") for line in notes) == 2
    assert [line for line in notes if "negative dur, 3×" in line and line.endswith("(and 2 more files)")]


def test_a_trace_that_has_changed_takes_its_place_with_replace(tmp_path, capsys):
    path = write(tmp_path / "rank0.json", document(op(ts=2e15), rank=0))
    command = ["ingest", str(path), "--store", str(tmp_path / "s")]
    assert main(command) == 0
    write(path, document(op(ts=2e15), op(ts=2e15 + 1), rank=0))
    assert main(command) == 2
    assert "take its place with --replace" in capsys.readouterr().err
    assert main([*command, "--replace"]) == 0
    assert "1 of 8 ranks, 2 events" in capsys.readouterr().out


def test_the_help_shows_an_example(capsys):
    assert main(["ingest", "--help"]) == 0
    assert "perfkit ingest traces/ --store runs/" in capsys.readouterr().out


def test_a_full_disk_is_one_line_for_all_files(tmp_path, capsys, monkeypatch):
    for rank in range(6):
        write(tmp_path / f"r{rank}.json", document(op(ts=2e15), rank=rank, world_size=6))
    original, commits = os.fsync, []

    def full(descriptor: int) -> None:  # the third commit does not fit
        start = os.pread(descriptor, 300, 0) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
        if start.startswith(b"{") and b'"fingerprint"' in start:
            commits.append(descriptor)
            if len(commits) >= 3:
                raise OSError(28, "No space left on device")
        original(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    command = ["ingest", *(str(tmp_path / f"r{rank}.json") for rank in range(6)), "--store", str(tmp_path / "s")]
    assert main([*command, "--run", "x", "--workers", "1"]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("perfkit:") == 1
    assert "No space left on device; 4 of 6 files are not in the store; free some space" in shown.err
    assert "the store is full" in shown.out
    monkeypatch.undo()
    assert main([*command, "--run", "x", "--workers", "1"]) == 0
    assert "unchanged: 2 files" in capsys.readouterr().out
