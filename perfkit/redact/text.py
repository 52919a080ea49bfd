"""JSON text cut into its strings: the layer that keeps ns digits, 64-bit integers and layout as they are.

    pieces_of(source) -> lists of (text between, entry, text between, …)    an entry is a key with its string
    parts_of(entry)   -> key, separator, string

What stands between the strings is checked to be JSON, so that nothing can hide there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Protocol

from perfkit.errors import CorruptInput

CHUNK_BYTES = 4 << 20
MAX_STRING_BYTES = 64 << 20


_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_UNFINISHED = rb'"[^"\\]*(?:\\.[^"\\]*)*\\?\Z'
_ENTRY = re.compile(rb"(" + _STRING + rb"(?:\s*:\s*(?:" + _STRING + rb")?)?|" + _UNFINISHED + rb")", re.DOTALL)
"""A key with its string, a key alone, a string in a list, or one that the text ends in: without that the search would
go on inside of it, once for every `\\"`."""
_PARTS = re.compile(rb"(" + _STRING + rb")(?:(\s*:\s*)(" + _STRING + rb")?)?", re.DOTALL)
_GAP_DROPPED = b" \t\r\n0123456789+-.eE,:[]{}"
_GAP_WORDS = re.compile(rb"(?:tru|fals|null|NaN|nan|Infinity|infinity|inf)*")


NOT_TEXT = "\0"
"""At the end of what is not UTF-8 or no JSON string: never equal to a known string, and always hashed whole."""


def text_of(token: bytes) -> str:
    """Return what a JSON string says; what is none, or not UTF-8, ends with NOT_TEXT."""
    if b"\\" not in token:
        try:
            return token[1:-1].decode()
        except UnicodeDecodeError:
            return token[1:-1].decode("utf-8", "backslashreplace") + NOT_TEXT
    try:
        return str(json.loads(token.decode("utf-8", "backslashreplace"), strict=False))
    except ValueError:
        return token.decode("utf-8", "backslashreplace") + NOT_TEXT


class Readable(Protocol):
    """Something to read bytes from."""

    def read(self, size: int, /) -> bytes | None:
        """Return at most `size` bytes, none at the end."""


def pieces_of(source: Readable, path: str) -> Iterator[list[bytes]]:
    """Cut the text into lists of (text between, entry, text between, entry, …, text between).

    An entry at the end of a block waits for the next one: its colon or value may be there. The unfinished
    string at the end of a cut source is left out.
    """
    held = b""
    while block := source.read(CHUNK_BYTES):
        pieces = _ENTRY.split(held + block)
        num_held = 4 if _is_unfinished(pieces) else 2  # with the key before it
        held = b"".join(pieces[-num_held:])
        if len(held) > MAX_STRING_BYTES:
            raise CorruptInput(f"{MAX_STRING_BYTES:,} bytes without a string", path=path, next_step="is it a trace?")
        yield [*pieces[:-num_held], b""][: max(1, len(pieces) - num_held)]
    pieces = _ENTRY.split(held)
    yield pieces[:-2] if _is_unfinished(pieces) else pieces


def _is_unfinished(pieces: list[bytes]) -> bool:
    return len(pieces) > 1 and _PARTS.fullmatch(pieces[-2]) is None


def check_gaps(gaps: bytes, path: str) -> None:
    """Refuse text between strings that is not JSON: an unquoted word would be copied unseen."""
    rest = gaps.translate(None, _GAP_DROPPED)
    if rest and not _GAP_WORDS.fullmatch(rest):
        raise CorruptInput(
            f"not JSON: {rest[:20]!r} outside of a string", path=path, next_step="export the trace again"
        )


def parts_of(entry: bytes) -> tuple[bytes, bytes, bytes | None]:
    """Split an entry into its key, the separator and the string; a string in a list is all key."""
    match = _PARTS.fullmatch(entry)
    return (match[1], match[2] or b"", match[3]) if match else (b'""', b"", None)


def words_of(text: str) -> list[str]:
    """Cut a text where no name goes on."""
    return re.findall(r"[\w.-]+", text)
