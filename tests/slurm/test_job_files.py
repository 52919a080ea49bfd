"""The job files of docs/cluster do what they say: `sbatch docs/cluster/…` under a real Slurm, with a small dump."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import perfkit
from perfkit.store import Store
from tests.conftest import IN_CI
from tests.dumps import all_rows, assert_same_rows, make_dump
from tests.slurm.cluster import SlurmCluster, free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
EXAMPLES = Path(__file__).parents[2] / "docs/cluster"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Four nodes that claim to be as large as the files ask for; a job sees its own processes only."""
    folder = tmp_path_factory.mktemp("files")
    with SlurmCluster(folder / "slurm", nodes=4, cpus=32, memory_mb=64_000, own_processes=True) as started:
        started.environ["PATH"] = f"{Path(sys.executable).parent}:{started.environ['PATH']}"
        yield started


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    return make_dump(tmp_path_factory.mktemp("dump") / "job", 6)


@pytest.fixture(scope="module")
def expected(dump, tmp_path_factory):
    store = tmp_path_factory.mktemp("local")
    perfkit.ingest(dump, store=store)
    return all_rows(store, "job")


def run(slurm, name, dump, store, *options, **variables):
    """Submit a file of the docs as a user does, and wait for its end; returns the job and what it printed."""
    log = store.parent / "%A-%a.txt" if "--array" in " ".join(options) else store.parent / "%j.txt"
    slurm.environ.update(DUMP=str(dump), STORE=str(store), **variables)
    job = slurm.submit(EXAMPLES / name, f"--output={log}", f"--chdir={store.parent}", *options)
    slurm.wait(job, "COMPLETED")
    return job, {path.name: path.read_text() for path in store.parent.glob("*.txt")}


def check(store, expected, said):
    assert_same_rows(expected, all_rows(store, "job"))
    assert Store(store).missing_shards("default", "job") in (None, ([], 4)), said
    assert len(Store(store).read("waterfall")), said
    assert "<html" in (store.parent / "job.html").read_text(), said


def test_the_array_ingests_in_shares_and_leaves_an_analysis_behind(slurm, dump, expected, tmp_path):
    job, said = run(slurm, "slurm_array.sbatch", dump, tmp_path / "store", "--array=0-3")
    follower = next(line.split()[-1] for text in said.values() for line in text.splitlines() if "Submitted" in line)
    for task in range(4):
        slurm.wait(f"{job}_{task}", "COMPLETED")
    slurm.wait(follower, "COMPLETED")
    check(tmp_path / "store", expected, said)


def test_a_share_that_failed_is_submitted_again_alone(slurm, dump, tmp_path):
    _, said = run(slurm, "slurm_array.sbatch", dump, tmp_path / "store", "--array=3", SHARD="3/4")
    del slurm.environ["SHARD"]
    assert Store(tmp_path / "store").missing_shards("default", "job") == ([0, 1, 2], 4), said


def test_the_step_does_the_same_in_one_allocation(slurm, dump, expected, tmp_path):
    _, said = run(slurm, "slurm_step.sbatch", dump, tmp_path / "store", "--ntasks-per-node=1")
    check(tmp_path / "store", expected, said)


def test_a_ray_cluster_lives_for_one_command(slurm, dump, expected, tmp_path):
    if shutil.which("ray", path=slurm.environ["PATH"]) is None:
        if IN_CI:
            pytest.fail("CI must run Ray under Slurm")
        pytest.skip("no `ray` command here")
    head = f"{slurm.address}:{free_ports(1)[0]}"
    # one node: all of them have this machine's addresses, and each would take itself for the head
    _, said = run(slurm, "ray_slurm.sbatch", dump, tmp_path / "store", "--nodes=1", HEAD=head)
    check(tmp_path / "store", expected, said)
    assert "Running command on head node" in "".join(said.values())
