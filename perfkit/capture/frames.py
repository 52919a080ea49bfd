"""The bytes of a spool segment: framed, numbered and checksummed batches.

    open_bytes(uid)                     -> the first bytes of a segment
    encode_frame(number, batch, seed)   -> one frame
    decode_segment(data)                -> Segment(header, batches, closed, problems)

A segment is `PKSPOOL1`, 16 bytes of identity and their CRC, then frames: marker, number, length, CRC-32,
JSON. The CRC covers number and length too, and starts from the segment's identity, so that a frame that was
moved, repeated or pasted from another file does not pass. A damaged frame costs itself: the reader looks for
the next marker whose frame is sound, and says how many numbers are missing. Frame 0 is the header (whose
rows these are), the last frame of a segment that was closed is its end.

JSON and not a binary format: a batch is a few kilobytes twice a second, and whoever finds such a file on a
dead node can read it with `strings`.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

MAGIC = b"PKSPOOL1"
UID_BYTES = 16
OPENING = struct.Struct(f"<8s{UID_BYTES}sI")
FRAME = struct.Struct("<4sIII")
MARKER = b"\xf7PKF"
"""Starts every frame; 0xF7 occurs in no UTF-8 text, so no payload can hold it."""
MAX_FRAME_BYTES = 16 << 20
SUFFIX = ".spool"

Batch = dict[str, Any]


class NotASegment(ValueError):
    """The opening of a segment is missing or damaged, so nothing in it can be trusted."""


@dataclass(slots=True)
class Segment:
    """What a segment holds."""

    uid: bytes
    header: Batch | None
    batches: list[Batch] = field(default_factory=list)
    closed: bool = False
    """It ends with its end frame: the writer will add nothing."""
    torn_bytes: int = 0
    """Bytes of a frame that was being written when the writer ended."""
    damaged: int = 0
    """Frames that are missing or that no checksum vouches for."""
    first_damage: str = ""
    sound_bytes: int = 0
    """Where the last sound frame ends."""


def open_bytes(uid: bytes) -> bytes:
    """Return the first bytes of a segment."""
    return OPENING.pack(MAGIC, uid, zlib.crc32(MAGIC + uid))


def frame_seed(uid: bytes) -> int:
    """Return what the checksums of a segment's frames start from."""
    return zlib.crc32(uid)


def encode_frame(number: int, batch: Batch, seed: int) -> bytes:
    """Return one frame."""
    payload = json.dumps(batch, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "backslashreplace")
    if len(payload) > MAX_FRAME_BYTES:
        raise ValueError(f"a batch of {len(payload)} bytes is too large for a frame")
    return FRAME.pack(MARKER, number, len(payload), _checksum(number, payload, seed)) + payload


def _checksum(number: int, payload: bytes | memoryview, seed: int) -> int:
    return zlib.crc32(payload, zlib.crc32(struct.pack("<II", number, len(payload)), seed))


def decode_segment(data: bytes) -> Segment:
    """Return every sound frame in order; raises `NotASegment` if the opening is not sound."""
    if len(data) < OPENING.size:
        raise NotASegment("it ends before its header")
    magic, uid, checksum = OPENING.unpack_from(data)
    if magic != MAGIC or checksum != zlib.crc32(magic + uid):
        raise NotASegment("its opening is damaged")
    segment = Segment(uid, None, sound_bytes=OPENING.size)
    at, expected, seed = OPENING.size, 0, frame_seed(uid)
    while at < len(data):
        found = _sound_frame(data, at, seed, expected)
        if found is None:
            segment.torn_bytes = len(data) - at
            if data.find(MARKER, at + 1) >= 0:  # more than one torn frame: damage, not an interrupted write
                _damage(segment, 1, at)
            break
        start, number, payload = found
        if start != at or number != expected:
            _damage(segment, max(number - expected, 1), at)
        at, expected = start + FRAME.size + len(payload), number + 1
        segment.sound_bytes = at
        _take(segment, number, payload)
    return segment


def never_began(data: bytes) -> bool:
    """Whether a segment's writer ended before its header was whole, so that nothing in it was acknowledged."""
    if len(data) < OPENING.size:
        return MAGIC.startswith(data[: len(MAGIC)])
    rest = data[OPENING.size :]
    if not data.startswith(MAGIC) or len(rest) < FRAME.size:
        return data.startswith(MAGIC) and MARKER.startswith(rest[: len(MARKER)])
    marker, number, length, _ = FRAME.unpack_from(rest)
    return bool(marker == MARKER and number == 0 and len(rest) < FRAME.size + length)


def _sound_frame(data: bytes, at: int, seed: int, expected: int) -> tuple[int, int, bytes] | None:
    """Find the next frame that its checksum vouches for, with a number that has not been used yet."""
    while (at := data.find(MARKER, at)) >= 0 and at + FRAME.size <= len(data):
        _, number, length, checksum = FRAME.unpack_from(data, at)
        payload = data[at + FRAME.size : at + FRAME.size + length] if length <= MAX_FRAME_BYTES else b""
        if len(payload) == length and number >= expected and _checksum(number, payload, seed) == checksum:
            return at, number, payload
        at += 1
    return None


def _damage(segment: Segment, count: int, at: int) -> None:
    segment.damaged += count
    segment.first_damage = segment.first_damage or f"at byte {at}"


def _take(segment: Segment, number: int, payload: bytes) -> None:
    try:
        batch = json.loads(payload)
    except (ValueError, RecursionError):  # sound by its checksum, so made by somebody else
        batch = None
    if not isinstance(batch, dict):
        _damage(segment, 1, segment.sound_bytes)
    elif number == 0:
        segment.header = batch
    elif "end" in batch:
        segment.closed = True
    else:
        segment.batches.append(batch)
