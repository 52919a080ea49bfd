"""The side process: real, started by the recorder; it compacts, samples, serves, and ends with its trainer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

import perfkit
from perfkit.store import Store
from tests.capture.test_capture_metrics import samples
from tests.conftest import ROOT


def until(condition, seconds=120.0):
    """Poll; the machine may be slow, so the time is generous."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


def test_finish_leaves_everything_in_the_store_and_the_process_ends(init, store):
    pk = init(side_process=True, host_seconds=0.05, flush_seconds=0.02)
    for _ in range(3):
        with pk.step(tokens=1):
            pass
    process = until(lambda: pk.writer.sidecar._process)
    until(lambda: list(pk.writer.folder.glob("*.spool"))[1:])  # the sampler has a segment of its own
    pk.finish(timeout=120)
    assert len(Store(store).read("steps", run="r")) == 3
    names = set(Store(store).read("counters", run="r")["name"].to_pylist())
    assert {"process_rss_bytes", "host_memory_used_bytes", "perfkit_writer_cpu_seconds"} <= names
    assert not list((store / "spool").rglob("*.spool"))
    until(lambda: not Path(f"/proc/{process.pid}").exists() or _is_zombie(process.pid))


def _is_zombie(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.slow
def test_the_endpoint_serves_the_live_run(init, store):
    pk = init(side_process=True, metrics_port=0, flush_seconds=0.02, run="served")
    with pk.step(tokens=77):
        pass
    port = until(lambda: pk.writer.sidecar.metrics_port)

    def tokens():
        with pk.step(tokens=77):
            pass
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            found = {name: value for (name, _), value in samples(answer.read().decode()).items()}
        return found.get("perfkit_tokens_total", 0) >= 77

    assert until(tokens)
    pk.finish(timeout=120)


@pytest.mark.slow
def test_a_port_that_is_taken_is_one_line_and_nothing_else(init, said):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        pk = init(side_process=True, metrics_port=taken.getsockname()[1], flush_seconds=0.02)
        with pk.step():
            pass
        until(lambda: not pk.guard.ok("metrics endpoint"))
        pk.finish(timeout=120)
    assert len([line for line in said() if "metrics endpoint is off" in line]) == 1


def test_a_side_process_that_dies_costs_one_line_and_the_records_stay_in_the_spool(init, store, said):
    pk = init(side_process=True, flush_seconds=0.02)
    with pk.step():
        pass
    process = until(lambda: pk.writer.sidecar._process)
    process.kill()
    process.wait()
    pk.finish(timeout=120)
    assert len([line for line in said() if "side process is off" in line]) == 1
    perfkit.ingest(store / "spool", store=store)
    assert len(Store(store).read("steps", run="r")) == 1


TRAINER = """
import os, sys, time, perfkit
pk = perfkit.init(run="r", store=sys.argv[1], flush_seconds=0.02, host_seconds=0)
with pk.step(tokens=5): pass
while pk.acknowledged_step is None: time.sleep(0.01)
workers = [os.fork() for _ in range(2)]
if 0 in workers:
    time.sleep(600)
print(*workers, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_killed_trainer_is_noticed_although_its_forked_workers_live_on(store):
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(store)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    workers = []
    try:
        workers = [int(pid) for pid in trainer.stdout.readline().split()]
        trainer.kill()
        trainer.wait()
        until(lambda: store.exists() and Store(store).exists and Store(store).runs())
        assert until(lambda: Store(store).read("steps", run="r").num_rows == 1)
    finally:
        for pid in workers:
            os.kill(pid, 9)
        trainer.stdout.close()


def test_the_live_file_says_what_the_run_is_doing(init):
    pk = init(flush_seconds=0.02)
    with pk.step(tokens=3):
        pass
    pk.finish(timeout=60)
    live = json.loads((pk.writer.folder / "live/metrics.json").read_text())
    assert (live["run"], live["step"], live["ended"], live["counts"]["tokens"]) == ("r", 0, True, 3)


@pytest.mark.slow
def test_segments_reach_the_store_while_the_run_goes_on(init, store):
    pk = init(side_process=True, flush_seconds=0.02, rotate_seconds=0.05)

    def stored():
        with pk.step(tokens=1):
            pass
        return store.exists() and Store(store).exists and [run for run in Store(store).runs() if run.rows.get("steps")]

    assert until(stored)
    assert pk.on
    pk.finish(timeout=120)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_loader_with_forked_workers_is_watched_and_recorded(init, store):
    torch = pytest.importorskip("torch")

    pk = init(side_process=True, flush_seconds=0.02)
    with pk.step():
        pass
    until(lambda: pk.acknowledged_step is not None)  # the workers inherit pipes, files and a thread that is not theirs
    loader = torch.utils.data.DataLoader(list(range(8)), num_workers=2, multiprocessing_context="fork")
    for item in pk.data(loader):
        with pk.step(tokens=int(item)):
            pass
    pk.finish(timeout=120)
    rows = Store(store).read("steps", run="r").to_pylist()
    assert [row["tokens"] for row in rows] == [None, *range(8)]
    assert all(row["data_wait_ns"] is not None for row in rows[1:])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_trace_is_asked_of_a_live_run_from_another_process(store):
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "tests.capture.job", str(store), "--steps", "100000", "--step-seconds", "0.05"]
    job = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: list((store / "spool").rglob("live/metrics.json")))
        ask = [sys.executable, "-m", "perfkit", "trace", "job", "--store", str(store), "--steps", "2", "--wait", "300"]
        done = subprocess.run(ask, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        path = Path(done.stdout.splitlines()[-1])
        assert path.exists()
        assert len(perfkit.analyze(path).tables["steps"]) == 2
    finally:
        job.kill()
        job.wait()
