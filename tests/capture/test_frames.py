"""Frames: whatever is read was written, and what is missing is said."""

from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.capture.frames import (
    FRAME,
    MARKER,
    OPENING,
    NotASegment,
    decode_segment,
    encode_frame,
    frame_seed,
    never_began,
    open_bytes,
)  # fmt: skip

UID = bytes(range(16))
SEED = frame_seed(UID)


def segment(*batches: dict, closed: bool = False) -> bytes:
    documents = [{"rank": 0}, *batches, *([{"end": {}}] if closed else [])]
    return open_bytes(UID) + b"".join(encode_frame(n, d, SEED) for n, d in enumerate(documents))


def test_what_was_written_is_read():
    read = decode_segment(segment({"steps": [[1]]}, {"steps": [[2]], "text": "é中"}, closed=True))
    assert read.header == {"rank": 0}
    assert read.batches == [{"steps": [[1]]}, {"steps": [[2]], "text": "é中"}]
    assert read.closed
    assert not read.damaged
    assert not read.torn_bytes


def test_a_lone_surrogate_in_a_name_does_not_stop_the_writer():
    assert decode_segment(segment({"a": "\ud800"})).batches


@given(st.integers(0, 10**6))
def test_a_cut_anywhere_keeps_the_frames_before_it(cut):
    batches = [{"n": n, "x": "y" * n} for n in range(5)]
    data = segment(*batches)
    cut = cut % (len(data) - OPENING.size) + OPENING.size
    read = decode_segment(data[:cut])
    assert read.batches == batches[: len(read.batches)]
    assert read.sound_bytes + read.torn_bytes == cut
    assert not read.damaged


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_a_flipped_byte_never_gives_another_batch_and_never_goes_unnoticed(at, flip):
    batches = [{"n": n} for n in range(4)]
    data = bytearray(segment(*batches, closed=True))
    data[at % len(data)] ^= flip
    try:
        read = decode_segment(bytes(data))
    except NotASegment:
        return
    assert all(batch in batches for batch in read.batches)
    if read.batches != batches:
        assert read.damaged or read.torn_bytes


def test_a_damaged_frame_costs_itself_only():
    first, second, third = ({"n": n} for n in range(3))
    data = segment(first, second, third, closed=True)
    at = data.index(json.dumps(second, separators=(",", ":")).encode())
    read = decode_segment(data[:at] + b"X" + data[at + 1 :])
    assert read.batches == [first, third]
    assert read.damaged == 1
    assert "at byte" in read.first_damage


def test_frames_that_were_repeated_swapped_or_pasted_do_not_pass():
    one, two = encode_frame(1, {"n": 1}, SEED), encode_frame(2, {"n": 2}, SEED)
    other = encode_frame(2, {"n": 99}, frame_seed(b"another segment!"))
    head = open_bytes(UID) + encode_frame(0, {}, SEED)
    assert decode_segment(head + one + one + two).batches == [{"n": 1}, {"n": 2}]
    assert decode_segment(head + two + one).batches == [{"n": 2}]
    assert decode_segment(head + two + one).damaged
    assert decode_segment(head + one + other + two).batches == [{"n": 1}, {"n": 2}]


def test_a_frame_that_is_sound_but_no_object_is_damage():
    payload = b"[" * 100_000
    crc = zlib.crc32(payload, zlib.crc32(FRAME.pack(MARKER, 1, len(payload), 0)[4:12], SEED))
    data = segment() + FRAME.pack(MARKER, 1, len(payload), crc) + payload
    assert decode_segment(data).damaged == 1
    assert decode_segment(segment() + encode_frame(1, [1], SEED)).damaged == 1


def test_a_length_that_lies_is_not_believed():
    data = segment({"n": 1}) + FRAME.pack(MARKER, 2, 2**31, 0) + b"x"
    read = decode_segment(data)
    assert read.batches == [{"n": 1}]
    assert read.torn_bytes


@pytest.mark.parametrize("data", [b"", b"PKSPOOL1", b"{" * 100, open_bytes(UID)[:-1] + b"!"])
def test_what_does_not_open_like_a_segment_is_none(data):
    with pytest.raises(NotASegment):
        decode_segment(data)


def test_a_segment_never_began_until_its_header_is_whole():
    data = segment({"n": 1})
    header_end = decode_segment(segment()).sound_bytes
    assert all(never_began(data[:cut]) for cut in range(header_end))
    assert not any(never_began(data[:cut]) for cut in range(header_end, len(data) + 1))
    assert not never_began(b"something else entirely, longer than an opening")
