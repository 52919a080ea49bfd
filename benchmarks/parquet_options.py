"""How fast and how small perfkit's Parquet is, against other options, on the events of a store.

    perfkit ingest TRACE --store runs/ && python benchmarks/parquet_options.py runs/ [--rows 2000000]

The events are repeated with shifted times up to --rows and cut into the row groups that ingest writes. Every
option writes the same chunks; best of three, one thread. The choice is made in perfkit/store/parquet.py.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from perfkit.schema import EVENTS
from perfkit.store import Store
from perfkit.store.parquet import ROW_GROUP_ROWS, open_writer

Opener = Callable[[Path], pq.ParquetWriter]


def chunks_of(events: pa.Table, rows: int) -> list[pa.Table]:
    copies = []
    for copy in range(-(-rows // len(events))):
        shifted = {"start_ns": copy * 10**10, "event_id": copy * len(events)}
        one = events
        for name, shift in shifted.items():
            one = one.set_column(one.column_names.index(name), name, pc.add(one[name], shift))
        copies.append(one)
    whole = pa.concat_tables(copies).unify_dictionaries().slice(0, rows)
    return [whole.slice(first, ROW_GROUP_ROWS).combine_chunks() for first in range(0, rows, ROW_GROUP_ROWS)]


def plain_options(**options: object) -> Opener:
    return lambda path: pq.ParquetWriter(path, EVENTS.arrow, write_page_checksum=True, **options)


OPTIONS: dict[str, Opener] = {
    "perfkit": lambda path: open_writer(path, EVENTS.arrow),
    "pyarrow defaults (snappy)": plain_options(),
    "zstd 1": plain_options(compression="zstd", compression_level=1),
    "zstd 3": plain_options(compression="zstd", compression_level=3),
    "lz4": plain_options(compression="lz4"),
    "zstd 1, pages v2": plain_options(compression="zstd", compression_level=1, data_page_version="2.0"),
    "zstd 1, no statistics": plain_options(compression="zstd", compression_level=1, write_statistics=False),
}


def measure(open_one: Opener, chunks: list[pa.Table], path: Path) -> tuple[float, float]:
    wall = []
    for _ in range(3):
        start = time.perf_counter()
        with open_one(path) as writer:
            for chunk in chunks:
                writer.write_table(chunk, row_group_size=len(chunk))
        wall.append(time.perf_counter() - start)
    start = time.perf_counter()
    pq.read_table(path, page_checksum_verification=True, use_threads=False)
    return min(wall), time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--rows", type=int, default=2_000_000)
    args = parser.parse_args()
    chunks = chunks_of(Store(args.store).read("events"), args.rows)
    arrow_mb = sum(chunk.nbytes for chunk in chunks) / 1e6
    print(f"{args.rows:,} events, {arrow_mb:.0f} MB of Arrow, pyarrow {pa.__version__}\n")
    print(f"{'options':28} {'write s':>8} {'Arrow MB/s':>11} {'file MB':>8} {'read s':>7}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "events.parquet")
        for name, open_one in OPTIONS.items():
            write_seconds, read_seconds = measure(open_one, chunks, path)
            size_mb = path.stat().st_size / 1e6
            print(f"{name:28} {write_seconds:8.2f} {arrow_mb / write_seconds:11.0f} {size_mb:8.1f} {read_seconds:7.2f}")


if __name__ == "__main__":
    main()
