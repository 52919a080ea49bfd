"""Loggers with their real packages: what is read back, and what a bad one cannot break."""

from __future__ import annotations

import json
import struct
import threading
import time
from pathlib import Path

import pytest

from perfkit.capture.guard import Guard
from perfkit.capture.loggers import QUEUE_STEPS, Loggers, scalars

ODD = "load: a/b\n(é)"
"""A span's name that MLflow refuses as it is."""


def train(pk, steps=4, between=lambda step: None):
    for step in range(steps):
        with pk.step(tokens=64):
            with pk.span("forward"), pk.span("inner"):
                pass
            with pk.span(ODD):
                pass
        between(step)
    pk.finish(timeout=120)


def close(loggers, seconds=120.0):
    loggers.end()
    loggers.join(time.monotonic() + seconds)


# -------------------------------------------------------------------- the thread


def test_names_of_phases_are_words():
    names = scalars({"phases_ns": {ODD: 5, "": 6, "a" * 900: 7}})
    assert {"perfkit/phase_seconds/load_ a_b__é_", "perfkit/phase_seconds/_"} < set(names)
    assert max(map(len, names)) < 250


def test_a_logger_that_fails_is_switched_off_with_one_line_and_the_others_go_on(said):
    got, tried = [], []

    def bad(step, metrics):
        tried.append(step)
        raise ConnectionError("no route")

    loggers = Loggers((bad, lambda step, metrics: got.append(step)), "store", Guard())
    for step in range(9):
        loggers.offer("run", {"step": step})
    close(loggers)
    assert got == list(range(9))
    assert tried == [0, 1, 2]
    assert [line for line in said() if "logger bad" in line] == said()


def test_a_logger_that_hangs_holds_up_neither_training_nor_recording(init, compacted, said):
    release = threading.Event()
    pk = init(loggers=(lambda step, metrics: release.wait(600),), flush_seconds=0.01)
    try:
        for _ in range(QUEUE_STEPS + 50):
            with pk.step(tokens=1):
                pass
        deadline = time.monotonic() + 120
        while pk.loggers.dropped == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert pk.loggers.dropped > 0
        store = compacted()
    finally:
        release.set()
    assert store.read("steps", run="r").num_rows == QUEUE_STEPS + 50
    assert sum("slower than the steps" in line for line in said()) == 1


def test_what_cannot_be_opened_is_left_out_with_a_line(said, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    got = []
    loggers = Loggers(("mlflow", "wandb", "no-such", lambda step, metrics: got.append(step)), "store", Guard())
    loggers.offer("run", {"step": 5})
    close(loggers)
    assert got == [5]
    assert [name for name in ("mlflow", "wandb", "no-such") if any(repr(name) in line for line in said())] == [
        "mlflow", "wandb", "no-such",
    ]  # fmt: skip


def test_other_ranks_log_nothing(init):
    got = []
    train(init(rank=1, world_size=2, loggers=(lambda step, metrics: got.append(step),)))
    assert got == []


# -------------------------------------------------------------------- TensorBoard


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_back_every_step(init, store):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(init(loggers="tensorboard", flops_per_token=1e9, peak_flops=1e12))
    events = EventAccumulator(str(store / "tensorboard" / "r")).Reload()
    tags = set(events.Tags()["scalars"])
    assert {"perfkit/step_seconds", "perfkit/tokens_per_second", "perfkit/phase_seconds/forward"} <= tags
    assert "perfkit/phase_seconds/inner" not in tags
    rows = events.Scalars("perfkit/step_seconds")
    assert [row.step for row in rows] == [0, 1, 2, 3]
    speed = [row.value for row in events.Scalars("perfkit/tokens_per_second")]
    assert speed == pytest.approx([64 / row.value for row in rows], rel=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_folder_that_tensorboard_cannot_write_is_one_line(init, store, compacted, said):
    pytest.importorskip("tensorboard")
    store.mkdir()
    (store / "tensorboard").write_text("a file, not a folder")
    train(init(loggers=("tensorboard",)))
    assert compacted().read("steps", run="r").num_rows == 4
    assert sum("'tensorboard' is left out" in line for line in said()) == 1


# -------------------------------------------------------------------- MLflow


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    found = pytest.importorskip("mlflow", minversion="2.14")
    before = found.get_tracking_uri()
    found.set_tracking_uri((tmp_path / "mlruns").as_uri())
    yield found
    found.end_run()
    found.set_tracking_uri(before)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_gets_the_steps_of_the_run_that_the_script_has_started(mlflow, init, compacted, said):
    pk = init(loggers=("mlflow",))
    with mlflow.start_run() as run:
        train(pk, between=lambda step: mlflow.log_metric("loss", 1.0, step=step))
    client = mlflow.MlflowClient()
    for name in ("perfkit/step_seconds", "perfkit/phase_seconds/forward", "perfkit/phase_seconds/load_ a_b__é_"):
        history = client.get_metric_history(run.info.run_id, name)
        assert sorted(row.step for row in history) == [0, 1, 2, 3], (name, said())
    assert len(client.get_metric_history(run.info.run_id, "loss")) == 4
    assert compacted().read("steps", run="r").num_rows == 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_without_a_run_of_the_script_mlflow_starts_none(mlflow, init, said):
    train(init(loggers=("mlflow",)))
    assert mlflow.active_run() is None
    assert mlflow.search_runs(output_format="list") == []
    assert said() == []


# -------------------------------------------------------------------- Weights & Biases


def read_wandb(path: Path):
    """Read the rows of an offline run: protobuf records in the blocks of a LevelDB log."""
    from wandb.proto import wandb_internal_pb2

    data, at, record = path.read_bytes() if path.exists() else b"", 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        if kind == 0 or at + 7 + size > len(data):
            return
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # full, or last part
            message = wandb_internal_pb2.Record()
            message.ParseFromString(record)
            record = b""
            if message.WhichOneof("record_type") == "history":
                yield {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in message.history.item
                }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("counts_itself", "joined"), [(False, [2, 5, 8]), (True, [5, 8])])
def test_wandb_gets_our_numbers_and_loses_none_of_the_scripts_rows(
    init, tmp_path, monkeypatch, said, counts_itself, joined
):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(project="p", dir=tmp_path, settings=wandb.Settings(console="off"))
    fed = threading.Semaphore(0)
    pk = init(loggers=("wandb", lambda step, metrics: fed.release()), flush_seconds=0.01)

    def own_row(step):
        assert fed.acquire(timeout=120)
        if step % 3 == 2:  # with a step of its own, a row stays open until the next one
            run.log({"loss": float(step)}, step=step // 3 if counts_itself else None)

    train(pk, steps=9, between=own_row)
    path = Path(run.settings.sync_file)
    run.finish()
    rows = wait_for_rows(path, 3)
    assert [row["loss"] for row in rows if "loss" in row] == [2.0, 5.0, 8.0]
    ours = [row for row in rows if "perfkit/step" in row]
    assert [row["perfkit/step"] for row in ours] == joined
    assert all(row["perfkit/step_seconds"] > 0 for row in ours)
    assert said() == []


def wait_for_rows(path, count):
    """The process that writes the file may still do so after `finish`."""
    end = time.monotonic() + 120
    while len(rows := list(read_wandb(path))) < count and time.monotonic() < end:
        time.sleep(0.1)
    return rows
