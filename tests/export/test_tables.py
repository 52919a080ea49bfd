"""Tables of a run as CSV and Parquet."""

from __future__ import annotations

import csv
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfkit
from perfkit.errors import UsageError
from perfkit.export.opened import open_run
from perfkit.export.tables import read_table, run_tables, without_formulas, write_run_table, write_table

SAMPLE = "sample_traces/ddp_gloo"


@pytest.fixture(scope="module")
def sample(request):
    return request.config.rootpath / SAMPLE


def cells(table, tmp_path):
    write_table(table, tmp_path / "t.csv")
    return list(csv.reader(io.StringIO((tmp_path / "t.csv").read_text())))


@pytest.mark.parametrize("text", ["=1+1", "+A1", "-A1", "@SUM(A1)", "\t=1", "\r=1", " =cmd|' /C calc'!A0", "＝1"])
def test_a_cell_that_a_spreadsheet_would_run_gets_an_apostrophe(text):
    table = without_formulas(pa.table({"name": [text, "gemm", None]}))
    assert table["name"].to_pylist() == ["'" + text, "gemm", None]


def test_numbers_stay_numbers(tmp_path):
    table = pa.table({"ns": [-5, 7], "x": [-0.5, None], "text": ["-5", "+1.5e-3"], "name": ["-five", "a-b"]})
    assert cells(table, tmp_path)[1:] == [["-5", "-0.5", "-5", "'-five"], ["7", "", "+1.5e-3", "a-b"]]


@given(st.lists(st.text(), min_size=1))
def test_no_text_starts_a_formula(texts):
    for text in without_formulas(pa.table({"name": texts}))["name"].to_pylist():
        stripped = text.lstrip(" \u00a0")
        try:
            float(stripped)
        except ValueError:
            assert not stripped.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) or text.startswith("'")


def test_lists_are_json_in_csv_and_lists_in_parquet(tmp_path):
    table = pa.table({"ranks": pa.array([[0, 1], None], pa.list_(pa.int32())), "n": [1, 2]})
    assert cells(table, tmp_path)[1:] == [["[0, 1]", "1"], ["", "2"]]
    write_table(table, tmp_path / "t.parquet")
    assert pq.read_table(tmp_path / "t.parquet")["ranks"].to_pylist() == [[0, 1], None]


def test_every_table_of_a_store_and_of_its_analysis_can_be_written_and_read(sample, tmp_path):
    perfkit.ingest(sample, store=tmp_path / "runs", run="job")
    with open_run("job", store=tmp_path / "runs") as opened:
        names = run_tables(opened)
        assert {"events", "ops", "runs", "attribution", "kernels", "waterfall", "findings", "steps_analysis"} <= set(
            names
        )
        for name in names:
            rows = write_run_table(opened, name, tmp_path / f"{name}.parquet")
            assert pq.read_table(tmp_path / f"{name}.parquet").num_rows == rows
        expected = perfkit.Store(tmp_path / "runs").read("events", run="job")
        found = pq.read_table(tmp_path / "events.parquet")
        assert found["name"].to_pylist() == expected["name"].to_pylist()
        assert found["start_ns"].to_pylist() == expected["start_ns"].to_pylist()


def test_trace_files_give_the_same_tables_as_a_store(sample, tmp_path):
    perfkit.ingest(sample, store=tmp_path / "runs", run="job")
    with open_run(sample) as files, open_run("job", store=tmp_path / "runs") as stored:
        for name in ("attribution", "events"):
            here, there = (pa.concat_tables(read_table(one, name)) for one in (files, stored))
            assert here["start_ns"].to_pylist() == there["start_ns"].to_pylist()


def test_ranks_and_steps_are_chosen(sample):
    with open_run(sample) as opened:
        every = pa.concat_tables(read_table(opened, "attribution"))
        step = max(s for s in every["step"].to_pylist() if s is not None)
        rows = pa.concat_tables(read_table(opened, "attribution", ranks=[1], steps=(step, None)))
        assert set(zip(rows["rank"].to_pylist(), rows["step"].to_pylist(), strict=True)) == {(1, step)}
        events = pa.concat_tables(read_table(opened, "events", ranks=[1]))
        assert set(events["rank"].to_pylist()) == {1}


def test_a_table_that_is_not_there_is_said_with_those_that_are(sample, tmp_path):
    with open_run(sample) as opened, pytest.raises(UsageError, match=r"no table 'nonsense'; there are .*kernels"):
        write_run_table(opened, "nonsense", tmp_path / "x.csv")
    assert not list(tmp_path.iterdir())


def test_a_report_gives_data_frames_without_losing_a_nanosecond(sample):
    report = perfkit.analyze(sample)
    frame = report.to_pandas("attribution")
    assert frame["start_ns"].dtype in ("int64", "Int64")
    assert [int(ns) for ns in frame["start_ns"]] == report.tables["attribution"]["start_ns"].to_pylist()
    assert frame["device"].isna().all()  # a rank without a GPU
    assert len(report.to_pandas("findings")) == len(report.tables["findings"])
    with pytest.raises(UsageError, match="there are attribution"):
        report.to_pandas("nonsense")
