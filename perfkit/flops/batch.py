"""The calculator over the rows of a CSV file.

    compute_rows(rows, defaults) -> list of results, one per row, in order

Columns have the names of the flags (`model, seq_len, hardware, dtype, tokens_per_second_per_device, …`,
and any spec key); an empty cell is not given. A column that is neither starts with `_` or is named
`label`, `note` or `id`, and is passed through: a misspelt column is an error, not a lost input. A row
that cannot be computed has its error in its result and does not stop the others.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfkit.errors import CorruptInput, InputError, PerfkitError, UsageError
from perfkit.flops.calculator import MfuResult, compute_mfu
from perfkit.flops.inputs import arguments_from

PASSED_THROUGH = ("label", "note", "id")

EXTRA = "_extra"
"""Holds the cells of a row that are beyond its header."""


@dataclass(frozen=True, slots=True)
class RowResult:
    """One row's outcome: a result or an error."""

    row: int
    """Number of the row, the first data row is 1."""
    labels: dict[str, str]
    result: MfuResult | None
    error: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the result's document with row, labels and error."""
        document = {"row": self.row, **self.labels, "error": self.error}
        return document | (self.result.to_json() if self.result is not None else {"mfu": None})


def compute_rows(rows: Iterable[Mapping[str, Any]], defaults: Mapping[str, Any] | None = None) -> list[RowResult]:
    """Compute every row; `defaults` fill what a row leaves empty."""
    results = []
    for number, row in enumerate(rows, 1):
        labels = {key: str(value or "") for key, value in row.items() if _is_label(key) and key != EXTRA}
        cells = {key: value for key, value in row.items() if not _is_label(key) and value not in (None, "")}
        merged = {**(defaults or {}), **cells}
        try:
            if EXTRA in row:
                raise UsageError(f"more cells than columns: {row[EXTRA]}", next_step="quote cells that have commas")
            results.append(RowResult(number, labels, compute_mfu(**arguments_from(merged)), None))
        except PerfkitError as error:
            results.append(RowResult(number, labels, None, str(error)))
    return results


def _is_label(key: str) -> bool:
    return key.startswith("_") or key.strip().lower() in PASSED_THROUGH


def read_rows(path: str | Path) -> list[dict[str, str]]:
    """Read a CSV file with a header."""
    file = Path(path)
    try:
        with file.open(newline="", encoding="utf-8-sig") as handle:
            reader = csv.DictReader(handle, restkey=EXTRA)
            header, rows = reader.fieldnames, list(reader)
    except FileNotFoundError:
        raise InputError("no such file", path=str(file), next_step="give a CSV file with a header") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=str(file)) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise CorruptInput(f"not a CSV file: {error}", path=str(file)) from None
    if header is None:
        raise CorruptInput("the file is empty", path=str(file), next_step="its first line names the columns")
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise CorruptInput(f"columns {twice} are there twice", path=str(file), next_step="keep one of each")
    if not rows:
        raise CorruptInput("the file has a header and no rows", path=str(file), next_step="add a row for each run")
    return rows
