"""What all importers share: what to assume, what came out, and what had to be left out.

An importer turns the bytes of one dump into tables and notes every record that it cannot use: one line each for the
first few, counts for all. Nothing is guessed in silence: what was assumed (time zone, columns) is said in `assumed`.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.intervals import Ints
from perfkit.errors import UsageError

LINES_KEPT = 20
"""Bad records that are quoted per file; the others are counted."""
SECOND = 10**9


@dataclass(frozen=True)
class Assume:
    """What a dump does not say by itself."""

    cluster: str = "imported"
    timezone: str = "UTC"
    """Of times without a zone: schedulers print local time."""
    as_of_ns: int | None = None
    """When a snapshot (sinfo, a scrape) was taken."""
    fields: tuple[str, ...] = ()
    """Column names of a table without a header."""
    gpus_per_node: int | None = None
    """Where the dump names nodes and no GPUs."""


@dataclass
class Imported:
    """What came out of one dump."""

    path: str
    kind: str
    tables: dict[str, pa.Table] = field(default_factory=dict)
    bad: list[tuple[int, str]] = field(default_factory=list)
    """(line or record number, what is wrong) of the first bad records."""
    counts: Counter[str] = field(default_factory=Counter)
    """Reason -> how many records were left out for it."""
    assumed: list[str] = field(default_factory=list)

    def reject(self, where: int, why: str, *, count: int = 1) -> None:
        """Leave a record out, and say so."""
        if len(self.bad) < LINES_KEPT:
            self.bad.append((where, why))
        self.counts[why.partition(":")[0]] += count

    @property
    def rejected(self) -> int:
        """Records left out."""
        return sum(self.counts.values())


def decode(data: bytes, found: Imported) -> bytes:
    """Return UTF-8; bytes that are not become U+FFFD and are counted."""
    try:
        data.decode()
        return data
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
        found.assumed.append(f"{text.count(chr(0xFFFD))} bytes are not UTF-8; shown as \N{REPLACEMENT CHARACTER}")
        return text.encode()


def parse_times(column: Any, timezone: str, formats: tuple[str, ...] = ("%Y-%m-%dT%H:%M:%S",)) -> pa.Array:
    """Return int64 ns since the epoch; null where there is no time. Text carries no zone."""
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    parsed = pa.nulls(len(values), pa.timestamp("s"))
    for form in formats:
        missing = pc.is_null(parsed)
        if not pc.any(missing).as_py():
            break
        parsed = pc.if_else(missing, pc.strptime(values, form, unit="s", error_is_null=True), parsed)
    if timezone not in ("UTC", "Etc/UTC"):
        try:
            parsed = pc.assume_timezone(parsed, timezone, ambiguous="earliest", nonexistent="earliest")
        except (pa.ArrowInvalid, pa.ArrowKeyError):
            raise UsageError(f"unknown time zone {timezone!r}", next_step="write it like Europe/Berlin") from None
    seconds = parsed.cast(pa.timestamp("s", tz=parsed.type.tz)).cast(pa.int64())
    return pc.multiply(seconds, pa.scalar(SECOND, pa.int64()))


def iso_ns(text: str | None) -> int | None:
    """Nanoseconds of an RFC 3339 time; null if it is none."""
    if not text:
        return None
    try:
        moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.timezone.utc)
    whole = int(moment.replace(microsecond=0).timestamp())
    return whole * SECOND + moment.microsecond * 1000


def by_value(column: Any, function: Any, kind: pa.DataType) -> pa.Array:
    """Apply a Python function to each distinct text of a column: a million rows have few."""
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    coded = values if pa.types.is_dictionary(values.type) else pc.dictionary_encode(values)
    table = pa.array([function(text) for text in coded.dictionary.to_pylist()], kind)
    return table.take(coded.indices)


def number_attempts(job: Any, start: Any) -> Ints:
    """Count the rows of each job in order of their start: a requeued job is one job with several attempts."""
    values = job.combine_chunks() if isinstance(job, pa.ChunkedArray) else job
    coded = values if pa.types.is_dictionary(values.type) else pc.dictionary_encode(values)
    codes = np.asarray(coded.indices.to_numpy(zero_copy_only=False), np.int64)
    if len(coded.dictionary) == len(codes):
        return np.zeros(len(codes), np.int64)
    begun = np.asarray(pc.fill_null(start, 2**62).to_numpy(zero_copy_only=False), np.int64)
    order = np.lexsort((begun, codes))
    ordered = codes[order]
    first = np.r_[True, ordered[1:] != ordered[:-1]]
    position = np.arange(len(codes)) - np.maximum.accumulate(np.where(first, np.arange(len(codes)), 0))
    result = np.empty(len(codes), np.int64)
    result[order] = position
    return result


def whole(text: str) -> int | None:
    """Return a number without sign or fraction, None if it is none or too large to count anything."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None
