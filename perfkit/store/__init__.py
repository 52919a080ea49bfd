"""The store: a lake of Parquet tables that many processes fill and any tool reads.

    store = Store("runs/")                       # a local folder, or any URI that pyarrow.fs knows (s3://…)

    # writing: a segment is everything from one source file of one rank, in all tables
    with store.writer(cluster, run, attempt, rank=3, segment=0, fingerprint=input.fingerprint) as writer:
        writer.write("events", table)            # as often as needed; row groups are streamed
        writer.commit(part_info, source_path="traces/rank3.json.gz")      # without commit: nothing happened
    store.finalise(cluster, run, attempt)        # run.json and the row of table `runs`

    # resuming
    store.committed(cluster, run, attempt)       -> list[Commit], each with its fingerprint

    # reading (cluster, run, attempt and ranks are optional filters; page checksums are verified)
    store.read("events", run="llama-8b", ranks=[0, 1], columns=[...], filter=pc.field(...))  -> pa.Table
    store.scan("events", ...)   -> iterator of record batches, for what does not fit in memory
    store.dataset("events", ...) -> pyarrow dataset;  store.files("events", ...) -> paths for other tools
    store.listing("waterfall", run="llama-8b") -> files with size and time, from one listing;  store.filesystem
    store.runs()                -> list[RunSummary]

    # derived tables, one file per analysis; fleet tables, by date; looking after it
    store.write_derived("attribution", table, cluster, run, attempt, analysis_id="default")
    store.write_fleet("jobs", table, date="2026-10-01", part="sacct-0001")
    store.gc(older_than_hours=24, dry_run=True);  store.migrate()
    store.compact(quiet_hours=1)                       # many small files into few large ones, while others read
    store.expire(keep_ns=..., keep_traces_ns=..., dry_run=True)

A commit is one small JSON object, written last: readers take only what a commit lists, so they see all
of a segment or none, with or without rename, and writers of different segments never meet. The
commits live in a tree of their own (`manifests/`), because pandas and Polars refuse a table folder
that holds anything but Parquet.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfkit.store.commits import Commit, CommittedFile, RunSummary
    from perfkit.store.lake import Store
    from perfkit.store.layout import slug
    from perfkit.store.migrations import MIGRATIONS, Migration
    from perfkit.store.parquet import ParquetLimits, check_parquet, iter_parquet
    from perfkit.store.segment import SegmentWriter
    from perfkit.store.upkeep import Orphan

__all__ = [
    "MIGRATIONS",
    "Commit",
    "CommittedFile",
    "Migration",
    "Orphan",
    "ParquetLimits",
    "RunSummary",
    "SegmentWriter",
    "Store",
    "check_parquet",
    "iter_parquet",
    "slug",
]

_HOME = {
    "commits": ("Commit", "CommittedFile", "RunSummary"), "lake": ("Store",), "layout": ("slug",),
    "migrations": ("MIGRATIONS", "Migration"), "parquet": ("ParquetLimits", "check_parquet", "iter_parquet"),
    "segment": ("SegmentWriter",), "upkeep": ("Orphan",),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import what is asked for: whoever only reads a trace pays for no Parquet writer."""
    home = next((module for module, names in _HOME.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"perfkit.store.{home}"), name)
