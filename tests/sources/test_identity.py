"""Inputs are told apart by their bytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfkit.errors import InputError
from perfkit.sources.detect import find_inputs
from perfkit.sources.identity import fingerprint, identified_beside
from perfkit.sources.inputs import BytesStream

TRACE = b'{"traceEvents": [{"ph": "X", "name": "aten::add", "ts": 1, "dur": 2}]}'


class TestFingerprint:
    def of(self, data: bytes) -> str:
        return fingerprint(BytesStream(data, path="t"))

    @settings(max_examples=40, deadline=None)
    @given(data=st.binary(max_size=3000), flip=st.integers(0, 2999))
    def test_one_changed_byte_changes_it(self, data, flip):
        changed = bytearray(data)
        if data:
            changed[flip % len(data)] ^= 1
            assert self.of(bytes(changed)) != self.of(data)
        assert self.of(data + b"\0") != self.of(data)
        assert self.of(data) == self.of(bytes(data))

    def test_a_change_in_the_middle_of_a_large_file_changes_it(self):
        data = bytearray(10 << 20)
        before = self.of(bytes(data))
        data[5 << 20] = 1
        assert self.of(bytes(data)) != before

    def test_it_is_the_same_value_for_ever(self):
        """A store remembers fingerprints; a change here would ingest everything again."""
        assert self.of(b"perfkit") == "ab1f7595d4637d826a1f98d14fe093a5"


def test_a_file_that_vanishes_while_its_fingerprint_is_read_beside_says_so_where_it_is_asked_for(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(TRACE)
    (input,) = find_inputs([path], identify=False).inputs
    path.unlink()
    with ThreadPoolExecutor(1) as pool:
        beside = identified_beside(input, pool)
    with pytest.raises(InputError, match="no such file"):
        _ = beside.fingerprint


def test_a_fingerprint_that_is_read_beside_is_the_same(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(TRACE)
    (input,) = find_inputs([path], identify=False).inputs
    with ThreadPoolExecutor(1) as pool:
        assert identified_beside(input, pool).fingerprint == find_inputs([path]).inputs[0].fingerprint
