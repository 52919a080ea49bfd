"""The whole job: who met whom, on whose clock, who waited, and because of whom.

    view_job(parts, hosts=…, devices=…, world_size=…) -> JobView

`parts` are what the ranks' traces gave (perfkit.analysis.rank.RankPart): their calls, exposed communication and
attribution. Everything here is on small tables of calls, never on events. With one rank there is nobody to compare
with: its communication stays unsplit, and that is all that is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.bandwidth import bandwidths, imbalance, message_bytes
from perfkit.analysis.blame import Blame, assign_blame
from perfkit.analysis.call_columns import MESSAGES
from perfkit.analysis.calls import CALLS, EXPOSED, INSTANCES, MEMBERS
from perfkit.analysis.classify import encode_text
from perfkit.analysis.clocks import Clocks, align_clocks
from perfkit.analysis.collectives import CLASSES, LABELS, Pieces, Split, label_exposed, label_holds, split_calls
from perfkit.analysis.groups import shown_ranks
from perfkit.analysis.intervals import Ints
from perfkit.analysis.layout import Layout
from perfkit.analysis.links import group_links, link_peaks
from perfkit.analysis.matching import Matched, match_calls
from perfkit.analysis.matching_check import without_impossible
from perfkit.analysis.parallelism import infer_layout
from perfkit.analysis.timeline import Mask, ints
from perfkit.arrays import valid_mask

STEPS = pa.schema(
    [
        ("rank", pa.int32()), ("device", pa.int32()), ("step", pa.int64()), ("window_start_ns", pa.int64()),
        ("window_ns", pa.int64()), ("exposed_comm_ns", pa.int64()), ("exposed_transfer_ns", pa.int64()),
        ("exposed_wait_ns", pa.int64()), ("unsplit_ns", pa.int64()), ("bubble_ns", pa.int64()),
    ]
)  # fmt: skip
"""transfer + wait + unsplit + bubble is exposed_comm_ns of `attribution`, to the ns."""
_COLUMN = {"bubble": "bubble_ns", "transfer": "exposed_transfer_ns", "wait": "exposed_wait_ns", "unsplit": "unsplit_ns"}


class Part(Protocol):
    """What is used of one source file of a rank."""

    rank: int
    segment: int
    attribution: pa.Table
    calls: pa.Table
    exposed: pa.Table


@dataclass
class JobView:
    """A job as its ranks' collectives show it. Tables are of perfkit.analysis.calls."""

    ranks: list[int]
    world_size: int | None
    hosts: dict[int, str | None]
    devices: dict[int, str | None]
    calls: pa.Table
    members: pa.Table
    """Row by row with `calls`."""
    instances: pa.Table
    groups: pa.Table
    clock: Clocks
    steps: pa.Table
    blame: Blame
    layout: Layout | None
    links: pa.Table
    imbalance: Any
    """Of every instance, the heaviest member's bytes and the mean; NaN if unknown."""
    unmatched: int = 0
    alone: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def several(self) -> bool:
        """Say whether there is more than one rank to compare."""
        return len(self.ranks) > 1

    @cached_property
    def inside(self) -> Mask:
        """Which calls run inside a window of their rank and device."""
        steps, calls = self.steps, self.calls
        of_step, of_call = (ints(t["rank"]) << 32 | ints(t["device"], -1) & 0xFFFFFFFF for t in (steps, calls))
        places, place = np.unique(of_step, return_inverse=True)
        low = ints(steps["window_start_ns"])
        latest = np.iinfo(np.int64).max
        first, last = np.full(len(places) + 1, latest), np.full(len(places) + 1, -latest)
        np.minimum.at(first, place, low)
        np.maximum.at(last, place, low + ints(steps["window_ns"]))
        at = np.searchsorted(places, of_call)
        at = np.where(np.append(places, -1)[at] == of_call, at, len(places))  # a place without a window
        inside: Mask = (ints(calls["end_ns"]) > first[at]) & (ints(calls["start_ns"]) < last[at])
        return inside


def view_job(
    parts: Sequence[Part],
    *,
    hosts: Mapping[int, str | None] | None = None,
    devices: Mapping[int, str | None] | None = None,
    world_size: int | None = None,
    mesh: str | None = None,
) -> JobView:
    """Join the ranks' calls into the job's view."""
    ranks = sorted({part.rank for part in parts})
    where = {rank: (hosts or {}).get(rank) for rank in ranks}
    names = {rank: (devices or {}).get(rank) for rank in ranks}
    calls = _sorted(_joined([part.calls for part in parts], CALLS), ("rank", "segment", "device", "call"))
    exposed = _joined([part.exposed for part in parts], EXPOSED)
    matched = match_calls(calls, ranks, world_size)
    clock = align_clocks(calls, matched.instance, where)
    if (better := without_impossible(calls, matched, clock)) is not None:
        matched, clock = better, align_clocks(calls, better.instance, where)
    notes = [*_doubts(ranks, world_size, matched.groups), *_uneven_steps(parts)]
    layout = infer_layout(matched.groups, calls, world_size=world_size, ranks=ranks, mesh=mesh, gid=matched.gid)
    groups = matched.groups.set_column(
        matched.groups.column_names.index("role"), "role", pa.array(layout.roles, pa.utf8())
    )
    split = split_calls(calls, matched, clock, _pipeline(calls, matched, layout))
    pieces = label_exposed(calls, split, exposed)
    blame = assign_blame(
        split, pieces, label_holds(calls, split, exposed), exposed, call_step=ints(calls["step"]), ranks=ranks
    )
    instances, heavy = _instances(calls, matched, split)
    view = JobView(
        ranks, world_size, where, names, calls, _members(split, matched, pieces, exposed), instances, groups, clock,
        _steps(parts, pieces, exposed), blame, layout, pa.table({}), heavy, matched.unmatched, matched.alone,
        [*notes, *matched.notes, *(clock.notes if len(ranks) > 1 else []), *layout.notes],
    )  # fmt: skip
    view.links = group_links(view)
    same_host = _same_host(calls, split, where)
    view.instances = _with_links(instances, view.links, same_host)
    return view


def _with_links(instances: pa.Table, links: pa.Table, same_host: Mask) -> pa.Table:
    """Fill in what each instance ran over, and what share of its peak it reached."""
    gid = ints(instances["gid"])
    peak = link_peaks(links, gid, instances["op"], same_host)
    efficiency = _floats(instances["busbw_gbps"]) / peak
    names = pa.concat_arrays([links["link"].combine_chunks(), pa.nulls(1, pa.utf8())])
    link = names.take(pa.array(np.where(gid < 0, len(links), gid)))
    inside = pc.and_(pc.is_in(instances["op"].cast(pa.utf8()), pa.array(MESSAGES)), pa.array(same_host))
    link = pc.if_else(pc.and_(inside, pc.equal(link, "network")), None, link).combine_chunks()  # not what it spans
    columns = {
        "efficiency": pa.array(efficiency, mask=np.isnan(efficiency)),
        "link": link.dictionary_encode(),
        "peak_gbps": pa.array(peak, mask=np.isnan(peak)),
    }
    for name, values in columns.items():
        instances = instances.set_column(instances.column_names.index(name), name, values)
    return instances.cast(INSTANCES)


def _joined(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks() if tables else schema.empty_table()


def _sorted(table: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    order = np.lexsort([ints(table[key]) for key in reversed(keys)])
    return table if (order[1:] > order[:-1]).all() else table.take(order)


def _doubts(ranks: list[int], world_size: int | None, groups: pa.Table) -> list[str]:
    """Say which ranks are missing, and whether the number of ranks can be right."""
    if world_size is None:
        note = "the traces do not say how many ranks the job had: pass --world-size"
        open_ended = int(ints(groups["calls"])[~valid_mask(groups["size"])].sum())
        if open_ended:
            note += f" to tell waiting from transfer in {open_ended:,} of {int(ints(groups['calls']).sum()):,} calls"
        else:
            note += ", and MFU counts all of them"
        return [note] if len(ranks) > 1 else []
    missing = sorted(set(range(world_size)) - set(ranks))
    notes = []
    if missing:
        notes.append(
            f"{len(ranks)} of {world_size} ranks have a trace; missing are {shown_ranks(missing)}: "
            "what the others waited for them cannot be told from moving data"
        )
    if ranks and ranks[-1] >= world_size:
        notes.append(f"rank {ranks[-1]} has a trace although the world size is {world_size}: are these two runs?")
    return notes


def _uneven_steps(parts: Sequence[Part]) -> list[str]:
    """Say which ranks have other steps than most."""
    steps: dict[int, set[int]] = {}
    for part in parts:
        mine = steps.setdefault(part.rank, set())
        rows = part.attribution.filter(pc.invert(pc.fill_null(part.attribution["carry_in"], False)))
        mine.update(step for step in rows["step"].to_pylist() if step is not None)
    kinds: dict[frozenset[int], list[int]] = {}
    for rank, mine in steps.items():
        kinds.setdefault(frozenset(mine), []).append(rank)
    if len(kinds) < 2:
        return []
    usual = max(kinds, key=lambda kind: (len(kinds[kind]), len(kind)))
    others = [(ranks, kind) for kind, ranks in kinds.items() if kind != usual]
    told = [
        f"{f'ranks {shown_ranks(ranks)} have' if len(ranks) > 1 else f'rank {ranks[0]} has'} "
        f"{shown_ranks(kind) or 'none'}"
        for ranks, kind in others[:3]
    ]
    more = f"; and {len(others) - 3} more kinds" if len(others) > 3 else ""
    return [f"not all ranks have the same steps: most have {shown_ranks(usual) or 'none'}, {', '.join(told)}{more}"]


def _pipeline(calls: pa.Table, matched: Matched, layout: Layout) -> Mask:
    """Return the receives whose exposed time is pipeline bubble."""
    ops, values = encode_text(calls["op"])
    receives = np.array([*(value == "recv" for value in values), False])[ops]
    result: Mask = receives & np.isin(matched.gid, list(layout.pipeline_gids))
    return result


def _same_host(calls: pa.Table, split: Split, hosts: Mapping[int, str | None]) -> Mask:
    """Say which instances stay inside one known host."""
    rows = np.flatnonzero(split.instance >= 0)
    names = {name: i for i, name in enumerate(sorted({h for h in hosts.values() if h is not None}))}
    table = np.full(max(hosts, default=0) + 1, -1, np.int64)
    for rank, name in hosts.items():
        table[rank] = names.get(name, -1) if name is not None else -1
    low, high = np.full(len(split.first), np.iinfo(np.int64).max), np.full(len(split.first), -2)
    np.minimum.at(low, split.instance[rows], table[split.rank[rows]])
    np.maximum.at(high, split.instance[rows], table[split.rank[rows]])
    result: Mask = (low == high) & (low >= 0)
    return result


def _floats(column: pa.ChunkedArray) -> Any:
    return pc.fill_null(column, np.nan).to_numpy()


# ------------------------------------------------------------------ tables


def _members(split: Split, matched: Matched, pieces: Pieces, exposed: pa.Table) -> pa.Table:
    inside = np.array(exposed["window_start_ns"].is_valid(), bool)
    mine = (pieces.call >= 0) & inside[pieces.exposed]
    key = pieces.call[mine] * len(LABELS) + pieces.label[mine]
    sums = _bincount(key, (pieces.end - pieces.start)[mine], len(split.rank) * len(LABELS)).reshape(-1, len(LABELS))
    by_label = dict(zip(LABELS, sums.T, strict=True))
    return pa.table(
        {
            "instance": split.instance, "gid": matched.gid, "arrive_ns": split.arrive, "start_ns": split.aligned_start,
            "end_ns": split.aligned_start + (split.end - split.start), "wait_ns": split.wait,
            "transfer_ns": split.transfer, "unsplit_ns": split.unsplit, "exposed_wait_ns": by_label["wait"],
            "exposed_transfer_ns": by_label["transfer"], "exposed_unsplit_ns": by_label["unsplit"],
            "bubble_ns": by_label["bubble"],
        },
        schema=MEMBERS,
    )  # fmt: skip


def _bincount(key: Ints, value: Ints, size: int) -> Ints:
    """Sum integers by key; exact, as sums of time stay below 2^53."""
    return np.bincount(key, value, size).astype(np.int64)


def _instances(calls: pa.Table, matched: Matched, split: Split) -> tuple[pa.Table, Any]:
    """Describe the instances, and how unevenly each loads its members."""
    rows = np.flatnonzero(split.instance >= 0)
    rows = rows[np.argsort(split.instance[rows], kind="stable")]
    one = split.instance[rows]
    edges = np.flatnonzero(np.append(True, one[1:] != one[:-1])) if len(rows) else rows
    into, out = ints(calls["in_bytes"])[rows], ints(calls["out_bytes"])[rows]
    size = message_bytes(split.op[rows], split.op_names, split.size[one], into, out)
    size = np.maximum.reduceat(size, edges) if len(rows) else rows
    lead = rows[edges]
    step = np.maximum.reduceat(ints(calls["step"])[rows], edges) if len(rows) else rows
    clear = split.complete & (split.kind != CLASSES.index("inconclusive"))
    time = np.where(clear, split.last_end - split.arrival, -1)
    algorithm, bus = bandwidths(split.op[lead], split.op_names, split.size, size, time)
    table = pa.table(
        {
            "instance": np.arange(len(lead)), "gid": matched.gid[lead],
            "op": calls["op"].take(lead), "dtype": calls["dtype"].take(lead), "step": pa.array(step, mask=step < 0),
            "bytes": pa.array(size, mask=size < 0), "size": pa.array(split.size, mask=split.size < 0),
            "present": split.present, "complete": split.complete, "first_ns": split.first,
            "arrival_ns": split.arrival, "end_ns": split.last_end, "skew_ns": split.skew,
            "last_rank": split.rank[split.last_row], "u_ns": pa.array(split.u, mask=split.u < 0),
            "class": pa.array([CLASSES[k] for k in split.kind.tolist()], pa.utf8()),
            "algbw_gbps": pa.array(algorithm, mask=np.isnan(algorithm)),
            "busbw_gbps": pa.array(bus, mask=np.isnan(bus)), "efficiency": pa.nulls(len(lead), pa.float64()),
            "link": pa.nulls(len(lead), pa.utf8()), "peak_gbps": pa.nulls(len(lead), pa.float64()),
        }
    ).cast(INSTANCES)  # fmt: skip
    return table, imbalance(edges, into, out)


def _steps(parts: Sequence[Part], pieces: Pieces, exposed: pa.Table) -> pa.Table:
    """Add up the labels of every window."""
    columns = ["rank", "device", "step", "start_ns", "window_ns", "exposed_comm_ns"]
    tables, segment = [], []
    for part in parts:
        rows = part.attribution.filter(pc.invert(pc.fill_null(part.attribution["carry_in"], False)))
        tables.append(rows.select(columns))
        segment.append(np.full(len(rows), part.segment, np.int64))
    windows = pa.concat_tables(tables).rename_columns([*columns[:3], "window_start_ns", *columns[4:]])
    inside = np.array(exposed["window_start_ns"].is_valid(), bool)
    keys = [
        np.append(a, ints(exposed[name])[inside])
        for name, a in (
            ("rank", ints(windows["rank"])), ("segment", np.concatenate(segment)), ("device", ints(windows["device"])),
            ("window_start_ns", ints(windows["window_start_ns"])),
        )
    ]  # fmt: skip
    _, code = np.unique(np.stack(keys), axis=1, return_inverse=True)
    code = code.ravel()
    of_window = np.full(int(code.max(initial=-1)) + 1, -1, np.int64)
    of_window[code[: len(windows)]] = np.arange(len(windows))
    row = np.full(len(exposed), -1, np.int64)
    row[inside] = of_window[code[len(windows) :]]
    at = row[pieces.exposed]
    known = at >= 0
    for number, label in enumerate(LABELS):
        mine = known & (pieces.label == number)
        sums = _bincount(at[mine], (pieces.end - pieces.start)[mine], len(windows))
        windows = windows.append_column(_COLUMN[label], pa.array(sums))
    return windows.select(STEPS.names).cast(STEPS)
