"""Slurm's host lists: `node[0201-0204,0300],gpu7` -> names. Sizes are bounded: a list may come from anywhere."""

from __future__ import annotations

import itertools
import re

MAX_NODES = 100_000
_RANGE = re.compile(r"(\d+)(?:-(\d+))?$")


def expand_hostlist(text: str | None) -> list[str] | None:
    """Return the names, or null if the text is no host list (or names absurdly many)."""
    if text is None or text in ("", "None assigned", "(null)", "None", "N/A", "n/a"):
        return None
    if "[" not in text:
        return text.split(",")
    names: list[str] = []
    for part in _split(text):
        found = _expand(part)
        if found is None or len(names) + len(found) > MAX_NODES:
            return None
        names += found
    return names


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth, begin = [], 0, 0
    for i, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            parts.append(text[begin:i])
            begin = i + 1
    return [*parts, text[begin:]]


def _expand(part: str) -> list[str] | None:
    pieces: list[list[str]] = []
    size = 1
    for i, piece in enumerate(re.split(r"[\[\]]", part)):
        if i % 2 == 0:
            pieces.append([piece])
            continue
        values: list[str] = []
        for item in piece.split(","):
            match = _RANGE.match(item)
            if not match:
                return None
            low, high = int(match[1]), int(match[2] or match[1])
            if not 0 <= high - low < MAX_NODES:
                return None
            values += [f"{n:0{len(match[1])}d}" for n in range(low, high + 1)]
        size *= len(values)
        if size > MAX_NODES:
            return None
        pieces.append(values)
    return ["".join(parts) for parts in itertools.product(*pieces)]
