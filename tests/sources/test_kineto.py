"""What the Kineto reader makes of single events and of whole files."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from perfkit.errors import CorruptInput, InputError, UnsafeInput, UnsupportedInput
from perfkit.sources import json_stream, kineto
from perfkit.sources.base import Input, PartInfo, ReadOptions
from tests.sources.trace_files import document, kernel, op, write


def read(path: Path, **options: Any) -> tuple[dict[str, list[dict[str, Any]]], PartInfo]:
    """Rows by table, and what is known about the part."""
    compression = "gzip" if path.suffix == ".gz" else "none"
    input = Input(str(path), "kineto", path, path.stat().st_size, "", compression)
    base_ns = None
    while True:
        reading = kineto.read(input, ReadOptions(**options), base_ns=base_ns)
        tables: dict[str, list[dict[str, Any]]] = {}
        try:
            for _, table, rows in reading:
                tables.setdefault(table, []).extend(rows.to_pylist())
        except kineto.RereadNeeded as again:
            base_ns = again.base_ns
            continue
        return tables, reading.parts[0]


def counts(info: PartInfo) -> dict[str, int]:
    return {kind: oddity.count for kind, oddity in info.oddities.items()}


def test_a_list_at_top_level_is_a_trace(tmp_path):
    tables, _ = read(write(tmp_path / "t.json", [op(), op()]))
    assert len(tables["events"]) == 2


@pytest.mark.parametrize("base_first", [True, False])
def test_the_base_time_counts_wherever_it_stands(tmp_path, base_first):
    trace = {"traceEvents": [op(ts=1.5)]}
    base = {"baseTimeNanoseconds": 1719853884000000000}
    text = json.dumps({**base, **trace} if base_first else {**trace, **base})
    tables, info = read(write(tmp_path / "t.json.gz", text))
    assert tables["events"][0]["start_ns"] == 1719853884000001500
    assert counts(info) == {}


def test_a_misleading_base_time_in_the_tail_does_not_count(tmp_path):
    text = (
        '{"traceEvents": ['
        + json.dumps(op(ts=1))
        + '], "note": "\\"baseTimeNanoseconds\\": 5", "x": {"baseTimeNanoseconds": 7}}'
    )
    tables, _ = read(write(tmp_path / "t.json", text))
    assert tables["events"][0]["start_ns"] == 1000


def based(path: Path, base: str, *, first: bool = True, ts: str = "1.5") -> Path:
    """Write a trace of one event whose base time is spelled as given."""
    event = json.dumps(op()).replace('"ts": 1.0', f'"ts": {ts}')
    members = [f'"baseTimeNanoseconds": {base}', f'"traceEvents": [{event}]']
    return write(path, "{" + ", ".join(members if first else reversed(members)) + "}")


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "base", ["1700000000000000001.0", "1.700000000000000001e18", '"1700000000000000001"', "17000000000000000010E-1"]
)
def test_a_base_time_is_taken_from_its_digits_however_it_is_spelled(tmp_path, base, first):
    tables, info = read(based(tmp_path / "t.json", base, first=first))
    assert tables["events"][0]["start_ns"] == 1700000000000001501
    assert counts(info) == {}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "base",
    [
        "1.5",
        '"soon"',
        "true",
        "[1700000000000000000]",
        "NaN",
        "9999999999999999999",
        "1" + "0" * 31,
        "9" * 5000,
        "1e99",
    ],
)
def test_what_is_no_base_time_is_quoted_and_costs_no_event(tmp_path, base, first):
    tables, info = read(based(tmp_path / "t.json", base, first=first))
    assert tables["events"][0]["start_ns"] == 1500
    assert info.oddities["no_base_time"].detail.startswith(f"baseTimeNanoseconds is {base[:39]}")
    assert counts(info) == {"no_base_time": 1}


@pytest.mark.parametrize("first", [True, False])
def test_a_base_time_of_null_is_none(tmp_path, first):
    _, info = read(based(tmp_path / "t.json", "null", first=first))
    assert info.oddities["no_base_time"].detail == "timestamps are relative and the file does not say to what"


@pytest.mark.parametrize("scanner", ["auto", "python"])
def test_a_time_that_the_base_carries_beyond_64_bits_is_null_and_counted(tmp_path, scanner):
    tables, info = read(based(tmp_path / "t.json", str(2**63 - 1501)), scanner=scanner)
    assert (tables["events"][0]["start_ns"], info.end_ns) == (2**63 - 1, 2**63 - 1)
    tables, info = read(based(tmp_path / "t.json", str(2**63 - 1500)), scanner=scanner)
    assert tables["events"][0]["start_ns"] is None
    assert counts(info) == {"time_out_of_range": 1}


def test_relative_times_without_a_base_are_said_so(tmp_path):
    _, info = read(write(tmp_path / "t.json", document(op(ts=5))))
    assert counts(info) == {"no_base_time": 1}
    _, info = read(write(tmp_path / "t.json", document(op(ts=1661203762610763))))
    assert counts(info) == {}


def test_device_and_stream_come_from_the_track_where_args_are_silent(tmp_path):
    range_on_gpu = {"ph": "X", "cat": "gpu_user_annotation", "name": "step", "pid": 3, "tid": 20, "ts": 1, "dur": 2}
    tables, _ = read(write(tmp_path / "t.json", document(range_on_gpu, op())))
    assert [(row["device"], row["stream"]) for row in tables["events"]] == [(3, 20), (None, None)]


def test_old_and_new_categories_get_the_same_class(tmp_path):
    events = [{**kernel(), "cat": cat} for cat in ("kernel", "Kernel")]
    events += [{**op(), "cat": cat} for cat in ("cpu_op", "Operator")]
    tables, _ = read(write(tmp_path / "t.json", document(*events)))
    assert [row["class"] for row in tables["events"]] == ["compute", "compute", "op", "op"]
    assert [row["category"] for row in tables["events"]] == ["kernel", "Kernel", "cpu_op", "Operator"]


def test_a_kernel_with_collective_args_is_communication_whatever_its_name(tmp_path):
    event = kernel("my_kernel", **{"Collective name": "allreduce", "In msg nelems": 4})
    tables, _ = read(write(tmp_path / "t.json", document(event)))
    assert tables["events"][0]["class"] == "communication"
    assert tables["collective_args"][0]["in_nelems"] == 4


def test_begin_and_end_become_one_row_across_chunks(tmp_path, monkeypatch):
    #  thread 1  B a |-------------------------------| E
    #  thread 1       B b |--------| E
    #  thread 2            B c |----------| E
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 1 << 12)
    monkeypatch.setattr(json_stream, "FIRST_HEAD_BYTES", 100)
    filler = [op(ts=50, name=f"aten::filler{i}") for i in range(200)]
    edges = [
        ("B", 1, "a", 1),
        ("B", 1, "b", 2),
        ("B", 2, "c", 3),
        ("E", 1, None, 4),
        ("E", 2, None, 5),
        ("E", 1, None, 9),
    ]
    events = [{"ph": ph, "pid": 1, "tid": tid, "name": name, "ts": ts, "cat": "x"} for ph, tid, name, ts in edges]
    trace = document(events[0], *filler, events[1], events[2], *filler, *events[3:])
    tables, info = read(write(tmp_path / "t.json", trace))
    pairs = {row["name"]: row for row in tables["events"] if not row["name"].startswith("aten")}
    assert {name: (row["start_ns"], row["dur_ns"], row["phase"]) for name, row in pairs.items()} == {
        "a": (1000, 8000, "X"),
        "b": (2000, 2000, "X"),
        "c": (3000, 2000, "X"),
    }
    assert len(tables["events"]) == 403
    assert counts(info) == {"no_base_time": 1}


def test_unmatched_begin_and_end_are_kept_and_counted(tmp_path):
    events = [{"ph": ph, "pid": 1, "tid": 1, "name": name, "ts": ts} for ph, name, ts in [("E", "x", 1), ("B", "y", 2)]]
    tables, info = read(write(tmp_path / "t.json", document(*events)))
    assert sorted((row["phase"], row["name"], row["dur_ns"]) for row in tables["events"]) == [
        ("B", "y", None),
        ("E", "x", None),
    ]
    assert counts(info) == {"unmatched_begin": 1, "unmatched_end": 1, "no_base_time": 1}


def test_counters_become_rows_of_their_own_too(tmp_path):
    event = {"ph": "C", "name": "GPU 0 Utilization", "pid": 0, "ts": 3, "args": {"sm": 0.5, "mem": 2, "note": "x"}}
    tables, _ = read(write(tmp_path / "t.json", document(event)))
    assert [(r["name"], r["series"], r["value"], r["time_ns"]) for r in tables["counters"]] == [
        ("GPU 0 Utilization", "sm", 0.5, 3000),
        ("GPU 0 Utilization", "mem", 2.0, 3000),
    ]
    assert [(row["phase"], row["class"], row["dur_ns"]) for row in tables["events"]] == [("C", "counter", None)]


def test_a_counter_may_be_quoted_and_what_is_no_number_has_no_row(tmp_path):
    args = {"q": "5", "f": "-1.5e1", "t": True, "n": None, "x": float("nan"), "s": "x", "big": 10**40}
    text = json.dumps(document({"ph": "C", "name": "c", "ts": 2e15, "args": args})).replace("NaN", "1e400")
    tables, info = read(write(tmp_path / "t.json", text))
    assert [(row["series"], row["value"]) for row in tables["counters"]] == [("q", 5), ("f", -15), ("big", 1e40)]
    assert counts(info) == {"type_mismatch": 4}
    assert info.oddities["type_mismatch"].detail == "series 't' of a counter is no number; the value has no row"


def test_a_device_beyond_32_bits_is_null_in_counters_too(tmp_path):
    events = [{"ph": "C", "name": "c", "ts": 2e15, "args": {"v": 1, "device": device}} for device in (2**32 + 1, 3)]
    tables, info = read(write(tmp_path / "t.json", document(*events)))
    assert [row["device"] for row in tables["counters"] if row["series"] == "v"] == [None, 3]
    assert [row["device"] for row in tables["events"]] == [None, 3]
    assert counts(info) == {"integer_out_of_range": 1}


@pytest.mark.parametrize("grid", [123, "[1,2,3]", [1, 2.5], [1, 2, 3, 4], {"x": 1}, [2**63], [1, None]])
def test_a_grid_that_is_not_three_integers_is_null_and_counted(tmp_path, grid):
    events = [kernel(ts=2e15, grid=[7], block=[1, 2, 3]), kernel(ts=2e15, grid=grid, block=[4, 5, 6])]
    tables, info = read(write(tmp_path / "t.json", document(*events)))
    assert [[row[f"{of}_{axis}"] for of in ("grid", "block") for axis in "xyz"] for row in tables["kernels_meta"]] == [
        [7, None, None, 1, 2, 3], [None, None, None, 4, 5, 6]]  # fmt: skip
    assert counts(info) == {"type_mismatch": 1}
    assert info.oddities["type_mismatch"].detail.startswith("grid is not up to three integers, such as ")


@pytest.mark.parametrize("phase", ["i", "b", "n", "s", "C", "B", "E"])
def test_only_intervals_have_a_duration(tmp_path, phase):
    tables, info = read(write(tmp_path / "t.json", document(op(ts=2e15), op(ts=2e15, ph=phase, dur=-9))))
    assert [row["dur_ns"] for row in tables["events"]] == [2000, None]
    assert counts(info)["not_read"] == 1
    assert "negative_dur" not in counts(info)


@pytest.mark.parametrize("chunk_bytes", [1 << 8, 1 << 20])
@pytest.mark.parametrize("scanner", ["auto", "python"])
def test_the_first_of_several_misfits_is_named_however_the_file_is_read(tmp_path, monkeypatch, scanner, chunk_bytes):
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(json_stream, "FIRST_HEAD_BYTES", 100)
    args = [{"correlation": 1}, {"correlation": "x"}, {"External id": 1.5}, {"correlation": 1.5}, {"device": "gpu"}]
    args += [{"bytes": 2**63}, {"correlation": 2**63}, {"grid": 5}]
    trace = document(*[op(ts=2e15, args=one) for one in args], op(ts=2e15, dur=-1), op(ts=2e15, dur=-2))
    _, info = read(write(tmp_path / "t.json", trace), scanner=scanner)
    assert {kind: (oddity.count, oddity.detail) for kind, oddity in info.oddities.items()} == {
        "type_mismatch": (5, "first in column correlation"),
        "integer_out_of_range": (2, "first in column bytes"),
        "negative_dur": (2, "the first is -1000 ns"),
    }


def test_metadata_events_name_tracks_and_are_no_events(tmp_path):
    event = {"ph": "M", "name": "process_name", "pid": 5, "ts": 0, "args": {"name": "python3"}}
    tables, info = read(write(tmp_path / "t.json", document(event, op())))
    assert [(row["pid"], row["key"], row["value"]) for row in tables["tracks"]] == [(5, "process_name", "python3")]
    assert [row["event_id"] for row in tables["events"]] == [1]
    assert info.num_events == 1


def test_unknown_args_are_kept_only_if_asked(tmp_path):
    path = write(tmp_path / "t.json", document(op(args={"External id": 5, "cbid": 211, "x": [1, {"y": None}]})))
    assert read(path)[0]["events"][0].get("args") is None
    assert read(path, keep_args=True)[0]["events"][0]["args"] == '{"cbid":211,"x":[1,{"y":null}]}'


def test_odd_events_are_kept_with_nulls_and_counted(tmp_path):
    events = [op(dur=-1), op(ts=None), op(dur=None), op(ts=float("nan")), 5, op(args=None), op(dur=1e300)]
    tables, info = read(write(tmp_path / "t.json", document(*events)))
    assert [(row["start_ns"], row["dur_ns"]) for row in tables["events"]] == [
        (1000, None), (None, 2000), (1000, None), (None, 2000), (1000, 2000), (1000, None),
    ]  # fmt: skip
    assert counts(info) == {
        "negative_dur": 1, "missing_ts": 1, "missing_dur": 1, "time_out_of_range": 2, "not_an_event": 1,
        "no_base_time": 1,
    }  # fmt: skip


def test_devices_and_process_groups_are_described(tmp_path):
    groups = [
        {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]},
        {"pg_name": "1", "ranks": "[0, ...]"},
    ]
    info = {"backend": "nccl", "rank": 1, "world_size": 2, "pg_config": groups, "nccl_version": "2.27"}
    devices = [
        {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85028634624, "numSms": 132},
        {"id": 1, "name": ""},
    ]
    trace = document(op(), distributedInfo=info, deviceProperties=devices, host_name="node7", cuda_driver_version=12040)
    tables, part = read(write(tmp_path / "t.json", trace))
    assert [(row["name"], row["num_sms"]) for row in tables["device_info"]] == [
        ("NVIDIA H100 80GB HBM3", 132),
        (None, None),
    ]
    assert [(row["name"], row["size"], row["ranks"]) for row in tables["process_groups"]] == [
        ("0", 2, [0, 1]),
        ("1", None, None),
    ]
    assert (part.rank, part.rank_source, part.world_size, part.host) == (1, "distributedInfo", 2, "node7")
    assert part.versions == {"nccl_version": "2.27", "cuda_driver_version": "12040"}


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank0.pt.trace.json", 0), ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", 34),
        ("gpu-rank-07-chrome.json", 7), ("worker3_step_12.1694128201557.pt.trace.json", 3), ("profile_5.json", 5),
        ("2_trace.json", 2), ("rank12_trace.json", 12),
        ("host_29220.1698955894936168439.pt.trace.json", None), ("rank_not_found.json.gz", None), ("trace.json", None),
        ("rank99999999.json", None), ("traceRank3.json", 3), ("MY_RANK_6.json", 6), ("app_rank_7.json", 7),
        ("tp0_pp1_rank5.json", 5), ("tp_rank_1_global_rank_9.json", 9), ("node0_rank3.json", 3),
        ("local_rank2.json", None), ("localRank2.json", None), ("localrank2.json", None), ("LOCAL-RANK-2.json", None),
        ("pp_rank_1_tp_rank_2.json", None), ("mp_rank_00_model_states.json", None), ("node_rank1.json", None),
        ("tensor_model_parallel_rank_1.json", None), ("prank4.json", None), ("frank_9.json", None),
    ],
)  # fmt: skip
def test_ranks_in_file_names(name, rank):
    assert kineto.rank_in_name(f"rank9/dump.tar!{name}") == rank


def test_what_surrounds_the_events_may_be_quoted_and_need_not_be_finite(tmp_path):
    groups = [
        {"pg_name": "0", "pg_size": "2", "ranks": "[0, 1]"},
        {"pg_name": "1", "pg_size": "two", "ranks": "[0, " + "9" * 5000 + "]"},
        {"pg_name": "2", "ranks": []},
    ]
    device = {"id": 0, "clock": float("inf"), "more": [float("nan"), 1.5]}
    head = {"distributedInfo": {"rank": 1, "pg_config": groups}, "deviceProperties": json.dumps([device])}
    tables, _ = read(write(tmp_path / "t.json", document(op(ts=2e15), **head)))
    assert [(row["size"], row["ranks"]) for row in tables["process_groups"]] == [(2, [0, 1]), (None, None), (None, [])]
    assert tables["device_info"][0]["properties"] == '{"id": 0, "clock": null, "more": [null, 1.5]}'


def test_a_rank_in_the_file_beats_its_name(tmp_path):
    _, info = read(write(tmp_path / "rank3.json", document(op(ts=2e15), rank=4)))
    assert (info.rank, info.rank_source) == (4, "distributedInfo")
    assert counts(info) == {"rank_disagrees": 1}


@pytest.mark.parametrize("stated", ["2", "002", 2])
def test_a_rank_in_quotes_is_a_rank(tmp_path, stated):
    _, info = read(write(tmp_path / "t.json", document(op(ts=2e15), rank=stated, world_size="4")))
    assert (info.rank, info.rank_source, info.world_size) == (2, "distributedInfo", 4)
    assert counts(info) == {}


@pytest.mark.parametrize("stated", [-1, 2**70, "two", "-1", "", "٣", True, 1.5, [1], {"x": "y" * 500}])
@pytest.mark.parametrize(("name", "rank"), [("t.json", None), ("rank7.json", 7)])
def test_what_is_no_rank_is_quoted_and_not_used(tmp_path, stated, name, rank):
    _, info = read(write(tmp_path / name, document(op(ts=2e15), rank=stated)))
    assert (info.rank, info.rank_source) == (rank, rank and "file name")
    assert counts(info) == {"odd_rank": 1}
    detail = info.oddities["odd_rank"].detail
    assert f"the rank is {json.dumps(stated)[:39]}" in detail
    assert len(detail) < 100


def test_a_rank_beyond_the_world_is_taken_and_said(tmp_path):
    _, info = read(write(tmp_path / "t.json", document(op(ts=2e15), rank=8, world_size=8)))
    assert info.rank == 8
    assert info.oddities["odd_rank"].detail == "rank 8 of a world of 8; taken as it is"


@pytest.mark.parametrize("cut", [0.3, 0.9, 0.999])
def test_a_truncated_file_keeps_everything_before_the_cut(tmp_path, cut):
    whole = json.dumps(document(*[op(ts=2e15 + i, name=f"op{i}") for i in range(300)], rank=0))
    text = whole[: int(len(whole) * cut)]
    tables, info = read(write(tmp_path / "t.json", text))
    assert [row["name"] for row in tables["events"]] == [f"op{i}" for i in range(text.count('"args": {}}'))]
    assert counts(info) == {"truncated": 1}


@pytest.mark.parametrize("as_list", [True, False])
@pytest.mark.parametrize(
    ("rest", "says"),
    [("\n{}", "a second document follows"), (" junk", "something else follows"), ("]", "something else")],
)
def test_what_follows_the_end_of_the_trace_is_said(tmp_path, as_list, rest, says):
    events = [op(ts=2e15), op(ts=2e15 + 5)]
    text = json.dumps(events if as_list else document(*events, rank=0))
    assert counts(read(write(tmp_path / "t.json", text + " \n"))[1]) == {}
    tables, info = read(write(tmp_path / "t.json", text + rest))
    assert len(tables["events"]) == 2
    assert counts(info) == {"trailing_data": 1}
    assert info.oddities["trailing_data"].detail.startswith(says)


def test_garbage_after_the_gzip_data_loses_no_event_and_is_said(tmp_path):
    path = write(tmp_path / "t.json.gz", document(op(ts=2e15), rank=0))
    path.write_bytes(path.read_bytes() + b"garbage")
    tables, info = read(path)
    assert len(tables["events"]) == 1
    assert counts(info) == {"trailing_data": 1}


def test_the_base_time_counts_although_something_follows_the_trace(tmp_path):
    text = json.dumps({"traceEvents": [op(ts=1.5)], "baseTimeNanoseconds": 1719853884000000000})
    tables, info = read(write(tmp_path / "t.json.gz", text + " " * 70_000 + "{}"))
    assert tables["events"][0]["start_ns"] == 1719853884000001500
    assert counts(info) == {"trailing_data": 1}


def test_a_broken_event_ends_the_file_and_is_located(tmp_path):
    good, broken = json.dumps(document(op(ts=2e15), rank=0))[:-2] + ", ", '{"ph": "X" "ts": 1}, '
    tables, info = read(write(tmp_path / "t.json", good + broken + json.dumps(op()) + "]}"))
    assert len(tables["events"]) == 1
    assert info.oddities["invalid_json"].detail.startswith(f"the event at byte {len(good):,} is not JSON")


def test_bytes_that_are_not_utf8_are_replaced_and_counted(tmp_path):
    text = json.dumps(document(op("caf@", ts=2e15), rank=0)).encode().replace(b"@", b"\xe9\xff")
    tables, info = read(write(tmp_path / "t.json", text))
    assert tables["events"][0]["name"] == "caf\ufffd\ufffd"
    assert counts(info) == {"invalid_utf8": 2}


def test_a_repeated_top_level_key_is_noted(tmp_path):
    text = (
        '{"schemaVersion": 1, "schemaVersion": 2, "traceEvents": [' + json.dumps(op(ts=2e15)) + '], "traceEvents": []}'
    )
    tables, info = read(write(tmp_path / "t.json", text))
    assert len(tables["events"]) == 1
    assert counts(info) == {"duplicate_key": 2}


def test_the_events_of_a_second_list_are_not_read_and_that_is_said(tmp_path):
    events = json.dumps([op("é", ts=2e15), op(ts=2e15)], ensure_ascii=False)
    text = f'{{"traceEvents": [{json.dumps(op(ts=2e15))}], "traceEvents": {events}, "host_name": "h"}}'
    tables, info = read(write(tmp_path / "t.json", text))
    assert (len(tables["events"]), info.host) == (1, "h")
    size = len(events.encode())
    detail = f"traceEvents (of the second, 2 events in {size} bytes were not read)"
    assert (info.oddities["duplicate_key"].count, info.oddities["duplicate_key"].detail) == (1, detail)
    _, info = read(write(tmp_path / "t.json", text[:-60]))
    assert counts(info) == {"truncated": 1, "duplicate_key": 1}
    assert info.oddities["duplicate_key"].detail == "traceEvents (the events of the second were not read)"


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("", CorruptInput, "empty"),
        ("   ", CorruptInput, "empty"),
        ("hello", CorruptInput, "not JSON"),
        ("{ {", CorruptInput, "expected a key at byte 2"),
        ('{"a" 1}', CorruptInput, "expected ':' at byte 5"),
        ('{"a": 1', CorruptInput, "before its first event"),
        ('{"nodes": [], "schema": "1"}', UnsupportedInput, "without traceEvents (it has nodes, schema)"),
        ('{"a": ' + "[" * 200_000, UnsafeInput, "is nested too deeply before its first event"),
        ('{"traceEvents": null}', UnsupportedInput, "traceEvents is null, not a list"),
        ('{"traceEvents": {"a": 1}}', UnsupportedInput, "traceEvents is an object, not a list"),
        ('{"a": ' + "9" * 5000 + "}", UnsupportedInput, "without traceEvents"),
    ],
)
def test_what_is_no_trace_gets_a_clear_error(tmp_path, text, error, says):
    with pytest.raises(error) as caught:
        read(write(tmp_path / "t.json", text))
    assert says in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert isinstance(caught.value, InputError)


def test_layout_does_not_matter(tmp_path, monkeypatch):
    """Chunks are cut at a guessed separator; a name that contains it must not matter."""
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 1 << 12)
    evil = '}, {"ph": "X", "cat": "cpu_op", "name": "'
    trace = document(*[op(ts=2e15 + i, name=f"{evil}{i}" if i % 3 else "é" * 500) for i in range(400)], rank=0)
    expected = [event["name"] for event in trace["traceEvents"]]
    for style in ({}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}, {"sort_keys": True}):
        for threads in (1, 3):
            tables, info = read(write(tmp_path / "t.json", json.dumps(trace, **style)), threads=threads)
            assert [row["name"] for row in tables["events"]] == expected
            assert [row["event_id"] for row in tables["events"]] == list(range(400))
            assert counts(info) == {}


def test_an_event_larger_than_a_chunk_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 1 << 12)
    trace = document(op(ts=2e15, name="x" * 20_000), op(ts=2e15, name="y" * 30_000), op(ts=2e15), rank=0)
    tables, _ = read(write(tmp_path / "t.json", trace))
    assert [len(row["name"]) for row in tables["events"]] == [20_000, 30_000, 8]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("scanner", ["auto", "python"])
@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_events_of_many_chunks_are_read_wherever_they_end(tmp_path, monkeypatch, name, scanner, threads):
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 1 << 12)
    lengths = [9, 50_000, 3, 70_000, 8000, 0, 33_000]
    events = [op(ts=2e15 + length, name="é" * length) for length in lengths]
    text = json.dumps(document(*events, rank=0), ensure_ascii=False)
    tables, info = read(write(tmp_path / name, text), scanner=scanner, threads=threads)
    assert [len(row["name"]) for row in tables["events"]] == lengths
    assert counts(info) == {}
    broken = text.encode().replace("é".encode(), b"\xff\xfe")
    tables, _ = read(write(tmp_path / name, broken), scanner=scanner, threads=threads)
    assert [row["name"] for row in tables["events"]] == ["\ufffd\ufffd" * length for length in lengths]
    tables, info = read(write(tmp_path / name, text[:-5000]), scanner=scanner, threads=threads)
    assert [len(row["name"]) for row in tables["events"]] == lengths[:-1]
    assert "an unfinished event of" in info.oddities["truncated"].detail


@pytest.mark.parametrize("scanner", ["auto", "python"])
def test_a_huge_event_or_header_takes_little_more_memory_than_its_size(tmp_path, monkeypatch, scanner):
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 1 << 20)
    monkeypatch.setattr(json_stream, "MAX_EVENT_BYTES", 32 << 20)
    monkeypatch.setattr(json_stream, "MAX_HEAD_BYTES", 32 << 20)
    huge = "x" * (30 << 20) + "\n" * (5 << 20)
    write(tmp_path / "event.json.gz", document(op(ts=2e15), op(ts=2e15, name=huge), rank=0))
    write(tmp_path / "head.json.gz", {"x": huge, "traceEvents": []})
    del huge
    tracemalloc.start()
    try:
        assert counts(read(tmp_path / "event.json.gz", scanner=scanner)[1]) == {"invalid_json": 1}
        copies = {"auto": 1.25, "python": 5}[scanner]  # Python decodes it to text
        assert tracemalloc.get_traced_memory()[1] < copies * (40 << 20)
        tracemalloc.reset_peak()
        with pytest.raises(CorruptInput, match="no traceEvents within the first 32 MiB"):
            read(tmp_path / "head.json.gz")
        assert tracemalloc.get_traced_memory()[1] < 110 << 20  # its bytes, and their text when they are parsed
    finally:
        tracemalloc.stop()


def test_an_absurdly_large_event_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 1 << 12)
    monkeypatch.setattr(json_stream, "MAX_EVENT_BYTES", 1 << 14)
    tables, info = read(write(tmp_path / "t.json", document(op(ts=2e15), op(ts=2e15, name="x" * 1_000_000), rank=0)))
    assert len(tables["events"]) == 1
    assert counts(info) == {"invalid_json": 1}


def test_before_1_8_the_process_says_what_an_event_is_and_the_thread_which_device(tmp_path):
    host = {"ph": "X", "name": "aten::mm", "ts": 1.5, "dur": 4, "pid": "CPU functions", "tid": 1, "args": {}}
    device = {**host, "ts": 2.5, "pid": "CUDA functions", "tid": 0}
    arrow = {"ph": "s", "cat": "cpu_to_cuda", "name": "aten::mm", "ts": 1.5, "pid": "CPU functions", "tid": 1, "id": 1}
    tables, _ = read(write(tmp_path / "t.json", [host, arrow, device]))
    assert [(e["class"], e["category"], e["device"], e["track"]) for e in tables["events"]] == [
        ("op", None, None, "CPU functions"), ("flow", "cpu_to_cuda", None, "CPU functions"),
        ("compute", None, 0, "CUDA functions")]  # fmt: skip
