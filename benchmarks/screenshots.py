"""Make the pictures of docs/images, and measure how a browser takes a report of 512 ranks.

    pip install playwright      (and Debian's chromium, or PERFKIT_CHROMIUM=/path/to/one)
    python benchmarks/screenshots.py

The traces are simulated, from a fixed seed, and both pictures say so. The terminal's picture is what `perfkit analyze`
writes to a pseudo-terminal, colours and all, drawn in a fixed-width font.
"""

from __future__ import annotations

import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from fcntl import ioctl
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
COLUMNS, LINES = 108, 46
CHROMIUM = os.environ.get("PERFKIT_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", "--no-first-run"]  # fmt: skip
JOB = ["--ranks", "8", "--parallel", "dp=8", "--layers", "16", "--hidden", "4096", "--steps", "6", "--seed", "3",
       "--fault", "data-stall:3:12ms"]  # fmt: skip
TOKENS = 8 * 2048
THEME = TerminalTheme(
    (12, 12, 12), (217, 217, 217),
    [(12, 12, 12), (205, 49, 49), (13, 188, 121), (229, 176, 16), (59, 130, 220), (188, 63, 188), (17, 168, 205),
     (217, 217, 217)],
    [(128, 128, 128), (241, 76, 76), (35, 209, 139), (245, 245, 67), (90, 160, 240), (214, 112, 214), (41, 184, 219),
     (255, 255, 255)],
)  # fmt: skip
"""Colours of a common terminal."""


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        traces, page, spec = Path(folder, "traces"), Path(folder, "report.html"), Path(folder, "model.json")
        subprocess.run([sys.executable, "-m", "perfkit", "simulate", "trace", *JOB, "-o", str(traces)], check=True)
        Path(traces, "truth.json").unlink()  # the answer is no trace
        model = {"name": "simulated-4b", "layers": 16, "hidden": 4096, "heads": 32, "ffn": 16384, "vocab": 32000,
                 "gated": True, "seq_len": 2048}  # fmt: skip
        spec.write_text(json.dumps(model))
        command = ["analyze", str(traces), "--model", str(spec), "--tokens-per-step", str(TOKENS)]
        subprocess.run([sys.executable, "-m", "perfkit", *command, "--format", "html", "-o", str(page)], check=True)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        shoot_report(browser, page, IMAGES / "report.png")
        prompt = f"$ perfkit analyze traces/ --model model.json --tokens-per-step {TOKENS}\r\n"
        shoot_terminal(browser, prompt + run_in_terminal(command), IMAGES / "terminal.png")
        shoot_dashboard(browser, Path(folder), traces)
        measure_large(browser, Path(folder, "large.html"))
        browser.close()


def shoot_report(browser: Browser, path: Path, picture: Path) -> None:
    page = browser.new_page(viewport={"width": 1180, "height": 2000}, color_scheme="light")
    page.goto(path.as_uri())
    page.screenshot(path=picture)
    page.close()


def shoot_dashboard(browser: Browser, folder: Path, traces: Path) -> None:
    """Take the pages of a simulated fleet and of the simulated job, at 1440 x 900."""
    perfkit = [sys.executable, "-m", "perfkit"]
    fleet, runs = folder / "fleet", folder / "runs"
    fleet_of = ["--clusters", "3", "--days", "90", "--runs", "200", "--seed", "1"]
    subprocess.run([*perfkit, "simulate", "fleet", *fleet_of, "-o", str(fleet)], check=True)
    subprocess.run([*perfkit, "ingest", str(traces), "--store", str(runs), "--run", "job"], check=True)
    with open(os.devnull, "w") as quiet:  # noqa: PTH123
        subprocess.run([*perfkit, "analyze", "job", "--store", str(runs)], check=True, stdout=quiet)
    for store, name, place in (
        (fleet, "dashboard", ""),
        (runs, "dashboard-timeline", "timeline?cluster=default&run=job"),
        (runs, "dashboard-collectives", "collectives?cluster=default&run=job"),
    ):
        command = [*perfkit, "dashboard", "--store", str(store), "--port", "0"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            line = next(line for line in server.stderr if "http://" in line)
            page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme="light")
            page.goto(line.split("http://")[1].split()[0].join(("http://", place)))
            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(3000)
            page.screenshot(path=IMAGES / f"{name}.png")
            page.close()
        finally:
            server.terminate()
            server.wait()


def run_in_terminal(command: list[str]) -> str:
    """Return what the command writes to a terminal of COLUMNS x LINES."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(name, None)
    arguments = [sys.executable, "-m", "perfkit", *command]
    child = subprocess.Popen(arguments, stdin=slave, stdout=slave, stderr=subprocess.DEVNULL, env=environment)
    os.close(slave)
    chunks = []
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # Linux says so when the last writer has gone
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(master)
    if child.wait():
        raise SystemExit(f"perfkit {' '.join(command)} failed with {child.returncode}")
    return b"".join(chunks).decode()


def shoot_terminal(browser: Browser, output: str, picture: Path) -> None:
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    console.print(Text.from_ansi(output.replace("\r\n", "\n")), soft_wrap=True)
    style = "margin:0;padding:20px 24px;font:15px/1.28 'DejaVu Sans Mono',monospace;display:inline-block"
    html = console.export_html(
        theme=THEME, inline_styles=True,
        code_format=f"<body style='margin:0;background:#0c0c0c'><pre style=\"{style}\">{{code}}</pre></body>",
    )  # fmt: skip
    page = browser.new_page(viewport={"width": 1100, "height": 400}, color_scheme="dark")
    page.set_content(
        html.replace("<pre ", "<meta charset=utf-8><pre ").replace("inline-block", "inline-block;color:#d9d9d9")
    )
    page.locator("pre").screenshot(path=picture)
    page.close()


def measure_large(browser: Browser, path: Path) -> None:
    """Say how large a report of 512 ranks is, and how long it takes to open from disk and be drawn."""
    sys.path.insert(0, str(ROOT))
    from tests.report.documents import report

    started = time.perf_counter()
    size = len(report(ranks=512, steps=20, kernels=600).to_html(path).encode())
    made = time.perf_counter() - started
    times = []
    for _ in range(5):
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        started = time.perf_counter()
        page.goto(path.as_uri())
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        times.append(time.perf_counter() - started)
        page.close()
    print(f"512 ranks, 20 steps, 600 kernels: {size / 1e6:.2f} MB, made in {made:.2f} s")
    print(f"opened and drawn in {min(times):.2f} to {max(times):.2f} s (5 runs)")


if __name__ == "__main__":
    main()
