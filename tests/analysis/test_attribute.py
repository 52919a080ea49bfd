from __future__ import annotations

from itertools import pairwise

import numpy as np
import plain
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_rows import Row, call, copy, event, events, frame, kernel, nccl, op, span, step

from perfkit.analysis import attribute
from perfkit.analysis.analyze import analyze_tables
from perfkit.schema import ATTRIBUTION

PARTS = ("compute_ns", "exposed_comm_ns", "exposed_memcpy_ns", "idle_ns")


def rows_of(*rows: Row, window: str = "trace", rank: int = 0) -> list[dict]:
    return analyze_tables({"events": events(*rows, rank=rank)}, window=window).tables["attribution"].to_pylist()


def split(*rows: Row) -> dict[str, int]:
    (row,) = rows_of(*rows)
    return {name: row[name] for name in PARTS}


def test_comm_hidden_behind_compute_is_not_charged() -> None:
    #  compute |##########|
    #  comm         |##########|
    #  copy                  |########|   |#|
    got = split(kernel(0, 10), nccl(5, 15), copy(13, 20), copy(25, 30))
    assert got == {"compute_ns": 10, "exposed_comm_ns": 5, "exposed_memcpy_ns": 10, "idle_ns": 5}
    (row,) = rows_of(kernel(0, 10), nccl(5, 15))
    assert (row["comm_ns"], row["overlap_ns"]) == (10, 5)


def test_kernels_on_several_streams_count_once() -> None:
    assert split(kernel(0, 10), kernel(2, 12), kernel(4, 5)) == dict(zip(PARTS, (12, 0, 0, 0), strict=True))


def test_syncs_and_ranges_on_the_device_are_no_work() -> None:
    rows = [event("cuda_sync", "Stream Sync", 10, 90, device=0), event("gpu_user_annotation", "fwd", 0, 100, device=0)]
    assert split(kernel(0, 10), kernel(90, 100), *rows)["idle_ns"] == 80


def test_unknown_kernels_are_compute_and_are_reported() -> None:
    (row,) = rows_of(kernel(0, 10, name="zorp"), kernel(5, 20))
    assert (row["compute_ns"], row["unknown_ns"]) == (20, 10)


def test_triton_ops_with_a_stream_are_no_gpu_work() -> None:
    rows = [{**op(0, 100, "triton_poi_fused_0"), "stream": 0}, kernel(10, 20), kernel(80, 90)]
    assert split(*rows)["idle_ns"] == 60


def test_what_runs_before_the_first_window_is_kept_and_flagged() -> None:
    early, first = rows_of(
        kernel(0, 40), nccl(30, 60), step(3, 50, 100), call(60, 61, 1), kernel(70, 90, 1), window="step"
    )
    assert (early["carry_in"], early["step"], early["start_ns"], early["window_ns"]) == (True, None, 0, 70)
    assert (early["compute_ns"], early["exposed_comm_ns"], early["idle_ns"]) == (40, 20, 10)
    assert (first["carry_in"], first["step"], first["window_ns"]) == (False, 3, 30)


def test_a_kernel_launched_before_a_window_is_clipped_to_it() -> None:
    rows = [step(1, 0, 10), step(2, 10, 20), call(1, 2, 1), call(3, 4, 2), call(11, 12, 3)]
    got = rows_of(*rows, kernel(20, 30, 1), kernel(30, 60, 2), kernel(40, 80, 3), window="step")
    assert [(r["step"], r["window_ns"], r["compute_ns"], r["spill_ns"]) for r in got] == [
        (1, 20, 20, 20),
        (2, 40, 40, 0),
    ]


def test_spill_is_only_what_runs_in_a_later_window() -> None:
    rows = [step(1, 0, 10), step(2, 10, 20), call(1, 2, 1), call(3, 4, 2), call(11, 12, 3)]
    found = analyze_tables({"events": events(*rows, kernel(20, 30, 1), kernel(35, 90, 2), kernel(40, 50, 3))})
    assert [(r["step"], r["spill_ns"]) for r in found.tables["attribution"].to_pylist()] == [(1, 10), (2, 0)]
    assert found.summary["quality"]["after_last_ns"] == 40


def test_a_window_without_length_is_not_chosen_with_its_neighbour() -> None:
    rows = [step(n, 10 * n, 10 * n + 10) for n in range(3)] + [call(10 * n + 1, 10 * n + 2, n + 1) for n in range(3)]
    rows += [kernel(40, 45, 1), kernel(30, 35, 2), kernel(50, 55, 3)]
    table = events(*rows)
    everything = analyze_tables({"events": table}).tables["steps"]
    assert [(r["step"], r["start_ns"], r["window_ns"]) for r in everything.to_pylist()] == [
        (0, 40, 0), (1, 40, 10), (2, 50, 5)]  # fmt: skip
    chosen = analyze_tables({"events": table}, first_step=1, last_step=2).tables["steps"]
    assert chosen["step"].to_pylist() == [1]


def test_devices_are_attributed_apart_and_an_unrecorded_one_is_the_only_one() -> None:
    got = rows_of(kernel(0, 10), kernel(20, 30, device=1))
    assert [(r["device"], r["compute_ns"], r["idle_ns"]) for r in got] == [(0, 10, 20), (1, 10, 20)]
    got = rows_of(kernel(0, 10, device=None), kernel(20, 30, device=3))
    assert [(r["device"], r["compute_ns"]) for r in got] == [(3, 20)]
    got = rows_of(kernel(0, 10, device=None))
    assert [(r["device"], r["compute_ns"]) for r in got] == [(None, 10)]


def test_a_rank_without_a_device_computes_in_its_ops() -> None:
    #  main  |op ........|c10d|.....|      |op|
    #  gloo             |gloo:all_reduce|
    rows = [
        op(0, 30, "AddmmBackward0"), op(5, 10), op(20, 24, "c10d::allreduce_"), op(60, 70),
        span(22, 50, "gloo:all_reduce", tid=2), span(0, 70, "forward"),
    ]  # fmt: skip
    (row,) = rows_of(*rows)
    assert row["device"] is None
    assert {name: row[name] for name in PARTS} == dict(zip(PARTS, (36, 22, 0, 12), strict=True))
    assert (row["comm_ns"], row["overlap_ns"]) == (28, 6)


def test_a_wait_holds_up_its_own_thread_only() -> None:
    #  main    |c10d::barrier............|
    #  other        |op....|
    (row,) = rows_of(op(0, 50, "c10d::barrier"), op(10, 30, tid=2), op(50, 60))
    assert (row["compute_ns"], row["idle_ns"]) == (30, 30)


def test_ranks_and_segments_are_apart() -> None:
    table = pa.concat_tables(
        [events(kernel(1000, 1010), rank=1), events(kernel(0, 10)), events(kernel(500, 505), segment=1)]
    )
    found = analyze_tables({"events": table}, window="trace")
    assert [(r["rank"], r["window_ns"], r["idle_ns"]) for r in found.summary["ranks"]] == [(0, 15, 0), (1, 10, 0)]


def test_rows_without_a_time_are_counted_not_placed() -> None:
    found = analyze_tables({"events": events(kernel(0, 10), event("kernel", "x", 5, None), op(0, 9))}, window="trace")
    assert found.summary["quality"]["undated_events"] == 1
    assert found.summary["totals"]["compute_ns"] == 10


intervals = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20), st.sampled_from(["compute", "comm", "memcpy"])),
    min_size=1,
    max_size=25,
)
MAKE = {"compute": kernel, "comm": nccl, "memcpy": copy}


@settings(max_examples=40, deadline=None)
@given(intervals)
def test_the_partition_of_any_events_equals_the_plain_one(found) -> None:
    rows = [MAKE[kind](start, start + dur) for start, dur, kind in found]
    (row,) = rows_of(*rows)
    expected = plain.partition([(s, s + d, k) for s, d, k in found])
    assert {name: row[name] for name in expected} == expected


@settings(max_examples=40, deadline=None)
@given(intervals, st.lists(st.integers(0, 90), min_size=1, max_size=4, unique=True), st.data())
def test_the_parts_sum_to_every_window_for_any_events_and_steps(found, edges, data) -> None:
    edges = [*sorted(edges), 95]
    rows = [step(n, a, b) for n, (a, b) in enumerate(pairwise(edges))]
    for corr, (start, dur, kind) in enumerate(found, 1):
        rows.append(MAKE[kind](start, start + dur, corr))
        if data.draw(st.booleans()):
            at = data.draw(st.integers(0, 90))
            rows.append(call(at, at + 2, corr, tid=data.draw(st.integers(1, 2))))
    result = analyze_tables({"events": events(*rows)})
    table = result.tables["attribution"]
    assert table.schema.equals(ATTRIBUTION.arrow)
    parts = sum(np.array(table[name]) for name in PARTS)
    assert (parts == np.array(table["window_ns"])).all()
    assert all((np.array(table[name]) >= 0).all() for name in PARTS)
    kept = [r for r in table.to_pylist() if not r["carry_in"]]
    assert sum(r["idle_ns"] for r in result.tables["idle"].to_pylist()) == sum(r["idle_ns"] for r in kept)
    shown = [r for r in result.tables["io"].to_pylist() if r["kind"] not in ("data", "checkpoint")]
    assert sum(r["exposed_ns"] for r in shown) == sum(r["exposed_memcpy_ns"] for r in kept)


def draw_events(draw: st.DrawFn) -> list[Row]:
    """Anything that a damaged or merged trace may hold: untidy steps, lost launches, ids that repeat."""
    time, short, id_, tid = st.integers(0, 90), st.integers(0, 40), st.integers(0, 5), st.integers(1, 2)
    device = st.sampled_from([0, 0, 1, None])
    makers = {
        "step": lambda a, d: step(draw(id_), a, a + d, draw(tid)),
        "kernel": lambda a, d: kernel(a, a + d, draw(id_), draw(st.sampled_from(["gemm", "zorp"])), draw(device)),
        "nccl": lambda a, d: nccl(a, a + d, draw(id_), draw(device)),
        "copy": lambda a, d: copy(a, a + d, draw(id_), size=draw(st.sampled_from([None, 5]))),
        "call": lambda a, d: call(
            a, a + d, draw(id_), draw(st.sampled_from(["cudaLaunchKernel", "cudaMalloc", "cudaDeviceSynchronize"])),
            draw(tid)),
        "op": lambda a, d: op(
            a, a + d, draw(st.sampled_from(["aten::mm", "c10d::allreduce_", "gloo:all_reduce"])), draw(tid)),
        "frame": lambda a, d: frame(a, a + d, draw(st.sampled_from(["train.py(3): f", "torch/optim/sgd.py(1): step"]))),
    }  # fmt: skip
    device_kinds = {"kernel", "nccl", "copy"} if draw(st.booleans()) else set()
    kinds = [kind for kind in makers if kind in device_kinds or kind not in ("kernel", "nccl", "copy")]
    rows = [makers[kind](draw(time), draw(short)) for kind in draw(st.lists(st.sampled_from(kinds), max_size=14))]
    return [*rows, kernel(5, 6) if device_kinds else op(5, 6)]


@settings(max_examples=80, deadline=None)
@given(st.data(), st.sampled_from(["step", "trace"]))
def test_all_sums_hold_whatever_a_trace_holds(data, window: str) -> None:
    found = analyze_tables({"events": events(*draw_events(data.draw))}, window=window)
    for row in found.tables["attribution"].to_pylist():
        assert sum(row[name] for name in PARTS) == row["window_ns"]
        assert min(row[name] for name in PARTS) >= 0
    idle, totals = found.summary["idle"], found.summary["totals"]
    assert sum(idle[f"{c}_ns"] for c in ("host_late", "launch", "dependency", "unattributed")) == totals["idle_ns"]
    assert sum(c["ns"] for c in idle["culprit_kinds"]) == idle["host_late_ns"]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(1, 30), st.sampled_from([kernel, nccl, copy])), min_size=1),
    st.integers(1, 4),
)
def test_the_size_of_the_blocks_changes_nothing(work: list[tuple], block: int) -> None:
    rows = [step(1, 0, 60), step(2, 60, 120), call(1, 2, 1), kernel(3, 9, 1), call(61, 62, 2), kernel(64, 70, 2)]
    rows += [kind(start, start + length) for start, length, kind in work]
    whole = {window: rows_of(*rows, window=window) for window in ("step", "trace")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attribute, "BLOCK_SPANS", block)
        assert {window: rows_of(*rows, window=window) for window in whole} == whole
