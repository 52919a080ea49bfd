"""Every event of every real Kineto file, column by column, against `json` and `decimal`.

The oracle below shares no code with the reader: it loads the whole file with the standard library,
keeps numbers as Decimal, and applies the documented meaning of each column row by row.
"""

from __future__ import annotations

import gzip
import json
import re
import tarfile
from decimal import ROUND_HALF_EVEN, Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from perfkit.errors import InputError
from perfkit.sources import kineto, scan
from perfkit.sources.base import Input, ReadOptions
from perfkit.sources.kineto_fields import ARGS_OF_SIDE_TABLES
from perfkit.sources.scan import Kind
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


CONVERT = {
    Kind.I64: as_int,
    Kind.U64: lambda value: value,
    Kind.F64: lambda value: None if value is None else float(value),
    Kind.BOOL: lambda value: value,
    Kind.TEXT: as_text,
    Kind.JSON: lambda value: None if value is None else plain_json(value),
}


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
    keys = ARGS_OF_SIDE_TABLES[table]
    rows = []
    for number, event in enumerate(events):
        args = event.get("args") if isinstance(event.get("args"), dict) else {}
        values = {}
        for key, (column, kind) in keys.items():
            if key in args and CONVERT[kind](args[key]) is not None:
                values[column] = CONVERT[kind](args[key])
        if not values:
            continue
        for column in ("grid", "block"):
            if column in values:
                triple = [*json.loads(values.pop(column)), None, None, None] if values[column][0] == "[" else [None] * 3
                values.pop(column, None)
                values.update({f"{column}_{axis}": triple[i] for i, axis in enumerate("xyz")})
        rows.append({"event_id": number, **values})
    return rows


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
    for table in ARGS_OF_SIDE_TABLES:
        rows = expected_side(events, table)
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
