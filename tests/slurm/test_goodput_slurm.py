"""A job that crashes under a real Slurm and is requeued is one run with two attempts, and its goodput is right."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from perfkit.cli.main import main
from perfkit.store import Store
from tests.slurm.cluster import SlurmCluster

pytestmark = pytest.mark.slow

SCRIPT = """#!/bin/bash
#SBATCH --requeue --job-name=train
{python} {train} {store} {work} || scontrol requeue $SLURM_JOB_ID
sleep 1
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


def test_its_buckets_agree_with_its_own_diary(finished, capsys):
    store, diary = finished
    answer = goodput(store, capsys)
    seconds = {name: bucket["ns"] / 1e9 for name, bucket in answer["totals"]["buckets"].items()}

    def spent(kind, lost=None):
        rows = [row for row in diary if row["kind"] == kind]
        if lost is not None:
            again = {row["step"] for row in rows if row["attempt"] == 1}
            rows = [row for row in rows if (row["attempt"] == 0 and row["step"] in again) == lost]
        return sum(row["end"] - row["start"] for row in rows)

    assert seconds["restore"] == pytest.approx(spent("restore"), rel=0.05)
    assert seconds["checkpoint"] == pytest.approx(spent("save"), rel=0.05)
    lost = spent("step", lost=True) + spent("dying")  # what was done of the next step is lost as well
    assert seconds["lost"] == pytest.approx(lost, rel=0.1)
    kept = spent("step", lost=False)
    assert seconds["productive"] + seconds["slow_step"] + seconds["compile"] == pytest.approx(kept, rel=0.1)
    assert sum(b["ns"] for b in answer["totals"]["buckets"].values()) == answer["totals"]["allocated_ns"]


def test_its_interruption_is_counted_once(finished, capsys):
    store, _ = finished
    totals = goodput(store, capsys)["totals"]
    assert (totals["interruptions"], totals["restarts"]) == (1, 1)
    assert totals["steps"] == 13 + 14  # steps 10, 11 and 12 were run again
