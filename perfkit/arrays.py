"""numpy and lists to Arrow and back, by their buffers.

    from_numpy(values, valid)  from_list(values, type)  dictionary(codes, words, valid)  constant(value, type, n)
    to_numpy(array)            valid_mask(array)        codes_of(dictionary_array)   nulls(type, n)   one_chunk(column)

pyarrow imports pandas at its first conversion of any kind, even for `pa.scalar(1)`: 0.3 s of every process,
which is more than reading a trace of 100 MB. Nothing here does, so that ingest runs without pandas.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bools = npt.NDArray[np.bool_]

_NUMPY: dict[pa.DataType, np.dtype[Any]] = {
    pa.int8(): np.dtype(np.int8),
    pa.int16(): np.dtype(np.int16),
    pa.int32(): np.dtype(np.int32),
    pa.int64(): np.dtype(np.int64),
    pa.uint8(): np.dtype(np.uint8),
    pa.uint16(): np.dtype(np.uint16),
    pa.uint32(): np.dtype(np.uint32),
    pa.uint64(): np.dtype(np.uint64),
    pa.float32(): np.dtype(np.float32),
    pa.float64(): np.dtype(np.float64),
}
_ARROW = {dtype: type_ for type_, dtype in _NUMPY.items()}
SHARED_ROWS = 1 << 16
"""Rows of a column of one value that the chunks of a table share: fresh memory costs more than what is done with it."""


def _bitmap(flags: Bools) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def _validity(valid: Bools | None) -> pa.Buffer | None:
    return None if valid is None or bool(valid.all()) else _bitmap(valid)


def from_numpy(values: npt.NDArray[Any], valid: Bools | None = None) -> pa.Array:
    """Return numbers or truth values as an Arrow array that shares their memory; null where `valid` is False."""
    if values.dtype == np.bool_:
        return pa.Array.from_buffers(pa.bool_(), len(values), [_validity(valid), _bitmap(values)])
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(_ARROW[values.dtype], len(values), [_validity(valid), data])


def to_numpy(array: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return the values of an array of numbers or truth values; what stands under a null is undefined."""
    if isinstance(array, pa.ChunkedArray):
        parts = [to_numpy(chunk) for chunk in array.chunks]
        empty = np.empty(0, np.bool_ if pa.types.is_boolean(array.type) else _NUMPY[array.type])
        return parts[0] if len(parts) == 1 else np.concatenate([empty, *parts])
    data = array.buffers()[1]
    if pa.types.is_boolean(array.type):
        return _bits(data, array.offset, len(array))
    dtype = _NUMPY[array.type]
    if data is None or not len(array):
        return np.zeros(len(array), dtype)
    return np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)


def valid_mask(array: pa.Array | pa.ChunkedArray) -> Bools:
    """Return where an array holds a value."""
    if isinstance(array, pa.ChunkedArray):
        return np.concatenate([np.empty(0, np.bool_), *(valid_mask(chunk) for chunk in array.chunks)])
    bitmap = array.buffers()[0]
    if array.null_count == 0:
        return np.ones(len(array), np.bool_)
    if bitmap is None or array.null_count == len(array):
        return np.zeros(len(array), np.bool_)
    return _bits(bitmap, array.offset, len(array))


def _bits(data: pa.Buffer | None, offset: int, length: int) -> Bools:
    if data is None or not length:
        return np.zeros(length, np.bool_)
    first = offset // 8
    flags = np.unpackbits(np.frombuffer(data, np.uint8)[first:], bitorder="little", count=offset % 8 + length)
    return flags[offset % 8 :].view(np.bool_)


def codes_of(array: pa.DictionaryArray) -> npt.NDArray[np.int32]:
    """Return the codes of a dictionary array; -1 where it is null."""
    codes = to_numpy(array.indices)
    return codes if array.null_count == 0 else np.where(valid_mask(array), codes, codes.dtype.type(-1))


def dictionary(codes: npt.NDArray[np.int32], words: pa.Array, valid: Bools | None = None) -> pa.DictionaryArray:
    """Return text by its codes; those under a null must point into `words` too."""
    return pa.DictionaryArray.from_arrays(from_numpy(codes, valid), words, safe=False)


def nulls(type_: pa.DataType, length: int) -> pa.Array:
    """Return an array without values. Its memory is never touched, so it costs nothing but addresses."""
    if pa.types.is_dictionary(type_):
        words = from_list([], type_.value_type)
        return pa.DictionaryArray.from_arrays(nulls(type_.index_type, length), words, safe=False)
    if type_ not in _NUMPY:
        return pa.nulls(length, type_)
    bitmap, data = np.zeros((length + 7) // 8, np.uint8), np.zeros(length, _NUMPY[type_])
    return pa.Array.from_buffers(type_, length, [pa.py_buffer(bitmap), pa.py_buffer(data)], length)


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; without a copy if it is one already."""
    if column.num_chunks == 1:
        return column.chunk(0)
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    return column.combine_chunks()


def constant(value: int, type_: pa.DataType, length: int) -> pa.Array:
    """Return one integer, repeated; the small ones share their memory."""
    if length > SHARED_ROWS:
        return from_numpy(np.full(length, value, _NUMPY[type_]))
    memory = _shared(value, type_).slice(0, length * type_.byte_width)  # not of an array, which pickles all of it
    return pa.Array.from_buffers(type_, length, [None, memory], 0)


@lru_cache(maxsize=8)
def _shared(value: int, type_: pa.DataType) -> pa.Buffer:
    return pa.py_buffer(np.full(SHARED_ROWS, value, _NUMPY[type_]))


def from_list(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return a list of Python values, or None, as an array of numbers, truth values, text, or lists of these.

    A value that does not fit raises ValueError, TypeError or OverflowError, as numpy does.
    """
    known = np.fromiter((value is not None for value in values), np.bool_, len(values))
    if pa.types.is_list(type_):
        inner = [item for value in values if value is not None for item in value]
        offsets = _offsets([0 if value is None else len(value) for value in values])
        items = from_list(inner, type_.value_type)
        return pa.Array.from_buffers(type_, len(values), [_validity(known), offsets], children=[items])
    if pa.types.is_string(type_):
        encoded = [b"" if value is None else _encoded(value) for value in values]
        buffers = [_validity(known), _offsets([len(value) for value in encoded]), pa.py_buffer(b"".join(encoded))]
        return pa.Array.from_buffers(type_, len(values), buffers)
    if pa.types.is_boolean(type_):
        return from_numpy(np.fromiter((bool(value) for value in values), np.bool_, len(values)), known)
    if type_ not in _NUMPY:
        return pa.array(values, type_)  # rare enough to be worth pandas
    dtype = _NUMPY[type_]
    whole = dtype.kind in "iu"
    if whole and any(isinstance(value, float) and value != int(value) for value in values):
        raise ValueError(f"a fraction does not fit {type_}")
    numbers = np.fromiter((0 if value is None else value for value in values), dtype, len(values))
    return from_numpy(numbers, known)


def _encoded(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"text expected, got {type(value).__name__}")
    return value.encode()


def _offsets(sizes: list[int]) -> pa.Buffer:
    ends = np.cumsum([0, *sizes], dtype=np.int64)
    if ends[-1] > np.iinfo(np.int32).max:
        raise OverflowError("more than 2 GiB of text in one array")
    return pa.py_buffer(ends.astype(np.int32))
