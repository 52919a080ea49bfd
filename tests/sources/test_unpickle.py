from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path

import pytest

from perfkit.sources.unpickle import Loaded, load_plain_pickles


def load(folder: Path, *contents: bytes, **options: int) -> list[Loaded]:
    paths = []
    for number, content in enumerate(contents):
        paths.append(folder / f"dump_{number}")
        paths[-1].write_bytes(content)
    return list(load_plain_pickles(paths, **options))


def test_plain_data_comes_back(tmp_path):
    content = {"entries": [{"seq": 2**60, "name": "nccl:all_reduce", "sizes": [[4, 4]], "ok": None}]}
    (loaded,) = load(tmp_path, pickle.dumps(content))
    assert loaded.content == content
    assert loaded.problem is None


class Attack:
    def __reduce__(self):
        return os.mkdir, ("pwned",)


def test_a_pickle_that_wants_to_run_something_is_refused_and_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (loaded,) = load(tmp_path, pickle.dumps(Attack()))
    assert "mkdir" in str(loaded.problem)
    assert not (tmp_path / "pwned").exists()


def claims_a_terabyte() -> bytes:
    return b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"x."


def grows_without_end() -> bytes:
    """Doubles a tuple of itself: a few hundred bytes that want 2^200 elements when written as JSON."""
    return b"\x80\x02K\x01" + b"2\x86" * 200 + b"."


@pytest.mark.parametrize("hostile", [claims_a_terabyte(), grows_without_end(), b"", b"garbage", b"\x80\x04."])
def test_a_hostile_file_costs_only_itself(tmp_path, hostile):
    before, bad, after = load(tmp_path, pickle.dumps([1]), hostile, pickle.dumps([2]), cpu_seconds=1)
    assert (before.content, after.content) == ([1], [2])
    assert bad.content is None
    assert bad.problem


def test_what_json_cannot_say_is_refused(tmp_path):
    (loaded,) = load(tmp_path, pickle.dumps({"x": b"bytes"}))
    assert "not plain data" in str(loaded.problem)


def test_a_file_over_the_limit_is_refused(tmp_path):
    (loaded,) = load(tmp_path, pickle.dumps("x" * 1000), max_bytes=100)
    assert "larger than 100 bytes" in str(loaded.problem)


def test_a_missing_file_is_a_problem_of_its_own(tmp_path):
    (loaded,) = load_plain_pickles([tmp_path / "none"])
    assert loaded.problem == "No such file or directory"
