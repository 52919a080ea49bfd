"""Traces as other machines may write them: whatever is odd about one, the partition is that of its device events."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import plain
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfkit.analysis.analyze import analyze
from perfkit.errors import PerfkitError
from perfkit.report.report import Report

PARTS = ("window_ns", "compute_ns", "exposed_comm_ns", "exposed_memcpy_ns", "idle_ns")
CAUSES = ("host_late", "launch", "dependency", "unattributed")
Event = dict[str, Any]

times = st.one_of(
    st.integers(0, 40),
    st.integers(0, 40_000).map(lambda ns: ns / 1000),
    st.integers(0, 40_000).map(lambda ns: f"{ns // 1000}.{ns % 1000:03d}"),  # old exporters quote numbers
)
lengths = st.one_of(times, st.integers(0, 9), st.sampled_from([0, -3, None]))
names = st.sampled_from(
    [
        "gemm",
        "triton_poi_fused_0",
        "void at::native::x<2>()",
        "Cijk_Ailk_Bljk_HHS",
        "ncclDevKernel_AllGather_RING_LL",
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "Memcpy HtoD (Pinned -> Device)",
        "CopyDeviceToHost",
        "Memset (Device)",
        "",
        "Ünïcode <kernel>",
        "Context Sync",
        "Stream Wait Event",
    ]
)
device_work = st.fixed_dictionaries(
    {
        "ph": st.just("X"),
        "cat": st.sampled_from(["kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"]),
        "name": names,
        "ts": times,
        "dur": lengths,
        "pid": st.sampled_from([0, 2**40, "GPU 0"]),
        "tid": st.sampled_from([7, -1, 0, "stream 7", "default", 2**33]),
        "args": st.fixed_dictionaries(
            {},
            optional={
                "device": st.sampled_from([0, "0"]),
                "stream": st.sampled_from([7, -1, 0, "default", None]),
                "correlation": st.sampled_from([0, 1, 2, 3, -1, 2**31, "2"]),
                "graph node id": st.integers(0, 3),
                "Collective name": st.sampled_from(["allreduce", "_allgather_base"]),
                "Process Group Name": st.sampled_from(["", "default_pg", "7"]),
                "In msg nelems": st.sampled_from([0, 9]),
                "Group size": st.sampled_from([0, 2]),
                "bytes": st.sampled_from([0, 64, 2**40]),
            },
        ),
    }
)
host = st.fixed_dictionaries(
    {
        "ph": st.sampled_from(["X", "X", "X", "i", "B", "E"]),
        "cat": st.sampled_from(
            [
                "cpu_op",
                "Operator",
                "cuda_runtime",
                "cuda_driver",
                "Runtime",
                "user_annotation",
                "python_function",
                "gpu_user_annotation",
                "cuda_sync",
                "overhead",
                "ac2g",
                "fwdbwd",
                "privateuse1_runtime",
                None,
            ]
        ),
        "name": st.sampled_from(
            [
                "aten::mm",
                "cudaLaunchKernel",
                "hipLaunchKernel",
                "hipExtModuleLaunchKernel",
                "cudaGraphLaunch",
                "cudaStreamSynchronize",
                "cudaMalloc",
                "ProfilerStep#1",
                "ProfilerStep#2",
                "ProfilerStep#2",
                "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                "train.py(3): step",
                "nccl:all_reduce",
            ]
        ),
        "ts": times,
        "dur": lengths,
        "pid": st.sampled_from([1, 2**40, "python"]),
        "tid": st.sampled_from([1, 2, "main"]),
    },
    optional={
        "args": st.one_of(
            st.none(),
            st.just({}),
            st.just([]),
            st.fixed_dictionaries({"correlation": st.sampled_from([0, 1, 2, 3, 2**31, "2"])}),
            st.fixed_dictionaries(
                {"External id": st.integers(0, 4), "Input Dims": st.sampled_from([[], [[2, "x"], []]])}
            ),
        )
    },
)
others = st.sampled_from(
    [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
        {},
        {"ph": "X"},
        {"name": "x"},
        {"ph": "s", "id": 3, "ts": 1, "pid": 1, "tid": 1, "cat": "ac2g", "name": "ac2g"},
        {"ph": "X", "cat": "kernel", "name": "no time", "dur": 4},
        {"ph": "X", "cat": "Trace", "name": "PyTorch", "ts": 0, "dur": 99},
        {"name": "Record Window End", "ph": "i", "s": "g", "ts": 50, "pid": "", "tid": ""},
    ]
)
odd_events = st.tuples(
    st.lists(device_work, max_size=12), st.lists(host, max_size=12), st.lists(others, max_size=3), st.randoms()
)


def write(path: Path, events: list[Event], **top: object) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, **top, "traceEvents": events}))
    return path


def dated(event: Event) -> bool:
    """Say whether an event has a start and an end."""
    return None not in (event.get("ts"), event.get("dur")) and float(event["dur"]) >= 0


def by_device(events: list[Event]) -> dict[int, list[tuple[int, int, str]]]:
    found = defaultdict(list)
    for one in events:
        category = str(one.get("cat")).lower()
        if category in plain.KERNELS | plain.COPIES and dated(one):
            args = one.get("args", {})
            copies = category in plain.COPIES and "Collective name" not in args  # what the args say goes first
            kind = "memcpy" if copies else "comm" if plain.is_communication(one) else "compute"
            start = plain.in_ns(str(one["ts"]))
            found[int(args.get("device", 0))].append((start, start + plain.in_ns(str(one["dur"])), kind))
    return dict(found)


def check(found: Report) -> None:
    summary = found.summary
    for row in [summary["totals"], *summary["ranks"], *summary["steps"]]:
        assert row["window_ns"] == sum(row[name] for name in PARTS[1:])
        assert min(row[name] for name in PARTS) >= 0
    assert sum(summary["idle"][f"{c}_ns"] for c in CAUSES) == summary["totals"]["idle_ns"]
    assert found.to_json()


def analyze_or_explain(path: Path, window: str) -> tuple[Report | None, str]:
    try:
        return analyze(path, window=window), ""
    except PerfkitError as error:
        return None, str(error)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(odd_events)
def test_odd_events_give_their_plain_partition_or_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple
) -> None:
    device, on_host, other, random = drawn
    events = [*device, *on_host, *other]
    random.shuffle(events)
    path = write(tmp_path_factory.mktemp("odd") / "trace.json", events)
    expected = by_device(events)
    for window in ("trace", "step"):
        found, problem = analyze_or_explain(path, window)
        if found is None:
            assert not any(end > start for start, end, _ in expected.get(0, [])), problem
            assert problem.startswith("nothing to analyze")
            continue
        check(found)
        if window == "trace" and expected:
            (row,) = found.summary["ranks"]
            assert {name: row[name] for name in PARTS} == plain.partition(expected[0])


def on_device(event: Event, device: int) -> Event:
    return {**event, "args": {**event["args"], "device": device}}


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.builds(on_device, device_work, st.sampled_from([0, 1, 7])), min_size=1, max_size=16))
def test_devices_of_one_process_are_partitioned_each_for_itself(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event]
) -> None:
    expected = by_device(events)
    if not expected:
        return
    path = write(tmp_path_factory.mktemp("devices") / "trace.json", events)
    found = analyze(path, window="trace")
    check(found)
    edges = [time for rows in expected.values() for start, end, _ in rows for time in (start, end)]
    low, high = min(edges), max(edges)  # one window for the rank
    for row in found.tables["steps"].to_pylist():
        mine = [*expected.pop(row["device"]), (low, low, "compute"), (high, high, "compute")]
        assert {name: row[name] for name in PARTS} == plain.partition(mine)
    assert not expected


def test_cycles_of_one_profiler_in_one_file_are_steps_and_what_is_between_them(tmp_path: Path) -> None:
    def launch(at: int, number: int) -> list[Event]:
        place = {"ph": "X", "pid": 1, "tid": 2}
        return [
            {
                **place,
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "ts": at,
                "dur": 1,
                "args": {"correlation": number},
            },
            {
                "ph": "X",
                "cat": "kernel",
                "name": "gemm",
                "pid": 0,
                "tid": 7,
                "ts": at + 5,
                "dur": 20,
                "args": {"device": 0, "stream": 7, "correlation": number},
            },
        ]

    events = [e for i, at in enumerate((10, 110, 5_010, 5_110)) for e in launch(at, i + 1)]
    steps = [(3, 0), (4, 100), (8, 5_000), (9, 5_100)]  # the schedule skipped 5 to 7
    events += [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "pid": 1, "tid": 1, "ts": at, "dur": 100}
        for n, at in steps
    ]
    found = analyze(write(tmp_path / "trace.json", events))
    check(found)
    assert [row["step"] for row in found.summary["steps"]] == [3, 4, 8, 9]
    assert [row["compute_ns"] for row in found.summary["steps"]] == [20_000] * 4
