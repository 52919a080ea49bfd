from __future__ import annotations

import io
import json
import tempfile
import threading

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perfkit.sources import chunks, scan
from perfkit.sources.chunks import Chunks, FileChunks, prefetch
from perfkit.sources.inputs import SliceStream
from perfkit.sources.kineto_fields import PLAN
from perfkit.sources.scan import PADDING, Status, scan_chunk, scan_file

NAMES = st.text(alphabet=st.sampled_from('aé€😀\n"\\'), max_size=40)
EVENTS = st.builds(
    lambda name, ts: json.dumps({"ph": "X", "name": name, "ts": ts}, ensure_ascii=False), NAMES, st.integers()
)
ELEMENTS = st.one_of(EVENTS, st.sampled_from(["7", "null", "true", '"text"', "[1, {}]", "{", "nul", "\\"]))


def events_of(count: int) -> bytes:
    return b",\n".join(b'{"name": "%d", "ts": %d}' % (number, number) for number in range(count))


@pytest.mark.skipif(not scan.have_c_scanner(), reason="the C scanner was not built")
@settings(max_examples=300, deadline=None)
@given(
    st.lists(ELEMENTS, max_size=8),
    st.sampled_from(["", "]", '], "x": "é"}', '], "x": "\udcff"}', "\udcc3"]),
    st.integers(1, 120),
)
@example(["nul", "1"], "", 3)
@example(["null", "x"], "", 4)
def test_slices_give_what_the_whole_gives(elements: list[str], end: str, room: int) -> None:
    data = (" , ".join(elements) + end).encode("utf-8", "surrogateescape")
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(b"[" + data + b"more")
        found = scan_file(file.fileno(), 1, len(data), bytearray(room + PADDING), PLAN, base_ns=5)
    whole = scan_chunk(data + bytes(PADDING), 0, len(data), PLAN, base_ns=5)
    if found is None:
        longest = max((len(element.encode()) for element in elements), default=0)
        assert whole.status in (Status.BAD, Status.DEEP, Status.NOT_UTF8) or longest + 5 > room
        return
    assert (found.status, found.consumed) == (whole.status, whole.consumed)
    assert (found.num_events, found.not_events) == (whole.num_events, whole.not_events)
    assert [batch.to_pydict() for batch in found.columns.groups] == [
        batch.to_pydict() for batch in whole.columns.groups
    ]


@pytest.mark.skipif(not scan.have_c_scanner(), reason="the C scanner was not built")
def test_a_file_that_was_cut_meanwhile_is_not_scanned_in_slices() -> None:
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(events_of(2))
        assert scan_file(file.fileno(), 0, len(events_of(2)) + 1, bytearray(200), PLAN, base_ns=0) is None


@pytest.mark.skipif(not scan.have_c_scanner(), reason="the C scanner was not built")
def test_a_buffer_without_room_is_refused() -> None:
    with tempfile.TemporaryFile() as file, pytest.raises(ValueError, match="do not fit through a buffer of 64"):
        scan_file(file.fileno(), 0, 10, bytearray(PADDING), PLAN, base_ns=0)


@pytest.mark.parametrize("size", [256, 1000, 1 << 20])
@pytest.mark.parametrize("search", [10, 1 << 16])
def test_chunks_of_a_file_are_its_bytes_and_end_between_events(tmp_path, monkeypatch, size: int, search: int) -> None:
    monkeypatch.setattr(chunks, "SEARCH_BYTES", search)
    data = b"[" + events_of(200) + b"]"
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    stream = SliceStream(path, path=str(path))
    head = stream.read(51)[1:]
    place = stream.where()
    assert place is not None
    found = FileChunks(*place, head, 1, size)
    listed = list(found)
    assert b"".join(chunk.rest(0) for chunk in listed) == data[1:]
    assert [chunk.offset for chunk in listed] == [1 + sum(c.end for c in listed[:n]) for n in range(len(listed))]
    assert found.bytes_read == len(data) - 51
    assert all(chunk.rest(0).endswith(b"}") for chunk in listed[:-1])
    assert [bytes(chunk.load()[: chunk.end]) for chunk in listed] == [chunk.rest(0) for chunk in listed]
    stream.close()


def test_chunks_of_a_stream_are_its_bytes() -> None:
    data = events_of(200)
    found = Chunks(io.BytesIO(data[50:]), data[:50], 0, 300)
    parts = []
    for chunk in found:
        parts.append(chunk.rest(0))
        found.release(chunk)
    assert b"".join(parts) == data
    assert found.bytes_read == len(data) - 50


def test_a_part_of_a_file_that_ends_early_is_read_as_a_stream(tmp_path) -> None:
    path = tmp_path / "archive"
    path.write_bytes(b"0123456789")
    with SliceStream(path, path="x", offset=2, length=5) as stream:
        assert stream.where() is not None
        assert stream.where()[1:] == (2, 5)
        stream.read(5)
        assert stream.where()[1:] == (7, 0)
    with SliceStream(path, path="x", offset=2, length=50) as stream:
        assert stream.where() is None


def test_prefetch_hands_on_what_went_wrong() -> None:
    def items():
        yield 1
        raise OSError("gone")

    found = prefetch(items(), threading.Event())
    assert next(found) == 1
    with pytest.raises(OSError, match="gone"):
        next(found)
