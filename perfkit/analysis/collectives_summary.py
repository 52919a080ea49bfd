"""The collectives of a job in few rows: by role of the group and operation, and by message size.

    summarize_collectives(view) -> rows of `collectives` in `--format json`, the most exposed first
    size_histogram(view)        -> rows by group, operation and power of two
    collectives_table(view)     -> the `collectives` table of the store: one row per call

All of them count the calls that run inside the windows, some of the time at least. Rates are ratios of sums over the
instances whose transfer is known. `matched` is the share of calls that found the calls of other ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from perfkit.analysis.bandwidth import bytes_of_calls, size_bins
from perfkit.analysis.classify import encode_text
from perfkit.analysis.collectives import CLASSES, MOSTLY
from perfkit.analysis.intervals import Ints
from perfkit.analysis.job import JobView
from perfkit.analysis.timeline import ints
from perfkit.schema import COLLECTIVES, conform

HISTOGRAM = pa.schema(
    [
        ("group", pa.utf8()), ("op", pa.utf8()), ("up_to_bytes", pa.int64()), ("count", pa.int64()),
        ("bytes", pa.int64()), ("transfer_ns", pa.int64()), ("busbw_gbps", pa.float64()),
    ]
)  # fmt: skip
"""`up_to_bytes` is the power of two that holds the message."""
_SUMS = (
    "wait_ns", "transfer_ns", "unsplit_ns", "exposed_wait_ns", "exposed_transfer_ns", "exposed_unsplit_ns", "bubble_ns",
)  # fmt: skip

_OF_INSTANCE = ("busbw_gbps", "size", "skew_ns", "last_rank", "class", "link", "peak_gbps")
"""What the rows of an instance share."""


class _Rows:
    """Calls and instances of a view by (role, op)."""

    def __init__(self, view: JobView) -> None:
        self.view = view
        names = group_names(view)
        op, self.ops = encode_text(view.calls["op"])
        labels = sorted(set(names))
        code = np.array([labels.index(n) for n in names] + [len(labels)], np.int64)
        self.labels: list[str | None] = [*labels, None]
        key = code[ints(view.members["gid"])] * (len(self.ops) + 1) + op
        self.keys, self.of_call = np.unique(key, return_inverse=True)
        self.instance = ints(view.members["instance"])
        self.of_instance = np.zeros(len(view.instances), np.int64)
        known = self.instance >= 0
        self.of_instance[self.instance[known]] = self.of_call[known]
        self.inside = view.inside
        """Which calls count, and which instances: those with a call that does."""
        self.counts = np.zeros(len(view.instances), bool)
        self.counts[self.instance[known & self.inside]] = True

    def name(self, i: int) -> tuple[str | None, str]:
        """Return role and operation of a row."""
        group, op = divmod(int(self.keys[i]), len(self.ops) + 1)
        return self.labels[group], self.ops[op]


def group_names(view: JobView) -> list[str]:
    """Return what each group is called: its role, else its description or name."""
    rows = view.groups.select(["role", "desc", "name", "size"]).to_pylist()
    return [
        r["role"] or (r["desc"] if r["desc"] not in (None, "undefined") else None) or r["name"] or "?" for r in rows
    ]


def _group_sizes(view: JobView) -> Ints:
    """Return the number of members of each call's group, -1 if unknown."""
    sizes = [-1 if size is None else size for size in view.groups["size"].to_pylist()]
    found: Ints = np.array([*sizes, -1], np.int64)[ints(view.members["gid"])]
    return found


def summarize_collectives(view: JobView) -> list[dict[str, Any]]:
    """Return one row per role and operation."""
    rows, calls, members, instances = _Rows(view), view.calls, view.members, view.instances
    number = len(rows.keys)
    sums = {name: _sum(rows.of_call, ints(members[name]) * rows.inside, number) for name in _SUMS}
    matched = _sum(rows.of_call, ((rows.instance >= 0) & rows.inside).astype(np.int64), number)
    total = _sum(rows.of_call, rows.inside.astype(np.int64), number)
    size, num_bytes = ints(instances["size"]), ints(instances["bytes"])
    rate = _rates(rows, number)
    gid = ints(members["gid"])
    message = bytes_of_calls(calls, _group_sizes(view))
    heavy = np.asarray(view.imbalance)
    sizes = [*view.groups["size"].to_pylist(), None]
    found = []
    for i in np.flatnonzero(total).tolist():
        group, op = rows.name(i)
        mine = np.flatnonzero((rows.of_instance == i) & rows.counts)
        here = np.flatnonzero((rows.of_call == i) & rows.inside)
        unpaired = here[rows.instance[here] < 0]
        known = num_bytes[mine] >= 0
        loose = message[unpaired]
        everything = int(num_bytes[mine][known].sum() + loose[loose > 0].sum())
        members_of = size[mine].max(initial=-1) if len(mine) else sizes[int(gid[here[0]])]
        most, mean = np.nansum(heavy[mine], axis=0) if op == "all_to_all" else (0.0, 0.0)
        found.append(
            {
                "group": group, "op": op, "ranks": None if members_of in (-1, None) else int(members_of),
                "groups": len(np.unique(gid[here])), "count": len(mine) + len(unpaired),
                "bytes": everything if known.any() or (loose > 0).any() else None, **rate[i],
                **_split_sums(sums, i),
                "matched": float(matched[i] / total[i]) if view.several else None,
                "class": _class(sums, i) if view.several else None,
                "imbalance": float(most / mean) if mean else None,
            }
        )  # fmt: skip
    exposed = ("exposed_wait_ns", "exposed_transfer_ns", "exposed_unsplit_ns", "bubble_ns")
    return sorted(found, key=lambda r: (-sum(r[n] or 0 for n in exposed), str(r["group"]), r["op"]))


def _split_sums(sums: dict[str, Ints], i: int) -> dict[str, int | None]:
    """Return the sums of a row; a wait or a transfer of 0 is unknown where some of the time could not be split."""
    row: dict[str, int | None] = {name: int(sums[name][i]) for name in _SUMS}
    for wait, transfer, unsplit in (_SUMS[:3], _SUMS[3:6]):
        for name in (wait, transfer):
            row[name] = row[name] or (None if row[unsplit] else 0)
    return row


def _rates(rows: _Rows, number: int) -> list[dict[str, float | None]]:
    """Return bandwidths and efficiency as ratios of sums."""
    instances = rows.view.instances
    algorithm, bus, share = (
        instances[name].to_numpy(zero_copy_only=False).astype(np.float64)
        for name in ("algbw_gbps", "busbw_gbps", "efficiency")
    )
    num_bytes = ints(instances["bytes"])
    time = np.where(np.isnan(algorithm), 0.0, num_bytes / np.where(algorithm > 0, algorithm, 1.0))
    moved = np.where(np.isnan(bus), 0.0, bus * time)
    peak = np.where(np.isnan(share) | (share <= 0), np.nan, bus / np.where(share > 0, share, 1.0))
    columns = {
        "time": time, "bytes": np.where(np.isnan(algorithm), 0, num_bytes), "moved": moved,
        "bus_time": np.where(np.isnan(bus), 0.0, time), "judged": np.where(np.isnan(peak), 0.0, moved),
        "could": np.where(np.isnan(peak), 0.0, peak * time),
    }  # fmt: skip
    sums = {name: np.bincount(rows.of_instance, value * rows.counts, number) for name, value in columns.items()}

    def ratio(a: str, b: str, i: int) -> float | None:
        return float(sums[a][i] / sums[b][i]) if sums[b][i] > 0 else None

    return [
        {
            "algbw_gbps": ratio("bytes", "time", i), "busbw_gbps": ratio("moved", "bus_time", i),
            "efficiency": ratio("judged", "could", i),
        }
        for i in range(number)
    ]  # fmt: skip


def _sum(key: Ints, value: Ints, size: int) -> Ints:
    return np.bincount(key, value, size).astype(np.int64)


def _class(sums: dict[str, Ints], i: int) -> str:
    wait, moved, unclear = (int(sums[name][i]) for name in ("wait_ns", "transfer_ns", "unsplit_ns"))
    total = wait + moved + unclear
    if wait > MOSTLY * total:
        return CLASSES[1]
    if moved > MOSTLY * total:
        return CLASSES[0]
    return CLASSES[3] if not total or unclear > (1 - MOSTLY) * total else CLASSES[2]


def size_histogram(view: JobView) -> pa.Table:
    """Return messages by group, operation and size."""
    rows = _Rows(view)
    instances = view.instances.filter(pa.array(rows.counts))
    num_bytes, of_instance = ints(instances["bytes"]), rows.of_instance[rows.counts]
    time = np.maximum(ints(instances["end_ns"]) - ints(instances["arrival_ns"]), 0)
    bins = size_bins(num_bytes)
    number = len(rows.keys)
    keys, index = np.unique(np.stack([of_instance, bins]), axis=1, return_inverse=True)
    index, found = index.ravel(), []
    bus = instances["busbw_gbps"].to_numpy(zero_copy_only=False).astype(np.float64)
    for k, (row, up_to) in enumerate(keys.T.tolist()):
        mine = index == k
        known = mine & ~np.isnan(bus)
        group, op = rows.name(row) if row < number else (None, "unknown")
        spent = float(time[known].sum())
        found.append(
            {
                "group": group, "op": op, "up_to_bytes": up_to if up_to >= 0 else None, "count": int(mine.sum()),
                "bytes": int(num_bytes[mine].sum()) if up_to >= 0 else None, "transfer_ns": int(time[mine].sum()),
                "busbw_gbps": float((bus[known] * time[known]).sum()) / spent if spent else None,
            }
        )  # fmt: skip
    return pa.Table.from_pylist(found, schema=HISTOGRAM)


def collectives_table(view: JobView) -> pa.Table:
    """Return one row per call with everything that was found about it."""
    inside = pa.array(view.inside)
    calls, members = view.calls.filter(inside), view.members.filter(inside)
    instance, gid = ints(members["instance"]), ints(members["gid"])
    names = [*group_names(view), None]
    known = instance >= 0
    culprit = np.append(view.blame.culprit, -1)[instance]
    blamed = np.where(ints(members["wait_ns"]) > 0, culprit, -1)
    size = bytes_of_calls(view.calls, _group_sizes(view))[np.asarray(inside)]
    split = known & (ints(members["wait_ns"]) + ints(members["transfer_ns"]) > 0)
    start = ints(members["start_ns"])
    of = pa.array(instance, mask=~known)
    told = {name: view.instances[name].take(of) for name in _OF_INSTANCE}
    return conform(
        COLLECTIVES,
        pa.table(
            {
                "rank": calls["rank"], "step": calls["step"], "instance": pa.array(instance, mask=~known),
                "group": pa.array([names[i] for i in gid.tolist()], pa.utf8()), "op": calls["op"],
                "dtype": calls["dtype"], "bytes": pa.array(size, mask=size < 0), "start_ns": start,
                "dur_ns": ints(members["end_ns"]) - start,
                "wait_ns": pa.array(ints(members["wait_ns"]), mask=~split),
                "transfer_ns": pa.array(ints(members["transfer_ns"]), mask=~split),
                "exposed_wait_ns": members["exposed_wait_ns"], "exposed_transfer_ns": members["exposed_transfer_ns"],
                "bubble_ns": members["bubble_ns"],
                "caused_by": pa.array(blamed, pa.int32(), mask=blamed < 0), "matched": known,
                **{name: calls[name] for name in ("segment", "event_id", "device")}, **told,
                "uncertainty_ns": view.instances["u_ns"].take(of),
            }
        ),
    )  # fmt: skip
