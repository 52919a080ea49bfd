"""docs/cli.md, made from the parsers: every command, its words, its arguments and its examples.

    python -m perfkit.cli.reference          write docs/cli.md (`make docs`); a test holds the page equal to the code

The page is built from argparse's actions and not from its help text, whose layout differs between versions of Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from perfkit.cli.main import COMMANDS, build_parser

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
HEAD = """# Commands

Generated from the code by `make docs`. Exit codes: 0 fine, 1 a gate tripped (`--fail-on`) or a warning of `health`,
2 bad usage or input, 3 a fault of `health`, 130 interrupted, 143 terminated. With `--format json` standard output is
one JSON document and nothing else; progress goes to standard error, and only on a terminal.
"""


def render_reference() -> str:
    """Return the whole page as Markdown."""
    parsers = _children(build_parser())
    return HEAD + "".join(_section(f"perfkit {name}", parsers[name], level=2) for name in COMMANDS)


def _children(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _section(title: str, parser: argparse.ArgumentParser, level: int) -> str:
    parts = [f"\n{'#' * level} {title}\n", f"\n{_sentence(parser.description)}\n" if parser.description else ""]
    if parser.epilog:
        parts.append(f"\n```text\n{parser.epilog.strip()}\n```\n")
    rows = list(_rows(parser))
    if rows:
        parts.append("\n| argument | |\n|---|---|\n" + "\n".join(rows) + "\n")
    parts += [_section(f"{title} {name}", child, level + 1) for name, child in _children(parser).items()]
    return "".join(parts)


def _sentence(text: str) -> str:
    return text.strip().replace("<", "&lt;")


def _rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction | argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        value = _value(action)
        names = ", ".join(f"{name}{f' {value}' if value else ''}" for name in action.option_strings) or value
        yield f"| `{names}` | {_cell((action.help or '') % _fillings(action))} |"


def _fillings(action: argparse.Action) -> dict[str, object]:
    return {"default": action.default, "prog": "perfkit", "metavar": action.metavar, "dest": action.dest}


def _value(action: argparse.Action) -> str:
    """Return what is to be typed after the option, as argparse would name it."""
    if action.nargs == 0:
        return ""
    if action.choices is not None and action.metavar is None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    name = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
    text = " ".join(name) if isinstance(name, tuple) else name
    if action.nargs == argparse.OPTIONAL and action.option_strings:
        return f"[{text}]"
    return f"{text} …" if action.nargs in ("+", "*", argparse.REMAINDER) and not text.endswith("…") else text


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(render_reference(), encoding="utf-8")
