"""torchtitan's structured logs: one JSON object per line, `{source}.global_rank_{rank}.{time}-{random}.jsonl`.

    peek(input), read(input, options)        as perfkit.sources.base describes

- `<name>_start` / `<name>_end` become `spans`: paired last-in-first-out per thread and asyncio task. The length is the
  `value` of the end record (milliseconds of a monotonic clock) where there is one, else the difference of the times.
  `<name>_error` marks the span that it is inside of.
- `metric_value` becomes `counters`, under its event_name. Instants are spans of length 0.
- `steps`: a span called `step` or `train_step` is the step. Where there is none, a step lasts from the first record
  that carries its number (torchtitan stamps all records after `set_step`) to the first record of the next number; the
  last one ends with its last record. Tokens and loss are unknown: null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from perfkit.sources.base import Input, PartInfo, Reading, ReadOptions
from perfkit.sources.inputs import open_input
from perfkit.sources.lines import MAX_TIME_NS, LogReading, Row, clean, read_lines

SOURCE = "torchtitan"
STEP_SPANS = ("step", "train_step")
SIGN = re.compile(rb'^\s*\{(?=[^\n]*"log_type_name")(?=[^\n]*"time_us")[^\n]*', re.MULTILINE)
"""A line that only this logger writes."""
PEEK_LINES = 100
_RANK_IN_NAME = re.compile(r"global_rank_(\d{1,6})\.")


def peek(input: Input) -> list[PartInfo]:
    """Say whose log it is, from the first record that does."""
    info = PartInfo(source=SOURCE)
    with open_input(input) as stream:
        for _, line in zip(range(PEEK_LINES), read_lines(stream), strict=False):
            record = _parse(line)
            if isinstance(record, dict):
                _settle(info, record)
                if info.rank is not None:
                    break
    named = _RANK_IN_NAME.search(input.path)
    if info.rank is None and named is not None:
        info.rank, info.rank_source = int(named[1]), "file name"
    return [info]


def read(input: Input, options: ReadOptions) -> Reading:
    """Read spans, counters and steps."""
    (info,) = peek(input)
    return LogReading(input, info, rows_of, options.rows_per_chunk)


def rows_of(lines: Iterable[bytes | None], info: PartInfo) -> Iterator[Row]:
    """Turn lines into rows; what cannot be used is counted in the part's quality."""
    spans, steps = _Spans(info), _Steps()
    for number, line in enumerate(lines, 1):
        if line is not None and not line.strip():
            continue
        record = _parse(line)
        if record is None:
            info.note("invalid_json", 1, f"line {number}; it was skipped")
            continue
        name = record.get("log_type_name") if isinstance(record, dict) else None
        if not isinstance(record, dict) or not isinstance(name, str):
            info.note("not_an_event", 1, f"line {number} has no log_type_name")
            continue
        at = record.get("time_us")
        if not isinstance(at, int) or isinstance(at, bool) or not 0 <= at * 1000 < MAX_TIME_NS:
            info.note("missing_ts", 1, f"line {number} has no usable time_us; it was skipped")
            continue
        name = clean(name)
        _settle(info, record)
        info.see_times(at * 1000, at * 1000)
        step = _whole(record.get("step"))
        if step is not None:
            steps.see(step, at * 1000)
        if name == "metric_value":
            yield from _counter(record, at * 1000, info)
        else:
            for row in spans.add(name, record, at * 1000, step):
                if row["name"] in STEP_SPANS and row["step"] is not None and row["dur_ns"] is not None:
                    steps.told(row)
                yield "spans", row
    yield from (("spans", row) for row in spans.left_open())
    yield from steps.rows()


class _Spans:
    """Pairs starts and ends."""

    def __init__(self, info: PartInfo) -> None:
        self._info = info
        self._open: dict[tuple[Any, Any], list[dict[str, Any]]] = {}

    def add(self, name: str, record: dict[str, Any], time_ns: int, step: int | None) -> Iterator[dict[str, Any]]:
        tid = _whole(record.get("tid"))
        stack = self._open.setdefault((tid, str(record.get("task_name"))), [])
        base, _, what = name.rpartition("_")
        if record.get("log_type") == "instant":  # `training_start` is a moment, not the start of `training`
            base = ""
        row = {"name": base, "step": step, "start_ns": time_ns, "depth": len(stack), "tid": tid, "error": None}
        if what == "start" and base:
            stack.append(row)
        elif what == "error" and base:
            for span in reversed(stack):
                if span["name"] == base:
                    span["error"] = _exception(record, name)
                    break
        elif what == "end" and base:
            place = next((at for at in reversed(range(len(stack))) if stack[at]["name"] == base), None)
            if place is None:
                self._info.note("unmatched_end", 1, f"{base} ends, but has not begun; left out")
                return
            for span in stack[place + 1 :]:
                self._info.note("unmatched_begin", 1, f"{span['name']} has no end")
                yield span | {"dur_ns": None}
            span = stack[place]
            del stack[place:]
            yield span | {"dur_ns": _duration(record, time_ns - span["start_ns"], self._info)}
        else:
            yield row | {"name": name, "dur_ns": 0}

    def left_open(self) -> Iterator[dict[str, Any]]:
        for stack in self._open.values():
            for span in stack:
                self._info.note("unmatched_begin", 1, f"{span['name']} has no end")
                yield span | {"dur_ns": None}


class _Steps:
    """When steps began and ended."""

    def __init__(self) -> None:
        self._seen: list[list[int]] = []  # step, first, last; in the order of the file
        self._told: list[dict[str, Any]] = []

    def see(self, step: int, time_ns: int) -> None:
        if not self._seen or self._seen[-1][0] != step:
            self._seen.append([step, time_ns, time_ns])
        else:
            self._seen[-1][2] = max(self._seen[-1][2], time_ns)

    def told(self, row: dict[str, Any]) -> None:
        end = row["start_ns"] + row["dur_ns"]
        self._told.append({"step": row["step"], "start_ns": row["start_ns"], "end_ns": end})

    def rows(self) -> Iterator[Row]:
        if self._told:
            yield from (("steps", row) for row in self._told)
            return
        for place, (step, first, last) in enumerate(self._seen):
            following = self._seen[place + 1][1] if place + 1 < len(self._seen) else last
            yield "steps", {"step": step, "start_ns": first, "end_ns": max(first, following)}


def _counter(record: dict[str, Any], time_ns: int, info: PartInfo) -> Iterator[Row]:
    name, value = record.get("event_name"), record.get("value")
    if not isinstance(value, float):
        value = _whole(value)
    if not isinstance(name, str) or value is None:
        info.note("type_mismatch", 1, "a metric_value without a name or a number")
        return
    yield "counters", {"time_ns": time_ns, "name": clean(name), "value": float(value), "host": info.host}


def _settle(info: PartInfo, record: dict[str, Any]) -> None:
    for key in ("global_rank", "rank"):
        rank = _whole(record.get(key))
        if info.rank is None and rank is not None and 0 <= rank < 2**31:
            info.rank, info.rank_source = rank, "log"
    if info.host is None and isinstance(record.get("host_name"), str):
        info.host = clean(record["host_name"])


def _parse(line: bytes | None) -> Any:
    if line is None:
        return None
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


def _duration(record: dict[str, Any], by_clock_ns: int, info: PartInfo) -> int | None:
    value = record.get("value")
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e12:
        return round(value * 1e6)
    if by_clock_ns < 0:
        info.note("negative_dur", 1, "a span ends before it begins: the clock was set back")
        return None
    return by_clock_ns


def _exception(record: dict[str, Any], name: str) -> str:
    """Return the exception's type from a message such as `[step 3] fwd_bwd_error: RuntimeError: …`."""
    found = re.search(rf"{re.escape(name)}: (\w+)", str(record.get("message")))
    return found[1] if found else "error"
