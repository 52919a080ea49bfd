"""Read a copy again and look for every name that was hashed, whole or as a word.

prove(path, redactor) -> strings searched       raises if one of the names is still in it
"""

from __future__ import annotations

import re
from pathlib import Path

from perfkit.errors import PerfkitError
from perfkit.redact.names import FORM_WORDS, KNOWN_KEYS, LIBRARY_NAME, PLAIN, is_known, is_telling
from perfkit.redact.redactor import TOKEN, Redactor
from perfkit.redact.text import parts_of, pieces_of, text_of, words_of
from perfkit.sources.inputs import SliceStream, decompress


def prove(path: Path, redactor: Redactor, *, gzipped: bool) -> int:
    """Read the copy and look for every hashed name, whole or as a word; return how many strings were searched."""
    kept_words = {word for text in redactor.kept | redactor.kept_parts for word in words_of(text)}
    secrets_whole = {name for name in redactor.hashed if name not in redactor.kept}
    secrets_words = {word for name in redactor.hashed for word in _secret_words(name)} - kept_words
    seen: set[bytes] = set()
    with decompress(lambda: SliceStream(path, path=str(path)), "gzip" if gzipped else "none", path=str(path)) as copy:
        for pieces in pieces_of(copy, str(path)):
            seen.update(pieces[1::2])
    strings = {part for entry in seen for part in parts_of(entry)[::2] if part}
    for token in strings:
        text = text_of(token)
        if text in redactor.kept:
            continue
        if text in secrets_whole or not secrets_words.isdisjoint(words_of(text)):
            raise PerfkitError(
                f"the copy still held a name that should have been hashed, and was deleted: {_masked(text)}",
                next_step="please report this as a bug in perfkit.redact",
            )
    return len(strings)


def _secret_words(name: str) -> list[str]:
    """Words of a hashed name that identify someone: not short, and not of a library."""
    return [word for word in words_of(name) if len(word) > 4 and not _is_public(word)]


def _is_public(word: str) -> bool:
    if not any(letter.isalpha() for letter in word):  # no word at all: a short number, or it may be an address
        return re.fullmatch(r"[-_.]*\d{0,7}[-_.]*", word) is not None
    return word in FORM_WORDS or (
        not is_telling(word)
        and (word in KNOWN_KEYS or is_known(word) or bool(PLAIN.fullmatch(word) or LIBRARY_NAME.fullmatch(word)))
    )


def _masked(text: str) -> str:
    """Show the form of a text for a bug report: of what may be secret only the first letter and the length."""

    def mask(match: re.Match[str]) -> str:
        word = match.group()
        return word if _is_public(word) or TOKEN.fullmatch(word) else f"{word[0]}…({len(word)} letters)"

    return repr(re.sub(r"[\w.-]+", mask, text[:200]))
