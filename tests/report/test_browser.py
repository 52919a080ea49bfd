"""The page in a real browser: nothing runs, loads or overflows, and the controls work. Needs playwright, chromium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import IN_CI
from tests.report.documents import HOSTILE, bare, report

if IN_CI:
    from playwright import sync_api  # what is missing there is an error
else:
    sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = os.environ.get("PERFKIT_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", "--no-first-run"]  # fmt: skip
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None and not IN_CI, reason="no chromium here (set PERFKIT_CHROMIUM)"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, tmp_path: Path):
    """Open a report; every request, error and policy violation is kept."""
    pages = []

    def open_report(found, *, width: int = 1200, scheme: str = "light"):
        path = tmp_path / f"{len(pages)}.html"
        found.to_html(path)
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.trouble, page.requests = [], []
        page.on("console", lambda message: page.trouble.append(message.text))
        page.on("pageerror", lambda error: page.trouble.append(str(error)))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(path.as_uri())
        pages.append(page)
        return page

    yield open_report
    for page in pages:
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 768, 1200, 1920])
def test_nothing_from_a_name_runs_loads_or_overflows(opened, width: int, scheme: str) -> None:
    page = opened(report(name=HOSTILE), width=width, scheme=scheme)
    page.locator(".dot").last.hover()  # drawn last, so nothing covers it
    page.locator("svg.stack").first.hover()
    assert page.evaluate("window.PWNED") is None
    assert page.trouble == []
    assert len(page.requests) == 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_even_markup_that_got_in_could_not_run(opened) -> None:
    page = opened(report())
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.PWNED=1\">')")
    page.evaluate(
        "const s = document.createElement('script'); s.textContent = 'window.PWNED=1'; document.body.append(s)"
    )
    page.wait_for_timeout(100)
    assert page.evaluate("window.PWNED") is None
    assert any("Content Security Policy" in line for line in page.trouble)


def test_512_ranks_are_a_page_that_any_browser_opens(opened) -> None:
    page = opened(report(ranks=512, steps=20, kernels=600))
    assert page.trouble == []
    assert page.locator("#ranks-table tbody tr").count() == 512
    assert page.evaluate("document.querySelectorAll('*').length") < 30_000


def test_search_and_sorting(opened) -> None:
    page = opened(report())
    rows = page.locator("#kernels-table tbody tr:visible")
    total = rows.count()
    page.fill("#kernel-search", "ATTENTION backward")
    assert 0 < rows.count() < total
    assert page.inner_text("#kernel-count") == f"{rows.count()} rows"
    page.fill("#kernel-search", "")
    page.click("#kernels-table th:nth-child(3) button")
    keys = page.eval_on_selector_all("#kernels-table tbody td:nth-child(3)", "cells => cells.map(c => +c.dataset.key)")
    assert keys == sorted(keys, reverse=True)
    page.click("#kernels-table th:nth-child(4) button")
    page.click("#kernels-table th:nth-child(4) button")
    cells = page.eval_on_selector_all("#kernels-table tbody td:nth-child(4)", "cells => cells.map(c => c.textContent)")
    known = [float(c) for c in cells if c != "–"]
    assert known == sorted(known)
    assert cells[len(known) :] == ["–"] * (len(cells) - len(known))


def test_charts_are_read_with_the_keyboard(opened) -> None:
    page = opened(report())
    page.focus("#ranks svg.stack")
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    assert page.inner_text("#tip").startswith("rank 5\n")
    assert "idle 14.6 %" in page.inner_text("#tip")
    page.keyboard.press("Escape")
    assert page.is_hidden("#tip")


def test_the_timeline_zooms_and_resets(opened) -> None:
    page = opened(report())
    whole = page.get_attribute("#timeline-svg", "viewBox")
    page.focus("#timeline-svg")
    page.keyboard.press("+")
    assert page.inner_text("#timeline-range") == "15.000 ms to 45.000 ms"
    page.click("[data-zoom=left]")
    assert page.inner_text("#timeline-range") == "7.500 ms to 37.500 ms"
    page.keyboard.press("0")
    page.click("[data-zoom=reset]")
    assert page.get_attribute("#timeline-svg", "viewBox") == whole


def test_the_theme_can_be_switched(opened) -> None:
    page = opened(report(), scheme="light")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.click("#theme")
    assert page.evaluate(colour) != light
    page.click("#theme")
    assert page.evaluate(colour) == light


CONTRAST = """() => {
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const lum = ([r, g, b]) => [r, g, b].map((v) => linear(v / 255))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (a, b) => { const [x, y] = [lum(a), lum(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const behind = (el) => {
    for (; el; el = el.parentElement) {
      const c = parse(getComputedStyle(el).backgroundColor);
      if (c.length < 4 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const el of document.querySelectorAll("body *")) {
    const text = [...el.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!text || ["SCRIPT", "STYLE"].includes(el.tagName) || !el.getClientRects().length) continue;
    const style = getComputedStyle(el), svg = el instanceof SVGElement;
    const found = ratio(parse(svg ? style.fill : style.color), behind(el));
    if (found < 4.5) bad.push(el.tagName + "." + el.getAttribute("class") + " " + found.toFixed(2));
  }
  for (const name of ["useful", "compute", "comm", "bubble", "copy", "idle"]) {
    const el = document.createElement("span"); el.className = "key k-" + name; document.body.append(el);
    const found = ratio(parse(getComputedStyle(el).backgroundColor), behind(document.body));
    if (found < 3) bad.push("k-" + name + " " + found.toFixed(2));
    el.remove();
  }
  return [...new Set(bad)];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa_and_bars_that_of_graphics(opened, scheme: str) -> None:
    assert opened(report(), scheme=scheme).evaluate(CONTRAST) == []


def test_every_control_is_reached_by_tab_and_has_a_name(opened) -> None:
    page = opened(report())
    wanted = page.eval_on_selector_all(
        "button, input, summary, a, [tabindex='0']", "all => all.filter(e => e.checkVisibility()).length"
    )
    seen = set()
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
    assert len(seen) >= wanted
    unnamed = page.eval_on_selector_all(
        "button, input, svg[role=img], [role=region]",
        "all => all.filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)).length",
    )
    assert unnamed == 0


def test_printing_opens_the_tables(opened) -> None:
    page = opened(report())
    assert page.eval_on_selector_all("details[open]", "all => all.length") == 0
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.eval_on_selector_all("details:not([open])", "all => all.length") == 0


def test_an_empty_report_has_no_errors(opened) -> None:
    assert opened(bare()).trouble == []
