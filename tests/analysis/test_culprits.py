from __future__ import annotations

import numpy as np
import pytest
from trace_rows import Row, call, event, events, frame, kernel, op, span, step

from perfkit.analysis.analyze import analyze_tables
from perfkit.analysis.culprits import Blame, shares_of
from perfkit.schema import OPS, table_from_rows

US = 1000


def culprits(*rows: Row, ops: list[dict] | None = None) -> list[tuple[str, str | None, int]]:
    """(kind, where, µs) of a device that runs dry at 100 µs and gets its next launch at 200 µs."""
    device = [kernel(0, 100 * US), kernel(210 * US, 220 * US, 99), call(200 * US, 201 * US, 99)]
    tables = {"events": events(*rows, *device)}
    if ops:
        tables["ops"] = table_from_rows(OPS, [{"rank": 0, "segment": 0, **o} for o in ops])
    found = analyze_tables(tables, window="trace").summary["idle"]["culprits"]
    assert sum(c["ns"] for c in found) == 100 * US
    return sorted((c["kind"], c["where"], c["ns"] // US) for c in found)


def test_the_deepest_event_of_the_launching_thread_owns_each_nanosecond() -> None:
    rows = [op(90 * US, 190 * US, "aten::a"), op(120 * US, 150 * US, "aten::b"), op(0, 300 * US, "aten::other", tid=2)]
    assert culprits(*rows) == [("framework", "aten::a", 60), ("framework", "aten::b", 30), ("unattributed", None, 10)]


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (span(0, 250 * US, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"), "data_loader"),
        (span(0, 250 * US, "perfkit.data"), "data_loader"),
        (span(0, 250 * US, "save_checkpoint"), "checkpoint"),
        (frame(0, 250 * US, "torch/serialization.py(850): save"), "checkpoint"),
        (frame(0, 250 * US, "torch/utils/checkpoint.py(489): checkpoint"), "python"),
        (span(0, 250 * US, "Optimizer.step#AdamW.step"), "optimizer"),
        (frame(0, 250 * US, "torch/_inductor/compile_fx.py(1200): compile_fx"), "compile"),
        (frame(0, 250 * US, "wandb/sdk/wandb_run.py(90): log"), "logging"),
        (frame(0, 250 * US, "Python GC"), "gc"),
        (frame(0, 250 * US, "train.py(10): main"), "python"),
        (span(0, 250 * US, "my range"), "python"),
        (step(4, 0, 250 * US), "python"),
        (op(0, 250 * US, "aten::mm"), "framework"),
        (call(101 * US, 199 * US, None, "cudaEventQuery"), "runtime"),
    ],
)
def test_every_kind_of_culprit_is_recognised(row: Row, kind: str) -> None:
    assert culprits(row)[0][0] == kind


def test_what_happens_inside_the_data_loader_is_the_data_loader_s() -> None:
    loader = span(90 * US, 200 * US, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
    assert culprits(loader, op(110 * US, 190 * US, "aten::stack")) == [("data_loader", loader["name"], 100)]


def test_the_allocator_inside_the_optimizer_is_the_allocator_s() -> None:
    rows = [span(90 * US, 200 * US, "Optimizer.step#SGD.step"), op(95 * US, 180 * US, "aten::empty")]
    got = culprits(*rows, call(100 * US, 170 * US, None, "cudaMalloc"))
    assert got == [("allocator", "cudaMalloc in aten::empty", 70), ("optimizer", "Optimizer.step#SGD.step", 30)]


def test_a_sync_that_returns_as_the_device_runs_dry_owns_the_gap() -> None:
    rows = [op(10 * US, 130 * US, "aten::item"), call(20 * US, 105 * US, None, "cudaStreamSynchronize")]
    assert culprits(*rows) == [("sync", "cudaStreamSynchronize in aten::item", 100)]


def test_a_sync_on_another_thread_owns_the_gap_too() -> None:
    rows = [op(0, 250 * US, "aten::a"), call(20 * US, 105 * US, None, "cudaStreamSynchronize", tid=2)]
    assert culprits(*rows) == [("sync", "cudaStreamSynchronize", 100)]


@pytest.mark.parametrize(
    ("start", "end"), [(20, 99), (20, 121), (100, 105)], ids=["returns before", "returns too late", "began after"]
)
def test_other_syncs_own_only_their_own_time(start: int, end: int) -> None:
    got = culprits(op(0, 250 * US, "aten::a"), call(start * US, end * US, None, "cudaStreamSynchronize"))
    inside = max(0, min(end, 200) - max(start, 100))
    assert {kind: us for kind, _, us in got}.get("sync", 0) == inside
    assert sum(us for kind, _, us in got if kind == "framework") == 100 - inside


@pytest.mark.parametrize("name", ["cudaEventQuery", "cudaMemcpyAsync", "cudaStreamWaitEvent", "cudaLaunchKernel"])
def test_calls_that_do_not_block_are_no_syncs(name: str) -> None:
    assert culprits(call(20 * US, 105 * US, None, name))[0][0] != "sync"


def test_the_place_is_the_innermost_line_of_the_user_s_own_code() -> None:
    rows = [
        frame(0, 250 * US, "train.py(10): main"), frame(1, 240 * US, "model.py(77): forward"),
        frame(2, 230 * US, "torch/nn/modules/linear.py(125): forward"), op(3, 220 * US, "aten::linear"),
    ]  # fmt: skip
    assert culprits(*rows) == [("framework", "model.py:77 forward", 100)]


def test_a_sync_names_its_line_and_its_call() -> None:
    rows = [frame(0, 250 * US, "train.py(10): main"), call(20 * US, 105 * US, None, "cudaDeviceSynchronize")]
    assert culprits(*rows) == [("sync", "train.py:10 main (cudaDeviceSynchronize)", 100)]


def test_a_recorded_call_stack_gives_the_line() -> None:
    stack = "torch/nn/functional.py(1847): linear;/home/me/train.py(42): step;/home/me/train.py(90): <module>"
    got = culprits(op(0, 250 * US, "aten::linear"), ops=[{"event_id": 0, "call_stack": stack}])
    assert got == [("framework", "/home/me/train.py:42 step", 100)]


def test_library_code_is_named_when_there_is_no_other() -> None:
    assert culprits(frame(0, 250 * US, "torch/nn/functional.py(7): f")) == [
        ("python", "torch/nn/functional.py:7 f", 100)
    ]


def test_a_rank_without_a_device_blames_its_main_thread() -> None:
    rows = [
        step(1, 0, 100), op(10, 40), op(60, 100), span(40, 55, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter"),
        op(0, 20, "aten::x", tid=2),
    ]  # fmt: skip
    found = analyze_tables({"events": events(*rows)}).summary
    assert {(c["kind"], c["where"], c["ns"]) for c in found["idle"]["culprits"]} == {
        ("data_loader", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter", 15), ("python", "ProfilerStep", 5),
    }  # fmt: skip
    assert found["io"]["data_wait_ns"] == 15


def test_events_that_overhang_their_parent_do_not_break_the_sum() -> None:
    rows = [op(90 * US, 150 * US, "a"), op(120 * US, 160 * US, "b"), op(155 * US, 199 * US, "c")]
    assert sum(us for _, _, us in culprits(*rows, event("cpu_op", "d", 100 * US, 100 * US, pid=1, tid=1))) == 100


def test_calls_that_emit_nvtx_numbers_are_one_place_and_ops() -> None:
    rows = [
        span(100 * US, 130 * US, "aten::mul, seq = 7, op_id = 9"),
        span(130 * US, 160 * US, "aten::mul, seq = 8, op_id = 11, sizes = [[2, 3], [2, 3]]"),
        span(160 * US, 200 * US, "aten::copy_, op_id = 12"),
        call(170 * US, 190 * US, None, "cudaMalloc"),
    ]
    assert culprits(*rows) == [
        ("allocator", "cudaMalloc in aten::copy_", 20), ("framework", "aten::copy_", 20), ("framework", "aten::mul", 60)
    ]  # fmt: skip


def test_a_range_with_a_comma_keeps_its_name() -> None:
    name = "load, then sort: seq=7"
    assert culprits(span(0, 250 * US, name)) == [("python", name, 100)]


def test_the_stretches_of_a_gap_are_summed_by_label() -> None:
    gap, start, end, label = (np.array(c) for c in ([1, 0, 1, 1], [50, 0, 60, 80], [60, 9, 80, 85], [0, -1, 1, 0]))
    found = shares_of(Blame(gap, start, end, label, [("sync", None), ("python", None)]))
    rows = zip(found.gap.tolist(), found.label.tolist(), found.ns.tolist(), strict=True)
    assert list(rows) == [(0, 2, 9), (1, 0, 15), (1, 1, 20)], "2, behind the labels, is nobody"


def test_no_gaps_have_no_shares() -> None:
    none = np.empty(0, np.int64)
    assert not len(shares_of(Blame(none, none, none, none, [])).gap)
