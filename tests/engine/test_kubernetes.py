"""The Kubernetes example: what the API server checks, and its container's command in as many processes as pods."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import perfkit
from perfkit.store import Store
from tests.conftest import IN_CI
from tests.dumps import all_rows, assert_same_rows, make_dump

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
EXAMPLE = Path(__file__).parents[2] / "docs/cluster/kubernetes.yaml"


@pytest.fixture(scope="module")
def jobs():
    return list(yaml.safe_load_all(EXAMPLE.read_text()))


def container(job):
    [one] = job["spec"]["template"]["spec"]["containers"]
    return one


def test_both_jobs_follow_the_schema_of_kubernetes(jobs):
    try:
        import kubernetes_validate
    except ImportError:
        if IN_CI:
            raise
        pytest.skip("kubernetes-validate has the schemas")
    for job in jobs:
        kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)
        broken = {**job, "spec": {**job["spec"], "completion": 3}}
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(broken, kubernetes_validate.latest_version(), strict=True)


def test_a_pod_knows_how_many_there_are(jobs):
    ingest, _ = jobs
    variables = {one["name"]: one["value"] for one in container(ingest)["env"]}
    assert int(variables["PERFKIT_SHARD_COUNT"]) == ingest["spec"]["completions"]
    assert ingest["spec"]["completionMode"] == "Indexed"


def run(job, places, **variables):
    """Run the command of a job here: the same words, other places."""
    command = [places.get(word, word) for word in container(job)["command"]]
    assert command[0] == "perfkit"
    return subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, timeout=200, env={**os.environ, **variables}
    )


def test_the_containers_do_the_work_of_one_process(jobs, tmp_path):
    ingest, analyze = jobs
    dump, count = make_dump(tmp_path / "llama-8b", 5), 3
    places = {"s3://traces/llama-8b/": str(dump), "s3://perf/lake": str(tmp_path / "lake")}
    for index in range(count):
        done = run(ingest, places, JOB_COMPLETION_INDEX=str(index), PERFKIT_SHARD_COUNT=str(count))
        assert done.returncode == 0, done.stderr
    done = run(analyze, places)
    assert done.returncode == 0, done.stderr
    assert Store(tmp_path / "lake").missing_shards("default", "llama-8b") == ([], count)
    perfkit.ingest(dump, store=tmp_path / "one")
    assert_same_rows(all_rows(tmp_path / "one", "llama-8b"), all_rows(tmp_path / "lake", "llama-8b"))
