"""Segments: an acknowledged batch survives, a failed write leaves no rubbish, a claim ends with its process."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from perfkit.capture import segments
from perfkit.capture.frames import decode_segment
from perfkit.capture.segments import CLAIM, SpoolWriter, claim_is_held
from tests.capture.spool_killer import HEADER, Lost, check, kill_many, kill_once
from tests.conftest import ROOT


def read_all(folder):
    return [decode_segment(path.read_bytes()) for path in sorted(folder.glob("*.spool"))]


def test_every_append_is_on_disk_when_it_returns(tmp_path):
    spool = SpoolWriter(tmp_path, HEADER)
    for number in range(3):
        spool.append({"n": number})
        (segment,) = read_all(tmp_path)
        assert [batch["n"] for batch in segment.batches] == list(range(number + 1))
    assert not segment.closed
    spool.close()
    assert read_all(tmp_path)[0].closed


def test_rotation_starts_another_segment_of_the_same_writer(tmp_path):
    spool = SpoolWriter(tmp_path, HEADER)
    spool.append({"n": 0})
    spool.rotate()
    spool.rotate()
    spool.append({"n": 1})
    spool.close()
    assert [(len(one.batches), one.closed) for one in read_all(tmp_path)] == [(1, True), (1, True)]


def test_nothing_is_created_for_a_writer_that_writes_nothing(tmp_path):
    SpoolWriter(tmp_path, HEADER).close()
    assert not list(tmp_path.glob("*.spool"))


def test_a_write_that_fails_half_way_is_cut_off_again(tmp_path, monkeypatch):
    spool = SpoolWriter(tmp_path, HEADER)
    spool.append({"n": 0})
    true_write = os.write

    def full_disk(descriptor, data):
        if len(data) > 10:
            return true_write(descriptor, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(segments.os, "write", full_disk)
    with pytest.raises(OSError, match="No space"):
        spool.append({"n": "lost" * 100})
    monkeypatch.undo()
    spool.append({"n": 1})
    spool.close()
    (segment,) = read_all(tmp_path)
    assert [batch["n"] for batch in segment.batches] == [0, 1]
    assert not segment.damaged


def test_a_segment_that_was_deleted_is_noticed(tmp_path):
    spool = SpoolWriter(tmp_path, HEADER)
    spool.append({"n": 0})
    for path in tmp_path.glob("*.spool"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match="removed"):
        spool.check()


def test_a_claim_is_held_while_its_process_lives_and_not_after(tmp_path):
    path = tmp_path / f"x{CLAIM}"
    code = (
        "import sys, pathlib; from perfkit.capture.segments import claim;"
        "claim(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert child.stdout.readline() == b"held\n"
    assert claim_is_held(path)
    assert claim_is_held(path)  # looking did not take it away
    child.kill()
    child.communicate()
    assert not claim_is_held(path)


def test_the_own_claim_of_a_process_is_held_too(tmp_path):
    spool = SpoolWriter(tmp_path, HEADER)
    (path,) = tmp_path.glob(f"*{CLAIM}")
    assert claim_is_held(path)
    spool.close()
    assert not claim_is_held(path)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_no_acknowledged_batch_is_lost_in_twenty_kills():
    acknowledged, found = kill_many(20, seed=77)
    assert acknowledged <= found <= acknowledged + 20


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_acknowledged_batch_is_lost_in_a_thousand_kills():
    command = [sys.executable, "-m", "tests.capture.spool_killer", "--kills", "1000", "--seed", "5000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "none lost" in done.stdout


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_killer_would_notice_a_lost_batch(tmp_path):
    seed = next(seed for seed in range(100) if kill_once(tmp_path / str(seed), seed)[0] > 2)
    with pytest.raises(Lost, match="acknowledged"):
        check(tmp_path / str(seed), seed, reported=10**6)
    with pytest.raises(Lost, match="not the ones"):
        check(tmp_path / str(seed), seed + 1, reported=0)
