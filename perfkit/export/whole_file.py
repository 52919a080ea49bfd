"""Write a file so that nobody ever reads half of it.

    with whole_file(path) as file:      a binary file beside it, renamed to `path` at the end

If the writing fails, what was at `path` stays, and nothing is left beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from perfkit.errors import cannot_write


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that appears complete or not at all; one that cannot be written is a `PerfkitError`."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        with suppress(OSError):
            temporary.unlink()
