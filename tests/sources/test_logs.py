"""Training logs as sources: torchtitan's JSON lines and Megatron's text."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfkit
from perfkit.sources import megatron, torchtitan
from perfkit.sources.base import PartInfo
from perfkit.sources.lines import _chunk
from perfkit.store import Store
from tests.conftest import ROOT

T0 = 1_790_000_000_000_000  # µs
PRIMUS = "AMD-AGI__Primus/deepseek-v4/develop/progress/p20/smoke_pp2_ep4_final.log"


def titan(name: str, at_us: int, **more) -> dict:
    """Return a record as torchtitan's formatter writes it."""
    return {
        "delta_ms": 0.1, "tid": 7, "rank": 3, "global_rank": 3, "local_rank": 3, "source": "training",
        "host_name": "node-1", "pid": 99, "time": at_us // 10**6, "time_ms": at_us // 1000, "time_us": T0 + at_us,
        "log_type": "event", "log_type_name": name, "event_name": None, "seq_id": 0, "message": "", **more,
    }  # fmt: skip


def lines(*records) -> bytes:
    return b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in records)


def parsed(module, data: bytes):
    info = PartInfo(source=module.SOURCE)
    tables: dict[str, list] = {"steps": [], "spans": [], "counters": []}
    for table, row in module.rows_of(data.split(b"\n"), info):
        tables.setdefault(table, []).append(row)
    return tables, {o.kind: o.count for o in info.oddities.values()}, info


def ingested(tmp_path: Path, *paths: Path) -> Store:
    report = perfkit.ingest(list(paths), store=tmp_path / "store", run="r")
    assert not report.rejected
    return Store(tmp_path / "store")


# ------------------------------------------------------------------ torchtitan


def test_starts_and_ends_become_spans_with_the_length_that_the_logger_measured():
    tables, odd, _ = parsed(
        torchtitan,
        lines(
            titan("fwd_bwd_start", 100, step=5), titan("fwd_start", 200, step=5),
            titan("fwd_end", 500, step=5, value=0.25), titan("fwd_bwd_end", 900, step=5),
        ),
    )  # fmt: skip
    spans = [(r["name"], r["step"], r["start_ns"] // 1000 - T0, r["dur_ns"], r["depth"]) for r in tables["spans"]]
    assert spans == [("fwd", 5, 200, 250_000, 1), ("fwd_bwd", 5, 100, 800_000, 0)]
    assert not odd


def test_tasks_and_threads_do_not_close_each_others_spans():
    tables, odd, _ = parsed(
        torchtitan,
        lines(
            titan("pull_start", 0, task_name="Task-1"), titan("pull_start", 10, task_name="Task-2"),
            titan("pull_end", 20, task_name="Task-1"), titan("pull_start", 25, tid=8), titan("pull_end", 50, tid=8),
            titan("pull_end", 90, task_name="Task-2"),
        ),
    )  # fmt: skip
    assert sorted(row["dur_ns"] for row in tables["spans"]) == [20_000, 25_000, 80_000]
    assert not odd


def test_a_step_lasts_until_the_next_number_is_set():
    records = [titan(f"Optimizer_{what}", 1000 * step + at, step=step) for step in (1, 2, 3)
               for what, at in (("start", 10), ("end", 700))]  # fmt: skip
    tables, _, _ = parsed(torchtitan, lines(titan("training_start", 0, log_type="instant"), *records))
    steps = [(r["step"], r["start_ns"] // 1000 - T0, r["end_ns"] // 1000 - T0) for r in tables["steps"]]
    assert steps == [(1, 1010, 2010), (2, 2010, 3010), (3, 3010, 3700)]
    assert ("training_start", 0) in [(r["name"], r["dur_ns"]) for r in tables["spans"]]


def test_a_span_called_step_is_the_step():
    records = [titan(f"step_{what}", 1000 * step + at, step=step) for step in (1, 2)
               for what, at in (("start", 10), ("end", 700))]  # fmt: skip
    tables, _, _ = parsed(torchtitan, lines(*records))
    steps = [(r["step"], r["start_ns"] // 1000 - T0, r["end_ns"] // 1000 - T0) for r in tables["steps"]]
    assert steps == [(1, 1010, 1700), (2, 2010, 2700)]


def test_an_error_marks_the_span_that_it_ended():
    error = titan("fwd_bwd_error", 40, message="[step 1] fwd_bwd_error: OutOfMemoryError: no")
    tables, _, _ = parsed(torchtitan, lines(titan("fwd_bwd_start", 0), error, titan("fwd_bwd_end", 50)))
    assert [(row["name"], row["error"]) for row in tables["spans"]] == [("fwd_bwd", "OutOfMemoryError")]


def test_bad_lines_are_counted_and_cost_nothing_else():
    good = titan("metric_value", 5, event_name="loss", value=2.5)
    no_time = {key: value for key, value in good.items() if key != "time_us"}
    tables, odd, _ = parsed(
        torchtitan,
        lines(
            b"{broken", b"[1, 2]", b"", good, no_time, good | {"value": "high"}, titan("lonely_end", 6),
            titan("open_start", 7), b'{"log_type_name": "cut_st',
        ),
    )  # fmt: skip
    assert [(row["name"], row["value"], row["time_ns"]) for row in tables["counters"]] == [
        ("loss", 2.5, (T0 + 5) * 1000)
    ]
    wanted = {"invalid_json": 2, "not_an_event": 1, "missing_ts": 1, "type_mismatch": 1, "unmatched_end": 1}
    assert odd == wanted | {"unmatched_begin": 1}
    assert [(row["name"], row["dur_ns"]) for row in tables["spans"]] == [("open", None)]


def test_a_folder_of_logs_is_ingested_by_content_rank_and_host(tmp_path):
    folder = tmp_path / "outputs/structured_logs"
    folder.mkdir(parents=True)
    for rank in (0, 1):
        records = [titan(f"fwd_bwd_{what}", 1000 * step + at, step=step, rank=rank, global_rank=rank)
                   for step in (1, 2, 3) for what, at in (("start", 10), ("end", 700))]  # fmt: skip
        name = f"training.global_rank_{rank}.20260507-132001-ABC123.jsonl"
        data = lines(*records, titan("metric_value", 3900, event_name="train.loss", value=2.0, global_rank=rank))
        (folder / name).write_bytes(data if rank == 0 else gzip.compress(data))
    store = ingested(tmp_path, folder.parent)
    assert [(run.ranks, run.rows["spans"]) for run in store.runs()] == [((0, 1), 6)]
    counters = store.read("counters").to_pylist()
    assert {(row["rank"], row["host"], row["value"]) for row in counters} == {(0, "node-1", 2.0), (1, "node-1", 2.0)}


def test_a_log_beside_a_trace_of_the_same_rank_and_time_is_no_conflict(tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(ROOT / "sample_traces/ddp_gloo", folder)
    traced = perfkit.ingest(folder, store=tmp_path / "first", run="r")
    start = Store(tmp_path / "first").committed(traced.cluster, "r")[0].start_ns // 1000
    records = [titan(f"fwd_bwd_{what}", start - T0 + at, step=1, rank=0, global_rank=0)
               for what, at in (("start", 10), ("end", 700))]  # fmt: skip
    (folder / "training.jsonl").write_bytes(lines(*records))
    store = ingested(tmp_path, folder)
    assert store.read("spans").num_rows == 1
    assert store.read("events").num_rows == Store(tmp_path / "first").read("events").num_rows


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.just(10**400), st.floats(), st.text(max_size=5),
    st.just("\ud800"), st.just([1]), st.just({"a": 1}),
)  # fmt: skip
FIELDS = (
    "time_us",
    "step",
    "tid",
    "global_rank",
    "value",
    "task_name",
    "event_name",
    "host_name",
    "log_type",
    "message",
)
RECORDS = st.builds(
    lambda name, odd: json.dumps(titan(name, 1) | odd).encode(),
    st.sampled_from(["a_start", "a_end", "a_error", "metric_value", "step_start", "step_end", "\ud800_x", "_start"]),
    st.dictionaries(st.sampled_from(FIELDS), ODD, max_size=3),
)
STAMPS = st.sampled_from([None, "13:20:00", "13:20:00.5", "99:99:99", "13:20:00.123456789"])
REPORTS = st.builds(
    lambda n, at, took, year: report(n, at, took).replace(b"2026", year),
    st.integers(0, 10**14), STAMPS,
    st.sampled_from(["elapsed time per iteration (ms): 1e9", "iteration time (s): 9999999999", "iteration time: nan"]),
    st.sampled_from([b"2026", b"9999", b"0001"]),
)  # fmt: skip


@given(st.lists(st.binary(max_size=40) | RECORDS | REPORTS, max_size=20))
def test_whatever_the_lines_hold_reading_goes_on_and_the_rows_fit_their_tables(data):
    for module in (torchtitan, megatron):
        tables, _, _ = parsed(module, b"\n".join(data) + b"\n")
        for name, rows in tables.items():
            assert len(_chunk(name, rows).rows) == len(rows)


# ------------------------------------------------------------------ Megatron


def report(iteration: int, at: str | None, took: str, more: str = "") -> bytes:
    stamp = "" if at is None else f"[2026-05-07 {at}] "
    line = (
        f" {stamp}iteration {iteration:8d}/     100 | consumed samples: {iteration * 16:12d} | {took} | "
        f"learning rate: 1.000000E-04 | global batch size:    16 | lm loss: 7.5E+00 | grad norm: 7.2 |{more}"
    )
    return line.encode() + b"\n"


def test_a_line_is_a_step_that_ends_when_it_was_printed():
    data = report(10, "13:20:01", "elapsed time per iteration (ms): 1234.5")
    tables, odd, _ = parsed(megatron, b"training ...\n" + data)
    (step,) = tables["steps"]
    assert (step["end_ns"], step["end_ns"] - step["start_ns"]) == (1_778_160_001_000_000_000, 1_234_500_000)
    assert (step["step"], step["loss"]) == (10, 7.5)
    counters = {row["name"]: row["value"] for row in tables["counters"]}
    assert counters["learning_rate"] == 1e-4
    assert (counters["consumed_samples"], counters["global_batch_size"], counters["grad_norm"]) == (160, 16, 7.2)
    assert set(odd) == {"no_time_zone"}


def test_an_interval_of_several_iterations_is_said():
    took = "elapsed time per iteration (ms): 1000.0"
    tables, odd, _ = parsed(megatron, report(10, "13:20:00", took) + report(20, "13:20:10", took))
    assert [row["step"] for row in tables["steps"]] == [10, 20]
    assert odd["averaged_steps"] == 1


def test_pairs_are_now_and_mean_and_seconds_are_seconds():
    data = report(1, "13:20:00", "iteration time (s): 2.5/3.0") + report(2, "13:20:10", "iteration time 800.5/900.0")
    tables, _, _ = parsed(megatron, data)
    assert [row["end_ns"] - row["start_ns"] for row in tables["steps"]] == [2_500_000_000, 800_500_000]
    times = [(row["series"], row["value"]) for row in tables["counters"] if row["name"].startswith("iteration_time")]
    assert times == [(None, 2.5), ("mean", 3.0), (None, 800.5), ("mean", 900.0)]


def test_without_times_steps_follow_each_other():
    took = "elapsed time per iteration (ms): 1000.0"
    tables, odd, _ = parsed(megatron, report(1, None, took) + report(2, None, took) + report(4, None, took))
    assert [row["end_ns"] for row in tables["steps"]] == [10**9, 2 * 10**9, 4 * 10**9]
    assert odd["no_base_time"] == 3


def test_a_loss_that_is_no_number_is_null():
    took = "elapsed time per iteration (ms): 1000.0"
    tables, _, _ = parsed(megatron, report(1, "13:20:00", took).replace(b"7.5E+00", b"nan"))
    assert tables["steps"][0]["loss"] is None


def test_a_log_is_found_behind_what_the_launcher_printed_and_in_colour(tmp_path):
    noise = b"\x1b[32m+ export NNODES=1\x1b[0m a long line of a launcher\n" * 5000
    line = b"[\x1b[36mrank-7/8\x1b[0m]" + report(3, "13:20:00", "elapsed time per iteration (ms): 1000.0")
    (tmp_path / "out.log").write_bytes(noise + line)
    (tmp_path / "notes.log").write_bytes(noise)
    store = ingested(tmp_path, tmp_path / "out.log")
    (run,) = store.runs()
    assert (run.ranks, run.world_size) == ((7,), 8)
    refused = perfkit.ingest(tmp_path / "notes.log", store=tmp_path / "other")
    assert "not a trace" in refused.rejected[0].message


def test_the_log_of_a_real_job_agrees_with_an_independent_reading(traces, tmp_path):
    path = traces / PRIMUS
    if not path.exists():
        pytest.skip("no such log here")
    text = re.sub(r"\x1b\[[0-9;]*m", "", path.read_text())
    wanted = re.findall(r"iteration +(\d+)/ .*?\(ms\): ([\d.]+).*?lm loss: (\S+)", text)
    store = ingested(tmp_path, path)
    rows = store.read("steps").to_pylist()
    assert [(row["step"], row["loss"]) for row in rows] == [(int(n), float(loss)) for n, _, loss in wanted]
    took = {row["step"]: (row["end_ns"] - row["start_ns"]) / 1e6 for row in rows}
    assert {n: t for n, t in took.items() if n != 2} == {
        int(n): pytest.approx(float(ms)) for n, ms, _ in wanted if int(n) != 2
    }
    assert took[2] == pytest.approx(904.075)  # the log states the mean of the first two there
    assert all(a["end_ns"] <= b["start_ns"] + 10**7 for a, b in pairwise(rows))


def mark(what: str, at: str) -> bytes:
    return f"[rank0] [{what}] datetime: 2026-05-07 {at} \n".encode()


def test_what_megatron_says_of_itself_is_its_lifecycle():
    took = "elapsed time per iteration (ms): 1000.0"
    begun = mark("after megatron is initialized", "13:19:00.5") + mark("before the start of training step", "13:19:50")
    tables, _, info = parsed(megatron, begun + report(1, "13:20:00", took) + mark("after training is done", "13:21:00"))
    told = [(row["kind"], row["end_ns"] - row["start_ns"]) for row in tables["lifecycle"]]
    assert told == [("init", 49_500_000_000), ("end", 0)]
    assert info.end_ns == tables["lifecycle"][1]["start_ns"]


def test_a_log_that_reaches_its_last_iteration_has_ended_and_another_has_not():
    took = "elapsed time per iteration (ms): 1000.0"
    tables, _, _ = parsed(megatron, report(99, "13:20:00", took) + report(100, "13:20:01", took))
    (end,) = tables["lifecycle"]
    assert (end["kind"], end["start_ns"]) == ("end", tables["steps"][1]["end_ns"])
    assert "lifecycle" not in parsed(megatron, report(99, "13:20:00", took))[0]


def test_the_end_of_a_run_before_it_in_the_same_log_is_not_its_end():
    took = "elapsed time per iteration (ms): 1000.0"
    tables, _, _ = parsed(megatron, mark("after training is done", "13:10:00") + report(7, "13:20:00", took))
    assert "lifecycle" not in tables
