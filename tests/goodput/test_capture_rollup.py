"""Roll-ups of what capture left in a store."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from perfkit.analysis.stragglers import compare_ranks
from perfkit.errors import UsageError
from perfkit.goodput.capture_rollup import write_rollups
from perfkit.goodput.health_fleet import check_fleet
from perfkit.goodput.importers import Assume
from perfkit.goodput.question import ask
from perfkit.schema import (
    ATTRIBUTION,
    COUNTERS,
    GOODPUT_BUCKETS,
    HEALTH_EVENTS,
    IDLE,
    JOB_NODES,
    STRAGGLERS,
    conform,
    table_from_rows,
)  # fmt: skip
from perfkit.sources.base import PartInfo
from perfkit.store import Store
from tests.goodput.records import S, every, lifecycle, steps

T = 1_700_000_000


def write_rank(store: Store, attempt: int, rank: int, records, step_rows, *, host: str = "n0", counters=None) -> None:
    with store.writer("c", "llama", attempt, rank=rank, segment=0, fingerprint=f"{attempt}-{rank}") as writer:
        writer.write("lifecycle", records.drop_columns(["attempt", "rank"]))
        writer.write("steps", step_rows.drop_columns(["attempt", "rank"]))
        if counters is not None:
            writer.write("counters", counters)
        writer.commit(
            PartInfo(rank=rank, source="capture", world_size=2, host=host, start_ns=T * S, end_ns=(T + 99) * S)
        )


@pytest.fixture
def store(tmp_path) -> Store:
    """A run of two ranks that dies after step 9 and goes on from step 5."""
    store = Store(tmp_path / "store")
    for rank in (0, 1):
        first = lifecycle(("init", T, T + 4), ("fault", T + 15, None, {"cause": "ended without finish()"}))
        write_rank(
            store, 0, rank, first, steps(*every(0, 9, T + 5, 1, tokens=100, model_flops=5e12)), host=f"n{rank}",
            counters=gpu_samples(rank),
        )  # fmt: skip
        second = lifecycle(("init", T + 100, T + 102), ("checkpoint_restore", T + 102, T + 103), ("end", T + 120, None))
        write_rank(
            store, 1, rank, second, steps(*every(5, 19, T + 105, 1, tokens=100, model_flops=5e12)), host=f"n{rank}"
        )
    for attempt in (0, 1):
        metadata = {"peak_flops": 1e13, "devices_per_replica": 1, "model": "llama3-8b", "user": "ann", "device": "H100"}
        store.finalise("c", "llama", attempt, metadata)
    return store


def gpu_samples(rank: int) -> pa.Table:
    rows = [("gpu_temperature_celsius", None, 60.0 + i) for i in range(3)]
    rows += [("gpu_ecc_errors_total", "corrected", float(v)) for v in (10, 12, 1)]
    return table_from_rows(
        COUNTERS,
        [
            {
                "rank": rank,
                "segment": 0,
                "host": f"n{rank}",
                "device": 0,
                "uuid": f"GPU-{rank}",
                "time_ns": (T + i % 3) * S,
                "name": name,
                "series": series,
                "value": value,
            }
            for i, (name, series, value) in enumerate(rows)
        ],
    )


def test_a_crashed_and_requeued_job_is_one_run_with_two_attempts(store):
    answer = ask(["llama"], store=store.uri)
    buckets = {name: row["ns"] / 2 / S for name, row in answer["totals"]["buckets"].items() if row["ns"]}
    #  attempt 0: init 5, steps 0..4 kept, 5..9 lost;  attempt 1: 2 + 2 to start, 1 to restore, 15 steps
    assert buckets == {"init": 5, "productive": 20, "lost": 5, "recovery": 4, "restore": 1}
    assert answer["scope"]["runs"] == 1
    assert answer["runs"][0]["attempts"] == 2
    assert answer["totals"]["interruptions_by_cause"] == {"unknown": 1}
    assert answer["totals"]["mttr_hours"] == pytest.approx(90 / 3600)


def test_tokens_and_flops_are_of_the_whole_job(store):
    totals = ask(["llama"], store=store.uri)["totals"]
    assert totals["tokens"] == 2 * 100 * 25
    assert totals["mfu"] == pytest.approx(2 * 5e12 * 25 / (1e13 * 2 * 25))
    assert totals["effective_mfu"] == pytest.approx(2 * 5e12 * 20 / (1e13 * 2 * 35))


def test_writing_rollups_changes_nothing_but_where_the_answer_comes_from(store):
    before = ask([store.uri])
    written = write_rollups(store)
    assert set(written) == {"run_rollup", "interruptions", "job_nodes", "gpu_rollup"}
    assert ask([store.uri]) == before
    write_rollups(store)
    assert ask([store.uri]) == before
    for row in store.read("run_rollup").to_pylist():
        assert row["allocated_ns"] == sum(row[f"{name}_ns"] for name in GOODPUT_BUCKETS)


def test_counters_become_a_row_per_gpu_and_day(store):
    write_rollups(store)
    rows = store.read("gpu_rollup").to_pylist()
    shown = [(r["node"], r["device"], r["temp_mean_celsius"], r["temp_max_celsius"], r["ecc_corrected"]) for r in rows]
    assert sorted(shown) == [("n0", 0, 61.0, 62.0, 3), ("n1", 0, 61.0, 62.0, 3)]


def clock_samples(rank: int, bits: int, mhz: float, seconds: int = 20) -> pa.Table:
    values = {"gpu_sm_clock_hertz": mhz * 1e6, "gpu_clock_event_reasons": float(bits)}
    same = {"rank": rank, "segment": 0, "host": f"n{rank}", "device": 0, "uuid": f"GPU-{rank}"}
    rows = [
        {**same, "time_ns": (T + i) * S, "name": name, "value": value}
        for name, value in values.items()
        for i in range(seconds + 1)
    ]
    rows += [
        {**same, "time_ns": (T + i) * S, "name": "gpu_throttle_seconds_total", "series": "power", "value": float(i)}
        for i in range(seconds + 1)
    ]
    return table_from_rows(COUNTERS, rows)


@pytest.mark.parametrize(
    ("device", "thermal_ns", "power_ns"), [("H100-SXM5-80GB", 10 * S, 0), ("Unheard-of GPU", None, None)]
)
def test_throttle_loss_is_measured_against_the_clock_of_the_peak(tmp_path, device, thermal_ns, power_ns):
    store = Store(tmp_path / "store")
    records = lifecycle(("allocated", T, T + 40), ("end", T + 40, None))
    write_rank(store, 0, 0, records, steps(*every(0, 9, T + 5, 1)), counters=clock_samples(0, 0x40, 1830 / 2))
    store.finalise("c", "llama", 0, {"device": device})
    write_rollups(store)
    (row,) = store.read("gpu_rollup").to_pylist()
    assert (row["throttle_thermal_ns"], row["throttle_power_ns"]) == (thermal_ns, power_ns)
    assert row["name"] == device
    assert row["allocated_ns"] == 40 * S


def test_a_node_that_computes_longer_than_its_peers_is_slow(store):
    rows = [
        {"rank": rank, "device": 0, "step": step, "start_ns": 0, "window_ns": 100, "compute_ns": 60 + 12 * rank,
         "exposed_comm_ns": 40 - 12 * rank, "exposed_memcpy_ns": 0, "idle_ns": 0}
        for rank in (0, 1) for step in range(4)
    ]  # fmt: skip
    compared = compare_ranks(table_from_rows(ATTRIBUTION, rows), IDLE.empty(), {0: "dp", 1: "dp"})
    store.write_derived("stragglers", conform(STRAGGLERS, compared), "c", "llama", 1, analysis_id="a")
    write_rollups(store)
    found = {(r["attempt"], r["node"]): r["slowdown"] for r in store.read("job_nodes").to_pylist()}
    assert found == {(0, "n0"): None, (0, "n1"): None, (1, "n0"): pytest.approx(60 / 72), (1, "n1"): pytest.approx(1.2)}


def test_a_run_that_is_not_there_is_an_error_that_says_which_are(store):
    with pytest.raises(UsageError, match=r"no records of a run 'gpt' in .*; there are llama"):
        ask(["gpt"], store=store.uri)


def test_a_silent_run_is_called_lost(tmp_path):
    store = Store(tmp_path / "s")
    write_rank(store, 0, 0, lifecycle(("init", T, T + 4)), steps(*every(0, 9, T + 5, 1)))
    store.finalise("c", "llama", 0, {})
    assert ask([store.uri], assume=Assume(as_of_ns=(T + 60) * S))["scope"]["states"] == {"running": 1}
    answer = ask([store.uri], assume=Assume(as_of_ns=(T + 9999) * S))
    assert answer["scope"]["states"] == {"lost": 1}
    assert answer["totals"]["allocated_ns"] == 2 * 15 * S
    assert answer["totals"]["interruptions_by_cause"] == {"no_heartbeat": 1}


def test_the_document_is_plain_json(store):
    assert json.loads(json.dumps(ask([store.uri], by="node", price=2.0)))["price_per_gpu_hour"] == 2.0


def test_a_rollup_of_a_run_that_goes_on_is_not_believed(tmp_path):
    store = Store(tmp_path / "s")
    write_rank(store, 0, 0, lifecycle(("init", T, T + 4)), steps(*every(0, 9, T + 5, 1)))
    write_rollups(store, as_of_ns=(T + 2 * 86400) * S)
    write_rank(
        store, 1, 0, lifecycle(("init", T + 100, T + 104), ("end", T + 115, None)), steps(*every(10, 19, T + 105, 1))
    )
    assert ask([store.uri])["runs"][0]["attempts"] == 2


def test_days_that_are_no_more_are_taken_back(tmp_path):
    store = Store(tmp_path / "s")
    write_rank(store, 0, 0, lifecycle(("allocated", T, None)), steps(*every(0, 9, T + 5, 1)))
    write_rollups(store, as_of_ns=(T + 300) * S)
    assert sum(store.read("run_rollup")["allocated_ns"].to_pylist()) == 300 * S
    later = T + 86_400
    write_rollups(store, as_of_ns=later * S)
    assert sum(store.read("run_rollup")["allocated_ns"].to_pylist()) == 15 * S
    assert store.read("run_rollup")["state"].to_pylist() == ["lost"]


def test_the_command_writes_rollups(store, capsys):
    from perfkit.cli.main import main

    assert main(["store", "rollup", store.uri, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"]["run_rollup"] == len(store.read("run_rollup"))
    assert main(["store", "rollup", store.uri]) == 0
    assert "of run_rollup" in capsys.readouterr().out


def test_a_node_whose_board_broke_before_an_interruption_is_blamed_for_it(store):
    xids = [("n1", T + 14, 79), ("n0", T + 14, 31), ("n0", T - 900, 79)]
    events = [{"cluster": "c", "node": node, "time_ns": at * S, "kind": "xid", "code": code} for node, at, code in xids]
    store.write_fleet("health_events", table_from_rows(HEALTH_EVENTS, events), date="2023-11-14", part="test")
    write_rollups(store)
    blamed = [(r["attempt"], r["node"]) for r in store.read("job_nodes").to_pylist() if r["interrupted"]]
    assert blamed == [(0, "n1")]


def write_small_run(store: Store, run: str, host: str) -> None:
    with store.writer("c", run, 0, rank=0, segment=0, fingerprint=run) as writer:
        writer.write("lifecycle", lifecycle(("end", T + 20, None)).drop_columns(["attempt", "rank"]))
        writer.write("steps", steps(*every(0, 9, T + 5, 1)).drop_columns(["attempt", "rank"]))
        samples = gpu_samples(0)
        at = samples.column_names.index("host")
        writer.write("counters", samples.set_column(at, "host", pa.array([host] * len(samples), pa.utf8())))
        writer.commit(PartInfo(rank=0, source="capture", world_size=1, host=host, start_ns=T * S, end_ns=(T + 20) * S))


def test_runs_that_were_rolled_up_one_after_another_can_be_rolled_up_again(tmp_path):
    """Every file has a dictionary of its own for names of runs, and Arrow cannot group by two of them at once."""
    store = Store(tmp_path / "store")
    for i in range(3):
        write_small_run(store, f"run-{i}", f"n{i}")
        write_rollups(store, run=f"run-{i}")
    assert write_rollups(store)["run_rollup"] == 3
    gpus = store.read("gpu_rollup")
    assert len(gpus) == 3
    assert check_fleet(table_from_rows(JOB_NODES, []), gpus, table_from_rows(HEALTH_EVENTS, [])) == []


def test_records_of_training_cannot_be_broken_down_by_partition(store):
    with pytest.raises(UsageError, match="partition"):
        ask([store.uri], by="partition")


def test_a_run_that_died_holds_no_gpus_after_its_death(tmp_path):
    store = Store(tmp_path / "store")
    records = lifecycle(("init", T, T + 4), ("fault", T + 15, None, {"cause": "ended without finish()"}))
    write_rank(store, 0, 0, records, steps(*every(0, 9, T + 5, 1)))
    soon, late = (ask([store.uri], assume=Assume(as_of_ns=(T + after) * S))["totals"] for after in (60, 86400))
    assert soon["allocated_ns"] == late["allocated_ns"] == 2 * 15 * S
