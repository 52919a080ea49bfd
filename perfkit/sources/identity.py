"""Tell inputs apart by their stored bytes, so that what is in a store already is recognised.

    fingerprint(stream)                  -> str        of the bytes
    identified(inputs, rejected)         -> [Input]    with their fingerprints
    identified_beside(input, pool)       -> Input      whose fingerprint is read meanwhile

A file is read twice for that, once for its identity and once for its events; the first is a copy out of the page
cache. A remote file is known by its address, size and time, so that it is fetched once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace

from isal import isal_zlib

from perfkit.errors import InputError
from perfkit.sources.base import Input
from perfkit.sources.inputs import Limits, Stream, open_stored, os_error
from perfkit.sources.remote import RemoteFile

FINGERPRINT_BYTES = 1 << 18
"""Stored bytes per read of the fingerprint; two buffers of it stay in the second-level cache."""
FINGERPRINT_EDGE = 1 << 16
"""Bytes at each end of the stored content that the fingerprint hashes in full."""
IDENTIFIED_AT_ONCE = 8
"""Files that are read for their fingerprints side by side."""


def fingerprint(stream: Stream) -> str:
    """Identify stored bytes by size, CRC-32 of all, and a hash of the first and the last 64 KiB.

    Runs at the speed of reading. It tells dumps apart; it does not resist someone who wants a collision,
    who could only make perfkit skip their own file.
    """
    buffer, other = (memoryview(bytearray(FINGERPRINT_BYTES)) for _ in range(2))
    crc, size, first = 0, 0, b""
    before = block = buffer[:0]
    while count := stream.readinto(buffer):  # fills the buffer, unless it is the last time
        before, block = block, buffer[:count]
        crc = isal_zlib.crc32(block, crc)
        size += count
        first = first or bytes(block[:FINGERPRINT_EDGE])
        buffer, other = other, buffer
    last = (bytes(before[-FINGERPRINT_EDGE:]) + bytes(block[-FINGERPRINT_EDGE:]))[-FINGERPRINT_EDGE:]
    digest = hashlib.blake2b(digest_size=16)
    digest.update(size.to_bytes(8, "little") + crc.to_bytes(4, "little") + first + last)
    return digest.hexdigest()


def identified(inputs: Iterable[Input], rejected: list[InputError], limits: Limits | None = None) -> list[Input]:
    """Return the inputs with their fingerprints; what cannot be read is appended to `rejected`."""

    def attempt(input: Input) -> Input | InputError:
        try:
            return replace(input, identity=_identity(input, limits))
        except InputError as error:
            return error

    listed = list(inputs)
    if len(listed) > 1:  # reading and checksums let go of the interpreter
        with ThreadPoolExecutor(min(IDENTIFIED_AT_ONCE, len(listed))) as pool:
            found = list(pool.map(attempt, listed))
    else:
        found = [attempt(input) for input in listed]
    rejected += [one for one in found if isinstance(one, InputError)]
    return [one for one in found if isinstance(one, Input)]


def identified_beside(input: Input, pool: Executor, limits: Limits | None = None) -> Input:
    """Return the input with a fingerprint that is read meanwhile; asking for it raises what is wrong with the file."""
    return replace(input, identity=pool.submit(_identity, input, limits))


def _identity(input: Input, limits: Limits | None) -> str:
    """Identify the stored bytes; a remote file by its address, size and time, so that it is not read for that."""
    if input.fingerprint:
        return input.fingerprint
    file = input.file
    if input.member is None and isinstance(file, RemoteFile) and file.mtime_ns is not None:
        text = f"{file.shown}\0{file.size_bytes}\0{file.mtime_ns}"
        return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    try:
        with open_stored(input, limits=limits) as stream:
            return fingerprint(stream)
    except OSError as error:
        raise os_error(error, input.path) from error
