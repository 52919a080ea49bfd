"""What the pages show is what was stored, and what `perfkit goodput` and `perfkit analyze` say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from perfkit_dashboards import (
    data_cluster,
    data_events,
    data_fleet,
    data_manifest,
    data_rank,
    data_ranks,
    data_run,
    data_stragglers,
)
from perfkit_dashboards.data import Source
from perfkit_dashboards.view import View

from perfkit.cli.main import main
from perfkit.store import Store
from tests.dashboards.made_stores import DAY, HOUR, START, make_fleet, run_hours, write_days

ALL = View(range="all")
RUN = View(page="run", cluster="alpha", run="steady", range="all")
RANKS = RUN.change(page="ranks")
EXACT = {"rel": 1e-12}


def goodput_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main(["goodput", *arguments, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_clusters_show_what_perfkit_goodput_says(source: Source, fleet: Path, capsys) -> None:
    said = goodput_json(capsys, str(fleet), "--by", "cluster")
    shown = {row["cluster"]: row for row in data_fleet.clusters(source, ALL)}
    assert len(said["groups"]) == len(shown) == 2
    uptime = {row["cluster"]: row["uptime"] for row in said["uptime"]}
    for group in said["groups"]:
        name = group.get("cluster") or group.get("key")
        for key in ("goodput", "mfu", "effective_mfu"):
            assert shown[name][key] == pytest.approx(group[key], **EXACT)
        assert shown[name]["uptime"] == pytest.approx(uptime[name], **EXACT)
        sure = data_cluster.reliability(source, View(page="cluster", cluster=name, range="all"))
        for key in ("mttf_hours", "mttr_hours"):
            assert sure[key] == (None if group[key] is None else pytest.approx(group[key], **EXACT))
        hours = {r["bucket"]: r["gpu_hours"] for r in data_fleet.hours(source, ALL) if r["cluster"] == name}
        for bucket, found in group["buckets"].items():
            assert hours[bucket] == pytest.approx(found["gpu_hours"], **EXACT)


def test_a_run_shows_what_perfkit_goodput_says(source: Source, fleet: Path, capsys) -> None:
    said = goodput_json(capsys, "shaky", "--store", str(fleet))
    view = View(page="run", cluster="beta", run="shaky")
    shown = data_run.totals(source, view)
    for key in ("goodput", "mfu", "effective_mfu", "ettr", "interruptions"):
        assert shown[key] == pytest.approx(said["totals"][key], **EXACT)
    ladder = {rung.term: rung.points for rung in data_run.ladders(source, view)["B"].rungs}
    for row in said["waterfall"]:
        if row["parent"] is None and row["term"] != "productive":
            assert ladder[row["term"]] == row["points"]
    assert sum(ladder.values()) == pytest.approx(100, abs=1e-9)


def test_the_worst_cluster_comes_first_with_its_reason(source: Source) -> None:
    rows = data_fleet.clusters(source, ALL)
    assert [row["cluster"] for row in rows] == ["beta", "alpha"]
    worst = rows[0]
    assert worst["delivered"] == pytest.approx(0.70 * 80 / 96)
    assert worst["losses"][0][0] == "lost"
    assert (worst["active"], worst["idle"], worst["unhealthy"]) == (64, 16, 16)
    assert worst["tokens_per_gpu_s"] == pytest.approx(3600 * 65536 / (64 * 3600 * 0.7))


def test_the_window_chooses_rows_and_the_window_before_is_compared(tmp_path: Path) -> None:
    store = Store(tmp_path)
    early = run_hours("a", "r", hours=24, start_ns=START, losses={"lost": 0.5})
    late = run_hours("a", "r", hours=24, start_ns=START + DAY, losses={"lost": 0.1})
    write_days(store, "run_rollup", [*early, *late])
    row = data_fleet.clusters(Source(str(tmp_path)), View(range="24h"))[0]
    assert row["goodput"] == pytest.approx(0.9)
    assert row["before"]["goodput"] == pytest.approx(0.5)
    assert len(row["trend"]) == 24


def test_hours_that_nothing_explains_give_no_goodput_and_unknown_peaks_no_mfu(tmp_path: Path) -> None:
    rows = run_hours("a", "r", hours=2, losses={"unknown": 1.0}, peak_flops=None, model_flops=None, retained_flops=None)
    write_days(Store(tmp_path), "run_rollup", rows)
    row = data_fleet.clusters(Source(str(tmp_path)), ALL)[0]
    assert (row["goodput"], row["mfu"], row["effective_mfu"], row["uptime"], row["delivered"]) == (None,) * 5


def test_an_mfu_above_one_is_never_shown(tmp_path: Path) -> None:
    write_days(Store(tmp_path), "run_rollup", run_hours("a", "r", hours=2, mfu=1.4))
    source = Source(str(tmp_path))
    assert data_fleet.clusters(source, ALL)[0]["mfu"] is None
    series = data_run.series(source, View(page="run", cluster="a", run="r"))
    assert np.isnan(series.curves["mfu"]).all()


def test_runs_are_sorted_searched_and_paged(source: Source) -> None:
    rows, total = data_fleet.runs(source, ALL)
    assert total == 3
    assert [row["run"] for row in rows] == ["shaky", "steady", "short"]
    rows, _ = data_fleet.runs(source, ALL, order="gpus", descending=False)
    assert [row["gpus"] for row in rows] == [8, 32, 64]
    rows, total = data_fleet.runs(source, ALL.change(search="GRACE"))
    assert ([row["run"] for row in rows], total) == (["short"], 1)
    rows, total = data_fleet.runs(source, ALL, first=2, count=5)
    assert ([row["run"] for row in rows], total) == (["short"], 3)
    assert data_fleet.runs(source, ALL, order="1; DROP TABLE run_rollup")[1] == 3
    assert data_fleet.runs(source, ALL.change(search="no such run")) == ([], 0)


def test_a_search_is_text_and_not_a_pattern(source: Source) -> None:
    for text in ("%", "_", "'", '"', "\\", "s%y", "' OR 1=1 --"):
        assert data_fleet.runs(source, ALL.change(search=text))[1] == 0


def test_gpus_of_a_cluster_show_the_hot_one(source: Source) -> None:
    rows = data_cluster.gpus(source, View(page="cluster", cluster="beta", range="all"))
    assert len(rows) == 12 * 8
    hot = [row for row in rows if row["health"] != "up"]
    assert [(row["node"], row["device"]) for row in hot] == [("beta-n001", 3)]
    assert hot[0]["throttle"] == pytest.approx(0.1)
    assert hot[0]["temperature"] == 91
    assert hot[0]["mfu"] == pytest.approx(0.31)


def test_interruptions_are_counted_by_cause(source: Source) -> None:
    rows = data_cluster.interruptions(source, View(page="cluster", cluster="beta", range="all"))
    assert {row["cause"]: row["count"] for row in rows} == {"xid": 2, "network": 2}
    assert sum(row["lost_hours"] for row in rows) == pytest.approx(4 * 64 * (1 / 2 + 1 / 3))


def test_the_lemon_is_the_one_that_goodput_convicts(source: Source) -> None:
    rows = data_cluster.lemons(source, View(page="cluster", cluster="beta", range="all"))
    assert {row["node"] for row in rows} == {"beta-n001"}
    slow = next(row for row in rows if row["kind"] == "slow")
    assert (slow["bad"], slow["of"]) == (16, 16)
    assert data_cluster.lemons(source, View(page="cluster", cluster="alpha", range="all")) == []


def test_over_time_adds_up_to_the_cluster(source: Source) -> None:
    view = View(page="cluster", cluster="beta", range="all")
    rows, width = data_cluster.over_time(source, view)
    whole = data_fleet.clusters(source, view)[0]
    assert width in data_cluster.BINS
    for key in ("productive_ns", "lost_ns", "idle_ns", "down_ns"):
        assert sum(row[key] for row in rows) == pytest.approx(whole[key], **EXACT)


# ------------------------------------------------------------------ a run


def test_curves_follow_the_lead_rank(source: Source) -> None:
    series = data_run.series(source, RUN)
    assert (series.over, series.total) == ("step", 40)
    assert series.curves["step_time"][1:] == pytest.approx(np.full(39, 102.0))
    assert series.curves["mfu"][1:] == pytest.approx(np.full(39, 40.0))
    assert series.curves["tokens_per_s"][1:] == pytest.approx(np.full(39, 4 * 4096 / 0.102))
    zoomed = data_run.series(source, RUN.change(first=10, last=19))
    assert list(zoomed.x) == list(range(10, 20))


@pytest.mark.parametrize(
    ("mesh", "degrees", "replicas"),
    [
        ({"replicate": 2, "shard": 4, "tensor": 8}, {"dp": 2, "fsdp": 4, "tp": 8}, 8),
        ({"dp_replicate": 2, "ddp": 3, "pp": 4}, {"dp": 6, "pp": 4}, 6),
        ({"dp": True, "tp": "8", "cp": 0}, {}, None),
    ],
)
def test_a_mesh_is_read_in_the_words_of_every_framework(mesh: dict, degrees: dict, replicas: int | None) -> None:
    assert data_run.mesh_of({"mesh": mesh}) == degrees
    found = data_run.replicas_of({"mesh": mesh, "world_size": 64})
    assert np.isnan(found) if replicas is None else found == replicas


def test_curves_of_a_run_without_steps_are_by_hour(source: Source) -> None:
    series = data_run.series(source, View(page="run", cluster="beta", run="shaky"))
    assert (series.over, len(series.x)) == ("time", 96)
    assert series.curves["mfu"] == pytest.approx(np.full(96, 30.0))


def test_long_curves_are_thinned_to_medians() -> None:
    x = np.arange(100_000, dtype=float)
    thinned, curves = data_run._binned(x, {"a": x, "b": np.full(len(x), np.nan)})
    assert len(thinned) == len(curves["a"]) <= data_run.MAX_POINTS
    assert np.abs(curves["a"] - thinned).max() <= 100_000 / data_run.MAX_POINTS
    assert np.isnan(curves["b"]).all()


def test_events_have_the_step_that_was_running(source: Source) -> None:
    found = {(row["kind"], row["step"]) for row in data_events.events(source, RUN)}
    assert found == {("checkpoint", 20), ("restart", 30)}
    shaky = data_events.events(source, View(page="run", cluster="beta", run="shaky"))
    assert [row["kind"] for row in shaky].count("restart") == 4
    assert "xid" in shaky[0]["text"]


def test_ladder_a_is_the_stored_waterfall(source: Source, fleet: Path) -> None:
    stored = {r["term"]: r["points"] for r in Store(fleet).read("waterfall", run="steady").to_pylist()}
    shown = {rung.term: rung.points for rung in data_run.ladders(source, RUN)["A"].rungs}
    assert shown == stored
    assert sum(r.points for r in data_run.ladders(source, RUN)["A"].rungs if r.parent is None) == 100


def test_an_analysis_of_real_traces_is_shown_as_analyze_says_it(tmp_path: Path, capsys) -> None:
    from tests.conftest import ROOT

    store = str(tmp_path / "store")
    traces = str(ROOT / "sample_traces" / "ddp_gloo")
    assert main(["analyze", traces, "--store", store, "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    source = Source(store)
    run = data_fleet.traced_runs(source, ALL)[0]
    view = View(page="run", cluster=run["cluster"], run=run["run"], range="all")
    shown = {r.term: r.points for r in data_run.ladders(source, view)["A"].rungs}
    assert shown == {row["term"]: row["points"] for row in said["waterfall"]}
    assert [f["title"] for f in data_manifest.findings(source, view)] == [f["title"] for f in said["findings"]]
    compute = data_ranks.cube(source, source.run_key(view), "compute", view.change(page="ranks"))
    assert np.nansum(compute.values) == said["totals"]["compute_ns"]


def test_findings_manifest_and_quality_are_what_was_written(source: Source) -> None:
    rows = data_manifest.findings(source, RUN)
    assert [row["id"] for row in rows] == ["straggler", "data_wait"]
    assert rows[0]["evidence"][0]["rank"] == 5
    manifest = dict(data_manifest.manifest(source, RUN))
    assert manifest["Mesh"] == "dp 4 × tp 2"
    assert manifest["Git commit"] == "0123456789abcdef"
    assert "torch 2.13.0" in manifest["Versions"]
    assert data_manifest.quality(source, RUN) == ["analysis covers 8 of 8 ranks and 40 steps"]


# ------------------------------------------------------------------ ranks


def test_the_grid_holds_what_was_attributed(source: Source) -> None:
    grid = data_ranks.grid(source, RANKS.change(quantity="compute", order="rank"))
    assert grid.z.shape == (8, 40)
    assert (grid.unit, grid.folded, grid.ranks) == ("ms", 1, list(range(8)))
    assert grid.z[5] == pytest.approx(np.full(40, 84.0))
    assert np.delete(grid.z, 5, axis=0) == pytest.approx(np.full((7, 40), 72.0))


def test_rows_are_arranged_by_mesh_rank_or_speed(source: Source) -> None:
    by_mesh = data_ranks.grid(source, RANKS.change(quantity="compute", order="mesh"))
    assert by_mesh.ranks == [0, 2, 4, 6, 1, 3, 5, 7]  # replicas of one shard side by side
    assert by_mesh.labels[6] == "rank 5  dp2 tp1"
    slowest = data_ranks.grid(source, RANKS.change(quantity="compute", order="slowest"))
    assert slowest.ranks[0] == 5


def test_a_mesh_that_does_not_fit_the_job_gives_no_coordinates() -> None:
    ranks = np.arange(8)
    assert data_ranks.coordinates(ranks, {"dp": 3, "tp": 2}, 8) == {}
    assert data_ranks.coordinates(ranks, {}, 8) == {}
    at = data_ranks.coordinates(ranks, {"dp": 2, "tp": 2, "pp": 2}, 8)
    assert [at[name][5] for name in ("pp", "dp", "tp")] == [1, 0, 1]


def test_experts_cut_the_data_ranks_or_are_a_dimension_of_their_own() -> None:
    ranks = np.arange(8)
    inside = data_ranks.coordinates(ranks, {"dp": 4, "tp": 2, "ep": 2}, 8)
    assert (inside["ep"] == inside["dp"] % 2).all()
    own = data_ranks.coordinates(ranks, {"dp": 2, "tp": 2, "ep": 2}, 8)
    assert [own[name][5] for name in ("dp", "ep", "tp")] == [1, 0, 1]
    named = data_ranks.coordinates(ranks, {"dp": 4, "branch": 2}, 8)
    assert sorted(zip(named["branch"].tolist(), named["dp"].tolist(), strict=True)) == sorted(
        (b, d) for b in range(2) for d in range(4)
    )


def test_thousands_of_ranks_fold_into_rows_that_keep_the_worst(monkeypatch, source: Source) -> None:
    values = np.full((4096, 60), 10e6)
    values[1341, 30] = 20e6
    cube = data_ranks.Cube(np.arange(4096), np.arange(60), values, "analysis")
    monkeypatch.setattr(data_ranks, "cube", lambda *_: cube)
    grid = data_ranks.grid(source, RANKS.change(quantity="idle", order="rank", search="fold"))
    assert grid.z.shape[0] <= data_ranks.MAX_ROWS
    assert grid.z.size <= data_ranks.MAX_CELLS
    row = 1341 // grid.folded
    assert grid.ranks[row] == 1341, "a click on the row leads to the worst of it"
    assert grid.z[row, 30] == 20
    assert (grid.z == 20).sum() == 1


def test_the_straggler_has_its_score_cause_and_cost(source: Source) -> None:
    rows = data_stragglers.stragglers(source, RANKS)
    assert rows[0]["rank"] == 5
    assert rows[0]["flagged"]
    assert rows[0]["score"] == pytest.approx(72 / 84)
    assert rows[0]["cause"] == "compute"
    assert rows[0]["wait_caused_ns"] == 7 * 40 * 12_000_000
    assert not any(row["flagged"] for row in rows[1:])


def test_one_rank_has_phases_kernels_and_counters(source: Source) -> None:
    view = RANKS.change(rank=5)
    phases = {row["name"]: row for row in data_rank.phases(source, view)}
    assert phases["compute"]["ms"] == pytest.approx(84)
    assert phases["compute"]["median_ms"] == pytest.approx(72)
    assert phases["span backward"]["ms"] == pytest.approx(2 * 92 / 3, rel=1e-3)
    assert data_rank.kernels(source, view)[0]["share"] == 1
    lines = data_rank.counters(source, view)
    assert list(lines) == ["gpu_temp_celsius", "gpu_clock_mhz"]
    assert set(lines["gpu_clock_mhz"][1]) == {1500.0}
    assert data_rank.phases(source, RANKS.change(rank=99)) == []


def test_step_time_and_data_wait_come_from_step_records(source: Source) -> None:
    wait = data_ranks.grid(source, RANKS.change(quantity="data_wait"))
    assert wait.z == pytest.approx(np.full((8, 40), 2.0))
    assert wait.source == "step records"


# ------------------------------------------------------------------ new data


def test_new_files_are_seen_and_old_answers_are_not_repeated(tmp_path: Path, monkeypatch) -> None:
    from perfkit_dashboards import engine

    monkeypatch.setattr(engine, "LISTING_S", 0.0)
    store = make_fleet(tmp_path / "store", days=1)
    source = Source(str(tmp_path / "store"))
    before = data_fleet.clusters(source, ALL)
    version = source.version()
    assert data_fleet.clusters(source, ALL) is before
    write_days(store, "run_rollup", run_hours("gamma", "new", hours=1, start_ns=START + 30 * HOUR), part="later")
    assert source.version() != version
    assert {row["cluster"] for row in data_fleet.clusters(source, ALL)} == {"alpha", "beta", "gamma"}
    write_days(
        store, "run_rollup", run_hours("gamma", "new", hours=1, start_ns=START + 30 * HOUR, mfu=0.2), part="later"
    )
    gamma = next(row for row in data_fleet.clusters(source, ALL) if row["cluster"] == "gamma")
    assert gamma["mfu"] == pytest.approx(0.2)
    assert gamma["runs"] == 1


def test_a_day_outside_the_window_is_not_read(tmp_path: Path) -> None:
    make_fleet(tmp_path / "store", days=4)
    source = Source(str(tmp_path / "store"))
    data_fleet.clusters(source, View(range="24h"))
    days = source.ask("SELECT count(DISTINCT date) AS n FROM run_rollup")[0]["n"]
    assert days == 2  # the day, and the day before it, which it is compared with
