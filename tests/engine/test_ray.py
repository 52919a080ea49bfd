"""Ray does what the local engine does: the same rows, one failure per item, and a lost node costs nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time

import engine_jobs
import pytest

import perfkit
from perfkit.cli.main import main
from perfkit.engine.base import WorkerDied
from perfkit.errors import PerfkitError, UsageError
from tests.conftest import IN_CI
from tests.dumps import all_rows, assert_same_rows, make_dump

try:
    import ray
except ImportError as missing:  # the extra `ray`
    if IN_CI:
        raise
    pytest.skip(f"no Ray here: {missing}", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20, "dashboard_agent_listen_port": 0}


HEAD = {**NODE, "include_dashboard": False}


def patiently(start):
    """Start a part of Ray; it gives itself 30 seconds, which a machine with other things to do may not have."""
    for pause_s in (5, 10, 20, 40, None):
        try:
            return start()
        except Exception:
            if pause_s is None:
                raise
            time.sleep(pause_s)
    raise AssertionError("unreachable")


def add_node(cluster):
    return patiently(lambda: cluster.add_node(wait=False, **NODE))


def wait_for(num_nodes):
    """Wait until so many nodes are alive; needs a connection."""
    end = time.monotonic() + 300
    while sum(node["Alive"] for node in ray.nodes()) < num_nodes:
        assert time.monotonic() < end, ray.nodes()
        time.sleep(0.2)


@pytest.fixture(scope="module")
def cluster():
    """A head and two nodes: real processes of a real cluster, on this machine."""
    from ray.cluster_utils import Cluster

    started = patiently(lambda: Cluster(initialize_head=True, head_node_args=HEAD))
    try:
        for _ in range(2):
            add_node(started)
        yield started
    finally:
        ray.shutdown()
        started.shutdown()


@pytest.fixture
def engine(cluster):
    from perfkit.engine.ray import RayEngine

    opened = patiently(lambda: RayEngine(cluster.address))
    wait_for(3)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    return make_dump(tmp_path_factory.mktemp("dump") / "job", 12)


@pytest.fixture(scope="module")
def expected(dump, tmp_path_factory):
    store = tmp_path_factory.mktemp("local")
    perfkit.ingest(dump, store=store)
    return all_rows(store, "job")


def test_every_item_comes_back_once_and_in_order_if_asked(engine):
    outcomes = list(engine.map(engine_jobs.square, range(20), cost=lambda x: x, ordered=True))
    assert [outcome.unwrap() for outcome in outcomes] == [x * x for x in range(20)]


def test_an_item_that_raises_is_its_own_failure(engine):
    outcomes = {outcome.item: outcome for outcome in engine.map(engine_jobs.fail_on_odd, range(6))}
    assert [x for x, outcome in sorted(outcomes.items()) if outcome.error is None] == [0, 2, 4]
    assert str(outcomes[3].error) == "3 is odd"
    assert "fail_on_odd" in outcomes[3].traceback
    assert outcomes[3].attempts == 1


def test_progress_is_reported(engine):
    seen = []
    list(engine.map(engine_jobs.report, [3, 4], on_progress=lambda item, n: seen.append((item, n))))
    assert sorted(seen) == [(3, 3), (4, 4)]


def test_a_lost_worker_is_retried_and_a_deadly_item_given_up(engine, tmp_path):
    once = [(str(tmp_path / "died"), True), (str(tmp_path / "other"), False)]
    assert [outcome.unwrap() for outcome in engine.map(engine_jobs.die_once, once)] == ["survived"] * 2
    outcomes = list(engine.map(engine_jobs.die_on, [("kill", 1), ("fine", 2)], ordered=True))
    assert isinstance(outcomes[0].error, WorkerDied)
    assert outcomes[0].attempts == engine.max_attempts
    assert outcomes[1].value == 2


def test_a_node_that_is_killed_in_the_middle_costs_nothing(cluster, engine, dump, expected, tmp_path):
    victim = add_node(cluster)
    wait_for(4)
    killed = []

    def kill(done, total):
        if done and not killed:  # after the first file and before the last
            killed.append(done < total)
            cluster.remove_node(victim, allow_graceful=False)

    report = perfkit.ingest(dump, store=tmp_path, engine=engine, on_progress=kill)
    assert killed == [True]
    assert not report.rejected
    assert_same_rows(expected, all_rows(tmp_path, "job"))


def test_tasks_of_a_killed_node_run_again_on_the_others(cluster, engine, tmp_path):
    victim = add_node(cluster)
    wait_for(4)
    items = [(str(tmp_path), str(number)) for number in range(8)]

    def kill_when_busy():
        end = time.monotonic() + 300
        while time.monotonic() < end and len(list(tmp_path.glob("started-*"))) < 4:  # one on each node
            time.sleep(0.05)
        cluster.remove_node(victim, allow_graceful=False)
        (tmp_path / "go").write_text("")

    killer = threading.Thread(target=kill_when_busy)
    killer.start()
    outcomes = list(engine.map(engine_jobs.wait_for_go, items))
    killer.join()
    assert sorted(outcome.unwrap() for outcome in outcomes) == [str(number) for number in range(8)]


def test_an_analysis_is_the_same_on_ray(cluster, dump, engine):
    here, there = perfkit.analyze(dump), perfkit.analyze(dump, engine=engine)
    assert there.summary == here.summary
    for name, rows in here.tables.items():
        assert rows.equals(there.tables[name]), name


def test_an_interrupted_ingest_goes_on_on_any_engine(dump, expected, engine, tmp_path):
    some = sorted(dump.iterdir())[:5]
    perfkit.ingest(some, store=tmp_path, run="job")
    report = perfkit.ingest(dump, store=tmp_path, engine=engine)
    assert sorted(file.status for file in report.files) == ["ingested"] * 7 + ["unchanged"] * 5
    assert_same_rows(expected, all_rows(tmp_path, "job"))


def test_a_bad_file_is_one_line(dump, engine, tmp_path):
    bad = tmp_path / "bad.json"
    bad.write_text('{"traceEvents": [' + '{"ph": "X"' * 3)
    report = perfkit.ingest([dump, bad], store=tmp_path / "s", engine=engine, run="job")
    assert len(report.ranks) == 12
    assert [error.path for error in report.rejected] == [str(bad)]


def test_the_command_line_takes_an_address(cluster, dump, expected, tmp_path):
    command = ["ingest", str(dump), "--store", str(tmp_path), "--engine", "ray", "--address", cluster.address]
    done = subprocess.run(
        [sys.executable, "-m", "perfkit", *command], capture_output=True, text=True, timeout=300,
        env={**os.environ, "RAY_ADDRESS": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "12 of 12 ranks" in done.stdout
    assert_same_rows(expected, all_rows(tmp_path, "job"))


def test_an_address_that_nobody_answers_is_said_at_once(dump, tmp_path, capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = ["ingest", str(dump), "--store", str(tmp_path), "--engine", "ray", "--address", address]
    assert main(command) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert f"no Ray cluster answers at {address}" in line
    assert "--address" in line


def test_versions_that_differ_are_one_line(cluster, monkeypatch):
    from perfkit.engine.ray import RayEngine

    assert not ray.is_initialized()
    monkeypatch.setattr(ray, "__version__", "2.50.0")
    with pytest.raises(PerfkitError, match=r"versions differ.*2\.50\.0") as refused:
        RayEngine(cluster.address)
    assert "\n" not in str(refused.value)


def test_another_perfkit_on_a_node_is_refused(engine, monkeypatch):
    monkeypatch.setattr(perfkit, "__version__", "0.0.1")
    with pytest.raises(UsageError, match="install the same version on all nodes"):
        list(engine.map(engine_jobs.square, range(3)))
