"""Megatron-LM's text log, and those of its many derivatives.

    [2026-05-07 13:20:01] iteration  10/ 100 | consumed samples: 160 | elapsed time per iteration (ms): 1234.5 | …

One row of `steps` per line: it ends at the line's time and lasts what the line says. With --log-interval n that is
the mean of n iterations; the others have no row, and `quality` says so. A line that states more than the time since
the line before it (some derivatives print a running mean at first) gets that time. Times have no zone and are read as
UTC. Logs without times begin at 0, and are noted as `no_base_time`.

What Megatron says of itself (`[after training is done] datetime: …`) becomes `lifecycle`: `init` from the first such
line to the start of training, and `end`. A log that reaches its last iteration has ended too, whoever wrote it.

Every other number of the line becomes a counter under the log's own words (`learning_rate`, `grad_norm`,
`throughput_per_gpu_tflop_s_gpu`); of `now/mean` pairs the second has the series `mean`. Batch size and samples are
those of the job, and a step wants those of a replica, so that tokens and samples of steps stay null.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import Any

from perfkit.sources.base import Input, PartInfo, Reading, ReadOptions
from perfkit.sources.inputs import open_input
from perfkit.sources.lines import MAX_TIME_NS, LogReading, Row, read_lines

SOURCE = "megatron"
LINE = re.compile(
    rb"(?:\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)\]\s*)?"
    rb"\biteration\s+(\d{1,15})\s*/\s*(\d{1,15})\s*\|(?=.*(?:elapsed )?time per iteration|.*iteration time)(.*)"
)
"""A line that reports an iteration."""
MARK = re.compile(rb"\[([a-z][\w ,-]*)\] datetime: (\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)")
"""A moment that Megatron names."""
_TRAINS, _DONE = b"before the start of training step", b"after training is done"
COLOURS = re.compile(rb"\x1b\[[0-9;]*m")
_RANK = re.compile(rb"rank[-_ ]?(\d{1,6})/(\d{1,6})\]")
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?nan|[-+]?inf"
_VALUE = re.compile(rf"({_NUMBER})(?:\s*/\s*({_NUMBER}))?", re.IGNORECASE)
_TIMES = re.compile(r"(?:elapsed )?time per iteration|iteration time", re.IGNORECASE)


def peek(input: Input) -> list[PartInfo]:
    """Say which rank wrote the log, if the line says so; usually it is the last rank, and not said."""
    info = PartInfo(source=SOURCE)
    with open_input(input) as stream:
        for line in read_lines(stream):
            plain = COLOURS.sub(b"", line or b"")
            if LINE.search(plain):
                if found := _RANK.search(plain):
                    info.rank, info.rank_source, info.world_size = int(found[1]), "log", int(found[2])
                break
    return [info]


def read(input: Input, options: ReadOptions) -> Reading:
    """Read steps and counters."""
    (info,) = peek(input)
    return LogReading(input, info, rows_of, options.rows_per_chunk)


def rows_of(lines: Iterable[bytes | None], info: PartInfo) -> Iterator[Row]:
    """Turn lines into rows; lines about anything else are passed over."""
    before: tuple[int, int] | None = None  # iteration and end of the line before
    marks: dict[bytes, int] = {}
    last = False
    for line in lines:
        if line is not None and b"] datetime: " in line and (mark := MARK.search(COLOURS.sub(b"", line))):
            at = _time_ns(mark[2], info)
            if at is not None and 0 <= at < MAX_TIME_NS:
                marks[mark[1]] = at if mark[1] == _DONE else marks.get(mark[1], at)
        found = None if line is None or b"iteration" not in line else LINE.search(COLOURS.sub(b"", line))
        if found is None:
            continue
        iteration, said = int(found[2]), _pairs(found[4].decode("utf-8", "replace"), info)
        took = _took_ns(said)
        if took is None:
            info.note("missing_dur", 1, f"iteration {iteration} does not say what it took; left out")
            continue
        steps = 1 if before is None else iteration - before[0]
        end = _time_ns(found[1], info)
        if end is None:
            end = (0 if before is None else before[1]) + took * max(1, steps)
        if before is not None and steps > 1:
            info.note("averaged_steps", 1, f"iteration {iteration} stands for {steps}; its time is their mean")
        if before is not None and steps == 1 and 0 < end - before[1] < took - _resolution_ns(found[1]):
            info.note(
                "time_disagrees", 1, f"iteration {iteration} states {took / 1e9:.3f} s; the times of the log count"
            )
            took = end - before[1]
        if not -MAX_TIME_NS < end - took <= end < MAX_TIME_NS:
            info.note("time_out_of_range", 1, f"iteration {iteration}; left out")
            continue
        before, last = (iteration, end), iteration == int(found[3])
        info.see_times(end - took, end)
        yield "steps", {"step": iteration, "start_ns": end - took, "end_ns": end, "loss": _loss(said)}
        for name, values in said.items():
            for series, value in zip((None, "mean"), values, strict=False):
                yield "counters", {"time_ns": end, "name": _slug(name), "series": series, "value": value}

    if before is not None and marks.get(_DONE, before[1]) < before[1]:
        del marks[_DONE]  # of a run before this one, in the same file
    yield from _lifecycle(marks, before[1] if before is not None and last else None, info)


def _lifecycle(marks: dict[bytes, int], last_ns: int | None, info: PartInfo) -> Iterator[Row]:
    """Yield what the named moments say, and that a log whose last iteration is there has ended."""
    first = min(marks.values(), default=None)
    if first is not None and _TRAINS in marks:
        info.see_times(first, first)
        yield "lifecycle", {"kind": "init", "start_ns": first, "end_ns": marks[_TRAINS]}
    end = marks.get(_DONE, last_ns)
    if end is not None:
        info.see_times(end, end)
        yield "lifecycle", {"kind": "end", "start_ns": end, "end_ns": end}


def _pairs(text: str, info: PartInfo) -> dict[str, tuple[float, ...]]:
    """Return name -> (value,) or (value, mean) of what stands between the bars."""
    found: dict[str, tuple[float, ...]] = {}
    for part in text.split("|"):
        name, colon, value = part.rpartition(":")
        if not colon:
            name, _, value = part.strip().rpartition(" ")  # `iteration time 1234.5/1230.0`
        number = _VALUE.fullmatch(value.strip())
        if number and name.strip():
            found[name.strip()] = tuple(float(one) for one in number.groups() if one is not None)
        elif part.strip():
            info.note("not_read", 1, f"{part.strip()[:60]!r} is no number")
    return found


def _took_ns(said: dict[str, tuple[float, ...]]) -> int | None:
    for name, values in said.items():
        if _TIMES.search(name):
            scale = 1e9 if re.search(r"\((?:s|sec|seconds)\)", name) else 1e6
            return round(values[0] * scale) if 0 < values[0] < 1e10 else None
    return None


def _time_ns(stamp: bytes | None, info: PartInfo) -> int | None:
    if stamp is None:
        info.note("no_base_time", 1, "lines without a time: they follow each other from 0")
        return None
    text, _, fraction = stamp.decode().replace("T", " ").replace(",", ".").partition(".")
    try:
        at = datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        info.note("time_out_of_range", 1, f"{text} is no time")
        return None
    info.note("no_time_zone", 1, "times without a zone are read as UTC")
    return int(at.timestamp()) * 1_000_000_000 + int(fraction.ljust(9, "0") or 0)


def _resolution_ns(stamp: bytes | None) -> int:
    return 1_000_000 if stamp is not None and re.search(rb"[.,]", stamp) else 1_000_000_000


def _loss(said: dict[str, tuple[float, ...]]) -> float | None:
    named: Any = said.get("lm loss") or next((v for k, v in said.items() if k.lower().endswith("loss")), None)
    return None if named is None or named[0] != named[0] else float(named[0])


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
