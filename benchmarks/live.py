"""What 16,384 ranks that record all the time would write, ask and cost, from what one rank does here.

    python benchmarks/live.py                       # measure, then compute: bytes/s, files/h, requests, $/month
    python benchmarks/live.py --ranks 4096 --step-seconds 10 --spans 12

Measured, on this machine: a real recorder with host and GPU sampling (the tests' stub of the driver), for two lengths
of time, so that what a file costs and what a row costs come apart; and the requests of one commit to a real S3 server
on loopback, counted by a proxy. Computed: the formula below. Simulated: files in the bucket, hour by hour, with the
recorder's rotation (10, 20, then every 40 minutes), packing every hour and removal an hour later.

    segment bytes = Σ_tables (file bytes + row bytes × rows/s × seconds) + commit
    bytes/s       = ranks × segment bytes / seconds          files/h = ranks × 3600/seconds × (tables + 1)
    $/month       = 730 × (writes/h × $/write + reads/h × $/read) + GB kept × $/GB
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perfkit.schema import TABLES
from perfkit.store.packing import MAX_CHUNKS
from tests.objectstore import FaultyProxy, S3Server

HOURS_PER_MONTH = 730
WRITE_DOLLARS, READ_DOLLARS, GB_DOLLARS = 0.005 / 1000, 0.0004 / 1000, 0.023
"""List prices of S3 Standard, us-east-1: PUT and LIST; GET and HEAD; a GB for a month."""
SEGMENT_SECONDS = 2400.0
"""Age of a segment in the long run: four times the default rotate_seconds."""


def record(store: Path, seconds: float, spans: int) -> dict[str, tuple[int, int]]:
    """Record for some seconds, commit it, and return rows and bytes of every table."""
    import perfkit
    from perfkit.store import Store

    recorder = perfkit.init(run=f"live-{seconds:g}", store=store)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with recorder.step(tokens=8192):
            for number in range(spans):
                with recorder.span(f"part-{number}"):
                    time.sleep(0.05 / spans)
    recorder.finish(timeout=60)
    wait_until = time.monotonic() + 120
    while not (commits := Store(store).committed(recorder_cluster(store), f"live-{seconds:g}")):
        assert time.monotonic() < wait_until, "nothing was committed"
        time.sleep(0.2)
    found: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for commit in commits:
        for file in commit.files:
            found[file.table] += file.rows
            size[file.table] += file.bytes
    return {table: (found[table], size[table] // len(commits)) for table in found}


def recorder_cluster(store: Path) -> str:
    from perfkit.store import Store

    return Store(store).runs()[0].cluster if Store(store).exists and Store(store).runs() else "default"


def requests_of_a_commit() -> Counter[str]:
    """Count what one more segment of a running job asks of an S3 server."""
    from perfkit.sources.base import PartInfo
    from perfkit.store import Store
    from perfkit.store.files import Files
    from perfkit.store.layout import RunKey
    from perfkit.store.segment import rank_commits

    with S3Server() as server, FaultyProxy(server.port) as proxy:
        server.put("/bucket")
        os.environ.update(server.environ | {"AWS_ENDPOINT_URL": proxy.url})
        before = 0
        for segment in range(2):
            before = len(proxy.requests)
            store = Store("s3://bucket/lake")
            rank_commits(Files(store.uri), RunKey("c", "r", 0), 0)
            with store.writer("c", "r", rank=0, segment=segment, fingerprint=f"f{segment}") as writer:
                for table in ("counters", "steps", "spans", "lifecycle"):
                    writer.write(table, _one_row(table))
                writer.commit(PartInfo(rank=0))
        return Counter("LIST" if "list-type" in request.path else request.method for request in proxy.requests[before:])


def _one_row(table: str):  # type: ignore[no-untyped-def]
    import pyarrow as pa

    from perfkit.schema import TABLES, table_from_rows

    zero = {"int": 0, "utf8": "x", "dou": 0.0, "boo": False, "dic": "x", "str": "x"}
    row = {f.name: zero.get(str(f.type)[:3], "x") for f in TABLES[table].arrow if f.name not in ("rank", "segment")}
    rows = table_from_rows(TABLES[table], [{**row, "rank": 0, "segment": 0}])
    assert isinstance(rows, pa.Table)
    return rows.drop_columns([name for name in ("rank", "segment") if name in rows.column_names])


def simulate_files(args: argparse.Namespace, tables: int, hours: int) -> list[tuple[int, int, int, int]]:
    """Return (hour, loose files, packed files, files without packing) for some hours of one long job."""
    ends = [10 / 60, 30 / 60]
    while ends[-1] < hours:
        ends.append(ends[-1] + SEGMENT_SECONDS / 3600)
    loose = superseded = packs = total = 0
    shown = []
    for hour in range(1, hours + 1):
        new = args.ranks * sum(hour - 1 < end <= hour for end in ends)
        total += new
        packs += math.ceil((loose + new) / args.pack_segments) if new else 0
        superseded, loose = new, 0  # packed at the end of the hour; the small files go an hour later
        if hour in (1, 24, 24 * 7, hours):
            shown.append((hour, superseded * (tables + 1), packs * (tables + 1), total * (tables + 1)))
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=16_384)
    parser.add_argument("--step-seconds", type=float, default=5.0)
    parser.add_argument("--spans", type=int, default=8, help="spans of a step")
    parser.add_argument("--keep-days", type=int, default=90)
    parser.add_argument("--pack-segments", type=int, help="segments of a pack (default: as perfkit packs them)")
    parser.add_argument("--seconds", type=float, nargs=2, default=(20, 60), help="how long one rank is recorded")
    args = parser.parse_args()

    from tests.capture.stub_library import StubGpus

    with tempfile.TemporaryDirectory(prefix="perfkit-live-") as folder:
        stub = StubGpus(Path(folder))
        stub.set(gpus=1)
        os.environ.update(stub.environ)
        short, long = (record(Path(folder) / f"store-{s:g}", s, args.spans) for s in args.seconds)
    file_bytes = row_total = 0.0
    print(f"{'table':<12} {'bytes/file':>10} {'bytes/row':>10} {'rows/s':>8}")
    for table in sorted(long):
        (rows_a, bytes_a), (rows_b, bytes_b) = short.get(table, (0, 0)), long[table]
        per_row = max(0.0, (bytes_b - bytes_a) / (rows_b - rows_a)) if rows_b > rows_a else 0.0
        fixed = bytes_b - per_row * rows_b
        rate = {"steps": 1 / args.step_seconds, "spans": args.spans / args.step_seconds}.get(table)
        if rate is None:
            rate = (rows_b - rows_a) / (args.seconds[1] - args.seconds[0])
        if table == "counters":  # the stub's values hardly change, those of a GPU do: eight bytes do not compress
            per_row = max(per_row, 8.0)
        file_bytes += fixed
        row_total += per_row * rate
        print(f"{table:<12} {fixed:>10,.0f} {per_row:>10.1f} {rate:>8.2f}")
    tables, asked = len(long), requests_of_a_commit()
    args.pack_segments = args.pack_segments or MAX_CHUNKS // max(len(TABLES[table].names) for table in long)
    commit_bytes = 1200
    segment = file_bytes + commit_bytes + row_total * SEGMENT_SECONDS
    per_hour = args.ranks * 3600 / SEGMENT_SECONDS
    print(f"\none rank: {segment / 1e3:,.1f} kB every {SEGMENT_SECONDS / 60:.0f} min in {tables + 1} objects; "
          f"requests of a commit: {dict(sorted(asked.items()))}")  # fmt: skip
    print(f"{args.ranks:,} ranks: {args.ranks * segment / SEGMENT_SECONDS / 1e3:,.0f} kB/s, "
          f"{per_hour * (tables + 1):,.0f} files/h, {per_hour * sum(asked.values()):,.0f} requests/h "
          f"({per_hour * sum(asked.values()) / 3600:,.0f}/s)")  # fmt: skip
    writes = per_hour * (asked["PUT"] + asked["POST"] + asked["LIST"])
    reads = per_hour * (asked["GET"] + asked["HEAD"])
    packs = per_hour / args.pack_segments
    pack_writes, pack_reads = packs * (tables + 1), per_hour * (3 * tables + 2)
    kept_gb = args.ranks * segment / SEGMENT_SECONDS * 86_400 * args.keep_days / 1e9
    parts = {
        "recording, writes": HOURS_PER_MONTH * writes * WRITE_DOLLARS,
        "recording, reads": HOURS_PER_MONTH * reads * READ_DOLLARS,
        "packing": HOURS_PER_MONTH * (pack_writes * WRITE_DOLLARS + pack_reads * READ_DOLLARS),
        f"{kept_gb:,.0f} GB kept {args.keep_days} days": kept_gb * GB_DOLLARS,
    }
    for name, dollars in parts.items():
        print(f"  {name:<28} ${dollars:>9,.0f} a month")
    print(f"  {'together':<28} ${sum(parts.values()):>9,.0f} a month")
    print(f"\n{'after':>8} {'small files':>12} {'in packs':>10} {'without packing':>16}")
    for hour, loose, packed, without in simulate_files(args, tables, 24 * 30):
        when = f"{hour} h" if hour < 24 else f"{hour // 24} d"
        print(f"{when:>8} {loose:>12,} {packed:>10,} {without:>16,}")


if __name__ == "__main__":
    main()
