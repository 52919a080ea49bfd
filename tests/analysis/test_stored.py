"""Runs in a store: analysed like their files, and the answer kept beside them."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from trace_rows import call, events, kernel, step

import perfkit
from perfkit.analysis.stored import DERIVED, NotKept, find_run, unprofiled_step_ns
from perfkit.analysis.whatif import whatif
from perfkit.cli.main import main
from perfkit.errors import StoreError, UsageError
from perfkit.schema import STEPS, table_from_rows
from perfkit.store import Store

SAMPLE = Path(__file__).resolve().parents[2] / "sample_traces" / "ddp_gloo"
MS = 1_000_000


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with the sample run."""
    perfkit.ingest([SAMPLE], store=tmp_path / "runs", run="gloo")
    return Store(tmp_path / "runs")


def records(*rows: tuple[int, int, int, bool], tokens: int | None = None, rank: int = 0):
    """Steps as capture records them: (step, start, end, profiled)."""
    return table_from_rows(
        STEPS,
        [{"rank": rank, "step": n, "start_ns": s, "end_ns": e, "profiled": p, "tokens": tokens} for n, s, e, p in rows],
    )


def captured(folder: Path, trace, steps, **metadata: object) -> Store:
    """A store with one rank's trace, the steps that were recorded around it, and what capture says of the job."""
    lake = Store(folder)
    with lake.writer("default", "job", rank=0, segment=0, fingerprint="x") as writer:
        writer.write("events", trace)
        writer.write("steps", steps)
        writer.commit()
    lake.finalise("default", "job", metadata=metadata)
    return lake


def launched(*starts: int, length: int = 5 * MS, name: str = "gemm"):
    """Kernels with their launch calls just before."""
    rows = []
    for i, start in enumerate(starts, 1):
        rows += [call(start - 2_000, start - 1_000, i), kernel(start, start + length, i, name)]
    return rows


def test_a_run_in_a_store_says_what_its_files_say(store):
    from_files = perfkit.analyze(SAMPLE)
    assert perfkit.analyze("gloo", store=store.uri).to_json() == from_files.to_json()
    assert perfkit.analyze([store.uri, "gloo"]).to_json() == from_files.to_json()
    assert perfkit.analyze(store.uri).to_json() == from_files.to_json()
    one = perfkit.analyze("default/gloo/0", store=store.uri, ranks=[1])
    assert one.summary["quality"]["ranks"] == [1]


def test_the_answer_is_kept_in_the_store_and_replaced_by_the_same_question(store):
    report = perfkit.analyze("gloo", store=store.uri)
    before = [store.files(name, run="gloo") for name in DERIVED if name in report.tables]
    assert all(len(files) == 1 for files in before)
    for name in DERIVED:
        if name in report.tables:
            assert store.read(name, run="gloo").num_rows == report.tables[name].num_rows, name
    perfkit.analyze("gloo", store=store.uri)
    assert [store.files(name, run="gloo") for name in DERIVED if name in report.tables] == before
    perfkit.analyze("gloo", store=store.uri, window="trace")
    folder = Path(store.uri) / "attribution"
    assert len(list(folder.rglob("*.parquet"))) == 2, "another question stands beside the first"


def test_files_can_be_analysed_into_a_store_that_never_saw_their_events(tmp_path):
    perfkit.analyze(SAMPLE, store=tmp_path / "new", cluster="lab", run="try", hardware="NVIDIA H100 80GB HBM3")
    store = Store(tmp_path / "new")
    (row,) = store.read("runs").to_pylist()
    assert (row["name"], row["world_size"], row["device"], row["synthetic"]) == ("try", 2, "H100-SXM5-80GB", False)
    assert row["start_ns"] < row["end_ns"]
    assert store.read("findings", cluster="lab", run="try").num_rows
    perfkit.analyze(SAMPLE, store=tmp_path / "new")
    assert {run.run for run in store.runs()} == {"try", "ddp_gloo"}, "named as ingest names it"


@pytest.fixture
def no_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The file system below `tmp_path` is read-only for who makes folders in it, as writing to a store begins."""
    make = os.mkdir

    def refuse(path, *rest, **more):
        if Path(path).is_relative_to(tmp_path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fspath(path))
        make(path, *rest, **more)

    monkeypatch.setattr(os, "mkdir", refuse)


def test_a_store_that_can_only_be_read_answers_and_says_what_it_does_not_keep(store, no_folders):
    with pytest.warns(NotKept, match="the answer is not kept in the store: .*: cannot write: Read-only file system"):
        report = perfkit.analyze("gloo", store=store.uri)
    assert report.to_json() == perfkit.analyze(SAMPLE).to_json()
    assert not any(store.files(name, run="gloo") for name in DERIVED)


def test_whatif_answers_from_a_store_that_can_only_be_read(tmp_path, request):
    trace = events(*launched(*(10 * MS * i for i in (1, 2, 3))), *(step(i, 10 * MS * i - MS, 10 * MS * i + 8 * MS)
                                                                   for i in (1, 2, 3)))  # fmt: skip
    lake = captured(tmp_path, trace, records((1, 9 * MS, 18 * MS, True)))
    kept = whatif("job", store=lake.uri)
    request.getfixturevalue("no_folders")
    with pytest.warns(NotKept, match="Read-only"):
        assert whatif("job", store=lake.uri, ranks=[0]).step_time_ns == kept.step_time_ns


def test_files_whose_answer_a_store_was_named_to_keep_need_one_that_can_be_written(tmp_path, no_folders):
    with pytest.raises(StoreError, match="Read-only file system; choose a --store that can be written"):
        perfkit.analyze(SAMPLE, store=tmp_path / "new")


def test_what_cannot_be_read_is_an_error_in_a_store_that_can_only_be_read_too(store, no_folders):
    next(Path(store.uri).glob("manifests/**/commits/*.json")).write_text("{")
    with pytest.raises(StoreError, match="commit"):
        perfkit.analyze("gloo", store=store.uri)


def test_what_the_run_already_knows_is_not_overwritten(store):
    store.finalise("default", "gloo", metadata={"device": "the one in the corner", "model": "mine"})
    perfkit.analyze("gloo", store=store.uri, hardware="NVIDIA H100 80GB HBM3")
    (row,) = store.read("runs", run="gloo").to_pylist()
    assert (row["device"], row["model"]) == ("the one in the corner", "mine")


def test_a_name_that_is_neither_file_nor_run_lists_what_there_is(store, capsys):
    with pytest.raises(UsageError, match=r"no run 'gluo'.*default/gloo"):
        perfkit.analyze("gluo", store=store.uri)
    with pytest.raises(UsageError, match="does not exist"):
        perfkit.analyze([SAMPLE, "gluo"], store=store.uri)
    assert main(["analyze", "gluo", "--store", store.uri]) == 2
    assert "default/gloo" in capsys.readouterr().err


def test_of_several_attempts_the_last_is_meant_and_clusters_must_be_told_apart(tmp_path):
    lake = Store(tmp_path)
    for cluster, attempt in (("a", 0), ("a", 2), ("b", 0)):
        lake.finalise(cluster, "job", attempt)
    assert find_run(lake, "a/job").key == ("a", "job", 2)
    assert find_run(lake, "a/job/0").key == ("a", "job", 0)
    with pytest.raises(UsageError, match="several runs match"):
        find_run(lake, "job")


def test_recorded_steps_mark_the_steps_of_a_trace_that_has_none(tmp_path):
    trace = events(*launched(*(10 * MS * i for i in range(1, 5))))
    steps = records(*((100 + i, 10 * MS * i - MS, 10 * MS * i + 8 * MS, True) for i in range(1, 5)))
    report = perfkit.analyze("job", store=captured(tmp_path, trace, steps).uri)
    assert report.summary["quality"]["steps_source"] == "step_records"
    assert report.summary["scope"]["steps"] == [101, 104]


def test_mfu_is_of_unprofiled_steps_and_says_so(tmp_path):
    marks = (step(i, 10 * MS * i - MS, 10 * MS * i + 8 * MS) for i in (1, 2, 3))
    trace = events(*launched(*(10 * MS * i for i in (1, 2, 3))), *marks)
    free = [(10 + i, 100 * MS + 8 * MS * i, 107 * MS + 8 * MS * i, False) for i in range(5)]
    steps = records((1, 9 * MS, 18 * MS, True), *free, tokens=1000)
    lake = captured(tmp_path, trace, steps, flops_per_token=4e9, convention="palm", devices_per_replica=1, world_size=1)
    report = perfkit.analyze("job", store=lake.uri, peak_flops=1e15, dtype="bf16")
    assert report.summary["mfu"]["value"] == pytest.approx(4e12 / 1e15 / 8e-3)
    assert any("4 unprofiled steps, 8.0 ms" in message for message in report.summary["mfu"]["messages"])


def test_tokens_of_a_replica_are_those_of_the_job_only_with_a_known_mesh(tmp_path):
    trace = events(*launched(10 * MS), step(1, 9 * MS, 18 * MS))
    steps = records((1, 9 * MS, 18 * MS, True), tokens=1000)
    lake = captured(tmp_path, trace, steps, flops_per_token=4e9, world_size=8)
    report = perfkit.analyze("job", store=lake.uri, peak_flops=1e15, dtype="bf16")
    assert report.summary["mfu"]["value"] is None
    lake.finalise("default", "job", metadata={"devices_per_replica": 2})
    found = perfkit.analyze("job", store=lake.uri, peak_flops=1e15, dtype="bf16").summary["mfu"]
    assert found["model_flops_per_step"] == 4e9 * 1000 * 4


def test_step_time_counts_from_end_to_end_and_only_between_neighbours():
    rows = records((1, 0, 10, False), (2, 14, 20, False), (3, 20, 35, True), (4, 40, 50, False), (5, 52, 62, False))
    assert unprofiled_step_ns(rows) == (11, 2)
    assert unprofiled_step_ns(records((1, 0, 10, True), (2, 10, 20, True))) is None


def test_the_command_writes_to_the_store(store, capsys):
    assert main(["analyze", "gloo", "--store", store.uri, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["scope"]["ranks_traced"] == 2
    assert store.read("waterfall", run="gloo").num_rows
