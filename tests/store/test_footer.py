"""A damaged Parquet footer is an error, never the end of the process."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from perfkit.errors import StoreError
from perfkit.store import Store
from perfkit.store.footer import ColumnChunk, read_footer
from tests.conftest import ROOT
from tests.store.conftest import without_checksums


def test_it_counts_what_arrow_counts(tmp_path):
    rows = pa.table({"x": np.arange(1000), "f": np.arange(1000.0), "t": ["a", None] * 500, "l": [[1, 2]] * 1000})
    pq.write_table(rows, tmp_path / "t.parquet", row_group_size=400)
    footer = read_footer(tmp_path / "t.parquet")
    assert footer.num_rows == 1000
    assert footer.chunks[:4] == [
        ColumnChunk("INT64", 400, 400),
        ColumnChunk("DOUBLE", 400, 400),
        ColumnChunk("BYTE_ARRAY", 400, 400),
        ColumnChunk("INT64", 800, 400),
    ]
    assert len(footer.chunks) == 3 * 4


@pytest.mark.parametrize("tail", [b"", b"\x00" * 12, b"\xff\xff\xff\xffPAR1", b"\x04\x00\x00\x00PAR1", b"PAR1"])
def test_what_does_not_hold_together_is_a_value_error(tmp_path, tail):
    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1" + b"\x19" * 30 + tail)
    with pytest.raises(ValueError, match=r"footer|short|PAR1"):
        read_footer(path)


def test_footers_damaged_at_random_do_not_end_the_process(tmp_path):
    # In a process of its own: what this guards against would take the test run with it.
    rows = pa.table({"x": np.arange(500), "name": ["a", "b"] * 250, "l": [[1]] * 500})
    pq.write_table(rows, tmp_path / "t.parquet", write_page_checksum=True)
    code = """
import random, struct, sys
from perfkit.errors import InputError
from perfkit.store import iter_parquet
path = sys.argv[1]
content = open(path, "rb").read()
start = len(content) - 8 - struct.unpack("<I", content[-8:-4])[0]
for seed in range(1200):
    rng, damaged = random.Random(seed), bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 4])):
        damaged[rng.randrange(start, len(content) - 4)] = rng.randrange(256)
    open(path, "wb").write(damaged)
    try:
        for _ in iter_parquet(path):
            pass
    except InputError:
        pass
print("alive")
"""
    command = [sys.executable, "-c", code, str(tmp_path / "t.parquet")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "alive"), done.stderr[-2000:]


def test_a_damaged_footer_in_the_store_is_always_noticed(store, write):
    write(store, rank=0)
    path = Path(store.files("events")[0])
    for damaged in one_byte_changed(path, count=150):
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match=re.escape(str(path))):
            Store(store.uri).read("events", filter=pc.field("event_id") >= 0)


def test_a_damaged_footer_of_a_pack_is_noticed_by_readers_and_one_of_a_part_by_the_packer(store, write):
    for rank in range(2):
        write(store, rank=rank)
    part = Path(store.files("events")[0])
    content = part.read_bytes()
    part.write_bytes(next(one_byte_changed(part, count=1)))
    with pytest.raises(StoreError, match=re.escape(str(part))):
        store.compact(quiet_hours=0)
    part.write_bytes(content)
    store.compact(quiet_hours=0)
    (pack,) = {Path(path) for path in Store(store.uri).files("events")}
    assert pack.name.startswith("pack-")
    pack.write_bytes(next(one_byte_changed(pack, count=1)))
    with pytest.raises(StoreError, match=re.escape(str(pack))):
        Store(store.uri).read("events")


def test_a_commit_without_the_footers_checksum_is_read_as_before(store, write):
    write(store, rank=0)
    without_checksums(store)
    assert len(Store(store.uri).read("events"))


def one_byte_changed(path: Path, *, count: int) -> Iterator[bytes]:
    """Copies of a Parquet file, each with another byte somewhere in its footer."""
    content = path.read_bytes()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    for seed in range(count):
        rng, damaged = random.Random(seed), bytearray(content)
        damaged[rng.randrange(start, len(content) - 4)] ^= rng.randrange(1, 256)
        yield bytes(damaged)
