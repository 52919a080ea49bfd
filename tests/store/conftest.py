"""Builders for small segments."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from perfkit.sources.base import PartInfo
from perfkit.store import Commit, Store


def events(rows: int, *, first: int = 0, name: str = "kernel") -> pa.Table:
    ids = np.arange(first, first + rows)
    return pa.table({"event_id": ids, "name": [f"{name}{i % 3}" for i in ids], "start_ns": ids * 10, "dur_ns": ids % 7})


def write_segment(
    store: Store,
    *,
    run: str = "r",
    cluster: str = "c",
    attempt: int = 0,
    rank: int = 0,
    segment: int = 0,
    rows: int = 10,
    tables: tuple[str, ...] = ("events",),
    fingerprint: str | None = None,
    replace: bool = False,
    name: str = "kernel",
) -> Commit:
    info = PartInfo(rank=rank, rank_source="distributedInfo", world_size=4, host=f"host{rank // 2}", source="kineto")
    info.see_times(rank * 1000, rank * 1000 + rows * 10)
    info.num_events = rows
    fingerprint = fingerprint or f"{rank}-{segment}"
    with store.writer(
        cluster, run, attempt, rank=rank, segment=segment, fingerprint=fingerprint, replace=replace
    ) as writer:
        for table in tables:
            rows_of_table = events(rows, name=name) if table == "events" else pa.table({"event_id": np.arange(rows)})
            writer.write(table, rows_of_table)
        return writer.commit(info, source_path=f"traces/rank{rank}.json")


def without_checksums(store: Store) -> None:
    """Make the commits what an older perfkit wrote, with a key that a newer one may add."""
    for commit in Path(store.uri).glob("manifests/**/commits/*.json"):
        document = json.loads(commit.read_bytes())
        del document["crc"]
        for file in document["files"]:
            assert file.pop("footer_crc") is not None
            file["something_newer"] = 1
        commit.write_text(json.dumps(document))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "lake")


@pytest.fixture
def make_events():
    return events


@pytest.fixture
def write():
    return write_segment
