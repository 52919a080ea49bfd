"""The whole job: through `perfkit.analyze`, on simulated jobs and real sets of ranks, complete and not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from perfkit.analysis.analyze import analyze, analyze_tables
from perfkit.errors import UsageError
from perfkit.report.report import Report
from perfkit.simulate.faults import parse_fault
from perfkit.simulate.job import Job, Mesh
from perfkit.simulate.simulation import Simulation, simulate, write_traces
from tests.analysis.job_cases import simulated_view

PARAM = "facebookresearch__param/et_replay/tests/inputs/dlrm_kineto.tar.gz"
TORCHREC = "pytorch__torchrec/examples/golden_training"
HTA = "facebookresearch__HolisticTraceAnalysis/tests/data"


def tables_of(sim: Simulation, ranks: Any = None) -> dict[str, pa.Table]:
    """Return the tables of some ranks together."""
    found: dict[str, list[pa.Table]] = {}
    for rank in ranks or sim.ranks:
        for name, table in sim.tables(rank).items():
            found.setdefault(name, []).append(table)
    return {name: pa.concat_tables(parts).unify_dictionaries() for name, parts in found.items()}


def analyzed(job: Job, ranks: Any = None, **more: Any) -> Report:
    sim = simulate(job, flows=False)
    return analyze_tables(tables_of(sim, ranks), synthetic=True, world_size=job.mesh.world_size, **more)


def assert_sums(found: Report) -> None:
    """Check everything that must add up exactly."""
    summary, job = found.summary, found.summary["job"]
    tops = [row for row in summary["waterfall"] if row["parent"] is None]
    assert sum(row["points"] for row in tops) == 100.0
    assert sum(row["ns"] for row in tops) == summary["totals"]["window_ns"]
    ns = {row["term"]: row["ns"] for row in tops}
    comm = [job[name] for name in ("exposed_transfer_ns", "exposed_wait_ns", "unsplit_ns", "bubble_ns")]
    assert sum(ns or 0 for ns in comm) == summary["totals"]["exposed_comm_ns"]
    assert (job["exposed_wait_ns"] or 0) == job["wait_caused_ns"] + job["wait_unattributed_ns"]
    assert job["wait_caused_ns"] == sum(row["wait_caused_ns"] or 0 for row in summary["ranks"])
    rows = summary["collectives"]
    for name in ("exposed_wait_ns", "exposed_transfer_ns"):
        assert sum(row[name] or 0 for row in rows) == (job[name] or 0)  # null where nothing could be split
    if "bubble" in ns:
        told = ns.get("exposed_transfer"), ns.get("exposed_wait")
        assert told == (job["exposed_transfer_ns"], job["exposed_wait_ns"])
        assert ns["bubble"] >= job["bubble_ns"]  # and where the host blocked in a receive


JOBS = {
    "data parallel": Job(mesh=Mesh(dp=8), steps=3, layers=4, seed=1),
    "pipeline": Job(mesh=Mesh(dp=2, tp=2, pp=2), steps=3, layers=4, micro_batches=4, seed=2),
    "experts": Job(mesh=Mesh(dp=8, ep=4), steps=2, layers=2, seed=3),
}


@pytest.mark.parametrize("name", JOBS)
def test_everything_adds_up_and_the_document_keeps_its_promises(name):
    found = analyzed(JOBS[name])
    assert_sums(found)
    document = json.loads(found.to_json())
    assert document["quality"]["clock"]["aligned"] is True
    assert {row["matched"] for row in document["collectives"]} == {1.0}
    for row in document["collectives"]:
        assert set(row) >= {
            "group", "op", "ranks", "count", "bytes", "algbw_gbps", "busbw_gbps", "efficiency", "wait_ns",
            "transfer_ns", "exposed_wait_ns", "exposed_transfer_ns", "matched", "class",
        }  # fmt: skip


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_ladder_sums_to_100_for_200_jobs():
    meshes = (Mesh(dp=4), Mesh(dp=2, tp=2), Mesh(tp=2, pp=2), Mesh(fsdp=4), Mesh(dp=4, ep=2))
    faults = ("slow-rank:1:1.3x", "data-stall:0:5ms", "slow-link:2:3x", "sync-point:all", "lost-launches:all")
    for seed in range(200):
        fault = () if seed % 3 == 0 else (parse_fault(faults[seed % len(faults)]),)
        mesh = meshes[seed % len(meshes)]
        assert_sums(
            analyzed(Job(mesh=mesh, steps=2, layers=2, hidden=1024, ffn=2048, micro_batches=2, seed=seed, faults=fault))
        )


def test_a_straggler_is_a_finding_with_rank_cause_and_gain():
    found = analyzed(Job(mesh=Mesh(fsdp=8), steps=4, layers=4, seed=7, faults=(parse_fault("late-rank:6:9ms"),)))
    row = next(f for f in found.summary["findings"] if f["id"] == "straggler")
    assert row["evidence"]["rank"] == 6
    assert row["evidence"]["gain_ms_per_step"] == pytest.approx(9, rel=0.3)
    assert row["points"] > 1
    ranks = {r["rank"]: r for r in found.summary["ranks"]}
    assert ranks[6]["wait_caused_ns"] == max(r["wait_caused_ns"] for r in ranks.values())
    assert "rank 6" in found.to_text()


def test_a_slow_link_is_a_finding_that_names_the_rank():
    job = Job(mesh=Mesh(dp=4, tp=4), steps=3, layers=4, seed=8, faults=(parse_fault("slow-link:5:5x"),))
    rows = {f["id"]: f for f in analyzed(job).summary["findings"]}
    assert "slow_link" in rows
    assert any(5 in group["ranks"] for group in rows["slow_link"]["evidence"]["groups"])


def test_a_healthy_job_has_neither_straggler_nor_slow_link():
    ids = {f["id"] for f in analyzed(Job(mesh=Mesh(dp=4, tp=2), steps=4, layers=4, seed=9)).summary["findings"]}
    assert not ids & {"straggler", "slow_link", "skewed_all_to_all", "stage_imbalance"}


def test_an_oversized_bubble_is_a_finding():
    job = Job(mesh=Mesh(dp=2, pp=4), steps=3, layers=4, micro_batches=4, seed=3)
    rows = {f["id"]: f for f in analyzed(job).summary["findings"]}
    assert "pipeline_bubble" in rows
    assert rows["pipeline_bubble"]["evidence"]["ideal_ratio"] == pytest.approx(3 / 7)


def test_a_missing_rank_is_stated_and_the_rest_analyzed():
    found = analyzed(JOBS["data parallel"], ranks=[0, 1, 2, 3, 4, 6, 7])
    assert_sums(found)
    assert any("missing are 5" in note for note in found.summary["quality"]["notes"])
    assert found.summary["job"]["exposed_transfer_ns"] is None  # rank 5 may have been late: nobody knows
    assert found.summary["job"]["unsplit_ns"] > 0


def test_one_rank_alone_has_collectives_but_no_split():
    found = analyzed(JOBS["data parallel"], ranks=[2])
    document = found.document
    assert document["quality"]["clock"]["aligned"] is False
    assert [row["class"] for row in document["collectives"]] == [None] * len(document["collectives"])
    assert document["ranks"][0]["wait_caused_ns"] is None
    terms = {row["term"]: row["measured"] for row in document["waterfall"]}
    assert terms["exposed_wait"] is False


def test_a_rank_without_communication_does_not_load_the_job():
    found = analyzed(Job(mesh=Mesh(dp=1), steps=2, layers=2, loss_allreduce=False))
    assert found.summary["collectives"] is None
    assert found.summary["job"] is None
    json.loads(found.to_json())


def test_the_mesh_may_be_given_and_must_fit():
    found = analyzed(JOBS["data parallel"], mesh="dp=4,tp=2")
    assert (found.summary["job"]["mesh_source"], found.summary["job"]["degrees"]["tp"]) == ("given", 2)
    with pytest.raises(UsageError):
        analyzed(JOBS["data parallel"], mesh="dp=3")


def write_rank(folder: Path, sim: Simulation, rank: int, name: str, **change: Any) -> None:
    """Write a rank's trace with other header values."""
    document = json.loads(sim.kineto(rank))
    document["distributedInfo"] |= change
    (folder / name).write_bytes(gzip.compress(json.dumps(document).encode(), 1))


@pytest.fixture(scope="module")
def small() -> Simulation:
    return simulate(Job(mesh=Mesh(dp=4), steps=3, layers=2, hidden=1024, ffn=2048, seed=5))


def test_a_world_size_that_disagrees_is_stated(tmp_path, small):
    for rank in range(4):
        write_rank(tmp_path, small, rank, f"rank{rank}.json.gz", world_size=4 if rank else 6)
    found = analyze(tmp_path)
    assert any("disagree on the world size" in note for note in found.summary["quality"]["notes"])
    assert_sums(found)


def test_two_files_of_one_rank_are_stated_and_the_rest_analyzed(tmp_path, small):
    for rank in range(4):
        write_rank(tmp_path, small, rank, f"rank{rank}.json.gz")
    other = simulate(Job(mesh=Mesh(dp=4), steps=3, layers=2, hidden=1024, ffn=2048, seed=6))
    write_rank(tmp_path, other, 3, "again.json.gz")
    found = analyze(tmp_path)
    assert any("two files claim rank 3" in note for note in found.summary["quality"]["notes"])
    assert_sums(found)
    assert found.summary["job"]["exposed_transfer_ns"] > 0


def test_a_trace_that_is_there_twice_counts_once(tmp_path, small):
    for rank in range(4):
        write_rank(tmp_path, small, rank, f"rank{rank}.json.gz")
    once = analyze(tmp_path)
    packed = (tmp_path / "rank3.json.gz").read_bytes()
    (tmp_path / "rank3.json").write_bytes(gzip.decompress(packed))
    twice = analyze(tmp_path)
    (row,) = twice.summary["quality"]["rejected"]
    assert "holds the same as" in row["reason"]
    assert {row["path"], row["reason"].split()[4].rstrip(",")} == {
        str(tmp_path / name) for name in ("rank3.json", "rank3.json.gz")
    }
    for part in ("totals", "job", "findings", "waterfall"):
        assert twice.summary[part] == once.summary[part]


def test_ranks_with_different_step_counts_are_analyzed_where_they_meet(tmp_path, small):
    for rank in range(4):
        document = json.loads(small.kineto(rank))
        steps = sorted(
            float(e["ts"]) for e in document["traceEvents"] if str(e.get("name", "")).startswith("ProfilerStep#")
        )
        if rank == 2:  # its profiler stopped one step earlier
            document["traceEvents"] = [e for e in document["traceEvents"] if float(e.get("ts", 0)) < steps[-1]]
        (tmp_path / f"rank{rank}.json.gz").write_bytes(gzip.compress(json.dumps(document).encode(), 1))
    found = analyze(tmp_path)
    assert_sums(found)
    assert found.summary["job"]["exposed_transfer_ns"] > 0
    assert found.summary["quality"]["clock"]["aligned"] is True
    (note,) = [note for note in found.summary["quality"]["notes"] if "the same steps" in note]
    assert "rank 2 has" in note


def test_what_could_not_be_split_is_unknown_and_not_0(tmp_path, small):
    write_rank(tmp_path, small, 1, "rank1.json.gz")
    rows = analyze(tmp_path).summary["collectives"]
    assert rows
    for row in rows:
        assert row["wait_ns"] is row["transfer_ns"] is None
        assert row["unsplit_ns"] > 0


def test_hosts_are_known_from_kineto_files(tmp_path):
    sim = simulate(Job(mesh=Mesh(dp=8, tp=2), steps=3, layers=2, hidden=1024, ffn=2048, seed=5))
    write_traces(sim, tmp_path)
    found = analyze(tmp_path)
    clock = found.summary["quality"]["clock"]
    truth = sim.truth()["clocks"]
    assert [host["name"] for host in clock["hosts"]] == [one["host"] for one in truth]
    want = truth[1]["offset_ns"] - truth[0]["offset_ns"]
    length = max(int(t.max()) for t in sim.times)
    drift = abs(truth[1]["drift_ppb"] - truth[0]["drift_ppb"]) * length / 1e9
    assert clock["hosts"][1]["offset_ns"] == pytest.approx(want, abs=drift + 2 * clock["uncertainty_ns"])
    page = found.to_html()
    assert "Whom the others wait for" in page
    assert "collectives-table" in page


def test_pieces_of_the_view_agree_with_the_rank_table():
    _, view = simulated_view(JOBS["data parallel"])
    cells = view.blame.cells.to_pydict()
    assert sum(cells["wait_caused_ns"]) == view.blame.caused_ns
    assert set(cells["step"]) <= set(view.steps["step"].to_pylist())
    assert np.all(view.members["wait_ns"].to_numpy() >= 0)


# ------------------------------------------------------------------ real ranks


def test_all_collectives_of_the_dlrm_archive_match(traces: Path):
    found = analyze(traces / PARAM)
    assert_sums(found)
    job = found.summary["job"]
    assert (job["calls"], job["instances"], job["calls_unmatched"]) == (64, 8, 0)
    assert {row["op"]: row["count"] for row in found.summary["collectives"]} == {"all_to_all": 5, "all_reduce": 3}
    assert found.summary["quality"]["clock"]["uncertainty_ns"] < 10_000


def test_the_long_all_to_all_of_torchrec_is_the_first_communication_finding(traces: Path):
    found = analyze(traces / TORCHREC / "trace/sst_long_a2a_optimizer_3")
    assert_sums(found)
    assert found.summary["job"]["calls_unmatched"] == 0
    ids = {"exposed_communication", "small_messages", "slow_link", "skewed_all_to_all", "pipeline_bubble"}
    first = next(f for f in found.summary["findings"] if f["id"] in ids)
    assert "all_to_all" in first["title"] or "all-to-all" in first["title"]
    assert found.summary["collectives"][0]["op"] == "all_to_all"


def test_device_time_stamps_of_one_host_are_corrected(traces: Path):
    found = analyze(traces / TORCHREC / "log/resnet18")
    assert_sums(found)
    assert found.summary["job"]["calls_unmatched"] == 0
    assert found.summary["quality"]["clock"]["uncertainty_ns"] < 5_000  # ends differ by 31 µs, always the same way


def test_two_sampled_ranks_of_128_are_analyzed_and_the_others_stated(traces: Path):
    paths = [
        traces / HTA / p for p in ("timeline_analysis/sampled_rank-0.json.gz", "trace_filter/sampled_rank-1.json.gz")
    ]
    found = analyze(paths)
    assert_sums(found)
    assert found.summary["scope"] == {"ranks_traced": 2, "world_size": 128, "steps": [551, 552]}
    assert any("missing are 2-127" in note for note in found.summary["quality"]["notes"])
    assert found.summary["job"]["exposed_transfer_ns"] is None
    assert "126 of 128 ranks have no trace" in found.to_text()


def test_gloo_ranks_of_one_machine_are_split_by_their_calls():
    found = analyze(Path(__file__).parents[2] / "sample_traces/ddp_gloo")
    assert_sums(found)
    assert found.summary["job"]["calls_unmatched"] == 0
    assert found.summary["job"]["unsplit_ns"] == 0
