from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfkit.analysis.analyze import analyze
from perfkit.report.json_schema import SCHEMA, complete, numeric_paths, render
from perfkit.report.report import Report
from tests.report.documents import HOSTILE, bare, report

ROOT = Path(__file__).resolve().parents[2]


def validate(document: object) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)


def test_the_published_schema_is_current() -> None:
    assert (ROOT / "docs" / "analyze.schema.json").read_text() == render()


@pytest.mark.parametrize("name", ["kernel", HOSTILE])
@pytest.mark.parametrize("mfu", [0.41, None])
def test_documents_follow_the_schema(name: str, mfu: float | None) -> None:
    validate(json.loads(report(name=name, mfu=mfu).to_json()))


def test_a_document_in_which_nothing_is_known_follows_the_schema() -> None:
    validate(json.loads(bare().to_json()))


def test_the_document_of_a_real_job_follows_the_schema() -> None:
    found = analyze(ROOT / "sample_traces" / "ddp_gloo")
    validate(json.loads(Report(found.summary, found.tables).to_json()))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("mfu", "value"), 1.2), (("mfu", "value"), 0), (("totals", "idle_ns"), 1.5), (("synthetic",), None),
        (("waterfall", 0, "measured"), None), (("schema_version",), 2), (("scope", "steps"), [1]),
    ],
)  # fmt: skip
def test_the_schema_refuses_what_is_not_promised(path: tuple, value: object) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    document = json.loads(report().to_json())
    inner = document
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        validate(document)


def test_completing_keeps_what_is_there_and_fills_what_is_not_with_null() -> None:
    got = complete({"schema_version": 1, "extra": 3, "mfu": {"value": 0.5, "mine": 1}, "findings": []})
    assert (got["extra"], got["mfu"]["value"], got["mfu"]["mine"], got["findings"]) == (3, 0.5, 1, [])
    assert got["mfu"]["hfu"] is None
    assert got["collectives"] is None
    assert got["quality"]["clock"] == {"aligned": None, "uncertainty_ns": None}
    assert complete(got) == got


def test_every_key_that_the_design_promises_is_required() -> None:
    promised = """schema_version synthetic scope quality hardware throughput mfu totals idle io steps ranks collectives
        kernels waterfall findings"""
    assert SCHEMA["required"] == promised.split()
    assert {"mfu.value", "totals.idle_ns", "io.h2d_gbps", "quality.clock.uncertainty_ns"} <= set(numeric_paths())
