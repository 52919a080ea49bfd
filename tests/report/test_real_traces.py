"""Every report of real traces follows the schema, and renders; the numbers are tested in tests/analysis."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfkit.analysis.analyze import analyze
from perfkit.report.json_schema import SCHEMA
from perfkit.report.report import Report
from tests.report.test_html import Page

FOLDERS = (
    "KellerJordan__modded-nanogpt", "AMD-AGI__TraceLens", "anupambhatnagar__GPUPuzzlers", "pytorch__kineto",
    "NVIDIA__Fuser", "pytorch__torchrec", "facebookresearch__HolisticTraceAnalysis",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_real_traces_render(traces: Path, folder: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    found = analyze(traces / folder)
    report = Report(found.summary, found.tables, found.sources)
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(report.to_json()))
    assert Page(report.to_html()).open == []
    for details in (False, True):
        assert all(len(line) <= 80 for line in report.to_text(width=80, details=details).splitlines())
    tops = [row["points"] for row in report.waterfall or () if row["parent"] is None]
    assert not tops or sum(tops) == 100
