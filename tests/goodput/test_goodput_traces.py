"""Real dumps of real clusters: each imports, or says in one line why not."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest

from perfkit.goodput.importers import import_dumps
from perfkit.goodput.importers.base import iso_ns
from perfkit.goodput.job_summary import summarize_jobs

FOLDERS = (
    "facebookresearch__gcm", "petuum__adaptdl", "bigscience-workshop__bigscience", "DataDog__integrations-core",
    "utkuozdemir__nvidia_gpu_exporter",
)  # fmt: skip


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_file_imports_or_gets_a_clear_line(traces, folder):
    if not (traces / folder).is_dir():
        pytest.skip(f"no {folder} here")
    files = [path for path in (traces / folder).rglob("*") if path.is_file()]
    dumps = import_dumps([traces / folder])
    assert len(dumps.imported) + len(dumps.rejected) == len(files)
    for bad in dumps.rejected:
        assert ";" in bad["reason"], "a reason comes with what to do"
        assert "\n" not in bad["reason"]
    for one in dumps.imported:
        assert sum(len(table) for table in one.tables.values()), one.path


def gcm(traces, name: str):
    path = traces / "facebookresearch__gcm/gcm/tests/data" / name
    if not path.exists():
        pytest.skip(f"no {name} here")
    return import_dumps([path])


def test_an_odd_delimiter_and_line_breaks_in_fields(traces):
    dumps = gcm(traces, "sample-sacct-multiple-multiline.txt")
    rows = {row["job"]: row for row in dumps.tables["jobs"].to_pylist()}
    assert len(rows["201729"]["nodes"]) == 128
    assert rows["201729"]["gpus"] == 1024
    assert rows["201844"]["cause"] == "requeue"
    assert dumps.duplicates == 2  # one record stands in the dump three times
    assert rows["200131"]["gpus"] == 2048  # known by its steps only
    assert not dumps.imported[0].counts


def test_jobs_over_midnight(traces):
    dumps = gcm(traces, "sample-sacct-output-midnight-edge-case.txt")
    jobs = dumps.tables["jobs"]
    assert len(jobs) == 306
    midnight = iso_ns("2021-04-07T00:00:00Z")
    crossing = [r for r in jobs.to_pylist() if r["start_ns"] < midnight < (r["end_ns"] or 0)]
    assert crossing
    assert jobs["gpus"].null_count == len(jobs)
    assert summarize_jobs(jobs)["totals"]["jobs_without_gpu_count"] == len(jobs)


def test_nodes_of_sinfo(traces):
    dumps = gcm(traces, "sinfo-output-for-structured.txt")
    nodes = dumps.tables["nodes"].to_pylist()
    assert len(nodes) == 10
    assert {n["node"]: n["state"] for n in nodes}["node2654"] == "drained"
    assert all(n["gpus"] == 8 for n in nodes)


def test_philly(traces):
    path = traces / "petuum__adaptdl/simulator/traces/philly.csv"
    if not path.exists():
        pytest.skip("no philly.csv here")
    jobs = import_dumps([path]).tables["jobs"]
    lines = path.read_text().split("\n")[1:]
    rows = [line.split(",") for line in lines if line]
    assert len(jobs) == len(rows)
    hours = sum(float(duration) * int(gpus) for _, duration, gpus, _, _ in rows) / 3600
    assert summarize_jobs(jobs)["totals"]["allocated_gpu_hours"] == pytest.approx(hours, rel=1e-9)


def test_scrapes_keep_every_sample(traces):
    paths = sorted((traces / "utkuozdemir__nvidia_gpu_exporter").rglob("*.metrics"))
    if not paths:
        pytest.skip("no scrapes here")
    for path in paths:
        dumps = import_dumps([path])
        lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        assert len(dumps.tables["counters"]) + dumps.imported[0].rejected == len(lines)
        assert pc.max(dumps.tables["counters"]["value"]).as_py() < 9.2e18
