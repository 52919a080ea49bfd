"""perfkit.sources.nsys: real exports against plain SQL, and small ones built here for every oddity."""

from __future__ import annotations

import random
import sqlite3
import struct
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfkit.cli.main import main
from perfkit.errors import CorruptInput, InputError, StoreError, UnsafeInput, UnsupportedInput
from perfkit.schema import TABLES
from perfkit.sources import nsys
from perfkit.sources.base import Input, PartInfo, ReadOptions
from perfkit.sources.ingest import ingest
from perfkit.sources.nsys import parquet as nsys_parquet
from perfkit.sources.nsys import project as nsys_project
from perfkit.store import Store
from perfkit.store.segment import SegmentWriter

REAL = {
    "3.25": "GindaChen__nsys-ai/tests/fixtures/mfu_2gpu_before.sqlite",
    "3.24": "GindaChen__nsys-ai/tests/fixtures/mock.sqlite",
    "3.16": "NVIDIA__Fuser/report2.sqlite",
    "2.9": "hpcgroup__pipit/pipit/tests/data/saxpy-mpi-cuda_nsys_perlmutter0.sqlite",
}
RECIPE_ZIP = "NVIDIA__JAX-Toolbox/.github/workflows/nsys-jax/maxtext_fsdp4_test_data.zip"

EPOCH = 1_700_000_000_000_000_000
P1, P2 = (1 << 48 | pid << 24 for pid in (501, 502))
"""globalPids of two processes; a thread is P | tid."""
KERNEL, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"


# ------------------------------------------------------------------ builders


def as_input(file: Path) -> Input:
    kind = "nsys-sqlite" if file.suffix == ".sqlite" else "nsys-parquet"
    return Input(path=str(file), kind=kind, file=file, size_bytes=1000, identity="f")


def read_all(file: Path, **options: object) -> tuple[dict[tuple[int, str], pa.Table], list[PartInfo]]:
    reading = nsys.read(as_input(file), ReadOptions(**options))
    chunks: dict[tuple[int, str], list[pa.Table]] = {}
    for chunk in reading:
        columns = [name for name in TABLES[chunk.table].names if name not in ("rank", "segment")]
        assert chunk.rows.column_names == columns
        for column in columns:
            assert chunk.rows.schema.field(column).type == TABLES[chunk.table].arrow.field(column).type
        chunks.setdefault((chunk.part, chunk.table), []).append(chunk.rows)
    tables = {key: pa.concat_tables(rows).unify_dictionaries() for key, rows in chunks.items()}
    for (part, name), table in tables.items():
        if name == "events":
            ids = table["event_id"].to_numpy()
            assert len(np.unique(ids)) == len(ids) == reading.parts[part].num_events
    return tables, reading.parts


def events_of(tables: dict[tuple[int, str], pa.Table], part: int = 0, **wanted: str) -> list[dict[str, object]]:
    rows = tables[part, "events"].to_pylist()
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def plain(column: pa.ChunkedArray) -> pa.Array:
    """Return a column without dictionary and chunks, so that equal values are equal."""
    whole = column.combine_chunks()
    return whole.cast(whole.type.value_type) if pa.types.is_dictionary(whole.type) else whole


class Report:
    """A small export: rows are dicts, columns are whatever the rows have."""

    def __init__(self, **tables: list[dict[str, object]]) -> None:
        self.tables = tables
        self.words: dict[str, int] = {}

    def word(self, text: str) -> int:
        return self.words.setdefault(text, len(self.words) + 1)

    def add(self, table: str, *rows: dict[str, object]) -> Report:
        self.tables.setdefault(table, []).extend(rows)
        return self

    def kernel(self, start: object, end: object, correlation: object = 1, pid: object = P1, **more: object) -> Report:
        row = {"start": start, "end": end, "deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": correlation,
               "globalPid": pid, "demangledName": self.word("void gemm<float>(int)"), "shortName": self.word("gemm"),
               "gridX": 2, "gridY": 3, "gridZ": 4, "blockX": 32, "blockY": 2, "blockZ": 1, "registersPerThread": 40,
               "staticSharedMemory": 16, "dynamicSharedMemory": 1024}  # fmt: skip
        return self.add(KERNEL, row | more)

    def call(
        self, start: object, end: object, correlation: object = 1, thread: object = P1 | 501, **more: object
    ) -> Report:
        name = self.word(str(more.pop("name", "cudaLaunchKernel_v7000")))
        row = {"start": start, "end": end, "eventClass": 0, "globalTid": thread, "correlationId": correlation,
               "nameId": name, "returnValue": 0}  # fmt: skip
        return self.add(RUNTIME, row | more)

    def range(
        self, start: object, end: object, text: str | None = "step", thread: object = P1 | 501, **more: object
    ) -> Report:
        row = {"start": start, "end": end, "eventType": 59, "text": text, "globalTid": thread, "endGlobalTid": None,
               "textId": None, "domainId": 0}  # fmt: skip
        return self.add("NVTX_EVENTS", row | more)

    def clock(self) -> Report:
        return self.add("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": EPOCH})

    def all_tables(self) -> dict[str, list[dict[str, object]]]:
        words = [{"id": number, "value": text} for text, number in self.words.items()]
        version = [{"name": "EXPORT_SCHEMA_VERSION", "value": "3.25.0"}]
        return {"StringIds": words, "META_DATA_EXPORT": version} | self.tables

    def sqlite(self, folder: Path, *statements: str) -> Path:
        file = folder / "report.sqlite"
        with sqlite3.connect(file) as db:
            for table, rows in self.all_tables().items():
                columns = list(dict.fromkeys(key for row in rows for key in row)) or ["id", "value"]
                types = ["id INTEGER PRIMARY KEY" if (table, c) == ("StringIds", "id") else f'"{c}"' for c in columns]
                db.execute(f"CREATE TABLE {table} ({', '.join(types)})")
                marks = ", ".join("?" * len(columns))
                db.executemany(f"INSERT INTO {table} VALUES ({marks})", [[row.get(c) for c in columns] for row in rows])
            for statement in statements:
                db.execute(statement)
        db.close()
        return file

    def parquet(self, folder: Path) -> Path:
        target = folder / "report_pqtdir"
        target.mkdir()
        for table, rows in self.all_tables().items():
            columns = list(dict.fromkeys(key for row in rows for key in row))
            pq.write_table(pa.table({c: [row.get(c) for row in rows] for c in columns}), target / f"{table}.parquet")
        return target


def simple() -> Report:
    return Report().clock().kernel(1000, 1500).call(100, 200)


# ------------------------------------------------------------------ real exports against plain SQL


def connect(traces: Path, version: str) -> sqlite3.Connection:
    file = traces / REAL[version]
    if not file.exists():
        pytest.skip(f"{file.name} is not here")
    return sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro&immutable=1", uri=True)


def has_table(db: sqlite3.Connection, table: str) -> bool:
    return bool(db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", [table]).fetchone())


def count(db: sqlite3.Connection, table: str) -> int:
    return db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] if has_table(db, table) else 0


@pytest.mark.parametrize("version", REAL)
def test_every_kernel_of_a_real_export_has_every_column(traces: Path, version: str) -> None:
    db = connect(traces, version)
    epoch = db.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()[0]
    graph = "NULLIF(graphId, 0)" if "graphId" in [r[1] for r in db.execute(f"PRAGMA table_info({KERNEL})")] else "NULL"
    expected = db.execute(
        f"""SELECT (globalPid / 16777216) % 16777216, start + {epoch}, end - start, deviceId, streamId, correlationId,
        value, contextId, gridX, gridY, gridZ, blockX, blockY, blockZ, registersPerThread,
        staticSharedMemory + dynamicSharedMemory, {graph}, graphNodeId
        FROM {KERNEL} JOIN StringIds ON id = demangledName"""
    ).fetchall()
    assert len(expected) == count(db, KERNEL)
    tables, parts = read_all(traces / REAL[version])
    found = []
    for part in range(len(parts)):
        kernels = tables[part, "events"].filter(pc.equal(tables[part, "events"]["category"], "kernel"))
        joined = kernels.join(tables[part, "kernels_meta"], "event_id", join_type="inner")
        found += zip(
            *(
                joined[column].to_pylist()
                for column in (
                    "pid", "start_ns", "dur_ns", "device", "stream", "correlation", "name", "context",
                    "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers_per_thread",
                    "shared_memory_bytes", "graph_id", "graph_node_id",
                )
            ),
            strict=True,
        )  # fmt: skip
    assert Counter(found) == Counter(expected)


@pytest.mark.parametrize("version", REAL)
def test_rows_and_durations_of_a_real_export_add_up_per_category(traces: Path, version: str) -> None:
    db = connect(traces, version)
    gpu_processes = {row[0] for row in db.execute(f"SELECT DISTINCT globalPid >> 24 FROM {KERNEL}")}
    expected: Counter[str] = Counter()
    lasted: Counter[str] = Counter()

    def expect(category: str, table: str, owner: str, condition: str = "1") -> None:
        if has_table(db, table):
            for process, rows, duration in db.execute(
                f"SELECT {owner} >> 24, count(*), sum(end - start) FROM {table} WHERE {condition} GROUP BY 1"
            ):
                if process in gpu_processes:
                    expected[category] += rows
                    lasted[category] += duration or 0

    expect("kernel", KERNEL, "globalPid")
    expect("gpu_memcpy", "CUPTI_ACTIVITY_KIND_MEMCPY", "globalPid")
    expect("gpu_memset", "CUPTI_ACTIVITY_KIND_MEMSET", "globalPid")
    expect("cuda_sync", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "globalPid")
    expect("cuda_runtime", RUNTIME, "globalTid", "eventClass = 0")
    expect("cuda_driver", RUNTIME, "globalTid", "eventClass = 1")
    expect("cuda_backtrace", RUNTIME, "globalTid", "eventClass = 67")
    expect("overhead", "PROFILER_OVERHEAD", "globalTid")
    expect("overhead", "CUPTI_ACTIVITY_KIND_OVERHEAD", "globalTid")
    expect("user_annotation", "NVTX_EVENTS", "globalTid", "eventType = 59")

    tables, parts = read_all(traces / REAL[version])
    assert len(parts) == len(gpu_processes)
    rows: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for part in range(len(parts)):
        grouped = tables[part, "events"].group_by("category").aggregate([("event_id", "count"), ("dur_ns", "sum")])
        for row in grouped.to_pylist():
            rows[row["category"]] += row["event_id_count"]
            total[row["category"]] += row["dur_ns_sum"]
    assert rows == +expected
    assert +total == +lasted


@pytest.mark.parametrize("version", ["3.25", "3.16", "2.9"])
def test_nvtx_names_threads_and_times_of_a_real_export_are_those_of_sql(traces: Path, version: str) -> None:
    db = connect(traces, version)
    epoch = db.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()[0]
    expected = db.execute(
        f"""SELECT (globalTid / 16777216) % 16777216, globalTid % 16777216, start + {epoch}, end - start,
        coalesce(text, value) FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId WHERE eventType IN (59, 60)"""
    ).fetchall()
    tables, parts = read_all(traces / REAL[version])
    found = [
        (row["pid"], row["tid"], row["start_ns"], row["dur_ns"], row["name"])
        for part in range(len(parts))
        for row in events_of(tables, part, category="user_annotation")
    ]
    assert Counter(found) == Counter(expected)


@pytest.mark.parametrize("version", ["3.25", "3.16", "2.9"])
def test_projection_of_a_real_export_is_that_of_a_plain_join(traces: Path, version: str) -> None:
    db = connect(traces, version)
    epoch = db.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()[0]
    work = " UNION ALL ".join(
        f"SELECT start, end, deviceId, correlationId, globalPid FROM CUPTI_ACTIVITY_KIND_{kind}"
        for kind in ("KERNEL", "MEMCPY", "MEMSET")
        if has_table(db, f"CUPTI_ACTIVITY_KIND_{kind}")
    )
    memory = sqlite3.connect(":memory:")
    memory.execute("CREATE TABLE work (start, end, device, correlation, pid, thread, called)")
    calls = {
        (row[1] >> 24, row[2]): row
        for row in db.execute(f"SELECT start, globalTid, correlationId FROM {RUNTIME} WHERE eventClass != 67")
    }
    for start, end, device, correlation, pid in db.execute(work):
        if call := calls.get((pid >> 24, correlation)):
            values = [start, end, device, correlation, pid, call[1], call[0]]
            memory.execute("INSERT INTO work VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    memory.execute("CREATE INDEX i ON work (thread, called)")
    expected = Counter()
    for start, end, thread in db.execute("SELECT start, end, globalTid FROM NVTX_EVENTS WHERE eventType = 59"):
        inside: dict[int, list[tuple[int, int]]] = {}
        query = "SELECT start, end, device FROM work WHERE thread = ? AND called >= ? AND called < ? ORDER BY start"
        for first, last, device in memory.execute(query, [thread, start, end]):
            inside.setdefault(device, []).append((first, last))
        for device, intervals in inside.items():
            busy, reach = 0, intervals[0][0]
            for first, last in intervals:
                busy += max(0, last - max(first, reach))
                reach = max(reach, last)
            expected[device, intervals[0][0] + epoch, reach - intervals[0][0], len(intervals), busy] += 1
    tables, parts = read_all(traces / REAL[version])
    found = Counter(
        (row["device"], row["start_ns"], row["dur_ns"], row["num_events"], row["busy_ns"])
        for part in range(len(parts))
        for row in tables[part, "nvtx_gpu"].to_pylist()
    )
    assert expected
    assert found == expected


def test_a_synchronisation_is_named_after_its_call_not_after_a_type_that_nsys_got_wrong(traces: Path) -> None:
    for version, kinds in (("3.24", {"Stream Sync": 1}), ("3.16", {"Stream Sync": 1})):
        assert connect(traces, version).execute(
            "SELECT syncType FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
        ).fetchall() == [(2,)]  # which the file's own ENUM_CUPTI_SYNC_TYPE calls `Stream wait sync`
        tables, _ = read_all(traces / REAL[version])
        assert Counter(tables[0, "syncs"]["kind"].to_pylist()) == kinds


def test_the_oldest_and_newest_real_exports_tell_rank_host_device_and_clock(traces: Path) -> None:
    tables, parts = read_all(traces / REAL["2.9"])
    assert [(p.rank, p.world_size, p.host) for p in parts] == [(0, 2, "nid001608")]
    assert parts[0].rank_source == "environment (PMI_RANK)"
    assert parts[0].versions["nsys_schema"] == "2.9.1"
    device = tables[0, "device_info"].to_pylist()[0]
    assert (device["name"], device["num_sms"], device["clock_mhz"]) == ("NVIDIA A100-SXM4-40GB", 108, 1410.0)
    assert {(r["key"], r["value"]) for r in tables[0, "tracks"].to_pylist()} >= {("thread_name", "MPI Rank 0")}
    tables, parts = read_all(traces / REAL["3.25"])
    assert [(p.rank, p.host, p.versions["nsys_schema"]) for p in parts] == [(None, "modal", "3.25.0")] * 2
    assert "--include-blobs=true" in parts[0].oddities["missing_table"].detail


def test_a_parquetdir_export_reads_like_the_sqlite_it_was_made_from(traces: Path, tmp_path: Path) -> None:
    db = connect(traces, "3.25")
    for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        cursor = db.execute(f"SELECT * FROM {table}")
        names = [column[0] for column in cursor.description]
        if rows := cursor.fetchall():
            columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
            pq.write_table(pa.table(columns), tmp_path / f"{table}.parquet")
    expected, expected_parts = read_all(traces / REAL["3.25"], keep_args=True)
    found, parts = read_all(tmp_path, keep_args=True)
    assert [p.num_events for p in parts] == [p.num_events for p in expected_parts]
    assert found.keys() == expected.keys()
    for key, table in expected.items():
        for name in table.column_names:
            assert plain(found[key][name]).equals(plain(table[name])), (key, name)


def test_a_recipe_projection_inside_a_zip_becomes_nvtx_gpu(traces: Path, tmp_path: Path) -> None:
    archive = traces / RECIPE_ZIP
    if not archive.exists():
        pytest.skip("no recipe here")
    with zipfile.ZipFile(archive) as stored:
        stored.extract("nvtx_gpu_proj_trace/trace.parquet", tmp_path)
    raw = pq.read_table(tmp_path / "nvtx_gpu_proj_trace" / "trace.parquet")
    for file in (tmp_path, tmp_path / "nvtx_gpu_proj_trace", tmp_path / "nvtx_gpu_proj_trace" / "trace.parquet"):
        tables, parts = read_all(file)
        assert [(p.rank, p.rank_source, p.num_events) for p in parts] == [(0, "nsys recipe", len(raw))]
        assert [p.rank for p in nsys.peek(as_input(file))] == [0]
        projected, events = tables[0, "nvtx_gpu"], tables[0, "events"]
        for ours, theirs in (("start_ns", "Projected Start"), ("dur_ns", "Projected Duration"), ("name", "Name")):
            assert projected[ours].to_pylist() == raw[theirs].to_pylist()
        assert projected["num_events"].to_pylist() == raw["NumGPUOps"].to_pylist()
        assert events["start_ns"].to_pylist() == raw["Orig Start"].to_pylist()
        assert events["dur_ns"].to_pylist() == raw["Orig Duration"].to_pylist()
        assert events["tid"].to_pylist() == raw["TID"].to_pylist()


def test_the_archive_with_the_recipe_is_ingested_by_one_command(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = traces / RECIPE_ZIP
    if not archive.exists():
        pytest.skip("no recipe here")
    with zipfile.ZipFile(archive) as stored:
        stored.extract("nvtx_gpu_proj_trace/trace.parquet", tmp_path)
    raw = pq.read_table(tmp_path / "nvtx_gpu_proj_trace" / "trace.parquet")
    assert main(["ingest", str(archive), "--store", str(tmp_path / "store")]) == 0
    projected = Store(str(tmp_path / "store")).read("nvtx_gpu")
    assert set(projected["rank"].to_pylist()) == {0}
    for ours, theirs in (("start_ns", "Projected Start"), ("dur_ns", "Projected Duration"), ("name", "Name")):
        assert Counter(projected[ours].to_pylist()) == Counter(raw[theirs].to_pylist())
    capsys.readouterr()
    same = [str(tmp_path / "nvtx_gpu_proj_trace"), "--store", str(tmp_path / "store"), "--run", archive.stem]
    assert main(["ingest", *same]) == 0
    assert "unchanged: 1 file" in capsys.readouterr().out


def test_an_export_is_ingested_alike_from_a_folder_and_from_any_archive(tmp_path: Path) -> None:
    flat = two_ranks().clock().range(150, 350).parquet(tmp_path)
    deep = tmp_path / "deep" / "export"
    for file in flat.iterdir():
        (deep / file.stem).mkdir(parents=True)
        rows = pq.read_table(file)
        pq.write_table(rows[:1], deep / file.stem / "part-0.parquet")
        pq.write_table(rows[1:], deep / file.stem / "part-1.parquet")
    inputs = [flat, deep]
    for folder in (flat, deep):
        with zipfile.ZipFile(tmp_path / f"{folder.name}.zip", "w", zipfile.ZIP_DEFLATED) as packed:
            for file in folder.rglob("*.parquet"):
                packed.write(file, file.relative_to(folder))
        with tarfile.open(tmp_path / f"{folder.name}.tar.gz", "w:gz") as tar:
            tar.add(folder, arcname="some/where")
        inputs += [tmp_path / f"{folder.name}.zip", tmp_path / f"{folder.name}.tar.gz"]
    rows = []
    for number, path in enumerate(inputs):
        report = ingest(path, store=tmp_path / "store", run=f"{number}", workers=1)
        assert not report.rejected
        assert [len(file.ranks) for file in report.files] == [2]
        rows.append(Store(str(tmp_path / "store")).read("events", run=f"{number}"))
    assert len(rows[0]) > 4
    for other in rows[1:]:
        for name in ("rank", "category", "name", "start_ns", "dur_ns", "correlation"):
            assert other[name].to_pylist() == rows[0][name].to_pylist()


def test_a_bomb_among_the_tables_of_an_archive_is_one_line(tmp_path: Path) -> None:
    folder = simple().parquet(tmp_path)
    zeros = pa.table({"start": np.zeros(5_000_000, np.int64)})
    with pq.ParquetWriter(folder / "NVTX_EVENTS.parquet", zeros.schema, compression="zstd") as writer:
        for _ in range(30):
            writer.write_table(zeros, row_group_size=len(zeros))
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        for file in folder.iterdir():
            packed.write(file, f"e/{file.name}")
    report = ingest(tmp_path / "x.zip", store=tmp_path / "store")
    (error,) = report.rejected
    assert isinstance(error, UnsafeInput)
    assert str(error).startswith(f"{tmp_path / 'x.zip'}!e: NVTX_EVENTS unfolds")
    assert "\n" not in str(error)


# ------------------------------------------------------------------ what a row becomes


def test_categories_and_names_follow_kineto(tmp_path: Path) -> None:
    report = simple()
    copy = {"start": 2000, "end": 2100, "deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": 2,
            "globalPid": P1, "bytes": 4096, "copyKind": 1, "srcKind": 1, "dstKind": 2}  # fmt: skip
    report.add(
        "CUPTI_ACTIVITY_KIND_MEMCPY", copy, copy | {"copyKind": 10, "srcKind": 2, "srcDeviceId": 0, "dstDeviceId": 1}
    )
    report.add("CUPTI_ACTIVITY_KIND_MEMSET", {k: copy[k] for k in list(copy)[:8]} | {"memKind": 2, "value": 0})
    report.call(210, 220, 2, name="cudaMemcpyAsync_v3020").call(230, 240, 3, name="cuLaunchKernelEx", eventClass=1)
    report.call(250, 260, 4, name="cudaFree", eventClass=67)
    osrt = {"start": 1, "end": 2, "globalTid": P1 | 9, "nameId": report.word("read")}
    report.add("OSRT_API", osrt).add(
        "MPI_COLLECTIVES_EVENTS", {**osrt, "textId": report.word("MPI_Bcast")} | {"nameId": None}
    )
    report.tables["MPI_COLLECTIVES_EVENTS"][0].pop("nameId")
    tables, _ = read_all(report.sqlite(tmp_path))
    found = [(row["category"], row["class"], row["name"], row["bytes"]) for row in events_of(tables)]
    assert found == [
        ("kernel", "compute", "void gemm<float>(int)", None),
        ("gpu_memcpy", "memcpy", "Memcpy HtoD (Pinned -> Device)", 4096),
        ("gpu_memcpy", "memcpy", "Memcpy PtoP (Device -> Device)", 4096),
        ("gpu_memset", "memset", "Memset (Device)", 4096),
        ("cuda_runtime", "runtime", "cudaLaunchKernel", None),
        ("cuda_runtime", "runtime", "cudaMemcpyAsync", None),
        ("cuda_driver", "runtime", "cuLaunchKernelEx", None),
        ("cuda_backtrace", None, "cudaFree", None),
        ("mpi", None, "MPI_Bcast", None),
        ("osrt", None, "read", None),
    ]
    meta = tables[0, "kernels_meta"].to_pylist()
    assert [(m["kind"], m["from_device"], m["to_device"]) for m in meta] == [
        (None, None, None), ("HtoD", None, None), ("PtoP", 0, 1), (None, None, None),
    ]  # fmt: skip
    assert [(row["pid"], row["tid"]) for row in events_of(tables, category="osrt")] == [(501, 9)]


def test_times_are_absolute_with_a_session_start_and_say_so_without(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    tables, parts = read_all(simple().sqlite(tmp_path / "a"))
    assert events_of(tables, category="kernel")[0]["start_ns"] == EPOCH + 1000
    assert (parts[0].start_ns, parts[0].end_ns) == (EPOCH + 100, EPOCH + 1500)
    assert not parts[0].oddities
    tables, parts = read_all(Report().kernel(1000, 1500).call(100, 200).sqlite(tmp_path))
    assert events_of(tables, category="kernel")[0]["start_ns"] == 1000
    assert "start of the recording" in parts[0].oddities["no_base_time"].detail


def test_an_export_with_normalised_times_is_not_shifted_again(tmp_path: Path) -> None:
    report = simple().add("META_DATA_EXPORT", {"name": "EXPORT_PARAM_TIME_NORMALIZE", "value": "true"})
    tables, _ = read_all(report.sqlite(tmp_path))
    assert events_of(tables, category="kernel")[0]["start_ns"] == 1000


def test_old_metadata_and_an_old_layout_are_read(tmp_path: Path) -> None:
    #  no ENUM tables, no eventClass, no globalPid on kernels, version in EXPORT_META_DATA
    report = Report(META_DATA_EXPORT=[], EXPORT_META_DATA=[{"name": "EXPORT_SCHEMA_VERSION", "value": "2.9.1"}])
    report.clock().kernel(1000, 1500).call(100, 200).call(300, 310, 2, name="cuInit").range(50, 250)
    for row in report.tables[KERNEL]:
        del row["globalPid"], row["demangledName"]
    for row in report.tables[RUNTIME]:
        del row["eventClass"]
    tables, parts = read_all(report.sqlite(tmp_path))
    assert parts[0].versions == {"nsys_schema": "2.9.1"}
    assert [r["name"] for r in events_of(tables, category="kernel")] == ["gemm"]
    assert [r["name"] for r in events_of(tables, category="cuda_driver")] == ["cuInit"]
    assert tables[0, "nvtx_gpu"].select(["start_ns", "dur_ns", "num_events"]).to_pylist() == [
        {"start_ns": EPOCH + 1000, "dur_ns": 500, "num_events": 1}
    ]


def test_push_pop_start_end_marks_and_open_ranges_are_told_apart(tmp_path: Path) -> None:
    report = simple().add("ENUM_NSYS_EVENT_TYPE", *({"id": i, "name": n} for i, n in (
        (1034, "NvtxMark"), (1059, "NvtxPushPopRange"), (1060, "NvtxStartEndRange"), (1075, "NvtxDomainCreate"),
        (1033, "NvtxCategory"), (1039, "NvtxThread"), (7, "CudaSomething"),
    )))  # fmt: skip
    report.range(10, 20, "pushpop", eventType=1059).range(11, 21, "startend", eventType=1060)
    report.range(12, None, "mark", eventType=1034).range(13, None, "open", eventType=1059)
    report.range(14, None, "NCCL", eventType=1075, domainId=3).range(15, None, "cat", eventType=1033)
    report.range(16, None, "main thread", eventType=1039).range(17, 19, "of a new type", eventType=4711)
    report.range(18, 18, None, eventType=1059, textId=report.word("registered"), domainId=3)
    tables, parts = read_all(report.sqlite(tmp_path), keep_args=True)
    rows = {r["name"]: (r["phase"], r["dur_ns"]) for r in events_of(tables, category="user_annotation")}
    assert rows == {
        "pushpop": ("X", 10), "startend": ("X", 10), "mark": ("i", None), "open": ("B", None),
        "of a new type": ("X", 2), "registered": ("X", 0),
    }  # fmt: skip
    assert parts[0].oddities["unmatched_begin"].count == 1
    assert "missing_dur" not in parts[0].oddities
    assert tables[0, "tracks"].to_pylist()[0]["value"] == "main thread"


def test_args_are_kept_as_json_only_if_asked(tmp_path: Path) -> None:
    report = (
        simple()
        .range(1, 2, "a", domainId=3, category=5, jsonText='say "hi"')
        .range(0, None, "NCCL", eventType=75, domainId=3)
    )
    file = report.sqlite(tmp_path)
    assert {r["args"] for r in events_of(read_all(file)[0])} == {None}
    args = {r["name"]: r["args"] for r in events_of(read_all(file, keep_args=True)[0])}
    assert args["cudaLaunchKernel"] == '{"returnValue":0}'
    assert args["a"] == '{"category":5,"domain":"NCCL","jsonText":"say \\"hi\\""}'


def test_a_graph_launch_is_device_work_and_graph_nodes_keep_their_ids(tmp_path: Path) -> None:
    report = simple().kernel(3000, 3100, 2, graphNodeId=77, graphId=9).kernel(3100, 3300, 2, graphNodeId=78, graphId=0)
    report.call(2000, 2010, 2, name="cudaGraphLaunch_v10000").range(1990, 2020, "replay")
    graph = {
        "start": 5000,
        "end": 5500,
        "deviceId": 0,
        "streamId": 7,
        "correlationId": 3,
        "globalPid": P1,
        "graphId": 4,
    }
    report.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", graph)
    tables, _ = read_all(report.sqlite(tmp_path))
    assert [m["graph_node_id"] for m in tables[0, "kernels_meta"].to_pylist()] == [None, 77, 78, None]
    assert [m["graph_id"] for m in tables[0, "kernels_meta"].to_pylist()] == [None, 9, None, 4]
    assert events_of(tables, name="CUDA graph 4")[0]["category"] == "kernel"
    assert [(r["name"], r["num_events"], r["busy_ns"]) for r in tables[0, "nvtx_gpu"].to_pylist()] == [
        ("replay", 2, 300)
    ]


def test_memory_events_carry_the_sign_that_the_report_names(tmp_path: Path) -> None:
    row = {"start": 5, "globalPid": P1, "deviceId": 0, "address": -4096, "bytes": 512, "memoryOperationType": 0}
    report = simple().add(
        "CUDA_GPU_MEMORY_USAGE_EVENTS", row, row | {"memoryOperationType": 1}, row | {"memoryOperationType": 9}
    )
    report.add("ENUM_CUDA_DEV_MEM_EVENT_OPER", {"id": 0, "label": "Allocation"}, {"id": 1, "label": "Deallocation"})
    tables, parts = read_all(report.sqlite(tmp_path))
    assert [(r["phase"], r["bytes"]) for r in events_of(tables, category="gpu_memory")] == [
        ("i", 512), ("i", -512), ("i", None),
    ]  # fmt: skip
    assert tables[0, "memory"]["address"].to_pylist() == [2**64 - 4096] * 3
    assert parts[0].oddities["unresolved"].count == 1  # the third operation has no name


# ------------------------------------------------------------------ NCCL payloads

COMM, SIZE, INT = 18, 22, 5
NCCL_SCHEMAS = {
    10: [("NCCL communicator ID", COMM, None), ("No. of ranks", INT, 8), ("Rank", INT, 12), ("CUDA device", INT, 16)],
    11: [("NCCL communicator ID", COMM, None), ("Message size [bytes]", SIZE, 8), ("Reduction operation", 999, 16)],
    12: [("NCCL communicator ID", COMM, None), ("Message size [bytes]", SIZE, 8), ("Peer rank", INT, 16)],
}


def payload(schema: int, body: bytes, domain: int = 1) -> bytes:
    return struct.pack("<IIIIQQ", domain, 0, schema, 0, len(body), 32 + len(body)) + body


def with_schemas(report: Report) -> Report:
    for schema, entries in NCCL_SCHEMAS.items():
        for idx, (name, kind, offset) in enumerate(entries):
            row = {"domainId": 1, "schemaId": schema, "idx": idx, "type": kind, "name": name, "offset": offset}
            report.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", row)
    return report


def nccl(report: Report, name: str, blob: object, thread: int = P1 | 501) -> Report:
    return report.range(10, 20, None, thread, textId=report.word(name), domainId=1, binaryData=blob)


@pytest.mark.parametrize("store", ["sqlite", "parquet"])
def test_nccl_payloads_become_collective_args(tmp_path: Path, store: str) -> None:
    report = with_schemas(simple())
    big = 0xFEDC_BA98_7654_3210
    nccl(report, "ncclAllReduce", payload(11, struct.pack("<QQI", big, 1 << 33, 0)))
    nccl(report, "ncclSend", payload(12, struct.pack("<QQi", big, 64, 3)))
    nccl(report, "ncclRecv", payload(12, struct.pack("<QQi", big, 64, -1)))
    nccl(report, "ncclGroupStart", None)
    nccl(report, "ncclBroken", b"short")
    nccl(report, "ncclCut", payload(11, struct.pack("<Q", 5)))
    nccl(report, "ncclUnknown", payload(99, bytes(24)))
    tables, _ = read_all(getattr(report, store)(tmp_path))
    names = {r["event_id"]: r["name"] for r in events_of(tables)}
    rows = {r["collective"]: r for r in tables[0, "collective_args"].to_pylist()}
    assert {name: (r["comm_id"], r["message_bytes"], r["peer_rank"]) for name, r in rows.items()} == {
        "ncclAllReduce": (big, 1 << 33, None),
        "ncclSend": (big, 64, 3),
        "ncclRecv": (big, 64, None),
        "ncclCut": (5, None, None),
    }
    assert all(names[r["event_id"]] == r["collective"] for r in rows.values())


def test_a_payload_schema_that_two_processes_define_differently_decodes_to_nothing(tmp_path: Path) -> None:
    report = with_schemas(simple())
    other = {"domainId": 1, "schemaId": 11, "idx": 1, "type": SIZE, "name": "Message size [bytes]", "offset": 16}
    report.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", other)
    nccl(report, "ncclAllReduce", payload(11, struct.pack("<QQQ", 1, 2, 3)))
    tables, parts = read_all(report.sqlite(tmp_path))
    assert (0, "collective_args") not in tables
    assert "define differently" in parts[0].oddities["unresolved"].detail


# ------------------------------------------------------------------ parts and ranks


def two_ranks() -> Report:
    report = Report().clock()
    for pid, device in ((P2, 0), (P1, 1)):
        report.kernel(1000, 1500, 1, pid, deviceId=device).call(100, 200, 1, pid | 9)
        report.range(90, 300, f"of {pid & 0xFFFFFFFFFF}", pid | 9)
    return report


def test_each_process_with_device_work_is_a_part_and_correlations_do_not_mix(tmp_path: Path) -> None:
    report = two_ranks()
    report.tables[KERNEL][1]["start"] = 1200
    tables, _ = read_all(report.sqlite(tmp_path))
    assert [events_of(tables, part, category="kernel")[0]["pid"] for part in (0, 1)] == [502, 501]  # by device
    assert [tables[part, "nvtx_gpu"]["start_ns"].to_pylist() for part in (0, 1)] == [[EPOCH + 1000], [EPOCH + 1200]]
    assert [tables[part, "events"]["event_id"].to_pylist() for part in (0, 1)] == [[0, 1, 2]] * 2
    assert nsys.peek(as_input(tmp_path / "report.sqlite")) == [
        PartInfo(source="nsys", versions={"nsys_schema": "3.25.0"})
    ] * 2  # fmt: skip


def test_an_ingest_that_stopped_between_two_ranks_of_a_report_goes_on_with_the_second(tmp_path, monkeypatch) -> None:
    report = two_ranks().sqlite(tmp_path)
    commit = SegmentWriter.commit

    def stop_at_rank_1(self: SegmentWriter, *args: object, **more: object) -> object:
        if self.rank == 1:
            raise StoreError("the power went")
        return commit(self, *args, **more)

    monkeypatch.setattr(SegmentWriter, "commit", stop_at_rank_1)
    assert "the power went" in str(ingest(report, store=tmp_path / "store", run="r").rejected[0])
    monkeypatch.undo()
    assert not ingest(report, store=tmp_path / "store", run="r").rejected
    assert not ingest(report, store=tmp_path / "undisturbed", run="r").rejected
    stores = [Store(str(tmp_path / name)) for name in ("store", "undisturbed")]
    assert [(c.rank, c.segment) for c in stores[0].committed("default", "r")] == [(0, 0), (1, 0)]
    assert stores[0].read("events", run="r").equals(stores[1].read("events", run="r"))


def test_a_process_that_only_has_ranges_is_no_rank_unless_none_has_device_work(tmp_path: Path) -> None:
    report = simple().range(1, 2, "load batch", P2 | 5).add("SCHED_EVENTS", {"start": 1, "cpu": 0})
    tables, parts = read_all(report.sqlite(tmp_path))
    assert len(parts) == 1
    assert "load batch" not in [r["name"] for r in events_of(tables)]
    assert parts[0].oddities["not_read"].count == 2
    for what in ("SCHED_EVENTS", "502"):
        assert what in parts[0].oddities["not_read"].detail
    (tmp_path / "cpu").mkdir()
    tables, parts = read_all(Report().clock().range(1, 2, "a", P2 | 5).range(1, 2, "b").sqlite(tmp_path / "cpu"))
    assert [events_of(tables, part)[0]["name"] for part in (0, 1)] == ["b", "a"]


def environment(report: Report, **variables: object) -> Report:
    text = ";".join(f"{key}={value}" for key, value in variables.items())
    return report.add("TARGET_INFO_SYSTEM_ENV", {"name": "DeviceEnvironment", "value": text})


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"RANK": 3, "WORLD_SIZE": 8, "SLURM_PROCID": 1, "SLURM_STEP_NUM_TASKS": 2}, (3, 8)),
        ({"OMPI_COMM_WORLD_RANK": 1, "OMPI_COMM_WORLD_SIZE": 4}, (1, 4)),
        ({"SLURM_PROCID": 5, "SLURM_STEP_NUM_TASKS": 16}, (5, 16)),
        ({"SLURM_PROCID": 0, "SLURM_STEP_NUM_TASKS": 1}, (None, None)),  # an interactive shell
        ({"RANK": 9, "WORLD_SIZE": 8}, (None, None)),
        ({"RANK": "x"}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_the_environment_names_the_rank_of_a_single_process(
    tmp_path: Path, variables: dict[str, object], expected: tuple[int | None, int | None]
) -> None:
    (part,) = nsys.peek(as_input(environment(simple(), **variables).sqlite(tmp_path)))
    assert (part.rank, part.world_size) == expected


def test_the_environment_of_a_launcher_of_several_ranks_names_none(tmp_path: Path) -> None:
    parts = nsys.peek(as_input(environment(two_ranks(), RANK=0, WORLD_SIZE=2).sqlite(tmp_path)))
    assert [part.rank for part in parts] == [None, None]


def communicator(size: int, rank: int) -> bytes:
    return payload(10, struct.pack("<QIIII", 77, size, rank, 0, 0))


@pytest.mark.parametrize(
    ("size", "variables", "expected"),
    [
        (2, {}, [1, 0]),
        (2, {"SLURM_STEP_NUM_NODES": 2}, [None, None]),  # could be a group inside one of the nodes
        (8, {}, [None, None]),  # could be one of several data-parallel groups
        (8, {"WORLD_SIZE": 8}, [1, 0]),
    ],
)
def test_nccl_names_ranks_only_if_its_communicator_is_the_world(
    tmp_path: Path, size: int, variables: dict[str, object], expected: list[int | None]
) -> None:
    report = environment(with_schemas(two_ranks()), **variables)
    nccl(report, "ncclCommInitRank", communicator(size, 1), P2 | 9)
    nccl(report, "ncclCommInitRank", communicator(size, 0), P1 | 9)
    assert [part.rank for part in nsys.peek(as_input(report.sqlite(tmp_path)))] == expected


def test_a_rank_that_two_communicators_of_one_size_contradict_is_unknown(tmp_path: Path) -> None:
    report = with_schemas(two_ranks())
    for thread, rank in ((P2 | 9, 1), (P1 | 9, 0), (P1 | 9, 1)):
        nccl(report, "ncclCommInitRank", communicator(2, rank), thread)
    assert [part.rank for part in nsys.peek(as_input(report.sqlite(tmp_path)))] == [None, None]


def test_devices_are_numbered_as_the_process_sees_them(tmp_path: Path) -> None:
    gpus = [{"id": i, "name": f"GPU {i}", "uuid": f"u{i}", "clockRate": 1_980_000_000, "smCount": 132} for i in (0, 1)]
    report = simple().add("TARGET_INFO_GPU", *gpus)
    unmapped = read_all(report.sqlite(tmp_path))[0][0, "device_info"].to_pylist()
    assert [(d["device"], d["name"], d["uuid"], d["clock_mhz"]) for d in unmapped] == [
        (0, "GPU 0", None, 1980.0), (1, "GPU 1", None, 1980.0),
    ]  # fmt: skip
    (tmp_path / "mapped").mkdir()
    report.add("TARGET_INFO_CUDA_DEVICE", {"gpuId": 1, "cudaId": 0, "pid": 501}, {"gpuId": 0, "cudaId": 0, "pid": 777})
    mapped = read_all(report.sqlite(tmp_path / "mapped"))[0][0, "device_info"].to_pylist()
    assert [(d["device"], d["name"], d["uuid"]) for d in mapped] == [(0, "GPU 1", "u1")]


# ------------------------------------------------------------------ projection


def test_a_range_that_ends_on_another_thread_is_not_projected(tmp_path: Path) -> None:
    report = simple().range(50, 250, "here", eventType=60, endGlobalTid=P1 | 501)
    report.range(50, 250, "elsewhere", eventType=60, endGlobalTid=P1 | 7).range(50, 250, "other thread", P1 | 7)
    report.range(50, 100, "ends as the call starts").range(100, 101, "starts with the call")
    tables, _ = read_all(report.sqlite(tmp_path))
    assert tables[0, "nvtx_gpu"]["name"].to_pylist() == ["here", "starts with the call"]


times = st.integers(0, 60)
works = st.lists(st.tuples(st.integers(1, 6), times, st.integers(0, 15), st.integers(-1, 1)), max_size=12)
calls = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 3), times), max_size=10)
ranges = st.lists(st.tuples(st.integers(1, 4), times, st.integers(0, 40)), max_size=12)


@settings(deadline=None)
@given(works, calls, ranges, st.integers(1, 5), st.sampled_from([0, 2**62 - 200, -(2**62)]))
def test_projection_equals_brute_force(work_rows, call_rows, range_rows, pairs, shift) -> None:
    work = nsys_project.DeviceWork()
    for correlation, start, length, device in work_rows:
        work.add(*(np.array([v]) for v in (correlation, start + shift, start + length + shift, device)))
    for correlation, thread, start in call_rows:
        work.see_calls(*(np.array([v], np.int64) for v in (correlation, thread, start + shift)))
    launched: dict[int, tuple[int, int]] = {}
    for correlation, thread, start in call_rows:
        if correlation not in launched or start < launched[correlation][1]:
            launched[correlation] = (thread, start)
    expected = []
    for number, (thread, start, length) in enumerate(range_rows):
        for device in (-1, 0, 1):
            covered: set[int] = set()
            inside = [
                (s, s + n)
                for c, s, n, d in work_rows
                if d == device
                and c in launched
                and launched[c][0] == thread
                and start <= launched[c][1] < start + length
            ]
            for first, last in inside:
                covered.update(range(first, last))
            if inside:
                begin, end = min(s for s, _ in inside), max(e for _, e in inside)
                expected.append((number, device, begin + shift, end + shift, len(inside), len(covered)))
    monkey = pytest.MonkeyPatch()
    monkey.setattr(nsys_project, "MAX_PAIRS", pairs)
    columns = [np.array([r[i] for r in range_rows], np.int64) for i in range(3)] or [np.empty(0, np.int64)] * 3
    found = work.project(columns[0], columns[1] + shift, columns[1] + columns[2] + shift)
    monkey.undo()
    assert sorted(zip(*(column.tolist() for column in found), strict=True)) == expected
    assert work.num_unlaunched == sum(c not in launched for c, *_ in work_rows)


def test_ranges_beyond_the_budget_are_counted_not_projected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsys_project, "MIN_BUDGET", 0)
    monkeypatch.setattr(nsys_project, "PAIRS_PER_LAUNCH", 2)
    report = simple()
    for depth in range(5):
        report.range(90 - depth, 300 + depth)
    tables, parts = read_all(report.sqlite(tmp_path))
    assert len(tables[0, "nvtx_gpu"]) == 2
    assert parts[0].oddities["unresolved"].count == 3
    assert len(events_of(tables, category="user_annotation")) == 5


# ------------------------------------------------------------------ oddities


def test_impossible_values_become_null_and_are_counted(tmp_path: Path) -> None:
    report = (
        simple().kernel(500, 400, 2).kernel("soon", b"\0" * 5000, 3).kernel(None, 5, 4).kernel(2**63 - 1, 2**63 - 1, 5)
    )
    report.kernel(1, 2, 6, deviceId=2**40, streamId=1.5, demangledName=999_999, shortName=888_888)
    report.call(1, None, 9, nameId=4242)
    tables, parts = read_all(report.sqlite(tmp_path))
    kernels = events_of(tables, category="kernel")
    assert [(k["start_ns"], k["dur_ns"]) for k in kernels] == [
        (EPOCH + 1000, 500), (EPOCH + 500, None), (None, None), (None, None), (None, None), (EPOCH + 1, 1),
    ]  # fmt: skip
    assert (kernels[-1]["device"], kernels[-1]["stream"], kernels[-1]["name"]) == (None, None, None)
    counts = {kind: oddity.count for kind, oddity in parts[0].oddities.items()}
    assert counts.pop("unresolved") == 2 + 1 + 1  # names of kernel 6, name of the call, launch of 6
    assert counts == {
        "negative_dur": 1, "type_mismatch": 3, "missing_ts": 2, "missing_dur": 2, "time_out_of_range": 2,
        "integer_out_of_range": 1,
    }  # fmt: skip


def test_text_that_is_not_utf8_is_replaced_and_counted(tmp_path: Path) -> None:
    report = simple().range(1, 2, "ok").range(3, 4, "bad")
    file = report.sqlite(tmp_path, "UPDATE NVTX_EVENTS SET text = CAST(x'62ff64' AS TEXT) WHERE text = 'bad'")
    tables, parts = read_all(file)
    assert [r["name"] for r in events_of(tables, category="user_annotation")] == ["ok", "b\ufffdd"]
    assert parts[0].oddities["invalid_utf8"].count == 1


def test_text_of_absurd_length_is_not_read(tmp_path: Path) -> None:
    tables, parts = read_all(simple().range(1, 2, "x" * (1 << 20) + "y").sqlite(tmp_path))
    assert [r["name"] for r in events_of(tables, category="user_annotation")] == [None]
    assert parts[0].oddities["type_mismatch"].count == 1


@pytest.mark.parametrize("missing", ["StringIds", RUNTIME, "META_DATA_EXPORT", "TARGET_INFO_SESSION_START_TIME"])
def test_any_optional_table_may_be_absent(tmp_path: Path, missing: str) -> None:
    tables, _ = read_all(simple().range(1, 2).sqlite(tmp_path, f"DROP TABLE {missing}"))
    assert len(events_of(tables, category="kernel")) == 1


@pytest.mark.parametrize(
    "table", ["TARGET_INFO_SYSTEM_ENV", "META_DATA_EXPORT", "TARGET_INFO_GPU", KERNEL, "NVTX_EVENTS"]
)
def test_any_column_may_have_another_name(tmp_path: Path, table: str) -> None:
    report = environment(simple().range(50, 250), RANK=1).add("TARGET_INFO_GPU", {"id": 0, "name": "GPU"})
    whole = report.sqlite(tmp_path)
    with sqlite3.connect(whole) as db:
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    db.close()
    for column in columns:
        file = tmp_path / "renamed.sqlite"
        file.write_bytes(whole.read_bytes())
        with sqlite3.connect(file) as db:
            db.execute(f'ALTER TABLE {table} RENAME COLUMN "{column}" TO other')
        db.close()
        tables, _ = read_all(file, keep_args=True)
        assert len(tables[0, "events"]) == 3, column


def test_strings_are_found_also_without_a_key(tmp_path: Path) -> None:
    statements = (
        "CREATE TABLE s AS SELECT * FROM StringIds",
        "DROP TABLE StringIds",
        "ALTER TABLE s RENAME TO StringIds",
    )
    tables, parts = read_all(simple().sqlite(tmp_path, *statements))
    assert [r["name"] for r in events_of(tables)] == ["void gemm<float>(int)", "cudaLaunchKernel"]
    assert not parts[0].oddities


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Not all CUDA events might have been collected.", 1),
        ("CUPTI: 1234 events were dropped", 1234),
        ("0 NVTX events lost", None),
        ("Number of CUDA events collected: \t12.", None),
    ],
)
def test_losses_that_nsys_reports_are_passed_on(tmp_path: Path, text: str, count: int | None) -> None:
    report = two_ranks().add("DIAGNOSTIC_EVENT", {"timestamp": 0, "severity": 2, "text": text, "globalPid": P1})
    parts = nsys.peek(as_input(report.sqlite(tmp_path)))
    assert "lost_events" not in parts[0].oddities
    lost = parts[1].oddities.get("lost_events")
    assert (lost.count if lost else None) == count


def test_chunks_are_small_and_the_rows_the_same_whatever_the_size(tmp_path: Path) -> None:
    report = two_ranks()
    for i in range(50):
        report.range(90 - i, 300, f"range {i}", (P1, P2)[i % 2] | 9)
    file = report.sqlite(tmp_path)
    whole, _ = read_all(file)
    small, _ = read_all(file, rows_per_chunk=3)
    assert {key: table.to_pylist() for key, table in small.items()} == {key: t.to_pylist() for key, t in whole.items()}
    assert max(len(chunk.rows) for chunk in nsys.read(as_input(file), ReadOptions(rows_per_chunk=3))) <= 2 * 3


def test_progress_ends_at_the_size_of_the_input(tmp_path: Path) -> None:
    reading = nsys.read(as_input(simple().sqlite(tmp_path)), ReadOptions())
    assert [chunk.table for chunk in reading] == ["events", "kernels_meta"]
    assert reading.bytes_read == 1000


# ------------------------------------------------------------------ hostile input


def test_a_view_a_virtual_table_and_a_generated_column_are_not_looked_at(tmp_path: Path) -> None:
    bomb = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start, i AS end FROM n"
    report = simple()
    file = report.sqlite(
        tmp_path,
        f"CREATE VIEW NVTX_EVENTS AS {bomb}",
        "CREATE VIRTUAL TABLE OSRT_API USING fts5(start, end, globalTid, nameId)",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, end INTEGER, deviceId INTEGER, globalPid INTEGER,"
        " bytes INTEGER GENERATED ALWAYS AS (length(hex(zeroblob(100000000)))) VIRTUAL)",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET (start, end, deviceId, globalPid) VALUES (1, 2, 0, {P1})",
        f"CREATE INDEX liar ON {KERNEL} (start) WHERE start < 0",
    )
    tables, _ = read_all(file)
    assert Counter(r["category"] for r in events_of(tables)) == {"kernel": 1, "cuda_runtime": 1, "gpu_memset": 1}
    assert events_of(tables, category="gpu_memset")[0]["bytes"] is None


def test_nothing_is_written_beside_the_input(tmp_path: Path) -> None:
    file = simple().sqlite(tmp_path, "PRAGMA journal_mode=WAL")
    before = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()}
    file.chmod(0o444)
    read_all(file)
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == before


def test_a_write_ahead_log_that_was_not_merged_is_reported(tmp_path: Path) -> None:
    file = simple().sqlite(tmp_path)
    (tmp_path / "report.sqlite-wal").write_bytes(b"changes")
    _, parts = read_all(file)
    assert "report.sqlite-wal" in parts[0].oddities["truncated"].detail


@pytest.mark.parametrize(
    ("content", "error"),
    [(b"", UnsupportedInput), (b"hello", UnsupportedInput), (b"SQLite format 3\0", CorruptInput), (None, CorruptInput)],
)
def test_what_is_not_a_database_is_refused_with_a_next_step(tmp_path: Path, content: bytes | None, error: type) -> None:
    file = tmp_path / "x.sqlite"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(error, match=r"x\.sqlite: .*nsys export --type sqlite"):
        nsys.peek(as_input(file))


def test_a_database_of_another_program_and_an_empty_report_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.sqlite"
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE bookmarks (url)")
    db.close()
    with pytest.raises(UnsupportedInput, match="not an Nsight Systems export"):
        nsys.peek(as_input(file))
    with pytest.raises(UnsupportedInput, match="nsys profile --trace cuda,nvtx"):
        list(nsys.read(as_input(Report().clock().sqlite(tmp_path)), ReadOptions()))


@pytest.mark.parametrize("cut", [0.5, 0.66, 0.8, 0.97])
def test_of_a_truncated_file_everything_before_the_cut_is_kept(tmp_path: Path, cut: float) -> None:
    report = simple()
    for i in range(3000):
        report.range(i, i + 1, f"range number {i}")
    file = report.sqlite(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * cut)])
    tables, parts = read_all(file)
    names = [r["name"] for r in events_of(tables, category="user_annotation")]
    assert cut * 3000 - 300 < len(names) < 3000
    assert names == [f"range number {i}" for i in range(len(names))]
    assert "NVTX_EVENTS breaks off" in parts[0].oddities["truncated"].detail


def test_mutated_files_give_rows_or_one_clear_error(tmp_path: Path) -> None:
    report = with_schemas(simple()).range(50, 250).range(5, 6)
    nccl(report, "ncclSend", payload(12, struct.pack("<QQi", 7, 64, 3)))
    whole = report.sqlite(tmp_path).read_bytes()
    file = tmp_path / "mutant.sqlite"
    outcomes: Counter[str] = Counter()
    for seed in range(150):
        rng = random.Random(seed)
        mutant = bytearray(whole)
        for _ in range(rng.choice((1, 5, 50))):
            mutant[rng.randrange(len(mutant))] = rng.randrange(256)
        if rng.random() < 0.2:
            del mutant[rng.randrange(len(mutant)) :]
        file.write_bytes(mutant)
        try:
            read_all(file, keep_args=bool(seed % 2))
            outcomes["read"] += 1
        except InputError as error:
            outcomes["refused" if str(file) in str(error) else "refused without a path"] += 1
    assert outcomes.keys() == {"read", "refused"}
    assert min(outcomes.values()) > 10


def test_parquet_that_is_broken_costs_only_its_table(tmp_path: Path) -> None:
    folder = simple().range(1, 2).parquet(tmp_path)
    (folder / "NVTX_EVENTS.parquet").write_bytes(b"PAR1 nonsense PAR1")
    tables, parts = read_all(folder)
    assert Counter(r["category"] for r in events_of(tables)) == {"kernel": 1, "cuda_runtime": 1}
    assert "NVTX_EVENTS cannot be read" in parts[0].oddities["truncated"].detail


def test_parquet_bombs_links_and_empty_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsys_parquet, "ALWAYS_ALLOWED_BYTES", 1 << 20)
    with pytest.raises(CorruptInput, match="no parquet files"):
        nsys.peek(as_input(tmp_path))
    folder = simple().parquet(tmp_path)
    (folder / "NVTX_EVENTS.parquet").symlink_to("/etc/passwd")
    with pytest.raises(UnsafeInput, match="symbolic link"):
        nsys.peek(as_input(folder))
    (folder / "NVTX_EVENTS.parquet").unlink()
    zeros = pa.table({"start": np.zeros(1_000_000, np.int64)})
    pq.write_table(zeros, folder / "NVTX_EVENTS.parquet", compression="zstd")
    with pytest.raises(UnsafeInput, match="unfolds"):
        nsys.peek(as_input(folder))


def test_the_hint_for_a_report_is_the_exact_command() -> None:
    hint = nsys.nsys_rep_hint("runs/report3.nsys-rep")
    assert "`nsys export --type sqlite --output runs/report3.sqlite runs/report3.nsys-rep`" in hint
    assert "--output 'my report.sqlite' 'my report.nsys-rep'`" in nsys.nsys_rep_hint("my report.nsys-rep")
