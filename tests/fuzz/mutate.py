"""Damaged and odd trace files, one per seed: the same seed gives the same bytes on any machine."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
import zipfile
import zlib

NAMES = [
    "aten::mm",
    "ampere_gemm",
    "ncclDevKernel_AllReduce_Sum",
    "ProfilerStep#3",
    'q"uo\\te',
    "é\u4e2d😀",
    "",
    "a" * 300,
]
NUMBERS = [
    "0", "-1", "1e3", "1E400", "-0.0005", "9223372036854775808", "18446744073709551615", "1.5", "2e15", "NaN",
    "-Infinity", "nan", "0.0005", "12345678901234567890123", "1661203762610763.123", "01", "1.", "-", "+1",
]  # fmt: skip
TOKENS = [
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u12", b"\\ud800", b"null", b"tru", b"\xff", b"\xe4\xb8",
    b"\x00", b"NaN", b"e", b"-", b" ", b"\n", b"}}", b"{}", b'"ph"', b'"args"', b"},{", b'"ts":',
]  # fmt: skip
ARGS = ["External id", "correlation", "device", "stream", "Input Dims", "grid", "Comms Id", "x", "Collective name",
        "Python id", "bytes", "memory bandwidth (GB/s)"]  # fmt: skip
VALUES = [1, 2**60, -1, "7", "text", [1, 2, 3], [[1], []], 1.25, None, True, {"a": [0.5]}]


def build_event(dice: random.Random, number: int) -> dict[str, object]:
    """Return an event, valid but odd."""
    event = {
        "ph": dice.choice("XXXXXiBECMsf"),
        "cat": dice.choice(["cpu_op", "kernel", "Kernel", "gpu_memcpy", None]),
        "name": dice.choice(NAMES),
        "pid": dice.choice([1, "1", "Spans"]),
        "tid": dice.choice([2, "2", ""]),
        "ts": dice.choice([2e15 + number, 1661203762610763 + number, number + 0.001]),
        "dur": dice.choice([1, 2.5, 0, -3]),
        "args": {key: dice.choice(VALUES) for key in dice.sample(ARGS, dice.randint(0, 5))},
    }
    return {key: value for key, value in event.items() if dice.random() > 0.05}


def build_trace(dice: random.Random) -> str:
    """Return a valid trace in a random layout."""
    events = [build_event(dice, number) for number in range(dice.randint(0, 12))]
    keys = {"schemaVersion": 1, "distributedInfo": {"rank": dice.randint(0, 3), "world_size": 4}, "traceName": "x"}
    before = {key: value for key, value in keys.items() if dice.random() > 0.4}
    after = {key: value for key, value in keys.items() if key not in before and dice.random() > 0.3}
    trace: object = {**before, "traceEvents": events, **after} if dice.random() > 0.1 else events
    style = dice.choice([{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}])
    return json.dumps(trace, **style)


def damage(data: bytes, dice: random.Random) -> bytes:
    """Flip, cut, insert, repeat or replace a few places."""
    buffer = bytearray(data)
    for _ in range(dice.choice([0, 1, 1, 1, 2, 3, 8])):
        at = dice.randrange(len(buffer) + 1)
        kind = dice.randrange(7)
        if kind == 0 and buffer:
            buffer[at % len(buffer)] ^= 1 << dice.randrange(8)
        elif kind == 1:
            del buffer[at : at + dice.choice([1, 2, 10, 200])]
        elif kind == 2:
            buffer[at:at] = dice.choice(TOKENS)
        elif kind == 3:
            buffer[at:at] = buffer[max(0, at - dice.choice([5, 50, 500])) : at]
        elif kind == 4:
            del buffer[at:]
        elif kind == 5:
            buffer[at:at] = dice.choice(NUMBERS).encode()
        else:
            buffer[at:at] = dice.choice([b"[", b'{"a":']) * dice.choice([3, 127, 129, 5000])
    return bytes(buffer)


def pack(data: bytes, dice: random.Random) -> bytes:
    """Wrap in gzip, zip or tar, sometimes damaging the wrapping."""
    kind = dice.choice(["gzip", "gzip", "zip", "tar", "tar.gz"])
    if kind == "gzip":
        packed = gzip.compress(data, mtime=0) + (gzip.compress(b" ", mtime=0) if dice.random() < 0.2 else b"")
    elif kind == "zip":
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", dice.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
            archive.writestr(zipfile.ZipInfo("rank0.json"), data)
            archive.writestr(zipfile.ZipInfo("../up.json"), data)
        packed = file.getvalue()
    else:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            for name in ("rank0.json", "/abs/rank1.json"):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        packed = file.getvalue() if kind == "tar" else zlib.compress(file.getvalue(), wbits=31)
    return damage(packed, dice) if dice.random() < 0.7 else packed


def make(seed: int) -> bytes:
    """Return the bytes of one fuzz case."""
    dice = random.Random(seed)
    text = build_trace(dice).encode()
    if dice.random() < 0.25:
        return pack(text, dice)
    return damage(text, dice)
