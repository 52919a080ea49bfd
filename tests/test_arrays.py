"""Arrow arrays are made from buffers: the same values as pyarrow would make, and pandas stays out of it."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfkit import arrays
from tests.conftest import ROOT

TYPES = {
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.utf8(): st.text(),
    pa.list_(pa.int32()): st.lists(st.integers(0, 9), max_size=3),
}


@st.composite
def lists(draw):
    type_ = draw(st.sampled_from(list(TYPES)))
    return type_, draw(st.lists(st.none() | TYPES[type_], max_size=20))


@settings(deadline=None)
@given(lists())
def test_a_list_becomes_the_array_that_pyarrow_makes_of_it(case):
    type_, values = case
    array = arrays.from_list(values, type_)
    array.validate(full=True)
    assert array.equals(pa.array(values, type_))


@settings(deadline=None)
@given(lists(), st.integers(0, 20))
def test_numpy_sees_the_values_of_a_slice_and_where_they_are(case, start):
    type_, values = case
    if pa.types.is_string(type_) or pa.types.is_list(type_):
        return
    array = pa.array(values, type_).slice(start)
    valid = arrays.valid_mask(array)
    assert valid.tolist() == [value is not None for value in values[start:]]
    assert arrays.to_numpy(array)[valid].tolist() == [value for value in values[start:] if value is not None]
    chunked = pa.chunked_array([array, array], type_)
    assert arrays.valid_mask(chunked).tolist() == valid.tolist() * 2
    assert len(arrays.to_numpy(chunked)) == 2 * len(array)


@settings(deadline=None)
@given(st.lists(st.none() | st.sampled_from(["a", "b", "c"])))
def test_codes_of_nulls_are_minus_one(values):
    encoded = pa.array(values, pa.utf8()).dictionary_encode()
    codes = arrays.codes_of(encoded)
    assert [None if code < 0 else encoded.dictionary[code].as_py() for code in codes] == values
    again = arrays.dictionary(np.maximum(codes, 0).astype(np.int32), encoded.dictionary, codes >= 0)
    assert again.to_pylist() == values


@pytest.mark.parametrize("type_", [pa.int64(), pa.float64(), pa.utf8(), pa.dictionary(pa.int32(), pa.utf8())])
@pytest.mark.parametrize("length", [0, 9])
def test_an_array_without_values_is_all_null(type_, length):
    array = arrays.nulls(type_, length)
    array.validate(full=True)
    assert array.type == type_
    assert array.to_pylist() == [None] * length


@pytest.mark.parametrize(
    ("value", "type_"), [(1.5, pa.int64()), (2**40, pa.int32()), (-1, pa.uint64()), (3, pa.utf8())]
)
def test_what_does_not_fit_is_an_error(value, type_):
    with pytest.raises((ValueError, TypeError, OverflowError)):
        arrays.from_list([value], type_)


def test_an_ingest_does_not_import_pandas(tmp_path):
    events = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": "main", "ts": 10.5, "dur": 5},
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 12, "dur": -1, "args": {"grid": [1]}},
        {"ph": "B", "cat": "user_annotation", "name": "step", "pid": 1, "tid": 1, "ts": 1},
        {"ph": "E", "cat": "user_annotation", "name": "step", "pid": 1, "tid": 1, "ts": 90},
        {"ph": "C", "name": "memory", "pid": 1, "tid": 1, "ts": 3, "args": {"bytes": 8}},
        {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 4, "args": {"Addr": 1, "Bytes": 2, "Device Id": 0}},
    ]  # fmt: skip
    groups = [{"pg_name": "0", "ranks": [0, 1], "pg_size": 2}]
    document = {
        "distributedInfo": {"rank": 0, "world_size": 2, "pg_config": groups},
        "deviceProperties": [{"id": 0, "name": "X"}],
        "traceEvents": events,
    }
    (tmp_path / "trace.json").write_text(json.dumps(document))
    code = (
        "import sys, perfkit; report = perfkit.ingest(sys.argv[1], store=sys.argv[2]);"
        "print(report.num_events, len(report.rejected), 'pandas' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "trace.json"), str(tmp_path / "store")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    from perfkit.sources import scan

    expected = "5 0 False" if scan.have_c_scanner() else "5 0 True"  # the slow scanner converts lists
    assert done.stdout.split() == expected.split()


@pytest.mark.parametrize("length", [0, 3, 5_000, 100_000])
def test_a_constant_takes_no_more_room_in_a_pickle_than_its_rows(length):
    """What workers send to the driver is pickled, rank by rank."""
    column = arrays.constant(7, pa.int32(), length)
    assert column.equals(pa.array([7] * length, pa.int32()))
    assert len(pickle.dumps(column)) < 4 * length + 1_000
