"""The command that a page offers prints the numbers that the page shows."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from perfkit_dashboards import data_fleet, data_ranks, data_run
from perfkit_dashboards.app import create_app
from perfkit_dashboards.commands import command_of, iso
from perfkit_dashboards.data import Source
from perfkit_dashboards.pages import PAGES
from perfkit_dashboards.view import View

from perfkit.cli.main import main
from perfkit.goodput.importers.base import iso_ns
from tests.dashboards.made_stores import HOSTILE

KEYS = ("goodput", "mfu", "effective_mfu")


def answer(command: str | None, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Run a command as a shell would."""
    assert command is not None
    words = shlex.split(command)
    assert words[0] == "perfkit"
    assert main(words[1:]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "view",
    [
        View(range="all"), View(), View(range="24h"), View(since="2025-11-09", until="2025-11-10"),
        View(clusters=("beta",), range="7d"), View(page="cluster", cluster="beta", range="24h"),
    ],
)  # fmt: skip
def test_clusters_are_those_of_perfkit_goodput(source: Source, view: View, capsys) -> None:
    said = {group["key"]: group for group in answer(command_of(view, source), capsys)["groups"]}
    shown = {row["cluster"]: row for row in data_fleet.clusters(source, view) if row["runs"]}
    assert said.keys() == shown.keys()
    for name, row in shown.items():
        assert {key: said[name][key] for key in KEYS} == pytest.approx({key: row[key] for key in KEYS})


def test_a_run_is_that_of_perfkit_goodput(source: Source, capsys) -> None:
    view = View(page="run", cluster="beta", run="shaky")
    said, shown = answer(command_of(view, source), capsys)["totals"], data_run.totals(source, view)
    assert shown is not None
    assert {key: said[key] for key in KEYS} == pytest.approx({key: shown[key] for key in KEYS})


def test_ranks_are_those_of_perfkit_analyze(tmp_path: Path, capsys) -> None:
    from tests.conftest import ROOT

    store = str(tmp_path / "store")
    traces = str(ROOT / "sample_traces" / "ddp_gloo")
    assert main(["ingest", traces, "--store", store]) == 0
    assert main(["analyze", "ddp_gloo", "--store", store, "--format", "json"]) == 0
    capsys.readouterr()
    source = Source(store)
    run = data_fleet.traced_runs(source, View(range="all"))[0]
    view = View(page="ranks", cluster=run["cluster"], run=run["run"])
    said = answer(command_of(view, source), capsys)
    compute = data_ranks.cube(source, source.run_key(view), "compute", view)
    assert said["totals"]["compute_ns"] == np.nansum(compute.values)


@pytest.mark.parametrize("page", PAGES)
def test_every_page_has_a_button_with_its_command(fleet: Path, page: str) -> None:
    client = create_app(str(fleet)).server.test_client()
    where = {"fleet": {}, "cluster": {"cluster": "beta"}}.get(
        page, {"cluster": "alpha", "run": "steady", "base": "steady"}
    )
    path, _, query = View(page=page, **where).href().partition("?")
    names = (("status", "children"), ("version", "data"), ("warnings", "children"), ("command", "children"))
    body = {
        "output": "..status.children...version.data...warnings.children...command.children..",
        "outputs": [{"id": name, "property": prop} for name, prop in names],
        "inputs": [{"id": "view", "property": "data", "value": {"path": path, "search": f"?{query}"}},
                   {"id": "tick", "property": "data"}],
        "state": [{"id": "version", "property": "data"}], "changedPropIds": ["view.data"],
    }  # fmt: skip
    found = json.loads(client.post("/_dash-update-component", json=body).data)["response"]["command"]["children"]
    words = shlex.split(found["props"]["data-command"])
    assert words[0] == "perfkit"
    assert words[-2:] == ["--format", "json"]


def test_names_are_quoted_for_the_shell(source: Source) -> None:
    for name in ("a b", "$(reboot)", "'; rm -rf /", HOSTILE):
        command = command_of(View(page="run", cluster="c", run=name), source)
        assert command is not None
        assert shlex.split(command)[2] == f"c/{name}"


@pytest.mark.parametrize("time_ns", [0, 1_762_646_400 * 10**9, 1_762_646_400 * 10**9 + 1, 999_999_999, 123_456_000])
def test_a_time_is_read_back_as_the_first_microsecond_that_is_not_before_it(time_ns: int) -> None:
    assert 0 <= (iso_ns(iso(time_ns)) or 0) - time_ns < 1000
