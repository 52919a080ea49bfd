r"""`sacct` output: any delimiter, fields with line breaks in them, requeues, arrays, job steps.

    sacct --parsable2 --allusers --duplicates -o JobID,State,Submit,Eligible,Start,End,AllocTRES,NodeList,… > jobs.txt

The header says which columns there are. A record that has too few delimiters goes on in the next line (SubmitLine
and Comment hold whatever users typed). Rows of steps (`123.batch`) are left out: the job's row covers them. One job id
with several starts is one job with several attempts (`--duplicates` lists them).
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from perfkit.errors import CorruptInput
from perfkit.goodput.causes import cause_of_state
from perfkit.goodput.importers.base import Assume, Imported, by_value, decode, number_attempts, parse_times, whole
from perfkit.goodput.importers.hostlist import expand_hostlist
from perfkit.report.format import plural
from perfkit.schema import JOBS, conform

WANTED = (
    "JobID", "JobName", "User", "Account", "Partition", "Cluster", "State", "ExitCode", "Submit", "Eligible", "Start",
    "End", "AllocTRES", "AllocGRES", "ReqTRES", "NNodes", "AllocNodes", "NodeList",
)  # fmt: skip
_HEADER = re.compile(rb"^\s*[A-Za-z]\w*(?:%-?\d+)?([^\w\s%]{1,4})[A-Za-z]")
_GPUS = re.compile(r"(?:gres/)?gpu(?::([\w.-]+))?[=:](\d+)")
_NO_TIME = ("Unknown", "None", "", "N/A")


def looks_like_sacct(head: bytes) -> bool:
    """Whether the first line is a header with JobID in it."""
    line = head.split(b"\n", 1)[0]
    return bool(_HEADER.match(line)) and re.search(rb"(^|\W)JobID(Raw)?(\W|$)", line) is not None


def read_sacct(data: bytes, path: str, assume: Assume) -> Imported:
    """Return the jobs of a dump."""
    found = Imported(path, "sacct")
    data = decode(data, found)
    table = _read_table(data, found, assume)
    table, orphans = _without_steps(table, found)
    rows = _columns(table, assume, found)
    if orphans is not None:
        rows = pa.concat_tables([rows, _jobs_of_steps(_columns(orphans, assume, found))]).unify_dictionaries()
    found.assumed = list(dict.fromkeys(found.assumed))
    found.tables["jobs"] = _drop_nonsense(rows, found)
    return found


def _without_steps(table: pa.Table, found: Imported) -> tuple[pa.Table, pa.Table | None]:
    """Return the rows of jobs, and the steps of jobs that have no row of their own."""
    step = pc.match_substring(table["JobID"], ".")
    steps = int(pc.sum(step).as_py() or 0)
    if not steps:
        return table, None
    jobs, rest = table.filter(pc.invert(step)), table.filter(step)
    base = pc.extract_regex(rest["JobID"].combine_chunks(), r"^(?P<job>[^.]+)\.").field("job")
    orphan = pc.invert(pc.is_in(base, pc.unique(jobs["JobID"])))
    found.assumed.append(_steps_left_out(steps))
    if not pc.any(orphan).as_py():
        return jobs, None
    at = rest.column_names.index("JobID")
    orphans = rest.set_column(at, "JobID", base).filter(orphan)
    known = len(pc.unique(orphans["JobID"]))
    found.assumed.pop()
    if steps > len(orphans):
        found.assumed.append(_steps_left_out(steps - len(orphans)))
    found.assumed.append(
        "1 job is listed by its steps only; it lasts from the first step to the last"
        if known == 1
        else f"{known:,} jobs are listed by their steps only; they last from the first step to the last"
    )
    return jobs, orphans


def _steps_left_out(steps: int) -> str:
    return f"{plural(steps, 'row')} of job steps left out: the rows of their jobs cover them"


def _jobs_of_steps(steps: pa.Table) -> pa.Table:
    """Join the steps of each job: the first one's row, with the last end."""
    codes = np.asarray(pc.dictionary_encode(steps["job"].cast(pa.utf8()).combine_chunks()).indices)
    start = np.asarray(pc.fill_null(steps["start_ns"], 2**62).to_numpy(), np.int64)
    order = np.lexsort((start, codes))
    first = order[np.r_[True, codes[order][1:] != codes[order][:-1]]]
    ends = np.full(int(codes.max()) + 1, -1, np.int64)
    np.maximum.at(ends, codes, np.asarray(pc.fill_null(steps["end_ns"], -1).to_numpy(), np.int64))
    rows = steps.take(pa.array(first))
    end = ends[codes[first]]
    for name, values in (
        ("end_ns", pa.array(end, mask=end < 0)),
        ("attempt", pa.array(np.zeros(len(first), np.int32))),
    ):
        rows = rows.set_column(rows.column_names.index(name), name, values)
    return rows


# ------------------------------------------------------------------ text to columns


def _read_table(data: bytes, found: Imported, assume: Assume) -> pa.Table:
    header, _, body = data.partition(b"\n")
    match = _HEADER.match(header)
    if not match:
        raise CorruptInput("no header with JobID in it", path=found.path, next_step="run sacct without --noheader")
    delimiter = match[1]
    names = [name.strip().decode().partition("%")[0] for name in header.strip(b"\r").split(delimiter)]
    while names and not names[-1]:
        names.pop()  # --parsable ends each line with a delimiter
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    if len(delimiter) > 1:
        body = body.replace(b"\x1f", b" ").replace(delimiter, b"\x1f")
        delimiter = b"\x1f"
    extra = len(names) < header.count(match[1]) + 1
    body, trailing = _join_lines(body, delimiter, len(unique), found, extra)
    if not body.strip():
        return pa.table({name: pa.array([], pa.utf8()) for name in WANTED if name in unique})
    columns = [*unique, "#rest"] if trailing else unique
    return pcsv.read_csv(
        pa.BufferReader(body),
        read_options=pcsv.ReadOptions(column_names=columns, block_size=16 << 20, use_threads=False),
        parse_options=pcsv.ParseOptions(
            delimiter=delimiter.decode(), quote_char=False, double_quote=False, escape_char=False
        ),
        convert_options=pcsv.ConvertOptions(
            column_types={name: pa.utf8() for name in columns},
            include_columns=[name for name in WANTED if name in unique],
            strings_can_be_null=False,
        ),
    )


def _join_lines(body: bytes, delimiter: bytes, width: int, found: Imported, trailing: bool) -> tuple[bytes, bool]:
    """Join the lines of a record, and take out records whose number of fields is wrong.

    Also returns whether records end with a delimiter, as most lines do; `trailing` says whether the header does, which
    decides where the lines do not. A field with the delimiter in it (a job's name) makes one too many: it is left out.
    """
    if b"\r" in body:
        body = body.replace(b"\r\n", b"\n").replace(b"\r", b" ")
    if not body.endswith(b"\n"):
        body += b"\n"
    raw = np.frombuffer(body, np.uint8)
    ends = np.flatnonzero(raw == 10)
    marks = np.flatnonzero(raw == delimiter[0])
    count = np.diff(np.r_[0, np.searchsorted(marks, ends)])
    starts = np.r_[0, ends[:-1] + 1]
    empty = ends == starts
    closed, open_ = int((count == width).sum()), int((count == width - 1).sum())
    trailing = closed > open_ or (closed == open_ and trailing)
    need = width if trailing else width - 1
    good = count == need
    if (good | empty).all():
        return body if not empty.any() else b"\n".join(line for line in body.split(b"\n") if line) + b"\n", trailing
    out: list[bytes] = []
    at = 0
    lines = len(ends)
    bad = np.flatnonzero(~good)
    while at < lines:
        if good[at]:
            until = int(bad[np.searchsorted(bad, at)]) if np.searchsorted(bad, at) < len(bad) else lines
            out += [b"\n", body[starts[at] : ends[until - 1]]]
            at = until
            continue
        at = _join_record(body, starts, ends, count, good, at, need, width, found, out)
    return b"".join(out[1:]) + b"\n", trailing


def _join_record(
    body: bytes, starts: Any, ends: Any, count: Any, good: Any, at: int, need: int, width: int, found: Imported,
    out: list[bytes],
) -> int:  # fmt: skip
    """Join one record of `need` delimiters that begins at line `at`; return the line after it."""
    if starts[at] == ends[at]:
        return at + 1
    total, last = int(count[at]), at
    while total < need and last + 1 < len(ends) and not good[last + 1] and total + count[last + 1] <= need:
        last += 1
        total += int(count[last])
    if total == need:
        out += [b"\n", body[starts[at] : ends[last]].replace(b"\n", b" ")]
        return last + 1
    if count[at] == 0 and out:  # the last field of the record before goes on
        out += [b" ", body[starts[at] : ends[at]]]
        return at + 1
    found.reject(at + 2, f"wrong number of fields: {int(count[at]) + width - need} instead of {width}")
    return at + 1


# ------------------------------------------------------------------ columns to jobs


def _columns(table: pa.Table, assume: Assume, found: Imported) -> pa.Table:
    size = len(table)

    def column(name: str) -> Any:
        return table[name] if name in table.column_names else None

    times = {}
    for ours, theirs in (
        ("submit_ns", "Submit"),
        ("eligible_ns", "Eligible"),
        ("start_ns", "Start"),
        ("end_ns", "End"),
    ):
        text = column(theirs)
        times[ours] = pa.nulls(size, pa.int64()) if text is None else parse_times(text, assume.timezone)
        if text is not None:
            odd = pc.and_(pc.is_null(times[ours]), pc.invert(pc.is_in(text, pa.array(_NO_TIME))))
            for i in np.flatnonzero(np.asarray(odd))[:1].tolist():
                found.assumed.append(
                    f"{theirs} {text[i].as_py()!r} is no time; {int(pc.sum(odd).as_py())} of them are null"
                )
    found.assumed.append(f"times are {assume.timezone}")
    state = column("State")
    nodes = column("NodeList")
    exit_code, names = column("ExitCode"), column("NNodes") if "NNodes" in table.column_names else column("AllocNodes")
    cluster = column("Cluster")
    job = table["JobID"]
    columns: dict[str, Any] = {
        "cluster": [assume.cluster] * size
        if cluster is None
        else by_value(cluster, lambda c: c or assume.cluster, pa.utf8()),
        "job": job,
        "attempt": number_attempts(job, times["start_ns"]),
        "user": _blank_is_null(column("User"), size),
        "name": _blank_is_null(column("JobName"), size),
        **times,
        "gpus": _gpus(table, size, found),
        "nodes": _nodes(nodes, size),
        "num_nodes": pa.nulls(size, pa.int32()) if names is None else by_value(names, whole, pa.int32()),
        "state": _blank_is_null(state, size),
        "cause": pa.nulls(size, pa.utf8()) if state is None else by_value(state, cause_of_state, pa.utf8()),
        "exit_code": pa.nulls(size, pa.int32())
        if exit_code is None
        else by_value(exit_code, lambda t: _exit(t, 0), pa.int32()),
        "signal": pa.nulls(size, pa.int32())
        if exit_code is None
        else by_value(exit_code, lambda t: _exit(t, 1), pa.int32()),
        "account": _blank_is_null(column("Account"), size),
        "partition": _blank_is_null(column("Partition"), size),
        "array": _array_of(job),
        "source": ["sacct"] * size,
    }
    return conform(JOBS, pa.table(columns))


def _gpus(table: pa.Table, size: int, found: Imported) -> pa.Array:
    for name in ("AllocTRES", "AllocGRES"):
        if name in table.column_names and pc.any(pc.not_equal(table[name], "")).as_py():
            return by_value(table[name], gpus_in, pa.int32())
    if size:
        found.assumed.append("no AllocTRES column: how many GPUs each job held is unknown")
    return pa.nulls(size, pa.int32())


def gpus_in(text: str | None) -> int | None:
    """GPUs in a TRES or GRES text: null if it is empty, 0 if it lists other things only."""
    if not text:
        return None
    found = [(kind, whole(n)) for kind, n in _GPUS.findall(text)]
    counts = [n for kind, n in found if not kind][:1] or [n for _, n in found]
    known = [n for n in counts if n is not None]
    return sum(known) if len(known) == len(counts) else None


def _nodes(column: Any, size: int) -> pa.Array:
    if column is None:
        return pa.nulls(size, pa.list_(pa.utf8()))
    return by_value(column, expand_hostlist, pa.list_(pa.utf8()))


def _array_of(job: Any) -> pa.Array:
    """Return the array of a task: what is before the underscore; null for a job that is no task."""
    found = pc.extract_regex(job.combine_chunks(), r"^(?P<array>\d+)_")
    return pc.if_else(pc.is_null(found), pa.scalar(None, pa.utf8()), found.field("array"))


def _blank_is_null(column: Any, size: int) -> Any:
    if column is None:
        return pa.nulls(size, pa.utf8())
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.utf8()), column)


def _exit(text: str, part: int) -> int | None:
    parts = text.split(":")
    return whole(parts[part]) if len(parts) == 2 else None


def _drop_nonsense(jobs: pa.Table, found: Imported) -> pa.Table:
    """Take out rows that cannot be: no id, an end before the start."""
    nameless = pc.equal(jobs["job"].cast(pa.utf8()), "")
    backwards = pc.fill_null(pc.less(jobs["end_ns"], jobs["start_ns"]), False)
    for mask, why in ((nameless, "no job id"), (backwards, "ends before it starts")):
        rows = np.flatnonzero(np.asarray(mask))
        for i in rows.tolist():
            found.reject(i + 2, f"{why}: job {jobs['job'][i].as_py()!r}" if i < 10**6 else why)
    return jobs.filter(pc.invert(pc.or_(nameless, backwards)))
