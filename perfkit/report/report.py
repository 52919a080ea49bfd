"""The answer of an analysis as one value; renderers turn it into text, JSON and HTML.

    report.summary              the numbers, as the analysis gave them
    report.document             the same with every promised key (docs/analyze.md); unknown is None
    report.waterfall            rows of ladder A, or None
    report.tables["kernels"]    all rows behind it, as Arrow; report.to_pandas("kernels") as a data frame
    report.to_json(), report.to_text(), report.to_html(path)

No clock and no environment is read, so that the same analysis gives the same bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from perfkit.errors import UsageError, cannot_write
from perfkit.report.json_schema import complete

if TYPE_CHECKING:
    from perfkit.analysis.clocks import Clocks


@dataclass(frozen=True)
class Report:
    """`summary` has the shape of `--format json`, `tables` all rows behind it."""

    summary: dict[str, Any]
    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    sources: Mapping[int, str] = field(default_factory=dict)
    """The trace file of each rank; the first one if there are several."""
    clock: Clocks | None = None
    """How the clocks of the ranks differ, where several ranks were compared."""

    @cached_property
    def document(self) -> dict[str, Any]:
        """The summary with every promised key."""
        return complete(self.summary)

    @property
    def waterfall(self) -> list[dict[str, Any]] | None:
        """The rows of ladder A; those with parent None sum to 100 points."""
        rows: list[dict[str, Any]] | None = self.document["waterfall"]
        return rows

    def kernels(self) -> list[dict[str, Any]]:
        """Return the kernels of all ranks together, largest waste first, then largest time."""
        from perfkit.report.kernels import kernel_rows

        return kernel_rows(self)

    def to_pandas(self, table: str) -> Any:
        """Return a table as a pandas data frame; times stay int64 ns, and a missing integer is <NA>, not a float."""
        if table not in self.tables:
            raise UsageError(f"no table {table!r} here", next_step=f"there are {', '.join(self.tables)}")
        import pandas as pd

        whole = {
            pa.int8(): pd.Int8Dtype(), pa.int16(): pd.Int16Dtype(), pa.int32(): pd.Int32Dtype(),
            pa.int64(): pd.Int64Dtype(), pa.uint64(): pd.UInt64Dtype(), pa.bool_(): pd.BooleanDtype(),
        }  # fmt: skip
        rows = self.tables[table]
        missing = {field.type for field, column in zip(rows.schema, rows.columns, strict=True) if column.null_count}
        frame: Any = rows.to_pandas(types_mapper=lambda type_: whole.get(type_) if type_ in missing else None)
        return frame

    def to_json(self) -> str:
        """Return the document of docs/analyze.schema.json; NaN is refused, not written."""
        return json.dumps(self.document, indent=1, allow_nan=False) + "\n"

    def to_text(self, *, width: int = 100, details: bool = False) -> str:
        """Return what a terminal of this width shows, without colours."""
        from perfkit.report.text import to_text

        return to_text(self, width=width, details=details)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return one self-contained page, and write it to `path` if there is one."""
        from perfkit.report.html import to_html

        page = to_html(self)
        if path is not None:
            try:
                Path(path).write_text(page, encoding="utf-8", newline="\n")  # the policy hashes exact bytes
            except OSError as error:
                raise cannot_write(path, error) from None
        return page

    def to_hta(self, **options: Any) -> Any:
        """Return an `hta.trace_analysis.TraceAnalysis` on the same files (`pip install perfkit[hta]`)."""
        try:
            from hta.trace_analysis import TraceAnalysis
        except ImportError:
            raise UsageError("HTA is not installed", next_step="run `pip install 'perfkit[hta]'`") from None
        inside = [path for path in self.sources.values() if "!" in path]
        if inside or not self.sources:
            raise UsageError(
                f"HTA reads plain trace files, and {inside[0] if inside else 'this analysis'} is none",
                next_step="unpack the archive and analyze the folder",
            )
        return TraceAnalysis(trace_files=dict(self.sources), **options)
