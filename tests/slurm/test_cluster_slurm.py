"""The test cluster itself: it runs jobs in every network that a machine may allow."""

from __future__ import annotations

import pytest

from tests.slurm.cluster import NETWORKS, SlurmCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SCRIPT = """#!/bin/bash
#SBATCH --nodes=2
srun --mpi=none --ntasks-per-node=1 printenv SLURMD_NODENAME SLURM_PROCID
"""


@pytest.mark.parametrize("network", NETWORKS)
def test_a_job_runs_on_two_nodes(tmp_path, network):
    run_job(tmp_path, network)


def test_where_no_namespace_is_allowed_the_host_serves(tmp_path, monkeypatch):
    monkeypatch.setattr(SlurmCluster, "_enter_namespace", lambda self: "Operation not permitted")
    run_job(tmp_path, None)


def run_job(folder, network):
    script = folder / "job.sh"
    script.write_text(SCRIPT)
    with SlurmCluster(folder / "slurm", network=network) as slurm:
        job = slurm.submit(script, f"--output={folder}/out.txt")
        slurm.wait(job, "COMPLETED")
    assert sorted((folder / "out.txt").read_text().split()) == ["0", "1", "n1", "n2"]
