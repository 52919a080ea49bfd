"""Timeline, collectives, kernels and health in a real browser: zoom, drill, links, themes, keyboard."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dashboards.browsing import BROWSER, CONTRAST, UNNAMED, fine, serve, settled, until
from tests.dashboards.made_stores import make_fleet
from tests.dashboards.traced_store import HOSTILE, make_hostile, make_traced

LINKS = {
    "timeline": "timeline?cluster=lab&run=tp", "timeline-host": "timeline?cluster=lab&run=pp&ranks=0-1&lanes=all",
    "collectives": "collectives?cluster=lab&run=tp", "kernels": "kernels?cluster=lab&run=tp",
    "node-health": "node-health?cluster=beta&range=all",
}  # fmt: skip
pytestmark = BROWSER
CAPTION = "document.querySelector('.pk-timeline figcaption').textContent"
LISTEN = """
window.drawn = { colours: [], texts: [] };
const pen = CanvasRenderingContext2D.prototype, rect = pen.fillRect, text = pen.fillText;
pen.fillRect = function (x, y, w, h) {
  if (x === 0 && y === 0) window.drawn = { colours: [], texts: [] }; /* the ground: a new picture */
  else window.drawn.colours.push(this.fillStyle);
  rect.call(this, x, y, w, h);
};
pen.fillText = function (...all) { window.drawn.texts.push(all[0]); text.apply(this, all); };
"""
"""Keeps what is drawn on canvases: colours of rectangles, and texts."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("pages")
    store = make_traced(folder)
    make_hostile(folder, store)
    make_fleet(store, days=4)
    yield from serve(store)


def sent(page: Any, site: str) -> dict[str, Any]:
    """Return what the server sends for the window that the link names."""
    query = page.evaluate("location.search")
    return page.request.get(f"{site}export/timeline.json{query}").json()


def box_of(page: Any) -> dict[str, float]:
    page.locator(".pk-timeline canvas").scroll_into_view_if_needed()
    return page.locator(".pk-timeline canvas").bounding_box()


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
        assert page.locator(".js-plotly-plot .main-svg, .pk-timeline canvas").count() > 0
        page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=True)
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate(UNNAMED) == []


# ------------------------------------------------------------------ timeline


def test_a_drag_zooms_the_link_shows_it_and_a_colleague_sees_the_same(opened, site) -> None:
    page = opened(site + LINKS["timeline"])
    whole = page.evaluate(CAPTION)
    box = box_of(page)
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 64, steps=4)
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 64, steps=4)
    page.mouse.up()
    follow(page, r"lo=\d+&hi=\d+|hi=\d+.*lo=\d+")
    lo, hi = (int(re.search(rf"{name}=(\d+)", page.url).group(1)) for name in ("lo", "hi"))
    found = sent(page, site)
    assert (found["lo"], found["hi"]) == (lo, hi)
    assert 0.15 < (hi - lo) / found["length"] < 0.3, "a fifth of the picture was marked"
    until(page, f"{CAPTION} === {json.dumps(found['words'])}")
    assert found["words"] != whole
    until(page, f"document.body.innerText.includes({json.dumps(found['span'])})")
    colleague = opened(page.url)
    assert colleague.evaluate(CAPTION) == found["words"]
    page.go_back()
    until(page, f"{CAPTION} === {json.dumps(whole)}")
    page.go_forward()
    until(page, f"{CAPTION} === {json.dumps(found['words'])}")
    page.click("a:text-is('Whole step')")
    until(page, "!location.search.includes('lo=')")
    settled(page)
    assert page.evaluate(CAPTION) == whole
    fine(page, site)
    fine(colleague, site)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_class_that_the_table_has_is_drawn_at_every_zoom(opened, site, scheme) -> None:
    page = opened(site + LINKS["timeline-host"], scheme=scheme, script=LISTEN)
    for _ in range(5):
        found = sent(page, site)
        palette = found["palette"][scheme]
        table = page.request.get(f"{site}export/timeline.busy.csv{page.evaluate('location.search')}").text()
        classes = {row["class"] for row in csv.DictReader(table.splitlines())}
        drawn = {found["rows"]["class"][row] for row in found["bars"]["row"]}
        assert len(drawn) == len(classes)
        until(
            page, f"{json.dumps([palette['classes'][i] for i in drawn])}.every(c => window.drawn.colours.includes(c))"
        )
        assert page.evaluate("window.drawn.colours.length") == len(found["bars"]["row"]), "one bar, one rectangle"
        texts = page.evaluate("window.drawn.texts")
        assert {"rank 0", "rank 1", *(text for _, text in found["lanes"])} <= set(texts)
        assert any("clock ±" in text for text in texts)
        before = page.url
        page.click("a:text-is('Zoom in')")
        until(page, f"location.href !== {json.dumps(before)}")
        settled(page)
    asked = sum("timeline.json" in url for url in page.requests)
    page.click("[data-do=theme]")
    other = sent(page, site)["palette"][{"light": "dark", "dark": "light"}[scheme]]
    first = other["classes"][sent(page, site)["rows"]["class"][0]]
    until(page, f"window.drawn.colours.includes({json.dumps(first)})")
    settled(page)
    assert sum("timeline.json" in url for url in page.requests) == asked, "another theme asks for nothing"
    fine(page, site)


def test_ranks_lanes_and_steps_are_chosen_and_kept_in_the_link(opened, site) -> None:
    page = opened(site + LINKS["timeline"], script=LISTEN)
    page.get_by_label("Ranks", exact=True).fill("5,3")
    follow(page, r"ranks=5(,|%2C)3")
    until(page, f"{CAPTION}.includes('on ranks 5, 3')")
    page.click("label:has-text('devices and host')")
    follow(page, "lanes=all")
    until(page, "window.drawn.texts.some(text => text.startsWith('thread'))")
    page.click("a:text-is('Next step')")
    follow(page, r"step=\d+")
    page.go_back()
    until(page, "!location.search.includes('step=')")
    settled(page)
    fine(page, site)


def test_the_timeline_is_used_with_the_keyboard_alone(opened, site) -> None:
    page = opened(site + LINKS["timeline"])
    canvas, detail = page.locator(".pk-timeline canvas"), page.locator(".pk-detail")
    words = canvas.get_attribute("aria-label")
    assert "events" in words, "it says what it shows"
    assert "comma" in words, "and how it is used"
    canvas.focus()
    for key in ("+", "+", "ArrowRight", "ArrowLeft", "-"):
        before = page.url
        page.keyboard.press(key)
        until(page, f"location.href !== {json.dumps(before)}")
        settled(page)
        assert page.evaluate("document.activeElement.tagName") == "CANVAS"
    page.keyboard.press("Home")
    until(page, "!location.search.includes('lo=')")
    settled(page)
    page.keyboard.press(".")
    page.keyboard.press(".")
    assert detail.get_attribute("aria-live") == "polite"
    hover = sent(page, site)["bars"]["hover"]
    assert detail.inner_text().startswith(hover[1].split("\n")[0])
    page.keyboard.press(",")
    assert detail.inner_text().startswith(hover[0].split("\n")[0])
    page.keyboard.press("Enter")
    follow(page, "hi=")
    page.keyboard.press("Escape")
    assert "A click on a bar" in detail.inner_text()
    page.focus("a:text-is('Zoom out')")
    before = page.url
    page.keyboard.press("Enter")
    until(page, f"location.href !== {json.dumps(before)}")
    settled(page)
    assert page.evaluate("document.activeElement.textContent") == "Zoom out", "the focus stays where it was"
    page.focus("[aria-label='Longest in this window'] td a >> nth=0")
    page.keyboard.press("Enter")
    follow(page, "lo=")
    fine(page, site)


def test_a_bar_says_what_it_is_and_a_collective_leads_to_its_instance(opened, site) -> None:
    page = opened(site + LINKS["timeline"] + "&ranks=0,5")
    found = sent(page, site)
    number = int(next(iter(found["instances"])))
    row = found["bars"]["row"][number]
    box, tip = box_of(page), page.locator(".pk-hover")
    y = box["y"] + 20 + found["rows"]["y"][row]
    middle = (found["bars"]["start"][number] + found["bars"]["end"][number]) / 2 / found["length"]
    for left in range(40, 200, 4):  # the names of the lanes have some width
        page.mouse.move(box["x"] + left + middle * (box["width"] - left - 10), y)
        if tip.is_visible() and tip.inner_text() == found["bars"]["hover"][number]:
            break
    assert tip.inner_text() == found["bars"]["hover"][number]
    assert tip.get_attribute("role") == "tooltip"
    page.mouse.down()
    page.mouse.up()
    page.click(".pk-detail a:text-is('This collective on all ranks')")
    page.wait_for_selector("h2:has-text('Instance')")
    follow(page, rf"/collectives\?.*instance={found['instances'][str(number)]}")
    fine(page, site)


def test_the_window_is_downloaded_as_a_trace_as_csv_and_as_a_picture(opened, site, tmp_path) -> None:
    page = opened(site + LINKS["timeline"] + "&ranks=0,5&lo=100000&hi=9000000")
    page.click("a:text-is('Zoom in')")  # the links follow the window
    until(page, "!location.search.includes('lo=100000&')")
    settled(page)
    lo, hi = (int(re.search(rf"{name}=(\d+)", page.url).group(1)) for name in ("lo", "hi"))

    def saved(label: str) -> Path:
        with page.expect_download() as waiting:
            page.click(f"[aria-label='{label}']")
        waiting.value.save_as(tmp_path / waiting.value.suggested_filename)
        return tmp_path / waiting.value.suggested_filename

    trace = saved("This window as a trace for Perfetto")
    document = json.loads(gzip.decompress(trace.read_bytes()))
    times = [event["ts"] for event in document["traceEvents"] if event["ph"] == "X" and event["cat"] == "kernel"]
    assert len(times) > 10
    assert (max(times) - min(times)) * 1000 < 1.5 * (hi - lo)
    rows = list(csv.DictReader(saved("Timeline as CSV").read_text().splitlines()))
    assert {row["rank"] for row in rows} == {"0", "5"}
    assert "compute" in {row["class"] for row in rows}
    assert all(lo <= int(row["start_ns"]) < int(row["end_ns"]) <= hi for row in rows)
    picture = saved("Timeline as PNG")
    assert picture.name == "timeline.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    fine(page, site)


def test_hostile_names_of_events_are_text(opened, site) -> None:
    page = opened(site + "timeline?cluster=lab&run=hostile&lanes=all", script=LISTEN)
    found = sent(page, site)
    number = next(i for i, text in enumerate(found["bars"]["hover"]) if HOSTILE in text)
    page.focus(".pk-timeline canvas")
    for _ in range(number + 1):
        page.keyboard.press(".")
    assert HOSTILE in page.inner_text(".pk-detail")
    page.keyboard.press("Enter")
    follow(page, "hi=")
    until(page, f"window.drawn.texts.some(text => text.startsWith({json.dumps(HOSTILE[:8])}))")
    page.hover("[aria-label='Longest in this window'] td a >> nth=0")
    assert page.evaluate("window.PWNED") is None
    assert page.locator("main img").count() == 0
    fine(page, site)


def test_a_run_without_events_says_what_to_do_and_one_window_without_any_too(opened, site) -> None:
    page = opened(site + "timeline?cluster=alpha&run=steady")
    assert "perfkit ingest" in page.inner_text(".pk-timeline")
    assert not page.locator(".pk-timeline canvas").is_visible()
    fine(page, site)


def test_what_the_first_page_does_without_is_there_on_the_next(opened, site) -> None:
    page = opened(site + LINKS["timeline"])
    assert page.evaluate("window.dash_ag_grid") is None
    assert page.evaluate("window.Plotly") is None
    page.click("#crumbs a:text-is('Fleet')")
    page.wait_for_selector(".ag-row a")
    settled(page)
    page.go_back()
    until(page, "document.querySelector('.pk-timeline canvas') !== null")
    settled(page)
    page.click("a:text-is('Collectives')")
    page.wait_for_selector(".js-plotly-plot .main-svg")
    settled(page)
    fine(page, site)


# ------------------------------------------------------------------ collectives, kernels, health


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
    page.wait_for_selector(".pk-timeline canvas")
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
    ink = "document.querySelector('.js-plotly-plot .ytick text')?.style.fill"
    before = page.evaluate(ink)
    page.click("[data-do=theme]")
    until(page, f"document.querySelector('.js-plotly-plot .ytick text') && {ink} !== {json.dumps(before)}")
    settled(page)
    fine(page, site)
