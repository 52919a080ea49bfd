"""Walk a trace file as a stream: top-level keys, then chunks of events, then the keys after them.

    walk = TraceWalk(stream, path, scanner=…, threads=…)
    walk.read_head()                      # keys before traceEvents, in walk.keys
    for first, result in walk.scan(plan):        # scanned in threads, without the GIL
        ...
    walk.keys, walk.problem, walk.replaced

Memory is bounded by a few chunks, whatever the size of the file. Chunks are cut where the text between
two events was seen before, which is only a guess: it lets several chunks be scanned at once. The scan of
a chunk proves the guess, because it must end exactly at the cut; where it does not, the rest is put in
front of the next chunk and that one is scanned again. So no layout is assumed, only exploited.
"""

from __future__ import annotations

import codecs
import json
import queue
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO

from perfkit.engine.local import available_cpus
from perfkit.errors import CorruptInput, UnsafeInput, UnsupportedInput
from perfkit.report.format import plural
from perfkit.sources.chunks import Chunk, Chunks, FileChunks, fresh_buffer, prefetch
from perfkit.sources.inputs import SliceStream, Stream
from perfkit.sources.scan import PADDING, Memory, Plan, ScanResult, Status, have_c_scanner, scan_chunk, scan_file

CHUNK_BYTES = 12 << 20
"""Of a buffer: whole huge pages, large enough that what Python does for each is little beside the scan."""
SLICE_BYTES = 1 << 20
"""Of what is read from a file at once: stays in the second-level cache."""
FIRST_HEAD_BYTES = 1 << 16
"""Most headers are shorter. Whatever is longer is read up to three times as far, and so on."""
MAX_HEAD_BYTES = 256 << 20
"""Keys before traceEvents (process groups of a large job are megabytes), and keys after it."""
MAX_EVENT_BYTES = 256 << 20
"""One event. Beyond this the file is no trace."""

_SPACE = re.compile(r"[ \t\n\r]*")


Scanned = tuple[ScanResult, bytearray | None]
"""Rows of a chunk, and the chunk as text if it was not UTF-8."""


class Written(float):
    """A number that remembers its digits: as a float alone, a time would lose the last ones."""

    text: str

    def __new__(cls, text: str) -> Written:
        """Read a number."""
        number = super().__new__(cls, text)
        number.text = text
        return number


DECODER = json.JSONDecoder(
    strict=False, parse_float=Written, parse_int=lambda digits: int(digits) if len(digits) < 100 else Written(digits)
)
"""For what surrounds the events, whatever it holds: control characters, absurd numbers."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the walk ended early."""

    kind: str
    """`truncated`, `invalid_json`, or `trailing_data` if all events were read."""
    detail: str


class TraceWalk:
    """One pass over the bytes of a trace."""

    def __init__(self, stream: BinaryIO, path: str, *, scanner: str = "auto", threads: int = 1) -> None:
        self.keys: dict[str, Any] = {}
        """Top-level keys other than traceEvents; complete after `scan`."""
        self.problem: Problem | None = None
        self.repeated: list[str] = []
        """Top-level keys that occur twice, the first one counts; and what of them was not read."""
        self.replaced = 0
        """Places that were not UTF-8."""
        self._chunks: Chunks | FileChunks | None = None
        self._head_bytes = 0
        self._stream, self._path, self._scanner, self._threads = stream, path, scanner, threads
        self._chunk_bytes = CHUNK_BYTES
        self._rest = b""
        self._offset = 0
        self._is_list = False
        self._by_c = have_c_scanner() and scanner != "python"
        self._slices: queue.SimpleQueue[Memory] = queue.SimpleQueue()

    @property
    def bytes_read(self) -> int:
        """Uncompressed bytes so far."""
        return self._head_bytes + (self._chunks.bytes_read if self._chunks else 0)

    # ------------------------------------------------------------ head and foot

    def read_head(self) -> None:
        """Read up to the first event; raises if there are no events to come."""
        data, size = bytearray(), FIRST_HEAD_BYTES
        while True:
            ended = self._read_on(data, size)
            if self._parse_head(data, ended=ended):
                return
            if len(data) > MAX_HEAD_BYTES:
                raise CorruptInput(
                    f"no traceEvents within the first {MAX_HEAD_BYTES >> 20} MiB",
                    path=self._path,
                    next_step="give a trace that torch.profiler's export_chrome_trace wrote",
                )
            size = min(3 * len(data), MAX_HEAD_BYTES + 1)

    def _parse_head(self, data: bytearray, *, ended: bool) -> bool:
        text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
        at = _skip_space(text, 0)
        if at == len(text):
            if ended:
                raise CorruptInput("is empty", path=self._path, next_step="export the trace again")
            return False
        if text[at] == "[":
            self._is_list = True
            return self._start_events(text, at + 1)
        if text[at] != "{":
            raise CorruptInput("is not JSON", path=self._path, next_step="give a trace in Chrome's JSON format")
        found = self._parse_keys(text, at + 1, ended=ended)
        return found is not None and self._start_events(text, found)

    @property
    def first_bytes(self) -> bytes:
        """Some bytes of the first events, between `read_head` and `scan`."""
        return self._rest[: 1 << 16]

    def _start_events(self, text: str, at: int) -> bool:
        self._rest = text[at:].encode("utf-8", "surrogateescape")
        self._offset = self.bytes_read - len(self._rest)
        return True

    def _parse_keys(self, text: str, at: int, *, ended: bool) -> int | None:
        """Read `"key": value` pairs into `keys`. Returns where the events start, None to ask for more text."""
        keys: dict[str, Any] = {}
        while True:
            at = _skip_space(text, at)
            if at < len(text) and text[at] == ",":
                at = _skip_space(text, at + 1)
            try:
                if text[at : at + 1] == "}":
                    looks = f"it has {', '.join(list(keys)[:5])}" if keys else "it is empty"
                    raise UnsupportedInput(
                        f"is JSON without traceEvents ({looks})",
                        path=self._path,
                        next_step="give a trace that torch.profiler's export_chrome_trace wrote",
                    )
                if at < len(text) and text[at] != '"':
                    raise CorruptInput(
                        f"is not JSON: expected a key at byte {self._byte(text, at)}",
                        path=self._path,
                        next_step="export the trace again",
                    )
                key, at = DECODER.raw_decode(text, at)
                at = _skip_space(text, at)
                if text[at] != ":":
                    raise CorruptInput(
                        f"is not JSON: expected ':' at byte {self._byte(text, at)}",
                        path=self._path,
                        next_step="export the trace again",
                    )
                at = _skip_space(text, at + 1)
                if key == "traceEvents" and text[at] == "[":
                    self._keep(keys)
                    return at + 1
                value, at = DECODER.raw_decode(text, at)
                if at == len(text):
                    raise IndexError  # a number may go on
                if key == "traceEvents":
                    raise UnsupportedInput(
                        f"traceEvents is {_kind_of(value)}, not a list",
                        path=self._path,
                        next_step="give a trace that torch.profiler's export_chrome_trace wrote",
                    )
            except RecursionError as error:
                raise UnsafeInput(
                    "is nested too deeply before its first event", path=self._path, next_step="export the trace again"
                ) from error
            except (json.JSONDecodeError, IndexError) as error:
                if not ended:
                    return None
                raise CorruptInput(
                    "ends, or is broken, before its first event", path=self._path, next_step="export the trace again"
                ) from error
            if key in keys:
                self.repeated.append(key)
            keys.setdefault(key, value)

    def _byte(self, text: str, at: int) -> int:
        return len(text[:at].encode("utf-8", "surrogateescape"))

    def _keep(self, keys: dict[str, Any]) -> None:
        self.repeated += [key for key in keys if key in self.keys]
        self.keys = {**_clean(keys), **self.keys}

    def _parse_foot(self, data: bytearray) -> None:
        """Read the keys after the events; a damaged foot costs its keys only, and is noted."""
        text = data.decode("utf-8", "replace")
        if self._is_list:
            self._note_trailing(text)
            return
        at, key = 0, ""
        keys: dict[str, Any] = {}
        try:
            while True:
                at = _skip_space(text, at)
                if text[at] == "}":
                    self._note_trailing(text[at + 1 :])
                    break
                if text[at] == ",":
                    at = _skip_space(text, at + 1)
                key, at = DECODER.raw_decode(text, at)
                at = _skip_space(text, at)
                if text[at] != ":":
                    raise IndexError
                start = _skip_space(text, at + 1)
                value, at = DECODER.raw_decode(text, start)
                if key == "traceEvents":
                    size = self._byte(text[start:at], at - start)
                    count = f"{plural(len(value), 'event')} in " if isinstance(value, list) else ""
                    self.repeated.append(f"{key} (of the second, {count}{size:,} bytes were not read)")
                elif key in keys:
                    self.repeated.append(key)
                keys.setdefault(key, value)
        except (json.JSONDecodeError, IndexError, RecursionError):
            kept = "all events are kept"
            if key == "traceEvents" and key not in keys:
                self.repeated.append(f"{key} (the events of the second were not read)")
                kept = "all events of the first traceEvents are kept"
            self.problem = Problem("truncated", f"the file ends, or is broken, after its last event; {kept}")
        keys.pop("traceEvents", None)
        self._keep(keys)

    def _note_trailing(self, text: str) -> None:
        """Say what follows the end of the document; a second document is not read."""
        rest = text[_skip_space(text, 0) :]
        if rest:
            what = "a second document" if rest[0] in "{[" else "something else"
            self.problem = Problem(
                "trailing_data", f"{what} follows the end of the trace and was not read: {rest[:20]!r}…"
            )

    # ------------------------------------------------------------ events

    def scan(self, plan: Plan, *, base_ns: int = 0) -> Iterator[tuple[int, ScanResult]]:
        """Scan all events; yields (events before it, rows) for each chunk, in order.

        Threads do what needs no GIL, and this one is one of them: it scans instead of waiting. To make Arrow of the
        rows is left to the caller: Python in two threads takes twice the time of Python in one.
        """
        foot: bytearray | None = None
        carried, first, stop = _Carried(), 0, threading.Event()

        def work(chunk: Chunk) -> Scanned:
            return self._scan_one(chunk, plan, base_ns)

        source = self._chunks = self._open_chunks()
        with _Team(work, self._threads) as team:
            chunks: Iterator[Chunk] = prefetch(iter(source), stop) if self._reads_beside() else iter(source)
            more = True
            try:
                while True:
                    while more and team.has_room:
                        chunk = next(chunks, None)
                        if chunk is None:
                            more = False
                        else:
                            team.take_on(chunk)
                    if not team.ahead and not carried.has_new:
                        break
                    chunk = team.ahead[0].chunk if team.ahead else None
                    if foot is not None:
                        assert chunk is not None
                        team.drop()
                        foot += chunk.rest(0)
                        if len(foot) > MAX_HEAD_BYTES:
                            break
                        continue
                    if not carried:
                        assert chunk is not None
                        result, repaired = team.finish()
                    else:
                        if chunk is not None:
                            team.drop()
                            carried.add(chunk)
                            if not carried.is_due:
                                continue
                        chunk = carried.join()
                        result, repaired = work(chunk)
                    if repaired is not None:
                        self.replaced += repaired.count(_REPLACEMENT)
                    if result.num_events or result.not_events:
                        yield first, result
                        first += result.num_events
                    if result.status in (Status.BAD, Status.DEEP):
                        self._note_broken(result, chunk, repaired is not None)
                        return
                    if result.status == Status.END:
                        foot = bytearray(repaired[result.consumed :] if repaired else chunk.rest(result.consumed))
                        carried = _Carried()
                        continue
                    own = chunk.data is not carried.data
                    carried.keep(chunk, result.consumed, repaired)
                    if len(carried) > MAX_EVENT_BYTES:
                        self.problem = Problem("invalid_json", f"one event is longer than {MAX_EVENT_BYTES >> 20} MiB")
                        return
                    if own:
                        source.release(chunk)
            finally:
                stop.set()
                chunks.close()  # type: ignore[attr-defined]  # both are generators
        self._finish(foot, carried)

    def _reads_beside(self) -> bool:
        """Say whether a thread for reading pays: whoever has one CPU gains nothing by decompressing beside the scan."""
        stream = self._stream
        return isinstance(stream, Stream) and stream.slow and (stream.waits or available_cpus() > 1)

    def _finish(self, foot: bytearray | None, carried: _Carried) -> None:
        stream_problem = getattr(self._stream, "problem", None)
        if foot is not None:
            self._parse_foot(foot)
        if stream_problem:
            kind = "truncated" if foot is None or self.problem else "trailing_data"
            self.problem = Problem(kind, stream_problem)
        elif foot is None:
            whole = not carried or carried.data.isspace()
            lost = "" if whole else f"; an unfinished event of {len(carried):,} bytes was lost"
            self.problem = Problem("truncated", f"the file ends at byte {self.bytes_read:,} inside traceEvents{lost}")

    def _note_broken(self, result: ScanResult, chunk: Chunk, repaired: bool) -> None:
        about = "about " if repaired else ""  # replaced bytes have other lengths
        why = "is nested too deeply" if result.status == Status.DEEP else "is not JSON"
        where = chunk.offset + result.consumed
        self.problem = Problem(
            "invalid_json", f"the event at {about}byte {where:,} {why}; what follows it was not read"
        )

    def _scan_one(self, chunk: Chunk, plan: Plan, base_ns: int) -> Scanned:
        """Scan a chunk; if it is not UTF-8, scan a repaired copy and return that copy, without padding, too."""
        if chunk.data is None and (found := self._scan_file(chunk, plan, base_ns)):
            return found, None
        result = scan_chunk(chunk.load(), 0, chunk.end, plan, base_ns=base_ns, scanner=self._scanner)
        if result.status != Status.NOT_UTF8:
            return result, None
        repaired = _repair(chunk.rest(0))
        end = len(repaired)
        repaired += bytes(PADDING)
        result = scan_chunk(repaired, 0, end, plan, base_ns=base_ns, scanner=self._scanner)
        del repaired[end:]
        return result, repaired

    def _scan_file(self, chunk: Chunk, plan: Plan, base_ns: int) -> ScanResult | None:
        assert chunk.file is not None
        try:
            buffer = self._slices.get_nowait()
        except queue.Empty:
            buffer = fresh_buffer(SLICE_BYTES)
        try:
            return scan_file(chunk.file, chunk.at, chunk.end, buffer, plan, base_ns=base_ns)
        finally:
            self._slices.put(buffer)

    # ------------------------------------------------------------ bytes

    def _read_on(self, data: bytearray, size: int) -> bool:
        """Read until there are `size` bytes; True if the stream ends before. `data` grows where it is."""
        block = memoryview(bytearray(min(size - len(data), SLICE_BYTES)))
        while len(data) < size:
            room = block[: size - len(data)]
            count = self._stream.readinto(room)  # type: ignore[attr-defined]  # every raw stream has it
            self._head_bytes += count
            data += room[:count]
            if count < len(room):
                return True
        return False

    def _open_chunks(self) -> Chunks | FileChunks:
        """Return the rest of the stream in chunks."""
        head, size = self._rest, self._chunk_bytes
        self._rest = b""
        place = self._stream.where() if isinstance(self._stream, SliceStream) and self._by_c else None
        if place is None:
            return Chunks(self._stream, head, self._offset, size)
        return FileChunks(*place, head, self._offset, size)


class _Carried:
    """The beginning of an event that did not end in its chunk, and the chunks that follow it.

    An event of many chunks is scanned again only when there is twice as much of it, and it grows where it is: so it
    costs neither quadratic time nor several copies.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self._offset = 0
        self._scanned = 0

    def __len__(self) -> int:
        return len(self.data)

    @property
    def has_new(self) -> bool:
        """Whether it has bytes that were not scanned."""
        return len(self.data) > self._scanned

    @property
    def is_due(self) -> bool:
        """Whether a scan pays."""
        return len(self.data) >= min(2 * self._scanned, MAX_EVENT_BYTES + 1)

    def add(self, chunk: Chunk) -> None:
        """Put a chunk behind it. The chunk's buffer may still be in use: some thread may be scanning it in vain."""
        self.data += chunk.rest(0)

    def join(self) -> Chunk:
        """Return all of it as a chunk."""
        end = len(self.data)
        self.data += bytes(PADDING)
        return Chunk(self._offset, end, self.data)

    def keep(self, chunk: Chunk, consumed: int, repaired: bytearray | None) -> None:
        """Hold what a scan has left of a chunk."""
        if repaired is not None:
            self.data = repaired[consumed:]
        elif chunk.data is self.data:
            del self.data[chunk.end :]
            del self.data[:consumed]
        else:
            self.data = bytearray(chunk.rest(consumed))
        self._offset = chunk.offset + consumed
        self._scanned = len(self.data)


@dataclass(slots=True)
class _Taken:
    """A chunk that is to be scanned, or was."""

    chunk: Chunk
    scanned: Future[Scanned]


class _Team:
    """Scans chunks, a few ahead: `threads` threads, of which the caller is one."""

    def __init__(self, work: Callable[[Chunk], Scanned], threads: int) -> None:
        self.ahead: deque[_Taken] = deque()
        self._work = work
        self._most = 2 * threads if threads > 1 else 1
        self._others = ThreadPoolExecutor(threads - 1) if threads > 1 else None

    @property
    def has_room(self) -> bool:
        """Whether another chunk can be taken on."""
        return len(self.ahead) < self._most

    def take_on(self, chunk: Chunk) -> None:
        """Scan a chunk when it is its turn."""
        self.ahead.append(_Taken(chunk, self._others.submit(self._work, chunk) if self._others else Future()))

    def finish(self) -> Scanned:
        """Return what the first chunk holds. Until that is known, scan what nobody has begun."""
        first = self.ahead[0]
        while not first.scanned.done():
            own = next((taken for taken in self.ahead if taken.scanned.cancel()), None)
            if own is None:
                break
            own.scanned = Future()
            own.scanned.set_result(self._work(own.chunk))
        self.ahead.popleft()
        return first.scanned.result()

    def drop(self) -> None:
        """Do without what the first chunk holds."""
        self.ahead.popleft().scanned.cancel()

    def __enter__(self) -> _Team:
        return self

    def __exit__(self, *error: object) -> None:
        if self._others:
            self._others.shutdown(cancel_futures=True)


_REPLACEMENT = "\ufffd".encode()


def _repair(data: bytes) -> bytearray:
    """Replace what is not UTF-8, in slices: text takes up to four times the memory of its bytes."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    repaired = bytearray()
    for at in range(0, len(data), SLICE_BYTES):
        repaired += decoder.decode(data[at : at + SLICE_BYTES]).encode()
    repaired += decoder.decode(b"", final=True).encode()
    return repaired


_SURROGATES = re.compile("[\ud800-\udfff]")


def _clean(value: Any) -> Any:
    """Replace what is not text: lone surrogates, and bytes that were not UTF-8."""
    if isinstance(value, str):
        return _SURROGATES.sub("\ufffd", value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return {_clean(key): _clean(item) for key, item in value.items()} if isinstance(value, dict) else value


def _kind_of(value: Any) -> str:
    """Name a JSON value."""
    kinds = {dict: "an object", str: "a string", bool: "a truth value", type(None): "null"}
    return kinds.get(type(value), "a number")


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None  # it matches the empty string
    return match.end()
