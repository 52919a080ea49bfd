"""Finding inputs: by content, in any wrapping, with one clear line for whatever cannot be used."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import socket
import sqlite3
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfkit.errors import CorruptInput, InputError, UnsafeInput, UnsupportedInput
from perfkit.sources import detect
from perfkit.sources.base import Input
from perfkit.sources.detect import Found, find_inputs
from perfkit.sources.ingest import ingest
from perfkit.sources.inputs import Limits

TRACE = b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "name": "aten::add", "ts": 1, "dur": 2}]}'
LIST = b' \n[ {"name": "aten::add", "ph": "X", "ts": 1, "dur": 2} ]'


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


def tar(members: dict[str, bytes], *extra: tarfile.TarInfo) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for info in extra:
            archive.addfile(info)
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return sink.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return sink.getvalue()


def database(file: Path, *tables: str) -> bytes:
    connection = sqlite3.connect(file)
    for table in tables:
        connection.execute(f"CREATE TABLE {table} (id, value)")
    connection.commit()
    connection.close()
    return file.read_bytes()


def parquet(num_rows: int = 1, columns: tuple[str, ...] = ("id",)) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({name: list(range(num_rows)) for name in columns}), sink)
    return sink.getvalue()


def parquet_bomb() -> bytes:
    """200 million rows in 0.9 MB; the footer claims less than that."""
    sink = io.BytesIO()
    rows = pa.table({"Name": np.zeros(10_000_000, np.int64)})
    with pq.ParquetWriter(sink, rows.schema, compression="zstd", write_statistics=False) as writer:
        for _ in range(20):
            writer.write_table(rows, row_group_size=len(rows))
    assert len(sink.getvalue()) < 1_000_000
    return sink.getvalue()


def write_all(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def stored(item: Input) -> dict[str, bytes]:
    return {str(path.relative_to(item.file)): path.read_bytes() for path in item.file.rglob("*.parquet")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "spool").mkdir()
    return tmp_path / "in"


def find(folder: Path, *names: str, **options: object) -> Found:
    paths = [folder / name for name in names] or [folder]
    return find_inputs(paths, spool=folder.parent / "spool", **options)


def contents(found: Found) -> list[bytes]:
    result = []
    for item in found.inputs:
        with item.open() as stream:
            result.append(stream.read())
            assert stream.problem is None
    return result


def only_line(found: Found) -> str:
    assert not found.inputs
    (error,) = found.rejected
    line = str(error)
    assert "\n" not in line
    assert error.next_step, line
    assert line.startswith(error.path)
    return line


WRAPPINGS = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "two gzip members": lambda data: gzip.compress(data[:20]) + gzip.compress(data[20:]),
    "zstd": zstd,
    "pzstd": lambda data: b"\x50\x2a\x4d\x18\4\0\0\0size" + zstd(data),
    "tar": lambda data: tar({"a.json": data}),
    "tar of gzip": lambda data: tar({"a.json.gz": gzip.compress(data)}),
    "tar.gz": lambda data: gzip.compress(tar({"d/a.json": data})),
    "tar.gz of gzip": lambda data: gzip.compress(tar({"d/a.json.gz": gzip.compress(data)})),
    "tar.zst": lambda data: zstd(tar({"a.json": data})),
    "zip": lambda data: zipped({"a.json": data}),
    "zip of gzip": lambda data: zipped({"a.json.gz": gzip.compress(data)}),
    "zip of zstd": lambda data: zipped({"a.json.zst": zstd(data)}),
}


class TestTracesAreFoundByContent:
    @pytest.mark.parametrize("wrapping", WRAPPINGS)
    @pytest.mark.parametrize("trace", [TRACE, LIST, b"\xef\xbb\xbf" + TRACE])
    @pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "trace.bin", "noextension"])
    def test_in_any_wrapping_under_any_name(self, folder, wrapping, trace, name):
        (folder / name).write_bytes(WRAPPINGS[wrapping](trace))
        found = find(folder, name)
        assert not found.rejected
        assert contents(found) == [trace.removeprefix(b"\xef\xbb\xbf")]
        assert found.inputs[0].kind == "kineto"

    def test_a_header_longer_than_the_head_is_left_to_the_reader(self, folder):
        data = json.dumps({"pg_config": ["x" * 50] * 3000, "traceEvents": []}).encode()
        (folder / "t.json").write_bytes(data)
        assert contents(find(folder)) == [data]

    def test_a_cut_trace_is_still_an_input(self, folder):
        (folder / "t.json.gz").write_bytes(gzip.compress(TRACE * 50)[:-20])
        (folder / "u.json").write_bytes(TRACE[:60])
        assert len(find(folder).inputs) == 2

    def test_the_order_is_that_of_the_paths_whatever_was_asked_first(self, folder):
        for name in ("b.json", "a.json", "c.json"):
            (folder / name).write_bytes(TRACE)
        names = [Path(item.path).name for item in find(folder, "c.json", "a.json", "b.json").inputs]
        assert names == ["a.json", "b.json", "c.json"]

    def test_the_same_content_has_the_same_fingerprint_wherever_it_lies(self, folder):
        (folder / "a.json").write_bytes(TRACE)
        (folder / "b.tar").write_bytes(tar({"x/y.json": TRACE}))
        (folder / "c.tar.gz").write_bytes(gzip.compress(tar({"z.json": TRACE})))
        (folder / "d.json").write_bytes(TRACE + b" ")
        prints = [item.fingerprint for item in find(folder).inputs]
        assert prints[0] == prints[1] == prints[2] != prints[3]


class TestNsys:
    def test_an_export_is_found_plain_compressed_and_in_archives(self, folder, tmp_path):
        data = database(tmp_path / "db", "StringIds", "CUPTI_ACTIVITY_KIND_KERNEL")
        (folder / "a.db").write_bytes(data)
        (folder / "b.gz").write_bytes(gzip.compress(data))
        (folder / "c.zip").write_bytes(zipped({"r.sqlite": data}))
        (folder / "d.tar.gz").write_bytes(gzip.compress(tar({"r.sqlite": data})))
        found = find(folder)
        assert not found.rejected
        assert [item.kind for item in found.inputs] == ["nsys-sqlite"] * 4
        assert all(item.file.read_bytes() == data and item.compression == "none" for item in found.inputs)

    def test_another_database_is_an_error(self, folder):
        database(folder / "x.sqlite", "users")
        assert "nsys did not export (it has users)" in only_line(find(folder, "x.sqlite"))

    def test_a_broken_database_is_an_error(self, folder):
        (folder / "x.sqlite").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
        assert "broken SQLite database" in only_line(find(folder, "x.sqlite"))

    def test_a_parquet_folder_is_one_input(self, folder):
        for table in ("StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "OTHER"):
            pq.write_table(pa.table({"id": [1]}), folder / f"{table}.parquet")
        found = find(folder)
        assert [(item.kind, item.file) for item in found.inputs] == [("nsys-parquet", folder)]
        assert not found.rejected
        assert not found.ignored

    def test_its_fingerprint_follows_the_content_of_its_files(self, folder):
        pq.write_table(pa.table({"id": [1]}), folder / "StringIds.parquet")
        before = find(folder).inputs[0].fingerprint
        pq.write_table(pa.table({"id": [2]}), folder / "StringIds.parquet")
        assert find(folder).inputs[0].fingerprint != before

    def test_other_parquet_is_not_ours(self, folder):
        pq.write_table(pa.table({"id": [1]}), folder / "x.parquet")
        assert "parquetdir" in only_line(find(folder, "x.parquet"))

    def test_a_report_names_the_command_that_converts_it(self, folder):
        (folder / "r.nsys-rep").write_bytes(b"NVIDIA Tegra Profiler Report 2024@6")
        assert "nsys export --type" in only_line(find(folder))


PACKINGS = {
    "zip": zipped,
    "tar": tar,
    "tar.gz": lambda members: gzip.compress(tar(members)),
    "tar.zst": lambda members: zstd(tar(members)),
}
PROJECTION = ("Name", "Projected Start", "Projected Duration", "Rank")
TABLE_FILES = {
    "StringIds.parquet": parquet(2),
    "CUPTI_ACTIVITY_KIND_KERNEL.parquet": parquet(3),
    "PROCESSES.parquet": parquet(4),
}
TABLE_FOLDERS = {
    "StringIds/StringIds.parquet": parquet(2),
    "CUPTI_ACTIVITY_KIND_KERNEL/10.parquet": parquet(3),
    "CUPTI_ACTIVITY_KIND_KERNEL/9.parquet": parquet(5),
    "PROCESSES/part.parquet": parquet(4),
}


class TestProjectionsOfNsysRecipes:
    @pytest.mark.parametrize(
        "columns", [PROJECTION, tuple(f"{name} (ns)" if " " in name else name for name in PROJECTION)]
    )
    @pytest.mark.parametrize("name", ["trace.parquet", "deep/down/trace.parquet", "no_extension"])
    def test_a_file_with_its_columns_is_an_input_named_or_in_a_folder(self, folder, columns, name):
        write_all(folder, {name: parquet(columns=columns), "files.parquet": parquet()})
        for found in (find(folder), find(folder, name)):
            assert [(item.kind, item.file) for item in found.inputs] == [("nsys-parquet", folder / name)]
            assert not found.rejected

    @pytest.mark.parametrize("packing", PACKINGS)
    def test_in_an_archive_it_is_copied_out_and_other_parquet_is_ignored(self, folder, packing):
        data = parquet(columns=PROJECTION)
        (folder / "x").write_bytes(PACKINGS[packing]({"d/trace.parquet": data, "d/files.parquet": parquet(9)}))
        found = find(folder)
        (item,) = found.inputs
        assert (item.kind, item.path, item.member) == ("nsys-parquet", f"{folder / 'x'}!d/trace.parquet", None)
        assert item.file.read_bytes() == data
        assert [Path(ignored.path).name for ignored in found.ignored] == ["files.parquet"]
        assert [path for path in (folder.parent / "spool").rglob("*") if path.is_file()] == [item.file]

    def test_compressed_it_is_unpacked(self, folder):
        data = parquet(columns=PROJECTION)
        write_all(folder, {"a.parquet.gz": gzip.compress(data), "b.parquet.zst": zstd(data)})
        assert [item.file.read_bytes() for item in find(folder).inputs] == [data, data]

    def test_its_fingerprint_is_that_of_its_content_wherever_it_lies(self, folder):
        data = parquet(columns=PROJECTION)
        packed = {name: pack({"d/other name": data}) for name, pack in PACKINGS.items()}
        write_all(folder, {"plain": data, **packed, "~other": parquet(2, columns=PROJECTION)})
        prints = [item.fingerprint for item in find(folder).inputs]
        assert len(prints) == 6
        assert len(set(prints[:5])) == 1
        assert prints[5] != prints[0]

    def test_one_column_less_is_not_ours(self, folder):
        write_all(folder, {"x.parquet": parquet(columns=("Name", "Projected Start", "Duration"))})
        assert "parquetdir" in only_line(find(folder, "x.parquet"))


class TestNsysExportsInParquet:
    @pytest.mark.parametrize("files", [TABLE_FILES, TABLE_FOLDERS])
    def test_a_folder_is_one_input_in_both_layouts(self, folder, files):
        write_all(folder / "run" / "export", files)
        write_all(folder, {"run/rank0.json": TRACE})
        found = find(folder)
        assert [(item.kind, item.file) for item in found.inputs] == [
            ("nsys-parquet", folder / "run" / "export"),
            ("kineto", folder / "run" / "rank0.json"),
        ]
        assert not found.rejected
        assert not found.ignored

    @pytest.mark.parametrize("packing", PACKINGS)
    @pytest.mark.parametrize("where", ["", "./", "run/export/", "./run/export/"])
    def test_in_an_archive_it_is_gathered_in_one_folder(self, folder, packing, where):
        members = {f"{where}{name}": data for name, data in TABLE_FILES.items()}
        (folder / "x").write_bytes(PACKINGS[packing]({"a.json": TRACE, **members, "z.json": LIST}))
        found = find(folder)
        assert not found.rejected
        assert not found.ignored
        (export,) = [item for item in found.inputs if item.kind == "nsys-parquet"]
        assert len(found.inputs) == 3
        root = where.strip("/")
        assert export.path == str(folder / "x") + (f"!{root}" if root not in ("", ".") else "")
        assert stored(export) == TABLE_FILES
        assert export.size_bytes == sum(map(len, TABLE_FILES.values()))

    @pytest.mark.parametrize("packing", PACKINGS)
    def test_parts_of_a_table_keep_their_order_and_no_other_name_reaches_the_disk(self, folder, packing):
        (folder / "x").write_bytes(PACKINGS[packing]({f"e/{name}": data for name, data in TABLE_FOLDERS.items()}))
        found = find(folder)
        (export,) = found.inputs
        assert not found.rejected
        assert [data for _, data in sorted(stored(export).items())] == [
            data for _, data in sorted(TABLE_FOLDERS.items())
        ]
        assert {name.partition("/")[0] for name in stored(export)} == {
            "StringIds",
            "CUPTI_ACTIVITY_KIND_KERNEL",
            "PROCESSES",
        }
        assert all(Path(name).stem.isdigit() for name in stored(export))

    @pytest.mark.parametrize("files", [TABLE_FILES, TABLE_FOLDERS])
    def test_its_fingerprint_is_the_same_in_a_folder_and_in_any_archive(self, folder, files):
        write_all(folder / "plain", files)
        backwards = dict(reversed(files.items()))
        for name, pack in PACKINGS.items():
            (folder / name).write_bytes(pack({f"d/{name}": data for name, data in backwards.items()}))
        prints = [item.fingerprint for item in find(folder).inputs]
        assert len(prints) == 5
        assert len(set(prints)) == 1

    @pytest.mark.parametrize("change", ["content", "name", "one more"])
    def test_its_fingerprint_changes_with_any_file(self, folder, change):
        write_all(folder, TABLE_FOLDERS)
        before = find(folder).inputs[0].fingerprint
        if change == "content":
            write_all(folder, {"PROCESSES/part.parquet": parquet(5)})
        elif change == "name":
            (folder / "PROCESSES").rename(folder / "ThreadNames")
        else:
            write_all(folder, {"PROCESSES/part2.parquet": parquet(1)})
        assert find(folder).inputs[0].fingerprint != before

    @pytest.mark.parametrize("packing", [None, *PACKINGS])
    def test_several_exports_are_told_apart_also_when_one_lies_in_the_other(self, folder, packing):
        files = {
            **{f"a/{name}": data for name, data in TABLE_FILES.items()},
            **{f"a/inner/{name}": data for name, data in TABLE_FILES.items()},
            **{f"b/{name}": data for name, data in TABLE_FOLDERS.items()},
            **{f"b/inner/{name}": data for name, data in TABLE_FILES.items()},
        }
        if packing:
            (folder / "x").write_bytes(PACKINGS[packing](files))
        else:
            write_all(folder, files)
        found = find(folder)
        roots = [item.path.removeprefix(str(folder)).removeprefix("/x")[1:] for item in found.inputs]
        assert roots == ["a", "a/inner", "b", "b/inner"]
        a, a_inner, b, b_inner = (item.fingerprint for item in found.inputs)
        assert a == a_inner == b_inner != b
        assert not found.rejected
        assert not found.ignored

    def test_other_parquet_beside_it_stays_what_it_is(self, folder):
        write_all(
            folder, TABLE_FILES | {"dataset/train.parquet": parquet(), "p/trace.parquet": parquet(columns=PROJECTION)}
        )
        found = find(folder)
        assert [item.file for item in found.inputs] == [folder, folder / "p" / "trace.parquet"]
        assert [Path(item.path).name for item in found.ignored] == ["train.parquet"]

    @pytest.mark.parametrize("packing", [None, "zip", "tar.gz"])
    def test_a_table_in_both_layouts_is_not_guessed_about(self, folder, packing):
        files = {"e/StringIds.parquet": parquet(), "e/StringIds/0.parquet": parquet()}
        if packing:
            (folder / "x").write_bytes(PACKINGS[packing](files))
        else:
            write_all(folder, files)
        assert "StringIds is there as a file and as a folder" in only_line(find(folder))

    @pytest.mark.parametrize("name", ["StringIds/1.parquet", "PROCESSES.parquet"])
    def test_a_link_among_its_files_is_refused(self, folder, tmp_path, name):
        write_all(folder, {"StringIds/0.parquet": parquet(), "NVTX_EVENTS.parquet": parquet()})
        (tmp_path / "secret").write_bytes(parquet())
        (folder / name).symlink_to(tmp_path / "secret")
        assert "symbolic link" in only_line(find(folder))

    def test_of_a_cut_archive_the_tables_before_the_cut_are_used(self, folder):
        names = ["StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"]
        whole = tar({f"{name}.parquet": parquet(2000) for name in names})
        (folder / "x.tar").write_bytes(whole[: len(whole) // 2])
        found = find(folder)
        (export,) = found.inputs
        assert "StringIds.parquet" in stored(export)
        assert "ends early" in str(found.rejected[0])

    def test_a_damaged_table_of_an_archive_is_named_and_the_others_are_used(self, folder):
        (folder / "x.zip").write_bytes(
            zipped({**TABLE_FILES, "NVTX_EVENTS.parquet": b"\0" * 100, "OSRT_API.parquet": b""})
        )
        found = find(folder)
        assert stored(found.inputs[0]) == TABLE_FILES
        assert [str(error).partition(": ")[2].partition(";")[0] for error in found.rejected] == [
            "named .parquet but it is not parquet data (it starts with '" + "\\x00" * 16 + "')",
            "empty file",
        ]

    def test_a_wrong_checksum_of_a_table_is_found(self, folder):
        data = TABLE_FILES["PROCESSES.parquet"]
        with zipfile.ZipFile(folder / "x.zip", "w", zipfile.ZIP_STORED) as archive:
            for name, table in TABLE_FILES.items():
                archive.writestr(name, table)
        whole = (folder / "x.zip").read_bytes()
        (folder / "x.zip").write_bytes(whole.replace(data, data[:40] + bytes([data[40] ^ 1]) + data[41:]))
        found = find(folder)
        assert set(stored(found.inputs[0])) == {"StringIds.parquet", "CUPTI_ACTIVITY_KIND_KERNEL.parquet"}
        assert "checksum" in str(found.rejected[0])

    def test_more_than_the_spool_may_hold_is_refused_and_what_was_dropped_does_not_count(self, folder):
        data = parquet(columns=PROJECTION)
        (folder / "x.zip").write_bytes(
            zipped({"a.parquet": data + b"x" * 9, **{f"b-{i}": data[:-9] + b"PAR1" for i in range(20)}, "z": data})
        )
        found = find(folder, limits=Limits(max_total_bytes=len(data) + 20))
        assert [item.path[-2:] for item in found.inputs] == ["!z"]
        assert len(found.rejected) == 21
        assert not any("to unpack" in str(error) for error in found.rejected)
        (folder / "x.zip").write_bytes(zipped(TABLE_FILES))
        found = find(folder, limits=Limits(max_total_bytes=len(TABLE_FILES["StringIds.parquet"])))
        assert any("to unpack" in str(error) for error in found.rejected)

    def test_without_a_spool_it_says_what_to_do(self, folder):
        (folder / "x.zip").write_bytes(zipped(TABLE_FILES))
        assert "unpack it and give the folder" in only_line(find_inputs([folder]))


class TestHostileParquet:
    def test_a_bomb_is_refused_before_anything_is_decoded(self, folder):
        bomb = parquet_bomb()
        write_all(folder, {"x.parquet": bomb, "y.zip": zipped({"x.parquet": bomb})})
        found = find(folder)
        assert not found.inputs
        for error, path in zip(found.rejected, ("x.parquet", "y.zip!x.parquet"), strict=True):
            assert isinstance(error, UnsafeInput)
            assert str(error).startswith(f"{folder / path}: ")
            assert "decompression bomb" in str(error)
            assert "\n" not in str(error)

    @pytest.mark.parametrize("packing", [None, *PACKINGS])
    @pytest.mark.parametrize(
        "damage", [lambda data: data[:-20], lambda data: data[:-8] + b"\xff\xff\xff\x7fPAR1", lambda data: b"PAR1"]
    )
    def test_a_corrupt_footer_is_one_line_with_the_path_that_the_user_knows(self, folder, packing, damage):
        data = damage(parquet(columns=PROJECTION))
        (folder / "x").write_bytes(PACKINGS[packing]({"trace.parquet": data}) if packing else data)
        line = only_line(find(folder))
        assert line.startswith(f"{folder / 'x'}!trace.parquet: " if packing else f"{folder / 'x'}: ")
        assert "copy it again" in line

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(noise=st.binary(min_size=1, max_size=30), back=st.integers(1, 900))
    def test_any_damage_of_the_footer_is_an_input_or_a_line(self, folder, noise, back):
        data = parquet(columns=PROJECTION)
        at = max(4, len(data) - back)
        (folder / "x.parquet").write_bytes(data[:at] + noise + data[at + len(noise) :])
        found = find(folder, "x.parquet")
        assert len(found.inputs) + len(found.rejected) == 1
        assert all(error.next_step and "\n" not in str(error) for error in found.rejected)


class TestWhatCannotBeUsed:
    @pytest.mark.parametrize(
        ("name", "data", "reason"),
        [
            ("t.json", b"", "empty file"),
            ("t.json", b" \n ", "nothing but white space"),
            ("t.json.gz", b"", "empty file"),
            ("t.json.gz", gzip.compress(b""), "empty or broken gzip"),
            ("t.json.gz", b"\x1f\x8b\x08garbage", "empty or broken gzip"),
            ("t.json.gz", b"\x00\x01binary", "named .gz but it is not gzip"),
            ("t.json.zst", b"\x00\x01binary", "named .zst but it is not zstd"),
            ("t.json.zst", b"\x28\xb5\x2f\xfdgarbage", "empty or broken zstd"),
            ("t.json", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
            ("t.json", b"<!DOCTYPE html><html>", "a web page"),
            ("t.json", b"\n <HTML><body>403", "a web page"),
            ("t.json", '{"traceEvents": []}'.encode("utf-16"), "iconv"),
            ("t.json", '{"traceEvents": []}'.encode("utf-16-le"), "iconv -f UTF-16 "),
            ("t.json", '{"traceEvents": []}'.encode("utf-32"), "iconv -f UTF-32 "),
            ("t.json", '{"traceEvents": []}'.encode("utf-32-be"), "iconv -f UTF-32 "),
            ("t.json", b"hello", "not JSON"),
            ("t.json", b'{"schema": "1.1", "pid": 1, "nodes": [', "execution trace"),
            ("t.json", b'{"lr": 0.1, "model": {"traceEvent": 1}}', "without traceEvents (it has 'lr', 'model')"),
            ("t.json", b"{}", "without traceEvents"),
            ("t.json", b"[]", "an empty list"),
            ("t.json", b"[[1, 2], [3]]", "no trace events"),
            ("t.json", b'[{"a": 1}]', "no trace events"),
            ("t.json.gz", gzip.compress(gzip.compress(TRACE)), "compressed twice"),
            ("t.gz", gzip.compress(zipped({"a": TRACE})), "compressed zip"),
            ("t.tar.xz", b"\xfd7zXZ\0....", "compressed with xz"),
            ("t.parquet", b"", "empty file"),
            ("t.parquet", b"\x00\x01binary", "named .parquet but it is not parquet"),
            ("dump_0", pickle.dumps({"version": "2.9", "pg_config": {}}, protocol=2), "Flight Recorder"),
            ("x.pkl", pickle.dumps([1, 2]), "never loads"),
            ("x.arrow", b"ARROW1\0\0", "an Arrow file"),
            ("x.png", b"\x89PNG\r\n", "not a trace that perfkit knows"),
            ("x.zip", zipped({"readme.md": b"hi"}), "an archive without a trace"),
            ("x.zip", zipped({}), "an archive without a trace"),
            ("x.zip", zipped({"a.json": TRACE})[:29], "without a directory"),
            ("x.zip", zipped({"x.tar": tar({"a.json": TRACE})}), "an archive inside an archive"),
            ("x.tar.gz", gzip.compress(tar({"x.zip": zipped({"a.json": TRACE})})), "an archive inside an archive"),
            ("x.tar", tar({"x.tar.gz": gzip.compress(tar({"a.json": TRACE}))}), "an archive inside an archive"),
        ],
    )
    def test_one_line_says_why_and_what_to_do(self, folder, name, data, reason):
        (folder / name).write_bytes(data)
        assert reason in only_line(find(folder, name))

    def test_a_path_that_does_not_exist(self, folder):
        assert "no such file or folder" in only_line(find(folder, "none.json"))

    def test_a_path_with_a_null_byte(self, folder):
        assert "cannot be read" in only_line(find(folder, "a\0b"))

    def test_an_empty_folder(self, folder):
        assert "an empty folder" in only_line(find(folder))

    def test_a_folder_of_other_things(self, folder):
        (folder / "README.md").write_text("hi")
        (folder / "plot.png").write_bytes(b"\x89PNG")
        found = find(folder)
        assert "no trace among 2 files" in only_line(found)
        assert [Path(item.path).name for item in found.ignored] == ["README.md", "plot.png"]

    def test_an_exclamation_mark_in_a_path_does_not_make_it_a_member(self, folder):
        write_all(folder, {"now!/x.zip": zipped({"a.json": TRACE})})
        assert contents(find(folder)) == [TRACE]

    def test_a_symbolic_link_to_nothing(self, folder):
        (folder / "a.json").symlink_to(folder / "gone")
        assert "link to nothing" in only_line(find(folder, "a.json"))
        assert "link to nothing" in only_line(find(folder))

    def test_pipes_and_sockets_are_never_opened(self, folder, monkeypatch):
        os.mkfifo(folder / "pipe.json")
        with socket.socket(socket.AF_UNIX) as server:
            monkeypatch.chdir(folder)  # a socket's path must be short
            server.bind("sock.json")
            assert "a named pipe" in only_line(find(folder, "pipe.json"))
            assert "a socket" in only_line(find(folder, "sock.json"))
            (folder / "a.json").write_bytes(TRACE)
            assert len(find(folder).inputs) == 1

    def test_a_file_without_permission_does_not_stop_the_others(self, folder, monkeypatch):
        (folder / "a.json").write_bytes(TRACE)
        (folder / "b.json").write_bytes(TRACE)
        real_open = os.open

        def refuse(path: object, *args: int) -> int:
            if str(path).endswith("a.json"):
                raise PermissionError(13, "Permission denied")
            return real_open(path, *args)

        monkeypatch.setattr(os, "open", refuse)
        found = find(folder)
        assert [Path(item.path).name for item in found.inputs] == ["b.json"]
        assert "chmod" in str(found.rejected[0])

    def test_damage_in_a_folder_is_rejected_and_what_is_no_trace_is_ignored(self, folder):
        (folder / "a.json").write_bytes(TRACE)
        (folder / "cut.json").write_bytes(b"")
        (folder / "__init__.py").write_bytes(b"")
        (folder / "config.json").write_bytes(b'{"lr": 1}')
        (folder / "et.json").write_bytes(b'{"nodes": []}')
        (folder / ".git").mkdir()
        (folder / ".git" / "x.json").write_bytes(TRACE)
        found = find(folder)
        assert [Path(item.path).name for item in found.inputs] == ["a.json"]
        assert [Path(error.path).name for error in found.rejected] == ["cut.json"]
        assert [Path(item.path).name for item in found.ignored] == [".git", "__init__.py", "config.json", "et.json"]

    @pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd])
    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            (b"{bad", "enclosed in double quotes at byte 1"),
            (b'{"a":}', "expecting value at byte 5"),
            (b"{'traceEvents': []}", "double quotes at byte 1"),
            (b"{", "it ends in the middle"),
            (b"[", "it ends in the middle"),
            (b"[1,2", "it ends in the middle"),
            (b'{"schemaVersion": 1, "device', "it ends in the middle"),
            (b'[{"name": "aten::a', "it ends in the middle"),
        ],
    )
    def test_broken_json_in_a_folder_is_rejected_with_a_line_of_its_own(self, folder, pack, text, reason):
        (folder / "a.json").write_bytes(pack(text))
        (folder / "b.json").write_bytes(TRACE)
        found = find(folder)
        assert [Path(item.path).name for item in found.inputs] == ["b.json"]
        (error,) = found.rejected
        assert (Path(error.path).name, type(error)) == ("a.json", CorruptInput)
        assert error.message.startswith("broken JSON: ")
        assert reason in error.message

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("a.json", b'{"a": NaN, "b": [1, {}]}'), ("a.json", b"[1, 2]"), ("a.json", b"\xef\xbb\xbf{}"),
            ("a.json", b'{"a": "\xff"}'), ("a.json", b'{"a": 1}\n{"b": 2}\n'), ("a.json", b'{ // why\n "a": 1}'),
            ("a.json", b"[" * 60_000), ("a.jsonl", b'{"a": 1}\n{"b": 2}\n{"c'), ("pyproject.toml", b"[tool.x]\na = 1"),
            ("x.ini", b"[section]\na = 1"), ("config", b"[core]\n  bare = false"), ("x.log", b"[2024-01-01] INFO go"),
            ("x.log", b'{"a": 1} start'), ("log", b"{job} ended"), ("x.md", b"[link](target)"), ("x.txt", b"{'a': 1}"),
        ],
    )  # fmt: skip
    def test_other_texts_that_begin_with_a_bracket_are_ignored_in_a_folder(self, folder, name, text):
        (folder / name).write_bytes(text)
        (folder / "trace").write_bytes(TRACE)
        found = find(folder)
        assert [Path(item.path).name for item in found.inputs] == ["trace"]
        assert not found.rejected
        assert [Path(item.path).name for item in found.ignored] == [name]

    def test_a_cut_gzip_file_is_blamed_for_the_json_that_it_cuts(self, folder):
        (folder / "a.json.gz").write_bytes(gzip.compress(b'{"lr": "' + os.urandom(500).hex().encode())[:-200])
        assert "the compressed data end early" in only_line(find(folder))

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        data=st.binary(max_size=600)
        | st.tuples(st.sampled_from(list(WRAPPINGS)), st.binary(max_size=40), st.integers(0, 700)).map(
            lambda t: (whole := WRAPPINGS[t[0]](TRACE))[: t[2]] + t[1] + whole[t[2] + len(t[1]) :]
        ),
        name=st.sampled_from(["x", "x.json", "x.json.gz", "x.tar", "x.zip"]),
    )
    def test_any_bytes_are_an_input_or_a_line_and_never_an_exception(self, folder, data, name):
        (folder / name).write_bytes(data)
        for old in (folder.parent / "spool").iterdir():
            old.unlink()
        found = find(folder, name)
        (folder / name).unlink()
        assert found.inputs or found.rejected
        assert all(isinstance(error, InputError) and error.next_step for error in found.rejected)


class TestStores:
    def test_what_perfkit_wrote_is_not_looked_at(self, folder):
        trace = {"a.json": TRACE, "deep/a.json": TRACE + b" "}
        write_all(folder, trace)
        for where in (folder, folder / "lake"):
            assert not ingest(folder, store=where, run="r").rejected
        found = find(folder)
        assert [Path(item.path).name for item in found.inputs] == ["a.json", "a.json"]
        assert [item.path for item in found.ignored] == [
            str(folder / "lake/perfkit-store.json"),
            str(folder / "perfkit-store.json"),
        ]

    def test_a_store_given_as_a_dump_says_what_it_is(self, folder):
        write_all(folder, {"a.json": TRACE})
        ingest(folder / "a.json", store=folder / "runs", run="r")
        assert "a perfkit store" in only_line(find(folder, "runs"))


class TestLinks:
    def test_a_link_inside_the_folder_is_the_same_file_once(self, folder):
        (folder / "a.json").write_bytes(TRACE)
        (folder / "z.json").symlink_to(folder / "a.json")
        (folder / "loop").symlink_to(folder)
        found = find(folder)
        assert len(found.inputs) == 1
        assert not found.rejected
        assert [Path(item.path).name for item in found.ignored] == ["loop", "z.json"]  # and it is not walked twice

    def test_a_link_out_of_the_folder_is_refused(self, folder, tmp_path):
        (tmp_path / "secret.json").write_bytes(TRACE)
        (folder / "a.json").symlink_to(tmp_path / "secret.json")
        (folder / "d").symlink_to(tmp_path)
        found = find(folder)
        assert not found.inputs
        assert [type(error) for error in found.rejected] == [UnsafeInput, UnsafeInput]

    def test_a_link_that_the_user_names_is_followed(self, folder, tmp_path):
        (tmp_path / "t.json").write_bytes(TRACE)
        (folder / "a.json").symlink_to(tmp_path / "t.json")
        assert len(find(folder, "a.json").inputs) == 1

    def test_a_file_named_twice_is_one_input(self, folder):
        (folder / "a.json").write_bytes(TRACE)
        found = find_inputs([folder, folder / "a.json", folder])
        assert len(found.inputs) == 1
        assert not found.rejected


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


class TestHostileArchives:
    @pytest.mark.parametrize("pack", [lambda data: data, gzip.compress])
    def test_tricks_are_refused_one_line_each_and_the_rest_is_read(self, folder, pack):
        tricks = (
            special("link.json", tarfile.SYMTYPE, "/etc/passwd"),
            special("hard.json", tarfile.LNKTYPE, "../x"),
            special("null", tarfile.CHRTYPE),
            special("fifo.json", tarfile.FIFOTYPE),
        )
        names = {
            "/abs.json": TRACE,
            "../up.json": TRACE,
            "a/../../b.json": TRACE,
            "C:\\x.json": TRACE,
            "bell\a.json": TRACE,
        }
        (folder / "x.tar").write_bytes(pack(tar({**names, "good.json": TRACE}, *tricks)))
        found = find(folder)
        assert contents(found) == [TRACE]
        assert found.inputs[0].path.endswith("!good.json")
        assert len(found.rejected) == 9
        assert all(isinstance(error, UnsafeInput) and str(error).isprintable() for error in found.rejected)
        assert not [path for path in folder.parent.rglob("*") if path.name in ("up.json", "b.json", "abs.json")]

    def test_the_same_for_zip(self, folder):
        link = zipfile.ZipInfo("link.json")
        link.external_attr = 0o120777 << 16
        with zipfile.ZipFile(folder / "x.zip", "w") as archive:
            archive.writestr(link, "/etc/passwd")
            archive.writestr("../up.json", TRACE)
            archive.writestr("/abs.json", TRACE)
            archive.writestr("good.json", TRACE)
        found = find(folder)
        assert contents(found) == [TRACE]
        assert len(found.rejected) == 3

    @pytest.mark.filterwarnings("ignore:Duplicate name")
    @pytest.mark.parametrize("kind", ["zip", "tar"])
    def test_a_second_member_of_the_same_name_is_refused_and_other_case_is_another_name(self, folder, kind):
        members = [("a.json", TRACE), ("a.json", LIST), ("A.json", LIST)]
        if kind == "zip":
            with zipfile.ZipFile(folder / "x", "w") as archive:
                for name, data in members:
                    archive.writestr(name, data)
        else:
            with tarfile.open(folder / "x", "w") as archive:
                for name, data in members:
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
        found = find(folder)
        assert sorted(contents(found)) == sorted([TRACE, LIST])
        assert "same name" in str(found.rejected[0])

    def test_thousands_of_refusals_are_a_bounded_number_of_lines(self, folder):
        links = [special(f"l{i}", tarfile.SYMTYPE, "x") for i in range(detect.MAX_REFUSALS + 70)]
        (folder / "x.tar").write_bytes(tar({"good.json": TRACE}, *links))
        found = find(folder)
        assert len(found.inputs) == 1
        assert len(found.rejected) == detect.MAX_REFUSALS + 1
        assert any("70 more members refused" in str(error) for error in found.rejected)

    def test_a_cut_archive_is_used_up_to_the_cut_and_reported(self, folder):
        noise = os.urandom(40_000).hex().encode()
        whole = gzip.compress(tar({"a.json": TRACE, "b.json": TRACE + noise, "c.json": TRACE}))
        (folder / "x.tar.gz").write_bytes(whole[: len(whole) // 2])
        found = find(folder)
        assert [Path(item.path).name for item in found.inputs] == ["x.tar.gz!a.json", "x.tar.gz!b.json"]
        assert isinstance(found.rejected[0], CorruptInput)

    @pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    def test_a_cut_zip_archive_is_used_up_to_the_cut_and_reported(self, folder, method):
        noise = os.urandom(40_000).hex().encode()
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", method) as archive:
            for name, content in {"a.json": TRACE, "b.json": TRACE + noise, "c.json": TRACE, "d.json": TRACE}.items():
                archive.writestr(name, content)
        whole = buffer.getvalue()
        (folder / "x.zip").write_bytes(whole[: whole.index(b"d.json") - 10])
        (folder / "y.zip").write_bytes(whole[: len(whole) // 2])
        found = find(folder)
        assert [Path(item.path).name for item in found.inputs] == [
            "x.zip!a.json", "x.zip!b.json", "x.zip!c.json", "y.zip!a.json", "y.zip!b.json",
        ]  # fmt: skip
        said = [str(error) for error in found.rejected]
        assert "without a directory (cut short?); 3 files at its beginning could be found" in said[0]
        assert "2 files at its beginning" in said[1]

    def test_a_cut_zip_archive_whose_members_do_not_say_where_they_end_is_only_reported(self, folder):
        class Pipe(io.RawIOBase):
            def writable(self):
                return True

            def write(self, data):
                pieces.append(bytes(data))
                return len(data)

        pieces: list[bytes] = []
        with zipfile.ZipFile(Pipe(), "w") as archive:
            archive.writestr("a.json", TRACE)
        (folder / "x.zip").write_bytes(b"".join(pieces)[:-20])
        found = find(folder)
        assert (found.inputs, len(found.rejected)) == ([], 1)

    def test_a_zip_member_that_is_damaged_at_its_start_is_broken_not_empty(self, folder):
        whole = bytearray(zipped({"a.json": TRACE, "b.json": TRACE}))
        at = whole.index(b"a.json") + len(b"a.json")
        whole[at : at + 8] = b"\xff" * 8
        (folder / "x.zip").write_bytes(whole)
        found = find(folder)
        assert contents(found) == [TRACE]
        (error,) = found.rejected
        assert error.message.startswith("the compressed data are broken at byte 0")
        assert error.next_step.startswith("copy it again")

    def test_a_member_behind_the_cut_of_an_archive_is_not_called_empty(self, folder):
        whole = tar({"a.json": TRACE, "b.json": TRACE})
        (folder / "x.tar").write_bytes(whole[: 3 * 512])
        (folder / "y.tar.gz").write_bytes(gzip.compress(whole[: 3 * 512])[:-8])
        found = find(folder)
        assert len(found.inputs) == 2
        assert not [error for error in found.rejected if "empty" in str(error)]

    def test_a_bomb_in_an_archive_is_refused(self, folder):
        bomb = b'{"traceEvents": [' + b" " * (4 << 20)
        (folder / "x.tar.gz").write_bytes(gzip.compress(tar({"a.json": bomb})))
        found = find(folder, limits=Limits(ratio_floor_bytes=1 << 20))
        assert any(isinstance(error, UnsafeInput) for error in found.rejected)

    def test_more_than_the_spool_may_hold_is_refused(self, folder):
        (folder / "x.tar.gz").write_bytes(gzip.compress(tar({"a.json": TRACE, "b.json": TRACE})))
        found = find(folder, limits=Limits(max_total_bytes=len(TRACE) + 10))
        assert len(found.inputs) == 1
        assert "to unpack" in str(found.rejected[0])

    def test_without_a_spool_a_compressed_archive_says_what_to_do(self, folder):
        (folder / "x.tar.gz").write_bytes(gzip.compress(tar({"a.json": TRACE})))
        found = find_inputs([folder])
        assert isinstance(found.rejected[0], UnsupportedInput)
        assert "unpack it" in str(found.rejected[0])

    def test_resource_forks_of_another_system_are_ignored(self, folder):
        (folder / "x.zip").write_bytes(zipped({"a.json": TRACE, "__MACOSX/._a.json": b"\0\5\26\7", "._a.json": b"\0"}))
        found = find(folder)
        assert len(found.inputs) == 1
        assert not found.rejected


class TestRealFiles:
    def test_every_real_file_is_an_input_or_explained(self, traces, tmp_path):
        found = find_inputs([traces], spool=tmp_path)
        kinds = [item.kind for item in found.inputs]
        assert kinds.count("nsys-sqlite") == len(list(traces.rglob("*.sqlite")))
        assert [Path(error.path).suffix for error in found.rejected] == [".nsys-rep"] * len(
            list(traces.rglob("*.nsys-rep"))
        )
        assert sum("dlrm_kineto.tar.gz!" in item.path for item in found.inputs) == 8
        assert not [item for item in found.inputs if item.path.endswith("linear_et.json.gz")]
        assert len({item.fingerprint for item in found.inputs}) == len(found.inputs)


class TestOtherCommands:
    DUMP = pickle.dumps({"version": "2.9", "pg_config": {}, "entries": []})
    SACCT = b"JobID|State|Start|End\n1|COMPLETED|2024-01-01T00:00:00|2024-01-01T02:00:00\n"
    PHILLY = b"timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,a\n"

    @pytest.mark.parametrize(
        ("data", "step"),
        [
            (DUMP, "`perfkit hang FOLDER` explains it"),
            (pickle.dumps({"entries": [{"collective_seq_id": 1}]}), "`perfkit hang FOLDER` explains it"),
            (b'{"version": "2.9", "pg_config": {}, "entries": []}', "`perfkit hang FOLDER` explains it"),
            (SACCT, "`perfkit goodput FILE` reads it"),
            (PHILLY, "`perfkit goodput FILE` reads it"),
        ],
    )
    def test_a_file_that_another_command_reads_names_it(self, folder, data, step):
        (folder / "x").write_bytes(data)
        assert step in only_line(find(folder, "x"))
        assert step in find(folder).ignored[0].reason

    def test_a_folder_of_such_files_names_it(self, folder):
        write_all(folder, {"job/_dump_0": self.DUMP, "job/_dump_1": self.DUMP, "job/fault.log": b"x"})
        assert f"no trace among 3 files; `perfkit hang {folder}/job` explains" in only_line(find(folder))
        write_all(folder, {"sacct.txt": self.SACCT})
        assert f"`perfkit goodput {folder}` reads" in only_line(find(folder))

    def test_one_such_file_in_a_folder_names_it_once(self, folder):
        write_all(folder, {"philly.csv": self.PHILLY})
        assert only_line(find(folder)).count("perfkit goodput") == 1

    def test_a_training_log_that_begins_like_a_dump_is_still_found(self, folder):
        line = b" iteration 1/ 10 | consumed samples: 8 | elapsed time per iteration (ms): 5.0 |\n"
        assert detect.log_kind(line)
        (folder / "log").write_bytes(self.SACCT + b"-\n" * detect.HEAD_BYTES + line)
        assert [input.kind for input in find(folder).inputs] == ["megatron"]


class TestHiddenFolders:
    def test_their_names_are_said_where_nothing_else_is_found(self, folder):
        write_all(folder, {"LICENSE.md": b"free", ".github/t.json": TRACE})
        said = only_line(find(folder))
        assert "no trace in this folder (LICENSE.md" in said
        assert "hidden folders are skipped unless they are named: .github;" in said
        assert len(find(folder, ".github").inputs) == 1

    def test_only_some_of_many_are_named(self, folder):
        write_all(folder, {f"sub/.h{number}/t.json": TRACE for number in range(5)})
        assert "no files; hidden" in only_line(find(folder))
        assert "named: sub/.h0, sub/.h1, sub/.h2 and 2 more;" in only_line(find(folder))
