"""Notes and saved views on the pages: written through the server, drawn on charts, kept from who may not see them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from perfkit_dashboards.access import Access
from perfkit_dashboards.app import create_app
from perfkit_dashboards.view import View

from perfkit.store.files import Files
from perfkit.store.notes import read_notes
from tests.dashboards.made_stores import HOSTILE
from tests.dashboards.test_access import HASHES, As
from tests.dashboards.test_dashboard_app import draw

CLUSTER = "/cluster?cluster=alpha&range=all"
RUN = "/run?cluster=alpha&run=steady"
UPGRADE = {"kind": "annotation", "text": "driver upgraded here", "time": "2025-11-09T12:00", "link": CLUSTER}


@pytest.fixture
def store(fleet: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(fleet, tmp_path / "store"))


@pytest.fixture
def client(store: Path) -> Any:
    return create_app(str(store)).server.test_client()


def test_an_annotation_stands_on_the_chart_of_its_cluster(client, store: Path) -> None:
    view = View(page="cluster", cluster="alpha", range="all")
    before = draw(client, view, "cluster.time")
    assert client.post("/notes", json=UPGRADE).status_code == 200
    after = draw(client, view, "cluster.time", drawn=before["drawn"]["data"])
    text = json.dumps(after)
    assert "2025-11-09 12:00" in text
    assert "Notes: 2025-11-09 12:00 driver upgraded here" in text
    assert "driver upgraded" not in json.dumps(draw(client, view.change(cluster="beta"), "cluster.time"))
    assert [note.text for note in read_notes(Files(store))[0]] == ["driver upgraded here"]


def test_an_annotation_stands_on_the_curves_of_its_run_and_not_of_others(client) -> None:
    moment = "2025-11-11T00:00:00+00:00"  # the run's records begin there
    assert client.post("/notes", json={**UPGRADE, "time": moment, "text": "new loader", "link": RUN}).status_code == 200
    assert "new loader" in json.dumps(draw(client, View(page="run", cluster="alpha", run="steady"), "run.curves"))
    assert "new loader" not in json.dumps(draw(client, View(page="run", cluster="alpha", run="short"), "run.curves"))
    rows = client.get("/notes?cluster=alpha&run=steady").get_json()["notes"]
    assert [(row["text"], row["time"]) for row in rows] == [("new loader", "2025-11-11 00:00")]


def test_a_view_is_saved_listed_and_deleted(client) -> None:
    link = "/?range=7d&clusters=beta"
    assert client.post("/notes", json={"kind": "view", "text": "Monday", "link": link}).status_code == 200
    found = client.get("/notes").get_json()["views"]
    assert [(row["text"], row["link"], row["mine"]) for row in found] == [("Monday", link, True)]
    assert client.delete(f"/notes/{found[0]['id']}").status_code == 200
    assert client.get("/notes").get_json()["views"] == []
    assert client.delete(f"/notes/{found[0]['id']}").status_code == 404


@pytest.mark.parametrize(
    "body",
    [None, [], {}, {**UPGRADE, "text": ""}, {**UPGRADE, "time": "soon"}, {**UPGRADE, "link": "https://elsewhere/"},
     {**UPGRADE, "link": "/cluster?cluster=no"}, {**UPGRADE, "link": "/"}, {**UPGRADE, "kind": "x"},
     {"kind": "view", "text": "x", "link": "//elsewhere"}, {"kind": "view", "text": "x", "link": "/no/such"}],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_with_a_clear_line(client, store: Path, body: Any) -> None:
    answer = client.post("/notes", json=body)
    assert answer.status_code == 400
    assert len(answer.get_data(as_text=True).strip().splitlines()) == 1
    assert read_notes(Files(store)) == ([], [])


def test_a_note_is_text_whatever_it_says(client) -> None:
    assert client.post("/notes", json={**UPGRADE, "text": HOSTILE}).status_code == 200
    text = json.dumps(draw(client, View(page="cluster", cluster="alpha", range="all"), "cluster.time"))
    assert "<script>" not in json.dumps(json.loads(text)["body"]["children"]["props"]["children"][2]["props"]
                                        ["children"][0]["props"]["children"]["props"]["figure"])  # fmt: skip


def test_a_dashboard_that_only_reads_writes_nothing(store: Path) -> None:
    client = create_app(str(store), read_only=True).server.test_client()
    assert client.post("/notes", json=UPGRADE).status_code == 403
    assert client.delete("/notes/1-0123456789ab").status_code == 403
    assert client.get("/notes").get_json()["writable"] is False
    assert read_notes(Files(store)) == ([], [])


def test_notes_of_others_are_not_there(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    listed = {"ada": ["*"], "grace": ["alpha"]}
    path.write_text(json.dumps({"users": {n: {"password": HASHES[n], "see": see} for n, see in listed.items()}}))
    client = create_app(str(store), access=Access(path)).server.test_client()
    ada, grace = As(client, "ada"), As(client, "grace")
    assert ada.post("/notes", json={**UPGRADE, "link": "/cluster?cluster=beta"}).status_code == 200
    assert ada.post("/notes", json=UPGRADE).status_code == 200
    assert ada.post("/notes", json={"kind": "view", "text": "all of it", "link": "/?clusters=beta"}).status_code == 200
    assert grace.post("/notes", json={**UPGRADE, "link": "/cluster?cluster=beta"}).status_code == 400
    assert grace.get("/notes?cluster=beta").status_code == 404
    seen = grace.get("/notes?cluster=alpha").get_json()
    assert [(row["by"], row["mine"]) for row in seen["notes"]] == [("ada", False)]
    assert seen["views"] == []
    for note in read_notes(Files(store))[0]:
        assert grace.delete(f"/notes/{note.id}").status_code == 404
    assert len(read_notes(Files(store))[0]) == 3
