"""The drawings of docs/definitions.md, as SVG that follows the reader's theme.

python docs/images/make_drawings.py
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent
COLOURS = {
    "compute": "#4477aa",
    "comm": "#ee8866",
    "wait": "#f5c9b5",
    "copy": "#aaaa00",
    "idle": "none",
    "host": "#999999",
}
STYLE = """<style>text{font:13px system-ui,sans-serif;fill:#222}.s{font-size:11px;fill:#666}.l{stroke:#888}
@media(prefers-color-scheme:dark){text{fill:#ddd}.s{fill:#aaa}}</style>"""


def bar(x: float, y: float, width: float, kind: str, label: str = "", height: float = 22) -> str:
    """One interval; idle is drawn as a dashed outline, since nothing is there."""
    outline = ' stroke="#888" stroke-dasharray="4 3"' if kind == "idle" else ""
    ink = {"compute": ' style="fill:#fff"', "idle": ""}.get(kind, ' style="fill:#222"')
    text = f'<text x="{x + width / 2}" y="{y + 15}" text-anchor="middle"{ink}>{label}</text>'
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="2" fill="{COLOURS[kind]}"{outline}/>{text}'


def word(x: float, y: float, text: str, small: bool = False, anchor: str = "start") -> str:
    """Write a label."""
    size = ' class="s"' if small else ""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{size}>{text}</text>'


def line(x: float, y1: float, y2: float) -> str:
    """Mark a moment in time."""
    return f'<line class="l" x1="{x}" x2="{x}" y1="{y1}" y2="{y2}" stroke-dasharray="3 3"/>'


def save(name: str, height: int, *parts: str, width: int = 720, title: str) -> None:
    """Write one drawing."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">'
    (HERE / name).write_text(f"{head}<title>{title}</title>{STYLE}{''.join(parts)}</svg>\n", encoding="utf-8")


def partition() -> None:
    """Definition 2."""
    save(
        "partition.svg",
        200,
        word(10, 35, "stream 7"),
        bar(110, 20, 170, "compute", "gemm"),
        bar(330, 20, 150, "compute", "gemm"),
        word(10, 71, "stream 20"),
        bar(220, 56, 190, "comm", "all_reduce"),
        word(10, 107, "stream 24"),
        bar(460, 92, 90, "copy", "copy"),
        *(line(x, 15, 175) for x in (110, 280, 330, 480, 550, 620)),
        word(10, 159, "one owner"),
        bar(110, 144, 170, "compute", "compute"),
        bar(280, 144, 50, "comm", "exp."),
        bar(330, 144, 150, "compute", "compute"),
        bar(480, 144, 70, "copy", "exposed"),
        bar(550, 144, 70, "idle", "idle"),
        word(110, 192, "communication behind compute is overlap, not a loss; the parts sum to the window", True),
        title="Three streams of a device and the partition of their step",
    )


def window() -> None:
    """Definition 1."""
    save(
        "window.svg",
        170,
        word(10, 35, "host"),
        bar(110, 20, 230, "host", "ProfilerStep#4"),
        bar(350, 20, 230, "host", "ProfilerStep#5"),
        word(10, 85, "device"),
        bar(110, 70, 50, "compute", "#3"),
        bar(180, 70, 210, "compute", "#4"),
        bar(410, 70, 190, "compute", "#5"),
        line(180, 15, 130),
        line(410, 15, 130),
        line(600, 15, 130),
        word(295, 122, "window of step 4", anchor="middle"),
        word(505, 122, "window of step 5", anchor="middle"),
        word(110, 122, "carry-in"),
        word(
            10,
            155,
            "a window begins with the first compute kernel launched inside its step, and ends where the next begins",
            True,
        ),
        title="Step windows on the device begin later than the steps of the host",
    )


def idle() -> None:
    """Definitions 5 and 6."""
    save(
        "idle.svg",
        170,
        word(10, 35, "host"),
        bar(190, 20, 150, "host", "DataLoader"),
        bar(345, 20, 45, "host", "launch"),
        word(10, 85, "device"),
        bar(110, 70, 70, "compute", "kernel"),
        bar(180, 70, 165, "idle", "host late"),
        bar(345, 70, 55, "idle", "launch"),
        bar(400, 70, 120, "compute", "kernel"),
        line(180, 15, 110),
        line(345, 15, 110),
        line(400, 15, 110),
        word(180, 128, "e", anchor="middle"),
        word(345, 128, "l", anchor="middle"),
        word(400, 128, "s", anchor="middle"),
        word(
            10,
            155,
            "until the launch the host is late: what it did instead is the culprit; then latency, or a stream wait",
            True,
        ),
        title="A gap of the device, split at the moment when the next kernel's launch begins",
    )


def wait_transfer() -> None:
    """Definition 9."""
    save(
        "wait-transfer.svg",
        190,
        word(10, 35, "rank 0"),
        bar(110, 20, 90, "compute", ""),
        bar(200, 20, 160, "wait", "wait"),
        bar(360, 20, 130, "comm", "transfer"),
        word(10, 71, "rank 1"),
        bar(110, 56, 120, "compute", ""),
        bar(230, 56, 130, "wait", "wait"),
        bar(360, 56, 130, "comm", "transfer"),
        word(10, 107, "rank 2"),
        bar(110, 92, 250, "compute", "slow kernels"),
        bar(360, 92, 130, "comm", "transfer"),
        line(360, 15, 140),
        line(490, 15, 140),
        word(360, 155, "A: the last arrives", anchor="middle"),
        word(110, 180, "bandwidth is over the transfer; the waits of 0 and 1 are charged to 2, once", True),
        title="A collective on three ranks: wait until the last arrives, then transfer",
    )


def waterfall() -> None:
    """Definition 15."""
    terms = [
        ("MFU", 38, "compute"),
        ("matmul below peak", 17, "compute"),
        ("other than matmul", 12, "compute"),
        ("exposed transfer", 9, "comm"),
        ("exposed wait", 11, "wait"),
        ("exposed copies", 2, "copy"),
        ("idle, by cause", 11, "idle"),
    ]
    parts, x = [], 170.0
    for index, (name, points, kind) in enumerate(terms):
        y = 12 + 26 * index
        parts += [
            word(10, y + 15, name),
            bar(x, y, points * 4.6, kind, "", 20),
            word(x + points * 4.6 + 6, y + 15, str(points), True),
        ]
        x += points * 4.6
    save(
        "waterfall.svg",
        225,
        *parts,
        word(170, 215, "every nanosecond of every rank is in one term; they sum to 100", True),
        title="A waterfall from MFU to 100 points of peak",
    )


if __name__ == "__main__":
    for draw in (partition, window, idle, wait_transfer, waterfall):
        draw()
