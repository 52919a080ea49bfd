"""Numbers as people write them: `8e9`, `8_000`, `1,984`, `5.7k`, `7B`, `8Ki`, `32s`, `989T`.

    read_number("n_params", "7B") -> 7e9           read_count("seq_len", "8192") -> 8192
    parse_seconds("450ms") -> 0.45                 parse_flops("989T") -> 989e12

A comma groups thousands and nothing else. `k`, `M`, `B` and `T` are powers of 1000, for rates, FLOPs, parameters
and tokens per step only: a sequence of `8k` is 8000 to some and 8192 to others, so other sizes take the written-out
number or `Ki`, `Mi`, which are powers of 1024 everywhere. Not a number, infinite or absurdly large is an error here,
so that nothing behind has to ask.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from perfkit.errors import UsageError

LARGEST = 1e18
"""No count, rate or number of parameters is larger; what is, is a typing error."""

_SI_KEYS = frozenset(
    ("n_params", "active_params", "frozen_params", "tokens_per_second", "tokens_per_second_per_device",
     "tokens_per_step", "flops_per_token")
)  # fmt: skip
_SI = {"k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30}
_SECONDS = {"": "1", "s": "1", "sec": "1", "second": "1", "seconds": "1", "ms": "1e-3", "us": "1e-6", "µs": "1e-6",
            "μs": "1e-6", "ns": "1e-9", "m": "60", "min": "60", "h": "3600"}  # fmt: skip
_FLOPS = {"": "1", "g": "1e9", "t": "1e12", "p": "1e15"}

_NUMBER = re.compile(
    r"\s*(?P<digits>[+-]?(?:\d{1,3}(?:,\d{3})+|[\d_]*)(?:\.\d*)?(?:e[+-]?\d{1,4})?)\s*(?P<unit>[a-zµμ/]*)\s*",
    re.IGNORECASE,
)


def _split(value: Any) -> tuple[Decimal, str] | None:
    """Return the number and what follows it in lower case; None if it is no number."""
    match = None if isinstance(value, bool) else _NUMBER.fullmatch(str(value))
    if match is None or not re.search(r"\d", match["digits"]):
        return None
    return Decimal(match["digits"].replace(",", "").replace("_", "")), match["unit"].lower()


def _read(key: str, value: Any) -> Decimal:
    parts = _split(value)
    if parts is None:
        hint = "a comma groups thousands: write 1.5 or 1,500" if "," in str(value) else "write it like 4096 or 8e9"
        raise UsageError(f"{key} = {value!r} is not a number", next_step=hint)
    number, unit = parts
    if unit in _BINARY:
        number *= _BINARY[unit]
    elif unit in _SI and key in _SI_KEYS:
        number *= _SI[unit]
    elif unit in ("k", "m"):
        raise UsageError(
            f"{key} = {value!r} may mean powers of 1000 or of 1024", next_step="write the number out, or 8Ki"
        )
    elif unit == "tokens" and key.endswith("batch"):
        raise UsageError(f"{key} = {value!r}: a batch is in sequences", next_step="give tokens as tokens_per_step")
    elif unit and not (unit == "tokens" and "token" in key):
        raise UsageError(f"{key} = {value!r} is not a number", next_step=f"leave {unit!r} out")
    if abs(number) >= LARGEST:
        raise UsageError(f"{key} = {value!r} is absurdly large", next_step="check the unit")
    return number


def read_number(key: str, value: Any) -> float:
    """Read a rate or another number that may have a fraction."""
    return float(_read(key, value))


def read_count(key: str, value: Any) -> int:
    """Read a whole number; `8e9` and `8.0` are fine, `8.5` is not."""
    number = _read(key, value)
    if number != int(number):
        raise UsageError(f"{key} = {value!r} is not a whole number")
    return int(number)


def parse_seconds(value: Any) -> float:
    """Read a duration: `32`, `32s`, `450ms`, `1.5 min`."""
    return _with_unit("a duration", value, _SECONDS, "write 32s or 450ms")


def parse_flops(value: Any) -> float:
    """Read FLOP/s: `989e12`, `989T`, `989 TFLOP/s`, `2.25P`."""
    text = re.sub(r"flops?(?:/s)?\s*$", "", str(value), flags=re.IGNORECASE)
    return _with_unit("a peak", text if text.strip() else value, _FLOPS, "write 989e12 or 989T")


def _with_unit(what: str, value: Any, units: dict[str, str], next_step: str) -> float:
    parts = _split(value)
    if parts is None or parts[1] not in units:
        raise UsageError(f"{value!r} is not {what}", next_step=next_step)
    number = parts[0] * Decimal(units[parts[1]])
    if abs(number) >= LARGEST:
        raise UsageError(f"{value!r} is absurdly large for {what}", next_step=next_step)
    return float(number)
