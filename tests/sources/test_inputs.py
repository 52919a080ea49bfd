"""Opening inputs: every good byte is delivered, damage is reported, bombs are refused."""

from __future__ import annotations

import gzip
import io
import os
import random
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfkit.errors import CorruptInput, InputError, UnsafeInput, UnsupportedInput
from perfkit.sources import archives, inputs
from perfkit.sources.base import Input
from perfkit.sources.inputs import (
    BytesStream,
    DeflateStream,
    Limits,
    SliceStream,
    Stream,
    ZstdStream,
    compression_of,
    copy_stream,
    open_input,
)

quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def events(count: int, seed: int = 0) -> bytes:
    rng = random.Random(seed)
    return b"".join(
        b'{"ph": "X", "ts": %d.%03d, "name": "k%d"},\n' % (i, i % 1000, rng.getrandbits(40)) for i in range(count)
    )


def zstd_bytes(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


def given_file(folder: Path, data: bytes, *, compression: str = "none", kind: str = "kineto", name: str = "t") -> Input:
    file = folder / name
    file.write_bytes(data)
    return Input(str(file), kind, file, len(data), "f" * 32, compression)


def drain(stream: Stream, step: int = 1 << 20) -> bytes:
    buffer = bytearray(step)
    parts = []
    with stream:
        while count := stream.readinto(buffer):
            parts.append(bytes(buffer[:count]))
    return b"".join(parts)


def gunzipped_until_damage(data: bytes) -> bytes:
    """What zlib makes of gzip data, one byte at a time: the most that anyone can get."""
    out, decoder = [], zlib.decompressobj(31)
    for index in range(len(data)):
        try:
            out.append(decoder.decompress(data[index : index + 1]))
        except zlib.error:
            break
        if decoder.eof:
            break
    return b"".join(out)


def over(data: bytes) -> DeflateStream:
    return DeflateStream(lambda: BytesStream(data, path="t.gz"), path="t.gz")


class TestGzip:
    @quick
    @given(
        parts=st.lists(st.binary(max_size=3000).map(lambda b: b * 7), min_size=1, max_size=5),
        step=st.integers(1, 5000),
        padding=st.integers(0, 3),
    )
    def test_any_number_of_members_and_any_buffer_give_the_same_bytes(self, parts, step, padding):
        stored = b"".join(gzip.compress(part) for part in parts) + b"\0" * padding
        stream = over(stored)
        assert drain(stream, step) == b"".join(parts)
        assert (stream.problem, stream.truncated) == (None, False)

    @quick
    @given(cut=st.integers(1, 30_000), step=st.sampled_from([100, 4096, 1 << 20]))
    def test_a_cut_file_delivers_everything_before_the_cut(self, cut, step):
        whole = gzip.compress(events(1500), 6)
        stored = whole[: max(1, len(whole) - cut)]
        stream = over(stored)
        assert drain(stream, step) == gunzipped_until_damage(stored)
        assert stream.truncated
        assert "end early" in stream.problem

    @quick
    @given(where=st.integers(20, 60_000), flip=st.integers(1, 255))
    def test_a_damaged_file_delivers_at_least_what_zlib_gets_and_says_where(self, where, flip):
        stored = bytearray(gzip.compress(events(1500), 6))
        stored[where % len(stored)] ^= flip
        stream = over(bytes(stored))
        got = drain(stream)
        expected = gunzipped_until_damage(bytes(stored))
        if stream.problem is None:  # a flip in the header's time or flags changes nothing
            assert got == events(1500)
        else:
            assert got[: len(expected)] == expected

    def test_damage_in_the_second_member_keeps_the_first_and_half_the_second(self):
        first, second = events(2000, 1), events(20_000, 2)
        packed = bytearray(gzip.compress(second))
        packed[len(packed) // 2] ^= 0xFF
        packed[len(packed) // 2 + 1] ^= 0xFF
        stream = over(gzip.compress(first) + bytes(packed))
        got = drain(stream, 1000)
        assert got.startswith(first)
        assert got[len(first) :] == gunzipped_until_damage(bytes(packed))
        assert "broken at byte" in stream.problem
        assert not stream.truncated

    def test_a_wrong_checksum_is_reported_after_all_bytes(self):
        stored = bytearray(gzip.compress(events(100)))
        stored[-8] ^= 1
        stream = over(bytes(stored))
        assert drain(stream) == events(100)
        assert "incorrect data check" in stream.problem

    def test_something_else_after_the_gzip_data_is_reported_not_lost_in_silence(self):
        stored = gzip.compress(b"[1]") + b"trailing text"
        stream = over(stored)
        assert drain(stream) == b"[1]"
        assert f"at byte {len(gzip.compress(b'[1]'))}" in stream.problem

    def test_thousands_of_empty_members_are_refused(self):
        with pytest.raises(UnsafeInput, match="empty gzip members"):
            drain(over(gzip.compress(b"") * 10_100))

    def test_a_bomb_is_refused_by_its_ratio(self, tmp_path):
        bomb = given_file(tmp_path, gzip.compress(bytes(3 << 20)), compression="gzip")
        limits = Limits(ratio_floor_bytes=1 << 20)
        with pytest.raises(UnsafeInput, match="400 times its size"):
            drain(open_input(bomb, limits=limits))

    def test_a_small_file_of_any_ratio_passes(self, tmp_path):
        bomb = given_file(tmp_path, gzip.compress(bytes(3 << 20)), compression="gzip")
        assert len(drain(open_input(bomb))) == 3 << 20

    def test_more_than_the_limit_of_bytes_is_refused(self, tmp_path):
        file = given_file(tmp_path, gzip.compress(events(5000)), compression="gzip")
        with pytest.raises(UnsafeInput, match="100,000 bytes"):
            drain(open_input(file, limits=Limits(max_stream_bytes=100_000)))

    def test_a_bomb_hidden_behind_damage_is_refused_too(self):
        stored = bytearray(gzip.compress(bytes(8 << 20)))
        stored[-9] ^= 0xFF
        stream = DeflateStream(
            lambda: BytesStream(bytes(stored), path="t"), path="t", limits=Limits(ratio_floor_bytes=1 << 20)
        )
        with pytest.raises(UnsafeInput):
            drain(stream)


def skippable_frame(content: bytes, kind: int = 0) -> bytes:
    return struct.pack("<II", 0x184D2A50 + kind, len(content)) + content


class TestZstd:
    def open(self, data: bytes) -> ZstdStream:
        return ZstdStream(lambda: BytesStream(data, path="t.zst"), path="t.zst")

    def frame_with_checksum(self, data: bytes) -> bytes:
        """A zstd frame of uncompressed blocks, with a checksum that is wrong."""
        frame = [b"\x28\xb5\x2f\xfd\x84" + struct.pack("<BI", 0x58, len(data))]
        for at in range(0, len(data), 1 << 17):
            block = data[at : at + (1 << 17)]
            frame += [struct.pack("<I", len(block) << 3 | (at + len(block) == len(data)))[:3], block]
        return b"".join(frame) + b"\0\0\0\0"

    @pytest.mark.parametrize("count", [10, 3000, 60_000])
    def test_a_wrong_checksum_is_reported_after_all_bytes(self, count):
        stream = self.open(self.frame_with_checksum(events(count)))
        assert drain(stream) == events(count)
        assert "the compressed data are broken, before byte" in stream.problem
        assert not stream.truncated

    def test_damage_costs_no_block_before_it_however_well_they_compress(self):
        data = b"".join(events(100) for _ in range(600))
        stored = bytearray(zstd_bytes(data))
        assert len(stored) < 1 << 16  # all of it is one read of Arrow's
        whole = len(drain(self.open(bytes(stored[:-3]))))
        stored[-3] ^= 0xFF
        got = drain(self.open(bytes(stored)))
        assert data.startswith(got)
        assert len(got) >= whole - (1 << 17) > 1 << 20  # a zstd block is at most 128 KiB

    @quick
    @given(where=st.integers(0, 60_000), flip=st.integers(1, 255), step=st.sampled_from([777, 1 << 20]))
    def test_the_buffer_does_not_change_what_survives_damage(self, where, flip, step):
        stored = bytearray(zstd_bytes(events(1500)) * 2)
        stored[where % len(stored)] ^= flip
        stream = self.open(bytes(stored))
        got = drain(stream, step)
        assert stream.problem or len(got) == 2 * len(events(1500))
        assert got == drain(self.open(bytes(stored)), 1 << 16)

    @pytest.mark.parametrize("kind", [0, 7, 15])
    def test_frames_without_content_are_skipped_wherever_they_stand(self, kind):
        skipped = skippable_frame(b"abcd", kind)
        stored = skipped + zstd_bytes(events(10)) + skipped + zstd_bytes(events(20)) + skipped
        assert compression_of(stored) == "zstd"
        stream = self.open(stored)
        assert drain(stream) == events(10) + events(20)
        assert stream.problem is None

    @pytest.mark.parametrize("head", [b"", b"\x50\x2a\x4d", skippable_frame(b"abcd"), skippable_frame(b"") + b"lz4"])
    def test_frames_without_content_alone_do_not_make_zstd(self, head):
        assert compression_of(head) == "none"

    @quick
    @given(parts=st.lists(st.binary(max_size=5000), min_size=1, max_size=4), step=st.integers(1, 9000))
    def test_any_number_of_frames_and_any_buffer_give_the_same_bytes(self, parts, step):
        stream = self.open(b"".join(zstd_bytes(part) for part in parts))
        assert drain(stream, step) == b"".join(parts)
        assert (stream.problem, stream.truncated) == (None, False)

    def test_a_cut_file_delivers_all_whole_blocks(self):
        data = events(60_000)
        whole = zstd_bytes(data)
        stream = self.open(whole[: len(whole) * 3 // 4])
        got = drain(stream, 1 << 20)
        assert data.startswith(got)
        assert len(got) > len(data) * 3 // 4 - (1 << 18)  # a zstd block is at most 128 KiB
        assert stream.truncated

    def test_the_buffer_does_not_change_what_survives_a_cut(self):
        whole = zstd_bytes(events(60_000))
        stored = whole[: len(whole) // 2]
        assert drain(self.open(stored), 1 << 20) == drain(self.open(stored), 777)

    def test_what_is_not_zstd_after_a_frame_is_reported(self):
        stream = self.open(zstd_bytes(b"[1]") + b"garbage garbage garbage")
        assert drain(stream) == b"[1]"
        assert "broken" in stream.problem

    def test_a_bomb_is_refused(self):
        bomb = zstd_bytes(bytes(8 << 20))
        stream = ZstdStream(lambda: BytesStream(bomb, path="t"), path="t", limits=Limits(ratio_floor_bytes=1 << 20))
        with pytest.raises(UnsafeInput):
            drain(stream)


class TestPlainFiles:
    def test_a_byte_order_mark_is_skipped(self, tmp_path):
        assert drain(open_input(given_file(tmp_path, b"\xef\xbb\xbf[1]"))) == b"[1]"

    @pytest.mark.parametrize("data", [b"", b"[", b"[]", b"[1]", b"\xef\xbb"])
    def test_short_files_arrive_whole(self, tmp_path, data):
        assert drain(open_input(given_file(tmp_path, data))) == data

    def test_a_byte_order_mark_inside_gzip_is_skipped_and_damage_is_still_salvaged(self, tmp_path):
        stored = bytearray(gzip.compress(b"\xef\xbb\xbf" + events(4000)))
        stored[-8] ^= 1
        stream = open_input(given_file(tmp_path, bytes(stored), compression="gzip"))
        assert drain(stream) == events(4000)
        assert stream.problem

    def test_a_database_keeps_its_first_bytes(self, tmp_path):
        assert drain(open_input(given_file(tmp_path, b"\xef\xbb\xbfx", kind="nsys-sqlite"))) == b"\xef\xbb\xbfx"

    def test_readall_and_small_reads_work_like_on_any_file(self, tmp_path):
        stream = open_input(given_file(tmp_path, gzip.compress(b"hello world"), compression="gzip"))
        with stream:
            assert stream.read(5) == b"hello"
            assert stream.readall() == b" world"

    def test_a_named_pipe_is_refused_without_waiting(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InputError, match="named pipe"):
            SliceStream(tmp_path / "pipe", path="pipe")

    def test_a_folder_is_refused(self, tmp_path):
        with pytest.raises(InputError, match="a folder, not a file"):
            SliceStream(tmp_path, path="folder")

    def test_a_missing_file_is_one_line_with_a_next_step(self, tmp_path):
        with pytest.raises(InputError) as caught:
            SliceStream(tmp_path / "none", path="none")
        assert str(caught.value) == "none: no such file or folder; check the path"

    def test_a_file_without_permission_names_chmod(self, tmp_path, monkeypatch):
        def refuse(*_args: object) -> int:
            raise PermissionError(13, "Permission denied")

        file = given_file(tmp_path, b"[]")
        monkeypatch.setattr(inputs.os, "open", refuse)
        with pytest.raises(InputError, match="chmod"):
            open_input(file)

    def test_an_unknown_compression_is_named(self, tmp_path):
        with pytest.raises(UnsupportedInput, match="lz4"):
            open_input(given_file(tmp_path, b"x", compression="lz4"))


def make_zip(file: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file


def in_archive(file: Path, name: str, compression: str = "none") -> Input:
    """An input as `find_inputs` makes it: the archive is listed up to the member, and never again."""
    if file.suffix == ".zip":
        member = next(m for m in archives.zip_members(file, path=str(file)) if m.name == name)
    else:
        with SliceStream(file, path=str(file)) as stream:
            member = next(m for m in archives.tar_members(stream) if m.name == name)
    return Input(f"{file}!{name}", "kineto", file, file.stat().st_size, "f" * 32, compression, member)


class TestZip:
    @pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    def test_members_arrive_whole(self, tmp_path, method):
        file = make_zip(tmp_path / "a.zip", {"a.json": events(500), "b/c.json": events(900, 1)}, method)
        assert drain(open_input(in_archive(file, "b/c.json")), 1000) == events(900, 1)

    def test_gzip_inside_zip_is_undone_twice(self, tmp_path):
        file = make_zip(tmp_path / "a.zip", {"a.json.gz": gzip.compress(events(900))})
        stream = open_input(in_archive(file, "a.json.gz", "gzip"))
        assert drain(stream) == events(900)
        assert stream.problem is None

    def test_an_unknown_method_is_named(self, tmp_path):
        file = make_zip(tmp_path / "a.zip", {"a.json": events(100)}, zipfile.ZIP_LZMA)
        with pytest.raises(UnsupportedInput, match="lzma"):
            open_input(in_archive(file, "a.json"))

    def patched_sizes(self, file: Path, member: bytes, size: int) -> None:
        """Rewrite the uncompressed size in the directory, as a bomb would."""
        data = bytearray(file.read_bytes())
        at = data.rfind(b"PK\x01\x02")
        assert data[at + 46 : at + 46 + len(member)] == member
        struct.pack_into("<I", data, at + 24, size)
        file.write_bytes(data)

    def test_a_member_that_holds_more_than_it_claims_is_refused(self, tmp_path):
        file = make_zip(tmp_path / "a.zip", {"a.json": bytes(1 << 20)})
        self.patched_sizes(file, b"a.json", 10)
        with pytest.raises(UnsafeInput, match="claims 10 bytes"):
            drain(open_input(in_archive(file, "a.json")))

    def test_a_member_that_holds_less_than_it_claims_is_reported(self, tmp_path):
        file = make_zip(tmp_path / "a.zip", {"a.json": events(10)})
        self.patched_sizes(file, b"a.json", 1 << 20)
        stream = open_input(in_archive(file, "a.json"))
        assert drain(stream) == events(10)
        assert stream.truncated

    def test_a_wrong_checksum_is_reported(self, tmp_path):
        file = make_zip(tmp_path / "a.zip", {"a.json": events(10)})
        data = bytearray(file.read_bytes())
        data[data.rfind(b"PK\x01\x02") + 16] ^= 1
        file.write_bytes(data)
        stream = open_input(in_archive(file, "a.json"))
        assert drain(stream) == events(10)
        assert "checksum" in stream.problem

    def test_overlapping_members_are_refused(self, tmp_path):
        file = make_zip(tmp_path / "a.zip", {"a": events(10), "b": events(10)})
        data = bytearray(file.read_bytes())
        second = data.rfind(b"PK\x01\x02")
        struct.pack_into("<I", data, second + 42, 0)  # both entries point at the same bytes
        file.write_bytes(data)
        with pytest.raises(UnsafeInput, match="overlap"):
            archives.zip_members(file, path="a.zip")

    def test_too_many_members_are_refused(self, tmp_path):
        file = make_zip(tmp_path / "a.zip", {f"{i}": b"" for i in range(20)})
        with pytest.raises(UnsafeInput, match="20 members"):
            archives.zip_members(file, path="a.zip", limits=Limits(max_members=19))

    def test_a_huge_directory_is_refused_before_it_is_read(self, tmp_path):
        file = make_zip(tmp_path / "a.zip", {f"{i:0200}": b"" for i in range(20)})
        with pytest.raises(UnsafeInput, match="directory of"):
            archives.zip_members(file, path="a.zip", limits=Limits(max_members=2))

    def test_a_cut_archive_is_corrupt(self, tmp_path):
        file = make_zip(tmp_path / "a.zip", {"a": events(10)})
        file.write_bytes(file.read_bytes()[:-30])
        with pytest.raises(CorruptInput, match="without a directory"):
            archives.zip_members(file, path="a.zip")


def make_tar(file: Path, members: dict[str, bytes], *, format: int = tarfile.PAX_FORMAT, mode: str = "w") -> Path:
    with tarfile.open(file, mode, format=format) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file


class TestTar:
    @quick
    @given(
        members=st.dictionaries(
            st.text("abcé/", min_size=1, max_size=150).map(lambda name: "x" + name.rstrip("/")),
            st.binary(max_size=2000),
            max_size=5,
        ),
        format=st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
    )
    def test_members_are_those_that_tarfile_writes(self, tmp_path, members, format):
        file = make_tar(tmp_path / "a.tar", members, format=format)
        with SliceStream(file, path="a.tar") as stream:
            listed = list(archives.tar_members(stream))
        assert [(m.name, m.refused) for m in listed] == [(name, None) for name in members]
        for name, data in members.items():
            assert drain(open_input(in_archive(file, name))).removeprefix(b"\xef\xbb\xbf") == data.removeprefix(
                b"\xef\xbb\xbf"
            )

    def test_a_cut_archive_gives_the_members_before_the_cut_then_raises(self, tmp_path):
        file = make_tar(tmp_path / "a.tar", {"a": events(100), "b": events(100)})
        file.write_bytes(file.read_bytes()[:8000])
        names = []
        with SliceStream(file, path="a.tar") as stream, pytest.raises(CorruptInput, match="inside member b"):
            names.extend(member.name for member in archives.tar_members(stream))
        stream = open_input(in_archive(file, "b"))
        assert events(100).startswith(drain(stream))
        assert stream.truncated

    def test_an_archive_cut_between_members_is_reported_too(self, tmp_path):
        file = make_tar(tmp_path / "a.tar", {"a": bytes(512), "b": bytes(512)})
        file.write_bytes(file.read_bytes()[:1024])
        with SliceStream(file, path="a.tar") as stream:
            members = archives.tar_members(stream)
            assert next(members).name == "a"
            with pytest.raises(CorruptInput, match="after 1 members"):
                next(members)

    def test_a_header_extension_of_gigabytes_is_refused_unread(self, tmp_path):
        info = tarfile.TarInfo("././@LongLink")
        info.type, info.size = tarfile.GNUTYPE_LONGNAME, 4 << 30
        stream = BytesStream(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024), path="a.tar")
        with pytest.raises(UnsafeInput, match="header extension"):
            list(archives.tar_members(stream))

    @pytest.mark.parametrize(
        "body", [b"99 path=x\n", b"path=x\n", b"0 path=x\n", b"-5 path=x\n", b"10 pathxx\n", b" =\n"]
    )
    def test_broken_pax_records_are_corrupt(self, body):
        info = tarfile.TarInfo("pax")
        info.type, info.size = tarfile.XHDTYPE, len(body)
        stream = BytesStream(info.tobuf(tarfile.USTAR_FORMAT) + body.ljust(512, b"\0") + bytes(1024), path="a.tar")
        with pytest.raises(CorruptInput, match="pax"):
            list(archives.tar_members(stream))

    @pytest.mark.parametrize("size", ["-1", "1e3", "9" * 30, "٣"])
    def test_impossible_sizes_are_corrupt(self, tmp_path, size):
        record = f"size={size}\n".encode()
        body = f"{len(record) + 3} ".encode() + record
        assert len(body) == len(record) + 3
        info = tarfile.TarInfo("pax")
        info.type, info.size = tarfile.XHDTYPE, len(body)
        data = info.tobuf(tarfile.USTAR_FORMAT) + body.ljust(512, b"\0") + tarfile.TarInfo("a").tobuf() + bytes(1024)
        with pytest.raises(CorruptInput, match="size"):
            list(archives.tar_members(BytesStream(data, path="a.tar")))

    def test_too_many_members_are_refused(self, tmp_path):
        file = make_tar(tmp_path / "a.tar", {str(i): b"" for i in range(20)})
        with SliceStream(file, path="a.tar") as stream, pytest.raises(UnsafeInput, match="19 members"):
            list(archives.tar_members(stream, limits=Limits(max_members=19)))


class TestCopyStream:
    def test_it_is_private_uncompressed_and_whole(self, tmp_path):
        source = given_file(tmp_path, gzip.compress(events(3000)), compression="gzip", kind="nsys-sqlite")
        copy = tmp_path / "copy"
        with open_input(source) as stream:
            assert copy_stream(stream, copy, limits=Limits()) == len(events(3000))
        assert copy.read_bytes() == events(3000)
        assert copy.stat().st_mode & 0o077 == 0

    def test_a_full_disk_is_one_line_and_leaves_no_file_behind(self, tmp_path):
        source = given_file(tmp_path, gzip.compress(events(3000)), compression="gzip", kind="nsys-sqlite")
        copy = tmp_path / "copy"
        full = pytest.raises(InputError, match=r"No space left on device; free space there, or set TMPDIR")
        with open_input(source) as stream, full:
            copy_stream(stream, copy, limits=Limits(min_free_bytes=1 << 62))
        assert not copy.exists()
