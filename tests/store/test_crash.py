"""Real processes that are killed, that race, and that run out of disk."""

import os
import random
import stat
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from perfkit.errors import StoreError
from perfkit.store import Store

ROOT = Path(__file__).resolve().parents[2]

WRITER = """
import sys, numpy as np, pyarrow as pa
from perfkit.store import Store
folder, first, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
store = Store(folder)
rows = 2000
print("ready", flush=True)
for rank in range(first, 10_000):
    with store.writer("c", "r", rank=rank, segment=0, fingerprint=str(rank)) as writer:
        for part in range(3):
            ids = np.arange(part * rows, (part + 1) * rows)
            writer.write("events", pa.table({"event_id": ids, "name": [name] * rows, "start_ns": ids * 7}))
            writer.write("ops", pa.table({"event_id": ids}))
        writer.commit()
        print(rank, flush=True)
"""


def start_writer(store: Store, first: int = 0, name: str = "k") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, store.uri, str(first), name]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill_and_check(store: Store, wait_for: int, delay: float, first: int) -> int:
    """Kill a writer some time after its n-th commit, check what is visible, and return how many there are."""
    process = start_writer(store, first)
    assert process.stdout is not None
    said = "".join(process.stdout.readline() for _ in range(wait_for))
    time.sleep(delay)
    process.kill()
    acknowledged = [int(line) for line in (said + process.communicate()[0]).split("\n")[:-1]]
    committed = {commit.rank: commit for commit in store.committed("c", "r")}
    assert set(range(first)) | set(acknowledged) <= set(committed)
    assert set(committed) <= set(range(first + len(acknowledged) + 1))  # the last one may not have been said
    for table in ("events", "ops") if committed else ():
        rows = store.read(table, columns=["rank", "event_id"]).to_pandas()
        whole = rows.groupby("rank")["event_id"].agg(["count", "min", "max"])
        assert set(whole.index) == set(committed)
        assert whole.drop_duplicates().to_numpy().tolist() == [[6000, 0, 5999]]
    return len(committed)


def check_kill_loop(store: Store, rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    first = 0
    for _ in range(rounds):
        first = kill_and_check(store, chance.randrange(4), chance.uniform(0.0, 0.05), first)
    assert first >= rounds // 2
    with store.writer("c", "r", rank=first, segment=0, fingerprint="x") as writer:
        writer.commit()  # and it can be written on
    store.gc(older_than_hours=0, dry_run=False)
    assert not list(Path(store.uri, ".tmp").glob("*"))
    listed = {os.fspath(path) for path in Path(store.uri, "events").rglob("*.parquet")}
    assert listed == set(store.files("events"))


def test_a_kill_leaves_only_whole_segments(store):
    check_kill_loop(store, rounds=5, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_kills_leave_only_whole_segments(store):
    check_kill_loop(store, rounds=100, seed=2)


def test_writers_of_different_segments_do_not_disturb_each_other_or_a_reader(store):
    one, two = start_writer(store, 0), start_writer(store, 5000)
    try:
        seen = 0
        while seen < 12:
            commits = store.committed("c", "r")
            seen = len(commits)
            rows = store.read("events", columns=["event_id"]).num_rows if seen else 0
            assert rows % 6000 == 0
            assert rows >= seen * 6000
            assert one.poll() is None
            assert two.poll() is None
    finally:
        one.kill()
        two.kill()
        one.communicate()
        two.communicate()


def test_two_writers_of_the_same_segments_agree(store):
    one, two = start_writer(store), start_writer(store)
    assert one.stdout is not None
    assert two.stdout is not None
    for rank in range(10):
        assert one.stdout.readline() == f"{rank}\n"
        assert two.stdout.readline() == f"{rank}\n"
    one.kill()
    two.kill()
    one.communicate()
    two.communicate()
    commits = store.committed("c", "r")
    rows = store.read("events", ranks=range(10), columns=["rank"])
    assert len(commits) >= 10
    assert len(rows) == 10 * 6000


def run_limited(store: Store, limit: int) -> subprocess.CompletedProcess[str]:
    code = """
import sys, resource, numpy as np, pyarrow as pa
from perfkit.store import Store
from perfkit.errors import StoreError
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
rng = np.random.default_rng(0)
try:
    with Store(sys.argv[1]).writer("c", "r", rank=1, segment=0, fingerprint="x") as writer:
        for _ in range(4):
            numbers = rng.integers(0, 2**62, 300_000)
            writer.write("events", pa.table({"event_id": np.arange(300_000), "start_ns": numbers, "dur_ns": numbers}))
        writer.commit()
except StoreError as error:
    print(error)
    sys.exit(3)
"""
    command = [sys.executable, "-c", code, store.uri, str(limit)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("limit", [500_000, 10])
def test_a_file_that_cannot_grow_is_an_error_with_a_next_step_and_leaves_nothing(store, write, limit):
    # RLIMIT_FSIZE makes the kernel refuse the write, as a full disk or a quota does.
    write(store, rank=0)
    before = sorted(Path(store.uri).rglob("*"))
    done = run_limited(store, limit)
    assert done.returncode == 3, done.stderr
    assert "File too large; free some space or choose another --store" in done.stdout
    assert sorted(Path(store.uri).rglob("*")) == before
    assert len(store.read("events")) == 10


def test_a_full_disk_at_the_commit_leaves_the_segment_uncommitted(store, write, monkeypatch):
    write(store, rank=0)
    original = os.fsync

    def full(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode) and os.pread(descriptor, 1, 0) == b"{":  # the commit
            raise OSError(28, "No space left on device")
        original(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left on device; free some space"):
        write(store, rank=1)
    monkeypatch.undo()
    assert {commit.rank for commit in store.committed("c", "r")} == {0}
    assert len(store.read("events")) == 10
    write(store, rank=1)
    assert len(store.read("events")) == 20


def test_a_store_that_cannot_be_written_says_so(tmp_path, monkeypatch):
    def denied(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", denied)  # the tests may run as root, whom no mode stops
    with pytest.raises(StoreError, match="Permission denied; check the permissions"):
        Store(tmp_path / "lake").writer("c", "r", rank=0, segment=0, fingerprint="x")


def test_a_store_below_a_file_says_so(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="choose a --store that is a folder"):
        Store(tmp_path / "file" / "lake").writer("c", "r", rank=0, segment=0, fingerprint="x")


def test_raw_readers_see_no_files_in_the_making(store, write, make_events):
    write(store)
    with store.writer("c", "r", rank=1, segment=0, fingerprint="x") as writer:
        writer.write("events", make_events(300_000))
        assert len(pq.read_table(Path(store.uri, "events"))) == 10
