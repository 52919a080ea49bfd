"""Who may see what: every route and callback without credentials, and one tenant's names asked for by another."""

from __future__ import annotations

import base64
import json
import multiprocessing
import os
import re
from pathlib import Path
from typing import Any

import pytest
from perfkit_dashboards import data_fleet
from perfkit_dashboards.access import Access, check_password, hash_password, read_users
from perfkit_dashboards.app import create_app
from perfkit_dashboards.data import Source
from perfkit_dashboards.grants import Scope
from perfkit_dashboards.limits import EXTENSION, KNOWN_USERS, Limits
from perfkit_dashboards.pages import PAGES, SECTIONS
from perfkit_dashboards.serve import Options
from perfkit_dashboards.view import View

from perfkit.cli.main import main
from perfkit.errors import UsageError
from perfkit.store.layout import RunKey
from tests.dashboards.test_dashboard_app import draw

HASHES = {name: hash_password(f"secret of {name}") for name in ("ada", "grace", "nobody")}
SECRETS = ("beta", "shaky")
"""Names that grace may never read."""


def as_user(name: str, password: str | None = None) -> dict[str, str]:
    text = f"{name}:{password if password is not None else f'secret of {name}'}"
    return {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()}


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("access") / "users.json"
    listed = {"ada": ["*"], "grace": ["alpha"], "nobody": []}
    entries = {name: {"password": HASHES[name], "see": see} for name, see in listed.items()}
    path.write_text(json.dumps({"users": entries, "others": {"see": ["alpha/sho*"]}}))
    return path


@pytest.fixture(scope="module")
def app(fleet: Path, users: Path) -> Any:
    return create_app(str(fleet), access=Access(users), limits=Limits(1e9))


@pytest.fixture
def client(app: Any) -> Any:
    return app.server.test_client()


class As:
    """A client that sends a user's name and password with everything."""

    def __init__(self, client: Any, user: str) -> None:
        self.client, self.headers = client, as_user(user)

    def get(self, path: str) -> Any:
        return self.client.get(path, headers=self.headers)

    def post(self, path: str, **more: Any) -> Any:
        return self.client.post(path, headers=self.headers, **more)

    def delete(self, path: str) -> Any:
        return self.client.delete(path, headers=self.headers)


# ------------------------------------------------------------------ nobody


def every_address(app: Any) -> list[tuple[str, str]]:
    found = []
    for rule in app.server.url_map.iter_rules():
        path = rule.rule
        for argument in rule.arguments:
            path = path.replace(f"<path:{argument}>", "x").replace(f"<string:{argument}>", "x")
            path = path.replace(f"<{argument}>", "fleet.tiles" if "export" in path else "x")
        found += [(method, path) for method in sorted(rule.methods - {"OPTIONS"})]
    return found


def test_without_credentials_no_route_answers_but_health(app, client) -> None:
    asked = every_address(app)
    assert {path for _, path in asked} >= {"/", "/health", "/_dash-layout", "/_dash-update-component", "/notes"}
    for method, path in asked:
        answer = client.open(path, method=method)
        if path == "/health" and method in ("GET", "HEAD"):
            assert answer.status_code == 200
        else:
            assert answer.status_code == 401, (method, path)
            assert answer.headers["WWW-Authenticate"].startswith("Basic ")
        assert not any(name.encode() in answer.data for name in (*SECRETS, "alpha", "steady"))
    for path in ("/", "/no/such", "/assets/app.js", "/_dash-component-suites/dash/x.js", "/run?cluster=beta&run=shaky"):
        assert client.get(path).status_code == 401, path


def test_without_credentials_no_callback_answers(app, client) -> None:
    bodies = [{"output": name, "outputs": [], "inputs": [], "changedPropIds": []} for name in app.callback_map]
    assert len(bodies) > 4
    for body in bodies:
        assert client.post("/_dash-update-component", json=body).status_code == 401
    for name in SECTIONS:
        with pytest.raises(AssertionError, match="password"):
            draw(client, View(page=name.split(".")[0], cluster="beta", run="shaky"), name)


@pytest.mark.parametrize(
    "headers",
    [
        as_user("ada", "wrong"), as_user("ada", ""), as_user("nobody at all"), as_user("", ""), as_user("others", ""),
        {"Authorization": "Basic !!!"}, {"Authorization": "Bearer x"}, {"X-Forwarded-User": "ada"},
        {"Remote-User": "ada"},
    ],
)  # fmt: skip
def test_wrong_credentials_are_none(users, fleet, headers) -> None:
    client = create_app(str(fleet), access=Access(users)).server.test_client()
    assert client.get("/", headers=headers).status_code == 401


def test_passwords_that_are_tried_too_often_are_refused_with_429(users, fleet) -> None:
    access = Access(users)
    access._failures = Limits(20, burst=3, clock=lambda: 0.0)
    client = create_app(str(fleet), access=access).server.test_client()
    assert client.get("/", headers=as_user("ada")).status_code == 200, "a right one counts as no failure"
    codes = [client.get("/", headers=as_user("ada", f"guess {i}")).status_code for i in range(5)]
    assert codes == [401, 401, 401, 429, 429]
    answer = client.get("/", headers=as_user("ada", "another guess"))
    assert "too many passwords" in answer.get_data(as_text=True)
    assert int(answer.headers["Retry-After"]) >= 1


# ------------------------------------------------------------------ tenants


def test_a_tenant_sees_its_own_and_nothing_of_others_on_any_page(client) -> None:
    grace = As(client, "grace")
    assert grace.get("/").status_code == 200
    for page in PAGES.values():
        where = {"fleet": {}, "cluster": {"cluster": "alpha"}}.get(page.name, {"cluster": "alpha", "run": "steady"})
        view = View(page=page.name, range="all", rank=5 if page.name == "ranks" else None, **where)
        for section in page.sections:
            found = draw(grace, view, section.name)
            text = json.dumps(found)
            assert "pk-error" not in text, section.name
            assert not any(name in text for name in SECRETS), section.name
            if section.table is not None:
                export = grace.get(f"/export/{section.name}.csv{view.query()}")
                assert export.status_code == 200
                assert not any(name in export.get_data(as_text=True) for name in SECRETS)
    tiles = json.dumps(draw(grace, View(range="all", clusters=("beta", "alpha")), "fleet.tiles"))
    assert "alpha" in tiles


def answers_about(client: Any, cluster: str, run: str, more: str = "") -> list[tuple[int, bytes]]:
    """Ask for a run in every way there is; `more` goes into every query."""
    found = []
    for page in PAGES:
        found.append(client.get(f"/{page}?cluster={cluster}&run={run}{more}"))
        found.append(client.get(f"/{page}?cluster={cluster}{more}"))
    for file in ("timeline.json", "timeline.trace.json.gz"):
        found.append(client.get(f"/export/{file}?cluster={cluster}&run={run}{more}"))
    for section in SECTIONS.values():
        found.append(client.get(f"/export/{section.name}.csv?cluster={cluster}&run={run}&rank=5{more}"))
        page = section.name.split(".")[0]
        seen = {"path": f"/{page}", "search": f"?cluster={cluster}&run={run}{more}", "theme": "light"}
        ids = {"part": "body", "section": section.name}, {"part": "drawn", "section": section.name}
        body = {
            "output": '..{"part":"body","section":["MATCH"]}.children...{"part":"drawn","section":["MATCH"]}.data..',
            "outputs": [{"id": ids[0], "property": "children"}, {"id": ids[1], "property": "data"}],
            "inputs": [{"id": "view", "property": "data", "value": seen}, {"id": "refresh", "property": "data"}],
            "state": [{"id": ids[0], "property": "id", "value": ids[0]}, {"id": ids[1], "property": "data"}],
            "changedPropIds": ["view.data"],
        }  # fmt: skip
        found.append(client.post("/_dash-update-component", json=body))
    for output in ("..page.children...crumbs.children...shown.data..", "runs.getRowsResponse"):
        body = {"output": output, "outputs": [], "changedPropIds": [], "state": [],
                "inputs": [{"id": "view", "property": "data", "value": {"path": "/run", "search":
                            f"?cluster={cluster}&run={run}{more}"}}]}  # fmt: skip
        found.append(client.post("/_dash-update-component", json=body))
    found.append(client.get(f"/notes?cluster={cluster}&run={run}{more}"))
    link = f"/run?cluster={cluster}&run={run}{more}"
    found.append(client.post("/notes", json={"kind": "view", "text": "a", "link": link}))
    return [(answer.status_code, answer.data) for answer in found]


def test_another_tenants_run_is_answered_like_one_that_is_not_there(client) -> None:
    grace = As(client, "grace")
    foreign, none = answers_about(grace, "beta", "shaky"), answers_about(grace, "beto", "shakz")
    assert {status for status, _ in foreign[:-1]} == {404}
    assert foreign[-1][0] == 400
    plain = [(status, data.replace(b"beto", b"beta").replace(b"shakz", b"shaky")) for status, data in none]
    assert foreign == plain
    mixed = answers_about(grace, "alpha", "shaky")
    assert [status for status, _ in mixed if status == 200] == [200] * len(PAGES), "only the pages of its cluster"


@pytest.mark.parametrize("probe", ["&base=shaky&base_cluster=beta", "&base=shaky", "&base_cluster=beta"])
def test_a_run_to_compare_with_is_granted_like_any_other(client, probe: str) -> None:
    grace, none = As(client, "grace"), probe.replace("shaky", "shakz").replace("beta", "beto")
    foreign = answers_about(grace, "alpha", "steady", probe)
    assert {status for status, _ in foreign} == {404, 400}
    assert foreign[-1][0] == 400, "no view is saved that names it"
    missing = answers_about(grace, "alpha", "steady", none)
    plain = [(status, data.replace(b"beto", b"beta").replace(b"shakz", b"shaky")) for status, data in missing]
    assert foreign == plain
    own = View(page="compare", cluster="alpha", run="steady", base="short")
    assert grace.get(own.href()).status_code == 200
    assert draw(grace, own, "compare.verdict")


def test_who_may_compare_two_tenants_saves_a_view_that_only_such_people_see(client) -> None:
    ada, grace = As(client, "ada"), As(client, "grace")
    link = View(page="compare", cluster="alpha", run="steady", base="shaky", base_cluster="beta").href()
    assert ada.get(link).status_code == 200
    kept = ada.post("/notes", json={"kind": "view", "text": "against beta", "link": link}).get_json()["id"]
    try:
        assert link in ada.get("/notes?cluster=alpha&run=steady").get_data(as_text=True).replace("\\u0026", "&")
        assert b"shaky" not in grace.get("/notes?cluster=alpha&run=steady").data
    finally:
        assert ada.delete(f"/notes/{kept}").status_code == 200


def test_the_owner_of_everything_sees_what_the_tenant_does_not(client) -> None:
    ada = As(client, "ada")
    assert ada.get("/run?cluster=beta&run=shaky").status_code == 200
    assert "shaky" in json.dumps(draw(ada, View(page="cluster", cluster="beta", range="all"), "cluster.runs"))
    nobody = As(client, "nobody")
    assert nobody.get("/").status_code == 200
    text = json.dumps([draw(nobody, View(range="all"), name) for name in SECTIONS if name.startswith("fleet.")])
    assert not any(name in text for name in (*SECRETS, "alpha", "steady"))


def test_a_rendered_section_is_never_given_to_another_scope(client) -> None:
    view = View(range="all")
    for_ada = draw(As(client, "ada"), view, "fleet.tiles")
    for_grace = draw(As(client, "grace"), view, "fleet.tiles")
    assert "beta" in json.dumps(for_ada)
    assert "beta" not in json.dumps(for_grace)
    again = draw(As(client, "grace"), view, "fleet.tiles", drawn=for_ada["drawn"]["data"])
    assert again is not None, "what another scope has drawn does not count as drawn"


def test_a_query_without_a_condition_shows_only_what_is_granted(fleet: Path) -> None:
    whole = Source(str(fleet))
    data_fleet.clusters(whole, View(range="all"))
    part = whole.within(Scope.of(["alpha/sho*"]))
    assert [row["run"] for row in part.ask("SELECT DISTINCT run FROM run_rollup")] == ["short"]
    assert part.ask("SELECT * FROM cluster_rollup") == [], "the inventory is for who may see the whole cluster"
    assert len(part.engine.run_table("steps", RunKey("alpha", "steady"))[0]) == 0
    assert len(whole.engine.run_table("steps", RunKey("alpha", "steady"))[0]) > 0
    assert part.engine.commits(RunKey("alpha", "steady")) == ([], [])
    assert part.engine.metadata(RunKey("alpha", "steady")) == {}
    assert part.engine.listing("manifests") == {}
    assert part.engine.run_table("steps", RunKey("alpha", "steady"), columns=["step"])[0].column_names == ["step"]
    assert not part.knows(View(cluster="alpha", run="steady"))
    assert part.knows(View(cluster="alpha", run="short"))


def test_data_is_never_given_to_nobody(fleet: Path, users: Path) -> None:
    app = create_app(str(fleet), access=Access(users))
    with app.server.test_request_context("/"), pytest.raises(RuntimeError, match="nobody"):
        SECTIONS["fleet.tiles"].render(_context_of(app))


def _context_of(app: Any) -> Any:
    from perfkit_dashboards.access import protect
    from perfkit_dashboards.app import context

    source = protect(app.server, Access.__new__(Access), Source.__new__(Source), "/")
    return context(source, {"path": "/", "search": "", "theme": "light"}, "/")


# ------------------------------------------------------------------ grants


@pytest.mark.parametrize(
    ("grants", "cluster", "run", "sees"),
    [
        (["*"], "any", "thing", True), ([], "any", None, False), (["a"], "a", None, True), (["a"], "ab", None, False),
        (["a*"], "ab", "x", True), (["a/nlp-*"], "a", "nlp-7", True), (["a/nlp-*"], "a", None, False),
        (["a/nlp-*"], "a", "vision", False), (["a/nlp-*"], "b", "nlp-7", False), (["a_b"], "axb", None, False),
        (["a_*"], "axb", None, False), (["my cluster"], "my cluster", None, True), (["a%"], "ab", None, False),
        (["a"], "", None, False), (["a.b*"], "axb", None, False), (["*/nlp"], "x", "nlp", True),
    ],
)  # fmt: skip
def test_grants_mean_the_same_in_sql_as_in_python(grants, cluster, run, sees) -> None:
    import duckdb

    scope = Scope.of(grants)
    assert scope.sees(cluster, run) is sees
    columns = ("cluster", "run") if run is not None else ("cluster",)
    row = f"(SELECT ? AS cluster{', ? AS run' if run is not None else ''})"
    values = [cluster] if run is None else [cluster, run]
    found = duckdb.connect().execute(f"SELECT * FROM {row} WHERE {scope.condition(columns)}", values).fetchall()
    assert bool(found) is sees


@pytest.mark.parametrize("grant", ["", "/x", "a/", "a'*", "a b*"])
def test_a_grant_that_makes_no_sense_is_refused(grant: str) -> None:
    with pytest.raises(UsageError):
        Scope.of([grant])


# ------------------------------------------------------------------ a proxy's word


def proxied(fleet: Path, users: Path) -> Any:
    access = Access(users, header="X-User", proxies=["10.0.0.0/30", "::1"])
    return create_app(str(fleet), access=access).server.test_client()


@pytest.mark.parametrize(
    ("address", "name", "status"),
    [("10.0.0.2", "ada", 200), ("::ffff:10.0.0.2", "ada", 200), ("::1", "ada", 200), ("10.0.0.9", "ada", 401),
     ("127.0.0.1", "ada", 401), ("10.0.0.2", "", 401), ("", "ada", 401)],
)  # fmt: skip
def test_the_header_counts_only_from_the_proxy(fleet, users, address: str, name: str, status: int) -> None:
    answer = proxied(fleet, users).get("/", headers={"X-User": name}, environ_base={"REMOTE_ADDR": address})
    assert answer.status_code == status


def test_who_is_not_listed_sees_what_others_may(fleet, users, tmp_path) -> None:
    client, base = proxied(fleet, users), {"REMOTE_ADDR": "10.0.0.2"}
    stranger = {"X-User": "linus"}
    assert client.get("/run?cluster=alpha&run=short", headers=stranger, environ_base=base).status_code == 200
    assert client.get("/run?cluster=alpha&run=steady", headers=stranger, environ_base=base).status_code == 404
    strict = tmp_path / "users.json"
    strict.write_text(json.dumps({"users": {"ada": {"see": ["*"]}}}))
    client = proxied(fleet, strict)
    assert client.get("/", headers=stranger, environ_base=base).status_code == 403
    assert client.get("/", headers={"X-User": "ada"}, environ_base=base).status_code == 200
    assert client.get("/", headers=as_user("ada", ""), environ_base=base).status_code == 401, "no password is no login"


# ------------------------------------------------------------------ the file


def test_a_change_of_the_file_counts_at_once(fleet, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("perfkit_dashboards.access.REREAD_S", -1.0)
    path = tmp_path / "users.json"
    path.write_text(json.dumps({"users": {"ada": {"password": HASHES["ada"], "see": ["*"]}}}))
    client = create_app(str(fleet), access=Access(path)).server.test_client()
    assert client.get("/", headers=as_user("ada")).status_code == 200
    path.write_text("{ half written")
    assert client.get("/", headers=as_user("ada")).status_code == 200, "a damaged file changes nothing"
    path.write_text(json.dumps({"users": {"ada": {"password": HASHES["grace"], "see": ["*"]}}}))
    os.utime(path, ns=(1, 1))
    assert client.get("/", headers=as_user("ada")).status_code == 401
    assert client.get("/", headers=as_user("ada", "secret of grace")).status_code == 200


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"users": []}', '{"users": {"a": {}}}', '{"users": {"a": {"see": "*"}}}', '{"users": {"a": 1}}',
     '{"users": {"a": {"see": ["*"], "password": "plain"}}}', '{"users": {}, "others": 1}'],
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_one_line(tmp_path, text: str, capsys) -> None:
    path = tmp_path / "users.json"
    path.write_text(text)
    with pytest.raises(UsageError):
        read_users(path)
    assert main(["dashboard", "--store", "nowhere", "--port", "0", "--auth-file", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"password": "secret", "see": ["*"]}, "not a hash; put there what `perfkit dashboard --hash-password` prints"),
        ({"see": "*"}, """has no list "see" of what may be seen; add "see": ["*"]"""),
    ],
)
def test_an_entry_that_cannot_be_used_says_what_to_write(tmp_path, entry: dict[str, Any], said: str) -> None:
    path = tmp_path / "users.json"
    path.write_text(json.dumps({"users": {"ada": entry}}))
    with pytest.raises(UsageError, match=re.escape(said)):
        read_users(path)


def test_half_of_the_trust_in_a_proxy_asks_for_the_other(users: Path) -> None:
    with pytest.raises(UsageError, match="add `--trust-proxy ADDRESS`"):
        Access(users, header="X-User")
    with pytest.raises(UsageError, match="add `--trust-header NAME`"):
        Access(users, proxies=["10.0.0.1"])


def test_options_of_access_go_together(tmp_path, users, capsys) -> None:
    assert main(["dashboard", "--trust-header", "X-User"]) == 2
    assert main(["dashboard", "--auth-file", str(users), "--trust-header", "X-User"]) == 2
    assert main(["dashboard", "--auth-file", str(users), "--trust-header", "X", "--trust-proxy", "nowhere"]) == 2
    assert main(["dashboard", "--auth-file", str(tmp_path / "none")]) == 2
    assert main(["dashboard", "--heavy-per-minute", "0"]) == 2
    capsys.readouterr()


def test_hashes_are_salted_and_check(monkeypatch, capsys) -> None:
    import io

    assert HASHES["ada"] != hash_password("secret of ada")
    assert check_password("secret of ada", HASHES["ada"])
    for held in ("", "x$1$1$1$a$b", "scrypt$0$8$1$AAAA$AAAA", "scrypt$16384$8$1$*$*", HASHES["grace"]):
        assert not check_password("secret of ada", held)
    monkeypatch.setattr("sys.stdin", io.StringIO("näm:e\n"))
    assert main(["dashboard", "--hash-password"]) == 0
    assert check_password("näm:e", capsys.readouterr().out.strip())
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert main(["dashboard", "--hash-password"]) == 2


# ------------------------------------------------------------------ limits, headers, other sites


def test_a_user_who_asks_too_much_gets_429_and_the_others_do_not(fleet, users) -> None:
    app = create_app(str(fleet), access=Access(users))
    app.server.extensions[EXTENSION] = Limits(8, clock=lambda: 0.0)
    client = app.server.test_client()
    grace, ada = As(client, "grace"), As(client, "ada")
    answers = [grace.get(f"/export/fleet.runs.csv?search={i}") for i in range(4)]
    assert answers[0].status_code == 200
    assert answers[-1].status_code == 429
    assert "8 computed answers a minute" in answers[-1].get_data(as_text=True)
    assert int(answers[-1].headers["Retry-After"]) >= 1
    assert ada.get("/export/fleet.runs.csv").status_code == 200
    assert grace.get("/").status_code == 200, "what costs nothing is still answered"


def test_what_is_in_memory_is_free(fleet, users) -> None:
    app = create_app(str(fleet), access=Access(users))
    app.server.extensions[EXTENSION] = Limits(4, clock=lambda: 0.0)
    client = app.server.test_client()
    grace = As(client, "grace")
    assert all(draw(grace, View(range="all"), "fleet.tiles") for _ in range(30))


def test_a_bucket_fills_again() -> None:
    now = [0.0]
    limits = Limits(60, burst=2, clock=lambda: now[0])
    assert [limits.take("a"), limits.take("a"), limits.take("a") > 0, limits.take("b")] == [0, 0, True, 0]
    now[0] += 1.0
    assert [limits.take("a"), limits.take("a") > 0] == [0, True]
    now[0] += 3600.0
    assert [limits.take("a"), limits.take("a"), limits.take("a") > 0] == [0, 0, True], "it holds no more than its burst"
    assert limits.take("c", 10) == 0, "an answer dearer than a bucket takes all of it"


def test_a_limit_is_one_for_all_workers_and_survives_one_that_is_killed() -> None:
    limits = Limits(60, burst=40, clock=lambda: 0.0)
    fork = multiprocessing.get_context("fork")
    taken = fork.Queue()

    def ask() -> None:
        taken.put(sum(limits.take("ada") == 0 for _ in range(30)))

    workers = [fork.Process(target=ask) for _ in range(3)]
    for worker in workers:
        worker.start()
    assert sum(taken.get(timeout=60) for _ in workers) == 40
    for worker in workers:
        worker.join()

    def die() -> None:
        with limits._alone():
            os.kill(os.getpid(), 9)

    killed = fork.Process(target=die)
    killed.start()
    killed.join()
    assert killed.exitcode == -9
    assert limits.take("ada") > 0
    assert limits.take("grace") == 0


def test_more_users_than_there_is_room_for_are_counted_by_who_came_last() -> None:
    now = [0.0]
    limits = Limits(60, burst=1, clock=lambda: now[0])
    for i in range(3 * KNOWN_USERS):
        now[0] = i * 1e-6
        assert limits.take(f"user {i}") == 0, "nobody pays for another"
    assert limits.take(f"user {i}") > 0


def test_limits_are_made_once_for_all_workers(users) -> None:
    for options, rate in ((Options(auth_file=str(users)), 240), (Options(heavy_per_minute=7), 7)):
        assert 60 * options.settings()["limits"].rate == pytest.approx(rate)
    assert Options().settings() == {"access": None, "limits": None, "read_only": False}


def test_the_browser_may_run_only_scripts_of_this_server(client) -> None:
    answer = As(client, "ada").get("/")
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";"))
    assert "'unsafe-inline'" not in policy["script-src"]
    assert "'unsafe-eval'" not in policy["script-src"]
    assert "'sha256-" in policy["script-src"]
    assert "*" not in policy["script-src"]
    assert policy["default-src"] == "'self'"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "no-store" in answer.headers["Cache-Control"]


def test_a_request_that_another_site_makes_the_browser_send_is_refused(client) -> None:
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://elsewhere.example"}):
        for path in ("/notes", "/_dash-update-component"):
            answer = client.post(path, json={}, headers={**as_user("ada"), **headers})
            assert answer.status_code == 403
