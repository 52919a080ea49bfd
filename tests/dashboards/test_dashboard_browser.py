"""The dashboard in a real browser, served by the real command. Needs playwright and chromium.

Pictures of every page, size and theme go to $PERFKIT_SCREENSHOTS, else to a temporary folder.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.dashboards.browsing import BROWSER, CONTRAST, UNNAMED, fine, new_page, serve, settled, until
from tests.dashboards.made_stores import DAY, HOSTILE, START, make_fleet, make_run, run_hours, write_days

LINKS = {
    "fleet": "", "cluster": "cluster?cluster=beta", "run": "run?cluster=alpha&run=steady",
    "ranks": "ranks?cluster=alpha&run=steady&rank=5",
}  # fmt: skip
pytestmark = BROWSER


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("browser") / "store"
    make_run(make_fleet(path))
    yield from serve(path)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1440, 900), (1024, 768)], ids=["1440", "1024"])
@pytest.mark.parametrize("name", LINKS)
def test_every_page_loads_fits_and_asks_nobody_else(opened, site, tmp_path, name, size, scheme) -> None:
    page = opened(site + LINKS[name], width=size[0], height=size[1], scheme=scheme)
    fine(page, site)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    folder = Path(os.environ.get("PERFKIT_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    page.wait_for_selector(".js-plotly-plot .main-svg")
    page.screenshot(path=folder / f"{name}-{size[0]}-{scheme}.png", full_page=True)


def test_the_first_screen_says_which_cluster_needs_somebody(opened, site) -> None:
    page = opened(site + "?range=all")
    assert page.inner_text(".pk-verdict").startswith("beta needs you.")
    tiles = page.locator(".pk-tile")
    assert [tiles.nth(i).locator("h2").inner_text() for i in range(tiles.count())] == ["beta", "alpha"]
    assert all(tiles.nth(i).bounding_box()["y"] + tiles.nth(i).bounding_box()["height"] <= 900 for i in range(2))
    assert "synthetic data" in page.inner_text("#status")
    assert "stale" in page.inner_text("#status")


def test_from_the_fleet_to_a_rank_and_back(opened, site) -> None:
    page = opened(site)
    page.click(".pk-tile h2 a:text-is('alpha')")
    page.wait_for_url("**/cluster?cluster=alpha*")
    page.click("[aria-label='Runs'] a:text-is('steady')")
    page.wait_for_url("**/run?cluster=alpha&run=steady*")
    page.wait_for_selector(".pk-finding")
    page.click("text=Ranks of this run")
    page.wait_for_url("**/ranks?cluster=alpha&run=steady*")
    page.click("[aria-label='Stragglers'] a:has-text('rank 5')")
    page.wait_for_url("**rank=5**")
    page.wait_for_selector("text=Rank 5: kernels")
    page.click("#crumbs a:text-is('Fleet')")
    page.wait_for_selector(".pk-tile")
    page.go_back()
    page.wait_for_selector("text=Rank 5: kernels")
    settled(page)
    fine(page, site)


def test_a_control_of_the_page_that_was_left_writes_nothing_into_the_link(opened, site) -> None:
    page = opened(site + "ranks?cluster=alpha&run=steady")
    page.evaluate("window.perfkit.go('ranks?cluster=alpha&run=steady&rank=5')")
    until(page, """document.querySelector('[id=\\'{"control":"rank"}\\']').value === '5'""")
    # inputs repeat what they were given when their delay is over; here just before somebody follows a link
    page.evaluate("() => { window.dash_clientside.set_props({control: 'rank'}, {value: 5}); window.perfkit.go('./'); }")
    page.wait_for_selector(".pk-tile")
    settled(page)
    assert page.url == site
    page.go_back()
    page.wait_for_url("**/ranks?**rank=5**")
    page.wait_for_selector("text=Rank 5: kernels")
    fine(page, site)


def test_a_run_is_opened_from_the_table(opened, site) -> None:
    page = opened(site + "?range=all")
    page.click(".ag-center-cols-container a:text-is('shaky'), .ag-root a:text-is('shaky')")
    page.wait_for_url("**/run?cluster=beta&run=shaky*")
    page.wait_for_selector("text=Over time")
    fine(page, site)


def test_a_click_on_a_chart_leads_on(opened, site) -> None:
    page = opened(site + "ranks?cluster=alpha&run=steady&order=rank")
    page.wait_for_selector(".heatmaplayer image")
    box = page.locator(".js-plotly-plot .nsewdrag").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] * 5.5 / 8)
    page.wait_for_url("**rank=5**")
    page.wait_for_selector("text=Rank 5: phases")
    fine(page, site)


def test_filters_are_in_the_link_and_a_colleague_sees_the_same(opened, site) -> None:
    page = opened(site)
    page.get_by_role("textbox", name="Time range").click()
    page.get_by_role("option", name="7 days").click()
    page.wait_for_url("**range=7d*")
    page.get_by_label("Find runs").fill("grace")
    page.wait_for_url("**search=grace*")
    page.wait_for_selector("text=/^1 in this range/")
    until(page, "[...document.querySelectorAll('.ag-row a')].map(e => e.textContent).join() === 'short'")
    colleague = opened(page.url)
    colleague.wait_for_selector("text=/^1 in this range/")
    assert colleague.get_by_label("Find runs").input_value() == "grace"
    assert colleague.get_by_role("textbox", name="Time range").input_value() == "7 days"
    page.go_back()
    until(page, "document.querySelector('input[placeholder=\"run, user or model\"]').value === ''")
    page.wait_for_selector("text=/^3 in this range/")
    fine(page, site)
    fine(colleague, site)


def test_steps_rank_and_live_are_typed_and_switched(opened, site) -> None:
    page = opened(site + "ranks?cluster=alpha&run=steady")
    page.get_by_label("Rank", exact=True).fill("3")
    page.wait_for_url("**rank=3*")
    page.wait_for_selector("text=Rank 3: phases")
    page.get_by_label("From step").fill("10")
    page.wait_for_url("**first=10*")
    page.wait_for_selector("text=/30 columns of steps/")
    page.get_by_label("Rank", exact=True).fill("")
    page.wait_for_url(lambda url: "rank=" not in url)
    page.wait_for_selector("text=Choose a rank")
    page.get_by_label("Live").evaluate("e => e.click()")
    page.wait_for_url("**live=0*")
    settled(page)
    fine(page, site)


def test_the_map_of_gpus_shows_what_is_chosen(opened, site) -> None:
    page = opened(site + "cluster?cluster=beta")
    page.click("label:has-text('health')")
    page.wait_for_url("**gpu=health*")
    page.wait_for_selector("h2:has-text('health')")
    assert "1 unhealthy" in page.inner_text("[aria-label^='Nodes']")
    fine(page, site)


def test_exports_are_files(opened, site, tmp_path) -> None:
    page = opened(site + "?range=all")
    with page.expect_download() as waiting:
        page.click("[aria-label='Where the GPU-hours went as CSV']")
    waiting.value.save_as(tmp_path / "hours.csv")
    rows = list(csv.DictReader((tmp_path / "hours.csv").read_text().splitlines()))
    assert {row["cluster"] for row in rows} == {"alpha", "beta"}
    page.wait_for_selector("[aria-label='Where the GPU-hours went'] .main-svg")
    with page.expect_download() as waiting:
        page.click("[aria-label='Where the GPU-hours went as PNG']")
    waiting.value.save_as(tmp_path / "hours.png")
    assert (tmp_path / "hours.png").read_bytes().startswith(b"\x89PNG")
    fine(page, site)


def test_the_theme_is_switched_kept_and_followed_by_charts(opened, site) -> None:
    page = opened(site)
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.wait_for_selector(".js-plotly-plot .main-svg")
    ink = "document.querySelector('.js-plotly-plot .ytick text')?.style.fill"
    before = page.evaluate(ink)
    page.click("[data-do=theme]")
    until(page, f"{background} !== '{light}'")
    until(page, f"{ink} !== '{before}'")
    page.reload()
    settled(page)
    assert page.evaluate(background) != light
    fine(page, site)


def test_everything_is_reached_and_used_with_the_keyboard(opened, site) -> None:
    page = opened(site + "run?cluster=alpha&run=steady")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "pk-skip"
    wanted = page.evaluate(
        "[...document.querySelectorAll('a[href], button, input, summary, [tabindex=\"0\"]')]"
        ".filter(e => e.checkVisibility() && !e.disabled && e.tabIndex >= 0).length"
    )
    seen = set()
    for _ in range(wanted + 30):
        seen.add(page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
        page.keyboard.press("Tab")
    assert len(seen) >= wanted * 0.95
    page.focus(".pk-finding summary")
    page.keyboard.press("Enter")
    page.wait_for_selector(".pk-finding[open] >> text=Look at rank 5")
    page.focus(".pk-finding[open] a")
    page.keyboard.press("Enter")
    page.wait_for_url("**/ranks?**rank=5**")
    page.focus("[data-do=theme]")
    page.keyboard.press("Enter")
    until(page, "document.documentElement.getAttribute('data-mantine-color-scheme') === 'dark'")
    settled(page)
    fine(page, site)


def test_a_definition_shows_on_hover_and_on_focus(opened, site) -> None:
    page = opened(site)
    page.hover(".pk-tile .pk-term >> nth=0")
    assert "Model FLOPs" in page.inner_text("#pk-tip")
    page.keyboard.press("Escape")
    page.wait_for_selector("#pk-tip", state="hidden")
    page.focus(".pk-tile .pk-term >> nth=3")
    assert "Productive / allocated" in page.inner_text("#pk-tip")


def test_charts_and_controls_have_names(opened, site) -> None:
    for link in LINKS.values():
        page = opened(site + link)
        assert page.evaluate(UNNAMED) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", LINKS)
def test_text_has_the_contrast_of_wcag_aa(opened, site, name, scheme) -> None:
    page = opened(site + LINKS[name], scheme=scheme)
    if name == "fleet":
        page.wait_for_selector(".ag-cell")
    assert page.evaluate(CONTRAST) == []


def test_hostile_names_are_shown_as_text(opened, tmp_path) -> None:
    store = make_fleet(tmp_path / "store", days=1, names=("javascript:alert(1)", HOSTILE))
    make_run(store, HOSTILE, HOSTILE, ranks=2, slow=1, kernel=HOSTILE, host=HOSTILE)
    for site in serve(tmp_path / "store"):
        page = opened(site + "?range=all")
        assert HOSTILE[:30] in page.inner_text(".pk-tiles")
        page.click(".pk-tile h2 a >> nth=0")
        page.wait_for_url("**/cluster?**")
        page.wait_for_selector("[aria-label='Runs'] a")
        settled(page)
        page.wait_for_selector(".js-plotly-plot .main-svg")
        for kind in ("run", "ranks"):
            page.goto(f"{site}{kind}?cluster={quote(HOSTILE)}&run={quote(HOSTILE)}&rank=1")
            settled(page)
            page.wait_for_selector(".js-plotly-plot .main-svg")
        assert page.evaluate("window.PWNED") is None
        assert page.locator("main img[src=x]").count() == 0
        fine(page, site)


def test_new_data_is_shown_while_the_tab_is_visible(opened, tmp_path) -> None:
    store = make_fleet(tmp_path / "store", days=1)
    for site in serve(tmp_path / "store"):
        page = opened(site)
        until(page, "window.perfkit.version !== undefined")
        write_days(store, "run_rollup", run_hours("gamma", "new", hours=1, start_ns=START + DAY))
        for _ in range(60):  # the server believes its listing for a moment
            page.evaluate("window.dash_clientside.set_props('tick', {data: Date.now()})")
            page.wait_for_timeout(1000)
            if page.locator(".pk-tile").count() == 3:
                break
        assert page.locator(".pk-tile h2:has-text('gamma')").count() == 1
        hidden = "Object.defineProperty(document, 'visibilityState', {value: 'hidden', configurable: true})"
        page.evaluate(hidden)
        assert page.evaluate("window.dash_clientside.perfkit.tick(1) === window.dash_clientside.no_update")
        fine(page, site)


def test_behind_a_prefix_pages_and_links_work(opened, tmp_path) -> None:
    make_fleet(tmp_path / "store", days=1)
    for site in serve(tmp_path / "store", "--prefix", "/perf/", "--workers", "2"):
        assert site.endswith("/perf/")
        page = opened(site)
        page.click(".pk-tile h2 a >> nth=0")
        page.wait_for_url("**/perf/cluster?**")
        settled(page)
        fine(page, site)


def test_an_empty_store_and_a_wrong_address_say_what_to_do(opened, tmp_path) -> None:
    for site in serve(tmp_path / "nothing"):
        page = opened(site)
        assert "perfkit ingest" in page.inner_text("main")
        page.goto(site + "no/such/page")
        page.wait_for_selector("text=There is no such page")
        page.click("text=To the fleet")
        page.wait_for_selector("text=This store is empty")
        fine(page, site)


def test_the_command_is_copied_and_a_note_and_a_view_are_kept(opened, tmp_path) -> None:
    make_fleet(tmp_path / "store", days=1)
    for site in serve(tmp_path / "store"):
        page = opened(site + "cluster?cluster=beta&range=all")
        page.wait_for_selector("[data-do=command]")
        assert "perfkit goodput" in page.get_attribute("[data-do=command]", "data-command")
        page.click("[data-do=command]")
        page.wait_for_selector("[data-do=command]:has-text('Copied')")
        page.focus("[data-do=notes]")
        page.keyboard.press("Enter")
        page.wait_for_selector("#pk-notes[open] >> text=Notes on this cluster")
        page.get_by_label("Time (UTC)").fill("2025-11-08T06:00")
        page.get_by_label("Note", exact=True).fill("driver upgraded here")
        page.keyboard.press("Enter")
        page.wait_for_selector("#pk-notes[open] >> text=2025-11-08 06:00")
        page.get_by_label("Name").fill("Monday review")
        page.keyboard.press("Enter")
        page.wait_for_selector("#pk-notes[open] a:text-is('Monday review')")
        page.get_by_role("button", name="Close").click()
        colleague = opened(site + "cluster?cluster=beta&range=all")
        colleague.wait_for_selector("[aria-label*='driver upgraded here']")
        colleague.click("[data-do=notes]")
        colleague.click("#pk-notes[open] a:text-is('Monday review')")
        colleague.wait_for_url("**/cluster?cluster=beta&range=all")
        settled(colleague)
        fine(page, site)
        fine(colleague, site)


def test_with_a_password_the_pages_work_and_a_foreign_run_is_not_found(browser, tmp_path) -> None:
    from perfkit_dashboards.access import hash_password

    store = tmp_path / "store"
    make_fleet(store, days=1)
    users = tmp_path / "users.json"
    users.write_text(json.dumps({"users": {"grace": {"password": hash_password("open"), "see": ["alpha"]}}}))
    for site in serve(store, "--auth-file", str(users)):
        page = new_page(browser, http_credentials={"username": "grace", "password": "open"})
        assert page.goto(site + "?range=all").status == 200
        settled(page)
        tiles = page.locator(".pk-tile h2")
        assert [tiles.nth(i).inner_text() for i in range(tiles.count())] == ["alpha"]
        assert page.goto(site + "run?cluster=beta&run=shaky").status == 404
        assert "is not here" in page.inner_text("main")
        page.click("text=To the fleet")
        page.wait_for_selector(".pk-tile")
        page.context.close()
