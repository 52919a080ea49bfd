"""The scanner without a compiler: the same rows as _scan.c, from the standard library's `json`.

    scan_chunk(data, start, end, plan, base_ns=…) -> perfkit.sources.scan.ScanResult

It reads one element after the other with `JSONDecoder.raw_decode`, keeping every number as its
digits and every object as its list of pairs, so that nothing is rounded or merged on the way. It is
some forty times slower than C; tests compare the two on real, mutated and generated input.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from perfkit.sources.scan import NUMBER_TEXT, integer_of, scaled_integer

if TYPE_CHECKING:
    from perfkit.sources.scan import Buffer, Plan, ScanResult, Status, Tally

MAX_DEPTH = 128
"""Nesting of one element, as in _scan.c."""

_SPACE = re.compile(r"[ \t\n\r]*")
_NON_FINITE = re.compile(r"-?(nan|inf(inity)?)", re.IGNORECASE)
_SURROGATE = re.compile("[\ud800-\udfff]")
_WITHOUT_ESCAPE = re.compile(r'[^"\\]*')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_ESCAPE_PREFIX = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_WORDS = r"true|false|null|(?i:-?(?:nan|inf(?:inity)?))"
_SCALAR = re.compile(rf"{_WORDS}|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_SCALAR_PREFIX = re.compile(
    r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|(?:0|[1-9][0-9]*)(?:\.[0-9]+)?[eE][-+]?[0-9]*)?"
    r"|t(?:ru?)?|f(?:a(?:ls?)?)?|n(?:ul?)?"
    r"|(?i:-?(?:n(?:an?)?|i(?:n(?:f(?:i(?:n(?:it?)?)?)?)?)?))"
)


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as its pairs: keeps order, repeats, and is not mistaken for an array."""


class _Digits(str):
    """A number as written."""

    __slots__ = ()


class _NotFinite:
    """NaN or an infinity."""


class _TooDeep(Exception):
    pass


_NOT_FINITE = _NotFinite()
_DECODER = json.JSONDecoder(
    object_pairs_hook=_Pairs,
    parse_float=_Digits,
    parse_int=_Digits,
    parse_constant=lambda _: _NOT_FINITE,
    strict=False,
)


def scan_chunk(data: Buffer, start: int, end: int, plan: Plan, *, base_ns: int = 0) -> ScanResult:
    """Scan `data[start:end]`; see `perfkit.sources.scan.scan_chunk`."""
    from perfkit.sources.scan import Status

    rows = _Rows(plan, base_ns)
    try:
        text = bytes(memoryview(data)[start:end]).decode()
    except UnicodeDecodeError:
        return rows.finish(Status.NOT_UTF8, start, 0)
    position, status, not_events = 0, Status.OK, 0
    while True:
        position = _SPACE.match(text, position).end()  # type: ignore[union-attr]  # matches the empty string
        if position == len(text):
            break
        if text[position] == ",":
            position += 1
            continue
        if text[position] == "]":
            position, status = position + 1, Status.END
            break
        written = text
        try:
            element, after, text = _decode(text, position)
        except (json.JSONDecodeError, RecursionError):
            status = _why_broken(text, position)
            break
        except _TooDeep:
            status = Status.DEEP
            break
        if word := _NON_FINITE.match(written, position):  # respelled, it may be shorter
            after = word.end()
        if not isinstance(element, _Pairs) and (after == len(written) or written[after] not in " \t\n\r,]"):
            status = _why_broken(written, position)  # a bare scalar may go on in the next chunk
            if status != Status.OK:
                break
        if isinstance(element, _Pairs):
            rows.add(element)
        else:
            not_events += 1
        position = after
    consumed = start + len(text[:position].encode())
    return rows.finish(status, consumed, not_events)


def _decode(text: str, position: int) -> tuple[Any, int, str]:
    """Decode one element; also returns the text, in which nan and inf may have been respelled in place."""
    while True:
        try:
            element, after = _DECODER.raw_decode(text, position)
        except json.JSONDecodeError as error:
            word = _NON_FINITE.match(text, error.pos)
            if word is None or text.startswith(("NaN", "Infinity", "-Infinity"), error.pos):
                raise
            text = text[: word.start()] + "NaN".ljust(len(word[0])) + text[word.end() :]
            continue
        if text.count("[", position, after) + text.count("{", position, after) > MAX_DEPTH:
            _check_depth(element, 0)
        return element, after, text


def _check_depth(value: Any, depth: int) -> None:
    if isinstance(value, (_Pairs, list)):
        if depth >= MAX_DEPTH:
            raise _TooDeep
        for item in value:
            _check_depth(item[1] if isinstance(value, _Pairs) else item, depth + 1)


def _why_broken(text: str, position: int) -> Status:
    """Walk the tokens of a broken element: does it only stop too early (MORE), go too deep, or is it BAD?

    OK if it is whole and nothing follows.
    """
    from perfkit.sources.scan import Status

    closers: list[str] = []
    expect = "value"
    while True:
        position = _SPACE.match(text, position).end()  # type: ignore[union-attr]  # matches the empty string
        if position == len(text):
            return Status.MORE if closers or expect != "after" else Status.OK
        char = text[position]
        if expect == "after" and closers and char == closers[-1]:
            closers.pop()
            position += 1
        elif expect in ("first", "first key") and char == closers[-1]:
            closers.pop()
            position, expect = position + 1, "after"
        elif expect == "after" and closers and char == ",":
            position, expect = position + 1, "key" if closers[-1] == "}" else "value"
        elif expect == ":" and char == ":":
            position, expect = position + 1, "value"
        elif expect in ("value", "first") and char in "[{":
            if len(closers) >= MAX_DEPTH:
                return Status.DEEP
            closers.append("}" if char == "{" else "]")
            position, expect = position + 1, "first key" if char == "{" else "first"
        elif expect in ("value", "first", "key", "first key"):
            is_key = expect in ("key", "first key")
            if char == '"':
                end = _string_end(text, position)
            elif not is_key and _SCALAR_PREFIX.fullmatch(text, position):
                return Status.MORE
            else:
                token = None if is_key else _SCALAR.match(text, position)
                end = token.end() if token else Status.BAD
            if isinstance(end, Status):
                return end
            position, expect = end, ":" if is_key else "after"
        else:
            return Status.BAD


def _string_end(text: str, position: int) -> int | Status:
    """Return where a string ends. Not one pattern for all of it: that would remember every escape of a huge one."""
    from perfkit.sources.scan import Status

    position += 1
    while True:
        position = _WITHOUT_ESCAPE.match(text, position).end()  # type: ignore[union-attr]  # matches the empty string
        if position == len(text):
            return Status.MORE
        if text[position] == '"':
            return position + 1
        escape = _ESCAPE.match(text, position)
        if escape is None:
            return Status.MORE if _ESCAPE_PREFIX.fullmatch(text, position) else Status.BAD
        position = escape.end()


def canonical(value: Any) -> str:
    """Canonical JSON of a decoded value: no space, fewest escapes, numbers as written, NaN as null."""
    if isinstance(value, _Pairs):
        return "{" + ",".join(f"{_quoted(key)}:{canonical(item)}" for key, item in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, _Digits):
        return str(value)
    if isinstance(value, str):
        return _quoted(value)
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else "null"


def _quoted(text: str) -> str:
    return json.dumps(_clean(text), ensure_ascii=False)


def _clean(text: str) -> str:
    return _SURROGATE.sub("\ufffd", text)


class _Rows:
    """Columns under construction, as Python lists."""

    def __init__(self, plan: Plan, base_ns: int) -> None:
        self.plan, self.base_ns = plan, base_ns
        self.rows: list[list[list[Any]]] = [[] for _ in plan.groups]
        self.events: list[list[int]] = [[] for _ in plan.groups]
        self.mismatches: dict[str, list[int]] = {}
        self.out_of_range: dict[str, list[int]] = {}
        self.current: dict[int, list[Any]] = {}

    def add(self, event: _Pairs) -> None:
        """Add one event."""
        event_keys, args_keys = self.plan.by_key
        self.current = {0: [None] * len(self.plan.groups[0])}
        unknown: list[tuple[str, Any]] = []
        args: _Pairs | None = None
        for key, value in event:
            key = _clean(key)
            if key in event_keys:
                self._set(*event_keys[key], value)
            elif key == "args":
                if args is not None:  # a second args object replaces the first
                    for group, column in args_keys.values():
                        self._forget(group, column)
                    unknown, args = [], None
                if isinstance(value, _Pairs):
                    args = value
                    for name, item in value:
                        name = _clean(name)
                        if name in args_keys:
                            self._set(*args_keys[name], item)
                        else:
                            unknown.append((name, item))
        first = self.current[0]
        if args is not None and first[self.plan.column("ph")] in ("C", "M"):
            first[self.plan.column("raw_args")] = canonical(args)
        if unknown and self.plan.column("unknown_args") >= 0:
            first[self.plan.column("unknown_args")] = canonical(_Pairs(unknown))
        index = len(self.rows[0])
        for group, row in self.current.items():
            self.rows[group].append(row)
            self.events[group].append(index)

    def _forget(self, group: int, column: int) -> None:
        if group in self.current:
            self.current[group][column] = None

    def _put(self, group: int, column: int, value: Any) -> None:
        if value is None:
            self._forget(group, column)
        else:
            self.current.setdefault(group, [None] * len(self.plan.groups[group]))[column] = value

    def _set(self, group: int, column: int, value: Any) -> None:
        from perfkit.sources.scan import Kind

        name, kind = self.plan.groups[group][column]
        if kind in (Kind.TEXT, Kind.JSON):
            self._put(group, column, _as_text(value, json_text=kind == Kind.JSON))
            return
        self._forget(group, column)
        if kind == Kind.INT_OR_TEXT:
            self._forget(group, column + 1)
            number = integer_of(value) if isinstance(value, str) else None
            if number is not None:
                self._put(group, column, number)
            elif value is not None:
                self._put(group, column + 1, _as_text(value, json_text=False))
            return
        if value is None:
            return
        if kind == Kind.BOOL or kind == Kind.F64:
            self._set_bool_or_float(group, column, name, kind, value)
            return
        digits = NUMBER_TEXT.match(value) if isinstance(value, str) else None
        if digits is None:
            self._count(self.mismatches, name)
            return
        is_time = kind in (Kind.TIME, Kind.TIME_ABS)
        number, mismatch = scaled_integer(digits, 3 if is_time else 0, exact=not is_time)
        if mismatch:
            self._count(self.mismatches, name)
            return
        low, high = (0, 2**64) if kind == Kind.U64 else (-(2**63), 2**63)
        if number is not None and low <= number < high and kind == Kind.TIME_ABS:
            number += self.base_ns
        if number is None or not low <= number < high:
            self._count(self.out_of_range, name)
            return
        self._put(group, column, number)

    def _set_bool_or_float(self, group: int, column: int, name: str, kind: int, value: Any) -> None:
        from perfkit.sources.scan import Kind

        if kind == Kind.BOOL and isinstance(value, bool):
            self._put(group, column, value)
        elif kind == Kind.F64 and isinstance(value, _Digits):
            number = float(value)
            if number in (float("inf"), float("-inf")):
                self._count(self.out_of_range, name)
            else:
                self._put(group, column, number)
        else:
            self._count(self.mismatches, name)

    def _count(self, events: dict[str, list[int]], name: str) -> None:
        events.setdefault(name, []).append(len(self.rows[0]))

    def finish(self, status: Status, consumed: int, not_events: int) -> ScanResult:
        """Turn the lists into Arrow."""
        from perfkit.sources.scan import ARROW_TYPES, Columns, ScanResult

        batches = []
        for index, names in enumerate(self.plan.groups):
            columns = list(zip(*self.rows[index], strict=True)) or [()] * len(names)
            arrays, labels = [], []
            if index:
                arrays.append(pa.array(self.events[index], pa.int64()))
                labels.append("event")
            for (name, kind), values in zip(names, columns, strict=True):
                type_ = ARROW_TYPES[kind]
                if pa.types.is_dictionary(type_):
                    arrays.append(pa.array(values, pa.utf8()).dictionary_encode())
                else:
                    arrays.append(pa.array(values, type_))
                labels.append(name)
            batches.append(pa.RecordBatch.from_arrays(arrays, names=labels))
        found = Columns(batches, self._tallies(self.mismatches), self._tallies(self.out_of_range))
        return ScanResult(status, consumed, len(self.rows[0]), not_events, lambda: found)

    def _tallies(self, events: dict[str, list[int]]) -> dict[str, Tally]:
        from perfkit.sources.scan import Tally

        names = [name for group in self.plan.groups for name, _ in group if name in events]
        return {name: Tally(len(events[name]), events[name][0]) for name in names}


def _as_text(value: Any, *, json_text: bool) -> str | None:
    """Return the text of a value, None for null and for a number that is not finite."""
    if isinstance(value, str) and not isinstance(value, _Digits) and not json_text:
        return _clean(value)
    text = canonical(value)
    return None if text == "null" else text
