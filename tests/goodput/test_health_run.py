from __future__ import annotations

import json

import pytest

from perfkit.cli.main import main
from perfkit.errors import UsageError
from perfkit.goodput.health_run import check_run
from perfkit.schema import COUNTERS, HEALTH_EVENTS, table_from_rows
from perfkit.sources.base import PartInfo
from perfkit.store import Store
from tests.goodput.records import S, lifecycle, steps

T = 1_700_000_000
SLOW = {10, 11, 30}


def step_rows():
    """Forty steps of a second; three took two."""
    rows, now = [], T
    for number in range(40):
        took = 2 if number in SLOW else 1
        rows.append((number, now, now + took))
        now += took
    return steps(*rows)


def clocks(first: int, last: int):
    """Samples every second, with the hardware's thermal bit from one second to another."""
    return table_from_rows(
        COUNTERS,
        [
            {
                "rank": 1, "segment": 0, "host": "n1", "device": 0, "uuid": "GPU-1", "time_ns": (T + i) * S,
                "name": "gpu_clock_event_reasons", "value": float(0x40 if first <= i < last else 0x4),
            }
            for i in range(43)
        ],
    )  # fmt: skip


@pytest.fixture
def store(tmp_path) -> Store:
    """Two ranks on two nodes: heat on n1 during steps 10 and 11, an XID on n0 in step 30, one after it in step 33."""
    store = Store(tmp_path / "store")
    for rank in (0, 1):
        with store.writer("c", "llama", 0, rank=rank, segment=0, fingerprint=f"{rank}") as writer:
            writer.write("lifecycle", lifecycle(("end", T + 43, None)).drop_columns(["attempt", "rank"]))
            writer.write("steps", step_rows().drop_columns(["attempt", "rank"]))
            if rank == 1:
                writer.write("counters", clocks(10, 14))
            about = PartInfo(
                rank=rank, source="capture", world_size=2, host=f"n{rank}", start_ns=T * S, end_ns=(T + 43) * S
            )
            writer.commit(about)
    same = {"cluster": "c", "device": 2, "kind": "xid", "severity": "fault", "detail": "XID"}
    xids = [("n0", 33, 94), ("n0", 36, 31), ("n9", 33, 79)]
    events = [{**same, "node": node, "time_ns": (T + at) * S, "code": code} for node, at, code in xids]
    store.write_fleet("health_events", table_from_rows(HEALTH_EVENTS, events), date="2023-11-14", part="test")
    return store


def test_heat_and_xids_are_joined_to_the_steps_that_were_slow_meanwhile(store):
    health = check_run(store, "llama")
    told = [(e.node, e.kind, e.code, e.steps_slowed, e.first_step, e.last_step, e.ranks) for e in health.events]
    assert told == [
        ("n1", "throttle", 0x40, 2, 10, 11, [1]),
        ("n0", "xid", 94, 1, 30, 30, [0]),
        ("n0", "xid", 31, 0, None, None, []),
    ]
    assert [e.excess_ns for e in health.events] == [2 * S, S, 0]
    assert health.steps == 40


def test_the_command_says_it_and_exits_by_severity(store, capsys):
    assert main(["health", "--store", store.uri, "--run", "llama"]) == 3
    out = capsys.readouterr().out
    assert "n1 GPU 0  throttle hardware thermal for 4.0 s: 2 slow steps (10–11), 2.0 s beyond the median" in out
    assert "XID 94: 1 slow step (30), 1.0 s beyond" in out
    assert main(["health", "--store", store.uri, "--run", "c/llama", "--format", "json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert [event["steps_slowed"] for event in document["events"]] == [2, 1, 0]


def test_a_run_that_is_not_there_is_an_error_that_says_which_are(store):
    with pytest.raises(UsageError, match="nope"):
        check_run(store, "nope")


def test_a_run_without_counters_says_that_its_clocks_are_unknown(tmp_path):
    store = Store(tmp_path / "store")
    with store.writer("c", "r", 0, rank=0, segment=0, fingerprint="0") as writer:
        writer.write("steps", step_rows().drop_columns(["attempt", "rank"]))
        writer.commit(PartInfo(rank=0, source="capture", world_size=4, host="n0", start_ns=T * S, end_ns=(T + 9) * S))
    health = check_run(store, "r")
    assert health.severity == "ok"
    assert any("clocks" in note for note in health.notes)
    assert any("1 of 4 ranks" in note for note in health.notes)


def test_run_without_a_store_is_refused(capsys):
    assert main(["health", "--run", "llama"]) == 2
    assert "--store DIR --run llama" in capsys.readouterr().err
