"""Lists of ranks as people write them: `5`, `0,4-7`.

    rank_ranges("0,4-7") -> [range(0, 1), range(4, 8)]       in the order in which they are written

Ranges and not numbers, so that a long one costs nothing until somebody counts it out. A list that names no rank, or a
range that runs backwards, is an error: whoever wrote it meant something else than nothing.
"""

from __future__ import annotations

import re

from perfkit.errors import UsageError

_RANGE = re.compile(r"\s*([0-9]{1,6})\s*(?:-\s*([0-9]{1,6})\s*)?")  # no job has a rank with more digits


def rank_ranges(text: str, *, option: str = "--ranks", form: str = "0,4-7") -> list[range]:
    """Read a list of ranks; an error names the `option` that holds it, and its `form`."""
    ranges = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise UsageError(f"{option} {text!r} is no list of ranks", next_step=f"write it like {form}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UsageError(
                f"{option} {text!r}: {first}-{last} runs backwards", next_step=f"write it like {last}-{first}"
            )
        ranges.append(range(first, last + 1))
    return ranges
