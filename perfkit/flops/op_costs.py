"""FLOPs and bytes of operators from their shapes, for the roofline.

    op_cost(name, input_dims, input_types, concrete_inputs) -> Cost
    op_costs(table) -> table with flops, bytes, kind, dtype; one row per row of `table`
    op_kind(name) -> what an op does as far as its name tells, whether or not its shapes were recorded

`table` has a column `name` and the JSON columns of the `ops` table. Work is done once per distinct
(name, shapes, types, values), not once per event. An op that is not known has null FLOPs and bytes and
the kind `unknown`: its time is unknown time, not waste. Wrapper ops (`aten::linear` around `aten::addmm`)
have a cost of their own; whoever sums must take the op that launched the kernel.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from functools import cache
from importlib import resources
from math import prod

import pyarrow as pa
import pyarrow.compute as pc

from perfkit.flops.op_attention import ATTENTION
from perfkit.flops.op_call import UNKNOWN, Cost, OpCall, parse_call
from perfkit.flops.op_dense import CONVOLUTIONS, GEMMS, broadcast_shapes

FLOPS_PER_ELEMENT = {"elementwise": 1.0, "reduction": 1.0, "norm": 8.0}
"""Nominal: these ops are bound by memory, and their time is judged by bytes."""


def _elementwise(call: OpCall) -> Cost:
    shapes = [shape for i in range(len(call.dims)) if (shape := call.shape(i)) is not None]
    out, read, size = broadcast_shapes(shapes), call.input_bytes(), call.itemsize(0)
    if not shapes or out is None or read is None or size is None:
        return UNKNOWN
    return Cost(FLOPS_PER_ELEMENT["elementwise"] * prod(out), read + prod(out) * size, "elementwise", call.dtype(0))


def _norm(call: OpCall) -> Cost:
    shape, read, size = call.shape(0), call.input_bytes(), call.itemsize(0)
    if shape is None or read is None or size is None:
        return UNKNOWN
    return Cost(FLOPS_PER_ELEMENT["norm"] * prod(shape), read + prod(shape) * size, "norm", call.dtype(0))


def _reduction(call: OpCall) -> Cost:
    shape, read = call.shape(0), call.tensor_bytes(0)
    if shape is None or read is None:
        return UNKNOWN
    return Cost(FLOPS_PER_ELEMENT["reduction"] * prod(shape), read, "reduction", call.dtype(0))


def _copy(call: OpCall) -> Cost:
    """`copy_(to, from)` lists both; the others read one tensor and write as much."""
    to, source = call.tensor_bytes(0), call.tensor_bytes(1)
    if call.shape(0) is None or to is None:
        return UNKNOWN
    other = source if call.shape(1) is not None else to
    return UNKNOWN if other is None else Cost(0.0, to + other, "copy")


def _fill(call: OpCall) -> Cost:
    size = call.tensor_bytes(0)
    return UNKNOWN if size is None or call.shape(0) is None else Cost(0.0, size, "copy")


def _embedding(call: OpCall) -> Cost:
    table, indices, size = call.shape(0), call.shape(1), call.itemsize(0)
    index_bytes = call.tensor_bytes(1)
    if not table or indices is None or size is None or index_bytes is None:
        return UNKNOWN
    rows = float(prod(indices)) * table[-1] * size
    return Cost(0.0, 2 * rows + index_bytes, "embedding")


def _embedding_backward(call: OpCall) -> Cost:
    grad, rows, size = call.shape(0), call.integer(2), call.itemsize(0)
    read = call.input_bytes()
    if not grad or rows is None or size is None or read is None:
        return UNKNOWN
    return Cost(float(prod(grad)), read + float(rows) * grad[-1] * size, "embedding", call.dtype(0))


_BY_KIND: dict[str, Callable[[OpCall], Cost]] = {
    "view": lambda _: Cost(0.0, 0.0, "view"),
    "elementwise": _elementwise,
    "norm": _norm,
    "reduction": _reduction,
    "copy": _copy,
    "fill": _fill,
}


_EMBEDDINGS = {"aten::embedding": _embedding, "aten::embedding_dense_backward": _embedding_backward}


@cache
def _simple() -> dict[str, str]:
    """Ops that move or touch every element once, by what they do."""
    text = resources.files("perfkit.flops").joinpath("data", "op_kinds.csv").read_text("utf-8")
    return {row["op"]: row["kind"] for row in csv.DictReader(text.splitlines())}


@cache
def _families() -> dict[str, Callable[[OpCall], Cost]]:
    """Every op with a formula."""
    simple = {op: _BY_KIND[kind] for op, kind in _simple().items()}
    return {**simple, **_EMBEDDINGS, **GEMMS, **CONVOLUTIONS, **ATTENTION}


_OVERLOAD = re.compile(r"\.[a-z_]\w*$", re.I)


def op_kind(name: str) -> str | None:
    """Return gemm, conv, attention, embedding, norm, elementwise, reduction, copy or view; None of an unknown op."""
    name = name if name in _families() else _OVERLOAD.sub("", name)
    for kind, ops in (("gemm", GEMMS), ("conv", CONVOLUTIONS), ("attention", ATTENTION), ("embedding", _EMBEDDINGS)):
        if name in ops:
            return kind
    simple = _simple().get(name)
    return "copy" if simple == "fill" else simple


def known_ops() -> list[str]:
    """Names of the ops that have a formula."""
    return sorted(_families())


def op_cost(name: str, input_dims: str | None, input_types: str | None, concrete_inputs: str | None) -> Cost:
    """Cost of one call; `UNKNOWN` if the op has no formula or the trace did not record what it needs."""
    families = _families()
    family = families.get(name) or families.get(_OVERLOAD.sub("", name))
    call = parse_call(name, input_dims, input_types, concrete_inputs) if family is not None else None
    return UNKNOWN if family is None or call is None else family(call)


def op_costs(table: pa.Table) -> pa.Table:
    """Cost of every row of a table with the columns name, input_dims, input_types, concrete_inputs."""
    keys = []
    for column in ("name", "input_dims", "input_types", "concrete_inputs"):
        values = table[column] if column in table.column_names else pa.nulls(len(table), pa.utf8())
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        if not pa.types.is_dictionary(values.type):
            values = pc.dictionary_encode(values.cast(pa.utf8()), null_encoding="encode")
        keys.append(values)
    codes = pa.table({f"k{i}": _codes(key) for i, key in enumerate(keys)}).append_column(
        "row", pa.array(range(len(table)), pa.int64())
    )
    groups = codes.group_by([f"k{i}" for i in range(len(keys))], use_threads=False).aggregate([("row", "list")])
    texts = [key.dictionary.to_pylist() for key in keys]
    combos = zip(*(groups[f"k{i}"].to_pylist() for i in range(len(keys))), strict=True)
    costs = [
        op_cost(*(None if code < 0 else texts[i][code] for i, code in enumerate(combo)))  # type: ignore[arg-type]  # name is text
        if combo[0] >= 0
        else UNKNOWN
        for combo in combos
    ]
    rows = groups["row_list"].combine_chunks()
    group_of = pc.list_parent_indices(rows)
    order = pc.sort_indices(rows.flatten())
    index = group_of.take(order)
    kind = pa.array([c.kind for c in costs], pa.utf8())
    return pa.table(
        {
            "flops": pa.array([c.flops for c in costs], pa.float64()).take(index),
            "bytes": pa.array([c.bytes for c in costs], pa.float64()).take(index),
            "kind": kind.take(index),
            "dtype": pa.array([c.dtype for c in costs], pa.utf8()).take(index),
        }
    )


def _codes(values: pa.DictionaryArray) -> pa.Array:
    """Return dictionary indices with -1 for null (an index that is null, or one that points to a null)."""
    indices = pc.fill_null(values.indices.cast(pa.int64()), -1)
    nulls = [i for i, text in enumerate(values.dictionary.to_pylist()) if text is None]
    return pc.if_else(pc.is_in(indices, pa.array(nulls, pa.int64())), -1, indices) if nulls else indices
