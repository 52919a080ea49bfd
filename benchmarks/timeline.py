"""How fast the dashboard's timeline answers on a step of 8 ranks with a million events that have a duration.

    python benchmarks/timeline.py                      makes the store first: simulate, ingest, analyze (minutes)
    python benchmarks/timeline.py --store big/ --no-browser

Two tables. Over HTTP: the first answer of a fresh server (events read from Parquet) and zooms at every width; wall
time, CPU time of the server, bytes and bars. In chromium, from marks that the page itself sets:

    first paint          from the start of the navigation until the frame with the picture has been drawn; a server that
                         has answered /health and has read nothing of the run; a browser that has seen another page of
                         the dashboard, so that the libraries are in its cache
    new browser          the same with an empty cache: every library is loaded and compiled
    again                the same page once more: the server has the events in memory
    zoom                 from the press of a button until the frame with the new picture has been drawn, in full detail

Each is repeated with a new server; median and worst are printed. Wall times are of this machine, with the browser on
the same cores as the server; where it is shared, the CPU column says what a quiet one would show.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from dashboard import quantile, serving

RUN = "big"
WIDTHS = (1, 2, 8, 64, 512, 4096)
REPEATS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", help="a store that this script made; made if absent")
    parser.add_argument(
        "--layers", type=int, default=980, help="of the simulated model; 980 give a million that are drawn"
    )
    parser.add_argument("--no-browser", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = args.store or str(Path(folder, "store"))
        if not Path(store).exists():
            make(Path(folder), store, args.layers)
        length, events, drawn = about(store)
        print(f"\n{events:,} events in one step of 8 ranks, {length / 1e6:,.1f} ms long; {drawn:,} have a duration")
        measure_answers(store, length)
        if not args.no_browser:
            measure_browser(store)


def make(folder: Path, store: str, layers: int) -> None:
    """Simulate, ingest and analyse the step."""

    def run(*words: str) -> None:
        subprocess.run([sys.executable, "-m", "perfkit", *words], check=True, stdout=subprocess.DEVNULL)

    traces = str(folder / "traces")
    size = ["--layers", str(layers), "--hidden", "1024", "--steps", "1", "--seed", "11"]
    run(
        "simulate",
        "trace",
        "--ranks",
        "8",
        "--parallel",
        "dp=4,tp=2",
        "--fault",
        "slow-rank:5:1.3x",
        *size,
        "-o",
        traces,
    )
    run("ingest", traces, "--store", store, "--cluster", "sim", "--run", RUN)
    run("analyze", f"sim/{RUN}", "--store", store, "--format", "json", "-o", str(folder / "report.json"))


def about(store: str) -> tuple[int, int, int]:
    """Return the length of the step, its events, and those of them that are drawn: arrows have no duration."""
    from perfkit_dashboards import data_timeline
    from perfkit_dashboards.data import Source
    from perfkit_dashboards.view import View

    from perfkit.store import Store

    at = data_timeline.moment(Source(store), View(page="timeline", cluster="sim", run=RUN))
    assert at is not None
    durations = Store(store).read("events", run=RUN, columns=["dur_ns"])["dur_ns"]
    return at.length_ns, len(durations), len(durations) - durations.null_count


def ask(port: int, query: str) -> tuple[float, int, int]:
    """Ask for the picture as a browser does: seconds, bytes, bars."""
    connection = HTTPConnection("127.0.0.1", port, timeout=600)
    began = time.perf_counter()
    connection.request("GET", f"/export/timeline.json{query}")
    answer = connection.getresponse()
    data = answer.read()
    took = time.perf_counter() - began
    assert answer.status == 200, answer.status
    return took, len(data), len(json.loads(data)["bars"]["row"])


def measure_answers(store: str, length: int) -> None:
    """Print the first answer and the zooms."""
    print(f"\n{'picture':34}{'wall ms':>10}{'p95':>8}{'CPU ms':>10}{'kB':>8}{'bars':>8}\n")
    dice = random.Random(7)
    for lanes in ("device", "all"):
        server = serving(store, 1)
        with server as port:
            time.sleep(1)  # the worker warms what the start page needs
            line = f"devices{' and host' if lanes == 'all' else ''}"
            show(server, f"{line}: first", [f"?cluster=sim&run={RUN}&lanes={lanes}"], port)
            for part in WIDTHS:
                queries = []
                for _ in range(10):
                    low = dice.randrange(max(1, length - length // part + 1))
                    queries.append(f"?cluster=sim&run={RUN}&lanes={lanes}&lo={low}&hi={low + length // part}")
                show(server, f"{line}: 1/{part} of the step", queries, port)


def show(server: serving, name: str, queries: list[str], port: int) -> None:
    """Print one line."""
    before = server.cpu_s()
    answers = [ask(port, query) for query in queries]
    used = (server.cpu_s() - before) / len(queries)
    wall = [took for took, _, _ in answers]
    size, bars = max(size for _, size, _ in answers), max(bars for _, _, bars in answers)
    cells = f"{1e3 * statistics.median(wall):10.0f}{1e3 * quantile(wall, 0.95):8.0f}{1e3 * used:10.0f}"
    print(f"{name:34}{cells}{size / 1e3:8.0f}{bars:8,}")


def measure_browser(store: str) -> None:
    """Print how long it takes until the picture stands, and from a zoom to the next one."""
    chromium = os.environ.get("PERFKIT_CHROMIUM") or shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        chromium = None
    if chromium is None:
        print("\nno browser here: no table of it")
        return
    found: dict[str, list[float]] = {}
    with sync_playwright() as playwright:
        for name, seen in [("first paint", True), ("new browser", False)] * REPEATS:
            for lanes in ("device", "all"):
                with serving(store, 1) as port:
                    time.sleep(1)  # the worker warms what the start page needs
                    browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                    tab = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
                    tab.set_default_timeout(600_000)
                    about_host = ", devices and host" if lanes == "all" else ", devices"
                    if seen:
                        tab.goto(f"http://127.0.0.1:{port}/run?cluster=sim&run={RUN}")
                        tab.wait_for_selector(".pk-card")
                        time.sleep(1)
                    url = f"http://127.0.0.1:{port}/timeline?cluster=sim&run={RUN}&lanes={lanes}"
                    found.setdefault(name + about_host, []).append(painted(tab, lambda: tab.goto(url)))  # noqa: B023
                    if seen:
                        found.setdefault("again" + about_host, []).append(painted(tab, lambda: tab.goto(url)))  # noqa: B023
                        for _ in range(4):
                            press = "document.querySelector('.pk-moves a').click()"
                            took = painted(tab, lambda: tab.evaluate(press))  # noqa: B023
                            found.setdefault("zoom" + about_host, []).append(took)
                    browser.close()
    print(f"\n{'a browser, ms':40}{'median':>10}{'worst':>10}{'of':>6}\n")
    for line, times in found.items():
        print(f"{line:40}{statistics.median(times):10.0f}{max(times):10.0f}{len(times):6}")


def painted(tab: Any, act: Callable[[], object]) -> float:
    """Do something, and return how many ms passed in the page until the next picture was drawn."""
    tab.evaluate("performance.clearMarks()")
    act()
    marks = "performance.getEntriesByType('mark').map(m => [m.name, m.startTime])"
    while not any(name == "perfkit-timeline" for name, _ in tab.evaluate(marks)):
        time.sleep(0.02)
    times = dict(tab.evaluate(marks))
    took: float = times["perfkit-timeline"] - times.get("perfkit-timeline-asked", 0.0)
    time.sleep(1.5)  # the rest of the page follows
    return took


if __name__ == "__main__":
    main()
