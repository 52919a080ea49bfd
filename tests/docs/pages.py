"""Run a page of the documentation: what a reader would type, in order, in an empty folder with the sample traces.

    bash      run with `bash -euo pipefail`; every command must succeed
    python    run in one namespace per page
    sql       run by DuckDB
    anything else is output, a file or a drawing, and is not run

`<!-- run: COMMAND -->` (or `run python:`) before a block prepares what the reader already has: traces, a store, a
model. A block that nothing here can run has `<!-- not run: REASON -->` above it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNNABLE = ("bash", "python", "sql")
_PIECE = re.compile(
    r"^<!-- run(?P<python> python)?: (?P<setup>.*?)\s-->$"
    r"|(?:^<!-- not run: (?P<reason>.*?) -->\n)?^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A piece of a page that can be run, or the reason why it is not."""

    language: str
    code: str
    line: int
    reason: str | None = None


def pages() -> list[Path]:
    """Return README and every page of docs/."""
    return [ROOT / "README.md", ROOT / "sample_traces/README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page in order, hidden preparations included."""
    text, found = page.read_text("utf-8"), []
    for match in _PIECE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["setup"] is not None:
            found.append(Block("python" if match["python"] else "bash", match["setup"], line))
        elif match["language"] in RUNNABLE:
            found.append(Block(match["language"], match["code"], line, match["reason"]))
    return found


def run_page(page: Path) -> None:
    """Run a page's blocks in the current folder; stop at the first that fails."""
    names: dict[str, object] = {"__name__": "__page__"}
    for block in blocks_of(page):
        if block.reason is not None:
            continue
        print(f"{page.name}:{block.line}", flush=True)
        where = f"{page.name}, line {block.line}"
        if block.language == "bash":
            code = subprocess.run(["bash", "-euo", "pipefail", "-c", block.code], stdin=subprocess.DEVNULL).returncode
            if code:
                sys.exit(f"{where}: exit code {code}\n{block.code}")
        elif block.language == "python":
            exec(compile("\n" * block.line + block.code, where, "exec"), names)
        else:
            import duckdb

            duckdb.sql(block.code)


if __name__ == "__main__":
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run_page(Path(sys.argv[1]))
