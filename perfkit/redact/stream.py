"""Copy the JSON text of a trace with its strings redacted, in one pass.

    redact_stream(source, target, redactor) -> bytes read, bytes written, what was hashed how often

Memory grows with the number of distinct strings, not with the size of the trace; a cut trace gives a cut copy.
"""

from __future__ import annotations

from collections import Counter
from typing import BinaryIO

from perfkit.redact.redactor import Redactor
from perfkit.redact.text import Readable, check_gaps, parts_of, pieces_of, text_of


def redact_stream(
    source: Readable, target: BinaryIO, redactor: Redactor, *, path: str = "trace"
) -> tuple[int, int, Counter[str]]:
    """Copy; `path` is for messages."""
    decided: dict[bytes, tuple[bytes, tuple[str, ...]]] = {}
    in_list: dict[tuple[bytes, bytes], tuple[bytes, tuple[str, ...]]] = {}
    new_text: dict[bytes, bytes] = {}  # of the entries with a key: all that the common case looks at
    uses: Counter[bytes] = Counter()
    occurrences: Counter[str] = Counter()
    num_read = num_written = 0
    list_key = b""  # a string in a list is judged by the key of the list
    for pieces in pieces_of(source, path):
        gaps, entries = pieces[0::2], pieces[1::2]
        check_gaps(b" ".join(gaps), path)
        out = [new_text.get(entry) for entry in entries]
        new = [index for index, text in enumerate(out) if text is None]
        redactor.prepare(names_of([entries[index] for index in new]))
        for index in new:
            entry = entries[index]
            if index and out[index - 1] is not None and entries[index - 1] in new_text:
                list_key = entries[index - 1]
            if entry in new_text:
                out[index] = new_text[entry]
                continue
            key, separator, value = parts_of(entry)
            if separator:
                decided[entry] = redactor.entry(key, separator, value)
                new_text[entry] = out[index] = decided[entry][0]
                continue
            if (list_key, entry) not in in_list:
                in_list[list_key, entry] = redactor.entry(parts_of(list_key)[0], b"", key)
            out[index], kinds = in_list[list_key, entry]
            if kinds:
                occurrences.update(kinds)
        if entries and entries[-1] in new_text:
            list_key = entries[-1]
        uses.update(entries)
        num_read += sum(map(len, pieces))
        pieces[1::2] = [text or b"" for text in out]
        text = b"".join(pieces)
        num_written += len(text)
        target.write(text)
    for entry, (_, kinds) in decided.items():
        for kind in kinds:
            occurrences[kind] += uses[entry]
    return num_read, num_written, occurrences


def names_of(entries: list[bytes]) -> list[str]:
    """Return the names of events and kernels among the entries, each once."""
    parts = (parts_of(entry) for entry in dict.fromkeys(entries))
    return [text_of(value) for key, _, value in parts if value and key in (b'"name"', b'"kernel"', b'"kernel_name"')]
