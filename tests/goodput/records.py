"""Build the records of a run in a few words; times are in seconds."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from perfkit.goodput.account import account
from perfkit.goodput.timeline import Timeline
from perfkit.schema import LIFECYCLE, STEPS, table_from_rows

S = 10**9


def lifecycle(*rows: tuple[Any, ...], gpus: int = 1) -> pa.Table:
    """Rows are (kind, start, end) and may go on with a dict: cause, step, attempt, rank, blocking."""
    filled = []
    for kind, start, end, *more in rows:
        extra = dict(more[0]) if more else {}
        filled.append(
            {
                "kind": kind, "start_ns": int(start * S), "end_ns": None if end is None else int(end * S), "attempt": 0,
                "gpus": gpus, **extra,
            }
        )  # fmt: skip
    table = table_from_rows(LIFECYCLE, filled)
    return table.append_column("attempt", pa.array([row["attempt"] for row in filled], pa.int32()))


def steps(*rows: tuple[Any, ...]) -> pa.Table:
    """Rows are (number, start, end) and may go on with a dict: data_wait_ns, tokens, attempt, rank, model_flops."""
    filled = []
    for number, start, end, *more in rows:
        extra = dict(more[0]) if more else {}
        filled.append(
            {"rank": 0, "step": number, "start_ns": int(start * S), "end_ns": int(end * S), "attempt": 0, **extra}
        )
    table = table_from_rows(STEPS, filled)
    return table.append_column("attempt", pa.array([row["attempt"] for row in filled], pa.int32()))


def every(first: int, last: int, start: float, length: float, **extra: Any) -> list[tuple[Any, ...]]:
    """Steps `first` to `last`, one after the other."""
    return [(n, start + (n - first) * length, start + (n - first + 1) * length, extra) for n in range(first, last + 1)]


def seconds(records: pa.Table, step_rows: pa.Table | None = None, **options: Any) -> dict[str, float]:
    """Buckets that are not empty, in GPU-seconds."""
    line = Timeline.from_tables(records, step_rows, **options)
    return {name: ns / S for name, ns in account(line).total(line).items() if ns}
