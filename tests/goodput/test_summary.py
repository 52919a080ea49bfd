"""Numbers by any key: exact sums, ratios of sums, null where nothing is known."""

from __future__ import annotations

import pytest

from perfkit.goodput.importers.base import iso_ns
from perfkit.goodput.job_summary import summarize_jobs
from perfkit.goodput.ladder import ladder_b
from perfkit.goodput.rollup import exact_sum
from perfkit.goodput.summary import summarize_rollup
from perfkit.schema import GOODPUT_BUCKETS, INTERRUPTIONS, JOB_NODES, JOBS, RUN_ROLLUP, table_from_rows

H = 3600 * 10**9
DAY = 24 * H


def rollup(*rows):
    filled = []
    for row in rows:
        base = {"cluster": "c", "run": "r", "attempt": 0, "gpus": 8, "start_ns": 0, "end_ns": H, "queue_ns": 0}
        base |= {f"{name}_ns": 0 for name in GOODPUT_BUCKETS} | row
        base["allocated_ns"] = sum(base[f"{name}_ns"] for name in GOODPUT_BUCKETS)
        base["step_ns"] = base["productive_ns"]
        filled.append(base)
    return table_from_rows(RUN_ROLLUP, filled)


NOTHING = INTERRUPTIONS.empty()


def test_goodput_is_a_ratio_of_sums_and_money_follows():
    rows = rollup(
        {"productive_ns": 6 * H, "lost_ns": 2 * H}, {"run": "s", "productive_ns": 80 * H, "unknown_ns": 12 * H}
    )
    totals = summarize_rollup(rows, NOTHING, price=3.0)["totals"]
    assert totals["goodput"] == 86 / 100
    assert totals["allocated_gpu_hours"] == 100
    assert totals["cost"] == 300
    assert totals["buckets"]["lost"] == {"ns": 2 * H, "gpu_hours": 2.0, "share": 0.02, "cost": 6.0}
    assert totals["runs"] == 2


def test_sums_do_not_overflow():
    rows = rollup(*({"productive_ns": 4096 * DAY, "start_ns": i * DAY, "end_ns": (i + 1) * DAY} for i in range(400)))
    assert exact_sum(rows["productive_ns"]) == 400 * 4096 * DAY > 2**63
    answer = summarize_rollup(rows, NOTHING)
    assert answer["totals"]["allocated_ns"] == 400 * 4096 * DAY
    assert answer["over_time"][-1]["cumulative_goodput"] == 1.0


def test_ettr_counts_the_queue_and_needs_to_know_when_it_began():
    known = {"productive_ns": 6 * H, "init_ns": 2 * H, "queue_ns": 4 * H, "eligible_ns": 0}
    assert summarize_rollup(rollup(known), NOTHING)["totals"]["ettr"] == 0.5
    assert summarize_rollup(rollup({"productive_ns": H}), NOTHING)["totals"]["ettr"] is None


def test_effective_mfu_counts_retained_flops_over_all_allocated_time():
    rows = rollup(
        {"productive_ns": 8 * H, "model_flops": 4 * 3600.0, "retained_flops": 3 * 3600.0, "peak_flops": 1.0},
        {"start_ns": H, "end_ns": 2 * H, "recovery_ns": 8 * H, "peak_flops": 1.0},
    )
    totals = summarize_rollup(rows, NOTHING)["totals"]
    assert totals["mfu"] == pytest.approx(0.5)
    assert totals["effective_mfu"] == pytest.approx(3 / 16)
    assert totals["effective_mfu_covers"] == 1.0
    assert summarize_rollup(rollup({"productive_ns": H}), NOTHING)["totals"]["effective_mfu"] is None


def test_mttf_counts_failures_and_mttr_those_that_went_on():
    stops = table_from_rows(
        INTERRUPTIONS,
        [
            {"cluster": "c", "run": "r", "time_ns": 1, "cause": "gpu", "planned": False, "down_ns": H // 2},
            {"cluster": "c", "run": "r", "time_ns": 2, "cause": "maintenance", "planned": True, "down_ns": H},
            {"cluster": "c", "run": "r", "time_ns": 3, "cause": "unknown", "planned": None},
        ],
    )
    totals = summarize_rollup(rollup({"productive_ns": 80 * H}), stops)["totals"]
    assert (totals["interruptions"], totals["failures"]) == (3, 2)  # an unknown cause is taken for a failure
    assert totals["mttf_hours"] == 5.0
    assert totals["mttr_hours"] == 0.75
    assert totals["interruptions_by_cause"] == {"gpu": 1, "maintenance": 1, "unknown": 1}


def test_groups_by_user_and_by_day():
    rows = rollup(
        {"user": "ann", "productive_ns": 3 * H},
        {"user": "bo", "run": "s", "hang_ns": H},
        {"user": "ann", "start_ns": DAY, "end_ns": DAY + H, "eval_ns": H},
    )
    users = {
        g["key"]: (g["allocated_gpu_hours"], g["goodput"]) for g in summarize_rollup(rows, NOTHING, by="user")["groups"]
    }
    assert users == {"ann": (4.0, 0.75), "bo": (1.0, 0.0)}
    days = [(g["key"], g["allocated_gpu_hours"]) for g in summarize_rollup(rows, NOTHING, by="day")["groups"]]
    assert days == [("1970-01-01", 4.0), ("1970-01-02", 1.0)]


def test_a_node_gets_its_share_of_the_attempts_that_it_served():
    nodes = table_from_rows(
        JOB_NODES,
        [
            {"cluster": "c", "run": "r", "attempt": 0, "node": n, "start_ns": 0, "gpus": g}
            for n, g in (("a", 2), ("b", 6))
        ],
    )
    rows = rollup({"productive_ns": 7 * H + 1, "lost_ns": H}, {"run": "elsewhere", "productive_ns": H})
    groups = summarize_rollup(rows, NOTHING, by="node", job_nodes=nodes)["groups"]
    held = {g["key"]: g["allocated_ns"] for g in groups}
    assert sum(held.values()) == exact_sum(rows["allocated_ns"])
    assert held["b"] > 2.9 * held["a"]
    assert held[None] == H


def test_a_scheduler_knows_no_goodput():
    jobs = table_from_rows(
        JOBS,
        [
            {"cluster": "c", "job": "1", "attempt": 0, "start_ns": iso_ns("2024-01-01T22:00:00Z"), "gpus": 8,
             "end_ns": iso_ns("2024-01-02T02:00:00Z"), "eligible_ns": iso_ns("2024-01-01T21:00:00Z"), "cause": "node",
             "user": "ann", "nodes": ["a", "b"]},
            {"cluster": "c", "job": "1", "attempt": 1, "start_ns": iso_ns("2024-01-02T02:00:00Z"), "gpus": 8,
             "end_ns": iso_ns("2024-01-02T04:00:00Z"), "cause": "completed", "user": "ann"},
            {"cluster": "c", "job": "2", "attempt": 0, "submit_ns": 5, "user": "bo"},
        ],
    )  # fmt: skip
    totals = summarize_jobs(jobs, price=1.0)["totals"]
    assert totals["goodput"] is None
    assert (totals["allocated_gpu_hours"], totals["cost"], totals["restarts"], totals["failures"]) == (48.0, 48.0, 1, 1)
    assert totals["mttf_hours"] == 6.0
    assert totals["queue_p50_seconds"] == 3600
    assert (totals["jobs_listed"], totals["jobs_never_started"]) == (3, 1)
    assert {k: v["gpu_hours"] for k, v in totals["outcomes"].items()} == {"node": 32.0, "completed": 16.0}
    days = {g["key"]: g["allocated_gpu_hours"] for g in summarize_jobs(jobs, by="day")["groups"]}
    assert days == {"2024-01-01": 16.0, "2024-01-02": 32.0}
    nodes = {g["key"]: g["allocated_gpu_hours"] for g in summarize_jobs(jobs, by="node")["groups"]}
    assert nodes == {"a": 16.0, "b": 16.0, None: 16.0}


def test_ladder_b_adds_up_to_100_points_and_ends_at_effective_mfu():
    buckets = dict.fromkeys(GOODPUT_BUCKETS, 0) | {"productive": 900, "lost": 33, "init": 67}
    ladder_a = [
        {"term": "mfu", "points": 40.0},
        {"term": "non_matmul", "points": 20.0},
        {"term": "idle_host", "points": 40.0},
    ]
    rows = ladder_b(buckets, 0.35, ladder_a)
    assert sum(r["points"] for r in rows if r["parent"] is None) == 100.0
    inside = {r["term"]: r["points"] for r in rows if r["parent"] == "productive"}
    assert inside["effective_mfu"] == pytest.approx(35, abs=1e-6)
    assert sum(inside.values()) == pytest.approx(90, abs=1e-5)
    assert inside["idle_host (projected)"] == pytest.approx(2 * inside["non_matmul (projected)"])
    assert [r["measured"] for r in rows if "projected" in r["term"]] == [False, False]
    assert ladder_b(dict.fromkeys(GOODPUT_BUCKETS, 0), None) == []


def jobs_of_an_hour(*jobs):
    base = {"cluster": "c", "attempt": 0, "start_ns": 0, "end_ns": H, "cause": "completed", "nodes": ["a"]}
    return table_from_rows(JOBS, [base | {"job": str(number)} | job for number, job in enumerate(jobs)])


@pytest.mark.parametrize("by", ["user", "day", "node", "run"])
def test_gpu_hours_of_jobs_that_name_no_gpus_are_unknown_and_not_0(by):
    answer = summarize_jobs(jobs_of_an_hour({"user": "ann"}, {"user": "bo", "nodes": []}), by=by, price=2.0)
    for row in (answer["totals"], *answer["groups"]):
        assert (row["allocated_ns"], row["allocated_gpu_hours"], row["cost"]) == (None, None, None)
    assert answer["totals"]["outcomes"] == {"completed": {"jobs": 2, "gpu_hours": None, "cost": None}}


def test_jobs_that_name_no_gpus_are_left_out_of_the_sum_of_those_that_do():
    jobs = jobs_of_an_hour({"user": "ann", "gpus": 8}, {"user": "bo"}, {"user": "cy", "gpus": 0})
    answer = summarize_jobs(jobs, by="user", price=2.0)
    assert (answer["totals"]["allocated_gpu_hours"], answer["totals"]["jobs_without_gpu_count"]) == (8.0, 1)
    assert {row["key"]: row["allocated_gpu_hours"] for row in answer["groups"]} == {"ann": 8.0, "bo": None, "cy": 0.0}


def test_no_job_at_all_held_0_gpu_hours():
    assert summarize_jobs(JOBS.empty())["totals"]["allocated_gpu_hours"] == 0.0
