"""`perfkit hang` on the command line."""

from __future__ import annotations

import gzip
import pickle

from perfkit.cli.main import main

DUMP = pickle.dumps({"pg_config": {"0": {"ranks": [0]}}, "pg_status": {}, "entries": []})


def test_a_folder_of_traces_is_for_analyze(tmp_path, capsys):
    (tmp_path / "rank0.json.gz").write_bytes(gzip.compress(b"{}"))
    assert main(["hang", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "no Flight Recorder dump among 1 file; rank0.json.gz: compressed data, not a Flight Recorder dump" in said
    assert said.endswith(f"`perfkit analyze {tmp_path}` reads traces\n")


def test_a_trace_by_its_name_is_for_analyze(tmp_path, capsys):
    trace = tmp_path / "rank0.json"
    trace.write_bytes(b'{"traceEvents": []}')
    assert main(["hang", str(trace)]) == 2
    assert capsys.readouterr().err == (
        f"perfkit: {trace}: a profiler trace, not a Flight Recorder dump; `perfkit analyze {trace}` reads traces\n"
    )


def test_dumps_below_a_folder_of_other_files_are_named(tmp_path, capsys):
    (tmp_path / "LICENSE").write_text("free")
    (tmp_path / "job").mkdir()
    (tmp_path / "job/_dump_0").write_bytes(DUMP)
    assert main(["hang", str(tmp_path)]) == 2
    assert f"there are dumps in {tmp_path}/job: `perfkit hang {tmp_path}/job`" in capsys.readouterr().err


def test_one_rank_is_said_in_the_singular(tmp_path, capsys):
    (tmp_path / "_dump_0").write_bytes(DUMP)
    assert main(["hang", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("1 rank left a dump that can be read\n")
