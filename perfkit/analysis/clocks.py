"""Put the clocks of all ranks on one time line, with an error bar (definition 7).

    align_clocks(calls, instance, hosts) -> Clocks
    clocks.align(rank, time)             -> time on the clock of the reference
    clocks.u_ns                          -> clock error between any two ranks that are aligned

Ranks of one host share a clock; a rank whose host is not recorded has one of its own. The members of a
synchronising collective end together, so the differences of their ends are those of their clocks. Hosts that share
collectives are compared directly, the others along the tree of the best-connected pairs. Device time stamps inside
a host can be off by a constant (their translation to host time is per device): such ranks get a correction, which is
reported. A rank whose time stamps step against those of its host gets a clock of its own, which is fitted in pieces.
What shares no collectives with the rest cannot be aligned, and that is said too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from perfkit.analysis.classify import encode_text
from perfkit.analysis.clock_fit import JUMP_NS, SIDE, ClockFit, find_jumps, fit_clock, scatter
from perfkit.analysis.groups import shown_ranks
from perfkit.analysis.intervals import Ints
from perfkit.analysis.timeline import Mask, ints

SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
MIN_SHARED = 3
"""Collectives that two clocks must share: fewer give no error bar."""
CORRECTION_NS = 3_000
"""Constant errors of a device's time stamps below this are left alone."""
SAME_CPU_U_NS = 1_000
"""Clock error between CPU ranks of one host, which read the same clock."""


@dataclass(frozen=True)
class HostClock:
    """One clock: who uses it, and how it differs from the reference."""

    name: str
    ranks: tuple[int, ...]
    parent: int
    """Clock that it was compared with; -1 for a reference, or if it could not be compared."""
    fit: ClockFit | None
    u_ns: int | None
    """Error against the reference without the spread inside a host; None if it is not aligned."""


@dataclass
class Clocks:
    """Clocks of a job. Without collectives to compare them by, nothing is aligned."""

    hosts: list[HostClock] = field(default_factory=list)
    spread_ns: int = 0
    """1.4826·MAD of the ends of one collective on the ranks of one host."""
    corrections: dict[int, int] = field(default_factory=dict)
    """Rank -> constant error of its device's time stamps, which has been taken out."""
    notes: list[str] = field(default_factory=list)

    @property
    def aligned(self) -> bool:
        """Say whether all clocks have been put on one time line."""
        return bool(self.hosts) and all(host.u_ns is not None for host in self.hosts)

    @property
    def u_ns(self) -> int | None:
        """Error between any two ranks that are aligned; None if none are."""
        known = [host.u_ns for host in self.hosts if host.u_ns is not None]
        return max(known) + self.spread_ns if known else None

    def of_rank(self, rank: Ints) -> Ints:
        """Return the clock of each rank, -1 for none."""
        table = np.full(max((max(h.ranks) for h in self.hosts), default=-1) + 2, -1, np.int64)
        for i, host in enumerate(self.hosts):
            table[list(host.ranks)] = i
        result: Ints = table[np.minimum(rank, len(table) - 1)]
        return result

    def align(self, rank: Ints, time: Ints) -> Ints:
        """Return times on the clock of the reference; those of clocks that are not aligned stay."""
        result = time.copy()
        if self.corrections:
            table = np.zeros(int(rank.max(initial=0)) + 1, np.int64)
            for one, value in self.corrections.items():
                table[min(one, len(table) - 1)] = value if one < len(table) else table[-1]
            result -= table[rank]
        clock = self.of_rank(rank)
        order = np.argsort(clock, kind="stable")
        edges = np.searchsorted(clock[order], np.arange(len(self.hosts) + 1))
        for i, (low, high) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
            rows, at = order[low:high], i
            while len(rows) and (fit := self.hosts[at].fit) is not None:
                result[rows] -= fit.at(result[rows])
                at = self.hosts[at].parent
        return result


def align_clocks(calls: pa.Table, instance: Ints, hosts: Mapping[int, str | None]) -> Clocks:
    """Compare the clocks of all ranks in `hosts` by the ends of the matched calls."""
    names, members, clock_of = _domains(hosts)
    rank, end = ints(calls["rank"]), ints(calls["end_ns"])
    ops, values = encode_text(calls["op"])
    sync = np.array([*(value in SYNCHRONISING for value in values), False])[ops] & (instance >= 0)
    notes: list[str] = []
    if jumping := _jumping(rank, end, instance, clock_of[rank], sync):
        names, members, clock_of = _domains({r: None if r in jumping else host for r, host in hosts.items()})
    corrections, spread = _inside_hosts(rank, end, instance, clock_of[rank], sync)
    on_host = calls["device"].null_count == len(calls)
    if on_host:
        corrections, spread = {}, SAME_CPU_U_NS
    elif corrections:
        worst = max(corrections.values(), key=abs)
        who = f"rank{'s' * (len(corrections) > 1)} {shown_ranks(corrections)}"
        notes.append(
            f"device time stamps of {who} differ from others on their host by a constant "
            f"(up to {shown_time(worst)}); taken out"
        )
    end = end - np.array([corrections.get(r, 0) for r in range(len(clock_of))], np.int64)[rank]
    wanted = sync if sync.any() else instance >= 0
    edges = _edges(instance[wanted], clock_of[rank[wanted]], end[wanted])
    clocks = _tree(names, members, *edges)
    found = Clocks(clocks, spread, corrections, notes)
    _say(found)
    return found


def _domains(hosts: Mapping[int, str | None]) -> tuple[list[str], list[tuple[int, ...]], Ints]:
    """Return the clocks, one per host and one per rank whose host is unknown, and the clock of each rank."""
    found: dict[str, list[int]] = {}
    for rank in sorted(hosts):
        found.setdefault(hosts[rank] or f"rank {rank}", []).append(rank)
    clock_of = np.full(max(hosts, default=0) + 1, -1, np.int64)
    for i, ranks in enumerate(found.values()):
        clock_of[ranks] = i
    return list(found), [tuple(ranks) for ranks in found.values()], clock_of


def _from_host(end: Ints, instance: Ints, clock: Ints, sync: Mask) -> tuple[Ints, Ints]:
    """Return calls that end beside others of their host, and how far from the median of these."""
    rows = np.flatnonzero(sync)
    rows = rows[np.lexsort((end[rows], clock[rows], instance[rows]))]
    _, middle, size = _medians(instance[rows], clock[rows], end[rows])
    left = end[rows] - np.repeat(middle, size)
    several = np.repeat(size > 1, size)
    return rows[several], left[several]


def _jumping(rank: Ints, end: Ints, instance: Ints, clock: Ints, sync: Mask) -> set[int]:
    """Return the ranks whose time stamps step against those of their host."""
    rows, left = _from_host(end, instance, clock, sync)
    order = np.lexsort((end[rows], rank[rows]))
    who, when, apart = rank[rows][order], end[rows][order], left[order]
    edges = np.append(np.flatnonzero(np.append(True, who[1:] != who[:-1])), len(who)) if len(who) else who
    found: set[int] = set()
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        mine = apart[low:high]
        wide = np.count_nonzero(np.abs(mine - np.median(mine)) > JUMP_NS) >= SIDE  # cheap, and rarely so
        if wide and find_jumps(when[low:high], mine):
            found.add(int(who[low]))
    return found


def _inside_hosts(rank: Ints, end: Ints, instance: Ints, clock: Ints, sync: Mask) -> tuple[dict[int, int], int]:
    """Return constant errors of ranks against their host, and how far ends of one host spread without them."""
    rows, left = _from_host(end, instance, clock, sync)
    if not len(rows):
        return {}, 0
    order = np.lexsort((left, rank[rows]))
    who, typical, number = _medians(rank[rows][order], np.zeros(len(order), np.int64), left[order])
    noise = scatter(left - np.zeros(1, np.int64))
    large = (np.abs(typical) > CORRECTION_NS) & (number >= 4)
    corrections = {
        int(who[0][i]): int(typical[i])
        for i in np.flatnonzero(large).tolist()
        if abs(typical[i]) > 3 * noise / np.sqrt(number[i]) or noise > CORRECTION_NS
    }
    table = np.zeros(int(rank.max()) + 1, np.int64)
    for one, value in corrections.items():
        table[one] = value
    return corrections, scatter(left - table[rank[rows]])


def _medians(a: Ints, b: Ints, value: Ints) -> tuple[tuple[Ints, Ints], Ints, Ints]:
    """Return keys, medians and sizes of runs of equal keys; rows are sorted by keys, then value."""
    if not len(a):
        return (a, b), value, a
    edges = np.flatnonzero(np.append(True, (a[1:] != a[:-1]) | (b[1:] != b[:-1])))
    size = np.diff(np.append(edges, len(a)))
    low, high = value[edges + (size - 1) // 2], value[edges + size // 2]
    return (a[edges], b[edges]), low + (high - low) // 2, size


def _edges(instance: Ints, clock: Ints, end: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return (near, far, time on far, difference) of every instance: its first clock against each of the others."""
    order = np.lexsort((end, clock, instance))
    (one, where), middle, _ = _medians(instance[order], clock[order], end[order])
    first = np.flatnonzero(np.append(True, one[1:] != one[:-1])) if len(one) else one
    hub = np.repeat(first, np.diff(np.append(first, len(one)))) if len(one) else one
    far = np.flatnonzero(np.arange(len(one)) != hub)
    return where[hub[far]], where[far], middle[far], middle[far] - middle[hub[far]]


def _tree(
    names: list[str], members: list[tuple[int, ...]], near: Ints, far: Ints, time: Ints, difference: Ints
) -> list[HostClock]:
    """Compare every clock with one that is already on the time line, the best-connected first."""
    number = len(names)
    pair = near * number + far
    pairs, count = np.unique(pair, return_counts=True)
    order = np.argsort(pair, kind="stable")
    edges = np.searchsorted(pair[order], np.append(pairs, pairs[-1] + 1 if len(pairs) else 0))
    root = list(range(number))

    def find(i: int) -> int:
        while root[i] != i:
            root[i] = root[root[i]]
            i = root[i]
        return i

    links: dict[int, list[tuple[int, int, int]]] = {}
    for k in np.argsort(-count, kind="stable").tolist():
        a, b = divmod(int(pairs[k]), number)
        if count[k] >= MIN_SHARED and find(a) != find(b):
            root[find(b)] = find(a)
            links.setdefault(a, []).append((b, k, 1))
            links.setdefault(b, []).append((a, k, -1))
    sizes = np.bincount([find(i) for i in range(number)], [len(m) for m in members], number)
    main = int(np.argmax(sizes))
    start = next(i for i in range(number) if find(i) == main)
    found: dict[int, HostClock] = {start: HostClock(names[start], members[start], -1, None, 0)}
    queue = [start]
    for a in queue:
        for b, k, direction in links.get(a, ()):
            if b in found:
                continue
            rows = order[edges[k] : edges[k + 1]]
            when = time[rows] if direction > 0 else time[rows] - difference[rows]
            fit = fit_clock(when, direction * difference[rows])
            found[b] = HostClock(names[b], members[b], a, fit, (found[a].u_ns or 0) + _careful(fit))
            queue.append(b)
    return [found.get(i) or HostClock(names[i], members[i], -1, None, None) for i in range(number)]


def shown_time(ns: int) -> str:
    """Return a length of time in a unit that suits it."""
    size = abs(ns)
    scale, unit = next((one for one in ((1e9, "s"), (1e6, "ms")) if size >= one[0]), (1e3, "µs"))
    return f"{size / scale:,.3g} {unit}" if size / scale < 1000 else f"{size / scale:,.0f} {unit}"


def _careful(fit: ClockFit) -> int:
    """Return the error of a fit; few points scatter less than they should."""
    return int(np.ceil(fit.u_ns * (1 + 4 / fit.points)))


def _say(clocks: Clocks) -> None:
    lost = [host for host in clocks.hosts if host.u_ns is None]
    if lost and len(clocks.hosts) > 1:
        ranks = [rank for host in lost for rank in host.ranks]
        clocks.notes.append(
            f"clocks of ranks {shown_ranks(ranks)} are not aligned: they share fewer than {MIN_SHARED} synchronising "
            "collectives with the others, so nobody is blamed across them"
        )
    for host in clocks.hosts:
        if host.fit is not None and len(host.fit.pieces) > 1:
            steps = ", ".join(
                f"{(after.offset_ns - before.offset_ns) / 1e6:+.3f} ms"
                for before, after in zip(host.fit.pieces[:-1], host.fit.pieces[1:], strict=True)
            )
            other = clocks.hosts[host.parent].name
            clocks.notes.append(f"the clock of {host.name} jumps against {other} ({steps}); each part is aligned alone")
