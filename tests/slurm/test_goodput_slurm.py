"""A job that crashes under a real Slurm and is requeued is one run with two attempts, and its goodput is right."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from perfkit.cli.main import main
from perfkit.store import Store
from tests.slurm.cluster import SlurmCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SLACK_S = 0.05
"""Two clocks are read (wall and monotonic); they drift apart by less than this."""
SCRIPT = """#!/bin/bash
#SBATCH --requeue --job-name=train
{python} {train} {store} {work} && exit
until scontrol requeue $SLURM_JOB_ID; do sleep 1; done
sleep 60  # until Slurm ends this attempt
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Run the job; returns the store and the job's own diary."""
    folder = tmp_path_factory.mktemp("slurm")
    work = folder / "work"
    work.mkdir()
    script = folder / "job.sh"
    train = Path(__file__).with_name("train.py")
    script.write_text(SCRIPT.format(python=sys.executable, train=train, store=folder / "store", work=work))
    with SlurmCluster(folder / "slurm") as slurm:
        job = slurm.submit(script, f"--output={work}/out-%j.txt")
        facts = slurm.wait(job, "COMPLETED")
    assert facts["Restarts"] == "1", (work / f"out-{job}.txt").read_text()
    diary = [json.loads(line) for line in (work / "diary.jsonl").read_text().splitlines()]
    return folder / "store", diary


def goodput(store, capsys):
    capsys.readouterr()
    assert main(["goodput", str(store), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_is_one_run_with_two_attempts_of_the_slurm_cluster(finished):
    store, _ = finished
    runs = Store(store).runs()
    assert {(run.cluster, run.run) for run in runs} == {("perfkit-test", "slurm-job")}
    assert sorted(run.attempt for run in runs) == [0, 1]


def seconds(rows, which):
    return sum(row[which][1] - row[which][0] for row in rows)


def test_its_buckets_agree_with_its_own_diary(finished, capsys):
    store, diary = finished
    answer = goodput(store, capsys)
    spent = {name: bucket["ns"] / 1e9 for name, bucket in answer["totals"]["buckets"].items()}
    for kind, bucket in (("restore", "restore"), ("save", "checkpoint")):
        rows = [row for row in diary if row["kind"] == kind]
        assert seconds(rows, "inner") - SLACK_S <= spent[bucket] <= seconds(rows, "outer") + SLACK_S
    steps = [row for row in diary if row["kind"] == "step"]
    again = {row["step"] for row in steps if row["attempt"] == 1}
    lost = [row for row in steps if row["attempt"] == 0 and row["step"] in again]
    kept = [row for row in steps if row not in lost]
    assert [row["step"] for row in lost] == [10, 11, 12]
    trained = spent["productive"] + spent["slow_step"] + spent["compile"]
    # a step owns the time since the end of what was before it, and three usual steps before a death are lost as well
    between = sum(
        max(0.0, here["inner"][0] - before["inner"][1])
        for before, here in pairwise(diary)
        if before["attempt"] == here["attempt"] and here["kind"] == "step"
    )
    usual = median(row["outer"][1] - row["outer"][0] for row in steps)
    assert seconds(kept, "inner") - SLACK_S <= trained <= seconds(kept, "outer") + between + SLACK_S
    assert seconds(lost, "inner") - SLACK_S <= spent["lost"] <= seconds(lost, "outer") + between + 3.5 * usual + SLACK_S
    assert sum(b["ns"] for b in answer["totals"]["buckets"].values()) == answer["totals"]["allocated_ns"]


def test_its_interruption_is_counted_once(finished, capsys):
    store, _ = finished
    totals = goodput(store, capsys)["totals"]
    assert (totals["interruptions"], totals["restarts"]) == (1, 1)
    assert totals["steps"] == 13 + 14  # steps 10, 11 and 12 were run again
