"""Bandwidth of collectives as nccl-tests defines it (definition 11).

    message_bytes(op, names, size, in_bytes, out_bytes) -> bytes of one message, as nccl-tests counts them
    bandwidths(op, names, size, num_bytes, time_ns)     -> algbw and busbw in GB/s (10^9)
    bytes_of_calls(calls)                               -> the same for rows of CALLS
    size_bins(num_bytes)                                -> the power of two that a message belongs to
    imbalance(edges, in_bytes, out_bytes)               -> heaviest member of an all-to-all, and the mean

algbw = bytes / time, busbw = algbw × factor. The time runs from the last arrival to the last end, so that waiting
for a late rank does not look like a slow link. In-switch reduction (NVLS, SHARP) moves fewer bytes than the factor
assumes: busbw can then exceed the rate of the wire, and is not clipped.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from perfkit.analysis.classify import encode_text
from perfkit.analysis.intervals import Ints
from perfkit.analysis.timeline import ints

Floats = npt.NDArray[np.float64]
SHARED = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
"""Operations in which a rank keeps its own n-th of the message."""
GROWING, SHRINKING = ("all_gather",), ("reduce_scatter",)
"""Operations whose output, or input, on every rank is as many times larger as there are members."""


def bus_factor(op: str, size: int) -> float | None:
    """Return busbw / algbw of an operation over `size` ranks; None if nccl-tests has none for it."""
    if size < 1:
        return None
    if op == "all_reduce":
        return 2 * (size - 1) / size
    if op in SHARED:
        return (size - 1) / size
    return 1.0 if op in ("broadcast", "reduce", "send", "recv", "send_recv") else None


def message_bytes(op: Ints, names: Sequence[str], size: Ints, in_bytes: Ints, out_bytes: Ints) -> Ints:
    """Return the size of each message, -1 if unknown. `op` indexes `names`, `size` is the number of members.

    nccl-tests counts the larger buffer of a rank: what an all-gather puts together, what a reduce-scatter takes in.
    Shapes of an op tell only what goes in, and NCCL's payloads what one rank contributes: the larger buffer is `size`
    times the other, and unknown if `size` is.
    """
    grows, shrinks = (np.array([*(name in ops for name in names), False])[op] for ops in (GROWING, SHRINKING))
    only_small = (grows & (out_bytes < 0) & (in_bytes >= 0)) | (shrinks & (in_bytes < 0) & (out_bytes >= 0))
    known = np.maximum(in_bytes, out_bytes)
    result: Ints = np.where(only_small, np.where(size > 0, known * size, -1), known)
    return result


def bytes_of_calls(calls: pa.Table, size: Ints | None = None) -> Ints:
    """Return the message size of each call; `size` is the number of members where more than the call tells it."""
    op, names = encode_text(calls["op"])
    size = ints(calls["group_size"]) if size is None else size
    return message_bytes(op, names, size, ints(calls["in_bytes"]), ints(calls["out_bytes"]))


def bandwidths(op: Ints, names: Sequence[str], size: Ints, num_bytes: Ints, time_ns: Ints) -> tuple[Floats, Floats]:
    """Return algbw and busbw; NaN where size, bytes or time are not known. `op` indexes `names`, -1 for none."""
    known = (num_bytes > 0) & (time_ns > 0)
    algorithm = np.where(known, num_bytes / np.maximum(time_ns, 1), np.nan)
    pairs, index = np.unique(np.stack([op, size]), axis=1, return_inverse=True)
    factors = [bus_factor(names[o], n) if o >= 0 else None for o, n in pairs.T.tolist()]
    factor = np.array([np.nan if f is None else f for f in factors], np.float64)[index.ravel()]
    return algorithm, algorithm * factor


def size_bins(num_bytes: Ints) -> Ints:
    """Return the smallest power of two that holds each message; -1 if its size is unknown."""
    exponent = np.ceil(np.log2(np.maximum(num_bytes, 1))).astype(np.int64)
    result: Ints = np.where(num_bytes < 0, -1, np.int64(1) << exponent)
    return result


def imbalance(edges: Ints, in_bytes: Ints, out_bytes: Ints) -> Floats:
    """Return per instance the heaviest member's bytes and the mean; NaN if a size is missing.

    Rows are the members of instances, `edges` where each begins. Of sent and received, the more uneven counts.
    """
    found = np.full((len(edges), 2), np.nan)
    count = np.diff(np.append(edges, len(in_bytes)))
    for column in (in_bytes, out_bytes) if len(edges) else ():
        total, most = np.add.reduceat(np.maximum(column, 0), edges), np.maximum.reduceat(column, edges)
        known = (np.minimum.reduceat(column, edges) >= 0) & (total > 0)
        worse = known & ~(most * count * found[:, 1] <= total * found[:, 0])  # NaN is worse than nothing
        found[worse] = np.stack([most, total / count], axis=1)[worse]
    return found
