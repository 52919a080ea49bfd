"""How fast the dashboard's timeline answers on a step of 8 ranks with a million events.

    python benchmarks/timeline.py                      makes the store first: simulate, ingest, analyze (minutes)
    python benchmarks/timeline.py --store big/ --no-browser

Prints the first answer of a fresh server (events read from Parquet) and zooms at every width, over HTTP: wall time, CPU
time of the server, bytes and bars; then what a browser needs until the picture stands, and from a zoom to the new one.
Wall times are of this machine; where it is shared, the CPU column says what a quiet one would show.
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
from http.client import HTTPConnection
from pathlib import Path

from dashboard import callbacks, quantile, serving

RUN = "big"
WIDTHS = (1, 2, 8, 64, 512, 4096)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", help="a store that this script made; made if absent")
    parser.add_argument("--layers", type=int, default=680, help="of the simulated model; 680 give a million events")
    parser.add_argument("--no-browser", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = args.store or str(Path(folder, "store"))
        if not Path(store).exists():
            make(Path(folder), store, args.layers)
        length, events = about(store)
        print(f"\n{events:,} events in one step of 8 ranks, {length / 1e6:,.1f} ms long")
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


def about(store: str) -> tuple[int, int]:
    """Return the length of the step, and its events."""
    from perfkit_dashboards import data_timeline
    from perfkit_dashboards.data import Source
    from perfkit_dashboards.view import View

    from perfkit.store import Store

    at = data_timeline.moment(Source(store), View(page="timeline", cluster="sim", run=RUN))
    assert at is not None
    return at.length_ns, sum(commit.num_events for commit in Store(store).committed("sim", RUN, 0))


def ask(port: int, query: str) -> tuple[float, int, int]:
    """Ask for the picture as a browser does: seconds, bytes, bars."""
    found = dict(callbacks("timeline", query))
    connection = HTTPConnection("127.0.0.1", port, timeout=600)
    began = time.perf_counter()
    connection.request(
        "POST", "/_dash-update-component", found["timeline.picture"], {"Content-Type": "application/json"}
    )
    answer = connection.getresponse()
    data = answer.read()
    took = time.perf_counter() - began
    assert answer.status == 200, answer.status
    return took, len(data), sum(len(trace["x"]) for trace in traces(json.loads(data)) if trace.get("type") == "bar")


def traces(part: object) -> list[dict[str, list[object]]]:
    """Return the traces of all figures in an answer."""
    if isinstance(part, dict):
        figure = part.get("figure")
        mine = figure["data"] if isinstance(figure, dict) and "data" in figure else []
        return [*mine, *(trace for value in part.values() if value is not figure for trace in traces(value))]
    return [trace for value in part for trace in traces(value)] if isinstance(part, list) else []


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
    with serving(store, 1) as port, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        tab.set_default_timeout(600_000)
        print("\na browser, s")
        for name in ("first page of a new browser, fresh server", "the page again"):
            began = time.perf_counter()
            tab.goto(f"http://127.0.0.1:{port}/timeline?cluster=sim&run={RUN}")
            tab.wait_for_selector(".js-plotly-plot .barlayer .point")
            print(f"  {name:44}{time.perf_counter() - began:8.2f}")
        for _ in range(4):
            before = tab.locator("figcaption").first.text_content()
            began = time.perf_counter()
            tab.click("a:text-is('Zoom in')")
            while tab.locator("figcaption").first.text_content() == before:
                time.sleep(0.005)
            print(f"  {'a zoom, until the picture is replaced':44}{time.perf_counter() - began:8.2f}")
        browser.close()


if __name__ == "__main__":
    main()
