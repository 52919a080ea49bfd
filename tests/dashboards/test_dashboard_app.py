"""The app without a browser: routes, callbacks, exports, prefix, hostile names, the command."""

from __future__ import annotations

import csv
import io
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from perfkit_dashboards.app import create_app
from perfkit_dashboards.export import to_csv
from perfkit_dashboards.pages import PAGES, SECTIONS
from perfkit_dashboards.serve import bind
from perfkit_dashboards.view import View

from perfkit.cli.main import main
from perfkit.errors import PerfkitError
from tests.dashboards.made_stores import NAMES, make_fleet, make_run

MATCH = '..{"part":"body","section":["MATCH"]}.children...{"part":"drawn","section":["MATCH"]}.data..'


def draw(client: Any, view: View, section: str, *, drawn: str | None = None, prefix: str = "/") -> Any:
    """Ask for a section as the browser does; None where there is nothing new."""
    path, _, query = view.href(prefix).partition("?")
    seen = {"path": path, "search": f"?{query}", "theme": "light"}
    ids = {"part": "body", "section": section}, {"part": "drawn", "section": section}
    body = {
        "output": MATCH, "outputs": [{"id": ids[0], "property": "children"}, {"id": ids[1], "property": "data"}],
        "inputs": [{"id": "view", "property": "data", "value": seen}, {"id": "refresh", "property": "data"}],
        "state": [{"id": ids[0], "property": "id", "value": ids[0]},
                  {"id": ids[1], "property": "data", "value": drawn}],
        "changedPropIds": ["view.data"],
    }  # fmt: skip
    answer = client.post(f"{prefix}_dash-update-component", json=body)
    if answer.status_code == 204:
        return None
    assert answer.status_code == 200, answer.data
    found = json.loads(answer.data)["response"]
    return {json.loads(name)["part"]: value for name, value in found.items()}


@pytest.fixture(scope="module")
def client(fleet: Path) -> Any:
    return create_app(str(fleet)).server.test_client()


def test_the_page_names_nothing_outside_this_machine(client) -> None:
    html = client.get("/").get_data(as_text=True)
    found = [link for link in re.findall(r"""(?:src|href)=["']([^"']+)""", html) if not link.startswith(("/", "data:"))]
    assert found == []
    assert "default-src 'self'" in client.get("/").headers["Content-Security-Policy"]
    assert client.get("/health").status_code == 200


def test_there_is_no_mcp_endpoint(client) -> None:
    assert all(
        client.get(path).status_code == 404 or b"<!DOCTYPE" in client.get(path).data for path in ("/_mcp", "/mcp")
    )


@pytest.mark.parametrize("name", SECTIONS)
def test_every_section_is_drawn_within_the_budget_and_kept_while_nothing_changes(client, name: str) -> None:
    page = name.split(".")[0]
    where = {"fleet": {}, "cluster": {"cluster": "beta"}}.get(page, {"cluster": "alpha", "run": "steady"})
    view = View(page=page, range="all", rank=5 if page == "ranks" else None, **where)
    found = draw(client, view, name)
    text = json.dumps(found["body"])
    assert "pk-error" not in text
    assert len(text) <= 500_000
    key = found["drawn"]["data"]
    assert draw(client, view, name, drawn=key) is None
    other = PAGES["cluster" if page == "fleet" else "fleet"]
    assert draw(client, View(page=other.name), name) is None, "a section of a page that was left is not drawn"


def test_a_section_is_drawn_again_only_for_what_it_uses(client) -> None:
    view = View(page="cluster", cluster="beta", range="all")
    key = draw(client, view, "cluster.time")["drawn"]["data"]
    assert draw(client, view.change(gpu="health"), "cluster.time", drawn=key) is None
    assert draw(client, view.change(range="7d"), "cluster.time", drawn=key) is not None


def test_every_graph_has_the_cloud_off(client) -> None:
    view = View(page="run", cluster="alpha", run="steady")
    text = json.dumps(draw(client, view, "run.waterfall"))
    assert '"showSendToCloud": false' in text
    assert '"role": "img"' in text


def test_behind_a_prefix_every_link_and_route_has_it(fleet: Path) -> None:
    client = create_app(str(fleet), prefix="perf").server.test_client()
    assert client.get("/perf/health").status_code == 200
    assert client.get("/perf/").status_code == 200
    text = json.dumps(draw(client, View(range="all"), "fleet.tiles", prefix="/perf/"))
    links = re.findall(r'"href": "([^"]+)"', text)
    assert links
    assert all(link.startswith("/perf/cluster?") for link in links)
    assert client.get("/perf/export/fleet.tiles.csv?range=all").status_code == 200


# ------------------------------------------------------------------ exports


@pytest.mark.parametrize("name", [name for name, section in SECTIONS.items() if section.table])
def test_every_export_is_csv_with_a_header(client, name: str) -> None:
    page = name.split(".")[0]
    run = "&cluster=alpha&run=steady&rank=5&base=steady"
    where = {"fleet": "", "cluster": "&cluster=beta", "node-health": "&cluster=beta"}.get(page, run)
    where = run if name == "node-health.joined" else where
    answer = client.get(f"/export/{name}.csv?range=all{where}")
    assert answer.status_code == 200
    assert "attachment" in answer.headers["Content-Disposition"]
    rows = list(csv.reader(io.StringIO(answer.get_data(as_text=True))))
    assert len(rows) > 1 or page == "compare"  # a run against itself: nothing changed
    assert len({len(row) for row in rows}) == 1


def test_csv_holds_what_the_tiles_show(client) -> None:
    text = client.get("/export/fleet.tiles.csv?range=all").get_data(as_text=True)
    rows = {row["cluster"]: row for row in csv.DictReader(io.StringIO(text))}
    assert float(rows["beta"]["goodput"]) == pytest.approx(0.70)
    assert float(rows["alpha"]["uptime"]) == 1.0


@pytest.mark.parametrize("name", [name for name, section in SECTIONS.items() if section.table])
def test_an_export_of_nothing_is_an_empty_file_and_of_an_unknown_name_none(client, name: str) -> None:
    for query in ("", "?attempt=99&cluster=alpha&run=steady"):
        assert client.get(f"/export/{name}.csv{query}").status_code == 200
    for query in ("?cluster=no&run=such&rank=7", "?cluster=&run=", "?cluster=alpha&run=such"):
        assert client.get(f"/export/{name}.csv{query}").status_code == 404


def test_an_unknown_export_is_not_found(client) -> None:
    for name in ("no.such", "fleet.verdict", "%2e%2e"):
        assert client.get(f"/export/{name}.csv").status_code == 404


def test_a_cell_that_a_spreadsheet_would_run_is_disarmed() -> None:
    import pyarrow as pa

    cells = ["=1+1", "+cmd", "-2+3", "@x", " =x", "\t=x", "fine", "a,b", 'q"q', None, "", "-2"]
    for kind in (pa.utf8(), pa.large_utf8(), pa.string_view(), pa.dictionary(pa.int32(), pa.utf8())):
        name = pa.array(cells).cast(kind)
        text = "".join(to_csv(pa.table({"name": name, "n": [-1.5] * len(cells)})))
        rows = list(csv.reader(io.StringIO(text)))[1:]
        assert [row[0] for row in rows[:6]] == ["'" + cell for cell in cells[:6]], kind
        assert [row[0] for row in rows[6:]] == ["fine", "a,b", 'q"q', "", "", "-2"], kind
        assert {row[1] for row in rows} == {"-1.5"}


def test_there_is_one_rule_of_what_a_spreadsheet_would_run(monkeypatch) -> None:
    import perfkit_dashboards.export
    import pyarrow as pa

    from perfkit.export.tables import without_formulas

    assert perfkit_dashboards.export.without_formulas is without_formulas
    monkeypatch.setattr(perfkit_dashboards.export, "without_formulas", lambda table: table.slice(1))
    assert "".join(to_csv(pa.table({"name": ["=1", "b"]}))).split() == ["name", "b"]


# ------------------------------------------------------------------ hostile names


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_any_name_of_a_cluster_run_host_or_kernel_is_text(tmp_path: Path, name: str) -> None:
    store = make_fleet(tmp_path / "store", days=1, names=("alpha", name))
    make_run(store, name, name, ranks=2, slow=1, kernel=name, host=name)
    client = create_app(str(tmp_path / "store")).server.test_client()
    views = [View(range="all"), View(page="cluster", cluster=name, range="all"),
             View(page="run", cluster=name, run=name), View(page="ranks", cluster=name, run=name, rank=1)]  # fmt: skip
    for view in views:
        for section in PAGES[view.page].sections:
            text = json.dumps(draw(client, view, section.name))
            assert "pk-error" not in text, (view, section.name, text[:2000])
            assert "dangerously" not in text
            links = [json.loads(f'"{link}"') for link in re.findall(r'"href": "((?:[^"\\]|\\.)*)"', text)]
            assert all(link.startswith("/") and not link.startswith("//") for link in links)
            assert all(View.parse(*link.partition("?")[::2]).page in (*PAGES, "missing") for link in links)
        assert client.get(f"/export/{view.page}.runs.csv{view.query()}").status_code in (200, 404)


def test_empty_names_have_links_that_work(tmp_path: Path) -> None:
    make_fleet(tmp_path / "store", days=1, names=("alpha", ""))
    client = create_app(str(tmp_path / "store")).server.test_client()
    text = json.dumps(draw(client, View(range="all"), "fleet.tiles"))
    assert "(no name)" in text
    assert '"/cluster?cluster=&range=all"' in text
    text = json.dumps(draw(client, View(page="cluster", cluster="", range="all"), "cluster.overview"))
    assert "70.0" in text


# ------------------------------------------------------------------ the command


def test_a_port_that_is_taken_is_one_line_with_the_next_step(capsys) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["dashboard", "--store", "nowhere", "--port", str(port)]) == 2
    assert "choose another --port" in capsys.readouterr().err
    with pytest.raises(PerfkitError, match="cannot bind"):
        bind("256.256.256.256", 0)


def test_bad_options_end_with_2(capsys) -> None:
    assert main(["dashboard", "--workers", "0"]) == 2
    assert main(["dashboard", "--port", "70000"]) == 2
    assert "--port 70000 is no port" in capsys.readouterr().err
