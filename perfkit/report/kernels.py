"""Rows of the kernel table of a report: the kernels of all ranks together.

Sums are over ranks. FLOPs and bytes are known only if they are known for every part of a row: a sum over the known
parts, divided by the time of all, would be a speed that nothing ran at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from perfkit.report.report import Report

_BY = ("name", "family", "op", "phase", "dtype", "input_dims", "bound")


def kernel_rows(report: Report) -> list[dict[str, Any]]:
    """Return one dict per kernel, largest waste first; where it is unknown, all of the time may be."""
    table = report.tables.get("kernels")
    if table is not None and len(table):
        rows = _from_table(table)
    else:
        rows = [{**dict.fromkeys(_BY), **row} for row in report.document["kernels"] or ()]
    for row in rows:
        ns, flops = row["ns"], row["flops"]
        row["tflops"] = flops / ns / 1e3 if flops is not None and ns else None
        row["intensity"] = flops / row["bytes"] if flops is not None and row["bytes"] else None
    rows.sort(key=lambda row: (-(row["ns"] if row["waste_ns"] is None else row["waste_ns"]), -row["ns"], row["name"]))
    return rows


def _from_table(table: pa.Table) -> list[dict[str, Any]]:
    columns = {name: table[name].cast(pa.utf8()) for name in _BY if name in table.column_names}
    columns |= {name: table[name] for name in ("count", "total_ns", "flops", "bytes", "waste_ns")}
    exact = pc.ScalarAggregateOptions(skip_nulls=False)
    grouped = pa.table(columns).group_by([name for name in _BY if name in columns], use_threads=False)
    sums = grouped.aggregate(
        [("count", "sum"), ("total_ns", "sum"), *((name, "sum", exact) for name in ("flops", "bytes", "waste_ns"))]
    )
    names = {"count_sum": "count", "total_ns_sum": "ns", "flops_sum": "flops", "bytes_sum": "bytes"}
    found = sums.rename_columns(names | {"waste_ns_sum": "waste_ns"})
    blank = dict.fromkeys(_BY)
    rows: list[dict[str, Any]] = [{**blank, **row} for row in found.to_pylist()]
    return rows
