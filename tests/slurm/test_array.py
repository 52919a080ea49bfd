"""An array job under a real Slurm ingests a dump in shares; what is left is what one process leaves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import perfkit
from perfkit.store import Store
from tests.dumps import all_rows, assert_same_rows, make_dump
from tests.slurm.cluster import SlurmCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# the last task never does its share
SCRIPT = """#!/bin/bash
#SBATCH --array=1-4 --ntasks=1 --mem=100
env | grep SLURM_ > {work}/env-$SLURM_ARRAY_TASK_ID
if [ "$SLURM_ARRAY_TASK_ID" != 4 ]; then
  {python} -m perfkit ingest {dump} --store {store} --shard auto
fi
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Run the array; returns the dump, the store and what the tasks printed."""
    folder = tmp_path_factory.mktemp("array")
    dump, store, work = make_dump(folder / "job", 6), folder / "store", folder / "work"
    work.mkdir()
    script = folder / "array.sh"
    script.write_text(SCRIPT.format(python=sys.executable, dump=dump, store=store, work=work))
    with SlurmCluster(folder / "slurm") as slurm:
        job = slurm.submit(script, f"--output={work}/out-%a.txt")
        for task in range(1, 5):
            slurm.wait(f"{job}_{task}", "COMPLETED")
    return dump, store, {path.name: path.read_text() for path in sorted(work.iterdir())}


def test_every_task_takes_its_own_share(finished):
    _, store, said = finished
    ranks = Store(store).runs()[0].ranks
    assert 0 < len(ranks) < 6, said
    for task in (1, 2, 3):
        assert f"shard {task - 1}/4" in said[f"out-{task}.txt"]


def test_the_task_that_did_nothing_is_missed_and_can_be_made_up_for(finished, tmp_path):
    dump, store, said = finished
    assert Store(store).missing_shards("default", "job") == ([3], 4), said
    report = perfkit.analyze(store)
    [row] = report.summary["quality"]["rejected"]
    assert row["path"] == "shards 3 of 4"
    assert report.summary["scope"]["world_size"] == 6

    from perfkit.engine.shards import Shard

    perfkit.ingest(dump, store=store, shard=Shard(3, 4))
    perfkit.ingest(dump, store=tmp_path)
    assert_same_rows(all_rows(tmp_path, "job"), all_rows(store, "job"))
    assert not perfkit.analyze(store).summary["quality"]["rejected"]


def test_the_example_in_the_docs_asks_for_what_slurm_gives(finished):
    *_, said = finished
    example = (Path(__file__).parents[2] / "docs/cluster/slurm_array.sbatch").read_text()
    assert "SLURM_ARRAY_TASK_MIN" in example
    assert "SLURM_ARRAY_TASK_COUNT=4" in said["env-1"]
    assert "SLURM_STEP_NUM_TASKS" not in said["env-1"], "a batch script is no step"
