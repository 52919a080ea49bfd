"""What was exchanged on each process group, and which kind of parallelism does that.

    usage = read_usage(groups, calls, gid)
    usage.guess(g)    -> "tp", "dp", "fsdp", "ep", None
    usage.chains()    -> rank sets that pass messages along: pipelines

What the operations point to: all-to-all is experts; gathers and reduce-scatters together are sharded parameters;
all-reduces through the whole step are tensor parallelism, and those with a long silence (the forward pass) are
gradients; with a single step their sizes decide, because activations are all alike and buckets are not. Messages that
go both ways between neighbours are a pipeline, and a ring that only goes round is not. These are habits, not laws:
they count only for groups whose names say nothing, and the layout says so.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.classify import encode_text
from perfkit.analysis.intervals import Ints
from perfkit.analysis.timeline import Mask, ints

SILENCE_RATIO = 0.3
"""An all-reduce group that is silent for a longer share of the step carries gradients."""
ALIKE_RATIO, MANY_REDUCES = 0.8, 16
"""So many all-reduces of one or two sizes in a step are activations; gradients have many sizes."""
BUCKET_BYTES = 20 << 20
"""From here on the same size again and again may also be a gradient bucket."""
MESSAGES = ("send", "recv", "send_recv")


@dataclass(frozen=True)
class Usage:
    """Calls by group and operation, and who sent messages to whom."""

    counts: list[dict[str, int]]
    silence: list[float | None]
    """By group: the longest time without a call, as a share of the step; None with fewer than two steps."""
    alike: list[float | None]
    """By group: the share of its all-reduces with the two most frequent sizes; None if sizes are not recorded."""
    usual_bytes: list[int]
    """By group: the most frequent of them."""
    per_step: list[float]
    """By group: all-reduces of known size of one rank in one step."""
    pairs: Ints
    """Distinct (group, sender, receiver), one per row; the group may be -1."""

    def carries(self, g: int) -> bool:
        """Say whether anything was exchanged on the group."""
        return bool(self.counts[g])

    def shards(self, g: int) -> bool:
        """Say whether parameters are gathered and gradients scattered on the group, whatever else it carries."""
        return self.counts[g].get("all_gather", 0) > 0 and self.counts[g].get("reduce_scatter", 0) > 0

    def is_message(self, g: int) -> bool:
        """Say whether a group carries messages and hardly anything else."""
        counts = self.counts[g]
        messages = sum(counts.get(op, 0) for op in MESSAGES)
        return messages > 0 and 2 * messages >= sum(counts.values())

    def guess(self, g: int) -> str | None:
        """Return the axis that the operations point to, None if they do not."""
        counts = self.counts[g]
        total = sum(n for op, n in counts.items() if op not in ("barrier", "broadcast", "unknown"))
        gather, scatter, reduce = (counts.get(op, 0) for op in ("all_gather", "reduce_scatter", "all_reduce"))
        if not total:
            return None
        if 2 * counts.get("all_to_all", 0) >= total:
            return "ep"
        if self.is_message(g):
            return None
        if gather and scatter and 2 * (gather + scatter) >= total:
            return "fsdp"
        return self.reduces(g) if 2 * reduce >= total else None

    def reduces(self, g: int) -> str | None:
        """Return what the all-reduces of a group point to, whatever else it carries."""
        silent, kind = self.silence[g], self._sizes_say(g)
        if silent is None:
            return {"activations": "tp", "buckets": "dp"}.get(kind or "")
        if silent > SILENCE_RATIO:
            return None if kind == "activations" else "dp"  # two witnesses that contradict each other are none
        return None if kind == "buckets" else "tp"

    def _sizes_say(self, g: int) -> str | None:
        """Return what the sizes of all-reduces look like; None if they are not recorded, or like both."""
        alike = self.alike[g]
        if alike is None:
            return None
        if alike < ALIKE_RATIO or self.per_step[g] < MANY_REDUCES:
            return "buckets"
        return "activations" if self.usual_bytes[g] < BUCKET_BYTES else None

    def is_reducing(self, groups: Iterable[int]) -> bool:
        """Say whether some groups carry all-reduces more than anything else."""
        total: Counter[str] = sum((Counter(self.counts[g]) for g in groups), Counter())
        return 2 * total["all_reduce"] >= total.total() > 0

    def vote(self, groups: Iterable[int]) -> str | None:
        """Return the axis that most of some groups point to."""
        votes = Counter(guess for g in groups if (guess := self.guess(g)) is not None)
        return votes.most_common(1)[0][0] if votes else None

    def pause(self, groups: Iterable[int]) -> float:
        """Return the median silence of some groups, 1 if it is not known."""
        known = [silent for g in groups if (silent := self.silence[g]) is not None]
        return float(np.median(known)) if known else 1.0

    def chains(self, skip: Collection[int] = ()) -> list[tuple[int, ...]]:
        """Return the sets of ranks that pass messages both ways, each sorted; rings that only go round are left out."""
        pairs = self.pairs[~np.isin(self.pairs[:, 0], list(skip))][:, 1:]
        if not len(pairs):
            return []
        known, flat = np.unique(pairs, return_inverse=True)
        ends = flat.reshape(-1, 2)
        label = np.arange(len(known))
        while True:  # every rank takes the least number among its neighbours, until nothing changes
            least = label.copy()
            low = np.minimum(label[ends[:, 0]], label[ends[:, 1]])
            np.minimum.at(least, ends[:, 0], low)
            np.minimum.at(least, ends[:, 1], low)
            if (least == label).all():
                break
            label = least
        back = np.isin(ends[:, 0] * len(known) + ends[:, 1], ends[:, 1] * len(known) + ends[:, 0])
        both = set(label[ends[back, 0]].tolist())
        return [tuple(known[label == one].tolist()) for one in sorted(both)]


def read_usage(groups: pa.Table, calls: pa.Table, gid: Ints | None = None) -> Usage:
    """Count calls by group; without `gid` a call belongs to the group with its ranks and name."""
    number = len(groups)
    if gid is None:
        gid = group_of_calls(groups, calls)
    op, ops = encode_text(calls["op"])
    counts: list[dict[str, int]] = [{} for _ in range(number)]
    keys, totals = np.unique((gid * (len(ops) + 1) + op)[(gid >= 0) & (op >= 0)], return_counts=True)
    for key, total in zip(keys.tolist(), totals.tolist(), strict=True):
        counts[key // (len(ops) + 1)][ops[key % (len(ops) + 1)]] = total
    reduces = (np.array([*(name == "all_reduce" for name in ops), False])[op]) & (gid >= 0)
    silence, sizes = _silence(calls, gid, reduces, number), _alike(calls, gid, reduces, number)
    return Usage(counts, silence, *sizes, _pairs(calls, gid, op, ops))


def group_of_calls(groups: pa.Table, calls: pa.Table) -> Ints:
    """Return the row of `groups` with the ranks and name of each call, -1 if there is none."""
    by_both: dict[tuple[tuple[int, ...] | None, str | None], int] = {}
    by_ranks: dict[tuple[int, ...], int] = {}
    by_name: dict[str, int] = {}
    for g, (name, ranks) in enumerate(zip(groups["name"].to_pylist(), groups["ranks"].to_pylist(), strict=True)):
        members = None if ranks is None else tuple(sorted(ranks))
        by_both.setdefault((members, name), g)
        if members is not None:
            by_ranks.setdefault(members, g)
        if name is not None:
            by_name.setdefault(name, g)
    (code, texts), (named, names) = encode_text(calls["group_ranks"]), encode_text(calls["group"])
    pairs, which = np.unique(code.astype(np.int64) * (len(names) + 1) + named + 1, return_inverse=True)
    found = []
    for pair in pairs.tolist():
        at, name_at = divmod(pair, len(names) + 1)
        members = tuple(sorted(json.loads(texts[at]))) if at >= 0 and texts[at] else None
        name = names[name_at - 1] if name_at > 0 else None
        known = by_both.get((members, name), -1)
        if known < 0 and members is not None:
            known = by_ranks.get(members, -1)
        found.append(by_name.get(name or "", -1) if known < 0 and members is None else known)
    result: Ints = np.array([*found, -1], np.int64)[which]
    return result


def _silence(calls: pa.Table, gid: Ints, chosen: Mask, number: int) -> list[float | None]:
    """Return the longest pause between calls of a rank on a group, over the time of a step; the median over ranks."""
    result: list[float | None] = [None] * number
    step = ints(calls["step"])
    rows = np.flatnonzero(chosen & (step >= 0))
    if not len(rows):
        return result
    rank, start, step, gid = ints(calls["rank"])[rows], ints(calls["start_ns"])[rows], step[rows], gid[rows]
    order = np.lexsort((start, rank, gid))
    rank, start, step, gid = rank[order], start[order], step[order], gid[order]
    edge = np.append(True, (gid[1:] != gid[:-1]) | (rank[1:] != rank[:-1]))
    first = np.flatnonzero(edge)
    pause = np.where(edge, 0, np.diff(start, prepend=start[:1]))
    longest = np.maximum.reduceat(pause, first)
    new_step = ~edge & (step != np.append(step[:1], step[:-1]))
    steps = np.add.reduceat(new_step.astype(np.int64), first)
    begin = start[first].repeat(np.diff(np.append(first, len(edge))))
    reached = np.maximum.reduceat(np.where(new_step, start, begin), first) - start[first]
    usable = (steps > 0) & (reached > 0)
    share = longest[usable] * steps[usable] / reached[usable]
    owner = gid[first[usable]]
    for g in np.unique(owner).tolist():
        result[g] = float(np.median(share[owner == g]))
    return result


def _alike(calls: pa.Table, gid: Ints, chosen: Mask, number: int) -> tuple[list[float | None], list[int], list[float]]:
    """Return the share of the two most frequent sizes of each group, the most frequent one, and calls per step."""
    size = np.maximum(ints(calls["in_bytes"]), ints(calls["out_bytes"]))
    rows = chosen & (size >= 0)
    keys, count = np.unique(np.stack([gid[rows], size[rows]], axis=1), axis=0, return_counts=True)
    total, most, usual = (np.zeros(number, np.int64) for _ in range(3))
    np.add.at(total, keys[:, 0], count)
    for _ in range(2):  # the most frequent, then the next
        order = np.argsort(count, kind="stable")
        best = np.full(number, -1, np.int64)
        best[keys[order, 0]] = order  # the last one written stays
        found = np.flatnonzero(best >= 0)
        most[found] += count[best[found]]
        usual[found] = np.where(usual[found] == 0, keys[best[found], 1], usual[found])
        count = count.copy()
        count[best[found]] = 0
    places = np.unique(np.stack([gid[rows], ints(calls["rank"])[rows], ints(calls["step"])[rows]], axis=1), axis=0)
    steps = np.bincount(places[:, 0], minlength=number)
    share = [float(most[g] / total[g]) if total[g] else None for g in range(number)]
    return share, usual.tolist(), (total / np.maximum(steps, 1)).tolist()


def _pairs(calls: pa.Table, gid: Ints, op: Ints, ops: list[str]) -> Ints:
    sends, receives = (np.array([*(name == wanted for name in ops), False])[op] for wanted in ("send", "recv"))
    known = np.asarray(pc.is_valid(calls["peer"])) & (sends | receives)
    rank, peer = ints(calls["rank"])[known], ints(calls["peer"])[known]
    source, target = np.where(sends[known], rank, peer), np.where(sends[known], peer, rank)
    result: Ints = np.unique(np.stack([gid[known], source, target], axis=1), axis=0)
    return result
