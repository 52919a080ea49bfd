from __future__ import annotations

import importlib.util
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from trace_rows import call, events, kernel, nccl, step

import perfkit
from perfkit.analysis.analyze import analyze, analyze_tables
from perfkit.analysis.inputs import _in_words
from perfkit.engine.local import LocalEngine
from perfkit.errors import PerfkitError, UsageError
from perfkit.sources.base import Oddity


def write(path: Path, *kernels: tuple[int, int], rank: int | None = None, **top: Any) -> Path:
    """Write a trace of kernels (start and end in µs)."""
    rows: list[dict[str, Any]] = [
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": a, "dur": b - a, "pid": 0, "tid": 7, "args": {"device": 0}}
        for a, b in kernels
    ]
    rows.append({"ph": "s", "cat": "ac2g", "name": "ac2g", "ts": 1, "pid": 0, "tid": 7, "id": 1})
    head: dict[str, Any] = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 8}}
    if "baseTimeNanoseconds" not in top:
        head["baseTimeNanoseconds"] = 1_700_000_000_000_000_000
    path.write_text(json.dumps({**head, "traceEvents": rows, **top}))
    return path


def test_ranks_come_from_the_traces_and_others_get_free_numbers(tmp_path: Path) -> None:
    write(tmp_path / "a.json", (0, 1))
    write(tmp_path / "b.json", (0, 2), rank=0)
    write(tmp_path / "c.json", (0, 3))
    found = analyze(tmp_path).summary
    assert [(r["rank"], r["window_ns"]) for r in found["ranks"]] == [(0, 2000), (1, 1000), (2, 3000)]
    assert found["scope"]["world_size"] == 8


def test_files_of_one_rank_are_its_segments_and_the_time_between_them_is_not_idle(tmp_path: Path) -> None:
    write(tmp_path / "a.json", (0, 10), rank=3)
    write(tmp_path / "b.json", (1000, 1020), rank=3)
    found = analyze(tmp_path).summary
    assert found["ranks"][0]["window_ns"] == 30_000
    assert found["totals"]["idle_ns"] == 0
    assert found["quality"]["notes"] == []


def test_files_that_claim_one_rank_at_one_time_are_pointed_out(tmp_path: Path) -> None:
    write(tmp_path / "a.json", (0, 10), rank=3)
    write(tmp_path / "b.json", (5, 20), rank=3)
    assert ["rank 3 at the same time" in note for note in analyze(tmp_path).summary["quality"]["notes"]] == [True]


def test_two_runs_of_a_rank_that_have_the_same_steps_are_not_added_up_in_silence(tmp_path: Path) -> None:
    for name, base in (("a", 0), ("b", 1000)):
        marks = [{"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "ts": base + 50 * n, "dur": 50,
                  "pid": 1, "tid": 1} for n in (1, 2)]  # fmt: skip
        work = [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": base + 50 * n + 10, "dur": 20, "pid": 0, "tid": 7,
                 "args": {"device": 0, "correlation": n}} for n in (1, 2)]  # fmt: skip
        calls = [{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": base + 50 * n + 5, "dur": 2,
                  "pid": 1, "tid": 1, "args": {"correlation": n}} for n in (1, 2)]  # fmt: skip
        head = {"distributedInfo": {"rank": 3, "world_size": 8}, "baseTimeNanoseconds": 1_700_000_000_000_000_000}
        (tmp_path / f"{name}.json").write_text(json.dumps({**head, "traceEvents": [*marks, *work, *calls]}))
    perfkit.ingest(tmp_path, store=tmp_path / "store", run="r")
    for found in (analyze(tmp_path), analyze("r", store=tmp_path / "store")):
        assert found.summary["quality"]["notes"] == [
            "rank 3 has step 1 and others twice, at different times: runs are added up here; "
            "`perfkit compare` sets one against the other"
        ]
        assert found.summary["quality"]["events"] == 12
    assert analyze(tmp_path / "a.json").summary["quality"]["notes"] == []


def test_a_base_time_after_the_events_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", (0, 10), baseTimeNanoseconds=1_700_000_000_000_000_000)
    assert analyze(path).tables["steps"]["start_ns"].to_pylist() == [1_700_000_000_000_000_000]


def test_all_events_are_counted_although_only_some_are_kept(tmp_path: Path) -> None:
    assert analyze(write(tmp_path / "a.json", (0, 10), (20, 30))).summary["quality"]["events"] == 3


def test_a_truncated_trace_is_analyzed_as_far_as_it_goes_and_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", (0, 10), (20, 30))
    path.write_text(path.read_text()[:-60])
    found = analyze(path).summary
    assert found["totals"]["compute_ns"] == 20_000
    assert any("truncated" in note for note in found["quality"]["notes"])


def test_a_trace_without_anything_to_attribute_is_rejected_beside_good_ones(tmp_path: Path) -> None:
    write(tmp_path / "bad.json")
    write(tmp_path / "good.json", (0, 10))
    (rejected,) = analyze(tmp_path).summary["quality"]["rejected"]
    assert rejected["path"].endswith("bad.json")
    with pytest.raises(PerfkitError, match=r"nothing to analyze: .*bad\.json"):
        analyze(tmp_path / "bad.json")


def test_an_unknown_window_is_refused() -> None:
    with pytest.raises(UsageError, match="neither step nor trace"):
        analyze_tables({"events": events(kernel(0, 1))}, window="steps")


def test_synthetic_tables_say_so() -> None:
    assert analyze_tables({"events": events(kernel(0, 1))}, synthetic=True).summary["synthetic"] is True


def test_selected_steps_leave_carry_in_and_other_windows_as_they_are() -> None:
    rows = [kernel(0, 5)]
    for n in range(3):
        rows += [
            step(n, 100 * n, 100 * n + 100),
            call(100 * n + 10, 100 * n + 11, n + 1),
            kernel(100 * n + 20, 100 * n + 50, n + 1),
        ]
    everything = analyze_tables({"events": events(*rows)}).tables["attribution"].to_pylist()
    middle = analyze_tables({"events": events(*rows)}, first_step=1, last_step=2).tables["attribution"].to_pylist()
    assert middle == [everything[0], everything[2]]


def test_missing_launches_are_counted_among_the_work_that_starts_in_the_selected_windows() -> None:
    rows = [nccl(0, 30)]  # queued before the recording, and still running when the first window opens
    for n in range(3):
        rows += [
            step(n, 100 * n, 100 * n + 100),
            call(100 * n + 10, 100 * n + 11, n + 1),
            kernel(100 * n + 20, 100 * n + 50, n + 1),
        ]
    rows.append(kernel(160, 170))
    for first, last, expected in ((None, None, (4, 1)), (0, 1, (1, 0)), (1, 2, (2, 1))):
        quality = analyze_tables({"events": events(*rows)}, first_step=first, last_step=last).summary["quality"]
        assert (quality["device_events"], quality["launches_missing"]) == expected


@pytest.mark.skipif(importlib.util.find_spec("hta") is not None, reason="HTA is installed")
def test_without_hta_the_bridge_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"pip install 'perfkit\[hta\]'"):
        analyze(write(tmp_path / "a.json", (0, 10))).to_hta()


def test_hta_cannot_read_inside_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = type("fake", (), {"TraceAnalysis": None})
    monkeypatch.setitem(__import__("sys").modules, "hta", fake)
    monkeypatch.setitem(__import__("sys").modules, "hta.trace_analysis", fake)
    trace = write(tmp_path / "a.json", (0, 10))
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as archive:
        archive.add(trace, "a.json")
    with pytest.raises(UsageError, match="unpack the archive"):
        analyze(tmp_path / "all.tar.gz").to_hta()
    with pytest.raises(UsageError, match="plain trace files"):
        analyze_tables({"events": events(kernel(0, 1))}).to_hta()


def test_workers_give_the_same_answer_as_one_process(tmp_path: Path) -> None:
    for rank in range(4):
        write(tmp_path / f"{rank}.json", (0, 10 + rank), (50, 60), rank=rank)
    (tmp_path / "bad.json").write_text('{"traceEvents": [x')
    alone, together = (analyze(tmp_path, engine=LocalEngine(workers)) for workers in (1, 2))
    assert alone.summary == together.summary
    assert [r["rank"] for r in alone.summary["ranks"]] == [0, 1, 2, 3]
    assert alone.sources == together.sources == {rank: str(tmp_path / f"{rank}.json") for rank in range(4)}


def test_what_a_source_found_odd_is_said_in_words_and_counted_once() -> None:
    assert _in_words(Oddity("type_mismatch", 16, "stream is text")) == "type mismatch, 16 times: stream is text"
    assert _in_words(Oddity("unresolved", 15, "15 × device work")) == "unresolved: 15 × device work"
    assert _in_words(Oddity("missing_ts", 1, "")) == "missing ts"


def test_events_that_say_nothing_about_training_are_counted_and_not_called_none(tmp_path: Path) -> None:
    rows = [{"ph": "X", "cat": "Op", "name": "MatMul", "ts": at, "dur": 1, "pid": 1, "tid": 1} for at in (1, 2)]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": rows}))
    with pytest.raises(PerfkitError, match=r"2 events, none of which is known.*; give a trace of torch.profiler or"):
        analyze(tmp_path)
