"""Timeline, collectives, kernels and health in a real browser: zoom, drill, links, themes, keyboard.

Waits ask the page through the debugger: `wait_for_function` would evaluate text in it, which its policy forbids.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import IN_CI
from tests.dashboards.made_stores import make_fleet
from tests.dashboards.test_dashboard_browser import ARGS, CHROMIUM, CONTRAST, PATIENCE_MS, serve, sync_api
from tests.dashboards.traced_store import make_traced

LINKS = {
    "timeline": "timeline?cluster=lab&run=tp", "timeline-host": "timeline?cluster=lab&run=pp&ranks=0-1&lanes=all",
    "collectives": "collectives?cluster=lab&run=tp", "kernels": "kernels?cluster=lab&run=tp",
    "node-health": "node-health?cluster=beta&range=all",
}  # fmt: skip
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(CHROMIUM is None and not IN_CI, reason="no chromium here (set PERFKIT_CHROMIUM)"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = make_traced(tmp_path_factory.mktemp("pages"))
    make_fleet(store, days=4)
    yield from serve(store)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open an address in a fresh profile; everything that goes wrong is kept in `page.trouble`."""
    contexts = []

    def open_page(address: str, *, width: int = 1440, height: int = 900, scheme: str = "light") -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True
        )
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.trouble, page.requests = [], []
        page.on("console", lambda m: page.trouble.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: page.trouble.append(str(error)))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(address)
        settled(page)
        return page

    yield open_page
    for context in contexts:
        context.close()


def until(page: Any, script: str) -> None:
    """Wait until a script is true."""
    for _ in range(PATIENCE_MS // 100):
        if page.evaluate(script):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"never true: {script}; {page.url}; {page.trouble}")


def settled(page: Any) -> None:
    """Wait until every section and every chart is drawn."""
    until(page, "document.querySelectorAll('.pk-slot').length > 0 && !document.querySelector('.pk-wait')")
    until(page, "[...document.querySelectorAll('.dash-graph')].every(e => e.querySelector('.main-svg'))")


def fine(page: Any, site: str) -> None:
    assert page.trouble == []
    origin = site.split("//")[1].split("/")[0]
    outside = [url for url in page.requests if not url.startswith(("data:", "blob:")) and f"//{origin}/" not in url]
    assert outside == []
    assert page.locator(".pk-error").count() == 0


def follow(page: Any, url: str) -> None:
    """Wait for an address that matches, and for its page."""
    until(page, f"new RegExp({json.dumps(url)}).test(location.href)")
    settled(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", LINKS)
def test_every_page_loads_fits_names_its_parts_and_can_be_read(opened, site, tmp_path, name, scheme) -> None:
    folder = Path(os.environ.get("PERFKIT_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    for width, height in ((1440, 900), (1024, 768)):
        page = opened(site + LINKS[name], width=width, height=height, scheme=scheme)
        fine(page, site)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.locator(".js-plotly-plot .main-svg").count() > 0
        page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=True)
    assert page.evaluate(CONTRAST) == []
    unnamed = page.eval_on_selector_all(
        "button, a[href], input:not([type=hidden]), [role=img], [role=region], section",
        """all => all.filter(e => e.checkVisibility() && !(e.getAttribute('aria-label') || e.textContent.trim()
           || e.labels?.length || e.getAttribute('title') || e.closest('[role=group][aria-label]')))
           .map(e => e.outerHTML.slice(0, 120))""",
    )
    assert unnamed == []


def test_a_drag_zooms_the_link_shows_it_and_a_colleague_sees_the_same(opened, site) -> None:
    page = opened(site + LINKS["timeline"])
    before = page.inner_text("[aria-label='Step 11'] header")
    box = page.locator(".js-plotly-plot .nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 64, steps=4)
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 64, steps=4)
    page.mouse.up()
    follow(page, r"lo=\d+&hi=\d+|hi=\d+.*lo=\d+")
    lo, hi = (int(re.search(rf"{name}=(\d+)", page.url).group(1)) for name in ("lo", "hi"))
    assert 0 < lo < hi
    until(page, f"!document.body.innerText.includes({json.dumps(before.splitlines()[1][:30])})")
    shown = "document.querySelector('.js-plotly-plot')._fullLayout.xaxis.range.map(v => Math.round(v * 1e6))"
    until(page, f"Math.abs({shown}[0] - {lo}) <= 2 && Math.abs({shown}[1] - {hi}) <= 2")
    words = page.locator("figcaption").first.text_content()
    colleague = opened(page.url)
    assert colleague.locator("figcaption").first.text_content() == words
    page.click("a:text-is('Whole step')")
    until(page, "!location.search.includes('lo=')")
    settled(page)
    fine(page, site)
    fine(colleague, site)


def test_ranks_lanes_and_steps_are_chosen_and_kept_in_the_link(opened, site) -> None:
    page = opened(site + LINKS["timeline"])
    page.get_by_label("Ranks", exact=True).fill("5,3")
    follow(page, r"ranks=5(,|%2C)3")
    until(page, "document.querySelector('figcaption').textContent.includes('on ranks 5, 3')")
    page.click("label:has-text('devices and host')")
    follow(page, "lanes=all")
    until(page, "[...document.querySelectorAll('.ytick text')].some(e => e.textContent.startsWith('thread'))")
    page.click("a:text-is('Next step')")
    follow(page, r"step=\d+")
    page.go_back()
    until(page, "!location.search.includes('step=')")
    settled(page)
    fine(page, site)


def test_the_timeline_is_used_with_the_keyboard_alone(opened, site) -> None:
    page = opened(site + LINKS["timeline"])
    page.focus("a:text-is('Zoom in')")
    page.keyboard.press("Enter")
    follow(page, "lo=")
    first = page.url
    page.focus("a:text-is('Later')")
    page.keyboard.press("Enter")
    until(page, f"location.href !== {json.dumps(first)}")
    settled(page)
    page.focus("[aria-label='Longest in this window'] td a >> nth=0")
    page.keyboard.press("Enter")
    follow(page, "lo=")
    assert page.locator(".js-plotly-plot .main-svg").count() > 0
    fine(page, site)


def test_the_window_is_downloaded_as_a_trace_and_as_csv(opened, site, tmp_path) -> None:
    page = opened(site + LINKS["timeline"] + "&ranks=0,5&lo=100000&hi=2000000")
    with page.expect_download() as waiting:
        page.click("[aria-label='This window as a trace for Perfetto']")
    waiting.value.save_as(tmp_path / "window.json.gz")
    document = json.loads(gzip.decompress((tmp_path / "window.json.gz").read_bytes()))
    assert len(document["traceEvents"]) > 50
    with page.expect_download() as waiting:
        page.click("[aria-label$='as CSV'] >> nth=0")
    waiting.value.save_as(tmp_path / "bars.csv")
    rows = list(csv.DictReader((tmp_path / "bars.csv").read_text().splitlines()))
    assert {row["rank"] for row in rows} == {"0", "5"}
    assert "compute" in {row["class"] for row in rows}
    fine(page, site)


def test_from_a_point_to_its_instance_and_on_to_the_timeline(opened, site) -> None:
    page = opened(site + LINKS["collectives"])
    assert "waiting for others" in page.inner_text("main")
    page.click("[aria-label='By group and operation'] td a:text-is('dp')")
    follow(page, "group=dp")
    card = "[aria-label='Bandwidth against message size']"
    until(page, f"!document.querySelector({json.dumps(card + ' figcaption')}).textContent.includes('tp all_reduce')")
    for _ in range(60):  # the chart is drawn anew after its words
        settled(page)
        where = page.evaluate(
            """card => { const points = document.querySelectorAll(card + ' .scatterlayer .point');
               const one = points[points.length - 1]; if (!one) return null;
               one.scrollIntoView({block: 'center'}); const box = one.getBoundingClientRect();
               return [box.x + box.width / 2, box.y + box.height / 2]; }""",
            card,
        )
        if where:
            page.mouse.move(where[0] - 1, where[1])
            page.mouse.move(*where)
            page.wait_for_timeout(500)
            page.mouse.click(*where)
            page.wait_for_timeout(1000)
        if "instance=" in page.url:
            break
    follow(page, r"instance=\d+")
    page.wait_for_selector("h2:has-text('Instance')")
    page.click("text=Show it in the timeline")
    follow(page, r"/timeline\?.*lo=\d+")
    assert page.locator(".js-plotly-plot .main-svg").count() > 0
    page.go_back()
    follow(page, r"/collectives\?.*instance=\d+")
    fine(page, site)


def test_kernels_are_searched_and_one_shows_its_spread(opened, site) -> None:
    page = opened(site + LINKS["kernels"])
    page.get_by_label("Find kernels").fill("nvjet")
    follow(page, "search=nvjet")
    until(
        page,
        "!document.querySelector(\"[aria-label='Kernels by waste']\").innerText.includes('aten::native_layer_norm')",
    )
    page.focus("[aria-label='Kernels by waste'] td a >> nth=0")
    page.keyboard.press("Enter")
    follow(page, "kernel=nvjet")
    page.wait_for_selector("h2:has-text('By rank: nvjet')")
    assert "most on rank 5" in page.locator("[aria-label^='By rank'] figcaption").text_content()
    page.get_by_label("Find kernels").fill("no such thing")
    page.wait_for_selector("text=Nothing matches")
    page.click("text=Show all kernels")
    until(page, "!location.search.includes('search=')")
    settled(page)
    fine(page, site)


def test_a_lemon_shows_its_evidence_and_its_counters(opened, site) -> None:
    page = opened(site + LINKS["node-health"])
    assert "beta-n001" in page.inner_text("[aria-label='Lemons and their evidence']")
    assert "XID 79" in page.inner_text("[aria-label='Lemons and their evidence']")
    page.click("[aria-label='Nodes'] td a:text-is('beta-n003')")
    follow(page, "node=beta-n003")
    page.wait_for_selector("h2:has-text('Counters of beta-n003')")
    page.get_by_label("GPU", exact=True).fill("3")
    follow(page, "device=3")
    until(page, "document.querySelector(\"[aria-label^='Counters of']\").innerText.includes('GPU 3')")
    fine(page, site)


def test_the_theme_is_followed_by_the_new_charts(opened, site) -> None:
    page = opened(site + LINKS["collectives"])
    ink = "document.querySelector('.js-plotly-plot .ytick text').style.fill"
    before = page.evaluate(ink)
    page.click("[data-do=theme]")
    until(page, f"document.querySelector('.js-plotly-plot .ytick text') && {ink} !== {json.dumps(before)}")
    settled(page)
    fine(page, site)
