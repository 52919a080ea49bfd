"""How fast the dashboard answers on a year of a simulated fleet (2,000 runs, one of 4,096 ranks) and two traced runs.

    python benchmarks/dashboard.py                         makes the store first (a few minutes)
    python benchmarks/dashboard.py --store fleet/ --seconds 60 --users 20
    python benchmarks/dashboard.py --store fleet/ --minutes 5 --no-browser      errors, memory by the minute, p95

Prints the fleet's data cold (a new process) and warm; every section alone; `--users` people at once who walk from page
to page over HTTP, against `perfkit dashboard --workers 2`; and what a browser needs until a
page is drawn (with playwright and chromium). Times are wall times on this machine, the load generator on the
same cores; sizes are bytes of the response body.

The load: each of `--users` opens a random view, sends all the callbacks of its page one after the other over one
connection, looks at it for `--pause` seconds (10: people read), and opens the next. `--pause 0` is no model of people
but of the most that the server answers. Every view was seen before by every worker, as on a server that has been up
for a while.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path

COLD = """
import json, sys, time
started = time.perf_counter()
from perfkit_dashboards import data_fleet
from perfkit_dashboards.data import Source
from perfkit_dashboards.view import View
imported = time.perf_counter()
view = View(range=sys.argv[2])
source = Source(sys.argv[1])
data_fleet.clusters(source, view); data_fleet.hours(source, view); data_fleet.runs(source, view)
cold = time.perf_counter() - imported
times = []
for _ in range(20):
    source._known.clear()
    began = time.perf_counter()
    data_fleet.clusters(source, view); data_fleet.hours(source, view); data_fleet.runs(source, view)
    times.append(time.perf_counter() - began)
began = time.perf_counter()
data_fleet.clusters(source, view); data_fleet.hours(source, view); data_fleet.runs(source, view)
remembered = time.perf_counter() - began
print(json.dumps({"import": imported - started, "cold": cold, "asked": sorted(times)[10], "remembered": remembered}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", help="a store of `perfkit simulate fleet`; made if absent")
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--minutes", type=float, help="in place of --seconds")
    parser.add_argument("--pause", type=float, action="append", help="seconds a user looks at a page (10 and 2)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--no-browser", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = args.store or str(Path(folder, "fleet"))
        if not args.store:
            options = ["--clusters", "3", "--days", "365", "--runs", "2000", "--seed", "1", "-o", store]
            subprocess.run([sys.executable, "-m", "perfkit", "simulate", "fleet", *options], check=True)
            add_traced(Path(folder), store)
        measure_data(store)
        views = walk(store)
        measure_sections(store, views)
        server = serving(store, args.workers)
        with server as port:
            seconds = 60 * args.minutes if args.minutes else args.seconds
            for pause in args.pause or ((10.0,) if args.minutes else (10.0, 2.0)):
                measure_users(port, views, args.users, seconds, pause, server)
            if not args.no_browser:
                measure_browser(port, views)


def add_traced(folder: Path, store: str) -> None:
    """Add two runs with traces and an analysis, for the pages that need them."""
    job = ["--ranks", "8", "--parallel", "dp=4,tp=2", "--layers", "24", "--steps", "4"]
    for run, fault in (("traced", []), ("traced-slow", ["--fault", "slow-rank:5:1.3x"])):
        traces = str(folder / run)
        for words in (
            ["simulate", "trace", *job, *fault, "-o", traces],
            ["ingest", traces, "--store", store, "--cluster", "lab", "--run", run],
            ["analyze", f"lab/{run}", "--store", store, "--format", "json", "-o", str(folder / "report.json")],
        ):
            subprocess.run([sys.executable, "-m", "perfkit", *words], check=True, stdout=subprocess.DEVNULL)


def measure_data(store: str) -> None:
    print("\nfleet data (clusters, GPU-hours, runs), ms\n")
    print(f"{'range':8}{'import':>10}{'cold':>10}{'warm':>10}{'remembered':>12}")
    for name in ("30d", "1y"):
        done = subprocess.run([sys.executable, "-c", COLD, store, name], capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        cells = (found["import"], found["cold"], found["asked"])
        print(f"{name:8}" + "".join(f"{1000 * t:10.0f}" for t in cells) + f"{1000 * found['remembered']:12.2f}")


def walk(store: str) -> list[tuple[str, str]]:
    """Return the views that a user visits: from the fleet down to a rank, of each cluster."""
    from perfkit_dashboards import data_fleet
    from perfkit_dashboards.data import Source
    from perfkit_dashboards.view import View

    source = Source(store)
    views = [View(), View(range="7d"), View(range="1y"), View(search="llama")]
    for name in source.clusters():
        views += [View(page="cluster", cluster=name, gpu=gpu) for gpu in ("mfu", "temperature", "health")]
        views += [View(page="cluster", cluster=name, range="1y"), View(page="node-health", cluster=name)]
        rows, _ = data_fleet.runs(source, View(clusters=(name,)), count=3)
        views += [View(page="run", cluster=name, run=row["run"]) for row in rows]
    giant = source.ask("SELECT cluster, run FROM runs ORDER BY world_size DESC LIMIT 1")
    for row in giant:
        views += [
            View(page="ranks", cluster=row["cluster"], run=row["run"], quantity=quantity, rank=0)
            for quantity in ("own_work", "compute", "exposed_comm")
        ]
    traced = sorted(path.name.removeprefix("run=") for path in Path(store).glob("events/cluster=lab/run=*"))
    for run in traced:
        one = View(page="run", cluster="lab", run=run)
        views += [one, *(one.to(page) for page in ("ranks", "collectives", "kernels", "timeline"))]
        views += [one.to("timeline", lanes="all"), one.to("timeline", lo=10_000_000, hi=14_000_000)]
        views += [one.to("compare", base=other) for other in traced if other != run]
    return [(view.page, view.query()) for view in views]


def measure_sections(store: str, views: list[tuple[str, str]]) -> None:
    """Draw every section of every view alone, in this process: first time, and when its answers are known."""
    from perfkit_dashboards.app import context
    from perfkit_dashboards.data import Source
    from perfkit_dashboards.pages import PAGES
    from plotly.utils import PlotlyJSONEncoder

    found: dict[str, list[tuple[float, float, int]]] = {}
    source = Source(store)
    for page, query in views:
        for section in PAGES[page].sections:
            here = context(source, {"path": f"/{page}", "search": query, "theme": "light"}, "/")
            times = []
            for _ in range(2):
                began = time.perf_counter()
                drawn = json.dumps(section.render(here), cls=PlotlyJSONEncoder)
                times.append(time.perf_counter() - began)
            found.setdefault(section.name, []).append((*times, len(drawn)))
    print("\nsections alone, worst view of each: first drawing, again, size\n")
    print(f"{'section':22}{'first ms':>10}{'again ms':>10}{'kB':>10}")
    for name, rows in found.items():
        first, again, size = (max(row[i] for row in rows) for i in range(3))
        print(f"{name:22}{1000 * first:10.0f}{1000 * again:10.1f}{size / 1000:10.1f}")


class serving:  # noqa: N801
    """`perfkit dashboard` on a free port, for the length of a block."""

    def __init__(self, store: str, workers: int) -> None:
        self.command = [
            sys.executable,
            "-m",
            "perfkit",
            "dashboard",
            "--store",
            store,
            "--port",
            "0",
            "--workers",
            str(workers),
        ]

    def __enter__(self) -> int:
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr
        line = self.process.stderr.readline()
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        self.port = int(line.split("http://127.0.0.1:")[1].split("/")[0])
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1).read()
                return self.port
            except OSError:
                time.sleep(0.1)
        raise SystemExit("the server did not start")

    def cpu_s(self) -> float:
        """Return the CPU time of the server and its workers so far; NaN where there is no /proc."""
        tick = os.sysconf("SC_CLK_TCK")
        return sum((int(fields[11]) + int(fields[12])) / tick for fields in self._processes()) or float("nan")

    def memory_mb(self) -> float:
        """Return the resident memory of the server and its workers; NaN where there is no /proc."""
        page = os.sysconf("SC_PAGE_SIZE")
        return sum(int(fields[21]) * page / 1e6 for fields in self._processes()) or float("nan")

    def _processes(self) -> Iterator[list[str]]:
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                pid, _, rest = path.read_text().partition(" (")
                fields = rest.rpartition(") ")[2].split()
            except OSError:
                continue
            if str(self.process.pid) in (pid, fields[1]):
                yield fields

    def __exit__(self, *error: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=30)


def callbacks(page: str, query: str) -> list[tuple[str, bytes | str]]:
    """Return what a browser asks for a view: status, page, sections, the grid's first rows, the timeline's picture."""
    from perfkit_dashboards.pages import PAGES

    view = {
        "id": "view",
        "property": "data",
        "value": {"path": f"/{'' if page == 'fleet' else page}", "search": query, "theme": "light"},
    }

    def body(outputs: list[dict[str, object]], spec: str, inputs: list[object], state: list[object]) -> bytes:
        document = {"output": spec, "outputs": outputs if len(outputs) > 1 else outputs[0], "inputs": inputs,
                    "state": state, "changedPropIds": ["view.data"]}  # fmt: skip
        return json.dumps(document).encode()

    def out(*pairs: tuple[object, str]) -> list[dict[str, object]]:
        return [{"id": name, "property": prop} for name, prop in pairs]

    status = body(out(("status", "children"), ("version", "data"), ("warnings", "children"),
                      ("command", "children")),
                  "..status.children...version.data...warnings.children...command.children..",
                  [view, {"id": "tick", "property": "data"}], [{"id": "version", "property": "data"}])  # fmt: skip
    laid = body(out(("page", "children"), ("crumbs", "children"), ("shown", "data")),
                "..page.children...crumbs.children...shown.data..", [view],
                [{"id": "shown", "property": "data"}])  # fmt: skip
    found: list[tuple[str, bytes | str]] = [("status", status), ("page", laid)]
    spec = '..{"part":"body","section":["MATCH"]}.children...{"part":"drawn","section":["MATCH"]}.data..'
    for section in PAGES[page].sections:
        ids = ({"part": "body", "section": section.name}, {"part": "drawn", "section": section.name})
        state = [{"id": ids[0], "property": "id", "value": ids[0]}, {"id": ids[1], "property": "data"}]
        found.append((section.name, body(out((ids[0], "children"), (ids[1], "data")), spec,
                                         [view, {"id": "refresh", "property": "data"}], state)))  # fmt: skip
    if page == "timeline":
        found.append(("timeline window", f"/export/timeline.json{query}"))
    if page == "fleet":
        rows = {"id": "runs", "property": "getRowsRequest", "value": {"startRow": 0, "endRow": 100, "sortModel": []}}
        found.append(("runs rows", body(out(("runs", "getRowsResponse")), "runs.getRowsResponse", [rows], [view])))
    return found


def measure_users(
    port: int,
    views: list[tuple[str, str]],
    users: int,
    seconds: float,
    pause: float,
    server: serving,
) -> None:
    """Have users walk from view to view, each over its own connection, `pause` seconds after a page is complete."""
    requests = [callbacks(page, query) for page, query in views]
    times: dict[str, list[float]] = {}
    sizes: dict[str, int] = {}
    errors: list[str] = []
    lock = threading.Lock()

    def visit(seed: int, chosen: Iterator[list[tuple[str, bytes | str]]], wait: float, note: bool) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=120)
        time.sleep(wait * seed / users)
        for page in chosen:
            for name, data in page:
                began = time.perf_counter()
                if isinstance(data, str):
                    connection.request("GET", data)
                else:
                    connection.request("POST", "/_dash-update-component", data, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                size = len(answer.read())
                took = time.perf_counter() - began
                with lock:
                    if note:
                        times.setdefault(name, []).append(took)
                        sizes[name] = max(sizes.get(name, 0), size)
                    if answer.status not in (200, 204):
                        errors.append(f"{name}: {answer.status}")
            time.sleep(wait)

    def walkers(
        count: int, make: Callable[[int], Iterator[list[tuple[str, bytes | str]]]], wait: float, note: bool
    ) -> None:
        threads = [threading.Thread(target=visit, args=(i, make(i), wait, note)) for i in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def wander(seed: int) -> Iterator[list[tuple[str, bytes | str]]]:
        dice = random.Random(seed)
        while time.monotonic() < until:
            yield dice.choice(requests)

    walkers(
        8, lambda _: iter(requests), 0.0, note=False
    )  # as if it had been up for a while: every worker saw every view
    until, used = time.monotonic() + seconds, server.cpu_s()
    memory: list[float] = []

    def watch() -> None:
        while time.monotonic() < until:
            memory.append(server.memory_mb())
            time.sleep(min(60.0, max(0.1, until - time.monotonic())))

    watcher = threading.Thread(target=watch)
    watcher.start()
    walkers(users, wander, pause, note=True)
    watcher.join()
    memory.append(server.memory_mb())
    used, total = server.cpu_s() - used, sum(map(len, times.values()))
    rate = f"{total:,} callbacks, {total / seconds:,.0f}/s, {1000 * used / total:.1f} ms CPU each, {len(errors)} errors"
    print(f"\n{users} users who look at each page for {pause:g} s, {seconds:.0f} s, {rate}")
    print(f"memory of the server, MB by the minute: {' '.join(f'{mb:.0f}' for mb in memory)}\n")
    print(f"{'callback':22}{'count':>8}{'p50 ms':>10}{'p95 ms':>10}{'max ms':>10}{'kB':>10}")
    everything = [t for some in times.values() for t in some]
    for name, some in [*times.items(), ("all", everything)]:
        cells = (statistics.median(some), quantile(some, 0.95), max(some))
        size = sizes.get(name, max(sizes.values()))
        print(f"{name:22}{len(some):8,}" + "".join(f"{1000 * t:10.0f}" for t in cells) + f"{size / 1000:10.1f}")
    for line in errors[:5]:
        print(line)


def quantile(values: list[float], share: float) -> float:
    """Return a quantile of a list."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def measure_browser(port: int, views: list[tuple[str, str]]) -> None:
    """Open each kind of page in a new browser: until all sections are drawn, in s."""
    chromium = os.environ.get("PERFKIT_CHROMIUM") or shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        chromium = None
    if chromium is None:
        print("\nno browser here: no table of page loads")
        return
    print("\na page in a new browser, until every section is drawn, s\n")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for page_name in dict.fromkeys(page for page, _ in views):
            query = next(query for page, query in views if page == page_name)
            times = []
            for _ in range(3):
                tab = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
                began = time.perf_counter()
                tab.goto(f"http://127.0.0.1:{port}/{'' if page_name == 'fleet' else page_name}{query}")
                tab.wait_for_selector(".pk-slot", timeout=60_000)
                tab.wait_for_function("!document.querySelector('.pk-wait')", timeout=60_000)
                times.append(time.perf_counter() - began)
                tab.context.close()
            print(f"{page_name:10}" + "".join(f"{t:8.2f}" for t in times))
        browser.close()


if __name__ == "__main__":
    main()
