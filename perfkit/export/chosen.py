"""Which events of a rank belong to a window, and what of them cannot be right.

    choose(events, syncs, start, window)  -> rows      in the window, and the calls that launched or recorded for them
    mend(rows, sides, start)              -> Mended    what to leave out so that torch.profiler's validator agrees

A kernel is kept with its launch call, wherever that is: without it a viewer shows work that nobody asked for. The
validator (torch.profiler._trace_validator) rejects traces whose links contradict time. Some recordings are like that
from the start, so a link that cannot be right is left out and counted; times are never touched.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.classify import DEVICE_WORK
from perfkit.analysis.intervals import Ints
from perfkit.analysis.timeline import Mask, ints, of_classes

RECORD_CALLS = (
    "cudaEventRecord", "cudaEventRecord_ptsz", "cudaEventRecordWithFlags", "cudaEventRecordWithFlags_ptsz",
)  # fmt: skip
"""Calls that record an event another stream may wait for."""
_WAITS = ("Stream Wait Event", "Event Sync")


@dataclass
class Mended:
    """Rows of the chosen events whose links are left out."""

    external_id: Mask
    sync_kind: Mask
    sequence_number: Mask
    notes: dict[str, int] = field(default_factory=dict)


def matches(column: pa.ChunkedArray, *words: str) -> Mask:
    """Say which rows hold one of these words."""
    result: Mask = pc.fill_null(pc.is_in(column, pa.array(words, pa.utf8())), False).to_numpy()
    return result


def choose(events: pa.Table, syncs: pa.Table | None, start: Ints, window: tuple[int, int]) -> Ints:
    """Return the rows that overlap [low, high), and the host calls behind them."""
    low, high = window
    phase = events["phase"].cast(pa.utf8())
    interval, instant = matches(phase, "X"), matches(phase, "i")
    length = ints(events["dur_ns"])
    dated = np.array(pc.is_valid(events["start_ns"])) & (instant | (interval & (length >= 0)))
    here = dated & (start < high) & ((start + np.maximum(length, 0) > low) | (start >= low))
    correlation, external = ints(events["correlation"]), ints(events["external_id"])
    calls = of_classes(events, ("runtime",)) & dated
    launched = correlation[here & of_classes(events, DEVICE_WORK)]
    here |= calls & (correlation > 0) & np.isin(correlation, launched)
    if syncs is not None and len(syncs):
        mine = np.isin(ints(syncs["event_id"]), ints(events["event_id"])[here])
        awaited = ints(syncs["wait_on_event_correlation"])[mine]
        records = calls & matches(events["name"].cast(pa.utf8()), *RECORD_CALLS)
        here |= records & (np.isin(correlation, awaited) | np.isin(external, awaited))
    return np.flatnonzero(here)


def align_rows(side: pa.Table | None, event_id: Ints) -> pa.Array | None:
    """Return for every event its row in a side table, null for none."""
    if side is None or not len(side):
        return None
    known = ints(side["event_id"])
    order = np.argsort(known, kind="stable")
    at = np.minimum(np.searchsorted(known[order], event_id), len(known) - 1)
    return pa.array(order[at], mask=known[order][at] != event_id)


def mend(rows: pa.Table, sides: dict[str, pa.Table], start: Ints) -> Mended:
    """Find the links that contradict time."""
    event_id, name, category = ints(rows["event_id"]), rows["name"].cast(pa.utf8()), rows["category"].cast(pa.utf8())
    kernel = matches(category, "kernel")
    external = _early_kernels(
        rows, start, kernel, matches(category, "cuda_runtime") & matches(name, "cudaLaunchKernel")
    )
    kinds = _bad_syncs(rows, sides.get("syncs"), event_id, start, kernel)
    shared = _shared_numbers(rows, sides.get("ops"), event_id)
    notes = {
        "kernels that start before their launch call: External id left out": int(external.sum()),
        "stream waits whose cudaEventRecord is not in the trace, or syncs that return early: kind left out":
            int(kinds.sum()),
        "backward ops that share a sequence number: number left out": int(shared.sum()),
    }  # fmt: skip
    return Mended(external, kinds, shared, {note: number for note, number in notes.items() if number})


def _early_kernels(rows: pa.Table, start: Ints, kernel: Mask, launch: Mask) -> Mask:
    """Return kernels of ops whose first kernel starts before the op's first launch."""
    external = ints(rows["external_id"])
    known, code = np.unique(external, return_inverse=True)
    latest = np.iinfo(np.int64).max
    first = {True: np.full(len(known), latest), False: np.full(len(known), latest)}
    for what, chosen in ((True, launch), (False, kernel)):
        np.minimum.at(first[what], code[chosen], start[chosen])
    wrong = (first[True] != latest) & (first[False] < first[True]) & (known > 0)
    result: Mask = kernel & wrong[code]
    return result


def _bad_syncs(rows: pa.Table, syncs: pa.Table | None, event_id: Ints, start: Ints, kernel: Mask) -> Mask:
    bad = np.zeros(len(rows), bool)
    at = align_rows(syncs, event_id)
    if at is None or syncs is None:
        return bad
    kind = pc.fill_null(syncs["kind"].cast(pa.utf8()).take(at), "")
    awaited = ints(syncs["wait_on_event_correlation"].take(at))
    records = np.flatnonzero(matches(rows["name"].cast(pa.utf8()), *RECORD_CALLS))
    ids = np.concatenate([ints(rows[name])[records] for name in ("correlation", "external_id")])
    when = np.tile(start[records], 2)
    order = np.lexsort((when, ids))
    ids, when = np.append(ids[order], -1), np.append(when[order], 0)
    place = np.minimum(np.searchsorted(ids[:-1], awaited), len(ids) - 1)
    recorded = (ids[place] == awaited) & (awaited >= 0)
    waits, stream_waits = matches(kind, *_WAITS), matches(kind, _WAITS[0])
    bad |= (waits & (awaited < 0)) | (stream_waits & (~recorded | (when[place] > start)))
    return bad | _early_returns(rows, matches(kind, "Stream Sync"), start, kernel)


def _early_returns(rows: pa.Table, syncs: Mask, start: Ints, kernel: Mask) -> Mask:
    """Return stream syncs that start while a kernel of their stream runs."""
    bad = np.zeros(len(rows), bool)
    if not syncs.any():
        return bad
    end = start + np.maximum(ints(rows["dur_ns"]), 0)
    stream = ints(rows["device"], -1) * 2**32 + ints(rows["stream"], -1)
    for one in np.unique(stream[syncs]):
        work = np.flatnonzero(kernel & (stream == one))
        work = work[np.argsort(start[work], kind="stable")]
        last = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(end[work]) if len(work) else [])
        mine = np.flatnonzero(syncs & (stream == one))
        bad[mine] = last[np.searchsorted(start[work], start[mine], side="left")] > start[mine]
    return bad


def _shared_numbers(rows: pa.Table, ops: pa.Table | None, event_id: Ints) -> Mask:
    """Return backward functions of different names under one sequence number."""
    at = align_rows(ops, event_id)
    found = np.zeros(len(rows), bool)
    if at is None or ops is None:
        return found
    number = ints(ops["sequence_number"].take(at))
    name = rows["name"].cast(pa.utf8())
    backward = np.array(pc.fill_null(pc.match_substring(name, "autograd::engine::evaluate_function:"), False))
    chosen = np.flatnonzero(backward & (number >= 0))
    code = ints(pc.dictionary_encode(name.take(pa.array(chosen))).combine_chunks().indices)
    pairs = np.unique(np.stack([number[chosen], code]), axis=1)
    several, times = np.unique(pairs[0], return_counts=True)
    found[chosen] = np.isin(number[chosen], several[times > 1])
    return found
