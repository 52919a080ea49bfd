"""The examples of docs/store.md run, and other tools see what perfkit sees."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from perfkit.store import Store, layout

DOC = (Path(__file__).resolve().parents[2] / "docs" / "store.md").read_text()


@pytest.fixture
def runs_folder(tmp_path, monkeypatch) -> Store:
    monkeypatch.chdir(tmp_path)
    store = Store("runs/")
    for run in ("llama-8b", "other"):
        for rank in range(2):
            ids = np.arange(100)
            category = pa.array(np.where(ids % 2, "kernel", "cpu_op"))
            rows = pa.table({"event_id": ids, "category": category, "name": ["gemm"] * 100, "dur_ns": ids})
            with store.writer("c", run, rank=rank, segment=0, fingerprint=str(rank)) as writer:
                writer.write("events", rows)
                writer.commit(source_path=f"t{rank}.json")
        store.finalise("c", run)
    return store


def test_the_examples_run_and_agree(runs_folder, capsys):
    pytest.importorskip("polars")
    names: dict[str, object] = {}
    for example in re.findall(r"```python\n(.*?)```", DOC, re.DOTALL):
        exec(compile(example, "docs/store.md", "exec"), names)
    assert capsys.readouterr().out.splitlines() == ["c llama-8b 0 2 of None", "c other 0 2 of None"]
    assert names["kernels"].num_rows == 50
    assert names["per_rank"].count_rows() == 200
    assert sorted(names["slowest"]["ms"]) == [0.0025] * 4
    assert len(names["commits"]) == 4
    assert len(names["events"]) == 200
    assert names["events"]["dur_ns"].sum() == 2 * np.arange(100).sum()
    assert list(names["all_runs"]["ranks_present"]) == [2, 2]
    assert names["busy"]["dur_ns"].to_list() == [2500] * 4
    assert len(names["exact"].fetchall()) == 400


def test_the_slug_in_the_text_is_the_slug(runs_folder):
    assert layout.slug("a b") in DOC


@pytest.mark.parametrize("name", ["007", "null", "a/b", "x=y", "123", "2026-01-02", "β"])
def test_other_tools_tell_runs_apart_whatever_their_names(tmp_path, name):
    duckdb = pytest.importorskip("duckdb")
    pl = pytest.importorskip("polars")
    store = Store(tmp_path)
    for run in (name, "7", "plain"):
        with store.writer("c", run, rank=0, segment=0, fingerprint="x") as writer:
            writer.write("events", pa.table({"event_id": [1, 2]}))
            writer.commit()
    query = (
        f"SELECT run, count(*) FROM read_parquet('{tmp_path}/events/**/*.parquet', hive_partitioning = true) GROUP BY 1"
    )
    expected = sorted(layout.slug(run) for run in (name, "7", "plain"))
    assert sorted(str(run) for run, count in duckdb.sql(query).fetchall() if count == 2) == expected
    frame = pl.scan_parquet(tmp_path / "events", hive_partitioning=True).group_by("run").len().collect()
    assert sorted(map(str, frame["run"])) == expected
