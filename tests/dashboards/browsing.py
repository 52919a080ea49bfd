"""A browser on the real command: what the browser tests share. Its fixtures are in conftest.py.

Waits ask the page through the debugger (`until`): playwright's `wait_for_function` would evaluate text in the page,
which the content policy forbids.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import IN_CI

CHROMIUM = os.environ.get("PERFKIT_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--no-first-run"]  # fmt: skip
PATIENCE_MS = 120_000
BROWSER = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(CHROMIUM is None and not IN_CI, reason="no chromium here (set PERFKIT_CHROMIUM)"),
]
"""Marks of a module that needs a browser."""
WATCH = """
window.refused = [];
addEventListener("securitypolicyviolation", (event) => window.refused.push(
  `${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
"""
"""Keeps what the content policy refuses, also where a library would go on without a word."""


def launch() -> Iterator[Any]:
    """Give a browser; without playwright the test is skipped, in CI it fails."""
    if IN_CI:
        from playwright import sync_api
    else:
        sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield browser
        browser.close()


def serve(store: Path, *options: str) -> Iterator[str]:
    """Run `perfkit dashboard` on a free port and give its address."""
    command = [sys.executable, "-m", "perfkit", "dashboard", "--store", str(store), "--port", "0", *options]
    store.parent.mkdir(parents=True, exist_ok=True)
    said = store.parent / "server.log"
    with said.open("w") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        yield wait_for_address(process, said)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)


def wait_for_address(process: subprocess.Popen[bytes], said: Path) -> str:
    """Return the address that the command prints, once it answers there."""
    for _ in range(1200):
        assert process.poll() is None, said.read_text()
        found = re.search(r"http://127\.0\.0\.1:\d+\S*/", said.read_text())
        with suppress(OSError):
            if found:
                with urllib.request.urlopen(f"{found.group()}health", timeout=10) as answer:
                    answer.read()
                return found.group()
        time.sleep(0.2)
    raise AssertionError(said.read_text())


def new_page(
    browser: Any, *, width: int = 1440, height: int = 900, scheme: str = "light", script: str = "", **more: Any
) -> Any:
    """Return a page of a fresh profile; what goes wrong is kept in `page.trouble`, what it asks for in `.requests`."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True, **more
    )
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(WATCH + script)
    page = context.new_page()
    page.trouble, page.requests = [], []
    page.on("console", lambda m: page.trouble.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: page.trouble.append(str(error)))
    page.on("request", lambda request: page.requests.append(request.url))
    return page


def until(page: Any, script: str) -> None:
    """Wait until a script is true."""
    for _ in range(PATIENCE_MS // 100):
        if page.evaluate(script):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"never true: {script}; {page.url}; {page.trouble}")


def settled(page: Any) -> None:
    """Wait until every section, every chart and the timeline of the link are drawn."""
    until(page, "document.querySelectorAll('.pk-slot').length > 0 && !document.querySelector('.pk-wait')")
    until(page, "[...document.querySelectorAll('.dash-graph')].every(e => e.querySelector('.main-svg'))")
    until(page, "[...document.querySelectorAll('.pk-timeline')].every(e => e.dataset.drawn?.endsWith(location.search))")


def fine(page: Any, site: str) -> None:
    """Nothing was said on the console, refused by the policy, asked of others, or failed."""
    assert page.trouble == []
    assert page.evaluate("window.refused") == []
    origin = site.split("//")[1].split("/")[0]
    outside = [url for url in page.requests if not url.startswith(("data:", "blob:")) and f"//{origin}/" not in url]
    assert outside == []
    assert page.locator(".pk-error").count() == 0


CONTRAST = """() => {
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const lum = ([r, g, b]) => [r, g, b].map((v) => linear(v / 255))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (a, b) => { const [x, y] = [lum(a), lum(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const behind = (el) => { for (; el; el = el.parentElement) { const c = parse(getComputedStyle(el).backgroundColor);
    if (c.length < 4 || c[3] === 1) return c; } return [255, 255, 255]; };
  const bad = [];
  for (const el of document.querySelectorAll("body *")) {
    if (el instanceof SVGElement || ["SCRIPT", "STYLE"].includes(el.tagName) || !el.checkVisibility()) continue;
    if (el.closest(".pk-hidden, .pk-skip, #pk-tip")) continue;
    if (![...el.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    const found = ratio(parse(getComputedStyle(el).color), behind(el));
    const what = el.tagName + "." + el.className + " " + el.textContent.slice(0, 20);
    if (found < 4.5) bad.push(what + " " + found.toFixed(2));
  }
  return [...new Set(bad)];
}"""
"""Texts with less contrast than WCAG AA asks for."""
UNNAMED = """() => [...document.querySelectorAll(
  "button, a[href], input:not([type=hidden]), canvas, [role=img], [role=region], section")]
  .filter(e => e.checkVisibility() && !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length
    || e.getAttribute('title') || e.closest('[role=group][aria-label]') || e.closest('.ag-root')))
  .map(e => e.outerHTML.slice(0, 120))"""
"""What a screen reader could not call by a name."""
