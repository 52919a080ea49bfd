"""One operator call as a profiler records it: shapes, dtypes and scalar arguments.

    parse_call(name, dims, types, concrete) -> OpCall

The three texts are the JSON columns of the `ops` table. `Cost` is what the op families return: null is
unknown and stays unknown, because a roofline that takes unknown for zero blames the wrong kernel.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

_BYTES = {
    "double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
    "c10::Float8_e4m3fnuz": 1, "c10::Float8_e5m2fnuz": 1, "c10::Float8_e8m0fnu": 1, "c10::Float4_e2m1fn_x2": 1,
    "long int": 8, "long": 8, "int": 4, "short": 2, "short int": 2, "signed char": 1, "unsigned char": 1, "bool": 1,
    "char": 1, "c10::complex<float>": 8, "c10::complex<double>": 16,
}  # fmt: skip
"""By the C++ name of a tensor's element; scalar arguments are capitalised (`Int`, `Scalar`) and are not here."""
_DTYPE = {
    "double": "fp64", "float": "fp32", "c10::Half": "fp16", "c10::BFloat16": "bf16", "signed char": "int8",
    "c10::Float4_e2m1fn_x2": "fp4",
}  # fmt: skip
_SCALAR_TYPE_BYTES = {0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 7: 8, 11: 1, 15: 2, 23: 1, 24: 1}
"""Sizes by PyTorch's ScalarType number, which is how an `out_dtype` argument is recorded."""


class Cost(NamedTuple):
    """FLOPs executed and bytes that must move at least; null is unknown."""

    flops: float | None
    bytes: float | None
    kind: str
    """gemm, attention, conv, norm, reduction, elementwise, embedding, copy, view, unknown."""
    dtype: str | None = None
    """Number format of the arithmetic, as the peak registry spells it."""


UNKNOWN = Cost(None, None, "unknown")

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpCall:
    """Arguments by position. A tensor has a shape; a tensor list nests one level deeper and is not a tensor here."""

    name: str
    dims: list[Any]
    types: list[str]
    concrete: list[str]

    def shape(self, index: int) -> Shape | None:
        """Shape of a tensor argument, None if it is absent, a scalar or a list of tensors."""
        if index >= len(self.dims) or not self.is_tensor(index):
            return None
        value = self.dims[index]
        if not isinstance(value, list) or any(not isinstance(n, int) or n < 0 for n in value):
            return None
        return tuple(value)

    def is_tensor(self, index: int) -> bool:
        """Whether the argument has a dtype, that is, is a tensor that was given."""
        if index >= len(self.types):
            return bool(index < len(self.dims) and self.dims[index])
        return self.types[index] in _BYTES and not self.value(index)

    def value(self, index: int) -> str:
        """Scalar argument as text; empty if it is a tensor, absent or not recorded."""
        return self.concrete[index] if index < len(self.concrete) else ""

    def flag(self, index: int) -> bool | None:
        """Bool argument; None if it was not recorded."""
        return {"true": True, "1": True, "false": False, "0": False}.get(self.value(index).lower())

    def integer(self, index: int) -> int | None:
        """Integer argument; None if it was not recorded."""
        try:
            return int(self.value(index))
        except ValueError:
            return None

    def integers(self, index: int) -> list[int] | None:
        """List of integers; None if it was not recorded."""
        try:
            value = json.loads(self.value(index))
        except json.JSONDecodeError:
            return None
        return value if isinstance(value, list) and all(isinstance(n, int) for n in value) else None

    def flags(self, index: int) -> list[bool] | None:
        """List of bools (an output mask); None if it was not recorded."""
        text = self.value(index).strip("[] ")
        parts = [part.strip().lower() for part in text.split(",")] if text else []
        return [part == "true" for part in parts] if parts and set(parts) <= {"true", "false"} else None

    def itemsize(self, index: int) -> int | None:
        """Bytes of an element of a tensor argument."""
        return _BYTES.get(self.types[index]) if index < len(self.types) else None

    def dtype(self, index: int) -> str | None:
        """Return the number format of a tensor argument as the peak registry spells it."""
        text = self.types[index] if index < len(self.types) else ""
        return "fp8" if "Float8" in text else _DTYPE.get(text)

    def tensor_bytes(self, index: int) -> float | None:
        """Size of a tensor argument; 0 if there is none."""
        shape = self.shape(index)
        if shape is None:
            listed = index < len(self.dims) and bool(self.dims[index])
            return None if listed and not self.value(index) else 0.0
        size = self.itemsize(index)
        return None if size is None else float(prod(shape)) * size

    def input_bytes(self) -> float | None:
        """Size of all tensor arguments; None if one of them has a size that is not known."""
        sizes = [self.tensor_bytes(i) for i in range(len(self.dims))]
        return None if any(size is None for size in sizes) else sum(size for size in sizes if size is not None)


def scalar_type_bytes(number: int | None) -> int | None:
    """Size of a dtype given by PyTorch's ScalarType number."""
    return None if number is None else _SCALAR_TYPE_BYTES.get(number)


def parse_call(name: str, dims: str | None, types: str | None, concrete: str | None) -> OpCall | None:
    """Parse the JSON columns; None if there are no shapes or the JSON is broken."""
    try:
        shapes = json.loads(dims) if dims else None
        kinds = json.loads(types) if types else []
        values = json.loads(concrete) if concrete else []
    except json.JSONDecodeError:
        return None
    if not isinstance(shapes, list) or not isinstance(kinds, list) or not isinstance(values, list):
        return None
    return OpCall(name, shapes, [str(k) for k in kinds], ["" if v is None else str(v) for v in values])
