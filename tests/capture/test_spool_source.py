"""Compaction: idempotent, whatever was interrupted; nothing that is not committed is deleted."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

import perfkit
from perfkit.capture.segments import SpoolWriter, rank_folder
from perfkit.cli.main import main
from perfkit.errors import CorruptInput, StoreError
from perfkit.sources import spool as source
from perfkit.sources.spool import compact_folder, find_spools, parse_segment, read_segment
from perfkit.store import Store
from tests.conftest import ROOT

HEADER = {"cluster": "c", "run": "r", "attempt": 0, "rank": 0, "host": "h", "world_size": 2, "store": "x"}
NOW = 1_794_800_000_000_000_000


def steps(first, count=1):
    return [[n, NOW + n, NOW + n + 1, None, 5, None, None, None, False] for n in range(first, first + count)]


def spool_of(tmp_path, rank=0):
    folder = rank_folder(tmp_path / "spool", "c", "r", 0, rank)
    return folder, SpoolWriter(folder, {**HEADER, "rank": rank})


def stored(store, table="steps"):
    return Store(store).read(table, run="r").to_pylist()


def test_closed_segments_are_committed_then_deleted_and_doing_it_again_changes_nothing(tmp_path):
    folder, writer = spool_of(tmp_path)
    writer.append({"steps": steps(0, 3)})
    writer.rotate()
    writer.append({"steps": steps(3)})
    writer.close()
    store = str(tmp_path / "store")
    done = compact_folder(folder, store)
    assert (done.num_segments, done.rows) == (2, {"steps": 4})
    assert not list(folder.glob("*.spool"))
    assert compact_folder(folder, store).num_segments == 0
    assert [row["step"] for row in stored(store)] == [0, 1, 2, 3]


def test_a_segment_that_was_committed_but_not_deleted_is_not_committed_twice(tmp_path):
    folder, writer = spool_of(tmp_path)
    writer.append({"steps": steps(0)})
    writer.close()
    (path,) = folder.glob("*.spool")
    data, store = path.read_bytes(), str(tmp_path / "store")
    compact_folder(folder, store)
    path.write_bytes(data)
    done = compact_folder(folder, store)
    assert done.num_segments == 0
    assert not path.exists()
    assert len(stored(store)) == 1


def test_an_open_segment_is_left_alone_or_taken_so_far_and_replaced_by_the_whole(tmp_path):
    folder, writer = spool_of(tmp_path)
    store = str(tmp_path / "store")
    writer.append({"steps": steps(0)})
    assert compact_folder(folder, store).num_segments == 0
    assert compact_folder(folder, store, include_open=True).num_segments == 1
    assert len(list(folder.glob("*.spool"))) == 1
    writer.append({"steps": steps(1)})
    assert compact_folder(folder, store, include_open=True).num_segments == 1
    assert [row["step"] for row in stored(store)] == [0, 1]
    writer.close()
    compact_folder(folder, store)
    assert [row["step"] for row in stored(store)] == [0, 1]
    assert not list(folder.glob("*.spool"))


def test_the_segment_of_a_killed_writer_is_taken_with_its_torn_end_noted(tmp_path):
    folder, writer = spool_of(tmp_path)
    writer.append({"steps": steps(0)})
    writer.leave()  # what is left when a process dies: no end frame, no claim
    (path,) = folder.glob("*.spool")
    path.write_bytes(path.read_bytes() + b"\xf7PKF\x02\x00")
    store = str(tmp_path / "store")
    assert compact_folder(folder, store).num_segments == 0  # host `h` is another one, and may still be writing
    os.utime(path, (0, 0))
    compact_folder(folder, store)
    assert len(stored(store)) == 1
    assert [row["kind"] for row in stored(store, "quality")] == ["truncated"]
    assert not path.exists()


def test_a_segment_that_never_began_is_removed_and_a_damaged_one_stays_and_is_named(tmp_path):
    folder, writer = spool_of(tmp_path)
    writer.append({"steps": steps(0)})
    writer.close()
    (folder / "1-1-0000.spool").write_bytes(b"PKSP")
    (folder / "1-1-0001.spool").write_bytes(b"rubbish that is no segment, longer than an opening")
    done = compact_folder(folder, str(tmp_path / "store"))
    assert [path.name for path in folder.glob("*.spool")] == ["1-1-0001.spool"]
    assert [error.path for error in done.problems] == [str(folder / "1-1-0001.spool")]
    assert len(stored(str(tmp_path / "store"))) == 1


def test_a_damaged_batch_is_noted_and_the_others_are_kept(tmp_path):
    folder, writer = spool_of(tmp_path)
    for n in range(3):
        writer.append({"steps": steps(n)})
    writer.close()
    (path,) = folder.glob("*.spool")
    data = bytearray(path.read_bytes())
    data[data.index(json.dumps(steps(1), separators=(",", ":")).encode()) + 3] ^= 1
    path.write_bytes(data)
    store = str(tmp_path / "store")
    compact_folder(folder, store)
    assert [row["step"] for row in stored(store)] == [0, 2]
    assert [(row["kind"], row["count"]) for row in stored(store, "quality")] == [("damaged_frame", 1)]


def test_losses_that_come_after_their_step_are_filled_in(tmp_path):
    folder, writer = spool_of(tmp_path)
    writer.append({"steps": steps(0, 2)})
    writer.append({"losses": [[0, 2.5]], "metadata": {"model": "m"}})
    writer.close()
    (path,) = folder.glob("*.spool")
    rows = read_segment(path)
    assert rows.tables["steps"]["loss"].to_pylist() == [2.5, None]
    assert rows.header["metadata"]["model"] == "m"


def test_gpu_samples_become_counters_and_what_happened_to_gpus_becomes_health_events(tmp_path):
    folder, writer = spool_of(tmp_path)
    writer.append({"counters": [[NOW, "loss", "log", 1.0, None]]})
    writer.append({"gpu_counters": [[NOW, 3, "GPU-abc", "gpu_power_watts", None, 512.0]]})
    writer.append({"health": [[NOW, 3, "GPU-abc", "xid", "fault", 79, "fell off the bus"]]})
    writer.close()
    store = str(tmp_path / "store")
    compact_folder(folder, store)
    rows = {row["name"]: row for row in stored(store, "counters")}
    assert (rows["gpu_power_watts"]["device"], rows["gpu_power_watts"]["uuid"]) == (3, "GPU-abc")
    assert rows["loss"]["uuid"] is None
    (event,) = Store(store).read("health_events", cluster="c").to_pylist()
    assert (event["node"], event["code"], event["kind"], event["severity"]) == ("h", 79, "xid", "fault")


@pytest.mark.parametrize(
    "batch",
    [{"steps": 5}, {"steps": [[1]]}, {"steps": [["x"] * 9]}, {"metadata": 3}, {"dropped": "x"}, {"losses": [[1]]},
     {"counters": [[2**70, "n", None, 1.0, None]]}, {"spans": [{"a": 1}]}],
)  # fmt: skip
def test_well_framed_nonsense_is_refused(batch):
    from perfkit.capture.frames import encode_frame, frame_seed, open_bytes

    uid = bytes(16)
    data = open_bytes(uid) + b"".join(encode_frame(n, d, frame_seed(uid)) for n, d in enumerate([HEADER, batch]))
    with pytest.raises(CorruptInput):
        parse_segment(data, "case")


def test_ranks_and_traces_share_a_run_without_meeting(tmp_path):
    for rank in (1, 0):
        _, writer = spool_of(tmp_path, rank)
        writer.append({"steps": steps(0, 2)})
        writer.close()
    store = str(tmp_path / "store")
    assert main(["ingest", str(tmp_path / "spool"), "--store", store]) == 0
    (run,) = Store(store).runs()
    assert (run.ranks, run.world_size, run.sources) == ((0, 1), 2, ("capture",))


def test_a_spool_that_is_compacted_says_so_and_is_no_error(tmp_path, capsys):
    _, writer = spool_of(tmp_path)
    writer.append({"steps": steps(0)})
    writer.close()
    command = ["ingest", str(tmp_path / "spool"), "--store", str(tmp_path / "store")]
    assert main(command) == 0
    assert "ingested 1 file" in capsys.readouterr().out
    assert main(command) == 0
    assert "nothing left to ingest" in capsys.readouterr().out
    assert main([*command, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == []


def test_helper_files_are_not_looked_at(tmp_path):
    folder, writer = spool_of(tmp_path)
    writer.append({"steps": steps(0)})
    (folder / "live").mkdir()
    (folder / "live/metrics.json").write_text("{ broken")
    report = perfkit.ingest(tmp_path / "spool", store=tmp_path / "store")
    assert (report.rejected, report.ignored, len(report.files)) == ([], [], 1)
    writer.close()


def test_a_segment_named_alone_is_refused_with_the_next_step(tmp_path, capsys):
    folder, writer = spool_of(tmp_path)
    writer.append({"steps": steps(0)})
    writer.close()
    (path,) = folder.glob("*.spool")
    assert main(["ingest", str(path), "--store", str(tmp_path / "store")]) == 2
    assert "give the folder" in capsys.readouterr().err


def test_a_store_that_cannot_be_written_keeps_the_segments(tmp_path):
    folder, writer = spool_of(tmp_path)
    writer.append({"steps": steps(0)})
    writer.close()
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is a folder"):
        perfkit.ingest(tmp_path / "spool", store=tmp_path / "file")
    with pytest.raises(StoreError):
        compact_folder(folder, str(tmp_path / "file"))
    assert len(list(folder.glob("*.spool"))) == 1


def test_a_raw_trace_that_waits_is_compressed_committed_and_ingested(tmp_path):
    folder, writer = spool_of(tmp_path)
    writer.append({"steps": steps(0)})
    writer.close()
    traces = folder / "traces"
    traces.mkdir()
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 5.0, "dur": 1.0, "pid": 1, "tid": 1}
    document = {"traceEvents": [event], "distributedInfo": {"rank": 0, "world_size": 2}, "baseTimeNanoseconds": NOW}
    (traces / "step-00000007.json").write_text(json.dumps(document))
    store = tmp_path / "store"
    done = compact_folder(folder, str(store))
    assert done.num_traces == 1
    assert (store / source.trace_path(HEADER, 7)).exists()
    assert not list(traces.iterdir())
    assert Store(store).read("events", run="r")["name"].to_pylist() == ["aten::add"]
    assert len(stored(store)) == 1


@pytest.mark.slow
def test_a_compactor_that_is_killed_at_random_loses_and_repeats_nothing(tmp_path):
    dice = random.Random(3)
    store, total = str(tmp_path / "store"), 0
    folder = rank_folder(tmp_path / "spool", "c", "r", 0, 0)
    for _ in range(6):
        writer = SpoolWriter(folder, HEADER)
        for _ in range(4):
            writer.append({"steps": steps(total)})
            writer.rotate()
            total += 1
        writer.close()
        command = [sys.executable, "-m", "perfkit.capture.compact", str(folder), store]
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while len(list(folder.glob("*.spool"))) > dice.randint(0, 4) and time.monotonic() < deadline:
            if child.poll() is not None:
                break
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    compact_folder(folder, store)
    assert [row["step"] for row in sorted(stored(store), key=lambda row: row["step"])] == list(range(total))
    assert find_spools(tmp_path / "spool") == [folder]
