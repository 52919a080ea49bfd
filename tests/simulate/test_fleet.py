"""The simulated fleet: its own truth, its roll-ups, and the store that it writes."""

from __future__ import annotations

import json
from itertools import pairwise

import pyarrow.compute as pc
import pytest

from perfkit.errors import UsageError
from perfkit.goodput.question import ask
from perfkit.goodput.rollup import exact_sum
from perfkit.schema import GOODPUT_BUCKETS, TABLES
from perfkit.simulate.fleet import Fleet, FleetOptions, write_fleet
from perfkit.simulate.fleet_detail import _derived
from perfkit.simulate.fleet_runs import run_truth
from perfkit.simulate.fleet_tables import run_tables
from perfkit.store import Store

OPTIONS = FleetOptions(clusters=2, days=20, runs=50, ranks=64, seed=3)


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return Fleet(OPTIONS)


@pytest.fixture(scope="module")
def store(fleet, tmp_path_factory) -> Store:
    folder = tmp_path_factory.mktemp("fleet") / "store"
    write_fleet(fleet, folder)
    return Store(folder)


def test_goodput_of_every_run_equals_the_truth(fleet):
    for run in fleet.runs:
        rollup, _ = run_tables(run, fleet.world)
        truth = run_truth(run.spec, run.attempts)
        assert {name: exact_sum(rollup[f"{name}_ns"]) for name in truth} == truth, run.spec.run


def test_the_truth_adds_up(fleet):
    for run in fleet.runs:
        truth = run_truth(run.spec, run.attempts)
        assert truth["allocated"] == sum(truth[name] for name in GOODPUT_BUCKETS)
        assert all(value >= 0 for value in truth.values()), run.spec.run


def test_there_is_something_to_find(fleet):
    lost = sum(run_truth(run.spec, run.attempts)["lost"] for run in fleet.runs)
    causes = {one.cause for run in fleet.runs for one in run.attempts}
    assert lost > 0
    assert {"completed", "gpu"} <= causes
    assert max(run.spec.gpus for run in fleet.runs) == 64


def test_no_node_is_held_twice(fleet):
    for schedule in fleet.schedules:
        held: dict[int, list[tuple[int, int]]] = {}
        for run in schedule.runs:
            for one in run.attempts:
                for node in one.nodes.tolist():
                    held.setdefault(node, []).append((one.start_ns, one.end_ns))
        for spans in held.values():
            spans.sort()
            assert all(a[1] <= b[0] for a, b in pairwise(spans))


def test_the_same_seed_gives_the_same_rows_and_another_seed_does_not(fleet):
    again = Fleet(OPTIONS)
    assert again.rollups[0].equals(fleet.rollups[0])
    assert again.job_nodes.equals(fleet.job_nodes)
    other = Fleet(FleetOptions(clusters=2, days=20, runs=50, ranks=64, seed=4))
    assert not other.rollups[0].equals(fleet.rollups[0])


def test_slow_nodes_stand_out_of_their_jobs_and_others_do_not(fleet):
    truth = fleet.truth()["clusters"]
    table = fleet.job_nodes.filter(pc.is_valid(fleet.job_nodes["slowdown"]))
    slow = {(c, n): facts for c, one in truth.items() for n, facts in one["slow_nodes"].items()}
    rows = [r for r in table.to_pylist() if r["num_nodes"] > 2]
    seen = [
        r["slowdown"] for r in rows if r["start_ns"] > slow.get((r["cluster"], r["node"]), {}).get("since_ns", 2**62)
    ]
    normal = sorted(r["slowdown"] for r in rows if (r["cluster"], r["node"]) not in slow)
    assert seen
    assert min(seen) > normal[len(normal) // 2] + 0.03
    assert 0.98 < normal[len(normal) // 2] < 1.02


def test_everything_in_the_store_says_that_it_is_synthetic(store):
    for name, schema in TABLES.items():
        if schema.kind == "fleet":
            table = store.read(name)
            assert len(table), name
            assert pc.all(table["synthetic"]).as_py(), name
    assert all(run.synthetic for run in store.runs())
    assert json.loads((store_folder(store) / "truth.json").read_text())["synthetic"] is True


def store_folder(store: Store):
    from pathlib import Path

    return Path(store.uri)


def test_the_command_answers_with_the_truth(store):
    truth = json.loads((store_folder(store) / "truth.json").read_text())["clusters"]
    answer = ask([store.uri], by="cluster")
    for group in answer["groups"]:
        wanted = truth[group["key"]]["goodput_ns"]
        assert {name: group["buckets"][name]["ns"] for name in GOODPUT_BUCKETS} == {
            n: wanted[n] for n in GOODPUT_BUCKETS
        }
        assert group["allocated_ns"] == wanted["allocated"]
        assert group["interruptions"] == truth[group["key"]]["interruptions"]
    assert answer["synthetic"] is True
    assert sum(row["points"] for row in answer["waterfall"] if row["parent"] is None) == 100.0
    assert {row["cluster"] for row in answer["uptime"]} == set(truth)
    assert all(0.9 < row["uptime"] <= 1 for row in answer["uptime"])


def test_a_run_is_there_in_full_for_the_pages_that_look_at_one(store):
    runs = {run.run for run in store.runs()}
    assert "giant-64" in runs
    attribution = store.read("attribution", run="giant-64")
    parts = [attribution[f"{n}_ns"].to_numpy() for n in ("compute", "exposed_comm", "exposed_memcpy", "idle")]
    assert (sum(parts) == attribution["window_ns"].to_numpy()).all()
    assert len(pc.unique(attribution["rank"])) == 64
    top = [row["points"] for row in store.read("waterfall", run="giant-64").to_pylist() if row["parent"] is None]
    assert sum(top) == 100.0
    for table in ("steps", "lifecycle", "counters", "kernels", "idle", "findings"):
        assert len(store.read(table, run="giant-64")), table


def test_the_straggler_of_the_findings_is_the_slowest_rank_of_the_attribution():
    fleet = Fleet(OPTIONS)
    run = next(r for r in fleet.runs if r.spec.nodes >= 4 and r.attempts and int(r.attempts[-1].block_steps.sum()) > 60)
    one, cluster = run.attempts[-1], run.spec.cluster
    first, second = one.nodes[1].item(), one.nodes[2].item()
    cluster.slow.clear()
    cluster.slow.update({first: (1.15, 0, 3), second: (1.3, 0, 5)})  # the first in the list is not the slowest
    tables = _derived(fleet, run)
    finding = next(row for row in tables["findings"].to_pylist() if row["id"] == "straggler")
    compute = tables["attribution"]["compute_ns"].to_numpy().reshape(run.spec.gpus, -1).mean(axis=1)
    evidence = json.loads(finding["evidence"])
    assert evidence["rank"] == int(compute.argmax()) == 2 * 8 + 5
    assert evidence["node"] == cluster.node_name(second)
    assert [other["rank"] for other in evidence["others"]] == [1 * 8 + 3]
    assert finding["title"].endswith("and 1 more rank is slow")


@pytest.mark.parametrize(("clusters", "runs", "ranks"), [(1, 1, 8), (4, 2, 16)])
def test_a_fleet_with_next_to_nothing_in_it_is_written_too(clusters, runs, ranks, tmp_path):
    written = write_fleet(Fleet(FleetOptions(clusters=clusters, days=3, runs=runs, ranks=ranks)), tmp_path / "s")
    assert written["cluster_rollup"] == clusters * 72
    assert ask([str(tmp_path / "s")])["scope"]["runs"] >= 1


def test_a_folder_with_something_in_it_is_not_touched(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(UsageError, match="not an empty folder"):
        write_fleet(Fleet(OPTIONS), tmp_path)


@pytest.mark.parametrize("bad", [{"clusters": 0}, {"days": 1}, {"runs": 0}, {"ranks": 12}])
def test_options_that_make_no_sense_are_refused(bad):
    with pytest.raises(UsageError):
        FleetOptions(**bad)
