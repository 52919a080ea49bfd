"""Dumps of schedulers and exporters -> tables.

    import_dumps(["sacct.txt", "pods.json", "scrape.prom"], Assume(cluster="prod-a")) -> Dumps

Each file is recognised by its content. One that cannot be used is listed with the reason and what to do; the others
go on. Jobs that several dumps list (a day's dump ends in the middle of a job) are one row: the one that knows more.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.errors import InputError, UnsafeInput, UnsupportedInput
from perfkit.goodput.importers.base import Assume, Imported

__all__ = [
    "SUPPORTED", "Assume", "Dumps", "Imported", "import_dumps", "is_dump", "read_dump",
    "without_supported",
]  # fmt: skip

MAX_BYTES = 4 << 30
_HEAD_BYTES = 1 << 16
SUPPORTED = (
    "supported are sacct, scontrol show node|job, sinfo, a CSV of jobs, Kubernetes JSON, Prometheus text,"
    " nvidia-smi CSV"
)


@dataclass
class Dumps:
    """What a set of dumps gave together."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    imported: list[Imported] = field(default_factory=list)
    rejected: list[dict[str, str]] = field(default_factory=list)
    """Files that could not be used: path and reason."""
    duplicates: int = 0


def import_dumps(paths: Iterable[str | os.PathLike[str]], assume: Assume | None = None) -> Dumps:
    """Read dumps of any supported kind."""
    assume = assume or Assume()
    dumps = Dumps()
    for path in _files(paths):
        try:
            dumps.imported.append(read_dump(path, assume))
        except InputError as error:
            reason = error.message + (f"; {error.next_step}" if error.next_step else "")
            dumps.rejected.append({"path": error.path, "reason": reason})
        except OSError as error:
            dumps.rejected.append({"path": str(path), "reason": error.strerror or str(error)})
    for name in ("jobs", "nodes", "counters"):
        parts = [one.tables[name] for one in dumps.imported if name in one.tables]
        if parts:
            dumps.tables[name] = pa.concat_tables(parts).unify_dictionaries() if len(parts) > 1 else parts[0]
    if "jobs" in dumps.tables and (
        len(dumps.imported) > 1 or (pc.max(dumps.tables["jobs"]["attempt"]).as_py() or 0) > 0
    ):
        dumps.tables["jobs"], dumps.duplicates = _merge(dumps.tables["jobs"])
    return dumps


def read_dump(path: str | os.PathLike[str], assume: Assume) -> Imported:
    """Recognise one file by its content and read it."""
    from perfkit.goodput.importers import sacct

    path = Path(path)
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise UnsafeInput(f"{size:,} bytes are more than {MAX_BYTES:,}", path=str(path), next_step="split it by date")
    data = path.read_bytes()
    if assume.as_of_ns is None:
        assume = dataclasses.replace(assume, as_of_ns=path.stat().st_mtime_ns)
    head = data[:_HEAD_BYTES]
    name = str(path)
    if "JobID" in assume.fields and b"|" in head and not sacct.looks_like_sacct(head):
        data = b"|".join(name.encode() for name in assume.fields) + b"\n" + data
        return sacct.read_sacct(data, name, assume)
    if reader := _reader_of(head):
        return reader(data, name, assume)
    if _headless(head):
        raise UnsupportedInput(
            "looks like sacct without a header", path=name,
            next_step="run sacct without --noheader, or name its columns: --fields JobID,State,Start,End,…",
        )  # fmt: skip
    if head.startswith(b"\x1f\x8b") or b'"traceEvents"' in head:
        what = "a profiler trace" if b'"traceEvents"' in head else "gzip data, as traces are"
        raise UnsupportedInput(what, path=name, next_step="`perfkit analyze` reads traces")
    raise UnsupportedInput(_what_it_is(head), path=name, next_step=SUPPORTED)


def without_supported(reason: str) -> str:
    """Return the reason of a rejected file without the list of what is supported, to be said once for all files."""
    return reason.removesuffix(f"; {SUPPORTED}")


def is_dump(head: bytes) -> bool:
    """Whether a file that begins like this is a dump of a kind that perfkit imports."""
    return _reader_of(head) is not None


def _reader_of(head: bytes) -> Callable[[bytes, str, Assume], Imported] | None:
    from perfkit.goodput.importers import counters, csv_jobs, kubernetes, sacct, scontrol

    if sacct.looks_like_sacct(head):
        return sacct.read_sacct
    if head.lstrip()[:14].startswith((b"NodeName=", b"JobId=", b"PartitionName=", b"Configuration ")):
        return scontrol.read_scontrol
    if kubernetes.looks_like_kubernetes(head):
        return kubernetes.read_kubernetes
    if csv_jobs.looks_like_jobs(head):
        return csv_jobs.read_jobs_csv
    if counters.looks_like_nvidia_smi(head):
        return counters.read_nvidia_smi
    if counters.looks_like_prometheus(head):
        return counters.read_prometheus
    if scontrol.looks_like_sinfo(head):
        return scontrol.read_sinfo
    return None


def _headless(head: bytes) -> bool:
    first = head.split(b"\n", 1)[0]
    return first.count(b"|") >= 3 and first[:1].isdigit()


def _what_it_is(head: bytes) -> str:
    if not head.strip():
        return "an empty file"
    if b"\0" in head:
        return "a binary file"
    first = head.split(b"\n", 1)[0]
    return f"not a dump that perfkit knows (it begins with {first[:40].decode('utf-8', 'replace')!r})"


def _files(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    found: list[Path] = []
    for path in map(Path, paths):
        found += sorted(p for p in path.rglob("*") if p.is_file() and not p.is_symlink()) if path.is_dir() else [path]
    return found


def _merge(jobs: pa.Table) -> tuple[pa.Table, int]:
    """Keep one row per cluster, job and start: the one with the latest end, and one that ended before one that runs."""
    from perfkit.goodput.importers.base import number_attempts

    job = pc.binary_join_element_wise(jobs["cluster"].cast(pa.utf8()), jobs["job"].cast(pa.utf8()), "\x1f")
    key = pc.binary_join_element_wise(job, pc.fill_null(jobs["start_ns"].cast(pa.utf8()), ""), "\x1f")
    codes = np.asarray(pc.dictionary_encode(key.combine_chunks()).indices.to_numpy(zero_copy_only=False), np.int64)
    ended = np.asarray(pc.fill_null(jobs["end_ns"], -1).to_numpy(), np.int64)
    order = np.lexsort((ended, codes))
    last = np.r_[codes[order][1:] != codes[order][:-1], True] if len(codes) else np.zeros(0, bool)
    keep = np.sort(order[last])
    kept = jobs.take(pa.array(keep))
    attempts = number_attempts(job.take(pa.array(keep)), kept["start_ns"])
    said = np.asarray(pc.fill_null(kept["attempt"], 0).to_numpy(), np.int64)
    counted = np.asarray(pc.equal(kept["source"].cast(pa.utf8()), "scontrol").fill_null(False))  # Restarts= counts all
    at = kept.column_names.index("attempt")
    kept = kept.set_column(at, "attempt", pa.array(np.where(counted, np.maximum(attempts, said), attempts), pa.int32()))
    return kept, len(jobs) - len(keep)
