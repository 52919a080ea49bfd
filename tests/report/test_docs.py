from __future__ import annotations

import re
from pathlib import Path

from perfkit.report.gate import SHORT, parse
from perfkit.report.json_schema import SCHEMA

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "analyze.md").read_text()


def test_every_key_and_every_short_name_is_on_the_page() -> None:
    rows = "\n".join(line for line in PAGE.splitlines() if line.startswith("| `"))
    for name in (*SCHEMA["properties"], *SHORT):
        assert f"`{name}`" in rows, name


def test_every_expression_on_the_page_is_valid() -> None:
    shown = re.findall(r"--fail-on '([^']+)'", PAGE)
    assert shown
    for expression in shown:
        parse(expression)


def test_pictures_and_files_that_the_page_links_are_there() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", PAGE):
        assert (ROOT / "docs" / target).is_file(), target
