"""Job lists as CSV: Philly's (timestamp, duration, num_gpus, …) and others with plain column names.

Columns are found by name (ALIASES). A list without a start has `timestamp` for it; one without an end has a
duration in seconds. What the columns do not say stays null: Philly's list knows no states and no users.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from perfkit.errors import CorruptInput
from perfkit.goodput.causes import cause_of_state
from perfkit.goodput.importers.base import SECOND, Assume, Imported, by_value, decode, number_attempts, parse_times
from perfkit.schema import JOBS, conform

ALIASES = {
    "job": ("job_id", "jobid", "job", "id"),
    "user": ("user", "user_id", "owner"),
    "name": ("name", "job_name"),
    "submit": ("submit_time", "submitted_time", "submit", "submission_time"),
    "start": ("start_time", "start", "started"),
    "end": ("end_time", "end", "finished", "finish_time"),
    "time": ("timestamp", "time"),
    "duration": ("duration", "duration_seconds", "runtime", "elapsed"),
    "gpus": ("num_gpus", "gpus", "gpu_num", "gpu_count"),
    "gpu_time": ("gpu_time",),
    "state": ("state", "status"),
    "cluster": ("cluster", "vc", "virtual_cluster"),
    "nodes": ("num_nodes", "node_num", "nodes"),
}
_FORMATS = ("%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S")


def looks_like_jobs(head: bytes) -> bool:
    """Whether the first line names GPUs and a time or duration."""
    names = {name.strip().strip('"').lower() for name in head.split(b"\n", 1)[0].decode("utf-8", "replace").split(",")}
    return bool(names & set(ALIASES["gpus"])) and bool(
        names & {*ALIASES["start"], *ALIASES["time"], *ALIASES["submit"]}
    )


def read_jobs_csv(data: bytes, path: str, assume: Assume) -> Imported:
    """Return the jobs of a CSV."""
    found = Imported(path, "csv")
    data = decode(data, found)

    def bad_row(row: Any) -> str:
        found.reject(row.number or 0, f"wrong number of fields: {row.actual_columns} instead of {row.expected_columns}")
        return "skip"

    if b"\n" not in data:
        data += b"\n"
    header = data.split(b"\n", 1)[0].decode().strip("\r").split(",")
    names = [name.strip().strip('"').lower() for name in header]
    if len(set(names)) != len(names):
        raise CorruptInput("the header names a column twice", path=path, next_step="rename one of them")
    if not data.partition(b"\n")[2].strip():
        found.tables["jobs"] = JOBS.empty()
        return found
    table = _read_table(data, names, path, bad_row)
    found.tables["jobs"] = _jobs(table, assume, found)
    return found


def _read_table(data: bytes, names: list[str], path: str, bad_row: Any) -> pa.Table:
    try:
        return pcsv.read_csv(
            pa.BufferReader(data),
            read_options=pcsv.ReadOptions(column_names=names, skip_rows=1, use_threads=False, block_size=16 << 20),
            parse_options=pcsv.ParseOptions(invalid_row_handler=bad_row),
            convert_options=pcsv.ConvertOptions(
                column_types={name: pa.utf8() for name in names}, strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid as error:
        raise CorruptInput(f"no CSV: {error}", path=path, next_step="export it again") from error


def _jobs(table: pa.Table, assume: Assume, found: Imported) -> pa.Table:
    at = {ours: next((n for n in theirs if n in table.column_names), None) for ours, theirs in ALIASES.items()}

    def column(name: str) -> Any:
        theirs = at[name]
        return None if theirs is None else table[theirs]

    def times(name: str) -> pa.Array:
        text = column(name)
        return pa.nulls(len(table), pa.int64()) if text is None else parse_times(text, assume.timezone, _FORMATS)

    start, end = times("start"), times("end")
    if at["start"] is None and at["time"] is not None:
        start = times("time")
        found.assumed.append(f"{at['time']} is taken for the start of a job")
    duration = column("duration")
    odd = None
    if at["end"] is None and duration is not None:
        ns = pc.multiply(_numbers(duration), float(SECOND))
        end = pc.add(start, pc.cast(pc.round(ns), pa.int64()))
        odd = pc.and_(pc.is_null(ns), pc.not_equal(pc.utf8_trim_whitespace(duration.combine_chunks()), ""))
    gpus = _whole(column("gpus")) if at["gpus"] else pa.nulls(len(table), pa.int32())
    job = column("job")
    found.assumed.append(f"times are {assume.timezone}")
    if job is None:
        job = pa.chunked_array([pa.array([f"row-{i}" for i in range(1, len(table) + 1)])])
        found.assumed.append("no job ids: rows are numbered")
    state, cluster = column("state"), column("cluster")
    columns = {
        "cluster": [assume.cluster] * len(table),
        "job": job,
        "attempt": number_attempts(job, start),
        "user": column("user"),
        "name": column("name"),
        "submit_ns": times("submit"),
        "start_ns": start,
        "end_ns": end,
        "gpus": gpus,
        "num_nodes": None if at["nodes"] is None else _whole(column("nodes")),
        "state": state,
        "cause": None if state is None else by_value(state, cause_of_state, pa.utf8()),
        "partition": cluster,
        "source": ["philly" if {"timestamp", "duration", "num_gpus"} <= set(table.column_names) else "csv"]
        * len(table),
    }
    jobs = conform(JOBS, pa.table({name: values for name, values in columns.items() if values is not None}))
    return _drop_nonsense(jobs, odd, found)


def _numbers(column: Any) -> Any:
    values = column.combine_chunks()
    good = pc.match_substring_regex(values, r"^\s*-?\d+(\.\d*)?([eE][-+]?\d+)?\s*$")
    numbers = pc.cast(pc.utf8_trim_whitespace(pc.if_else(good, values, pa.scalar(None, pa.utf8()))), pa.float64())
    return pc.if_else(pc.less(pc.abs(numbers), 2.0**31), numbers, pa.scalar(None, pa.float64()))


def _whole(column: Any) -> Any:
    """Return counts; a fraction is none."""
    numbers = _numbers(column)
    return pc.cast(pc.if_else(pc.equal(numbers, pc.floor(numbers)), numbers, pa.scalar(None, pa.float64())), pa.int32())


def _drop_nonsense(jobs: pa.Table, odd_duration: Any, found: Imported) -> pa.Table:
    bad = {} if odd_duration is None else {"duration is no number of seconds": odd_duration}
    bad |= {
        "no start": pc.is_null(jobs["start_ns"]),
        "ends before it starts": pc.fill_null(pc.less(jobs["end_ns"], jobs["start_ns"]), False),
        "GPUs are not a number of 0 or more": pc.or_(
            pc.is_null(jobs["gpus"]), pc.fill_null(pc.less(jobs["gpus"], 0), False)
        ),
    }
    keep = np.ones(len(jobs), bool)
    for why, mask in bad.items():
        rows = np.asarray(mask) & keep
        for i in np.flatnonzero(rows).tolist():
            found.reject(i + 2, why)
        keep &= ~rows
    return jobs.filter(pa.array(keep))
