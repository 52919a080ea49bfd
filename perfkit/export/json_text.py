"""Columns of Arrow tables as JSON text, a million rows at a time and no Python loop over them.

    member("stream", column)   -> `, "stream": 7` per row, empty where the value is null
    texts(column)              -> the value as JSON text per row, null where it is null
    micros(ns)                 -> `1234.567`, exact

Text that repeats is a dictionary in perfkit's tables: each distinct value is quoted once.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.arrays import one_chunk

Column: TypeAlias = "pa.Array | pa.ChunkedArray"


def join(*parts: Column | str) -> pa.Array:
    """Concatenate texts row by row; null counts as empty."""
    joined = pc.binary_join_element_wise(*parts, "", null_handling="replace", null_replacement="")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def member(key: str, column: Column, *, raw: bool = False) -> pa.Array:
    """Return `, "key": value` of every row."""
    value = texts(column, raw=raw)
    prefix = f", {json.dumps(key)}: "
    return pc.if_else(pc.is_valid(value), join(prefix, value), "")


def texts(column: Column, *, raw: bool = False) -> pa.Array:
    """Return values as JSON; `raw` text is JSON already, and is quoted where it is not."""
    array = one_chunk(column) if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_string(array.type):
        array = pc.dictionary_encode(array)
    if pa.types.is_dictionary(array.type):
        words = [_value(word, raw=raw) for word in array.dictionary.to_pylist()]
        return pa.array(words, pa.utf8()).take(array.indices)
    if pa.types.is_floating(array.type):
        array = pc.if_else(pc.is_finite(array), array, pa.scalar(None, array.type))
    return array.cast(pa.utf8())


def micros(ns: npt.NDArray[np.int64]) -> pa.Array:
    """Return nanoseconds as microseconds with three decimals."""
    size = np.abs(ns)
    fraction = pc.utf8_lpad(pa.array(size % 1000).cast(pa.utf8()), 3, "0")
    sign = pc.if_else(pa.array(ns < 0), "-", "")
    return join(sign, pa.array(size // 1000).cast(pa.utf8()), ".", fraction)


def inside_braces(column: Column) -> pa.Array:
    """Return the members of JSON objects, each preceded by a comma: `{"a": 1}` becomes `, "a": 1`."""
    array = one_chunk(column) if isinstance(column, pa.ChunkedArray) else column
    array = array if pa.types.is_dictionary(array.type) else pc.dictionary_encode(array)
    words = [_members(word) for word in array.dictionary.to_pylist()]
    return pc.fill_null(pa.array(words, pa.utf8()).take(array.indices), "")


def _members(text: str | None) -> str:
    found = _parsed(text)
    return f", {json.dumps(found)[1:-1]}" if isinstance(found, dict) and found else ""


def _value(word: str | None, *, raw: bool) -> str | None:
    if word is None:
        return None
    found = _parsed(word) if raw else None
    return json.dumps(word if found is None else found)


def _parsed(text: str | None) -> Any:
    """Return what JSON text holds; None if it holds none, or numbers that JSON does not know."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        return None if text is None else json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        return None
