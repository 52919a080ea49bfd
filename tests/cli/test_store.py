import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from perfkit.cli import store as command
from perfkit.cli.main import main
from perfkit.errors import StoreError
from perfkit.sources.base import PartInfo
from perfkit.store import Store

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> int:
    import argparse

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


@pytest.fixture
def lake(tmp_path) -> str:
    store = Store(tmp_path / "lake")
    start_ns = 1_790_000_000_000_000_000
    for rank in (0, 3):
        info = PartInfo(
            rank=rank, world_size=8, host="n1", source="kineto", start_ns=start_ns, end_ns=start_ns + 2_500_000_000
        )
        with store.writer("prod a", "llama [bold]8b", rank=rank, segment=0, fingerprint=str(rank)) as writer:
            writer.write("events", pa.table({"event_id": np.arange(1200)}))
            writer.write("ops", pa.table({"event_id": np.arange(5)}))
            writer.commit(info)
    with store.writer("lab", "toy", 2, rank=0, segment=0, fingerprint="x") as writer:
        writer.commit(PartInfo(rank=0, source="simulate", synthetic=True))
    return store.uri


def test_ls_shows_each_run_with_ranks_of_world_size_rows_and_time(lake, capsys):
    assert run("ls", lake) == 0
    header, lab, prod = (line.split("  ") for line in capsys.readouterr().out.splitlines())
    cells = [cell.strip() for cell in prod if cell.strip()]
    assert cells[:4] == ["prod a", "llama [bold]8b", "0", "2/8"]
    assert cells[4:7] == ["2", "2,400", "2,410"]
    assert cells[8:] == ["2026-09-21 14:13:20", "2.500 s", "kineto"]
    cells = [cell.strip() for cell in lab if cell.strip()]
    assert cells == ["lab", "toy", "2", "1/?", "0", "0", "0", "0.0 MB", "?", "?", "simulate (synthetic)"]
    assert [cell.strip() for cell in header if cell.strip()][:2] == ["cluster", "run"]


def test_ls_as_json_is_one_document(lake, capsys):
    assert run("ls", lake, "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    lab, prod = document["runs"]
    assert (prod["cluster"], prod["run"], prod["attempt"]) == ("prod a", "llama [bold]8b", 0)
    assert (prod["ranks"], prod["ranks_present"], prod["world_size"]) == ([0, 3], 2, 8)
    assert prod["tables"] == {"events": 2400, "ops": 10}
    assert prod["rows"] == 2410
    assert prod["end_ns"] - prod["start_ns"] == 2_500_000_000
    assert prod["bytes"] == sum(p.stat().st_size for p in Path(lake).rglob("part-*.parquet"))
    assert (prod["synthetic"], lab["synthetic"]) == (False, True)
    assert lab["world_size"] is None
    assert lab["start_ns"] is None


def test_ls_shows_a_name_on_one_line_whatever_it_holds(tmp_path, capsys):
    Store(tmp_path).finalise("lab", "two\nlines\x1b[31m")
    assert run("ls", str(tmp_path)) == 0
    assert r"two\nlines\x1b[31m" in capsys.readouterr().out.splitlines()[1]


def test_ls_names_what_is_damaged_and_lists_the_rest(lake, capsys):
    commit = next(Path(lake).glob("manifests/cluster=lab/**/commits/*.json"))
    commit.write_bytes(commit.read_bytes()[:-9])
    assert run("ls", lake) == 0
    shown = capsys.readouterr()
    assert "llama [bold]8b" in shown.out
    assert f"{commit}: damaged commit" in shown.err
    assert run("ls", lake, "--format", "json") == 0
    assert [row["damaged"] for row in json.loads(capsys.readouterr().out)["runs"]] == [1, 0]


def test_ls_of_nothing_says_what_to_do(tmp_path):
    with pytest.raises(StoreError, match="perfkit ingest TRACE --store"):
        run("ls", str(tmp_path))


def test_a_time_that_counts_from_boot_is_not_shown_as_a_date():
    assert command._utc(5_000_000_000) == "5.000 s (no epoch)"
    assert command._utc(-3) == "-3 ns"


def test_gc_lists_first_and_deletes_when_told(lake, capsys):
    next(Path(lake).rglob("commits/00003-0000.json")).unlink()
    assert run("gc", lake) == 0
    assert capsys.readouterr().out == "nothing to remove\n"
    assert run("gc", lake, "--older-than", "0") == 0
    assert "2 files" in capsys.readouterr().out
    assert len(list(Path(lake).rglob("part-00003-*.parquet"))) == 2
    assert run("gc", lake, "--older-than", "0", "--delete", "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["deleted"] is True
    assert len(document["files"]) == 2
    assert not list(Path(lake).rglob("part-00003-*.parquet"))
    assert len(list(Path(lake).rglob("part-*.parquet"))) == 2


def test_migrate_of_a_current_store_does_nothing(lake, capsys):
    assert run("migrate", lake) == 0
    assert capsys.readouterr().out == "nothing to do: the store is current\n"
    assert run("migrate", lake, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["changed"] == 0


def test_its_help_needs_no_pyarrow():
    code = "import sys; import perfkit.cli.store; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("action", ["ls", "gc", "compact", "migrate", "rollup"])
@pytest.mark.parametrize("option", [["--store", "runs"], ["--store=runs"], ["runs", "--store", "other"]])
def test_store_as_an_option_says_how_to_name_it(action, option, capsys):
    assert main(["store", action, *option]) == 2
    assert f"the store goes without --store: `perfkit store {action} DIR`" in capsys.readouterr().err
