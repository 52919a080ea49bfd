"""Kernels by name, op, module, phase and shape: what they took, what they computed, and what they wasted.

    kernel_tables(timeline, device, windows, busy, tree) -> KernelTables     of one rank
    with_roofline(kernels, peaks, bytes_per_second)      -> the same rows with waste_ns and bound

Each ns of K has one owner: where kernels overlap, the one that started first keeps it, so that owned times
sum to |K| of every window. FLOPs and bytes are those of the op that launched the kernel; an op with several
kernels splits them by duration among those of its own family. Matrix FLOPs are taken from the innermost op
that knows them, once. A kernel that crosses the edge of a window is cut there, with its FLOPs.

A rank without a device (definition 3) has no kernels: stretches in which an op itself runs, not through one
inside it, stand for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.attribute import Busy
from perfkit.analysis.classify import CLASSES, FAMILIES, cpu_kind, kernel_family
from perfkit.analysis.intervals import Ints, first_owner, innermost, overlaps
from perfkit.analysis.ops import MATMUL, CallTree, Floats
from perfkit.analysis.phases import PHASES, modules, phases
from perfkit.analysis.timeline import Mask, Timeline, device_column
from perfkit.analysis.windows import Windows
from perfkit.flops.op_costs import op_kind
from perfkit.schema import KERNELS, conform

_TENSOR_FP32 = re.compile(r"tf32|xf32|s1688|tensorop_s|nvjet_s", re.I)
"""fp32 inputs, multiplied by tensor cores in TF32."""
COMPUTE_SCHEMA = pa.schema(
    [
        ("rank", pa.int32()), ("device", pa.int32()), ("step", pa.int64()), ("family", pa.utf8()),
        ("phase", pa.utf8()), ("dtype", pa.utf8()), ("owned_ns", pa.int64()), ("flops", pa.float64()),
    ]
)  # fmt: skip
"""K of each window by family and phase. `flops` is null where a matrix kernel's FLOPs are not known."""


@dataclass(frozen=True)
class KernelTables:
    """What one device of a rank computed."""

    kernels: pa.Table
    """Rows of `kernels`, without waste: that needs the device's peak."""
    compute: pa.Table
    """COMPUTE_SCHEMA."""


class _Runs(NamedTuple):
    """Compute of one device, one entry per kernel (or stretch of an op); times are whole, not clipped."""

    start: Ints
    end: Ints
    own_start: Ints
    own_end: Ints
    name: Ints
    family: Ints
    op: Ints
    """Position in the tree, -1 for none."""
    cost: Ints
    """Entry of tree.costs that its FLOPs come from, -1 for none."""
    share: Floats
    """Share of the op's cost."""
    counts: Mask
    """Whether it is a launch; an op of the host that others interrupt runs in several stretches."""


def kernel_tables(timeline: Timeline, device: int | None, windows: Windows, busy: Busy, tree: CallTree) -> KernelTables:
    """Describe the compute of one device (None: the host of a rank without one) inside the windows."""
    runs = _host_runs(timeline, busy, tree) if device is None else _device_runs(timeline, device, tree)
    phase = np.append(phases(tree), -1)[runs.op]
    phase = np.where(runs.family == FAMILIES.index("optimizer"), PHASES.index("optimizer"), phase)
    module, paths = modules(tree)
    costs = tree.costs
    flops = np.append(costs.flops, np.nan)[runs.cost] * runs.share
    moved = np.append(costs.bytes, np.nan)[runs.cost] * runs.share
    dtype, dtypes = _dtypes(timeline, runs, tree)

    length = runs.end - runs.start
    row, window, low, high = overlaps(runs.start, runs.end, windows.start, windows.end)
    inside = np.bincount(row, high - low, len(length))  # float64 is exact far beyond the length of a trace
    part = (high - low) / length[row]
    row_owned, window_owned, low_owned, high_owned = overlaps(runs.own_start, runs.own_end, windows.start, windows.end)
    owned = np.bincount(row_owned, high_owned - low_owned, len(length))
    began = _started(runs.start, windows) & runs.counts

    kernels = _group(
        {
            "name": runs.name, "family": runs.family, "op": np.append(tree.name, -1)[runs.op],
            "module": np.append(module, -1)[runs.op], "phase": phase, "cost": runs.cost, "dtype": dtype,
        },
        {
            "count": began.astype(np.int64), "total_ns": inside.astype(np.int64), "owned_ns": owned.astype(np.int64),
            "flops": flops * inside / np.maximum(length, 1), "bytes": moved * inside / np.maximum(length, 1),
        },
        (inside > 0) | began,
    )  # fmt: skip
    names = timeline.names
    table = conform(
        KERNELS,
        pa.table(
            {
                "rank": np.full(len(kernels), timeline.rank),
                "name": _decode(kernels["name"], names),
                "family": _decode(kernels["family"], FAMILIES),
                "op": _decode(kernels["op"], names),
                "module": _decode(kernels["module"], paths),
                "phase": _decode(kernels["phase"], PHASES),
                "input_dims": _decode(kernels["cost"], costs.dims),
                "dtype": _decode(kernels["dtype"], dtypes),
                **{c: kernels[c] for c in ("count", "total_ns", "owned_ns")},
                **{c: pc.if_else(pc.is_nan(kernels[c]), None, kernels[c]) for c in ("flops", "bytes")},
            }
        ),
    )

    product = np.isin(runs.family, [FAMILIES.index(f) for f in MATMUL])
    counted = np.where(product, flops, 0.0)
    of_step = windows.step
    known = ~np.isnan(counted)
    both_row, both_window = np.append(row, row_owned), np.append(window, window_owned)
    compute = _group(
        {
            "window": both_window, "family": runs.family[both_row], "phase": phase[both_row],
            "dtype": dtype[both_row], "known": known[both_row].astype(np.int64),
        },
        {
            "owned_ns": np.append(np.zeros(len(row), np.int64), high_owned - low_owned),
            "flops": np.append(counted[row] * part, np.zeros(len(row_owned))) * np.where(known[both_row], 1.0, np.nan),
        },
        np.ones(len(both_row), bool),
    )  # fmt: skip
    step = np.append(of_step, -1)[compute["window"].to_numpy()]
    return KernelTables(
        table,
        pa.table(
            {
                "rank": np.full(len(compute), timeline.rank, np.int32),
                "device": device_column(device, len(compute)),
                "step": pa.array(step, mask=step < 0),
                "family": _decode(compute["family"], FAMILIES),
                "phase": _decode(compute["phase"], PHASES),
                "dtype": _decode(compute["dtype"], dtypes),
                "owned_ns": compute["owned_ns"],
                "flops": pc.if_else(pc.is_nan(compute["flops"]), None, compute["flops"]),
            },
            schema=COMPUTE_SCHEMA,
        ),
    )


# ------------------------------------------------------------------ who ran


def _device_runs(timeline: Timeline, device: int, tree: CallTree) -> _Runs:
    work = timeline.work
    work = work.take((work.kind == CLASSES.index("compute")) & (work.device == device))
    family = _families(timeline, work.name)
    op = tree.op_of(work)
    own_start, own_end = first_owner(work.start, work.end)
    cost_op = _cost_ops(tree, op, np.isin(family, [FAMILIES.index(f) for f in MATMUL]))
    length = np.maximum(work.end - work.start, 1).astype(np.float64)
    return _Runs(
        work.start, work.end, own_start, own_end, work.name, family, op,
        np.append(tree.costs.of, -1)[cost_op], _shares(cost_op, length, len(tree)), np.ones(len(op), bool),
    )  # fmt: skip


def _cost_ops(tree: CallTree, op: Ints, is_product: Mask) -> Ints:
    """Return the op whose cost each kernel carries.

    A matrix kernel looks up the stack for the nearest op that counts; other kernels of such an op (a memset, a
    cast) carry nothing, unless the op has no matrix kernel at all: then no pattern knew it by name.
    """
    size = len(tree)
    products = tree.products
    near = np.append(tree.nearest(products), -1)[op]
    cost_op = np.where(is_product, near, -1)
    claimed = np.zeros(size + 1, bool)
    claimed[cost_op[cost_op >= 0]] = True
    direct = (op >= 0) & np.append(products, False)[op] & ~is_product & ~claimed[op]
    kinds = np.array([*(k not in (*MATMUL, "view", "unknown") for k in tree.costs.kind), False], bool)
    plain = (op >= 0) & ~is_product & kinds[np.append(tree.costs.of, -1)[op]]
    result: Ints = np.where(direct | plain, op, cost_op)
    return result


def _shares(cost_op: Ints, length: Floats, size: int) -> Floats:
    known = cost_op >= 0
    total = np.bincount(cost_op[known], length[known], size + 1)
    result: Floats = np.where(known, length / np.maximum(total[cost_op], 1.0), 0.0)
    return result


def _host_runs(timeline: Timeline, busy: Busy, tree: CallTree) -> _Runs:
    """Stretches of the ops that work, each with its op, cut to K."""
    host, names = timeline.host, timeline.names
    used = np.unique(host.name)
    works = np.zeros(len(names), bool)
    works[used] = [k == "work" for k in cpu_kind(pa.array([names[i] for i in used], pa.utf8())).to_pylist()]
    works &= ~np.array([name.startswith("ProfilerStep") for name in names], bool)
    rows = np.flatnonzero((host.kind == CLASSES.index("op")) & works[host.name])
    pieces, _ = innermost(host.start[rows], host.end[rows], host.thread[rows])
    own_start, own_end = first_owner(pieces.start, pieces.end)
    piece, _, low, high = overlaps(own_start, own_end, busy.compute.start, busy.compute.end)
    op = tree.position[rows[pieces.owner[piece]]]
    costs = tree.costs
    cost = np.append(costs.of, -1)[op]
    kinds = [FAMILIES.index(k) if k in FAMILIES else -1 for k in costs.kind]
    family = np.array([*kinds, -1], np.int64)[cost]
    guess = _families(timeline, tree.name[op], _families_of_ops)
    family = np.where((family < 0) | (family == FAMILIES.index("unknown")), guess, family)
    counts = np.append(tree.products, False)[op]
    product = np.isin(family, [FAMILIES.index(f) for f in MATMUL])
    carries = np.where(product & ~counts, -1, op)  # a wrapper's own time has no FLOPs of its own
    wraps = ~np.isnan(np.append(costs.flops, np.nan)[cost])  # it could count, and one inside it does
    family = np.where(product & ~counts & wraps, FAMILIES.index("other"), family)
    length = (high - low).astype(np.float64)
    first = np.zeros(len(op), bool)
    first[np.unique(op, return_index=True)[1]] = True
    return _Runs(
        low, high, low, high, tree.name[op], family, op, np.append(costs.of, -1)[carries],
        _shares(carries, length, len(tree)), first,
    )  # fmt: skip


def _families_of_kernels(names: list[str]) -> list[str]:
    found: list[str] = kernel_family(pa.array(names, pa.utf8())).to_pylist()
    return found


def _families_of_ops(names: list[str]) -> list[str]:
    """Return families by what an op is known to do; patterns of kernel names are for the others."""
    known = [op_kind(name) for name in names]
    return [
        guess if kind is None else kind if kind in FAMILIES else "other"
        for kind, guess in zip(known, _families_of_kernels(names), strict=True)
    ]


def _families(timeline: Timeline, names: Ints, of: Callable[[list[str]], list[str]] = _families_of_kernels) -> Ints:
    used = np.unique(names)
    lut = np.zeros(len(timeline.names), np.int64)
    lut[used] = [FAMILIES.index(family) for family in of([timeline.names[i] for i in used])]
    result: Ints = lut[names]
    return result


def _dtypes(timeline: Timeline, runs: _Runs, tree: CallTree) -> tuple[Ints, list[str]]:
    """Return the number format of each entry, -1 if unknown; fp32 inputs on tensor cores are TF32."""
    values = sorted({d for d in tree.costs.dtype if d} | {"tf32"})
    lut = np.array([*(values.index(d) if d else -1 for d in tree.costs.dtype), -1], np.int64)
    dtype = lut[runs.cost]
    if "fp32" in values:
        product = np.isin(runs.family, [FAMILIES.index(f) for f in MATMUL]) & (dtype == values.index("fp32"))
        used = np.unique(runs.name[product])
        tensor = np.zeros(len(timeline.names), bool)
        tensor[used] = [_TENSOR_FP32.search(timeline.names[i]) is not None for i in used]
        dtype = np.where(product & tensor[runs.name], values.index("tf32"), dtype)
    return dtype, values


def _started(start: Ints, windows: Windows) -> Mask:
    if not len(windows.edges):
        return np.zeros(len(start), bool)
    result: Mask = (start >= windows.edges[0]) & (start < windows.edges[-1])
    return result


def _group(keys: dict[str, Ints], sums: dict[str, Ints | Floats], keep: Mask) -> pa.Table:
    table = pa.table({name: column[keep] for name, column in (*keys.items(), *sums.items())})
    table = table.group_by(list(keys), use_threads=False).aggregate([(name, "sum") for name in sums])
    return table.rename_columns([name.removesuffix("_sum") for name in table.column_names])


def _decode(codes: pa.ChunkedArray, values: list[str] | list[str | None] | tuple[str, ...]) -> pa.Array:
    index = codes.to_numpy()
    return pa.array([*values, None], pa.utf8()).take(pa.array(np.where(index < 0, len(values), index)))


# ------------------------------------------------------------------ how well


def with_roofline(kernels: pa.Table, peaks: Mapping[str, float], bytes_per_second: float | None) -> pa.Table:
    """Fill peaks, waste_ns (definition 21: time beyond max(FLOPs / peak, bytes / bandwidth)) and bound, if known."""
    flops, moved, total = (_floats(kernels[c]) for c in ("flops", "bytes", "total_ns"))
    dtype = kernels["dtype"].cast(pa.utf8()).to_pylist()
    peak = np.array([peaks.get(d or "", np.nan) for d in dtype], np.float64)
    compute = np.where(flops == 0, 0.0, flops / peak * 1e9)
    memory = moved / bytes_per_second * 1e9 if bytes_per_second else np.full(len(total), np.nan)
    least = np.maximum(compute, memory)
    known = ~np.isnan(least)
    waste = np.where(known, np.maximum(total - np.where(known, least, 0.0), 0.0), 0.0)
    bound = np.where(~known, "unknown", np.where(compute >= memory, "compute", "memory"))
    table = kernels.drop_columns(["waste_ns", "bound", "peak_flops", "peak_gbps"])
    table = table.append_column("peak_flops", pa.array(peak, mask=np.isnan(peak)))
    width = pa.array([bytes_per_second / 1e9 if bytes_per_second else None] * len(table), pa.float64())
    table = table.append_column("peak_gbps", width)
    table = table.append_column("waste_ns", pa.array(np.round(waste).astype(np.int64), mask=~known))
    return conform(KERNELS, table.append_column("bound", pa.array(bound.tolist(), pa.utf8())))


def _floats(column: pa.ChunkedArray) -> Floats:
    result: Floats = pc.fill_null(column.cast(pa.float64()), np.nan).to_numpy()
    return result
