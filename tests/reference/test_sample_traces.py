"""The traces that ship with the project are what their README says."""

from __future__ import annotations

import json
import os

import pytest

from perfkit.analysis.analyze import analyze
from perfkit.reference.demo import job_facts
from tests.conftest import ROOT

SAMPLES = ROOT / "sample_traces"


def test_they_are_small_and_listed():
    files = [path for path in SAMPLES.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 15_000_000
    readme = (SAMPLES / "README.md").read_text()
    folders = sorted(entry.name for entry in os.scandir(SAMPLES) if entry.is_dir() and entry.name != "__pycache__")
    assert all(f"`{name}/`" in readme for name in folders)


def test_the_captured_job_gets_an_mfu_from_its_own_configuration():
    folder = SAMPLES / "reference_ddp"
    facts = job_facts(json.loads((folder / "config.json").read_text()))
    summary = analyze(folder, peak_flops=200e9, hardware="a core", dtype="fp32", **facts).summary
    assert summary["scope"]["world_size"] == 2
    assert not summary["synthetic"]
    assert 0 < summary["mfu"]["value"] <= 1
    assert summary["quality"]["clock"]["aligned"]


def test_the_slow_rank_is_named():
    first = analyze(SAMPLES / "reference_slow_rank").summary["findings"][0]
    assert first["id"] in ("straggler", "slow_rank")
    assert first["evidence"]["rank"] == 1


def test_the_simulated_set_is_labelled_and_its_truth_is_found():
    truth = json.loads((SAMPLES / "simulated_h100" / "truth.json").read_text())
    assert "slow-rank:2" in json.dumps(truth)
    summary = analyze(SAMPLES / "simulated_h100").summary
    assert summary["synthetic"]
    assert summary["scope"]["ranks_traced"] == 4
    blamed = [f for f in summary["findings"] if f["id"] in ("straggler", "slow_rank")]
    assert blamed
    assert all(f["evidence"]["rank"] == 2 for f in blamed)


@pytest.mark.parametrize("name", ["reference_ddp", "reference_slow_rank"])
def test_no_sample_tells_where_it_was_made(name):
    import gzip
    import re

    for path in (SAMPLES / name).glob("*.gz"):
        assert not re.findall(rb"/(?:home|root|work|tmp)/", gzip.decompress(path.read_bytes()))
