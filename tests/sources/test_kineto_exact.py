"""Every event of every real Kineto file, column by column, against `json` and `decimal`.

The oracle below shares no code with the reader: it loads the whole file with the standard library,
keeps numbers as Decimal, and applies the documented meaning of each column row by row.
"""

from __future__ import annotations

import gzip
import json
import re
import tarfile
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from perfkit.errors import InputError
from perfkit.sources import kineto, scan
from perfkit.sources.base import Input, ReadOptions
from tests.conftest import real_traces

ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset", "gpu_user_annotation", "cuda_sync"}
ON_DEVICE |= {"mtia_ccp_events"}
EXACT = Context(prec=100)


def kineto_files() -> list[Path]:
    folder = real_traces()
    if folder is None:
        return []
    files = [path for path in sorted(folder.rglob("*.json*")) if path.is_file()]
    return [path for path in files if is_trace(path)]


def is_trace(path: Path) -> bool:
    data = unpack(path)
    return b'"traceEvents"' in data or data.lstrip().startswith(b'[{"name"')


def unpack(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


class Written(Decimal):
    """A number that remembers how it was written."""

    text: str

    def __new__(cls, text: str) -> Written:
        number = super().__new__(cls, text)
        number.text = text
        return number


def load(path: Path) -> Any:
    return json.loads(unpack(path), parse_float=Written)


def as_ns(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, Decimal, str)):
        return None
    if isinstance(value, str) and not re.fullmatch(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", value):
        return None
    number = Decimal(value)
    if number.adjusted() > 17:
        return None
    return int(EXACT.multiply(number, 1000).quantize(Decimal(1), ROUND_HALF_EVEN, EXACT))


def as_int(value: Any) -> int | None:
    if isinstance(value, str):
        value = Decimal(value) if re.fullmatch(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", value) else None
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        return None
    if abs(value) > 2**70 or value != int(value):
        return None
    return int(value) if -(2**63) <= value < 2**63 else None


def as_text(value: Any) -> str | None:
    text = value if value is None or isinstance(value, str) else plain_json(value)
    return None if text is None else re.sub("[\ud800-\udfff]", "\ufffd", text)


def plain_json(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ",".join(map(plain_json, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{plain_json(v)}" for k, v in value.items()) + "}"
    return value.text if isinstance(value, Written) else json.dumps(value, ensure_ascii=False)


def first_of(args: dict[str, Any], *keys: str) -> Any:
    return next((args[key] for key in keys if key in args), None)


def as_unsigned(value: Any) -> int | None:
    return value


def as_float(value: Any) -> float | None:
    return None if value is None else float(value)


def as_bool(value: Any) -> bool | None:
    return value


def as_json(value: Any) -> str | None:
    return None if value is None else plain_json(value)


SIDE_TABLES: dict[str, dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "kernels_meta": {
        "context": ("context", as_int),
        "grid": ("grid", as_json),
        "block": ("block", as_json),
        "registers per thread": ("registers_per_thread", as_int),
        "shared memory": ("shared_memory_bytes", as_int),
        "blocks per SM": ("blocks_per_sm", as_float),
        "warps per SM": ("warps_per_sm", as_float),
        "est. achieved occupancy %": ("occupancy_pct", as_float),
        "queued": ("queued", as_int),
        "graph id": ("graph_id", as_int),
        "graph node id": ("graph_node_id", as_int),
        "memory bandwidth (GB/s)": ("bandwidth_gbps", as_float),
        "kind": ("kind", as_text),
        "fromDevice": ("from_device", as_int),
        "toDevice": ("to_device", as_int),
    },
    "ops": {
        "Input Dims": ("input_dims", as_json),
        "Input dims": ("input_dims", as_json),
        "Input type": ("input_types", as_json),
        "Input Strides": ("input_strides", as_json),
        "Concrete Inputs": ("concrete_inputs", as_json),
        "Output dims": ("output_dims", as_json),
        "Output Dims": ("output_dims", as_json),
        "Sequence number": ("sequence_number", as_int),
        "Fwd thread id": ("fwd_thread_id", as_int),
        "Record function id": ("record_function_id", as_int),
        "Call stack": ("call_stack", as_text),
        "Module Hierarchy": ("module_hierarchy", as_text),
        "python_caller_id": ("python_caller_id", as_int),
        "Python module id": ("python_module_id", as_int),
        "kernel_backend": ("kernel_backend", as_text),
        "kernel_name": ("kernel_name", as_text),
        "kernel_file": ("kernel_file", as_text),
        "kernel_hash": ("kernel_hash", as_text),
        "kernel_kwargs": ("kernel_kwargs", as_text),
        "num_warps": ("num_warps", as_int),
        "num_stages": ("num_stages", as_int),
    },
    "collective_args": {
        "Collective name": ("collective", as_text),
        "dtype": ("dtype", as_text),
        "In msg nelems": ("in_nelems", as_int),
        "Out msg nelems": ("out_nelems", as_int),
        "In split size": ("in_split", as_text),
        "Out split size": ("out_split", as_text),
        "Process Group Name": ("group_name", as_text),
        "Process Group Description": ("group_desc", as_text),
        "Process Group Ranks": ("group_ranks", as_text),
        "Process Group ID": ("group_id", as_int),
        "Group size": ("group_size", as_int),
        "Rank": ("group_rank", as_int),
        "Comms Id": ("comm_id", as_unsigned),
        "Seq": ("seq", as_int),
        "Src Rank": ("src_rank", as_int),
        "Dst Rank": ("dst_rank", as_int),
        "Root Rank": ("root_rank", as_int),
        "Global rank start": ("global_rank_start", as_int),
        "Global rank stride": ("global_rank_stride", as_int),
        "Is Async": ("is_async", as_bool),
        "Is asynchronized op": ("is_async", as_bool),
    },
    "syncs": {
        "cuda_sync_kind": ("kind", as_text),
        "wait_on_stream": ("wait_on_stream", as_int),
        "wait_on_cuda_event_record_corr_id": ("wait_on_event_correlation", as_int),
        "wait_on_cuda_event_id": ("wait_on_event_id", as_int),
    },
    "memory": {
        "Addr": ("address", as_unsigned),
        "Device Type": ("device_type", as_int),
        "Device Id": ("device", as_int),
        "Total Allocated": ("allocated_bytes", as_int),
        "Total Reserved": ("reserved_bytes", as_int),
    },
}
"""Which argument becomes which column, written down once more: a mistake in the reader's own list would hide itself."""


def expected_events(events: list[dict[str, Any]], base_ns: int) -> list[dict[str, Any]]:
    rows = []
    for number, event in enumerate(events):
        if event.get("ph") == "M":
            continue
        args = event.get("args") if isinstance(event.get("args"), dict) else {}
        on_device = (as_text(event.get("cat")) or "").lower() in ON_DEVICE and event.get("ph") not in (
            "C",
            "s",
            "t",
            "f",
        )
        device, stream = as_int(args.get("device")), as_int(args.get("stream"))
        texts = [as_text(event.get(key)) for key in ("pid", "tid") if as_int(event.get(key)) is None]
        start = as_ns(event.get("ts"))
        rows.append(
            {
                "event_id": number,
                "phase": as_text(event.get("ph")),
                "category": as_text(event.get("cat")),
                "name": as_text(event.get("name")),
                "start_ns": None if start is None else start + base_ns,
                "dur_ns": as_ns(event.get("dur")),
                "device": as_int(event.get("pid")) if on_device and device is None else device,
                "stream": as_int(event.get("tid")) if on_device and stream is None else stream,
                "pid": as_int(event.get("pid")),
                "tid": as_int(event.get("tid")),
                "track": "/".join(text for text in texts if text) or None,
                "correlation": as_int(args.get("correlation")),
                "external_id": as_int(first_of(args, "External id", "external id")),
                "python_id": as_int(args.get("Python id")),
                "python_parent_id": as_int(args.get("Python parent id")),
                "flow_id": as_int(event.get("id")),
                "bytes": as_int(first_of(args, "bytes", "Bytes")),
            }
        )
    return rows


def expected_side(events: list[dict[str, Any]], table: str) -> list[dict[str, Any]]:
    rows = []
    for number, event in enumerate(events):
        args = event.get("args") if isinstance(event.get("args"), dict) else {}
        values = {}
        for key, (column, convert) in SIDE_TABLES[table].items():
            if key in args and convert(args[key]) is not None:
                values[column] = convert(args[key])
        if not values:
            continue
        for column in ("grid", "block"):
            if column in values:
                triple = [*json.loads(values.pop(column)), None, None, None] if values[column][0] == "[" else [None] * 3
                values.pop(column, None)
                values.update({f"{column}_{axis}": triple[i] for i, axis in enumerate("xyz")})
        rows.append({"event_id": number, **values})
    return rows


def expected_tracks(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for event in events:
        if event.get("ph") != "M" or event.get("name") is None:
            continue
        args = event.get("args") or {}
        value = first_of(args, "name", "labels", "sort_index")
        of_process = event["name"].startswith("process_")
        texts = [as_text(event.get(key)) for key in ("pid", "tid") if as_int(event.get(key)) is None]
        rows.append(
            {
                "pid": as_int(event.get("pid")),
                "tid": None if of_process else as_int(event.get("tid")),
                "track": "/".join(text for text in texts if text) or None,
                "key": event["name"],
                "value": value if isinstance(value, str) or value is None else plain_json(value),
            }
        )
    return rows


def expected_counters(events: list[dict[str, Any]], base_ns: int) -> list[dict[str, Any]]:
    return [
        {
            "device": as_int(event["args"].get("device")),
            "time_ns": as_ns(event["ts"]) + base_ns,
            "name": event["name"],
            "series": series,
            "value": float(value),
        }
        for event in events
        if event.get("ph") == "C"
        for series, value in event.get("args", {}).items()
        if isinstance(value, (int, Decimal)) and not isinstance(value, bool)
    ]


def expected_devices(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "device": device["id"],
            "name": device["name"] or None,
            "memory_bytes": device.get("totalGlobalMem"),
            "num_sms": device.get("numSms"),
            "compute_major": device.get("computeMajor"),
            "compute_minor": device.get("computeMinor"),
            "properties": json.dumps(device),
        }
        for device in document.get("deviceProperties", [])
    ]


def expected_groups(document: dict[str, Any]) -> list[dict[str, Any]]:
    groups = document.get("distributedInfo", {}).get("pg_config", [])
    return [
        {
            "name": group["pg_name"],
            "desc": group.get("pg_desc") or None,
            "backend": group.get("backend_config") or group.get("backend"),
            "size": group.get("pg_size", group.get("group_size")),
            "ranks": group.get("ranks"),
        }
        for group in (json.loads(groups) if isinstance(groups, str) else groups)
    ]


def read_all(path: Path, *, scanner: str = "auto") -> dict[str, pa.Table]:
    compression = "gzip" if path.suffix == ".gz" else "none"
    input = Input(str(path), "kineto", path, path.stat().st_size, "", compression)
    tables: dict[str, list[pa.Table]] = {}
    for chunk in kineto.read(input, ReadOptions(scanner=scanner, threads=2, rows_per_chunk=50_000)):
        tables.setdefault(chunk.table, []).append(chunk.rows)
    return {name: pa.concat_tables(parts) for name, parts in tables.items()}


def check_file(path: Path, *, scanner: str = "auto") -> None:
    try:
        document = load(path)
    except ValueError:
        with pytest.raises(InputError):
            read_all(path, scanner=scanner)
        return
    events = document if isinstance(document, list) else document["traceEvents"]
    base_ns = 0 if isinstance(document, list) else document.get("baseTimeNanoseconds", 0)
    tables = read_all(path, scanner=scanner)
    expected = expected_events(events, base_ns)
    have = tables["events"]
    for column in expected[0]:
        assert have[column].to_pylist() == [row[column] for row in expected], column
    document = document if isinstance(document, dict) else {}
    rows_of = {table: expected_side(events, table) for table in SIDE_TABLES}
    rows_of |= {"tracks": expected_tracks(events), "counters": expected_counters(events, base_ns)}
    rows_of |= {"device_info": expected_devices(document), "process_groups": expected_groups(document)}
    for table, rows in rows_of.items():
        if not rows:
            assert table not in tables or not len(tables[table])
            continue
        for column in tables[table].column_names:
            assert tables[table][column].to_pylist() == [row.get(column) for row in rows], (table, column)


@pytest.mark.parametrize("path", kineto_files(), ids=lambda path: path.name)
def test_every_column_of_every_event_equals_the_json(path):
    check_file(path)


@pytest.mark.parametrize("path", [p for p in kineto_files() if p.stat().st_size < 60_000], ids=lambda path: path.name)
def test_the_pure_python_scanner_gives_the_same_columns(path):
    if not scan.have_c_scanner():
        pytest.skip("there is only one scanner here")
    check_file(path, scanner="python")


@pytest.mark.slow
@pytest.mark.parametrize("path", [p for p in kineto_files() if p.stat().st_size >= 60_000], ids=lambda path: path.name)
def test_the_pure_python_scanner_gives_the_same_columns_on_large_files(path):
    check_file(path, scanner="python")


def test_every_column_of_a_trace_inside_an_archive_equals_the_json(traces, tmp_path):
    archive = traces / "facebookresearch__param/et_replay/tests/inputs/dlrm_kineto.tar.gz"
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            if member.isfile():
                copy = tmp_path / Path(member.name).name
                copy.write_bytes(tar.extractfile(member).read())
                check_file(copy)


def test_integers_above_2_to_53_survive(traces):
    path = next((traces / "facebookresearch__HolisticTraceAnalysis/tests/data/large_integer_trace").glob("*.gz"))
    assert read_all(path)["collective_args"]["comm_id"].to_pylist() == [10159970886766084423]
