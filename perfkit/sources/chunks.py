"""Bytes of a trace in chunks that probably end between two events.

    Chunks(stream, …)        iterate for Chunk: of a stream, each filled into a buffer
    FileChunks(file, …)      the same of a local file: only found here, and read by whoever scans it
    prefetch(items, stop)    produce items in a thread, two ahead

`head` are bytes that were read already, `offset` is where they begin and `size` that of a chunk. Chunks are cut where
the text between two events was seen before, which is only a guess; perfkit.sources.json_stream proves it.

Reading a local file is a copy from the page cache: whoever scans a chunk makes it in slices that stay in the cache of
the CPU, which takes half the time and no thread of its own.
"""

from __future__ import annotations

import json
import mmap
import os
import queue
import re
import threading
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

from perfkit.sources.scan import PADDING, Memory

T = TypeVar("T")

SEARCH_BYTES = 1 << 16
"""Before the end of a file's chunk, in which the end of an event is looked for."""
_BETWEEN = re.compile(rb"\s*,\s*\{\s*\"[^\"\\]*\"")
DECODER = json.JSONDecoder(strict=False, parse_int=lambda digits: int(digits) if len(digits) < 100 else None)
"""For what surrounds the events, whatever it holds: control characters, absurd numbers."""


@dataclass(slots=True)
class Chunk:
    """Some bytes of the events."""

    offset: int
    """Byte offset in the uncompressed file."""
    end: int
    """Number of bytes."""
    data: Memory | None = None
    """The bytes and room for PADDING more; None if they are still in the file."""
    file: int | None = None
    at: int = 0
    """Descriptor and position of bytes in a file."""

    def load(self) -> Memory:
        """Return all bytes in memory."""
        if self.data is None:
            data = bytearray(self.end + PADDING)
            self.end = self.read_into(memoryview(data)[: self.end], 0)
            self.data = data
        return self.data

    def read_into(self, view: memoryview, start: int) -> int:
        """Copy bytes from `start` on out of the file; fewer than `view` has room for only if the file was cut."""
        assert self.file is not None
        filled = 0
        while filled < len(view):
            count = os.preadv(self.file, [view[filled:]], self.at + start + filled)
            if count == 0:
                break
            filled += count
        return filled

    def rest(self, start: int) -> bytes:
        """Return the bytes from `start` on."""
        if self.data is not None:
            return bytes(memoryview(self.data)[start : self.end])
        found = bytearray(self.end - start)
        return bytes(memoryview(found)[: self.read_into(memoryview(found), start)])


class Chunks:
    """Chunks of a stream; `bytes_read` counts on."""

    def __init__(self, stream: BinaryIO, head: bytes, offset: int, size: int) -> None:
        self.bytes_read = 0
        self._stream, self._tail, self._offset, self._size = stream, head, offset, size
        self._free: queue.SimpleQueue[Memory] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[Chunk]:
        tail, offset = self._tail, self._offset
        self._tail = b""
        separator = learn_separator(tail)
        while True:
            data = self._buffer(len(tail))
            data[: len(tail)] = tail
            room = memoryview(data)[len(tail) : len(data) - PADDING]
            count = self._stream.readinto(room)  # type: ignore[attr-defined]  # every raw stream has it
            self.bytes_read += count
            filled = len(tail) + count
            if count < len(room):
                yield Chunk(offset, filled, data)
                return
            if separator is None:
                separator = learn_separator(bytes(data[: 1 << 20]))
            cut = _cut(data, filled, separator)
            tail = bytes(memoryview(data)[cut:filled])
            yield Chunk(offset, cut, data)
            offset += cut

    def release(self, chunk: Chunk) -> None:
        """Take back the buffer of a chunk that nobody looks at any more."""
        if chunk.data is not None and len(chunk.data) == self._size:
            self._free.put(chunk.data)

    def _buffer(self, needed: int) -> Memory:
        if needed > self._size // 2:
            return bytearray(_capacity(needed, self._size) + PADDING)
        try:
            return self._free.get_nowait()
        except queue.Empty:
            return fresh_buffer(self._size)


class FileChunks:
    """Chunks of `head` and the `length` bytes that follow it, at position `at` of a local file."""

    def __init__(self, file: int, at: int, length: int, head: bytes, offset: int, size: int) -> None:
        self.bytes_read = 0
        self._file, self._at, self._length = file, at, length
        self._head, self._offset, self._size = head, offset, size

    def __iter__(self) -> Iterator[Chunk]:
        separator = learn_separator(self._head)
        first, end, tail = 0, len(self._head) + self._length, len(self._head)
        start = self._at - len(self._head)
        while first < end:
            room = _capacity(tail, self._size)
            chunk = Chunk(self._offset + first, min(room, end - first), None, self._file, start + first)
            self.bytes_read = first + chunk.end - len(self._head)
            if chunk.end == room:
                separator = separator or learn_separator(chunk.rest(0)[: 1 << 20])
                chunk.end = self._find_cut(chunk, separator)
            first, tail = first + chunk.end, room - chunk.end
            yield chunk

    def _find_cut(self, chunk: Chunk, separator: bytes | None) -> int:
        """Look for the end of an event near the end of the chunk, or else in all of it."""
        for width in sorted({min(SEARCH_BYTES, chunk.end), chunk.end}):
            window = bytearray(width)
            count = chunk.read_into(memoryview(window), chunk.end - width)
            if separator is None or window.rfind(separator, 1, count) > 0 or width == chunk.end:
                break
        return chunk.end - width + _cut(window, count, separator) if count == width else chunk.end

    def release(self, chunk: Chunk) -> None:
        """Do nothing: there is no buffer."""


def _capacity(tail: int, size: int) -> int:
    """Bytes of a chunk that begins with the `tail` of the last one; an event may be longer than a chunk."""
    return 2 * tail if tail > size // 2 else size - PADDING


def fresh_buffer(size: int) -> Memory:
    """Return writable memory, in huge pages where the system has them: clearing small ones costs half a scan."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return bytearray(size)
    buffer = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory has small pages only
    with suppress(OSError):  # a kernel without them
        buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer


def learn_separator(data: bytes) -> bytes | None:
    """Return the bytes from the end of the first event to the first key of the second, None if there is no second."""
    start = data.find(b"{")
    if start < 0:
        return None
    text = data[start : start + (1 << 20)].decode("utf-8", "surrogateescape")
    try:
        _, end = DECODER.raw_decode(text)
    except (json.JSONDecodeError, RecursionError):
        return None
    rest = text[end : end + 4096].encode("utf-8", "surrogateescape")
    between = _BETWEEN.match(rest)
    return b"}" + between[0] if between else None


def _cut(data: Memory, filled: int, separator: bytes | None) -> int:
    """Where to end a chunk: after the last event that the separator shows, else anywhere between two characters."""
    if separator is not None:
        found = data.rfind(separator, 0, filled)
        if found > 0:
            return found + 1
    cut = filled
    while cut > filled - 4 and data[cut - 1] & 0xC0 == 0x80:
        cut -= 1
    return cut - 1 if cut > 1 and data[cut - 1] >= 0xC0 else filled


def prefetch(items: Iterator[T], stop: threading.Event) -> Generator[T, None, None]:
    """Produce `items` in a thread, two ahead, so that reading and decompression run beside the scan."""
    ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=2)

    def put(entry: tuple[T | None, BaseException | None]) -> bool:
        while not stop.is_set():
            try:
                ready.put(entry, timeout=0.05)
            except queue.Full:
                continue
            return True
        return False

    def produce() -> None:
        try:
            for item in items:
                if not put((item, None)):
                    return
            put((None, None))
        except BaseException as error:
            put((None, error))

    thread = threading.Thread(target=produce, name="perfkit-read", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        stop.set()
        thread.join()
