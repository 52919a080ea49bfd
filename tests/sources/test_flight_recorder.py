from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest

from perfkit.errors import UsageError
from perfkit.sources.flight_recorder import Progress, TraceInstead, folders_with_dumps, read_dumps

CONTENT = {
    "version": "2.10",
    "pg_config": {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
        "7": {"name": "7", "desc": "pp", "ranks": [1, 3]},
    },
    "pg_status": {
        "0": {"last_enqueued_collective": 5, "last_started_collective": 4, "last_completed_collective": 4},
        "1": {"last_enqueued_collective": 9, "last_started_collective": 9, "last_completed_collective": 9},
    },
    "entries": [
        {
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": 5,
            "profiling_name": "nccl:all_reduce",
            "state": "scheduled",
            "is_p2p": False,
            "time_created_ns": 17,
            "input_sizes": [[4]],
            "frames": [{"name": "train", "filename": "train.py", "line": 12}],
        },
        {
            "pg_id": 1,
            "process_group": ("7", "pp"),
            "collective_seq_id": 2,
            "profiling_name": "nccl:recv 0<-1",
            "state": "started",
            "is_p2p": True,
            "time_created_ns": 18,
        },
    ],
}


def write(path: Path, content: object = CONTENT) -> Path:
    path.write_bytes(json.dumps(content).encode() if path.suffix == ".json" else pickle.dumps(content))
    return path


@pytest.mark.parametrize("name", ["nccl_trace_rank_3", "_dump_3", "rank3.json", "trace.3.pkl"])
def test_pickle_and_json_give_the_same_dump_with_the_rank_of_the_file_name(tmp_path, name):
    write(tmp_path / name)
    (dump,) = read_dumps(tmp_path).dumps
    assert dump.rank == 3
    assert dump.groups["0"].ranks == (0, 1, 2, 3)
    assert dump.progress == {"0": Progress(5, 4), "7": Progress(9, 9)}
    collective, message = dump.calls
    assert (collective.op, collective.seq, collective.pending) == ("all_reduce", 5, True)
    assert collective.stack == ("train.py:12 train",)
    assert (message.op, message.is_p2p, message.peer) == ("recv", True, 3)  # place 1 of the group is rank 3


def test_a_group_without_entries_is_found_by_the_order_of_creation(tmp_path):
    write(tmp_path / "_dump_0", CONTENT | {"entries": []})
    (dump,) = read_dumps(tmp_path).dumps
    assert dump.progress == {"0": Progress(5, 4), "7": Progress(9, 9)}


def test_progress_comes_from_the_entries_where_there_is_no_status(tmp_path):
    write(tmp_path / "_dump_0", CONTENT | {"pg_status": {}})
    (dump,) = read_dumps(tmp_path).dumps
    assert dump.progress == {"0": Progress(5, 4)}


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("x_1", {"traceEvents": []}, "is not a Flight Recorder dump"),
        ("x_1", CONTENT | {"pg_config": [1]}, "unknown layout"),
        ("nameless", CONTENT, "which rank"),
        ("_dump_00", CONTENT, "also says that it is of rank 0"),
    ],
)
def test_a_file_that_is_no_dump_costs_only_itself(tmp_path, name, content, reason):
    write(tmp_path / "_dump_0")
    write(tmp_path / name, content)
    recording = read_dumps(tmp_path)
    assert [dump.rank for dump in recording.dumps] == [0]
    assert reason in str(recording.rejected[0])


def test_nothing_to_read_says_where_dumps_come_from(tmp_path):
    with pytest.raises(UsageError, match="TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        read_dumps(tmp_path)
    with pytest.raises(UsageError, match="no such file"):
        read_dumps(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("rank0.json.gz", gzip.compress(b'{"traceEvents": []}')),
        ("rank0.json", b' {"schemaVersion": 1, "traceEvents": ['),
        ("rank0.json", b'[{"ph": "X", "ts": 1}]'),
        ("rank0.sqlite", b"SQLite format 3\0"),
    ],
)
def test_a_trace_is_no_dump_and_is_for_analyze(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    [error] = read_dumps(tmp_path).rejected
    assert isinstance(error, TraceInstead)
    assert "not a Flight Recorder dump" in error.message
    assert error.next_step == f"`perfkit analyze {tmp_path / name}` reads traces"


def test_a_folder_without_files_names_the_nearest_folders_with_dumps(tmp_path):
    for name in ("deep/er/job", "a", "b/job", "c", "d"):
        (tmp_path / name).mkdir(parents=True)
        write(tmp_path / name / "_dump_0")
    (tmp_path / "e").mkdir()
    write(tmp_path / "e/rank0.json", {"distributedInfo": {"pg_config": []}})
    (tmp_path / "loop").symlink_to(tmp_path)
    assert folders_with_dumps(tmp_path) == [tmp_path / "a", tmp_path / "c", tmp_path / "d"]
    with pytest.raises(UsageError, match=f"holds no files, but there are dumps in {tmp_path}/a, {tmp_path}/c") as error:
        read_dumps(tmp_path)
    assert error.value.next_step == f"`perfkit hang {tmp_path}/a` reads one folder"
